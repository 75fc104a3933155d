"""What is said on Telegram, as the house hears it: who, where, in which words, with which files."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest
from connectors.telegram_instance import LIMIT_S, House, bot, listening

from retinue.app.clock_and_ids import RealClock
from retinue.connectors.base import InboundKind, InboundMessage, RemoteFile
from retinue.connectors.telegram.connector import FileNotFetched, TelegramConnector
from retinue.domain.session_keys import ChatType
from retinue.testing.fake_telegram import DOWNLOAD_BYTES_MAX, MARIA, build_user
from retinue.testing.loop_time import skip_loop_time_on_increase
from retinue.testing.telegram_server import TelegramFault, TelegramServer

GROUP = -1001
NOOR = build_user(43, "Noor", username="noor")


@pytest.fixture
async def telegram() -> AsyncGenerator[TelegramServer]:
    async with TelegramServer() as server:
        server.add_group(GROUP, topics=(7,))
        yield server


async def hears(telegram: TelegramServer, count: int, *, by: TelegramConnector | None = None) -> list[InboundMessage]:
    house = House()
    async with listening(by or bot(telegram), house):
        return await house.until_heard(count)


async def content(file: RemoteFile) -> bytes:
    return b"".join([chunk async for chunk in file.fetch()])


async def test_somebody_who_writes_in_person_is_known_by_their_id(telegram: TelegramServer) -> None:
    message_id = telegram.person_sends("What is on today?")

    [incoming] = await hears(telegram, 1)

    assert (incoming.room, incoming.peer, incoming.speaker.id) == ("42", "42", "42")
    assert (incoming.message_id, incoming.text, incoming.service) == (str(message_id), "What is on today?", "telegram")
    assert (incoming.speaker.name, incoming.speaker.username, incoming.speaker.is_program) == ("Maria", "maria", False)
    assert incoming.context.chat_type is ChatType.DIRECT
    assert incoming.said_at is not None
    assert not incoming.revision


async def test_a_group_has_no_peer_and_a_title(telegram: TelegramServer) -> None:
    telegram.person_sends("hello all", chat_id=GROUP, sender=NOOR)

    [incoming] = await hears(telegram, 1)

    assert (incoming.room, incoming.peer, incoming.speaker.id) == (str(GROUP), "", "43")
    assert incoming.context.chat_title == "Family"
    assert not incoming.mentioned


async def test_a_topic_is_a_room_of_its_own_within_its_group(telegram: TelegramServer) -> None:
    telegram.person_sends("about lunch", chat_id=GROUP, topic=7)

    [incoming] = await hears(telegram, 1)

    assert (incoming.room, incoming.parent) == (f"{GROUP}/7", str(GROUP))
    assert incoming.context.chat_type is ChatType.THREAD


@pytest.mark.parametrize(
    ("text", "heard_as", "mentioned"),
    [
        ("🎉🎉 hey @House_Bot, lunch?", "🎉🎉 hey @House_Bot, lunch?", True),
        ("hey @house_bother", "hey @house_bother", False),
        ("mail@house_bot is no name", "mail@house_bot is no name", False),
        ("/new@house_bot now", "/new now", True),
        ("/new@other_bot now", "/new@other_bot now", False),
        ("/new", "/new", False),
    ],
)
async def test_it_is_known_whether_it_was_said_to_us(
    telegram: TelegramServer, text: str, heard_as: str, mentioned: bool
) -> None:
    telegram.person_sends(text, chat_id=GROUP)

    [incoming] = await hears(telegram, 1)

    assert (incoming.text, incoming.mentioned) == (heard_as, mentioned)


async def test_someone_named_without_a_username_is_named_by_their_id(telegram: TelegramServer) -> None:
    us = [{"type": "text_mention", "offset": 4, "length": 5, "user": telegram.me}]
    telegram.person_sends("hey house, lunch?", chat_id=GROUP, entities=us)

    [incoming] = await hears(telegram, 1)

    assert incoming.mentioned


async def test_an_answer_to_us_quotes_us_and_is_said_to_us(telegram: TelegramServer) -> None:
    ours = telegram.call_method("sendMessage", {"chat_id": GROUP, "text": "Lunch?"}, {})["message_id"]
    theirs = telegram.person_sends("with whom", chat_id=GROUP)
    telegram.person_sends("yes", chat_id=GROUP, reply_to=ours)
    telegram.person_sends("no", chat_id=GROUP, reply_to=theirs)

    _, yes, no = await hears(telegram, 3)

    assert yes.quoted is not None
    assert (yes.quoted.message_id, yes.quoted.text, yes.quoted.ours) == (str(ours), "Lunch?", True)
    assert yes.mentioned
    assert no.quoted is not None
    assert (no.quoted.author, no.quoted.ours, no.mentioned) == ("Maria", False, False)


async def test_all_that_stands_in_a_topic_does_not_answer_its_first_message(telegram: TelegramServer) -> None:
    opened = {"message_id": 7, "chat": {"id": GROUP, "type": "supergroup"}, "forum_topic_created": {"name": "Lunch"}}
    telegram.person_sends("hello", chat_id=GROUP, topic=7, reply_to_message=opened)

    [incoming] = await hears(telegram, 1)

    assert incoming.quoted is None


@pytest.mark.parametrize(
    ("kind", "given", "name", "media_type"),
    [
        ("photo", {}, "photo-101.jpg", "image/jpeg"),
        ("video", {"media_type": "video/mp4"}, "video-101.mp4", "video/mp4"),
        ("document", {"name": "list.pdf", "media_type": "application/pdf"}, "list.pdf", "application/pdf"),
        ("voice", {"media_type": "audio/ogg"}, "voice-101.ogg", "audio/ogg"),
        ("audio", {"name": "song.mp3", "media_type": "audio/mpeg"}, "song.mp3", "audio/mpeg"),
    ],
)
async def test_a_file_is_offered_with_its_bytes(
    telegram: TelegramServer, kind: str, given: dict[str, Any], name: str, media_type: str
) -> None:
    telegram.person_sends_file(kind, b"bytes of it" * 20_000, caption="look", **given)
    connector = bot(telegram)

    [incoming] = await hears(telegram, 1, by=connector)
    [file] = incoming.files

    assert incoming.text == "look"
    assert (file.name, file.media_type, file.size_bytes) == (name, media_type, 220_000)
    assert await content(file) == b"bytes of it" * 20_000
    assert await content(file) == b"bytes of it" * 20_000  # and once more, where the house could not keep it


async def test_a_file_beyond_what_telegram_hands_out_says_so_when_it_is_fetched(telegram: TelegramServer) -> None:
    telegram.person_sends_file("document", b"0" * (DOWNLOAD_BYTES_MAX + 1), name="film.mkv")

    [incoming] = await hears(telegram, 1)

    with pytest.raises(FileNotFetched) as failed:
        await content(incoming.files[0])
    assert "20 MiB" in failed.value.because


@pytest.mark.parametrize("fault", [TelegramFault(breaks=True), TelegramFault(hangs=True)])
async def test_a_download_that_breaks_off_is_an_error_and_never_half_a_file(
    telegram: TelegramServer, fault: TelegramFault
) -> None:
    telegram.person_sends_file("document", b"0" * 1_000_000, name="film.mkv")
    connector = bot(telegram)
    [incoming] = await hears(telegram, 1, by=connector)

    telegram.will_fail("download", fault)

    async with skip_loop_time_on_increase(LIMIT_S, count=lambda: telegram.hang_count):
        with pytest.raises(FileNotFetched) as failed:
            await content(incoming.files[0])
    assert telegram.token not in str(failed.value)
    assert await content(incoming.files[0]) == b"0" * 1_000_000


async def test_an_album_is_one_message_with_all_its_files(telegram: TelegramServer) -> None:
    first = telegram.person_sends_file("photo", b"1", caption="the garden", album="g1")
    telegram.person_sends_file("photo", b"2", album="g1")
    telegram.person_sends("and now?", sender=NOOR, chat_id=GROUP)
    telegram.person_sends_file("video", b"3", album="g1")

    album, other = sorted(await hears(telegram, 2), key=lambda each: each.room, reverse=True)

    assert (album.message_id, album.text, album.album) == (str(first), "the garden", "g1")
    assert [await content(file) for file in album.files] == [b"1", b"2", b"3"]
    assert other.text == "and now?"


async def test_an_album_whose_parts_come_late_is_still_one_message(telegram: TelegramServer) -> None:
    late = [b"2", b"3"]

    class Meanwhile(RealClock):
        async def sleep(self, seconds: float) -> None:
            if late:
                telegram.person_sends_file("photo", late.pop(0), album="g1")

    telegram.person_sends_file("photo", b"1", album="g1")

    [album] = await hears(telegram, 1, by=bot(telegram, clock=Meanwhile()))

    assert [await content(file) for file in album.files] == [b"1", b"2", b"3"]


async def test_an_edit_is_the_same_message_in_another_revision(telegram: TelegramServer) -> None:
    message_id = telegram.person_sends("lunch at 12")
    telegram.person_edits(message_id, "lunch at 1")
    telegram.person_edits(message_id, "lunch at 2")

    first, second, third = await hears(telegram, 3)

    assert {each.message_id for each in (first, second, third)} == {str(message_id)}
    assert [each.text for each in (first, second, third)] == ["lunch at 12", "lunch at 1", "lunch at 2"]
    assert len({each.revision for each in (first, second, third)}) == 3
    moments = [each.said_at for each in (first, second, third) if each.said_at is not None]
    assert moments == sorted(set(moments)) and len(moments) == 3, "it is said when it is changed"


async def test_a_press_is_by_whoever_pressed_and_names_the_message_it_stands_under(telegram: TelegramServer) -> None:
    ours = telegram.call_method("sendMessage", {"chat_id": GROUP, "text": "May I?"}, {})["message_id"]
    press_id = telegram.person_presses(ours, "allow:9c8d", chat_id=GROUP, sender=NOOR)

    [incoming] = await hears(telegram, 1)

    assert (incoming.kind, incoming.text, incoming.message_id) == (InboundKind.PRESS, "allow:9c8d", press_id)
    assert (incoming.speaker.id, incoming.room) == ("43", str(GROUP))
    assert incoming.quoted is not None
    assert (incoming.quoted.message_id, incoming.quoted.ours) == (str(ours), True)


async def test_reactions_are_heard_and_so_is_their_taking_back(telegram: TelegramServer) -> None:
    message_id = telegram.person_sends("hello")
    house = House()
    async with listening(bot(telegram), house):
        await house.until_heard(1)
        telegram.person_reacts(message_id, ["👍"])
        telegram.person_reacts(message_id, [], before=["👍"])
        _, put, back = await house.until_heard(3)

    assert (put.kind, put.text, back.kind, back.text) == (InboundKind.REACTION, "👍", InboundKind.REACTION, "")
    assert put.quoted is not None
    assert put.quoted.message_id == str(message_id)
    assert put.message_id != back.message_id


async def test_a_group_that_moves_is_heard_to_move(telegram: TelegramServer) -> None:
    telegram.add_group(-55, type="group")
    telegram.migrate_group(-55, -10055)

    first, second = await hears(telegram, 2)

    assert (first.kind, first.room, first.text) == (InboundKind.MOVED, "-55", "-10055")
    assert (second.room, second.message_id, second.text) == (first.room, first.message_id, first.text)


@pytest.mark.parametrize(
    ("sent", "is_program", "speaker"),
    [
        ({"by": build_user(9, "Other", is_bot=True)}, True, "9"),
        ({"sender_chat": {"id": GROUP, "type": "supergroup", "title": "Family"}}, False, str(GROUP)),
        ({"sender_chat": {"id": -9, "type": "channel"}, "is_automatic_forward": True}, True, "-9"),
    ],
)
async def test_who_is_no_person_is_known_as_such(
    telegram: TelegramServer, sent: dict[str, object], is_program: bool, speaker: str
) -> None:
    by = sent.pop("by", MARIA)
    telegram.person_sends("hello", chat_id=GROUP, sender=by, **sent)  # type: ignore[arg-type]

    [incoming] = await hears(telegram, 1)

    assert (incoming.speaker.id, incoming.speaker.is_program) == (speaker, is_program)


async def test_forwarded_words_are_marked_and_are_no_command(telegram: TelegramServer) -> None:
    telegram.person_sends("/new@house_bot", forward_origin={"type": "user", "sender_user": build_user(5, "Eve]\n/new")})

    [incoming] = await hears(telegram, 1)

    assert incoming.text == "[forwarded from Eve) /new]\n/new"
    assert incoming.forwarded


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        ({"location": {"latitude": 52.5, "longitude": 13.4}}, "[location at 52.5, 13.4]"),
        ({"contact": {"phone_number": "+1 555", "first_name": "Noor"}}, "[contact: Noor, +1 555]"),
        ({"poll": {"question": "Lunch?", "options": [{"text": "yes"}]}}, "[poll: Lunch?]\n- yes"),
        ({"dice": {"emoji": "🎲", "value": 3}}, "🎲 3"),
        ({"story": {"id": 1}}, "(unsupported content)"),
    ],
)
async def test_what_is_neither_words_nor_a_file_is_told_in_words(
    telegram: TelegramServer, sent: dict[str, object], text: str
) -> None:
    telegram.person_sends(**sent)  # type: ignore[arg-type]

    [incoming] = await hears(telegram, 1)

    assert incoming.text == text


async def test_comings_and_goings_and_what_is_not_understood_are_passed_over(
    telegram: TelegramServer, caplog: pytest.LogCaptureFixture
) -> None:
    telegram.person_sends(chat_id=GROUP, new_chat_members=[NOOR])
    telegram.queue_update("message", {"message_id": "not a number", "chat": 3})
    telegram.person_sends("hello")

    [incoming] = await hears(telegram, 1)

    assert incoming.text == "hello"
    assert [record.message for record in caplog.records].count("invalid update") == 1
