"""Test conversations on Telegram with a server process that is killed in between."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Iterator

import pytest
from connectors.server_process import (
    AFTER_ACCEPT,
    AFTER_PLATFORM_SEND,
    BETWEEN_PARTS,
    ServerWithProvider,
    open_server_with_provider,
    tools_have_answered,
)
from connectors.telegram_peer import INSTALL_TIMEOUT_S, run_peer, send_as_maria, wait_for_messages_to_maria
from flows.fake_provider import Asked, FakeReply, calls, says

from retinue.testing.fake_telegram import FakeChat, build_user
from retinue.testing.telegram_server import TOKEN, TelegramFault, TelegramServer, throttle_fault
from retinue.testing.wait_conditions import wait_until

OWNER, NOOR, MALLORY = 42, 43, 44
SETTINGS = """
[connectors.family]
platform = "telegram"
token_file = "{home}/bot-token"
api_base = "API"
poll_s = 5
timeout_s = 60.0
dm_policy = "pairing"
catch_up_hours = 0.0  # the stand-in's calendar has stopped

[connectors.others]
platform = "telegram"
token_file = "{home}/bot-token"
api_base = "PEER"
poll_s = 1
catch_up_hours = 0.0
"""
pytestmark = pytest.mark.timeout(INSTALL_TIMEOUT_S + 60)  # includes installing the peer
LONG = "\n".join(f"Line {number} of an answer that is long." for number in range(1, 301))
CODE = re.compile(r"\b[A-Z2-9]{8}\b")


@pytest.fixture(scope="module")
async def telegram() -> AsyncGenerator[TelegramServer]:
    async with TelegramServer() as server:
        for id_ in (NOOR, MALLORY):
            server.chats[id_] = FakeChat(id=id_)
        yield server


@pytest.fixture(scope="module")
def peer() -> Iterator[str]:
    with run_peer() as url:
        yield url


@pytest.fixture(scope="module")
async def shared_server(
    telegram: TelegramServer, peer: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[ServerWithProvider]:
    root = tmp_path_factory.mktemp("telegram")
    settings = SETTINGS.replace("API", telegram.url).replace("PEER", peer)
    async with open_server_with_provider(root, settings, secrets={"bot-token": TOKEN}) as server:
        await server.retinue("identity", "link", "owner", "telegram", "--id", str(OWNER))
        yield server


@pytest.fixture
async def server(shared_server: ServerWithProvider) -> AsyncGenerator[ServerWithProvider]:
    if not shared_server.is_open:
        await shared_server.open()
    yield shared_server
    await shared_server.check_nothing_is_lost()


async def wait_for_bot_texts(telegram: TelegramServer, word: str, *, room: int = OWNER, times: int = 1) -> list[str]:
    """Wait for this many bot messages that contain the word, and return them."""

    def found() -> list[str]:
        return [text for text in telegram.list_bot_texts(room) if word in text]

    await wait_until(
        lambda: len(found()) >= times,
        f"an answer with {word!r} is there",
        describe=lambda: telegram.list_bot_texts(room),
    )
    return found()


async def test_the_owner_is_answered_on_telegram_with_a_quote_of_the_question(
    server: ServerWithProvider, telegram: TelegramServer
) -> None:
    server.replies["ask-lunch"] = says("Lunch with **Noor**.")
    asked = telegram.person_sends("What is ask-lunch today?")
    await wait_for_bot_texts(telegram, "Lunch with Noor.")

    [answer] = [each for each in telegram.list_bot_messages() if each.get("text") == "Lunch with Noor."]
    assert answer["entities"][0]["type"] == "bold"
    assert answer["reply_to_message"]["message_id"] == asked


async def test_the_server_answers_through_the_independent_telegram_test_server(
    server: ServerWithProvider, telegram: TelegramServer, peer: str
) -> None:
    await send_as_maria(peer, "What is ask-elsewhere?")
    [answer] = await wait_for_messages_to_maria(peer)

    assert answer["text"] == "An answer to ask-elsewhere."
    assert not any("ask-elsewhere" in text for text in telegram.list_bot_texts())


async def test_a_stranger_gets_a_pairing_code_on_telegram_and_is_answered_once_accepted(
    server: ServerWithProvider, telegram: TelegramServer
) -> None:
    noor, mallory = build_user(NOOR, "Noor"), build_user(MALLORY, "Noor")
    telegram.person_sends("Let me in, ask-early.", chat_id=NOOR, sender=noor)
    telegram.person_sends("Me too, ask-never.", chat_id=MALLORY, sender=mallory)
    [pairing_text] = await wait_for_bot_texts(telegram, "I do not know you yet", room=NOOR)
    await wait_for_bot_texts(telegram, "I do not know you yet", room=MALLORY)
    await server.retinue("pairing", "accept", CODE.findall(pairing_text)[-1])

    telegram.person_sends("Now ask-now.", chat_id=NOOR, sender=noor)
    telegram.person_sends("And ask-still.", chat_id=MALLORY, sender=mallory)
    await wait_for_bot_texts(telegram, "An answer to ask-now.", room=NOOR)
    await server.wait_until_idle()

    assert len(telegram.list_bot_texts(NOOR)) == 2
    assert len(telegram.list_bot_texts(MALLORY)) == 1
    assert not any(word in each.raw.decode() for each in server.model.asked for word in ("ask-early", "ask-still"))


async def test_a_telegram_file_is_received_and_sent_back_unchanged(
    server: ServerWithProvider, telegram: TelegramServer
) -> None:
    content = b"the minutes of a meeting\n" * 100

    def send_back(asked: Asked) -> FakeReply:
        if tools_have_answered(asked):
            return says("There it is, ask-file done.")
        [(hash_,)] = server.query_database(
            "select attachments from envelopes where text like '%ask-file%' and kind = 'message'"
        )
        return calls(("send_file", {"file_id": re.findall(r"[0-9a-f]{64}", hash_)[0], "name": "back.txt"}))

    server.replies["ask-file"] = send_back
    telegram.person_sends_file(
        "document", content, name="minutes.txt", media_type="text/plain", caption="Keep ask-file"
    )
    await wait_for_bot_texts(telegram, "ask-file done")

    [sent] = [each["document"] for each in telegram.list_bot_messages() if "document" in each]
    assert sent["file_name"] == "back.txt"
    assert telegram.files[sent["file_id"]].content == content


async def test_a_telegram_quote_and_a_telegram_edit_are_stored_as_replies_to_the_right_envelopes(
    server: ServerWithProvider, telegram: TelegramServer
) -> None:
    telegram.person_sends("It is ask-first.")
    await wait_for_bot_texts(telegram, "An answer to ask-first.")
    await server.wait_until_idle()  # the server has stored Telegram's id of the answer
    [ours] = [each for each in telegram.list_bot_messages() if each.get("text") == "An answer to ask-first."]
    quoting = telegram.person_sends("Why, ask-second?", reply_to=ours["message_id"])
    await wait_for_bot_texts(telegram, "An answer to ask-second.")
    telegram.person_edits(quoting, "Why not, ask-third?")
    await wait_for_bot_texts(telegram, "An answer to ask-third.")

    [(reply_to,)] = server.query_database("select reply_to from envelopes where text = 'Why, ask-second?'")
    assert server.query_database("select text from envelopes where id = ?", reply_to) == [("An answer to ask-first.",)]
    [(edited,)] = server.query_database("select reply_to from envelopes where text like '%Why not, ask-third?%'")
    assert server.query_database("select text from envelopes where id = ?", edited) == [("Why, ask-second?",)]


async def test_a_long_telegram_answer_continues_in_order_after_throttling_and_a_restart(
    server: ServerWithProvider, telegram: TelegramServer
) -> None:
    server.replies["ask-long"] = says(LONG)
    before = len(telegram.list_bot_texts())
    telegram.will_fail(
        "sendMessage", TelegramFault(), throttle_fault(1)
    )  # the first part is accepted, the second is throttled
    telegram.person_sends("At length, ask-long.")
    await wait_for_bot_texts(telegram, "Line 1 of")
    await server.close()
    await server.open()
    await wait_for_bot_texts(telegram, "Line 300 of")
    await server.wait_until_idle()

    parts = telegram.list_bot_texts()[before:]
    assert len(parts) > 2
    assert "\n".join(parts) == LONG
    assert server.list_delivery_outcomes("Line 300 of") == ["delivered"]


@pytest.mark.spec("H1", "D11")
async def test_a_killed_server_answers_each_telegram_message_once_and_never_resends_an_uncertain_part(
    server: ServerWithProvider, telegram: TelegramServer
) -> None:
    def notices() -> list[str]:
        found = server.query_database(
            "select text from envelopes where text like '%may or may not have arrived%' order by seq"
        )
        return [text for (text,) in found]

    server.replies["ask-cut-off"] = says(LONG.replace("Line", "Part"))
    before, notices_before = len(telegram.list_bot_texts()), len(notices())

    await server.reopen(crash_point=AFTER_ACCEPT)
    telegram.person_sends("Are you there, ask-accepted?")
    await server.wait_until_crashed()
    await server.open(crash_point=BETWEEN_PARTS)
    await wait_for_bot_texts(telegram, "An answer to ask-accepted.")
    telegram.person_sends("Something long, ask-cut-off.")
    await server.wait_until_crashed()
    await server.open(crash_point=AFTER_PLATFORM_SEND)
    telegram.person_sends("Something short, ask-doubt.")
    await server.wait_until_crashed()
    await server.open()
    telegram.person_sends("And then, ask-after?")
    await wait_for_bot_texts(telegram, "An answer to ask-after.")
    await server.wait_until_idle()

    accepted, part, doubt, after = telegram.list_bot_texts()[before:]
    assert accepted == "An answer to ask-accepted."
    assert LONG.replace("Line", "Part").startswith(part)
    assert (doubt, after) == ("An answer to ask-doubt.", "An answer to ask-after.")
    assert server.list_delivery_outcomes("Part 300 of") == ["interrupted"]
    assert server.list_delivery_outcomes("An answer to ask-doubt") == ["interrupted"]
    new = notices()[notices_before:]
    assert len(new) == 2
    for notice in new:  # each one names its envelope
        assert server.model.asked[-1].raw.decode().count(notice) == 1


async def test_messages_sent_while_telegram_or_the_server_was_down_are_answered_once(
    server: ServerWithProvider, telegram: TelegramServer
) -> None:
    await telegram.stop()
    telegram.person_sends("You were away, ask-outage.")
    await telegram.start()
    await wait_for_bot_texts(telegram, "An answer to ask-outage.")
    await server.kill()
    telegram.person_sends("We were away, ask-closed.")
    await server.open()
    await wait_for_bot_texts(telegram, "An answer to ask-closed.")
    await server.wait_until_idle()

    assert len([text for text in telegram.list_bot_texts() if "ask-outage" in text or "ask-closed" in text]) == 2
