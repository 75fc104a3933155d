"""Sessions of external agents, which choose their own session ids."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path

import pytest
from operations.operations_instance import OperationsServer, open_operations_server, person

from retinue.domain.agent import Agent, ExternalAgentEndpoint
from retinue.domain.errors import Conflict, Invalid
from retinue.testing.fake_clock import FakeClock
from retinue.testing.local_instance import LocalInstance

MARIA, NOOR, OWNER = person("maria"), person("noor"), person("owner")
ENDPOINT = ExternalAgentEndpoint(url="https://agent.example/in", secret="env:NO_SUCH_KEY")


@pytest.fixture
async def server(tmp_path: Path) -> AsyncGenerator[OperationsServer]:
    staff = (
        Agent(name="ada", model="scripted"),
        Agent(name="rex", runner="external", external=ENDPOINT),
        Agent(name="tex", runner="external", external=ENDPOINT),
    )
    async with open_operations_server(LocalInstance(tmp_path, agents=staff)) as made:
        yield made


@pytest.mark.spec("A35")
async def test_attaching_with_the_same_external_id_returns_the_same_session(server: OperationsServer) -> None:
    first = await server.ask(MARIA, "session.attach", agent="rex", id="  garden_2027-a ")
    assert first["externalId"] == "garden_2027-a"
    assert (first["agentId"], first["attached"]) == ("rex", "created")
    again = await server.ask(MARIA, "session.attach", agent="rex", id="garden_2027-a")
    assert (again["sessionId"], again["attached"]) == (first["sessionId"], "attached")
    by_its_own = await server.ask(MARIA, "session.attach", agent="rex", id=first["sessionId"])
    assert (by_its_own["sessionId"], by_its_own["attached"]) == (first["sessionId"], "attached")
    other = await server.ask(MARIA, "session.attach", agent="rex", id="Garden_2027-a")  # ids are case-sensitive
    assert other["sessionId"] != first["sessionId"]


@pytest.mark.spec("A35")
@pytest.mark.parametrize("id_", ["", "   ", "a b", "a/b", "a.b", "gärten", "x" * 129, "a\nb"])
async def test_an_invalid_external_session_id_is_refused(server: OperationsServer, id_: str) -> None:
    with pytest.raises(Invalid) as refused:
        await server.ask(MARIA, "session.attach", agent="rex", id=id_)
    assert refused.value.code == "session.id_invalid"
    longest = await server.ask(MARIA, "session.attach", agent="rex", id="x" * 128)
    assert longest["externalId"] == "x" * 128


@pytest.mark.spec("A35")
async def test_an_external_id_of_another_agent_or_person_is_refused_unless_shared(server: OperationsServer) -> None:
    made = await server.ask(MARIA, "session.attach", agent="rex", id="garden")
    for who, agent in ((MARIA, "tex"), (NOOR, "rex"), (OWNER, "tex")):
        with pytest.raises(Conflict) as refused:
            await server.ask(who, "session.attach", agent=agent, id="garden")
        assert refused.value.code == "session.id_taken"
    await server.ask(MARIA, "session.share", session=made["sessionId"], person="noor")
    shared = await server.ask(NOOR, "session.attach", agent="rex", id="garden")
    assert (shared["sessionId"], shared["attached"]) == (made["sessionId"], "attached")


@pytest.mark.spec("A35")
async def test_attaching_revives_a_recently_deleted_external_session_with_its_name(server: OperationsServer) -> None:
    made = await server.ask(MARIA, "session.attach", agent="rex", id="garden")
    await server.ask(MARIA, "session.rename", session=made["sessionId"], name="The garden")
    await server.ask(MARIA, "session.delete", session=made["sessionId"])
    with pytest.raises(Conflict):
        await server.ask(NOOR, "session.attach", agent="rex", id="garden")
    back = await server.ask(MARIA, "session.attach", agent="rex", id="garden")
    assert (back["sessionId"], back["attached"], back["name"]) == (made["sessionId"], "restored", "The garden")


async def test_attaching_an_external_session_that_was_deleted_too_long_ago_creates_a_new_session(
    server: OperationsServer,
) -> None:
    made = await server.ask(MARIA, "session.attach", agent="rex", id="garden")
    await server.ask(MARIA, "session.delete", session=made["sessionId"])
    clock = server.server.instance.clock
    assert isinstance(clock, FakeClock)
    clock.jump(timedelta(days=31))
    anew = await server.ask(MARIA, "session.attach", agent="rex", id="garden")
    assert anew["attached"] == "created"
    assert anew["sessionId"] != made["sessionId"]
    with pytest.raises(Conflict):
        await server.ask(MARIA, "session.attach", agent="rex", id=made["sessionId"])


async def test_attaching_to_an_agent_that_is_not_external_is_refused(server: OperationsServer) -> None:
    with pytest.raises(Invalid) as refused:
        await server.ask(MARIA, "session.attach", agent="ada", id="garden")
    assert refused.value.code == "session.not_external"


async def test_an_external_id_is_free_after_its_person_is_forgotten(server: OperationsServer) -> None:
    made = await server.ask(MARIA, "session.attach", agent="rex", id="marias-garden")
    await server.ask(OWNER, "person.forget", name="maria", confirm="maria")
    anew = await server.ask(NOOR, "session.attach", agent="rex", id="marias-garden")
    assert anew["attached"] == "created"
    assert anew["sessionId"] != made["sessionId"]
