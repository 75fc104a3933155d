"""The browser tools, with a real Chromium and hostile pages on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tools.fake_web_servers import LOOPBACK, CountingIds, Reply, Site, loopback_guard, make_tool_context, site
from tools.fake_web_servers import FakeResolver as Resolver

from retinue.config.web import BrowserSettings, WebSettings
from retinue.domain.ids import SessionId
from retinue.domain.permission import WEB_PERMISSION
from retinue.domain.structs import replace
from retinue.domain.tool import ToolEffect
from retinue.domain.trust import Trust
from retinue.store.envelopes.attachment_files import AttachmentFiles
from retinue.testing.fake_clock import FakeClock
from retinue.testing.wait_conditions import wait_until
from retinue.text.untrusted_wrapper import WARNING, unwrap_untrusted
from retinue.tools.base import ToolFailed, ToolOutput
from retinue.tools.web import cdp as cdp_module
from retinue.tools.web import chromium
from retinue.tools.web.browser_proxy import BrowserProxy
from retinue.tools.web.browser_tool import (
    BrowserActArguments,
    BrowserActTool,
    BrowserArguments,
    BrowserPool,
    BrowserTool,
)
from retinue.tools.web.cdp import CdpClient
from retinue.tools.web.chromium import LaunchMode, list_launch_modes
from retinue.tools.web.errors import BrowserFailed, BrowserReplyTooLarge
from retinue.tools.web.page_snapshot import ElementRefs, PageOutline

PATH = os.environ.get("PATH", os.defpath)
IS_ROOT = os.getuid() == 0
IS_CHROMIUM_MISSING = chromium.find_chromium(None, PATH) is None or (IS_ROOT and shutil.which("bwrap") is None)
if os.environ.get("CI"):
    IS_CHROMIUM_MISSING = False
needs_chromium = pytest.mark.skipif(
    IS_CHROMIUM_MISSING, reason="there is no Chromium here, or nothing to confine it with"
)

SESSION = SessionId("5" * 32)
OUTSIDE_NETWORKS = (IPv4Network("127.0.0.2/32"),)  # stands for the internet; the rest of loopback is internal


class BrowserSetup:
    """The two tools over one browser pool, as a session has them."""

    def __init__(self, browsers: BrowserPool, folder: Path) -> None:
        self.browsers = browsers
        self.files = AttachmentFiles(folder / "files")
        ids = CountingIds()
        self.browser = BrowserTool(browsers, ids, self.files)
        self.browser_act = BrowserActTool(browsers, ids)

    async def call_browser(self, action: str, *, session: str = "5" * 32, **arguments: Any) -> ToolOutput:
        given = msgspec.convert({"action": action, **arguments}, BrowserArguments)
        return await self.browser.perform(given, make_tool_context(session=session))

    async def call_browser_act(self, action: str, *, session: str = "5" * 32, **arguments: Any) -> str:
        given = msgspec.convert({"action": action, **arguments}, BrowserActArguments)
        return unwrap_untrusted((await self.browser_act.perform(given, make_tool_context(session=session))).text)

    async def open(self, url: str, **more: Any) -> str:
        return unwrap_untrusted((await self.call_browser("open", url=url, **more)).text)

    async def until(self, words: str) -> str:
        """Wait until the page shows `words`, and return all snapshots until then: each note is shown only once."""
        snapshots: list[str] = []

        async def shown() -> str:
            snapshots.append(unwrap_untrusted((await self.call_browser("snapshot")).text))
            return "\n".join(snapshots) if words in snapshots[-1] else ""

        return await wait_until(shown, f"the page shows {words!r}", poll_s=0.05)

    async def act_until(self, words: str, action: str, **arguments: Any) -> str:
        """Act, and wait until the page shows `words`: a slow browser leaves the page only after the tool returned."""
        text = await self.call_browser_act(action, **arguments)
        return text if words in text else f"{text}\n{await self.until(words)}"


@asynccontextmanager
async def setup(
    folder: Path,
    *servers: Site,
    names: Resolver | None = None,
    networks: Sequence[IPv4Network] = LOOPBACK,
    settings: WebSettings | None = None,
    clock: FakeClock | None = None,
) -> AsyncIterator[BrowserSetup]:
    given = replace(settings or WebSettings(), ports=tuple(server.port for server in servers), timeout_s=60.0)
    browsers = BrowserPool(
        lambda: given,
        clock or FakeClock(),
        search_path=PATH,
        is_root=IS_ROOT,
        guard=loopback_guard(names or Resolver({}), networks),
    )
    try:
        yield BrowserSetup(browsers, folder)
    finally:
        await browsers.close()


def find_ref(outline: str, words: str) -> str:
    [line] = [line for line in outline.splitlines() if words in line]
    return line.rpartition("[")[2].rstrip("]")


def find_descendants(pid: int) -> list[int]:
    found: list[int] = []
    left = [pid]
    while left:
        parent = left.pop()
        with contextlib.suppress(OSError):  # Chromium ends some of its processes at any time
            for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
                found.append(int(child))
                left.append(int(child))
    return found


def read_process_link(pid: int, name: str) -> str:
    """Return the target of a link in /proc/PID; empty if the process has ended."""
    try:
        return os.readlink(f"/proc/{pid}/{name}")
    except (FileNotFoundError, ProcessLookupError):
        return ""


SHOP_PAGE = """<title>The Shop</title><h1>Kettles</h1><p>We sell <b>kettles</b>.</p>
<a href="/pots">Pots</a> <div style="display:none">hidden words</div>
<form action="/order" method="post"><label>Name <input name="who" value="nobody"></label>
<label><input type="checkbox" name="gift"> A gift</label>
<label>Colour <select name="colour"><option value="r">Red<option value="b">Blue</select></label>
<input type="password" aria-label="Secret" name="secret" value="hunter2"><button>Order now</button></form>"""


@needs_chromium
async def test_the_browser_tool_returns_a_page_as_a_wrapped_untrusted_outline_with_working_actions(
    tmp_path: Path,
) -> None:
    async with site({"/": Reply(SHOP_PAGE), "/pots": Reply("<h1>Pots</h1>")}) as shop, setup(tmp_path, shop) as at:
        output = await at.call_browser("open", url=shop.url())
        assert output.trust is Trust.UNTRUSTED
        assert output.text.startswith(WARNING)
        assert 'title: "The Shop"' in output.text and f'address: "{shop.url()}"' in output.text
        text = unwrap_untrusted(output.text)
        assert '- heading "Kettles" level 1' in text
        assert '- textbox "Name" = "nobody"' in text and '- checkbox "A gift"' in text
        assert f'- link "Pots" -> {shop.url("/pots")}' in text
        assert "hidden words" not in text and "hunter2" not in text

        shot = await at.call_browser("screenshot")
        [attachment] = shot.attachments
        image = at.files.path(attachment.hash).read_bytes()
        assert image.startswith(b"\x89PNG") and int.from_bytes(image[16:20]) == chromium.WIDTH
        assert attachment.media_type == "image/png" and shot.trust is Trust.UNTRUSTED

        pots = await at.act_until('- heading "Pots"', "click", ref=find_ref(text, "Pots"))
        assert '- heading "Pots"' in pots
        with pytest.raises(BrowserFailed, match="snapshot"):
            await at.call_browser_act("click", ref=find_ref(text, "Order now"))  # it was on the previous page
        first = unwrap_untrusted((await at.call_browser("back")).text)
        assert "Kettles" in first or await at.until("Kettles")
        with pytest.raises(BrowserFailed, match="back"):
            await at.call_browser("back")
        assert (await at.call_browser("close")).text == "Closed."
        assert (await at.call_browser("close")).text == "No browser was open."
        with pytest.raises(BrowserFailed, match="open"):
            await at.call_browser("snapshot")


@needs_chromium
async def test_the_browser_tool_fills_in_and_submits_a_form(tmp_path: Path) -> None:
    async with (
        site({"/": Reply(SHOP_PAGE), "/order": Reply("<h1>Thank you</h1>")}) as shop,
        setup(tmp_path, shop) as at,
    ):
        text = await at.open(shop.url())
        text = await at.call_browser_act("type", ref=find_ref(text, '"Name"'), text="Maria & Noor")
        assert '= "Maria & Noor"' in text
        text = await at.call_browser_act("click", ref=find_ref(text, '"A gift"'))
        assert "checked" in text
        text = await at.call_browser_act("select", ref=find_ref(text, '- combobox "Colour"'), text="Blue")
        with pytest.raises(BrowserFailed, match="does not have this option"):
            await at.call_browser_act("select", ref=find_ref(text, '- combobox "Colour"'), text="Green")
        with pytest.raises(BrowserFailed, match="no key"):
            await at.call_browser_act("press", key="Hyper+x")
        await at.call_browser_act("press", key="Control+a")
        assert shop.paths == ["/"] or set(shop.paths) == {"/", "/favicon.ico"}
        thanks = await at.act_until("Thank you", "type", ref=find_ref(text, '"Secret"'), text="s3", submit=True)
        assert thanks.splitlines()[-1] == '- heading "Thank you" level 1'
        assert "refused" not in thanks  # none of Chromium's own requests
        [order] = [each for each in shop.asked if each.path == "/order"]
        assert (order.method, order.body) == ("POST", b"who=Maria+%26+Noor&gift=on&colour=b&secret=s3")


def build_trap_page(inside: Site) -> str:
    """A page that tries every way to reach an internal server."""
    own = inside.url("/own", host="127.0.0.1")
    named = [inside.url("/named", host=host) for host in ("localhost", "x.localhost", "rebind.test", "[::1]", "127.1")]
    urls = [
        own,
        *named,
        inside.url("/mapped", host="[::ffff:127.0.0.1]"),
        "http://10.0.0.1/",
        "http://169.254.169.254/",
    ]
    images = "".join(f'<img src="{url}">' for url in urls)
    return f"""<title>Trap</title>{images}<iframe src="{own}"></iframe><script src="{own}"></script>
    <link rel="stylesheet" href="{own}"><script>
    const tries = {urls!r}.map(url => fetch(url, {{mode: 'no-cors'}}).then(() => 1, () => 0));
    navigator.sendBeacon({own!r}, 'x');
    try {{ new WebSocket({own!r}.replace('http', 'ws')); }} catch (e) {{}}
    try {{ const pc = new RTCPeerConnection({{iceServers: [{{urls: 'stun:127.0.0.1:{inside.port}'}}]}});
           pc.createDataChannel('x'); pc.createOffer().then(o => pc.setLocalDescription(o)); }} catch (e) {{}}
    Promise.all(tries).then(all => document.body.append('all tried: ' + all.filter(Boolean).length));
    </script><body></body>"""


@pytest.mark.spec("C122.browser")
@needs_chromium
@pytest.mark.parametrize("open_to", [OUTSIDE_NETWORKS, (*OUTSIDE_NETWORKS, *LOOPBACK)], ids=["guarded", "control"])
async def test_a_page_in_the_browser_of_an_agent_cannot_reach_internal_addresses(
    open_to: Sequence[IPv4Network], tmp_path: Path
) -> None:
    names = Resolver({"evil.test": [["127.0.0.2"]], "rebind.test": [["127.0.0.1"]]})
    async with (
        site(host="127.0.0.2") as evil,
        site({"/own": Reply("secret", type="text/plain")}) as inside,
        setup(tmp_path, evil, inside, names=names, networks=open_to) as at,
    ):
        evil.replies["/"] = Reply(build_trap_page(inside))
        evil.replies["/r"] = Reply(status=302, headers={"Location": inside.url("/own")})
        opened = await at.call_browser("open", url=evil.url(host="evil.test"))
        page_text = unwrap_untrusted(opened.text) + await at.until("all tried: ")
        if open_to == OUTSIDE_NETWORKS:
            assert "127.0.0.1 was refused: it is loopback" in page_text
            assert "localhost was refused: it is a name of this machine" in page_text
            redirected = await at.open(evil.url("/r", host="evil.test"))
            assert "secret" not in redirected and "127.0.0.1 was refused" in redirected
            assert inside.connections == 0
        else:
            assert "/own" in inside.paths  # so it is the guard that blocks it
            assert "secret" in await at.open(evil.url("/r", host="evil.test"))


@needs_chromium
async def test_the_browser_tool_handles_windows_dialogs_and_downloads_of_a_page(tmp_path: Path) -> None:
    page = """<button onclick="window.open('/two')">Window</button><button onclick="alert('Hear me')">Speak</button>
    <a href="/file.zip" download>Take</a><button onclick="for (let i = 0; i < 9; i++) open('/two')">Flood</button>
    <input type="file" aria-label="Upload">"""
    replies = {
        "/": Reply(page),
        "/two": Reply("<h1>Second</h1>"),
        "/file.zip": Reply(b"PK\x03\x04", type="application/zip"),
    }
    async with site(replies) as server, setup(tmp_path, server) as at:
        text = await at.open(server.url())
        spoken = await at.call_browser_act("click", ref=find_ref(text, "Speak"))
        assert "'Hear me'" in spoken and "dialog" in spoken
        taken = await at.call_browser_act("click", ref=find_ref(spoken, "Take"))
        assert "download, which was refused" in taken or "refused" in await at.until("download")
        second = await at.call_browser_act("click", ref=find_ref(taken, "Window"))
        assert "opened a window" in second
        assert "Second" in second or await at.until("Second")
        first = unwrap_untrusted((await at.call_browser("back")).text)
        assert "Speak" in first
        await at.call_browser_act("click", ref=find_ref(first, "Flood"))

        async def other_windows_are_closed() -> bool:
            return len(await at.browsers.pages(SESSION).list_targets()) <= 4

        await wait_until(other_windows_are_closed, "no more windows than the maximum are open")


@needs_chromium
async def test_each_session_has_its_own_browser_up_to_the_maximum_number(tmp_path: Path) -> None:
    keeps = "<script>document.cookie = 'seen=1'; document.title = document.cookie</script><h1>Here</h1>"
    settings = WebSettings(browser=BrowserSettings(browsers_max=2))
    one, two, three = "1" * 32, "2" * 32, "3" * 32
    async with (
        site({"/": Reply(keeps), "/c": Reply("<h1>c</h1>")}) as server,
        setup(tmp_path, server, settings=settings) as at,
    ):
        await at.open(server.url(), session=one)
        await at.open(server.url("/c"), session=two)
        assert "cookie" in server.asked[-1].headers or len(at.browsers) == 2
        assert all("cookie" not in each.headers for each in server.asked if each.path == "/c")
        await at.open(server.url("/c"), session=three)
        assert len(at.browsers) == 2
        with pytest.raises(BrowserFailed):
            await at.call_browser("snapshot", session=one)  # the session that was idle longest was closed
        await at.call_browser("snapshot", session=two)


@needs_chromium
async def test_an_idle_browser_is_closed_with_all_its_processes(tmp_path: Path) -> None:
    clock = FakeClock()
    async with site({"/": Reply("<h1>Here</h1>")}) as server, setup(tmp_path, server, clock=clock) as at:
        await at.open(server.url())
        pid = at.browsers.pid(SESSION)
        family = [pid, *find_descendants(pid)]
        assert len(family) > 2
        await clock.advance(200)
        await at.call_browser("snapshot")
        await clock.advance(200)
        assert len(at.browsers) == 1
        await clock.advance(150)
        await wait_until(
            lambda: (
                not at.browsers
                and not any(Path(f"/proc/{each}/exe").is_symlink() and is_running(each) for each in family)
            ),
            "no browser is left",
        )
        assert "Here" in await at.open(server.url())


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@needs_chromium
async def test_a_browser_that_was_killed_is_started_again_by_the_next_open(tmp_path: Path) -> None:
    async with site({"/": Reply("<h1>Here</h1>")}) as server, setup(tmp_path, server) as at:
        await at.open(server.url())
        os.kill(at.browsers.pid(SESSION), 9)
        with pytest.raises(BrowserFailed):
            await at.until("never")
        assert "Here" in await at.open(server.url())


@needs_chromium
async def test_a_browser_that_exceeds_its_traffic_limit_is_closed(tmp_path: Path) -> None:
    settings = WebSettings(browser=BrowserSettings(traffic_bytes_max=1024 * 1024))
    big = Reply(b"x" * (3 * 1024 * 1024), type="text/plain")
    async with (
        site({"/": Reply("<h1>Small</h1>"), "/big": big}) as server,
        setup(tmp_path, server, settings=settings) as at,
    ):
        assert "Small" in await at.open(server.url())
        with contextlib.suppress(ToolFailed):
            await at.open(server.url("/big"))
        await wait_until(lambda: not at.browsers, "no browser is left")
        with pytest.raises(BrowserFailed):
            await at.call_browser("snapshot")


@needs_chromium
async def test_a_browser_that_exceeds_its_memory_limit_is_closed(tmp_path: Path) -> None:
    settings = WebSettings(browser=BrowserSettings(memory_bytes_max=16 * 1024 * 1024))  # Chromium always uses more
    async with site({"/": Reply("<h1>Here</h1>")}) as server, setup(tmp_path, server, settings=settings) as at:
        with contextlib.suppress(BrowserFailed):
            await at.open(server.url())
        with pytest.raises(BrowserFailed) as error:
            await at.until("never")
        assert error.value.code in ("browser.gone", "browser.no_page")


@pytest.mark.spec("C122.browser")
@needs_chromium
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="without bubblewrap there is only Chromium's own sandbox")
async def test_a_browser_in_bubblewrap_cannot_access_files_or_network_of_the_server(tmp_path: Path) -> None:
    canary = tmp_path / "canary.txt"
    canary.write_text("the owner's own words")
    async with site({"/": Reply("<h1>Here</h1>")}) as server, setup(tmp_path, server) as at:
        await at.open(server.url())
        pages, pid = at.browsers.pages(SESSION), at.browsers.pid(SESSION)
        programs = [
            each for each in find_descendants(pid) if "chrom" in os.path.basename(read_process_link(each, "exe"))
        ]
        assert programs
        for each in programs:
            assert read_process_link(each, "ns/net") != os.readlink("/proc/self/ns/net")
            assert read_process_link(each, "ns/pid") != os.readlink("/proc/self/ns/pid")
        assert not any(os.path.exists(f"/proc/{each}/root{canary}") for each in programs)
        # Even if a page could make the browser open a file, our files are not visible, and the page is not shown.
        with pytest.raises(ToolFailed, match="FILE_NOT_FOUND"):
            await pages.open(canary.as_uri())
        await pages.open("file:///usr/")
        with pytest.raises(BrowserFailed, match="not a web page"):
            await at.call_browser("snapshot")
        await at.open(server.url())
        await pages.open("chrome://version")
        with pytest.raises(BrowserFailed, match="not a web page"):
            await at.call_browser("snapshot")
        assert "Here" in await at.open(server.url())


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "chrome://settings",
        "about:blank",
        "view-source:http://127.0.0.2/",
        "javascript:alert(1)",
        "http://localhost/",
        "http://127.0.0.1/",
        "http://rebind.test/",
        None,
    ],
)
async def test_a_url_that_is_not_a_public_web_page_is_refused_before_a_browser_starts(
    url: str | None, tmp_path: Path
) -> None:
    names = Resolver({"rebind.test": [["127.0.0.1"]]})
    settings = WebSettings()
    guard = loopback_guard(names, OUTSIDE_NETWORKS)
    browsers = BrowserPool(lambda: settings, FakeClock(), search_path=PATH, is_root=IS_ROOT, guard=guard)
    with pytest.raises(ToolFailed):
        await BrowserSetup(browsers, tmp_path).call_browser("open", url=url)
    assert len(browsers) == 0


@pytest.mark.parametrize(
    ("settings", "search", "root", "because"),
    [
        (BrowserSettings(), "/nonexistent", False, "not installed"),
        (BrowserSettings(path=Path("/nonexistent/chromium")), PATH, False, "not installed"),
        (BrowserSettings(enabled=False), PATH, False, "disabled it"),
        (BrowserSettings(path=Path("/bin/sh")), "/nonexistent", True, "cannot be confined"),
    ],
)
async def test_an_unavailable_browser_fails_with_the_missing_requirement(
    settings: BrowserSettings, search: str, root: bool, because: str, tmp_path: Path
) -> None:
    given = WebSettings(browser=settings)
    guard = loopback_guard(Resolver({"a.test": [["127.0.0.1"]]}))
    browsers = BrowserPool(lambda: given, FakeClock(), search_path=search, is_root=root, guard=guard)
    with pytest.raises(ToolFailed) as error:
        await BrowserSetup(browsers, tmp_path).call_browser("open", url="http://a.test/")
    assert error.value.code == "browser.not_available"
    assert because in error.value.because
    assert because in browsers.find_missing_requirement()


async def test_a_program_that_is_not_a_browser_fails_to_start_and_is_not_kept(tmp_path: Path) -> None:
    (tmp_path / "fake").write_text("#!/bin/sh\nexit 7\n")
    (tmp_path / "fake").chmod(0o755)
    given = WebSettings(browser=BrowserSettings(path=tmp_path / "fake"))
    guard = loopback_guard(Resolver({"a.test": [["127.0.0.1"]]}))
    browsers = BrowserPool(lambda: given, FakeClock(), search_path=PATH, is_root=False, guard=guard)
    with pytest.raises(ToolFailed) as error:
        await BrowserSetup(browsers, tmp_path).call_browser("open", url="http://a.test/")
    assert error.value.code == "browser.not_started"
    assert len(browsers) == 0


def test_no_launch_mode_runs_a_browser_without_a_sandbox() -> None:
    for bubblewrap in (True, False):
        for root in (True, False):
            for way in list_launch_modes(bubblewrap=bubblewrap, is_root=root):
                assert way.bubblewrap or way.chromium_sandbox
                assert bubblewrap or not way.bubblewrap
                assert way.bubblewrap or not root
    assert list_launch_modes(bubblewrap=False, is_root=True) == ()
    assert list_launch_modes(bubblewrap=True, is_root=True)[0] == LaunchMode(True, True)


async def test_no_browser_is_started_without_the_web_permission(tmp_path: Path) -> None:
    at = BrowserSetup(BrowserPool(WebSettings, FakeClock(), search_path=PATH, is_root=IS_ROOT), tmp_path)
    looking = BrowserArguments(action="open", url="https://example.com/")
    acting = BrowserActArguments(action="press", key="Enter")
    for tool, arguments in ((at.browser, looking), (at.browser_act, acting)):
        assert list(tool.required_permissions(arguments, make_tool_context(web=False))) == [WEB_PERMISSION]  # pyright: ignore[reportArgumentType]
        with pytest.raises(ToolFailed):
            await tool.perform(arguments, make_tool_context(web=False))  # pyright: ignore[reportArgumentType]
    assert len(at.browsers) == 0


def test_browser_and_browser_act_are_two_tools_with_their_own_effects(tmp_path: Path) -> None:
    at = BrowserSetup(BrowserPool(WebSettings, FakeClock(), search_path=PATH, is_root=IS_ROOT), tmp_path)

    assert at.browser.spec.effects == {ToolEffect.READS_UNTRUSTED}
    assert at.browser_act.spec.effects == {ToolEffect.READS_UNTRUSTED, ToolEffect.SENDS_OUT, ToolEffect.WRITES}
    assert not at.browser.spec.is_repeatable and not at.browser_act.spec.is_repeatable


@pytest.mark.parametrize(
    "arguments",
    [{"action": "click"}, {"action": "type", "ref": "e1"}, {"action": "select", "text": "x"}, {"action": "press"}],
)
async def test_a_browser_action_without_its_required_arguments_is_refused(
    arguments: dict[str, str], tmp_path: Path
) -> None:
    at = BrowserSetup(BrowserPool(WebSettings, FakeClock(), search_path=PATH, is_root=IS_ROOT), tmp_path)
    with pytest.raises(ToolFailed, match="needs"):
        await at.call_browser_act(**arguments)


class TestProxy:
    """The proxy, which is the browser's only way to the network."""

    @staticmethod
    @asynccontextmanager
    async def running_proxy(
        *ports: int, bytes_max: int = 100_000
    ) -> AsyncIterator[tuple[BrowserProxy, int, list[bool]]]:
        names = Resolver(
            {"out.test": [["127.0.0.2"]], "in.test": [["127.0.0.1"]], "flip.test": [["127.0.0.2"], ["127.0.0.1"]]}
        )
        settings = WebSettings(ports=ports)
        spent: list[bool] = []
        guard = loopback_guard(names, OUTSIDE_NETWORKS)
        proxy = BrowserProxy(lambda: guard(settings), bytes_max=bytes_max, on_limit=lambda: spent.append(True))
        port = await proxy.listen_on_loopback()
        try:
            yield proxy, port, spent
        finally:
            await proxy.close()

    @staticmethod
    async def send_request(port: int, words: str, then: str = "") -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(words.encode())
            if not then:
                return await reader.read()
            head = await reader.readuntil(b"\r\n\r\n")
            writer.write(then.encode())
            return head + await reader.read()
        except ConnectionError:  # reset, or a broken pipe
            return b""
        finally:
            writer.close()

    async def test_a_browser_request_to_a_public_host_passes_the_proxy_with_and_without_a_tunnel(self) -> None:
        async with site({"/x": Reply("here")}, host="127.0.0.2") as out, self.running_proxy(out.port) as (_, port, _):
            get = f"GET /x HTTP/1.1\r\nHost: out.test:{out.port}\r\n\r\n"
            tunnelled = await self.send_request(port, f"CONNECT out.test:{out.port} HTTP/1.1\r\n\r\n", get)
            assert tunnelled.startswith(b"HTTP/1.1 200 ") and tunnelled.endswith(b"here")
            plain = await self.send_request(
                port,
                f"GET http://out.test:{out.port}/x HTTP/1.1\r\nHost: lies.test\r\nProxy-Connection: keep-alive\r\n\r\n",
            )
            assert plain.endswith(b"here")
            assert out.asked[-1].headers["host"] == f"out.test:{out.port}"
            assert "proxy-connection" not in out.asked[-1].headers

    @pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "in.test", "[::1]", "[::ffff:127.0.0.1]"])
    async def test_the_browser_proxy_refuses_a_tunnel_or_plain_request_to_an_internal_host(self, host: str) -> None:
        async with site({"/": Reply("secret")}) as inside, self.running_proxy(inside.port) as (proxy, port, _):
            for words in (
                f"CONNECT {host}:{inside.port} HTTP/1.1\r\n\r\n",
                f"GET http://{host}:{inside.port}/ HTTP/1.1\r\n\r\n",
            ):
                assert (await self.send_request(port, words)).startswith(b"HTTP/1.1 403 ")
            assert inside.connections == 0
            assert len(proxy.take_refusals()) == 1
            assert proxy.take_refusals() == []

    async def test_the_browser_proxy_does_not_resolve_background_requests_of_chromium_itself(self) -> None:
        names = Resolver({})
        guard = loopback_guard(names)(WebSettings())
        proxy = BrowserProxy(lambda: guard, bytes_max=1_000, on_limit=lambda: None)
        port = await proxy.listen_on_loopback()
        for host in ("update.googleapis.com", "passwordsleakcheck-pa.googleapis.com", "any.test"):
            assert (await self.send_request(port, f"CONNECT {host}:443 HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 502 ")
        assert names.asked == ["any.test"]
        await proxy.close()

    async def test_the_browser_proxy_resolves_a_host_name_once_for_check_and_connection(self) -> None:
        async with site({"/": Reply("secret")}) as inside, self.running_proxy(inside.port) as (_, port, _):
            words = f"GET http://flip.test:{inside.port}/ HTTP/1.1\r\n\r\n"
            assert (await self.send_request(port, words)).startswith(b"HTTP/1.1 502 ")  # the first address is closed
            assert (await self.send_request(port, words)).startswith(b"HTTP/1.1 403 ")  # and the second is internal
            assert inside.connections == 0

    @pytest.mark.parametrize(
        "words",
        [
            "GET / HTTP/1.1\r\n\r\n",
            "GET https://out.test/ HTTP/1.1\r\n\r\n",
            "GET ftp://out.test/ HTTP/1.1\r\n\r\n",
            "GET http://a@out.test/ HTTP/1.1\r\n\r\n",
            "GET http://2130706433/ HTTP/1.1\r\n\r\n",
            "CONNECT out.test HTTP/1.1\r\n\r\n",
            "POST http://out.test/ HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            "POST http://out.test/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
            "POST http://out.test/ HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
            "CONNECT out.test:x HTTP/1.1\r\n\r\n",
            "CONNECT 0x7f.1:80 HTTP/1.1\r\n\r\n",
            "nonsense\r\n\r\n",
            "GET http://out.test/ HTTP/2\r\n\r\n",
            "\r\n\r\n",
        ],
    )
    async def test_the_browser_proxy_does_not_forward_a_malformed_request(self, words: str) -> None:
        async with self.running_proxy(80) as (_, port, _):
            assert (await self.send_request(port, words)).startswith(b"HTTP/1.1 400 ")

    async def test_the_browser_proxy_does_not_forward_the_next_request_on_a_connection_to_the_first_server(
        self,
    ) -> None:
        """It may be for another host, with the cookies of that host."""
        bodies: list[bytes] = []

        async def keep_connection_open(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            bodies.append(await reader.readexactly(4))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: keep-alive\r\n\r\nok")
            bodies.append(await reader.read(1000))
            writer.close()

        greedy = await asyncio.start_server(keep_connection_open, "127.0.0.2", 0)
        async with greedy, self.running_proxy(greedy.sockets[0].getsockname()[1]) as (_, port, _):
            where = f"out.test:{greedy.sockets[0].getsockname()[1]}"
            post = f"POST http://{where}/ HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody"
            got = await self.send_request(port, post, "GET http://bank.test/ HTTP/1.1\r\nCookie: secret\r\n\r\n")
            assert got.startswith(b"HTTP/1.1 200 OK")
            await wait_until(lambda: len(bodies) >= 2, "all that came is read")
        assert bodies == [b"body", b""]

    async def test_the_browser_proxy_cuts_a_response_at_the_traffic_limit(self) -> None:
        async with (
            site({"/": Reply(b"x" * 300_000)}, host="127.0.0.2") as out,
            self.running_proxy(out.port, bytes_max=50_000) as (_, port, spent),
        ):
            got = await self.send_request(port, f"GET http://out.test:{out.port}/ HTTP/1.1\r\n\r\n")
            assert len(got) <= 50_000 and spent

    async def test_the_browser_proxy_closes_a_connection_whose_request_head_does_not_end(self) -> None:
        async with self.running_proxy(80) as (_, port, _):
            assert await self.send_request(port, "GET http://out.test/ HTTP/1.1\r\nX: " + "x" * 200_000) == b""


class TestProtocol:
    """The two pipes, with a test instead of Chromium at the other end."""

    @staticmethod
    @asynccontextmanager
    async def connected_client() -> AsyncIterator[tuple[CdpClient, asyncio.StreamReader, asyncio.StreamWriter]]:
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=theirs)
        cdp = CdpClient(*await asyncio.open_connection(sock=ours))
        try:
            yield cdp, reader, writer
        finally:
            await cdp.close()
            writer.close()

    async def test_responses_of_chromium_over_cdp_are_matched_to_their_calls_and_events_reach_listeners(self) -> None:
        async with self.connected_client() as (cdp, reader, writer):
            events: list[tuple[str, str]] = []
            cdp.add_listener(lambda name, params, session: events.append((name, session)))
            first, second = asyncio.ensure_future(cdp.call("A")), asyncio.ensure_future(cdp.call("B", session="s"))
            assert b'"method":"A"' in await reader.readuntil(b"\0")
            assert b'"sessionId":"s"' in await reader.readuntil(b"\0")
            writer.write(b'{"id":2,"result":{"b":1}}\0{"method":"Seen","params":{},"sessionId":"s"}\0{"id":1,"res')
            assert await second == {"b": 1}
            writer.write(b'ult":{"a":1}}\0{"id":99,"result":{}}\0')
            assert await first == {"a": 1}
            assert events == [("Seen", "s")]

    async def test_an_error_a_timeout_and_a_closed_cdp_connection_to_chromium_fail_the_call(self) -> None:
        async with self.connected_client() as (cdp, _, writer):
            refused = asyncio.ensure_future(cdp.call("A"))
            writer.write(b'{"id":1,"error":{"code":-32000,"message":"No node"}}\0')
            with pytest.raises(BrowserFailed, match="No node"):
                await refused
            with pytest.raises(BrowserFailed) as silent:
                await cdp.call("B", timeout_s=0.05)  # time limit: no answer ever comes
            assert silent.value.code == "browser.timeout"
            waiting = asyncio.ensure_future(cdp.call("C"))
            await asyncio.sleep(0)
            writer.close()
            with pytest.raises(BrowserFailed) as gone:
                await waiting
            assert gone.value.code == "browser.gone"
            assert not cdp.is_open
            with pytest.raises(BrowserFailed):
                await cdp.call("D")

    async def test_a_cdp_response_of_chromium_that_is_too_large_fails_its_call_but_not_the_next(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cdp_module, "MESSAGE_BYTES_MAX", 100_000)
        async with self.connected_client() as (cdp, _, writer):
            large = asyncio.ensure_future(cdp.call("A"))
            writer.write(b'{"id":1,"result":{"x":"' + b"x" * 3_000_000 + b'"}}\0')
            with pytest.raises(BrowserReplyTooLarge):
                await large
            small = asyncio.ensure_future(cdp.call("B"))
            writer.write(b'{"id":2,"result":{}}\0')
            assert await small == {}

    async def test_the_cdp_response_of_chromium_to_a_cancelled_call_is_ignored(self) -> None:
        async with self.connected_client() as (cdp, _, writer):
            given_up = asyncio.ensure_future(cdp.call("A"))
            await asyncio.sleep(0)  # it waits
            given_up.cancel()
            with pytest.raises(asyncio.CancelledError):
                await given_up
            writer.write(b'{"id":1,"result":{}}\0')
            after = asyncio.ensure_future(cdp.call("B"))
            writer.write(b'{"id":2,"result":{"ok":true}}\0')
            assert await after == {"ok": True}


def make_node(id: str, role: str, name: str = "", children: Sequence[str] = (), **more: Any) -> dict[str, Any]:
    made = {"nodeId": id, "role": {"value": role}, "name": {"value": name}, "childIds": list(children)}
    return {**made, "backendDOMNodeId": int(id), **more}


def test_the_browser_outline_of_a_deep_or_cyclic_page_is_finite() -> None:
    deep = [make_node(str(number), "group", f"g{number}", [str(number + 1)]) for number in range(1, 15_000)]
    round_about = [
        make_node("1", "group", "a", ["2"]),
        make_node("2", "group", "b", ["1", "2"]),
        make_node("9", "button", "lost"),
    ]
    outline = PageOutline(ElementRefs())
    outline.add_frame(deep)
    outline.add_frame(round_about)
    outline.add_frame([])

    assert len(outline.lines) == 14_999 + 2
    assert max(len(line) - len(line.lstrip()) for line in outline.lines) == 24


def test_an_element_of_a_browser_page_keeps_its_ref_and_no_ref_is_used_twice() -> None:
    page = [make_node("1", "RootWebArea", "t", ["2", "3"]), make_node("2", "button", "A"), make_node("3", "link", "B")]
    names = ElementRefs(7)
    first, second, third = PageOutline(names), PageOutline(names), PageOutline(names)
    first.add_frame(page)
    second.add_frame(
        [
            make_node("1", "RootWebArea", "t", ["3", "4"]),
            *page[2:],
            make_node("4", "textbox", "C", value={"value": "v"}),
        ]
    )
    names.clear()
    third.add_frame(page)

    assert first.lines == ['- button "A" [e8]', '- link "B" [e9]']
    assert second.lines == ['- link "B" [e9]', '- textbox "C" = "v" [e10]']
    assert third.lines == ['- button "A" [e11]', '- link "B" [e12]']
    assert names.node_by_ref == {"e11": 2, "e12": 3}
