"""Commands in the Chat screen: suggestions while typing, and `/switch`."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect
from web.browser import WebApp, find_violations
from web.chat_actions import (
    composer,
    create_session,
    message_log,
    open_chat,
    own_messages,
    replies,
    type_message,
    wait_until_idle,
)


def test_the_chat_composer_suggests_slash_commands_while_typing_chosen_by_key_or_click(app: WebApp) -> None:
    page = open_chat(app, create_session(app))
    suggestions = page.get_by_role("listbox", name="Commands")
    field = composer(page)
    field.press_sequentially("/st")
    expect(suggestions.get_by_role("option")).to_have_count(2)
    expect(suggestions.get_by_role("option", selected=True)).to_contain_text("/status")
    field.press("ArrowDown")
    expect(suggestions.get_by_role("option", selected=True)).to_contain_text("/stop")
    expect(field).to_have_attribute("aria-activedescendant", "command-stop")
    assert find_violations(page) == []
    field.press("Enter")
    expect(field).to_have_value("/stop")
    field.press("Enter")
    expect(message_log(page).get_by_text("Nothing was running or waiting here.")).to_be_visible()
    field.press_sequentially("/whoa")
    suggestions.get_by_role("option").click()
    expect(field).to_have_value("/whoami")
    field.fill("/thin")
    field.press("Tab")
    expect(field).to_have_value("/think ")
    expect(suggestions).to_have_count(0)
    field.fill("/")
    expect(suggestions).to_be_visible()
    field.press("Escape")
    expect(suggestions).to_have_count(0)
    expect(field).to_be_focused()
    field.fill("/no_such_command")
    expect(suggestions).to_have_count(0)


@pytest.mark.spec("A81")
def test_the_switch_command_in_the_web_chat_opens_the_other_agent_and_returns(app: WebApp) -> None:
    session = create_session(app)
    page = open_chat(app, session)
    type_message(page, "echo one")
    expect(replies(page)).to_have_text(["one"])
    type_message(page, "/switch clerk echo two")
    expect(page).not_to_have_url(re.compile(session))
    expect(own_messages(page, "echo two")).to_be_visible()
    expect(replies(page).last).to_have_text("two")
    expect(composer(page)).to_have_attribute("placeholder", "Message clerk")
    type_message(page, "/switch back we agreed on two")
    expect(page).to_have_url(re.compile(session))
    expect(own_messages(page, "Back from clerk. we agreed on two")).to_be_visible()
    expect(own_messages(page, "echo one")).to_be_visible()
    wait_until_idle(app, session)
