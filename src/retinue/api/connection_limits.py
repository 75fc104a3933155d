"""Limits on connections: their number, the time a request may take to arrive, and the size of its
head.

uvicorn parses HTTP and WebSocket frames; this module adds the limits it lacks. A client that sends
its request slowly or not at all keeps its connection only until another client needs it, and at
most `request_wait_s`. An upload may take longer while it keeps a minimum rate.
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

from retinue.api.host_check import Door
from retinue.api.responses import raw_refusal
from retinue.api.uvicorn_server import Config, HttpToolsProtocol
from retinue.domain.errors import Invalid, RetinueError, TooLarge

if TYPE_CHECKING:
    from retinue.api.websocket_limits import Socket

log = logging.getLogger(__name__)

HEAD_BYTES_MAX = 64 * 1024
SWEEP_S = 0.5
SLOWEST_BYTES_PER_S = 64 * 1024  # average, for a request that takes longer than `request_wait_s`
FRAME_BYTES_MAX = 64 * 1024
PING_EVERY_S = 20.0
PONG_WITHIN_S = 20.0
BACKLOG = 1024
CLOSE_WITHIN_S = 1
SAY_EVERY_S = 10.0


class Refusals:
    """Counts refused requests, and logs them at intervals, so that a flood of requests does not flood the log."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self.counts: dict[str, int] = {}
        self._said: dict[str, tuple[float, int]] = {}

    def add(self, code: str) -> None:
        count = self.counts[code] = self.counts.get(code, 0) + 1
        at, told = self._said.get(code, (-SAY_EVERY_S, 0))
        if self._now() - at >= SAY_EVERY_S:
            self._said[code] = (self._now(), count)
            log.warning("turned away", extra={"code": code, "times": count - told})


class Gate(Struct):
    """All open connections, and since when each incomplete request has been waited for."""

    door: Door
    refusals: Refusals = field(default_factory=Refusals)
    open: dict[asyncio.BaseTransport, asyncio.Protocol] = field(
        default_factory=dict[asyncio.BaseTransport, asyncio.Protocol]
    )
    waiting: dict[Http, float] = field(default_factory=dict["Http", float])
    sweeping: asyncio.TimerHandle | None = None

    def admit(self, protocol: Http) -> bool:
        """Accept a TCP connection. At the limit, close the one that has been waiting longest."""
        if len(self.open) >= self.door.connections_max and not self._make_room():
            self.refusals.add("request.no-room")
            return False
        self.open[protocol.transport] = protocol
        return True

    def _make_room(self) -> bool:
        waits = next((p for p in self.waiting if p.transport in self.open), None)
        found = waits or next((p for p in self.open.values() if isinstance(p, Http) and p.is_idle), None)
        if found is None:
            return False
        self.refusals.add("request.gave-up-its-place")
        self.forget(found)
        found.transport.abort()
        return True

    def forget(self, protocol: Http | Socket) -> None:
        self.open.pop(protocol.transport, None)
        if isinstance(protocol, Http):
            self.waiting.pop(protocol, None)

    def waits(self, protocol: Http) -> None:
        if protocol not in self.waiting:
            self.waiting[protocol] = time.monotonic()
            if self.sweeping is None:
                self.sweeping = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        """Close connections whose request took too long.

        Runs only while requests are incomplete.
        """
        self.sweeping = None
        now = time.monotonic()
        late = now - self.door.request_wait_s
        for protocol in [p for p, since in self.waiting.items() if since <= late and p.is_slow(now - since)]:
            self.forget(protocol)
            protocol.too_late()
        if self.waiting:
            self.sweeping = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)


class Http(HttpToolsProtocol):
    """One HTTP connection."""

    gate: ClassVar[Gate]
    _within = False  # inside a request
    _upgraded = False
    _head_bytes = 0
    _came_bytes = 0  # received of this request

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        on_socket = self.server is not None and self.server[1] is None
        if not on_socket and not self.gate.admit(self):
            self._turn_away(503, _no_room())
            return
        self.gate.waits(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.gate.forget(self)
        super().connection_lost(exc)

    @property
    def is_idle(self) -> bool:
        return cast(Any, self.cycle) is None or self.cycle.response_complete

    def is_slow(self, taken_s: float) -> bool:
        """Whether to stop waiting for the rest: it arrives too slowly, or a response was already sent."""
        return self.is_idle or self._came_bytes < SLOWEST_BYTES_PER_S * taken_s

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._came_bytes += len(data)
        super().data_received(data)
        if self._upgraded:
            return  # the connection is now a WebSocket, with its own protocol object
        if self._within or self.is_idle:
            self.gate.waits(self)  # inside a request, or bytes that start none
        elif self in self.gate.waiting:
            del self.gate.waiting[self]
        if self._head_bytes >= 0:
            self._head_bytes += len(data)
            if self._within and self._head_bytes > HEAD_BYTES_MAX:
                self._turn_away(431, _head_too_large())

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._within = True
        self._head_bytes = self._came_bytes = 0

    def on_headers_complete(self) -> None:
        self._head_bytes = -1
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._within = False
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        self._upgraded = True
        self.gate.waiting.pop(self, None)
        super().handle_websocket_upgrade()

    def too_late(self) -> None:
        self._turn_away(408, _too_slow())

    def send_400_response(self, msg: str) -> None:
        self._turn_away(400, _not_http())

    def _unsupported_upgrade_warning(self) -> None:
        return  # answer as if the client had not requested an upgrade

    def _turn_away(self, status: int, error: RetinueError) -> None:
        if self.transport.is_closing():
            return
        if error.code != "request.no-room":
            self.gate.refusals.add(error.code)
        if not self.pipeline and (self.is_idle or not self.cycle.response_started):
            self.transport.write(raw_refusal(status, error))
            self.transport.close()
        else:
            self.transport.abort()  # a response has started; there is no other way to end it


def _socket(gate: Gate, **served: Any) -> Socket:
    """Build a WebSocket protocol.

    The library is imported on first use, because many servers never need it.
    """
    from retinue.api.websocket_limits import Socket

    return Socket(gate, **served)


def server_config(app: ASGIApp, gate: Gate) -> Config:
    """Return the uvicorn configuration for both the TCP and the Unix socket."""
    return Config(
        app,
        http=type("GatedHttp", (Http,), {"gate": gate}),
        ws=cast(type[asyncio.Protocol], partial(_socket, gate)),
        ws_max_size=FRAME_BYTES_MAX,
        ws_ping_interval=PING_EVERY_S,
        ws_ping_timeout=PONG_WITHIN_S,
        ws_per_message_deflate=False,
        lifespan="off",
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=CLOSE_WITHIN_S,
        backlog=BACKLOG,
        proxy_headers=False,
        server_header=False,
        date_header=False,
    )


def _no_room() -> RetinueError:
    return RetinueError(
        "the house has no room for another connection",
        because="as many as `house.limits.connections_max` are open, and all of them are at work",
        try_this="try again in a moment",
        code="request.no-room",
    )


def _head_too_large() -> RetinueError:
    return TooLarge(
        "the head of this request is too large",
        because=f"it may have {HEAD_BYTES_MAX:,} bytes",
        try_this="send fewer or shorter headers",
        code="request.head-too-large",
    )


def _too_slow() -> RetinueError:
    return Invalid(
        "this request took too long to arrive",
        because="a request must be here in full within `house.limits.request_wait_s`",
        try_this="send it again, at once",
        code="request.too-slow",
    )


def _not_http() -> RetinueError:
    return Invalid(
        "this is no request that we can read",
        because="it is not HTTP/1.1",
        try_this="speak HTTP to this door; behind TLS, through a proxy",
        code="request.not-http",
    )
