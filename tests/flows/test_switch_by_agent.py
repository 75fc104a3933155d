"""An agent switches a person to another agent on request, and that agent switches them back."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from flows.team_instance import (
    add_people,
    assert_ledger_is_ok,
    list_envelopes_of_kind,
    list_texts_to,
    outcome,
    scripted_rule,
)
from flows.tools_instance import ADA, BO, ScriptedServer, open_scripted_server

from retinue.domain.agent import Agent, DelegationRules
from retinue.domain.envelope import EnvelopeKind, Outcome
from retinue.domain.event import EventKind, StoredEvent
from retinue.domain.person import Role
from retinue.domain.structs import replace
from retinue.store.core import events
from retinue.store.runs import runs
from retinue.testing.scripted_model import ScriptedReply, tool_call_reply


def switch_call(to: str = "bo", message: str = "They want to talk about chairs.") -> ScriptedReply:
    return tool_call_reply("agents_switch", agentId=to, message=message)


async def list_switch_events(server: ScriptedServer) -> list[StoredEvent]:
    found: list[StoredEvent] = await server.server.store.scan(partial(events.list_after, cursor=0, limit=10_000))
    return [piece for piece in found if piece.kind is EventKind.SESSION_SWITCHED]


@pytest.mark.spec("A81")
async def test_an_agent_switches_a_person_with_a_first_message_and_back_with_a_summary(tmp_path: Path) -> None:
    async with open_scripted_server(tmp_path) as server:
        older = await server.turn("Hello, bo.", "Hello.", to="agent:bo", origin="person:owner/older")
        latest = await server.turn("Hello again, bo.", "Hello.", to="agent:bo", origin="person:owner/latest")
        server.model.rule = scripted_rule(
            {
                "Switch to bo": [switch_call(), "Bo has it."],
                "talk about chairs": ["Which chairs?"],
                "The red ones": ["Noted."],
                "Back to ada": [switch_call("back", "We decided on red chairs."), "Ada knows."],
                "decided on red": ["Red chairs it is."],
            }
        )
        here = await server.turn("Switch to bo and discuss chairs.")
        (agent_message,) = await list_envelopes_of_kind(server, EnvelopeKind.SYSTEM)
        assert (str(agent_message.sender), agent_message.session) == (f"agent:ada/{here}", latest), (
            "the most recent session"
        )
        assert latest != older
        assert "Which chairs?" in await list_texts_to(server)
        await server.turn("The red ones.", to=f"agent:bo/{latest}")
        await server.turn("Back to ada, please.", to=f"agent:bo/{latest}")
        back = (await list_envelopes_of_kind(server, EnvelopeKind.SYSTEM))[-1]
        assert (back.session, back.text) == (here, "We decided on red chairs.")
        assert "Red chairs it is." in await list_texts_to(server)
        went = [(piece.session, piece.body["to"], piece.body["by"]) for piece in await list_switch_events(server)]
        assert went == [(here, latest, "person:owner"), (latest, here, "person:owner")]
        assert (await outcome(server, back.id)).outcome is Outcome.ANSWERED
        await assert_ledger_is_ok(server)


@pytest.mark.spec("A81")
async def test_an_agent_that_switches_a_person_to_an_agent_without_a_session_opens_one_for_them(tmp_path: Path) -> None:
    async with open_scripted_server(tmp_path) as server:
        await add_people(server, maria=Role.MEMBER)
        owner_session = await server.turn("Hello, bo.", "Hello.", to="agent:bo")
        server.model.rule = scripted_rule(
            {"Switch": [switch_call(), "Bo has it."], "about chairs": ["Which chairs, maria?"]}
        )
        await server.turn("Switch to bo.", sender="person:maria")
        (agent_message,) = await list_envelopes_of_kind(server, EnvelopeKind.SYSTEM)
        assert agent_message.session != owner_session, "not the session of another person"
        assert (await list_texts_to(server, "person:maria"))[-1] == "Which chairs, maria?"
        run = await server.server.store.scan(lambda conn: runs.get(conn, agent_message.run or ""))
        assert run is not None and run.lineage is not None
        assert (str(run.lineage.behalf), run.lineage.depth) == ("person:maria", 1)
        seen = await server.ask("session.list", who=_maria())
        assert agent_message.session in [row["sessionId"] for row in seen["sessions"]]
        await assert_ledger_is_ok(server)


def _maria() -> Any:
    from operations.operations_instance import person

    return person("maria")


async def test_an_agent_can_switch_only_a_person_and_only_to_visible_agents(tmp_path: Path) -> None:
    narrow = replace(ADA, delegation=DelegationRules(deny=("cy",)))
    async with open_scripted_server(tmp_path, staff=(narrow, BO, Agent(name="cy", model="scripted"))) as server:
        session = await server.turn(
            "Switch.", switch_call("cy"), switch_call("nobody"), switch_call("back"), "I cannot."
        )
        assert [result.failed for result in await server.results(session)] == [True, True, True]
        server.model.rule = scripted_rule(
            {
                "Ask bo": [tool_call_reply("agents_message", agentId="bo", content="Take them along."), "Bo cannot."],
                "Take them along.": [switch_call("ada"), "I cannot."],
            }
        )
        await server.turn("Ask bo.", origin="person:owner/ask")
        (delegation,) = await list_envelopes_of_kind(server, EnvelopeKind.DELEGATION)
        (result,) = await server.results(delegation.session or "")
        assert result.failed
        assert "there is no person whom you could switch" in result.output
        assert await list_switch_events(server) == []
        assert await list_envelopes_of_kind(server, EnvelopeKind.SYSTEM) == []
