"""Sessions of agents that run elsewhere, by ids of one's own choosing."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path

import pytest
from operations.operations_instance import DeskHouse, desk_house, person

from retinue.domain.agent import Agent, ExternalAgentEndpoint
from retinue.domain.errors import Conflict, Invalid
from retinue.testing.fake_clock import FakeClock
from retinue.testing.local_instance import LocalInstance

MARIA, NOOR, OWNER = person("maria"), person("noor"), person("owner")
ELSEWHERE = ExternalAgentEndpoint(url="https://agent.example/in", secret="env:NO_SUCH_KEY")


@pytest.fixture
async def house(tmp_path: Path) -> AsyncGenerator[DeskHouse]:
    staff = (
        Agent(name="ada", model="scripted"),
        Agent(name="rex", runner="external", external=ELSEWHERE),
        Agent(name="tex", runner="external", external=ELSEWHERE),
    )
    async with desk_house(LocalInstance(tmp_path, agents=staff)) as made:
        yield made


@pytest.mark.spec("A35")
async def test_the_same_id_opens_the_same_session_again(house: DeskHouse) -> None:
    first = await house.ask(MARIA, "session.attach", agent="rex", id="  garden_2027-a ")
    assert first["externalId"] == "garden_2027-a"
    assert (first["agentId"], first["attached"]) == ("rex", "created")
    again = await house.ask(MARIA, "session.attach", agent="rex", id="garden_2027-a")
    assert (again["sessionId"], again["attached"]) == (first["sessionId"], "attached")
    by_its_own = await house.ask(MARIA, "session.attach", agent="rex", id=first["sessionId"])
    assert (by_its_own["sessionId"], by_its_own["attached"]) == (first["sessionId"], "attached")
    other = await house.ask(MARIA, "session.attach", agent="rex", id="Garden_2027-a")  # capitals tell ids apart
    assert other["sessionId"] != first["sessionId"]


@pytest.mark.spec("A35")
@pytest.mark.parametrize("id_", ["", "   ", "a b", "a/b", "a.b", "gärten", "x" * 129, "a\nb"])
async def test_an_id_that_is_none_is_refused(house: DeskHouse, id_: str) -> None:
    with pytest.raises(Invalid) as refused:
        await house.ask(MARIA, "session.attach", agent="rex", id=id_)
    assert refused.value.code == "session.id_invalid"
    longest = await house.ask(MARIA, "session.attach", agent="rex", id="x" * 128)
    assert longest["externalId"] == "x" * 128


@pytest.mark.spec("A35")
async def test_an_id_of_another_agent_or_of_somebody_else_is_refused(house: DeskHouse) -> None:
    made = await house.ask(MARIA, "session.attach", agent="rex", id="garden")
    for who, agent in ((MARIA, "tex"), (NOOR, "rex"), (OWNER, "tex")):
        with pytest.raises(Conflict) as refused:
            await house.ask(who, "session.attach", agent=agent, id="garden")
        assert refused.value.code == "session.id_taken"
    await house.ask(MARIA, "session.share", session=made["sessionId"], person="noor")
    shared = await house.ask(NOOR, "session.attach", agent="rex", id="garden")
    assert (shared["sessionId"], shared["attached"]) == (made["sessionId"], "attached")


@pytest.mark.spec("A35")
async def test_a_deleted_session_is_revived_with_all_that_was_said(house: DeskHouse) -> None:
    made = await house.ask(MARIA, "session.attach", agent="rex", id="garden")
    await house.ask(MARIA, "session.rename", session=made["sessionId"], name="The garden")
    await house.ask(MARIA, "session.delete", session=made["sessionId"])
    with pytest.raises(Conflict):
        await house.ask(NOOR, "session.attach", agent="rex", id="garden")
    back = await house.ask(MARIA, "session.attach", agent="rex", id="garden")
    assert (back["sessionId"], back["attached"], back["name"]) == (made["sessionId"], "revived", "The garden")


async def test_what_was_deleted_too_long_ago_begins_anew(house: DeskHouse) -> None:
    made = await house.ask(MARIA, "session.attach", agent="rex", id="garden")
    await house.ask(MARIA, "session.delete", session=made["sessionId"])
    clock = house.house.instance.clock
    assert isinstance(clock, FakeClock)
    clock.jump(timedelta(days=31))
    anew = await house.ask(MARIA, "session.attach", agent="rex", id="garden")
    assert anew["attached"] == "created"
    assert anew["sessionId"] != made["sessionId"]
    with pytest.raises(Conflict):
        await house.ask(MARIA, "session.attach", agent="rex", id=made["sessionId"])


async def test_agents_that_run_here_give_their_sessions_ids_of_their_own(house: DeskHouse) -> None:
    with pytest.raises(Invalid) as refused:
        await house.ask(MARIA, "session.attach", agent="ada", id="garden")
    assert refused.value.code == "session.not_external"


async def test_an_id_is_forgotten_with_whoever_chose_it(house: DeskHouse) -> None:
    made = await house.ask(MARIA, "session.attach", agent="rex", id="marias-garden")
    await house.ask(OWNER, "person.forget", name="maria", confirm="maria")
    anew = await house.ask(NOOR, "session.attach", agent="rex", id="marias-garden")
    assert anew["attached"] == "created"
    assert anew["sessionId"] != made["sessionId"]
