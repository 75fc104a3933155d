"""The only network access of a sandbox: an HTTP proxy that checks host and port, and the resolved address.

Each command has its own proxy, on a socket that only its sandbox can reach, so commands never share
rules. For a tunnel (CONNECT) to port 443, the server name in the TLS ClientHello must match the
requested host. The tunnel's content is not read.

A plain request is parsed, normalized and forwarded. A plain request to port 443 is forwarded with
TLS, so that the proxy can add a header with a secret without sending it in clear text.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence

from msgspec import Struct

from retinue.config.sandbox import split_host_and_port
from retinue.policy.access.ip_ranges import is_ip_address, normalize_host
from retinue.sandbox.base import NetworkAccess
from retinue.sandbox.network_rules import HostRules

HEAD_BYTES_MAX = 32 * 1024
HELLO_BYTES_MAX = 16 * 1024 + 5
CHUNK_BYTES = 64 * 1024
CHUNK_LINE_BYTES_MAX = 1024
BODY_BYTES_MAX = 1024 * 1024 * 1024
CONNECTIONS_MAX = 64
ADDRESSES_MAX = 8
HEAD_TIMEOUT_S = 15.0
CONNECT_TIMEOUT_S = 15.0
IDLE_TIMEOUT_S = 300.0
TRANSFER_BYTES_MAX = 4 * 1024 * 1024 * 1024  # per command, both directions
TLS_PORT = 443

_REQUEST = re.compile(r"([A-Z]{1,20}) (\S{1,8192}) HTTP/1\.[01]")
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}):[ \t]*([^\r\n\0]*?)[ \t]*")
_URL = re.compile(r"http://([^/?#@\s]+)([/?#]\S*)?", re.IGNORECASE)
# Hop-by-hop headers apply only to the connection between the command and this proxy.
_HOP_BY_HOP_HEADERS = frozenset(
    {"connection", "proxy-connection", "keep-alive", "proxy-authorization", "te", "trailer", "upgrade", "host"}
)
_REASONS = {400: "Bad Request", 403: "Forbidden", 502: "Bad Gateway", 504: "Gateway Timeout"}

ResolveHost = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a host."""


class ProxyRefusal(Exception):
    """The proxy refuses a request. The command receives the status and the reason."""

    def __init__(self, status: int, because: str) -> None:
        super().__init__(because)
        self.status = status
        self.because = because


class ProxyRequest(Struct, frozen=True):
    """The parsed head of a request that a command sent to the proxy."""

    method: str
    host: str
    port: int
    path: str
    headers: tuple[tuple[str, str], ...]

    @property
    def is_tunnel(self) -> bool:
        return self.method == "CONNECT"


async def resolve(host: str, port: int) -> Sequence[str]:
    """Resolve a host with the system resolver, outside of every sandbox."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(each[4][0]) for each in found))


class SandboxProxy:
    """The proxy of one command: serves connections on the command's listening socket until closed."""

    def __init__(
        self,
        network: NetworkAccess,
        *,
        resolve: ResolveHost = resolve,
        tls: ssl.SSLContext | None = None,
        transfer_bytes_max: int = TRANSFER_BYTES_MAX,
    ) -> None:
        self._rules = HostRules.from_network(network)
        self._resolve = resolve
        self._tls = tls
        self._bytes_left = transfer_bytes_max
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def is_serving(self) -> bool:
        return self._server is not None and self._server.is_serving()

    async def serve(self, listener: socket.socket) -> None:
        self._server = await asyncio.start_server(self._accept, sock=listener, limit=HEAD_BYTES_MAX)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()

    async def wait_closed(self) -> None:
        """Close the proxy, and wait until all its connections have ended."""
        self.close()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._handle_connection(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _handle_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if len(self._connections) > CONNECTIONS_MAX:
                raise ProxyRefusal(502, f"too many connections: the limit is {CONNECTIONS_MAX} for one command")
            async with asyncio.timeout(HEAD_TIMEOUT_S):
                asked = await read_request(reader)
            await (self._tunnel(asked, reader, writer) if asked.is_tunnel else self._forward(asked, reader, writer))
        except ProxyRefusal as refusal:
            await _send_refusal(writer, refusal)
        except (OSError, EOFError, TimeoutError, asyncio.IncompleteReadError):
            pass  # a side disconnected or was silent for too long
        finally:
            writer.close()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _tunnel(self, request: ProxyRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await self._connect(request.host, request.port, tls=None)
        try:
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await writer.drain()
            first = await self._read_client_hello(request, reader)
            await self._relay((reader, writer), there, first)
        finally:
            there[1].close()

    async def _read_client_hello(self, request: ProxyRequest, reader: asyncio.StreamReader) -> bytes:
        """Read the ClientHello of a tunnel to port 443 and check its server name.

        Without this check, an address that serves many hosts would give access to all of them.
        """
        if request.port != TLS_PORT:
            return b""
        async with asyncio.timeout(HEAD_TIMEOUT_S):
            head = await reader.readexactly(5)
            length = int.from_bytes(head[3:5])
            if head[0] != 22 or length > HELLO_BYTES_MAX:
                raise ConnectionError("no TLS")
            hello = await reader.readexactly(length)
        name = parse_server_name(hello)
        fits = normalize_host(name) == request.host if name else is_ip_address(request.host)
        if not fits:
            raise ConnectionError("wrong server name")
        return head + hello

    async def _forward(self, request: ProxyRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        injected = self._rules.find_headers(request.host, request.port)
        by_tls = request.port == TLS_PORT
        if injected and not by_tls and request.host not in self._rules.private_hosts:
            raise ProxyRefusal(
                403, f"a secret is sent to {request.host} only with TLS: request http://{request.host}:443/ instead"
            )
        framed = _find_body_length(request.headers)
        there = await self._connect(request.host, request.port, tls=self._build_tls_context() if by_tls else None)
        try:
            there[1].write(_build_head(request, injected))
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
        """Connect to a checked address.

        Never connects to a name, because the name may resolve differently a moment later.
        """
        if because := self._rules.find_host_refusal(host, port):
            raise ProxyRefusal(403, f"{host or 'this host'}:{port} is not allowed: {because}")
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                addresses = [host] if is_ip_address(host) else await self._resolve(host, port)
        except (OSError, TimeoutError, UnicodeError):
            raise ProxyRefusal(502, f"{host} has no IP address") from None
        if not addresses:
            raise ProxyRefusal(502, f"{host} has no IP address")
        for address in addresses:
            if because := self._rules.find_address_refusal(host, address):
                raise ProxyRefusal(403, f"{host} is not allowed: one of its IP addresses is denied: {because}")
        for address in addresses[:ADDRESSES_MAX]:
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    return await asyncio.open_connection(
                        address, port, ssl=tls, server_hostname=host if tls else None, limit=CHUNK_BYTES
                    )
            except ssl.SSLError as error:
                raise ProxyRefusal(502, f"the TLS certificate of {host} is invalid: {error.reason}") from None
            except (OSError, TimeoutError):
                continue
        raise ProxyRefusal(504, f"{host}:{port} did not answer")

    def _build_tls_context(self) -> ssl.SSLContext:
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
            self._count_bytes(len(first))
            there[1].write(first)
        up = asyncio.ensure_future(self._copy(here[0], there[1], end_after=True))
        down = asyncio.ensure_future(self._copy(there[0], here[1], end_after=True))
        try:
            await asyncio.gather(up, down)
        finally:
            up.cancel()
            down.cancel()
            await asyncio.gather(up, down, return_exceptions=True)

    async def _copy(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, end_after: bool = False) -> None:
        while chunk := await _with_idle_timeout(source.read(CHUNK_BYTES)):
            self._count_bytes(len(chunk))
            sink.write(chunk)
            await _with_idle_timeout(sink.drain())
        if end_after and sink.can_write_eof():
            sink.write_eof()

    async def _send_body(
        self, body_bytes: int | None, reader: asyncio.StreamReader, sink: asyncio.StreamWriter
    ) -> None:
        """Forward the body of one request, and nothing after it: that would be another, unchecked request."""
        if body_bytes is None:
            await self._send_chunks(reader, sink)
            return
        await self._send_exactly(body_bytes, reader, sink)

    async def _send_exactly(self, size: int, reader: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while size:
            chunk = await _with_idle_timeout(reader.read(min(size, CHUNK_BYTES)))
            if not chunk:
                raise EOFError
            size -= len(chunk)
            self._count_bytes(len(chunk))
            sink.write(chunk)
            await _with_idle_timeout(sink.drain())

    async def _send_chunks(self, reader: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        """Forward the chunked body of a request, without chunk extensions and trailers."""
        while True:
            line = await _with_idle_timeout(reader.readuntil(b"\r\n"))
            digits = line[:-2].partition(b";")[0].strip()
            if len(line) > CHUNK_LINE_BYTES_MAX or not re.fullmatch(rb"[0-9A-Fa-f]{1,8}", digits):
                raise EOFError
            size = int(digits, 16)
            sink.write(b"%x\r\n" % size)
            await self._send_exactly(size, reader, sink)
            sink.write(b"\r\n")
            if not size:
                await _with_idle_timeout(sink.drain())
                return
            if await _with_idle_timeout(reader.readexactly(2)) != b"\r\n":
                raise EOFError

    def _count_bytes(self, size: int) -> None:
        self._bytes_left -= size
        if self._bytes_left < 0:
            raise EOFError


async def _with_idle_timeout(operation: Awaitable[bytes] | Awaitable[None]) -> bytes:
    async with asyncio.timeout(IDLE_TIMEOUT_S):
        return await operation or b""


async def read_request(reader: asyncio.StreamReader) -> ProxyRequest:
    """Parse the head of a request. An ambiguous head is refused."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n"))[:-4].decode("latin-1")
    except asyncio.LimitOverrunError:
        raise ProxyRefusal(400, f"the request header is too large: the limit is {HEAD_BYTES_MAX:,} bytes") from None
    first, *lines = head.split("\r\n")
    asked = _REQUEST.fullmatch(first)
    headers = [_HEADER.fullmatch(line) for line in lines]
    if asked is None or None in headers:
        raise ProxyRefusal(400, "invalid proxy request")
    method, target = asked[1], asked[2]
    pairs = tuple((header[1], header[2]) for header in headers if header)
    if method == "CONNECT":
        name, port = split_host_and_port(target)
        if port is None or not 0 < port < 65_536:
            raise ProxyRefusal(400, "invalid CONNECT request: it must name HOST:PORT")
        return ProxyRequest(method, normalize_host(name), port, "", pairs)
    url = _URL.fullmatch(target)
    if url is None:
        raise ProxyRefusal(400, "invalid proxy request: it must name the complete http:// URL")
    name, port = split_host_and_port(url[1])
    if port is not None and not 0 < port < 65_536:
        raise ProxyRefusal(400, "invalid port")
    path = (url[2] or "/").partition("#")[0]
    return ProxyRequest(method, normalize_host(name), port or 80, path if path.startswith("/") else f"/{path}", pairs)


def _find_body_length(headers: Sequence[tuple[str, str]]) -> int | None:
    """Return the length of a request's body, or None if the body is chunked. Conflicting lengths are refused."""
    lengths = [value for name, value in headers if name.lower() == "content-length"]
    codings = [value.lower() for name, value in headers if name.lower() == "transfer-encoding"]
    if codings:
        if lengths or codings != ["chunked"]:
            raise ProxyRefusal(400, "the length of the request body is ambiguous")
        return None
    if not lengths:
        return 0
    if len(lengths) > 1 or not re.fullmatch(r"[0-9]{1,12}", lengths[0]) or int(lengths[0]) > BODY_BYTES_MAX:
        raise ProxyRefusal(400, f"the request body needs one length, of at most {BODY_BYTES_MAX:,} bytes")
    return int(lengths[0])


def _build_head(request: ProxyRequest, injected: Mapping[str, str]) -> bytes:
    """Build the head of the request that the proxy sends. It asks the host to close the connection afterwards."""
    replaced = {name.lower() for name in injected}
    named = {
        name.strip().lower()
        for key, value in request.headers
        if key.lower() == "connection"
        for name in value.split(",")
    } - {"content-length", "transfer-encoding"}
    dropped = _HOP_BY_HOP_HEADERS | replaced | named
    host = f"[{request.host}]" if ":" in request.host else request.host
    lines = [
        f"{request.method} {request.path} HTTP/1.1",
        f"Host: {host}" if request.port in (80, TLS_PORT) else f"Host: {host}:{request.port}",
        *(f"{name}: {value}" for name, value in request.headers if name.lower() not in dropped),
        *(f"{name}: {_remove_line_breaks(value)}" for name, value in injected.items()),
        "Connection: close",
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", errors="replace")


def _remove_line_breaks(value: str) -> str:
    return re.sub(r"[\r\n\0]", "", value)


async def _send_refusal(writer: asyncio.StreamWriter, refusal: ProxyRefusal) -> None:
    body = f"{refusal.because}\n".encode()
    head = f"HTTP/1.1 {refusal.status} {_REASONS[refusal.status]}\r\nContent-Type: text/plain; charset=utf-8\r\n"
    with contextlib.suppress(OSError, TimeoutError):
        writer.write(f"{head}X-Retinue: refused\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode())
        writer.write(body)
        async with asyncio.timeout(HEAD_TIMEOUT_S):
            await writer.drain()


def parse_server_name(hello: bytes) -> str:
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
