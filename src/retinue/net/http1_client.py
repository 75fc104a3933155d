"""Connection pool for model providers: the part of HTTP/1.1 that a model call needs.

Each connection carries one request at a time, and its response is read in chunks as they arrive. It
follows no redirects, decompresses nothing (it asks for identity encoding) and uses no proxy. A
general client does all that, at a higher cost than everything else a short reply needs.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple, cast
from urllib.parse import quote, urlsplit

import httptools

CONNECT_S = 20.0
NEXT_ADDRESS_S = 0.25  # after this delay, the host's next address is tried in parallel
CONNECTIONS_MAX = 200
KEEP_ALIVE_S = 60.0
HEAD_BYTES_MAX = 64 * 1024
HELD_BYTES_MAX = 256 * 1024  # received, but not read yet; above, reading is paused and the provider waits
RAW_BODY_BYTES_MAX = 64 * 1024  # larger bodies are sent in several writes
# Stays below the size for which the allocator requests fresh memory from the kernel. Mapping the
# pages for a body of half a megabyte costs more than filling them.
SLAB_BYTES = 64 * 1024

# Some servers reject requests without a user agent.
_DEFAULTS = {"accept": "*/*", "accept-encoding": "identity", "user-agent": "retinue"}


class LineFailed(Exception):
    """No connection could be opened, it broke, or the response is not HTTP. The network error is the cause."""


class Place(NamedTuple):
    """The server that a connection leads to."""

    host: str
    port: int
    secure: bool


@lru_cache(maxsize=1024)
def place_of(url: str) -> tuple[Place, str]:
    """Return the endpoint of a URL, and the beginning of a POST request to it."""
    parts = urlsplit(url)
    host, secure = parts.hostname or "", parts.scheme == "https"
    path = quote(parts.path or "/", safe="/%:=&~+!$,;'@()*[]") + (f"?{parts.query}" if parts.query else "")
    place = Place(host, parts.port or (443 if secure else 80), secure)
    return place, f"POST {path} HTTP/1.1\r\nhost: {parts.netloc}"


class Line(asyncio.Protocol):
    """One connection. Each request is answered before the next is sent."""

    def __init__(self, place: Place, lost: Callable[[Line], None]) -> None:
        self.place = place
        self.used = False  # by an earlier request
        self.expires: asyncio.TimerHandle | None = None  # set while idle
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._found: list[bytes] = []  # body bytes that the parser found in the data it is reading
        # A C function instead of our code: many servers send each word in its own chunk.
        self.on_body = self._found.append
        self._parser = httptools.HttpResponseParser(self)
        # Tolerate the protocol errors that other clients tolerate.
        self._parser.set_dangerous_leniencies(
            lenient_headers=True, lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
        )
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[None] | None = None  # resolved when more of the response arrives
        self._full: asyncio.Future[None] | None = None  # resolved when the transport accepts writes again
        self._stays = True
        self._begin()

    def _begin(self) -> None:
        self.status = 0  # 0 until the head of the response has arrived
        self.headers: dict[str, str] = {}  # names in lower case
        self.begun = False  # whether any byte of the response has arrived
        self._pieces: list[bytes] = []
        self._held_bytes = 0
        self._other_bytes = 0  # since the last body chunk: heads and chunk framing
        self._paused = False
        self._ends_with_line = False
        self._whole = False
        self._failed: Exception | None = None

    @property
    def at_end(self) -> bool:
        """Whether the whole response has arrived and was read."""
        return self._whole and not self._pieces

    @property
    def reusable(self) -> bool:
        return self._stays and self._whole and self._transport is not None

    async def ask(self, begin: str, headers: Mapping[str, str], body: Sequence[bytes]) -> None:
        """Send a request, and wait for the head of its response. Raises `ConnectionFailed`."""
        self._begin()
        size_bytes = sum(map(len, body))
        named = {**_DEFAULTS, **{name.lower(): value for name, value in headers.items()}}
        if named.get("connection", "").lower() == "close":
            self._stays = False
        head = _head(begin, named, size_bytes)
        if size_bytes <= RAW_BODY_BYTES_MAX:
            self._write(b"".join((head, *body)))
        else:
            await self._write_slabs(head, body)
        while not self.status:
            await self._more()

    async def piece(self) -> bytes:
        """Return the body bytes that have arrived since the last call; empty at the end. Raises `ConnectionFailed`."""
        while not self._pieces:
            if self._whole:
                return b""
            await self._more()
        pieces, self._pieces = self._pieces, []
        self._held_bytes = 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def fail(self, error: Exception) -> None:
        """Wake the reader with an error. Bytes that arrived before can still be read."""
        self._stays = False
        if self._failed is None:
            self._failed = error
        self._wake()

    def close(self) -> None:
        self._stays = False
        if self._transport is not None:
            self._transport.abort()

    def _write(self, *data: bytes) -> None:
        if self._transport is None:
            raise LineFailed("the line is gone")
        self._transport.writelines(data)

    async def _write_slabs(self, head: bytes, body: Sequence[bytes]) -> None:
        """Send a large body in batches. The head goes with the first batch: each write is a system call."""
        for slab in slabs(body):
            if self._full is not None:
                await self._full
            if self.status or self._failed is not None:  # early response or lost connection: the reader gets it
                self._stays = False
                return
            if head:
                self._write(head, slab)
                head = b""
            else:
                self._write(slab)

    async def _more(self) -> None:
        if self._failed is not None:
            raise self._failed
        self._waiting = self._loop.create_future()
        try:
            await self._waiting
        finally:
            self._waiting = None

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
        self.resume_writing()

    # --- asyncio.Protocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport does not subclass it

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._ends_with_line and exc is None:
            self._whole = True
        failed = LineFailed("the other side ended the line")
        failed.__cause__ = exc
        self.fail(failed)
        self._lost(self)

    def pause_writing(self) -> None:
        self._full = self._loop.create_future()

    def resume_writing(self) -> None:
        full, self._full = self._full, None
        if full is not None and not full.done():
            full.set_result(None)

    def data_received(self, data: bytes) -> None:
        if self._whole:  # unsolicited data
            self.close()
            return
        self.begun = True
        self._other_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._take_found()
            self.fail(LineFailed("what came is no HTTP"))
            return
        self._take_found()
        if self._other_bytes > HEAD_BYTES_MAX and not self._whole:
            self.fail(LineFailed("a head, or what stands between pieces, without end"))
            return
        if self._held_bytes > HELD_BYTES_MAX and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        if self.status:
            self._wake()

    # --- httptools callbacks ---

    def on_message_begin(self) -> None:
        if self._whole:  # a second response to one request
            self._stays = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.status:
            self.headers.setdefault(name.decode("latin-1").lower(), value.decode("utf-8", "replace"))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:  # an interim response
            self.headers.clear()
        elif not self.status:
            if not self._parser.should_keep_alive():
                self._stays = False
            coding = self.headers.get("transfer-encoding", "")
            self._ends_with_line = "content-length" not in self.headers and "chunked" not in coding.lower()
            self.status = status

    def on_message_complete(self) -> None:
        self._take_found()
        if self.status:
            self._whole = True

    def _take_found(self) -> None:
        if self._found and not self._whole:
            self._pieces += self._found
            self._held_bytes += sum(map(len, self._found))
            self._other_bytes = 0
        self._found.clear()


class Lines:
    """The open connections to all endpoints. Each is reused while it stays open."""

    def __init__(self) -> None:
        self._free: dict[Place, list[Line]] = {}
        self._open: set[Line] = set()
        self._room = asyncio.Semaphore(CONNECTIONS_MAX)
        self._tls: ssl.SSLContext | None = None

    @property
    def free(self) -> int:
        """How many connections are idle."""
        return sum(map(len, self._free.values()))

    async def take(self, place: Place, *, anew: bool = False) -> Line:
        """Return a connection for one request; call `release` when done. Raises `ConnectionFailed`."""
        await self._room.acquire()
        try:
            return (None if anew else self._kept(place)) or await self._connected(place)
        except BaseException:
            self._room.release()
            raise

    def leave(self, line: Line) -> None:
        """Return a connection to the pool.

        If its response was not read to the end, close it, so that the provider stops sending.
        """
        self._room.release()
        if not line.reusable:
            line.close()
            return
        line.used = True
        line.expires = asyncio.get_running_loop().call_later(KEEP_ALIVE_S, line.close)
        self._free.setdefault(line.place, []).append(line)

    async def close(self) -> None:
        for line in tuple(self._open):
            line.close()
        await asyncio.sleep(0)  # transports report their closing in the next loop iteration

    def _kept(self, place: Place) -> Line | None:
        free = self._free.get(place)
        if not free:
            return None
        line = free.pop()
        if line.expires is not None:
            line.expires.cancel()
        return line

    def _lost(self, line: Line) -> None:
        self._open.discard(line)
        if line.expires is not None:
            line.expires.cancel()
        if line in (free := self._free.get(line.place, [])):
            free.remove(line)

    async def _connected(self, place: Place) -> Line:
        try:
            async with asyncio.timeout(CONNECT_S):
                return await self._connect(place)
        except TimeoutError:
            late = OSError(errno.ETIMEDOUT, f"no connection within {CONNECT_S:g} seconds")
            raise LineFailed("no connection in time") from late
        except OSError as error:
            raise LineFailed("no connection") from error

    async def _connect(self, place: Place) -> Line:
        loop = asyncio.get_running_loop()
        line = Line(place, self._lost)
        tls: Any = {"ssl": self._context(), "server_hostname": place.host} if place.secure else {}
        found = await loop.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
        try:
            if len(found) == 1:
                host, port = found[0][4][:2]
                await loop.create_connection(lambda: line, str(host), int(port), **tls)
            else:  # not every address may be reachable: many networks resolve IPv6 without a route
                import aiohappyeyeballs

                start = cast(Any, aiohappyeyeballs).start_connection
                sock = await start(found, happy_eyeballs_delay=NEXT_ADDRESS_S, loop=loop)
                await loop.create_connection(lambda: line, sock=sock, **tls)
        except BaseException:
            line.close()
            raise
        self._open.add(line)
        return line

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
            self._tls.set_alpn_protocols(["http/1.1"])
        return self._tls


def _head(begin: str, headers: Mapping[str, str], size_bytes: int) -> bytes:
    lines = [begin, *(f"{name}: {value}" for name, value in headers.items()), f"content-length: {size_bytes}\r\n\r\n"]
    head = "\r\n".join(lines)
    ends = len(lines) + 2  # line ends, including that of the request line
    if head.count("\n") != ends or head.count("\r") != ends or "\0" in head:
        raise ValueError("a header has the end of a line in it")
    return head.encode()


def slabs(pieces: Sequence[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in batches of about `WRITE_BYTES`. A larger piece is its own batch."""
    ends = list(accumulate(map(len, pieces)))  # in C: a long session has thousands of pieces, sent with every request
    first = sent_bytes = 0
    while first < len(pieces):
        end = max(bisect_right(ends, sent_bytes + SLAB_BYTES), first + 1)
        yield b"".join(pieces[first:end])
        first, sent_bytes = end, ends[end - 1]
