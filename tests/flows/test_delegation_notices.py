"""Asynchronous delegation: the result of the call, and the one notice with the outcome."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from flows.team_instance import assert_ledger_is_ok, list_envelopes_of_kind, list_texts_to, outcome, scripted_rule
from flows.tools_instance import ADA, BO, ScriptedServer, open_scripted_server

from retinue.app.clock_and_ids import RealClock
from retinue.domain.agent import Agent, DelegationRules
from retinue.domain.envelope import Envelope, EnvelopeKind, Outcome
from retinue.domain.event import EventKind
from retinue.domain.record import Reply
from retinue.domain.structs import replace
from retinue.store.core import events
from retinue.testing.scripted_model import ScriptedModel, ScriptedReply, text_reply, tool_call_reply

CY = Agent(name="cy", model="scripted")


def ask(content: str = "Count the chairs.", **more: Any) -> ScriptedReply:
    return tool_call_reply("agents_message", agentId="bo", content=content, mode="async", **more)


async def read_result(server: ScriptedServer, session: str, nth: int = -1) -> dict[str, Any]:
    return json.loads((await server.results(session))[nth].output)


async def list_answers(server: ScriptedServer, session: str) -> list[Envelope]:
    """The answers that a session of ada received."""
    return [mail for mail in await server.mail(f"agent:ada/{session}") if mail.kind is EnvelopeKind.ANSWER]


async def count_runs(server: ScriptedServer, session: str | None) -> int:
    """The number of runs in a session."""
    found = await server.server.store.scan(partial(events.list_next, session=session, cursor=0, limit=10_000))
    return sum(piece.kind is EventKind.RUN_STARTED for piece in found.events)


@pytest.mark.spec("A26", "A78.result", "A78.kept")
async def test_an_async_delegation_returns_at_once_and_its_answer_is_one_message_and_one_turn(tmp_path: Path) -> None:
    async with open_scripted_server(tmp_path) as server:
        server.model.rule = scripted_rule(
            {
                "Ask bo.": [ask(), "I asked bo."],
                "Count the chairs.": [text_reply("Three chairs.", once=server.once_sent_to("I asked bo."))],
                "Three chairs.": ["Bo says: three."],
            }
        )
        session = await server.turn("Ask bo.")
        result = await read_result(server, session)
        (delegation,) = await list_envelopes_of_kind(server, EnvelopeKind.DELEGATION)
        assert {key: result[key] for key in ("mode", "status", "agentId", "sessionId", "created", "responseId")} == {
            "mode": "async",
            "status": "started",
            "agentId": "bo",
            "sessionId": delegation.session,
            "created": True,
            "responseId": delegation.id,
        }
        assert "sessionName" in result
        assert "response" not in result
        assert await count_runs(server, session) == 2, "one run asked, one read the answer"
        assert await list_texts_to(server) == ["I asked bo.", "Bo says: three."]
        # In the other conversation it is shown like any message.
        kept = [
            record.body.text
            for record in await server.records(delegation.session or "")
            if isinstance(record.body, Reply)
        ]
        assert kept == ["Three chairs."]
        assert await count_runs(server, delegation.session) == 1
        await assert_ledger_is_ok(server)


@pytest.mark.spec("A26")
async def test_the_answer_of_an_async_delegation_starts_one_turn_even_after_a_restart(tmp_path: Path) -> None:
    async with open_scripted_server(tmp_path) as server:
        server.model.rule = scripted_rule(
            {"Ask bo.": [ask(), "I asked bo."], "Count the chairs.": [text_reply("Three.", after_s=3600)]}
        )
        receipt = await server.post("Ask bo.")
        await server.once_model_reads("Count the chairs.")()
        await server.once_sent_to("I asked bo.")()
        await server.server.engine.stop(drain_s=0)
    # The run continues while the server starts, so the model has its rule before.
    rule = scripted_rule({"Count the chairs.": ["Three chairs."], "Three chairs.": ["Bo says: three."]})
    async with open_scripted_server(tmp_path, model=ScriptedModel(RealClock(), rule=rule)) as server:
        await server.rest()
        assert await count_runs(server, receipt.session) == 2
        assert (await list_texts_to(server))[-1] == "Bo says: three."
        await assert_ledger_is_ok(server)


@pytest.mark.spec("A78.kept", "A78.notify_off")
async def test_with_notify_off_the_answer_of_a_delegation_is_not_sent_back(tmp_path: Path) -> None:
    async with open_scripted_server(tmp_path) as server:
        server.model.rule = scripted_rule(
            {"Ask bo.": [ask(notify="off"), "I asked bo."], "Count the chairs.": ["Three chairs."]}
        )
        session = await server.turn("Ask bo.")
        (delegation,) = await list_envelopes_of_kind(server, EnvelopeKind.DELEGATION)
        settled = await outcome(server, delegation.id)
        assert (settled.outcome, settled.answer) == (Outcome.ANSWERED, None)
        assert await count_runs(server, session) == 1
        assert [mail.text for mail in await list_envelopes_of_kind(server, EnvelopeKind.ANSWER)] == ["I asked bo."]
        kept = [
            record.body for record in await server.records(delegation.session or "") if isinstance(record.body, Reply)
        ]
        assert [reply.text for reply in kept] == ["Three chairs."]
        await assert_ledger_is_ok(server)


async def test_with_notify_note_the_answer_of_a_delegation_is_read_in_the_next_turn(tmp_path: Path) -> None:
    async with open_scripted_server(tmp_path) as server:
        asked = [ask(notify="note"), "I asked bo."]
        server.model.rule = scripted_rule({"Ask bo.": asked, "Count the chairs.": ["Three chairs."]})
        session = await server.turn("Ask bo.")
        (answer,) = await list_answers(server, session)
        assert answer.silent
        assert (await outcome(server, answer.id)).outcome is Outcome.NOTED
        assert await count_runs(server, session) == 1
        await server.turn("And?", "Three, it seems.")
        shown = [str(record.body) for record in server.model.prompts[-1].records]
        assert any("Three chairs." in text for text in shown)
        assert await count_runs(server, session) == 2
        await assert_ledger_is_ok(server)


@pytest.mark.spec("A27")
@pytest.mark.parametrize(("notify", "turns", "notices"), [("wake", 2, 1), ("note", 1, 1), ("off", 1, 0)])
async def test_a_failed_delegation_is_reported_once_according_to_its_notify_mode(
    tmp_path: Path, notify: str, turns: int, notices: int
) -> None:
    async with open_scripted_server(tmp_path) as server:
        server.model.rule = scripted_rule(
            {
                "Ask bo.": [ask(notify=notify), "I asked bo."],
                "Count the chairs.": [ScriptedReply(fails="no such model")],
                "no such model": ["Bo could not."],
            }
        )
        session = await server.turn("Ask bo.")
        told_of = await list_envelopes_of_kind(server, EnvelopeKind.NOTICE)
        assert len(told_of) == notices
        assert all("no such model" in mail.text and mail.silent is (notify == "note") for mail in told_of)
        assert await count_runs(server, session) == turns
        await assert_ledger_is_ok(server)


@pytest.mark.spec("A26")
async def test_the_answer_of_a_delegation_to_a_deleted_session_is_refused_and_starts_no_run(tmp_path: Path) -> None:
    async with open_scripted_server(tmp_path) as server:
        deleted = asyncio.Event()
        server.model.rule = scripted_rule(
            {"Ask bo.": [ask(), "I asked bo."], "Count the chairs.": [text_reply("Three.", once=deleted.wait)]}
        )
        receipt = await server.post("Ask bo.")
        await server.once_sent_to("I asked bo.")()
        await server.ask("session.delete", session=receipt.session)
        deleted.set()
        await server.rest()
        assert await count_runs(server, receipt.session) == 1
        (answer,) = await list_answers(server, receipt.session or "")
        assert (await outcome(server, answer.id)).outcome is Outcome.REFUSED
        assert await list_texts_to(server) == ["I asked bo."]
        await assert_ledger_is_ok(server)


@pytest.mark.spec("A28")
async def test_delegations_to_a_busy_agent_are_queued_and_answered_in_order(tmp_path: Path) -> None:
    async with open_scripted_server(tmp_path) as server:
        both = ScriptedReply(
            calls=(
                ("agents_message", {"agentId": "bo", "content": "Count the chairs.", "mode": "async"}),
                ("agents_message", {"agentId": "bo", "content": "Count the tables.", "mode": "async"}),
            )
        )
        server.model.rule = scripted_rule(
            {
                "Ask bo.": [both, "I asked twice."],
                "Count the chairs.": [text_reply("Three chairs.", once=server.once_sent_to("I asked twice."))],
                "Count the tables.": ["Two tables."],
                "Three chairs.": ["Three, says bo."],
                "Two tables.": ["Two, says bo."],
            }
        )
        session = await server.turn("Ask bo.")
        first, second = (await server.results(session))[:2]
        assert [json.loads(each.output)["status"] for each in (first, second)] == ["started", "queued"]
        assert [mail.text for mail in await list_answers(server, session)] == ["Three chairs.", "Two tables."]
        assert (await list_texts_to(server))[0] == "I asked twice."
        assert sorted((await list_texts_to(server))[1:]) == ["Three, says bo.", "Two, says bo."]
        await assert_ledger_is_ok(server)


@pytest.mark.spec("A29")
@pytest.mark.parametrize(
    ("ada", "bo", "named"),
    [
        (replace(ADA, delegation=DelegationRules(deny=("b*",))), BO, "agents.ada.delegation.deny"),
        (replace(ADA, delegation=DelegationRules(allow=("c*",))), BO, "agents.ada.delegation.allow"),
        (ADA, replace(BO, visible=False), "agents.bo.visible"),
    ],
)
async def test_an_agent_that_is_not_visible_is_neither_listed_nor_reachable_by_delegation(
    tmp_path: Path, ada: Agent, bo: Agent, named: str
) -> None:
    async with open_scripted_server(tmp_path, staff=(ada, bo, CY)) as server:
        session = await server.turn("Who is here?", tool_call_reply("agents_list"), ask(), "Cy is here.")
        listed, asked = await server.results(session)
        assert [row["id"] for row in json.loads(listed.output)["agents"]] == ["cy"]
        assert asked.failed
        assert named in asked.output
        assert await list_envelopes_of_kind(server, EnvelopeKind.DELEGATION) == []
