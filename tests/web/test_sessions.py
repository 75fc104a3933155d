"""The list of conversations in the Chat screen: marks, search and the actions of each conversation."""

from __future__ import annotations

import json
import re
from typing import Any

from playwright.sync_api import Locator, Page, expect
from web.browser import WebApp
from web.chat_actions import (
    choose_menu_item,
    composer,
    create_session,
    make_blocking_message,
    message_log,
    open_chat,
    own_messages,
    replies,
    send_by_api,
    wait_until_idle,
)


def list_item(page: Page, name: str) -> Locator:
    return page.get_by_role("navigation", name="Conversations").get_by_role("listitem").filter(has_text=name)


def find_session(app: WebApp, session: str) -> dict[str, Any] | None:
    """The session as the server lists it."""
    found = app.server.do("session.list", limit=50)["sessions"]
    return next((each for each in found if each["sessionId"] == session), None)


def test_the_web_app_opens_the_last_used_conversation_and_can_start_a_new_one_with_each_agent(app: WebApp) -> None:
    older, newer = create_session(app), create_session(app)
    send_by_api(app, newer, "echo first")
    wait_until_idle(app, newer)
    send_by_api(app, older, "echo last")
    wait_until_idle(app, older)
    page = app.open_window("/")
    expect(page).to_have_url(f"{app.server.address}/chat/{older}")
    page.get_by_role("button", name="New conversation with clerk").click()
    expect(page.get_by_role("textbox", name="Message clerk")).to_be_visible()
    expect(page.get_by_role("heading", name="Message clerk")).to_be_visible()
    assert app.server.do("session.state", session=page.url.rpartition("/")[2])["agent"] == "clerk"


def test_the_list_of_conversations_marks_those_that_are_working_or_unread(app: WebApp) -> None:
    here, there = create_session(app, name="Here"), create_session(app, name="There")
    page, other = open_chat(app, here), open_chat(app, here)
    busy = make_blocking_message(app.server)
    send_by_api(app, there, busy.text)
    for window in (page, other):
        expect(list_item(window, "There")).to_contain_text("working")
    busy.release()
    for window in (page, other):
        expect(list_item(window, "There")).to_contain_text("1 unread")
    page.get_by_role("link", name="There").click()
    expect(replies(page).last).to_contain_text("exit code 0")
    for window in (page, other):
        expect(list_item(window, "There")).not_to_contain_text("unread")
    assert (find_session(app, there) or {})["unread"] == 0


def test_a_conversation_is_renamed_in_the_web_app_and_a_taken_name_is_refused(app: WebApp) -> None:
    session = create_session(app, name="Old name")
    create_session(app, name="Taken")
    page, other = open_chat(app, session), open_chat(app, session)
    choose_menu_item(page, "Rename")
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
        expect(list_item(window, "New name")).to_have_count(1)
    assert (find_session(app, session) or {})["name"] == "New name"
    app.console_errors.clear()  # the refused request was expected


def test_a_pinned_conversation_is_first_in_the_list_of_conversations(app: WebApp) -> None:
    pinned = create_session(app, name="Keep me up here")
    session = create_session(app, name="Newest")
    send_by_api(app, session, "echo newest")
    wait_until_idle(app, session)
    page = open_chat(app, pinned)
    choose_menu_item(page, "Pin")
    first = page.get_by_role("navigation", name="Conversations").get_by_role("listitem").first
    expect(first).to_contain_text("pinned")
    expect(first).to_contain_text("Keep me up here")
    assert (find_session(app, pinned) or {})["pinnedAt"]
    choose_menu_item(page, "Unpin")
    expect(first).not_to_contain_text("pinned")


def test_a_deleted_conversation_can_be_restored_in_the_web_app(app: WebApp) -> None:
    session = create_session(app, name="Gone for now")
    send_by_api(app, session, "echo keep this")
    wait_until_idle(app, session)
    page, other = open_chat(app, session, patient=True), open_chat(app, session)
    choose_menu_item(page, "Delete")
    expect(list_item(page, "Gone for now")).to_have_count(0)
    expect(other.get_by_text("Conversation not found")).to_be_visible()
    assert find_session(app, session) is None
    page.get_by_role("button", name="Undo").click()
    for window in (page, other):
        expect(list_item(window, "Gone for now")).to_have_count(1)
        expect(replies(window)).to_have_text(["keep this"])
    assert find_session(app, session) is not None


def test_clearing_a_conversation_in_the_web_app_needs_confirmation_and_deletes_its_messages(app: WebApp) -> None:
    session = create_session(app, name="To be cleared")
    send_by_api(app, session, "echo secret")
    wait_until_idle(app, session)
    page, other = open_chat(app, session), open_chat(app, session)
    choose_menu_item(page, "Clear")
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    expect(replies(page)).to_have_text(["secret"])
    choose_menu_item(page, "Clear")
    page.get_by_role("dialog").get_by_role("button", name="Clear").click()
    for window in (page, other):
        expect(window.get_by_role("heading", name="Message guide")).to_be_visible()
        expect(message_log(window).get_by_text("secret")).to_have_count(0)


def test_a_conversation_exported_in_the_web_app_can_be_imported(app: WebApp) -> None:
    session = create_session(app, name="Export: me / now")
    send_by_api(app, session, "echo as a file")
    wait_until_idle(app, session)
    page = open_chat(app, session)
    with page.expect_download() as download:
        choose_menu_item(page, "Export")
    assert download.value.suggested_filename == "Export-me-now.json"
    exported = json.loads(download.value.path().read_text())
    again = app.server.do("session.import", agent="guide", files=exported["files"])
    assert "as a file" in app.server.do("session.export", session=again["sessionId"])["files"]["history.jsonl"]


def test_search_in_the_list_of_conversations_finds_those_that_are_not_loaded_yet(app: WebApp) -> None:
    old = create_session(app, name="A very old one")
    for number in range(60):
        create_session(app, name=f"Filler {number}")
    page = app.open_window("/chat")
    expect(list_item(page, "Filler 59")).to_have_count(1)
    expect(list_item(page, "A very old one")).to_have_count(0)
    page.get_by_role("searchbox", name="Find a conversation").fill("VERY old")
    expect(list_item(page, "A very old one")).to_have_count(1)
    expect(list_item(page, "Filler")).to_have_count(0)
    page.get_by_role("link", name="A very old one").click()
    expect(page).to_have_url(re.compile(old))
    page.get_by_role("searchbox", name="Find a conversation").fill("no such words")
    expect(page.get_by_text("No conversation matches.")).to_be_visible()
    # Opened by its URL, although it is not in the loaded list.
    other = open_chat(app, old)
    expect(other.get_by_role("heading", level=1)).to_have_text("A very old one")


def leave_composer_with_escape(page: Page) -> None:
    """Leave the composer, which gets the focus shortly after a conversation opens."""
    expect(composer(page)).to_be_focused()
    page.keyboard.press("Escape")
    expect(composer(page)).not_to_be_focused()


def test_conversations_are_navigated_by_keyboard(app: WebApp) -> None:
    two, one = create_session(app, agent="main", name="Key two"), create_session(app, agent="main", name="Key one")
    page = open_chat(app, one)
    leave_composer_with_escape(page)
    page.keyboard.press("j")
    expect(page).to_have_url(re.compile(two))
    leave_composer_with_escape(page)
    page.keyboard.press("k")
    expect(page).to_have_url(re.compile(one))
    leave_composer_with_escape(page)
    page.keyboard.press("s")
    expect(page.get_by_role("searchbox", name="Find a conversation")).to_be_focused()
    page.get_by_role("searchbox", name="Find a conversation").blur()
    page.keyboard.press("/")
    leave_composer_with_escape(page)
    page.keyboard.press("n")
    expect(page).not_to_have_url(re.compile(one))
    expect(page.get_by_role("heading", name="Message main")).to_be_visible()
    expect(own_messages(page, "anything")).to_have_count(0)
