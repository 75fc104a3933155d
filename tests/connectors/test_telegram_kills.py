"""Whole conversations by Telegram with a house in a process of its own, which is killed in the midst of them."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Iterator

import pytest
from connectors.server_process import (
    AFTER_ACCEPT,
    BETWEEN_PARTS,
    IN_DOUBT,
    RealHouse,
    real_house,
    was_called,
)
from connectors.telegram_peer import INSTALL_S, running_peer, say, shown_to_maria
from flows.fake_provider import Asked, Said, calls, says

from retinue.testing.fake_telegram import FakeChat, build_user
from retinue.testing.telegram_server import TOKEN, TelegramFault, TelegramServer, throttle_fault
from retinue.testing.wait_conditions import wait_until

OWNER, NOOR, MALLORY = 42, 43, 44
SETTINGS = """
[connectors.family]
kind = "telegram"
token_file = "{home}/bot-token"
api_base = "API"
poll_s = 5
timeout_s = 60.0
dm = "pairing"
catch_up_hours = 0.0  # the stand-in's calendar has stopped

[connectors.others]
kind = "telegram"
token_file = "{home}/bot-token"
api_base = "PEER"
poll_s = 1
catch_up_hours = 0.0
"""
pytestmark = pytest.mark.timeout(INSTALL_S + 60)  # where the peer has to be fetched first
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
    with running_peer() as url:
        yield url


@pytest.fixture(scope="module")
async def standing(
    telegram: TelegramServer, peer: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[RealHouse]:
    root = tmp_path_factory.mktemp("telegram")
    settings = SETTINGS.replace("API", telegram.url).replace("PEER", peer)
    async with real_house(root, settings, secrets={"bot-token": TOKEN}) as house:
        await house.retinue("identity", "link", "owner", "telegram", "--id", str(OWNER))
        yield house


@pytest.fixture
async def house(standing: RealHouse) -> AsyncGenerator[RealHouse]:
    if not standing.is_open:
        await standing.open()
    yield standing
    await standing.holds()


async def answered(telegram: TelegramServer, word: str, *, room: int = OWNER, times: int = 1) -> list[str]:
    """What we said there with this word in it, once there is so much of it."""

    def found() -> list[str]:
        return [text for text in telegram.list_bot_texts(room) if word in text]

    await wait_until(
        lambda: len(found()) >= times,
        f"an answer with {word!r} is there",
        describe=lambda: telegram.list_bot_texts(room),
    )
    return found()


async def test_the_owner_is_answered_and_what_is_answered_is_quoted(house: RealHouse, telegram: TelegramServer) -> None:
    house.said["ask-lunch"] = says("Lunch with **Noor**.")
    asked = telegram.person_sends("What is ask-lunch today?")
    await answered(telegram, "Lunch with Noor.")

    [answer] = [each for each in telegram.list_bot_messages() if each.get("text") == "Lunch with Noor."]
    assert answer["entities"][0]["type"] == "bold"
    assert answer["reply_to_message"]["message_id"] == asked


async def test_somebody_elses_telegram_is_answered_too(house: RealHouse, telegram: TelegramServer, peer: str) -> None:
    await say(peer, "What is ask-elsewhere?")
    [answer] = await shown_to_maria(peer)

    assert answer["text"] == "An answer to ask-elsewhere."
    assert not any("ask-elsewhere" in text for text in telegram.list_bot_texts())


async def test_a_stranger_is_told_a_code_and_answered_once_the_owner_has_let_them_in(
    house: RealHouse, telegram: TelegramServer
) -> None:
    noor, mallory = build_user(NOOR, "Noor"), build_user(MALLORY, "Noor")
    telegram.person_sends("Let me in, ask-early.", chat_id=NOOR, sender=noor)
    telegram.person_sends("Me too, ask-never.", chat_id=MALLORY, sender=mallory)
    [told] = await answered(telegram, "I do not know you yet", room=NOOR)
    await answered(telegram, "I do not know you yet", room=MALLORY)
    await house.retinue("pairing", "accept", CODE.findall(told)[-1])

    telegram.person_sends("Now ask-now.", chat_id=NOOR, sender=noor)
    telegram.person_sends("And ask-still.", chat_id=MALLORY, sender=mallory)
    await answered(telegram, "An answer to ask-now.", room=NOOR)
    await house.until_quiet()

    assert len(telegram.list_bot_texts(NOOR)) == 2
    assert len(telegram.list_bot_texts(MALLORY)) == 1
    assert not any(word in each.raw.decode() for each in house.model.asked for word in ("ask-early", "ask-still"))


async def test_a_file_comes_in_and_goes_back(house: RealHouse, telegram: TelegramServer) -> None:
    content = b"the minutes of a meeting\n" * 100

    def send_back(asked: Asked) -> Said:
        if was_called(asked):
            return says("There it is, ask-file done.")
        [(hash_,)] = house.rows("select attachments from envelopes where text like '%ask-file%' and kind = 'message'")
        return calls(("send_file", {"file_id": re.findall(r"[0-9a-f]{64}", hash_)[0], "name": "back.txt"}))

    house.said["ask-file"] = send_back
    telegram.person_sends_file(
        "document", content, name="minutes.txt", media_type="text/plain", caption="Keep ask-file"
    )
    await answered(telegram, "ask-file done")

    [sent] = [each["document"] for each in telegram.list_bot_messages() if "document" in each]
    assert sent["file_name"] == "back.txt"
    assert telegram.files[sent["file_id"]].content == content


async def test_a_quote_and_an_edit_are_read_as_what_they_are(house: RealHouse, telegram: TelegramServer) -> None:
    telegram.person_sends("It is ask-first.")
    await answered(telegram, "An answer to ask-first.")
    await house.until_quiet()  # the house knows by which name Telegram has it
    [ours] = [each for each in telegram.list_bot_messages() if each.get("text") == "An answer to ask-first."]
    quoting = telegram.person_sends("Why, ask-second?", reply_to=ours["message_id"])
    await answered(telegram, "An answer to ask-second.")
    telegram.person_edits(quoting, "Why not, ask-third?")
    await answered(telegram, "An answer to ask-third.")

    [(reply_to,)] = house.rows("select reply_to from envelopes where text = 'Why, ask-second?'")
    assert house.rows("select text from envelopes where id = ?", reply_to) == [("An answer to ask-first.",)]
    [(edited,)] = house.rows("select reply_to from envelopes where text like '%Why not, ask-third?%'")
    assert house.rows("select text from envelopes where id = ?", edited) == [("Why, ask-second?",)]


async def test_a_long_answer_comes_in_parts_in_order_and_goes_on_after_a_pause(
    house: RealHouse, telegram: TelegramServer
) -> None:
    house.said["ask-long"] = says(LONG)
    before = len(telegram.list_bot_texts())
    telegram.will_fail(
        "sendMessage", TelegramFault(), throttle_fault(1)
    )  # the first part is taken, and patience is asked for
    telegram.person_sends("At length, ask-long.")
    await answered(telegram, "Line 1 of")
    await house.close()
    await house.open()
    await answered(telegram, "Line 300 of")
    await house.until_quiet()

    parts = telegram.list_bot_texts()[before:]
    assert len(parts) > 2
    assert "\n".join(parts) == LONG
    assert house.outcomes("Line 300 of") == ["delivered"]


@pytest.mark.spec("H1", "D11")
async def test_a_killed_house_answers_once_and_sends_nothing_again_that_may_have_arrived(
    house: RealHouse, telegram: TelegramServer
) -> None:
    def notices() -> list[str]:
        found = house.rows("select text from envelopes where text like '%may or may not have arrived%' order by seq")
        return [text for (text,) in found]

    house.said["ask-cut-off"] = says(LONG.replace("Line", "Part"))
    before, notices_before = len(telegram.list_bot_texts()), len(notices())

    await house.reopen(dies_at=AFTER_ACCEPT)
    telegram.person_sends("Are you there, ask-accepted?")
    await house.dies()
    await house.open(dies_at=BETWEEN_PARTS)
    await answered(telegram, "An answer to ask-accepted.")
    telegram.person_sends("Something long, ask-cut-off.")
    await house.dies()
    await house.open(dies_at=IN_DOUBT)
    telegram.person_sends("Something short, ask-doubt.")
    await house.dies()
    await house.open()
    telegram.person_sends("And then, ask-after?")
    await answered(telegram, "An answer to ask-after.")
    await house.until_quiet()

    accepted, part, doubt, after = telegram.list_bot_texts()[before:]
    assert accepted == "An answer to ask-accepted."
    assert LONG.replace("Line", "Part").startswith(part)
    assert (doubt, after) == ("An answer to ask-doubt.", "An answer to ask-after.")
    assert house.outcomes("Part 300 of") == ["interrupted"]
    assert house.outcomes("An answer to ask-doubt") == ["interrupted"]
    new = notices()[notices_before:]
    assert len(new) == 2
    for notice in new:  # each names its envelope
        assert house.model.asked[-1].raw.decode().count(notice) == 1


async def test_what_is_said_while_telegram_or_the_house_is_away_is_answered_once(
    house: RealHouse, telegram: TelegramServer
) -> None:
    await telegram.stop()
    telegram.person_sends("You were away, ask-outage.")
    await telegram.start()
    await answered(telegram, "An answer to ask-outage.")
    await house.kill()
    telegram.person_sends("We were away, ask-closed.")
    await house.open()
    await answered(telegram, "An answer to ask-closed.")
    await house.until_quiet()

    assert len([text for text in telegram.list_bot_texts() if "ask-outage" in text or "ask-closed" in text]) == 2
