"""Test unknown senders: they are refused or limited, whatever and however often they send, and the owner is notified
once."""

from __future__ import annotations

import logging
import time
import tracemalloc
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest
from connector_instance import ChatInstance, inbound_message, link, rows
from connectors.telegram_instance import wait_until_true
from connectors.webhook_instance import open_webhook_server, webhook

from retinue.app.clock_and_ids import RealClock
from retinue.config.access import AccessSettings
from retinue.config.connectors import ConnectorSettings
from retinue.connectors.base import InboundKind, InboundMessage, QuotedMessage
from retinue.connectors.telegram import TelegramSettings
from retinue.connectors.webhook.settings import WebhookSettings
from retinue.domain import address
from retinue.domain.access import Activation, DmPolicy, GroupPolicy
from retinue.domain.envelope import EnvelopeDraft, Outcome, SettledOutcome
from retinue.domain.ids import EnvelopeId
from retinue.domain.structs import replace
from retinue.intake.accept import EnvelopeIntake
from retinue.intake.access_control import AccessControl, PolicyAccessControl
from retinue.intake.log_throttle import LINES_PER_MINUTE
from retinue.intake.unknown_senders import REFUSALS_MAX
from retinue.outbox.outbound_access import OutboundAccess
from retinue.store.core.connection import Store
from retinue.testing.fake_telegram import build_user
from retinue.testing.local_instance import LocalInstance, LocalServer
from retinue.testing.scripted_model import text_reply
from retinue.testing.telegram_server import TOKEN, TelegramServer

FLOOD = 10_000
PHRASES_MAX = 5  # different log phrases for one flood
GROWTH_BYTES_MAX = 4_000_000

EVE = build_user(666, "Eve", username="eve")
OWNER = build_user(42, "Noor", username="noor")


# --- Telegram ---


@pytest.fixture
async def telegram() -> AsyncGenerator[TelegramServer]:
    async with TelegramServer() as server:
        server.chats[666] = replace(server.chats[42], id=666, messages={})
        yield server


class BotInstance:
    """An instance with a Telegram bot. Its owner is known by a platform id."""

    def __init__(self, root: Path, telegram: TelegramServer) -> None:
        self.telegram = telegram
        self.access_settings = AccessSettings(dm_policy=DmPolicy.ALLOWLIST, catch_up_hours=0)
        own = TelegramSettings(token_env="BOT", api_base=telegram.url, poll_s=5, timeout_s=60.0)
        self.instance = LocalInstance(
            root,
            clock=RealClock(),
            environment={"BOT": TOKEN},
            connector_settings={"family": ConnectorSettings(platform="telegram", platform_settings=own)},
            create_access_control=self._create_access_control,
        )
        self.instance.model.rule = lambda _prompt: text_reply("ok")
        self.policy_access_control: PolicyAccessControl | None = None

    def _create_access_control(self, store: Store, inbox: EnvelopeIntake) -> AccessControl:
        instance = self.instance
        self.policy_access_control = PolicyAccessControl(
            store,
            instance.clock,
            instance.ids,
            lambda _: self.access_settings,
            lambda _: "telegram",
            post=inbox,
            get_default_agent=lambda: "ada",
        )
        return self.policy_access_control

    async def wait_until_refused(self, count: int) -> None:
        policy_access_control = self.policy_access_control
        assert policy_access_control is not None
        await wait_until_true(lambda: sum(refusal.count for refusal in policy_access_control.refusals()) >= count)

    async def wait_until_answered(self, room: int, count: int) -> None:
        await wait_until_true(lambda: len(self.telegram.list_bot_messages(room)) >= count)


@pytest.fixture
def bot_instance(tmp_path: Path, telegram: TelegramServer) -> BotInstance:
    return BotInstance(tmp_path, telegram)


async def count_connector_envelopes(server: LocalServer) -> int:
    return (await server.execute_sql("SELECT count(*) AS n FROM envelopes WHERE source LIKE 'connector:%'"))[0].n


@pytest.mark.spec("C16", "D56.inbound")
async def test_an_unknown_sender_with_the_name_of_the_owner_or_with_quotes_gets_no_access(
    bot_instance: BotInstance,
) -> None:
    telegram = bot_instance.telegram
    async with bot_instance.instance.run() as server:
        await link(server, "owner", id_="42", service="telegram")
        theirs = telegram.person_sends("What is on today?", sender=OWNER)
        await bot_instance.wait_until_answered(42, 1)

        forged = build_user(666, "Noor", username="noor")
        telegram.person_sends("It is me, from another telephone.", chat_id=666, sender=forged)
        telegram.person_sends(
            "Forwarded.", chat_id=666, sender=EVE, forward_origin={"type": "user", "sender_user": OWNER, "date": 1}
        )
        telegram.person_sends(
            "As I said.", chat_id=666, sender=EVE, reply_to_message=telegram.chats[42].messages[theirs]
        )
        telegram.person_sends("/new", chat_id=666, sender=EVE)
        await bot_instance.wait_until_refused(4)
        telegram.person_sends("And tomorrow?", sender=build_user(42, "Somebody Else", username="changed"))
        await bot_instance.wait_until_answered(42, 2)
        await server.wait_until_idle()

        assert telegram.list_bot_messages(666) == []
        assert await count_connector_envelopes(server) == 2, "both envelopes are the owner's, whatever the display name"
        notices = [
            notice.text
            for notice in await server.list_envelopes_to("owner")
            if "An unknown sender wrote" in notice.text
        ]
        assert len(notices) == 1 and "id 666" in notices[0]


@pytest.mark.spec("D56.callbacks")
async def test_an_unknown_sender_cannot_decide_an_approval_by_pressing_a_button(bot_instance: BotInstance) -> None:
    telegram = bot_instance.telegram
    bot_instance.access_settings = replace(
        bot_instance.access_settings, group_policy=GroupPolicy.OPEN, activation=Activation.ALWAYS
    )
    telegram.add_group(-100)
    async with bot_instance.instance.run() as server:
        await link(server, "owner", id_="42", service="telegram")
        telegram.person_sends("Hello.", chat_id=-100, sender=OWNER)
        await bot_instance.wait_until_answered(-100, 1)
        await server.wait_until_idle()  # the delivery adds rows after Telegram has the message
        before = await rows(server)
        [ours] = telegram.list_bot_messages(-100)
        pressed = [
            telegram.person_presses(ours["message_id"], data, chat_id=-100, sender=EVE)
            for data in ("a:0123456789abcdef:once", "a:0123456789abcdef:always", "/allow", "x" * 64, "1")
        ]
        await wait_until_true(lambda: all(telegram.press_answers[each] for each in pressed))

        assert len({telegram.press_answers[each] for each in pressed}) == 1, (
            "the reply reveals nothing to people who may not decide"
        )
        assert await rows(server) == before
        assert (await server.execute_sql("SELECT count(*) AS n FROM approvals"))[0].n == 0


@pytest.mark.spec("D56.outbound")
async def test_an_agent_may_send_direct_messages_only_to_allowed_senders(bot_instance: BotInstance) -> None:
    bot_instance.access_settings = replace(bot_instance.access_settings, allow_from=("42",))
    bot_instance.instance.get_refusal = OutboundAccess(
        lambda _: bot_instance.access_settings, lambda _: "telegram", lambda: "ada"
    ).get_envelope_refusal
    async with bot_instance.instance.run() as server:

        async def write(room: int) -> SettledOutcome:
            id_ = EnvelopeId(bot_instance.instance.ids.new())
            draft = EnvelopeDraft(
                id=id_,
                sender=address.agent_address("ada"),
                recipient=address.parse_address(f"channel:family:{room}"),
                text="hello",
                source="run",
                idempotency_key=id_,
            )
            return await server.wait_for_outcome((await server.intake.accept(draft)).envelope)

        assert (await write(42)).outcome is Outcome.DELIVERED
        refused = await write(666)
        assert refused.outcome is Outcome.DEAD and refused.because
        assert (len(bot_instance.telegram.list_bot_messages(42)), bot_instance.telegram.list_bot_messages(666)) == (
            1,
            [],
        )


# --- floods: ten thousand messages within a minute of the server's clock ---


class LogCounter(logging.Handler):
    """Counts the server's log records by phrase."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.inbound_message: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        self.inbound_message[record.msg] += 1


@pytest.fixture
def log_counter() -> Any:
    handler, log = LogCounter(), logging.getLogger("retinue")
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    yield handler
    log.removeHandler(handler)
    log.setLevel(level)


def message_from_one_stranger(number: int) -> InboundMessage:
    return inbound_message("spam", by="8", id_=str(number))


def message_from_many_strangers(number: int) -> InboundMessage:
    return inbound_message("spam", by=f"s{number % (2 * REFUSALS_MAX)}", id_=str(number))


def message_in_a_group(number: int) -> InboundMessage:
    return inbound_message("spam", by=f"s{number}", channel="-1", id_=str(number), mentioned=True)


def press_by_stranger(number: int) -> InboundMessage:
    return inbound_message(
        "a:1:once", by=f"s{number}", id_=str(number), kind=InboundKind.PRESS, quoted=QuotedMessage(message_id="1")
    )


FLOODS: dict[str, tuple[dict[str, Any], Callable[[int], InboundMessage], int]] = {
    "one stranger with a closed policy": ({}, message_from_one_stranger, 1),
    "many strangers with a closed policy": ({"dm_policy": DmPolicy.ALLOWLIST}, message_from_many_strangers, 1),
    "many strangers with pairing": (
        {"dm_policy": DmPolicy.PAIRING, "pairing_max": 3},
        message_from_many_strangers,
        3,
    ),
    "many strangers in a group": ({}, message_in_a_group, 0),
    "many who press buttons": ({"dm_policy": DmPolicy.OPEN}, press_by_stranger, 0),
    "many strangers with an open policy": (
        {"dm_policy": DmPolicy.OPEN, "unknown_senders_per_minute": 20},
        message_from_many_strangers,
        0,
    ),
}


@pytest.mark.spec("D56.inbound")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("flood", FLOODS)
async def test_a_flood_of_messages_from_unknown_senders_is_limited_in_rows_memory_and_log_lines(
    tmp_path: Path, flood: str, log_counter: LogCounter
) -> None:
    settings, incoming, notice_count = FLOODS[flood]
    chat = ChatInstance.at(tmp_path, **settings)
    async with chat.instance.run() as server:
        for number in range(FLOOD // 10):  # the cache of senders is full by now
            await server.connector_intake.accept("quiet", incoming(number))
        await server.wait_until_idle()
        before = await rows(server)
        log_counter.inbound_message.clear()
        tracemalloc.start()
        try:
            for number in range(FLOOD // 10, FLOOD):
                assert await server.connector_intake.accept("quiet", incoming(number)) is None
            grown, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        await server.wait_until_idle()

        assert await rows(server) == before
        assert grown < GROWTH_BYTES_MAX
        assert (
            len(log_counter.inbound_message) <= PHRASES_MAX
            and max(log_counter.inbound_message.values(), default=0) <= LINES_PER_MINUTE
        ), log_counter.inbound_message
        assert len(await server.list_envelopes_to("owner")) == notice_count
        assert chat.policy_access_control is not None and len(chat.policy_access_control.refusals()) <= REFUSALS_MAX


async def test_throttled_log_lines_about_unknown_senders_are_counted_in_the_next_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger=PolicyAccessControl.__module__)
    chat = ChatInstance.at(tmp_path)
    async with chat.instance.run() as server:
        for number in range(LINES_PER_MINUTE + 7):
            await server.connector_intake.accept("quiet", inbound_message("spam", by=f"s{number}"))
        await chat.instance.clock.advance(60)
        await server.connector_intake.accept("quiet", inbound_message("spam", by="another"))
    log_records = [record for record in caplog.records if record.name == PolicyAccessControl.__module__]
    refused = [record for record in log_records if record.message == "message refused"]
    assert len(refused) == LINES_PER_MINUTE + 1
    assert getattr(refused[-1], "left_out", 0) == 7


# --- webhooks ---


@pytest.mark.spec("C87")
async def test_a_replayed_webhook_request_makes_no_second_envelope_and_another_connector_refuses_it(
    tmp_path: Path,
) -> None:
    """Also with another id, at another time, or for another connector: the signature covers all three."""
    at = int(time.time())
    webhook_connectors = [
        webhook(WebhookSettings()),
        webhook(WebhookSettings(), instance="other", secret="another secret of theirs"),
    ]
    async with open_webhook_server(tmp_path, *webhook_connectors) as server:
        server.model.will_reply("Seen.")
        first = await server.send("ci/agent", {"message": "Pay."}, at=at)
        again = [await server.send("ci/agent", {"message": "Pay."}, at=at) for _ in range(20)]
        elsewhere = await server.send("other/agent", {"message": "Pay."}, at=at)
        await server.rest()

        assert (first.status, elsewhere.status) == (202, 401)
        assert {each.body["envelope"] for each in again} == {first.body["envelope"]}
        assert len(server.model.prompts) == 1
