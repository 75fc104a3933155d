"""Lines to providers: what a server may do with HTTP/1.1, and when its line is used again."""

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

Says = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Server:
    """Answers every request on a line with the same bytes, and keeps the line."""

    def __init__(self, answer: bytes | Says, *, closes: bool = False) -> None:
        self.url = ""
        self.asked: list[tuple[str, bytes]] = []
        self.lines: list[asyncio.StreamWriter] = []
        self._answer = answer
        self._closes = closes

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.lines.append(writer)
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
async def serving(
    answer: bytes | Says, *, closes: bool = False, tls: ssl.SSLContext | None = None
) -> AsyncGenerator[Server]:
    server = Server(answer, closes=closes)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=tls)
    scheme = "https" if tls else "http"
    server.url = f"{scheme}://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1/chat"
    try:
        yield server
    finally:
        listening.close()
        for writer in server.lines:
            writer.close()


@pytest.fixture
async def lines() -> AsyncIterator[ConnectionPool]:
    lines = ConnectionPool()
    yield lines
    await lines.close()


async def asked(lines: ConnectionPool, url: str, *body: bytes, **headers: str) -> tuple[Http1Connection, bytes]:
    """The line on which it was answered, and the whole answer."""
    place, begin = parse_endpoint(url)
    line = await lines.acquire(place)
    try:
        await line.send_request(begin, headers, body)
        pieces: list[bytes] = []
        while piece := await line.read_chunk():
            pieces.append(piece)
        return line, b"".join(pieces)
    finally:
        lines.release(line)


@pytest.mark.parametrize(
    ("answer", "said"),
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
async def test_an_answer_is_heard_whole_and_its_line_used_again(
    lines: ConnectionPool, answer: bytes, said: bytes
) -> None:
    async with serving(answer) as server:
        for _ in range(3):
            assert (await asked(lines, server.url, b"{", b"}"))[1] == said
    assert [body for _, body in server.asked] == [b"{}"] * 3
    assert len(server.lines) == 1


async def test_an_answer_without_a_length_ends_with_its_line(lines: ConnectionPool) -> None:
    async with serving(OK + b"\r\nhello", closes=True) as server:
        assert (await asked(lines, server.url))[1] == b"hello"
    assert lines.idle_count == 0


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
async def test_an_answer_that_breaks_off_is_no_whole_one(lines: ConnectionPool, answer: bytes) -> None:
    async with serving(answer, closes=True) as server:
        with pytest.raises(ConnectionFailed):
            await asked(lines, server.url)
    assert lines.idle_count == 0


async def test_what_came_before_a_line_broke_can_still_be_taken(lines: ConnectionPool) -> None:
    async with serving(OK + b"content-length: 9\r\n\r\nhello", closes=True) as server:
        place, begin = parse_endpoint(server.url)
        line = await lines.acquire(place)
        await line.send_request(begin, {}, ())
        await wait_until(lambda: line._transport is None, "the line is broken")
        assert await line.read_chunk() == b"hello"
        with pytest.raises(ConnectionFailed):
            await line.read_chunk()
        lines.release(line)


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
async def test_what_is_no_http_is_refused(lines: ConnectionPool, answer: bytes) -> None:
    async with serving(answer) as server:
        with pytest.raises(ConnectionFailed, match="not valid HTTP"):
            await asked(lines, server.url)
    assert lines.idle_count == 0


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
async def test_a_head_or_a_trailer_without_end_is_refused(lines: ConnectionPool, begin: bytes, again: bytes) -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(begin)
        while True:
            writer.write(again)
            await writer.drain()

    async with serving(endless) as server:
        with pytest.raises(ConnectionFailed, match="too long"):
            async with asyncio.timeout(WAIT_LIMIT_S):
                await asked(lines, server.url)
    assert lines.idle_count == 0


@pytest.mark.parametrize(
    ("answer", "headers"),
    [
        (OK + b"connection: close\r\ncontent-length: 5\r\n\r\nhello", {}),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\nhello", {}),
        (HELLO, {"Connection": "close"}),
        (HELLO + HELLO, {}),  # twice: who would be answered by the second?
    ],
)
async def test_a_line_that_ends_or_says_too_much_is_not_used_again(
    lines: ConnectionPool, answer: bytes, headers: dict[str, str]
) -> None:
    async with serving(answer) as server:
        for _ in range(2):
            assert (await asked(lines, server.url, **headers))[1] == b"hello"
    assert len(server.lines) == 2
    assert lines.idle_count == 0


async def until_none_is_free(lines: ConnectionPool) -> None:
    await wait_until(lambda: not lines.idle_count, "no line is free")


async def test_a_line_that_speaks_unasked_is_closed(lines: ConnectionPool) -> None:
    async with serving(HELLO) as server:
        await asked(lines, server.url)
        server.lines[0].write(HELLO)
        await until_none_is_free(lines)
        assert (await asked(lines, server.url))[1] == b"hello"
    assert len(server.lines) == 2


async def test_a_line_that_the_other_side_ends_is_forgotten(lines: ConnectionPool) -> None:
    async with serving(HELLO) as server:
        await asked(lines, server.url)
        assert lines.idle_count == 1
        server.lines[0].close()
        await until_none_is_free(lines)


async def test_a_line_that_nobody_uses_is_closed_in_time(lines: ConnectionPool) -> None:
    async with serving(HELLO) as server:
        await asked(lines, server.url)
        assert lines.idle_count == 1
        skip_loop_time(lines_module.KEEP_ALIVE_S)
        await until_none_is_free(lines)


async def test_a_line_in_use_is_not_closed_as_one_that_nobody_uses(lines: ConnectionPool) -> None:
    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for skipped_s in (0, 2 * lines_module.KEEP_ALIVE_S):
            await reader.readuntil(b"\r\n\r\n")
            skip_loop_time(skipped_s)
            await asyncio.sleep(0.001)  # sleep: timers that are due go off before this one
            writer.write(HELLO)
        await reader.read()

    async with serving(slow) as server:
        for _ in range(2):
            assert (await asked(lines, server.url))[1] == b"hello"
    assert len(server.lines) == 1


async def test_an_answer_before_all_was_sent_is_heard(lines: ConnectionPool) -> None:
    over = asyncio.Event()

    async def refuses(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 5\r\n\r\nlarge")
        await over.wait()  # and does not read the rest

    async with serving(refuses) as server:
        async with asyncio.timeout(WAIT_LIMIT_S):
            line, said = await asked(lines, server.url, *[bytes(60_000)] * 1_000)
        over.set()
    assert (line.status, said) == (413, b"large")
    assert lines.idle_count == 0


async def test_a_line_that_goes_while_a_long_body_is_sent_is_told(lines: ConnectionPool) -> None:
    async def leaves(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.abort()  # of many times more than a line holds, most is still to be sent

    async with serving(leaves) as server:
        with pytest.raises(ConnectionFailed):
            async with asyncio.timeout(WAIT_LIMIT_S):
                await asked(lines, server.url, *[bytes(60_000)] * 1_000)


async def test_a_server_waits_while_nobody_takes_what_it_says(lines: ConnectionPool) -> None:
    sent = 0

    async def pours(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK + b"content-length: 50000000\r\n\r\n")
        for _ in range(500):
            writer.write(bytes(100_000))
            await writer.drain()
            sent += 100_000
        await reader.read()

    async with serving(pours) as server:
        place, begin = parse_endpoint(server.url)
        line = await lines.acquire(place)
        await line.send_request(begin, {}, ())
        await assert_stays_true(lambda: sent < 20_000_000, "that a server goes on has no end to wait for", for_s=0.3)
        size_bytes = 0
        while piece := await line.read_chunk():
            size_bytes += len(piece)
        assert size_bytes == 50_000_000
        lines.release(line)
    assert lines.idle_count == 1


async def test_only_so_many_lines_are_open_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_module, "CONNECTIONS_MAX", 2)
    lines = ConnectionPool()
    async with serving(HELLO) as server:
        place, _ = parse_endpoint(server.url)
        first, _ = await lines.acquire(place), await lines.acquire(place)
        third = asyncio.create_task(lines.acquire(place))
        await assert_stays_true(lambda: not third.done(), "a third line would be open by then", for_s=0.05)
        lines.release(first)
        await third
        await lines.close()


async def test_a_place_that_does_not_answer_is_given_up(lines: ConnectionPool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolves(*_: object, **__: object) -> list[object]:
        skip_loop_time(lines_module.CONNECT_TIMEOUT_S)
        await asyncio.Event().wait()
        return []

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolves)
    with pytest.raises(ConnectionFailed) as failed:
        await lines.acquire(parse_endpoint("http://provider.example")[0])
    assert "20 seconds" in str(failed.value.__cause__)


async def test_a_host_with_an_address_where_nobody_is_is_reached_at_another(
    lines: ConnectionPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    resolve = loop.getaddrinfo

    async def both(host: str, port: int, **how: int) -> list[object]:
        return [*await resolve("127.0.0.2", port, **how), *await resolve("127.0.0.1", port, **how)]

    async with serving(HELLO) as server:
        monkeypatch.setattr(loop, "getaddrinfo", both)
        assert (await asked(lines, server.url))[1] == b"hello"


async def test_what_is_asked_for_is_said_plainly(lines: ConnectionPool) -> None:
    async with serving(HELLO) as server:
        await asked(lines, server.url, b"{}", **{"X-Team": "Küche", "Accept": "text/event-stream"})
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
async def test_a_header_is_one_line(lines: ConnectionPool, value: str) -> None:
    async with serving(HELLO) as server:
        with pytest.raises(ValueError, match="line break"):
            await asked(lines, server.url, **{"x-key": value})
    assert server.asked == []
    assert lines.idle_count == 0


def test_whom_to_ask_is_read_out_of_an_address() -> None:
    assert parse_endpoint("https://api.example/v1/a:b?alt=sse") == (
        ("api.example", 443, True),
        "POST /v1/a:b?alt=sse HTTP/1.1\r\nhost: api.example",
    )
    assert parse_endpoint("http://[::1]:8080") == (("::1", 8080, False), "POST / HTTP/1.1\r\nhost: [::1]:8080")
    assert parse_endpoint("http://h/mü ller%2F")[1].startswith("POST /m%C3%BC%20ller%2F HTTP")


def test_slabs_are_the_same_bytes() -> None:
    pieces = [bytes([n % 256]) * size for n, size in enumerate([0, 1, 70_000, 3, 65_536, 9, *[1_000] * 200])]
    cut = list(batch_pieces(pieces))
    assert b"".join(cut) == b"".join(pieces)
    assert len(cut) < 10
    assert list(batch_pieces([])) == []


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """For this machine's number, and with its key in the same file."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", *kind, *names, "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True, timeout=WAIT_LIMIT_S)
    certificate.write_bytes(certificate.read_bytes() + key.read_bytes())
    return certificate


async def test_over_tls_a_host_is_known_by_its_certificate(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    async with serving(HELLO, tls=context) as server:
        stranger = ConnectionPool()
        with pytest.raises(ConnectionFailed) as failed:
            await asked(stranger, server.url)
        assert isinstance(failed.value.__cause__, ssl.SSLCertVerificationError)
        await stranger.close()
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        lines = ConnectionPool()
        for _ in range(2):
            assert (await asked(lines, server.url, b"{}"))[1] == b"hello"
        assert lines.idle_count == 1
        elsewhere = server.url.replace("127.0.0.1", "localhost")
        with pytest.raises(ConnectionFailed) as failed:
            await asked(lines, elsewhere)
        assert isinstance(failed.value.__cause__, ssl.SSLCertVerificationError)
        await lines.close()
