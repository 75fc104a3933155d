"""Test envelopes between Telegram and agents with a real server, store, engine and files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from connectors.telegram_instance import wait_until_true

from retinue.app.clock_and_ids import RealClock
from retinue.config.connectors import ConnectorSettings
from retinue.connectors.telegram import TelegramSettings
from retinue.domain.attachment import Attachment
from retinue.domain.envelope import Envelope, EnvelopeKind, Outcome
from retinue.store.core.tables import envelopes as envelope_table
from retinue.store.envelopes import envelopes
from retinue.store.envelopes.attachment_files import AttachmentFiles
from retinue.testing.local_instance import LocalInstance, LocalServer
from retinue.testing.scripted_model import text_reply
from retinue.testing.telegram_html_parser import utf16_length
from retinue.testing.telegram_server import TOKEN, TelegramFault, TelegramServer


@pytest.fixture
async def telegram() -> AsyncGenerator[TelegramServer]:
    async with TelegramServer() as server:
        yield server


@pytest.fixture
def instance(tmp_path: Path, telegram: TelegramServer) -> LocalInstance:
    own = TelegramSettings(token_env="BOT", api_base=telegram.url, poll_s=5, timeout_s=60.0)
    return LocalInstance(
        tmp_path,
        clock=RealClock(),
        environment={"BOT": TOKEN},
        connector_settings={"family": ConnectorSettings(platform="telegram", platform_settings=own)},
    )


async def wait_for_envelopes(server: LocalServer, count: int) -> list[Envelope]:
    """Wait for this many envelopes from Telegram."""
    statement = (
        envelope_table.select().where(envelope_table.c.kind == EnvelopeKind.MESSAGE).order_by(envelope_table.c.seq)
    )

    def body(conn: object) -> list[Envelope] | None:
        found = [envelopes.envelope_from_row(row) for row in conn.execute(statement)]  # type: ignore[attr-defined]
        return found if len(found) >= count else None

    return await server.wait_for(body, what=f"{count} envelopes")


async def test_a_telegram_message_is_answered_in_the_same_chat(
    instance: LocalInstance, telegram: TelegramServer
) -> None:
    instance.model.will_reply("Lunch with **Noor**.")
    async with instance.run():
        telegram.person_sends("What is on today?")
        await wait_until_true(lambda: bool(telegram.list_bot_messages()))

    [answer] = telegram.list_bot_messages()
    assert (answer["text"], answer["entities"][0]["type"]) == ("Lunch with Noor.", "bold")


async def test_a_telegram_message_accepted_before_a_crash_is_answered_once_after_the_crash(
    instance: LocalInstance, telegram: TelegramServer
) -> None:
    instance.model.rule = lambda _prompt: text_reply("", once=asyncio.Event().wait)  # no reply before the crash
    async with instance.run() as server:
        telegram.person_sends("What is on today?")
        await wait_for_envelopes(server, 1)
        server.crash()
    telegram.person_sends("And tomorrow?")

    instance.model.rule = None
    instance.model.will_reply("Lunch with Noor.", "Nothing.")
    async with instance.run() as server:
        await wait_until_true(lambda: len(telegram.list_bot_messages()) == 2)
        await server.wait_until_idle()

    assert telegram.list_bot_texts() == ["Lunch with Noor.", "Nothing."]


@pytest.mark.spec("H72")
async def test_telegram_text_and_every_kind_of_file_become_envelopes_with_stored_files(
    instance: LocalInstance, telegram: TelegramServer, tmp_path: Path
) -> None:
    kinds = ("photo", "video", "document", "voice", "audio")
    instance.model.will_reply(*["Thanks."] * 6)
    async with instance.run() as server:
        telegram.person_sends("now the files")
        for kind in kinds:
            telegram.person_sends_file(kind, f"the bytes of a {kind}".encode() * 1000, name=f"{kind}.bin", caption=kind)
        words, *files = await wait_for_envelopes(server, 6)
        await server.wait_until_idle()

    assert (words.text, words.attachments) == ("now the files", ())
    stored_files = AttachmentFiles(tmp_path / "files")
    for kind, envelope in zip(kinds, files, strict=True):
        [attachment] = envelope.attachments
        assert envelope.text == kind
        assert stored_files.path(attachment.hash).read_bytes() == f"the bytes of a {kind}".encode() * 1000


async def send(server: LocalServer, text: str, files: tuple[Attachment, ...] = ()) -> Outcome:
    receipt = await server.send(
        text, sender="agent:ada", recipient="channel:family:42", kind=EnvelopeKind.ANSWER, attachments=files
    )
    return (await server.wait_for_outcome(receipt.envelope)).outcome


@pytest.mark.spec("H73", "D58")
async def test_a_long_answer_is_split_at_line_ends_within_the_telegram_text_limit(
    instance: LocalInstance, telegram: TelegramServer
) -> None:
    paragraph = "A line of words that ends here. 🎉\n" * 20
    text = "\n".join([paragraph.strip()] * 15)
    async with instance.run() as server:
        assert await send(server, text) is Outcome.DELIVERED

    texts = telegram.list_bot_texts()
    assert len(texts) > 2
    assert all(utf16_length(each) <= 4096 for each in texts)
    assert all(each.endswith("🎉") for each in texts)
    assert "".join("".join(texts).split()) == "".join(text.split())


@pytest.mark.spec("H73")
async def test_text_longer_than_a_telegram_caption_is_sent_separately_and_files_in_albums_of_ten(
    instance: LocalInstance, telegram: TelegramServer, tmp_path: Path
) -> None:
    stored_files = AttachmentFiles(tmp_path / "files")
    photos = tuple(stored_files.store([b"photo %d" % n], name=f"{n}.png", media_type="image/png") for n in range(12))
    async with instance.run() as server:
        assert await send(server, "short", photos[:1]) is Outcome.DELIVERED
        assert await send(server, "long " * 300, photos) is Outcome.DELIVERED

    first, *rest = telegram.list_bot_messages()
    assert (first["caption"], "photo" in first) == ("short", True)
    albums = [each.get("media_group_id") for each in rest if "photo" in each]
    assert sorted(albums.count(album) for album in set(albums)) == [2, 10]
    assert [each["text"].strip() for each in rest if "text" in each] == [("long " * 300).strip()]
    assert not any("caption" in each for each in rest)


async def test_a_telegram_send_with_an_unknown_result_is_not_repeated(
    instance: LocalInstance, telegram: TelegramServer
) -> None:
    telegram.will_fail("sendMessage", TelegramFault(breaks=True, arrives=True))
    async with instance.run() as server:
        await send(server, "once")
        await server.wait_until_idle()

    assert telegram.list_bot_texts() == ["once"]


@pytest.mark.spec("C86")
async def test_a_throttled_telegram_send_is_retried_and_delivered(
    instance: LocalInstance, telegram: TelegramServer
) -> None:
    throttled = TelegramFault(status=429, description="Too Many Requests: retry after 1", parameters={"retry_after": 1})
    telegram.will_fail("sendMessage", throttled)
    async with instance.run() as server:
        assert await send(server, "later") is Outcome.DELIVERED

    assert telegram.list_bot_texts() == ["later"]
