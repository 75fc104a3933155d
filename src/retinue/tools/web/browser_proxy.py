"""The only network access of a browser: a proxy that checks every host and connects to the checked
address.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from msgspec import Struct

from retinue.policy.access.ip_ranges import plain_host
from retinue.tools.base import ToolFailed
from retinue.tools.web.url_guard import Guard, WebFailed, WebRefused

HEAD_BYTES_MAX = 64 * 1024
CONNECTIONS_MAX = 128
HEAD_S = 30.0
CONNECT_S = 15.0
SILENCE_S = 300.0
REFUSALS_MAX = 20
_CHUNK_BYTES = 64 * 1024
# Hosts that Chromium contacts for itself despite its flags. The page does not need them.
_ITS_OWN = frozenset(
    {
        "clients2.google.com",
        "content-autofill.googleapis.com",
        "optimizationguide-pa.googleapis.com",
        "passwordsleakcheck-pa.googleapis.com",
        "safebrowsing.googleapis.com",
        "update.googleapis.com",
    }
)
_OF_THE_HOP = frozenset({"proxy-connection", "connection", "keep-alive", "proxy-authorization", "host", "upgrade"})


class _Asked(Struct, frozen=True):
    """The target of a request, and the head to send there. The head is empty for a tunnel."""

    host: str
    port: int
    head: bytes = b""
    body_bytes: int = 0


class GuardedProxy:
    """Listens on a Unix socket or a loopback port. Reads only the request target, not the content."""

    def __init__(self, guard: Callable[[], Guard], *, bytes_max: int, spent: Callable[[], None]) -> None:
        """`on_limit` is called when more than `bytes_max` were transferred, counting both
        directions.
        """
        self._guard = guard
        self._left = bytes_max
        self._spent = spent
        self._server: asyncio.Server | None = None
        self._lines: set[asyncio.Task[None]] = set()
        self._refusals: deque[tuple[str, str]] = deque(maxlen=REFUSALS_MAX)

    async def listen(self, path: Path) -> None:
        self._server = await asyncio.start_unix_server(self._accept, path, limit=HEAD_BYTES_MAX)

    async def listen_on_loopback(self) -> int:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=HEAD_BYTES_MAX)
        return int(self._server.sockets[0].getsockname()[1])

    def refusals(self) -> list[tuple[str, str]]:
        """Return the hosts refused since the last call, with the reasons. The host names come from
        the page.
        """
        told = list(dict.fromkeys(self._refusals))
        self._refusals.clear()
        return told

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for line in self._lines:
            line.cancel()
        if self._lines:
            await asyncio.wait(self._lines)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._lines) >= CONNECTIONS_MAX:
            writer.close()
            return
        line = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._lines.add(line)
        line.add_done_callback(self._lines.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(HEAD_S):
                asked = _understood(await reader.readuntil(b"\r\n\r\n"))
            if asked is None:
                await _say(writer, 400, "This is no request that a proxy can pass on.")
                return
            try:
                theirs, there = await self._connect(asked)
            except (ToolFailed, OSError, TimeoutError) as error:
                await self._refuse(writer, asked.host, error)
                return
            with contextlib.closing(there):
                if asked.head:
                    await self._one_request(asked, reader, writer, theirs, there)
                else:
                    writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")
                    await asyncio.gather(self._pump(reader, there), self._pump(theirs, writer))
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # a side disconnected, or sent no complete request
        finally:
            writer.close()

    async def _connect(self, asked: _Asked) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to a checked address, trying each one in turn."""
        if asked.host in _ITS_OWN:
            raise OSError("not for the page")
        async with asyncio.timeout(CONNECT_S):
            failure: OSError | None = None
            for address in await self._guard().addresses(asked.host, asked.port):
                try:
                    return await asyncio.open_connection(address, asked.port)
                except OSError as error:
                    failure = error
            raise failure or OSError("no address")

    async def _refuse(self, writer: asyncio.StreamWriter, host: str, error: Exception) -> None:
        match error:
            case WebRefused():
                self._refusals.append((host, error.because))
                await _say(writer, 403, f"Refused: {error.because}.")
            case WebFailed():
                await _say(writer, 502, error.because)
            case _:
                await _say(writer, 502, "It could not be reached.")

    async def _one_request(
        self,
        asked: _Asked,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        theirs: asyncio.StreamReader,
        there: asyncio.StreamWriter,
    ) -> None:
        """Forward one request and its response.

        A later request on the same connection may be for another host, so it is never forwarded.
        """
        there.write(asked.head)
        left = asked.body_bytes
        while left and (chunk := await reader.read(min(left, _CHUNK_BYTES))):
            left -= len(chunk)
            self._count(chunk)
            there.write(chunk)
            await there.drain()
        loop = asyncio.get_running_loop()
        answer, more = loop.create_task(self._pump(theirs, writer)), loop.create_task(reader.read(1))
        try:
            await asyncio.wait((answer, more), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (answer, more):
                task.cancel()
            await asyncio.gather(answer, more, return_exceptions=True)

    def _count(self, chunk: bytes) -> None:
        self._left -= len(chunk)
        if self._left < 0:
            self._spent()
            raise ConnectionAbortedError

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while True:
            async with asyncio.timeout(SILENCE_S):
                chunk = await source.read(_CHUNK_BYTES)
            if not chunk:
                break
            self._count(chunk)
            sink.write(chunk)
            await sink.drain()
        if sink.can_write_eof():
            sink.write_eof()


def _understood(raw: bytes) -> _Asked | None:
    """Parse the head of a request. Returns None if its body length is ambiguous."""
    try:
        first, *lines = raw[:-4].decode("latin-1").split("\r\n")
        method, target, version = first.split(" ")
        parts = urlsplit(f"//{target}" if method == "CONNECT" else target)
        port = parts.port
    except ValueError:
        return None
    host = plain_host(parts.netloc.rpartition(":")[0] if port is not None else parts.netloc)
    if not host or not version.startswith("HTTP/1.") or "@" in parts.netloc:
        return None
    if method == "CONNECT":
        return _Asked(host, port) if port else None
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
    kept = [line for name, line in named if name not in _OF_THE_HOP]
    path = urlunsplit(("", "", parts.path or "/", parts.query, ""))
    begins = [f"{method} {path} HTTP/1.1", f"Host: {netloc}{f':{port}' if port else ''}", "Connection: close"]
    head = "\r\n".join([*begins, *kept, "", ""]).encode("latin-1")
    return _Asked(host, port or 80, head, int(lengths[0][:15]) if lengths else 0)


async def _say(writer: asyncio.StreamWriter, status: int, words: str) -> None:
    body = words.encode()
    head = f"HTTP/1.1 {status} Refused\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
    writer.write(head.encode() + b"Connection: close\r\n\r\n" + body)
    await writer.drain()
