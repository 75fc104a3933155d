"""Limits connections: how many are open, how long a request may take to arrive, and how large its headers may be.

uvicorn parses HTTP and WebSocket frames; this module adds the limits that uvicorn lacks. A client that sends its
request slowly or not at all keeps its connection for at most `request_wait_s`. If the connection limit is reached, the
connection may be closed earlier. An upload may take longer if its rate is high enough.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, cast

from msgspec import Struct, field
from starlette.types import ASGIApp

from retinue.api.errors import RequestHeadTooLarge, RequestNotHttp, RequestTooSlow, TooManyConnections
from retinue.api.host_check import HttpSettings
from retinue.api.responses import build_raw_error_response
from retinue.api.uvicorn_server import Config, HttpToolsProtocol
from retinue.domain.errors import RetinueError

if TYPE_CHECKING:
    from retinue.api.websocket_limits import LimitedWebSocketProtocol

log = logging.getLogger(__name__)

HEAD_BYTES_MAX = 64 * 1024
SWEEP_INTERVAL_S = 0.5
REQUEST_BYTES_PER_S_MIN = 64 * 1024  # average, for a request that takes longer than `request_wait_s`
FRAME_BYTES_MAX = 64 * 1024
PING_INTERVAL_S = 20.0
PONG_TIMEOUT_S = 20.0
BACKLOG = 1024
SHUTDOWN_TIMEOUT_S = 1
LOG_INTERVAL_S = 10.0


class RefusalCounter:
    """Counts refused requests and logs the count at intervals. A flood of requests therefore cannot flood the log."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self.counts: dict[str, int] = {}
        self._logged: dict[str, tuple[float, int]] = {}

    def add(self, code: str) -> None:
        count = self.counts[code] = self.counts.get(code, 0) + 1
        at, logged = self._logged.get(code, (-LOG_INTERVAL_S, 0))
        if self._now() - at >= LOG_INTERVAL_S:
            self._logged[code] = (self._now(), count)
            log.warning("requests refused", extra={"code": code, "times": count - logged})


class ConnectionLimiter(Struct):
    """Limits the open connections, and records when it began to wait for the rest of each incomplete request."""

    settings: HttpSettings
    refusals: RefusalCounter = field(default_factory=RefusalCounter)
    open_connections: dict[asyncio.BaseTransport, asyncio.Protocol] = field(
        default_factory=dict[asyncio.BaseTransport, asyncio.Protocol]
    )
    waiting_since: dict[LimitedHttpProtocol, float] = field(default_factory=dict["LimitedHttpProtocol", float])
    sweep_timer: asyncio.TimerHandle | None = None

    def admit(self, protocol: LimitedHttpProtocol) -> bool:
        """Decide whether to accept a TCP connection. If the limit is reached, close another one to make room.

        The closed connection is the one whose request has been incomplete for the longest time, or else an idle one. If
        there is neither, the new connection is refused.
        """
        if len(self.open_connections) >= self.settings.connections_max and not self._close_one_connection():
            self.refusals.add(TooManyConnections.code)
            return False
        self.open_connections[protocol.transport] = protocol
        return True

    def _close_one_connection(self) -> bool:
        waits = next((p for p in self.waiting_since if p.transport in self.open_connections), None)
        found = waits or next(
            (p for p in self.open_connections.values() if isinstance(p, LimitedHttpProtocol) and p.is_idle), None
        )
        if found is None:
            return False
        self.refusals.add("request.evicted")
        self.remove(found)
        found.transport.abort()
        return True

    def remove(self, protocol: LimitedHttpProtocol | LimitedWebSocketProtocol) -> None:
        self.open_connections.pop(protocol.transport, None)
        if isinstance(protocol, LimitedHttpProtocol):
            self.waiting_since.pop(protocol, None)

    def start_waiting(self, protocol: LimitedHttpProtocol) -> None:
        if protocol not in self.waiting_since:
            self.waiting_since[protocol] = time.monotonic()
            if self.sweep_timer is None:
                self.sweep_timer = asyncio.get_running_loop().call_later(SWEEP_INTERVAL_S, self._close_slow_connections)

    def _close_slow_connections(self) -> None:
        """Close connections whose request takes too long to arrive.

        This runs periodically while any request is incomplete.
        """
        self.sweep_timer = None
        now = time.monotonic()
        late = now - self.settings.request_wait_s
        for protocol in [p for p, since in self.waiting_since.items() if since <= late and p.is_slow(now - since)]:
            self.remove(protocol)
            protocol.reject_as_too_slow()
        if self.waiting_since:
            self.sweep_timer = asyncio.get_running_loop().call_later(SWEEP_INTERVAL_S, self._close_slow_connections)


class LimitedHttpProtocol(HttpToolsProtocol):
    """One HTTP connection, with the limits of this module."""

    gate: ClassVar[ConnectionLimiter]
    _is_in_request = False  # inside a request
    _is_upgraded = False
    _head_bytes = 0
    _request_bytes = 0  # bytes received of the current request

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        on_socket = self.server is not None and self.server[1] is None
        if not on_socket and not self.gate.admit(self):
            self._reject(503, TooManyConnections())
            return
        self.gate.start_waiting(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.gate.remove(self)
        super().connection_lost(exc)

    @property
    def is_idle(self) -> bool:
        return cast(Any, self.cycle) is None or self.cycle.response_complete

    def is_slow(self, taken_s: float) -> bool:
        """Whether to close this connection: its request head is still incomplete, or its request arrives too slowly."""
        return self.is_idle or self._request_bytes < REQUEST_BYTES_PER_S_MIN * taken_s

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._request_bytes += len(data)
        super().data_received(data)
        if self._is_upgraded:
            return  # the connection is now a WebSocket, with its own protocol object
        if self._is_in_request or self.is_idle:
            self.gate.start_waiting(self)  # inside a request, or after bytes that did not start one
        elif self in self.gate.waiting_since:
            del self.gate.waiting_since[self]
        if self._head_bytes >= 0:
            self._head_bytes += len(data)
            if self._is_in_request and self._head_bytes > HEAD_BYTES_MAX:
                self._reject(431, RequestHeadTooLarge(bytes_max=HEAD_BYTES_MAX))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_request = True
        self._head_bytes = self._request_bytes = 0

    def on_headers_complete(self) -> None:
        self._head_bytes = -1
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._is_in_request = False
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        self._is_upgraded = True
        self.gate.waiting_since.pop(self, None)
        super().handle_websocket_upgrade()

    def reject_as_too_slow(self) -> None:
        self._reject(408, RequestTooSlow())

    def send_400_response(self, msg: str) -> None:
        self._reject(400, RequestNotHttp())

    def _unsupported_upgrade_warning(self) -> None:
        return  # answer as if the client had not requested an upgrade

    def _reject(self, status: int, error: RetinueError) -> None:
        if self.transport.is_closing():
            return
        if not isinstance(error, TooManyConnections):  # counted already
            self.gate.refusals.add(error.code)
        if not self.pipeline and (self.is_idle or not self.cycle.response_started):
            self.transport.write(build_raw_error_response(status, error))
            self.transport.close()
        else:
            self.transport.abort()  # a response has started; there is no other way to end it


def _build_websocket_protocol(limiter: ConnectionLimiter, **uvicorn_arguments: Any) -> LimitedWebSocketProtocol:
    """Build the protocol object for a connection that switches to WebSocket.

    The library is imported on first use, because many servers never need it.
    """
    from retinue.api.websocket_limits import LimitedWebSocketProtocol

    return LimitedWebSocketProtocol(limiter, **uvicorn_arguments)


def build_server_config(app: ASGIApp, limiter: ConnectionLimiter) -> Config:
    """Return the uvicorn configuration for both the TCP and the Unix socket."""
    return Config(
        app,
        http=type("GatedHttp", (LimitedHttpProtocol,), {"gate": limiter}),
        ws=cast(type[asyncio.Protocol], partial(_build_websocket_protocol, limiter)),
        ws_max_size=FRAME_BYTES_MAX,
        ws_ping_interval=PING_INTERVAL_S,
        ws_ping_timeout=PONG_TIMEOUT_S,
        ws_per_message_deflate=False,
        lifespan="off",
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=SHUTDOWN_TIMEOUT_S,
        backlog=BACKLOG,
        proxy_headers=False,
        server_header=False,
        date_header=False,
    )
