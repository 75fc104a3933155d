"""Against somebody else's idea of Telegram: telegram-test-api, a server that others test their bots with.

It knows fewer methods than our own stand-in (no files, no faults), and nobody of ours had a hand in it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from doors.telegram_house import House, bot, listening, parcel, until

from retinue.connectors.base import Button, Heard
from retinue.testing.telegram_server import TOKEN

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


@pytest.fixture(scope="module")
def peer() -> Iterator[str]:
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
        process.wait(timeout=10)
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


@pytest.mark.timeout(INSTALL_S + 60)
async def test_a_persons_question_is_heard_and_answered(peer: str) -> None:
    connector, house = bot(peer, poll_s=1), House()
    async with listening(connector, house) as lost:
        await say(peer, "What is on today?")
        [question] = await house.until_heard(1)
        await connector.deliver(parcel("Lunch with **Noor**.", quote=question.message_id))
        [answer] = await shown_to_maria(peer)
        await say(peer, "Thanks!")
        await house.until_heard(2)

    assert (question.room, question.speaker.id, question.text) == ("42", "42", "What is on today?")
    assert (answer["text"], answer["parse_mode"]) == ("Lunch with <b>Noor</b>.", "HTML")
    assert answer["reply_parameters"] == {"message_id": int(question.message_id)}
    assert house.texts == ["What is on today?", "Thanks!"]
    assert lost == []


async def test_a_button_is_shown_and_its_press_is_heard(peer: str) -> None:
    connector, house = bot(peer, poll_s=1), House()
    async with listening(connector, house):
        delivery = await connector.deliver(parcel("May I?", buttons=[[Button("Yes", "allow:9c8d")]]))
        [question] = await shown_to_maria(peer)
        under = {"message_id": int(delivery.receipt), "chat": CHAT, "text": "May I?"}
        press = {"botToken": TOKEN, "from": PERSON, "message": under, "data": "allow:9c8d"}
        await asked_of(peer, "sendCallback", press)
        await until(lambda: bool(house.heard))
        [pressed] = house.heard
        await connector.answer_press(pressed.message_id, "Allowed.")

    assert question["reply_markup"] == {"inline_keyboard": [[{"text": "Yes", "callback_data": "allow:9c8d"}]]}
    assert (pressed.kind, pressed.text) == (Heard.PRESS, "allow:9c8d")
    assert pressed.quoted is not None
    assert pressed.quoted.message_id == delivery.receipt


async def test_words_shown_while_they_are_written_are_taken_back(peer: str) -> None:
    connector = bot(peer)

    async def shown_to_noor() -> list[str]:
        history = await asked_of(peer, "getUpdatesHistory", {"token": TOKEN})
        return [each["message"]["text"] for each in history if each.get("message", {}).get("chat_id") == 43]

    shown = await connector.preview("43", "Lunch wi")  # a room of its own: the server takes a press for a message
    assert await shown_to_noor() == ["Lunch wi"]
    await connector.take_back("43", shown)

    assert await shown_to_noor() == []


async def test_who_we_are_there_is_found_out(peer: str) -> None:
    finding = await bot(peer).check()

    assert (finding.ok, finding.account) == (True, "@TestNameBot")
