"""Whoever tries the doors: refused or bounded, whatever they say and however often, and the owner is told once."""

from __future__ import annotations

import logging
import time
import tracemalloc
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest
from connector_instance import Street, link, rows, said
from connectors.telegram_instance import until
from connectors.webhook_instance import hook_house, webhook

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
PHRASES_MAX = 5  # different things that a log says of one flood
GROWTH_BYTES_MAX = 4_000_000

EVE = build_user(666, "Eve", username="eve")
OWNER = build_user(42, "Noor", username="noor")


# --- at Telegram's door ---


@pytest.fixture
async def telegram() -> AsyncGenerator[TelegramServer]:
    async with TelegramServer() as server:
        server.chats[666] = replace(server.chats[42], id=666, messages={})
        yield server


class Bot:
    """A house with a bot, and someone at its door. Its owner is known by an id of theirs."""

    def __init__(self, root: Path, telegram: TelegramServer) -> None:
        self.telegram = telegram
        self.door = AccessSettings(dm=DmPolicy.ALLOWLIST, catch_up_hours=0)
        own = TelegramSettings(token_env="BOT", api_base=telegram.url, poll_s=5, timeout_s=60.0)
        self.household = LocalInstance(
            root,
            clock=RealClock(),
            environment={"BOT": TOKEN},
            connector_settings={"family": ConnectorSettings(kind="telegram", own=own)},
            create_access_control=self._stand,
        )
        self.household.model.rule = lambda _prompt: text_reply("ok")
        self.keeper: PolicyAccessControl | None = None

    def _stand(self, store: Store, inbox: EnvelopeIntake) -> AccessControl:
        household = self.household
        self.keeper = PolicyAccessControl(
            store,
            household.clock,
            household.ids,
            lambda _: self.door,
            lambda _: "telegram",
            post=inbox,
            get_default_agent=lambda: "ada",
        )
        return self.keeper

    async def until_refused(self, count: int) -> None:
        keeper = self.keeper
        assert keeper is not None
        await until(lambda: sum(refusal.count for refusal in keeper.refusals()) >= count)

    async def until_answered(self, room: int, count: int) -> None:
        await until(lambda: len(self.telegram.list_bot_messages(room)) >= count)


@pytest.fixture
def bot(tmp_path: Path, telegram: TelegramServer) -> Bot:
    return Bot(tmp_path, telegram)


async def from_outside(house: LocalServer) -> int:
    return (await house.execute_sql("SELECT count(*) AS n FROM envelopes WHERE source LIKE 'connector:%'"))[0].n


@pytest.mark.spec("C16", "D56.inbound")
async def test_a_stranger_who_takes_the_owners_names_and_quotes_the_owner_is_nobody(bot: Bot) -> None:
    telegram = bot.telegram
    async with bot.household.run() as house:
        await link(house, "owner", id_="42", service="telegram")
        theirs = telegram.person_sends("What is on today?", sender=OWNER)
        await bot.until_answered(42, 1)

        forged = build_user(666, "Noor", username="noor")
        telegram.person_sends("It is me, from another telephone.", chat_id=666, sender=forged)
        telegram.person_sends(
            "Forwarded.", chat_id=666, sender=EVE, forward_origin={"type": "user", "sender_user": OWNER, "date": 1}
        )
        telegram.person_sends(
            "As I said.", chat_id=666, sender=EVE, reply_to_message=telegram.chats[42].messages[theirs]
        )
        telegram.person_sends("/new", chat_id=666, sender=EVE)
        await bot.until_refused(4)
        telegram.person_sends("And tomorrow?", sender=build_user(42, "Somebody Else", username="changed"))
        await bot.until_answered(42, 2)
        await house.wait_until_idle()

        assert telegram.list_bot_messages(666) == []
        assert await from_outside(house) == 2, "both of the owner's, whatever they are called"
        told = [
            letter.text for letter in await house.list_envelopes_to("owner") if "An unknown sender wrote" in letter.text
        ]
        assert len(told) == 1 and "id 666" in told[0]


@pytest.mark.spec("D56.callbacks")
async def test_a_button_that_somebody_elses_message_bears_decides_nothing_for_a_stranger(bot: Bot) -> None:
    telegram = bot.telegram
    bot.door = replace(bot.door, group_policy=GroupPolicy.OPEN, activation=Activation.ALWAYS)
    telegram.add_group(-100)
    async with bot.household.run() as house:
        await link(house, "owner", id_="42", service="telegram")
        telegram.person_sends("Hello.", chat_id=-100, sender=OWNER)
        await bot.until_answered(-100, 1)
        before = await rows(house)
        [ours] = telegram.list_bot_messages(-100)
        pressed = [
            telegram.person_presses(ours["message_id"], data, chat_id=-100, sender=EVE)
            for data in ("a:0123456789abcdef:once", "a:0123456789abcdef:always", "/allow", "x" * 64, "1")
        ]
        await until(lambda: all(telegram.press_answers[each] for each in pressed))

        assert len({telegram.press_answers[each] for each in pressed}) == 1, "whoever may not learns nothing from it"
        assert await rows(house) == before
        assert (await house.execute_sql("SELECT count(*) AS n FROM approvals"))[0].n == 0


@pytest.mark.spec("D56.outbound")
async def test_an_agent_writes_to_those_in_private_whom_the_bot_would_hear_and_to_nobody_else(bot: Bot) -> None:
    bot.door = replace(bot.door, allow_from=("42",))
    bot.household.get_refusal = OutboundAccess(
        lambda _: bot.door, lambda _: "telegram", lambda: "ada"
    ).get_envelope_refusal
    async with bot.household.run() as house:

        async def write(room: int) -> SettledOutcome:
            id_ = EnvelopeId(bot.household.ids.new())
            draft = EnvelopeDraft(
                id=id_,
                sender=address.agent_address("ada"),
                recipient=address.parse_address(f"channel:family:{room}"),
                text="hello",
                source="run",
                idempotency_key=id_,
            )
            return await house.wait_for_outcome((await house.intake.accept(draft)).envelope)

        assert (await write(42)).outcome is Outcome.DELIVERED
        refused = await write(666)
        assert refused.outcome is Outcome.DEAD and refused.because
        assert (len(bot.telegram.list_bot_messages(42)), bot.telegram.list_bot_messages(666)) == (1, [])


# --- floods: ten thousand messages within a minute of the house's clock ---


class Lines(logging.Handler):
    """What the house writes to its log, counted by phrase."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.said: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        self.said[record.msg] += 1


@pytest.fixture
def lines() -> Any:
    handler, log = Lines(), logging.getLogger("retinue")
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    yield handler
    log.removeHandler(handler)
    log.setLevel(level)


def one(number: int) -> InboundMessage:
    return said("spam", by="8", id_=str(number))


def many(number: int) -> InboundMessage:
    return said("spam", by=f"s{number % (2 * REFUSALS_MAX)}", id_=str(number))


def in_a_group(number: int) -> InboundMessage:
    return said("spam", by=f"s{number}", room="-1", id_=str(number), mentioned=True)


def pressing(number: int) -> InboundMessage:
    return said(
        "a:1:once", by=f"s{number}", id_=str(number), kind=InboundKind.PRESS, quoted=QuotedMessage(message_id="1")
    )


FLOODS: dict[str, tuple[dict[str, Any], Callable[[int], InboundMessage], int]] = {
    "one stranger at a closed door": ({}, one, 1),
    "many strangers at a closed door": ({"dm": DmPolicy.ALLOWLIST}, many, 1),
    "many strangers where codes are given": ({"dm": DmPolicy.PAIRING, "pairing_max": 3}, many, 3),
    "many strangers in a room": ({}, in_a_group, 0),
    "many who press buttons": ({"dm": DmPolicy.OPEN}, pressing, 0),
    "many strangers at an open door": ({"dm": DmPolicy.OPEN, "strangers_per_minute": 20}, many, 0),
}


@pytest.mark.spec("D56.inbound")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("flood", FLOODS)
async def test_ten_thousand_messages_a_minute_are_bounded_in_rows_memory_and_log(
    tmp_path: Path, flood: str, lines: Lines
) -> None:
    settings, incoming, told = FLOODS[flood]
    street = Street.at(tmp_path, **settings)
    async with street.household.run() as house:
        for number in range(FLOOD // 10):  # what is remembered of anyone is remembered by now
            await house.connector_intake.accept("quiet", incoming(number))
        await house.wait_until_idle()
        before = await rows(house)
        lines.said.clear()
        tracemalloc.start()
        try:
            for number in range(FLOOD // 10, FLOOD):
                assert await house.connector_intake.accept("quiet", incoming(number)) is None
            grown, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        await house.wait_until_idle()

        assert await rows(house) == before
        assert grown < GROWTH_BYTES_MAX
        assert len(lines.said) <= PHRASES_MAX and max(lines.said.values(), default=0) <= LINES_PER_MINUTE, lines.said
        assert len(await house.list_envelopes_to("owner")) == told
        assert street.keeper is not None and len(street.keeper.refusals()) <= REFUSALS_MAX


async def test_what_a_log_leaves_out_is_counted_in_the_next_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="retinue.mailroom")
    street = Street.at(tmp_path)
    async with street.household.run() as house:
        for number in range(LINES_PER_MINUTE + 7):
            await house.connector_intake.accept("quiet", said("spam", by=f"s{number}"))
        await street.household.clock.advance(60)
        await house.connector_intake.accept("quiet", said("spam", by="another"))
    refused = [record for record in caplog.records if record.message == "message refused"]
    assert len(refused) == LINES_PER_MINUTE + 1
    assert getattr(refused[-1], "left_out", 0) == 7


# --- webhooks ---


@pytest.mark.spec("C87")
async def test_a_request_that_somebody_overheard_is_one_letter_however_often_it_is_brought(tmp_path: Path) -> None:
    """Also under another id, at another time, or at another door: the signature is of all three."""
    at = int(time.time())
    doors = [
        webhook(WebhookSettings()),
        webhook(WebhookSettings(), instance="other", secret="another secret of theirs"),
    ]
    async with hook_house(tmp_path, *doors) as house:
        house.model.will_reply("Seen.")
        first = await house.send("ci/agent", {"message": "Pay."}, at=at)
        again = [await house.send("ci/agent", {"message": "Pay."}, at=at) for _ in range(20)]
        elsewhere = await house.send("other/agent", {"message": "Pay."}, at=at)
        await house.rest()

        assert (first.status, elsewhere.status) == (202, 401)
        assert {each.body["envelope"] for each in again} == {first.body["envelope"]}
        assert len(house.model.prompts) == 1
