"""Regressions that the seeds have found, without random faults."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec
import pytest

from retinue.domain.agent import Agent, ToolRules
from retinue.domain.event import EventKind
from retinue.domain.record import UserTurn
from retinue.domain.session import QueueMode, QueuePolicy
from retinue.domain.structs import replace
from retinue.domain.tool import ToolResult, ToolSpec
from retinue.store.agents import agents
from retinue.store.core import events
from retinue.testing.local_instance import LocalInstance
from retinue.testing.scripted_model import ScriptedReply, text_reply, tool_call_reply
from retinue.testing.tools import AppendLineArguments
from retinue.testing.virtual_time import simulate
from retinue.tools.base import ToolContext, schema_of

SLOW_CALL = ScriptedReply(calls=(("session_status", {}),), after_s=10)


async def test_a_steer_backlog_message_is_steered_into_one_run_and_then_gets_its_own_run(tmp_path: Path) -> None:
    ada = Agent(name="ada", model="scripted", queue=QueuePolicy(mode=QueueMode.STEER_BACKLOG))
    instance = LocalInstance(tmp_path, agents=[ada])
    instance.model.will_reply(SLOW_CALL, "one", tool_call_reply("session_status"), "two", "three")
    async with instance.run() as server:
        first = await server.send("first")
        await server.wait_for(lambda _: len(instance.model.prompts) == 1, what="the model to be asked")
        later = [await server.send(text) for text in ("second", "third")]
        await instance.clock.advance(10)
        assert [await server.wait_for_answer(r.envelope) for r in (first, *later)] == ["one", "two", "three"]
        read = [r.body.envelopes for r in await server.list_records(first.session) if isinstance(r.body, UserTurn)]
    second, third = (receipt.envelope for receipt in later)
    assert read == [(first.envelope,), (second, third), (second,), (third,)]


@dataclass(slots=True)
class HangingTool:
    """Has its effect and then never returns."""

    done: list[str] = field(default_factory=list[str])
    arguments: type[msgspec.Struct] = AppendLineArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(name="hang", description="", parameters=schema_of(AppendLineArguments))
    )

    async def perform(self, arguments: AppendLineArguments, context: ToolContext) -> str:
        self.done.append(context.call)
        await asyncio.Event().wait()
        return "never"


async def test_an_interrupted_tool_call_is_not_reported_as_refused_after_the_tool_rules_changed(tmp_path: Path) -> None:
    """The rules changed while the server was down. The call was allowed before and may have been performed."""
    tool = HangingTool()
    instance = LocalInstance(tmp_path, tools=[tool])
    instance.model.will_reply(tool_call_reply("hang", text="x"))
    async with instance.run() as server:
        receipt = await server.send("do it")
        await server.wait_for(lambda _: bool(tool.done), what="the effect")
        stricter = replace(instance.agents[0], tools=ToolRules(deny=("hang",)))
        await server.store.write(partial(agents.upsert, agent=stricter, source="test", at_ms=0), point="staff")
        server.crash()
    instance.model.will_reply("I see.")
    async with instance.run() as server:
        assert await server.wait_for_answer(receipt.envelope) == "I see."
        results = [r.body for r in await server.list_records(receipt.session) if isinstance(r.body, ToolResult)]
        assert [result.output.startswith("Interrupted") for result in results] == [True]
        assert [tuple(row) for row in await server.execute_sql("SELECT state FROM steps WHERE kind = 'tool'")] == [
            ("interrupted",)
        ]
    assert len(tool.done) == 1


async def test_an_answer_to_a_deleted_agent_is_refused_and_reported_by_an_event(tmp_path: Path) -> None:
    instance = LocalInstance(tmp_path, agents=[Agent(name=name, model="scripted") for name in ("ada", "bob")])
    instance.model.will_reply("hello", text_reply("too late", after_s=10))
    async with instance.run() as server:
        bob = await server.send("hello", recipient="agent:bob")
        await server.wait_for_outcome(bob.envelope)
        asked = await server.send("a word?", sender=f"agent:bob/{bob.session}", recipient="agent:ada")
        await server.wait_for(lambda _: len(instance.model.prompts) == 2, what="ada to be asked")
        await server.store.write(partial(agents.remove, name="bob", at_ms=0), point="staff")
        await instance.clock.advance(10)
        answer = (await server.wait_for_outcome(asked.envelope)).answer
        assert answer is not None
        assert (await server.wait_for_outcome(answer)).outcome == "refused"
        told = await server.store.scan(lambda conn: events.list_after(conn, 0, limit=1000))
        assert [n.body["because"] for n in told if n.kind is EventKind.ENVELOPE_SETTLED] == ["agent-not-found"]


def test_a_finding_of_the_last_simulation_step_is_raised() -> None:
    """The loop was about to stop by itself and then could not cancel the remaining tasks."""
    last: list[bool] = []

    def judge() -> None:
        if last:
            raise AssertionError("found")

    async def main() -> None:
        left_over = asyncio.create_task(asyncio.sleep(100))  # sleep: on virtual time
        await asyncio.sleep(1)  # sleep: on virtual time
        last.append(not left_over.done())

    with pytest.raises(AssertionError, match="found"):
        simulate(1, main, after_step=judge)
