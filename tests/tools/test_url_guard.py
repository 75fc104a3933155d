"""The URL guard: an agent's requests reach no internal address."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import socket
import ssl
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools.fake_web_servers import LOOPBACK, FakeResolver, Reply, Site, make_tool_context, site

from retinue.config.web import WebSettings
from retinue.domain.permission import WEB_PERMISSION
from retinue.tools.base import ToolFailed
from retinue.tools.web.guarded_request import GuardedHttpClient, WebResponse
from retinue.tools.web.url_guard import (
    UrlGuard,
    WebFailed,
    WebRefused,
    build_guard,
    missing_web_permission,
    require_web,
)

TIMEOUT_S = 60.0


def guard_allowing_loopback(*, ports: range = range(1, 65_536), names: FakeResolver | None = None) -> UrlGuard:
    """Return a guard that allows loopback at any port."""
    if names is None:
        return UrlGuard(ports=ports, allowed_networks=LOOPBACK)
    return UrlGuard(ports=ports, allowed_networks=LOOPBACK, resolve=names)


async def get(guard: UrlGuard, url: str, *, tls: ssl.SSLContext | None = None, bytes_max: int = 100_000) -> WebResponse:
    return await GuardedHttpClient(guard, tls=tls).get(url, timeout_s=TIMEOUT_S, bytes_max=bytes_max)


@pytest.mark.spec("A75", "C66")
@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://example.com/",
        "gopher://example.com/",
        "javascript:alert(1)",
        "data:text/html,hi",
        "//example.com/",
        "example.com",
        "http:example.com",
        "http:///path",
        "https://",
        "",
        "http://user@example.com/",
        "http://user:secret@example.com/",
        "http://example.com@127.0.0.1/",
        "http://example.com\\@127.0.0.1/",
        "http://127.0.0.1\\.example.com/",
        "http://exam ple.com/",
        "http://example.com/\r\nHost: evil",
        "http://example.com\t/",
        "http://exa\u200bmple.com/",
        "http://localhost/",
        "http://LOCALHOST./",
        "http://printer.local/",
        "http://metadata.google.internal/",
        "http://127.0.0.1/",
        "http://127.1/",
        "http://2130706433/",
        "http://0x7f000001/",
        "http://0177.0.0.1/",
        "http://[::1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://[::ffff:7f00:1]/",
        "http://[64:ff9b::7f00:1]/",
        "http://[fe80::1%25lo]/",
        "http://169.254.169.254/latest/meta-data/",
        "http://10.0.0.1/",
        "http://①②⑦.⓪.⓪.①/",
        "http://%31%32%37.0.0.1/",
        "http://example.com:22/",
        "http://example.com:0/",
        "http://example.com:99999/",
        "http://example.com:8080/",
        "http://[::1/",
        "http://[1.1.1.1]/",
        "http://example.com/" + "a" * 5_000,
    ],
)
def test_the_url_guard_refuses_a_url_that_is_unsafe_or_not_public(url: str) -> None:
    with pytest.raises(WebRefused) as refusal:
        UrlGuard().parse_url(url)

    assert refusal.value.because
    assert refusal.value.try_this


def test_the_url_guard_normalizes_an_allowed_url() -> None:
    guard = UrlGuard()

    assert guard.parse_url(" HTTPS://Example.COM:443/a?b=c#d ").url == "https://example.com/a?b=c"
    assert guard.parse_url("http://bücher.example").url == "http://xn--bcher-kva.example/"
    assert guard.parse_url("http://[2606:4700::1]/x").url == "http://[2606:4700::1]/x"
    assert guard.parse_url("http://1.1.1.1:443/").port == 443


@pytest.mark.spec("C66")
@pytest.mark.parametrize("inside", ["127.0.0.1", "10.1.2.3", "169.254.169.254", "::1", "::ffff:192.168.0.1", "fd00::1"])
async def test_the_url_guard_refuses_a_host_with_one_internal_address_among_public_ones(inside: str) -> None:
    guard = UrlGuard(resolve=FakeResolver({"both.example": [["93.184.216.34", inside]]}))

    with pytest.raises(WebRefused, match="both"):
        await guard.resolve_addresses("both.example", 443)
    fine = UrlGuard(resolve=FakeResolver({"both.example": [["93.184.216.34", "2606:4700::1"]]}))
    assert await fine.resolve_addresses("both.example", 443) == ("93.184.216.34", "2606:4700::1")


@pytest.mark.spec("C66")
async def test_the_url_guard_does_not_reach_a_host_that_changes_its_address_after_the_check() -> None:
    """DNS rebinding: public when it is checked, loopback when it is connected to."""
    async with site({"/": Reply("the secret inside")}) as inside:
        names = FakeResolver({"rebind.test": [["127.0.0.2"], ["127.0.0.1"]]})  # the first address does not listen
        with pytest.raises(WebFailed):
            await get(guard_allowing_loopback(names=names), inside.url(host="rebind.test"))
        assert names.asked == ["rebind.test"]  # one lookup for the check and the connection
        assert inside.connections == 0

        # A second lookup of the same name would return this address:
        assert (
            await get(guard_allowing_loopback(names=names), inside.url(host="rebind.test"))
        ).body == b"the secret inside"


@pytest.mark.spec("C66")
async def test_the_url_guard_checks_and_resolves_every_redirect_again() -> None:
    async with site() as outside, site({"/": Reply("inside")}) as inside:
        names = FakeResolver({"out.test": [["127.0.0.1"]], "in.test": [["10.0.0.7"]]})
        guard = guard_allowing_loopback(names=names)
        leads = {
            "/name": f"http://in.test:{inside.port}/",
            "/address": "http://10.0.0.7/",
            "/metadata": "http://169.254.169.254/latest/",
            "/file": "file:///etc/passwd",
            "/localhost": inside.url(host="localhost"),
            "/decimal": f"http://2130706433:{inside.port}/",
            "/userinfo": f"http://out.test@127.0.0.1:{inside.port}/",
            "/slashes": "//10.0.0.7/",
        }
        for path, location in leads.items():
            outside.replies[path] = Reply(status=302, headers={"Location": location})
        for path, location in leads.items():
            with pytest.raises(WebRefused) as refusal:
                await get(guard, outside.url(path, host="out.test"))
            # The error text is trusted, so it contains nothing that the server sent.
            assert location not in str(refusal.value) and "10.0.0.7" not in str(refusal.value)
        assert inside.connections == 0
        assert outside.paths == list(leads)

        outside.replies["/on"] = Reply(status=307, headers={"Location": f"http://out.test:{inside.port}/"})
        answer = await get(guard, outside.url("/on", host="out.test"))
        assert (answer.body, answer.url) == (b"inside", f"http://out.test:{inside.port}/")


@pytest.mark.spec("C66")
async def test_the_url_guard_follows_three_redirects_and_refuses_a_fourth() -> None:
    async with site({"/end": Reply("here")}) as server:
        for here, there in itertools.pairwise(["/4", "/3", "/2", "/1", "/end"]):
            server.replies[here] = Reply(status=301, headers={"Location": there})
        assert (await get(guard_allowing_loopback(), server.url("/3"))).body == b"here"
        with pytest.raises(WebFailed) as error:
            await get(guard_allowing_loopback(), server.url("/4"))
    assert error.value.code == "web.too_many_redirects"


async def test_the_url_guard_refuses_loopback_by_default() -> None:
    async with site({"/": Reply("mine")}) as server:
        with pytest.raises(WebRefused):
            await get(UrlGuard(ports=[server.port]), server.url())
        assert server.connections == 0


@pytest.mark.spec("C66")
async def test_the_url_guard_reaches_only_a_private_host_named_in_the_settings() -> None:
    names = FakeResolver({"nas.lan": [["127.0.0.1"]], "other.lan": [["127.0.0.1"]]})
    async with site({"/": Reply("files")}) as server:
        settings = WebSettings(private_hosts=(f"nas.lan:{server.port}", "127.0.0.1", "cloud.test"))
        guard = build_guard(settings, resolve=names)
        assert (await get(guard, server.url(host="nas.lan"))).body == b"files"
        for elsewhere in (server.url(host="other.lan"), server.url(), "http://nas.lan:1/"):
            with pytest.raises(WebRefused):
                await get(guard, elsewhere)
    assert await guard.resolve_addresses("127.0.0.1", 80) == ("127.0.0.1",)
    # Cloud metadata addresses stay blocked even then.
    metadata = build_guard(settings, resolve=FakeResolver({"cloud.test": [["169.254.169.254"]]}))
    with pytest.raises(WebRefused):
        await metadata.resolve_addresses("cloud.test", 80)


async def test_a_guarded_web_request_does_not_use_a_proxy_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    async with site({"/": Reply("direct")}) as server, site({"/": Reply("by proxy")}) as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url())
        assert (await get(guard_allowing_loopback(), server.url())).body == b"direct"
        assert proxy.connections == 0


@pytest.mark.spec("C66")
async def test_a_guarded_web_request_truncates_a_compressed_body_at_the_limit_of_its_decompressed_size() -> None:
    bomb = gzip.compress(bytes(200 * 1024 * 1024), compresslevel=9)
    assert len(bomb) < 300_000
    bare = zlib.compressobj(wbits=-15)
    async with site(
        {
            "/bomb": Reply(bomb, headers={"Content-Encoding": "gzip"}),
            "/small": Reply(gzip.compress(b"packed"), headers={"Content-Encoding": "gzip"}),
            "/zlib": Reply(zlib.compress(b"packed"), headers={"Content-Encoding": "deflate"}),
            "/bare": Reply(bare.compress(b"packed") + bare.flush(), headers={"Content-Encoding": "deflate"}),
            "/lie": Reply(b"not packed", headers={"Content-Encoding": "gzip"}),
            "/odd": Reply(b"?", headers={"Content-Encoding": "br"}),
            "/long": Reply(b"x" * 300_000),
        }
    ) as server:
        bombed = await get(guard_allowing_loopback(), server.url("/bomb"))
        assert bombed.is_truncated and len(bombed.body) == 100_000
        for path in ("/small", "/zlib", "/bare"):
            answer = await get(guard_allowing_loopback(), server.url(path))
            assert (answer.body, answer.is_truncated) == (b"packed", False)
        for path in ("/lie", "/odd"):
            with pytest.raises(WebFailed, match="compressed"):
                await get(guard_allowing_loopback(), server.url(path))
        long = await get(guard_allowing_loopback(), server.url("/long"))
        assert long.is_truncated and len(long.body) == 100_000


async def test_a_guarded_web_request_cuts_or_refuses_a_response_body_or_head_without_end() -> None:
    async def endless_body(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
        while True:
            writer.write(b"x" * 65_536)
            await writer.drain()

    async def endless_head(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
        while True:
            writer.write(b"x" * 65_536)
            await writer.drain()

    async def many_headers(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n")
        while True:
            writer.write(b"X-Again: and again\r\n" * 1000)
            await writer.drain()

    async def no_http(writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
        await writer.drain()

    replies = {"/body": endless_body, "/head": endless_head, "/many": many_headers, "/ssh": no_http}
    async with site(replies) as server:
        assert (await get(guard_allowing_loopback(), server.url("/body"))).is_truncated
        for path in ("/head", "/many", "/ssh"):
            with pytest.raises(WebFailed):
                await get(guard_allowing_loopback(), server.url(path))


async def test_a_guarded_web_request_to_a_server_that_does_not_answer_times_out() -> None:
    over = asyncio.Event()

    async def silent(_: asyncio.StreamWriter) -> None:
        await over.wait()

    async with site({"/": silent}) as server:
        with pytest.raises(WebFailed) as error:
            await GuardedHttpClient(guard_allowing_loopback()).get(
                server.url(), timeout_s=0.3
            )  # time limit: no answer ever comes
        over.set()
    assert error.value.code == "web.timeout"


def certificate(folder: Path, name: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return TLS contexts of a server with this name and of a client that trusts its certificate."""
    key, chain = folder / f"{name}.key", folder / f"{name}.pem"
    kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = ["-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}"]
    command = ["openssl", "req", *kind, *names, "-keyout", str(key), "-out", str(chain)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(chain, key)
    return server, ssl.create_default_context(cafile=str(chain))


@pytest.mark.spec("C66")
async def test_a_guarded_web_request_checks_the_certificate_for_the_host_name_of_a_pinned_address(
    tmp_path: Path,
) -> None:
    theirs, believing = certificate(tmp_path, "right.test")
    names = FakeResolver({"right.test": [["127.0.0.1"]], "wrong.test": [["127.0.0.1"]]})
    async with site({"/": Reply("proved")}, tls=theirs) as server:
        right = server.url(host="right.test", scheme="https")
        assert (await get(guard_allowing_loopback(names=names), right, tls=believing)).body == b"proved"
        assert server.asked[0].headers["host"] == f"right.test:{server.port}"
        with pytest.raises(WebFailed, match="certificate"):
            await get(
                guard_allowing_loopback(names=names), server.url(host="wrong.test", scheme="https"), tls=believing
            )
        with pytest.raises(WebFailed, match="certificate"):
            await get(guard_allowing_loopback(names=names), right)  # an untrusted certificate
        assert len(server.asked) == 1


async def test_a_guarded_web_request_to_an_unknown_host_or_closed_port_fails_with_a_clear_message(unused: int) -> None:
    with pytest.raises(WebFailed, match="no host named"):
        await get(guard_allowing_loopback(names=FakeResolver({})), "http://nowhere.example/")
    with pytest.raises(WebFailed, match="cannot read"):
        await get(guard_allowing_loopback(), f"http://127.0.0.1:{unused}/")


@pytest.fixture
def unused() -> Iterator[int]:
    """A port at which nothing listens. It stays bound, so that no other process can listen there."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


async def test_a_guarded_web_request_neither_keeps_nor_sends_cookies() -> None:
    def redirect_to_end(server: Site) -> Reply:
        return Reply(status=302, headers={"Location": server.url("/end"), "Set-Cookie": "a=b; Path=/"})

    async with site({"/end": Reply("here")}) as server:
        server.replies["/"] = redirect_to_end(server)
        await get(guard_allowing_loopback(), server.url())
        assert ["cookie" in each.headers for each in server.asked] == [False, False]


def test_the_web_permission_of_an_agent_is_required_if_it_is_missing() -> None:
    assert missing_web_permission(make_tool_context(web=False)) == (WEB_PERMISSION,)
    assert missing_web_permission(make_tool_context(web=True)) == ()
    with pytest.raises(ToolFailed) as error:
        require_web(make_tool_context(web=False))
    assert error.value.code == "permission.missing"
    require_web(make_tool_context(web=True))
