"""Our own tool loop: ask the model, do what it asks for, and ask again until it asks for nothing more.

What to do next is read off the run's records alone, so a run taken up after a crash or a wait stands exactly where
its records end; there is no other state to restore.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from retinue.domain.agent import Agent
from retinue.domain.event import Delta, DeltaKind
from retinue.domain.ids import short
from retinue.domain.model import ModelFailed
from retinue.domain.ports import Ask, Journal, Tell
from retinue.domain.record import Note, Piece, PieceKind, Record, Reply, UserTurn
from retinue.domain.run import Run
from retinue.domain.text import storable
from retinue.domain.tool import Call, ToolResult
from retinue.models.base import Asks, Chunk, Ended, Model, Models, Prompt, Seals, Text, Thinking
from retinue.runners.base import Assignment, Finished, Parked
from retinue.tools.base import Scene
from retinue.tools.toolbox import Toolbox, refusal


@dataclass(frozen=True, slots=True)
class AskModel:
    turn: int


@dataclass(frozen=True, slots=True)
class PerformCalls:
    turn: int
    calls: tuple[Call, ...]
    indexes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PerformStored:
    calls: tuple[Call, ...]
    indexes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    reply: Reply


Move = AskModel | PerformCalls | PerformStored | Answer


def next_move(own: Sequence[Record], stored: Sequence[Call]) -> Move:
    """What a run whose records are `own` does next. Pure, and all there is to resuming."""
    noted = {record.body.call for record in own if isinstance(record.body, Note)}
    waiting = [(i, call) for i, call in enumerate(stored, start=1) if call.id not in noted]
    if waiting:
        return PerformStored(tuple(call for _, call in waiting), tuple(i for i, _ in waiting))
    turn = -1
    reply: Reply | None = None
    closed: set[str] = set()
    for record in own:
        match record.body:
            case Reply() as said:
                turn, reply, closed = turn + 1, said, set[str]()
            case ToolResult() as result:
                closed.add(result.call)
            case UserTurn() if reply is not None:
                # Someone spoke up in the middle: their words come after the results and need a reply of their own.
                reply = reply if any(call.id not in closed for call in reply.calls) else None
            case _:
                pass
    if reply is None:
        return AskModel(turn + 1)
    open_calls = [(i, call) for i, call in enumerate(reply.calls, start=1) if call.id not in closed]
    if open_calls:
        return PerformCalls(turn, tuple(call for _, call in open_calls), tuple(i for i, _ in open_calls))
    return AskModel(turn + 1) if reply.calls else Answer(reply)


def spent(agent: Agent, own: Sequence[Record]) -> str:
    """Which bound this run has reached, in words; empty where it may go on. Its seconds are the engine's to watch."""
    replies = [record.body for record in own if isinstance(record.body, Reply)]
    if len(replies) >= agent.turns_max:
        return f"I stopped after {len(replies)} turns, which is this agent's limit (turns_max)"
    tokens = sum(reply.usage.input_tokens + reply.usage.output_tokens for reply in replies)
    if agent.tokens_max is not None and tokens >= agent.tokens_max:
        return f"I stopped after {tokens} tokens, which is this agent's limit (tokens_max)"
    cost = sum(reply.usage.cost_microusd for reply in replies)
    if agent.cost_microusd_max is not None and cost >= agent.cost_microusd_max:
        return f"I stopped after spending ${cost / 1e6:.4f}, which is this agent's limit (cost_microusd_max)"
    return ""


class Loop:
    def __init__(self, models: Models, toolbox: Toolbox) -> None:
        self._models = models
        self._toolbox = toolbox

    async def work(self, assignment: Assignment, journal: Journal, ask: Ask, tell: Tell) -> Finished:
        agent = assignment.agent
        model = self._models.find(agent.model)
        while True:
            match next_move(journal.own, assignment.stored):
                case Answer(reply):
                    return Finished(text=reply.text, context_length=_context_length(reply))
                case AskModel(turn):
                    if bound := spent(agent, journal.own):
                        return _cut_off(journal.own, bound)
                    await self._ask(model, assignment, journal, tell, turn)
                case PerformCalls(turn, calls, indexes):
                    await self._perform(assignment, journal, ask, turn, dict(zip(indexes, calls, strict=True)))
                case PerformStored(calls, indexes):
                    await self._perform_stored(assignment, journal, ask, dict(zip(indexes, calls, strict=True)))

    async def _ask(self, model: Model, assignment: Assignment, journal: Journal, tell: Tell, turn: int) -> None:
        prompt = Prompt(
            session=assignment.session.id,
            instructions=assignment.agent.instructions,
            records=journal.records,
            tools=self._toolbox.offered(assignment.agent),
        )
        await journal.reply(
            turn,
            partial(listen, model, prompt, journal, tell, turn),
            reserve_microusd=model.facts.price.call if model.facts.price else 0,
        )

    async def _perform(
        self, assignment: Assignment, journal: Journal, ask: Ask, turn: int, calls: dict[int, Call]
    ) -> None:
        calls = await self._perform_begun(assignment, journal, ask, turn, calls)
        plan = self._toolbox.decide(assignment.agent, list(calls.values()), ask)
        if plan.closed:
            await journal.keep(plan.closed)
        for index, call in calls.items():
            if call in plan.allowed:
                await self._perform_one(assignment, journal, turn, index, call)
        if plan.asked:
            raise Parked(plan.asked, turn=turn, because=plan.because)

    async def _perform_stored(self, assignment: Assignment, journal: Journal, ask: Ask, calls: dict[int, Call]) -> None:
        """Calls whose turn has gone by: allowed by a person since, and put to policy once more."""
        calls = await self._perform_begun(assignment, journal, ask, -1, calls, stored=True)
        plan = self._toolbox.decide(assignment.agent, list(calls.values()), ask)
        refused = {result.call: result for result in plan.closed}
        for index, call in calls.items():
            if call in plan.allowed:
                await self._perform_one(assignment, journal, -1, index, call, stored=True)
            else:
                await journal.keep_note(refused.get(call.id) or refusal(call, "Not done: nobody has allowed it."))

    async def _perform_begun(
        self,
        assignment: Assignment,
        journal: Journal,
        ask: Ask,
        turn: int,
        calls: dict[int, Call],
        *,
        stored: bool = False,
    ) -> dict[int, Call]:
        """Calls that were cut off come first: whatever policy says by now, they may have happened. Returns the rest."""
        begun = {index: call for index, call in calls.items() if journal.begun(turn, index)}
        again = self._toolbox.decide(assignment.agent, list(begun.values()), ask).allowed
        for index, call in begun.items():
            await self._perform_one(assignment, journal, turn, index, call, again=call in again, stored=stored)
        return {index: call for index, call in calls.items() if index not in begun}

    async def _perform_one(
        self,
        assignment: Assignment,
        journal: Journal,
        turn: int,
        index: int,
        call: Call,
        *,
        again: bool = True,
        stored: bool = False,
    ) -> None:
        spec = self._toolbox.spec(call.tool)
        scene = Scene(
            agent=assignment.agent,
            session=assignment.session.id,
            run=journal.run.id,
            call=call.id,
            home=assignment.home,
        )
        await journal.perform(
            turn,
            index,
            call,
            partial(self._toolbox.perform, call, scene),
            repeatable=again and spec is not None and spec.repeatable,
            stored=stored,
        )


async def listen(model: Model, prompt: Prompt, journal: Journal, tell: Tell, turn: int, attempt: int) -> Reply:
    """Hear a model out, telling whoever watches as it goes."""
    chunks = model.reply(prompt)
    try:
        return await _hear(model.name, chunks, journal.run, tell, turn, attempt)
    finally:
        if isinstance(chunks, AsyncGenerator):
            await chunks.aclose()  # now: a connection should not stay open until someone collects it


async def _hear(name: str, chunks: AsyncIterator[Chunk], run: Run, tell: Tell, turn: int, attempt: int) -> Reply:
    text: list[str] = []
    thinking: list[str] = []
    calls: list[Call] = []
    pieces = _Pieces()
    text_offset = thinking_offset = 0
    async for chunk in chunks:
        match chunk:
            case Text(said):
                words = storable(said)
                tell.delta(_delta(run, turn, attempt, DeltaKind.TEXT, text_offset, words))
                text.append(words)
                text_offset += len(words)
                pieces.add(PieceKind.TEXT, len(words))
            case Thinking(said):
                words = storable(said)
                tell.delta(_delta(run, turn, attempt, DeltaKind.THINKING, thinking_offset, words))
                thinking.append(words)
                thinking_offset += len(words)
                pieces.add(PieceKind.THINKING, len(words))
            case Asks(call):
                # Providers number calls as they please; ours are unique in the session and the same on each attempt.
                id_ = f"{short(run.id)}-{turn}-{len(calls) + 1}"
                calls.append(Call(id=id_, tool=storable(call.tool), arguments=plain(call.arguments)))
                pieces.add(PieceKind.CALL, 1)
            case Seals(kind, seal):
                pieces.seal(kind, storable(seal))
            case Ended(stop, usage):
                return Reply(
                    text="".join(text),
                    calls=tuple(calls),
                    thinking="".join(thinking),
                    stop=stop,
                    model=name,
                    usage=usage,
                    pieces=pieces.worth_keeping(),
                )
    raise ModelFailed(
        f"{name} broke off in the middle of its reply",
        because="its stream ended without an end",
        try_this="ask again",
        code="model.broke-off",
    )


class _Pieces:
    """The order in which a reply came, and what its provider wants back with each stretch of it."""

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
        """None where the usual order says it all."""
        kinds = [kind for kind, _, _ in self._pieces]
        usual = sorted(kinds, key=_USUAL_ORDER.index) == kinds and kinds.count(PieceKind.TEXT) <= 1
        if usual and not any(seal for _, _, seal in self._pieces):
            return ()
        return tuple(Piece(kind=kind, length=length, seal=seal) for kind, length, seal in self._pieces)


_USUAL_ORDER = (PieceKind.THINKING, PieceKind.TEXT, PieceKind.CALL, PieceKind.SERVER)


def plain(value: Any) -> Any:
    """Arguments as the store gives them back, so that a call read again is the call that was made, and was allowed."""
    match value:
        case str():
            return storable(value)
        case dict():
            return {storable(str(key)): plain(part) for key, part in cast("dict[Any, Any]", value).items()}
        case list() | tuple():
            return [plain(part) for part in cast("Sequence[Any]", value)]
        case float() if not math.isfinite(value):
            return None  # JSON has no word for it
        case _:
            return value


def _delta(run: Run, turn: int, attempt: int, kind: DeltaKind, offset: int, text: str) -> Delta:
    return Delta(session=run.session, run=run.id, turn=turn, attempt=attempt, kind=kind, offset=offset, text=text)


def _context_length(reply: Reply) -> int | None:
    total = reply.usage.input_tokens + reply.usage.output_tokens
    return total or None


def _cut_off(own: Sequence[Record], bound: str) -> Finished:
    """A bound that cuts off real calls is told to the person, after whatever was said last."""
    said = next((record.body.text for record in reversed(own) if isinstance(record.body, Reply)), "")
    return Finished(text=f"{said}\n\n[{bound}.]".strip())
