"""Test inbound Telegram messages: sender, channel, text and files."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest
from connectors.telegram_instance import REQUEST_TIMEOUT_S, TelegramSetup, bot, listen_in_background

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


async def receive(telegram: TelegramServer, count: int, *, by: TelegramConnector | None = None) -> list[InboundMessage]:
    server = TelegramSetup()
    async with listen_in_background(by or bot(telegram), server):
        return await server.wait_for_messages(count)


async def read_file(file: RemoteFile) -> bytes:
    return b"".join([chunk async for chunk in file.fetch()])


async def test_a_direct_message_has_the_telegram_id_as_channel_peer_and_speaker(telegram: TelegramServer) -> None:
    message_id = telegram.person_sends("What is on today?")

    [incoming] = await receive(telegram, 1)

    assert (incoming.channel, incoming.peer, incoming.sender.id) == ("42", "42", "42")
    assert (incoming.message_id, incoming.text, incoming.service) == (str(message_id), "What is on today?", "telegram")
    assert (incoming.sender.name, incoming.sender.username, incoming.sender.is_program) == ("Maria", "maria", False)
    assert incoming.context.chat_type is ChatType.DIRECT
    assert incoming.sent_at is not None
    assert not incoming.revision


async def test_a_telegram_group_message_has_a_chat_title_and_no_peer(telegram: TelegramServer) -> None:
    telegram.person_sends("hello all", chat_id=GROUP, sender=NOOR)

    [incoming] = await receive(telegram, 1)

    assert (incoming.channel, incoming.peer, incoming.sender.id) == (str(GROUP), "", "43")
    assert incoming.context.chat_title == "Family"
    assert not incoming.mentioned


async def test_a_telegram_forum_topic_is_a_channel_with_its_group_as_parent(telegram: TelegramServer) -> None:
    telegram.person_sends("about lunch", chat_id=GROUP, topic=7)

    [incoming] = await receive(telegram, 1)

    assert (incoming.channel, incoming.parent) == (f"{GROUP}/7", str(GROUP))
    assert incoming.context.chat_type is ChatType.THREAD


@pytest.mark.parametrize(
    ("text", "heard_as", "mentioned"),
    [
        ("🎉🎉 hey @Retinue_Bot, lunch?", "🎉🎉 hey @Retinue_Bot, lunch?", True),
        ("hey @retinue_bother", "hey @retinue_bother", False),
        ("mail@retinue_bot is no name", "mail@retinue_bot is no name", False),
        ("/new@retinue_bot now", "/new now", True),
        ("/new@other_bot now", "/new@other_bot now", False),
        ("/new", "/new", False),
    ],
)
async def test_a_mention_or_command_for_the_bot_is_recognized_in_a_telegram_group(
    telegram: TelegramServer, text: str, heard_as: str, mentioned: bool
) -> None:
    telegram.person_sends(text, chat_id=GROUP)

    [incoming] = await receive(telegram, 1)

    assert (incoming.text, incoming.mentioned) == (heard_as, mentioned)


async def test_a_telegram_text_mention_of_the_bot_is_recognized_by_the_bot_id(telegram: TelegramServer) -> None:
    us = [{"type": "text_mention", "offset": 4, "length": 7, "user": telegram.me}]
    telegram.person_sends("hey retinue, lunch?", chat_id=GROUP, entities=us)

    [incoming] = await receive(telegram, 1)

    assert incoming.mentioned


async def test_a_telegram_reply_to_the_bot_quotes_the_bot_and_counts_as_a_mention(telegram: TelegramServer) -> None:
    ours = telegram.call_method("sendMessage", {"chat_id": GROUP, "text": "Lunch?"}, {})["message_id"]
    theirs = telegram.person_sends("with whom", chat_id=GROUP)
    telegram.person_sends("yes", chat_id=GROUP, reply_to=ours)
    telegram.person_sends("no", chat_id=GROUP, reply_to=theirs)

    _, yes, no = await receive(telegram, 3)

    assert yes.quoted is not None
    assert (yes.quoted.message_id, yes.quoted.text, yes.quoted.ours) == (str(ours), "Lunch?", True)
    assert yes.mentioned
    assert no.quoted is not None
    assert (no.quoted.author, no.quoted.ours, no.mentioned) == ("Maria", False, False)


async def test_a_message_in_a_telegram_topic_does_not_quote_the_message_that_opened_the_topic(
    telegram: TelegramServer,
) -> None:
    opened = {"message_id": 7, "chat": {"id": GROUP, "type": "supergroup"}, "forum_topic_created": {"name": "Lunch"}}
    telegram.person_sends("hello", chat_id=GROUP, topic=7, reply_to_message=opened)

    [incoming] = await receive(telegram, 1)

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
async def test_a_telegram_file_has_its_name_media_type_size_and_bytes(
    telegram: TelegramServer, kind: str, given: dict[str, Any], name: str, media_type: str
) -> None:
    telegram.person_sends_file(kind, b"bytes of it" * 20_000, caption="look", **given)
    connector = bot(telegram)

    [incoming] = await receive(telegram, 1, by=connector)
    [file] = incoming.files

    assert incoming.text == "look"
    assert (file.name, file.media_type, file.size_bytes) == (name, media_type, 220_000)
    assert await read_file(file) == b"bytes of it" * 20_000
    assert await read_file(file) == b"bytes of it" * 20_000  # fetched again, as after a failed store


async def test_fetching_a_file_above_the_telegram_download_limit_fails_with_the_limit(telegram: TelegramServer) -> None:
    telegram.person_sends_file("document", b"0" * (DOWNLOAD_BYTES_MAX + 1), name="film.mkv")

    [incoming] = await receive(telegram, 1)

    with pytest.raises(FileNotFetched) as failed:
        await read_file(incoming.files[0])
    assert "20 MiB" in failed.value.because


@pytest.mark.parametrize("fault", [TelegramFault(breaks=True), TelegramFault(hangs=True)])
async def test_an_interrupted_telegram_download_raises_an_error_and_can_be_repeated(
    telegram: TelegramServer, fault: TelegramFault
) -> None:
    telegram.person_sends_file("document", b"0" * 1_000_000, name="film.mkv")
    connector = bot(telegram)
    [incoming] = await receive(telegram, 1, by=connector)

    telegram.will_fail("download", fault)

    async with skip_loop_time_on_increase(REQUEST_TIMEOUT_S, count=lambda: telegram.hang_count):
        with pytest.raises(FileNotFetched) as failed:
            await read_file(incoming.files[0])
    assert telegram.token not in str(failed.value)
    assert await read_file(incoming.files[0]) == b"0" * 1_000_000


async def test_a_telegram_album_is_one_message_with_all_its_files(telegram: TelegramServer) -> None:
    first = telegram.person_sends_file("photo", b"1", caption="the garden", album="g1")
    telegram.person_sends_file("photo", b"2", album="g1")
    telegram.person_sends("and now?", sender=NOOR, chat_id=GROUP)
    telegram.person_sends_file("video", b"3", album="g1")

    album, other = sorted(await receive(telegram, 2), key=lambda each: each.channel, reverse=True)

    assert (album.message_id, album.text, album.album) == (str(first), "the garden", "g1")
    assert [await read_file(file) for file in album.files] == [b"1", b"2", b"3"]
    assert other.text == "and now?"


async def test_a_telegram_album_with_late_parts_is_still_one_message(telegram: TelegramServer) -> None:
    late = [b"2", b"3"]

    class LateAlbumClock(RealClock):
        async def sleep(self, seconds: float) -> None:
            if late:
                telegram.person_sends_file("photo", late.pop(0), album="g1")

    telegram.person_sends_file("photo", b"1", album="g1")

    [album] = await receive(telegram, 1, by=bot(telegram, clock=LateAlbumClock()))

    assert [await read_file(file) for file in album.files] == [b"1", b"2", b"3"]


async def test_an_edited_telegram_message_keeps_its_id_and_gets_a_new_revision(telegram: TelegramServer) -> None:
    message_id = telegram.person_sends("lunch at 12")
    telegram.person_edits(message_id, "lunch at 1")
    telegram.person_edits(message_id, "lunch at 2")

    first, second, third = await receive(telegram, 3)

    assert {each.message_id for each in (first, second, third)} == {str(message_id)}
    assert [each.text for each in (first, second, third)] == ["lunch at 12", "lunch at 1", "lunch at 2"]
    assert len({each.revision for each in (first, second, third)}) == 3
    moments = [each.sent_at for each in (first, second, third) if each.sent_at is not None]
    assert moments == sorted(set(moments)) and len(moments) == 3, "each revision has the time of its edit"


async def test_a_telegram_button_press_has_its_presser_as_speaker_and_quotes_its_message(
    telegram: TelegramServer,
) -> None:
    ours = telegram.call_method("sendMessage", {"chat_id": GROUP, "text": "May I?"}, {})["message_id"]
    press_id = telegram.person_presses(ours, "allow:9c8d", chat_id=GROUP, sender=NOOR)

    [incoming] = await receive(telegram, 1)

    assert (incoming.kind, incoming.text, incoming.message_id) == (InboundKind.PRESS, "allow:9c8d", press_id)
    assert (incoming.sender.id, incoming.channel) == ("43", str(GROUP))
    assert incoming.quoted is not None
    assert (incoming.quoted.message_id, incoming.quoted.ours) == (str(ours), True)


async def test_added_and_removed_telegram_reactions_are_received(telegram: TelegramServer) -> None:
    message_id = telegram.person_sends("hello")
    server = TelegramSetup()
    async with listen_in_background(bot(telegram), server):
        await server.wait_for_messages(1)
        telegram.person_reacts(message_id, ["👍"])
        telegram.person_reacts(message_id, [], before=["👍"])
        _, put, back = await server.wait_for_messages(3)

    assert (put.kind, put.text, back.kind, back.text) == (InboundKind.REACTION, "👍", InboundKind.REACTION, "")
    assert put.quoted is not None
    assert put.quoted.message_id == str(message_id)
    assert put.message_id != back.message_id


async def test_a_telegram_group_migration_is_received_as_a_move(telegram: TelegramServer) -> None:
    telegram.add_group(-55, type="group")
    telegram.migrate_group(-55, -10055)

    first, second = await receive(telegram, 2)

    assert (first.kind, first.channel, first.text) == (InboundKind.MOVED, "-55", "-10055")
    assert (second.channel, second.message_id, second.text) == (first.channel, first.message_id, first.text)


@pytest.mark.parametrize(
    ("sent", "is_program", "speaker"),
    [
        ({"by": build_user(9, "Other", is_bot=True)}, True, "9"),
        ({"sender_chat": {"id": GROUP, "type": "supergroup", "title": "Family"}}, False, str(GROUP)),
        ({"sender_chat": {"id": -9, "type": "channel"}, "is_automatic_forward": True}, True, "-9"),
    ],
)
async def test_telegram_bots_and_channel_posts_are_marked_as_programs(
    telegram: TelegramServer, sent: dict[str, object], is_program: bool, speaker: str
) -> None:
    by = sent.pop("by", MARIA)
    telegram.person_sends("hello", chat_id=GROUP, sender=by, **sent)  # type: ignore[arg-type]

    [incoming] = await receive(telegram, 1)

    assert (incoming.sender.id, incoming.sender.is_program) == (speaker, is_program)


async def test_forwarded_telegram_text_is_marked_and_is_not_a_command(telegram: TelegramServer) -> None:
    telegram.person_sends(
        "/new@retinue_bot", forward_origin={"type": "user", "sender_user": build_user(5, "Eve]\n/new")}
    )

    [incoming] = await receive(telegram, 1)

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
async def test_telegram_locations_contacts_polls_and_dice_are_described_as_text(
    telegram: TelegramServer, sent: dict[str, object], text: str
) -> None:
    telegram.person_sends(**sent)  # type: ignore[arg-type]

    [incoming] = await receive(telegram, 1)

    assert incoming.text == text


async def test_telegram_service_messages_and_invalid_updates_are_skipped(
    telegram: TelegramServer, caplog: pytest.LogCaptureFixture
) -> None:
    telegram.person_sends(chat_id=GROUP, new_chat_members=[NOOR])
    telegram.queue_update("message", {"message_id": "not a number", "chat": 3})
    telegram.person_sends("hello")

    [incoming] = await receive(telegram, 1)

    assert incoming.text == "hello"
    assert [record.message for record in caplog.records].count("invalid update") == 1
