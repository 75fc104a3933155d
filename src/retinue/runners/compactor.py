"""Shortens a context that is too long: requests a summary within a time limit and stores it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from zoneinfo import ZoneInfo

from msgspec import Struct

from retinue.domain.budget import BudgetSpent, PriceUnknown
from retinue.domain.ids import SessionId
from retinue.domain.model import ModelFacts, ModelFailed
from retinue.domain.ports import Clock
from retinue.domain.record import Note, Record, RecordKind, Reply, Summary, UserTurn, effective_trust
from retinue.domain.times import to_ms
from retinue.domain.trust import least_trust
from retinue.models.base import Model, ModelPrompt
from retinue.models.fallback import FallbackPlan
from retinue.models.fallback_actions import CompactAction, FallbackKind, GiveUpAction, ModelCandidate
from retinue.models.model_router import ModelRouter
from retinue.models.model_selection import ModelRole
from retinue.models.reply_reader import read_reply
from retinue.runners import compaction_plan, context_policy
from retinue.runners.base import RunAnswer
from retinue.runners.compaction_plan import CompactionCut, NotCompacted
from retinue.runners.compaction_prompt import SummaryRequest
from retinue.runners.errors import CompactionTimedOut
from retinue.runners.run_state import (
    ContextMeters,
    RunState,
    call_terms,
    flush_before_wait,
    next_candidate,
    plan_model_calls,
)
from retinue.runners.token_estimate import ContextMeter, ContextSize

log = logging.getLogger(__name__)


class CompactionDeadline:
    """A single time limit for all waits of a compaction, measured with the server's clock.

    When the time limit is reached, only code inside `limited` is interrupted. Commits are outside it,
    because the result of an interrupted commit is unknown.
    """

    def __init__(self, clock: Clock, limit_s: float) -> None:
        self._limit_s = limit_s
        self._timeout: asyncio.Timeout | None = None
        self.is_over = False
        self.cancel_timer = clock.call_later(limit_s, self._on_timeout)

    def _on_timeout(self) -> None:
        self.is_over = True
        if self._timeout is not None:
            self._timeout.reschedule(asyncio.get_running_loop().time())

    @asynccontextmanager
    async def limited(self) -> AsyncGenerator[None]:
        if self.is_over:
            raise self._timeout_error()
        limit = self._timeout = asyncio.timeout(None)
        try:
            async with limit:
                yield
        except TimeoutError as error:
            if not limit.expired():  # another timeout
                raise
            raise self._timeout_error() from error
        finally:
            self._timeout = None

    def _timeout_error(self) -> ModelFailed:
        return CompactionTimedOut(timeout_s=self._limit_s)


class _SummaryTask(Struct, frozen=True):
    """The values shared by all model calls for one summary."""

    run: RunState
    turn: int
    plan: FallbackPlan
    deadline: CompactionDeadline
    notice: str  # sent to the person with the first call


class ContextCompactor:
    """Shortens contexts as `context_policy` decides: by compaction, memory flush or reset."""

    def __init__(self, models: ModelRouter, clock: Clock, zone: ZoneInfo, meters: ContextMeters) -> None:
        self._models = models
        self._clock = clock
        self._zone = zone
        self._meters = meters

    async def shorten_to_fit(self, run: RunState, turn: int, facts: ModelFacts) -> ContextSize | RunAnswer:
        """Shorten the context if it leaves too little space in the model's window.

        Returns the size of the context, or an answer that ends the run if the context must be
        reset.
        """
        settings = self._models.settings.context
        while True:
            tools = run.tools(facts)
            state = context_policy.ContextState(
                size=self._meters.measure(run, facts, tools),
                can_write=any(tool.name == context_policy.WRITE_TOOL for tool in tools),
                compaction_failed_at_tokens=run.compaction_failed_at_tokens,
            )
            match context_policy.next_action(state, settings, facts.window_tokens):
                case context_policy.ResetContext(notice):
                    return RunAnswer(text=notice, resets_context=True)
                case context_policy.FlushMemory():
                    today = self._clock.now().astimezone(self._zone).date()
                    await run.journal.add_note(Note(text=context_policy.flush_text(today)))
                case context_policy.CompactContext() as wanted:
                    if not await self.compact(run, turn, wanted, facts):
                        run.compaction_failed_at_tokens = state.size.tokens
                        return state.size
                case _:
                    return state.size

    async def shorten_after_overflow(
        self, run: RunState, turn: int, failure: ModelFailed, facts: ModelFacts
    ) -> RunAnswer | None:
        """Shorten the context after a provider rejected it as too long.

        Returns an answer that ends the run if nothing helps, or None if the context was shortened
        or the failure was not an overflow.
        """
        settings = self._models.settings.context
        while True:
            measure = self._meters.measure(run, facts, run.tools(facts))
            match context_policy.action_after_overflow(
                failure.failure, run.overflow_attempts, measure, settings, facts.window_tokens
            ):
                case context_policy.CompactContext() as wanted:
                    helped = await self.compact(run, turn, wanted, facts)
                    run.overflow_attempts = run.overflow_attempts.after_compaction(helped=helped)
                    if helped:
                        return None
                case context_policy.TruncateResults():
                    run.overflow_attempts = run.overflow_attempts.after_truncation()
                    return None
                case context_policy.ResetContext(notice):
                    return RunAnswer(text=notice, resets_context=True)
                case None:
                    return None

    async def compact(
        self, run: RunState, turn: int, action: context_policy.CompactContext, facts: ModelFacts, *, focus: str = ""
    ) -> bool:
        """Compact the context, and return whether it became shorter. A failure leaves the context unchanged."""
        cut = compaction_plan.plan_cut(
            run.journal.records,
            window_tokens=facts.window_tokens,
            keep_tokens=action.keep_tokens,
            records_tokens=action.records_tokens,
            keep_fewest=action.keep_fewest,
            gain_tokens_min=action.gain_tokens_min,
        )
        if cut is None:
            return False
        try:
            # The person who requested it needs no notice.
            notice = (
                "" if action.reason is context_policy.CompactionReason.REQUESTED else context_policy.COMPACTING_NOTICE
            )
            text = await self._request_summary(run, turn, cut, focus=focus, notice=notice)
        except (BudgetSpent, PriceUnknown, ModelFailed, NotCompacted) as error:
            # A nearly full context still has room for a reply, which may be cheaper. If not, the reply call reports the
            # error.
            if (
                isinstance(error, BudgetSpent | PriceUnknown)
                and action.reason is not context_policy.CompactionReason.FULL
            ):
                raise
            log.warning("context not compacted", extra={"run": run.journal.run.id, "code": error.code})
            return False
        await run.journal.compact(
            Summary(
                text=text,
                kept_from=cut.kept_from,
                trust=least_trust(effective_trust(record) for record in cut.summarized),
            )
        )
        await self._models.record_compaction(run.assignment.session)
        log.info(
            "context compacted",
            extra={"run": run.journal.run.id, "why": action.reason, "summarized_tokens": cut.summarized_tokens},
        )
        return True

    async def _request_summary(self, run: RunState, turn: int, cut: CompactionCut, *, focus: str, notice: str) -> str:
        """Request the summary of the records before the cut, from the utility model if one is configured.

        All model calls for the summary together have one time limit.
        """
        settings = self._models.settings.context.compaction
        plan = await plan_model_calls(self._models, run, ModelRole.UTILITY)
        deadline = CompactionDeadline(self._clock, settings.timeout_s)
        scribe = _SummaryTask(run, turn, plan, deadline, notice)
        try:
            async with deadline.limited():
                candidate = await next_candidate(plan, self._clock)
            return await compaction_plan.summarize_cut(
                cut,
                lambda request: self._call_with_fallback(scribe, request),
                window_tokens=self._models.get_client(candidate.ref).facts.window_tokens,
                mode=settings.mode,
                focus=focus,
            )
        finally:
            deadline.cancel_timer()

    async def _call_with_fallback(self, task: _SummaryTask, request: SummaryRequest) -> Reply:
        case, turn, plan, deadline = task.run, task.turn, task.plan, task.deadline
        while True:
            await flush_before_wait(plan, case)
            async with deadline.limited():
                candidate = await next_candidate(plan, self._clock)
            model = self._models.get_client(candidate.ref)
            asked_at = self._clock.now()
            try:
                return await self._call_model(task, candidate, model, request)
            except ModelFailed as failure:
                if deadline.is_over:  # our own timeout, and no time to try another model
                    case.journal.record_failure(turn, failure, next_action=FallbackKind.GIVE_UP)
                    raise
                verdict = plan.handle_failure(failure, now=self._clock.now(), asked_at=asked_at, may_repeat=True)
                case.journal.record_failure(turn, failure, next_action=verdict.kind)
                await self._models.record_failure(verdict.mark)
                match verdict:
                    case GiveUpAction(error=error):
                        raise error from failure
                    case CompactAction():
                        raise  # a summary request that does not fit cannot help
                    case _:
                        pass

    async def _call_model(
        self, task: _SummaryTask, candidate: ModelCandidate, model: Model, request: SummaryRequest
    ) -> Reply:
        case, turn = task.run, task.turn
        journal, facts = case.journal, model.facts
        to_read = Record(
            session=case.session_id,
            seq=0,
            kind=RecordKind.USER,
            body=UserTurn(text=request.text),
            at_ms=to_ms(self._clock.now()),
        )
        measure = ContextMeter().measure([to_read], instructions=request.instructions)
        output = min(request.output_tokens_max, facts.output_tokens_max)
        terms = call_terms(self._models, case, candidate, facts, measure, output_tokens_max=output)
        key = self._models.read_key(candidate)

        async with journal.summary_call(turn, request=terms, notice=task.notice) as step:
            prompt = ModelPrompt(
                session=SessionId(f"{case.session_id}/summary"),
                instructions=request.instructions,
                records=[to_read],
                tools=(),
                output_tokens_max=step.granted.output_tokens_max,
            )
            async with task.deadline.limited(), self._models.slot(facts.ref.provider, measure.tokens) as slot:
                reply = await read_reply(model, prompt, journal.run, None, turn=turn, attempt=step.attempt, key=key)
            slot.record(step.record(reply).usage)
        return reply
