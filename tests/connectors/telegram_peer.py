"""Run telegram-test-api, an independent Telegram server for testing bots."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from retinue.testing.telegram_server import TOKEN
from retinue.testing.wait_conditions import WAIT_LIMIT_S

PEER_DIRECTORY = Path(__file__).parent / "peers" / "telegram"
INSTALL_TIMEOUT_S = 300
PERSON = {"id": 42, "first_name": "Maria", "username": "maria", "is_bot": False}
CHAT = {"id": 42, "type": "private", "first_name": "Maria"}


def install_peer() -> Path:
    """Return the folder of the server, after `npm ci` if its lock file has changed.

    Test processes that run in parallel take turns: `npm ci` first removes what another one has installed.
    """
    folder = os.open(PEER_DIRECTORY, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        _install_if_changed()
    finally:
        os.close(folder)
    return PEER_DIRECTORY


def _install_if_changed() -> None:
    done = PEER_DIRECTORY / "node_modules" / ".package-lock.json"
    if done.exists() and done.stat().st_mtime >= (PEER_DIRECTORY / "package-lock.json").stat().st_mtime:
        return
    npm = shutil.which("npm")
    if npm is None:
        pytest.fail("npm is missing: install Node.js 20 or newer (Debian: apt install nodejs npm)")
    made = subprocess.run(
        [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"],
        cwd=PEER_DIRECTORY,
        env={**os.environ, "CI": "1"},
        capture_output=True,
        text=True,
        timeout=INSTALL_TIMEOUT_S,
        check=False,
    )
    if made.returncode:
        pytest.fail(f"cd {PEER_DIRECTORY} && npm ci --ignore-scripts failed:\n{made.stderr[-2000:]}")
    done.touch()


@contextmanager
def run_peer() -> Iterator[str]:
    """Run the server and yield its URL."""
    process = subprocess.Popen(
        ["node", "server.js"], cwd=install_peer(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        url = process.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:"), "the server did not start; its output is above"
        yield url
    finally:
        process.stdin.close()  # it exits when its standard input closes
        process.wait(timeout=WAIT_LIMIT_S)
        process.stdout.close()


async def call_peer(peer: str, path: str, body: dict[str, Any]) -> Any:
    async with aiohttp.ClientSession() as session, session.post(f"{peer}/{path}", json=body) as response:
        return (await response.json())["result"]


async def send_as_maria(peer: str, text: str) -> None:
    message = {"botToken": TOKEN, "from": PERSON, "chat": CHAT, "date": 1_767_603_600, "text": text}
    await call_peer(peer, "sendMessage", message)


async def wait_for_messages_to_maria(peer: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while not found:
        found = await call_peer(peer, "getUpdates", {"token": TOKEN, "chatId": 42})
    return [each["message"] for each in found]
