"""Our own tool loop: ask the model, do what it asks for, and ask again until it asks for nothing more.

What to do next is read off the run's records alone, so a run taken up after a crash or a wait stands exactly where
its records end; there is no other state to restore.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from retinue.domain.agent import Agent
from retinue.domain.event import Delta, DeltaKind
from retinue.domain.ids import short
from retinue.domain.ports import Ask, Clock, Journal, Tell
from retinue.domain.record import Note, Record, Reply, UserTurn
from retinue.domain.run import Run
from retinue.domain.text import storable
from retinue.domain.tool import Call, ToolResult
from retinue.models.base import Asks, Ended, Model, ModelFailed, Models, Prompt, Text, Thinking
from retinue.runners.base import Assignment, Finished, Parked
from retinue.tools.base import Scene
from retinue.tools.toolbox import Toolbox


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


@dataclass(frozen=True, slots=True)
class Answer:
    reply: Reply


Move = AskModel | PerformCalls | PerformStored | Answer


def next_move(own: Sequence[Record], stored: Sequence[Call]) -> Move:
    """What a run whose records are `own` does next. Pure, and all there is to resuming."""
    noted = {record.body.call for record in own if isinstance(record.body, Note)}
    waiting = tuple(call for call in stored if call.id not in noted)
    if waiting:
        return PerformStored(waiting)
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


def spent(agent: Agent, run: Run, own: Sequence[Record], elapsed_s: float) -> str:
    """Which bound this run has reached, in words; empty where it may go on."""
    replies = [record.body for record in own if isinstance(record.body, Reply)]
    if len(replies) >= agent.turns_max:
        return f"I stopped after {len(replies)} turns, which is this agent's limit (turns_max)"
    if elapsed_s >= agent.run_seconds_max:
        return f"I stopped after {int(elapsed_s)} seconds, which is over this agent's limit (run_seconds_max)"
    tokens = sum(reply.usage.input_tokens + reply.usage.output_tokens for reply in replies)
    if agent.tokens_max is not None and tokens >= agent.tokens_max:
        return f"I stopped after {tokens} tokens, which is this agent's limit (tokens_max)"
    cost = sum(reply.usage.cost_microusd for reply in replies)
    if agent.cost_microusd_max is not None and cost >= agent.cost_microusd_max:
        return f"I stopped after spending ${cost / 1e6:.4f}, which is this agent's limit (cost_microusd_max)"
    return ""


class Loop:
    def __init__(self, models: Models, toolbox: Toolbox, clock: Clock) -> None:
        self._models = models
        self._toolbox = toolbox
        self._clock = clock

    async def work(self, assignment: Assignment, journal: Journal, ask: Ask, tell: Tell) -> Finished:
        agent = assignment.agent
        model = self._models.find(agent.model)
        while True:
            match next_move(journal.own, assignment.stored):
                case Answer(reply):
                    return Finished(text=reply.text, context_length=_context_length(reply))
                case AskModel(turn):
                    elapsed_s = (self._clock.now() - journal.run.started_at).total_seconds()
                    if bound := spent(agent, journal.run, journal.own, elapsed_s):
                        return _cut_off(journal.own, bound)
                    await self._ask(model, assignment, journal, tell, turn)
                case PerformCalls(turn, calls, indexes):
                    await self._perform(assignment, journal, ask, turn, dict(zip(indexes, calls, strict=True)))
                case PerformStored(calls):
                    await self._perform_stored(assignment, journal, ask, calls)

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
            reserve_microusd=model.reserve_microusd(prompt),
        )

    async def _perform(
        self, assignment: Assignment, journal: Journal, ask: Ask, turn: int, calls: dict[int, Call]
    ) -> None:
        plan = self._toolbox.decide(assignment.agent, list(calls.values()), ask)
        if plan.closed:
            await journal.keep(plan.closed)
        for index, call in calls.items():
            if call in plan.allowed:
                await self._perform_one(assignment, journal, turn, index, call)
        if plan.asked:
            raise Parked(plan.asked, turn=turn, because=plan.because)

    async def _perform_stored(
        self, assignment: Assignment, journal: Journal, ask: Ask, calls: tuple[Call, ...]
    ) -> None:
        """Calls whose turn has gone by: allowed by a person since, and put to policy once more."""
        plan = self._toolbox.decide(assignment.agent, calls, ask)
        refused = {result.call: result for result in plan.closed}
        for index, call in enumerate(calls, start=1):
            if call.id in refused:
                await journal.keep_note(refused[call.id])
            else:
                await self._perform_one(assignment, journal, -1, index, call, stored=True)

    async def _perform_one(
        self, assignment: Assignment, journal: Journal, turn: int, index: int, call: Call, *, stored: bool = False
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
            repeatable=spec is not None and spec.repeatable,
            stored=stored,
        )


async def listen(model: Model, prompt: Prompt, journal: Journal, tell: Tell, turn: int, attempt: int) -> Reply:
    """Hear a model out, telling whoever watches as it goes."""
    run = journal.run
    text: list[str] = []
    thinking: list[str] = []
    calls: list[Call] = []
    text_offset = thinking_offset = 0
    async for chunk in model.reply(prompt):
        match chunk:
            case Text(said):
                words = storable(said)
                tell.delta(_delta(run, turn, attempt, DeltaKind.TEXT, text_offset, words))
                text.append(words)
                text_offset += len(words)
            case Thinking(said):
                words = storable(said)
                tell.delta(_delta(run, turn, attempt, DeltaKind.THINKING, thinking_offset, words))
                thinking.append(words)
                thinking_offset += len(words)
            case Asks(call):
                # Providers number calls as they please; ours are unique in the session and the same on each attempt.
                calls.append(replace(call, id=f"{short(run.id)}-{turn}-{len(calls) + 1}"))
            case Ended(stop, usage):
                return Reply(
                    text="".join(text),
                    calls=tuple(calls),
                    thinking="".join(thinking),
                    stop=stop,
                    model=model.name,
                    usage=usage,
                )
    raise ModelFailed(
        f"{model.name} broke off in the middle of its reply",
        because="its stream ended without an end",
        try_this="ask again",
        code="model.broke-off",
    )


def _delta(run: Run, turn: int, attempt: int, kind: DeltaKind, offset: int, text: str) -> Delta:
    return Delta(session=run.session, run=run.id, turn=turn, attempt=attempt, kind=kind, offset=offset, text=text)


def _context_length(reply: Reply) -> int | None:
    total = reply.usage.input_tokens + reply.usage.output_tokens
    return total or None


def _cut_off(own: Sequence[Record], bound: str) -> Finished:
    """A bound that cuts off real calls is told to the person, after whatever was said last."""
    said = next((record.body.text for record in reversed(own) if isinstance(record.body, Reply)), "")
    return Finished(text=f"{said}\n\n[{bound}.]".strip())
