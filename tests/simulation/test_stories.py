"""What seeds have found, told again without the storm."""

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

SLOWLY = ScriptedReply(calls=(("session_status", {}),), after_s=10)


async def test_a_backlog_is_read_on_the_side_once_and_not_by_every_run_before_its_own(tmp_path: Path) -> None:
    ada = Agent(name="ada", model="scripted", queue=QueuePolicy(mode=QueueMode.STEER_BACKLOG))
    household = LocalInstance(tmp_path, agents=[ada])
    household.model.will_reply(SLOWLY, "one", tool_call_reply("session_status"), "two", "three")
    async with household.run() as house:
        first = await house.send("first")
        await house.wait_for(lambda _: len(household.model.prompts) == 1, what="the model to be asked")
        later = [await house.send(text) for text in ("second", "third")]
        await household.clock.advance(10)
        assert [await house.wait_for_answer(r.envelope) for r in (first, *later)] == ["one", "two", "three"]
        read = [r.body.envelopes for r in await house.list_records(first.session) if isinstance(r.body, UserTurn)]
    second, third = (receipt.envelope for receipt in later)
    assert read == [(first.envelope,), (second, third), (second,), (third,)]


@dataclass(slots=True)
class Hanging:
    """Has its effect, and then never comes back."""

    done: list[str] = field(default_factory=list[str])
    arguments: type[msgspec.Struct] = AppendLineArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(name="hang", description="", parameters=schema_of(AppendLineArguments))
    )

    async def perform(self, arguments: AppendLineArguments, context: ToolContext) -> str:
        self.done.append(context.call)
        await asyncio.Event().wait()
        return "never"


async def test_a_call_that_was_cut_off_is_not_refused_afterwards_as_if_it_had_not_happened(tmp_path: Path) -> None:
    """The rules changed while the house was down. The call was allowed when it was made, and may have happened."""
    tool = Hanging()
    household = LocalInstance(tmp_path, tools=[tool])
    household.model.will_reply(tool_call_reply("hang", text="x"))
    async with household.run() as house:
        receipt = await house.send("do it")
        await house.wait_for(lambda _: bool(tool.done), what="the effect")
        stricter = replace(household.agents[0], tools=ToolRules(deny=("hang",)))
        await house.store.write(partial(agents.upsert, agent=stricter, source="test", at_ms=0), point="staff")
        house.crash()
    household.model.will_reply("I see.")
    async with household.run() as house:
        assert await house.wait_for_answer(receipt.envelope) == "I see."
        results = [r.body for r in await house.list_records(receipt.session) if isinstance(r.body, ToolResult)]
        assert [result.output.startswith("Interrupted") for result in results] == [True]
        assert [tuple(row) for row in await house.execute_sql("SELECT state FROM steps WHERE kind = 'tool'")] == [
            ("interrupted",)
        ]
    assert len(tool.done) == 1


async def test_an_answer_that_finds_its_agent_gone_is_told_in_the_news(tmp_path: Path) -> None:
    household = LocalInstance(tmp_path, agents=[Agent(name=name, model="scripted") for name in ("ada", "bob")])
    household.model.will_reply("hello", text_reply("too late", after_s=10))
    async with household.run() as house:
        bob = await house.send("hello", recipient="agent:bob")
        await house.wait_for_outcome(bob.envelope)
        asked = await house.send("a word?", sender=f"agent:bob/{bob.session}", recipient="agent:ada")
        await house.wait_for(lambda _: len(household.model.prompts) == 2, what="ada to be asked")
        await house.store.write(partial(agents.remove, name="bob", at_ms=0), point="staff")
        await household.clock.advance(10)
        answer = (await house.wait_for_outcome(asked.envelope)).answer
        assert answer is not None
        assert (await house.wait_for_outcome(answer)).outcome == "refused"
        told = await house.store.scan(lambda conn: events.list_after(conn, 0, limit=1000))
        assert [n.body["because"] for n in told if n.kind is EventKind.ENVELOPE_SETTLED] == ["agent-not-found"]


def test_what_a_judge_finds_in_the_very_last_step_is_told_and_not_hidden_by_the_end() -> None:
    """The loop was about to stop by itself, and then could not send home whoever was left."""
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
