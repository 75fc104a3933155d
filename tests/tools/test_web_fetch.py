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
from tools.fake_web_servers import Names, Numbers, Reply, Site, loopback_guard, scene, site

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
from retinue.tools.web import page_text
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


def fetcher(
    server: Site, clock: FakeClock, *, files: AttachmentFiles | None = None, names: Names | None = None
) -> WebFetchTool:
    settings = WebSettings(ports=(server.port,), page_bytes_max=1024 * 1024)
    return WebFetchTool(lambda: settings, clock, Numbers(), files=files, guard=loopback_guard(names))


async def fetch(tool: WebFetchTool, url: str, **arguments: Any) -> ToolOutput:
    given = msgspec.convert({"url": url, **arguments}, FetchArguments)
    return await tool.perform(given, scene())


@pytest.mark.spec("A75", "C66", "C67")
async def test_a_page_is_its_content_wrapped_and_untrusted(clock: FakeClock) -> None:
    async with site({"/": Reply(ARTICLE)}) as server:
        output = await fetch(fetcher(server, clock), server.url())

    assert output.trust is Trust.UNTRUSTED
    assert output.text.startswith(WARNING)
    assert f'address: "http://127.0.0.1:{server.port}/"' in output.text
    text = unwrap_untrusted(output.text)
    assert "Kettles & Pots" in text and PARAGRAPH.strip() in text
    assert "# Pots" in text and "[more on pots](https://kitchen.example/pots)" in text
    assert "ignored" not in text and "Shop" not in text and "cookies" not in text


async def test_content_can_be_had_as_text(clock: FakeClock) -> None:
    async with site({"/": Reply(ARTICLE)}) as server:
        text = unwrap_untrusted((await fetch(fetcher(server, clock), server.url(), format="text")).text)

    assert PARAGRAPH.strip() in text
    assert "#" not in text and "](" not in text


@pytest.mark.spec("A75")
async def test_a_page_can_be_had_as_it_was_sent(clock: FakeClock) -> None:
    async with site({"/": Reply(ARTICLE)}) as server:
        assert unwrap_untrusted((await fetch(fetcher(server, clock), server.url(), mode="raw")).text) == ARTICLE


@pytest.mark.spec("A75")
async def test_metadata_says_what_a_page_is_without_its_text(clock: FakeClock) -> None:
    async with site({"/": Reply(ARTICLE), "/n": Reply(b"\x89PNG\r\n\x1a\n....", type="image/png")}) as server:
        tool = fetcher(server, clock)
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
async def test_without_trafilatura_a_page_is_plain_text_and_says_so(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    really: Callable[..., Any] = builtins.__import__

    def missing(name: str, *rest: Any, **named: Any) -> Any:
        if name.startswith("trafilatura"):
            raise ImportError(name)
        return really(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", missing)
    async with site({"/": Reply(ARTICLE)}) as server:
        output = await fetch(fetcher(server, clock), server.url())

    assert "trafilatura is not installed" in output.text
    text = unwrap_untrusted(output.text)
    assert "# Kettles" in text and PARAGRAPH.strip() in text and "Home Shop" in text
    assert "ignored" not in text


@pytest.mark.spec("C66")
async def test_a_long_page_is_read_on_from_where_it_was_cut(clock: FakeClock) -> None:
    whole = "".join(f"{number:09d}\n" for number in range(10_000))
    async with site({"/": Reply(whole, type="text/plain")}) as server:
        tool = fetcher(server, clock)
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


async def test_more_than_is_read_of_a_page_is_said(clock: FakeClock) -> None:
    async with site({"/": Reply(b"x" * (1024 * 1024 + 1), type="text/plain")}) as server:
        output = await fetch(fetcher(server, clock), server.url(), max_chars=10)

    assert "longer than the limit" in output.text


@pytest.mark.spec("C66")
async def test_an_error_page_is_a_failure_of_at_most_so_many_characters(clock: FakeClock) -> None:
    async with site({"/": Reply("y" * 50_000, 503, type="text/plain")}) as server:
        tool = fetcher(server, clock)
        output = await fetch(tool, server.url())
        await fetch(tool, server.url())

    assert output.failed
    assert output.trust is Trust.UNTRUSTED
    assert len(unwrap_untrusted(output.text)) == ERROR_CHARS_MAX
    assert 'status: "503"' in output.text
    assert len(server.asked) == 2  # what failed is asked for again


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
async def test_a_page_is_read_in_its_own_characters(body: bytes, type: str, clock: FakeClock) -> None:
    async with site({"/": Reply(body, type=type.replace("\x00", ""))}) as server:
        assert unwrap_untrusted((await fetch(fetcher(server, clock), server.url())).text) == "Grüße aus Köln"


def test_a_page_says_its_own_characters() -> None:
    page = '<meta charset="windows-1251"><p>Привет</p>'.encode("cp1251")

    assert "Привет" in page_text.decode_body(page, "text/html")
    assert page_text.decode_body("naïve".encode()[:3], "") == "na\ufffd"


async def test_what_is_no_text_is_named_and_attached(clock: FakeClock, tmp_path: Path) -> None:
    replies = {
        "/a.pdf": Reply(b"%PDF-1.7\n...", type="text/html"),
        "/b.png": Reply(b"\x89PNG\r\n\x1a\n....", type="image/png"),
        "/c": Reply(b"\x00\x01\x02", type="application/octet-stream"),
    }
    files = AttachmentFiles(tmp_path / "files")
    async with site(replies) as server:
        tool = fetcher(server, clock, files=files)
        outputs = [await fetch(tool, server.url(path)) for path in replies]
        bare = await fetch(fetcher(server, clock), server.url("/a.pdf"))

    assert ["application/pdf" in outputs[0].text, "image/png" in outputs[1].text] == [True, True]
    assert "application/octet-stream, 3 bytes" in outputs[2].text
    assert [output.attachments[0].name for output in outputs] == ["a.pdf", "b.png", "c"]
    assert files.path(outputs[0].attachments[0].hash).read_bytes() == b"%PDF-1.7\n..."
    assert bare.attachments == () and "application/pdf" in bare.text


@pytest.mark.spec("C66")
async def test_a_page_is_kept_for_a_quarter_of_an_hour(clock: FakeClock) -> None:
    async with site({"/": Reply("one", type="text/plain")}) as server:
        tool = fetcher(server, clock)
        await fetch(tool, server.url())
        server.replies["/"] = Reply("two", type="text/plain")
        await clock.advance(CACHE_TTL_S - 1)
        assert unwrap_untrusted((await fetch(tool, server.url())).text) == "one"
        await clock.advance(1)
        assert unwrap_untrusted((await fetch(tool, server.url())).text) == "two"


def test_a_cache_is_bounded_in_number_and_size(clock: FakeClock) -> None:
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
async def test_what_is_inside_is_refused_and_nothing_is_asked(clock: FakeClock) -> None:
    async with site(
        {"/": Reply("secret"), "/r": Reply(status=302, headers={"Location": "http://10.0.0.1/"})}
    ) as server:
        settings = WebSettings(ports=(server.port, 80))
        real = WebFetchTool(lambda: settings, clock, Numbers())
        with pytest.raises(WebRefused):
            await fetch(real, server.url())
        assert server.connections == 0
        with pytest.raises(WebRefused):
            await fetch(fetcher(server, clock), server.url("/r"))


async def test_a_host_that_is_closed_again_is_not_read_from_what_was_kept(clock: FakeClock) -> None:
    async with site({"/": Reply("mine", type="text/plain")}) as server:
        settings = [WebSettings(private_hosts=(f"127.0.0.1:{server.port}",))]
        tool = WebFetchTool(lambda: settings[0], clock, Numbers())
        assert unwrap_untrusted((await fetch(tool, server.url())).text) == "mine"
        settings[0] = replace(settings[0], private_hosts=())
        with pytest.raises(WebRefused):
            await fetch(tool, server.url())


async def test_without_the_permission_nothing_is_asked(clock: FakeClock) -> None:
    async with site({"/": Reply("x")}) as server:
        tool = fetcher(server, clock)
        arguments = FetchArguments(url=server.url())
        assert tool.required_permissions(arguments, scene(web=False)) == (WEB_PERMISSION,)
        assert tool.required_permissions(arguments, scene(web=True)) == ()
        with pytest.raises(ToolFailed):
            await tool.perform(arguments, scene(web=False))
        assert server.connections == 0


def test_the_tool_declares_what_it_does(clock: FakeClock) -> None:
    spec = WebFetchTool(WebSettings, clock, Numbers()).spec

    assert spec.effects == {ToolEffect.READS_UNTRUSTED}
    assert spec.parameters["properties"]["mode"]["enum"] == ["extracted", "metadata", "raw"]
    assert spec.parameters["required"] == ["url"]
    assert all("description" in each for each in spec.parameters["properties"].values())


@pytest.mark.parametrize(
    "arguments",
    [{}, {"url": ""}, {"url": "x", "mode": "all"}, {"url": "x", "offset": -1}, {"url": "x", "max_chars": 0}],
)
def test_arguments_that_make_no_sense_are_refused(arguments: Mapping[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(arguments, FetchArguments)


@pytest.mark.parametrize(
    "piece", ["<", "<!--", "<a", "<p>", "</script", "<script>", "&amp", "<meta ", "<meta a", "<x " + "a" * 900, "-->"]
)
def test_reading_a_hostile_page_costs_no_more_than_its_length(piece: str) -> None:
    page = piece * (500_000 // len(piece))

    page_text.plain_text(page, markdown=True)
    page_text.read_metadata(page)
    page_text.decode_body(page.encode(), "")


async def test_an_unpacked_page_has_the_same_bound(clock: FakeClock) -> None:
    packed = gzip.compress(b"z" * (8 * 1024 * 1024))
    async with site({"/": Reply(packed, headers={"Content-Encoding": "gzip"}, type="text/plain")}) as server:
        output = await fetch(fetcher(server, clock), server.url(), offset=1024 * 1024 - 3)

    assert unwrap_untrusted(output.text) == "zzz"


async def test_a_page_full_of_forged_markers_still_ends_with_its_own(clock: FakeClock) -> None:
    """What stands in their place is longer than they are: the end of the wrapper was cut off."""
    async with site({"/": Reply("<<untrusted" * 10_000, type="text/plain")}) as server:
        tool = fetcher(server, clock)
        first = (await fetch(tool, server.url(), mode="raw")).text
        again = re.search(r"to read on, use offset (\d+)", first)
        assert again is not None
        rest = (await fetch(tool, server.url(), mode="raw", offset=int(again[1]))).text

    for text in (first, rest):
        assert len(text) <= RESULT_CHARS_MAX and is_wrapped(text)
    assert int(again[1]) > RESULT_CHARS_MAX // 2, "and not much is left out"


async def test_half_a_secret_is_not_shown_where_a_part_of_a_page_ends(clock: FakeClock) -> None:
    secret = "correct-horse-battery-staple"
    async with site({"/": Reply(f"before {secret} after", type="text/plain")}) as server:
        settings = WebSettings(ports=(server.port,))
        for mask, known in ((Redactor({"horse": secret}).redact, True), (str, False)):
            tool = WebFetchTool(lambda: settings, clock, Numbers(), guard=loopback_guard(None), redact=mask)
            first = unwrap_untrusted((await fetch(tool, server.url(), mode="raw", max_chars=20)).text)
            rest = unwrap_untrusted((await fetch(tool, server.url(), mode="raw", offset=20)).text)
            assert (first == "before [secret:horse]") is known
            assert (rest == "[secret:horse] after") is known
