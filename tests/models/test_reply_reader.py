"""The reply reader turns the stream of a model into one reply, and passes its deltas on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec import structs

from retinue.domain import address
from retinue.domain.event import Delta, DeltaKind
from retinue.domain.ids import RunId, SessionId
from retinue.domain.model import FREE_PRICE, ModelFacts, ModelFailed, ModelRef, Price
from retinue.domain.record import Reply, StopReason, Usage
from retinue.domain.run import Run, RunStatus
from retinue.domain.session import LaneKind
from retinue.domain.tool import Call
from retinue.models.base import EndChunk, ModelPrompt, ReplyChunk, TextChunk, ThinkingChunk, ToolCallChunk
from retinue.models.reply_reader import read_reply
from retinue.models.tool_call_limits import ARGUMENTS_DEPTH_MAX, CALLS_MAX, UNPARSED

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
    started_at=datetime(2026, 1, 5, 12, tzinfo=UTC),
)


@dataclass(slots=True)
class DeltaRecorder:
    """Records the deltas that it gets."""

    recorded: list[Delta] = field(default_factory=list[Delta])

    def on_delta(self, delta: Delta) -> None:
        self.recorded.append(delta)

    def on_tool_call(self, run: RunId, tool: str) -> None:
        raise AssertionError("no call is performed while a reply is read")


@dataclass(slots=True)
class ChunkModel:
    """Sends exactly these chunks, and notices when its reader stops."""

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


async def read_reply_from(chunk_model: ChunkModel, delta_recorder: DeltaRecorder) -> Reply:
    prompt = ModelPrompt(session=RUN.session, instructions="", records=(), tools=())
    return await read_reply(chunk_model, prompt, RUN, delta_recorder, turn=3, attempt=2)


END = EndChunk(StopReason.END, Usage(input_tokens=1))


async def test_the_reply_reader_sends_deltas_of_a_reply_with_an_offset_for_each_kind() -> None:
    delta_recorder = DeltaRecorder()
    reply = await read_reply_from(
        ChunkModel([ThinkingChunk("hm"), TextChunk("Good "), ThinkingChunk("m."), TextChunk("day"), END]),
        delta_recorder,
    )
    assert (reply.text, reply.thinking, reply.model) == ("Good day", "hmm.", "speaker")
    assert [(d.kind, d.offset, d.text) for d in delta_recorder.recorded] == [
        (DeltaKind.THINKING, 0, "hm"),
        (DeltaKind.TEXT, 0, "Good "),
        (DeltaKind.THINKING, 2, "m."),
        (DeltaKind.TEXT, 5, "day"),
    ]
    assert {(d.run, d.turn, d.attempt) for d in delta_recorder.recorded} == {(RUN.id, 3, 2)}


async def test_the_reply_reader_replaces_characters_that_cannot_be_stored_in_the_reply_and_its_deltas() -> None:
    delta_recorder = DeltaRecorder()
    asked = Call(id="x", tool="t\x00", arguments={"a": "\ud800"})
    reply = await read_reply_from(
        ChunkModel([TextChunk("a\x00b"), ThinkingChunk("\udfff"), ToolCallChunk(asked), END]), delta_recorder
    )
    assert (reply.text, reply.thinking) == ("a\ufffdb", "\ufffd")
    assert reply.calls[0] == Call(id="abcdef01-3-1", tool="t\ufffd", arguments={"a": "\ufffd"})
    assert [d.text for d in delta_recorder.recorded] == ["a\ufffdb", "\ufffd"]


async def test_the_reply_reader_closes_a_model_stream_as_soon_as_the_reply_is_complete() -> None:
    chunk_model = ChunkModel([TextChunk("done"), END, TextChunk("and more")])
    assert (await read_reply_from(chunk_model, DeltaRecorder())).text == "done"
    assert chunk_model.closed


async def test_the_reply_reader_fails_on_a_model_stream_without_an_end_chunk() -> None:
    chunk_model = ChunkModel([TextChunk("half a sen")])
    with pytest.raises(ModelFailed) as raised:
        await read_reply_from(chunk_model, DeltaRecorder())
    assert raised.value.code == "model.truncated"
    broken = ChunkModel([TextChunk("half")], error=OSError("gone"))
    with pytest.raises(OSError, match="gone"):
        await read_reply_from(broken, DeltaRecorder())
    assert chunk_model.closed and broken.closed


def nested(deep: int) -> Any:
    value: Any = "x"
    for _ in range(deep):
        value = {"a": value}
    return {"text": value}


@pytest.mark.parametrize("deep", [ARGUMENTS_DEPTH_MAX + 1, 300, 900])
async def test_tool_call_arguments_nested_too_deep_become_unparsed_in_the_reply_reader(deep: int) -> None:
    asked = Call(id="x", tool="t", arguments=nested(deep))
    reply = await read_reply_from(ChunkModel([ToolCallChunk(asked), END]), DeltaRecorder())
    assert reply.calls[0].arguments == {UNPARSED: "nested more than 64 deep"}
    shallow = Call(id="x", tool="t", arguments=nested(ARGUMENTS_DEPTH_MAX))
    assert (await read_reply_from(ChunkModel([ToolCallChunk(shallow), END]), DeltaRecorder())).calls[
        0
    ].arguments == shallow.arguments


async def test_the_reply_reader_fails_on_a_reply_with_too_many_tool_calls() -> None:
    asked = ToolCallChunk(Call(id="x", tool="t" * 10_000))
    assert len((await read_reply_from(ChunkModel([asked, END]), DeltaRecorder())).calls[0].tool) == 200
    with pytest.raises(ModelFailed) as failed:
        await read_reply_from(ChunkModel([*[asked] * (CALLS_MAX + 1), END]), DeltaRecorder())
    assert failed.value.code == "model.too_many_calls"


async def test_the_reply_reader_fails_on_a_reply_with_too_much_text() -> None:
    chunk_model = ChunkModel([*[TextChunk("word " * 50_000)] * 10, *[ThinkingChunk("hmm, " * 50_000)] * 10, END])
    with pytest.raises(ModelFailed) as failed:
        await read_reply_from(chunk_model, DeltaRecorder())
    assert "4,000,000" in failed.value.because
    assert chunk_model.closed


@pytest.mark.parametrize("count", [-5, -(2**70), 2**70])
async def test_the_reply_reader_clamps_impossible_usage_numbers_to_a_valid_range(count: int) -> None:
    """A negative number would have returned money that was spent, and no database integer holds 2**70."""
    usage = Usage(
        input_tokens=count,
        output_tokens=count,
        cost_microusd=count,
        cache_read_tokens=count,
        cache_write_tokens=count,
        reasoning_tokens=count,
    )
    recorded = (
        await read_reply_from(ChunkModel([TextChunk("Yes."), EndChunk(StopReason.END, usage)]), DeltaRecorder())
    ).usage
    assert all(0 <= value <= 10**12 for value in structs.astuple(recorded))


@pytest.mark.parametrize(("words", "known"), [("Yes.", True), ("word " * 40, False)])
async def test_the_reply_reader_marks_usage_as_estimated_if_the_output_count_is_too_low_for_the_text(
    words: str, known: bool
) -> None:
    """Anthropic's count starts at one token, so the number is wrong if a server never sends the final count."""
    chunk_model = ChunkModel(
        [TextChunk(words), EndChunk(StopReason.END, Usage(input_tokens=10, output_tokens=1))], price=Price(output=1)
    )
    usage = (await read_reply_from(chunk_model, DeltaRecorder())).usage
    assert usage.estimated is not known
