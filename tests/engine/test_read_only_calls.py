"""Calls that only look: begun at once, and written down with what came of them, or when they take long."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from contracts.engine_instance import as_time_goes_by, until
from engine.commit_names import Ledgerful

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

LONG_S = 10.0


class PeekArguments(msgspec.Struct, forbid_unknown_fields=True):
    seconds: float = 0.0


@dataclass(slots=True)
class Peek:
    """Looks for so many seconds of the house's time, and counts how often it was begun and ended."""

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
class Room:
    household: LocalInstance
    peek: Peek
    stores: list[Ledgerful] = field(default_factory=list[Ledgerful])

    @property
    def points(self) -> list[str]:
        return [point for point in self.stores[-1].points if point not in ("setup", "test")]


@pytest.fixture
def room(tmp_path: Path) -> Room:
    household = LocalInstance(tmp_path)
    room = Room(household, Peek(household.clock))
    household.tools = (room.peek,)

    def through(store: Store) -> Any:
        room.stores.append(Ledgerful(store))
        return room.stores[-1]

    household.wrap_store = through
    return room


open_ = partial(LocalInstance.run, drain_s=0)
STEPS = "SELECT turn, idx, kind, state FROM steps ORDER BY turn, idx"
NEWS = "SELECT kind FROM news WHERE kind LIKE 'step.%' ORDER BY seq"
AUDIT = "SELECT kind, verdict FROM audit WHERE subject = 'peek' ORDER BY position"


async def begun(house: LocalServer, room: Room, times: int = 1) -> None:
    await house.wait_for(lambda _: room.peek.begun == times, what="the look")


async def test_several_looks_share_one_commit_and_are_told_one_by_one(room: Room) -> None:
    room.household.model.will_reply(ScriptedReply(text="hm", calls=(("peek", {}), ("peek", {}))), "done")
    async with open_(room.household) as house:
        await house.wait_for_outcome((await house.send("go")).envelope)
        await house.wait_until_idle()
        assert room.points == ["accept", "step", "finish"]
        assert await house.execute_sql(STEPS) == [
            (0, 0, "model", "closed"),
            (0, 1, "tool", "closed"),
            (0, 2, "tool", "closed"),
            (1, 0, "model", "closed"),
        ]
        told = [kind for (kind,) in await house.execute_sql(NEWS)]
        assert told == ["step.closed", "step.opened", "step.closed", "step.opened", "step.closed"]
        audit = await house.execute_sql(AUDIT)
        assert audit == [("call-allowed", "allow"), ("call-ended", "done")] * 2


async def test_a_look_that_takes_long_is_written_down_while_it_goes_on(room: Room) -> None:
    room.household.model.will_reply(tool_call_reply("peek", seconds=LONG_S), "done")
    async with open_(room.household) as house:
        receipt = await house.send("go")
        await begun(house, room)
        assert await house.execute_sql(STEPS) == [(0, 0, "model", "open")]
        await room.household.clock.advance(PENDING_S_MAX)
        await house.wait_for(lambda _: "step" in room.points, what="the intent to be written")
        assert await house.execute_sql(STEPS) == [(0, 0, "model", "closed"), (0, 1, "tool", "open")]
        assert room.peek.ended == 0
        await room.household.clock.advance(LONG_S)
        await house.wait_for_outcome(receipt.envelope)
        await house.wait_until_idle()
        assert room.points == ["accept", "step", "step", "finish"]
        assert room.peek.begun == 1
        assert await house.execute_sql(AUDIT) == [("call-allowed", "allow"), ("call-ended", "done")]


async def test_looks_together_wait_no_longer_than_one(room: Room) -> None:
    """However many there are: what a model has said is not kept in memory alone for longer than that."""
    almost = PENDING_S_MAX * 0.75
    room.household.model.will_reply(ScriptedReply(calls=(("peek", {"seconds": almost}),) * 3), "done")
    async with open_(room.household) as house:
        receipt = await house.send("go")
        for number in (1, 2, 3):
            await begun(house, room, number)
            await room.household.clock.advance(almost)
        await house.wait_for_outcome(receipt.envelope)
        await house.wait_until_idle()
        # The second one's intent is written in its middle, with the first; the third's time begins with the second.
        assert room.points == ["accept", "step", "step", "finish"] and room.peek.begun == 3


async def test_a_call_with_an_effect_after_a_look_waits_for_its_intent(room: Room) -> None:
    room.household.model.will_reply(ScriptedReply(calls=(("peek", {}), ("append_line", {"text": "x"}))), "done")
    async with open_(room.household) as house:
        seen: list[bool] = []
        room.stores[-1].before = lambda point: seen.append(room.household.witness_file.exists())
        await house.wait_for_outcome((await house.send("go")).envelope)
        await house.wait_until_idle()
        assert room.points == ["accept", "step", "step", "finish"]
        assert seen == [False, False, True, True]


async def test_a_house_that_goes_down_in_a_look_asks_the_model_again(room: Room) -> None:
    """Nobody has read what it said, and nothing came of it. What it may have cost counts as spent."""
    model = room.household.model
    model.price_microusd = 1000
    model.will_reply(tool_call_reply("peek", seconds=LONG_S))
    async with open_(room.household) as house:
        receipt = await house.send("go")
        await begun(house, room)
        house.crash()
    model.will_reply("never mind")
    async with open_(room.household) as house:
        assert await house.wait_for_answer(receipt.envelope) == "never mind"
        assert await house.execute_sql(STEPS) == [(0, 0, "model", "closed")]
        assert await house.execute_sql("SELECT attempt, settled_microusd, unknown FROM money ORDER BY attempt") == [
            (1, 1000, 1),
            (2, 1000, 0),
        ]


async def test_a_house_that_goes_down_in_a_long_look_looks_again(room: Room) -> None:
    room.household.model.will_reply(tool_call_reply("peek", seconds=LONG_S))
    async with open_(room.household) as house:
        receipt = await house.send("go")
        await begun(house, room)
        await room.household.clock.advance(PENDING_S_MAX)
        await house.wait_for(lambda _: "step" in room.points, what="the intent to be written")
        house.crash()
    room.household.model.will_reply("seen")
    async with open_(room.household) as house:
        await begun(house, room, 2)
        await room.household.clock.advance(LONG_S)
        assert await house.wait_for_answer(receipt.envelope) == "seen"


@pytest.mark.parametrize("after_s", [0.0, PENDING_S_MAX])
async def test_a_run_that_is_cancelled_in_a_look_ends_it(room: Room, after_s: float) -> None:
    room.household.model.will_reply(tool_call_reply("peek", seconds=LONG_S), "after it")
    async with open_(room.household) as house:
        receipt = await house.send("go")
        assert receipt.session is not None
        await begun(house, room)
        await room.household.clock.advance(after_s)
        await house.engine.cancel(receipt.session, by="person:owner", reason="enough")
        assert (await house.wait_for_outcome(receipt.envelope)).outcome is Outcome.CANCELLED
        await house.wait_for(lambda _: room.peek.ended == 1, what="the look to end")
        assert not [step for step in await house.execute_sql(STEPS) if step[3] == "open"]
        assert await house.wait_for_answer((await house.send("and now?")).envelope) == "after it"


async def test_a_run_whose_seconds_are_over_in_a_look_ends_it(room: Room) -> None:
    (agent,) = room.household.agents
    room.household.agents = (replace(agent, run_seconds_max=LONG_S / 2),)
    room.household.model.will_reply(tool_call_reply("peek", seconds=LONG_S))
    async with open_(room.household) as house:
        receipt = await house.send("go")
        await begun(house, room)
        await room.household.clock.advance(LONG_S / 2)
        outcome = await house.wait_for_outcome(receipt.envelope)
        assert outcome.outcome is Outcome.DEAD and room.peek.ended == 1
        kinds = [record.kind for record in await house.list_records(receipt.session)]
        assert kinds == ["start", "user", "assistant", "tool", "note"]


async def test_an_intent_that_cannot_be_written_is_heard_of_when_the_look_is_over(room: Room) -> None:
    room.household.model.will_reply(tool_call_reply("peek", seconds=LONG_S), "done", "done")
    async with open_(room.household) as house:
        receipt = await house.send("go")
        await begun(house, room)
        failing, refused = True, 0

        def fail(point: str) -> None:
            nonlocal refused
            if point == "step" and failing:
                refused += 1
                raise StoreError("the disk is full", code="store.disk_full")

        room.stores[-1].before = fail
        await room.household.clock.advance(LONG_S)
        await until(lambda: refused, what="the intent to be refused")
        failing = False
        # The lane waits a second, and comes back.
        assert await as_time_goes_by(house, house.wait_for_answer(receipt.envelope)) == "done"
        assert len(room.household.model.prompts) == 2


async def test_what_was_said_before_a_look_is_kept_where_the_run_fails_after_it(room: Room) -> None:
    room.household.model.will_reply(
        ScriptedReply(text="let me see", calls=(("peek", {}),)), ScriptedReply(fails="tired")
    )
    async with open_(room.household) as house:
        receipt = await house.send("go")
        assert (await house.wait_for_outcome(receipt.envelope)).outcome is Outcome.DEAD
        kinds = [record.kind for record in await house.list_records(receipt.session)]
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
def test_who_names_an_effect_is_not_believed_to_only_look(spec: dict[str, Any], believed: bool) -> None:
    assert ToolSpec(name="t", description="", parameters={}, **spec).is_safely_read_only is believed
