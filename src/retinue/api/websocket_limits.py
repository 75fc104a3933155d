"""Enforces limits that uvicorn lacks on WebSocket connections."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from retinue.api.connection_limits import ConnectionLimiter

FRAGMENTS_MAX = 64
UNSENT_PONGS_BYTES_MAX = 64 * 1024


class LimitedWebSocketProtocol(WebSocketsSansIOProtocol):
    """One WebSocket connection, with the limits of this module."""

    def __init__(self, limiter: ConnectionLimiter, **uvicorn_arguments: Any) -> None:
        super().__init__(**uvicorn_arguments)
        self.limiter = limiter

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if transport in self.limiter.open_connections:
            self.limiter.open_connections[transport] = self

    def connection_lost(self, exc: Exception | None) -> None:
        self.limiter.remove(self)
        super().connection_lost(exc)

    def handle_ping(self) -> None:
        super().handle_ping()
        # A client that pings and never reads the pongs would fill the write buffer.
        if self.transport.get_write_buffer_size() > UNSENT_PONGS_BYTES_MAX:
            self.limiter.refusals.add("live.unread_pongs")
            self.transport.abort()

    def handle_cont(self, event: Any) -> None:
        super().handle_cont(event)
        # Empty fragments never reach the limit on the message size.
        if len(self.frames) > FRAGMENTS_MAX:
            self.limiter.refusals.add("live.too_many_fragments")
            self.transport.abort()
