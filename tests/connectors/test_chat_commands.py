"""Commands in chats: they work for people of the house, and are silence to everybody else."""

from __future__ import annotations

from pathlib import Path

import pytest
from connector_instance import Street, kept, link, said

from retinue.domain.access import DmPolicy, GroupPolicy
from retinue.domain.envelope import Outcome
from retinue.domain.slash_command import SUMMARIES, CommandName
from retinue.testing.local_instance import LocalServer

OWNER, STRANGER = "9", "8"


@pytest.fixture
def street(tmp_path: Path) -> Street:
    return Street.at(tmp_path, dm=DmPolicy.OPEN, group_policy=GroupPolicy.OPEN)


async def commanded(house: LocalServer, street: Street, text: str, *, by: str, id_: str, room: str = "") -> str:
    """What the house says to a command; empty where it says nothing."""
    before = len(street.place.parts)
    receipt = await house.connector_intake.accept("quiet", said(text, by=by, id_=id_, room=room, mentioned=bool(room)))
    assert receipt is not None
    settled = await house.wait_for_outcome(receipt.envelope)
    await house.wait_until_idle()
    if settled.outcome is Outcome.REFUSED:
        assert settled.because.startswith("command-not-allowed: /"), "it is in the books"
        assert len(street.place.parts) == before
        return ""
    assert settled.outcome is Outcome.ANSWERED
    return await house.wait_for_answer(receipt.envelope)


@pytest.mark.spec("H74", "C18")
@pytest.mark.parametrize("text", ["/new", "/status", "/abort"])
@pytest.mark.parametrize("room", ["", "-1"])
async def test_new_status_and_abort_work_for_the_owner_and_are_silence_to_others(
    street: Street, text: str, room: str
) -> None:
    async with street.household.run() as house:
        await link(house, "owner", id_=OWNER)
        asked = len(street.household.model.prompts)
        assert await commanded(house, street, text, by=STRANGER, id_="1", room=room) == ""
        assert len(street.household.model.prompts) == asked, "no agent hears of it"
        assert await commanded(house, street, text, by=OWNER, id_="2", room=room) != ""


@pytest.mark.spec("D59", "C18")
async def test_an_unknown_command_is_answered_to_those_who_may_and_is_silence_to_others(street: Street) -> None:
    async with street.household.run() as house:
        await link(house, "owner", id_=OWNER)
        answer = await commanded(house, street, "/statsu", by=OWNER, id_="1")
        assert answer.startswith("Unknown command /statsu. Did you mean /status?")
        assert street.place.list_texts(f"dm-{OWNER}") == [answer]
        assert await commanded(house, street, "/statsu", by=STRANGER, id_="2") == ""
        assert street.place.list_texts(f"dm-{STRANGER}") == []
        assert street.household.model.prompts == [], "no model is asked what is only mistyped"


@pytest.mark.spec("C18")
async def test_every_command_is_answered_in_a_chat_and_none_of_them_to_a_stranger(street: Street) -> None:
    async with street.household.run() as house:
        await link(house, "owner", id_=OWNER)
        for number, name in enumerate(SUMMARIES):
            assert await commanded(house, street, f"/{name}", by=STRANGER, id_=f"s{number}") == "", name
            if name is not CommandName.NEW:  # a bare one is greeted by the agent
                assert await commanded(house, street, f"/{name}", by=OWNER, id_=f"o{number}"), name
        assert len(street.place.list_texts(f"dm-{STRANGER}")) == 0


async def test_a_command_that_is_offered_again_is_carried_out_once(street: Street) -> None:
    async with street.household.run() as house:
        await link(house, "owner", id_=OWNER)
        again = said("/reset keep this", by=OWNER)
        first = await kept(house, await house.connector_intake.accept("quiet", again))
        second = await house.connector_intake.accept("quiet", again)
        await house.wait_until_idle()
        assert second is not None and (second.envelope, second.duplicate) == (first.id, True)
        assert len(street.place.list_texts(f"dm-{OWNER}")) == 1
