"""The list of conversations: what is marked in it, and what can be done with each."""

from __future__ import annotations

import json
import re
from typing import Any

from playwright.sync_api import Locator, Page, expect
from web.browser import Front
from web.chat_actions import choose, composer, held_work, lines, new_session, open_talk, own, replies, send, until_quiet


def listed(page: Page, name: str) -> Locator:
    return page.get_by_role("navigation", name="Conversations").get_by_role("listitem").filter(has_text=name)


def known(front: Front, session: str) -> dict[str, Any] | None:
    """As the house lists it."""
    found = front.rim.do("session.list", limit=50)["sessions"]
    return next((each for each in found if each["sessionId"] == session), None)


def test_the_one_used_last_opens_and_new_ones_are_begun_for_each_agent(front: Front) -> None:
    older, newer = new_session(front), new_session(front)
    send(front, newer, "echo first")
    until_quiet(front, newer)
    send(front, older, "echo last")
    until_quiet(front, older)
    page = front.window("/")
    expect(page).to_have_url(f"{front.rim.address}/chat/{older}")
    page.get_by_role("button", name="New conversation with clerk").click()
    expect(page.get_by_role("textbox", name="Message clerk")).to_be_visible()
    expect(page.get_by_text("Say something to clerk")).to_be_visible()
    assert front.rim.do("session.state", session=page.url.rpartition("/")[2])["agent"] == "clerk"


def test_other_conversations_are_marked_while_they_run_and_until_they_are_read(front: Front) -> None:
    here, there = new_session(front, name="Here"), new_session(front, name="There")
    page, other = open_talk(front, here), open_talk(front, here)
    busy = held_work(front.rim)
    send(front, there, busy.text)
    for window in (page, other):
        expect(listed(window, "There")).to_contain_text("at work")
    busy.release()
    for window in (page, other):
        expect(listed(window, "There")).to_contain_text("1 unread")
    page.get_by_role("link", name="There").click()
    expect(replies(page).last).to_contain_text("exit code 0")
    for window in (page, other):
        expect(listed(window, "There")).not_to_contain_text("unread")
    assert (known(front, there) or {})["unread"] == 0


def test_a_conversation_is_renamed_and_a_name_that_is_taken_is_said_at_the_field(front: Front) -> None:
    session = new_session(front, name="Old name")
    new_session(front, name="Taken")
    page, other = open_talk(front, session), open_talk(front, session)
    choose(page, "Rename")
    field = page.get_by_role("dialog").get_by_label("Name")
    expect(field).to_have_value("Old name")
    field.fill("Taken")
    field.press("Enter")
    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("Taken")
    expect(field).to_have_attribute("aria-invalid", "true")
    field.fill("New name")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    for window in (page, other):
        expect(window.get_by_role("heading", level=1)).to_have_text("New name")
        expect(listed(window, "New name")).to_have_count(1)
    assert (known(front, session) or {})["name"] == "New name"
    front.complaints.clear()  # of the refusal, which was meant


def test_a_pinned_conversation_stands_first(front: Front) -> None:
    pinned = new_session(front, name="Keep me up here")
    session = new_session(front, name="Newest")
    send(front, session, "echo newest")
    until_quiet(front, session)
    page = open_talk(front, pinned)
    choose(page, "Pin")
    first = page.get_by_role("navigation", name="Conversations").get_by_role("listitem").first
    expect(first).to_contain_text("pinned")
    expect(first).to_contain_text("Keep me up here")
    assert (known(front, pinned) or {})["pinnedAt"]
    choose(page, "Unpin")
    expect(first).not_to_contain_text("pinned")


def test_a_conversation_is_deleted_and_comes_back(front: Front) -> None:
    session = new_session(front, name="Gone for now")
    send(front, session, "echo keep this")
    until_quiet(front, session)
    page, other = open_talk(front, session), open_talk(front, session)
    choose(page, "Delete")
    expect(listed(page, "Gone for now")).to_have_count(0)
    expect(other.get_by_text("This conversation is gone")).to_be_visible()
    assert known(front, session) is None
    page.get_by_role("button", name="Undo").click()
    for window in (page, other):
        expect(listed(window, "Gone for now")).to_have_count(1)
        expect(replies(window)).to_have_text(["keep this"])
    assert known(front, session) is not None


def test_clearing_asks_first_and_takes_the_words_away(front: Front) -> None:
    session = new_session(front, name="To be cleared")
    send(front, session, "echo secret")
    until_quiet(front, session)
    page, other = open_talk(front, session), open_talk(front, session)
    choose(page, "Clear")
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    expect(replies(page)).to_have_text(["secret"])
    choose(page, "Clear")
    page.get_by_role("dialog").get_by_role("button", name="Clear").click()
    for window in (page, other):
        expect(window.get_by_text("Say something to guide")).to_be_visible()
        expect(lines(window).get_by_text("secret")).to_have_count(0)


def test_a_conversation_is_exported_and_can_be_taken_in_again(front: Front) -> None:
    session = new_session(front, name="Export: me / now")
    send(front, session, "echo as a file")
    until_quiet(front, session)
    page = open_talk(front, session)
    with page.expect_download() as download:
        choose(page, "Export")
    assert download.value.suggested_filename == "Export-me-now.json"
    given = json.loads(download.value.path().read_text())
    again = front.rim.do("session.import", agent="guide", files=given["files"])
    assert "as a file" in front.rim.do("session.export", session=again["sessionId"])["files"]["history.jsonl"]


def test_conversations_are_searched_also_those_that_are_not_in_the_list_yet(front: Front) -> None:
    old = new_session(front, name="A very old one")
    for number in range(60):
        new_session(front, name=f"Filler {number}")
    page = front.window("/chat")
    expect(listed(page, "Filler 59")).to_have_count(1)
    expect(listed(page, "A very old one")).to_have_count(0)
    page.get_by_role("searchbox", name="Find a conversation").fill("VERY old")
    expect(listed(page, "A very old one")).to_have_count(1)
    expect(listed(page, "Filler")).to_have_count(0)
    page.get_by_role("link", name="A very old one").click()
    expect(page).to_have_url(re.compile(old))
    page.get_by_role("searchbox", name="Find a conversation").fill("no such words")
    expect(page.get_by_text("No conversation by these words.")).to_be_visible()
    # Opened by its address, without ever having been in the list.
    other = open_talk(front, old)
    expect(other.get_by_role("heading", level=1)).to_have_text("A very old one")


def leave(page: Page) -> None:
    """Go out of where one writes, which a conversation that opens has one in a moment later."""
    expect(composer(page)).to_be_focused()
    page.keyboard.press("Escape")
    expect(composer(page)).not_to_be_focused()


def test_keys_go_through_the_conversations(front: Front) -> None:
    two, one = new_session(front, agent="main", name="Key two"), new_session(front, agent="main", name="Key one")
    page = open_talk(front, one)
    leave(page)
    page.keyboard.press("j")
    expect(page).to_have_url(re.compile(two))
    leave(page)
    page.keyboard.press("k")
    expect(page).to_have_url(re.compile(one))
    leave(page)
    page.keyboard.press("s")
    expect(page.get_by_role("searchbox", name="Find a conversation")).to_be_focused()
    page.get_by_role("searchbox", name="Find a conversation").blur()
    page.keyboard.press("/")
    leave(page)
    page.keyboard.press("n")
    expect(page).not_to_have_url(re.compile(one))
    expect(page.get_by_text("Say something to main")).to_be_visible()
    expect(own(page, "anything")).to_have_count(0)
