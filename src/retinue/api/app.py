"""Operations over HTTP. One handler serves them all; what differs is declared in `operations`."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from retinue.api.live import news_stream
from retinue.domain.errors import (
    Ambiguous,
    Conflict,
    Invalid,
    NotAllowed,
    NotFound,
    RetinueError,
    StoreError,
    TooLarge,
)
from retinue.domain.principal import Principal
from retinue.domain.times import to_ms
from retinue.domain.token import TokenKind, hash_of
from retinue.operations.base import Desk, Operation, perform
from retinue.operations.catalog import OPERATIONS
from retinue.store import principals
from retinue.store.sight import sees_session

log = logging.getLogger(__name__)

BODY_BYTES_MAX = 16 * 1024 * 1024

_encode = msgspec.json.Encoder().encode
_STATUS: dict[type[RetinueError], int] = {
    Invalid: 400,
    NotAllowed: 403,
    NotFound: 404,
    Conflict: 409,
    Ambiguous: 409,
    TooLarge: 413,
    StoreError: 503,
}


class NotSignedIn(RetinueError):
    code = "auth.not-signed-in"


def build(desk: Desk) -> ASGIApp:
    """The house over HTTP. Operations are found by their path alone; only what is left goes through a router."""
    operations = {operation.route: operation for operation in OPERATIONS.values()}
    rest = Starlette(
        routes=[Route("/api/news", partial(_news, desk), methods=["GET"])],
        exception_handlers={404: _no_route, 405: _no_route},
    )

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        operation = operations.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if operation is None:
            await rest(scope, receive, send)
            return
        status, body = await _serve(desk, operation, scope, receive)
        length = str(len(body)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", length)]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return app


async def _serve(desk: Desk, operation: Operation, scope: Scope, receive: Receive) -> tuple[int, bytes]:
    try:
        caller = await _caller(desk, scope)
        body = await _body(receive)
        return 200, await perform(desk, caller, operation, body, key=_header(scope, b"idempotency-key"))
    except RetinueError as error:
        return _refuse(error)
    except ClientDisconnect:
        return 400, b""  # read by nobody: the request broke off in the middle
    except Exception:
        log.exception("operation broke", extra={"operation": operation.name})
        broke = RetinueError(
            f"{operation.name} broke",
            because="of a fault in the house, which is in its log",
            try_this="try again; if it stays, report it",
            code="house.broke",
        )
        return _refuse(broke)


async def _body(receive: Receive) -> bytes:
    """The body, of which we never hold more than the bound."""
    chunks: list[bytes] = []
    size = 0
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk: bytes = message.get("body", b"")
        more = message.get("more_body", False)
        size += len(chunk)
        if size > BODY_BYTES_MAX:
            raise TooLarge(
                "this request is too large",
                because=f"a request may have {BODY_BYTES_MAX:,} bytes",
                try_this="send less at once",
                code="request.too-large",
            )
        chunks.append(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _header(scope: Scope, wanted: bytes) -> str:
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == wanted), "")


async def _caller(desk: Desk, scope: Scope) -> Principal:
    scheme, _, token = _header(scope, b"authorization").partition(" ")
    if scheme.lower() == "bearer" and token:
        look = partial(principals.by_secret, token_hash=hash_of(token), now_ms=to_ms(desk.clock.now()))
        known = await desk.store.read(look)
        if known is not None and known[1] is TokenKind.TOKEN:
            return known[0]
    raise NotSignedIn(
        "who are you?",
        because="the request carries no token that this house knows",
        try_this="use the token in RETINUE_HOME/owner-token",
    )


async def _news(desk: Desk, request: Request) -> Response:
    try:
        caller = await _caller(desk, request.scope)
        after = request.query_params.get("after", "")
        if after and not after.isdigit():
            raise Invalid(f"'{after[:40]}' is no cursor", because="a cursor is a number", code="cursor.invalid")
        session = request.query_params.get("session")
        if session is not None and not await desk.store.read(partial(sees_session, principal=caller, id_=session)):
            raise NotFound(
                f"no session {session[:40]}", because="none that you see has this id", code="session.not-found"
            )
        stream = news_stream(desk, caller, after=int(after) if after else None, session=session)
        return StreamingResponse(stream, media_type="text/event-stream", headers={"cache-control": "no-store"})
    except RetinueError as error:
        return _response(*_refuse(error))


def _response(status: int, body: bytes) -> Response:
    return Response(body, status_code=status, media_type="application/json")


def _refuse(error: RetinueError) -> tuple[int, bytes]:
    status = 401 if isinstance(error, NotSignedIn) else _STATUS.get(type(error), 500)
    form: dict[str, Any] = {
        "code": error.code,
        "sentence": error.sentence,
        "because": error.because,
        "try": error.try_this,
    }
    if isinstance(error, Ambiguous):
        form |= {"candidates": error.candidates, "matches": error.matches}
    return status, _encode({"error": form})


async def _no_route(request: Request, _error: Exception) -> Response:
    refusal = NotFound(
        f"nothing is served at {request.method} {request.url.path[:200]}",
        because="no operation has this route",
        try_this="POST to /api/NOUN/VERB, for example /api/house/status",
        code="route.not-found",
    )
    return _response(*_refuse(refusal))
