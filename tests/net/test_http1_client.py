"""HTTP/1.1 connections to providers: what a server may send, and when a connection is reused."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from retinue.net import http1_client as lines_module
from retinue.net.http1_client import ConnectionFailed, ConnectionPool, Http1Connection, batch_pieces, parse_endpoint
from retinue.testing.loop_time import skip_loop_time
from retinue.testing.wait_conditions import WAIT_LIMIT_S, assert_stays_true, wait_until

OK = b"HTTP/1.1 200 OK\r\n"
HELLO = OK + b"content-length: 5\r\n\r\nhello"

AnswerHandler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Server:
    """Sends the same bytes for every request on a connection, and keeps the connection open."""

    def __init__(self, answer: bytes | AnswerHandler, *, closes: bool = False) -> None:
        self.url = ""
        self.asked: list[tuple[str, bytes]] = []
        self.connections: list[asyncio.StreamWriter] = []
        self._answer = answer
        self._closes = closes

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.append(writer)
        try:
            while True:
                if not isinstance(self._answer, bytes):
                    await self._answer(reader, writer)
                    return
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = int(head.partition("content-length: ")[2].partition("\r")[0])
                self.asked.append((head, await reader.readexactly(length)))
                writer.write(self._answer)
                if self._closes:
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def running_server(
    answer: bytes | AnswerHandler, *, closes: bool = False, tls: ssl.SSLContext | None = None
) -> AsyncGenerator[Server]:
    server = Server(answer, closes=closes)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=tls)
    scheme = "https" if tls else "http"
    server.url = f"{scheme}://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1/chat"
    try:
        yield server
    finally:
        listening.close()
        for writer in server.connections:
            writer.close()


@pytest.fixture
async def connections() -> AsyncIterator[ConnectionPool]:
    connections = ConnectionPool()
    yield connections
    await connections.close()


async def asked(connections: ConnectionPool, url: str, *body: bytes, **headers: str) -> tuple[Http1Connection, bytes]:
    """Send a request, and return its connection and the full answer."""
    place, begin = parse_endpoint(url)
    connection = await connections.acquire(place)
    try:
        await connection.send_request(begin, headers, body)
        pieces: list[bytes] = []
        while piece := await connection.read_chunk():
            pieces.append(piece)
        return connection, b"".join(pieces)
    finally:
        connections.release(connection)


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (HELLO, b"hello"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" + HELLO, b"hello"),
        (OK + b"transfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\nafter: all\r\n\r\n", b"hello"),
        (OK + b"Transfer-Encoding: Chunked\r\n\r\n5 \r\nhello\r\n0\r\n\r\n", b"hello"),
        (b"HTTP/1.1 200\ncontent-length: 5\n\nhello", b"hello"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (OK + b"x-odd: \x01\r\ncontent-length: 0\r\n\r\n", b""),
    ],
)
async def test_a_complete_http_response_is_read_and_its_client_connection_is_reused(
    connections: ConnectionPool, answer: bytes, body: bytes
) -> None:
    async with running_server(answer) as server:
        for _ in range(3):
            assert (await asked(connections, server.url, b"{", b"}"))[1] == body
    assert [body for _, body in server.asked] == [b"{}"] * 3
    assert len(server.connections) == 1


async def test_an_http_response_without_a_length_ends_when_the_connection_closes(connections: ConnectionPool) -> None:
    async with running_server(OK + b"\r\nhello", closes=True) as server:
        assert (await asked(connections, server.url))[1] == b"hello"
    assert connections.idle_count == 0


@pytest.mark.parametrize(
    "answer",
    [
        OK + b"content-length: 9\r\n\r\nhello",
        OK + b"transfer-encoding: chunked\r\n\r\n9\r\nhello",
        OK + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
        OK + b"content-len",
        b"",
    ],
)
async def test_a_truncated_http_response_raises_connection_failed(connections: ConnectionPool, answer: bytes) -> None:
    async with running_server(answer, closes=True) as server:
        with pytest.raises(ConnectionFailed):
            await asked(connections, server.url)
    assert connections.idle_count == 0


async def test_the_http_client_can_still_read_data_received_before_the_connection_broke(
    connections: ConnectionPool,
) -> None:
    async with running_server(OK + b"content-length: 9\r\n\r\nhello", closes=True) as server:
        place, begin = parse_endpoint(server.url)
        connection = await connections.acquire(place)
        await connection.send_request(begin, {}, ())
        await wait_until(lambda: connection._transport is None, "the line is broken")
        assert await connection.read_chunk() == b"hello"
        with pytest.raises(ConnectionFailed):
            await connection.read_chunk()
        connections.release(connection)


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\x15\x03\x01\x00\x02\x02\x46",
        b"HTTP/1.1 abc\r\n\r\n",
        OK + b"content-length: 5\r\ncontent-length: 6\r\n\r\n",
        OK + b"content-length: -1\r\n\r\n",
        OK + b"transfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\nhello",
    ],
)
async def test_the_http_client_refuses_a_response_that_is_not_valid_http(
    connections: ConnectionPool, answer: bytes
) -> None:
    async with running_server(answer) as server:
        with pytest.raises(ConnectionFailed, match="not valid HTTP"):
            await asked(connections, server.url)
    assert connections.idle_count == 0


@pytest.mark.parametrize(
    ("begin", "again"),
    [
        (b"HTTP/1.1 200 ", b"O" * 999),
        (OK + b"x: ", b"y" * 999),
        (OK, b"x-header: y\r\n" * 99),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 99),
        (OK + b"transfer-encoding: chunked\r\n\r\n1;", b"y" * 999),
        (OK + b"transfer-encoding: chunked\r\n\r\n0\r\nx: ", b"y" * 999),
    ],
)
async def test_the_http_client_refuses_a_response_head_or_trailer_without_end(
    connections: ConnectionPool, begin: bytes, again: bytes
) -> None:
    async def write_without_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(begin)
        while True:
            writer.write(again)
            await writer.drain()

    async with running_server(write_without_end) as server:
        with pytest.raises(ConnectionFailed, match="too long"):
            async with asyncio.timeout(WAIT_LIMIT_S):
                await asked(connections, server.url)
    assert connections.idle_count == 0


@pytest.mark.parametrize(
    ("answer", "headers"),
    [
        (OK + b"connection: close\r\ncontent-length: 5\r\n\r\nhello", {}),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\nhello", {}),
        (HELLO, {"Connection": "close"}),
        (HELLO + HELLO, {}),  # two answers: the second belongs to no request
    ],
)
async def test_the_http_client_does_not_reuse_a_connection_that_closes_or_sends_extra_data(
    connections: ConnectionPool, answer: bytes, headers: dict[str, str]
) -> None:
    async with running_server(answer) as server:
        for _ in range(2):
            assert (await asked(connections, server.url, **headers))[1] == b"hello"
    assert len(server.connections) == 2
    assert connections.idle_count == 0


async def wait_until_no_connection_is_idle(connections: ConnectionPool) -> None:
    await wait_until(lambda: not connections.idle_count, "no connection is idle")


async def test_an_idle_http_client_connection_that_receives_data_is_closed(connections: ConnectionPool) -> None:
    async with running_server(HELLO) as server:
        await asked(connections, server.url)
        server.connections[0].write(HELLO)
        await wait_until_no_connection_is_idle(connections)
        assert (await asked(connections, server.url))[1] == b"hello"
    assert len(server.connections) == 2


async def test_an_idle_http_client_connection_closed_by_the_server_is_removed_from_the_pool(
    connections: ConnectionPool,
) -> None:
    async with running_server(HELLO) as server:
        await asked(connections, server.url)
        assert connections.idle_count == 1
        server.connections[0].close()
        await wait_until_no_connection_is_idle(connections)


async def test_an_idle_http_client_connection_is_closed_after_the_keep_alive_time(connections: ConnectionPool) -> None:
    async with running_server(HELLO) as server:
        await asked(connections, server.url)
        assert connections.idle_count == 1
        skip_loop_time(lines_module.KEEP_ALIVE_S)
        await wait_until_no_connection_is_idle(connections)


async def test_an_http_client_connection_in_use_is_not_closed_after_the_keep_alive_time(
    connections: ConnectionPool,
) -> None:
    async def answer_after_keep_alive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for skipped_s in (0, 2 * lines_module.KEEP_ALIVE_S):
            await reader.readuntil(b"\r\n\r\n")
            skip_loop_time(skipped_s)
            await asyncio.sleep(0.001)  # sleep: timers that are due run before this one
            writer.write(HELLO)
        await reader.read()

    async with running_server(answer_after_keep_alive) as server:
        for _ in range(2):
            assert (await asked(connections, server.url))[1] == b"hello"
    assert len(server.connections) == 1


async def test_an_http_response_sent_before_the_whole_request_was_read_is_received(connections: ConnectionPool) -> None:
    over = asyncio.Event()

    async def refuse_before_reading_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 5\r\n\r\nlarge")
        await over.wait()  # the rest is not read

    async with running_server(refuse_before_reading_body) as server:
        async with asyncio.timeout(WAIT_LIMIT_S):
            connection, body = await asked(connections, server.url, *[bytes(60_000)] * 1_000)
        over.set()
    assert (connection.status, body) == (413, b"large")
    assert connections.idle_count == 0


async def test_an_http_connection_aborted_while_a_long_body_is_sent_raises_connection_failed(
    connections: ConnectionPool,
) -> None:
    async def abort_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.abort()  # most of the body is not sent yet

    async with running_server(abort_connection) as server:
        with pytest.raises(ConnectionFailed):
            async with asyncio.timeout(WAIT_LIMIT_S):
                await asked(connections, server.url, *[bytes(60_000)] * 1_000)


async def test_the_http_client_pauses_the_server_while_the_response_is_not_read(connections: ConnectionPool) -> None:
    sent = 0

    async def send_large_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK + b"content-length: 50000000\r\n\r\n")
        for _ in range(500):
            writer.write(bytes(100_000))
            await writer.drain()
            sent += 100_000
        await reader.read()

    async with running_server(send_large_body) as server:
        place, begin = parse_endpoint(server.url)
        connection = await connections.acquire(place)
        await connection.send_request(begin, {}, ())
        await assert_stays_true(lambda: sent < 20_000_000, "a paused server causes no event", for_s=0.3)
        size_bytes = 0
        while piece := await connection.read_chunk():
            size_bytes += len(piece)
        assert size_bytes == 50_000_000
        connections.release(connection)
    assert connections.idle_count == 1


async def test_the_http_client_opens_no_more_than_the_maximum_of_connections_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lines_module, "CONNECTIONS_MAX", 2)
    connections = ConnectionPool()
    async with running_server(HELLO) as server:
        place, _ = parse_endpoint(server.url)
        first, _ = await connections.acquire(place), await connections.acquire(place)
        third = asyncio.create_task(connections.acquire(place))
        await assert_stays_true(lambda: not third.done(), "a third line would be open by then", for_s=0.05)
        connections.release(first)
        await third
        await connections.close()


async def test_the_http_client_times_out_while_connecting_to_a_host_that_does_not_resolve(
    connections: ConnectionPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never_resolve(*_: object, **__: object) -> list[object]:
        skip_loop_time(lines_module.CONNECT_TIMEOUT_S)
        await asyncio.Event().wait()
        return []

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", never_resolve)
    with pytest.raises(ConnectionFailed) as failed:
        await connections.acquire(parse_endpoint("http://provider.example")[0])
    assert "20 seconds" in str(failed.value.__cause__)


async def test_the_http_client_reaches_a_host_with_one_unreachable_address_at_another_address(
    connections: ConnectionPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    resolve = loop.getaddrinfo

    async def resolve_to_two_addresses(host: str, port: int, **how: int) -> list[object]:
        return [*await resolve("127.0.0.2", port, **how), *await resolve("127.0.0.1", port, **how)]

    async with running_server(HELLO) as server:
        monkeypatch.setattr(loop, "getaddrinfo", resolve_to_two_addresses)
        assert (await asked(connections, server.url))[1] == b"hello"


async def test_the_http_client_sends_a_request_with_the_expected_request_line_and_headers(
    connections: ConnectionPool,
) -> None:
    async with running_server(HELLO) as server:
        await asked(connections, server.url, b"{}", **{"X-Team": "Küche", "Accept": "text/event-stream"})
    port = server.url.split(":")[2].partition("/")[0]
    [(head, _)] = server.asked
    assert head.split("\r\n") == [
        "POST /v1/chat HTTP/1.1",
        f"host: 127.0.0.1:{port}",
        "accept: text/event-stream",
        "accept-encoding: identity",
        "user-agent: retinue",
        "x-team: Küche",
        "content-length: 2",
        "",
        "",
    ]


@pytest.mark.parametrize("value", ["a\r\nx: b", "a\nb", "a\rb", "a\0b"])
async def test_the_http_client_refuses_a_request_header_with_a_line_break(
    connections: ConnectionPool, value: str
) -> None:
    async with running_server(HELLO) as server:
        with pytest.raises(ValueError, match="line break"):
            await asked(connections, server.url, **{"x-key": value})
    assert server.asked == []
    assert connections.idle_count == 0


def test_the_http_client_parses_a_url_into_endpoint_and_request_head() -> None:
    assert parse_endpoint("https://api.example/v1/a:b?alt=sse") == (
        ("api.example", 443, True),
        "POST /v1/a:b?alt=sse HTTP/1.1\r\nhost: api.example",
    )
    assert parse_endpoint("http://[::1]:8080") == (("::1", 8080, False), "POST / HTTP/1.1\r\nhost: [::1]:8080")
    assert parse_endpoint("http://h/mü ller%2F")[1].startswith("POST /m%C3%BC%20ller%2F HTTP")


def test_batched_body_pieces_of_an_http_request_contain_the_same_bytes() -> None:
    pieces = [bytes([n % 256]) * size for n, size in enumerate([0, 1, 70_000, 3, 65_536, 9, *[1_000] * 200])]
    cut = list(batch_pieces(pieces))
    assert b"".join(cut) == b"".join(pieces)
    assert len(cut) < 10
    assert list(batch_pieces([])) == []


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """Return a certificate for 127.0.0.1, with its key in the same file."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", *kind, *names, "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True, timeout=WAIT_LIMIT_S)
    certificate.write_bytes(certificate.read_bytes() + key.read_bytes())
    return certificate


async def test_the_http_client_verifies_a_tls_host_by_its_certificate(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    async with running_server(HELLO, tls=context) as server:
        stranger = ConnectionPool()
        with pytest.raises(ConnectionFailed) as failed:
            await asked(stranger, server.url)
        assert isinstance(failed.value.__cause__, ssl.SSLCertVerificationError)
        await stranger.close()
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        connections = ConnectionPool()
        for _ in range(2):
            assert (await asked(connections, server.url, b"{}"))[1] == b"hello"
        assert connections.idle_count == 1
        elsewhere = server.url.replace("127.0.0.1", "localhost")
        with pytest.raises(ConnectionFailed) as failed:
            await asked(connections, elsewhere)
        assert isinstance(failed.value.__cause__, ssl.SSLCertVerificationError)
        await connections.close()
