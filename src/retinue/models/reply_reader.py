"""Reads a model's stream into one reply, and passes its deltas to the observer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

from retinue.domain.event import Delta, DeltaKind
from retinue.domain.ids import short_id
from retinue.domain.model import ModelFacts
from retinue.domain.ports import RunObserver
from retinue.domain.record import Reply, ReplyPiece, ReplyPieceKind, StopReason, Usage
from retinue.domain.run import Run
from retinue.domain.storable_text import make_storable
from retinue.domain.structs import replace
from retinue.domain.tool import Call
from retinue.models.base import (
    EndChunk,
    Model,
    ModelPrompt,
    ReplyChunk,
    SignatureChunk,
    TextChunk,
    ThinkingChunk,
    ToolCallChunk,
)
from retinue.models.errors import (
    ReplyEmpty,
    ReplyOnlyThinking,
    ReplyRefused,
    ReplyTooLong,
    ReplyTruncated,
    TooManyToolCalls,
)
from retinue.models.tool_call_limits import CALLS_MAX, normalize_call
from retinue.models.usage_validation import clamp_usage, is_counted

UNCOUNTED_CHARS_MAX = 100  # longer than any single token
REPLY_CHARS_MAX = 4_000_000  # several times the longest reply of any model


async def read_reply(
    model: Model,
    prompt: ModelPrompt,
    run: Run,
    observer: RunObserver | None,
    *,
    turn: int,
    attempt: int,
    key: str = "",
) -> Reply:
    """Read a model's reply to its end. The observer, if any, gets each piece of text as it arrives."""
    chunks = model.reply(prompt, key=key)
    try:
        reply = await _read_stream(model.facts, chunks, run, observer, turn, attempt)
    finally:
        if isinstance(chunks, AsyncGenerator):
            await chunks.aclose()  # close now: a connection must not stay open until garbage collection
    check_reply(reply, model.name)
    return reply


async def _read_stream(
    facts: ModelFacts,
    chunks: AsyncIterator[ReplyChunk],
    run: Run,
    observer: RunObserver | None,
    turn: int,
    attempt: int,
) -> Reply:
    """Collect the chunks of a stream into a reply, and pass each piece of text to the observer."""
    text: list[str] = []
    thinking: list[str] = []
    calls: list[Call] = []
    pieces = _ReplyPieces()
    text_offset = thinking_offset = 0
    async for chunk in chunks:
        if text_offset + thinking_offset > REPLY_CHARS_MAX:
            raise ReplyTooLong(str(facts.ref), chars_max=REPLY_CHARS_MAX)
        match chunk:
            case TextChunk(raw):
                words = make_storable(raw)
                if observer is not None:
                    observer.on_delta(_delta(run, turn, attempt, DeltaKind.TEXT, text_offset, words))
                text.append(words)
                text_offset += len(words)
                pieces.add(ReplyPieceKind.TEXT, len(words))
            case ThinkingChunk(raw):
                words = make_storable(raw)
                if observer is not None:
                    observer.on_delta(_delta(run, turn, attempt, DeltaKind.THINKING, thinking_offset, words))
                thinking.append(words)
                thinking_offset += len(words)
                pieces.add(ReplyPieceKind.THINKING, len(words))
            case ToolCallChunk(call):
                # Providers choose call ids freely; ours are unique in the session and the same on each attempt.
                calls.append(normalize_call(call, id_=f"{short_id(run.id)}-{turn}-{len(calls) + 1}"))
                if len(calls) > CALLS_MAX:
                    raise TooManyToolCalls(str(facts.ref), calls_max=CALLS_MAX)
                pieces.add(ReplyPieceKind.CALL, 1)
            case SignatureChunk(kind, seal):
                pieces.seal(kind, make_storable(seal))
            case EndChunk(stop, usage):
                return Reply(
                    text="".join(text),
                    calls=tuple(calls),
                    thinking="".join(thinking),
                    stop=StopReason.CALLS if calls and stop is StopReason.END else stop,
                    model=str(facts.ref),
                    usage=_with_cost(usage, facts, output_chars=text_offset + thinking_offset),
                    provider=facts.ref.provider,
                    pieces=pieces.worth_keeping(),
                )
    raise ReplyTruncated(str(facts.ref))


def _with_cost(usage: Usage, facts: ModelFacts, *, output_chars: int) -> Usage:
    usage = clamp_usage(usage)
    if usage.cost_microusd or facts.price is None or facts.price.is_free or usage.estimated:
        return usage
    if usage.output_tokens <= 1 and output_chars > UNCOUNTED_CHARS_MAX:
        # Some providers report only the input, so the cost is unknown.
        return replace(usage, estimated=True)
    return clamp_usage(replace(usage, cost_microusd=facts.price.cost_microusd(usage)))


def check_reply(reply: Reply, name: str) -> None:
    """Raise if a reply cannot be used as an answer, for example because it is empty."""
    if reply.text.strip() or reply.calls or reply.stop is StopReason.PAUSED:
        return
    usage = reply.usage if is_counted(reply.usage) else None
    if reply.stop is StopReason.FILTERED:
        raise ReplyRefused(name, usage=usage)
    if reply.stop is StopReason.LENGTH:
        raise ReplyOnlyThinking(name, usage=usage)
    raise ReplyEmpty(name, usage=usage)


class _ReplyPieces:
    """Collects the order of the parts of a reply, and the signature that the provider expects back with each part."""

    def __init__(self) -> None:
        self._pieces: list[tuple[ReplyPieceKind, int, str]] = []

    def add(self, kind: ReplyPieceKind, length: int) -> None:
        if self._pieces and kind is not ReplyPieceKind.CALL:
            last, so_far, seal = self._pieces[-1]
            if last is kind and not seal:
                self._pieces[-1] = (kind, so_far + length, "")
                return
        self._pieces.append((kind, length, ""))

    def seal(self, kind: ReplyPieceKind, seal: str) -> None:
        if self._pieces and self._pieces[-1][0] is kind and not self._pieces[-1][2]:
            self._pieces[-1] = (kind, self._pieces[-1][1], seal)
        else:
            self._pieces.append((kind, 0, seal))

    def worth_keeping(self) -> tuple[ReplyPiece, ...]:
        """Return the pieces, or an empty tuple if they are in the usual order and unsigned."""
        kinds = [kind for kind, _, _ in self._pieces]
        usual = sorted(kinds, key=_USUAL_ORDER.index) == kinds and kinds.count(ReplyPieceKind.TEXT) <= 1
        if usual and not any(seal for _, _, seal in self._pieces):
            return ()
        return tuple(ReplyPiece(kind=kind, length=length, seal=seal) for kind, length, seal in self._pieces)


_USUAL_ORDER = (ReplyPieceKind.THINKING, ReplyPieceKind.TEXT, ReplyPieceKind.CALL, ReplyPieceKind.SERVER)


def _delta(run: Run, turn: int, attempt: int, kind: DeltaKind, offset: int, text: str) -> Delta:
    return Delta(session=run.session, run=run.id, turn=turn, attempt=attempt, kind=kind, offset=offset, text=text)
