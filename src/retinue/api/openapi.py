"""OpenAPI 3.1 document and plain list of the operations, generated from their declarations.

Each principal sees only the operations that it may call.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from retinue.domain.agent import PermissionLevel
from retinue.domain.principal import Principal
from retinue.operations.base import Desk, Operation
from retinue.operations.parameter_schema import command
from retinue.policy.access import permissions

REF = "#/components/schemas/{name}"
STATUSES = {
    "400": "Not understood; nothing was changed.",
    "401": "Not signed in.",
    "403": "Understood, and not allowed.",
    "404": "There is no such thing, or none that you see.",
    "409": "It contradicts something that is already so.",
    "413": "Too large.",
    "429": "Too often. `Retry-After` says when to ask again.",
    "500": "A fault in the house, which is in its log.",
    "503": "The store does not answer; nothing was changed.",
}


class ErrorForm(msgspec.Struct, rename={"try_this": "try", "retry_after_s": "retry-after-s"}):
    code: str
    sentence: str
    because: str
    try_this: str
    candidates: list[str] | msgspec.UnsetType = msgspec.UNSET
    matches: int | msgspec.UnsetType = msgspec.UNSET
    retry_after_s: int | msgspec.UnsetType = msgspec.UNSET


class Refusal(msgspec.Struct):
    error: ErrorForm


def allowed(desk: Desk, caller: Principal, operations: Iterable[Operation]) -> list[Operation]:
    return [each for each in operations if permissions.decide(each.name, caller.level, desk.policy).allowed]


def openapi(desk: Desk, caller: Principal, operations: Iterable[Operation]) -> dict[str, Any]:
    """Return the document with the operations that this principal may call."""
    return document(allowed(desk, caller, operations), desk.policy, version=desk.version)


def document(operations: Iterable[Operation], policy: Mapping[str, PermissionLevel], *, version: str) -> dict[str, Any]:
    offered = list(operations)
    types: list[Any] = [Refusal]
    for operation in offered:
        types += [operation.parameters, operation.result]
    schemas, components = msgspec.json.schema_components(types, ref_template=REF)
    refused = {
        f"refused-{status}": {"description": says, "content": {"application/json": {"schema": schemas[0]}}}
        for status, says in STATUSES.items()
    }
    paths = {
        operation.route: {"post": _path(policy, operation, schemas[1 + 2 * index], schemas[2 + 2 * index])}
        for index, operation in enumerate(offered)
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "retinue", "version": version, "description": "What can be asked of this house."},
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": refused,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "browser": {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": "retinue",
                    "description": "From POST /api/sign-in. Everything but GET needs the header `x-retinue: 1` too.",
                },
            },
        },
        "security": [{"token": []}, {"browser": []}],
    }


def _path(policy: Mapping[str, PermissionLevel], operation: Operation, parameters: Any, result: Any) -> dict[str, Any]:
    path: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "tags": [operation.name.partition(".")[0]],
        "x-permission": permissions.needed_for(operation.name, policy),
        "x-effect": operation.effect,
        "requestBody": {"required": _needs_body(operation), "content": {"application/json": {"schema": parameters}}},
        "responses": {
            "200": {"description": "Done.", "content": {"application/json": {"schema": result}}},
            **{status: {"$ref": f"#/components/responses/refused-{status}"} for status in STATUSES},
        },
    }
    if operation.effect:
        path["parameters"] = [
            {
                "name": "idempotency-key",
                "in": "header",
                "description": "Asked again with the same key, the same answer is given and nothing is done.",
                "schema": {"type": "string", "maxLength": 256},
            }
        ]
    return path


def _needs_body(operation: Operation) -> bool:
    return any(field.required for field in msgspec.structs.fields(operation.parameters))


def listing(desk: Desk, caller: Principal, operations: Iterable[Operation]) -> dict[str, Any]:
    offered = allowed(desk, caller, operations)
    schemas, components = msgspec.json.schema_components([each.parameters for each in offered], ref_template=REF)
    return {
        "version": desk.version,
        "operations": [
            {
                "name": each.name,
                "route": each.route,
                "summary": each.summary,
                "effect": each.effect,
                "permission": permissions.needed_for(each.name, desk.policy),
                "parameters": schema,
            }
            for each, schema in zip(offered, schemas, strict=True)
        ],
        "components": {"schemas": components},
    }


def commands(desk: Desk, caller: Principal, operations: Iterable[Operation]) -> dict[str, Any]:
    """Return plugin operations in the form of the CLI's built-in table, which cannot contain them."""
    return {"version": desk.version, "commands": [command(each) for each in allowed(desk, caller, operations)]}
