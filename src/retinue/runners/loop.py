"""The tool loop: call the model, perform its calls, and repeat until it makes no more calls.

The next step is derived from the run's records alone. A run that is resumed after a crash or a suspension therefore
continues exactly where its records end.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from msgspec import Struct

from retinue.domain.address import AddressKind
from retinue.domain.agent import Agent
from retinue.domain.budget import BudgetSpent
from retinue.domain.ids import short_id
from retinue.domain.model import ModelRef
from retinue.domain.permission import default_rights
from retinue.domain.ports import Journal, RunApprovals, RunObserver
from retinue.domain.record import Note, Record, Reply, StopReason, UserTurn, model_without_provider
from retinue.domain.structs import replace
from retinue.domain.tool import Call, ToolResult, ToolSpec, call_hash
from retinue.domain.trust import Trust
from retinue.models.tool_call_limits import explain_unreadable
from retinue.policy.tools.tool_policy import ToolPolicyContext
from retinue.runners.base import (
    NO_RUN_RESOURCES,
    LoadRunResources,
    RunAnswer,
    RunAssignment,
    RunResources,
    Suspended,
    is_silent,
)
from retinue.runners.display import filter_thinking, usage_line
from retinue.runners.model_call import ModelCaller, RunState
from retinue.text.quantity import format_quantity
from retinue.tools.base import CallPending
from retinue.tools.toolbox import CallPlan, Toolbox, TurnContext, refusal

REPEATS_MAX = 5


class RequestReply(Struct, frozen=True):
    """Next step: call the model."""

    turn: int


class PerformCalls(Struct, frozen=True):
    """Next step: perform the calls of the last reply that have no result yet."""

    turn: int
    calls: tuple[Call, ...]
    indexes: tuple[int, ...]


class PerformStoredCalls(Struct, frozen=True):
    """Next step: perform calls from an earlier turn that a person approved after that turn had ended."""

    calls: tuple[Call, ...]
    indexes: tuple[int, ...]


class FinishRun(Struct, frozen=True):
    """Next step: end the run with this reply."""

    reply: Reply


NextStep = RequestReply | PerformCalls | PerformStoredCalls | FinishRun


def next_step(run_records: Sequence[Record], stored_calls: Sequence[Call]) -> NextStep:
    """Return the next step of a run with these records. To be resumed, a run needs nothing but its records."""
    if stored_calls:
        noted = {record.body.call for record in run_records if isinstance(record.body, Note)}
        waiting = [(i, call) for i, call in enumerate(stored_calls, start=1) if call.id not in noted]
        if waiting:
            return PerformStoredCalls(tuple(call for _, call in waiting), tuple(i for i, _ in waiting))
    turn = -1
    reply: Reply | None = None
    closed: set[str] = set()
    for record in run_records:
        match record.body:
            case Reply() as last:
                turn, reply, closed = turn + 1, last, set[str]()
            case ToolResult() as result:
                closed.add(result.call)
            case UserTurn() if reply is not None:
                # A message joined in the middle of the turn: it follows the results and needs a new reply.
                reply = reply if any(call.id not in closed for call in reply.calls) else None
            case _:
                pass
    if reply is None:
        return RequestReply(turn + 1)
    open_calls = [(i, call) for i, call in enumerate(reply.calls, start=1) if call.id not in closed]
    if open_calls:
        return PerformCalls(turn, tuple(call for _, call in open_calls), tuple(i for i, _ in open_calls))
    return RequestReply(turn + 1) if reply.calls or reply.stop is StopReason.PAUSED else FinishRun(reply)


def reached_limit(agent: Agent, run_records: Sequence[Record]) -> str:
    """Return the limit that this run has reached, as a sentence, or an empty string.

    The engine enforces the time limit.
    """
    replies = [record.body for record in run_records if isinstance(record.body, Reply)]
    if len(replies) >= agent.turns_max:
        return f"I stopped after {format_quantity(len(replies), 'turn')}, which is this agent's limit (turns_max)"
    tokens = sum(reply.usage.input_tokens + reply.usage.output_tokens for reply in replies)
    if agent.tokens_max is not None and tokens >= agent.tokens_max:
        return f"I stopped after {tokens} tokens, which is this agent's limit (tokens_max)"
    cost = sum(reply.usage.cost_microusd for reply in replies)
    if agent.cost_microusd_max is not None and cost >= agent.cost_microusd_max:
        return f"I stopped after spending ${cost / 1e6:.4f}, which is this agent's limit (cost_microusd_max)"
    if _repeats_itself(run_records):
        return f"I stopped because I made the same calls {REPEATS_MAX} times with the same results"
    return ""


def _repeats_itself(run_records: Sequence[Record]) -> bool:
    """Whether the last `REPEATS_MAX` turns have the same text, the same calls and the same results.

    A run that polls for a change is therefore stopped only if the result stays the same for that
    many turns and the model writes the same text each time.
    """
    results = {record.body.call: record.body for record in run_records if isinstance(record.body, ToolResult)}
    seen: set[tuple[object, ...]] = set()
    turns = [record.body for record in run_records if isinstance(record.body, Reply | UserTurn)][-REPEATS_MAX:]
    for turn in turns:
        if isinstance(turn, UserTurn) or not turn.calls:
            return False
        came = (results.get(call.id) for call in turn.calls)
        outcomes = tuple((result.output, result.failed) if result else None for result in came)
        seen.add((turn.text, tuple(call_hash(call) for call in turn.calls), outcomes))
    return len(turns) == REPEATS_MAX and len(seen) == 1


class WaitingCalls:
    """Collects the calls of one reply that are waiting for delegated work, and the earliest end of a wait."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.until: datetime | None = None

    def add(self, call: Call, until: datetime) -> None:
        self.calls.append(call.id)
        self.until = until if self.until is None else min(self.until, until)


class OfferedTools:
    """Determines which tools are offered to the models of one run.

    The circumstances of the run, such as its channel, are fixed. The access rules may change during
    the run.
    """

    def __init__(self, toolbox: Toolbox, agent: Agent, where: ToolPolicyContext) -> None:
        self._toolbox = toolbox
        self._agent = agent
        self._where = where
        self._at: dict[ModelRef, ToolPolicyContext] = {}

    def offered_to(self, ref: ModelRef) -> Sequence[ToolSpec]:
        where = self._at.get(ref)
        if where is None:
            where = self._at[ref] = self._where._replace(provider=ref.provider, model=ref.model)
        return self._toolbox.offered_specs(self._agent, where)


class ToolLoop:
    """The runner that calls models and performs tool calls."""

    def __init__(
        self, model_caller: ModelCaller, toolbox: Toolbox, load_resources: LoadRunResources | None = None
    ) -> None:
        self._model_caller = model_caller
        self._toolbox = toolbox
        self._load_resources = load_resources

    async def take_turns(
        self, assignment: RunAssignment, journal: Journal, approvals: RunApprovals, observer: RunObserver
    ) -> RunAnswer:
        """Take the turns of a run, and return its answer. A spent budget ends the run with what it has so far."""
        equipment = await self._load_resources(assignment) if self._load_resources is not None else NO_RUN_RESOURCES
        where = _circumstances(assignment, journal, equipment)
        offered = OfferedTools(self._toolbox, assignment.agent, where).offered_to
        case = RunState(
            assignment,
            journal,
            filter_thinking(observer, assignment.display),
            offered_tools=offered,
            resources=equipment,
        )
        if assignment.request.compact is not None:
            return await self._model_caller.compact_only(case, assignment.request.compact)
        try:
            return await self._run_steps(case, approvals)
        except BudgetSpent as spent_up:
            if not any(isinstance(record.body, Reply) for record in journal.run_records):
                raise
            # Keep what has been done so far, although the rest cannot be paid for.
            return _answer_at_limit(journal, f"I had to stop: {_format_budget_error(spent_up)}", remarks=case.remarks)

    async def _run_steps(self, run: RunState, approvals: RunApprovals) -> RunAnswer:
        """Derive the next step from the records, perform it, and repeat until the model makes no more calls."""
        assignment, journal = run.assignment, run.journal
        while True:
            match next_step(journal.run_records, assignment.stored_calls):
                case FinishRun(reply):
                    return RunAnswer(
                        text=_full_text(journal.run_records, reply),
                        context_length=_context_length(reply),
                        remarks=(
                            *run.remarks,
                            *_length_remark(reply),
                            *usage_line(assignment.display, journal.run_records),
                        ),
                        trust=_trust_of_answer(journal),
                    )
                case RequestReply(turn) if (call := assignment.request.call) is not None:
                    if turn:
                        return _answer_of_call(journal)
                    id_ = f"{short_id(journal.run.id)}-0-1"
                    await journal.add_bodies([Reply(text="", calls=(replace(call, id=id_),), stop=StopReason.CALLS)])
                case RequestReply(turn):
                    if bound := reached_limit(assignment.agent, journal.run_records):
                        return _answer_at_limit(journal, bound, remarks=run.remarks)
                    ended = await self._model_caller.get_reply(run, turn)
                    if ended is not None:
                        return ended
                case PerformCalls(turn, calls, indexes):
                    await self._perform(run, approvals, turn, dict(zip(indexes, calls, strict=True)))
                case PerformStoredCalls(calls, indexes):
                    await self._perform_stored(run, approvals, dict(zip(indexes, calls, strict=True)))

    async def _perform(self, run: RunState, approvals: RunApprovals, turn: int, calls: dict[int, Call]) -> None:
        """Decide on all calls of a reply, then perform the allowed ones. If a call needs approval, suspend the run."""
        journal, waits = run.journal, WaitingCalls()
        calls = await self._perform_interrupted(run, approvals, turn, calls, waits)
        if refused := [refusal(call, why) for call in calls.values() if (why := explain_unreadable(call))]:
            await journal.add_bodies(refused)  # before a person is asked about arguments that could not be parsed
            calls = {index: call for index, call in calls.items() if not explain_unreadable(call)}
        occasion = _tool_context(run)
        plan = await self._toolbox.decide(list(calls.values()), approvals, occasion)
        if plan.refused:
            await journal.add_bodies(plan.refused)
        for index, call in calls.items():
            if call in plan.allowed:
                await self._perform_one(run, approvals, turn, index, call, plan, occasion, waits)
        if plan.asked or waits.until is not None:
            raise Suspended(
                plan.asked,
                turn=turn,
                because=plan.because,
                gives=plan.missing_permissions,
                would_grant=plan.would_grant,
                waiting_calls=tuple(waits.calls),
                until=waits.until,
            )

    async def _perform_stored(self, run: RunState, approvals: RunApprovals, calls: dict[int, Call]) -> None:
        """Perform calls that a person approved after the turn that made them. Policy checks these calls again."""
        journal, waits = run.journal, WaitingCalls()
        calls = await self._perform_interrupted(run, approvals, -1, calls, waits, is_late=True)
        occasion = _tool_context(run)
        plan = await self._toolbox.decide(list(calls.values()), approvals, occasion)
        refused = {result.call: result for result in plan.refused}
        for index, call in calls.items():
            if call in plan.allowed:
                await self._perform_one(run, approvals, -1, index, call, plan, occasion, waits, is_late=True)
            else:
                await journal.add_late_result(refused.get(call.id) or refusal(call, "Not done: it was not approved."))
        if waits.until is not None:
            raise Suspended((), turn=-1, because="", waiting_calls=tuple(waits.calls), until=waits.until)

    async def _perform_interrupted(
        self,
        run: RunState,
        approvals: RunApprovals,
        turn: int,
        calls: dict[int, Call],
        waiting: WaitingCalls,
        *,
        is_late: bool = False,
    ) -> dict[int, Call]:
        """Handle calls that an earlier attempt of the run had started. They may already have had an effect.

        Returns the calls that had not been started.
        """
        journal = run.journal
        begun = {index: call for index, call in calls.items() if journal.was_interrupted(turn, index)}
        if not begun:
            return calls
        occasion = _tool_context(run)
        plan = await self._toolbox.decide(list(begun.values()), approvals, occasion)
        for index, call in begun.items():
            await self._perform_one(run, approvals, turn, index, call, plan, occasion, waiting, is_late=is_late)
        return {index: call for index, call in calls.items() if index not in begun}

    async def _perform_one(
        self,
        run: RunState,
        approvals: RunApprovals,
        turn: int,
        index: int,
        call: Call,
        plan: CallPlan,
        occasion: TurnContext,
        waiting: WaitingCalls,
        *,
        is_late: bool = False,
    ) -> None:
        """Perform one tool call. If the call waits for delegated work, it is added to `waiting` and gets no result yet.

        A call that an earlier attempt had started is performed again only if `plan` allows it and its
        tool is repeatable.
        """
        spec = self._toolbox.spec(call.tool)
        planned = spec if call.id in plan.contexts else None
        try:
            async with run.journal.tool_call(
                turn,
                index,
                call,
                repeatable=planned is not None and planned.is_repeatable,
                is_read_only=planned is not None and planned.is_safely_read_only,
                is_late=is_late,
                because=plan.reasons.get(call.id, ""),
            ) as step:
                if step.result is None:
                    step.record(await self._perform_checked(run, call, plan, approvals, occasion))
        except CallPending as pending:
            waiting.add(call, pending.until)

    async def _perform_checked(
        self, run: RunState, call: Call, plan: CallPlan, approvals: RunApprovals, occasion: TurnContext
    ) -> ToolResult:
        """Perform a call if it is still allowed: a permission may have been revoked since the decision."""
        if not await self._toolbox.is_still_valid(plan, occasion):
            plan = await self._toolbox.decide([call], approvals, occasion)
        scene = plan.contexts.get(call.id)
        if scene is not None:
            run.observer.on_tool_call(occasion.run, call.tool)
            return await self._toolbox.perform(call, scene)
        withdrawn = f"Not done: the permission was withdrawn ({plan.because}). Try again."
        return next(iter(plan.refused), refusal(call, withdrawn))


def _circumstances(assignment: RunAssignment, journal: Journal, resources: RunResources) -> ToolPolicyContext:
    origin, lineage = assignment.session.origin, journal.run.lineage
    return ToolPolicyContext(
        origin=origin.kind,
        sender=journal.run.sender,
        principal=lineage.behalf if lineage is not None else None,
        parent_agents=assignment.delegating_agents,
        speakers=assignment.speakers,
        requesters=assignment.requesters,
        principal_speakers=lineage.speakers if lineage is not None else (),
        channel=journal.run.sender.channel or origin.channel,
        hidden_tools=resources.hidden_tools,
        is_read_only=resources.is_read_only,
        has_browser=resources.has_browser,
    )


def _tool_context(run: RunState) -> TurnContext:
    """Return the tool context of a run. It names the model that made the calls, because rules may depend on it."""
    assignment, journal, equipment = run.assignment, run.journal, run.resources
    replies = (record.body for record in reversed(journal.run_records))
    asked_by = next((body for body in replies if isinstance(body, Reply)), None)
    where = _circumstances(assignment, journal, equipment)
    rights = default_rights(assignment.tools_directory, assignment.workspace)
    return TurnContext(
        agent=assignment.agent,
        session=assignment.session.id,
        run=journal.run.id,
        agent_directory=assignment.tools_directory,
        acting_agent=assignment.acting_agent,
        rights=replace(rights, read=(*rights.read, *equipment.readable_directories))
        if equipment.readable_directories
        else rights,
        circumstances=where._replace(provider=asked_by.provider, model=model_without_provider(asked_by))
        if asked_by
        else where,
        context=journal.records,
        known_trust=journal.least_trust,
        environment=equipment.environment,
        elevation=assignment.display.elevated,
    )


def _trust_of_answer(journal: Journal) -> Trust:
    """Return the trust of the run's answer.

    An answer to another agent is untrusted if the context is untrusted. This does not apply to an
    answer to a person, because people judge answers for themselves.
    """
    if journal.run.sender.kind is not AddressKind.AGENT:
        return Trust.AGENT
    return Trust.UNTRUSTED if journal.least_trust is Trust.UNTRUSTED else Trust.AGENT


def _context_length(reply: Reply) -> int | None:
    total = reply.usage.input_tokens + reply.usage.output_tokens
    return total or None


def _full_text(run_records: Sequence[Record], reply: Reply) -> str:
    """Return the reply's text, preceded by the text that the model wrote before a pause: both are one reply.

    If the reply is silent, the earlier text is left out.
    """
    parts = [reply.text]
    for body in (record.body for record in reversed(run_records) if record.body is not reply):
        if is_silent(reply) or not (isinstance(body, Reply) and body.stop is StopReason.PAUSED):
            break
        parts.append(body.text)
    return "".join(reversed(parts))


def _answer_of_call(journal: Journal) -> RunAnswer:
    """Return the answer of a run that makes only one tool call: the output of that call."""
    results = [record.body for record in journal.run_records if isinstance(record.body, ToolResult)]
    text = "\n\n".join(result.output for result in results)
    return RunAnswer(text=text, trust=_trust_of_answer(journal))


def _answer_at_limit(journal: Journal, limit: str, *, remarks: Sequence[str] = ()) -> RunAnswer:
    """Return the answer of a run that a limit has stopped: the run's last text, then the limit."""
    last_text = next(
        (record.body.text for record in reversed(journal.run_records) if isinstance(record.body, Reply)), ""
    )
    text = f"{last_text}\n\n[{limit}.]".strip()
    return RunAnswer(text=text, remarks=tuple(remarks), trust=_trust_of_answer(journal))


def _length_remark(reply: Reply) -> tuple[str, ...]:
    return ("cut off here: the reply reached its maximum length",) if reply.stop is StopReason.LENGTH else ()


def _format_budget_error(error: BudgetSpent) -> str:
    return f"{error.sentence} ({error.because})" if error.because else error.sentence
