"""Our own tool loop: what it does next is read off the run's records, and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast
from zoneinfo import ZoneInfo

import pytest
from msgspec import structs

from retinue.domain import address
from retinue.domain.agent import Agent, ToolRules
from retinue.domain.approval import ApprovalState
from retinue.domain.event import Delta, DeltaKind
from retinue.domain.ids import RunId, SessionId
from retinue.domain.model import FREE_PRICE, ModelFacts, ModelFailed, ModelRef, Price
from retinue.domain.money import ModelCallReservation, ModelCallReservationRequest
from retinue.domain.permission import Permission
from retinue.domain.ports import CallModel
from retinue.domain.record import Note, Record, Reply, StopReason, Summary, Usage, UserTurn, body_kind, least_trust_in
from retinue.domain.run import Run, RunStatus
from retinue.domain.session import LaneKind, Origin, OriginKind, QueueOverride, Session, SessionActivity
from retinue.domain.structs import replace
from retinue.domain.times import to_ms
from retinue.domain.tool import Call, ToolResult, call_hash
from retinue.domain.trust import Trust
from retinue.models.base import EndChunk, ModelPrompt, ReplyChunk, TextChunk, ThinkingChunk, ToolCallChunk
from retinue.models.tool_call_limits import ARGUMENTS_DEPTH_MAX, CALLS_MAX, UNPARSED, normalize_value
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
from retinue.runners.stream_reader import read_reply
from retinue.testing.fake_clock import FakeClock
from retinue.testing.loop_factory import LoopParts as Thoughts
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


def own(*bodies: Any) -> list[Record]:
    return [
        Record(session=RUN.session, seq=n, kind=body_kind(body), body=body, at_ms=to_ms(NOON), run=RUN.id)
        for n, body in enumerate(bodies, start=2)
    ]


def call(n: int, **arguments: Any) -> Call:
    return Call(id=f"{n}", tool="append_line", arguments=arguments)


def result(n: int) -> ToolResult:
    return ToolResult(call=f"{n}", tool="append_line", output="appended")


USER = UserTurn(text="hello")
ONE, TWO = call(1), call(2)


@pytest.mark.parametrize(
    ("bodies", "move"),
    [
        ((USER,), RequestReply(0)),
        ((USER, Reply(text="hi")), FinishRun(Reply(text="hi"))),
        ((USER, Reply(text="", calls=(ONE, TWO))), PerformCalls(0, (ONE, TWO), (1, 2))),
        ((USER, Reply(text="", calls=(ONE, TWO)), result(2)), PerformCalls(0, (ONE,), (1,))),
        ((USER, Reply(text="", calls=(ONE, TWO)), result(1)), PerformCalls(0, (TWO,), (2,))),
        ((USER, Reply(text="", calls=(ONE, TWO)), result(2), result(1)), RequestReply(1)),
        ((USER, Reply(text="", calls=(ONE,)), result(1), Reply(text="", calls=(TWO,))), PerformCalls(1, (TWO,), (1,))),
        ((USER, Reply(text="", calls=(ONE,)), result(1), Reply(text="done")), FinishRun(Reply(text="done"))),
        ((USER, Reply(text="", calls=(ONE,)), result(1), USER), RequestReply(1)),
        ((USER, Reply(text="hi"), USER), RequestReply(1)),
        ((USER, Reply(text="hi"), USER, Reply(text="ho")), FinishRun(Reply(text="ho"))),
        ((), RequestReply(0)),
    ],
)
def test_the_next_move_follows_from_the_records(bodies: Sequence[Any], move: object) -> None:
    assert next_step(own(*bodies), ()) == move


def test_stored_calls_come_first_and_keep_their_places() -> None:
    noted = Note(text="it returned", call="1")
    assert next_step(own(USER), (ONE, TWO)) == PerformStoredCalls((ONE, TWO), (1, 2))
    assert next_step(own(USER, noted), (ONE, TWO)) == PerformStoredCalls((TWO,), (2,))
    assert next_step(own(USER, replace(noted, call="2")), (ONE, TWO)) == PerformStoredCalls((ONE,), (1,))
    assert next_step(own(USER, noted, replace(noted, call="2")), (ONE, TWO)) == RequestReply(0)


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
def test_a_bound_is_reached_exactly_there(bounds: dict[str, Any], words: str) -> None:
    usage = Usage(input_tokens=10, output_tokens=5, cost_microusd=7_000)
    said = reached_limit(replace(ADA, **bounds), own(USER, Reply(text="", usage=usage), Reply(text="", usage=usage)))
    assert (words in said) if words else said == ""


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
def test_arguments_are_what_the_store_gives_back(given: Any, kept: Any) -> None:
    import msgspec

    assert normalize_value(given) == kept
    again = msgspec.json.decode(msgspec.json.encode(normalize_value(given)))
    assert again == kept
    assert call_hash(Call(id="1", tool="t", arguments=normalize_value(given))) == call_hash(
        Call(id="1", tool="t", arguments=again)
    )


# A journal of its own kind: in memory, and able to lose the power before any step.


class PowerCut(Exception):
    pass


@dataclass(slots=True)
class MemoryJournal:
    """What a run has written, and how often each effect was begun."""

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

    async def call_model(self, turn: int, call: CallModel, *, request: ModelCallReservationRequest) -> Reply:
        self._step()
        reply = await call(1, ModelCallReservation(output_tokens_max=request.output_tokens_max))
        self._keep(reply)
        return reply

    async def summarize(
        self, turn: int, call: CallModel, *, request: ModelCallReservationRequest, notice: str = ""
    ) -> Reply:
        raise AssertionError("nothing here is long enough")

    async def compact(self, summary: Summary) -> None:
        raise AssertionError("nothing here is long enough")

    async def flush(self) -> None:
        return

    def record_failure(self, turn: int, error: ModelFailed, *, next_move: str) -> None:
        return

    async def add_note(self, note: Note) -> None:
        self._keep(note)

    def was_interrupted(self, turn: int, index: int) -> bool:
        return (turn, index) in self.open

    async def perform(
        self,
        turn: int,
        index: int,
        call: Call,
        act: Callable[[], Awaitable[ToolResult]],
        *,
        repeatable: bool,
        is_read_only: bool = False,
        is_late: bool = False,
        because: str = "",
    ) -> ToolResult:
        was_open = self.open.get((turn, index)) == call.id
        if was_open and not repeatable:
            done = ToolResult(call=call.id, tool=call.tool, output="interrupted", failed=True)
        else:
            assert (turn, index) not in self.open, "two calls in one place"
            self.open[turn, index] = call.id
            self._step()
            done = await act()
            self._step()
        del self.open[turn, index]
        self._keep(Note(text=done.output, call=done.call) if is_late else done)
        return done

    async def add_bodies(self, bodies: Sequence[ToolResult | Reply]) -> None:
        for kept in bodies:
            self._keep(kept)

    async def add_late_result(self, result: ToolResult) -> None:
        self._keep(Note(text=result.output, call=result.call))

    def _keep(self, body: Reply | ToolResult | Note) -> None:
        self.run_records.append(own(body)[0]._replace(seq=len(self.run_records) + 2))

    def _step(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise PowerCut


class Nobody:
    def state_of(self, call: Call) -> ApprovalState | None:
        return None

    def short_id_of(self, call: Call) -> str:
        return ""

    def permissions_of(self, call: Call) -> Sequence[Permission]:
        return ()


class Somebody:
    """Has answered everything in the same way."""

    def __init__(self, state: ApprovalState) -> None:
        self.state = state

    def state_of(self, call: Call) -> ApprovalState | None:
        return self.state

    def short_id_of(self, call: Call) -> str:
        return "abcd1234"

    def permissions_of(self, call: Call) -> Sequence[Permission]:
        return ()


class Ear:
    def __init__(self) -> None:
        self.heard: list[Delta] = []

    def on_tool_call(self, run: RunId, tool: str) -> None:
        pass

    def on_delta(self, delta: Delta) -> None:
        self.heard.append(delta)


@dataclass(slots=True)
class Desk:
    """Everything a loop needs, and a witness of what it did."""

    root: Path
    model: ScriptedModel = field(default_factory=lambda: ScriptedModel(FakeClock()))
    agent: Agent = ADA
    stored: tuple[Call, ...] = ()

    @property
    def loop(self) -> ToolLoop:
        toolbox = Toolbox([AppendLineTool(self.root / "witness")])
        # A model of the house needs no key, so nothing about keys is ever looked up.
        nothing = cast(Any, None)
        return Thoughts(nothing, self.model.clock, [self.model], toolbox, ZoneInfo("UTC")).loop

    @property
    def witness(self) -> list[str]:
        file = self.root / "witness"
        return [line.split(" ", 1)[1] for line in file.read_text().splitlines()] if file.exists() else []

    async def work(self, journal: MemoryJournal, ask: Any = None) -> RunAnswer:
        assignment = RunAssignment(
            agent=self.agent, session=SESSION, agent_directory=self.root, stored_calls=self.stored
        )
        return await self.loop.take_turns(assignment, journal, ask or Nobody(), Ear())


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def script(prompt: ModelPrompt) -> Any:
    """Three turns, each depending on nothing but what it reads."""
    done = sum(isinstance(record.body, ToolResult) for record in prompt.records)
    match done:
        case 0:
            return tool_call_reply("append_line", text="one")
        case 1:
            return replace(text_reply(""), calls=(("append_line", {"text": "two"}), ("append_line", {"text": "three"})))
        case _:
            return text_reply("done")


async def test_a_run_ends_when_the_model_asks_for_nothing_more(desk: Desk) -> None:
    desk.model.rule = script
    journal = MemoryJournal(own(USER))
    finished = await desk.work(journal)
    assert finished.text == "done"
    assert finished.context_length == 15
    assert desk.witness == ["one", "two", "three"]


@pytest.mark.parametrize("left", range(12))
async def test_a_run_taken_up_after_a_power_cut_anywhere_does_nothing_twice(desk: Desk, left: int) -> None:
    desk.model.rule = script
    journal = MemoryJournal(own(USER), left=left)
    try:
        await desk.work(journal)
    except PowerCut:
        journal.left = 10**9
        assert (await desk.work(journal)).text == "done"
    assert len(desk.witness) == len(set(desk.witness))
    outputs = [record.body.output for record in journal.run_records if isinstance(record.body, ToolResult)]
    assert outputs.count("interrupted") <= 1
    assert len(outputs) == 3


@pytest.mark.parametrize("left", range(5))
async def test_stored_calls_taken_up_after_a_power_cut_are_not_made_twice(desk: Desk, left: int) -> None:
    desk.stored = (call(1, text="same"), call(2, text="same"))
    desk.agent = replace(ADA, tools=ToolRules(ask=("*",)))
    desk.model.rule = lambda prompt: text_reply("done")
    journal = MemoryJournal(own(USER), left=left)
    said_yes = Somebody(ApprovalState.ALLOWED)
    try:
        await desk.work(journal, said_yes)
    except PowerCut:
        journal.left = 10**9
        await desk.work(journal, said_yes)
    assert len(desk.witness) <= 2
    notes = [record.body for record in journal.run_records if isinstance(record.body, Note)]
    assert [note.call for note in notes] == ["1", "2"]
    assert sum(note.text == "interrupted" for note in notes) + len(desk.witness) >= 2


async def test_a_stored_call_that_nobody_allowed_is_not_made(desk: Desk) -> None:
    desk.stored = (call(1, text="never"),)
    desk.agent = replace(ADA, tools=ToolRules(ask=("*",)))
    desk.model.rule = lambda prompt: text_reply("done")
    for ask in (Nobody(), Somebody(ApprovalState.DENIED), Somebody(ApprovalState.OPEN)):
        journal = MemoryJournal(own(USER))
        await desk.work(journal, ask)
    assert desk.witness == []


async def test_a_call_that_asks_parks_the_run_after_the_others_are_done(desk: Desk) -> None:
    desk.agent = replace(ADA, tools=ToolRules(ask=("append_line",), allow=()))
    desk.model.will_reply(tool_call_reply("append_line", text="never"))
    journal = MemoryJournal(own(USER))
    with pytest.raises(Suspended) as parked:
        await desk.work(journal)
    assert (parked.value.turn, [c.arguments for c in parked.value.calls]) == (0, [{"text": "never"}])
    assert parked.value.because == "the agent ada requires approval for 'append_line'"
    assert desk.witness == []


async def test_ids_of_calls_are_ours_and_the_same_on_each_attempt(desk: Desk) -> None:
    for _ in range(2):
        desk.model.will_reply(replace(text_reply(""), calls=(("append_line", {"text": "x"}),) * 3))
        journal = MemoryJournal(own(USER))
        journal.left = 1
        with pytest.raises(PowerCut):
            await desk.work(journal)
        (reply,) = [record.body for record in journal.run_records if isinstance(record.body, Reply)]
        assert [c.id for c in reply.calls] == ["abcdef01-0-1", "abcdef01-0-2", "abcdef01-0-3"]


# Hearing a model out


@dataclass(slots=True)
class Speaker:
    """Says exactly these chunks, and notices when nobody listens any more."""

    chunks: Sequence[ReplyChunk]
    error: Exception | None = None
    name: str = "speaker"
    price: Price = FREE_PRICE
    closed: bool = False

    @property
    def facts(self) -> ModelFacts:
        return ModelFacts(ref=ModelRef("", self.name), price=self.price)

    async def reply(self, prompt: ModelPrompt, *, key: str = "") -> AsyncIterator[ReplyChunk]:
        try:
            for chunk in self.chunks:
                yield chunk
            if self.error:
                raise self.error
        finally:
            self.closed = True


async def hear(speaker: Speaker, ear: Ear) -> Reply:
    prompt = ModelPrompt(session=RUN.session, instructions="", records=(), tools=())
    return await read_reply(speaker, prompt, RUN, ear, turn=3, attempt=2)


END = EndChunk(StopReason.END, Usage(input_tokens=1))


async def test_a_reply_is_told_as_it_is_said_with_offsets_for_each_kind() -> None:
    ear = Ear()
    reply = await hear(
        Speaker([ThinkingChunk("hm"), TextChunk("Good "), ThinkingChunk("m."), TextChunk("day"), END]), ear
    )
    assert (reply.text, reply.thinking, reply.model) == ("Good day", "hmm.", "speaker")
    assert [(d.kind, d.offset, d.text) for d in ear.heard] == [
        (DeltaKind.THINKING, 0, "hm"),
        (DeltaKind.TEXT, 0, "Good "),
        (DeltaKind.THINKING, 2, "m."),
        (DeltaKind.TEXT, 5, "day"),
    ]
    assert {(d.run, d.turn, d.attempt) for d in ear.heard} == {(RUN.id, 3, 2)}


async def test_words_no_store_can_keep_are_replaced_before_anyone_hears_them() -> None:
    ear = Ear()
    asked = Call(id="x", tool="t\x00", arguments={"a": "\ud800"})
    reply = await hear(Speaker([TextChunk("a\x00b"), ThinkingChunk("\udfff"), ToolCallChunk(asked), END]), ear)
    assert (reply.text, reply.thinking) == ("a\ufffdb", "\ufffd")
    assert reply.calls[0] == Call(id="abcdef01-3-1", tool="t\ufffd", arguments={"a": "\ufffd"})
    assert [d.text for d in ear.heard] == ["a\ufffdb", "\ufffd"]


async def test_a_stream_is_closed_as_soon_as_the_reply_is_whole() -> None:
    speaker = Speaker([TextChunk("done"), END, TextChunk("and more")])
    assert (await hear(speaker, Ear())).text == "done"
    assert speaker.closed


async def test_a_stream_that_ends_without_an_end_is_no_reply() -> None:
    speaker = Speaker([TextChunk("half a sen")])
    with pytest.raises(ModelFailed) as raised:
        await hear(speaker, Ear())
    assert raised.value.code == "model.truncated"
    broken = Speaker([TextChunk("half")], error=OSError("gone"))
    with pytest.raises(OSError, match="gone"):
        await hear(broken, Ear())
    assert speaker.closed and broken.closed


def nested(deep: int) -> Any:
    value: Any = "x"
    for _ in range(deep):
        value = {"a": value}
    return {"text": value}


@pytest.mark.parametrize("deep", [ARGUMENTS_DEPTH_MAX + 1, 300, 900])
async def test_arguments_nested_without_end_are_a_call_that_cannot_be_made_and_no_broken_run(deep: int) -> None:
    asked = Call(id="x", tool="t", arguments=nested(deep))
    reply = await hear(Speaker([ToolCallChunk(asked), END]), Ear())
    assert reply.calls[0].arguments == {UNPARSED: "nested more than 64 deep"}
    shallow = Call(id="x", tool="t", arguments=nested(ARGUMENTS_DEPTH_MAX))
    assert (await hear(Speaker([ToolCallChunk(shallow), END]), Ear())).calls[0].arguments == shallow.arguments


async def test_a_reply_that_asks_for_calls_without_end_is_none() -> None:
    asked = ToolCallChunk(Call(id="x", tool="t" * 10_000))
    assert len((await hear(Speaker([asked, END]), Ear())).calls[0].tool) == 200
    with pytest.raises(ModelFailed) as failed:
        await hear(Speaker([*[asked] * (CALLS_MAX + 1), END]), Ear())
    assert failed.value.code == "model.too_many_calls"


async def test_a_reply_that_does_not_come_to_an_end_is_none() -> None:
    speaker = Speaker([*[TextChunk("word " * 50_000)] * 10, *[ThinkingChunk("hmm, " * 50_000)] * 10, END])
    with pytest.raises(ModelFailed) as failed:
        await hear(speaker, Ear())
    assert "4,000,000" in failed.value.because
    assert speaker.closed


@pytest.mark.parametrize("count", [-5, -(2**70), 2**70])
async def test_a_bill_that_cannot_be_is_believed_only_as_far_as_one_can_be(count: int) -> None:
    """Less than nothing would have given back money that was spent, and no store has room for 2**70."""
    usage = Usage(
        input_tokens=count,
        output_tokens=count,
        cost_microusd=count,
        cache_read_tokens=count,
        cache_write_tokens=count,
        reasoning_tokens=count,
    )
    heard = (await hear(Speaker([TextChunk("Yes."), EndChunk(StopReason.END, usage)]), Ear())).usage
    assert all(0 <= value <= 10**12 for value in structs.astuple(heard))


@pytest.mark.parametrize(("words", "known"), [("Yes.", True), ("word " * 40, False)])
async def test_words_that_were_counted_as_none_cost_what_nobody_knows(words: str, known: bool) -> None:
    """Anthropic's count begins with one token, and a server that never tells the rest has not said what it costs."""
    speaker = Speaker(
        [TextChunk(words), EndChunk(StopReason.END, Usage(input_tokens=10, output_tokens=1))], price=Price(output=1)
    )
    usage = (await hear(speaker, Ear())).usage
    assert usage.estimated is not known


async def test_a_call_that_cannot_be_read_is_not_made_and_nobody_is_asked_about_it(desk: Desk) -> None:
    desk.agent = replace(ADA, tools=ToolRules(ask=("append_line",), allow=()))
    desk.model.will_reply(replace(text_reply(""), calls=(("append_line", {UNPARSED: '{"text": "hal'}),)))
    desk.model.will_reply(text_reply("I see."))
    journal = MemoryJournal(own(USER))
    assert (await desk.work(journal)).text == "I see."
    (result,) = [record.body for record in journal.run_records if isinstance(record.body, ToolResult)]
    assert result.failed
    assert "could not be read" in result.output
    assert desk.witness == []
