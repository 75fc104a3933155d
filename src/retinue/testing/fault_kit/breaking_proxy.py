"""A TCP proxy between a connector and its platform that breaks connections on demand."""

from __future__ import annotations

import asyncio
import socket
import struct
from dataclasses import dataclass, field
from enum import StrEnum

from retinue.testing.fault_kit.peer import At
from retinue.testing.free_ports import HOST, free_port

CHUNK_BYTES = 65_536
DRIP_BYTES = 13
DRIP_S = 0.001
_RESET = struct.pack("ii", 1, 0)  # linger for zero seconds: the peer gets a reset instead of a regular end


class Break(StrEnum):
    """Where a connection breaks that carries a given text to the platform."""

    BEFORE = "before"  # nothing of it arrives
    HALF_WAY = "half-way"  # the first half of the text arrives
    FROZEN = "frozen"  # nothing of it arrives, and the connection stays open
    AFTER = "after"  # all of it arrives, and nothing comes back any more: `cut` ends it


@dataclass(slots=True, eq=False)
class _Pair:
    near: asyncio.StreamWriter
    far: asyncio.StreamWriter
    frozen: bool = False  # open, but nothing passes
    deaf: bool = False  # nothing comes back

    def reset(self) -> None:
        for writer in (self.near, self.far):
            _reset(writer)


@dataclass(slots=True, eq=False)
class Proxy:
    """Listens at `address` once it is open, and forwards everything to `target`."""

    far: At
    at: At = field(default_factory=lambda: (HOST, free_port()))
    _server: asyncio.Server | None = None
    _pairs: set[_Pair] = field(default_factory=set[_Pair])
    _breaks: dict[bytes, Break] = field(default_factory=dict[bytes, Break])
    _drips: bool = False
    _tasks: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    async def open(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._meet, *self.at)

    async def close(self) -> None:
        self.refuse()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)  # the tasks of cut connections end by themselves

    # --- control ---

    def refuse(self) -> None:
        """Refuse new connections until `open`."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def cut(self) -> None:
        """Break every current connection."""
        for pair in list(self._pairs):
            pair.reset()

    def freeze(self) -> None:
        """Leave every current connection half-open: nothing passes. New connections work."""
        for pair in self._pairs:
            pair.frozen = True

    @property
    def is_frozen(self) -> bool:
        """Whether a half-open connection still exists."""
        return any(pair.frozen for pair in self._pairs)

    def drip(self) -> None:
        """Forward everything in small pieces, each after a short delay."""
        self._drips = True

    def break_at(self, words: str, where: Break) -> None:
        """Break the connection that carries this text to the platform, once."""
        self._breaks[words.encode()] = where

    # --- forwarding ---

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            far_reader, far_writer = await asyncio.open_connection(*self.far)
        except OSError:
            _reset(writer)
            return
        pair = _Pair(writer, far_writer)
        self._pairs.add(pair)
        pumps = [asyncio.ensure_future(self._out(pair, reader)), asyncio.ensure_future(self._back(pair, far_reader))]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            self._pairs.discard(pair)
            writer.close()
            far_writer.close()

    async def _out(self, pair: _Pair, reader: asyncio.StreamReader) -> None:
        tail = b""
        while chunk := await _next(reader):
            where, passed = self._met(tail, chunk)
            tail = (tail + chunk)[-CHUNK_BYTES:]
            match where:
                case Break.BEFORE:
                    return pair.reset()
                case Break.HALF_WAY:
                    await self._pass(pair, pair.far, passed)
                    pair.far.close()  # an end in the middle of the text: the platform must not take it for complete
                    return _reset(pair.near)
                case Break.FROZEN:
                    pair.frozen = True
                case Break.AFTER:
                    pair.deaf = True
                case None:
                    pass
            await self._pass(pair, pair.far, chunk)

    def _met(self, tail: bytes, chunk: bytes) -> tuple[Break | None, bytes]:
        """Find a text at which to break. Returns where, and the part of the chunk before the middle of the text."""
        for words, where in list(self._breaks.items()):
            seen = tail[-(len(words) - 1) :] + chunk
            found = seen.find(words)
            if found >= 0:
                del self._breaks[words]
                return where, chunk[: max(0, found + len(words) // 2 - (len(seen) - len(chunk)))]
        return None, b""

    async def _back(self, pair: _Pair, reader: asyncio.StreamReader) -> None:
        while chunk := await _next(reader):
            if not pair.deaf:
                await self._pass(pair, pair.near, chunk)

    async def _pass(self, pair: _Pair, writer: asyncio.StreamWriter, chunk: bytes) -> None:
        if pair.frozen:
            return
        pieces = [chunk[i : i + DRIP_BYTES] for i in range(0, len(chunk), DRIP_BYTES)] if self._drips else [chunk]
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            if self._drips:
                await asyncio.sleep(DRIP_S)  # sleep: the slow connection is the fault


async def _next(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read(CHUNK_BYTES)
    except OSError:
        return b""


def _reset(writer: asyncio.StreamWriter) -> None:
    end: socket.socket | None = writer.get_extra_info("socket")
    if end is not None and end.fileno() >= 0:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
