"""The proxy, a command's only way to the network: what it allows, and all known ways around its rules."""

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
class WebServer:
    """A web server on this machine that records its requests."""

    port: int = 0
    requests: list[bytes] = field(default_factory=list[bytes])

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            number = len(self.requests)
            self.requests.append(head)
            for line in head.split(b"\r\n"):
                if line.lower().startswith(b"content-length:"):
                    self.requests[number] += await reader.readexactly(int(line.partition(b":")[2]))
            writer.write(ANSWER)
            await writer.drain()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.3):  # time limit: bytes that must not arrive cause no event
                    self.requests[number] += await reader.read(1000)


@contextlib.asynccontextmanager
async def web_server(tls: ssl.SSLContext | None = None) -> AsyncGenerator[WebServer]:
    made = WebServer()
    server = await asyncio.start_server(made.answer, "127.0.0.1", 0, ssl=tls)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()


@contextlib.asynccontextmanager
async def proxy_for(network: NetworkAccess, resolve: object = None) -> AsyncGenerator[int]:
    """Run the proxy alone, on its own socket."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    proxy = SandboxProxy(network, **({"resolve": resolve} if resolve else {}))  # pyright: ignore[reportArgumentType]
    await proxy.serve(listener)
    try:
        yield port
    finally:
        await proxy.wait_closed()


async def send_bytes(port: int, words: bytes) -> bytes:
    async with asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(words)
        try:
            return await reader.read(-1)
        finally:
            writer.close()


async def send_get(port: int, url: str, *headers: str) -> bytes:
    return await send_bytes(port, "\r\n".join([f"GET {url} HTTP/1.1", "Host: x", *headers, "", ""]).encode())


def allow_private_host(name: str, port: int) -> NetworkAccess:
    """Return a rule for a host that may be on this machine, as an owner could write it for a local service."""
    return NetworkAccess(hosts=(f"{name}:{port}",), private_hosts=(name,))


async def resolve_to_loopback(_host: str, _port: int) -> Sequence[str]:
    return ("127.0.0.1",)


async def test_an_allowed_host_is_reached_through_the_sandbox_proxy_and_its_response_is_returned() -> None:
    async with web_server() as there, proxy_for(allow_private_host("nas.lan", there.port), resolve_to_loopback) as port:
        answer = await send_get(
            port, f"http://nas.lan:{there.port}/a?b#c", "Accept: */*", "Proxy-Connection: keep-alive"
        )
        assert answer.endswith(b"hello")
        assert there.requests[0].startswith(b"GET /a?b HTTP/1.1\r\n")
        assert f"host: nas.lan:{there.port}".encode() in there.requests[0].lower()
        assert b"proxy-connection" not in there.requests[0].lower()


NON_PUBLIC_HOSTS = {
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


@pytest.mark.parametrize("host", NON_PUBLIC_HOSTS.values(), ids=NON_PUBLIC_HOSTS)
async def test_the_sandbox_proxy_refuses_a_non_public_address_even_if_a_host_rule_names_it(host: str) -> None:
    plain = host.strip("[]")
    rule = f"[{plain}]:80" if ":" in plain else f"{plain}:80"
    async with proxy_for(NetworkAccess(hosts=(rule, plain))) as port:
        assert b"403 Forbidden" in await send_get(port, f"http://{host}:80/")
        assert b"403 Forbidden" in await send_bytes(port, f"CONNECT {host}:80 HTTP/1.1\r\n\r\n".encode())


async def test_the_sandbox_proxy_reaches_a_private_host_that_is_named_and_no_other_private_host() -> None:
    """The control of the test above: if it is named as private, the same address is reached."""
    async with web_server() as there, web_server() as other:
        async with proxy_for(allow_private_host("127.0.0.1", there.port)) as port:
            assert (await send_get(port, f"http://127.0.0.1:{there.port}/")).endswith(b"hello")
            assert b"403 Forbidden" in await send_get(port, f"http://127.0.0.1:{other.port}/")
            assert b"403 Forbidden" in await send_get(port, f"http://localhost:{there.port}/")
        assert other.requests == []


async def test_the_sandbox_proxy_refuses_a_host_without_a_rule_and_does_not_resolve_its_name() -> None:
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
            assert b"the network rules of this command do not allow it" in await send_get(port, url), url
    assert asked == []  # the names were not even resolved


async def test_the_sandbox_proxy_refuses_a_public_name_that_resolves_to_loopback_without_connecting() -> None:
    async with web_server() as there:
        network = NetworkAccess(hosts=(f"rebind.example:{there.port}",))
        async with proxy_for(network, resolve_to_loopback) as port:
            answer = await send_get(port, f"http://rebind.example:{there.port}/")
            assert b"403" in answer and b"it is loopback" in answer
        assert there.requests == []
        async with proxy_for(
            allow_private_host("rebind.example", there.port), resolve_to_loopback
        ) as port:  # the control
            assert (await send_get(port, f"http://rebind.example:{there.port}/")).endswith(b"hello")


async def test_the_sandbox_proxy_refuses_a_host_with_a_private_address_among_public_addresses() -> None:
    async def resolve(_host: str, _port: int) -> Sequence[str]:
        return ("93.184.216.34", "::ffff:10.0.0.1")

    async with proxy_for(NetworkAccess(hosts=("mixed.example",)), resolve) as port:
        assert b"403" in await send_get(port, "http://mixed.example/")


async def test_the_sandbox_proxy_resolves_a_name_once_and_connects_to_the_checked_address() -> None:
    """DNS rebinding: the second answer would be another address."""
    answers = [("127.0.0.1",), ("127.0.0.2",)]

    async def resolve(_host: str, _port: int) -> Sequence[str]:
        return answers.pop(0)

    async with web_server() as there, proxy_for(allow_private_host("turning.lan", there.port), resolve) as port:
        assert (await send_get(port, f"http://turning.lan:{there.port}/")).endswith(b"hello")
        assert len(answers) == 1


async def test_the_sandbox_proxy_does_not_forward_a_second_request_on_the_same_connection() -> None:
    async with web_server() as there, proxy_for(allow_private_host("nas.lan", there.port), resolve_to_loopback) as port:
        first = f"POST http://nas.lan:{there.port}/one HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody"
        second = "GET http://other.lan/two HTTP/1.1\r\nHost: other.lan\r\n\r\n"
        await send_bytes(port, (first + second).encode())
        assert there.requests[0].endswith(b"body")
        assert b"two" not in there.requests[0]


AMBIGUOUS_HEADERS = {
    "two-lengths": "Content-Length: 1\r\nContent-Length: 2\r\n",
    "length-and-chunks": "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
    "a-coding-of-its-own": "Transfer-Encoding: gzip, chunked\r\n",
    "a-negative-length": "Content-Length: -1\r\n",
    "a-folded-header": "X: a\r\n b\r\n",
    "a-blank-before-the-colon": "Content-Length : 5\r\n",
}


@pytest.mark.parametrize("headers", AMBIGUOUS_HEADERS.values(), ids=AMBIGUOUS_HEADERS)
async def test_the_sandbox_proxy_refuses_a_request_with_ambiguous_headers(headers: str) -> None:
    async with web_server() as there, proxy_for(allow_private_host("nas.lan", there.port), resolve_to_loopback) as port:
        answer = await send_bytes(port, f"POST http://nas.lan:{there.port}/ HTTP/1.1\r\n{headers}\r\nhello".encode())
        assert b"400 Bad Request" in answer
        assert there.requests == []
        answer = await send_bytes(  # the control
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
async def test_the_sandbox_proxy_refuses_a_malformed_or_misleading_url(url: str) -> None:
    async with web_server() as there, proxy_for(allow_private_host("nas.lan", there.port), resolve_to_loopback) as port:
        answer = await send_get(port, url.format(port=there.port))
        assert b"400 Bad Request" in answer or b"403 Forbidden" in answer
        assert there.requests == []


async def test_a_secret_header_injected_by_the_sandbox_proxy_replaces_the_header_of_the_command() -> None:
    async with web_server() as there:
        network = NetworkAccess(
            hosts=(f"nas.lan:{there.port}",),
            private_hosts=("nas.lan",),
            injected={f"nas.lan:{there.port}": {"Authorization": "Bearer s3cret"}},
        )
        async with proxy_for(network, resolve_to_loopback) as port:
            answer = await send_get(port, f"http://nas.lan:{there.port}/", "authorization: Bearer mine", "X: y")
        assert b"s3cret" not in answer
        assert there.requests[0].lower().count(b"authorization:") == 1
        assert b"Authorization: Bearer s3cret" in there.requests[0]
    assert "s3cret" not in repr(network)


async def test_the_sandbox_proxy_does_not_send_a_secret_without_tls() -> None:
    network = NetworkAccess(hosts=("api.example",), injected={"api.example": {"Authorization": "s3cret"}})
    async with proxy_for(network, resolve_to_loopback) as port:
        answer = await send_get(port, "http://api.example/")
        assert b"403" in answer and b"only with TLS" in answer


def _build_client_hello(name: str) -> bytes:
    """Return the first message of a real TLS client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname=name)
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def test_the_sandbox_proxy_parses_the_server_name_of_a_tls_client_hello() -> None:
    assert parse_server_name(_build_client_hello("api.example.com")[5:]) == "api.example.com"
    assert parse_server_name(b"") == parse_server_name(b"\x01" * 40) == ""


async def test_a_sandbox_proxy_tunnel_to_the_tls_port_must_be_tls_for_the_requested_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise one address that serves many names would be a way to all of them."""
    requests: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            requests.append(await reader.read(5000))
            writer.write(b"there")

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    there = server.sockets[0].getsockname()[1]
    monkeypatch.setattr("retinue.sandbox.sandbox_proxy.TLS_PORT", there)
    try:
        async with proxy_for(allow_private_host("nas.lan", there), resolve_to_loopback) as port:

            async def tunnel(first: bytes) -> bytes:
                return await send_bytes(port, f"CONNECT nas.lan:{there} HTTP/1.1\r\n\r\n".encode() + first)

            assert not (await tunnel(_build_client_hello("other.lan"))).endswith(b"there")
            assert not (await tunnel(b"GET / HTTP/1.1\r\nHost: other.lan\r\n\r\n")).endswith(b"there")
            assert [words for words in requests if words] == []
            assert (await tunnel(_build_client_hello("nas.lan"))).endswith(b"there")
    finally:
        server.close()


async def test_the_sandbox_proxy_refuses_a_request_head_that_is_too_long() -> None:
    async with proxy_for(NetworkAccess(hosts=("example.com",))) as port:
        assert b"400" in await send_bytes(port, b"GET http://example.com/ HTTP/1.1\r\n" + b"X: y\r\n" * 10_000)


# From inside a sandbox


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sandbox").resolve()


def _make_confinement(folder: Path, network: NetworkAccess | None) -> Confinement:
    return Confinement(folder=folder, writable=(folder,), network=network, limits=ResourceLimits(seconds=PATIENCE_S))


FETCH_SCRIPT = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:{port}/').read().decode())"


@pytest.mark.spec("D53")
async def test_concurrent_sandboxed_commands_do_not_share_the_host_rules_of_the_proxy(folder: Path) -> None:
    sandbox = BubblewrapSandbox(folder=folder)
    async with web_server() as one, web_server() as two:

        async def fetch(allowed: int, asked: int) -> str:
            confinement = _make_confinement(folder, allow_private_host("127.0.0.1", allowed))
            return (await run(sandbox, [PYTHON, "-I", "-c", FETCH_SCRIPT.format(port=asked)], confinement)).text

        output = await asyncio.gather(
            fetch(one.port, one.port), fetch(two.port, two.port), fetch(one.port, two.port), fetch(two.port, one.port)
        )
        assert output[0] == output[1] == "hello\n"
        assert "403" in output[2] and "403" in output[3]
        assert len(one.requests) == len(two.requests) == 1


async def test_a_sandboxed_command_with_network_access_reaches_nothing_around_the_proxy(folder: Path) -> None:
    sandbox = BubblewrapSandbox(folder=folder)
    code = (
        "import socket\n"
        "try:\n socket.create_connection(('127.0.0.1', {port}), 3); print('reached')\n"
        "except OSError: print('refused')\n"
        "print(len(socket.if_nameindex()))"
    )
    async with web_server() as there:
        confinement = _make_confinement(folder, allow_private_host("127.0.0.1", there.port))
        output = await run(sandbox, [PYTHON, "-I", "-c", code.format(port=there.port)], confinement)
        assert output.text.split() == ["refused", "1"]
        assert there.requests == []


async def test_a_sandboxed_command_with_access_to_the_proxy_keeps_the_other_protections(folder: Path) -> None:
    sandbox = BubblewrapSandbox(folder=folder)
    code = (
        "import json, os\n"
        "open_ = sorted(int(name) for name in os.listdir('/proc/self/fd'))\n"
        "print(json.dumps([open_, open('/proc/self/status').read()]))"
    )
    output = await run(
        sandbox, [PYTHON, "-I", "-c", code], _make_confinement(folder, NetworkAccess(hosts=("example.com",)))
    )
    descriptors, status = json.loads(output.text)
    assert descriptors == [0, 1, 2, 3]  # the last one belongs to the listing itself
    assert "NoNewPrivs:\t1" in status and "Seccomp:\t2" in status and "CapEff:\t0000000000000000" in status


async def test_a_missing_program_in_a_sandbox_with_a_proxy_is_reported_with_exit_code_127(folder: Path) -> None:
    output = await run(
        BubblewrapSandbox(folder=folder),
        ["no-such-program"],
        _make_confinement(folder, NetworkAccess(hosts=("example.com",))),
    )
    assert output.exit_status.code == 127
    assert "no-such-program" in output.text


async def test_the_sandbox_proxy_stops_when_its_command_ends(folder: Path) -> None:
    proxies: list[SandboxProxy] = []

    def make_and_keep_proxy(network: NetworkAccess) -> SandboxProxy:
        proxies.append(SandboxProxy(network))
        return proxies[-1]

    sandbox = BubblewrapSandbox(folder=folder, make_proxy=make_and_keep_proxy)
    output = await shell(sandbox, "echo ran", _make_confinement(folder, NetworkAccess(hosts=("example.com",))))
    assert output.text == "ran\n"
    assert len(proxies) == 1
    assert not proxies[0].is_serving
