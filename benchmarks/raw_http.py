"""Sends hand-written keep-alive HTTP/1.1 requests: the minimum cost of a model request."""

from __future__ import annotations

import asyncio
from typing import cast

PATH = b"/v1/chat"
LAST_CHUNK = b"\r\n0\r\n\r\n"


class Wire(asyncio.Protocol):
    """One HTTP connection, which carries one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._waiting: asyncio.Future[bytes] | None = None
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(
            asyncio.Transport, transport
        )  # uvloop's transport has another type with the same methods

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(exc or ConnectionError("the server closed the connection"))

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0 or self._waiting is None:
            return
        at = self._buffer.find(b"content-length: ", 0, end)
        if at >= 0:
            length = int(self._buffer[at + 16 : self._buffer.find(b"\r", at)])
            whole = end + 4 + length
        else:  # a stream, in chunks
            whole = len(self._buffer) if self._buffer.endswith(LAST_CHUNK) else len(self._buffer) + 1
        if len(self._buffer) < whole:
            return
        body = bytes(self._buffer[end + 4 : whole])
        del self._buffer[:whole]
        waiting, self._waiting = self._waiting, None
        if not waiting.done():
            waiting.set_result(body)

    async def request(self, parts: list[bytes], *, path: bytes = PATH, headers: bytes = b"") -> bytes:
        """Send a body joined from its parts, and return the body of the answer (a stream with its chunk sizes)."""
        assert self._transport is not None
        body = b"".join(parts)
        self._waiting = asyncio.get_running_loop().create_future()
        head = b"POST %b HTTP/1.1\r\nhost: x\r\n%bcontent-length: %d\r\n\r\n" % (path, headers, len(body))
        self._transport.write(head + body)
        return await self._waiting

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class WirePool:
    """A pool of open connections: one for each concurrent request."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._free: list[Wire] = []

    async def request(self, parts: list[bytes], *, path: bytes = PATH) -> bytes:
        wire = take_open_wire(self._free) or await self._connect()
        answer = await wire.request(parts, path=path)
        self._free.append(wire)
        return answer

    async def _connect(self) -> Wire:
        _, wire = await asyncio.get_running_loop().create_connection(Wire, "127.0.0.1", self._port)
        return wire


def take_open_wire(free: list[Wire]) -> Wire | None:
    """Return a connection that is still open: the server closes those that have been idle for a long time."""
    while free:
        wire = free.pop()
        if not wire.closed:
            return wire
    return None


async def unix_wire(path: str) -> Wire:
    _, wire = await asyncio.get_running_loop().create_unix_connection(Wire, path)
    return wire
