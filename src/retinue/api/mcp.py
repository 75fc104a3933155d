"""MCP server over streamable HTTP at `/mcp`. It is stateless: each request gets one response.

Without sessions and streams, the protocol is so small that no library is needed. The same permissions and tool policies
apply as in every other interface.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from retinue.api.errors import ForeignOrigin, InternalError
from retinue.domain.errors import RetinueError
from retinue.domain.shared_errors import NotSignedIn
from retinue.domain.storable_text import is_storable
from retinue.operations.mcp.mcp_endpoint import McpEndpoint, McpEndpointTool

log = logging.getLogger(__name__)

PROTOCOL_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
INSTRUCTIONS = "Operations of a retinue server, and tools of its agents. An error names its reason and a next step."
IDEMPOTENCY_KEY_META = "retinue/idempotency_key"
"""Name of the idempotency key in the `_meta` of a call. A call repeated with the same key is performed only once."""
_OLD_IDEMPOTENCY_KEY_META = "retinue/key"

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS = -32700, -32600, -32601, -32602

_encode = msgspec.json.Encoder().encode


class RpcError(Exception):
    """A JSON-RPC request that cannot be processed."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class RpcMessage(msgspec.Struct):
    """One JSON-RPC message.

    A notification has no id. A message without a method is a response. Responses are ignored, because this server sends
    no requests.
    """

    jsonrpc: str
    method: str | None = None
    id: str | int | msgspec.UnsetType | None = msgspec.UNSET
    params: dict[str, Any] | None = None


class ToolCallParams(msgspec.Struct):
    name: str
    arguments: dict[str, Any] | None = None
    meta: dict[str, Any] | None = msgspec.field(default=None, name="_meta")


class InitializeParams(msgspec.Struct):
    version: str = msgspec.field(default="", name="protocolVersion")


def check_headers(headers: Mapping[bytes, bytes]) -> None:
    """Require that an MCP request has a token.

    Cookies are not accepted, because a browser also sends them with requests from pages of other sites.
    """
    if headers.get(b"sec-fetch-site", b"none") not in (b"none", b"same-origin"):
        raise ForeignOrigin(is_mcp=True)
    if b"authorization" not in headers:
        raise NotSignedIn(
            because="the request has no token",
            try_this="send `Authorization: Bearer TOKEN`; create a token: retinue token create",
        )


async def answer_message(endpoint: McpEndpoint, body: bytes) -> bytes | None:
    """Return the response to one message, or None for a notification."""
    id_: str | int | None = None
    try:
        message = _parse_message(body)
        if message.id is msgspec.UNSET or message.method is None:
            return None
        id_ = message.id
        result = await _handle_method(endpoint, message.method, message.params or {})
    except RpcError as wrong:
        return _encode_response(id_, error={"code": wrong.code, "message": str(wrong)})
    except RetinueError as error:
        return _encode_response(
            id_, error={"code": INVALID_REQUEST, "message": str(error), "data": {"code": error.code}}
        )
    return _encode_response(id_, result=result)


def _encode_response(id_: str | int | None, **content: Any) -> bytes:
    return _encode({"jsonrpc": "2.0", "id": id_, **content})


def _parse_message(body: bytes) -> RpcMessage:
    try:
        message = msgspec.json.decode(body, type=RpcMessage)
    except (msgspec.ValidationError, RecursionError):
        raise RpcError(INVALID_REQUEST, "the request is not one JSON-RPC message") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise RpcError(PARSE_ERROR, "the request is not JSON") from None
    if message.jsonrpc != "2.0":
        raise RpcError(INVALID_REQUEST, "`jsonrpc` must be 2.0")
    return message


async def _handle_method(endpoint: McpEndpoint, method: str, params: dict[str, Any]) -> dict[str, Any]:
    match method:
        case "initialize":
            version = _parse_params(params, InitializeParams).version
            return {
                "protocolVersion": version if version in PROTOCOL_VERSIONS else PROTOCOL_VERSIONS[-1],
                "capabilities": {"tools": {"listChanged": False}},
                "serverInfo": {"name": "retinue", "version": endpoint.services.version},
                "instructions": INSTRUCTIONS,
            }
        case "ping":
            return {}
        case "tools/list":
            return {"tools": [_to_tool_entry(each) for each in await endpoint.list_tools()]}
        case "tools/call":
            return await _call_tool(endpoint, _parse_params(params, ToolCallParams))
        case _:
            raise RpcError(METHOD_NOT_FOUND, f"no method named '{method[:64]}'")


async def _call_tool(endpoint: McpEndpoint, params: ToolCallParams) -> dict[str, Any]:
    """Call a tool and return its result.

    An error is returned as a result too, so that the calling model reads the reason.
    """
    meta = params.meta or {}
    if _OLD_IDEMPOTENCY_KEY_META in meta:  # if it were ignored, a repeated call would be performed twice
        raise RpcError(INVALID_PARAMS, f"`{_OLD_IDEMPOTENCY_KEY_META}` is now `{IDEMPOTENCY_KEY_META}`")
    key = meta.get(IDEMPOTENCY_KEY_META, "")
    if not isinstance(key, str) or not is_storable(key):
        raise RpcError(INVALID_PARAMS, f"`{IDEMPOTENCY_KEY_META}` must be a string")
    try:
        done = await endpoint.call_tool(params.name, params.arguments or {}, key=key)
    except RetinueError as error:
        return _to_text_result(str(error), has_failed=True)
    except Exception:
        log.exception("mcp call failed", extra={"operation": params.name[:64]})
        return _to_text_result(str(InternalError(params.name[:64])), has_failed=True)
    result = _to_text_result(done.text, has_failed=done.is_error)
    if done.is_json:
        content: object = msgspec.json.decode(done.text)
        if isinstance(content, dict):
            result["structuredContent"] = cast("dict[str, Any]", content)
    return result


def _to_text_result(text: str, *, has_failed: bool) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "isError": has_failed}


def _to_tool_entry(tool: McpEndpointTool) -> dict[str, Any]:
    return {
        "name": tool.name,
        "description": tool.description,
        "inputSchema": tool.parameters,
        "annotations": {"readOnlyHint": not tool.has_effect, "openWorldHint": tool.reaches_outside},
    }


def _parse_params(params: dict[str, Any], kind: type[Any]) -> Any:
    try:
        return msgspec.convert(params, kind)
    except msgspec.ValidationError as error:
        raise RpcError(INVALID_PARAMS, str(error)) from None
