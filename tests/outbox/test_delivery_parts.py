"""Test long answers in several parts: each part arrives once, in order, and an interrupted delivery resumes."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from faults import WAIT_S, CrashAt, advancing_clock, poll_until

from retinue.connectors.base import ConnectorCapabilities, FailureKind
from retinue.connectors.redacted_connector import RedactedConnector
from retinue.domain.envelope import EnvelopeContext, Outcome, Receipt
from retinue.domain.ids import EnvelopeId
from retinue.domain.reply_delivery import HumanDelay, QuoteMode, ReplyDelivery
from retinue.outbox.delivery_attempts import ATTEMPTS_MAX
from retinue.store.channels import deliveries, delivery_parts
from retinue.testing.fake_connector import FakeConnector
from retinue.testing.local_instance import LocalInstance, LocalServer

THIRTY_CHARACTERS = ConnectorCapabilities(text_max=30, can_quote=True, can_show_buttons=True)
LONG = "The first part is this.\n\nThe second part is this.\n\nThe third part is this."
PARTS = ["The first part is this.", "The second part is this.", "The third part is this."]
CHANNEL = "channel:quiet:42"


@pytest.fixture
def instance(tmp_path: Path) -> LocalInstance:
    return LocalInstance(tmp_path)


def add_fake_connector(
    instance: LocalInstance, *, capabilities: ConnectorCapabilities = THIRTY_CHARACTERS, **how: Any
) -> FakeConnector:
    connector = FakeConnector(instance.clock, capabilities=capabilities, **how)
    instance.connectors["quiet"] = connector
    return connector


async def send(server: LocalServer, text: str = LONG, *, channel: str = "42", **kw: Any) -> Receipt:
    kw.setdefault("sender", "agent:ada")
    return await server.send(text, recipient=f"channel:quiet:{channel}", **kw)


async def let_tasks_settle() -> None:
    """Give tasks that do not need the clock enough time to finish."""
    for _ in range(50):
        await asyncio.sleep(0.001)  # sleep: there is no event for what must not happen without the clock


async def list_receipts(server: LocalServer, envelope: str) -> dict[int, str]:
    return await server.store.read(partial(delivery_parts.get_receipts, envelope=envelope))


async def test_a_long_answer_is_delivered_in_ordered_parts_and_each_receipt_is_stored(instance: LocalInstance) -> None:
    connector = add_fake_connector(instance)
    async with instance.run() as server:
        sent = await send(server)
        assert (await server.wait_for_outcome(sent.envelope)).outcome is Outcome.DELIVERED
        receipts = await list_receipts(server, sent.envelope)

    assert connector.list_texts("42") == PARTS
    assert [part.key for part in connector.parts] == [f"{sent.envelope}/{index}" for index in range(3)]
    assert list(receipts) == [0, 1, 2]
    assert len(set(receipts.values())) == 3


async def test_the_envelope_of_a_delivered_short_answer_is_found_by_its_platform_message_id(
    instance: LocalInstance,
) -> None:
    add_fake_connector(instance)
    async with instance.run() as server:
        sent = await send(server, "Lunch with Noor.")
        await server.wait_for_outcome(sent.envelope)
        [receipt] = (await list_receipts(server, sent.envelope)).values()
        found = await server.store.read(partial(delivery_parts.find_envelope, channel=CHANNEL, receipt=receipt))

    assert found == sent.envelope


@pytest.mark.parametrize(
    ("words", "capabilities"),
    [
        (ReplyDelivery(text_max=200), THIRTY_CHARACTERS),
        (ReplyDelivery(text_max=10), THIRTY_CHARACTERS),
        (ReplyDelivery(prefix="[the one and only {agent}]"), THIRTY_CHARACTERS),
        (ReplyDelivery(), ConnectorCapabilities(text_max=4000)),
    ],
)
async def test_changed_settings_do_not_change_the_delivery_parts_of_a_partly_sent_envelope(
    instance: LocalInstance, words: ReplyDelivery, capabilities: ConnectorCapabilities
) -> None:
    connector = add_fake_connector(instance, repeats_safely=False)
    connector.will_be_slow(0.0)  # the first part arrives
    connector.will_fail()
    async with instance.run() as server:
        sent = await send(server)
        await poll_until(lambda: server.outbox.waiting_count == 1, "the second is refused")
        instance.reply_delivery, connector.capabilities = words, capabilities
        async with advancing_clock(server):
            assert (await server.wait_for_outcome(sent.envelope)).outcome is Outcome.DELIVERED

    assert connector.list_texts("42") == PARTS


async def test_a_delivery_that_sends_another_part_with_each_attempt_is_not_given_up(instance: LocalInstance) -> None:
    connector = add_fake_connector(instance, repeats_safely=False)
    for _ in range(2 * ATTEMPTS_MAX):
        connector.will_be_slow(0.0)
        connector.will_throttle(1.0)
    text = "\n\n".join(f"This is the part number {number}." for number in range(2 * ATTEMPTS_MAX + 1))
    async with instance.run() as server:
        sent = await send(server, text)
        async with advancing_clock(server):
            assert (await server.wait_for_outcome(sent.envelope)).outcome is Outcome.DELIVERED
    assert "\n\n".join(connector.list_texts("42")) == text


async def test_a_delivery_whose_attempts_send_no_further_part_makes_the_envelope_dead(instance: LocalInstance) -> None:
    connector = add_fake_connector(instance, repeats_safely=False)
    connector.will_be_slow(0.0)
    connector.will_fail(times=3 * ATTEMPTS_MAX)
    async with instance.run() as server:
        sent = await send(server)
        async with advancing_clock(server):
            assert (await server.wait_for_outcome(sent.envelope)).outcome is Outcome.DEAD
    assert connector.list_texts("42") == PARTS[:1]


@pytest.mark.spec("C86")
async def test_a_refused_delivery_part_is_retried_without_resending_earlier_parts(instance: LocalInstance) -> None:
    connector = add_fake_connector(instance, repeats_safely=False)
    connector.will_be_slow(0.0)  # the first part arrives
    connector.will_fail(times=2)
    async with instance.run() as server:
        sent = await send(server)
        async with advancing_clock(server):
            assert (await server.wait_for_outcome(sent.envelope)).outcome is Outcome.DELIVERED

    assert connector.list_texts("42") == PARTS


async def test_a_delivery_part_with_an_unknown_result_ends_the_envelope_if_repeating_is_unsafe(
    instance: LocalInstance,
) -> None:
    connector = add_fake_connector(instance, repeats_safely=False)
    connector.will_be_slow(0.0)
    connector.will_break(arrives=True)
    async with instance.run() as server:
        sent = await send(server)
        settled = await server.wait_for_outcome(sent.envelope)
        receipts = await list_receipts(server, sent.envelope)

    assert settled.outcome is Outcome.INTERRUPTED
    assert connector.list_texts("42") == PARTS[:2]
    assert list(receipts) == [0]


CRASHES = (
    "deliver.before",
    "deliver.after",
    "deliver-part.before-commit",
    "deliver-part.after-commit",
    "deliver-done.before-commit",
    "deliver-done.after-commit",
)


@pytest.mark.parametrize("point", CRASHES)
async def test_after_a_crash_delivery_continues_with_the_first_part_without_a_receipt(
    instance: LocalInstance, point: str
) -> None:
    connector = add_fake_connector(instance, repeats_safely=True)
    instance.crash_points = faults = CrashAt(point)
    async with instance.run() as server:
        faults.watch(server)
        sent = await send(server)
        await poll_until(lambda: server.is_crashed, "the server crashed")
    before = len(connector.attempted_envelopes)
    async with instance.run() as server:
        assert (await server.wait_for_outcome(sent.envelope)).outcome is Outcome.DELIVERED

    assert faults.happened
    assert connector.list_texts("42") == PARTS
    assert len(connector.attempted_envelopes) - before <= 3
    if point == "deliver-part.after-commit":
        assert len(connector.attempted_envelopes) - before == 2, "a part with a stored receipt is not sent again"


@pytest.mark.parametrize("point", CRASHES)
async def test_after_a_crash_no_delivery_part_is_sent_twice_if_repeating_is_unsafe(
    instance: LocalInstance, point: str
) -> None:
    connector = add_fake_connector(instance, repeats_safely=False)
    instance.crash_points = faults = CrashAt(point)
    async with instance.run() as server:
        faults.watch(server)
        sent = await send(server)
        await poll_until(lambda: server.is_crashed, "the server crashed")
    async with instance.run() as server:
        outcome = (await server.wait_for_outcome(sent.envelope)).outcome

    assert outcome is (Outcome.DELIVERED if point == "deliver-done.after-commit" else Outcome.INTERRUPTED)
    read = connector.list_texts("42")
    assert read == PARTS[: len(read)]


@pytest.mark.spec("C86")
async def test_a_throttled_delivery_part_pauses_all_channels_of_the_connector(instance: LocalInstance) -> None:
    connector = add_fake_connector(instance)
    connector.will_throttle(30.0, channel="42")
    async with instance.run() as server:
        throttled = await send(server, "one", channel="42")
        await poll_until(lambda: server.outbox.waiting_count == 1, "the first channel waits")
        tried = len(connector.attempted_envelopes)
        other = await send(server, "two", channel="43")
        await let_tasks_settle()
        assert len(connector.attempted_envelopes) == tried, "the platform had asked for a delay"
        async with advancing_clock(server):
            for receipt in (throttled, other):
                assert (await server.wait_for_outcome(receipt.envelope)).outcome is Outcome.DELIVERED

    assert connector.list_texts("43") == ["two"]


@pytest.mark.spec("C81")
async def test_a_human_delay_separates_two_delivery_parts(instance: LocalInstance) -> None:
    instance.reply_delivery = ReplyDelivery(human_delay=HumanDelay.NATURAL)
    connector = add_fake_connector(instance)
    async with instance.run() as server:
        sent = await send(server)
        await poll_until(lambda: connector.list_texts("42") == PARTS[:1], "the first part has arrived")
        await let_tasks_settle()
        assert connector.list_texts("42") == PARTS[:1]
        async with advancing_clock(server):
            assert (await server.wait_for_outcome(sent.envelope)).outcome is Outcome.DELIVERED

    assert connector.list_texts("42") == PARTS


@pytest.mark.spec("C81")
async def test_delivery_continues_with_the_next_part_after_a_restart_between_parts(instance: LocalInstance) -> None:
    instance.reply_delivery = ReplyDelivery(human_delay=HumanDelay.NATURAL)
    connector = add_fake_connector(instance, repeats_safely=False)
    async with instance.run(drain_s=WAIT_S) as server:
        sent = await send(server)
        await poll_until(lambda: connector.list_texts("42") == PARTS[:1], "the first part has arrived")
    async with instance.run() as server, advancing_clock(server):
        assert (await server.wait_for_outcome(sent.envelope)).outcome is Outcome.DELIVERED
        tried = await server.store.read(partial(deliveries.list_attempts, envelope=sent.envelope))

    assert connector.list_texts("42") == PARTS
    assert [attempt.state for attempt in tried] == ["failed", "sent"]


async def test_secrets_are_redacted_before_a_text_is_split_into_parts(
    instance: LocalInstance,
) -> None:
    connector = FakeConnector(instance.clock, capabilities=THIRTY_CHARACTERS)
    instance.connectors["quiet"] = RedactedConnector(connector, lambda text: text.replace("s3cret" * 6, "[masked]"))
    async with instance.run() as server:
        await server.wait_for_outcome((await send(server, f"It is {'s3cret' * 6} and no other word.")).envelope)

    assert "s3cret" not in "".join(connector.list_texts("42"))
    assert "[masked]" in "".join(connector.list_texts("42"))


# Quotes


async def send_silent_message(
    server: LocalServer, text: str, *, channel: str = "42", message_id: str = "17"
) -> EnvelopeId:
    receipt = await server.send(
        text,
        sender=f"channel:quiet:{channel}",
        recipient="agent:ada",
        source="connector:quiet",
        key=f"{channel}/{message_id}",
        context=EnvelopeContext(platform_id=message_id),
        silent=True,
    )
    return receipt.envelope


@pytest.mark.spec("H19")
async def test_a_delivered_reply_quotes_only_a_message_of_the_same_channel(instance: LocalInstance) -> None:
    connector = add_fake_connector(instance)
    async with instance.run() as server:
        here, elsewhere = (
            await send_silent_message(server, "hello"),
            await send_silent_message(server, "hi", channel="43", message_id="3"),
        )
        ours = await send(server, "good morning")
        await server.wait_for_outcome(ours.envelope)
        for about in (here, elsewhere, ours.envelope):
            await server.wait_for_outcome((await send(server, f"about {about[:8]}", reply_to=about)).envelope)

    first = connector.parts[0]
    assert [part.quoted_message_id for part in connector.parts] == ["", "17", "", f"quiet-{first.envelope.id[:8]}"]


@pytest.mark.spec("H19")
async def test_only_the_first_delivery_part_quotes_and_no_part_if_quoting_is_off(
    instance: LocalInstance,
) -> None:
    connector = add_fake_connector(instance)
    async with instance.run() as server:
        about = await send_silent_message(server, "hello")
        await server.wait_for_outcome((await send(server, reply_to=about)).envelope)
        instance.reply_delivery = ReplyDelivery(quoting=QuoteMode.OFF)
        await server.wait_for_outcome((await send(server, "plain", reply_to=about)).envelope)

    assert [part.quoted_message_id for part in connector.parts] == ["17", "", "", ""]


@pytest.mark.spec("C82")
async def test_a_reply_tag_in_a_delivered_answer_quotes_only_a_message_of_the_same_channel(
    instance: LocalInstance,
) -> None:
    connector = add_fake_connector(instance)
    async with instance.run() as server:
        about = await send_silent_message(server, "hello")
        await send_silent_message(server, "hi", channel="43", message_id="99")
        for tag in ("[[reply_to:17]]", "[[reply_to:99]]", f"[[reply_to:{about[:8]}]]", "[[reply_to:nonsense]]"):
            await server.wait_for_outcome((await send(server, f"{tag} yes")).envelope)

    assert [(part.quoted_message_id, part.text.strip()) for part in connector.parts] == [
        ("17", "yes"),
        ("", "yes"),
        ("17", "yes"),
        ("", "yes"),
    ]


@pytest.mark.spec("C86")
async def test_a_permanently_refused_delivery_part_makes_the_envelope_dead(instance: LocalInstance) -> None:
    connector = add_fake_connector(instance)
    connector.will_be_slow(0.0)
    connector.will_fail(permanent=True, kind=FailureKind.INVALID_ADDRESS)
    async with instance.run() as server:
        settled = await server.wait_for_outcome((await send(server)).envelope)

    assert settled.outcome is Outcome.DEAD
    assert connector.list_texts("42") == PARTS[:1]
