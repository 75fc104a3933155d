"""MCP server over streamable HTTP at `/mcp`, stateless: one request, one response.

Without sessions and streams the protocol is small, so this is our own implementation. Permissions
and policy are the same as in every other interface.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from retinue.api.responses import NotSignedIn, broke
from retinue.domain.errors import NotAllowed, RetinueError
from retinue.domain.storable_text import is_storable
from retinue.operations.mcp.mcp_endpoint import Offered, Visitor

log = logging.getLogger(__name__)

VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
INSTRUCTIONS = "Operations of a retinue house, and tools of its agents. Each says what it does; errors say what to try."
KEY = "retinue/key"
"""In the `_meta` of a call with an effect: asked again with the same key, nothing is done twice."""

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS = -32700, -32600, -32601, -32602

_encode = msgspec.json.Encoder().encode


class Wrong(Exception):
    """A JSON-RPC request that cannot be processed."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Message(msgspec.Struct):
    """One JSON-RPC message.

    A notification has no id. A response has no method; we never send requests.
    """

    jsonrpc: str
    method: str | None = None
    id: str | int | msgspec.UnsetType | None = msgspec.UNSET
    params: dict[str, Any] | None = None


class Calling(msgspec.Struct):
    name: str
    arguments: dict[str, Any] | None = None
    meta: dict[str, Any] | None = msgspec.field(default=None, name="_meta")


class Beginning(msgspec.Struct):
    version: str = msgspec.field(default="", name="protocolVersion")


def check(headers: Mapping[bytes, bytes]) -> None:
    """Require a token.

    Cookies are not accepted, because pages of any site could send them along.
    """
    if headers.get(b"sec-fetch-site", b"none") not in (b"none", b"same-origin"):
        raise NotAllowed(
            "pages of other sites may not ask anything here",
            because="the request comes from a page that is not ours",
            try_this="use an MCP client that is no page",
            code="request.foreign-origin",
        )
    if b"authorization" not in headers:
        raise NotSignedIn(
            "who are you?",
            because="the request carries no token",
            try_this="send `Authorization: Bearer TOKEN`; make one with `retinue token create`",
        )


async def answer(visitor: Visitor, body: bytes) -> bytes | None:
    """Return the response to one message; None for a notification."""
    id_: str | int | None = None
    try:
        message = _read(body)
        if message.id is msgspec.UNSET or message.method is None:
            return None
        id_ = message.id
        result = await _result(visitor, message.method, message.params or {})
    except Wrong as wrong:
        return _said(id_, error={"code": wrong.code, "message": str(wrong)})
    except RetinueError as error:
        return _said(id_, error={"code": INVALID_REQUEST, "message": str(error), "data": {"code": error.code}})
    return _said(id_, result=result)


def _said(id_: str | int | None, **what: Any) -> bytes:
    return _encode({"jsonrpc": "2.0", "id": id_, **what})


def _read(body: bytes) -> Message:
    try:
        message = msgspec.json.decode(body, type=Message)
    except (msgspec.ValidationError, RecursionError):
        raise Wrong(INVALID_REQUEST, "a request is one JSON-RPC message") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise Wrong(PARSE_ERROR, "this is not JSON") from None
    if message.jsonrpc != "2.0":
        raise Wrong(INVALID_REQUEST, "only JSON-RPC 2.0 is spoken here")
    return message


async def _result(visitor: Visitor, method: str, params: dict[str, Any]) -> dict[str, Any]:
    match method:
        case "initialize":
            asked = _params(params, Beginning).version
            return {
                "protocolVersion": asked if asked in VERSIONS else VERSIONS[-1],
                "capabilities": {"tools": {"listChanged": False}},
                "serverInfo": {"name": "retinue", "version": visitor.desk.version},
                "instructions": INSTRUCTIONS,
            }
        case "ping":
            return {}
        case "tools/list":
            return {"tools": [_listed(each) for each in await visitor.offered()]}
        case "tools/call":
            return await _called(visitor, _params(params, Calling))
        case _:
            raise Wrong(METHOD_NOT_FOUND, f"there is no method '{method[:64]}' here")


async def _called(visitor: Visitor, asked: Calling) -> dict[str, Any]:
    """Call a tool.

    An error is returned as the result, so that the calling model reads the reason.
    """
    key = (asked.meta or {}).get(KEY, "")
    if not isinstance(key, str) or not is_storable(key):
        raise Wrong(INVALID_PARAMS, f"`{KEY}` is a text")
    try:
        done = await visitor.call(asked.name, asked.arguments or {}, key=key)
    except RetinueError as error:
        return _told(str(error), failed=True)
    except Exception:
        log.exception("mcp call broke", extra={"operation": asked.name[:64]})
        return _told(str(broke(asked.name[:64])), failed=True)
    result = _told(done.text, failed=done.failed)
    if done.structured:
        told: object = msgspec.json.decode(done.text)
        if isinstance(told, dict):
            result["structuredContent"] = cast("dict[str, Any]", told)
    return result


def _told(text: str, *, failed: bool) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "isError": failed}


def _listed(offered: Offered) -> dict[str, Any]:
    return {
        "name": offered.name,
        "description": offered.description,
        "inputSchema": offered.parameters,
        "annotations": {"readOnlyHint": not offered.effect, "openWorldHint": offered.outside},
    }


def _params(params: dict[str, Any], kind: type[Any]) -> Any:
    try:
        return msgspec.convert(params, kind)
    except msgspec.ValidationError as error:
        raise Wrong(INVALID_PARAMS, str(error)) from None
