"""The engine's contract for agent messages and background jobs: each is delivered, processed and reported once, also
across power cuts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from contracts.engine_instance import (
    StoreControl,
    ada,
    advance_clock_until_done,
    list_answers_to,
    list_tool_results,
    query_rows,
    read_witness_file,
    run_with_ledger_check,
    run_with_power_cuts,
)

from retinue.domain.agent import DelegationRules
from retinue.domain.envelope import Outcome
from retinue.domain.record import UserTurn
from retinue.domain.tool import ToolResult
from retinue.domain.trust import Trust
from retinue.intake.background_jobs import FAILED_PREFIX
from retinue.models.base import ModelPrompt
from retinue.testing.local_instance import LocalInstance, LocalServer, terminal_origin
from retinue.testing.scripted_model import ScriptedReply, text_reply, tool_call_reply
from retinue.tools.delegate.agent_message_tools import SendAgentMessageTool
from retinue.tools.delegate.session_tools import SessionsSendTool


def with_message_tools(instance: LocalInstance, **delegation: Any) -> LocalInstance:
    rules = DelegationRules(**delegation)
    instance.agents = tuple(ada(name=name, delegation=rules) for name in ("ada", "bo"))
    instance.create_tools = lambda store, ways: (
        SendAgentMessageTool(ways.send_agent_message, lambda _scene: False),
        SessionsSendTool(ways.delegate, store, lambda _scene: False),
    )
    return instance


def get_last_user_text(prompt: ModelPrompt) -> str:
    turn = next(r.body for r in reversed(prompt.records) if isinstance(r.body, UserTurn))
    return turn.text


def reply_by_text(script: dict[str, ScriptedReply | str], *, after_call: str) -> Callable[[ModelPrompt], ScriptedReply]:
    """Return a model rule: reply by the text of a message, and with `after_call` to the result of a call."""

    def rule(prompt: ModelPrompt) -> ScriptedReply:
        if isinstance(prompt.records[-1].body, ToolResult):
            return text_reply(after_call)
        line = next(line for key, line in script.items() if key in get_last_user_text(prompt))
        return text_reply(line) if isinstance(line, str) else line

    return rule


async def test_an_agent_message_is_sent_and_processed_once_across_power_cuts(
    new_instance: Callable[[], LocalInstance], store_control: StoreControl
) -> None:
    def make_messaging_instance() -> LocalInstance:
        instance = with_message_tools(new_instance())
        instance.model.rule = reply_by_text(
            {
                "please": tool_call_reply("send_agent_message", text="the shop is closed", agentId="bo"),
                "the shop is closed": tool_call_reply("append_line", text="bo was told"),
            },
            after_call="done",
        )
        return instance

    async def scenario(server: LocalServer) -> None:
        await server.wait_for_outcome((await server.send("please", key="first")).envelope)

    scenario_count = 0
    async for server in run_with_power_cuts(make_messaging_instance, store_control, scenario):
        scenario_count += 1
        words = await query_rows(
            server,
            "SELECT e.id, o.outcome FROM envelopes e JOIN outcomes o ON o.envelope = e.id WHERE e.kind = 'system'",
        )
        assert [row.outcome for row in words] == [Outcome.ANSWERED]
        assert len(read_witness_file(server.instance)) <= 1, "reported twice"
        assert await list_answers_to(server, "maria") == ["done"]
    assert scenario_count > 10


@pytest.mark.parametrize(
    ("turns", "between"),
    [(0, ["asked:\nq0\n\nanswered:\na0"]), (2, ["a0", "q1", "asked:\nq0\n\nanswered:\na0\n\nlast:\na1"])],
)
async def test_an_agent_exchange_sends_each_message_once_across_power_cuts(
    new_instance: Callable[[], LocalInstance], store_control: StoreControl, turns: int, between: list[str]
) -> None:
    def make_exchanging_instance() -> LocalInstance:
        instance = with_message_tools(new_instance(), other_sessions=True, exchanges_max=turns)
        instance.model.rule = reply_by_text(
            {
                "hello": "hello",
                "please": tool_call_reply("sessions_send", sessionKey="agent:bo:main", message="q0"),
                "asked:\nq0": "announced",
                "q0": "a0",
                "a0": "q1",
                "q1": "a1",
            },
            after_call="bo says a0",
        )
        return instance

    async def scenario(server: LocalServer) -> None:
        kw: dict[str, Any] = {"sender": "person:owner", "origin": terminal_origin("owner")}
        await server.wait_for_outcome((await server.send("hello", key="hello", recipient="agent:bo", **kw)).envelope)
        await server.wait_for_outcome((await server.send("please", key="first", **kw)).envelope)

    scenario_count = 0
    async for server in run_with_power_cuts(make_exchanging_instance, store_control, scenario):
        scenario_count += 1
        sent_texts = [
            row.text
            for row in await query_rows(server, "SELECT text FROM envelopes WHERE source = 'exchange' ORDER BY seq")
        ]
        assert sent_texts == between
        received_texts = [received_texts.text for received_texts in await server.list_envelopes_to("owner")]
        assert sorted(received_texts) == ["announced", "bo says a0", "hello"]
        ((session,),) = await query_rows(server, "SELECT id FROM sessions WHERE agent = 'ada'")
        assert len(list_tool_results(await server.list_records(session))) == 1
    assert scenario_count > 20


async def test_a_background_job_starts_at_most_once_and_reports_once_across_power_cuts(
    new_instance: Callable[[], LocalInstance], store_control: StoreControl
) -> None:
    def make_background_instance() -> LocalInstance:
        instance = with_message_tools(new_instance())
        # The job's prompt has only its own text; the session that reads the result has an envelope header.
        script = {"envelope-id:": "NO_REPLY", "count the chairs": tool_call_reply("append_line", text="counted")}
        instance.model.rule = reply_by_text(script, after_call="three")
        return instance

    async def scenario(server: LocalServer) -> None:
        sent = {"sender": "agent:ada", "recipient": "agent:background", "trust": Trust.AGENT}
        receipt = await server.send("count the chairs", key="first", **sent)
        settled = await server.wait_for_outcome(receipt.envelope)
        assert settled.outcome is Outcome.NOTED
        await server.wait_for(_has_background_result, what="the result of the job")

    scenario_count = failed = 0
    async for server in run_with_power_cuts(make_background_instance, store_control, scenario):
        scenario_count += 1
        (reports,) = await query_rows(server, "SELECT text FROM envelopes WHERE sender = 'agent:background'")
        failed += reports.text.startswith(FAILED_PREFIX)
        assert reports.text == "three" or reports.text.startswith(FAILED_PREFIX)
        begun = [p for p in server.instance.model.prompts if not isinstance(p.records[-1].body, ToolResult)]
        assert sum(get_last_user_text(p) == "count the chairs" for p in begun) <= 1, "started again"
        assert len(read_witness_file(server.instance)) <= 1
    assert scenario_count > 8
    assert failed, "some of them were interrupted"


def _has_background_result(conn: Any) -> bool:
    return conn.exec_driver_sql("SELECT 1 FROM envelopes WHERE sender = 'agent:background'").first() is not None


async def test_agent_messages_for_different_run_principals_get_separate_runs(any_instance: LocalInstance) -> None:
    """One sender may act for several people in turn. Their messages must not share a run."""
    instance = with_message_tools(any_instance)
    instance.model.rule = reply_by_text(
        {
            "tell for": tool_call_reply("send_agent_message", text="a word", agentId="bo"),
            "a word": text_reply("heard", after_s=30.0),
        },
        after_call="told",
    )
    async with run_with_ledger_check(instance) as server:
        room = "channel:quiet:7"
        kw: dict[str, Any] = {"sender": room, "trust": Trust.PERSON}
        for n in range(3):
            await server.wait_for_outcome((await server.send(f"tell for {n}", key=str(n), **kw)).envelope)
        await advance_clock_until_done(server, server.wait_until_idle(), step_s=10.0)
        found = await query_rows(server, "SELECT envelopes FROM runs WHERE agent = 'bo'")
        assert all(row.envelopes.count('"') == 2 for row in found), "one message per run"
        assert len(found) == 3
