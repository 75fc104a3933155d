"""The one way out: what a command may reach through the proxy, and every way around its rules that we know of."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from sandbox.support import PATIENCE_S, PYTHON, run, shell

from retinue.sandbox.base import Confinement, NetworkAccess, ResourceLimits
from retinue.sandbox.bubblewrap import BubblewrapSandbox
from retinue.sandbox.sandbox_proxy import SandboxProxy, parse_server_name

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"


@dataclass(slots=True)
class Site:
    """A server of this machine, which keeps what it was asked."""

    port: int = 0
    heard: list[bytes] = field(default_factory=list[bytes])

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            self.heard.append(head)
            for line in head.split(b"\r\n"):
                if line.lower().startswith(b"content-length:"):
                    self.heard[-1] += await reader.readexactly(int(line.partition(b":")[2]))
            writer.write(ANSWER)
            await writer.drain()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.3):  # time limit: for what must not come there is no event
                    self.heard[-1] += await reader.read(1000)


@contextlib.asynccontextmanager
async def site(tls: ssl.SSLContext | None = None) -> AsyncGenerator[Site]:
    made = Site()
    server = await asyncio.start_server(made.answer, "127.0.0.1", 0, ssl=tls)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()


@contextlib.asynccontextmanager
async def proxy_for(network: NetworkAccess, resolve: object = None) -> AsyncGenerator[int]:
    """The proxy alone, on a socket of its own."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    proxy = SandboxProxy(network, **({"resolve": resolve} if resolve else {}))  # pyright: ignore[reportArgumentType]
    await proxy.serve(listener)
    try:
        yield port
    finally:
        await proxy.wait_closed()


async def ask(port: int, words: bytes) -> bytes:
    async with asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(words)
        try:
            return await reader.read(-1)
        finally:
            writer.close()


async def get(port: int, url: str, *headers: str) -> bytes:
    return await ask(port, "\r\n".join([f"GET {url} HTTP/1.1", "Host: x", *headers, "", ""]).encode())


def home(name: str, port: int) -> NetworkAccess:
    """A rule for a host that may be on this machine, as an owner could write it for a service at home."""
    return NetworkAccess(hosts=(f"{name}:{port}",), private_hosts=(name,))


async def at_home(_host: str, _port: int) -> Sequence[str]:
    return ("127.0.0.1",)


async def test_an_allowed_host_is_reached_and_its_answer_comes_back() -> None:
    async with site() as there, proxy_for(home("nas.lan", there.port), at_home) as port:
        answer = await get(port, f"http://nas.lan:{there.port}/a?b#c", "Accept: */*", "Proxy-Connection: keep-alive")
        assert answer.endswith(b"hello")
        assert there.heard[0].startswith(b"GET /a?b HTTP/1.1\r\n")
        assert f"host: nas.lan:{there.port}".encode() in there.heard[0].lower()
        assert b"proxy-connection" not in there.heard[0].lower()


AROUND = {
    "loopback-by-address": "127.0.0.1",
    "loopback-by-another": "127.9.9.9",
    "loopback-by-name": "localhost",
    "loopback-below-a-name": "x.localhost",
    "loopback-by-number": "2130706433",
    "loopback-in-hex": "0x7f000001",
    "loopback-in-octal": "0177.0.0.1",
    "loopback-shortened": "127.1",
    "zero": "0.0.0.0",
    "ipv6-loopback": "[::1]",
    "mapped": "[::ffff:127.0.0.1]",
    "mapped-in-hex": "[::ffff:7f00:1]",
    "nat64": "[64:ff9b::7f00:1]",
    "private": "10.0.0.1",
    "home-network": "192.168.1.1",
    "link-local": "169.254.169.254",
    "carrier": "100.64.0.1",
    "metadata-by-name": "metadata.google.internal",
}


@pytest.mark.parametrize("host", AROUND.values(), ids=AROUND)
async def test_an_address_that_is_not_public_is_refused_even_where_a_rule_names_it(host: str) -> None:
    plain = host.strip("[]")
    rule = f"[{plain}]:80" if ":" in plain else f"{plain}:80"
    async with proxy_for(NetworkAccess(hosts=(rule, plain))) as port:
        assert b"403 Forbidden" in await get(port, f"http://{host}:80/")
        assert b"403 Forbidden" in await ask(port, f"CONNECT {host}:80 HTTP/1.1\r\n\r\n".encode())


async def test_an_owner_may_name_a_host_at_home_and_no_other_is_meant() -> None:
    """The control to what is above: named as private, the same address is reached."""
    async with site() as there, site() as other:
        async with proxy_for(home("127.0.0.1", there.port)) as port:
            assert (await get(port, f"http://127.0.0.1:{there.port}/")).endswith(b"hello")
            assert b"403 Forbidden" in await get(port, f"http://127.0.0.1:{other.port}/")
            assert b"403 Forbidden" in await get(port, f"http://localhost:{there.port}/")
        assert other.heard == []


async def test_a_host_that_no_rule_names_is_refused() -> None:
    asked: list[str] = []

    async def resolve(host: str, _port: int) -> Sequence[str]:
        asked.append(host)
        return ("93.184.216.34",)

    async with proxy_for(NetworkAccess(hosts=("*.example.com", "example.org:8443")), resolve) as port:
        for url in (
            "http://example.com/",
            "http://evil-example.com/",
            "http://a.example.com:22/",
            "http://example.org/",
        ):
            assert b"the network rules of this command do not allow it" in await get(port, url), url
    assert asked == []  # not even its name was looked up


async def test_a_name_that_leads_home_is_refused_and_nothing_is_connected() -> None:
    async with site() as there:
        network = NetworkAccess(hosts=(f"rebind.example:{there.port}",))
        async with proxy_for(network, at_home) as port:
            answer = await get(port, f"http://rebind.example:{there.port}/")
            assert b"403" in answer and b"it is loopback" in answer
        assert there.heard == []
        async with proxy_for(home("rebind.example", there.port), at_home) as port:  # the control
            assert (await get(port, f"http://rebind.example:{there.port}/")).endswith(b"hello")


async def test_one_bad_address_among_good_ones_is_refused() -> None:
    async def resolve(_host: str, _port: int) -> Sequence[str]:
        return ("93.184.216.34", "::ffff:10.0.0.1")

    async with proxy_for(NetworkAccess(hosts=("mixed.example",)), resolve) as port:
        assert b"403" in await get(port, "http://mixed.example/")


async def test_a_name_is_looked_up_once_and_what_was_looked_at_is_what_is_connected_to() -> None:
    """Rebinding: the second answer would be another one."""
    answers = [("127.0.0.1",), ("127.0.0.2",)]

    async def resolve(_host: str, _port: int) -> Sequence[str]:
        return answers.pop(0)

    async with site() as there, proxy_for(home("turning.lan", there.port), resolve) as port:
        assert (await get(port, f"http://turning.lan:{there.port}/")).endswith(b"hello")
        assert len(answers) == 1


async def test_a_second_request_behind_the_first_is_never_sent_on() -> None:
    async with site() as there, proxy_for(home("nas.lan", there.port), at_home) as port:
        first = f"POST http://nas.lan:{there.port}/one HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody"
        second = "GET http://other.lan/two HTTP/1.1\r\nHost: other.lan\r\n\r\n"
        await ask(port, (first + second).encode())
        assert there.heard[0].endswith(b"body")
        assert b"two" not in there.heard[0]


UNCLEAR = {
    "two-lengths": "Content-Length: 1\r\nContent-Length: 2\r\n",
    "length-and-chunks": "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
    "a-coding-of-its-own": "Transfer-Encoding: gzip, chunked\r\n",
    "a-negative-length": "Content-Length: -1\r\n",
    "a-folded-header": "X: a\r\n b\r\n",
    "a-blank-before-the-colon": "Content-Length : 5\r\n",
}


@pytest.mark.parametrize("headers", UNCLEAR.values(), ids=UNCLEAR)
async def test_what_can_be_read_in_two_ways_is_not_read_at_all(headers: str) -> None:
    async with site() as there, proxy_for(home("nas.lan", there.port), at_home) as port:
        answer = await ask(port, f"POST http://nas.lan:{there.port}/ HTTP/1.1\r\n{headers}\r\nhello".encode())
        assert b"400 Bad Request" in answer
        assert there.heard == []
        answer = await ask(  # the control
            port, f"POST http://nas.lan:{there.port}/ HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello".encode()
        )
        assert answer.endswith(b"hello")


@pytest.mark.parametrize(
    "url",
    [
        "http://nas.lan@127.0.0.1:{port}/",
        "http://nas.lan:{port}@evil.example/",
        "https://nas.lan:{port}/",
        "/etc/passwd",
    ],
)
async def test_an_address_with_tricks_in_it_is_refused(url: str) -> None:
    async with site() as there, proxy_for(home("nas.lan", there.port), at_home) as port:
        answer = await get(port, url.format(port=there.port))
        assert b"400 Bad Request" in answer or b"403 Forbidden" in answer
        assert there.heard == []


async def test_a_secret_is_put_into_the_request_and_what_the_command_says_in_its_place_is_dropped() -> None:
    async with site() as there:
        network = NetworkAccess(
            hosts=(f"nas.lan:{there.port}",),
            private_hosts=("nas.lan",),
            injected={f"nas.lan:{there.port}": {"Authorization": "Bearer s3cret"}},
        )
        async with proxy_for(network, at_home) as port:
            answer = await get(port, f"http://nas.lan:{there.port}/", "authorization: Bearer mine", "X: y")
        assert b"s3cret" not in answer
        assert there.heard[0].lower().count(b"authorization:") == 1
        assert b"Authorization: Bearer s3cret" in there.heard[0]
    assert "s3cret" not in repr(network)


async def test_a_secret_does_not_cross_a_network_in_the_clear() -> None:
    network = NetworkAccess(hosts=("api.example",), injected={"api.example": {"Authorization": "s3cret"}})
    async with proxy_for(network, at_home) as port:
        answer = await get(port, "http://api.example/")
        assert b"403" in answer and b"only with TLS" in answer


def _hello(name: str) -> bytes:
    """What a real client says first."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname=name)
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def test_the_name_in_a_tls_hello_is_read() -> None:
    assert parse_server_name(_hello("api.example.com")[5:]) == "api.example.com"
    assert parse_server_name(b"") == parse_server_name(b"\x01" * 40) == ""


async def test_a_tunnel_to_the_web_port_is_tls_for_the_host_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """One address that serves many names would else be a way to all of them."""
    heard: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            heard.append(await reader.read(5000))
            writer.write(b"there")

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    there = server.sockets[0].getsockname()[1]
    monkeypatch.setattr("retinue.sandbox.sandbox_proxy.TLS_PORT", there)
    try:
        async with proxy_for(home("nas.lan", there), at_home) as port:

            async def tunnel(first: bytes) -> bytes:
                return await ask(port, f"CONNECT nas.lan:{there} HTTP/1.1\r\n\r\n".encode() + first)

            assert not (await tunnel(_hello("other.lan"))).endswith(b"there")
            assert not (await tunnel(b"GET / HTTP/1.1\r\nHost: other.lan\r\n\r\n")).endswith(b"there")
            assert [words for words in heard if words] == []
            assert (await tunnel(_hello("nas.lan"))).endswith(b"there")
    finally:
        server.close()


async def test_a_head_without_end_is_cut_off() -> None:
    async with proxy_for(NetworkAccess(hosts=("example.com",))) as port:
        assert b"400" in await ask(port, b"GET http://example.com/ HTTP/1.1\r\n" + b"X: y\r\n" * 10_000)


# From inside a sandbox.


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sandbox").resolve()


def _confined(folder: Path, network: NetworkAccess | None) -> Confinement:
    return Confinement(folder=folder, writable=(folder,), network=network, limits=ResourceLimits(seconds=PATIENCE_S))


FETCH = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:{port}/').read().decode())"


@pytest.mark.spec("D53")
async def test_two_commands_at_once_do_not_share_a_rule(folder: Path) -> None:
    sandbox = BubblewrapSandbox(folder=folder)
    async with site() as one, site() as two:

        async def fetch(allowed: int, asked: int) -> str:
            confinement = _confined(folder, home("127.0.0.1", allowed))
            return (await run(sandbox, [PYTHON, "-I", "-c", FETCH.format(port=asked)], confinement)).text

        said = await asyncio.gather(
            fetch(one.port, one.port), fetch(two.port, two.port), fetch(one.port, two.port), fetch(two.port, one.port)
        )
        assert said[0] == said[1] == "hello\n"
        assert "403" in said[2] and "403" in said[3]
        assert len(one.heard) == len(two.heard) == 1


async def test_a_networked_command_reaches_nothing_around_the_proxy(folder: Path) -> None:
    sandbox = BubblewrapSandbox(folder=folder)
    code = (
        "import socket\n"
        "try:\n socket.create_connection(('127.0.0.1', {port}), 3); print('reached')\n"
        "except OSError: print('refused')\n"
        "print(len(socket.if_nameindex()))"
    )
    async with site() as there:
        confinement = _confined(folder, home("127.0.0.1", there.port))
        said = await run(sandbox, [PYTHON, "-I", "-c", code.format(port=there.port)], confinement)
        assert said.text.split() == ["refused", "1"]
        assert there.heard == []


async def test_the_rest_of_the_walls_stand_where_there_is_a_network(folder: Path) -> None:
    sandbox = BubblewrapSandbox(folder=folder)
    code = (
        "import json, os\n"
        "open_ = sorted(int(name) for name in os.listdir('/proc/self/fd'))\n"
        "print(json.dumps([open_, open('/proc/self/status').read()]))"
    )
    said = await run(sandbox, [PYTHON, "-I", "-c", code], _confined(folder, NetworkAccess(hosts=("example.com",))))
    descriptors, status = json.loads(said.text)
    assert descriptors == [0, 1, 2, 3]  # the last is the listing's own
    assert "NoNewPrivs:\t1" in status and "Seccomp:\t2" in status and "CapEff:\t0000000000000000" in status


async def test_a_networked_command_that_is_not_there_is_told_of(folder: Path) -> None:
    said = await run(
        BubblewrapSandbox(folder=folder), ["no-such-program"], _confined(folder, NetworkAccess(hosts=("example.com",)))
    )
    assert said.ended.code == 127
    assert "no-such-program" in said.text


async def test_the_proxy_is_gone_with_its_command(folder: Path) -> None:
    proxies: list[SandboxProxy] = []

    def make(network: NetworkAccess) -> SandboxProxy:
        proxies.append(SandboxProxy(network))
        return proxies[-1]

    sandbox = BubblewrapSandbox(folder=folder, make_proxy=make)
    said = await shell(sandbox, "echo ran", _confined(folder, NetworkAccess(hosts=("example.com",))))
    assert said.text == "ran\n"
    assert len(proxies) == 1
    assert not proxies[0].is_serving
