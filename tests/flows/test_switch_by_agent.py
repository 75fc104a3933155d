"""An agent takes a person to another agent because they asked for it, and that one brings them back."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from flows.team_instance import let_in, letters, outcome, plays, said_to, sums_hold
from flows.tools_instance import ADA, BO, HandsHouse, hands_house

from retinue.domain.agent import Agent, DelegationRules
from retinue.domain.envelope import EnvelopeKind, Outcome
from retinue.domain.event import EventKind, StoredEvent
from retinue.domain.person import Role
from retinue.domain.structs import replace
from retinue.store.core import events
from retinue.store.runs import runs
from retinue.testing.scripted_model import ScriptedReply, tool_call_reply


def switch(to: str = "bo", message: str = "They want to talk about chairs.") -> ScriptedReply:
    return tool_call_reply("agents_switch", agentId=to, message=message)


async def switches(house: HandsHouse) -> list[StoredEvent]:
    found: list[StoredEvent] = await house.house.store.scan(partial(events.list_after, cursor=0, limit=10_000))
    return [piece for piece in found if piece.kind is EventKind.SESSION_SWITCHED]


@pytest.mark.spec("A81")
async def test_there_with_a_first_message_and_back_with_what_was_decided(tmp_path: Path) -> None:
    async with hands_house(tmp_path) as house:
        older = await house.turn("Hello, bo.", "Hello.", to="agent:bo", origin="person:owner/older")
        latest = await house.turn("Hello again, bo.", "Hello.", to="agent:bo", origin="person:owner/latest")
        house.model.rule = plays(
            {
                "Switch to bo": [switch(), "Bo has it."],
                "talk about chairs": ["Which chairs?"],
                "The red ones": ["Noted."],
                "Back to ada": [switch("back", "We decided on red chairs."), "Ada knows."],
                "decided on red": ["Red chairs it is."],
            }
        )
        here = await house.turn("Switch to bo and discuss chairs.")
        (word,) = await letters(house, EnvelopeKind.SYSTEM)
        assert (str(word.sender), word.session) == (f"agent:ada/{here}", latest), "the most recent one"
        assert latest != older
        assert "Which chairs?" in await said_to(house)
        await house.turn("The red ones.", to=f"agent:bo/{latest}")
        await house.turn("Back to ada, please.", to=f"agent:bo/{latest}")
        back = (await letters(house, EnvelopeKind.SYSTEM))[-1]
        assert (back.session, back.text) == (here, "We decided on red chairs.")
        assert "Red chairs it is." in await said_to(house)
        went = [(piece.session, piece.body["to"], piece.body["by"]) for piece in await switches(house)]
        assert went == [(here, latest, "person:owner"), (latest, here, "person:owner")]
        assert (await outcome(house, back.id)).outcome is Outcome.ANSWERED
        await sums_hold(house)


@pytest.mark.spec("A81")
async def test_one_who_has_not_talked_to_the_person_yet_gets_a_session_with_them(tmp_path: Path) -> None:
    async with hands_house(tmp_path) as house:
        await let_in(house, maria=Role.MEMBER)
        owners = await house.turn("Hello, bo.", "Hello.", to="agent:bo")
        house.model.rule = plays({"Switch": [switch(), "Bo has it."], "about chairs": ["Which chairs, maria?"]})
        await house.turn("Switch to bo.", sender="person:maria")
        (word,) = await letters(house, EnvelopeKind.SYSTEM)
        assert word.session != owners, "nobody else's"
        assert (await said_to(house, "person:maria"))[-1] == "Which chairs, maria?"
        run = await house.house.store.scan(lambda conn: runs.get(conn, word.run or ""))
        assert run is not None and run.lineage is not None
        assert (str(run.lineage.behalf), run.lineage.depth) == ("person:maria", 1)
        seen = await house.ask("session.list", who=_maria())
        assert word.session in [row["sessionId"] for row in seen["sessions"]]
        await sums_hold(house)


def _maria() -> Any:
    from operations.operations_instance import person

    return person("maria")


async def test_it_takes_a_person_and_goes_only_to_those_the_agent_sees(tmp_path: Path) -> None:
    narrow = replace(ADA, delegation=DelegationRules(deny=("cy",)))
    async with hands_house(tmp_path, staff=(narrow, BO, Agent(name="cy", model="scripted"))) as house:
        session = await house.turn("Switch.", switch("cy"), switch("nobody"), switch("back"), "I cannot.")
        assert [result.failed for result in await house.results(session)] == [True, True, True]
        house.model.rule = plays(
            {
                "Ask bo": [tool_call_reply("agents_message", agentId="bo", content="Take them along."), "Bo cannot."],
                "Take them along.": [switch("ada"), "I cannot."],
            }
        )
        await house.turn("Ask bo.", origin="person:owner/ask")
        (letter,) = await letters(house, EnvelopeKind.DELEGATION)
        (result,) = await house.results(letter.session or "")
        assert result.failed
        assert "there is no person to switch" in result.output
        assert await switches(house) == []
        assert await letters(house, EnvelopeKind.SYSTEM) == []
