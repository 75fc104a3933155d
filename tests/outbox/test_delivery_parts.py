"""A long answer leaves in parts: each arrives once, in order, and what is cut off goes on where it stood."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from faults import CrashAt, time_passing, until

from retinue.connectors.base import ConnectorCapabilities, FailureKind
from retinue.connectors.redacted_connector import RedactedConnector
from retinue.domain.envelope import EnvelopeContext, Outcome, Receipt
from retinue.domain.ids import EnvelopeId
from retinue.domain.reply_delivery import HumanDelay, QuoteMode, ReplyDelivery
from retinue.outbox.delivery_attempts import ATTEMPTS_MAX
from retinue.store.channels import deliveries, delivery_parts
from retinue.testing.fake_connector import FakeConnector
from retinue.testing.local_instance import LocalInstance, LocalServer

THIRTY = ConnectorCapabilities(text_max=30, can_quote=True, can_show_buttons=True)
LONG = "The first part is this.\n\nThe second part is this.\n\nThe third part is this."
PARTS = ["The first part is this.", "The second part is this.", "The third part is this."]
LETTER = "channel:quiet:42"


@pytest.fixture
def household(tmp_path: Path) -> LocalInstance:
    return LocalInstance(tmp_path)


def quiet(household: LocalInstance, *, able: ConnectorCapabilities = THIRTY, **how: Any) -> FakeConnector:
    connector = FakeConnector(household.clock, capabilities=able, **how)
    household.connectors["quiet"] = connector
    return connector


async def send(house: LocalServer, text: str = LONG, *, room: str = "42", **kw: Any) -> Receipt:
    kw.setdefault("sender", "agent:ada")
    return await house.send(text, recipient=f"channel:quiet:{room}", **kw)


async def a_while() -> None:
    """Enough for whatever is about to happen without the clock."""
    for _ in range(50):
        await asyncio.sleep(0.001)  # sleep: what must not happen without the clock has no event


async def kept(house: LocalServer, envelope: str) -> dict[int, str]:
    return await house.store.read(partial(delivery_parts.get_receipts, envelope=envelope))


async def test_a_long_answer_arrives_in_parts_in_their_order_and_each_receipt_is_kept(household: LocalInstance) -> None:
    connector = quiet(household)
    async with household.run() as house:
        sent = await send(house)
        assert (await house.wait_for_outcome(sent.envelope)).outcome is Outcome.DELIVERED
        receipts = await kept(house, sent.envelope)

    assert connector.list_texts("42") == PARTS
    assert [parcel.key for parcel in connector.parts] == [f"{sent.envelope}/{index}" for index in range(3)]
    assert list(receipts) == [0, 1, 2]
    assert len(set(receipts.values())) == 3


async def test_a_short_answer_costs_no_commit_more_and_its_message_is_known(household: LocalInstance) -> None:
    quiet(household)
    async with household.run() as house:
        sent = await send(house, "Lunch with Noor.")
        await house.wait_for_outcome(sent.envelope)
        [receipt] = (await kept(house, sent.envelope)).values()
        found = await house.store.read(partial(delivery_parts.find_envelope, channel=LETTER, receipt=receipt))

    assert found == sent.envelope


@pytest.mark.parametrize(
    ("words", "able"),
    [
        (ReplyDelivery(text_max=200), THIRTY),
        (ReplyDelivery(text_max=10), THIRTY),
        (ReplyDelivery(prefix="[the one and only {agent}]"), THIRTY),
        (ReplyDelivery(), ConnectorCapabilities(text_max=4000)),
    ],
)
async def test_whatever_changes_meanwhile_the_rest_of_a_letter_is_cut_as_its_first_part_was(
    household: LocalInstance, words: ReplyDelivery, able: ConnectorCapabilities
) -> None:
    connector = quiet(household, repeats_safely=False)
    connector.will_be_slow(0.0)  # the first arrives
    connector.will_fail()
    async with household.run() as house:
        sent = await send(house)
        await until(lambda: house.outbox.waiting_count == 1, "the second is refused")
        household.reply_delivery, connector.capabilities = words, able
        async with time_passing(house):
            assert (await house.wait_for_outcome(sent.envelope)).outcome is Outcome.DELIVERED

    assert connector.list_texts("42") == PARTS


async def test_a_long_letter_that_is_taken_little_by_little_is_not_given_up(household: LocalInstance) -> None:
    connector = quiet(household, repeats_safely=False)
    for _ in range(2 * ATTEMPTS_MAX):
        connector.will_be_slow(0.0)
        connector.will_throttle(1.0)
    text = "\n\n".join(f"This is the part number {number}." for number in range(2 * ATTEMPTS_MAX + 1))
    async with household.run() as house:
        sent = await send(house, text)
        async with time_passing(house):
            assert (await house.wait_for_outcome(sent.envelope)).outcome is Outcome.DELIVERED
    assert "\n\n".join(connector.list_texts("42")) == text


async def test_a_long_letter_of_which_nothing_more_arrives_is_given_up_in_the_end(household: LocalInstance) -> None:
    connector = quiet(household, repeats_safely=False)
    connector.will_be_slow(0.0)
    connector.will_fail(times=3 * ATTEMPTS_MAX)
    async with household.run() as house:
        sent = await send(house)
        async with time_passing(house):
            assert (await house.wait_for_outcome(sent.envelope)).outcome is Outcome.DEAD
    assert connector.list_texts("42") == PARTS[:1]


@pytest.mark.spec("C86")
async def test_a_part_that_is_refused_is_tried_again_and_those_before_it_are_not(household: LocalInstance) -> None:
    connector = quiet(household, repeats_safely=False)
    connector.will_be_slow(0.0)  # the first arrives
    connector.will_fail(times=2)
    async with household.run() as house:
        sent = await send(house)
        async with time_passing(house):
            assert (await house.wait_for_outcome(sent.envelope)).outcome is Outcome.DELIVERED

    assert connector.list_texts("42") == PARTS


async def test_a_part_that_may_have_arrived_ends_the_letter_where_it_could_be_read_twice(
    household: LocalInstance,
) -> None:
    connector = quiet(household, repeats_safely=False)
    connector.will_be_slow(0.0)
    connector.will_break(arrives=True)
    async with household.run() as house:
        sent = await send(house)
        settled = await house.wait_for_outcome(sent.envelope)
        receipts = await kept(house, sent.envelope)

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
async def test_after_a_crash_it_goes_on_with_the_first_part_that_has_no_receipt(
    household: LocalInstance, point: str
) -> None:
    connector = quiet(household, repeats_safely=True)
    household.crash_points = faults = CrashAt(point)
    async with household.run() as house:
        faults.guard(house)
        sent = await send(house)
        await until(lambda: house.is_crashed, "the house crashed")
    before = len(connector.attempted_envelopes)
    async with household.run() as house:
        assert (await house.wait_for_outcome(sent.envelope)).outcome is Outcome.DELIVERED

    assert faults.happened
    assert connector.list_texts("42") == PARTS
    assert len(connector.attempted_envelopes) - before <= 3
    if point == "deliver-part.after-commit":
        assert len(connector.attempted_envelopes) - before == 2, "the part whose receipt is kept is not sent again"


@pytest.mark.parametrize("point", CRASHES)
async def test_after_a_crash_nothing_is_read_twice_where_repeating_is_not_safe(
    household: LocalInstance, point: str
) -> None:
    connector = quiet(household, repeats_safely=False)
    household.crash_points = faults = CrashAt(point)
    async with household.run() as house:
        faults.guard(house)
        sent = await send(house)
        await until(lambda: house.is_crashed, "the house crashed")
    async with household.run() as house:
        outcome = (await house.wait_for_outcome(sent.envelope)).outcome

    assert outcome is (Outcome.DELIVERED if point == "deliver-done.after-commit" else Outcome.INTERRUPTED)
    read = connector.list_texts("42")
    assert read == PARTS[: len(read)]


@pytest.mark.spec("C86")
async def test_a_place_that_asks_for_patience_is_left_alone_by_every_room(household: LocalInstance) -> None:
    connector = quiet(household)
    connector.will_throttle(30.0, channel="42")
    async with household.run() as house:
        throttled = await send(house, "one", room="42")
        await until(lambda: house.outbox.waiting_count == 1, "the first rests")
        tried = len(connector.attempted_envelopes)
        other = await send(house, "two", room="43")
        await a_while()
        assert len(connector.attempted_envelopes) == tried, "the place had asked for patience"
        async with time_passing(house):
            for receipt in (throttled, other):
                assert (await house.wait_for_outcome(receipt.envelope)).outcome is Outcome.DELIVERED

    assert connector.list_texts("43") == ["two"]


@pytest.mark.spec("C81")
async def test_between_two_parts_it_takes_as_long_as_a_person_would(household: LocalInstance) -> None:
    household.reply_delivery = ReplyDelivery(human_delay=HumanDelay.NATURAL)
    connector = quiet(household)
    async with household.run() as house:
        sent = await send(house)
        await until(lambda: connector.list_texts("42") == PARTS[:1], "the first part is there")
        await a_while()
        assert connector.list_texts("42") == PARTS[:1]
        async with time_passing(house):
            assert (await house.wait_for_outcome(sent.envelope)).outcome is Outcome.DELIVERED

    assert connector.list_texts("42") == PARTS


@pytest.mark.spec("C81")
async def test_a_house_that_closes_between_two_parts_goes_on_when_it_opens(household: LocalInstance) -> None:
    household.reply_delivery = ReplyDelivery(human_delay=HumanDelay.NATURAL)
    connector = quiet(household, repeats_safely=False)
    async with household.run() as house:
        sent = await send(house)
        await until(lambda: connector.list_texts("42") == PARTS[:1], "the first part is there")
    async with household.run() as house, time_passing(house):
        assert (await house.wait_for_outcome(sent.envelope)).outcome is Outcome.DELIVERED
        tried = await house.store.read(partial(deliveries.list_attempts, envelope=sent.envelope))

    assert connector.list_texts("42") == PARTS
    assert [attempt.state for attempt in tried] == ["failed", "sent"]


async def test_a_secret_is_taken_out_before_a_text_is_cut_so_that_no_half_of_it_leaves(
    household: LocalInstance,
) -> None:
    connector = FakeConnector(household.clock, capabilities=THIRTY)
    household.connectors["quiet"] = RedactedConnector(connector, lambda text: text.replace("s3cret" * 6, "[masked]"))
    async with household.run() as house:
        await house.wait_for_outcome((await send(house, f"It is {'s3cret' * 6} and no other word.")).envelope)

    assert "s3cret" not in "".join(connector.list_texts("42"))
    assert "[masked]" in "".join(connector.list_texts("42"))


# Quotes


async def said(house: LocalServer, text: str, *, room: str = "42", message_id: str = "17") -> EnvelopeId:
    receipt = await house.send(
        text,
        sender=f"channel:quiet:{room}",
        recipient="agent:ada",
        source="connector:quiet",
        key=f"{room}/{message_id}",
        context=EnvelopeContext(platform_id=message_id),
        silent=True,
    )
    return receipt.envelope


@pytest.mark.spec("H19")
async def test_a_reply_to_a_message_of_the_same_chat_is_quoted_and_any_other_is_not(household: LocalInstance) -> None:
    connector = quiet(household)
    async with household.run() as house:
        here, elsewhere = await said(house, "hello"), await said(house, "hi", room="43", message_id="3")
        ours = await send(house, "good morning")
        await house.wait_for_outcome(ours.envelope)
        for about in (here, elsewhere, ours.envelope):
            await house.wait_for_outcome((await send(house, f"about {about[:8]}", reply_to=about)).envelope)

    first = connector.parts[0]
    assert [parcel.quoted_message_id for parcel in connector.parts] == ["", "17", "", f"quiet-{first.envelope.id[:8]}"]


@pytest.mark.spec("H19")
async def test_only_the_first_part_quotes_and_none_where_the_place_cannot_or_shall_not(
    household: LocalInstance,
) -> None:
    connector = quiet(household)
    async with household.run() as house:
        about = await said(house, "hello")
        await house.wait_for_outcome((await send(house, reply_to=about)).envelope)
        household.reply_delivery = ReplyDelivery(quoting=QuoteMode.OFF)
        await house.wait_for_outcome((await send(house, "plain", reply_to=about)).envelope)

    assert [parcel.quoted_message_id for parcel in connector.parts] == ["17", "", "", ""]


@pytest.mark.spec("C82")
async def test_a_reply_tag_names_a_message_of_this_chat_and_no_other(household: LocalInstance) -> None:
    connector = quiet(household)
    async with household.run() as house:
        about = await said(house, "hello")
        await said(house, "hi", room="43", message_id="99")
        for tag in ("[[reply_to:17]]", "[[reply_to:99]]", f"[[reply_to:{about[:8]}]]", "[[reply_to:nonsense]]"):
            await house.wait_for_outcome((await send(house, f"{tag} yes")).envelope)

    assert [(parcel.quoted_message_id, parcel.text.strip()) for parcel in connector.parts] == [
        ("17", "yes"),
        ("", "yes"),
        ("17", "yes"),
        ("", "yes"),
    ]


@pytest.mark.spec("C86")
async def test_a_part_that_is_refused_for_good_ends_the_letter_and_its_sender_is_told(household: LocalInstance) -> None:
    connector = quiet(household)
    connector.will_be_slow(0.0)
    connector.will_fail(permanent=True, kind=FailureKind.INVALID_ADDRESS)
    async with household.run() as house:
        settled = await house.wait_for_outcome((await send(house)).envelope)

    assert settled.outcome is Outcome.DEAD
    assert connector.list_texts("42") == PARTS[:1]
