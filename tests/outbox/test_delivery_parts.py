"""A long answer leaves in parts: each arrives once, in order, and what is cut off goes on where it stood."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from faults import CrashAt, time_passing, until

from retinue.connectors.base import Abilities, FailureKind
from retinue.connectors.redacted_connector import Masked
from retinue.domain.envelope import Context, Outcome, Receipt
from retinue.domain.ids import EnvelopeId
from retinue.domain.reply_delivery import HumanDelay, Quoting, Words
from retinue.outbox.delivery_attempts import ATTEMPTS_MAX
from retinue.store.channels import deliveries, delivery_parts
from retinue.testing.fake_connector import QuietConnector
from retinue.testing.local_instance import House, Household

THIRTY = Abilities(text_max=30, quotes=True, buttons=True)
LONG = "The first part is this.\n\nThe second part is this.\n\nThe third part is this."
PARTS = ["The first part is this.", "The second part is this.", "The third part is this."]
LETTER = "channel:quiet:42"


@pytest.fixture
def household(tmp_path: Path) -> Household:
    return Household(tmp_path)


def quiet(household: Household, *, able: Abilities = THIRTY, **how: Any) -> QuietConnector:
    connector = QuietConnector(household.clock, abilities=able, **how)
    household.connectors["quiet"] = connector
    return connector


async def send(house: House, text: str = LONG, *, room: str = "42", **kw: Any) -> Receipt:
    kw.setdefault("sender", "agent:ada")
    return await house.post(text, recipient=f"channel:quiet:{room}", **kw)


async def a_while() -> None:
    """Enough for whatever is about to happen without the clock."""
    for _ in range(50):
        await asyncio.sleep(0.001)  # sleep: what must not happen without the clock has no event


async def kept(house: House, envelope: str) -> dict[int, str]:
    return await house.store.read(partial(delivery_parts.of, envelope=envelope))


async def test_a_long_answer_arrives_in_parts_in_their_order_and_each_receipt_is_kept(household: Household) -> None:
    connector = quiet(household)
    async with household.open() as house:
        sent = await send(house)
        assert (await house.outcome(sent.envelope)).outcome is Outcome.DELIVERED
        receipts = await kept(house, sent.envelope)

    assert connector.texts("42") == PARTS
    assert [parcel.key for parcel in connector.parcels] == [f"{sent.envelope}/{index}" for index in range(3)]
    assert list(receipts) == [0, 1, 2]
    assert len(set(receipts.values())) == 3


async def test_a_short_answer_costs_no_commit_more_and_its_message_is_known(household: Household) -> None:
    quiet(household)
    async with household.open() as house:
        sent = await send(house, "Lunch with Noor.")
        await house.outcome(sent.envelope)
        [receipt] = (await kept(house, sent.envelope)).values()
        found = await house.store.read(partial(delivery_parts.named, channel=LETTER, receipt=receipt))

    assert found == sent.envelope


@pytest.mark.parametrize(
    ("words", "able"),
    [
        (Words(text_max=200), THIRTY),
        (Words(text_max=10), THIRTY),
        (Words(prefix="[the one and only {agent}]"), THIRTY),
        (Words(), Abilities(text_max=4000)),
    ],
)
async def test_whatever_changes_meanwhile_the_rest_of_a_letter_is_cut_as_its_first_part_was(
    household: Household, words: Words, able: Abilities
) -> None:
    connector = quiet(household, repeats_safely=False)
    connector.will_be_slow(0.0)  # the first arrives
    connector.will_fail()
    async with household.open() as house:
        sent = await send(house)
        await until(lambda: house.outbox.resting == 1, "the second is refused")
        household.words, connector.abilities = words, able
        async with time_passing(house):
            assert (await house.outcome(sent.envelope)).outcome is Outcome.DELIVERED

    assert connector.texts("42") == PARTS


async def test_a_long_letter_that_is_taken_little_by_little_is_not_given_up(household: Household) -> None:
    connector = quiet(household, repeats_safely=False)
    for _ in range(2 * ATTEMPTS_MAX):
        connector.will_be_slow(0.0)
        connector.will_throttle(1.0)
    text = "\n\n".join(f"This is the part number {number}." for number in range(2 * ATTEMPTS_MAX + 1))
    async with household.open() as house:
        sent = await send(house, text)
        async with time_passing(house):
            assert (await house.outcome(sent.envelope)).outcome is Outcome.DELIVERED
    assert "\n\n".join(connector.texts("42")) == text


async def test_a_long_letter_of_which_nothing_more_arrives_is_given_up_in_the_end(household: Household) -> None:
    connector = quiet(household, repeats_safely=False)
    connector.will_be_slow(0.0)
    connector.will_fail(times=3 * ATTEMPTS_MAX)
    async with household.open() as house:
        sent = await send(house)
        async with time_passing(house):
            assert (await house.outcome(sent.envelope)).outcome is Outcome.DEAD
    assert connector.texts("42") == PARTS[:1]


@pytest.mark.spec("C86")
async def test_a_part_that_is_refused_is_tried_again_and_those_before_it_are_not(household: Household) -> None:
    connector = quiet(household, repeats_safely=False)
    connector.will_be_slow(0.0)  # the first arrives
    connector.will_fail(times=2)
    async with household.open() as house:
        sent = await send(house)
        async with time_passing(house):
            assert (await house.outcome(sent.envelope)).outcome is Outcome.DELIVERED

    assert connector.texts("42") == PARTS


async def test_a_part_that_may_have_arrived_ends_the_letter_where_it_could_be_read_twice(household: Household) -> None:
    connector = quiet(household, repeats_safely=False)
    connector.will_be_slow(0.0)
    connector.will_break(arrives=True)
    async with household.open() as house:
        sent = await send(house)
        settled = await house.outcome(sent.envelope)
        receipts = await kept(house, sent.envelope)

    assert settled.outcome is Outcome.INTERRUPTED
    assert connector.texts("42") == PARTS[:2]
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
    household: Household, point: str
) -> None:
    connector = quiet(household, repeats_safely=True)
    household.faults = faults = CrashAt(point)
    async with household.open() as house:
        faults.guard(house)
        sent = await send(house)
        await until(lambda: house.crashed, "the house crashed")
    before = len(connector.attempts)
    async with household.open() as house:
        assert (await house.outcome(sent.envelope)).outcome is Outcome.DELIVERED

    assert faults.happened
    assert connector.texts("42") == PARTS
    assert len(connector.attempts) - before <= 3
    if point == "deliver-part.after-commit":
        assert len(connector.attempts) - before == 2, "the part whose receipt is kept is not sent again"


@pytest.mark.parametrize("point", CRASHES)
async def test_after_a_crash_nothing_is_read_twice_where_repeating_is_not_safe(
    household: Household, point: str
) -> None:
    connector = quiet(household, repeats_safely=False)
    household.faults = faults = CrashAt(point)
    async with household.open() as house:
        faults.guard(house)
        sent = await send(house)
        await until(lambda: house.crashed, "the house crashed")
    async with household.open() as house:
        outcome = (await house.outcome(sent.envelope)).outcome

    assert outcome is (Outcome.DELIVERED if point == "deliver-done.after-commit" else Outcome.INTERRUPTED)
    read = connector.texts("42")
    assert read == PARTS[: len(read)]


@pytest.mark.spec("C86")
async def test_a_place_that_asks_for_patience_is_left_alone_by_every_room(household: Household) -> None:
    connector = quiet(household)
    connector.will_throttle(30.0, room="42")
    async with household.open() as house:
        throttled = await send(house, "one", room="42")
        await until(lambda: house.outbox.resting == 1, "the first rests")
        tried = len(connector.attempts)
        other = await send(house, "two", room="43")
        await a_while()
        assert len(connector.attempts) == tried, "the place had asked for patience"
        async with time_passing(house):
            for receipt in (throttled, other):
                assert (await house.outcome(receipt.envelope)).outcome is Outcome.DELIVERED

    assert connector.texts("43") == ["two"]


@pytest.mark.spec("C81")
async def test_between_two_parts_it_takes_as_long_as_a_person_would(household: Household) -> None:
    household.words = Words(human_delay=HumanDelay.NATURAL)
    connector = quiet(household)
    async with household.open() as house:
        sent = await send(house)
        await until(lambda: connector.texts("42") == PARTS[:1], "the first part is there")
        await a_while()
        assert connector.texts("42") == PARTS[:1]
        async with time_passing(house):
            assert (await house.outcome(sent.envelope)).outcome is Outcome.DELIVERED

    assert connector.texts("42") == PARTS


@pytest.mark.spec("C81")
async def test_a_house_that_closes_between_two_parts_goes_on_when_it_opens(household: Household) -> None:
    household.words = Words(human_delay=HumanDelay.NATURAL)
    connector = quiet(household, repeats_safely=False)
    async with household.open() as house:
        sent = await send(house)
        await until(lambda: connector.texts("42") == PARTS[:1], "the first part is there")
    async with household.open() as house, time_passing(house):
        assert (await house.outcome(sent.envelope)).outcome is Outcome.DELIVERED
        tried = await house.store.read(partial(deliveries.of, envelope=sent.envelope))

    assert connector.texts("42") == PARTS
    assert [attempt.state for attempt in tried] == ["failed", "sent"]


async def test_a_secret_is_taken_out_before_a_text_is_cut_so_that_no_half_of_it_leaves(household: Household) -> None:
    connector = QuietConnector(household.clock, abilities=THIRTY)
    household.connectors["quiet"] = Masked(connector, lambda text: text.replace("s3cret" * 6, "[masked]"))
    async with household.open() as house:
        await house.outcome((await send(house, f"It is {'s3cret' * 6} and no other word.")).envelope)

    assert "s3cret" not in "".join(connector.texts("42"))
    assert "[masked]" in "".join(connector.texts("42"))


# Quotes


async def said(house: House, text: str, *, room: str = "42", message_id: str = "17") -> EnvelopeId:
    receipt = await house.post(
        text,
        sender=f"channel:quiet:{room}",
        recipient="agent:ada",
        source="connector:quiet",
        key=f"{room}/{message_id}",
        context=Context(platform_id=message_id),
        silent=True,
    )
    return receipt.envelope


@pytest.mark.spec("H19")
async def test_a_reply_to_a_message_of_the_same_chat_is_quoted_and_any_other_is_not(household: Household) -> None:
    connector = quiet(household)
    async with household.open() as house:
        here, elsewhere = await said(house, "hello"), await said(house, "hi", room="43", message_id="3")
        ours = await send(house, "good morning")
        await house.outcome(ours.envelope)
        for about in (here, elsewhere, ours.envelope):
            await house.outcome((await send(house, f"about {about[:8]}", reply_to=about)).envelope)

    first = connector.parcels[0]
    assert [parcel.quote for parcel in connector.parcels] == ["", "17", "", f"quiet-{first.envelope.id[:8]}"]


@pytest.mark.spec("H19")
async def test_only_the_first_part_quotes_and_none_where_the_place_cannot_or_shall_not(household: Household) -> None:
    connector = quiet(household)
    async with household.open() as house:
        about = await said(house, "hello")
        await house.outcome((await send(house, reply_to=about)).envelope)
        household.words = Words(quoting=Quoting.OFF)
        await house.outcome((await send(house, "plain", reply_to=about)).envelope)

    assert [parcel.quote for parcel in connector.parcels] == ["17", "", "", ""]


@pytest.mark.spec("C82")
async def test_a_reply_tag_names_a_message_of_this_chat_and_no_other(household: Household) -> None:
    connector = quiet(household)
    async with household.open() as house:
        about = await said(house, "hello")
        await said(house, "hi", room="43", message_id="99")
        for tag in ("[[reply_to:17]]", "[[reply_to:99]]", f"[[reply_to:{about[:8]}]]", "[[reply_to:nonsense]]"):
            await house.outcome((await send(house, f"{tag} yes")).envelope)

    assert [(parcel.quote, parcel.text.strip()) for parcel in connector.parcels] == [
        ("17", "yes"),
        ("", "yes"),
        ("17", "yes"),
        ("", "yes"),
    ]


@pytest.mark.spec("C86")
async def test_a_part_that_is_refused_for_good_ends_the_letter_and_its_sender_is_told(household: Household) -> None:
    connector = quiet(household)
    connector.will_be_slow(0.0)
    connector.will_fail(permanent=True, kind=FailureKind.INVALID_ADDRESS)
    async with household.open() as house:
        settled = await house.outcome((await send(house)).envelope)

    assert settled.outcome is Outcome.DEAD
    assert connector.texts("42") == PARTS[:1]
