"""The only network access of a sandbox: checks host and port, resolves names, connects to the
checked address.

Each command has its own proxy, on a socket that only its sandbox can reach, so commands never share
rules. For a tunnel (CONNECT) to port 443, the server name in the TLS ClientHello must match the
requested host. The tunnel's content is not read.

A plain request is parsed, normalized and forwarded. One to port 443 is forwarded with TLS, so that
a header with a secret can be added without sending it in clear text.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence

from msgspec import Struct

from retinue.config.sandbox import split_port
from retinue.policy.access.ip_ranges import is_address, plain_host
from retinue.sandbox.base import Network
from retinue.sandbox.network_rules import Reach

HEAD_BYTES_MAX = 32 * 1024
HELLO_BYTES_MAX = 16 * 1024 + 5
CHUNK_BYTES = 64 * 1024
CHUNK_LINE_BYTES_MAX = 1024
BODY_BYTES_MAX = 1024 * 1024 * 1024
CONNECTIONS_MAX = 64
ADDRESSES_MAX = 8
HEAD_WAIT_S = 15.0
CONNECT_WAIT_S = 15.0
SILENCE_S = 300.0
TRANSFER_BYTES_MAX = 4 * 1024 * 1024 * 1024  # per command, both directions
TLS_PORT = 443

_REQUEST = re.compile(r"([A-Z]{1,20}) (\S{1,8192}) HTTP/1\.[01]")
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}):[ \t]*([^\r\n\0]*?)[ \t]*")
_URL = re.compile(r"http://([^/?#@\s]+)([/?#]\S*)?", re.IGNORECASE)
# Hop-by-hop headers apply only to the connection between the command and this proxy.
_OF_THE_HOP = frozenset(
    {"connection", "proxy-connection", "keep-alive", "proxy-authorization", "te", "trailer", "upgrade", "host"}
)
_REASONS = {400: "Bad Request", 403: "Forbidden", 502: "Bad Gateway", 504: "Gateway Timeout"}

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a host."""


class Refused(Exception):
    """A request that is refused. The command receives the status and the reason."""

    def __init__(self, status: int, because: str) -> None:
        super().__init__(because)
        self.status = status
        self.because = because


class Asked(Struct, frozen=True):
    """A parsed request."""

    method: str
    host: str
    port: int
    path: str
    headers: tuple[tuple[str, str], ...]

    @property
    def tunnel(self) -> bool:
        return self.method == "CONNECT"


async def resolve(host: str, port: int) -> Sequence[str]:
    """Resolve a host with the system resolver, outside of every sandbox."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(each[4][0]) for each in found))


class Proxy:
    """Serves one command on its listening socket until closed."""

    def __init__(
        self,
        network: Network,
        *,
        resolve: Resolve = resolve,
        tls: ssl.SSLContext | None = None,
        transfer_bytes_max: int = TRANSFER_BYTES_MAX,
    ) -> None:
        self._reach = Reach.of(network)
        self._resolve = resolve
        self._tls = tls
        self._left = transfer_bytes_max
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    @property
    def serving(self) -> bool:
        return self._server is not None and self._server.is_serving()

    async def serve(self, listener: socket.socket) -> None:
        self._server = await asyncio.start_server(self._accept, sock=listener, limit=HEAD_BYTES_MAX)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._serving:
            task.cancel()

    async def closed(self) -> None:
        """Close, and wait until all connections have ended."""
        self.close()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._answer(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if len(self._serving) > CONNECTIONS_MAX:
                raise Refused(502, f"this command has {CONNECTIONS_MAX} connections already")
            async with asyncio.timeout(HEAD_WAIT_S):
                asked = await read_request(reader)
            await (self._tunnel(asked, reader, writer) if asked.tunnel else self._forward(asked, reader, writer))
        except Refused as refusal:
            await _say(writer, refusal)
        except (OSError, EOFError, TimeoutError, asyncio.IncompleteReadError):
            pass  # a side disconnected or was silent for too long
        finally:
            writer.close()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _tunnel(self, asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await self._connect(asked.host, asked.port, tls=None)
        try:
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await writer.drain()
            first = await self._first_words(asked, reader)
            await self._relay((reader, writer), there, first)
        finally:
            there[1].close()

    async def _first_words(self, asked: Asked, reader: asyncio.StreamReader) -> bytes:
        """Read the ClientHello of a tunnel to port 443 and check its server name.

        Otherwise one address that serves many names would give access to all of them.
        """
        if asked.port != TLS_PORT:
            return b""
        async with asyncio.timeout(HEAD_WAIT_S):
            head = await reader.readexactly(5)
            length = int.from_bytes(head[3:5])
            if head[0] != 22 or length > HELLO_BYTES_MAX:
                raise ConnectionError("no TLS")
            hello = await reader.readexactly(length)
        name = server_name(hello)
        fits = plain_host(name) == asked.host if name else is_address(asked.host)
        if not fits:
            raise ConnectionError("another name than was asked for")
        return head + hello

    async def _forward(self, asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        injected = self._reach.headers_for(asked.host, asked.port)
        by_tls = asked.port == TLS_PORT
        if injected and not by_tls and asked.host not in self._reach.private:
            raise Refused(403, f"a secret goes to {asked.host} only by TLS: ask for http://{asked.host}:443/ instead")
        framed = _framing(asked.headers)
        there = await self._connect(asked.host, asked.port, tls=self._context() if by_tls else None)
        try:
            there[1].write(_head(asked, injected))
            sending = asyncio.ensure_future(self._send_body(framed, reader, there[1]))
            try:
                await self._copy(there[0], writer)
            finally:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
        finally:
            there[1].close()

    async def _connect(
        self, host: str, port: int, *, tls: ssl.SSLContext | None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to a checked address, never to a name, because a name may resolve differently a
        moment later.
        """
        if because := self._reach.refusal(host, port):
            raise Refused(403, f"{host or 'this'}:{port} is not to be reached: {because}")
        try:
            async with asyncio.timeout(CONNECT_WAIT_S):
                addresses = [host] if is_address(host) else await self._resolve(host, port)
        except (OSError, TimeoutError, UnicodeError):
            raise Refused(502, f"{host} has no address") from None
        if not addresses:
            raise Refused(502, f"{host} has no address")
        for address in addresses:
            if because := self._reach.refusal_of_address(host, address):
                raise Refused(403, f"{host} is not to be reached: it has an address of which is said: {because}")
        for address in addresses[:ADDRESSES_MAX]:
            try:
                async with asyncio.timeout(CONNECT_WAIT_S):
                    return await asyncio.open_connection(
                        address, port, ssl=tls, server_hostname=host if tls else None, limit=CHUNK_BYTES
                    )
            except ssl.SSLError as error:
                raise Refused(502, f"{host} could not be believed: {error.reason}") from None
            except (OSError, TimeoutError):
                continue
        raise Refused(504, f"{host}:{port} does not answer")

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls

    async def _relay(
        self,
        here: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        there: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        first: bytes,
    ) -> None:
        if first:
            self._count(len(first))
            there[1].write(first)
        up = asyncio.ensure_future(self._copy(here[0], there[1], then_end=True))
        down = asyncio.ensure_future(self._copy(there[0], here[1], then_end=True))
        try:
            await asyncio.gather(up, down)
        finally:
            up.cancel()
            down.cancel()
            await asyncio.gather(up, down, return_exceptions=True)

    async def _copy(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, then_end: bool = False) -> None:
        while chunk := await _soon(source.read(CHUNK_BYTES)):
            self._count(len(chunk))
            sink.write(chunk)
            await _soon(sink.drain())
        if then_end and sink.can_write_eof():
            sink.write_eof()

    async def _send_body(self, framed: int | None, reader: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        """Send the body of this request only. Data after it would be another, unchecked request."""
        if framed is None:
            await self._send_chunks(reader, sink)
            return
        await self._send_exactly(framed, reader, sink)

    async def _send_exactly(self, size: int, reader: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while size:
            chunk = await _soon(reader.read(min(size, CHUNK_BYTES)))
            if not chunk:
                raise EOFError
            size -= len(chunk)
            self._count(len(chunk))
            sink.write(chunk)
            await _soon(sink.drain())

    async def _send_chunks(self, reader: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        """Rewrite chunks without extensions and trailers."""
        while True:
            line = await _soon(reader.readuntil(b"\r\n"))
            digits = line[:-2].partition(b";")[0].strip()
            if len(line) > CHUNK_LINE_BYTES_MAX or not re.fullmatch(rb"[0-9A-Fa-f]{1,8}", digits):
                raise EOFError
            size = int(digits, 16)
            sink.write(b"%x\r\n" % size)
            await self._send_exactly(size, reader, sink)
            sink.write(b"\r\n")
            if not size:
                await _soon(sink.drain())
                return
            if await _soon(reader.readexactly(2)) != b"\r\n":
                raise EOFError

    def _count(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise EOFError


async def _soon(what: Awaitable[bytes] | Awaitable[None]) -> bytes:
    async with asyncio.timeout(SILENCE_S):
        return await what or b""


async def read_request(reader: asyncio.StreamReader) -> Asked:
    """Parse the head of a request. An ambiguous one is refused."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n"))[:-4].decode("latin-1")
    except asyncio.LimitOverrunError:
        raise Refused(400, f"the head of a request has at most {HEAD_BYTES_MAX:,} bytes") from None
    first, *lines = head.split("\r\n")
    asked = _REQUEST.fullmatch(first)
    headers = [_HEADER.fullmatch(line) for line in lines]
    if asked is None or None in headers:
        raise Refused(400, "this is no request that a proxy understands")
    method, target = asked[1], asked[2]
    pairs = tuple((header[1], header[2]) for header in headers if header)
    if method == "CONNECT":
        name, port = split_port(target)
        if port is None or not 0 < port < 65_536:
            raise Refused(400, "CONNECT takes HOST:PORT")
        return Asked(method, plain_host(name), port, "", pairs)
    url = _URL.fullmatch(target)
    if url is None:
        raise Refused(400, "a plain request to a proxy names the whole http:// address")
    name, port = split_port(url[1])
    if port is not None and not 0 < port < 65_536:
        raise Refused(400, "this is no port")
    path = (url[2] or "/").partition("#")[0]
    return Asked(method, plain_host(name), port or 80, path if path.startswith("/") else f"/{path}", pairs)


def _framing(headers: Sequence[tuple[str, str]]) -> int | None:
    """Return the body length, or None if it is chunked. Conflicting lengths are refused."""
    lengths = [value for name, value in headers if name.lower() == "content-length"]
    codings = [value.lower() for name, value in headers if name.lower() == "transfer-encoding"]
    if codings:
        if lengths or codings != ["chunked"]:
            raise Refused(400, "the length of this body can be read in two ways")
        return None
    if not lengths:
        return 0
    if len(lengths) > 1 or not re.fullmatch(r"[0-9]{1,12}", lengths[0]) or int(lengths[0]) > BODY_BYTES_MAX:
        raise Refused(400, f"a body has one length, of at most {BODY_BYTES_MAX:,} bytes")
    return int(lengths[0])


def _head(asked: Asked, injected: Mapping[str, str]) -> bytes:
    """Build the head for one request per connection."""
    replaced = {name.lower() for name in injected}
    named = {
        name.strip().lower() for key, value in asked.headers if key.lower() == "connection" for name in value.split(",")
    } - {"content-length", "transfer-encoding"}
    dropped = _OF_THE_HOP | replaced | named
    host = f"[{asked.host}]" if ":" in asked.host else asked.host
    lines = [
        f"{asked.method} {asked.path} HTTP/1.1",
        f"Host: {host}" if asked.port in (80, TLS_PORT) else f"Host: {host}:{asked.port}",
        *(f"{name}: {value}" for name, value in asked.headers if name.lower() not in dropped),
        *(f"{name}: {_one_line(value)}" for name, value in injected.items()),
        "Connection: close",
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", errors="replace")


def _one_line(value: str) -> str:
    return re.sub(r"[\r\n\0]", "", value)


async def _say(writer: asyncio.StreamWriter, refusal: Refused) -> None:
    body = f"{refusal.because}\n".encode()
    head = f"HTTP/1.1 {refusal.status} {_REASONS[refusal.status]}\r\nContent-Type: text/plain; charset=utf-8\r\n"
    with contextlib.suppress(OSError, TimeoutError):
        writer.write(f"{head}X-Retinue: refused\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode())
        writer.write(body)
        async with asyncio.timeout(HEAD_WAIT_S):
            await writer.drain()


def server_name(hello: bytes) -> str:
    """Return the server name of a ClientHello; empty if it has none or cannot be parsed."""
    try:
        if hello[0] != 1:
            return ""
        at = 4 + 2 + 32  # kind and length, version, random
        at += 1 + hello[at]  # session
        at += 2 + int.from_bytes(hello[at : at + 2])  # ciphers
        at += 1 + hello[at]  # compressions
        end = at + 2 + int.from_bytes(hello[at : at + 2])
        at += 2
        while at + 4 <= min(end, len(hello)):
            kind, size = int.from_bytes(hello[at : at + 2]), int.from_bytes(hello[at + 2 : at + 4])
            if kind == 0 and hello[at + 6] == 0:
                length = int.from_bytes(hello[at + 7 : at + 9])
                return hello[at + 9 : at + 9 + length].decode("ascii")
            at += 4 + size
    except (IndexError, UnicodeDecodeError):
        pass
    return ""
