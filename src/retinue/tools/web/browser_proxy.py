"""Gives a browser its only network access: a proxy that checks every host and connects to the checked address."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from msgspec import Struct

from retinue.policy.access.ip_ranges import normalize_host
from retinue.tools.base import ToolFailed
from retinue.tools.web.errors import WebFailed, WebRefused
from retinue.tools.web.url_guard import UrlGuard

HEAD_BYTES_MAX = 64 * 1024
CONNECTIONS_MAX = 128
HEAD_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 15.0
IDLE_TIMEOUT_S = 300.0
REFUSALS_MAX = 20
_CHUNK_BYTES = 64 * 1024
# Hosts that Chromium contacts for itself despite its flags. The page does not need them.
_CHROMIUM_HOSTS = frozenset(
    {
        "clients2.google.com",
        "content-autofill.googleapis.com",
        "optimizationguide-pa.googleapis.com",
        "passwordsleakcheck-pa.googleapis.com",
        "safebrowsing.googleapis.com",
        "update.googleapis.com",
    }
)
_HOP_BY_HOP_HEADERS = frozenset(
    {"proxy-connection", "connection", "keep-alive", "proxy-authorization", "host", "upgrade"}
)


class _ProxyRequest(Struct, frozen=True):
    """The target of a request, and the head to send to that target. The head is empty for a tunnel."""

    host: str
    port: int
    head: bytes = b""
    body_bytes: int = 0


class BrowserProxy:
    """A proxy on a Unix socket or a loopback port. It reads only the target of a request, not the content."""

    def __init__(self, guard: Callable[[], UrlGuard], *, bytes_max: int, on_limit: Callable[[], None]) -> None:
        """Create a proxy.

        `on_limit` is called when more than `bytes_max` bytes have been transferred, counting both directions.
        """
        self._guard = guard
        self._bytes_left = bytes_max
        self._on_limit = on_limit
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._refusals: deque[tuple[str, str]] = deque(maxlen=REFUSALS_MAX)

    async def listen(self, path: Path) -> None:
        self._server = await asyncio.start_unix_server(self._accept, path, limit=HEAD_BYTES_MAX)

    async def listen_on_loopback(self) -> int:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=HEAD_BYTES_MAX)
        return int(self._server.sockets[0].getsockname()[1])

    def take_refusals(self) -> list[tuple[str, str]]:
        """Return the hosts refused since the last call, with the reasons. The host names come from
        the page.
        """
        refusals = list(dict.fromkeys(self._refusals))
        self._refusals.clear()
        return refusals

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= CONNECTIONS_MAX:
            writer.close()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(HEAD_TIMEOUT_S):
                asked = _parse_request(await reader.readuntil(b"\r\n\r\n"))
            if asked is None:
                await _send_error(writer, 400, "Invalid proxy request.")
                return
            try:
                theirs, there = await self._connect(asked)
            except (ToolFailed, OSError, TimeoutError) as error:
                await self._refuse(writer, asked.host, error)
                return
            with contextlib.closing(there):
                if asked.head:
                    await self._forward_request(asked, reader, writer, theirs, there)
                else:
                    writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")
                    await asyncio.gather(self._pump(reader, there), self._pump(theirs, writer))
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # a side disconnected, or sent no complete request
        finally:
            writer.close()

    async def _connect(self, request: _ProxyRequest) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to one of the checked addresses, trying them in turn."""
        if request.host in _CHROMIUM_HOSTS:
            raise OSError("a host of Chromium itself")
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            failure: OSError | None = None
            for address in await self._guard().resolve_addresses(request.host, request.port):
                try:
                    return await asyncio.open_connection(address, request.port)
                except OSError as error:
                    failure = error
            raise failure or OSError("no address")

    async def _refuse(self, writer: asyncio.StreamWriter, host: str, error: Exception) -> None:
        match error:
            case WebRefused():
                self._refusals.append((host, error.because))
                await _send_error(writer, 403, f"Refused: {error.because}.")
            case WebFailed():
                await _send_error(writer, 502, error.because)
            case _:
                await _send_error(writer, 502, "Cannot connect.")

    async def _forward_request(
        self,
        request: _ProxyRequest,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        upstream_reader: asyncio.StreamReader,
        upstream_writer: asyncio.StreamWriter,
    ) -> None:
        """Forward one request and its response.

        A later request on the same connection may be for another host, so it is never forwarded.
        """
        upstream_writer.write(request.head)
        left = request.body_bytes
        while left and (chunk := await reader.read(min(left, _CHUNK_BYTES))):
            left -= len(chunk)
            self._count_bytes(chunk)
            upstream_writer.write(chunk)
            await upstream_writer.drain()
        loop = asyncio.get_running_loop()
        answer, more = loop.create_task(self._pump(upstream_reader, writer)), loop.create_task(reader.read(1))
        try:
            await asyncio.wait((answer, more), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (answer, more):
                task.cancel()
            await asyncio.gather(answer, more, return_exceptions=True)

    def _count_bytes(self, chunk: bytes) -> None:
        self._bytes_left -= len(chunk)
        if self._bytes_left < 0:
            self._on_limit()
            raise ConnectionAbortedError

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while True:
            async with asyncio.timeout(IDLE_TIMEOUT_S):
                chunk = await source.read(_CHUNK_BYTES)
            if not chunk:
                break
            self._count_bytes(chunk)
            sink.write(chunk)
            await sink.drain()
        if sink.can_write_eof():
            sink.write_eof()


def _parse_request(raw: bytes) -> _ProxyRequest | None:
    """Parse the head of a request. Returns None if its body length is ambiguous."""
    try:
        first, *lines = raw[:-4].decode("latin-1").split("\r\n")
        method, target, version = first.split(" ")
        parts = urlsplit(f"//{target}" if method == "CONNECT" else target)
        port = parts.port
    except ValueError:
        return None
    host = normalize_host(parts.netloc.rpartition(":")[0] if port is not None else parts.netloc)
    if not host or not version.startswith("HTTP/1.") or "@" in parts.netloc:
        return None
    if method == "CONNECT":
        return _ProxyRequest(host, port) if port else None
    if parts.scheme.lower() != "http":
        return None
    netloc = f"[{host}]" if ":" in host else host
    named = [(line.partition(":")[0].strip().lower(), line) for line in lines]
    lengths = [line.partition(":")[2].strip() for name, line in named if name == "content-length"]
    if (
        len(lengths) > 1
        or not all(map(str.isdecimal, lengths))
        or any(name == "transfer-encoding" for name, _ in named)
    ):
        return None
    kept = [line for name, line in named if name not in _HOP_BY_HOP_HEADERS]
    path = urlunsplit(("", "", parts.path or "/", parts.query, ""))
    begins = [f"{method} {path} HTTP/1.1", f"Host: {netloc}{f':{port}' if port else ''}", "Connection: close"]
    head = "\r\n".join([*begins, *kept, "", ""]).encode("latin-1")
    return _ProxyRequest(host, port or 80, head, int(lengths[0][:15]) if lengths else 0)


async def _send_error(writer: asyncio.StreamWriter, status: int, text: str) -> None:
    body = text.encode()
    head = f"HTTP/1.1 {status} Refused\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
    writer.write(head.encode() + b"Connection: close\r\n\r\n" + body)
    await writer.drain()
