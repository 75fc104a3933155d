"""A real house, killed around a letter to an agent elsewhere and its answer: nothing is lost, nothing comes twice."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from api.tcp_server import Rim
from cli.server_process import HouseProcess
from flows.external_agent import KEY, FarSide, Letter, far_side

from retinue.testing.wait_conditions import wait_until_sync

KILLED = ("deliver.after", "callback.before-commit", "callback.after-commit")


@pytest.mark.parametrize("point", KILLED)
async def test_killed_around_a_letter_it_is_answered_once(tmp_path: Path, point: str) -> None:
    house = HouseProcess(tmp_path / "home")
    async with far_side() as far:
        try:
            await asyncio.to_thread(_furnish, house, far)
            await asyncio.to_thread(house.open, crash_at=f"{point}:1")
            await asyncio.to_thread(_send, house)
            if point.startswith("callback"):
                with pytest.raises(aiohttp.ClientError):
                    await _answer(house, far, await far.letter())
            await asyncio.to_thread(house.wait_for_crash)
            await asyncio.to_thread(house.open)
            letter = await far.letter()
            assert (await _answer(house, far, letter)).status == 200
            await asyncio.to_thread(_until_answered, house)
            assert await asyncio.to_thread(_answers, house) == ["Hello."]
            assert {each.id for each in far.letters} == {letter.id}
        finally:
            await asyncio.to_thread(house.close)


def _furnish(house: HouseProcess, far: FarSide) -> None:
    house.home.mkdir(parents=True)
    key = house.home / "far-key"
    key.write_text(KEY)
    key.chmod(0o600)
    host = far.url.removeprefix("http://").partition("/")[0]
    (house.home / "retinue.toml").write_text(f'[external]\nprivate_hosts = ["{host}"]\n')
    house.open()
    Rim(house).do("agent.register", name="rex", runner="external", external_url=far.url, external_secret=f"file:{key}")
    house.kill()


def _send(house: HouseProcess) -> None:
    try:
        Rim(house).do("envelope.send", to="agent:rex", text="Hello?", key="once")
    except (OSError, AssertionError, ValueError):
        pass  # it may die before it has answered


async def _answer(house: HouseProcess, far: FarSide, letter: Letter) -> Any:
    """By the address that the house has now: each start takes a port of its own."""
    address = (house.home / "address").read_text()
    path = letter.json["callbackUrl"].partition("/external/")[2]
    return await far.say(f"{address}/external/{path}", letter.json["sessionId"], "Hello.", message="1")


def _answers(house: HouseProcess) -> list[str]:
    found = Rim(house).do("inbox.list")
    return [each["text"] for each in found["envelopes"]]


def _until_answered(house: HouseProcess) -> None:
    wait_until_sync(lambda: _answers(house), "an answer came")
