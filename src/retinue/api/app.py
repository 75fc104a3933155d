"""The ASGI application of the HTTP API. One handler serves all operations, at `/api/NOUN/VERB`."""

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
from retinue.api.auth import Authenticator, Caller
from retinue.api.connection_limits import ConnectionLimiter
from retinue.api.errors import (
    PATH_SHOWN_CHARS,
    CookieOriginMissing,
    InternalError,
    QueryStringInvalid,
    RouteNotFound,
    TooManyEventStreams,
    WrongMethod,
)
from retinue.api.event_feed import EventFeed, OwnEnvelopeRegistry, stream_server_sent_events
from retinue.api.host_check import UNIX_SOCKET_SOURCE, WEBHOOK_PREFIX, HttpSettings, RequestSource, check_source
from retinue.api.metrics import HttpCounters
from retinue.api.rate_limits import PrincipalRateLimit
from retinue.api.renamed_routes import find_renamed_operation, find_renamed_path
from retinue.api.responses import API_HEADERS, Headers, build_error_response
from retinue.api.static_files import StaticFiles
from retinue.domain.agent import PermissionLevel
from retinue.domain.envelope import ENVELOPE_TEXT_BYTES_MAX
from retinue.domain.errors import RetinueError
from retinue.domain.ids import SessionId
from retinue.domain.shared_errors import CursorInvalid, PermissionDenied, RequestTooLarge, SessionNotFound
from retinue.domain.storable_text import is_storable
from retinue.intake.external_callbacks import CallbackIntake
from retinue.operations.base import Operation, Services, perform_operation
from retinue.operations.catalog import OPERATIONS
from retinue.operations.envelope.uploads import UPLOAD_BYTES_MAX
from retinue.policy.access import operation_permissions
from retinue.store.core import events
from retinue.store.core.row_visibility import can_see_session

if TYPE_CHECKING:
    from retinue.api.webhook_routes import WebhookReceiver
    from retinue.intake.inbound_webhooks import WebhookIntake

log = logging.getLogger(__name__)

SEND_OPERATION = "envelope.send"
QUERY_FIELDS_MAX = 20
CONCURRENT_UPLOADS_MAX = 8
CONTENT_LENGTH_DIGITS_MAX = 15
JSON_CONTENT_TYPE = (b"content-type", b"application/json")
GZIP_ENCODING = (b"content-encoding", b"gzip")
NON_PAGE_PREFIXES = ("/api/", "/mcp", callback_routes.CALLBACK_PREFIX, WEBHOOK_PREFIX)

_encode = msgspec.json.Encoder().encode


class ClientDisconnected(Exception):
    """The client disconnected before its request was complete, so no response is sent."""


class _SentEnvelope(msgspec.Struct):
    envelope: str


_decode_sent_envelope = msgspec.json.Decoder(_SentEnvelope).decode


class HttpResponse(Struct, frozen=True):
    status: int
    body: bytes
    headers: Headers
    is_page: bool = False


class HttpRequest(Struct, frozen=True):
    """The parts of an HTTP request that route handlers use."""

    scope: Scope
    receive: Receive
    send: Send
    headers: dict[bytes, bytes]
    source: RequestSource

    def query(self, name: str) -> str | None:
        try:
            found = parse_qs(self.scope["query_string"].decode("latin-1"), max_num_fields=QUERY_FIELDS_MAX).get(name)
        except ValueError as error:
            raise QueryStringInvalid(str(error)) from error
        return found[-1] if found else None


RouteHandler = Callable[[HttpRequest], Awaitable[HttpResponse | None]]


def build_app(
    services: Services, settings: HttpSettings | None = None, limiter: ConnectionLimiter | None = None
) -> HttpApp:
    """Build the ASGI application. Each operation is served at its own path."""
    settings = settings or HttpSettings()
    return HttpApp(services, settings, limiter or ConnectionLimiter(settings))


@dataclass(slots=True)
class HttpApp:
    services: Services
    settings: HttpSettings
    limiter: ConnectionLimiter
    counters: HttpCounters = field(default_factory=HttpCounters)
    own_envelopes: OwnEnvelopeRegistry = field(default_factory=OwnEnvelopeRegistry)
    static_files: StaticFiles = field(default_factory=StaticFiles)
    _operations: dict[str, Operation] = field(init=False)
    _routes: dict[tuple[str, str], RouteHandler] = field(init=False)
    _authenticator: Authenticator = field(init=False)
    _request_rate: PrincipalRateLimit = field(init=False)
    _envelope_rate: PrincipalRateLimit = field(init=False)
    _follower_counts: dict[str, int] = field(default_factory=dict[str, int])
    _webhook_receiver: WebhookReceiver | None = field(init=False, default=None)
    _upload_slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CONCURRENT_UPLOADS_MAX))

    def __post_init__(self) -> None:
        settings = self.settings
        self._operations = {operation.route: operation for operation in OPERATIONS.values()}
        self._authenticator = Authenticator(self.services, settings, time.monotonic, self.limiter.refusals.add)
        self._request_rate = PrincipalRateLimit(time.monotonic, settings.requests_per_minute, "requests")
        self._envelope_rate = PrincipalRateLimit(time.monotonic, settings.envelopes_per_minute, "envelopes")
        self.services.store.on_commit(self.counters.count_commit)
        self._routes = {
            ("GET", "/api/health"): self._serve_health,
            ("GET", "/api/ready"): self._serve_ready,
            ("GET", "/api/metrics"): self._serve_metrics,
            ("GET", "/api/openapi.json"): self._serve_openapi,
            ("GET", "/api/operations"): self._serve_operation_list,
            ("GET", "/api/state"): self._serve_initial_state,
            ("GET", "/api/events"): self._serve_events,
            ("POST", "/api/attachments"): self._upload_attachment,
            ("POST", "/api/sign-in"): self._sign_in_browser,
            ("POST", "/api/sign-out"): self._sign_out_browser,
            ("POST", "/api/join"): self._accept_invitation,
            ("POST", "/mcp"): self._serve_mcp,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._serve_websocket(scope, receive, send)
            return
        operation = self._find_operation(scope["path"]) if scope["method"] == "POST" else None
        headers = dict(scope["headers"])
        local = False
        try:
            source = check_source(self.settings, scope, headers)
            local = source is UNIX_SOCKET_SOURCE
            if operation is not None:
                answer = HttpResponse(
                    200, await self._perform_operation(operation, scope, receive, headers, source), [JSON_CONTENT_TYPE]
                )
            else:
                route = self._routes.get((scope["method"], scope["path"]), self._serve_other_path)
                answer = await route(HttpRequest(scope, receive, send, headers, source))
        except RetinueError as error:
            answer = self._build_error_response(error)
        except ClientDisconnected:
            answer = HttpResponse(400, b"", [])  # the client is disconnected
        except Exception:
            name = operation.name if operation is not None else scope["path"][:PATH_SHOWN_CHARS]
            log.exception("request failed", extra={"operation": name})
            answer = self._build_error_response(InternalError(name))
        if answer is not None:
            await self._send_response(send, answer, is_local=local)

    async def _serve_mcp(self, request: HttpRequest) -> HttpResponse:
        """Answer an MCP request. With a token, an MCP client can call operations and the tools of an agent."""
        from retinue.api import mcp
        from retinue.operations.mcp.mcp_endpoint import McpEndpoint  # rarely used: import on first use

        mcp.check_headers(request.headers)
        caller = await self._authenticate(request.headers, request.source, method="POST")
        body = await self._read_body(request.headers, request.receive)
        who = str(caller.principal.address)
        endpoint = McpEndpoint(
            services=self.services,
            caller=caller.principal,
            agent=request.query("agent") or "",
            check_send_limit=lambda: self._envelope_rate.use(who),
        )
        response = await mcp.answer_message(endpoint, body)
        return HttpResponse(202 if response is None else 200, response or b"", [JSON_CONTENT_TYPE])

    def _find_operation(self, path: str) -> Operation | None:
        """Find a built-in or plugin operation by path. Plugin operations can change at any time."""
        operation = self._operations.get(path)
        if operation is None and self.services.plugins is not None:
            operation = next((each for each in self.services.plugins.operations().values() if each.route == path), None)
        return operation

    def _list_operations(self) -> list[Operation]:
        return [*OPERATIONS.values(), *self._list_plugin_operations()]

    def _list_plugin_operations(self) -> list[Operation]:
        return list(self.services.plugins.operations().values()) if self.services.plugins is not None else []

    async def _send_response(self, send: Send, response: HttpResponse, *, is_local: bool) -> None:
        """Send a response.

        Headers that protect browsers are omitted on the Unix socket, because browsers cannot connect to it.
        """
        self.counters.count_response(response.status)
        headers = [*response.headers, (b"content-length", str(len(response.body)).encode())]
        if not is_local and not response.is_page:
            headers += API_HEADERS
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        await send({"type": "http.response.body", "body": response.body})

    def _build_error_response(self, error: RetinueError) -> HttpResponse:
        status, body, more = build_error_response(error)
        if status in (401, 421, 429) or error.code.startswith(("request.", "auth.")):
            self.limiter.refusals.add(error.code)
        return HttpResponse(status, body, [JSON_CONTENT_TYPE, *more])

    async def _serve_other_path(self, request: HttpRequest) -> HttpResponse | None:
        method, path = request.scope["method"], request.scope["path"]
        if method == "GET" and path.startswith(attachment_download.DOWNLOAD_PREFIX):
            return await self._download_attachment(request, path.removeprefix(attachment_download.DOWNLOAD_PREFIX))
        if (
            method == "POST"
            and path.startswith(callback_routes.CALLBACK_PREFIX)
            and self.services.external_callbacks is not None
        ):
            return await self._receive_callback(
                request, callback_routes.parse_callback_session(path), self.services.external_callbacks
            )
        if method == "POST" and path.startswith(WEBHOOK_PREFIX) and self.services.inbound_webhooks is not None:
            return await self._receive_webhook(request, path, self.services.inbound_webhooks)
        if (
            method == "GET"
            and not path.startswith(NON_PAGE_PREFIXES)
            and (page := self._find_static_file(request, path)) is not None
        ):
            return page
        if (renamed := find_renamed_path(f"{method} {path}")) is not None:
            raise renamed
        allowed = [known for known in ("GET", "POST") if (known, path) in self._routes]
        if self._find_operation(path) is not None:
            allowed.append("POST")
        if not allowed and (renamed := find_renamed_operation(path)) is not None:
            raise renamed
        raise WrongMethod(method, path, ", ".join(allowed)) if allowed else RouteNotFound(path, method=method)

    def apply_settings(self, settings: HttpSettings) -> None:
        """Apply changed limits and host names.

        A changed listen address takes effect at the next start of the server.
        """
        self.settings = self.limiter.settings = settings
        self._request_rate.set_rate(settings.requests_per_minute)
        self._envelope_rate.set_rate(settings.envelopes_per_minute)
        self._authenticator.apply_settings(settings)

    # --- authentication and rate limits ---

    async def _authenticate(self, headers: dict[bytes, bytes], source: RequestSource, *, method: str) -> Caller:
        caller = await self._authenticator.authenticate(source, headers, method=method)
        if not _is_exempt(caller, source):
            self._request_rate.use(str(caller.principal.address))
        return caller

    async def _perform_operation(
        self, operation: Operation, scope: Scope, receive: Receive, headers: dict[bytes, bytes], source: RequestSource
    ) -> bytes:
        caller = await self._authenticate(headers, source, method="POST")
        body = await self._read_body(headers, receive)
        key = headers.get(b"idempotency-key", b"").decode("latin-1")
        if operation.name != SEND_OPERATION:
            return await perform_operation(self.services, caller.principal, operation, body, key=key)
        if not _is_exempt(caller, source):
            self._envelope_rate.use(str(caller.principal.address))
        client = headers.get(b"x-retinue-client", b"").decode("latin-1")
        sent = self.own_envelopes.find(caller.principal, client) if client else None
        if sent is None:
            return await perform_operation(self.services, caller.principal, operation, body, key=key)
        sent.begin_send()
        envelope = None
        try:
            answer = await perform_operation(self.services, caller.principal, operation, body, key=key)
            envelope = _decode_sent_envelope(answer).envelope
            return answer
        finally:
            sent.end_send(envelope)

    async def _read_body(self, headers: dict[bytes, bytes], receive: Receive, *, bytes_max: int = 0) -> bytes:
        """Read the request body. Raises `RequestTooLarge` as soon as the body has more than `bytes_max` bytes."""
        bytes_max = bytes_max or self.settings.body_bytes_max
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and (len(length) > CONTENT_LENGTH_DIGITS_MAX or int(length) > bytes_max):
            raise RequestTooLarge(bytes_max=bytes_max)
        chunks: list[bytes] = []
        size = 0
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnected
            chunk: bytes = message.get("body", b"")
            more = message.get("more_body", False)
            size += len(chunk)
            if size > bytes_max:
                raise RequestTooLarge(bytes_max=bytes_max)
            chunks.append(chunk)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    # --- attachments ---

    async def _upload_attachment(self, request: HttpRequest) -> HttpResponse:
        """Store an uploaded file. The client then sends an envelope that refers to it."""
        caller = await self._authenticate(request.headers, request.source, method="POST")
        who, uploads = str(caller.principal.address), self.services.uploads
        async with self._upload_slots:  # further uploads wait, which limits the files held in memory
            uploads.check_quota(who, 0)
            body = await self._read_body(request.headers, request.receive, bytes_max=UPLOAD_BYTES_MAX)
            uploads.check_quota(who, len(body))
            keep = partial(self.services.attachment_files.store, [body], name="file", media_type="")
            kept = await asyncio.to_thread(keep)
        uploads.add(who, kept)
        return HttpResponse(200, _encode({"hash": kept.hash, "size_bytes": kept.size_bytes}), [JSON_CONTENT_TYPE])

    async def _download_attachment(self, request: HttpRequest, hash_: str) -> HttpResponse | None:
        """Send the bytes of an attachment if the caller may see the envelope or record that contains the attachment."""
        caller = await self._authenticate(request.headers, request.source, method="GET")
        look = partial(
            attachment_download.find_attachment,
            hash_=hash_,
            envelope=request.query("envelope") or "",
            session=request.query("session") or "",
            record=request.query("record") or "",
            seen_by=caller.principal,
        )
        blob = await attachment_download.open_attachment_in_thread(
            self.services.attachment_files, await self.services.store.read(look)
        )
        with blob.file:
            known = request.headers.get(b"if-none-match") == attachment_download.format_etag(hash_)
            status, length = (304, []) if known else (200, [(b"content-length", str(blob.size_bytes).encode())])
            self.counters.count_response(status)
            headers = [*blob.headers, *length]
            await request.send({"type": "http.response.start", "status": status, "headers": headers})
            if not known:
                async for chunk in blob.chunks():
                    await request.send({"type": "http.response.body", "body": chunk, "more_body": True})
            await request.send({"type": "http.response.body", "body": b""})
        return None

    # --- external agents and webhooks ---

    async def _receive_callback(self, request: HttpRequest, session: str, callbacks: CallbackIntake) -> HttpResponse:
        if not request.source.is_local:
            self._request_rate.use(f"callbacks from {request.source.remote_address}")
        body = await self._read_body(request.headers, request.receive, bytes_max=ENVELOPE_TEXT_BYTES_MAX)
        return HttpResponse(
            200, await callback_routes.receive_callback(callbacks, session, request.headers, body), [JSON_CONTENT_TYPE]
        )

    async def _receive_webhook(
        self, request: HttpRequest, path: str, get_webhooks: Callable[[], WebhookIntake]
    ) -> HttpResponse:
        if not request.source.is_local:
            self._request_rate.use(f"webhook requests from {request.source.remote_address}")
        body = partial(self._read_body, request.headers, request.receive)
        query, remote = request.scope["query_string"], request.source.remote_address
        if self._webhook_receiver is None:
            from retinue.api.webhook_routes import WebhookReceiver  # rarely used: import on first use

            self._webhook_receiver = WebhookReceiver(get_webhooks(), time.monotonic)
        status, response = await self._webhook_receiver.receive(
            path, query, request.headers, remote, lambda bytes_max: body(bytes_max=bytes_max)
        )
        return HttpResponse(status, response, [JSON_CONTENT_TYPE])

    # --- signing in and out ---

    async def _sign_in_browser(self, request: HttpRequest) -> HttpResponse:
        body = await self._read_body(request.headers, request.receive)
        principal, cookie = await self._authenticator.sign_in(request.source, body)
        form = {"you": str(principal.address), "level": principal.level}
        return HttpResponse(200, _encode(form), [JSON_CONTENT_TYPE, (b"set-cookie", cookie)])

    async def _sign_out_browser(self, request: HttpRequest) -> HttpResponse:
        caller = await self._authenticate(request.headers, request.source, method="POST")
        cookie = await self._authenticator.sign_out(request.source, caller)
        return HttpResponse(
            200, _encode({"signed_out": caller.is_by_cookie}), [JSON_CONTENT_TYPE, (b"set-cookie", cookie)]
        )

    async def _accept_invitation(self, request: HttpRequest) -> HttpResponse:
        body = await self._read_body(request.headers, request.receive)
        return HttpResponse(
            200, _encode(await self._authenticator.accept_invitation(request.source, body)), [JSON_CONTENT_TYPE]
        )

    # --- web app and status ---

    def _find_static_file(self, request: HttpRequest, path: str) -> HttpResponse | None:
        file = self.static_files.find(path)
        if file is None:
            return None
        if request.headers.get(b"if-none-match") == file.etag:
            return HttpResponse(304, b"", file.headers, is_page=True)
        if file.gzipped is not None and b"gzip" in request.headers.get(b"accept-encoding", b""):
            return HttpResponse(200, file.gzipped, [*file.headers, GZIP_ENCODING], is_page=True)
        return HttpResponse(200, file.body, file.headers, is_page=True)

    async def _serve_health(self, _request: HttpRequest) -> HttpResponse:
        return HttpResponse(200, b'{"alive":true}', [JSON_CONTENT_TYPE])

    async def _serve_ready(self, _request: HttpRequest) -> HttpResponse:
        await self.services.store.read(events.newest_seq)
        return HttpResponse(200, b'{"ready":true}', [JSON_CONTENT_TYPE])

    async def _serve_metrics(self, request: HttpRequest) -> HttpResponse:
        caller = await self._authenticate(request.headers, request.source, method="GET")
        if not operation_permissions.is_at_least(caller.principal.level, PermissionLevel.PRIVILEGED):
            because = f"it needs level {PermissionLevel.PRIVILEGED}; you have {caller.principal.level}"
            raise PermissionDenied("read the metrics", because=because)
        body = await metrics.render_metrics(self.services, self.counters, self.limiter)
        return HttpResponse(200, body, [(b"content-type", metrics.CONTENT_TYPE)])

    async def _serve_openapi(self, request: HttpRequest) -> HttpResponse:
        from retinue.api import openapi  # rarely used: import on first use

        caller = await self._authenticate(request.headers, request.source, method="GET")
        return HttpResponse(
            200,
            _encode(openapi.build_openapi_for(self.services, caller.principal, self._list_operations())),
            [JSON_CONTENT_TYPE],
        )

    async def _serve_operation_list(self, request: HttpRequest) -> HttpResponse:
        from retinue.api import openapi

        caller = await self._authenticate(request.headers, request.source, method="GET")
        if (of := request.query("of")) is not None and (renamed := find_renamed_path(f"GET /api/operations?of={of}")):
            raise renamed
        if request.query("source") == "plugins":
            return HttpResponse(
                200,
                _encode(openapi.build_command_table(self.services, caller.principal, self._list_plugin_operations())),
                [JSON_CONTENT_TYPE],
            )
        return HttpResponse(
            200,
            _encode(openapi.build_operation_list(self.services, caller.principal, self._list_operations())),
            [JSON_CONTENT_TYPE],
        )

    async def _serve_initial_state(self, request: HttpRequest) -> HttpResponse:
        """Serve the data that the web app needs when it starts: the result of the operation `server.initial_state`."""
        caller = await self._authenticate(request.headers, request.source, method="GET")
        return HttpResponse(
            200,
            await perform_operation(self.services, caller.principal, OPERATIONS["server.initial_state"], b""),
            [JSON_CONTENT_TYPE],
        )

    # --- event streams ---

    async def _serve_events(self, request: HttpRequest) -> HttpResponse | None:
        caller = await self._authenticate(request.headers, request.source, method="GET")
        after = _parse_cursor(request.query("after") or "")
        session = request.query("session")
        if session is not None and not (
            is_storable(session)
            and await self.services.store.read(lambda conn: can_see_session(conn, caller.principal, session))
        ):
            raise SessionNotFound(session, because="no session that you can see has this id")
        self._add_follower(caller, request.source)
        self.counters.streams += 1
        feed = EventFeed(self.services, caller.principal, recheck=self._authenticator.build_recheck(caller))
        try:
            if session is None:
                feed.follow_all()
            else:
                feed.follow(SessionId(session))
            await self._send_events(request, feed, after)
        finally:
            feed.close()
            self.counters.streams -= 1
            self._remove_follower(caller)
        return None

    async def _send_events(self, request: HttpRequest, feed: EventFeed, after: int | None) -> None:
        self.counters.count_response(200)
        headers = [(b"content-type", b"text/event-stream"), *API_HEADERS]
        await request.send({"type": "http.response.start", "status": 200, "headers": headers})
        pieces = stream_server_sent_events(feed, after=after)
        leaving = asyncio.create_task(_wait_for_disconnect(request.receive, feed))
        try:
            async for piece in pieces:
                await request.send({"type": "http.response.body", "body": piece, "more_body": True})
        except Exception:
            # The response has started, so the only way to report an error is to end it. The client then resumes.
            log.exception("event stream failed")
        finally:
            leaving.cancel()
            await pieces.aclose()
        await request.send({"type": "http.response.body", "body": b""})

    async def _serve_websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        try:
            source = check_source(self.settings, scope, headers)
            if scope["path"] != "/api/live":
                raise RouteNotFound(scope["path"], method="GET", form="/api/live for a WebSocket", use="/api/live")
            caller = await self._authenticate(headers, source, method="GET")
            if caller.is_by_cookie and not source.origin:
                raise CookieOriginMissing
            self._add_follower(caller, source)
        except RetinueError as error:
            await self._reject_websocket(send, self._build_error_response(error))
            return
        except Exception:
            log.exception("request failed", extra={"operation": "live"})
            await self._reject_websocket(send, self._build_error_response(InternalError("live")))
            return
        from retinue.api.websocket import LiveWebSocket  # imported on first use, as is the WebSocket library

        self.counters.websockets += 1
        recheck = self._authenticator.build_recheck(caller)
        try:
            await LiveWebSocket(self.services, caller.principal, self.own_envelopes, recheck, receive, send).serve()
        finally:
            self.counters.websockets -= 1
            self._remove_follower(caller)

    async def _reject_websocket(self, send: Send, response: HttpResponse) -> None:
        self.counters.count_response(response.status)
        length = (b"content-length", str(len(response.body)).encode())
        headers = [*response.headers, length, *API_HEADERS]
        await send({"type": "websocket.http.response.start", "status": response.status, "headers": headers})
        await send({"type": "websocket.http.response.body", "body": response.body})

    def _add_follower(self, caller: Caller, source: RequestSource) -> None:
        who = str(caller.principal.address)
        following = self._follower_counts.get(who, 0)
        if following >= self.settings.websockets_max and not _is_exempt(caller, source):
            raise TooManyEventStreams(who, streams_max=self.settings.websockets_max)
        self._follower_counts[who] = following + 1

    def _remove_follower(self, caller: Caller) -> None:
        who = str(caller.principal.address)
        self._follower_counts[who] -= 1
        if not self._follower_counts[who]:
            del self._follower_counts[who]


async def _wait_for_disconnect(receive: Receive, feed: EventFeed) -> None:
    """Wait for the client of an event stream to disconnect, then stop its feed.

    A disconnect cannot be detected by sending, because data sent to a closed stream is dropped without an error.
    """
    while (await receive())["type"] != "http.disconnect":
        pass
    feed.stop()


def _is_exempt(caller: Caller, source: RequestSource) -> bool:
    """Whether the caller is exempt from the rate limits. Only the owner on the Unix socket is exempt.

    The owner could change the limits anyway, and must always be able to use the server.
    """
    return source.is_local and caller.principal.sees_everything


def _parse_cursor(text: str) -> int | None:
    if text and not (text.isascii() and text.isdigit() and len(text) <= 18):
        because = "a cursor is a number"
        raise CursorInvalid(text, because=because, try_this="use the cursor of `hello`, or the `seq` of the last event")
    return int(text) if text else None
