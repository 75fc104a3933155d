"""Streamed replies: nothing is lost or repeated when the server, the connection or the window fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, Route, WebSocketRoute, expect
from web.browser import WebApp
from web.chat_actions import (
    composer,
    create_session,
    import_session,
    message_log,
    open_chat,
    own_messages,
    replies,
    stored_replies,
    type_message,
    wait_until_idle,
)

from retinue.testing.wait_conditions import wait_until_sync

COUNT_TO = 40
LONG_REPLY_BYTES = 200_000


def parse_numbers(text: str) -> list[int]:
    return [int(each) for each in text.replace(",", " ").replace(".", " ").split() if each.isdigit()]


def expect_numbers(page: Page, to: int) -> None:
    """Each number once, in order."""
    expect(replies(page)).to_have_count(1)
    expect(replies(page)).to_contain_text("Done.")
    expect(page.get_by_role("button", name="Stop")).to_have_count(0)
    assert parse_numbers(replies(page).inner_text())[-to:] == list(range(1, to + 1))


def test_a_streamed_reply_in_the_web_app_loses_and_repeats_nothing_if_the_server_is_killed(app: WebApp) -> None:
    session = create_session(app)
    page, other = open_chat(app, session), open_chat(app, session)
    type_message(page, f"count to {COUNT_TO}")
    for window in (page, other):
        expect(replies(window)).to_contain_text("20 21")
    app.server.process.kill()
    expect(page.get_by_text("The server does not respond.")).to_be_visible()
    app.server.process.open(again_at=app.server.address)
    for window in (page, other):
        expect_numbers(window, COUNT_TO)
        expect(own_messages(window, f"count to {COUNT_TO}")).to_have_count(1)
        window.reload()
        expect_numbers(window, COUNT_TO)
    assert [parse_numbers(each)[-COUNT_TO:] for each in stored_replies(app, session)] == [list(range(1, COUNT_TO + 1))]


@pytest.mark.parametrize("count", [8, pytest.param(20, marks=pytest.mark.slow)])
def test_all_tabs_of_a_person_show_the_same_stream(app: WebApp, count: int) -> None:
    session = create_session(app)
    first = open_chat(app, session)
    tabs = [first, *(app.open_tab(first.context, f"/chat/{session}") for _ in range(count - 1))]
    type_message(first, "count to 25")
    for tab in tabs:
        expect(replies(tab)).to_contain_text("24 25")
        expect(own_messages(tab, "count to 25")).to_have_count(1)
    wait_until_idle(app, session)
    [stored] = stored_replies(app, session)
    for tab in tabs:
        expect(tab.get_by_role("button", name="Stop")).to_have_count(0)
        assert parse_numbers(replies(tab).inner_text()) == parse_numbers(stored)


def test_a_slow_browser_connection_only_delays_a_streamed_reply(app: WebApp) -> None:
    session = create_session(app)
    page = open_chat(app, session)
    connection = page.context.new_cdp_session(page)
    slow = {"offline": False, "latency": 400, "downloadThroughput": 6_000, "uploadThroughput": 6_000}
    connection.send("Network.emulateNetworkConditions", slow)
    type_message(page, "count to 20")
    expect(own_messages(page, "count to 20")).to_have_count(1)
    expect_numbers(page, 20)
    expect(own_messages(page, "count to 20")).to_have_count(1)


def test_the_web_app_ignores_streamed_deltas_that_arrive_after_their_record(app: WebApp) -> None:
    session = create_session(app)
    page = open_chat(app, session)
    held: list[Callable[[], None]] = []
    holds = True

    def route_socket(connection: WebSocketRoute) -> None:
        def forward(frame: str | bytes) -> None:
            message = json.loads(frame)
            is_reply = message["type"] == "delta" or message.get("record", {}).get("kind") == "assistant"
            if holds and (is_reply or message.get("event") == "run.ended"):
                held.append(lambda: connection.send(frame))
            else:
                connection.send(frame)

        connection.connect_to_server().on_message(forward)

    page.route_web_socket("**/api/live", route_socket)
    page.reload()
    expect(composer(page)).to_be_visible()

    def delay_transcript(route: Route) -> None:
        """Delay the request for new records until the reply is complete."""
        if "after" in json.loads(route.request.post_data or "{}"):
            wait_for_reply(app, session)
        route.continue_()

    page.route("**/api/session/transcript", delay_transcript)
    type_message(page, "echo late")
    expect(replies(page)).to_have_text(["late"])
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    assert held
    holds = False
    for release in held:
        release()
    expect(page.get_by_role("button", name="Stop")).to_have_count(0)
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert replies(page).count() == 1


def wait_for_reply(app: WebApp, session: str) -> None:
    wait_until_sync(lambda: stored_replies(app, session), "a reply is stored")
    wait_until_idle(app, session)


# --- deltas written by the test ---


def wait_for_condition(page: Page, condition: str) -> None:
    """Playwright's `wait_for_function` evaluates a string, which the content security policy does not allow."""
    page.evaluate(f"""async () => {{
        while (!({condition})) await new Promise(requestAnimationFrame);
    }}""")


def stream_deltas(page: Page, session: str, pieces: list[str], kind: str = "text", fast: range = range(0)) -> None:
    """Send deltas to the page as the server would, a few per frame, and measure the frames. The pieces in `fast` are
    sent many per frame."""
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
        [session, pieces, kind, fast.start, fast.stop],
    )


def open_chat_with_socket(app: WebApp, session: str) -> Page:
    """Open a conversation whose WebSocket the test can use."""
    page = open_chat(app, session)
    page.add_init_script(
        """window.WebSocket = class extends WebSocket {
            constructor(...all) { super(...all); window.__socket = this; }
        };"""
    )
    page.reload()
    expect(composer(page)).to_be_visible()
    wait_for_condition(page, "window.__socket?.readyState === 1")
    return page


def split_text(text: str, length: int = 40) -> list[str]:
    return [text[at : at + length] for at in range(0, len(text), length)]


def build_long_text() -> str:
    section = (
        "## Part {n}\n\nWords with **weight**, `code` and a [place](https://example.com/{n}) that go on.\n\n"
        "| name | state |\n|---|---|\n| rake {n} | good |\n\n- one\n- two\n\n```python\nprint({n})\n```\n\n"
    )
    made, n = "", 0
    while len(made) < LONG_REPLY_BYTES:
        made += section.format(n=n)
        n += 1
    return made


COUNT_REBUILT_BLOCKS = """() => {
    // Each block is rendered once: a block with two blocks after it keeps its node.
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


def test_a_streamed_reply_of_200_kb_is_rendered_block_by_block_in_the_web_app(app: WebApp) -> None:
    session = create_session(app)
    page = open_chat_with_socket(app, session)
    page.evaluate(COUNT_REBUILT_BLOCKS)
    text = build_long_text()
    pieces = split_text(text, 200)
    # A frame takes long with the whole text, so only the start and the end are streamed slowly.
    stream_deltas(page, session, pieces, fast=range(100, len(pieces) - 100))
    wait_for_condition(page, "window.__streamed")
    parts = text.count("## Part")
    expect(replies(page).locator("h3")).to_have_count(parts)
    expect(replies(page).locator("table")).to_have_count(parts)
    expect(replies(page).locator("pre")).to_have_count(parts)
    expect(replies(page).locator("ul > li")).to_have_count(2 * parts)
    assert page.evaluate("window.__remade") == 0
    # The log stays scrolled to the end.
    assert page.get_by_role("log").evaluate("each => each.scrollHeight - each.scrollTop - each.clientHeight") < 100


def test_unfinished_blocks_of_a_streamed_reply_are_rendered_as_far_as_received(app: WebApp) -> None:
    session = create_session(app)
    page = open_chat_with_socket(app, session)
    stream_deltas(page, session, ["Before.\n\n```py\nprint(", "1)\nprint(2", ")\n"])
    code = replies(page).locator("pre")
    expect(code).to_have_text("print(1)\nprint(2)\n")
    code.evaluate("each => { window.__code = each }")
    stream_texts_at(page, session, "print(3)\n", at=len("Before.\n\n```py\nprint(1)\nprint(2)\n"))
    expect(code).to_contain_text("print(3)")
    assert code.evaluate("each => each === window.__code")  # extended, not replaced
    stream_texts_at(page, session, "```\n\n1. one\n2. two", at=len("Before.\n\n```py\nprint(1)\nprint(2)\nprint(3)\n"))
    expect(replies(page).locator("ol > li")).to_have_text(["one", "two"])
    expect(code).to_have_count(1)


def stream_texts_at(page: Page, session: str, *texts: str, at: int) -> None:
    """Send deltas to the page one after the other, from an offset on, with nothing between them."""
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


def test_the_web_app_requests_missed_deltas_of_a_streamed_reply_once(app: WebApp) -> None:
    session = create_session(app)
    page = open_chat_with_socket(app, session)
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
    stream_texts_at(page, session, *["0123456789"] * 3, at=500)
    wait_for_condition(page, "window.__sent.length > 0")
    assert len(page.evaluate("window.__sent")) == 1
    expect(replies(page)).to_have_count(0)


def test_the_chat_renders_few_elements_for_ten_thousand_records(app: WebApp) -> None:
    kinds: list[dict[str, Any]] = [
        {"type": "user_message", "text": "question {n}"},
        {"type": "assistant_message", "text": "**answer** {n}, with `words`\n\n- and a list"},
    ]
    made = [{**kinds[n % 2], "text": kinds[n % 2]["text"].replace("{n}", str(n))} for n in range(10_000)]
    session = import_session(app, made)
    page = open_chat(app, session)
    expect(message_log(page).get_by_text("answer 9999")).to_be_visible()
    articles = message_log(page).locator("article")
    assert articles.count() < 200
    # Find a record at the top.
    page.get_by_role("button", name="Find in conversation").click()
    page.get_by_role("searchbox", name="Find in conversation").fill("question 0")
    expect(page.get_by_role("search").get_by_role("status")).to_have_text("1 of 1")
    expect(message_log(page).get_by_text("question 0", exact=True)).to_be_in_viewport()
    message_log(page).evaluate("each => each.scrollTo(0, 0)")
    expect(message_log(page).get_by_text("question 0", exact=True)).to_be_in_viewport()
    assert articles.count() < 300
    page.get_by_role("button", name="Show newest").click()
    expect(message_log(page).get_by_text("answer 9999")).to_be_in_viewport()
    assert articles.count() < 300
    heap = page.context.new_cdp_session(page)
    heap.send("HeapProfiler.collectGarbage")
    print(f"heap with 10,000 lines: {heap.send('Runtime.getHeapUsage')['usedSize'] / 1e6:.1f} MB")


def test_the_scroll_position_is_kept_while_earlier_messages_load(app: WebApp) -> None:
    text = [f"line {n} " + "and more " * (n % 60) for n in range(1_000)]
    session = import_session(app, [{"type": "user_message", "text": each} for each in text])
    page = open_chat(app, session)
    box = message_log(page)
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
