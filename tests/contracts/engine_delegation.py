"""The engine's contract: work that is handed on is done once, and what comes of it reaches whoever asked, once."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from contracts.engine_instance import (
    Hands,
    a_moment,
    ada,
    answers_to,
    as_time_goes_by,
    lane_tasks,
    notices_to,
    opened,
    outcomes,
    power_cuts,
    results,
    rows,
    user_turns,
    witness,
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


def staffed(household: LocalInstance, **delegation: Any) -> LocalInstance:
    rules = DelegationRules(**delegation)
    household.agents = tuple(ada(name=name, delegation=rules) for name in ("ada", "bo", "cy"))
    household.create_tools = lambda store, ways: (AgentsMessageTool(ways.delegate, store, household.clock),)
    return household


@pytest.fixture
def staff(household: LocalInstance) -> LocalInstance:
    return staffed(household)


def ask(agent: str, content: str, **more: Any) -> tuple[str, dict[str, Any]]:
    return "agents_message", {"agentId": agent, "content": content, **more}


def last_words(prompt: ModelPrompt) -> str:
    turn = next(r.body for r in reversed(prompt.records) if isinstance(r.body, UserTurn))
    return turn.text.strip().removesuffix("---").strip().splitlines()[-1]


def told(body: ToolResult) -> dict[str, Any]:
    return json.loads(body.output)


async def waiting(house: LocalServer) -> None:
    """Until a run is parked, whoever else works."""
    parked = "SELECT 1 FROM runs WHERE status = 'parked'"
    await house.wait_for(lambda conn: conn.exec_driver_sql(parked).first() is not None, what="a run that waits")


async def test_a_run_that_waits_for_another_agent_holds_no_slot_and_no_task(any_household: LocalInstance) -> None:
    household = staffed(any_household)
    household.slots = SlotLimits(main=1)
    household.agents = tuple(replace(agent, concurrency=1) for agent in household.agents)
    household.model.will_reply(ScriptedReply(calls=(ask("bo", "count"),)), "three", "bo says three")
    async with opened(household) as house:
        first = await house.send("how many?")
        assert await house.wait_for_answer(first.envelope) == "bo says three"
        assert lane_tasks() == []


async def test_other_mail_ends_the_wait_and_the_answer_comes_later(staff: LocalInstance) -> None:
    staff.model.rule = lambda prompt: (
        ScriptedReply(calls=(ask("bo", "count"),))
        if "how many" in last_words(prompt) and not isinstance(prompt.records[-1].body, ToolResult)
        else text_reply("three", after_s=60)
        if last_words(prompt) == "count"
        else text_reply(f"about {last_words(prompt)}")
    )
    async with opened(staff) as house:
        first = await house.send("how many")
        await waiting(house)
        second = await house.send("and the weather?")
        assert await house.wait_for_answer(second.envelope) == "about and the weather?"
        assert await house.wait_for_answer(first.envelope) == "about how many"
        (mine,) = results(await house.list_records(first.session))
        assert told(mine)["status"] == "started"
        await as_time_goes_by(house, house.wait_for(_said("about three"), what="what came of it"))
        said = [mail.text for mail in await house.list_envelopes_to("maria") if mail.text == "about three"]
        assert said == ["about three"]


def _said(words: str) -> Any:
    return lambda conn: conn.exec_driver_sql(f"SELECT 1 FROM envelopes WHERE text = '{words}'").first() is not None


async def test_silent_mail_does_not_end_the_wait(staff: LocalInstance) -> None:
    staff.model.will_reply(ScriptedReply(calls=(ask("bo", "count"),)), text_reply("three", after_s=5), "bo says three")
    async with opened(staff) as house:
        first = await house.send("how many?")
        await waiting(house)
        await house.send("by the way", silent=True)
        await a_moment(house)
        answer = await as_time_goes_by(house, house.wait_for_answer(first.envelope))
        assert answer == "bo says three"
        (mine,) = results(await house.list_records(first.session))
        assert told(mine)["response"] == "three"


async def test_a_wait_is_over_in_its_time_and_the_others_go_on(staff: LocalInstance) -> None:
    first = ask("bo", "slow", timeout=10)  # time limit: of the call, on a clock that is turned
    both = ScriptedReply(calls=(first, ask("cy", "slower", timeout=100)))
    staff.model.rule = lambda prompt: (
        both
        if last_words(prompt) == "go" and not isinstance(prompt.records[-1].body, ToolResult)
        else text_reply(last_words(prompt), after_s={"slow": 200.0, "slower": 50.0}.get(last_words(prompt), 0.0))
    )
    async with opened(staff) as house:
        first = await house.send("go")
        await as_time_goes_by(house, house.wait_for_answer(first.envelope))
        found = {
            told(each)["agentId"]: told(each)["status"] for each in results(await house.list_records(first.session))
        }
        assert found == {"bo": "timeout", "cy": "complete"}


@pytest.mark.parametrize("stop", ["cancel", "reset"])
async def test_after_a_stop_what_still_comes_wakes_nobody_and_is_written_down(staff: LocalInstance, stop: str) -> None:
    staff.model.will_reply(ScriptedReply(calls=(ask("bo", "count"),)), text_reply("three", after_s=30), "anything new?")
    async with opened(staff) as house:
        first = await house.send("how many?")
        await waiting(house)
        assert first.session is not None
        if stop == "cancel":
            await house.engine.cancel(first.session, by="person:maria", reason="enough")
        else:
            await house.engine.reset(first.session, by="person:maria")
        assert await outcomes(house, [first.envelope]) == [Outcome.CANCELLED]
        await as_time_goes_by(house, house.wait_for(_said("three"), what="the answer"))
        await a_moment(house)
        assert await answers_to(house, "maria") == []
        second = await house.send("well?")
        assert await house.wait_for_answer(second.envelope) == "anything new?"
        assert any("three" in text for text in user_turns(await house.list_records(first.session)))


async def test_whoever_is_busy_has_it_queued(staff: LocalInstance) -> None:
    line = ScriptedReply(calls=(ask("bo", "two", mode="async"),))
    staff.model.rule = lambda prompt: (
        line
        if last_words(prompt) == "go" and not isinstance(prompt.records[-1].body, ToolResult)
        else text_reply(f"did {last_words(prompt)}", after_s=20.0 if last_words(prompt) == "two" else 0.0)
    )
    async with opened(staff) as house:
        first = await house.send("go")
        await house.wait_for_answer(first.envelope)
        second = await house.send("go", key="again")
        await house.wait_for_answer(second.envelope)
        statuses = [told(each)["status"] for each in results(await house.list_records(first.session))]
        assert statuses == ["started", "queued"]
        await as_time_goes_by(house, house.wait_until_idle(), step_s=10)
        mail = [mail.text for mail in await house.list_envelopes_to("maria")]
        assert sum("did did two" in text for text in mail) == 2


async def test_a_queue_that_is_full_is_a_failure_told_at_once(staff: LocalInstance) -> None:
    full = replace(staff.agents[1], queue=replace(staff.agents[1].queue, cap=0))
    staff.agents = (staff.agents[0], full)
    staff.model.will_reply(ScriptedReply(calls=(ask("bo", "count"),)), "bo is busy")
    async with opened(staff) as house:
        first = await house.send("how many?")
        assert await house.wait_for_answer(first.envelope) == "bo is busy"
        (mine,) = results(await house.list_records(first.session))
        assert told(mine)["status"] == "failed"
        assert "queue full" in told(mine)["message"]


async def test_a_circle_and_too_much_at_once_are_refused_by_name(household: LocalInstance) -> None:
    staff = staffed(household, depth_max=5, open_max=1)
    two = ScriptedReply(calls=(ask("bo", "one"), ask("cy", "two")))
    staff.model.rule = lambda prompt: (
        two
        if last_words(prompt) == "go" and not isinstance(prompt.records[-1].body, ToolResult)
        else ScriptedReply(calls=(ask("ada", "back to you"),))
        if last_words(prompt) == "one" and not isinstance(prompt.records[-1].body, ToolResult)
        else text_reply("done")
    )
    async with opened(staff) as house:
        first = await house.send("go")
        await house.wait_for_answer(first.envelope)
        mine = results(await house.list_records(first.session))
        assert sorted(each.failed for each in mine) == [False, True]
        refused = [each.output for each in mine if each.failed]
        assert len(refused) == 1 and "agents.ada.delegation.open_max" in refused[0]
        ((other,),) = await rows(house, "SELECT id FROM sessions WHERE agent = 'bo'")
        (turned_down,) = results(await house.list_records(other))
        assert "agents.bo.delegation.circles" in turned_down.output


def errands(prompt: ModelPrompt) -> ScriptedReply:
    """Ada sends bo for an errand, who writes it down; both say so."""
    last, words = prompt.records[-1].body, last_words(prompt)
    if isinstance(last, ToolResult):
        if last.tool == "append_line":
            return text_reply(f"did {words.removeprefix('errand ')}")
        return text_reply("all done")
    if wanted := re.fullmatch(r"please (\d)", words):
        return ScriptedReply(calls=(ask("bo", f"errand {wanted[1]}"), ask("cy", f"errand 1{wanted[1]}")))
    if words.startswith("errand "):
        return tool_call_reply("append_line", text=words)
    return text_reply(f"so {words}")


async def sent_for_errands(house: LocalServer) -> None:
    first = await house.send("please 1", key="first")
    await house.wait_for_outcome(first.envelope)


@pytest.mark.parametrize("delivery", list(CrashPolicy))
async def test_work_is_done_once_and_told_once_wherever_the_power_goes(
    new_household: Callable[[], LocalInstance], hands: Hands, delivery: CrashPolicy
) -> None:
    def sending() -> LocalInstance:
        household = staffed(new_household())
        household.agents = tuple(_with(agent, delivery) for agent in household.agents)
        household.model.rule = errands
        return household

    lived = 0
    async for house in power_cuts(sending, hands, sent_for_errands):
        lived += 1
        written = witness(house.instance)
        assert len(set(written)) == len(written), "an errand was run twice"
        open_ = await rows(house, "SELECT id FROM delegations WHERE state = 'open' OR wait_ms IS NOT NULL")
        assert open_ == []
        answered = await answers_to(house, "maria")
        assert len(answered) + len(await notices_to(house, "maria")) == 1
        if delivery is CrashPolicy.RESUME:
            assert answered == ["all done"]
            done = [row.state for row in await rows(house, "SELECT state FROM delegations")]
            assert done == ["done", "done"]
            ((session,),) = await rows(house, "SELECT id FROM sessions WHERE agent = 'ada'")
            said = [told(each).get("response") for each in results(await house.list_records(session))]
            assert sorted(map(str, said)) == ["did 1", "did 11"]
    assert lived > 20


def _with(agent: Agent, delivery: CrashPolicy) -> Agent:
    return replace(agent, delivery=delivery)
