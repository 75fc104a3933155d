"""The journal of a run: written before it is done, in few commits, and only by whoever holds the session."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from engine.commit_names import Ledgerful
from msgspec.structs import replace

from retinue.domain.agent import Agent, ToolRules
from retinue.domain.approval import Approval, ApprovalState
from retinue.domain.envelope import Outcome
from retinue.domain.errors import StaleEpoch
from retinue.domain.ids import ApprovalId, RunId, SessionId
from retinue.domain.model import ModelFacts, Price
from retinue.domain.record import RecordKind, Reply
from retinue.domain.session import QueueMode, QueuePolicy
from retinue.domain.tool import Call
from retinue.engine.journal import ApprovalAnswers
from retinue.models.base import ModelPrompt, ReplyChunk
from retinue.store.core.connection import Store
from retinue.testing.local_instance import LocalInstance, LocalServer
from retinue.testing.scripted_model import ScriptedModel, ScriptedReply, text_reply, tool_call_reply

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)


@dataclass(slots=True)
class Desk:
    household: LocalInstance
    stores: list[Ledgerful] = field(default_factory=list[Ledgerful])

    def through(self, store: Store) -> Any:
        self.stores.append(Ledgerful(store))
        return self.stores[-1]

    @property
    def points(self) -> list[str]:
        return [point for point in self.stores[-1].points if point not in ("setup", "test")]

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[LocalServer]:
        async with self.household.run(drain_s=0) as house:
            yield house


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    desk = Desk(LocalInstance(tmp_path))
    desk.household.wrap_store = desk.through
    return desk


async def test_a_plain_turn_takes_two_commits_one_with_a_call_four_and_one_with_a_look_three(desk: Desk) -> None:
    desk.household.model.will_reply(
        "plain", tool_call_reply("append_line", text="x"), "with a call", tool_call_reply("session_status"), "l"
    )
    async with desk.open() as house:
        await house.wait_for_outcome((await house.send("one")).envelope)
        await house.wait_until_idle()
        assert desk.points == ["accept", "finish"]
        desk.stores[-1].points.clear()
        await house.wait_for_outcome((await house.send("two")).envelope)
        await house.wait_until_idle()
        assert desk.points == ["accept", "step", "step", "finish"]
        desk.stores[-1].points.clear()
        await house.wait_for_outcome((await house.send("three")).envelope)
        await house.wait_until_idle()
        assert desk.points == ["accept", "step", "finish"]


async def test_a_run_that_goes_over_into_the_next_needs_no_claim_for_it(desk: Desk) -> None:
    model = desk.household.model
    model.will_reply(text_reply("one", after_s=1), "two")
    async with desk.open() as house:
        await house.send("one")
        await house.wait_for(lambda _: len(model.prompts) == 1, what="the first run")
        second = await house.send("two")
        await desk.household.clock.advance(1)
        assert await house.wait_for_answer(second.envelope) == "two"
        await house.wait_until_idle()
        assert desk.points[:4] == ["accept", "accept", "finish", "finish"]


@dataclass(slots=True)
class Curious(ScriptedModel):
    """Looks at what is stored at the moment it is asked."""

    look: Callable[[], list[Any]] = list
    seen: list[list[Any]] = field(default_factory=list[list[Any]])

    async def reply(self, prompt: ModelPrompt, *, key: str = "") -> AsyncIterator[ReplyChunk]:
        self.seen.append(self.look())
        async for chunk in ScriptedModel.reply(self, prompt):
            yield chunk


async def test_every_step_is_stored_before_it_is_taken_and_its_result_with_the_next(desk: Desk) -> None:
    household = desk.household
    model = Curious(household.clock, name="curious")
    household.models = (model,)
    household.agents = (Agent(name="ada", model="curious"),)
    engine = sa.create_engine(f"sqlite:///{household.root / 'house.db'}")

    def look() -> list[Any]:
        with engine.connect() as conn:  # from outside, so that only what is committed is seen
            steps = conn.execute(sa.text("SELECT turn, idx, kind, state FROM steps ORDER BY turn, idx")).all()
            kinds = conn.execute(sa.text("SELECT kind FROM records ORDER BY seq")).scalars().all()
            return [[tuple(step) for step in steps], kinds]

    model.look = look
    model.will_reply(tool_call_reply("append_line", text="x"), "done")
    async with desk.open() as house:
        await house.wait_for_outcome((await house.send("go")).envelope)
    engine.dispose()
    first, second = model.seen
    assert first == [[(0, 0, "model", "open")], ["start", "user"]]
    assert second == [
        [(0, 0, "model", "closed"), (0, 1, "tool", "closed"), (1, 0, "model", "open")],
        ["start", "user", "assistant", "tool"],
    ]


async def test_a_worker_whose_session_was_taken_over_can_write_nothing_more(desk: Desk) -> None:
    """It was away for a while; meanwhile somebody else has raised the epoch."""
    household = desk.household
    household.model.will_reply(tool_call_reply("append_line", text="never"), text_reply("by whoever took over"))
    async with desk.open() as house:
        store = desk.stores[-1]
        taken_over = False

        def take_over(point: str) -> None:
            nonlocal taken_over
            if point == "step" and not taken_over:
                taken_over = True
                with sa.create_engine(f"sqlite:///{household.root / 'house.db'}").begin() as conn:
                    conn.execute(sa.text("UPDATE sessions SET epoch = epoch + 1"))

        store.before = take_over
        receipt = await house.send("go")
        # In this house the run is then found without a worker, and taken up where it was left: before its first reply.
        assert await house.wait_for_answer(receipt.envelope) == "by whoever took over"
        assert not household.witness_file.exists()
        replies = [
            record.body for record in await house.list_records(receipt.session) if isinstance(record.body, Reply)
        ]
        assert [reply.text for reply in replies] == ["by whoever took over"]


async def test_a_stale_write_is_refused_by_name(desk: Desk) -> None:
    from retinue.store.sessions import sessions

    desk.household.model.will_reply("hello")
    async with desk.open() as house:
        receipt = await house.send("go")
        await house.wait_for_outcome(receipt.envelope)
        session = await house.get_session(receipt.session)

        def write(conn: sa.Connection) -> None:
            sessions.update_fenced(
                conn,
                session.id,
                epoch=session.epoch - 1,
                record_seq=99,
                wakefulness=session.activity,
                at_ms=1,
            )

        with pytest.raises(StaleEpoch):
            await house.store.write(write, point="test")
        assert await house.get_session(receipt.session) == session


async def test_money_is_reserved_before_a_reply_and_settled_with_it(desk: Desk) -> None:
    household = desk.household
    household.model.price_microusd = 1000
    household.model.will_reply(
        ScriptedReply(calls=(("session_status", {}),), cost_microusd=300), ScriptedReply(text="done", cost_microusd=200)
    )
    async with desk.open() as house:
        await house.wait_for_outcome((await house.send("go")).envelope)
        money = "SELECT turn, attempt, reserved_microusd, settled_microusd, released_microusd, held_microusd FROM money"
        assert await house.execute_sql(f"{money} ORDER BY turn") == [
            (0, 1, 1000, 300, 700, 0),
            (1, 1, 1000, 200, 800, 0),
        ]


async def test_a_reply_nobody_saw_the_end_of_counts_as_spent_and_the_next_attempt_reserves_anew(desk: Desk) -> None:
    household = desk.household
    household.model.price_microusd = 1000
    household.model.will_reply(text_reply("never", after_s=100))
    async with desk.open() as house:
        receipt = await house.send("go")
        await house.wait_for(lambda _: len(household.model.prompts) == 1, what="the model to be asked")
        house.crash()
    household.model.will_reply(ScriptedReply(text="done", cost_microusd=200))
    async with desk.open() as house:
        await house.wait_for_outcome(receipt.envelope)
        money = "SELECT attempt, settled_microusd, released_microusd, held_microusd, unknown FROM money"
        assert await house.execute_sql(f"{money} ORDER BY attempt") == [(1, 1000, 0, 0, 1), (2, 200, 800, 0, 0)]


class Metered(ScriptedModel):
    """Paid by what it reads: a millionth of a dollar for a token."""

    @property
    def facts(self) -> ModelFacts:
        return replace(ScriptedModel.facts.fget(self), price=Price(input=1_000_000))  # pyright: ignore[reportOptionalCall]


async def test_whoever_joins_in_with_the_intent_is_paid_for_with_it(desk: Desk) -> None:
    """Steering mail is read by the call whose reservation is in the same commit, and was not in its bound."""
    household = desk.household
    model = Metered(household.clock, name="metered")
    household.models = (model,)
    household.agents = (Agent(name="ada", model="metered", queue=QueuePolicy(mode=QueueMode.STEER)),)
    model.will_reply(ScriptedReply(calls=(("session_status", {}),), after_s=1), "as you wish")
    async with desk.open() as house:
        first = await house.send("go")
        await house.wait_for(lambda _: len(model.prompts) == 1, what="the first run")
        await house.send("word " * 4_000)
        await household.clock.advance(1)
        await house.wait_for_outcome(first.envelope)
        money = "SELECT reserved_microusd FROM money ORDER BY turn"
        _, (reserved,) = await house.execute_sql(money)
        assert reserved > 10_000


async def test_records_bear_the_same_numbers_in_memory_and_in_the_store(desk: Desk) -> None:
    household = desk.household
    household.agents = (Agent(name="ada", model="scripted", tools=ToolRules(deny=("read",))),)
    household.model.will_reply(
        ScriptedReply(
            calls=(("read", {"path": "x"}), ("session_status", {}), ("no_such_tool", {}), ("session_status", {}))
        ),
        tool_call_reply("session_status"),
        "done",
        "again",
    )
    async with desk.open() as house:
        first = await house.send("go")
        await house.wait_for_outcome(first.envelope)
        await house.wait_until_idle()
        await house.wait_for_outcome((await house.send("and on")).envelope)
        stored = {record.seq: record for record in await house.list_records(first.session)}
        for prompt in household.model.prompts:
            for record in prompt.records:
                assert (stored[record.seq].kind, stored[record.seq].body) == (record.kind, record.body)
        assert sorted(stored) == list(range(1, len(stored) + 1)), "no number is left out"
        assert stored[1].kind is RecordKind.START


async def test_what_a_failed_run_had_heard_is_kept(desk: Desk) -> None:
    household = desk.household
    household.model.will_reply(
        ScriptedReply(text="let me see", calls=(("session_status", {}),)), ScriptedReply(fails="tired")
    )
    async with desk.open() as house:
        receipt = await house.send("go")
        assert (await house.wait_for_outcome(receipt.envelope)).outcome is Outcome.DEAD
        kinds = [record.kind for record in await house.list_records(receipt.session)]
        assert kinds == ["start", "user", "assistant", "tool", "note"]


def approval(*asked: Call, state: ApprovalState = ApprovalState.ALLOWED) -> Approval:
    return Approval(
        id=ApprovalId("abcd1234" * 4),
        session=SessionId("s"),
        run=RunId("r"),
        calls=asked,
        because="",
        state=state,
        requested_at=NOON,
        expires_at=NOON,
    )


def test_an_answer_is_to_this_call_with_these_arguments() -> None:
    asked = Call(id="1", tool="append_line", arguments={"text": "x", "n": [1, 2]})
    answers = ApprovalAnswers([approval(asked)])
    assert answers.state_of(asked) is ApprovalState.ALLOWED
    assert answers.short_id_of(asked) == "abcd1234"
    same = Call(id="1", tool="append_line", arguments={"n": [1, 2], "text": "x"})
    assert answers.state_of(same) is ApprovalState.ALLOWED, "in whatever order they stand"
    for other in (
        Call(id="2", tool="append_line", arguments=asked.arguments),
        Call(id="1", tool="read", arguments=asked.arguments),
        Call(id="1", tool="append_line", arguments={"text": "y", "n": [1, 2]}),
        Call(id="1", tool="append_line", arguments={"text": "x", "n": [2, 1]}),
        Call(id="1", tool="append_line", arguments={"text": "x", "n": [1, 2], "more": None}),
    ):
        assert answers.state_of(other) is None
        assert answers.short_id_of(other) == ""


def test_of_several_questions_each_has_its_own_answer() -> None:
    one, two = Call(id="1", tool="t"), Call(id="2", tool="t")
    answers = ApprovalAnswers([approval(one), approval(two, state=ApprovalState.DENIED)])
    assert (answers.state_of(one), answers.state_of(two)) == (ApprovalState.ALLOWED, ApprovalState.DENIED)
