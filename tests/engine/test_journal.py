"""The journal of a run: steps are stored before they run, in few commits, and only by the worker with the session."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from engine.commit_names import CommitRecordingStore
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
class JournalSetup:
    instance: LocalInstance
    stores: list[CommitRecordingStore] = field(default_factory=list[CommitRecordingStore])

    def record_commits(self, store: Store) -> Any:
        self.stores.append(CommitRecordingStore(store))
        return self.stores[-1]

    @property
    def points(self) -> list[str]:
        return [point for point in self.stores[-1].points if point not in ("setup", "test")]

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[LocalServer]:
        async with self.instance.run(drain_s=0) as server:
            yield server


@pytest.fixture
def setup(tmp_path: Path) -> JournalSetup:
    setup = JournalSetup(LocalInstance(tmp_path))
    setup.instance.wrap_store = setup.record_commits
    return setup


async def test_the_journal_of_a_run_takes_two_commits_or_four_with_a_call_or_three_if_it_is_read_only(
    setup: JournalSetup,
) -> None:
    setup.instance.model.will_reply(
        "plain", tool_call_reply("append_line", text="x"), "with a call", tool_call_reply("session_status"), "l"
    )
    async with setup.open() as server:
        await server.wait_for_outcome((await server.send("one")).envelope)
        await server.wait_until_idle()
        assert setup.points == ["accept", "finish"]
        setup.stores[-1].points.clear()
        await server.wait_for_outcome((await server.send("two")).envelope)
        await server.wait_until_idle()
        assert setup.points == ["accept", "step", "step", "finish"]
        setup.stores[-1].points.clear()
        await server.wait_for_outcome((await server.send("three")).envelope)
        await server.wait_until_idle()
        assert setup.points == ["accept", "step", "finish"]


async def test_the_journal_of_a_run_that_follows_another_in_its_lane_needs_no_claim_commit(setup: JournalSetup) -> None:
    model = setup.instance.model
    model.will_reply(text_reply("one", after_s=1), "two")
    async with setup.open() as server:
        await server.send("one")
        await server.wait_for(lambda _: len(model.prompts) == 1, what="the first run")
        second = await server.send("two")
        await setup.instance.clock.advance(1)
        assert await server.wait_for_answer(second.envelope) == "two"
        await server.wait_until_idle()
        assert setup.points[:4] == ["accept", "accept", "finish", "finish"]


@dataclass(slots=True)
class ObservingModel(ScriptedModel):
    """Reads the store at the moment of the model call."""

    read_database: Callable[[], list[Any]] = list
    seen: list[list[Any]] = field(default_factory=list[list[Any]])

    async def reply(self, prompt: ModelPrompt, *, key: str = "") -> AsyncIterator[ReplyChunk]:
        self.seen.append(self.read_database())
        async for chunk in ScriptedModel.reply(self, prompt):
            yield chunk


async def test_the_journal_stores_a_step_before_it_is_performed_and_its_result_with_the_next_step(
    setup: JournalSetup,
) -> None:
    instance = setup.instance
    model = ObservingModel(instance.clock, name="curious")
    instance.models = (model,)
    instance.agents = (Agent(name="ada", model="curious"),)
    engine = sa.create_engine(f"sqlite:///{instance.root / 'retinue.db'}")

    def read_database() -> list[Any]:
        with engine.connect() as conn:  # another connection sees only what is committed
            steps = conn.execute(
                sa.text("SELECT turn, call_index, kind, state FROM steps ORDER BY turn, call_index")
            ).all()
            kinds = conn.execute(sa.text("SELECT kind FROM records ORDER BY seq")).scalars().all()
            return [[tuple(step) for step in steps], kinds]

    model.read_database = read_database
    model.will_reply(tool_call_reply("append_line", text="x"), "done")
    async with setup.open() as server:
        await server.wait_for_outcome((await server.send("go")).envelope)
    engine.dispose()
    first, second = model.seen
    assert first == [[(0, 0, "model", "open")], ["start", "user"]]
    assert second == [
        [(0, 0, "model", "closed"), (0, 1, "tool", "closed"), (1, 0, "model", "open")],
        ["start", "user", "assistant", "tool"],
    ]


async def test_a_worker_cannot_write_to_the_journal_after_the_epoch_of_its_session_was_raised(
    setup: JournalSetup,
) -> None:
    """The worker was paused; meanwhile another one has raised the epoch."""
    instance = setup.instance
    instance.model.will_reply(tool_call_reply("append_line", text="never"), text_reply("by the new worker"))
    async with setup.open() as server:
        store = setup.stores[-1]
        was_taken_over = False

        def take_over(point: str) -> None:
            nonlocal was_taken_over
            if point == "step" and not was_taken_over:
                was_taken_over = True
                engine = sa.create_engine(f"sqlite:///{instance.root / 'retinue.db'}")
                with engine.begin() as conn:
                    conn.execute(sa.text("UPDATE sessions SET epoch = epoch + 1"))
                engine.dispose()

        store.before = take_over
        receipt = await server.send("go")
        # No worker has the run then, so it is resumed where it was: before its first reply.
        assert await server.wait_for_answer(receipt.envelope) == "by the new worker"
        assert not instance.witness_file.exists()
        replies = [
            record.body for record in await server.list_records(receipt.session) if isinstance(record.body, Reply)
        ]
        assert [reply.text for reply in replies] == ["by the new worker"]


async def test_a_session_update_with_an_old_epoch_raises_stale_epoch(setup: JournalSetup) -> None:
    from retinue.store.sessions import sessions

    setup.instance.model.will_reply("hello")
    async with setup.open() as server:
        receipt = await server.send("go")
        await server.wait_for_outcome(receipt.envelope)
        session = await server.get_session(receipt.session)

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
            await server.store.write(write, point="test")
        assert await server.get_session(receipt.session) == session


async def test_the_journal_reserves_money_before_a_model_call_and_settles_it_with_the_reply(
    setup: JournalSetup,
) -> None:
    instance = setup.instance
    instance.model.price_microusd = 1000
    instance.model.will_reply(
        ScriptedReply(calls=(("session_status", {}),), cost_microusd=300), ScriptedReply(text="done", cost_microusd=200)
    )
    async with setup.open() as server:
        await server.wait_for_outcome((await server.send("go")).envelope)
        money = (
            "SELECT turn, attempt, reserved_microusd, settled_microusd, released_microusd, held_microusd"
            " FROM model_calls"
        )
        assert await server.execute_sql(f"{money} ORDER BY turn") == [
            (0, 1, 1000, 300, 700, 0),
            (1, 1, 1000, 200, 800, 0),
        ]


async def test_the_journal_charges_an_interrupted_model_call_and_reserves_again_for_its_retry(
    setup: JournalSetup,
) -> None:
    instance = setup.instance
    instance.model.price_microusd = 1000
    instance.model.will_reply(text_reply("never", after_s=100))
    async with setup.open() as server:
        receipt = await server.send("go")
        await server.wait_for(lambda _: len(instance.model.prompts) == 1, what="the model to be asked")
        server.crash()
    instance.model.will_reply(ScriptedReply(text="done", cost_microusd=200))
    async with setup.open() as server:
        await server.wait_for_outcome(receipt.envelope)
        money = "SELECT attempt, settled_microusd, released_microusd, held_microusd, cost_unknown FROM model_calls"
        assert await server.execute_sql(f"{money} ORDER BY attempt") == [(1, 1000, 0, 0, 1), (2, 200, 800, 0, 0)]


class ModelPricedByInput(ScriptedModel):
    """A model with a price of one dollar per million input tokens."""

    @property
    def facts(self) -> ModelFacts:
        return replace(ScriptedModel.facts.fget(self), price=Price(input=1_000_000))  # pyright: ignore[reportOptionalCall]


async def test_the_journal_reserves_money_for_a_steered_message_that_a_model_call_reads(setup: JournalSetup) -> None:
    """A steered message is read by the call reserved in the same commit, but its price was once not reserved."""
    instance = setup.instance
    model = ModelPricedByInput(instance.clock, name="metered")
    instance.models = (model,)
    instance.agents = (Agent(name="ada", model="metered", queue=QueuePolicy(mode=QueueMode.STEER)),)
    model.will_reply(ScriptedReply(calls=(("session_status", {}),), after_s=1), "as you wish")
    async with setup.open() as server:
        first = await server.send("go")
        await server.wait_for(lambda _: len(model.prompts) == 1, what="the first run")
        await server.send("word " * 4_000)
        await instance.clock.advance(1)
        await server.wait_for_outcome(first.envelope)
        money = "SELECT reserved_microusd FROM model_calls ORDER BY turn"
        _, (reserved,) = await server.execute_sql(money)
        assert reserved > 10_000


async def test_journaled_records_have_the_same_sequence_numbers_in_prompts_and_in_the_store(
    setup: JournalSetup,
) -> None:
    instance = setup.instance
    instance.agents = (Agent(name="ada", model="scripted", tools=ToolRules(deny=("read",))),)
    instance.model.will_reply(
        ScriptedReply(
            calls=(("read", {"path": "x"}), ("session_status", {}), ("no_such_tool", {}), ("session_status", {}))
        ),
        tool_call_reply("session_status"),
        "done",
        "again",
    )
    async with setup.open() as server:
        first = await server.send("go")
        await server.wait_for_outcome(first.envelope)
        await server.wait_until_idle()
        await server.wait_for_outcome((await server.send("and on")).envelope)
        stored = {record.seq: record for record in await server.list_records(first.session)}
        for prompt in instance.model.prompts:
            for record in prompt.records:
                assert (stored[record.seq].kind, stored[record.seq].body) == (record.kind, record.body)
        assert sorted(stored) == list(range(1, len(stored) + 1)), "no number is missing"
        assert stored[1].kind is RecordKind.START


async def test_a_failed_run_keeps_its_journaled_replies_and_tool_results(setup: JournalSetup) -> None:
    instance = setup.instance
    instance.model.will_reply(
        ScriptedReply(text="let me see", calls=(("session_status", {}),)), ScriptedReply(fails="tired")
    )
    async with setup.open() as server:
        receipt = await server.send("go")
        assert (await server.wait_for_outcome(receipt.envelope)).outcome is Outcome.DEAD
        kinds = [record.kind for record in await server.list_records(receipt.session)]
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


def test_an_approval_in_the_journal_applies_only_to_the_call_with_the_same_id_tool_and_arguments() -> None:
    asked = Call(id="1", tool="append_line", arguments={"text": "x", "n": [1, 2]})
    answers = ApprovalAnswers([approval(asked)])
    assert answers.state_of(asked) is ApprovalState.ALLOWED
    assert answers.short_id_of(asked) == "abcd1234"
    same = Call(id="1", tool="append_line", arguments={"n": [1, 2], "text": "x"})
    assert answers.state_of(same) is ApprovalState.ALLOWED, "the order of the arguments does not matter"
    for other in (
        Call(id="2", tool="append_line", arguments=asked.arguments),
        Call(id="1", tool="read", arguments=asked.arguments),
        Call(id="1", tool="append_line", arguments={"text": "y", "n": [1, 2]}),
        Call(id="1", tool="append_line", arguments={"text": "x", "n": [2, 1]}),
        Call(id="1", tool="append_line", arguments={"text": "x", "n": [1, 2], "more": None}),
    ):
        assert answers.state_of(other) is None
        assert answers.short_id_of(other) == ""


def test_each_of_several_approvals_in_the_journal_keeps_its_own_state() -> None:
    one, two = Call(id="1", tool="t"), Call(id="2", tool="t")
    answers = ApprovalAnswers([approval(one), approval(two, state=ApprovalState.DENIED)])
    assert (answers.state_of(one), answers.state_of(two)) == (ApprovalState.ALLOWED, ApprovalState.DENIED)
