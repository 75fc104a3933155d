"""A delegated reply that streams into the tool call of the asking agent."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Callable, Iterator

import pytest
from api.tcp_server import ApiClient, open_api_client
from flows.fake_provider import Answer, Asked, FakeReply, says
from playwright.sync_api import expect
from web.browser import WebApp
from web.chat_actions import create_session, message_log, open_chat, replies, type_message, wait_until_idle
from web.conftest import SETTINGS
from web.test_usage import PRICED_MODELS, serve_provider

from retinue.testing.wait_conditions import WAIT_LIMIT_S


@pytest.fixture(scope="module")
def counting_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ApiClient, Callable[[], None]]]:
    """A server whose agent bo has counted to 40 and continues when the function is called."""
    release = asyncio.Event()

    def count_in_two_parts(request: Asked) -> Answer | FakeReply:
        if request.path.endswith("/finish"):
            release.set()
            return Answer()
        numbers = [str(number) for number in range(1, 81)]
        return says(" ".join(["", *numbers[40:]]), begins=" ".join(numbers[:40]), held=release)

    with (
        serve_provider(count_in_two_parts) as url,
        open_api_client(tmp_path_factory.mktemp("team"), SETTINGS + PRICED_MODELS.format(url=url)) as server,
    ):
        server.do("agent.register", name="bo", model="mock/m1")
        yield server, lambda: urllib.request.urlopen(f"{url}/finish", timeout=WAIT_LIMIT_S).close()


@pytest.fixture(scope="module")
def server(counting_server: tuple[ApiClient, Callable[[], None]]) -> ApiClient:
    return counting_server[0]


@pytest.mark.spec("A32")
def test_a_call_to_an_agent_of_the_team_shows_its_reply_in_the_web_chat_while_it_streams(
    app: WebApp, counting_server: tuple[ApiClient, Callable[[], None]]
) -> None:
    session = create_session(app)
    page = open_chat(app, session)
    request = {"agentId": "bo", "content": "count to 80"}
    type_message(page, f"call agents_message {json.dumps(request)}")
    shown = message_log(page).locator(".call .nested")
    expect(shown).to_contain_text("bo")
    expect(shown).to_contain_text("20 21")
    page.reload()
    expect(shown).to_contain_text("30 31")
    counting_server[1]()
    wait_until_idle(app, session)
    expect(shown).to_have_count(0)
    expect(replies(page).last).to_contain_text("80")
