"""Against somebody else's idea of Telegram: telegram-test-api, a server that others test their bots with.

It knows fewer methods than our own stand-in (no files, no faults), and nobody of ours had a hand in it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from connectors.telegram_instance import House, bot, listening, parcel, until
from connectors.telegram_peer import CHAT, INSTALL_S, PERSON, asked_of, running_peer, say, shown_to_maria

from retinue.connectors.base import Button, InboundKind
from retinue.testing.telegram_server import TOKEN


@pytest.fixture(scope="module")
def peer() -> Iterator[str]:
    with running_peer() as url:
        yield url


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
    assert (pressed.kind, pressed.text) == (InboundKind.PRESS, "allow:9c8d")
    assert pressed.quoted is not None
    assert pressed.quoted.message_id == delivery.receipt


async def test_words_shown_while_they_are_written_are_taken_back(peer: str) -> None:
    connector = bot(peer)

    async def shown_to_noor() -> list[str]:
        history = await asked_of(peer, "getUpdatesHistory", {"token": TOKEN})
        return [each["message"]["text"] for each in history if each.get("message", {}).get("chat_id") == 43]

    shown = await connector.preview("43", "Lunch wi")  # a room of its own: the server takes a press for a message
    assert await shown_to_noor() == ["Lunch wi"]
    await connector.delete_preview("43", shown)

    assert await shown_to_noor() == []


async def test_who_we_are_there_is_found_out(peer: str) -> None:
    finding = await bot(peer).check()

    assert (finding.ok, finding.account) == (True, "@TestNameBot")
