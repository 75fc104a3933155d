"""HTTP/1.1 client with a connection pool, for requests to model providers.

Each connection handles one request at a time. The response body can be read while it arrives. The
client follows no redirects, uses no proxy and does not decompress (it asks for uncompressed
responses). A general HTTP client supports all this, but it takes more time than all other code that
runs for a short model call.
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

CONNECT_TIMEOUT_S = 20.0
HAPPY_EYEBALLS_DELAY_S = 0.25  # after this delay, the host's next address is tried in parallel
CONNECTIONS_MAX = 200
KEEP_ALIVE_S = 60.0
HEAD_BYTES_MAX = 64 * 1024
BUFFERED_BYTES_MAX = 256 * 1024  # receiving is paused while more received bytes than this are unread
SINGLE_WRITE_BYTES_MAX = 64 * 1024  # larger bodies are sent in several writes
# Stays below the size for which the allocator requests fresh memory from the kernel. Mapping the
# pages for a body of half a megabyte costs more than filling them.
WRITE_BYTES = 64 * 1024

# Some servers reject requests without a user agent.
_DEFAULT_HEADERS = {"accept": "*/*", "accept-encoding": "identity", "user-agent": "retinue"}


class ConnectionFailed(Exception):
    """The connection could not be opened, it broke, or the response was not valid HTTP.

    `__cause__` is the underlying network error, if there is one.
    """


class HttpEndpoint(NamedTuple):
    """Host and port of a server, and whether to use TLS. The pool keeps idle connections per endpoint."""

    host: str
    port: int
    is_tls: bool


@lru_cache(maxsize=1024)
def parse_endpoint(url: str) -> tuple[HttpEndpoint, str]:
    """Return the endpoint of a URL, and the request line and `Host` header of a POST request to it."""
    parts = urlsplit(url)
    host, secure = parts.hostname or "", parts.scheme == "https"
    path = quote(parts.path or "/", safe="/%:=&~+!$,;'@()*[]") + (f"?{parts.query}" if parts.query else "")
    place = HttpEndpoint(host, parts.port or (443 if secure else 80), secure)
    return place, f"POST {path} HTTP/1.1\r\nhost: {parts.netloc}"


class Http1Connection(asyncio.Protocol):
    """One connection to a server. It sends a request only after the previous response is complete."""

    def __init__(self, endpoint: HttpEndpoint, on_lost: Callable[[Http1Connection], None]) -> None:
        self.endpoint = endpoint
        self.was_used = False  # whether an earlier request was sent on this connection
        self.idle_timer: asyncio.TimerHandle | None = None  # set while idle
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._parsed_body: list[bytes] = []  # body bytes that the parser found in the data it is reading
        # A C function instead of our code: many servers send each word in its own chunk.
        self.on_body = self._parsed_body.append
        self._parser = httptools.HttpResponseParser(self)
        # Tolerate the protocol errors that other clients tolerate.
        self._parser.set_dangerous_leniencies(
            lenient_headers=True, lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
        )
        self._transport: asyncio.Transport | None = None
        self._data_ready: asyncio.Future[None] | None = None  # resolved when more of the response arrives
        self._writable: asyncio.Future[None] | None = None  # resolved when the transport accepts writes again
        self._keeps_alive = True
        self._reset()

    def _reset(self) -> None:
        self.status = 0  # 0 until the head of the response has arrived
        self.headers: dict[str, str] = {}  # names in lower case
        self.has_response_bytes = False  # whether any byte of the response has arrived
        self._chunks: list[bytes] = []
        self._buffered_bytes = 0
        self._overhead_bytes = 0  # bytes of heads and chunk framing since the last body chunk
        self._is_paused = False
        self._ends_at_close = False
        self._is_complete = False
        self._error: Exception | None = None

    @property
    def is_at_end(self) -> bool:
        """Whether the whole response has arrived and has been read."""
        return self._is_complete and not self._chunks

    @property
    def is_reusable(self) -> bool:
        return self._keeps_alive and self._is_complete and self._transport is not None

    async def send_request(self, request_start: str, headers: Mapping[str, str], body: Sequence[bytes]) -> None:
        """Send a request, and wait for the status and headers of the response. Raises `ConnectionFailed`."""
        self._reset()
        size_bytes = sum(map(len, body))
        named = {**_DEFAULT_HEADERS, **{name.lower(): value for name, value in headers.items()}}
        if named.get("connection", "").lower() == "close":
            self._keeps_alive = False
        head = _encode_head(request_start, named, size_bytes)
        if size_bytes <= SINGLE_WRITE_BYTES_MAX:
            self._write(b"".join((head, *body)))
        else:
            await self._write_batches(head, body)
        while not self.status:
            await self._wait_for_data()

    async def read_chunk(self) -> bytes:
        """Return the body bytes that have arrived since the last call. Waits if there are none yet.

        Returns empty bytes at the end of the body. Raises `ConnectionFailed`.
        """
        while not self._chunks:
            if self._is_complete:
                return b""
            await self._wait_for_data()
        pieces, self._chunks = self._chunks, []
        self._buffered_bytes = 0
        if self._is_paused and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def fail(self, error: Exception) -> None:
        """Make the current request fail: `send_request` or `read_chunk` raises this error.

        Body bytes that arrived before the error can still be read.
        """
        self._keeps_alive = False
        if self._error is None:
            self._error = error
        self._wake()

    def close(self) -> None:
        self._keeps_alive = False
        if self._transport is not None:
            self._transport.abort()

    def _write(self, *data: bytes) -> None:
        """Write bytes to the socket."""
        if self._transport is None:
            raise ConnectionFailed("the connection is closed")
        self._transport.writelines(data)

    async def _write_batches(self, head: bytes, body: Sequence[bytes]) -> None:
        """Send a large body in several writes. The first write includes the request head, to save a system call."""
        for slab in batch_pieces(body):
            if self._writable is not None:
                await self._writable
            if self.status or self._error is not None:  # an early response or a lost connection, for the reader
                self._keeps_alive = False
                return
            if head:
                self._write(head, slab)
                head = b""
            else:
                self._write(slab)

    async def _wait_for_data(self) -> None:
        if self._error is not None:
            raise self._error
        self._data_ready = self._loop.create_future()
        try:
            await self._data_ready
        finally:
            self._data_ready = None

    def _wake(self) -> None:
        if self._data_ready is not None and not self._data_ready.done():
            self._data_ready.set_result(None)
        self.resume_writing()

    # --- asyncio.Protocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport does not subclass it

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._ends_at_close and exc is None:
            self._is_complete = True
        failed = ConnectionFailed("the server closed the connection")
        failed.__cause__ = exc
        self.fail(failed)
        self._on_lost(self)

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        full, self._writable = self._writable, None
        if full is not None and not full.done():
            full.set_result(None)

    def data_received(self, data: bytes) -> None:
        if self._is_complete:  # data without a request
            self.close()
            return
        self.has_response_bytes = True
        self._overhead_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._buffer_parsed_body()
            self.fail(ConnectionFailed("the response is not valid HTTP"))
            return
        self._buffer_parsed_body()
        if self._overhead_bytes > HEAD_BYTES_MAX and not self._is_complete:
            self.fail(ConnectionFailed("the header or a chunk line is too long"))
            return
        if self._buffered_bytes > BUFFERED_BYTES_MAX and not self._is_paused and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()
        if self.status:
            self._wake()

    # --- httptools callbacks ---

    def on_message_begin(self) -> None:
        if self._is_complete:  # a second response to one request
            self._keeps_alive = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.status:
            self.headers.setdefault(name.decode("latin-1").lower(), value.decode("utf-8", "replace"))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:  # an interim response
            self.headers.clear()
        elif not self.status:
            if not self._parser.should_keep_alive():
                self._keeps_alive = False
            coding = self.headers.get("transfer-encoding", "")
            self._ends_at_close = "content-length" not in self.headers and "chunked" not in coding.lower()
            self.status = status

    def on_message_complete(self) -> None:
        self._buffer_parsed_body()
        if self.status:
            self._is_complete = True

    def _buffer_parsed_body(self) -> None:
        if self._parsed_body and not self._is_complete:
            self._chunks += self._parsed_body
            self._buffered_bytes += sum(map(len, self._parsed_body))
            self._overhead_bytes = 0
        self._parsed_body.clear()


class ConnectionPool:
    """Pool of HTTP connections. An idle connection is reused, and closed after `KEEP_ALIVE_S` seconds."""

    def __init__(self) -> None:
        self._idle: dict[HttpEndpoint, list[Http1Connection]] = {}
        self._open: set[Http1Connection] = set()
        self._slots = asyncio.Semaphore(CONNECTIONS_MAX)
        self._ssl_context: ssl.SSLContext | None = None

    @property
    def idle_count(self) -> int:
        """The number of idle connections."""
        return sum(map(len, self._idle.values()))

    async def acquire(self, endpoint: HttpEndpoint, *, force_new: bool = False) -> Http1Connection:
        """Return a connection for one request. The caller must `release` it. Raises `ConnectionFailed`."""
        await self._slots.acquire()
        try:
            return (None if force_new else self._take_idle(endpoint)) or await self._connect_with_timeout(endpoint)
        except BaseException:
            self._slots.release()
            raise

    def release(self, connection: Http1Connection) -> None:
        """Return a connection to the pool.

        If its response is incomplete, the connection is closed, so that the provider stops sending.
        """
        self._slots.release()
        if not connection.is_reusable:
            connection.close()
            return
        connection.was_used = True
        connection.idle_timer = asyncio.get_running_loop().call_later(KEEP_ALIVE_S, connection.close)
        self._idle.setdefault(connection.endpoint, []).append(connection)

    async def close(self) -> None:
        for line in tuple(self._open):
            line.close()
        await asyncio.sleep(0)  # transports report their closing in the next loop iteration

    def _take_idle(self, endpoint: HttpEndpoint) -> Http1Connection | None:
        free = self._idle.get(endpoint)
        if not free:
            return None
        line = free.pop()
        if line.idle_timer is not None:
            line.idle_timer.cancel()
        return line

    def _forget(self, connection: Http1Connection) -> None:
        self._open.discard(connection)
        if connection.idle_timer is not None:
            connection.idle_timer.cancel()
        if connection in (free := self._idle.get(connection.endpoint, [])):
            free.remove(connection)

    async def _connect_with_timeout(self, endpoint: HttpEndpoint) -> Http1Connection:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                return await self._connect(endpoint)
        except TimeoutError:
            late = OSError(errno.ETIMEDOUT, f"not connected within {CONNECT_TIMEOUT_S:g} seconds")
            raise ConnectionFailed("connecting timed out") from late
        except OSError as error:
            raise ConnectionFailed("connecting failed") from error

    async def _connect(self, endpoint: HttpEndpoint) -> Http1Connection:
        loop = asyncio.get_running_loop()
        line = Http1Connection(endpoint, self._forget)
        tls: Any = {"ssl": self._get_ssl_context(), "server_hostname": endpoint.host} if endpoint.is_tls else {}
        found = await loop.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
        try:
            if len(found) == 1:
                host, port = found[0][4][:2]
                await loop.create_connection(lambda: line, str(host), int(port), **tls)
            else:  # not every address may be reachable: many networks resolve IPv6 without a route
                import aiohappyeyeballs

                start = cast(Any, aiohappyeyeballs).start_connection
                sock = await start(found, happy_eyeballs_delay=HAPPY_EYEBALLS_DELAY_S, loop=loop)
                await loop.create_connection(lambda: line, sock=sock, **tls)
        except BaseException:
            line.close()
            raise
        self._open.add(line)
        return line

    def _get_ssl_context(self) -> ssl.SSLContext:
        if self._ssl_context is None:
            self._ssl_context = ssl.create_default_context()
            self._ssl_context.set_alpn_protocols(["http/1.1"])
        return self._ssl_context


def _encode_head(request_start: str, headers: Mapping[str, str], size_bytes: int) -> bytes:
    lines = [
        request_start,
        *(f"{name}: {value}" for name, value in headers.items()),
        f"content-length: {size_bytes}\r\n\r\n",
    ]
    head = "\r\n".join(lines)
    ends = len(lines) + 2  # line ends, including that of the request line
    if head.count("\n") != ends or head.count("\r") != ends or "\0" in head:
        raise ValueError("a header contains a line break")
    return head.encode()


def batch_pieces(pieces: Sequence[bytes]) -> Iterator[bytes]:
    """Join small pieces into batches of at most `WRITE_BYTES`. A larger piece is yielded as one batch."""
    ends = list(accumulate(map(len, pieces)))  # in C: a long session has thousands of pieces, sent with every request
    first = sent_bytes = 0
    while first < len(pieces):
        end = max(bisect_right(ends, sent_bytes + WRITE_BYTES), first + 1)
        yield b"".join(pieces[first:end])
        first, sent_bytes = end, ends[end - 1]
