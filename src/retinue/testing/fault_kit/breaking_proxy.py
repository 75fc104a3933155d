"""A TCP proxy between a connector and its platform that breaks connections on demand."""

from __future__ import annotations

import asyncio
import socket
import struct
from dataclasses import dataclass, field
from enum import StrEnum

from retinue.testing.fault_kit.peer import HostPort
from retinue.testing.free_ports import HOST, free_port

CHUNK_BYTES = 65_536
DRIP_BYTES = 13
DRIP_S = 0.001
_LINGER_ZERO = struct.pack("ii", 1, 0)  # linger for zero seconds: the peer gets a reset instead of an orderly close


class BreakPoint(StrEnum):
    """The point at which the proxy breaks a connection that carries a given text to the platform."""

    BEFORE = "before"  # nothing of the text arrives
    HALF_WAY = "half-way"  # the first half of the text arrives
    FROZEN = "frozen"  # nothing of the text arrives, and the connection stays open
    AFTER = "after"  # the whole text arrives, and nothing comes back any more, until `break_connections`


@dataclass(slots=True, eq=False)
class _ProxiedConnection:
    client: asyncio.StreamWriter
    platform: asyncio.StreamWriter
    is_frozen: bool = False  # open, but nothing passes
    drops_responses: bool = False  # nothing comes back

    def reset(self) -> None:
        for writer in (self.client, self.platform):
            _reset_connection(writer)


@dataclass(slots=True, eq=False)
class BreakingProxy:
    """A proxy that listens at `address` once it is open, and forwards everything to `target`."""

    target: HostPort
    address: HostPort = field(default_factory=lambda: (HOST, free_port()))
    _server: asyncio.Server | None = None
    _connections: set[_ProxiedConnection] = field(default_factory=set[_ProxiedConnection])
    _breaks: dict[bytes, BreakPoint] = field(default_factory=dict[bytes, BreakPoint])
    _is_slow: bool = False
    _tasks: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    async def open(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._handle_connection, *self.address)

    async def close(self) -> None:
        self.refuse_connections()
        self.break_connections()
        await asyncio.gather(*self._tasks, return_exceptions=True)  # the tasks of broken connections end by themselves

    # --- control ---

    def refuse_connections(self) -> None:
        """Refuse new connections until `open` is called."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def break_connections(self) -> None:
        """Break every current connection."""
        for pair in list(self._connections):
            pair.reset()

    def freeze_connections(self) -> None:
        """Leave every current connection half-open, so that nothing passes through it. New connections work."""
        for pair in self._connections:
            pair.is_frozen = True

    @property
    def is_frozen(self) -> bool:
        """Whether a half-open connection still exists."""
        return any(pair.is_frozen for pair in self._connections)

    def slow_down(self) -> None:
        """Forward everything in small pieces, each after a short delay."""
        self._is_slow = True

    def break_at(self, text: str, where: BreakPoint) -> None:
        """Break the next connection that carries this text to the platform. Connections after it are not broken."""
        self._breaks[text.encode()] = where

    # --- forwarding ---

    async def _handle_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            far_reader, far_writer = await asyncio.open_connection(*self.target)
        except OSError:
            _reset_connection(writer)
            return
        pair = _ProxiedConnection(writer, far_writer)
        self._connections.add(pair)
        pumps = [
            asyncio.ensure_future(self._forward_outbound(pair, reader)),
            asyncio.ensure_future(self._forward_inbound(pair, far_reader)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            self._connections.discard(pair)
            writer.close()
            far_writer.close()

    async def _forward_outbound(self, pair: _ProxiedConnection, reader: asyncio.StreamReader) -> None:
        tail = b""
        while chunk := await _read_chunk(reader):
            where, passed = self._find_break(tail, chunk)
            tail = (tail + chunk)[-CHUNK_BYTES:]
            match where:
                case BreakPoint.BEFORE:
                    return pair.reset()
                case BreakPoint.HALF_WAY:
                    await self._forward_chunk(pair, pair.platform, passed)
                    pair.platform.close()  # the text is incomplete: the platform must not accept it
                    return _reset_connection(pair.client)
                case BreakPoint.FROZEN:
                    pair.is_frozen = True
                case BreakPoint.AFTER:
                    pair.drops_responses = True
                case None:
                    pass
            await self._forward_chunk(pair, pair.platform, chunk)

    def _find_break(self, tail: bytes, chunk: bytes) -> tuple[BreakPoint | None, bytes]:
        """Find the text at which to break the connection.

        Return the break point, and the part of the chunk before the middle of the text, which
        arrives in the case `HALF_WAY`.
        """
        for words, where in list(self._breaks.items()):
            seen = tail[-(len(words) - 1) :] + chunk
            found = seen.find(words)
            if found >= 0:
                del self._breaks[words]
                return where, chunk[: max(0, found + len(words) // 2 - (len(seen) - len(chunk)))]
        return None, b""

    async def _forward_inbound(self, pair: _ProxiedConnection, reader: asyncio.StreamReader) -> None:
        while chunk := await _read_chunk(reader):
            if not pair.drops_responses:
                await self._forward_chunk(pair, pair.client, chunk)

    async def _forward_chunk(self, pair: _ProxiedConnection, writer: asyncio.StreamWriter, chunk: bytes) -> None:
        if pair.is_frozen:
            return
        pieces = [chunk[i : i + DRIP_BYTES] for i in range(0, len(chunk), DRIP_BYTES)] if self._is_slow else [chunk]
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            if self._is_slow:
                await asyncio.sleep(DRIP_S)  # sleep: the slow connection is the fault


async def _read_chunk(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read(CHUNK_BYTES)
    except OSError:
        return b""


def _reset_connection(writer: asyncio.StreamWriter) -> None:
    end: socket.socket | None = writer.get_extra_info("socket")
    if end is not None and end.fileno() >= 0:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
    writer.transport.abort()
