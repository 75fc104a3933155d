"""Test outbound Telegram messages: one call per delivery part, in the best form that Telegram accepts. A part that may
have arrived is never reported as failed."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from connectors.telegram_instance import (
    REQUEST_TIMEOUT_S,
    InMemoryConnectorState,
    TelegramSetup,
    bot,
    listen_in_background,
    make_delivery_part,
    store_attachment,
)

from retinue.connectors.base import (
    Button,
    DeliveryFailed,
    FailureKind,
    SupportsCheck,
    SupportsPressAnswers,
    SupportsPreview,
    SupportsReactions,
    SupportsTyping,
    get_capabilities,
)
from retinue.connectors.telegram.bot_api import UPLOAD_BYTES_MAX, TelegramNoAnswer
from retinue.connectors.telegram.connector import TelegramConnector
from retinue.domain.attachment import Attachment
from retinue.testing.loop_time import skip_loop_time_on_increase
from retinue.testing.telegram_html_parser import utf16_length
from retinue.testing.telegram_server import TelegramFault, TelegramServer, throttle_fault

GROUP = -1001


@pytest.fixture
async def telegram() -> AsyncGenerator[TelegramServer]:
    async with TelegramServer() as server:
        server.add_group(GROUP, topics=(7,))
        yield server


async def deliver_expecting_failure(connector: TelegramConnector, *args: Any, **kwargs: Any) -> DeliveryFailed:
    with pytest.raises(DeliveryFailed) as failed:
        await connector.deliver(make_delivery_part(*args, **kwargs))
    return failed.value


async def test_formatted_text_is_sent_to_telegram_and_the_receipt_is_the_message_id(telegram: TelegramServer) -> None:
    delivery = await bot(telegram).deliver(make_delivery_part("Lunch with **Noor** & `x < y`."))

    [message] = telegram.list_bot_messages()
    assert message["text"] == "Lunch with Noor & x < y."
    assert [each["type"] for each in message["entities"]] == ["bold", "code"]
    assert delivery.receipt == str(message["message_id"])


async def test_telegram_link_previews_are_disabled_unless_enabled_in_the_settings(telegram: TelegramServer) -> None:
    await bot(telegram).deliver(make_delivery_part("see https://x.example/?secret=1"))
    await bot(telegram, link_previews=True).deliver(make_delivery_part("see https://x.example"))

    previews = [arguments["link_preview_options"]["is_disabled"] for _, arguments in telegram.calls]
    assert previews == [True, False]


@pytest.mark.spec("D58", "C86")
@pytest.mark.parametrize(
    "description",
    [
        'Bad Request: can\'t parse entities: Unsupported start tag "x" at byte offset 3',
        "Bad Request: message is too long",
        "Bad Request: message text is empty",
    ],
)
async def test_text_is_resent_as_plain_text_if_telegram_rejects_the_formatting(
    telegram: TelegramServer, description: str
) -> None:
    telegram.will_fail("sendMessage", TelegramFault(status=400, description=description))

    await bot(telegram).deliver(make_delivery_part("Lunch with **Noor**."))

    assert telegram.list_bot_texts() == ["Lunch with **Noor**."]


async def test_text_above_the_telegram_limit_is_a_permanent_too_large_failure(telegram: TelegramServer) -> None:
    failed = await deliver_expecting_failure(bot(telegram), "x" * 4097)

    assert (failed.kind, failed.permanent) == (FailureKind.TOO_LARGE, True)
    assert telegram.list_bot_texts() == []


async def test_messages_at_the_declared_telegram_limits_are_accepted(telegram: TelegramServer, tmp_path: Path) -> None:
    connector = bot(telegram, files=tmp_path)
    abilities = get_capabilities(connector)
    assert abilities is not None
    longest = "🎉" * (abilities.text_max // 2)
    photos = tuple(store_attachment(tmp_path, b"%d" % n, f"{n}.png", "image/png") for n in range(abilities.album_max))

    await connector.deliver(make_delivery_part(longest))
    await connector.deliver(make_delivery_part("ü" * abilities.caption_max, files=photos))

    assert utf16_length(longest) == abilities.text_max
    assert telegram.list_bot_texts()[:2] == [longest, "ü" * abilities.caption_max]
    assert len(telegram.list_bot_messages()) == 1 + abilities.album_max


async def test_a_lone_surrogate_in_text_sent_to_telegram_is_replaced(telegram: TelegramServer) -> None:
    await bot(telegram).deliver(make_delivery_part("a\ud83c b"))

    assert telegram.list_bot_texts() == ["a\ufffd b"]


@pytest.mark.spec("H75")
async def test_an_answer_to_a_deleted_telegram_message_is_sent_without_the_quote(telegram: TelegramServer) -> None:
    kept, gone = telegram.person_sends("kept"), telegram.person_sends("gone")
    telegram.delete_message(gone)
    connector = bot(telegram)

    await connector.deliver(make_delivery_part("to what is there", quote=str(kept)))
    await connector.deliver(make_delivery_part("to what is not", quote=str(gone)))

    first, second = telegram.list_bot_messages()
    assert first["reply_to_message"]["message_id"] == kept
    assert (second["text"], "reply_to_message" in second) == ("to what is not", False)


async def test_one_telegram_delivery_recovers_from_a_moved_group_a_missing_quote_and_bad_formatting(
    telegram: TelegramServer,
) -> None:
    telegram.add_group(-55, type="group")
    telegram.migrate_group(-55, -10055)
    telegram.will_fail(
        "sendMessage", TelegramFault(status=400, description="Bad Request: can't parse entities: it says")
    )

    await bot(telegram).deliver(make_delivery_part("**so**", channel="-55", quote="99999"))

    assert telegram.list_bot_texts(-10055) == ["**so**"]


async def test_a_telegram_message_is_sent_to_its_topic_and_the_general_topic_has_no_thread_id(
    telegram: TelegramServer,
) -> None:
    connector = bot(telegram)

    await connector.deliver(make_delivery_part("in the topic", channel=f"{GROUP}/7"))
    await connector.deliver(make_delivery_part("in the general one", channel=f"{GROUP}/1"))
    await connector.show_typing(f"{GROUP}/1")

    assert [each.get("message_thread_id") for each in telegram.list_bot_messages(GROUP)] == [7, None]
    assert telegram.actions == [(GROUP, 1, "typing")]


@pytest.mark.parametrize(
    ("media_type", "kind"),
    [
        ("image/png", "photo"),
        ("video/mp4", "video"),
        ("image/gif", "animation"),
        ("audio/ogg", "voice"),
        ("audio/mpeg", "audio"),
        ("application/pdf", "document"),
        ("text/html; charset=utf-8", "document"),
    ],
)
async def test_a_file_is_sent_to_telegram_by_its_media_type_with_the_text_as_caption(
    telegram: TelegramServer, tmp_path: Path, media_type: str, kind: str
) -> None:
    file = store_attachment(tmp_path, b"the bytes" * 30_000, "näme.bin", media_type)

    delivery = await bot(telegram, files=tmp_path).deliver(make_delivery_part("look **here**", files=(file,)))

    [message] = telegram.list_bot_messages()
    sent = message[kind][0] if kind == "photo" else message[kind]
    assert telegram.files[sent["file_id"]].content == b"the bytes" * 30_000
    assert telegram.files[sent["file_id"]].name == "näme.bin"
    assert (message["caption"], message["caption_entities"][0]["type"]) == ("look here", "bold")
    assert delivery.receipt == str(message["message_id"])


@pytest.mark.parametrize(
    ("media_types", "kinds"),
    [
        (("image/png", "video/mp4"), ("photo", "video")),
        (("audio/mpeg", "audio/mp4"), ("audio", "audio")),
        (("image/png", "application/pdf"), ("document", "document")),
        (("audio/ogg", "audio/ogg"), ("document", "document")),
    ],
)
async def test_several_files_are_sent_as_one_telegram_album_of_compatible_types(
    telegram: TelegramServer, tmp_path: Path, media_types: tuple[str, ...], kinds: tuple[str, ...]
) -> None:
    files = tuple(store_attachment(tmp_path, b"%d" % n, f"{n}", media) for n, media in enumerate(media_types))

    delivery = await bot(telegram, files=tmp_path).deliver(make_delivery_part("both", files=files))

    messages = telegram.list_bot_messages()
    assert tuple(kind for message, kind in zip(messages, kinds, strict=True) if kind in message) == kinds
    assert [message.get("caption") for message in messages] == ["both", None]
    assert len({message["media_group_id"] for message in messages}) == 1
    assert delivery.receipt == str(messages[0]["message_id"])


async def test_a_picture_that_telegram_rejects_as_a_photo_is_sent_as_a_document(
    telegram: TelegramServer, tmp_path: Path
) -> None:
    file = store_attachment(tmp_path, b"TOO WIDE", "wide.png", "image/png")

    await bot(telegram, files=tmp_path).deliver(make_delivery_part("look", files=(file,)))

    assert "document" in telegram.list_bot_messages()[0]


async def test_sending_a_missing_or_oversized_file_fails_permanently_without_a_telegram_request(
    telegram: TelegramServer, tmp_path: Path
) -> None:
    connector = bot(telegram, files=tmp_path)
    huge = Attachment(hash="a", name="film.mkv", media_type="video/x-matroska", size_bytes=UPLOAD_BYTES_MAX + 1)
    gone = Attachment(hash="b", name="gone.txt", media_type="text/plain", size_bytes=3)

    too_large = await deliver_expecting_failure(connector, "look", files=(huge,))
    not_there = await deliver_expecting_failure(connector, "look", files=(gone,))

    assert (too_large.kind, too_large.permanent, not_there.permanent) == (FailureKind.TOO_LARGE, True, True)
    assert telegram.calls == []


async def test_buttons_are_shown_under_a_telegram_message_and_a_press_is_answered(telegram: TelegramServer) -> None:
    connector, server = bot(telegram), TelegramSetup()
    buttons = ((Button("Yes", "allow:9c8d"), Button("No", "deny:9c8d")),)
    async with listen_in_background(connector, server):
        delivery = await connector.deliver(make_delivery_part("May I?", buttons=buttons))
        telegram.person_presses(int(delivery.receipt), "allow:9c8d")
        [press] = await server.wait_for_messages(1)
        await connector.answer_press(press.message_id, "Allowed.")
        await connector.answer_press("a press of last week", "too late for anyone to see")

    [[yes, no]] = telegram.list_bot_messages()[0]["reply_markup"]["inline_keyboard"]
    assert (yes, no["callback_data"]) == ({"text": "Yes", "callback_data": "allow:9c8d"}, "deny:9c8d")
    assert press.quoted is not None
    assert press.quoted.message_id == delivery.receipt
    assert telegram.press_answers == {press.message_id: "Allowed."}


@pytest.mark.parametrize(
    ("fault", "kind", "permanent", "retry_after_s"),
    [
        (throttle_fault(7), FailureKind.THROTTLED, False, 7.0),
        (
            TelegramFault(status=429, description="x", parameters={"retry_after": 10**9}),
            FailureKind.THROTTLED,
            False,
            3600.0,
        ),
        (TelegramFault(status=400, description="Bad Request: chat not found"), FailureKind.INVALID_ADDRESS, True, None),
        (
            TelegramFault(status=403, description="Forbidden: bot was blocked by the user"),
            FailureKind.INVALID_SENDER,
            True,
            None,
        ),
        (TelegramFault(status=401, description="Unauthorized"), FailureKind.INVALID_SENDER, False, None),
        (TelegramFault(status=413, description="Request Entity Too Large"), FailureKind.TOO_LARGE, True, None),
        (
            TelegramFault(status=400, description="Bad Request: BUTTON_DATA_INVALID"),
            FailureKind.SEND_FAILED,
            True,
            None,
        ),
    ],
)
@pytest.mark.spec("C86")
async def test_a_telegram_error_becomes_the_matching_delivery_failure(
    telegram: TelegramServer, fault: TelegramFault, kind: FailureKind, permanent: bool, retry_after_s: float | None
) -> None:
    telegram.will_fail("sendMessage", fault)

    failed = await deliver_expecting_failure(bot(telegram), "hello")

    assert (failed.kind, failed.permanent, failed.retry_after_s) == (kind, permanent, retry_after_s)
    assert telegram.list_bot_texts() == []


@pytest.mark.parametrize("channel", ["maria", "42/x", "", "--42", "42/7/8", "٤٢", "9" * 30])
async def test_an_invalid_telegram_channel_fails_without_a_request(telegram: TelegramServer, channel: str) -> None:
    failed = await deliver_expecting_failure(bot(telegram), "hello", channel=channel or "x")

    assert (failed.kind, failed.permanent) == (FailureKind.INVALID_ADDRESS, True)
    assert telegram.calls == []


@pytest.mark.parametrize("arrives", [True, False])
@pytest.mark.parametrize(
    "fault",
    [
        {"breaks": True},
        {"hangs": True},
        {"status": 502, "body": b"<html>Bad Gateway</html>"},
        {"status": 500, "description": "Internal Server Error: restart"},
    ],
    ids=["breaks", "hangs", "502", "500"],
)
async def test_a_lost_response_to_a_telegram_send_is_never_reported_as_a_failure(
    telegram: TelegramServer, fault: dict[str, Any], arrives: bool
) -> None:
    telegram.will_fail("sendMessage", TelegramFault(**fault, arrives=arrives))

    async with skip_loop_time_on_increase(REQUEST_TIMEOUT_S, count=lambda: telegram.hang_count):
        with pytest.raises(TelegramNoAnswer) as unknown:
            await bot(telegram).deliver(make_delivery_part("hello"))

    assert telegram.list_bot_texts() == (["hello"] if arrives else [])
    assert telegram.token not in str(unknown.value)


async def test_an_unreachable_telegram_server_is_a_temporary_failure() -> None:
    async with TelegramServer() as telegram:
        url = telegram.url

    failed = await deliver_expecting_failure(bot(url), "hello")

    assert not failed.permanent


async def test_a_message_to_a_migrated_telegram_group_goes_to_its_new_id(telegram: TelegramServer) -> None:
    connector_state = InMemoryConnectorState()
    telegram.add_group(-55, type="group")
    telegram.migrate_group(-55, -10055)

    await bot(telegram, connector_state=connector_state).deliver(make_delivery_part("first", channel="-55"))
    calls = len(telegram.calls)
    await bot(telegram, connector_state=connector_state).deliver(make_delivery_part("after a restart", channel="-55"))

    assert telegram.list_bot_texts(-10055) == ["first", "after a restart"]
    assert len(telegram.calls) == calls + 1  # the new id is stored


async def test_a_telegram_preview_is_shown_edited_and_deleted(telegram: TelegramServer) -> None:
    connector = bot(telegram)

    shown = await connector.preview("42", "Lunch **wi")
    assert await connector.preview("42", "Lunch **with** Noor", preview_id=shown) == shown
    assert await connector.preview("42", "Lunch **with** Noor", preview_id=shown) == shown
    assert telegram.list_bot_texts() == ["Lunch with Noor"]
    await connector.delete_preview("42", shown)
    await connector.delete_preview("42", shown)

    assert telegram.list_bot_texts() == []


async def test_a_telegram_reaction_is_set_and_removed_and_an_unsupported_reaction_is_refused(
    telegram: TelegramServer,
) -> None:
    message_id = telegram.person_sends("hello")
    connector = bot(telegram)

    await connector.react("42", str(message_id), "👀")
    assert telegram.reactions == {(42, message_id): ["👀"]}
    await connector.react("42", str(message_id), "")
    assert telegram.reactions == {(42, message_id): []}
    with pytest.raises(DeliveryFailed, match="did not accept the message"):
        await connector.react("42", str(message_id), "🪿")


async def test_a_failed_telegram_typing_indicator_raises_no_error(telegram: TelegramServer) -> None:
    connector = bot(telegram)

    await connector.show_typing("42")
    await connector.show_typing("43")

    assert telegram.actions == [(42, None, "typing")]


async def test_the_telegram_check_reports_the_account_privacy_mode_webhook_and_token_errors(
    telegram: TelegramServer,
) -> None:
    connector = bot(telegram)

    well = await connector.check()
    telegram.me["can_read_all_group_messages"] = False
    private = await connector.check()
    telegram.webhook = "https://elsewhere.example"
    hooked = await connector.check()
    telegram.revoke_token()
    refused = await connector.check()

    assert (well.ok, well.account, well.because) == (True, "@retinue_bot", "")
    assert private.ok
    assert "privacy" in private.because
    assert "/setprivacy" in private.try_this
    assert (hooked.ok, refused.ok) == (False, False)
    assert "token" in refused.sentence
    assert telegram.poll_count == 0


def test_the_telegram_connector_supports_previews_reactions_typing_and_press_answers() -> None:
    connector = bot("http://127.0.0.1:1")

    for ability in (SupportsPreview, SupportsReactions, SupportsTyping, SupportsPressAnswers, SupportsCheck):
        assert isinstance(connector, ability)
    assert not connector.repeats_safely
