"""A real browser in front of a real house: windows, what they show, and what axe says about it."""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pytest
from api.tcp_server import Rim
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Error,
    Page,
    Request,
    Response,
    expect,
    sync_playwright,
)

from retinue.testing.failure_context import PAGE, Description, Subject, close, last_lines, register
from retinue.testing.waiting import wait_until_sync

ROOT = Path(__file__).parent.parent.parent
AXE = ROOT / "web" / "node_modules" / "axe-core" / "axe.min.js"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
SHOWN_WITHIN_MS = 120_000  # ends a hang
SCREENSHOT_WITHIN_MS = 5_000  # a page that hangs must not hide the failure
LINES_MAX = 10  # of console errors, and of failed requests
SIZES = {"laptop": (1280, 800), "phone": (360, 740)}
# Sizes and themes of a test that looks at whole screens. `make test-slow` has the other two combinations.
LOOKS = [
    ("laptop", "light"),
    ("phone", "dark"),
    pytest.param("laptop", "dark", marks=pytest.mark.slow),
    pytest.param("phone", "light", marks=pytest.mark.slow),
]
# What the browser says of an answer that a killed server did not finish.
CUT_OFF = ("ERR_CONTENT_LENGTH_MISMATCH", "ERR_EMPTY_RESPONSE", "ERR_INCOMPLETE_CHUNKED_ENCODING")
CHROMIUM = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

expect.set_options(timeout=SHOWN_WITHIN_MS)


@contextmanager
def open_browser() -> Iterator[Browser]:
    program = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if program is None:
        pytest.fail("there is no Chromium on PATH: apt-get install -y chromium-headless-shell")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, headless=True, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


class WatchedPage:
    """Describes a browser page in the report of a failed test: where it is, what went wrong in it, how it looks."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._console: deque[str] = deque(maxlen=LINES_MAX)
        self._requests: deque[str] = deque(maxlen=LINES_MAX)
        page.on("console", self._log)
        page.on("pageerror", lambda error: self._console.append(f"exception: {error}"))
        page.on("requestfailed", lambda request: self._fail(request, request.failure or "failed"))
        page.on("response", lambda response: self._answer(response))

    def __call__(self, error: BaseException | None) -> Description:
        lines = [
            f"address: {_without_code(self._page.url)}",
            "console errors:",
            *(f"  {line}" for line in self._console or ["none"]),
            "failed requests:",
            *(f"  {line}" for line in self._requests or ["none"]),
        ]
        try:
            picture = self._page.screenshot(timeout=SCREENSHOT_WITHIN_MS)  # time limit: of a page that may hang
        except Error as trouble:
            lines.append(f"no screenshot: {trouble.message.splitlines()[0]}")
            picture = b""
        return Description(texts={PAGE: last_lines("\n".join(lines), 2 * LINES_MAX)}, screenshot=picture)

    def _log(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self._console.append(f"{message.type}: {message.text}")

    def _answer(self, response: Response) -> None:
        if response.status >= 400:
            self._fail(response.request, f"{response.status} {response.status_text}")

    def _fail(self, request: Request, because: str) -> None:
        self._requests.append(f"{request.method} {_without_code(request.url)}: {because}")


def _without_code(url: str) -> str:
    """A sign-in code in an address is redacted, as everything that signs in."""
    before, code, _ = url.partition("#code=")
    return f"{before}{code}***" if code else before


class Front:
    """The page of one house. Each window is a person's own browser, unless one asks for another tab of it."""

    def __init__(self, browser: Browser, rim: Rim) -> None:
        self._browser = browser
        self.rim = rim
        self._kills_before = rim.process.kills
        self._subjects: list[Subject] = []
        self.complaints: list[str] = []
        self.outside: list[str] = []
        self._contexts: list[BrowserContext] = []

    def window(
        self,
        path: str = "/",
        *,
        size: Literal["laptop", "phone"] = "laptop",
        theme: Literal["light", "dark"] = "light",
        calm: bool = False,
        polls: bool = True,
        turns_clock: bool = False,
        **options: Any,
    ) -> Page:
        """Signed in as the owner, by a code as the terminal shows it.

        One that does not poll shows only what it is told of. One whose clock is turned has `page.clock`, which goes on
        by itself as any other."""
        width, height = SIZES[size]
        context = self._browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=theme,
            has_touch=size == "phone",
            reduced_motion="reduce" if calm else "no-preference",
            **options,
        )
        context.set_default_timeout(SHOWN_WITHIN_MS)
        context.grant_permissions(["clipboard-read", "clipboard-write"], origin=self.rim.address)
        if not polls:
            context.add_init_script("window.setInterval = () => 0")
        if turns_clock:
            context.clock.install()
        self._contexts.append(context)
        return self.tab(context, f"{path}#code={self.rim.do('token.code')['code']}")

    def tab(self, context: BrowserContext, path: str = "/") -> Page:
        page = context.new_page()
        self._subjects.append(register(WatchedPage(page)))
        page.on("console", self._listen)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda asked: self._look(asked.url))
        page.goto(self.rim.address + path)
        expect(page.get_by_role("navigation", name="Screens")).to_be_visible()
        return page

    def close(self) -> None:
        if self.complaints or self.outside:  # the test will fail for it
            for subject in self._subjects:
                subject.keep()
        for context in self._contexts:
            context.close()
        for subject in self._subjects:
            close(subject)

    def _listen(self, message: Any) -> None:
        if message.type not in ("error", "warning"):
            return
        # A house that was killed on purpose is complained about by the browser, not by the page.
        was_killed = self.rim.process.kills > self._kills_before
        if "ERR_CONNECTION" not in message.text and not (was_killed and any(each in message.text for each in CUT_OFF)):
            self.complaints.append(f"{message.type}: {message.text}")

    def _look(self, url: str) -> None:
        if not url.startswith((self.rim.address, "blob:", "data:")):
            self.outside.append(url)


# Where what is about to be done can be counted: timers that run out soon. One that is far away brings the next look.
TIMERS = """(() => {
    const soon = new Set(), {setTimeout, clearTimeout} = window;
    window.setTimeout = (work, afterMs = 0, ...rest) => {
        const timer = setTimeout(() => { soon.delete(timer); work(...rest); }, afterMs);
        if (afterMs <= 500) soon.add(timer);
        return timer;
    };
    window.clearTimeout = (timer) => { soon.delete(timer); clearTimeout(timer); };
    window.__soon = soon;
})()"""
TWO_FRAMES = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


def settling(page: Page) -> Callable[[], None]:
    """What is returned waits until the page is at rest: it has asked the house for nothing that is not there yet, and
    is not about to. It counts what is asked from now on, so this is called before the page goes somewhere."""
    asked: set[Request] = set()
    page.on("request", lambda request: asked.add(request))
    page.on("requestfinished", lambda request: asked.discard(request))
    page.on("requestfailed", lambda request: asked.discard(request))
    page.add_init_script(TIMERS)

    def is_at_rest() -> bool:
        # Twice, because an answer that has come is perhaps not read yet.
        for _ in range(2):
            page.evaluate(TWO_FRAMES)
            if asked or page.evaluate("() => window.__soon.size"):
                return False
        return True

    def settle() -> None:
        wait_until_sync(is_at_rest, "the page is at rest")

    return settle


def violations(page: Page) -> list[str]:
    """What axe finds, as one line for each: rule, what it is about, and where."""
    # What is still coming in or going out is half seen through: nothing that ends is looked at before it has.
    page.evaluate(
        """() => Promise.allSettled(document.getAnimations()
            .filter((each) => each.effect?.getComputedTiming().endTime !== Infinity)
            .map((each) => each.finished))"""
    )
    # Handed over as a function, and not as a script in the page: the page's own policy takes no such script.
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(f"() => {{ {_axe()} }}")
    # The page keeps what axe says of everything that is right: it is many times what is asked for here.
    return page.evaluate(
        """async (tags) => {
            const found = await axe.run(document, {runOnly: tags, resultTypes: ["violations"]});
            const where = (each) => each.nodes.slice(0, 3).map((node) => node.target.join(" ")).join(", ");
            return found.violations.map((each) => `${each.id}: ${each.help}: ${where(each)}`);
        }""",
        RULES,
    )


@cache
def _axe() -> str:
    return AXE.read_text()


def scrolls_sideways(page: Page) -> bool:
    return page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
