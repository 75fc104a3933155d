"""Test the Telegram connector with telegram-test-api, an independent server for testing bots.

It supports fewer methods than our own fake server (no files, no faults), but shares no code with us.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from connectors.telegram_instance import TelegramSetup, bot, listen_in_background, make_delivery_part, wait_until_true
from connectors.telegram_peer import (
    CHAT,
    INSTALL_TIMEOUT_S,
    PERSON,
    call_peer,
    run_peer,
    send_as_maria,
    wait_for_messages_to_maria,
)

from retinue.connectors.base import Button, InboundKind
from retinue.testing.telegram_server import TOKEN


@pytest.fixture(scope="module")
def peer() -> Iterator[str]:
    with run_peer() as url:
        yield url


@pytest.mark.timeout(INSTALL_TIMEOUT_S + 60)
async def test_a_message_from_the_telegram_peer_server_is_received_and_answered(peer: str) -> None:
    connector, server = bot(peer, poll_s=1), TelegramSetup()
    async with listen_in_background(connector, server) as lost:
        await send_as_maria(peer, "What is on today?")
        [question] = await server.wait_for_messages(1)
        await connector.deliver(make_delivery_part("Lunch with **Noor**.", quote=question.message_id))
        [answer] = await wait_for_messages_to_maria(peer)
        await send_as_maria(peer, "Thanks!")
        await server.wait_for_messages(2)

    assert (question.channel, question.sender.id, question.text) == ("42", "42", "What is on today?")
    assert (answer["text"], answer["parse_mode"]) == ("Lunch with <b>Noor</b>.", "HTML")
    assert answer["reply_parameters"] == {"message_id": int(question.message_id)}
    assert server.texts == ["What is on today?", "Thanks!"]
    assert lost == []


async def test_the_telegram_peer_server_shows_a_button_and_its_press_is_received(peer: str) -> None:
    connector, server = bot(peer, poll_s=1), TelegramSetup()
    async with listen_in_background(connector, server):
        delivery = await connector.deliver(make_delivery_part("May I?", buttons=[[Button("Yes", "allow:9c8d")]]))
        [question] = await wait_for_messages_to_maria(peer)
        under = {"message_id": int(delivery.receipt), "chat": CHAT, "text": "May I?"}
        press = {"botToken": TOKEN, "from": PERSON, "message": under, "data": "allow:9c8d"}
        await call_peer(peer, "sendCallback", press)
        await wait_until_true(lambda: bool(server.received))
        [received_press] = server.received
        await connector.answer_press(received_press.message_id, "Allowed.")

    assert question["reply_markup"] == {"inline_keyboard": [[{"text": "Yes", "callback_data": "allow:9c8d"}]]}
    assert (received_press.kind, received_press.text) == (InboundKind.PRESS, "allow:9c8d")
    assert received_press.quoted is not None
    assert received_press.quoted.message_id == delivery.receipt


async def test_the_telegram_peer_server_shows_a_preview_and_deletes_it(peer: str) -> None:
    connector = bot(peer)

    async def list_texts_to_noor() -> list[str]:
        history = await call_peer(peer, "getUpdatesHistory", {"token": TOKEN})
        return [each["message"]["text"] for each in history if each.get("message", {}).get("chat_id") == 43]

    preview_id = await connector.preview("43", "Lunch wi")  # its own channel: the server takes a press for a message
    assert await list_texts_to_noor() == ["Lunch wi"]
    await connector.delete_preview("43", preview_id)

    assert await list_texts_to_noor() == []


async def test_the_check_reports_the_bot_account_of_the_telegram_peer_server(peer: str) -> None:
    finding = await bot(peer).check()

    assert (finding.ok, finding.account) == (True, "@TestNameBot")
