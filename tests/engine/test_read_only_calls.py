"""Read-only calls run at once, and are stored with their results, or earlier if they take long."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from contracts.engine_instance import advance_clock_until_done, wait_until_true
from engine.commit_names import CommitRecordingStore

from retinue.domain.envelope import Outcome
from retinue.domain.errors import StoreError
from retinue.domain.structs import replace
from retinue.domain.tool import ToolEffect, ToolSpec
from retinue.engine.journal import PENDING_S_MAX
from retinue.store.core.connection import Store
from retinue.testing.fake_clock import FakeClock
from retinue.testing.local_instance import LocalInstance, LocalServer
from retinue.testing.scripted_model import ScriptedReply, tool_call_reply
from retinue.tools.base import ToolContext, schema_of

LONG_CALL_S = 10.0


class PeekArguments(msgspec.Struct, forbid_unknown_fields=True):
    seconds: float = 0.0


@dataclass(slots=True)
class Peek:
    """A tool that takes some seconds of the fake clock, and counts how often it was started and ended."""

    clock: FakeClock
    begun: int = 0
    ended: int = 0
    arguments: type[msgspec.Struct] = PeekArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="peek", description="Peek.", parameters=schema_of(PeekArguments), is_repeatable=True, is_read_only=True
        )
    )

    async def perform(self, arguments: PeekArguments, context: ToolContext) -> str:
        self.begun += 1
        try:
            if arguments.seconds:
                await self.clock.sleep(arguments.seconds)
        finally:
            self.ended += 1
        return "nothing to see"


@dataclass(slots=True)
class PeekSetup:
    instance: LocalInstance
    peek: Peek
    stores: list[CommitRecordingStore] = field(default_factory=list[CommitRecordingStore])

    @property
    def points(self) -> list[str]:
        return [point for point in self.stores[-1].points if point not in ("setup", "test")]


@pytest.fixture
def peek_setup(tmp_path: Path) -> PeekSetup:
    instance = LocalInstance(tmp_path)
    peek_setup = PeekSetup(instance, Peek(instance.clock))
    instance.tools = (peek_setup.peek,)

    def record_commits(store: Store) -> Any:
        peek_setup.stores.append(CommitRecordingStore(store))
        return peek_setup.stores[-1]

    instance.wrap_store = record_commits
    return peek_setup


run_without_draining = partial(LocalInstance.run, drain_s=0)
STEPS_SQL = "SELECT turn, call_index, kind, state FROM steps ORDER BY turn, call_index"
STEP_EVENTS_SQL = "SELECT kind FROM events WHERE kind LIKE 'step.%' ORDER BY seq"
AUDIT_SQL = "SELECT kind, verdict FROM audit WHERE subject = 'peek' ORDER BY position"


async def begun(server: LocalServer, peek_setup: PeekSetup, times: int = 1) -> None:
    await server.wait_for(lambda _: peek_setup.peek.begun == times, what="the read-only call")


async def test_several_read_only_calls_share_one_commit_and_have_their_own_events(peek_setup: PeekSetup) -> None:
    peek_setup.instance.model.will_reply(ScriptedReply(text="hm", calls=(("peek", {}), ("peek", {}))), "done")
    async with run_without_draining(peek_setup.instance) as server:
        await server.wait_for_outcome((await server.send("go")).envelope)
        await server.wait_until_idle()
        assert peek_setup.points == ["accept", "step", "finish"]
        assert await server.execute_sql(STEPS_SQL) == [
            (0, 0, "model", "closed"),
            (0, 1, "tool", "closed"),
            (0, 2, "tool", "closed"),
            (1, 0, "model", "closed"),
        ]
        kinds = [kind for (kind,) in await server.execute_sql(STEP_EVENTS_SQL)]
        assert kinds == ["step.closed", "step.opened", "step.closed", "step.opened", "step.closed"]
        audit = await server.execute_sql(AUDIT_SQL)
        assert audit == [("call-allowed", "allow"), ("call-ended", "done")] * 2


async def test_a_long_read_only_call_is_stored_while_it_runs(peek_setup: PeekSetup) -> None:
    peek_setup.instance.model.will_reply(tool_call_reply("peek", seconds=LONG_CALL_S), "done")
    async with run_without_draining(peek_setup.instance) as server:
        receipt = await server.send("go")
        await begun(server, peek_setup)
        assert await server.execute_sql(STEPS_SQL) == [(0, 0, "model", "open")]
        await peek_setup.instance.clock.advance(PENDING_S_MAX)
        await server.wait_for(lambda _: "step" in peek_setup.points, what="the intent to be stored")
        assert await server.execute_sql(STEPS_SQL) == [(0, 0, "model", "closed"), (0, 1, "tool", "open")]
        assert peek_setup.peek.ended == 0
        await peek_setup.instance.clock.advance(LONG_CALL_S)
        await server.wait_for_outcome(receipt.envelope)
        await server.wait_until_idle()
        assert peek_setup.points == ["accept", "step", "step", "finish"]
        assert peek_setup.peek.begun == 1
        assert await server.execute_sql(AUDIT_SQL) == [("call-allowed", "allow"), ("call-ended", "done")]


async def test_consecutive_read_only_calls_together_delay_the_commit_no_longer_than_one(peek_setup: PeekSetup) -> None:
    """However many calls there are, a reply is not kept only in memory for longer than that."""
    almost = PENDING_S_MAX * 0.75
    peek_setup.instance.model.will_reply(ScriptedReply(calls=(("peek", {"seconds": almost}),) * 3), "done")
    async with run_without_draining(peek_setup.instance) as server:
        receipt = await server.send("go")
        for number in (1, 2, 3):
            await begun(server, peek_setup, number)
            await peek_setup.instance.clock.advance(almost)
        await server.wait_for_outcome(receipt.envelope)
        await server.wait_until_idle()
        # The second intent is stored while it runs, with the first; the time of the third starts with the second.
        assert peek_setup.points == ["accept", "step", "step", "finish"] and peek_setup.peek.begun == 3


async def test_a_call_with_an_effect_after_a_read_only_call_is_stored_before_it_runs(peek_setup: PeekSetup) -> None:
    peek_setup.instance.model.will_reply(ScriptedReply(calls=(("peek", {}), ("append_line", {"text": "x"}))), "done")
    async with run_without_draining(peek_setup.instance) as server:
        seen: list[bool] = []
        peek_setup.stores[-1].before = lambda point: seen.append(peek_setup.instance.witness_file.exists())
        await server.wait_for_outcome((await server.send("go")).envelope)
        await server.wait_until_idle()
        assert peek_setup.points == ["accept", "step", "step", "finish"]
        assert seen == [False, False, True, True]


async def test_a_crash_during_a_short_read_only_call_repeats_the_model_call(peek_setup: PeekSetup) -> None:
    """Neither the reply nor its result was used. Its possible cost counts as spent."""
    model = peek_setup.instance.model
    model.price_microusd = 1000
    model.will_reply(tool_call_reply("peek", seconds=LONG_CALL_S))
    async with run_without_draining(peek_setup.instance) as server:
        receipt = await server.send("go")
        await begun(server, peek_setup)
        server.crash()
    model.will_reply("never mind")
    async with run_without_draining(peek_setup.instance) as server:
        assert await server.wait_for_answer(receipt.envelope) == "never mind"
        assert await server.execute_sql(STEPS_SQL) == [(0, 0, "model", "closed")]
        assert await server.execute_sql(
            "SELECT attempt, settled_microusd, cost_unknown FROM model_calls ORDER BY attempt"
        ) == [
            (1, 1000, 1),
            (2, 1000, 0),
        ]


async def test_a_crash_during_a_stored_read_only_call_repeats_that_call(peek_setup: PeekSetup) -> None:
    peek_setup.instance.model.will_reply(tool_call_reply("peek", seconds=LONG_CALL_S))
    async with run_without_draining(peek_setup.instance) as server:
        receipt = await server.send("go")
        await begun(server, peek_setup)
        await peek_setup.instance.clock.advance(PENDING_S_MAX)
        await server.wait_for(lambda _: "step" in peek_setup.points, what="the intent to be stored")
        server.crash()
    peek_setup.instance.model.will_reply("seen")
    async with run_without_draining(peek_setup.instance) as server:
        await begun(server, peek_setup, 2)
        await peek_setup.instance.clock.advance(LONG_CALL_S)
        assert await server.wait_for_answer(receipt.envelope) == "seen"


@pytest.mark.parametrize("after_s", [0.0, PENDING_S_MAX])
async def test_cancelling_a_run_ends_its_read_only_call(peek_setup: PeekSetup, after_s: float) -> None:
    peek_setup.instance.model.will_reply(tool_call_reply("peek", seconds=LONG_CALL_S), "after it")
    async with run_without_draining(peek_setup.instance) as server:
        receipt = await server.send("go")
        assert receipt.session is not None
        await begun(server, peek_setup)
        await peek_setup.instance.clock.advance(after_s)
        await server.engine.cancel(receipt.session, by="person:owner", reason="enough")
        assert (await server.wait_for_outcome(receipt.envelope)).outcome is Outcome.CANCELLED
        await server.wait_for(lambda _: peek_setup.peek.ended == 1, what="the end of the read-only call")
        assert not [step for step in await server.execute_sql(STEPS_SQL) if step[3] == "open"]
        assert await server.wait_for_answer((await server.send("and now?")).envelope) == "after it"


async def test_a_run_that_reaches_its_time_limit_ends_its_read_only_call(peek_setup: PeekSetup) -> None:
    (agent,) = peek_setup.instance.agents
    peek_setup.instance.agents = (replace(agent, run_seconds_max=LONG_CALL_S / 2),)
    peek_setup.instance.model.will_reply(tool_call_reply("peek", seconds=LONG_CALL_S))
    async with run_without_draining(peek_setup.instance) as server:
        receipt = await server.send("go")
        await begun(server, peek_setup)
        await peek_setup.instance.clock.advance(LONG_CALL_S / 2)
        outcome = await server.wait_for_outcome(receipt.envelope)
        assert outcome.outcome is Outcome.DEAD and peek_setup.peek.ended == 1
        kinds = [record.kind for record in await server.list_records(receipt.session)]
        assert kinds == ["start", "user", "assistant", "tool", "note"]


async def test_a_store_error_during_a_read_only_call_is_raised_after_it_and_the_run_is_retried(
    peek_setup: PeekSetup,
) -> None:
    peek_setup.instance.model.will_reply(tool_call_reply("peek", seconds=LONG_CALL_S), "done", "done")
    async with run_without_draining(peek_setup.instance) as server:
        receipt = await server.send("go")
        await begun(server, peek_setup)
        failing, refused = True, 0

        def fail(point: str) -> None:
            nonlocal refused
            if point == "step" and failing:
                refused += 1
                raise StoreError("the disk is full", code="store.disk_full")

        peek_setup.stores[-1].before = fail
        await peek_setup.instance.clock.advance(LONG_CALL_S)
        await wait_until_true(lambda: refused, what="the intent to be refused")
        failing = False
        # The lane retries after a second.
        assert await advance_clock_until_done(server, server.wait_for_answer(receipt.envelope)) == "done"
        assert len(peek_setup.instance.model.prompts) == 2


async def test_a_run_that_fails_after_a_read_only_call_keeps_the_reply_and_the_result(peek_setup: PeekSetup) -> None:
    peek_setup.instance.model.will_reply(
        ScriptedReply(text="let me see", calls=(("peek", {}),)), ScriptedReply(fails="tired")
    )
    async with run_without_draining(peek_setup.instance) as server:
        receipt = await server.send("go")
        assert (await server.wait_for_outcome(receipt.envelope)).outcome is Outcome.DEAD
        kinds = [record.kind for record in await server.list_records(receipt.session)]
        assert kinds == ["start", "user", "assistant", "tool", "note"]


@pytest.mark.parametrize(
    ("spec", "believed"),
    [
        ({"is_repeatable": True, "is_read_only": True}, True),
        ({"is_repeatable": True, "is_read_only": True, "effects": frozenset({ToolEffect.READS_PRIVATE})}, True),
        ({"is_repeatable": True}, False),
        ({"is_read_only": True}, False),
        ({"is_repeatable": True, "is_read_only": True, "effects": frozenset({ToolEffect.WRITES})}, False),
        ({"is_repeatable": True, "is_read_only": True, "effects": frozenset({ToolEffect.READS_UNTRUSTED})}, False),
    ],
)
def test_a_tool_that_declares_effects_is_not_safely_read_only(spec: dict[str, Any], believed: bool) -> None:
    assert ToolSpec(name="t", description="", parameters={}, **spec).is_safely_read_only is believed
