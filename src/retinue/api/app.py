"""The ASGI application. One handler serves all operations; each declares its own differences."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

import msgspec
from msgspec import Struct
from starlette.types import Receive, Scope, Send

from retinue.api import attachment_download, callback_routes, metrics
from retinue.api.auth import Caller, SignIn
from retinue.api.connection_limits import Gate
from retinue.api.event_feed import Feed, Senders, server_sent
from retinue.api.host_check import HOOKS, ON_THE_SOCKET, Door, Visit, visit
from retinue.api.metrics import Counts
from retinue.api.request_limits import Rate, TooMany
from retinue.api.responses import API_HEADERS, Headers, WrongMethod, broke, refusal
from retinue.api.static_files import Pages
from retinue.domain.agent import PermissionLevel
from retinue.domain.envelope import TEXT_BYTES_MAX
from retinue.domain.errors import Invalid, NotAllowed, NotFound, RetinueError, TooLarge
from retinue.domain.ids import SessionId
from retinue.domain.storable_text import is_storable
from retinue.intake.external_callbacks import Callbacks
from retinue.operations.base import Desk, Operation, perform
from retinue.operations.catalog import OPERATIONS
from retinue.operations.envelope.uploads import UPLOAD_BYTES_MAX
from retinue.policy.access import permissions
from retinue.store.core import events
from retinue.store.core.row_visibility import sees_session

if TYPE_CHECKING:
    from retinue.api.webhook_routes import RequestDoor
    from retinue.intake.inbound_webhooks import Requests

log = logging.getLogger(__name__)

SEND = "envelope.send"
QUERY_FIELDS_MAX = 20
UPLOADS_AT_ONCE_MAX = 8
LENGTH_DIGITS_MAX = 15
JSON = (b"content-type", b"application/json")
GZIP = (b"content-encoding", b"gzip")
NOT_PAGES = ("/api/", "/mcp", callback_routes.PREFIX, HOOKS)

_encode = msgspec.json.Encoder().encode


class Gone(Exception):
    """The client disconnected before its request was complete, so there is no one to answer."""


class _SentEnvelope(msgspec.Struct):
    envelope: str


_sent_envelope = msgspec.json.Decoder(_SentEnvelope).decode


class Answer(Struct, frozen=True):
    status: int
    body: bytes
    headers: Headers
    is_page: bool = False


class Request(Struct, frozen=True):
    """What a route handler gets from a request."""

    scope: Scope
    receive: Receive
    send: Send
    headers: dict[bytes, bytes]
    visit: Visit

    def query(self, name: str) -> str | None:
        try:
            found = parse_qs(self.scope["query_string"].decode("latin-1"), max_num_fields=QUERY_FIELDS_MAX).get(name)
        except ValueError as error:
            raise Invalid(
                "this query cannot be read",
                because=str(error),
                try_this="encode it as UTF-8, with %XX for the rest",
                code="request.query-invalid",
            ) from error
        return found[-1] if found else None


Route = Callable[[Request], Awaitable[Answer | None]]


def build(desk: Desk, door: Door | None = None, gate: Gate | None = None) -> App:
    """Build the ASGI application. Operations are routed by their path."""
    door = door or Door()
    return App(desk, door, gate or Gate(door))


@dataclass(slots=True)
class App:
    desk: Desk
    door: Door
    gate: Gate
    counts: Counts = field(default_factory=Counts)
    senders: Senders = field(default_factory=Senders)
    pages: Pages = field(default_factory=Pages)
    _operations: dict[str, Operation] = field(init=False)
    _routes: dict[tuple[str, str], Route] = field(init=False)
    _sign_in: SignIn = field(init=False)
    _requests: Rate = field(init=False)
    _envelopes: Rate = field(init=False)
    _following: dict[str, int] = field(default_factory=dict[str, int])
    _hooked: RequestDoor | None = field(init=False, default=None)
    _taking: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(UPLOADS_AT_ONCE_MAX))

    def __post_init__(self) -> None:
        door = self.door
        self._operations = {operation.route: operation for operation in OPERATIONS.values()}
        self._sign_in = SignIn(self.desk, door, time.monotonic, self.gate.refusals.add)
        self._requests = Rate(time.monotonic, door.requests_per_minute, "requests")
        self._envelopes = Rate(time.monotonic, door.envelopes_per_minute, "envelopes")
        self.desk.store.on_commit(self.counts.committed)
        self._routes = {
            ("GET", "/api/health"): self._health,
            ("GET", "/api/ready"): self._ready,
            ("GET", "/api/metrics"): self._metrics,
            ("GET", "/api/openapi.json"): self._openapi,
            ("GET", "/api/operations"): self._listing,
            ("GET", "/api/state"): self._state,
            ("GET", "/api/news"): self._news,
            ("POST", "/api/blob"): self._take_blob,
            ("POST", "/api/sign-in"): self._enter,
            ("POST", "/api/sign-out"): self._leave,
            ("POST", "/api/join"): self._join,
            ("POST", "/mcp"): self._mcp,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
            return
        operation = self._find(scope["path"]) if scope["method"] == "POST" else None
        headers = dict(scope["headers"])
        local = False
        try:
            came = visit(self.door, scope, headers)
            local = came is ON_THE_SOCKET
            if operation is not None:
                answer = Answer(200, await self._operate(operation, scope, receive, headers, came), [JSON])
            else:
                route = self._routes.get((scope["method"], scope["path"]), self._no_route)
                answer = await route(Request(scope, receive, send, headers, came))
        except RetinueError as error:
            answer = self._refuse(error)
        except Gone:
            answer = Answer(400, b"", [])  # the client is disconnected
        except Exception:
            what = operation.name if operation is not None else "this"
            log.exception("request broke", extra={"operation": what})
            answer = self._refuse(broke(what))
        if answer is not None:
            await self._answer(send, answer, local=local)

    async def _mcp(self, request: Request) -> Answer:
        """Serve MCP requests made with a token: operations, and an agent's tools."""
        from retinue.api import mcp
        from retinue.operations.mcp.mcp_endpoint import Visitor  # rarely used: import on first use

        mcp.check(request.headers)
        caller = await self._caller(request.headers, request.visit, method="POST")
        body = await self._body(request.headers, request.receive)
        who = str(caller.principal.address)
        visitor = Visitor(
            desk=self.desk,
            caller=caller.principal,
            agent=request.query("agent") or "",
            sending=lambda: self._envelopes.take(who),
        )
        said = await mcp.answer(visitor, body)
        return Answer(202 if said is None else 200, said or b"", [JSON])

    def _find(self, path: str) -> Operation | None:
        """Find a built-in or plugin operation by path. Plugin operations can change at any time."""
        operation = self._operations.get(path)
        if operation is None and self.desk.plugins is not None:
            operation = next((each for each in self.desk.plugins.operations().values() if each.route == path), None)
        return operation

    def _all(self) -> list[Operation]:
        return [*OPERATIONS.values(), *self._brought()]

    def _brought(self) -> list[Operation]:
        return list(self.desk.plugins.operations().values()) if self.desk.plugins is not None else []

    async def _answer(self, send: Send, answer: Answer, *, local: bool) -> None:
        """Send a response.

        Headers that protect browsers are omitted on the Unix socket, where no browser connects.
        """
        self.counts.answered(answer.status)
        headers = [*answer.headers, (b"content-length", str(len(answer.body)).encode())]
        if not local and not answer.is_page:
            headers += API_HEADERS
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body})

    def _refuse(self, error: RetinueError) -> Answer:
        status, body, more = refusal(error)
        if status in (401, 421, 429) or error.code.startswith(("request.", "auth.")):
            self.gate.refusals.add(error.code)
        return Answer(status, body, [JSON, *more])

    async def _no_route(self, request: Request) -> Answer | None:
        method, path = request.scope["method"], request.scope["path"]
        if method == "GET" and path.startswith(attachment_download.PREFIX):
            return await self._blob(request, path.removeprefix(attachment_download.PREFIX))
        if method == "POST" and path.startswith(callback_routes.PREFIX) and self.desk.callbacks is not None:
            return await self._hear(request, callback_routes.session_of(path), self.desk.callbacks)
        if method == "POST" and path.startswith(HOOKS) and self.desk.requests is not None:
            return await self._hook(request, path, self.desk.requests)
        if method == "GET" and not path.startswith(NOT_PAGES) and (page := self._page(request, path)) is not None:
            return page
        allowed = [known for known in ("GET", "POST") if (known, path) in self._routes]
        if self._find(path) is not None:
            allowed.append("POST")
        raise WrongMethod(method, path, ", ".join(allowed)) if allowed else _not_served(method, path)

    def refit(self, door: Door) -> None:
        """Apply changed limits and host names.

        The listen address changes only at the next start.
        """
        self.door = self.gate.door = door
        self._requests.resize(door.requests_per_minute)
        self._envelopes.resize(door.envelopes_per_minute)
        self._sign_in.refit(door)

    # --- authentication and rate limits ---

    async def _caller(self, headers: dict[bytes, bytes], came: Visit, *, method: str) -> Caller:
        caller = await self._sign_in.caller(came, headers, method=method)
        if not _is_exempt(caller, came):
            self._requests.take(str(caller.principal.address))
        return caller

    async def _operate(
        self, operation: Operation, scope: Scope, receive: Receive, headers: dict[bytes, bytes], came: Visit
    ) -> bytes:
        caller = await self._caller(headers, came, method="POST")
        body = await self._body(headers, receive)
        key = headers.get(b"idempotency-key", b"").decode("latin-1")
        if operation.name != SEND:
            return await perform(self.desk, caller.principal, operation, body, key=key)
        if not _is_exempt(caller, came):
            self._envelopes.take(str(caller.principal.address))
        client = headers.get(b"x-retinue-client", b"").decode("latin-1")
        sent = self.senders.find(caller.principal, client) if client else None
        if sent is None:
            return await perform(self.desk, caller.principal, operation, body, key=key)
        sent.begin()
        envelope = None
        try:
            answer = await perform(self.desk, caller.principal, operation, body, key=key)
            envelope = _sent_envelope(answer).envelope
            return answer
        finally:
            sent.end(envelope)

    async def _body(self, headers: dict[bytes, bytes], receive: Receive, *, bytes_max: int = 0) -> bytes:
        """Read the body, never holding more than `bytes_max` bytes in memory."""
        bytes_max = bytes_max or self.door.body_bytes_max
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and (len(length) > LENGTH_DIGITS_MAX or int(length) > bytes_max):
            raise _too_large(bytes_max)
        chunks: list[bytes] = []
        size = 0
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Gone
            chunk: bytes = message.get("body", b"")
            more = message.get("more_body", False)
            size += len(chunk)
            if size > bytes_max:
                raise _too_large(bytes_max)
            chunks.append(chunk)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    # --- attachments ---

    async def _take_blob(self, request: Request) -> Answer:
        """Store a file before the envelope that will refer to it."""
        caller = await self._caller(request.headers, request.visit, method="POST")
        who, uploads = str(caller.principal.address), self.desk.uploads
        async with self._taking:  # further uploads wait, which limits the files held in memory
            uploads.check_room(who, 0)
            body = await self._body(request.headers, request.receive, bytes_max=UPLOAD_BYTES_MAX)
            uploads.check_room(who, len(body))
            keep = partial(self.desk.files.keep, [body], name="file", media_type="")
            kept = await asyncio.to_thread(keep)
        uploads.add(who, kept)
        return Answer(200, _encode({"hash": kept.hash, "size-bytes": kept.size_bytes}), [JSON])

    async def _blob(self, request: Request, hash_: str) -> Answer | None:
        """Send the bytes of an attachment if the caller sees the envelope or record that contains it."""
        caller = await self._caller(request.headers, request.visit, method="GET")
        look = partial(
            attachment_download.named,
            hash_=hash_,
            envelope=request.query("envelope") or "",
            session=request.query("session") or "",
            record=request.query("record") or "",
            seen_by=caller.principal,
        )
        blob = await attachment_download.open_blob(self.desk.files, await self.desk.store.read(look))
        with blob.file:
            known = request.headers.get(b"if-none-match") == attachment_download.etag(hash_)
            status, length = (304, []) if known else (200, [(b"content-length", str(blob.size_bytes).encode())])
            self.counts.answered(status)
            headers = [*blob.headers, *length]
            await request.send({"type": "http.response.start", "status": status, "headers": headers})
            if not known:
                async for chunk in blob.chunks():
                    await request.send({"type": "http.response.body", "body": chunk, "more_body": True})
            await request.send({"type": "http.response.body", "body": b""})
        return None

    # --- external agents and webhooks ---

    async def _hear(self, request: Request, session: str, heard_by: Callbacks) -> Answer:
        if not request.visit.local:
            self._requests.take(f"callbacks from {request.visit.remote}")
        body = await self._body(request.headers, request.receive, bytes_max=TEXT_BYTES_MAX)
        return Answer(200, await callback_routes.take(heard_by, session, request.headers, body), [JSON])

    async def _hook(self, request: Request, path: str, requests: Callable[[], Requests]) -> Answer:
        if not request.visit.local:
            self._requests.take(f"hooks from {request.visit.remote}")
        body = partial(self._body, request.headers, request.receive)
        query, remote = request.scope["query_string"], request.visit.remote
        if self._hooked is None:
            from retinue.api.webhook_routes import RequestDoor  # rarely used: import on first use

            self._hooked = RequestDoor(requests(), time.monotonic)
        status, said = await self._hooked.take(path, query, request.headers, remote, lambda most: body(bytes_max=most))
        return Answer(status, said, [JSON])

    # --- signing in and out ---

    async def _enter(self, request: Request) -> Answer:
        body = await self._body(request.headers, request.receive)
        principal, cookie = await self._sign_in.sign_in(request.visit, body)
        form = {"you": str(principal.address), "level": principal.level}
        return Answer(200, _encode(form), [JSON, (b"set-cookie", cookie)])

    async def _leave(self, request: Request) -> Answer:
        caller = await self._caller(request.headers, request.visit, method="POST")
        cookie = await self._sign_in.sign_out(request.visit, caller)
        return Answer(200, _encode({"signed-out": caller.by_cookie}), [JSON, (b"set-cookie", cookie)])

    async def _join(self, request: Request) -> Answer:
        body = await self._body(request.headers, request.receive)
        return Answer(200, _encode(await self._sign_in.join(request.visit, body)), [JSON])

    # --- web app and status ---

    def _page(self, request: Request, path: str) -> Answer | None:
        file = self.pages.find(path)
        if file is None:
            return None
        if request.headers.get(b"if-none-match") == file.tag:
            return Answer(304, b"", file.headers, is_page=True)
        if file.small is not None and b"gzip" in request.headers.get(b"accept-encoding", b""):
            return Answer(200, file.small, [*file.headers, GZIP], is_page=True)
        return Answer(200, file.body, file.headers, is_page=True)

    async def _health(self, _request: Request) -> Answer:
        return Answer(200, b'{"alive":true}', [JSON])

    async def _ready(self, _request: Request) -> Answer:
        await self.desk.store.read(events.newest)
        return Answer(200, b'{"ready":true}', [JSON])

    async def _metrics(self, request: Request) -> Answer:
        caller = await self._caller(request.headers, request.visit, method="GET")
        if not permissions.reaches(caller.principal.level, PermissionLevel.PRIVILEGED):
            raise NotAllowed(
                "you may not see the house's counts",
                because=f"they need {PermissionLevel.PRIVILEGED}, and you have {caller.principal.level}",
                try_this="ask the owner of this house",
                code="permission.denied",
            )
        body = await metrics.page(self.desk, self.counts, self.gate)
        return Answer(200, body, [(b"content-type", metrics.CONTENT_TYPE)])

    async def _openapi(self, request: Request) -> Answer:
        from retinue.api import openapi  # rarely used: import on first use

        caller = await self._caller(request.headers, request.visit, method="GET")
        return Answer(200, _encode(openapi.openapi(self.desk, caller.principal, self._all())), [JSON])

    async def _listing(self, request: Request) -> Answer:
        from retinue.api import openapi

        caller = await self._caller(request.headers, request.visit, method="GET")
        if request.query("of") == "plugins":
            return Answer(200, _encode(openapi.commands(self.desk, caller.principal, self._brought())), [JSON])
        return Answer(200, _encode(openapi.listing(self.desk, caller.principal, self._all())), [JSON])

    async def _state(self, request: Request) -> Answer:
        """Perform `house.state`, for a browser that opens the web app."""
        caller = await self._caller(request.headers, request.visit, method="GET")
        return Answer(200, await perform(self.desk, caller.principal, OPERATIONS["house.state"], b""), [JSON])

    # --- event streams ---

    async def _news(self, request: Request) -> Answer | None:
        caller = await self._caller(request.headers, request.visit, method="GET")
        after = _cursor(request.query("after") or "")
        session = request.query("session")
        if session is not None and not (
            is_storable(session)
            and await self.desk.store.read(lambda conn: sees_session(conn, caller.principal, session))
        ):
            raise NotFound(
                f"no session {session[:40]}",
                because="none that you see has this id",
                try_this="look at `session.list`",
                code="session.not-found",
            )
        self._begin_following(caller, request.visit)
        self.counts.streams += 1
        feed = Feed(self.desk, caller.principal, again=self._sign_in.again(caller))
        try:
            if session is None:
                feed.follow_all()
            else:
                feed.follow(SessionId(session))
            await self._stream(request, feed, after)
        finally:
            feed.close()
            self.counts.streams -= 1
            self._end_following(caller)
        return None

    async def _stream(self, request: Request, feed: Feed, after: int | None) -> None:
        self.counts.answered(200)
        headers = [(b"content-type", b"text/event-stream"), *API_HEADERS]
        await request.send({"type": "http.response.start", "status": 200, "headers": headers})
        pieces = server_sent(feed, after=after)
        leaving = asyncio.create_task(_left(request.receive, feed))
        try:
            async for piece in pieces:
                await request.send({"type": "http.response.body", "body": piece, "more_body": True})
        except Exception:
            # The response has started, so the only way to report an error is to end it. The client then resumes.
            log.exception("stream broke")
        finally:
            leaving.cancel()
            await pieces.aclose()
        await request.send({"type": "http.response.body", "body": b""})

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        try:
            came = visit(self.door, scope, headers)
            if scope["path"] != "/api/live":
                raise _not_served("GET", scope["path"])
            caller = await self._caller(headers, came, method="GET")
            if caller.by_cookie and not came.origin:
                raise NotAllowed(
                    "this request could come from any page",
                    because="it carries a cookie, but no Origin",
                    try_this="use a token",
                    code="auth.origin-missing",
                )
            self._begin_following(caller, came)
        except RetinueError as error:
            await self._refuse_socket(send, self._refuse(error))
            return
        except Exception:
            log.exception("request broke", extra={"operation": "live"})
            await self._refuse_socket(send, self._refuse(broke("live")))
            return
        from retinue.api.websocket import LiveSocket  # imported on first use, as is the WebSocket library

        self.counts.sockets += 1
        again = self._sign_in.again(caller)
        try:
            await LiveSocket(self.desk, caller.principal, self.senders, again, receive, send).serve()
        finally:
            self.counts.sockets -= 1
            self._end_following(caller)

    async def _refuse_socket(self, send: Send, answer: Answer) -> None:
        self.counts.answered(answer.status)
        length = (b"content-length", str(len(answer.body)).encode())
        headers = [*answer.headers, length, *API_HEADERS]
        await send({"type": "websocket.http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "websocket.http.response.body", "body": answer.body})

    def _begin_following(self, caller: Caller, came: Visit) -> None:
        who = str(caller.principal.address)
        following = self._following.get(who, 0)
        if following >= self.door.websockets_max and not _is_exempt(caller, came):
            raise TooMany(
                "you follow the news too often at once",
                because=f"{who} may hold {self.door.websockets_max} connections for it",
                try_this="close some, or follow several sessions on one",
                code="live.too-many",
                retry_after_s=5,
            )
        self._following[who] = following + 1

    def _end_following(self, caller: Caller) -> None:
        who = str(caller.principal.address)
        self._following[who] -= 1
        if not self._following[who]:
            del self._following[who]


async def _left(receive: Receive, feed: Feed) -> None:
    """Wait for the client to disconnect.

    Nothing else reports it: data sent to a closed stream is dropped.
    """
    while (await receive())["type"] != "http.disconnect":
        pass
    feed.end()


def _is_exempt(caller: Caller, came: Visit) -> bool:
    """Whether the caller is the owner on the Unix socket, who has no rate limits.

    The owner there could change the limits anyway, and must always get in.
    """
    return came.local and caller.principal.sees_all


def _cursor(text: str) -> int | None:
    if text and not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise Invalid(
            f"'{text[:40]}' is no cursor",
            because="a cursor is a number",
            try_this="take it from `hello`, or from the last news",
            code="cursor.invalid",
        )
    return int(text) if text else None


def _too_large(bytes_max: int) -> TooLarge:
    return TooLarge(
        "this request is too large",
        because=f"a request may have {bytes_max:,} bytes",
        try_this="send less at once",
        code="request.too-large",
    )


def _not_served(method: str, path: str) -> NotFound:
    return NotFound(
        f"nothing is served at {method} {path[:200]}",
        because="no operation has this route",
        try_this="POST to /api/NOUN/VERB, for example /api/house/status",
        code="route.not-found",
    )
