"""The Activity screen: the message graph, runs and queue, explanations and failed messages."""

from __future__ import annotations

import re
from typing import Any

from api.tcp_server import ApiClient
from playwright.sync_api import Locator, Page, expect
from web.browser import WebApp, find_violations, scrolls_sideways
from web.chat_actions import hold_first_response, wait_in_page

HOSTILE = '<img src=x onerror="alert(1)"> [click](javascript:alert(1)) \u202eallow'


def start_session(server: ApiClient, agent: str, text: str, name: str | None = None) -> tuple[str, str]:
    """Start a new conversation with this message; the ids of the session and the envelope."""
    session = server.do("session.create", agent=agent, name=name)["sessionId"]
    return session, server.do("envelope.send", to=f"agent:{agent}", session=session, text=text)["envelope"]


def wait_for_outcome(server: ApiClient, envelope: str) -> dict[str, Any]:
    with server.websocket(follow=[{"session": "*"}]) as websocket:
        while "outcome" not in (shown := server.do("envelope.show", id=envelope)):
            websocket.receive_frame()
    return shown


def region(page: Page, name: str) -> Locator:
    return page.get_by_role("region", name=name, exact=True)


def lane(page: Page, name: str) -> Locator:
    return region(page, "Runs and queue").locator(".lane").filter(has_text=name)


def test_a_message_moves_through_the_graph_of_the_activity_screen_and_its_outcome_is_listed(app: WebApp) -> None:
    page = app.open_window("/activity")
    graph = page.get_by_role("img", name="Messages between")
    for node in ("person:owner", "agent:guide", "agent:clerk"):
        expect(graph.locator(f"[data-node='{node}']")).to_be_visible()
    position = graph.locator("[data-node='agent:guide'] circle").first.get_attribute("cx")
    page.evaluate(
        """() => {
            const seen = (node) => node.nodeName === 'circle' && node.classList.contains('dot');
            let dots = 0;
            new MutationObserver((all) => {
                dots += all.flatMap((each) => [...each.addedNodes]).filter(seen).length;
                document.body.dataset.dots = dots > 1 ? 'several' : 'few';
            }).observe(document.querySelector('svg[role=img]'), { childList: true, subtree: true });
        }"""
    )
    _, envelope = start_session(app.server, "guide", "echo good day")
    recent = region(page, "Recent messages")
    expect(recent.get_by_text("echo good day")).to_be_visible()
    expect(graph.locator("[data-edge='person:owner agent:guide']")).to_have_count(1)
    expect(graph.locator("[data-edge='agent:guide person:owner']")).to_have_count(1)
    row = recent.get_by_role("listitem").filter(has_text="echo good day")
    expect(row.get_by_text("answered")).to_be_visible()
    assert wait_for_outcome(app.server, envelope)["outcome"] == "answered"
    expect(page.locator("body")).to_have_attribute("data-dots", "several")
    expect(graph.locator(".dot")).to_have_count(0)
    assert graph.locator("[data-node='agent:guide'] circle").first.get_attribute("cx") == position


def test_with_reduced_motion_the_activity_graph_highlights_the_edge_instead(app: WebApp) -> None:
    page = app.open_window("/activity", reduce_motion=True)
    graph = page.get_by_role("img", name="Messages between")
    expect(graph).to_be_visible()
    start_session(app.server, "main", "echo calm")
    expect(graph.locator("[data-edge='person:owner agent:main']")).to_have_count(1)
    expect(graph.locator(".lit").first).to_be_attached()
    expect(graph.locator(".dot")).to_have_count(0)


def test_earlier_messages_are_listed_when_the_screen_opens(app: WebApp) -> None:
    _, envelope = start_session(app.server, "main", "echo before you came")
    wait_for_outcome(app.server, envelope)
    page = app.open_window("/activity")
    row = region(page, "Recent messages").get_by_role("listitem").filter(has_text="echo before you came").first
    expect(row.get_by_text("answered")).to_be_visible()
    expect(page.locator("[data-edge='person:owner agent:main']")).to_have_count(1)


def test_the_paused_message_list_of_the_activity_screen_does_not_change_until_it_is_resumed(app: WebApp) -> None:
    page = app.open_window("/activity")
    expect(page.get_by_role("img", name="Messages between")).to_be_visible()
    page.keyboard.press("p")
    start_session(app.server, "guide", "echo while it rests")
    show_new = page.get_by_role("button", name=re.compile(r"^Show \d+ new messages?$"))
    expect(show_new).to_be_visible()
    expect(page.get_by_text("echo while it rests")).to_have_count(0)
    show_new.click()
    expect(page.get_by_text("echo while it rests").first).to_be_visible()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()


def test_the_activity_screen_shows_why_a_queued_message_waits_and_can_cancel_it(app: WebApp) -> None:
    session, _ = start_session(app.server, "guide", "slow 300", "The slow one")
    second = app.server.do(
        "envelope.send", to="agent:guide", session=session, text=f"echo {HOSTILE}", when_busy="collect"
    )["envelope"]
    third = app.server.do("envelope.send", to="agent:guide", session=session, text="echo third", when_busy="collect")[
        "envelope"
    ]
    page, other = app.open_window("/activity"), app.open_window("/activity", size="phone", theme="dark")
    for window in (page, other):
        slow = lane(window, "The slow one")
        expect(slow.get_by_text("waiting for the model, turn 1")).to_be_visible()
        expect(slow.get_by_text("waiting for the current run")).to_have_count(2)
        expect(slow.get_by_text("<img src=x")).to_be_visible()
        expect(window.get_by_role("img", name="Working: guide")).to_be_visible()
    expect(page.locator("main img[src=x]")).to_have_count(0)
    expect(page.locator("main a[href^=javascript]")).to_have_count(0)
    assert find_violations(page) == [] and find_violations(other) == []
    assert not scrolls_sideways(other)

    lane(page, "The slow one").get_by_role("button", name="Cancel “echo third”").click()
    expect(lane(page, "The slow one").get_by_text("echo third")).to_have_count(0)
    expect(lane(other, "The slow one").get_by_text("echo third")).to_have_count(0)
    assert app.server.do("envelope.show", id=third)["outcome"] == "cancelled"

    lane(page, "The slow one").get_by_role("button", name="Stop the run of guide").click()
    expect(lane(page, "The slow one")).to_have_count(0)
    assert wait_for_outcome(app.server, second)["outcome"] == "answered"
    expect(lane(other, "The slow one")).to_have_count(0)


def test_the_activity_screen_shows_why_a_run_waits_for_approval_and_links_to_the_approval(app: WebApp) -> None:
    session, _ = start_session(app.server, "clerk", "ask read SOUL.md", "A question")
    page = app.open_window("/activity")
    waiting = lane(page, "A question")
    expect(waiting.get_by_text("waiting for a person")).to_be_visible()
    expect(waiting.get_by_text("requires approval for 'read'")).to_be_visible()
    expect(page.locator("[data-node='agent:clerk'].suspended .ring")).to_be_visible()
    waiting.get_by_role("link", name="Open approval").click()
    expect(page).to_have_url(f"{app.server.address}/approvals")
    app.server.do("session.stop", session=session)


def test_the_activity_screen_explains_a_message_with_links_to_its_run(app: WebApp) -> None:
    session, envelope = start_session(app.server, "main", "echo tell me")
    wait_for_outcome(app.server, envelope)
    page = app.open_window("/activity")
    row = region(page, "Recent messages").get_by_role("listitem").filter(has_text="echo tell me").first
    row.get_by_role("button", name="Explain: message from owner to main").click()
    dialog = page.get_by_role("dialog", name="Explain")
    expect(dialog.get_by_text("Outcome: answered").first).to_be_visible()
    events = app.server.do("server.why", id=envelope)["lines"]
    expect(dialog.get_by_role("list", name="Events").get_by_role("listitem")).to_have_count(len(events) - 1)
    run = app.server.do("run.list", session=session, limit=1)["runs"][0]["id"][:8]
    dialog.get_by_role("button", name=run).first.click()
    expect(dialog.get_by_text(f"run {run} of main in session")).to_be_visible()
    dialog.get_by_role("button", name="Back").click()
    expect(dialog.get_by_label("ID", exact=True)).to_have_value(envelope[:8])
    assert find_violations(page) == []


def test_a_keyboard_shortcut_opens_the_explanation_dialog_for_an_id_on_any_screen(app: WebApp) -> None:
    _, envelope = start_session(app.server, "main", "echo from anywhere")
    wait_for_outcome(app.server, envelope)
    page = app.open_window("/runs")
    expect(page.get_by_role("heading", name="Runs")).to_be_visible()
    page.keyboard.press("w")
    dialog = page.get_by_role("dialog", name="Explain")
    dialog.get_by_label("ID", exact=True).fill("00000000")
    page.keyboard.press("Enter")
    expect(dialog.get_by_role("alert")).to_contain_text("Try:")
    app.console_errors.clear()  # the refused request was expected
    dialog.get_by_label("ID", exact=True).fill(envelope[:8])
    page.keyboard.press("Enter")
    expect(dialog.get_by_text("Outcome: answered").first).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)


def test_the_failed_messages_screen_shows_the_reason_of_a_failed_message_and_can_retry_it(app: WebApp) -> None:
    _, envelope = start_session(app.server, "main", "fail now")
    assert wait_for_outcome(app.server, envelope)["outcome"] == "dead"
    page, other = app.open_window("/activity"), app.open_window("/activity/failed", size="phone")
    page.get_by_role("link", name="Failed messages").click()
    expect(page.get_by_text("the guide failed, as you asked").first).to_be_visible()
    page.get_by_role("button", name="Retry: fail now").click()
    for window in (page, other):
        expect(window.get_by_text("retried")).to_be_visible()
        # Only for the retry, which failed too.
        expect(window.get_by_role("button", name="Retry: fail now")).to_have_count(1)
    [retried, failed] = [each for each in app.server.do("envelope.dead")["dead_letters"] if each["text"] == "fail now"]
    assert (failed["id"], failed["retry"]) == (envelope, retried["id"])
    assert find_violations(page) == [] and not scrolls_sideways(other)


def test_a_late_response_does_not_hide_a_failed_message_on_the_failed_messages_screen(app: WebApp) -> None:
    page = app.open_window("/activity")
    older = hold_first_response(page, "**/api/envelope/dead")
    with page.expect_request("**/api/envelope/dead"):
        page.get_by_role("link", name="Failed messages").click()
    wait_in_page(page, lambda: bool(older.held))
    before = len(older.json()["dead_letters"])
    _, envelope = start_session(app.server, "main", "fail")
    wait_for_outcome(app.server, envelope)
    failed_messages = page.get_by_role("region", name="Failed messages").get_by_role("listitem")
    expect(failed_messages).to_have_count(before + 1)
    older.release()
    assert failed_messages.count() == before + 1


def test_thirty_nodes_of_the_activity_graph_do_not_overlap_on_a_laptop_or_a_phone(app: WebApp) -> None:
    for number in range(27):
        app.server.do("agent.register", name=f"agent-number-{number}", model="guide")
    for size in ("laptop", "phone"):
        page = app.open_window("/activity", size=size)  # pyright: ignore[reportArgumentType]
        expect(page.locator("[data-node]")).to_have_count(31)
        centers = page.eval_on_selector_all(
            "[data-node] > circle:first-of-type, [data-node] > rect",
            """all => all.map(each => {
                const box = each.getBoundingClientRect();
                return [box.x + box.width / 2, box.y + box.height / 2, box.width];
            })""",
        )
        nearest = min(
            ((ax - bx) ** 2 + (ay - by) ** 2) ** 0.5
            for i, (ax, ay, _) in enumerate(centers)
            for bx, by, _ in centers[i + 1 :]
        )
        assert nearest >= centers[0][2], "nodes overlap"
        assert not scrolls_sideways(page)
