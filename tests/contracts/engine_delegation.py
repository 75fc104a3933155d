"""The engine's contract for delegation: work is done once, and its result reaches the requesting agent once."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from contracts.engine_instance import (
    StoreControl,
    ada,
    advance_clock_until_done,
    let_tasks_settle,
    list_answers_to,
    list_lane_tasks,
    list_notices_to,
    list_outcomes,
    list_tool_results,
    query_rows,
    read_witness_file,
    run_with_ledger_check,
    run_with_power_cuts,
    user_turns,
)

from retinue.domain.agent import Agent, CrashPolicy, DelegationRules
from retinue.domain.envelope import Outcome
from retinue.domain.record import UserTurn
from retinue.domain.structs import replace
from retinue.domain.tool import ToolResult
from retinue.engine.lanes import SlotLimits
from retinue.models.base import ModelPrompt
from retinue.testing.local_instance import LocalInstance, LocalServer
from retinue.testing.scripted_model import ScriptedReply, text_reply, tool_call_reply
from retinue.tools.delegate.agent_tools import AgentsMessageTool


def with_delegation_tool(instance: LocalInstance, **delegation: Any) -> LocalInstance:
    rules = DelegationRules(**delegation)
    instance.agents = tuple(ada(name=name, delegation=rules) for name in ("ada", "bo", "cy"))
    instance.create_tools = lambda store, ways: (AgentsMessageTool(ways.delegate, store, instance.clock),)
    return instance


@pytest.fixture
def delegation_instance(instance: LocalInstance) -> LocalInstance:
    return with_delegation_tool(instance)


def make_delegation_call(agent: str, content: str, **more: Any) -> tuple[str, dict[str, Any]]:
    return "agents_message", {"agentId": agent, "content": content, **more}


def get_last_line(prompt: ModelPrompt) -> str:
    turn = next(r.body for r in reversed(prompt.records) if isinstance(r.body, UserTurn))
    return turn.text.strip().removesuffix("---").strip().splitlines()[-1]


def parse_result(body: ToolResult) -> dict[str, Any]:
    return json.loads(body.output)


async def wait_until_run_is_suspended(server: LocalServer) -> None:
    """Wait until a run is suspended. Other runs may still be active."""
    suspended = "SELECT 1 FROM runs WHERE status = 'suspended'"
    await server.wait_for(lambda conn: conn.exec_driver_sql(suspended).first() is not None, what="a suspended run")


async def test_a_run_that_waits_for_another_agent_holds_no_slot_and_no_task(any_instance: LocalInstance) -> None:
    instance = with_delegation_tool(any_instance)
    instance.slots = SlotLimits(main=1)
    instance.agents = tuple(replace(agent, concurrency=1) for agent in instance.agents)
    instance.model.will_reply(ScriptedReply(calls=(make_delegation_call("bo", "count"),)), "three", "bo says three")
    async with run_with_ledger_check(instance) as server:
        first = await server.send("how many?")
        assert await server.wait_for_answer(first.envelope) == "bo says three"
        assert list_lane_tasks() == []


async def test_a_new_message_ends_the_wait_and_the_delegated_answer_arrives_later(
    delegation_instance: LocalInstance,
) -> None:
    delegation_instance.model.rule = lambda prompt: (
        ScriptedReply(calls=(make_delegation_call("bo", "count"),))
        if "how many" in get_last_line(prompt) and not isinstance(prompt.records[-1].body, ToolResult)
        else text_reply("three", after_s=60)
        if get_last_line(prompt) == "count"
        else text_reply(f"about {get_last_line(prompt)}")
    )
    async with run_with_ledger_check(delegation_instance) as server:
        first = await server.send("how many")
        await wait_until_run_is_suspended(server)
        second = await server.send("and the weather?")
        assert await server.wait_for_answer(second.envelope) == "about and the weather?"
        assert await server.wait_for_answer(first.envelope) == "about how many"
        (mine,) = list_tool_results(await server.list_records(first.session))
        assert parse_result(mine)["status"] == "started"
        await advance_clock_until_done(
            server, server.wait_for(_envelope_exists("about three"), what="the answer about the result")
        )
        texts = [mail.text for mail in await server.list_envelopes_to("maria") if mail.text == "about three"]
        assert texts == ["about three"]


def _envelope_exists(words: str) -> Any:
    return lambda conn: conn.exec_driver_sql(f"SELECT 1 FROM envelopes WHERE text = '{words}'").first() is not None


async def test_a_silent_envelope_does_not_end_the_wait_for_a_delegated_answer(
    delegation_instance: LocalInstance,
) -> None:
    delegation_instance.model.will_reply(
        ScriptedReply(calls=(make_delegation_call("bo", "count"),)), text_reply("three", after_s=5), "bo says three"
    )
    async with run_with_ledger_check(delegation_instance) as server:
        first = await server.send("how many?")
        await wait_until_run_is_suspended(server)
        await server.send("by the way", silent=True)
        await let_tasks_settle(server)
        answer = await advance_clock_until_done(server, server.wait_for_answer(first.envelope))
        assert answer == "bo says three"
        (mine,) = list_tool_results(await server.list_records(first.session))
        assert parse_result(mine)["response"] == "three"


async def test_a_delegation_wait_times_out_while_the_other_delegations_continue(
    delegation_instance: LocalInstance,
) -> None:
    first = make_delegation_call("bo", "slow", timeout=10)  # time limit: of the call, on the virtual clock
    both = ScriptedReply(calls=(first, make_delegation_call("cy", "slower", timeout=100)))
    delegation_instance.model.rule = lambda prompt: (
        both
        if get_last_line(prompt) == "go" and not isinstance(prompt.records[-1].body, ToolResult)
        else text_reply(get_last_line(prompt), after_s={"slow": 200.0, "slower": 50.0}.get(get_last_line(prompt), 0.0))
    )
    async with run_with_ledger_check(delegation_instance) as server:
        first = await server.send("go")
        await advance_clock_until_done(server, server.wait_for_answer(first.envelope))
        found = {
            parse_result(each)["agentId"]: parse_result(each)["status"]
            for each in list_tool_results(await server.list_records(first.session))
        }
        assert found == {"bo": "timeout", "cy": "complete"}


@pytest.mark.parametrize("stop", ["cancel", "reset"])
async def test_a_delegated_answer_after_a_cancel_or_reset_is_recorded_without_starting_a_run(
    delegation_instance: LocalInstance, stop: str
) -> None:
    delegation_instance.model.will_reply(
        ScriptedReply(calls=(make_delegation_call("bo", "count"),)), text_reply("three", after_s=30), "anything new?"
    )
    async with run_with_ledger_check(delegation_instance) as server:
        first = await server.send("how many?")
        await wait_until_run_is_suspended(server)
        assert first.session is not None
        if stop == "cancel":
            await server.engine.cancel(first.session, by="person:maria", reason="enough")
        else:
            await server.engine.reset(first.session, by="person:maria")
        assert await list_outcomes(server, [first.envelope]) == [Outcome.CANCELLED]
        await advance_clock_until_done(server, server.wait_for(_envelope_exists("three"), what="the answer"))
        await let_tasks_settle(server)
        assert await list_answers_to(server, "maria") == []
        second = await server.send("well?")
        assert await server.wait_for_answer(second.envelope) == "anything new?"
        assert any("three" in text for text in user_turns(await server.list_records(first.session)))


async def test_a_delegation_to_a_busy_agent_is_queued(delegation_instance: LocalInstance) -> None:
    line = ScriptedReply(calls=(make_delegation_call("bo", "two", mode="async"),))
    delegation_instance.model.rule = lambda prompt: (
        line
        if get_last_line(prompt) == "go" and not isinstance(prompt.records[-1].body, ToolResult)
        else text_reply(f"did {get_last_line(prompt)}", after_s=20.0 if get_last_line(prompt) == "two" else 0.0)
    )
    async with run_with_ledger_check(delegation_instance) as server:
        first = await server.send("go")
        await server.wait_for_answer(first.envelope)
        second = await server.send("go", key="again")
        await server.wait_for_answer(second.envelope)
        statuses = [
            parse_result(each)["status"] for each in list_tool_results(await server.list_records(first.session))
        ]
        assert statuses == ["started", "queued"]
        await advance_clock_until_done(server, server.wait_until_idle(), step_s=10)
        mail = [mail.text for mail in await server.list_envelopes_to("maria")]
        assert sum("did did two" in text for text in mail) == 2


async def test_a_delegation_to_an_agent_with_a_full_queue_fails_at_once(delegation_instance: LocalInstance) -> None:
    full = replace(delegation_instance.agents[1], queue=replace(delegation_instance.agents[1].queue, cap=0))
    delegation_instance.agents = (delegation_instance.agents[0], full)
    delegation_instance.model.will_reply(ScriptedReply(calls=(make_delegation_call("bo", "count"),)), "bo is busy")
    async with run_with_ledger_check(delegation_instance) as server:
        first = await server.send("how many?")
        assert await server.wait_for_answer(first.envelope) == "bo is busy"
        (mine,) = list_tool_results(await server.list_records(first.session))
        assert parse_result(mine)["status"] == "failed"
        assert "queue full" in parse_result(mine)["message"]


async def test_circular_and_too_many_open_delegations_are_refused_with_the_name_of_the_setting(
    instance: LocalInstance,
) -> None:
    delegation_instance = with_delegation_tool(instance, depth_max=5, open_max=1)
    two = ScriptedReply(calls=(make_delegation_call("bo", "one"), make_delegation_call("cy", "two")))
    delegation_instance.model.rule = lambda prompt: (
        two
        if get_last_line(prompt) == "go" and not isinstance(prompt.records[-1].body, ToolResult)
        else ScriptedReply(calls=(make_delegation_call("ada", "back to you"),))
        if get_last_line(prompt) == "one" and not isinstance(prompt.records[-1].body, ToolResult)
        else text_reply("done")
    )
    async with run_with_ledger_check(delegation_instance) as server:
        first = await server.send("go")
        await server.wait_for_answer(first.envelope)
        mine = list_tool_results(await server.list_records(first.session))
        assert sorted(each.failed for each in mine) == [False, True]
        refused = [each.output for each in mine if each.failed]
        assert len(refused) == 1 and "agents.ada.delegation.open_max" in refused[0]
        ((other,),) = await query_rows(server, "SELECT id FROM sessions WHERE agent = 'bo'")
        (turned_down,) = list_tool_results(await server.list_records(other))
        assert "agents.bo.delegation.allow_cycles" in turned_down.output


def reply_to_errand(prompt: ModelPrompt) -> ScriptedReply:
    """Have Ada delegate errand N to bo, who writes it down, and errand 1N to cy. All report it."""
    last, words = prompt.records[-1].body, get_last_line(prompt)
    if isinstance(last, ToolResult):
        if last.tool == "append_line":
            return text_reply(f"did {words.removeprefix('errand ')}")
        return text_reply("all done")
    if wanted := re.fullmatch(r"please (\d)", words):
        return ScriptedReply(
            calls=(
                make_delegation_call("bo", f"errand {wanted[1]}"),
                make_delegation_call("cy", f"errand 1{wanted[1]}"),
            )
        )
    if words.startswith("errand "):
        return tool_call_reply("append_line", text=words)
    return text_reply(f"so {words}")


async def send_errand_request(server: LocalServer) -> None:
    first = await server.send("please 1", key="first")
    await server.wait_for_outcome(first.envelope)


@pytest.mark.parametrize("delivery", list(CrashPolicy))
async def test_delegated_work_is_done_and_reported_once_across_power_cuts(
    new_instance: Callable[[], LocalInstance], store_control: StoreControl, delivery: CrashPolicy
) -> None:
    def make_sending_instance() -> LocalInstance:
        instance = with_delegation_tool(new_instance())
        instance.agents = tuple(_with_crash_policy(agent, delivery) for agent in instance.agents)
        instance.model.rule = reply_to_errand
        return instance

    scenario_count = 0
    async for server in run_with_power_cuts(make_sending_instance, store_control, send_errand_request):
        scenario_count += 1
        written = read_witness_file(server.instance)
        assert len(set(written)) == len(written), "an errand was run twice"
        open_ = await query_rows(server, "SELECT id FROM delegations WHERE state = 'open' OR wait_ms IS NOT NULL")
        assert open_ == []
        answered = await list_answers_to(server, "maria")
        assert len(answered) + len(await list_notices_to(server, "maria")) == 1
        if delivery is CrashPolicy.RESUME:
            assert answered == ["all done"]
            done = [row.state for row in await query_rows(server, "SELECT state FROM delegations")]
            assert done == ["done", "done"]
            ((session,),) = await query_rows(server, "SELECT id FROM sessions WHERE agent = 'ada'")
            texts = [
                parse_result(each).get("response") for each in list_tool_results(await server.list_records(session))
            ]
            assert sorted(map(str, texts)) == ["did 1", "did 11"]
    assert scenario_count > 20


def _with_crash_policy(agent: Agent, delivery: CrashPolicy) -> Agent:
    return replace(agent, crash_policy=delivery)
