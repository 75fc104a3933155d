"""Agents write only where they are bound, and to nobody whom the door keeps out."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from connector_instance import Street, bind, link, said

from retinue.config.access import GroupSettings
from retinue.domain import address
from retinue.domain.access import DmPolicy, GroupPolicy
from retinue.domain.envelope import EnvelopeDraft, EnvelopeKind, Outcome
from retinue.domain.errors import NotAllowed
from retinue.domain.ids import EnvelopeId
from retinue.outbox.outbound_access import AccessCheckedPost, OutboundAccess
from retinue.testing.local_instance import LocalServer


@pytest.fixture
def street(tmp_path: Path) -> Street:
    street = Street.at(tmp_path)
    street.default = None
    return street


def reach(street: Street) -> OutboundAccess:
    return OutboundAccess(lambda _instance: street.settings, lambda _instance: "quiet", lambda: street.default)


async def why_not(street: Street, house: LocalServer, agent: str, room: str) -> str:
    look = partial(
        reach(street).get_refusal,
        sender=address.agent_address(agent),
        recipient=address.parse_address(f"channel:quiet:{room}"),
    )
    return await house.store.read(look)


def words(house: LocalServer, room: str, *, agent: str = "ada", **kw: object) -> EnvelopeDraft:
    id_ = EnvelopeId(house.instance.ids.new())
    return EnvelopeDraft(
        id=id_,
        sender=address.agent_address(agent),
        recipient=address.parse_address(f"channel:quiet:{room}"),
        text="hello",
        source="run",
        idempotency_key=id_,
        **kw,  # type: ignore[arg-type]
    )


@pytest.mark.spec("H8")
async def test_an_agent_without_a_binding_of_the_connector_is_refused_when_it_writes_there(street: Street) -> None:
    street.set(dm=DmPolicy.OPEN)
    async with street.household.run() as house:
        await bind(house, "bob")
        post = AccessCheckedPost(house.intake, house.store, reach(street))
        with pytest.raises(NotAllowed) as refused:
            await post.accept(words(house, "7"))
        assert refused.value.code == "delivery.no_binding" and "no-binding" in refused.value.because
        assert await post.accept(words(house, "7", agent="bob")) is not None
        await house.wait_until_idle()
        assert street.place.list_texts("7") == ["hello"]


@pytest.mark.spec("H8")
async def test_what_was_posted_all_the_same_does_not_leave_the_house_and_says_why(street: Street) -> None:
    street.set(dm=DmPolicy.OPEN)
    street.household.get_refusal = reach(street).get_envelope_refusal
    async with street.household.run() as house:
        receipt = await house.intake.accept(words(house, "7"))
        settled = await house.wait_for_outcome(receipt.envelope)
        assert settled.outcome is Outcome.DEAD and settled.because.startswith("no-binding: ")
        assert street.place.parts == []


@pytest.mark.spec("H8")
async def test_an_answer_goes_where_its_question_came_from_though_the_binding_is_gone(street: Street) -> None:
    street.set(dm=DmPolicy.OPEN)
    street.household.get_refusal = reach(street).get_envelope_refusal
    async with street.household.run() as house:
        await bind(house, "ada")
        receipt = await house.connector_intake.accept("quiet", said("hi", by="7"))
        assert receipt is not None
        await house.execute_sql("DELETE FROM bindings")
        await house.wait_for_answer(receipt.envelope)
        await house.wait_until_idle()
        assert street.place.list_texts("dm-7") == ["ok"]
        later = await house.intake.accept(words(house, "dm-7"))
        assert (await house.wait_for_outcome(later.envelope)).outcome is Outcome.DEAD


@pytest.mark.spec("D56.outbound")
async def test_somebody_who_may_not_talk_is_not_written_to_either(street: Street) -> None:
    street.set(dm=DmPolicy.ALLOWLIST, allow_from=("7",), group_policy=GroupPolicy.ALLOWLIST)
    async with street.household.run() as house:
        await bind(house, "ada")
        assert await why_not(street, house, "ada", "7") == ""
        assert await why_not(street, house, "ada", "8") != ""
        assert await why_not(street, house, "ada", "-1") != ""
        await link(house, "maria", id_="8")
        assert await why_not(street, house, "ada", "8") == ""
        street.set(groups={"-1": GroupSettings()})
        assert await why_not(street, house, "ada", "-1") == ""


@pytest.mark.spec("H8")
async def test_a_room_that_a_binding_names_and_the_default_agents_rooms_are_within_reach(street: Street) -> None:
    async with street.household.run() as house:
        await bind(house, "ada", peer="-5")
        assert await why_not(street, house, "ada", "-5") == ""
        assert "not bound" in await why_not(street, house, "ada", "-6")
        street.default = "bob"
        street.set(dm=DmPolicy.OPEN)
        assert await why_not(street, house, "bob", "-6") == ""


async def test_the_houses_own_words_and_those_of_people_are_not_asked_about(street: Street) -> None:
    street.household.get_refusal = reach(street).get_envelope_refusal
    async with street.household.run() as house:
        notice = EnvelopeDraft(
            id=EnvelopeId(house.instance.ids.new()),
            sender=address.SERVER_ADDRESS,
            recipient=address.parse_address("channel:quiet:7"),
            text="I do not know you yet.",
            source="house",
            idempotency_key="k",
            kind=EnvelopeKind.NOTICE,
        )
        await house.intake.accept(notice)
        await house.wait_until_idle()
        assert street.place.list_texts("7") == ["I do not know you yet."]
