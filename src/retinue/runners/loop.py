"""The tool loop: call the model, perform its calls, and repeat until it makes none.

The next step is derived from the run's records alone. So a run resumed after a crash or a
suspension continues exactly where its records end; there is no other state to restore.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial

from msgspec import Struct

from retinue.domain.address import AddressKind
from retinue.domain.agent import Agent
from retinue.domain.ids import short
from retinue.domain.model import ModelRef
from retinue.domain.money import BudgetSpent
from retinue.domain.permission import default_rights
from retinue.domain.ports import Ask, Journal, Tell
from retinue.domain.record import Note, Record, Reply, Stop, UserTurn, bare_model
from retinue.domain.structs import replace
from retinue.domain.tool import Call, ToolResult, ToolSpec, call_hash
from retinue.domain.trust import Trust
from retinue.models.tool_call_limits import unreadable
from retinue.policy.tools.tools import Circumstances
from retinue.runners.base import NO_EQUIPMENT, Assignment, Equip, Equipment, Finished, Parked, is_silent
from retinue.runners.display import heard, usage_line
from retinue.runners.model_call import Asker, Case
from retinue.tools.base import Pending
from retinue.tools.toolbox import Occasion, Plan, Toolbox, refusal

REPEATS_MAX = 5


class AskModel(Struct, frozen=True):
    """Next step: call the model."""

    turn: int


class PerformCalls(Struct, frozen=True):
    """Next step: perform the open calls of the last reply."""

    turn: int
    calls: tuple[Call, ...]
    indexes: tuple[int, ...]


class PerformStored(Struct, frozen=True):
    """Next step: perform stored calls that a person has approved after their turn."""

    calls: tuple[Call, ...]
    indexes: tuple[int, ...]


class Answer(Struct, frozen=True):
    """Next step: end the run with this reply."""

    reply: Reply


Move = AskModel | PerformCalls | PerformStored | Answer


def next_move(own: Sequence[Record], stored: Sequence[Call]) -> Move:
    """Return what a run with these records does next. Pure; resuming a run needs nothing else."""
    if stored:
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
                # A message joined in the middle: it follows the results and needs a new reply.
                reply = reply if any(call.id not in closed for call in reply.calls) else None
            case _:
                pass
    if reply is None:
        return AskModel(turn + 1)
    open_calls = [(i, call) for i, call in enumerate(reply.calls, start=1) if call.id not in closed]
    if open_calls:
        return PerformCalls(turn, tuple(call for _, call in open_calls), tuple(i for i, _ in open_calls))
    return AskModel(turn + 1) if reply.calls or reply.stop is Stop.PAUSED else Answer(reply)


def spent(agent: Agent, own: Sequence[Record]) -> str:
    """Return the limit that this run has reached, as a sentence, or an empty string. The engine enforces its time."""
    replies = [record.body for record in own if isinstance(record.body, Reply)]
    if len(replies) >= agent.turns_max:
        return f"I stopped after {len(replies)} turns, which is this agent's limit (turns_max)"
    tokens = sum(reply.usage.input_tokens + reply.usage.output_tokens for reply in replies)
    if agent.tokens_max is not None and tokens >= agent.tokens_max:
        return f"I stopped after {tokens} tokens, which is this agent's limit (tokens_max)"
    cost = sum(reply.usage.cost_microusd for reply in replies)
    if agent.cost_microusd_max is not None and cost >= agent.cost_microusd_max:
        return f"I stopped after spending ${cost / 1e6:.4f}, which is this agent's limit (cost_microusd_max)"
    if _repeats(own):
        return f"I stopped because I made the same calls {REPEATS_MAX} times, and nothing came of it that was new"
    return ""


def _repeats(own: Sequence[Record]) -> bool:
    """Whether the last turns made the same calls and got the same results.

    A run that polls for a change does not match: a result changes in the end, or it writes text in
    between.
    """
    results = {record.body.call: record.body for record in own if isinstance(record.body, ToolResult)}
    seen: set[tuple[object, ...]] = set()
    turns = [record.body for record in own if isinstance(record.body, Reply | UserTurn)][-REPEATS_MAX:]
    for turn in turns:
        if isinstance(turn, UserTurn) or not turn.calls:
            return False
        came = (results.get(call.id) for call in turn.calls)
        outcomes = tuple((result.output, result.failed) if result else None for result in came)
        seen.add((turn.text, tuple(call_hash(call) for call in turn.calls), outcomes))
    return len(turns) == REPEATS_MAX and len(seen) == 1


class Waits:
    """Calls of one reply that wait for delegated work, and the earliest time at which a wait ends."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.until: datetime | None = None

    def add(self, call: Call, until: datetime) -> None:
        self.calls.append(call.id)
        self.until = until if self.until is None else min(self.until, until)


class Offers:
    """Tools offered to the models of one run. The run's circumstances are fixed; the rules may change."""

    def __init__(self, toolbox: Toolbox, agent: Agent, where: Circumstances) -> None:
        self._toolbox = toolbox
        self._agent = agent
        self._where = where
        self._at: dict[ModelRef, Circumstances] = {}

    def to(self, ref: ModelRef) -> Sequence[ToolSpec]:
        where = self._at.get(ref)
        if where is None:
            where = self._at[ref] = self._where._replace(provider=ref.provider, model=ref.model)
        return self._toolbox.offered(self._agent, where)


class Loop:
    """The runner that calls models and performs tool calls."""

    def __init__(self, asker: Asker, toolbox: Toolbox, equip: Equip | None = None) -> None:
        self._asker = asker
        self._toolbox = toolbox
        self._equip = equip

    async def work(self, assignment: Assignment, journal: Journal, ask: Ask, tell: Tell) -> Finished:
        equipment = await self._equip(assignment) if self._equip is not None else NO_EQUIPMENT
        where = _circumstances(assignment, journal, equipment)
        offered = Offers(self._toolbox, assignment.agent, where).to
        case = Case(assignment, journal, heard(tell, assignment.manner), offered=offered, equipment=equipment)
        if assignment.request.compact is not None:
            return await self._asker.compact_only(case, assignment.request.compact)
        try:
            return await self._take_turns(case, ask)
        except BudgetSpent as spent_up:
            if not any(isinstance(record.body, Reply) for record in journal.own):
                raise
            # Keep what was done so far although the rest cannot be paid for.
            return _cut_off(journal, f"I had to stop: {_in_words(spent_up)}", remarks=case.remarks)

    async def _take_turns(self, case: Case, ask: Ask) -> Finished:
        assignment, journal = case.assignment, case.journal
        while True:
            match next_move(journal.own, assignment.stored):
                case Answer(reply):
                    return Finished(
                        text=_whole(journal.own, reply),
                        context_length=_context_length(reply),
                        remarks=(*case.remarks, *_remarks(reply), *usage_line(assignment.manner, journal.own)),
                        trust=_trust_of_answer(journal),
                    )
                case AskModel(turn) if (call := assignment.request.call) is not None:
                    if turn:
                        return _as_called(journal)
                    id_ = f"{short(journal.run.id)}-0-1"
                    await journal.keep([Reply(text="", calls=(replace(call, id=id_),), stop=Stop.CALLS)])
                case AskModel(turn):
                    if bound := spent(assignment.agent, journal.own):
                        return _cut_off(journal, bound, remarks=case.remarks)
                    ended = await self._asker.ask(case, turn)
                    if ended is not None:
                        return ended
                case PerformCalls(turn, calls, indexes):
                    await self._perform(case, ask, turn, dict(zip(indexes, calls, strict=True)))
                case PerformStored(calls, indexes):
                    await self._perform_stored(case, ask, dict(zip(indexes, calls, strict=True)))

    async def _perform(self, case: Case, ask: Ask, turn: int, calls: dict[int, Call]) -> None:
        journal, waits = case.journal, Waits()
        calls = await self._perform_begun(case, ask, turn, calls, waits)
        if refused := [refusal(call, why) for call in calls.values() if (why := unreadable(call))]:
            await journal.keep(refused)  # before a person is asked about arguments that could not be parsed
            calls = {index: call for index, call in calls.items() if not unreadable(call)}
        occasion = _occasion(case)
        plan = await self._toolbox.decide(list(calls.values()), ask, occasion)
        if plan.closed:
            await journal.keep(plan.closed)
        for index, call in calls.items():
            if call in plan.allowed:
                await self._perform_one(case, ask, turn, index, call, plan, occasion, waits)
        if plan.asked or waits.until is not None:
            raise Parked(
                plan.asked,
                turn=turn,
                because=plan.because,
                gives=plan.gives,
                would_grant=plan.would_grant,
                waits=tuple(waits.calls),
                until=waits.until,
            )

    async def _perform_stored(self, case: Case, ask: Ask, calls: dict[int, Call]) -> None:
        """Perform calls that a person has approved after their turn. Policy decides once more."""
        journal, waits = case.journal, Waits()
        calls = await self._perform_begun(case, ask, -1, calls, waits, stored=True)
        occasion = _occasion(case)
        plan = await self._toolbox.decide(list(calls.values()), ask, occasion)
        refused = {result.call: result for result in plan.closed}
        for index, call in calls.items():
            if call in plan.allowed:
                await self._perform_one(case, ask, -1, index, call, plan, occasion, waits, stored=True)
            else:
                await journal.keep_note(refused.get(call.id) or refusal(call, "Not done: nobody has allowed it."))
        if waits.until is not None:
            raise Parked((), turn=-1, because="", waits=tuple(waits.calls), until=waits.until)

    async def _perform_begun(
        self, case: Case, ask: Ask, turn: int, calls: dict[int, Call], waits: Waits, *, stored: bool = False
    ) -> dict[int, Call]:
        """Handle interrupted calls first: whatever policy says now, they may have had their effect.

        Returns the other calls.
        """
        journal = case.journal
        begun = {index: call for index, call in calls.items() if journal.begun(turn, index)}
        if not begun:
            return calls
        occasion = _occasion(case)
        plan = await self._toolbox.decide(list(begun.values()), ask, occasion)
        for index, call in begun.items():
            await self._perform_one(case, ask, turn, index, call, plan, occasion, waits, stored=stored)
        return {index: call for index, call in calls.items() if index not in begun}

    async def _perform_one(
        self,
        case: Case,
        ask: Ask,
        turn: int,
        index: int,
        call: Call,
        plan: Plan,
        occasion: Occasion,
        waits: Waits,
        *,
        stored: bool = False,
    ) -> None:
        """Perform one call. A call that suspends the run stays open.

        A call outside the plan was interrupted, and is not performed again.
        """
        spec = self._toolbox.spec(call.tool)
        planned = spec if call.id in plan.scenes else None
        try:
            await case.journal.perform(
                turn,
                index,
                call,
                partial(self._act, case, call, plan, ask, occasion),
                repeatable=planned is not None and planned.repeatable,
                looks=planned is not None and planned.only_looks,
                stored=stored,
                because=plan.reasons.get(call.id, ""),
            )
        except Pending as pending:
            waits.add(call, pending.until)

    async def _act(self, case: Case, call: Call, plan: Plan, ask: Ask, occasion: Occasion) -> ToolResult:
        """Perform a call after a last check: a permission may have been revoked since the decision."""
        if not await self._toolbox.holds(plan, occasion):
            plan = await self._toolbox.decide([call], ask, occasion)
        scene = plan.scenes.get(call.id)
        if scene is not None:
            case.tell.called(occasion.run, call.tool)
            return await self._toolbox.perform(call, scene)
        return next(iter(plan.closed), refusal(call, f"Not done, since it was taken back: {plan.because}. Try again."))


def _circumstances(assignment: Assignment, journal: Journal, equipment: Equipment) -> Circumstances:
    origin, lineage = assignment.session.origin, journal.run.lineage
    return Circumstances(
        origin=origin.kind,
        sender=journal.run.sender,
        behalf=lineage.behalf if lineage is not None else None,
        senders=assignment.senders,
        speakers=assignment.speakers,
        requesters=assignment.requesters,
        behalf_speakers=lineage.speakers if lineage is not None else (),
        channel=journal.run.sender.room or origin.channel,
        hidden=equipment.hidden,
        read_only=equipment.read_only,
        browser=equipment.browser,
    )


def _occasion(case: Case) -> Occasion:
    """Return the tool context. Calls are judged by the rules for the model that made them, the last one to reply."""
    assignment, journal, equipment = case.assignment, case.journal, case.equipment
    replies = (record.body for record in reversed(journal.own))
    asked_by = next((body for body in replies if isinstance(body, Reply)), None)
    where = _circumstances(assignment, journal, equipment)
    rights = default_rights(assignment.reach, assignment.workspace)
    return Occasion(
        agent=assignment.agent,
        session=assignment.session.id,
        run=journal.run.id,
        home=assignment.reach,
        acting=assignment.acting,
        rights=replace(rights, read=(*rights.read, *equipment.readable)) if equipment.readable else rights,
        where=where._replace(provider=asked_by.provider, model=bare_model(asked_by)) if asked_by else where,
        context=journal.records,
        believed=journal.believed,
        environment=equipment.environment,
        elevated=assignment.manner.elevated,
    )


def _trust_of_answer(journal: Journal) -> Trust:
    """Return the trust of the answer.

    For an agent it is at most that of the context. People judge for themselves.
    """
    if journal.run.sender.kind is not AddressKind.AGENT:
        return Trust.AGENT
    return Trust.UNTRUSTED if journal.believed is Trust.UNTRUSTED else Trust.AGENT


def _context_length(reply: Reply) -> int | None:
    total = reply.usage.input_tokens + reply.usage.output_tokens
    return total or None


def _whole(own: Sequence[Record], reply: Reply) -> str:
    """Return the reply's text, preceded by text from before a pause: both are one reply. A silent reply stays alone."""
    parts = [reply.text]
    for body in (record.body for record in reversed(own) if record.body is not reply):
        if is_silent(reply) or not (isinstance(body, Reply) and body.stop is Stop.PAUSED):
            break
        parts.append(body.text)
    return "".join(reversed(parts))


def _as_called(journal: Journal) -> Finished:
    """Return the answer of a run that makes only one call: its result."""
    results = [record.body for record in journal.own if isinstance(record.body, ToolResult)]
    text = "\n\n".join(result.output for result in results)
    return Finished(text=text, trust=_trust_of_answer(journal))


def _cut_off(journal: Journal, bound: str, *, remarks: Sequence[str] = ()) -> Finished:
    """Return an answer that ends with the limit that stopped the run, after the last text."""
    said = next((record.body.text for record in reversed(journal.own) if isinstance(record.body, Reply)), "")
    text = f"{said}\n\n[{bound}.]".strip()
    return Finished(text=text, remarks=tuple(remarks), trust=_trust_of_answer(journal))


def _remarks(reply: Reply) -> tuple[str, ...]:
    return ("cut off here: the reply had reached its greatest length",) if reply.stop is Stop.LENGTH else ()


def _in_words(error: BudgetSpent) -> str:
    return f"{error.sentence} ({error.because})" if error.because else error.sentence
