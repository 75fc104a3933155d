"""Reads a model's stream into one reply, and passes its deltas to the observer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

from retinue.domain.event import Delta, DeltaKind
from retinue.domain.ids import short
from retinue.domain.model import Failure, ModelFacts, ModelFailed
from retinue.domain.ports import Tell
from retinue.domain.record import Piece, PieceKind, Reply, Stop, Usage
from retinue.domain.run import Run
from retinue.domain.storable_text import storable
from retinue.domain.structs import replace
from retinue.domain.tool import Call
from retinue.models.base import Asks, Chunk, Ended, Model, Prompt, Seals, Text, Thinking
from retinue.models.error_messages import broke_off
from retinue.models.tool_call_limits import CALLS_MAX, kept, too_many_calls
from retinue.models.usage_validation import believed
from retinue.runners.token_estimate import is_known

UNCOUNTED_CHARS_MAX = 100  # longer than any single token
REPLY_CHARS_MAX = 4_000_000  # several times the longest reply of any model


async def listen(
    model: Model,
    prompt: Prompt,
    run: Run,
    tell: Tell | None,
    *,
    turn: int,
    attempt: int,
    key: str = "",
) -> Reply:
    """Read a model's reply to its end. Without an observer no deltas are sent, as for a summary."""
    chunks = model.reply(prompt, key=key)
    try:
        reply = await _hear(model.facts, chunks, run, tell, turn, attempt)
    finally:
        if isinstance(chunks, AsyncGenerator):
            await chunks.aclose()  # close now: a connection must not stay open until garbage collection
    check_answer(reply, model.name)
    return reply


async def _hear(
    facts: ModelFacts, chunks: AsyncIterator[Chunk], run: Run, tell: Tell | None, turn: int, attempt: int
) -> Reply:
    text: list[str] = []
    thinking: list[str] = []
    calls: list[Call] = []
    pieces = _Pieces()
    text_offset = thinking_offset = 0
    async for chunk in chunks:
        if text_offset + thinking_offset > REPLY_CHARS_MAX:
            raise _too_long(str(facts.ref))
        match chunk:
            case Text(said):
                words = storable(said)
                if tell is not None:
                    tell.delta(_delta(run, turn, attempt, DeltaKind.TEXT, text_offset, words))
                text.append(words)
                text_offset += len(words)
                pieces.add(PieceKind.TEXT, len(words))
            case Thinking(said):
                words = storable(said)
                if tell is not None:
                    tell.delta(_delta(run, turn, attempt, DeltaKind.THINKING, thinking_offset, words))
                thinking.append(words)
                thinking_offset += len(words)
                pieces.add(PieceKind.THINKING, len(words))
            case Asks(call):
                # Providers choose call ids freely; ours are unique in the session and the same on each attempt.
                calls.append(kept(call, id_=f"{short(run.id)}-{turn}-{len(calls) + 1}"))
                if len(calls) > CALLS_MAX:
                    raise too_many_calls(str(facts.ref))
                pieces.add(PieceKind.CALL, 1)
            case Seals(kind, seal):
                pieces.seal(kind, storable(seal))
            case Ended(stop, usage):
                return Reply(
                    text="".join(text),
                    calls=tuple(calls),
                    thinking="".join(thinking),
                    stop=Stop.CALLS if calls and stop is Stop.END else stop,
                    model=str(facts.ref),
                    usage=_with_cost(usage, facts, said_chars=text_offset + thinking_offset),
                    provider=facts.ref.provider,
                    pieces=pieces.worth_keeping(),
                )
    raise broke_off(str(facts.ref))


def _too_long(name: str) -> ModelFailed:
    return ModelFailed(
        f"{name} sent far too much",
        because=f"its reply has more than {REPLY_CHARS_MAX:,} characters",
        try_this="ask again, and for less",
        code="model.malformed",
        failure=Failure.MALFORMED,
        begun=True,
    )


def _with_cost(usage: Usage, facts: ModelFacts, *, said_chars: int) -> Usage:
    usage = believed(usage)
    if usage.cost_microusd or facts.price is None or facts.price.is_free or usage.estimated:
        return usage
    if usage.output_tokens <= 1 and said_chars > UNCOUNTED_CHARS_MAX:
        # Some providers report only the input, so the cost is unknown.
        return replace(usage, estimated=True)
    return believed(replace(usage, cost_microusd=facts.price.cost_microusd(usage)))


def check_answer(reply: Reply, name: str) -> None:
    """Raise for an empty reply, which must not be sent to anyone."""
    if reply.text.strip() or reply.calls or reply.stop is Stop.PAUSED:
        return
    told = reply.usage if is_known(reply) else None
    if reply.stop is Stop.FILTERED:
        raise ModelFailed(
            f"{name} would not answer this",
            because="the model, or a filter of its provider, refused it",
            try_this="put it in other words, or give the agent another model",
            code="model.content-filter",
            failure=Failure.CONTENT_FILTER,
            begun=True,
            usage=told,
        )
    if reply.stop is Stop.LENGTH:
        raise ModelFailed(
            f"{name} came to no answer",
            because="it used all the tokens of its reply for thinking",
            try_this="lower the agent's effort, or raise `output_tokens_max` of the model",
            code="model.no-room",
            failure=Failure.MALFORMED,
            begun=True,
            usage=told,
        )
    raise ModelFailed(
        f"{name} gave an empty answer",
        because="its reply had neither words nor calls",
        try_this="ask again",
        code="model.empty",
        failure=Failure.MALFORMED,
        begun=True,
        usage=told,
    )


class _Pieces:
    """The order of the parts of a reply, and the signature that the provider wants back with each."""

    def __init__(self) -> None:
        self._pieces: list[tuple[PieceKind, int, str]] = []

    def add(self, kind: PieceKind, length: int) -> None:
        if self._pieces and kind is not PieceKind.CALL:
            last, so_far, seal = self._pieces[-1]
            if last is kind and not seal:
                self._pieces[-1] = (kind, so_far + length, "")
                return
        self._pieces.append((kind, length, ""))

    def seal(self, kind: PieceKind, seal: str) -> None:
        if self._pieces and self._pieces[-1][0] is kind and not self._pieces[-1][2]:
            self._pieces[-1] = (kind, self._pieces[-1][1], seal)
        else:
            self._pieces.append((kind, 0, seal))

    def worth_keeping(self) -> tuple[Piece, ...]:
        """Return the pieces, or an empty tuple if they are in the usual order and unsigned."""
        kinds = [kind for kind, _, _ in self._pieces]
        usual = sorted(kinds, key=_USUAL_ORDER.index) == kinds and kinds.count(PieceKind.TEXT) <= 1
        if usual and not any(seal for _, _, seal in self._pieces):
            return ()
        return tuple(Piece(kind=kind, length=length, seal=seal) for kind, length, seal in self._pieces)


_USUAL_ORDER = (PieceKind.THINKING, PieceKind.TEXT, PieceKind.CALL, PieceKind.SERVER)


def _delta(run: Run, turn: int, attempt: int, kind: DeltaKind, offset: int, text: str) -> Delta:
    return Delta(session=run.session, run=run.id, turn=turn, attempt=attempt, kind=kind, offset=offset, text=text)
