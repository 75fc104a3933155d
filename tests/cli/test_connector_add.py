"""An owner connects a bot with one command: asked for what it needs, checked with its place, told what to do next."""

from __future__ import annotations

import asyncio
import stat
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest
from cli.pty_chat import PtyChat
from cli.server_process import HouseProcess, command, environment

from retinue.testing.telegram_server import TOKEN, TelegramServer
from retinue.testing.wait_conditions import WAIT_LIMIT_S

SETTINGS = """\
# Ours.
[house]
drain_s = 5.0  # not longer
"""


@pytest.fixture
def house(tmp_path: Path) -> Iterator[HouseProcess]:
    process = HouseProcess(tmp_path / "home")
    process.home.mkdir()
    (process.home / "retinue.toml").write_text(SETTINGS)
    process.open()
    yield process
    process.close()


@pytest.fixture
def telegram() -> Iterator[str]:
    """The address of a Telegram on loopback, served from a thread of its own."""
    started: Future[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        over = asyncio.Event()
        async with TelegramServer() as server:
            started.set_result((server.url, asyncio.get_running_loop(), over))
            await over.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    url, loop, over = started.result(timeout=WAIT_LIMIT_S)
    yield url
    loop.call_soon_threadsafe(over.set)
    thread.join(timeout=WAIT_LIMIT_S)


def retinue(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*words),
        env=environment(home),
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def test_a_person_at_a_terminal_is_asked_and_a_bot_is_connected(house: HouseProcess, telegram: str) -> None:
    typing = PtyChat(house.home, "connector", "add", "telegram", "--settings", f'{{"api_base": "{telegram}"}}')
    try:
        typing.wait_for("Connector name [telegram]:")
        typing.type("family\n")
        typing.wait_for("token:")
        typing.type(f"{TOKEN}\n")
        assert typing.wait_for_end() == 0, typing.screen.text
        told = typing.screen.text
    finally:
        typing.close()
    assert "'family' was added as @house_bot" in told and "Next steps:" in told and "pairing accept" in told
    assert TOKEN not in told and TOKEN not in typing.raw  # not even while it was typed
    text = (house.home / "retinue.toml").read_text()
    assert text.startswith("# Ours.") and "# not longer" in text and TOKEN not in text
    [file] = (house.home / "secrets").iterdir()
    assert file.read_text() == TOKEN and stat.S_IMODE(file.stat().st_mode) == 0o600

    listed = retinue(house.home, "connector", "list")
    assert "name: family" in listed.stdout and "state: listening" in listed.stdout, listed.stderr
    tested = retinue(house.home, "connector", "test", "family")
    assert tested.returncode == 0 and "account: @house_bot" in tested.stdout


def test_a_token_that_the_place_does_not_know_is_refused_and_nothing_is_kept(
    house: HouseProcess, telegram: str
) -> None:
    words = ("connector", "add", "telegram", "--settings", f'{{"api_base": "{telegram}"}}', "--secrets")
    refused = retinue(house.home, *words, '{"token": "777:wrong"}')
    assert refused.returncode == 1 and "connector.rejected" in refused.stderr, refused.stderr
    assert "777:wrong" not in refused.stderr
    assert list((house.home / "secrets").iterdir()) == []
    assert (house.home / "retinue.toml").read_text() == SETTINGS

    unchecked = retinue(house.home, *words, '{"token": "777:wrong"}', "--no-check")
    assert unchecked.returncode == 0, unchecked.stderr
    tested = retinue(house.home, "connector", "test", "telegram")
    assert tested.returncode == 1 and "cannot connect" in tested.stderr


@pytest.mark.spec("C122.whatsapp")
def test_a_place_that_is_not_spoken_here_is_refused_by_its_name(house: HouseProcess) -> None:
    refused = retinue(house.home, "connector", "add", "whatsapp")
    assert refused.returncode == 1 and "whatsapp" in refused.stderr and "because: " in refused.stderr
