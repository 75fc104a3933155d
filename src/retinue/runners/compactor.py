"""Shortens a context that is too long: requests a summary within a time limit and stores it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from zoneinfo import ZoneInfo

from msgspec import Struct

from retinue.domain.ids import SessionId
from retinue.domain.model import Failure, ModelFacts, ModelFailed
from retinue.domain.money import BudgetSpent, Granted, PriceUnknown
from retinue.domain.ports import Clock
from retinue.domain.record import Note, Record, RecordKind, Reply, Summary, UserTurn, believed
from retinue.domain.times import to_ms
from retinue.domain.trust import least
from retinue.models.base import Model, Prompt
from retinue.models.fallback import Plan
from retinue.models.fallback_actions import Candidate, Compact, GiveUp, Move
from retinue.models.model_router import Minds
from retinue.models.model_selection import Role
from retinue.runners import compaction_plan, context_policy
from retinue.runners.base import Finished
from retinue.runners.compaction_plan import Cut, NotCompacted
from retinue.runners.compaction_prompt import Request
from retinue.runners.run_state import Case, Sizes, next_of, plan_for, settle_before_wait, terms_of
from retinue.runners.stream_reader import listen
from retinue.runners.token_estimate import Measure, Meter

log = logging.getLogger(__name__)


class Deadline:
    """One time limit over several waits, by the server's clock.

    Only `limited` code is interrupted. A commit is not: interrupted, it may or may not have
    happened.
    """

    def __init__(self, clock: Clock, limit_s: float) -> None:
        self._limit_s = limit_s
        self._watching: asyncio.Timeout | None = None
        self.over = False
        self.call_off = clock.later(limit_s, self._ring)

    def _ring(self) -> None:
        self.over = True
        if self._watching is not None:
            self._watching.reschedule(asyncio.get_running_loop().time())

    @asynccontextmanager
    async def watched(self) -> AsyncGenerator[None]:
        if self.over:
            raise self._too_long()
        limit = self._watching = asyncio.timeout(None)
        try:
            async with limit:
                yield
        except TimeoutError as error:
            if not limit.expired():  # another timeout
                raise
            raise self._too_long() from error
        finally:
            self._watching = None

    def _too_long(self) -> ModelFailed:
        return ModelFailed(
            "the summary took too long",
            because=f"it may take {self._limit_s:g} seconds (context.compaction.timeout_s)",
            code="context.not-compacted",
            failure=Failure.TIMEOUT,
            begun=True,
        )


class _Scribe(Struct, frozen=True):
    """One summary in progress, which may take several model calls."""

    case: Case
    turn: int
    plan: Plan
    deadline: Deadline
    notice: str  # sent to the person with the first call


class ContextKeeper:
    """Carries out the decisions of `context_policy`."""

    def __init__(self, minds: Minds, clock: Clock, zone: ZoneInfo, sizes: Sizes) -> None:
        self._minds = minds
        self._clock = clock
        self._zone = zone
        self._sizes = sizes

    async def make_room(self, case: Case, turn: int, facts: ModelFacts) -> Measure | Finished:
        """Shorten the context until the model call fits.

        Returns its size, or the end of the run if it cannot be shortened.
        """
        settings = self._minds.settings.context
        while True:
            tools = case.tools(facts)
            state = context_policy.ContextState(
                measure=self._sizes.measure(case, facts, tools),
                can_write=any(tool.name == context_policy.WRITE_TOOL for tool in tools),
                failed_at=case.failed_at,
            )
            match context_policy.assess(state, settings, facts.window_tokens):
                case context_policy.Reset(notice):
                    return Finished(text=notice, reset=True)
                case context_policy.Flush():
                    today = self._clock.now().astimezone(self._zone).date()
                    await case.journal.note(Note(text=context_policy.flush_text(today)))
                case context_policy.Compact() as wanted:
                    if not await self.compact(case, turn, wanted, facts):
                        case.failed_at = state.measure.tokens
                        return state.measure
                case _:
                    return state.measure

    async def after_overflow(self, case: Case, turn: int, failure: ModelFailed, facts: ModelFacts) -> Finished | None:
        """Shorten the context after a provider rejected it. Returns the end of the run if nothing helps."""
        settings = self._minds.settings.context
        while True:
            measure = self._sizes.measure(case, facts, case.tools(facts))
            match context_policy.after_overflow(failure.failure, case.tries, measure, settings, facts.window_tokens):
                case context_policy.Compact() as wanted:
                    helped = await self.compact(case, turn, wanted, facts)
                    case.tries = case.tries.compacted(helped=helped)
                    if helped:
                        return None
                case context_policy.TruncateResults():
                    case.tries = case.tries.truncating()
                    return None
                case context_policy.Reset(notice):
                    return Finished(text=notice, reset=True)
                case None:
                    return None

    async def compact(
        self, case: Case, turn: int, wanted: context_policy.Compact, facts: ModelFacts, *, focus: str = ""
    ) -> bool:
        """Compact the context. Returns whether it is shorter; a failure leaves it unchanged."""
        cut = compaction_plan.plan_cut(
            case.journal.records,
            window_tokens=facts.window_tokens,
            keep_tokens=wanted.keep_tokens,
            records_tokens=wanted.records_tokens,
            fewest=wanted.fewest,
            gain_tokens_min=wanted.gain_tokens_min,
        )
        if cut is None:
            return False
        try:
            # The person who requested it needs no notice.
            notice = "" if wanted.why is context_policy.Why.ASKED else context_policy.COMPACTING
            text = await self._summary(case, turn, cut, focus=focus, notice=notice)
        except (BudgetSpent, PriceUnknown, ModelFailed, NotCompacted) as error:
            # A nearly full context still fits a reply, which may be cheaper. If not, the reply call reports the
            # error.
            if isinstance(error, BudgetSpent | PriceUnknown) and wanted.why is not context_policy.Why.FULL:
                raise
            log.warning("not compacted", extra={"run": case.journal.run.id, "code": error.code})
            return False
        await case.journal.compact(
            Summary(text=text, kept_from=cut.kept_from, trust=least(believed(record) for record in cut.told))
        )
        await self._minds.compacted(case.assignment.session)
        log.info("compacted", extra={"run": case.journal.run.id, "why": wanted.why, "told_tokens": cut.told_tokens})
        return True

    async def _summary(self, case: Case, turn: int, cut: Cut, *, focus: str, notice: str) -> str:
        """Request the summary from the utility model if there is one, within one time limit."""
        settings = self._minds.settings.context.compaction
        plan = await plan_for(self._minds, case, Role.UTILITY)
        deadline = Deadline(self._clock, settings.timeout_s)
        scribe = _Scribe(case, turn, plan, deadline, notice)
        try:
            async with deadline.watched():
                candidate = await next_of(plan, self._clock)
            return await compaction_plan.summarize(
                cut,
                lambda request: self._summarize(scribe, request),
                window_tokens=self._minds.model(candidate.ref).facts.window_tokens,
                mode=settings.mode,
                focus=focus,
            )
        finally:
            deadline.call_off()

    async def _summarize(self, scribe: _Scribe, request: Request) -> Reply:
        case, turn, plan, deadline = scribe.case, scribe.turn, scribe.plan, scribe.deadline
        while True:
            await settle_before_wait(plan, case)
            async with deadline.watched():
                candidate = await next_of(plan, self._clock)
            model = self._minds.model(candidate.ref)
            asked_at = self._clock.now()
            try:
                return await self._sum_up(scribe, candidate, model, request)
            except ModelFailed as failure:
                if deadline.over:  # our own timeout, and no time to try another model
                    case.journal.failed(turn, failure, next_move=Move.GIVE_UP)
                    raise
                verdict = plan.after(failure, now=self._clock.now(), asked_at=asked_at, may_repeat=True)
                case.journal.failed(turn, failure, next_move=verdict.next_move)
                await self._minds.failed(verdict.mark)
                match verdict:
                    case GiveUp(error=error):
                        raise error from failure
                    case Compact():
                        raise  # a summary request that does not fit cannot help
                    case _:
                        pass

    async def _sum_up(self, scribe: _Scribe, candidate: Candidate, model: Model, request: Request) -> Reply:
        case, turn = scribe.case, scribe.turn
        journal, facts = case.journal, model.facts
        to_read = Record(
            session=case.session,
            seq=0,
            kind=RecordKind.USER,
            body=UserTurn(text=request.text),
            at_ms=to_ms(self._clock.now()),
        )
        measure = Meter().measure([to_read], instructions=request.instructions)
        output = min(request.output_tokens_max, facts.output_tokens_max)
        terms = terms_of(self._minds, case, candidate, facts, measure, output_tokens_max=output)
        key = self._minds.key(candidate)

        async def ask(attempt: int, granted: Granted) -> Reply:
            prompt = Prompt(
                session=SessionId(f"{case.session}/summary"),
                instructions=request.instructions,
                records=[to_read],
                tools=(),
                output_tokens_max=granted.output_tokens_max,
            )
            hear = partial(listen, model, prompt, journal.run, None, turn=turn, attempt=attempt, key=key)
            async with scribe.deadline.watched():
                return await self._minds.in_turn(facts.ref.provider, measure.tokens, hear)

        return await journal.summarize(turn, ask, terms=terms, notice=scribe.notice)
