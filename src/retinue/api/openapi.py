"""Builds the OpenAPI 3.1 document and the CLI's command table from the declarations of the operations.

Both contain only the operations that the principal may call.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from retinue.domain.agent import PermissionLevel
from retinue.domain.principal import Principal
from retinue.operations.base import Operation, Services
from retinue.operations.parameter_schema import command_row
from retinue.policy.access import operation_permissions

REF_TEMPLATE = "#/components/schemas/{name}"
ERROR_DESCRIPTIONS = {
    "400": "Invalid request; nothing was changed.",
    "401": "Not signed in.",
    "403": "Not allowed.",
    "404": "Not found, or not visible to you.",
    "409": "Conflicts with the current state.",
    "413": "Too large.",
    "429": "Too many requests. `Retry-After` says when to try again.",
    "500": "Internal error; details are in the log.",
    "503": "The store is not available; nothing was changed.",
}


class ErrorForm(msgspec.Struct, rename={"try_this": "try"}):
    code: str
    sentence: str
    because: str
    try_this: str
    candidates: list[str] | msgspec.UnsetType = msgspec.UNSET
    matches: int | msgspec.UnsetType = msgspec.UNSET
    retry_after_s: int | msgspec.UnsetType = msgspec.UNSET


class ErrorResponse(msgspec.Struct):
    error: ErrorForm


def list_allowed_operations(services: Services, caller: Principal, operations: Iterable[Operation]) -> list[Operation]:
    return [
        each
        for each in operations
        if operation_permissions.decide_operation(each.name, caller.level, services.permission_policy).is_allowed
    ]


def build_openapi_for(services: Services, caller: Principal, operations: Iterable[Operation]) -> dict[str, Any]:
    """Return the OpenAPI document of the operations that this principal may call."""
    return build_openapi(
        list_allowed_operations(services, caller, operations), services.permission_policy, version=services.version
    )


def build_openapi(
    operations: Iterable[Operation], policy: Mapping[str, PermissionLevel], *, version: str
) -> dict[str, Any]:
    offered = list(operations)
    types: list[Any] = [ErrorResponse]
    for operation in offered:
        types += [operation.parameters, operation.result]
    schemas, components = msgspec.json.schema_components(types, ref_template=REF_TEMPLATE)
    errors = {
        f"error-{status}": {"description": says, "content": {"application/json": {"schema": schemas[0]}}}
        for status, says in ERROR_DESCRIPTIONS.items()
    }
    paths = {
        operation.route: {"post": _build_path(policy, operation, schemas[1 + 2 * index], schemas[2 + 2 * index])}
        for index, operation in enumerate(offered)
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "retinue", "version": version, "description": "Operations of this server."},
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": errors,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "browser": {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": "retinue",
                    "description": "From POST /api/sign-in. All but GET requests also need the header `x-retinue: 1`.",
                },
            },
        },
        "security": [{"token": []}, {"browser": []}],
    }


def _build_path(
    policy: Mapping[str, PermissionLevel], operation: Operation, parameters: Any, result: Any
) -> dict[str, Any]:
    path: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "tags": [operation.name.partition(".")[0]],
        "x-permission": operation_permissions.required_level(operation.name, policy),
        "x-effect": operation.has_effect,
        "requestBody": {"required": _needs_body(operation), "content": {"application/json": {"schema": parameters}}},
        "responses": {
            "200": {"description": "Done.", "content": {"application/json": {"schema": result}}},
            **{status: {"$ref": f"#/components/responses/error-{status}"} for status in ERROR_DESCRIPTIONS},
        },
    }
    if operation.has_effect:
        path["parameters"] = [
            {
                "name": "idempotency-key",
                "in": "header",
                "description": "A repeated request with the same key gets the same response and changes nothing.",
                "schema": {"type": "string", "maxLength": 256},
            }
        ]
    return path


def _needs_body(operation: Operation) -> bool:
    return any(field.required for field in msgspec.structs.fields(operation.parameters))


def build_operation_list(services: Services, caller: Principal, operations: Iterable[Operation]) -> dict[str, Any]:
    offered = list_allowed_operations(services, caller, operations)
    schemas, components = msgspec.json.schema_components(
        [each.parameters for each in offered], ref_template=REF_TEMPLATE
    )
    return {
        "version": services.version,
        "operations": [
            {
                "name": each.name,
                "route": each.route,
                "summary": each.summary,
                "effect": each.has_effect,
                "permission": operation_permissions.required_level(each.name, services.permission_policy),
                "parameters": schema,
            }
            for each, schema in zip(offered, schemas, strict=True)
        ],
        "components": {"schemas": components},
    }


def build_command_table(services: Services, caller: Principal, operations: Iterable[Operation]) -> dict[str, Any]:
    """Return the operations of plugins in the form of the CLI's table of built-in operations."""
    return {
        "version": services.version,
        "commands": [command_row(each) for each in list_allowed_operations(services, caller, operations)],
    }
