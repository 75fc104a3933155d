"""Commands in the page: offered while one writes, and followed where they lead."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect
from web.browser import Front, violations
from web.chat_actions import composer, lines, new_session, open_talk, own, replies, say, until_quiet


def test_commands_are_offered_as_one_writes_and_chosen_by_keys_or_by_hand(front: Front) -> None:
    page = open_talk(front, new_session(front))
    offered = page.get_by_role("listbox", name="What can be asked of the house")
    field = composer(page)
    field.press_sequentially("/st")
    expect(offered.get_by_role("option")).to_have_count(2)
    expect(offered.get_by_role("option", selected=True)).to_contain_text("/status")
    field.press("ArrowDown")
    expect(offered.get_by_role("option", selected=True)).to_contain_text("/stop")
    expect(field).to_have_attribute("aria-activedescendant", "command-stop")
    assert violations(page) == []
    field.press("Enter")
    expect(field).to_have_value("/stop")
    field.press("Enter")
    expect(lines(page).get_by_text("Nothing was running here, and nothing waited.")).to_be_visible()
    field.press_sequentially("/whoa")
    offered.get_by_role("option").click()
    expect(field).to_have_value("/whoami")
    field.fill("/thin")
    field.press("Tab")
    expect(field).to_have_value("/think ")
    expect(offered).to_have_count(0)
    field.fill("/")
    expect(offered).to_be_visible()
    field.press("Escape")
    expect(offered).to_have_count(0)
    expect(field).to_be_focused()
    field.fill("/no_such_command")
    expect(offered).to_have_count(0)


@pytest.mark.spec("A81")
def test_whoever_switches_is_taken_along_and_back(front: Front) -> None:
    session = new_session(front)
    page = open_talk(front, session)
    say(page, "echo one")
    expect(replies(page)).to_have_text(["one"])
    say(page, "/switch clerk echo two")
    expect(page).not_to_have_url(re.compile(session))
    expect(own(page, "echo two")).to_be_visible()
    expect(replies(page).last).to_have_text("two")
    expect(composer(page)).to_have_attribute("placeholder", "Message clerk")
    say(page, "/switch back we agreed on two")
    expect(page).to_have_url(re.compile(session))
    expect(own(page, "Back from clerk. we agreed on two")).to_be_visible()
    expect(own(page, "echo one")).to_be_visible()
    until_quiet(front, session)
