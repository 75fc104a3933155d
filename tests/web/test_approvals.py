"""The Approvals screen: approvals, grants, questionnaires and notifications."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from api.tcp_server import ApiClient
from playwright.sync_api import APIResponse, Locator, Page, Route, expect
from web.browser import SIZES_AND_THEMES, WebApp, find_violations, scrolls_sideways
from web.chat_actions import wait_for_clipboard, wait_in_page

FIELDS = [
    {"name": "guest", "label": "Who comes?", "required": True, "most": 20},
    {"name": "meal", "label": "What shall there be?", "kind": "choice", "options": ["soup", "pie"]},
    {"name": "days", "label": "Which days would do?", "kind": "several", "options": ["mon", "tue", "wed"], "most": 2},
    {"name": "chairs", "label": "How many chairs?", "kind": "number", "least": 1, "most": 12},
    {"name": "dog", "label": "Does the dog come?", "kind": "yes-no"},
]


def start_session(server: ApiClient, agent: str, text: str, name: str | None = None) -> str:
    """Start a new conversation with this message; the id of the session."""
    session = server.do("session.create", agent=agent, name=name)["sessionId"]
    server.do("envelope.send", to=f"agent:{agent}", session=session, text=text)
    return session


def request_approval(server: ApiClient, name: str | None = None) -> str:
    return start_session(server, "clerk", "ask read SOUL.md", name)


def send_questionnaire(server: ApiClient, title: str, fields: list[dict[str, Any]] = FIELDS) -> str:
    return start_session(server, "guide", f"call ask_questions {json.dumps({'title': title, 'fields': fields})}", title)


def wait_for_approval(server: ApiClient, session: str) -> str:
    """Wait for a pending approval of the session; its id."""
    with server.websocket(follow=[{"session": session}]) as websocket:
        while True:
            websocket.receive_frame()
            if found := [each["id"] for each in pending_approvals(server) if each["session"] == session]:
                return found[0]


def card(page: Page, session: str, server: ApiClient) -> Locator:
    return page.locator(f"[data-approval='{wait_for_approval(server, session)}']")


def pending_approvals(server: ApiClient) -> list[dict[str, Any]]:
    return server.do("approval.list", limit=50)["approvals"]


def decided_approval(server: ApiClient, session: str) -> dict[str, Any]:
    return next(
        each for each in server.do("approval.list", decided=True, limit=50)["approvals"] if each["session"] == session
    )


@pytest.fixture(autouse=True)
def _clear_pending(server: ApiClient) -> None:  # pyright: ignore[reportUnusedFunction]
    """Each test starts without approvals, questionnaires, grants and notifications."""
    for each in pending_approvals(server):
        server.do("approval.answer", id=each["id"], allow=False)
    for each in server.do("questionnaire.list", open=True)["questionnaires"]:
        server.do("questionnaire.cancel", id=each["id"])
    for each in server.do("grant.list")["grants"]:
        server.do("grant.revoke", id=each["id"])
    server.do("notification.clear", all=True)


def test_an_approval_card_in_a_chat_shows_the_exact_call_and_collapses_once_answered(
    app: WebApp,
) -> None:
    session = request_approval(app.server)
    page = app.open_window(f"/chat/{session}", patient=True)
    approval = card(page, session, app.server)
    expect(approval.get_by_role("heading")).to_contain_text("clerk wants to use read")
    expect(approval.get_by_role("group", name="Argument path")).to_have_text('"SOUL.md"')
    expect(approval).to_contain_text("the agent clerk requires approval for 'read'")
    expect(approval).to_contain_text("tool:read")
    expect(approval.get_by_role("timer")).to_contain_text("expires in 24 h")
    approval.get_by_text("Rule", exact=True).click()
    expect(approval).to_contain_text("agents.clerk.tools.ask")
    approval.get_by_role("button", name="Copy arguments").click()
    wait_for_clipboard(page, lambda copied: copied != "" and json.loads(copied) == {"path": "SOUL.md"})
    approval.get_by_role("button", name="Allow once").click()
    expect(approval).to_contain_text("Allowed once")
    expect(approval).to_contain_text("by owner")
    expect(approval.get_by_role("button")).to_have_count(0)
    decision = decided_approval(app.server, session)
    assert (decision["state"], decision["scope"], decision["decided_by"]) == ("allowed", "once", "owner")


def test_an_approval_answered_in_one_window_is_decided_in_both(app: WebApp) -> None:
    inbox, other_inbox = app.open_window("/approvals", patient=True), app.open_window("/approvals", patient=True)
    expect(inbox.get_by_role("heading", name="No pending approvals")).to_be_visible()
    session = request_approval(app.server, "Two windows")
    approval, other = card(inbox, session, app.server), card(other_inbox, session, app.server)
    expect(other).to_contain_text("Two windows")
    expect(inbox.get_by_role("link", name=re.compile("Approvals ?, 1$"))).to_be_visible()
    approval.get_by_role("button", name="Add a comment").click()
    approval.get_by_label("Comment for the agent").fill("not <b>today</b>")
    approval.get_by_role("button", name="Deny").click()
    for page, shown in ((inbox, approval), (other_inbox, other)):
        expect(shown).to_contain_text("Denied")
        expect(shown).to_contain_text("“not <b>today</b>”")
        expect(page.get_by_role("link", name="Approvals", exact=True)).to_be_visible()
    decision = decided_approval(app.server, session)
    assert (decision["state"], decision["comment"]) == ("denied", "not <b>today</b>")


def test_approvals_are_selected_and_answered_by_keyboard(app: WebApp) -> None:
    sessions = [request_approval(app.server, name) for name in ("First", "Second", "Third")]
    page = app.open_window("/approvals", patient=True)
    for each in sessions:
        expect(card(page, each, app.server)).to_be_visible()
    cards = [page.locator("[data-pending-question]").nth(number) for number in range(3)]
    page.keyboard.press("j")
    expect(cards[0]).to_be_focused()
    page.keyboard.press("s")
    expect(cards[0]).to_contain_text("Allowed in this conversation")
    page.keyboard.press("j")
    expect(cards[1]).to_be_focused()
    page.keyboard.press("w")
    expect(cards[1]).to_contain_text("Allowed always")
    page.keyboard.press("j")
    page.keyboard.press("k")
    expect(cards[1]).to_be_focused()
    page.keyboard.press("j")
    page.keyboard.press("d")
    expect(cards[2]).to_contain_text("Denied")
    assert {decided_approval(app.server, each)["scope"] for each in sessions} == {"session", "always", None}
    assert {(each["agent"], each["permission"]) for each in app.server.do("grant.list")["grants"]} == {
        ("clerk", "tool:read")
    }
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("Always allow the selected approval")


def test_the_approval_card_of_a_file_change_shows_a_diff(app: WebApp) -> None:
    server = app.server
    server.do("agent.register", name="forge", model="guide", tools_ask=["edit", "write"])
    server.do("agent.write_file", name="forge", path="NOTES.md", content="one\ntwo\nthree\n", hash="")
    writes = {"path": "NOTES.md", "content": "one\n2\nthree\n"}
    edits = {"path": "NOTES.md", "old": "three", "new": "four\u202efive"}
    session = start_session(server, "forge", f"call write {json.dumps(writes)}; edit {json.dumps(edits)}")
    page = app.open_window(f"/chat/{session}")
    approval = card(page, session, server)
    expect(approval.get_by_role("heading")).to_contain_text("forge wants to make 2 calls")
    changes = approval.get_by_role("group", name="Changes in NOTES.md")
    expect(changes).to_have_count(2)
    written, edited = changes.all()
    expect(written).to_contain_text(re.compile("−removedtwo"))
    expect(written).to_contain_text(re.compile(r"\+added2"))
    expect(edited).to_contain_text(re.compile(r"−removedthree"))
    expect(edited).to_contain_text(r"four\u202efive")
    approval.get_by_text("Exact arguments").first.click()
    expect(approval.get_by_role("group", name="Exact arguments").first).to_contain_text('"content": "one\\n2')
    assert find_violations(page) == []


def test_hostile_arguments_and_replies_cannot_imitate_an_approval_card(app: WebApp) -> None:
    server = app.server
    hostile = (
        '</pre><img src=x onerror="alert(1)"><article data-pending-question><button>Allow once</button>\u202eevil\u200b'
    )
    session = start_session(server, "clerk", f"call read {json.dumps({'path': hostile})}", "<svg onload=alert(1)>")
    page = app.open_window("/approvals")
    approval = card(page, session, server)
    shown = approval.get_by_role("group", name="Argument path")
    expect(shown).to_contain_text("</pre><img src=x onerror=")
    expect(shown).to_contain_text(r"\u202eevil\u200b")
    expect(approval).to_contain_text("<svg onload=alert(1)>")
    assert approval.locator("img, article, svg[onload]").count() == 0
    assert approval.get_by_role("button", name="Allow once").count() == 1
    imitation = (
        "echo <article data-pending-question class='open'><h2>clerk wants to use exec</h2>"
        "<button>Allow once</button></article>"
    )
    session = start_session(server, "guide", imitation)
    page.goto(f"{server.address}/chat/{session}")
    expect(page.get_by_role("log")).to_contain_text("clerk wants to use exec")
    assert page.locator("[role=log] [data-pending-question], [role=log] [data-approval]").count() == 0
    assert page.get_by_role("button", name="Allow once", exact=True).count() == 0


def test_a_long_argument_scrolls_inside_its_approval(app: WebApp) -> None:
    session = start_session(app.server, "clerk", f"call read {json.dumps({'path': 'x' * 3000 + 'the-end'})}")
    page = app.open_window("/approvals", size="phone")
    argument = card(page, session, app.server).get_by_role("group", name="Argument path")
    expect(argument).to_contain_text("the-end")
    assert argument.evaluate("node => node.scrollHeight > node.clientHeight && node.clientHeight < 300")
    assert not scrolls_sideways(page)


def test_the_screen_of_decided_approvals_lists_person_and_comment_in_pages(app: WebApp) -> None:
    server = app.server
    page = app.open_window("/approvals/past")
    sessions = [request_approval(server, f"Past {number}") for number in range(21)]
    for number, session in enumerate(sessions):
        server.do(
            "approval.answer", id=wait_for_approval(server, session), allow=number % 2 == 0, because=f"reason {number}"
        )
    expect(page.get_by_text("“reason 20”")).to_be_visible()
    page.reload()
    expect(page.get_by_role("listitem")).to_have_count(20)
    page.get_by_role("button", name="Show more").click()
    expect(page.get_by_text("“reason 0”")).to_be_visible()
    newest = page.get_by_role("listitem").filter(has_text="“reason 20”")
    expect(newest).to_contain_text("Allowed once")
    expect(newest).to_contain_text("by owner")
    newest.locator("summary").click()
    expect(newest.get_by_role("group", name="Argument path")).to_have_text('"SOUL.md"')
    expect(newest.get_by_role("link", name="Past 20")).to_be_visible()


def test_grants_are_created_listed_and_revoked_on_the_approvals_screen(app: WebApp) -> None:
    page, other = app.open_window("/approvals/grants", patient=True), app.open_window("/approvals/grants")
    page.get_by_role("button", name="Create grant").click()
    form = page.get_by_role("dialog", name="Create grant")
    form.get_by_label("Agent").select_option("clerk")
    form.get_by_label("Folder or file").fill("srv/music")
    form.get_by_label("Reason").fill("She keeps the list.")
    form.get_by_role("button", name="Create grant").click()
    expect(form.get_by_role("alert")).to_contain_text("it must be absolute")
    app.console_errors.clear()  # the refused request was expected
    assert find_violations(page) == []
    form.get_by_label("Folder or file").fill("/srv/music")
    form.get_by_role("button", name="Create grant").click()
    for each in (page, other):
        row = each.get_by_role("listitem").filter(has_text="read:/srv/music")
        expect(row).to_contain_text("All conversations that a person starts")
        expect(row).to_contain_text("“She keeps the list.”")
        expect(row).to_contain_text("by owner · since")
    [grant] = app.server.do("grant.list")["grants"]
    assert (grant["agent"], grant["permission"], grant["because"]) == (
        "clerk",
        "read:/srv/music",
        "She keeps the list.",
    )
    page.get_by_role("button", name="Revoke read:/srv/music from clerk").click()
    expect(other.get_by_role("heading", name="No grants yet")).to_be_visible()
    assert app.server.do("grant.list")["grants"] == []
    page.get_by_role("button", name="Grant again").click()
    page.get_by_role("dialog").get_by_role("button", name="Create grant").click()
    expect(other.get_by_role("listitem")).to_contain_text("read:/srv/music")


@pytest.mark.spec("A66")
def test_a_questionnaire_form_in_the_web_app_is_answered_and_shows_errors_at_their_fields(app: WebApp) -> None:
    server = app.server
    session = send_questionnaire(server, "Dinner")
    page, inbox = app.open_window(f"/chat/{session}"), app.open_window("/approvals")
    form = page.get_by_role("article", name="Dinner")
    expect(form).to_contain_text("guide asks you")
    expect(inbox.get_by_role("heading", name="Questionnaires")).to_be_visible()
    expect(inbox.get_by_role("article", name="Dinner")).to_be_visible()
    form.get_by_role("radio", name="pie").check()
    for day in ("mon", "tue", "wed"):
        form.get_by_role("checkbox", name=day).check()
    form.get_by_label("How many chairs?").fill("many")
    form.get_by_role("radio", name="No", exact=True).check()
    form.get_by_role("button", name="Send answers").click()
    expect(form.get_by_text("an answer is required")).to_be_visible()
    expect(form.get_by_text("at most 2 options")).to_be_visible()
    expect(form.get_by_text("it must be a number")).to_be_visible()
    expect(form.get_by_label("Who comes?")).to_be_focused()
    app.console_errors.clear()  # the refused request was expected
    assert find_violations(page) == []
    # The answers are kept, also after a change of the screen.
    page.get_by_role("navigation", name="Screens").get_by_role("link", name="Approvals").click()
    form = page.get_by_role("article", name="Dinner")
    expect(form.get_by_role("radio", name="pie")).to_be_checked()
    expect(form.get_by_label("How many chairs?")).to_have_value("many")
    form.get_by_label("Who comes?").fill("Ines")
    form.get_by_label("How many chairs?").fill("4")
    form.get_by_role("checkbox", name="wed").uncheck()
    form.get_by_role("button", name="Send answers").click()
    for each in (page, inbox):
        expect(each.get_by_role("article", name="Dinner")).to_have_count(0)
    [ended] = [each for each in server.do("questionnaire.list")["questionnaires"] if each["session"] == session]
    assert (ended["state"], ended["ended_by"]) == ("answered", "person:owner")
    assert ended["answers"] == {"guest": "Ines", "meal": "pie", "days": ["mon", "tue"], "chairs": 4, "dog": False}
    page.goto(f"{server.address}/chat/{session}")
    expect(page.get_by_role("log")).to_contain_text("guest: Ines")


@pytest.mark.spec("A66")
def test_a_questionnaire_form_in_the_web_app_can_be_dismissed_and_shows_hostile_labels_as_plain_text(
    app: WebApp,
) -> None:
    hostile = "<script>document.title='x'</script>\u202eevil"
    session = send_questionnaire(app.server, "Leave me", [{"name": "why", "label": hostile}])
    page = app.open_window(f"/chat/{session}", size="phone")
    form = page.get_by_role("article", name="Leave me")
    expect(form.get_by_label(hostile)).to_be_visible()
    assert not scrolls_sideways(page)
    form.get_by_role("button", name="Dismiss").click()
    page.get_by_role("dialog").get_by_role("button", name="Dismiss").click()
    expect(form).to_have_count(0)
    [ended] = [each for each in app.server.do("questionnaire.list")["questionnaires"] if each["session"] == session]
    assert ended["state"] == "cancelled"


@pytest.mark.spec("A67")
def test_notifications_are_counted_read_and_cleared_in_every_window(app: WebApp) -> None:
    server = app.server
    page, other = app.open_window("/approvals"), app.open_window("/approvals")
    expect(page.get_by_role("button", name="Notifications", exact=True)).to_be_visible()
    for number in range(1, 4):
        server.do("notification.create", title=f"Notice {number} <i>", text="Its words")
    bell = page.get_by_role("button", name="Notifications, 3 unread")
    bell.click()
    panel = page.get_by_role("dialog", name="Notifications")
    expect(panel.get_by_role("listitem")).to_have_count(3)
    expect(panel.get_by_role("listitem").first).to_contain_text("Notice 3 <i>")
    assert find_violations(page) == []
    panel.get_by_role("button", name="Mark “Notice 3 <i>” as read").click()
    expect(other.get_by_role("button", name="Notifications, 2 unread")).to_be_visible()
    panel.get_by_role("button", name="Clear “Notice 2 <i>”").click()
    expect(panel.get_by_role("listitem")).to_have_count(2)
    expect(other.get_by_role("button", name="Notifications, 1 unread")).to_be_visible()
    panel.get_by_role("button", name="Mark all as read").click()
    expect(other.get_by_role("button", name="Notifications", exact=True)).to_be_visible()
    assert [each["read"] for each in server.do("notification.list")["notifications"]] == [True, True]
    panel.get_by_role("button", name="Clear all").click()
    expect(panel.get_by_role("heading", name="No notifications")).to_be_visible()
    assert server.do("notification.list")["notifications"] == []
    page.keyboard.press("Escape")
    expect(panel).to_be_hidden()


def test_a_late_response_does_not_restore_a_cleared_notification(app: WebApp) -> None:
    server = app.server
    for number in range(1, 4):
        server.do("notification.create", title=f"Notice {number}")
    page = app.open_window("/approvals")
    page.get_by_role("button", name="Notifications, 3 unread").click()
    rows = page.get_by_role("dialog", name="Notifications").get_by_role("listitem")
    expect(rows).to_have_count(3)
    held: list[tuple[Route, APIResponse]] = []
    page.route("**/api/notification/list", lambda route: held.append((route, route.fetch())))
    with page.expect_request("**/api/notification/list"):
        server.do("notification.read", id=server.do("notification.list")["notifications"][2]["id"])
    wait_in_page(page, lambda: bool(held))
    page.get_by_role("button", name="Clear “Notice 2”").click()
    expect(rows).to_have_count(2)
    route, older = held[0]  # the list before the change
    assert len(older.json()["notifications"]) == 3
    with page.expect_event("requestfinished"):
        route.fulfill(response=older)
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert rows.count() == 2


@pytest.mark.spec("A67")
def test_on_a_phone_notifications_are_in_the_more_menu(app: WebApp) -> None:
    app.server.do("notification.create", title="For the phone")
    page = app.open_window("/approvals", size="phone", theme="dark")
    page.get_by_role("button", name="More").click()
    page.get_by_role("menuitem", name="Notifications, 1 unread").click()
    expect(page.get_by_role("dialog", name="Notifications")).to_contain_text("For the phone")
    assert find_violations(page) == []
    assert not scrolls_sideways(page)


@pytest.mark.parametrize(("size", "theme"), SIZES_AND_THEMES)
def test_the_approvals_screen_is_accessible(app: WebApp, size: Any, theme: Any) -> None:
    session = request_approval(app.server)
    send_questionnaire(app.server, f"Everyone on a {size} that is {theme}")
    page = app.open_window("/approvals", size=size, theme=theme)
    expect(card(page, session, app.server)).to_be_visible()
    expect(page.get_by_role("article", name=f"Everyone on a {size} that is {theme}")).to_be_visible()
    assert find_violations(page) == []
    assert not scrolls_sideways(page)
