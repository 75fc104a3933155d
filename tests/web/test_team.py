"""Agents together, as the page shows it."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Callable, Iterator

import pytest
from api.tcp_server import Rim, open_rim
from flows.fake_provider import Answer, Asked, Said, says
from playwright.sync_api import expect
from web.browser import Front
from web.chat_actions import lines, new_session, open_talk, replies, say, until_quiet
from web.conftest import SETTINGS
from web.test_usage import PRICED, serving

from retinue.testing.waiting import WAIT_LIMIT_S


@pytest.fixture(scope="module")
def finish(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Rim, Callable[[], None]]]:
    """A server whose agent bo has counted to 40 and counts on when the function is called."""
    on = asyncio.Event()

    def counts(asked: Asked) -> Answer | Said:
        if asked.path.endswith("/finish"):
            on.set()
            return Answer()
        numbers = [str(number) for number in range(1, 81)]
        return says(" ".join(["", *numbers[40:]]), begins=" ".join(numbers[:40]), held=on)

    with serving(counts) as url, open_rim(tmp_path_factory.mktemp("staff"), SETTINGS + PRICED.format(url=url)) as rim:
        rim.do("agent.register", name="bo", model="mock/m1")
        yield rim, lambda: urllib.request.urlopen(f"{url}/finish", timeout=WAIT_LIMIT_S).close()


@pytest.fixture(scope="module")
def rim(finish: tuple[Rim, Callable[[], None]]) -> Rim:
    return finish[0]


@pytest.mark.spec("A32")
def test_a_call_that_asks_another_agent_shows_what_that_one_says_until_it_has_its_answer(
    front: Front, finish: tuple[Rim, Callable[[], None]]
) -> None:
    session = new_session(front)
    page = open_talk(front, session)
    asked = {"agentId": "bo", "content": "count to 80"}
    say(page, f"call agents_message {json.dumps(asked)}")
    shown = lines(page).locator(".call .nested")
    expect(shown).to_contain_text("bo")
    expect(shown).to_contain_text("20 21")
    page.reload()
    expect(shown).to_contain_text("30 31")
    finish[1]()
    until_quiet(front, session)
    expect(shown).to_have_count(0)
    expect(replies(page).last).to_contain_text("80")
