"""Generates the OpenAPI document, and the TypeScript types for the web app.

Run `python -m retinue.api.generate_openapi` in a checkout, or `make generate`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from retinue.api.openapi import ErrorResponse, build_openapi
from retinue.operations.base import Operation
from retinue.operations.catalog import DEFAULT_PERMISSIONS, OPERATIONS

ROOT = Path(__file__).parent.parent.parent.parent
OPENAPI_FILE = ROOT / "docs" / "reference" / "openapi.json"
TYPES_FILE = ROOT / "web" / "src" / "lib" / "operations.ts"
REF_TEMPLATE = "#/{name}"
UNKNOWN_TYPE = "unknown"


def main() -> None:
    OPENAPI_FILE.write_text(
        json.dumps(build_openapi(OPERATIONS.values(), DEFAULT_PERMISSIONS, version="0"), indent=1, ensure_ascii=False)
        + "\n"
    )
    TYPES_FILE.parent.mkdir(parents=True, exist_ok=True)
    TYPES_FILE.write_text(render_typescript(OPERATIONS.values()))


def render_typescript(operations: Iterable[Operation]) -> str:
    """Return the parameter and result types of all operations, and a map of them by operation name."""
    offered = list(operations)
    kinds: list[Any] = [ErrorResponse]
    for operation in offered:
        kinds += [operation.parameters, operation.result]
    schemas, components = msgspec.json.schema_components(kinds, ref_template=REF_TEMPLATE)
    lines = ["// Made from the code by `make generate`.", ""]
    for name in sorted(components):
        lines += [f"export type {_to_type_name(name)} = {to_typescript(components[name])};", ""]
    lines.append("export interface Operations {")
    for index, operation in enumerate(offered):
        parameters, result = to_typescript(schemas[1 + 2 * index]), to_typescript(schemas[2 + 2 * index])
        has_effect = json.dumps(operation.has_effect)
        lines += [
            f"  /** {operation.summary} */",
            f'  "{operation.name}": {{ parameters: {parameters}; result: {result}; hasEffect: {has_effect} }};',
        ]
    lines += ["}", ""]
    lines.append("export const routes: { [Name in keyof Operations]: string } = {")
    lines += [f'  "{operation.name}": "{operation.route}",' for operation in offered]
    lines += ["};", ""]
    return "\n".join(lines)


def to_typescript(schema: Mapping[str, Any]) -> str:
    """Convert a JSON schema to a TypeScript type. Supports only what retinue's declarations use."""
    if "$ref" in schema:
        return _to_type_name(str(schema["$ref"]).rpartition("/")[2])
    if "enum" in schema:
        return " | ".join(json.dumps(value) for value in schema["enum"])
    if "const" in schema:
        return json.dumps(schema["const"])
    if "anyOf" in schema:
        return " | ".join(
            dict.fromkeys(to_typescript(part) for part in cast("list[Mapping[str, Any]]", schema["anyOf"]))
        )
    match schema.get("type"):
        case "string":
            return "string"
        case "integer" | "number":
            return "number"
        case "boolean":
            return "boolean"
        case "null":
            return "null"
        case "array":
            items: Mapping[str, Any] = schema.get("items") or {}
            return f"Array<{to_typescript(items)}>"
        case "object":
            return _to_object_type(schema)
        case _:
            return UNKNOWN_TYPE


def _to_object_type(schema: Mapping[str, Any]) -> str:
    properties: Mapping[str, Mapping[str, Any]] = schema.get("properties") or {}
    if not properties:
        more = schema.get("additionalProperties")
        if more is False:
            return "Record<string, never>"
        values = to_typescript(cast("Mapping[str, Any]", more)) if isinstance(more, dict) else UNKNOWN_TYPE
        return f"Record<string, {values}>"
    required = set(cast("list[str]", schema.get("required") or []))
    fields = "; ".join(
        f"{json.dumps(name)}{'' if name in required else '?'}: {to_typescript(of)}" for name, of in properties.items()
    )
    return f"{{ {fields} }}"


def _to_type_name(name: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in name.replace(".", "_").split("_"))


if __name__ == "__main__":
    main()
