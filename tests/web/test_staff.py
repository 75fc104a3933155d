"""Agents together, as the page shows it."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import expect
from web.browser import Front
from web.talk import lines, new_session, open_talk, replies, say, until_quiet

HEARD_WITHIN_MS = 60_000


@pytest.mark.spec("A32")
def test_a_call_that_asks_another_agent_shows_what_that_one_says_until_it_has_its_answer(front: Front) -> None:
    front.rim.do("agent.register", name="bo", model="guide")
    session = new_session(front)
    page = open_talk(front, session)
    asked = {"agentId": "bo", "content": "count to 80"}
    say(page, f"call agents_message {json.dumps(asked)}")
    shown = lines(page).locator(".call .nested")
    expect(shown).to_contain_text("bo", timeout=HEARD_WITHIN_MS)
    expect(shown).to_contain_text("20 21", timeout=HEARD_WITHIN_MS)
    page.reload()
    expect(shown).to_contain_text("30 31", timeout=HEARD_WITHIN_MS)
    until_quiet(front, session)
    expect(shown).to_have_count(0)
    expect(replies(page).last).to_contain_text("80")
