"""What other programs are made with says what the house does."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest

from retinue.api.generate_openapi import OPENAPI, ROOT, TYPES, type_of, typescript
from retinue.api.openapi import document
from retinue.operations.catalog import OPERATIONS, POLICY


def test_the_document_and_the_types_are_current() -> None:
    assert json.loads(OPENAPI.read_text()) == document(OPERATIONS.values(), POLICY, version="0")
    assert TYPES.read_text() == typescript(OPERATIONS.values())


@pytest.mark.spec("A45")
def test_every_operation_has_its_path_its_parameters_and_its_permission() -> None:
    made = document(OPERATIONS.values(), POLICY, version="0")
    assert made["openapi"].startswith("3.1")
    for operation in OPERATIONS.values():
        path = made["paths"][operation.route]["post"]
        assert path["operationId"] == operation.name
        assert path["x-permission"] == operation.permission
        assert path["x-effect"] is operation.effect
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
def test_types_are_said_in_typescript(kind: object, said: str) -> None:
    assert type_of(msgspec.json.schema(kind)) == said


def test_the_types_are_typescript(tmp_path: Path) -> None:
    compiler = ROOT / "web" / "node_modules" / ".bin" / "tsc"
    if not compiler.exists() or shutil.which("node") is None:
        pytest.skip("the web page's compiler is not installed here")
    done = subprocess.run([compiler, "--noEmit", "--strict", str(TYPES)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
