"""`retinue connector add` asks for the required values, tests the connection and prints the next steps."""

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
from cli.server_process import ServerProcess, command, environment

from retinue.testing.telegram_server import TOKEN, TelegramServer
from retinue.testing.wait_conditions import WAIT_LIMIT_S

SETTINGS = """\
# Ours.
[server]
drain_s = 5.0  # not longer
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path / "home")
    process.home.mkdir()
    (process.home / "retinue.toml").write_text(SETTINGS)
    process.open()
    yield process
    process.close()


@pytest.fixture
def telegram() -> Iterator[str]:
    """Serve a fake Telegram on loopback in its own thread; its URL."""
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


def test_connector_add_prompts_at_a_terminal_and_connects_a_bot(server: ServerProcess, telegram: str) -> None:
    typing = PtyChat(server.home, "connector", "add", "telegram", "--settings", f'{{"api_base": "{telegram}"}}')
    try:
        typing.wait_for("Connector name [telegram]:")
        typing.type("family\n")
        typing.wait_for("token:")
        typing.type(f"{TOKEN}\n")
        assert typing.wait_for_end() == 0, typing.screen.text
        told = typing.screen.text
    finally:
        typing.close()
    assert "'family' was added as @retinue_bot" in told and "Next steps:" in told and "pairing accept" in told
    assert TOKEN not in told and TOKEN not in typing.raw  # not even while it was typed
    text = (server.home / "retinue.toml").read_text()
    assert text.startswith("# Ours.") and "# not longer" in text and TOKEN not in text
    [file] = (server.home / "secrets").iterdir()
    assert file.read_text() == TOKEN and stat.S_IMODE(file.stat().st_mode) == 0o600

    listed = retinue(server.home, "connector", "list")
    assert "name: family" in listed.stdout and "state: listening" in listed.stdout, listed.stderr
    tested = retinue(server.home, "connector", "test", "family")
    assert tested.returncode == 0 and "account: @retinue_bot" in tested.stdout


def test_connector_add_refuses_a_token_that_the_platform_rejects_and_stores_nothing(
    server: ServerProcess, telegram: str
) -> None:
    words = ("connector", "add", "telegram", "--settings", f'{{"api_base": "{telegram}"}}', "--secrets")
    refused = retinue(server.home, *words, '{"token": "777:wrong"}')
    assert refused.returncode == 1 and "connector.rejected" in refused.stderr, refused.stderr
    assert "777:wrong" not in refused.stderr
    assert list((server.home / "secrets").iterdir()) == []
    assert (server.home / "retinue.toml").read_text() == SETTINGS

    unchecked = retinue(server.home, *words, '{"token": "777:wrong"}', "--no-check")
    assert unchecked.returncode == 0, unchecked.stderr
    tested = retinue(server.home, "connector", "test", "telegram")
    assert tested.returncode == 1 and "cannot connect" in tested.stderr


@pytest.mark.spec("C122.whatsapp")
def test_connector_add_refuses_an_unknown_platform_by_name(server: ServerProcess) -> None:
    refused = retinue(server.home, "connector", "add", "whatsapp")
    assert refused.returncode == 1 and "whatsapp" in refused.stderr and "because: " in refused.stderr
