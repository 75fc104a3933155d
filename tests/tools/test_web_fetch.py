"""`web_fetch`: pages as an agent reads them."""

from __future__ import annotations

import builtins
import gzip
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tools.fake_web_servers import CountingIds, FakeResolver, Reply, Site, loopback_guard, make_tool_context, site

from retinue.config.web import WebSettings
from retinue.domain.permission import WEB_PERMISSION
from retinue.domain.structs import replace
from retinue.domain.tool import RESULT_CHARS_MAX, ToolEffect
from retinue.domain.trust import Trust
from retinue.store.envelopes.attachment_files import AttachmentFiles
from retinue.testing.fake_clock import FakeClock
from retinue.text.redaction import Redactor
from retinue.text.untrusted_wrapper import WARNING, is_wrapped, unwrap_untrusted
from retinue.tools.base import ToolFailed, ToolOutput
from retinue.tools.web import page_text, text_extraction
from retinue.tools.web.fetch_tool import ERROR_CHARS_MAX, FETCH_CHARS_MAX, FetchArguments, WebFetchTool
from retinue.tools.web.page_cache import CACHE_TTL_S, TtlCache
from retinue.tools.web.url_guard import WebRefused

PARAGRAPH = "The kettle was invented long before the stove, and nobody remembers by whom it was first put on a fire. "
ARTICLE = f"""<!doctype html><html lang="en"><head><title>Kettles &amp; Pots</title>
<meta name="description" content="All about kettles"><meta property="og:site_name" content="The Kitchen">
<link rel="canonical" href="https://kitchen.example/kettles"><script>var ignored = "<p>script</p>";</script></head>
<body><nav><a href="/">Home</a> <a href="/shop">Shop</a></nav><article><h1>Kettles</h1>
<p>{PARAGRAPH * 4}</p><h2>Pots</h2><p>{PARAGRAPH * 3} See <a href="https://kitchen.example/pots">more on pots</a>.</p>
</article><footer>Copyright, cookies, imprint</footer></body></html>"""


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(autouse=True)
def _patient_extraction(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first extraction also imports trafilatura, which takes long on a busy machine."""
    monkeypatch.setattr(text_extraction, "EXTRACT_TIMEOUT_S", 120.0)


def make_fetch_tool(
    server: Site, clock: FakeClock, *, files: AttachmentFiles | None = None, names: FakeResolver | None = None
) -> WebFetchTool:
    settings = WebSettings(ports=(server.port,), page_bytes_max=1024 * 1024)
    return WebFetchTool(lambda: settings, clock, CountingIds(), files=files, guard=loopback_guard(names))


async def fetch(tool: WebFetchTool, url: str, **arguments: Any) -> ToolOutput:
    given = msgspec.convert({"url": url, **arguments}, FetchArguments)
    return await tool.perform(given, make_tool_context())


@pytest.mark.spec("A75", "C66", "C67")
async def test_web_fetch_returns_the_page_content_wrapped_and_untrusted(clock: FakeClock) -> None:
    async with site({"/": Reply(ARTICLE)}) as server:
        output = await fetch(make_fetch_tool(server, clock), server.url())

    assert output.trust is Trust.UNTRUSTED
    assert output.text.startswith(WARNING)
    assert f'address: "http://127.0.0.1:{server.port}/"' in output.text
    text = unwrap_untrusted(output.text)
    assert "Kettles & Pots" in text and PARAGRAPH.strip() in text
    assert "# Pots" in text and "[more on pots](https://kitchen.example/pots)" in text
    assert "ignored" not in text and "Shop" not in text and "cookies" not in text


async def test_web_fetch_with_format_text_returns_plain_text(clock: FakeClock) -> None:
    async with site({"/": Reply(ARTICLE)}) as server:
        text = unwrap_untrusted((await fetch(make_fetch_tool(server, clock), server.url(), format="text")).text)

    assert PARAGRAPH.strip() in text
    assert "#" not in text and "](" not in text


@pytest.mark.spec("A75")
async def test_web_fetch_in_raw_mode_returns_the_page_as_sent(clock: FakeClock) -> None:
    async with site({"/": Reply(ARTICLE)}) as server:
        assert unwrap_untrusted((await fetch(make_fetch_tool(server, clock), server.url(), mode="raw")).text) == ARTICLE


@pytest.mark.spec("A75")
async def test_web_fetch_in_metadata_mode_returns_metadata_without_the_text(clock: FakeClock) -> None:
    async with site({"/": Reply(ARTICLE), "/n": Reply(b"\x89PNG\r\n\x1a\n....", type="image/png")}) as server:
        tool = make_fetch_tool(server, clock)
        lines = unwrap_untrusted((await fetch(tool, server.url(), mode="metadata")).text).splitlines()
        image = unwrap_untrusted((await fetch(tool, server.url("/n"), mode="metadata")).text)

    assert {
        "title: Kettles & Pots",
        "description: All about kettles",
        "site: The Kitchen",
        "language: en",
        "canonical: https://kitchen.example/kettles",
        "content-type: text/html; charset=utf-8",
        f"bytes: {len(ARTICLE.encode())}",
    } <= set(lines)
    assert PARAGRAPH[:40] not in "\n".join(lines)
    assert "content-type: image/png" in image


@pytest.mark.spec("C66")
async def test_without_trafilatura_web_fetch_returns_plain_text_with_a_note(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    really: Callable[..., Any] = builtins.__import__

    def import_without_trafilatura(name: str, *rest: Any, **named: Any) -> Any:
        if name.startswith("trafilatura"):
            raise ImportError(name)
        return really(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", import_without_trafilatura)
    async with site({"/": Reply(ARTICLE)}) as server:
        output = await fetch(make_fetch_tool(server, clock), server.url())

    assert "trafilatura is not installed" in output.text
    text = unwrap_untrusted(output.text)
    assert "# Kettles" in text and PARAGRAPH.strip() in text and "Home Shop" in text
    assert "ignored" not in text


@pytest.mark.spec("C66")
async def test_web_fetch_continues_a_long_page_at_the_given_offset(clock: FakeClock) -> None:
    whole = "".join(f"{number:09d}\n" for number in range(10_000))
    async with site({"/": Reply(whole, type="text/plain")}) as server:
        tool = make_fetch_tool(server, clock)
        first = await fetch(tool, server.url())
        read = unwrap_untrusted(first.text)
        assert len(read) == FETCH_CHARS_MAX
        assert len(first.text) <= RESULT_CHARS_MAX
        assert f"of 100000; to read on, use offset {FETCH_CHARS_MAX}" in first.text
        while len(read) < len(whole):
            read += unwrap_untrusted((await fetch(tool, server.url(), offset=len(read))).text)
        assert read == whole
        assert unwrap_untrusted((await fetch(tool, server.url(), max_chars=7)).text) == whole[:7]
        assert unwrap_untrusted((await fetch(tool, server.url(), offset=10**9)).text) == ""
        assert len(server.asked) == 1


async def test_web_fetch_reports_a_page_longer_than_the_limit(clock: FakeClock) -> None:
    async with site({"/": Reply(b"x" * (1024 * 1024 + 1), type="text/plain")}) as server:
        output = await fetch(make_fetch_tool(server, clock), server.url(), max_chars=10)

    assert "longer than the limit" in output.text


@pytest.mark.spec("C66")
async def test_web_fetch_returns_an_http_error_page_as_a_failed_truncated_result_and_does_not_cache_it(
    clock: FakeClock,
) -> None:
    async with site({"/": Reply("y" * 50_000, 503, type="text/plain")}) as server:
        tool = make_fetch_tool(server, clock)
        output = await fetch(tool, server.url())
        await fetch(tool, server.url())

    assert output.failed
    assert output.trust is Trust.UNTRUSTED
    assert len(unwrap_untrusted(output.text)) == ERROR_CHARS_MAX
    assert 'status: "503"' in output.text
    assert len(server.asked) == 2  # a failed request is not cached


@pytest.mark.parametrize(
    ("body", "type"),
    [
        ("Grüße aus Köln".encode("latin-1"), "text/plain; charset=iso-8859-1"),
        ("Grüße aus Köln".encode(), "text/plain; charset=utf-8"),
        ("Grüße aus Köln".encode(), "text/plain"),
        ("Grüße aus Köln".encode("cp1252"), "text/plain"),
        ("Grüße aus Köln".encode("utf-16"), "text/plain"),
        (b"\xef\xbb\xbf" + "Grüße aus Köln".encode(), "text/plain; charset=latin-1"),
        ("Grüße aus Köln".encode(), 'text/plain; charset="UTF-8"; x=y'),
        ("Grüße aus Köln".encode(), "text/plain; charset=nonsense"),
        ("Grüße aus Köln".encode(), "text/plain; charset=zip"),
        ("Grüße aus Köln".encode(), "text/plain; charset=idna\x00"),
    ],
)
async def test_web_fetch_decodes_a_page_with_its_own_character_set(body: bytes, type: str, clock: FakeClock) -> None:
    async with site({"/": Reply(body, type=type.replace("\x00", ""))}) as server:
        assert unwrap_untrusted((await fetch(make_fetch_tool(server, clock), server.url())).text) == "Grüße aus Köln"


def test_the_text_of_a_fetched_page_is_decoded_with_the_charset_of_its_meta_tag() -> None:
    page = '<meta charset="windows-1251"><p>Привет</p>'.encode("cp1251")

    assert "Привет" in page_text.decode_body(page, "text/html")
    assert page_text.decode_body("naïve".encode()[:3], "") == "na\ufffd"


async def test_web_fetch_names_and_attaches_a_page_that_is_not_text(clock: FakeClock, tmp_path: Path) -> None:
    replies = {
        "/a.pdf": Reply(b"%PDF-1.7\n...", type="text/html"),
        "/b.png": Reply(b"\x89PNG\r\n\x1a\n....", type="image/png"),
        "/c": Reply(b"\x00\x01\x02", type="application/octet-stream"),
    }
    files = AttachmentFiles(tmp_path / "files")
    async with site(replies) as server:
        tool = make_fetch_tool(server, clock, files=files)
        outputs = [await fetch(tool, server.url(path)) for path in replies]
        bare = await fetch(make_fetch_tool(server, clock), server.url("/a.pdf"))

    assert ["application/pdf" in outputs[0].text, "image/png" in outputs[1].text] == [True, True]
    assert "application/octet-stream, 3 bytes" in outputs[2].text
    assert [output.attachments[0].name for output in outputs] == ["a.pdf", "b.png", "c"]
    assert files.path(outputs[0].attachments[0].hash).read_bytes() == b"%PDF-1.7\n..."
    assert bare.attachments == () and "application/pdf" in bare.text


@pytest.mark.spec("C66")
async def test_a_fetched_page_is_cached_for_15_minutes(clock: FakeClock) -> None:
    async with site({"/": Reply("one", type="text/plain")}) as server:
        tool = make_fetch_tool(server, clock)
        await fetch(tool, server.url())
        server.replies["/"] = Reply("two", type="text/plain")
        await clock.advance(CACHE_TTL_S - 1)
        assert unwrap_untrusted((await fetch(tool, server.url())).text) == "one"
        await clock.advance(1)
        assert unwrap_untrusted((await fetch(tool, server.url())).text) == "two"


def test_the_page_cache_of_the_web_tools_is_limited_in_entries_and_size(clock: FakeClock) -> None:
    cache: TtlCache[int] = TtlCache(clock, entries_max=3, size_max=10)
    for number in range(5):
        cache.put(number, number, size=1)
    assert [cache.get(number) for number in range(5)] == [None, None, 2, 3, 4]
    cache.get(2)
    cache.put("big", 9, size=8)
    assert (len(cache), cache.get(2), cache.get(3), cache.get("big")) == (3, 2, None, 9)
    cache.put("too big", 1, size=11)
    assert cache.get("too big") is None
    clock.jump(timedelta(seconds=-10))
    assert cache.get(2) is None


@pytest.mark.spec("A75", "C66")
async def test_web_fetch_refuses_an_internal_address_without_a_request(clock: FakeClock) -> None:
    async with site(
        {"/": Reply("secret"), "/r": Reply(status=302, headers={"Location": "http://10.0.0.1/"})}
    ) as server:
        settings = WebSettings(ports=(server.port, 80))
        real = WebFetchTool(lambda: settings, clock, CountingIds())
        with pytest.raises(WebRefused):
            await fetch(real, server.url())
        assert server.connections == 0
        with pytest.raises(WebRefused):
            await fetch(make_fetch_tool(server, clock), server.url("/r"))


async def test_web_fetch_refuses_a_cached_page_of_a_host_that_is_no_longer_allowed(clock: FakeClock) -> None:
    async with site({"/": Reply("mine", type="text/plain")}) as server:
        settings = [WebSettings(private_hosts=(f"127.0.0.1:{server.port}",))]
        tool = WebFetchTool(lambda: settings[0], clock, CountingIds())
        assert unwrap_untrusted((await fetch(tool, server.url())).text) == "mine"
        settings[0] = replace(settings[0], private_hosts=())
        with pytest.raises(WebRefused):
            await fetch(tool, server.url())


async def test_web_fetch_without_the_web_permission_sends_no_request(clock: FakeClock) -> None:
    async with site({"/": Reply("x")}) as server:
        tool = make_fetch_tool(server, clock)
        arguments = FetchArguments(url=server.url())
        assert tool.required_permissions(arguments, make_tool_context(web=False)) == (WEB_PERMISSION,)
        assert tool.required_permissions(arguments, make_tool_context(web=True)) == ()
        with pytest.raises(ToolFailed):
            await tool.perform(arguments, make_tool_context(web=False))
        assert server.connections == 0


def test_web_fetch_declares_its_effects_and_parameters(clock: FakeClock) -> None:
    spec = WebFetchTool(WebSettings, clock, CountingIds()).spec

    assert spec.effects == {ToolEffect.READS_UNTRUSTED}
    assert spec.parameters["properties"]["mode"]["enum"] == ["extracted", "metadata", "raw"]
    assert spec.parameters["required"] == ["url"]
    assert all("description" in each for each in spec.parameters["properties"].values())


@pytest.mark.parametrize(
    "arguments",
    [{}, {"url": ""}, {"url": "x", "mode": "all"}, {"url": "x", "offset": -1}, {"url": "x", "max_chars": 0}],
)
def test_invalid_web_fetch_arguments_are_refused(arguments: Mapping[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(arguments, FetchArguments)


@pytest.mark.parametrize(
    "piece", ["<", "<!--", "<a", "<p>", "</script", "<script>", "&amp", "<meta ", "<meta a", "<x " + "a" * 900, "-->"]
)
def test_extracting_the_text_of_a_hostile_page_for_web_fetch_is_not_quadratic(piece: str) -> None:
    page = piece * (500_000 // len(piece))

    page_text.plain_text(page, markdown=True)
    page_text.read_metadata(page)
    page_text.decode_body(page.encode(), "")


async def test_web_fetch_applies_the_page_size_limit_to_the_decompressed_page(clock: FakeClock) -> None:
    packed = gzip.compress(b"z" * (8 * 1024 * 1024))
    async with site({"/": Reply(packed, headers={"Content-Encoding": "gzip"}, type="text/plain")}) as server:
        output = await fetch(make_fetch_tool(server, clock), server.url(), offset=1024 * 1024 - 3)

    assert unwrap_untrusted(output.text) == "zzz"


async def test_web_fetch_keeps_a_page_full_of_forged_markers_inside_its_untrusted_wrapper(clock: FakeClock) -> None:
    """The replacement of a marker is longer than the marker, so the end of the wrapper was once truncated."""
    async with site({"/": Reply("<<untrusted" * 10_000, type="text/plain")}) as server:
        tool = make_fetch_tool(server, clock)
        first = (await fetch(tool, server.url(), mode="raw")).text
        again = re.search(r"to read on, use offset (\d+)", first)
        assert again is not None
        rest = (await fetch(tool, server.url(), mode="raw", offset=int(again[1]))).text

    for text in (first, rest):
        assert len(text) <= RESULT_CHARS_MAX and is_wrapped(text)
    assert int(again[1]) > RESULT_CHARS_MAX // 2, "most of the page is shown"


async def test_web_fetch_redacts_a_secret_that_crosses_the_end_of_a_page_part(clock: FakeClock) -> None:
    secret = "correct-horse-battery-staple"
    async with site({"/": Reply(f"before {secret} after", type="text/plain")}) as server:
        settings = WebSettings(ports=(server.port,))
        for mask, known in ((Redactor({"horse": secret}).redact, True), (str, False)):
            tool = WebFetchTool(lambda: settings, clock, CountingIds(), guard=loopback_guard(None), redact=mask)
            first = unwrap_untrusted((await fetch(tool, server.url(), mode="raw", max_chars=20)).text)
            rest = unwrap_untrusted((await fetch(tool, server.url(), mode="raw", offset=20)).text)
            assert (first == "before [secret:horse]") is known
            assert (rest == "[secret:horse] after") is known
