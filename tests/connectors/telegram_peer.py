"""Somebody else's idea of Telegram: telegram-test-api, a server that others test their bots with."""

from __future__ import annotations

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

HERE = Path(__file__).parent / "peers" / "telegram"
INSTALL_S = 300
PERSON = {"id": 42, "first_name": "Maria", "username": "maria", "is_bot": False}
CHAT = {"id": 42, "type": "private", "first_name": "Maria"}


def installed() -> Path:
    """The server's folder, after `npm ci` where that has not been done since its lock file changed."""
    done = HERE / "node_modules" / ".package-lock.json"
    if done.exists() and done.stat().st_mtime >= (HERE / "package-lock.json").stat().st_mtime:
        return HERE
    npm = shutil.which("npm")
    if npm is None:
        pytest.fail("npm is missing: install Node.js 20 or newer (Debian: apt install nodejs npm)")
    made = subprocess.run(
        [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"],
        cwd=HERE,
        env={**os.environ, "CI": "1"},
        capture_output=True,
        text=True,
        timeout=INSTALL_S,
        check=False,
    )
    if made.returncode:
        pytest.fail(f"cd {HERE} && npm ci --ignore-scripts failed:\n{made.stderr[-2000:]}")
    done.touch()
    return HERE


@contextmanager
def running_peer() -> Iterator[str]:
    """Where it listens."""
    process = subprocess.Popen(
        ["node", "server.js"], cwd=installed(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        url = process.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:"), "the server did not start; its own words are above"
        yield url
    finally:
        process.stdin.close()  # it ends with that
        process.wait(timeout=WAIT_LIMIT_S)
        process.stdout.close()


async def asked_of(peer: str, path: str, body: dict[str, Any]) -> Any:
    async with aiohttp.ClientSession() as session, session.post(f"{peer}/{path}", json=body) as response:
        return (await response.json())["result"]


async def say(peer: str, text: str) -> None:
    message = {"botToken": TOKEN, "from": PERSON, "chat": CHAT, "date": 1_767_603_600, "text": text}
    await asked_of(peer, "sendMessage", message)


async def shown_to_maria(peer: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while not found:
        found = await asked_of(peer, "getUpdates", {"token": TOKEN, "chatId": 42})
    return [each["message"] for each in found]
