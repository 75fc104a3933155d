"""Size and speed of the web app: `python tests/web/measure.py` prints the numbers and asserts nothing."""

from __future__ import annotations

import gzip
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from api.tcp_server import open_api_client  # noqa: E402
from playwright.sync_api import Page, Response, expect  # noqa: E402
from web.browser import WebApp, open_browser  # noqa: E402
from web.chat_actions import (  # noqa: E402
    composer,
    create_session,
    import_session,
    message_log,
    open_chat,
    replies,
    send_by_api,
    wait_until_idle,
)
from web.conftest import SETTINGS  # noqa: E402

from web import test_streaming as streaming  # noqa: E402

ATTEMPTS = 5
RECORDS = 10_000


def print_row(what: str, number: str) -> None:
    print(f"{what:<55} {number}", flush=True)


def measure_first_load(app: WebApp) -> None:
    page = app.open_window("/")
    expect(composer(page)).to_be_visible()
    sizes: dict[str, int] = {}

    def record_size(response: Response) -> None:
        if response.url.endswith(".js"):
            sizes[response.url] = len(gzip.compress(response.body()))

    page.on("response", record_size)
    page.reload()
    expect(composer(page)).to_be_visible()
    print_row("script of the first load (gzip)", f"{sum(sizes.values()) / 1000:.1f} kB in {len(sizes)} files")
    durations_ms = []
    for _ in range(ATTEMPTS):
        page.goto("about:blank")
        page.goto(app.server.address)
        expect(composer(page)).to_be_focused()
        durations_ms.append(
            page.evaluate("performance.now() - performance.getEntriesByType('navigation')[0].startTime")
        )
    print_row("time to interactive (can type)", f"{statistics.median(durations_ms):.0f} ms")
    page.close()


def measure_first_text(app: WebApp) -> None:
    """Time from Enter to the first text in the browser, compared with the same over the API alone."""
    session = create_session(app)
    page = open_chat(app, session)
    page.evaluate(
        """() => {
            const press = (event) => event.key === "Enter" && (window.__pressed = performance.now());
            document.addEventListener("keydown", press, true);
            new MutationObserver(() => {
                const shown = document.querySelectorAll("article:not(.own) > .markdown").length;
                if (!window.__shown && shown > window.__had) window.__shown = performance.now();
            }).observe(document.body, {childList: true, subtree: true});
        }"""
    )
    durations_ms, api_durations_ms = [], []
    for number in range(ATTEMPTS):
        page.evaluate("had => { window.__shown = 0; window.__had = had }", 2 * number)
        composer(page).fill(f"echo {number}")
        composer(page).press("Enter")
        expect(replies(page)).to_have_count(2 * number + 1)
        wait_until_idle(app, session)
        durations_ms.append(page.evaluate("window.__shown - window.__pressed"))
        with app.server.websocket(follow=[{"session": session}]) as websocket:
            websocket.until("hello")
            started = time.perf_counter()
            send_by_api(app, session, f"echo {number}")
            websocket.until("delta")
            api_durations_ms.append((time.perf_counter() - started) * 1000)
        wait_until_idle(app, session)
        expect(replies(page)).to_have_count(2 * number + 2)
    print_row("Enter to first text, in the browser", f"{statistics.median(durations_ms):.0f} ms")
    print_row("  the same over the API alone", f"{statistics.median(api_durations_ms):.0f} ms")
    page.close()


def measure_frames(app: WebApp) -> None:
    session = create_session(app)
    page = streaming.open_chat_with_socket(app, session)
    streaming.stream_deltas(page, session, streaming.split_text(streaming.build_long_text(), 80))
    streaming.wait_for_condition(page, "window.__streamed")
    durations_ms = sorted(page.evaluate("window.frames_ms"))
    shares = " / ".join(f"{durations_ms[int((len(durations_ms) - 1) * share)]:.0f}" for share in (0.5, 0.95, 1))
    print_row("frames while 200 kB stream: median / 95 % / worst", f"{shares} ms")
    page.close()


def measure_long_history(app: WebApp) -> None:
    kinds = ("user_message", "assistant_message")
    history = [{"type": kinds[n % 2], "text": f"**line** {n} with `words`"} for n in range(RECORDS)]
    session = import_session(app, history)
    page = open_chat(app, session)
    expect(message_log(page).get_by_text(f"line {RECORDS - 1}")).to_be_visible()
    heap = page.context.new_cdp_session(page)

    def read_heap() -> str:
        heap.send("HeapProfiler.collectGarbage")
        return f"{heap.send('Runtime.getHeapUsage')['usedSize'] / 1e6:.1f} MB, {count_articles(page)} articles"

    print_row("heap with 10,000 records, opened", read_heap())
    page.get_by_role("button", name="Find in conversation").click()
    started = time.perf_counter()
    page.get_by_role("searchbox", name="Find in conversation").fill("line** 0 ")
    expect(page.get_by_role("search").get_by_role("status")).to_have_text("1 of 1")
    print_row("find a word in the first record", f"{(time.perf_counter() - started) * 1000:.0f} ms")
    print_row("heap with all records loaded", read_heap())
    page.close()


def count_articles(page: Page) -> int:
    return message_log(page).locator("article").count()


def main() -> None:
    with (
        open_browser() as browser,
        tempfile.TemporaryDirectory() as folder,
        open_api_client(Path(folder), SETTINGS) as server,
    ):
        app = WebApp(browser, server)
        create_session(app)
        measure_first_load(app)
        measure_first_text(app)
        measure_frames(app)
        measure_long_history(app)
        app.close()


if __name__ == "__main__":
    main()
