"""A real browser for a real server: open windows, wait until they are settled, check accessibility with axe."""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pytest
from api.tcp_server import ApiClient
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

from retinue.testing.failure_context import (
    PAGE_TITLE,
    FailureDescription,
    FailureSubject,
    close_subject,
    last_lines,
    register_subject,
)
from retinue.testing.wait_conditions import wait_until_sync

ROOT = Path(__file__).parent.parent.parent
AXE = ROOT / "web" / "node_modules" / "axe-core" / "axe.min.js"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
EXPECT_TIMEOUT_MS = 120_000  # long: it only ends a test that hangs
SCREENSHOT_TIMEOUT_MS = 5_000  # short: a page that hangs must not hide the failure
LINES_MAX = 10  # each for console errors and for failed requests
SIZES = {"laptop": (1280, 800), "phone": (360, 740)}
# Sizes and themes for tests of whole screens. `make test-slow` runs the other two combinations.
SIZES_AND_THEMES = [
    ("laptop", "light"),
    ("phone", "dark"),
    pytest.param("laptop", "dark", marks=pytest.mark.slow),
    pytest.param("phone", "light", marks=pytest.mark.slow),
]
# Errors of the browser for a response that a killed server did not finish. The last one is for a WebSocket.
INTERRUPTED_RESPONSES = (
    "ERR_CONTENT_LENGTH_MISMATCH",
    "ERR_EMPTY_RESPONSE",
    "ERR_INCOMPLETE_CHUNKED_ENCODING",
    "Connection closed before receiving a handshake response",
)
# Lengthens the times after which the web app forgets the first key of a sequence (`SEQUENCE_TIMEOUT_MS`), or removes a
# toast (`SHOWN_MS`, `UNDO_MS`) or a decided approval (`DECIDED_SHOWN_MS`).
PATIENT_TIMERS = """(() => {
    const {setTimeout} = window;
    window.setTimeout = (work, afterMs = 0, ...rest) =>
        setTimeout(work, [1_200, 6_000, 12_000].includes(afterMs) ? 600_000 : afterMs, ...rest);
})()"""
CHROMIUM_PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

expect.set_options(timeout=EXPECT_TIMEOUT_MS)


@contextmanager
def open_browser() -> Iterator[Browser]:
    program = next(filter(None, map(shutil.which, CHROMIUM_PROGRAMS)), None)
    if program is None:
        pytest.fail("there is no Chromium on PATH: apt-get install -y chromium-headless-shell")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, headless=True, args=CHROMIUM_FLAGS)
        try:
            yield browser
        finally:
            browser.close()


class WatchedPage:
    """Describes a browser page in the report of a failed test: URL, console errors, failed requests, screenshot."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._console: deque[str] = deque(maxlen=LINES_MAX)
        self._requests: deque[str] = deque(maxlen=LINES_MAX)
        page.on("console", self._record_console_error)
        page.on("pageerror", lambda error: self._console.append(f"exception: {error}"))
        page.on("requestfailed", lambda request: self._record_failure(request, request.failure or "failed"))
        page.on("response", lambda response: self._record_response(response))

    def __call__(self, error: BaseException | None) -> FailureDescription:
        lines = [
            f"url: {_redact_code(self._page.url)}",
            "console errors:",
            *(f"  {line}" for line in self._console or ["none"]),
            "failed requests:",
            *(f"  {line}" for line in self._requests or ["none"]),
        ]
        try:
            screenshot = self._page.screenshot(timeout=SCREENSHOT_TIMEOUT_MS)  # time limit: the page may hang
        except Error as screenshot_error:
            lines.append(f"no screenshot: {screenshot_error.message.splitlines()[0]}")
            screenshot = b""
        return FailureDescription(
            texts={PAGE_TITLE: last_lines("\n".join(lines), 2 * LINES_MAX)}, screenshot=screenshot
        )

    def _record_console_error(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self._console.append(f"{message.type}: {message.text}")

    def _record_response(self, response: Response) -> None:
        if response.status >= 400:
            self._record_failure(response.request, f"{response.status} {response.status_text}")

    def _record_failure(self, request: Request, because: str) -> None:
        self._requests.append(f"{request.method} {_redact_code(request.url)}: {because}")


def _redact_code(url: str) -> str:
    """Redact the sign-in code in a URL."""
    before, code, _ = url.partition("#code=")
    return f"{before}{code}***" if code else before


class WebApp:
    """The web app of one server. Each window is a separate browser profile; `open_tab` opens another tab in one."""

    def __init__(self, browser: Browser, server: ApiClient) -> None:
        self._browser = browser
        self.server = server
        self._kills_at_start = server.process.kills
        self._subjects: list[FailureSubject] = []
        self.console_errors: list[str] = []
        self.external_requests: list[str] = []
        self._contexts: list[BrowserContext] = []

    def open_window(
        self,
        path: str = "/",
        *,
        size: Literal["laptop", "phone"] = "laptop",
        theme: Literal["light", "dark"] = "light",
        reduce_motion: bool = False,
        polling: bool = True,
        fake_clock: bool = False,
        patient: bool = False,
        **options: Any,
    ) -> Page:
        """Open a window that is signed in as the owner with a sign-in code.

        Without polling it shows only what events bring. With a fake clock, `page.clock` can move the time forward; it
        also runs by itself. A patient window keeps what the web app removes or forgets after some seconds, so that a
        test on a busy machine is in time for it."""
        width, height = SIZES[size]
        context = self._browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=theme,
            has_touch=size == "phone",
            reduced_motion="reduce" if reduce_motion else "no-preference",
            **options,
        )
        context.set_default_timeout(EXPECT_TIMEOUT_MS)
        context.grant_permissions(["clipboard-read", "clipboard-write"], origin=self.server.address)
        if not polling:
            context.add_init_script("window.setInterval = () => 0")
        if fake_clock:
            context.clock.install()
        if patient:
            context.add_init_script(PATIENT_TIMERS)
        self._contexts.append(context)
        return self.open_tab(context, f"{path}#code={self.server.do('token.code')['code']}")

    def open_tab(self, context: BrowserContext, path: str = "/") -> Page:
        page = context.new_page()
        self._subjects.append(register_subject(WatchedPage(page)))
        page.on("console", self._record_console_message)
        page.on("pageerror", lambda error: self.console_errors.append(str(error)))
        page.on("request", lambda pending: self._record_request(pending.url))
        page.goto(self.server.address + path)
        expect(page.get_by_role("navigation", name="Screens")).to_be_visible()
        return page

    def close(self) -> None:
        if self.console_errors or self.external_requests:  # the test will fail because of it
            for subject in self._subjects:
                subject.describe_now()
        self._close_windows()
        for subject in self._subjects:
            close_subject(subject)

    def close_expecting_errors(self) -> None:
        """Close the windows at the end of a test, then forget the errors so far.

        An open window may still wait for the response to a request that is refused, or send one again."""
        self._close_windows()
        self.console_errors.clear()

    def _close_windows(self) -> None:
        for context in self._contexts:
            for page in context.pages:
                with suppress(Error):  # it was closed by the test
                    page.unroute_all(behavior="ignoreErrors")  # a handler may still be working
            context.close()

    def _record_console_message(self, message: Any) -> None:
        if message.type not in ("error", "warning"):
            return
        # If the test killed the server, the browser itself reports connection errors.
        was_killed = self.server.process.kills > self._kills_at_start
        if "ERR_CONNECTION" not in message.text and not (
            was_killed and any(each in message.text for each in INTERRUPTED_RESPONSES)
        ):
            self.console_errors.append(f"{message.type}: {message.text}")

    def _record_request(self, url: str) -> None:
        if not url.startswith((self.server.address, "blob:", "data:")):
            self.external_requests.append(url)


# Counts the timers that end soon. Longer timers are for polling and do not count.
TRACK_TIMERS = """(() => {
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


def track_requests(page: Page) -> Callable[[], None]:
    """Return a function that waits until the page is settled: no request is pending and no timer ends soon.

    Only requests from now on are counted, so call this before the page navigates."""
    pending: set[Request] = set()
    page.on("request", lambda request: pending.add(request))
    page.on("requestfinished", lambda request: pending.discard(request))
    page.on("requestfailed", lambda request: pending.discard(request))
    page.add_init_script(TRACK_TIMERS)

    def is_settled() -> bool:
        # Twice, because a response may have arrived but not been processed yet.
        for _ in range(2):
            page.evaluate(TWO_FRAMES)
            if pending or page.evaluate("() => window.__soon.size"):
                return False
        return True

    def wait_until_settled() -> None:
        wait_until_sync(is_settled, "the page is settled")

    return wait_until_settled


def find_violations(page: Page) -> list[str]:
    """Accessibility violations that axe finds, one line each: rule, description, elements."""
    # Wait for finite animations: elements that fade in or out are partly transparent.
    page.evaluate(
        """() => Promise.allSettled(document.getAnimations()
            .filter((each) => each.effect?.getComputedTiming().endTime !== Infinity)
            .map((each) => each.finished))"""
    )
    # Passed as a function: the content security policy of the page does not allow an inline script.
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(f"() => {{ {_read_axe_script()} }}")
    # Return only the violations: the full result of axe is many times larger.
    return page.evaluate(
        """async (tags) => {
            const found = await axe.run(document, {runOnly: tags, resultTypes: ["violations"]});
            const where = (each) => each.nodes.slice(0, 3).map((node) => node.target.join(" ")).join(", ");
            return found.violations.map((each) => `${each.id}: ${each.help}: ${where(each)}`);
        }""",
        RULES,
    )


@cache
def _read_axe_script() -> str:
    return AXE.read_text()


def scrolls_sideways(page: Page) -> bool:
    return page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
