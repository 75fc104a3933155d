"""Words as they are said: none lost, none twice, whatever happens to the house, the line and the window."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, Route, WebSocketRoute, expect
from web.browser import Front
from web.chat_actions import (
    composer,
    import_session,
    lines,
    new_session,
    open_talk,
    own,
    replies,
    said,
    say,
    until_quiet,
)

from retinue.testing.waiting import wait_until_sync

COUNT_TO = 40
LONG_REPLY_BYTES = 200_000


def counted(words: str) -> list[int]:
    return [int(each) for each in words.replace(",", " ").replace(".", " ").split() if each.isdigit()]


def expect_counted(page: Page, to: int) -> None:
    """Each number once, in order."""
    expect(replies(page)).to_have_count(1)
    expect(replies(page)).to_contain_text("Done.")
    expect(page.get_by_role("button", name="Stop")).to_have_count(0)
    assert counted(replies(page).inner_text())[-to:] == list(range(1, to + 1))


def test_a_house_killed_in_mid_stream_loses_and_doubles_nothing_in_any_window(front: Front) -> None:
    session = new_session(front)
    page, other = open_talk(front, session), open_talk(front, session)
    say(page, f"count to {COUNT_TO}")
    for window in (page, other):
        expect(replies(window)).to_contain_text("20 21")
    front.rim.process.kill()
    expect(page.get_by_text("The house does not answer.")).to_be_visible()
    front.rim.process.open(again_at=front.rim.address)
    for window in (page, other):
        expect_counted(window, COUNT_TO)
        expect(own(window, f"count to {COUNT_TO}")).to_have_count(1)
        window.reload()
        expect_counted(window, COUNT_TO)
    assert [counted(each)[-COUNT_TO:] for each in said(front, session)] == [list(range(1, COUNT_TO + 1))]


@pytest.mark.parametrize("count", [8, pytest.param(20, marks=pytest.mark.slow)])
def test_all_tabs_of_one_person_show_the_same(front: Front, count: int) -> None:
    session = new_session(front)
    first = open_talk(front, session)
    tabs = [first, *(front.tab(first.context, f"/chat/{session}") for _ in range(count - 1))]
    say(first, "count to 25")
    for tab in tabs:
        expect(replies(tab)).to_contain_text("24 25")
        expect(own(tab, "count to 25")).to_have_count(1)
    until_quiet(front, session)
    [kept] = said(front, session)
    for tab in tabs:
        expect(tab.get_by_role("button", name="Stop")).to_have_count(0)
        assert counted(replies(tab).inner_text()) == counted(kept)


def test_a_slow_line_is_only_slow(front: Front) -> None:
    session = new_session(front)
    page = open_talk(front, session)
    line = page.context.new_cdp_session(page)
    slow = {"offline": False, "latency": 400, "downloadThroughput": 6_000, "uploadThroughput": 6_000}
    line.send("Network.emulateNetworkConditions", slow)
    say(page, "count to 20")
    expect(own(page, "count to 20")).to_have_count(1)
    expect_counted(page, 20)
    expect(own(page, "count to 20")).to_have_count(1)


def test_words_that_come_after_their_line_are_not_said_again(front: Front) -> None:
    session = new_session(front)
    page = open_talk(front, session)
    held: list[Callable[[], None]] = []
    holds = True

    def live(line: WebSocketRoute) -> None:
        def hear(frame: str | bytes) -> None:
            told = json.loads(frame)
            is_of_reply = told["type"] == "delta" or told.get("record", {}).get("kind") == "assistant"
            if holds and (is_of_reply or told.get("news") == "run.ended"):
                held.append(lambda: line.send(frame))
            else:
                line.send(frame)

        line.connect_to_server().on_message(hear)

    page.route_web_socket("**/api/live", live)
    page.reload()
    expect(composer(page)).to_be_visible()

    def read(route: Route) -> None:
        """The new lines are asked for when the first words are on their way, and given when all of it was said."""
        if "after" in json.loads(route.request.post_data or "{}"):
            until_said(front, session)
        route.continue_()

    page.route("**/api/session/transcript", read)
    say(page, "echo late")
    expect(replies(page)).to_have_text(["late"])
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    assert held
    holds = False
    for release in held:
        release()
    expect(page.get_by_role("button", name="Stop")).to_have_count(0)
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert replies(page).count() == 1


def until_said(front: Front, session: str) -> None:
    wait_until_sync(lambda: said(front, session), "something is said")
    until_quiet(front, session)


# --- a model that says what we like, as fast as we like ---


def wait_for(page: Page, condition: str) -> None:
    """Playwright's own would evaluate words in the page, which its policy does not allow."""
    page.evaluate(f"""async () => {{
        while (!({condition})) await new Promise(requestAnimationFrame);
    }}""")


def stream(page: Page, session: str, pieces: list[str], kind: str = "text", hurried: range = range(0)) -> None:
    """Hand the page deltas as the house would, a few a frame, and measure the frames. Those that are `hurried` come
    many a frame."""
    page.evaluate(
        """([session, pieces, kind, from, to]) => {
            window.frames_ms = [];
            let last = performance.now(), at = 0, offset = 0;
            const frame = (now) => {
                window.frames_ms.push(now - last);
                last = now;
                const many = at >= from && at < to ? 32 : 4;
                for (let i = 0; i < many && at < pieces.length; i++, at++) {
                    const place = {session, run: "r", turn: 0, attempt: 1, kind, offset};
                    const data = JSON.stringify({type: "delta", ...place, text: pieces[at]});
                    offset += [...pieces[at]].length;
                    window.__socket.dispatchEvent(new MessageEvent("message", {data}));
                }
                if (at < pieces.length) requestAnimationFrame(frame);
                else window.__streamed = true;
            };
            requestAnimationFrame(frame);
        }""",
        [session, pieces, kind, hurried.start, hurried.stop],
    )


def with_socket(front: Front, session: str) -> Page:
    """A window whose line to the house we can speak into."""
    page = open_talk(front, session)
    page.add_init_script(
        """window.WebSocket = class extends WebSocket {
            constructor(...all) { super(...all); window.__socket = this; }
        };"""
    )
    page.reload()
    expect(composer(page)).to_be_visible()
    wait_for(page, "window.__socket?.readyState === 1")
    return page


def pieces_of(text: str, length: int = 40) -> list[str]:
    return [text[at : at + length] for at in range(0, len(text), length)]


def long_text() -> str:
    section = (
        "## Part {n}\n\nWords with **weight**, `code` and a [place](https://example.com/{n}) that go on.\n\n"
        "| name | state |\n|---|---|\n| rake {n} | good |\n\n- one\n- two\n\n```python\nprint({n})\n```\n\n"
    )
    made, n = "", 0
    while len(made) < LONG_REPLY_BYTES:
        made += section.format(n=n)
        n += 1
    return made


WATCH = """() => {
    // Each block is made once: one that has another after it stays the very node it is.
    window.__remade = 0;
    const seen = new WeakSet();
    new MutationObserver((all) => {
        for (const each of all) {
            const block = each.target.closest?.(".markdown > div");
            if (!block) continue;
            if (seen.has(block)) window.__remade++;
            if (block.nextElementSibling?.nextElementSibling) seen.add(block);
        }
    }).observe(document.querySelector("[role=log]"), {childList: true, subtree: true, characterData: true});
}"""


def test_a_reply_of_200_kb_is_made_block_by_block(front: Front) -> None:
    session = new_session(front)
    page = with_socket(front, session)
    page.evaluate(WATCH)
    text = long_text()
    pieces = pieces_of(text, 200)
    # A frame takes long where all of it is there: what matters is how it begins, and how it goes on when it is long.
    stream(page, session, pieces, hurried=range(100, len(pieces) - 100))
    wait_for(page, "window.__streamed")
    parts = text.count("## Part")
    expect(replies(page).locator("h3")).to_have_count(parts)
    expect(replies(page).locator("table")).to_have_count(parts)
    expect(replies(page).locator("pre")).to_have_count(parts)
    expect(replies(page).locator("ul > li")).to_have_count(2 * parts)
    assert page.evaluate("window.__remade") == 0
    # Whoever reads the newest goes on reading the newest.
    assert page.get_by_role("log").evaluate("each => each.scrollHeight - each.scrollTop - each.clientHeight") < 100


def test_blocks_that_are_not_finished_are_shown_as_far_as_they_go(front: Front) -> None:
    session = new_session(front)
    page = with_socket(front, session)
    stream(page, session, ["Before.\n\n```py\nprint(", "1)\nprint(2", ")\n"])
    code = replies(page).locator("pre")
    expect(code).to_have_text("print(1)\nprint(2)\n")
    code.evaluate("each => { window.__code = each }")
    stream_on(page, session, "print(3)\n", at=len("Before.\n\n```py\nprint(1)\nprint(2)\n"))
    expect(code).to_contain_text("print(3)")
    assert code.evaluate("each => each === window.__code")  # added to, and not made anew
    stream_on(page, session, "```\n\n1. one\n2. two", at=len("Before.\n\n```py\nprint(1)\nprint(2)\nprint(3)\n"))
    expect(replies(page).locator("ol > li")).to_have_text(["one", "two"])
    expect(code).to_have_count(1)


def stream_on(page: Page, session: str, *texts: str, at: int) -> None:
    """Hand the page deltas one after the other, from an offset on. Nothing else reaches the page between them."""
    place = {"type": "delta", "session": session, "run": "r", "turn": 0, "attempt": 1, "kind": "text"}
    deltas: list[str] = []
    for text in texts:
        deltas.append(json.dumps({**place, "offset": at, "text": text}))
        at += len(text)
    page.evaluate(
        """(deltas) => deltas.forEach((data) =>
            window.__socket.dispatchEvent(new MessageEvent('message', {data})))""",
        deltas,
    )


def test_what_was_missed_of_a_reply_is_asked_for_once(front: Front) -> None:
    session = new_session(front)
    page = with_socket(front, session)
    page.evaluate(
        """() => {
            const send = window.__socket.send;
            window.__sent = [];
            window.__socket.send = function (said) {
                if (JSON.parse(said).type === "subscribe") window.__sent.push(said);
                send.call(this, said);
            };
        }"""
    )
    stream_on(page, session, *["0123456789"] * 3, at=500)
    wait_for(page, "window.__sent.length > 0")
    assert len(page.evaluate("window.__sent")) == 1
    expect(replies(page)).to_have_count(0)


def test_ten_thousand_lines_are_a_small_page(front: Front) -> None:
    kinds: list[dict[str, Any]] = [
        {"type": "user_message", "text": "question {n}"},
        {"type": "assistant_message", "text": "**answer** {n}, with `words`\n\n- and a list"},
    ]
    made = [{**kinds[n % 2], "text": kinds[n % 2]["text"].replace("{n}", str(n))} for n in range(10_000)]
    session = import_session(front, made)
    page = open_talk(front, session)
    expect(lines(page).get_by_text("answer 9999")).to_be_visible()
    articles = lines(page).locator("article")
    assert articles.count() < 200
    # To the top, as far as it goes.
    page.get_by_role("button", name="Find in this conversation").click()
    page.get_by_role("searchbox", name="Find in this conversation").fill("question 0")
    expect(page.get_by_role("search").get_by_role("status")).to_have_text("1 of 1")
    expect(lines(page).get_by_text("question 0", exact=True)).to_be_in_viewport()
    lines(page).evaluate("each => each.scrollTo(0, 0)")
    expect(lines(page).get_by_text("question 0", exact=True)).to_be_in_viewport()
    assert articles.count() < 300
    page.get_by_role("button", name="To the newest").click()
    expect(lines(page).get_by_text("answer 9999")).to_be_in_viewport()
    assert articles.count() < 300
    heap = page.context.new_cdp_session(page)
    heap.send("HeapProfiler.collectGarbage")
    print(f"heap with 10,000 lines: {heap.send('Runtime.getHeapUsage')['usedSize'] / 1e6:.1f} MB")


def test_what_one_reads_stays_where_it_is_while_earlier_lines_come(front: Front) -> None:
    words = [f"line {n} " + "and more " * (n % 60) for n in range(1_000)]
    session = import_session(front, [{"type": "user_message", "text": each} for each in words])
    page = open_talk(front, session)
    box = lines(page)
    expect(box.get_by_text("line 999", exact=False).last).to_be_visible()
    for _ in range(12):
        read = box.evaluate(
            """each => {
                each.scrollBy(0, -700);
                const top = each.getBoundingClientRect().top;
                const seen = [...each.querySelectorAll("article")].find(one => one.getBoundingClientRect().top >= top);
                return [seen?.id, seen?.getBoundingClientRect().top];
            }"""
        )
        for _frame in range(10):
            page.evaluate("() => new Promise(requestAnimationFrame)")
        if read[0]:
            now = page.evaluate("id => document.getElementById(id)?.getBoundingClientRect().top", read[0])
            assert abs(now - read[1]) < 3, f"{read[0]} moved from {read[1]} to {now}"
