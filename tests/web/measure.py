"""What the page weighs and how it feels: `python tests/web/measure.py` prints the numbers and asserts nothing."""

from __future__ import annotations

import gzip
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from api.tcp_server import open_rim  # noqa: E402
from playwright.sync_api import Page, Response, expect  # noqa: E402
from web.browser import Front, open_browser  # noqa: E402
from web.chat_actions import composer, import_session, lines, new_session, open_talk, replies, send, until_quiet  # noqa: E402
from web.conftest import SETTINGS  # noqa: E402

from web import test_streaming as streaming  # noqa: E402

TRIES = 5
LINES = 10_000


def tell(what: str, number: str) -> None:
    print(f"{what:<55} {number}", flush=True)


def first_load(front: Front) -> None:
    page = front.window("/")
    expect(composer(page)).to_be_visible()
    weights: dict[str, int] = {}

    def weigh(given_back: Response) -> None:
        if given_back.url.endswith(".js"):
            weights[given_back.url] = len(gzip.compress(given_back.body()))

    page.on("response", weigh)
    page.reload()
    expect(composer(page)).to_be_visible()
    tell("script of the first load (gzip)", f"{sum(weights.values()) / 1000:.1f} kB in {len(weights)} files")
    took = []
    for _ in range(TRIES):
        page.goto("about:blank")
        page.goto(front.rim.address)
        expect(composer(page)).to_be_focused()
        took.append(page.evaluate("performance.now() - performance.getEntriesByType('navigation')[0].startTime"))
    tell("time to interactive (can type)", f"{statistics.median(took):.0f} ms")
    page.close()


def enter_to_first_text(front: Front) -> None:
    """Over the model's own latency: the page is told of a piece of an answer, and shows it."""
    session = new_session(front)
    page = open_talk(front, session)
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
    took, alone = [], []
    for number in range(TRIES):
        page.evaluate("had => { window.__shown = 0; window.__had = had }", 2 * number)
        composer(page).fill(f"echo {number}")
        composer(page).press("Enter")
        expect(replies(page)).to_have_count(2 * number + 1)
        until_quiet(front, session)
        took.append(page.evaluate("window.__shown - window.__pressed"))
        with front.rim.live(follow=[{"session": session}]) as live:
            live.until("hello")
            began = time.perf_counter()
            send(front, session, f"echo {number}")
            live.until("delta")
            alone.append((time.perf_counter() - began) * 1000)
        until_quiet(front, session)
        expect(replies(page)).to_have_count(2 * number + 2)
    tell("Enter to first text, in the page", f"{statistics.median(took):.0f} ms")
    tell("  the same without a page, by the house alone", f"{statistics.median(alone):.0f} ms")
    page.close()


def frames(front: Front) -> None:
    session = new_session(front)
    page = streaming.with_socket(front, session)
    streaming.stream(page, session, streaming.pieces_of(streaming.long_text(), 80))
    streaming.wait_for(page, "window.__streamed")
    took = sorted(page.evaluate("window.frames_ms"))
    shares = " / ".join(f"{took[int((len(took) - 1) * share)]:.0f}" for share in (0.5, 0.95, 1))
    tell("frames while 200 kB are said: median / 95 % / worst", f"{shares} ms")
    page.close()


def ten_thousand(front: Front) -> None:
    kinds = ("user_message", "assistant_message")
    made = [{"type": kinds[n % 2], "text": f"**line** {n} with `words`"} for n in range(LINES)]
    session = import_session(front, made)
    page = open_talk(front, session)
    expect(lines(page).get_by_text(f"line {LINES - 1}")).to_be_visible()
    heap = page.context.new_cdp_session(page)

    def used() -> str:
        heap.send("HeapProfiler.collectGarbage")
        return f"{heap.send('Runtime.getHeapUsage')['usedSize'] / 1e6:.1f} MB, {count(page)} articles"

    tell("heap with 10,000 records, opened", used())
    page.get_by_role("button", name="Find in this conversation").click()
    began = time.perf_counter()
    page.get_by_role("searchbox", name="Find in this conversation").fill("line** 0 ")
    expect(page.get_by_role("search").get_by_role("status")).to_have_text("1 of 1")
    tell("to find a word in the first of them", f"{(time.perf_counter() - began) * 1000:.0f} ms")
    tell("heap with all of them read", used())
    page.close()


def count(page: Page) -> int:
    return lines(page).locator("article").count()


def main() -> None:
    with open_browser() as browser, tempfile.TemporaryDirectory() as folder, open_rim(Path(folder), SETTINGS) as rim:
        front = Front(browser, rim)
        new_session(front)
        first_load(front)
        enter_to_first_text(front)
        frames(front)
        ten_thousand(front)
        front.close()


if __name__ == "__main__":
    main()
