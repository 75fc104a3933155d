"""A real server is killed around an envelope to an external agent: nothing is lost, and nothing is repeated."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from api.tcp_server import ApiClient
from cli.server_process import ServerProcess
from flows.external_agent import KEY, FakeExternalAgent, ReceivedEnvelope, run_external_agent

from retinue.testing.wait_conditions import wait_until_sync

CRASH_POINTS = ("deliver.after", "callback.before-commit", "callback.after-commit")


@pytest.mark.parametrize("point", CRASH_POINTS)
async def test_a_message_to_an_external_agent_is_answered_once_if_the_server_is_killed_around_it(
    tmp_path: Path, point: str
) -> None:
    server = ServerProcess(tmp_path / "home")
    async with run_external_agent() as fake_agent:
        try:
            await asyncio.to_thread(_register_external_agent, server, fake_agent)
            await asyncio.to_thread(server.open, crash_at=f"{point}:1")
            await asyncio.to_thread(_send, server)
            if point.startswith("callback"):
                with pytest.raises(aiohttp.ClientError):
                    await _post_answer(server, fake_agent, await fake_agent.received_envelope())
            await asyncio.to_thread(server.wait_for_crash)
            await asyncio.to_thread(server.open)
            received_envelope = await fake_agent.received_envelope()
            assert (await _post_answer(server, fake_agent, received_envelope)).status == 200
            await asyncio.to_thread(_wait_for_answer, server)
            assert await asyncio.to_thread(_list_answers, server) == ["Hello."]
            assert {each.id for each in fake_agent.received_envelopes} == {received_envelope.id}
        finally:
            await asyncio.to_thread(server.close)


def _register_external_agent(server: ServerProcess, fake_agent: FakeExternalAgent) -> None:
    server.home.mkdir(parents=True)
    key = server.home / "far-key"
    key.write_text(KEY)
    key.chmod(0o600)
    host = fake_agent.url.removeprefix("http://").partition("/")[0]
    (server.home / "retinue.toml").write_text(f'[external]\nprivate_hosts = ["{host}"]\n')
    server.open()
    ApiClient(server).do(
        "agent.register", name="rex", runner="external", external_url=fake_agent.url, external_secret=f"file:{key}"
    )
    server.kill()


def _send(server: ServerProcess) -> None:
    try:
        ApiClient(server).do("envelope.send", to="agent:rex", text="Hello?", key="once")
    except (OSError, AssertionError, ValueError):
        pass  # the server may crash before it responds


async def _post_answer(
    server: ServerProcess, fake_agent: FakeExternalAgent, received_envelope: ReceivedEnvelope
) -> Any:
    """Post to the current address of the server: each start uses a new port."""
    address = (server.home / "address").read_text()
    path = received_envelope.json["callbackUrl"].partition("/external/")[2]
    return await fake_agent.post_callback(
        f"{address}/external/{path}", received_envelope.json["sessionId"], "Hello.", message="1"
    )


def _list_answers(server: ServerProcess) -> list[str]:
    found = ApiClient(server).do("inbox.list")
    return [each["text"] for each in found["envelopes"]]


def _wait_for_answer(server: ServerProcess) -> None:
    wait_until_sync(lambda: _list_answers(server), "an answer was sent")
