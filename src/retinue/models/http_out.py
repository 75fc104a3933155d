"""What aiohttp is told to do our way when a request goes out: which line it takes, and how a long body is written.

Imported where a request is made, and not before: it brings aiohttp with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Any
from weakref import WeakSet

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from aiohttp.connector import Connection

# Below what an allocator asks the kernel for anew each time: the pages of a body of half a megabyte cost more than
# filling them.
SLAB_BYTES = 64 * 1024


# Of whoever asks: whether the line that was taken for it has been used before. Tracing would say so too, for a tenth of
# what a whole request costs.
line_was_used: ContextVar[bool] = ContextVar("line_was_used", default=False)


class Lines(aiohttp.TCPConnector):
    """Connections that say whether they were used before."""

    def __init__(self, *, limit: int, keepalive_timeout: float) -> None:
        super().__init__(limit=limit, keepalive_timeout=keepalive_timeout)  # pyright: ignore[reportUnknownMemberType]
        self._used: WeakSet[object] = WeakSet()

    async def connect(self, *args: Any, **more: Any) -> Connection:
        line_was_used.set(False)
        connection = await super().connect(*args, **more)
        if connection.protocol is not None:
            line_was_used.set(connection.protocol in self._used)
            self._used.add(connection.protocol)
        return connection


class Slabs(aiohttp.Payload):
    """A body of known size, sent in pieces and never put together as one. It may be written more than once."""

    _autoclose = True  # nothing is open

    def __init__(self, pieces: Sequence[bytes], size_bytes: int) -> None:
        super().__init__(pieces, content_type="application/json")
        self._pieces = pieces
        self._size = size_bytes

    async def write(self, writer: AbstractStreamWriter) -> None:
        for slab in slabs(self._pieces):
            await writer.write(slab)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return b"".join(self._pieces).decode(encoding, errors)


def slabs(pieces: Sequence[bytes]) -> Iterator[bytes]:
    """The same bytes, in pieces of about the size of a slab. One that is larger goes out as it is."""
    first = size_bytes = 0
    for end, piece in enumerate(pieces):
        if size_bytes and size_bytes + len(piece) > SLAB_BYTES:
            yield b"".join(pieces[first:end])
            first, size_bytes = end, 0
        size_bytes += len(piece)
    if first < len(pieces):
        yield b"".join(pieces[first:])
