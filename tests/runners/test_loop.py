"""The tool loop: its next action depends only on the records of the run."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast
from zoneinfo import ZoneInfo

import pytest

from retinue.domain import address
from retinue.domain.agent import Agent, ToolRules
from retinue.domain.approval import ApprovalState
from retinue.domain.budget import ModelCallReservation, ModelCallReservationRequest
from retinue.domain.event import Delta
from retinue.domain.ids import RunId, SessionId
from retinue.domain.model import ModelFailed
from retinue.domain.permission import Permission
from retinue.domain.ports import ModelStep, ToolStep
from retinue.domain.record import Note, Record, Reply, Summary, Usage, UserTurn, body_kind, least_trust_in
from retinue.domain.run import Run, RunStatus
from retinue.domain.session import LaneKind, Origin, OriginKind, QueueOverride, Session, SessionActivity
from retinue.domain.structs import replace
from retinue.domain.times import to_ms
from retinue.domain.tool import Call, ToolResult, call_hash
from retinue.domain.trust import Trust
from retinue.models.base import ModelPrompt
from retinue.models.tool_call_limits import UNPARSED, normalize_value
from retinue.runners.base import RunAnswer, RunAssignment, Suspended
from retinue.runners.loop import (
    FinishRun,
    PerformCalls,
    PerformStoredCalls,
    RequestReply,
    ToolLoop,
    next_step,
    reached_limit,
)
from retinue.testing.fake_clock import FakeClock
from retinue.testing.runner_factory import LoopParts as Thoughts
from retinue.testing.scripted_model import ScriptedModel, text_reply, tool_call_reply
from retinue.testing.tools import AppendLineTool
from retinue.tools.toolbox import Toolbox

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
RUN = Run(
    id=RunId("abcdef01" * 4),
    session=SessionId("5" * 32),
    agent="ada",
    lane=LaneKind.MAIN,
    epoch=1,
    status=RunStatus.RUNNING,
    sender=address.person_address("maria"),
    envelopes=(),
    first_seq=2,
    attempt=1,
    started_at=NOON,
)
SESSION = Session(
    id=RUN.session,
    agent="ada",
    origin=Origin(OriginKind.WEB, "person:maria"),
    name="",
    activity=SessionActivity.ACTIVE,
    queue=QueueOverride(),
    epoch=1,
    record_seq=2,
    context_start_seq=1,
    revision=0,
    created_at=NOON,
    updated_at=NOON,
    snippet="",
)
ADA = Agent(name="ada", model="scripted")


def make_run_records(*bodies: Any) -> list[Record]:
    return [
        Record(session=RUN.session, seq=n, kind=body_kind(body), body=body, at_ms=to_ms(NOON), run=RUN.id)
        for n, body in enumerate(bodies, start=2)
    ]


def call(n: int, **arguments: Any) -> Call:
    return Call(id=f"{n}", tool="append_line", arguments=arguments)


def result(n: int) -> ToolResult:
    return ToolResult(call=f"{n}", tool="append_line", output="appended")


USER_TURN = UserTurn(text="hello")
CALL_1, CALL_2 = call(1), call(2)


@pytest.mark.parametrize(
    ("bodies", "move"),
    [
        ((USER_TURN,), RequestReply(0)),
        ((USER_TURN, Reply(text="hi")), FinishRun(Reply(text="hi"))),
        ((USER_TURN, Reply(text="", calls=(CALL_1, CALL_2))), PerformCalls(0, (CALL_1, CALL_2), (1, 2))),
        ((USER_TURN, Reply(text="", calls=(CALL_1, CALL_2)), result(2)), PerformCalls(0, (CALL_1,), (1,))),
        ((USER_TURN, Reply(text="", calls=(CALL_1, CALL_2)), result(1)), PerformCalls(0, (CALL_2,), (2,))),
        ((USER_TURN, Reply(text="", calls=(CALL_1, CALL_2)), result(2), result(1)), RequestReply(1)),
        (
            (USER_TURN, Reply(text="", calls=(CALL_1,)), result(1), Reply(text="", calls=(CALL_2,))),
            PerformCalls(1, (CALL_2,), (1,)),
        ),
        ((USER_TURN, Reply(text="", calls=(CALL_1,)), result(1), Reply(text="done")), FinishRun(Reply(text="done"))),
        ((USER_TURN, Reply(text="", calls=(CALL_1,)), result(1), USER_TURN), RequestReply(1)),
        ((USER_TURN, Reply(text="hi"), USER_TURN), RequestReply(1)),
        ((USER_TURN, Reply(text="hi"), USER_TURN, Reply(text="ho")), FinishRun(Reply(text="ho"))),
        ((), RequestReply(0)),
    ],
)
def test_the_runner_loop_derives_the_next_step_from_the_records_of_the_run(bodies: Sequence[Any], move: object) -> None:
    assert next_step(make_run_records(*bodies), ()) == move


def test_the_runner_loop_performs_stored_calls_first_and_keeps_their_indexes() -> None:
    noted = Note(text="it returned", call="1")
    assert next_step(make_run_records(USER_TURN), (CALL_1, CALL_2)) == PerformStoredCalls((CALL_1, CALL_2), (1, 2))
    assert next_step(make_run_records(USER_TURN, noted), (CALL_1, CALL_2)) == PerformStoredCalls((CALL_2,), (2,))
    assert next_step(make_run_records(USER_TURN, replace(noted, call="2")), (CALL_1, CALL_2)) == PerformStoredCalls(
        (CALL_1,), (1,)
    )
    assert next_step(make_run_records(USER_TURN, noted, replace(noted, call="2")), (CALL_1, CALL_2)) == RequestReply(0)


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ({"turns_max": 2}, "after 2 turns"),
        ({"tokens_max": 30}, "after 30 tokens"),
        ({"cost_microusd_max": 14_000}, "after spending $0.0140"),
        ({"turns_max": 3, "tokens_max": 31, "cost_microusd_max": 14_001}, ""),
        ({}, ""),
    ],
)
def test_the_runner_loop_reaches_a_limit_on_turns_tokens_or_cost_at_its_exact_value(
    bounds: dict[str, Any], words: str
) -> None:
    usage = Usage(input_tokens=10, output_tokens=5, cost_microusd=7_000)
    text = reached_limit(
        replace(ADA, **bounds), make_run_records(USER_TURN, Reply(text="", usage=usage), Reply(text="", usage=usage))
    )
    assert (words in text) if words else text == ""


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"a": "\ud800b\x00"}, {"a": "\ufffdb\ufffd"}),
        ({"\udfff": [1, 2.5, None, True]}, {"\ufffd": [1, 2.5, None, True]}),
        ({"a": float("nan"), "b": [float("inf"), {"c": -float("inf")}]}, {"a": None, "b": [None, {"c": None}]}),
        ({"a": ("x", ("y",))}, {"a": ["x", ["y"]]}),
        ({1: "x"}, {"1": "x"}),
    ],
)
def test_normalized_tool_call_arguments_are_equal_to_what_the_store_returns(given: Any, kept: Any) -> None:
    import msgspec

    assert normalize_value(given) == kept
    again = msgspec.json.decode(msgspec.json.encode(normalize_value(given)))
    assert again == kept
    assert call_hash(Call(id="1", tool="t", arguments=normalize_value(given))) == call_hash(
        Call(id="1", tool="t", arguments=again)
    )


# A journal in memory that can lose power before any step.


class PowerCut(Exception):
    pass


@dataclass(slots=True)
class MemoryJournal:
    """Stores what a run has written, and how often each effect was started."""

    run_records: list[Record]
    run: Run = RUN
    open: dict[tuple[int, int], str] = field(default_factory=dict[tuple[int, int], str])
    left: int = 10**9

    @property
    def records(self) -> Sequence[Record]:
        return self.run_records

    @property
    def least_trust(self) -> Trust:
        return least_trust_in(self.run_records)

    @asynccontextmanager
    async def model_call(self, turn: int, *, request: ModelCallReservationRequest) -> AsyncGenerator[ModelStep]:
        self._step()
        step = ModelStep(1, ModelCallReservation(output_tokens_max=request.output_tokens_max))
        yield step
        assert step.reply is not None
        self._keep(step.reply)

    def summary_call(
        self, turn: int, *, request: ModelCallReservationRequest, notice: str = ""
    ) -> AbstractAsyncContextManager[ModelStep]:
        raise AssertionError("nothing here is long enough")

    async def compact(self, summary: Summary) -> None:
        raise AssertionError("nothing here is long enough")

    async def flush(self) -> None:
        return

    def record_failure(self, turn: int, error: ModelFailed, *, next_action: str) -> None:
        return

    async def add_note(self, note: Note) -> None:
        self._keep(note)

    def was_interrupted(self, turn: int, index: int) -> bool:
        return (turn, index) in self.open

    @asynccontextmanager
    async def tool_call(
        self,
        turn: int,
        index: int,
        call: Call,
        *,
        repeatable: bool,
        is_read_only: bool = False,
        is_late: bool = False,
        because: str = "",
    ) -> AsyncGenerator[ToolStep]:
        was_open = self.open.get((turn, index)) == call.id
        if was_open and not repeatable:
            step = ToolStep(ToolResult(call=call.id, tool=call.tool, output="interrupted", failed=True))
            yield step
        else:
            assert (turn, index) not in self.open, "two calls at one index"
            self.open[turn, index] = call.id
            self._step()
            step = ToolStep()
            yield step
            self._step()
        del self.open[turn, index]
        done = step.result
        assert done is not None
        self._keep(Note(text=done.output, call=done.call) if is_late else done)

    async def add_bodies(self, bodies: Sequence[ToolResult | Reply]) -> None:
        for kept in bodies:
            self._keep(kept)

    async def add_late_result(self, result: ToolResult) -> None:
        self._keep(Note(text=result.output, call=result.call))

    def _keep(self, body: Reply | ToolResult | Note) -> None:
        self.run_records.append(make_run_records(body)[0]._replace(seq=len(self.run_records) + 2))

    def _step(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise PowerCut


class NoApprovalAnswers:
    def state_of(self, call: Call) -> ApprovalState | None:
        return None

    def short_id_of(self, call: Call) -> str:
        return ""

    def permissions_of(self, call: Call) -> Sequence[Permission]:
        return ()


class SameApprovalAnswer:
    """Answers every approval with the same state."""

    def __init__(self, state: ApprovalState) -> None:
        self.state = state

    def state_of(self, call: Call) -> ApprovalState | None:
        return self.state

    def short_id_of(self, call: Call) -> str:
        return "abcd1234"

    def permissions_of(self, call: Call) -> Sequence[Permission]:
        return ()


class IgnoreProgress:
    def on_tool_call(self, run: RunId, tool: str) -> None:
        pass

    def on_delta(self, delta: Delta) -> None:
        pass


@dataclass(slots=True)
class LoopSetup:
    """Everything that a loop needs, and a file that shows its effects."""

    root: Path
    model: ScriptedModel = field(default_factory=lambda: ScriptedModel(FakeClock()))
    agent: Agent = ADA
    stored: tuple[Call, ...] = ()

    @property
    def loop(self) -> ToolLoop:
        toolbox = Toolbox([AppendLineTool(self.root / "witness")])
        # A built-in model needs no key, so keys are never looked up.
        nothing = cast(Any, None)
        return Thoughts(nothing, self.model.clock, [self.model], toolbox, ZoneInfo("UTC")).loop

    @property
    def appended_lines(self) -> list[str]:
        file = self.root / "witness"
        return [line.split(" ", 1)[1] for line in file.read_text().splitlines()] if file.exists() else []

    async def run_loop(self, journal: MemoryJournal, ask: Any = None) -> RunAnswer:
        assignment = RunAssignment(
            agent=self.agent, session=SESSION, agent_directory=self.root, stored_calls=self.stored
        )
        return await self.loop.take_turns(assignment, journal, ask or NoApprovalAnswers(), IgnoreProgress())


@pytest.fixture
def setup(tmp_path: Path) -> LoopSetup:
    return LoopSetup(tmp_path)


def reply_with_three_calls(prompt: ModelPrompt) -> Any:
    """Reply in three turns, which depend only on what the model reads."""
    done = sum(isinstance(record.body, ToolResult) for record in prompt.records)
    match done:
        case 0:
            return tool_call_reply("append_line", text="one")
        case 1:
            return replace(text_reply(""), calls=(("append_line", {"text": "two"}), ("append_line", {"text": "three"})))
        case _:
            return text_reply("done")


async def test_the_runner_loop_ends_a_run_with_a_reply_without_tool_calls(setup: LoopSetup) -> None:
    setup.model.rule = reply_with_three_calls
    journal = MemoryJournal(make_run_records(USER_TURN))
    finished = await setup.run_loop(journal)
    assert finished.text == "done"
    assert finished.context_length == 15
    assert setup.appended_lines == ["one", "two", "three"]


@pytest.mark.parametrize("left", range(12))
async def test_the_runner_loop_repeats_no_effect_of_a_run_resumed_after_a_power_cut_at_any_step(
    setup: LoopSetup, left: int
) -> None:
    setup.model.rule = reply_with_three_calls
    journal = MemoryJournal(make_run_records(USER_TURN), left=left)
    try:
        await setup.run_loop(journal)
    except PowerCut:
        journal.left = 10**9
        assert (await setup.run_loop(journal)).text == "done"
    assert len(setup.appended_lines) == len(set(setup.appended_lines))
    outputs = [record.body.output for record in journal.run_records if isinstance(record.body, ToolResult)]
    assert outputs.count("interrupted") <= 1
    assert len(outputs) == 3


@pytest.mark.parametrize("left", range(5))
async def test_the_runner_loop_does_not_perform_stored_calls_twice_after_a_power_cut(
    setup: LoopSetup, left: int
) -> None:
    setup.stored = (call(1, text="same"), call(2, text="same"))
    setup.agent = replace(ADA, tools=ToolRules(ask=("*",)))
    setup.model.rule = lambda prompt: text_reply("done")
    journal = MemoryJournal(make_run_records(USER_TURN), left=left)
    all_allowed = SameApprovalAnswer(ApprovalState.ALLOWED)
    try:
        await setup.run_loop(journal, all_allowed)
    except PowerCut:
        journal.left = 10**9
        await setup.run_loop(journal, all_allowed)
    assert len(setup.appended_lines) <= 2
    notes = [record.body for record in journal.run_records if isinstance(record.body, Note)]
    assert [note.call for note in notes] == ["1", "2"]
    assert sum(note.text == "interrupted" for note in notes) + len(setup.appended_lines) >= 2


async def test_the_runner_loop_does_not_perform_a_stored_call_without_approval(setup: LoopSetup) -> None:
    setup.stored = (call(1, text="never"),)
    setup.agent = replace(ADA, tools=ToolRules(ask=("*",)))
    setup.model.rule = lambda prompt: text_reply("done")
    for ask in (NoApprovalAnswers(), SameApprovalAnswer(ApprovalState.DENIED), SameApprovalAnswer(ApprovalState.OPEN)):
        journal = MemoryJournal(make_run_records(USER_TURN))
        await setup.run_loop(journal, ask)
    assert setup.appended_lines == []


async def test_the_runner_loop_suspends_the_run_for_a_call_that_requires_approval(setup: LoopSetup) -> None:
    setup.agent = replace(ADA, tools=ToolRules(ask=("append_line",), allow=()))
    setup.model.will_reply(tool_call_reply("append_line", text="never"))
    journal = MemoryJournal(make_run_records(USER_TURN))
    with pytest.raises(Suspended) as suspended:
        await setup.run_loop(journal)
    assert (suspended.value.turn, [c.arguments for c in suspended.value.calls]) == (0, [{"text": "never"}])
    assert suspended.value.because == "the agent ada requires approval for 'append_line'"
    assert setup.appended_lines == []


async def test_the_runner_loop_derives_the_same_call_ids_from_the_run_on_each_attempt(setup: LoopSetup) -> None:
    for _ in range(2):
        setup.model.will_reply(replace(text_reply(""), calls=(("append_line", {"text": "x"}),) * 3))
        journal = MemoryJournal(make_run_records(USER_TURN))
        journal.left = 1
        with pytest.raises(PowerCut):
            await setup.run_loop(journal)
        (reply,) = [record.body for record in journal.run_records if isinstance(record.body, Reply)]
        assert [c.id for c in reply.calls] == ["abcdef01-0-1", "abcdef01-0-2", "abcdef01-0-3"]


async def test_the_runner_loop_fails_a_call_with_unparsed_arguments_without_asking_for_approval(
    setup: LoopSetup,
) -> None:
    setup.agent = replace(ADA, tools=ToolRules(ask=("append_line",), allow=()))
    setup.model.will_reply(replace(text_reply(""), calls=(("append_line", {UNPARSED: '{"text": "hal'}),)))
    setup.model.will_reply(text_reply("I see."))
    journal = MemoryJournal(make_run_records(USER_TURN))
    assert (await setup.run_loop(journal)).text == "I see."
    (result,) = [record.body for record in journal.run_records if isinstance(record.body, ToolResult)]
    assert result.failed
    assert "could not be read" in result.output
    assert setup.appended_lines == []
