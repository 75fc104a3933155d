"""The OpenAPI document describes the operations of the server."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest

from retinue.api.generate_openapi import OPENAPI_FILE, ROOT, TYPES_FILE, render_typescript, to_typescript
from retinue.api.openapi import build_openapi
from retinue.operations.catalog import DEFAULT_PERMISSIONS, OPERATIONS


def test_the_openapi_document_and_the_typescript_types_are_up_to_date() -> None:
    assert json.loads(OPENAPI_FILE.read_text()) == build_openapi(OPERATIONS.values(), DEFAULT_PERMISSIONS, version="0")
    assert TYPES_FILE.read_text() == render_typescript(OPERATIONS.values())


@pytest.mark.spec("A45")
def test_every_operation_has_its_path_parameters_and_permission_in_the_openapi_document() -> None:
    made = build_openapi(OPERATIONS.values(), DEFAULT_PERMISSIONS, version="0")
    assert made["openapi"].startswith("3.1")
    for operation in OPERATIONS.values():
        path = made["paths"][operation.route]["post"]
        assert path["operationId"] == operation.name
        assert path["x-permission"] == operation.permission
        assert path["x-effect"] is operation.has_effect
        schema = path["requestBody"]["content"]["application/json"]["schema"]
        named = made["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        assert set(named.get("properties", {})) == set(operation.parameters.__struct_encode_fields__)
        for response in path["responses"].values():
            if "$ref" in response:
                assert response["$ref"].rpartition("/")[2] in made["components"]["responses"]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (str, "string"),
        (int | None, "number | null"),
        (list[bool], "Array<boolean>"),
        (dict[str, float], "Record<string, number>"),
        (dict[str, msgspec.Raw], "Record<string, unknown>"),
    ],
)
def test_a_json_schema_is_rendered_as_typescript(kind: object, said: str) -> None:
    assert to_typescript(msgspec.json.schema(kind)) == said


def test_the_typescript_types_generated_from_the_operations_compile(tmp_path: Path) -> None:
    compiler = ROOT / "web" / "node_modules" / ".bin" / "tsc"
    if not compiler.exists() or shutil.which("node") is None:
        pytest.skip("the packages of the web app are not installed")
    done = subprocess.run(
        [compiler, "--noEmit", "--strict", str(TYPES_FILE)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
