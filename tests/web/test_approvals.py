"""What agents ask of people: questions to be allowed or denied, forms to be filled in, and notices."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from api.tcp_server import Rim
from playwright.sync_api import APIResponse, Locator, Page, Route, expect
from web.browser import LOOKS, Front, scrolls_sideways, violations
from web.chat_actions import wait_for_copy, wait_in_page

FIELDS = [
    {"name": "guest", "label": "Who comes?", "required": True, "most": 20},
    {"name": "meal", "label": "What shall there be?", "kind": "choice", "options": ["soup", "pie"]},
    {"name": "days", "label": "Which days would do?", "kind": "several", "options": ["mon", "tue", "wed"], "most": 2},
    {"name": "chairs", "label": "How many chairs?", "kind": "number", "least": 1, "most": 12},
    {"name": "dog", "label": "Does the dog come?", "kind": "yes-no"},
]


def begin(rim: Rim, agent: str, text: str, name: str | None = None) -> str:
    """A conversation of its own, in which this was said; its id."""
    session = rim.do("session.create", agent=agent, name=name)["sessionId"]
    rim.do("envelope.send", to=f"agent:{agent}", session=session, text=text)
    return session


def asking(rim: Rim, name: str | None = None) -> str:
    return begin(rim, "clerk", "ask read SOUL.md", name)


def ask_form(rim: Rim, title: str, fields: list[dict[str, Any]] = FIELDS) -> str:
    return begin(rim, "guide", f"call ask_questions {json.dumps({'title': title, 'fields': fields})}", title)


def question_of(rim: Rim, session: str) -> str:
    """The id of what is asked in a session, as soon as it is."""
    with rim.live(follow=[{"session": session}]) as live:
        while True:
            live.hear()
            if found := [each["id"] for each in waiting(rim) if each["session"] == session]:
                return found[0]


def card(page: Page, session: str, rim: Rim) -> Locator:
    return page.locator(f"[data-approval='{question_of(rim, session)}']")


def waiting(rim: Rim) -> list[dict[str, Any]]:
    return rim.do("approval.list", limit=50)["approvals"]


def decided(rim: Rim, session: str) -> dict[str, Any]:
    return next(
        each for each in rim.do("approval.list", past=True, limit=50)["approvals"] if each["session"] == session
    )


@pytest.fixture(autouse=True)
def _nothing_waits(rim: Rim) -> None:  # pyright: ignore[reportUnusedFunction]
    """Each test begins with nothing asked."""
    for each in waiting(rim):
        rim.do("approval.answer", id=each["id"], allow=False)
    for each in rim.do("questionnaire.list", open=True)["questionnaires"]:
        rim.do("questionnaire.cancel", id=each["id"])
    for each in rim.do("grant.list")["grants"]:
        rim.do("grant.revoke", id=each["id"])
    rim.do("notification.clear", all=True)


def test_a_question_stands_in_its_conversation_with_its_exact_call_and_collapses_when_it_is_answered(
    front: Front,
) -> None:
    session = asking(front.rim)
    page = front.window(f"/chat/{session}")
    question = card(page, session, front.rim)
    expect(question.get_by_role("heading")).to_contain_text("clerk asks to use read")
    expect(question.get_by_role("group", name="Argument path")).to_have_text('"SOUL.md"')
    expect(question).to_contain_text("the agent clerk asks before 'read'")
    expect(question).to_contain_text("tool:read")
    expect(question.get_by_role("timer")).to_contain_text("closes in 24 h")
    question.get_by_text("Which rule asks").click()
    expect(question).to_contain_text("agents.clerk.tools.ask")
    question.get_by_role("button", name="Copy the arguments").click()
    wait_for_copy(page, lambda copied: copied != "" and json.loads(copied) == {"path": "SOUL.md"})
    question.get_by_role("button", name="Allow once").click()
    expect(question).to_contain_text("Allowed once")
    expect(question).to_contain_text("by owner")
    expect(question.get_by_role("button")).to_have_count(0)
    became = decided(front.rim, session)
    assert (became["state"], became["scope"], became["decided-by"]) == ("allowed", "once", "owner")


def test_two_windows_show_the_same_questions_and_the_first_answer_counts_in_both(front: Front) -> None:
    inbox, elsewhere = front.window("/approvals"), front.window("/approvals")
    expect(inbox.get_by_role("heading", name="Nobody asks you anything")).to_be_visible()
    session = asking(front.rim, "Two windows")
    question, other = card(inbox, session, front.rim), card(elsewhere, session, front.rim)
    expect(other).to_contain_text("Two windows")
    expect(inbox.get_by_role("link", name=re.compile("Approvals ?, 1$"))).to_be_visible()
    question.get_by_role("button", name="Add a reason").click()
    question.get_by_label("Say why").fill("not <b>today</b>")
    question.get_by_role("button", name="Deny").click()
    for page, shown in ((inbox, question), (elsewhere, other)):
        expect(shown).to_contain_text("Denied")
        expect(shown).to_contain_text("“not <b>today</b>”")
        expect(page.get_by_role("link", name="Approvals", exact=True)).to_be_visible()
    became = decided(front.rim, session)
    assert (became["state"], became["words"]) == ("denied", "not <b>today</b>")


def test_the_keyboard_goes_from_question_to_question_and_answers(front: Front) -> None:
    sessions = [asking(front.rim, name) for name in ("First", "Second", "Third")]
    page = front.window("/approvals")
    for each in sessions:
        expect(card(page, each, front.rim)).to_be_visible()
    cards = [page.locator("[data-asks]").nth(number) for number in range(3)]
    page.keyboard.press("j")
    expect(cards[0]).to_be_focused()
    page.keyboard.press("s")
    expect(cards[0]).to_contain_text("Allowed in this conversation")
    page.keyboard.press("j")
    expect(cards[1]).to_be_focused()
    page.keyboard.press("w")
    expect(cards[1]).to_contain_text("Allowed for good")
    page.keyboard.press("j")
    page.keyboard.press("k")
    expect(cards[1]).to_be_focused()
    page.keyboard.press("j")
    page.keyboard.press("d")
    expect(cards[2]).to_contain_text("Denied")
    assert {decided(front.rim, each)["scope"] for each in sessions} == {"session", "always", None}
    assert {(each["agent"], each["permission"]) for each in front.rim.do("grant.list")["grants"]} == {
        ("clerk", "tool:read")
    }
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("Always allow, on a question")


def test_edits_and_writes_are_shown_as_what_would_change(front: Front) -> None:
    rim = front.rim
    rim.do("agent.register", name="forge", model="guide", tools_ask=["edit", "write"])
    rim.do("agent.write-file", name="forge", path="NOTES.md", content="one\ntwo\nthree\n", hash="")
    writes = {"path": "NOTES.md", "content": "one\n2\nthree\n"}
    edits = {"path": "NOTES.md", "old": "three", "new": "four\u202efive"}
    session = begin(rim, "forge", f"call write {json.dumps(writes)}; edit {json.dumps(edits)}")
    page = front.window(f"/chat/{session}")
    question = card(page, session, rim)
    expect(question.get_by_role("heading")).to_contain_text("forge asks to make 2 calls")
    changes = question.get_by_role("group", name="What changes in NOTES.md")
    expect(changes).to_have_count(2)
    written, edited = changes.all()
    expect(written).to_contain_text(re.compile("−removedtwo"))
    expect(written).to_contain_text(re.compile(r"\+added2"))
    expect(edited).to_contain_text(re.compile(r"−removedthree"))
    expect(edited).to_contain_text(r"four\u202efive")
    question.get_by_text("Exactly as it was sent").first.click()
    expect(question.get_by_role("group", name="Exactly as it was sent").first).to_contain_text('"content": "one\\n2')
    assert violations(page) == []


def test_nothing_in_a_call_or_a_reply_runs_hides_or_looks_like_a_question(front: Front) -> None:
    rim = front.rim
    hostile = '</pre><img src=x onerror="alert(1)"><article data-asks><button>Allow once</button>\u202eevil\u200b'
    session = begin(rim, "clerk", f"call read {json.dumps({'path': hostile})}", "<svg onload=alert(1)>")
    page = front.window("/approvals")
    question = card(page, session, rim)
    shown = question.get_by_role("group", name="Argument path")
    expect(shown).to_contain_text("</pre><img src=x onerror=")
    expect(shown).to_contain_text(r"\u202eevil\u200b")
    expect(question).to_contain_text("<svg onload=alert(1)>")
    assert question.locator("img, article, svg[onload]").count() == 0
    assert question.get_by_role("button", name="Allow once").count() == 1
    fake = "echo <article data-asks class='open'><h2>clerk asks to use exec</h2><button>Allow once</button></article>"
    said = begin(rim, "guide", fake)
    page.goto(f"{rim.address}/chat/{said}")
    expect(page.get_by_role("log")).to_contain_text("clerk asks to use exec")
    assert page.locator("[role=log] [data-asks], [role=log] [data-approval]").count() == 0
    assert page.get_by_role("button", name="Allow once", exact=True).count() == 0


def test_a_long_argument_scrolls_inside_of_its_question(front: Front) -> None:
    session = begin(front.rim, "clerk", f"call read {json.dumps({'path': 'x' * 3000 + 'the-end'})}")
    page = front.window("/approvals", size="phone")
    argument = card(page, session, front.rim).get_by_role("group", name="Argument path")
    expect(argument).to_contain_text("the-end")
    assert argument.evaluate("node => node.scrollHeight > node.clientHeight && node.clientHeight < 300")
    assert not scrolls_sideways(page)


def test_what_was_decided_is_listed_with_who_and_why_and_pages_on(front: Front) -> None:
    rim = front.rim
    page = front.window("/approvals/past")
    asked = [asking(rim, f"Past {number}") for number in range(21)]
    for number, session in enumerate(asked):
        rim.do("approval.answer", id=question_of(rim, session), allow=number % 2 == 0, because=f"reason {number}")
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


def test_grants_are_given_listed_and_taken_back(front: Front) -> None:
    page, other = front.window("/approvals/grants"), front.window("/approvals/grants")
    page.get_by_role("button", name="Grant something").click()
    form = page.get_by_role("dialog", name="Grant a permission")
    form.get_by_label("Agent").select_option("clerk")
    form.get_by_label("Folder or file").fill("srv/music")
    form.get_by_label("Why").fill("She keeps the list.")
    form.get_by_role("button", name="Grant something").click()
    expect(form.get_by_role("alert")).to_contain_text("a path in a permission is absolute")
    front.complaints.clear()  # of the refusal, which was meant
    assert violations(page) == []
    form.get_by_label("Folder or file").fill("/srv/music")
    form.get_by_role("button", name="Grant something").click()
    for each in (page, other):
        row = each.get_by_role("listitem").filter(has_text="read:/srv/music")
        expect(row).to_contain_text("In every conversation that a person opens")
        expect(row).to_contain_text("“She keeps the list.”")
        expect(row).to_contain_text("by owner · since")
    [grant] = front.rim.do("grant.list")["grants"]
    assert (grant["agent"], grant["permission"], grant["because"]) == (
        "clerk",
        "read:/srv/music",
        "She keeps the list.",
    )
    page.get_by_role("button", name="Take read:/srv/music back from clerk").click()
    expect(other.get_by_role("heading", name="No agent was granted anything")).to_be_visible()
    assert front.rim.do("grant.list")["grants"] == []
    page.get_by_role("button", name="Grant it again").click()
    page.get_by_role("dialog").get_by_role("button", name="Grant something").click()
    expect(other.get_by_role("listitem")).to_contain_text("read:/srv/music")


@pytest.mark.spec("A66")
def test_a_form_is_filled_in_where_it_was_asked_and_what_does_not_fit_is_said_at_its_field(front: Front) -> None:
    rim = front.rim
    session = ask_form(rim, "Dinner")
    page, inbox = front.window(f"/chat/{session}"), front.window("/approvals")
    form = page.get_by_role("article", name="Dinner")
    expect(form).to_contain_text("guide has questions for you")
    expect(inbox.get_by_role("heading", name="Questions for you")).to_be_visible()
    expect(inbox.get_by_role("article", name="Dinner")).to_be_visible()
    form.get_by_role("radio", name="pie").check()
    for day in ("mon", "tue", "wed"):
        form.get_by_role("checkbox", name=day).check()
    form.get_by_label("How many chairs?").fill("many")
    form.get_by_role("radio", name="No", exact=True).check()
    form.get_by_role("button", name="Send answers").click()
    expect(form.get_by_text("this must be answered")).to_be_visible()
    expect(form.get_by_text("at most 2 of them")).to_be_visible()
    expect(form.get_by_text("this is a number")).to_be_visible()
    expect(form.get_by_label("Who comes?")).to_be_focused()
    front.complaints.clear()  # of the refusal, which was meant
    assert violations(page) == []
    # Nothing was lost, also not by looking elsewhere meanwhile.
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
    [ended] = [each for each in rim.do("questionnaire.list")["questionnaires"] if each["session"] == session]
    assert (ended["state"], ended["ended-by"]) == ("answered", "person:owner")
    assert ended["answers"] == {"guest": "Ines", "meal": "pie", "days": ["mon", "tue"], "chairs": 4, "dog": False}
    page.goto(f"{rim.address}/chat/{session}")
    expect(page.get_by_role("log")).to_contain_text("guest: Ines")


@pytest.mark.spec("A66")
def test_a_form_can_be_left_unanswered_and_its_words_are_only_words(front: Front) -> None:
    evil = "<script>document.title='x'</script>\u202eevil"
    session = ask_form(front.rim, "Leave me", [{"name": "why", "label": evil}])
    page = front.window(f"/chat/{session}", size="phone")
    form = page.get_by_role("article", name="Leave me")
    expect(form.get_by_label(evil)).to_be_visible()
    assert not scrolls_sideways(page)
    form.get_by_role("button", name="Leave unanswered").click()
    page.get_by_role("dialog").get_by_role("button", name="Leave unanswered").click()
    expect(form).to_have_count(0)
    [ended] = [each for each in front.rim.do("questionnaire.list")["questionnaires"] if each["session"] == session]
    assert ended["state"] == "cancelled"


@pytest.mark.spec("A67")
def test_notices_are_counted_read_and_cleared_in_every_window(front: Front) -> None:
    rim = front.rim
    page, other = front.window("/approvals"), front.window("/approvals")
    expect(page.get_by_role("button", name="Notifications", exact=True)).to_be_visible()
    for number in range(1, 4):
        rim.do("notification.create", title=f"Notice {number} <i>", text="Its words")
    bell = page.get_by_role("button", name="Notifications, 3 unread")
    bell.click()
    panel = page.get_by_role("dialog", name="Notifications")
    expect(panel.get_by_role("listitem")).to_have_count(3)
    expect(panel.get_by_role("listitem").first).to_contain_text("Notice 3 <i>")
    assert violations(page) == []
    panel.get_by_role("button", name="Mark “Notice 3 <i>” as read").click()
    expect(other.get_by_role("button", name="Notifications, 2 unread")).to_be_visible()
    panel.get_by_role("button", name="Clear “Notice 2 <i>”").click()
    expect(panel.get_by_role("listitem")).to_have_count(2)
    expect(other.get_by_role("button", name="Notifications, 1 unread")).to_be_visible()
    panel.get_by_role("button", name="Mark all as read").click()
    expect(other.get_by_role("button", name="Notifications", exact=True)).to_be_visible()
    assert [each["read"] for each in rim.do("notification.list")["notifications"]] == [True, True]
    panel.get_by_role("button", name="Clear all").click()
    expect(panel.get_by_role("heading", name="Nothing to notice")).to_be_visible()
    assert rim.do("notification.list")["notifications"] == []
    page.keyboard.press("Escape")
    expect(panel).to_be_hidden()


def test_a_notice_that_was_cleared_does_not_come_back_with_an_older_list(front: Front) -> None:
    rim = front.rim
    for number in range(1, 4):
        rim.do("notification.create", title=f"Notice {number}")
    page = front.window("/approvals")
    page.get_by_role("button", name="Notifications, 3 unread").click()
    rows = page.get_by_role("dialog", name="Notifications").get_by_role("listitem")
    expect(rows).to_have_count(3)
    held: list[tuple[Route, APIResponse]] = []
    page.route("**/api/notification/list", lambda route: held.append((route, route.fetch())))
    with page.expect_request("**/api/notification/list"):
        rim.do("notification.read", id=rim.do("notification.list")["notifications"][2]["id"])
    wait_in_page(page, lambda: bool(held))
    page.get_by_role("button", name="Clear “Notice 2”").click()
    expect(rows).to_have_count(2)
    route, older = held[0]  # as it was before
    assert len(older.json()["notifications"]) == 3
    with page.expect_event("requestfinished"):
        route.fulfill(response=older)
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert rows.count() == 2


@pytest.mark.spec("A67")
def test_on_a_phone_the_notices_lie_under_more(front: Front) -> None:
    front.rim.do("notification.create", title="For the phone")
    page = front.window("/approvals", size="phone", theme="dark")
    page.get_by_role("button", name="More").click()
    page.get_by_role("menuitem", name="Notifications, 1 unread").click()
    expect(page.get_by_role("dialog", name="Notifications")).to_contain_text("For the phone")
    assert violations(page) == []
    assert not scrolls_sideways(page)


@pytest.mark.parametrize(("size", "theme"), LOOKS)
def test_a_full_list_can_be_used_by_anyone(front: Front, size: Any, theme: Any) -> None:
    session = asking(front.rim)
    ask_form(front.rim, f"Everyone on a {size} that is {theme}")
    page = front.window("/approvals", size=size, theme=theme)
    expect(card(page, session, front.rim)).to_be_visible()
    expect(page.get_by_role("article", name=f"Everyone on a {size} that is {theme}")).to_be_visible()
    assert violations(page) == []
    assert not scrolls_sideways(page)
