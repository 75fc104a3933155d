"""Get one reply from the first model that can give it.

The context is kept within its limits, the cost is reserved, and if a model fails the next one is
called. Each attempt is a step of the run.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from zoneinfo import ZoneInfo

from retinue.domain.errors import RetinueError
from retinue.domain.ids import SessionId
from retinue.domain.model import ModelFacts, ModelFailed
from retinue.domain.money import Granted, PriceUnknown
from retinue.domain.ports import Clock
from retinue.domain.record import Note, Record, Reply
from retinue.models.base import Media, Model, Prompt
from retinue.models.fallback import WORDS, NotAsked, Plan
from retinue.models.fallback_actions import Candidate, Compact, GiveUp, NextModel
from retinue.models.model_router import Minds
from retinue.models.model_selection import Role
from retinue.models.retired_models import ModelGone
from retinue.policy.limits.budgets import OUTPUT_TOKENS_LEAST
from retinue.runners import context_policy
from retinue.runners.base import Brief, Finished
from retinue.runners.compactor import ContextKeeper
from retinue.runners.model_context import summary_of
from retinue.runners.result_pruner import Shortened, idle_s
from retinue.runners.run_state import Case, Sizes, next_of, plan_for, settle_before_wait, terms_of
from retinue.runners.stream_reader import listen
from retinue.runners.token_estimate import Measure
from retinue.runners.window_guard import WindowGuard, WindowTooSmall

log = logging.getLogger(__name__)

WINDOW_MARGIN = 1.1  # factor by which estimates may be off before a reply no longer fits


class Asker:
    """Calls models for a run, with fallback, budgets and compaction."""

    def __init__(
        self, minds: Minds, clock: Clock, zone: ZoneInfo, *, media: Media | None = None, brief: Brief | None = None
    ) -> None:
        """Without `build_system_prompt`, the system prompt is the agent's own instructions."""
        self._minds = minds
        self._clock = clock
        self._zone = zone
        self._media = media
        self._brief = brief
        self._guard = WindowGuard()
        self._sizes = Sizes()
        self._shortened = Shortened()
        self._keeper = ContextKeeper(minds, clock, zone, self._sizes)

    # --- replies ---

    async def ask(self, case: Case, turn: int) -> Finished | None:
        """Get a reply. Returns None once it is in the journal, or the end of the run if nothing else is left."""
        plan = await plan_for(self._minds, case, Role.REASONING)
        failed: ModelFailed | None = None  # why the first model of the chain failed, if it was called
        while True:
            await settle_before_wait(plan, case)
            candidate = await next_of(plan, self._clock)
            model = self._minds.model(candidate.ref)
            asked_at = self._clock.now()
            try:
                self._admit(model.facts)
                await self._be_told(case, model.facts)
                size = await self._keeper.make_room(case, turn, model.facts)
                if isinstance(size, Finished):
                    return size
                asked_at = self._clock.now()
                await self._reply(case, turn, candidate, model, size, first=candidate.ref == plan.chain[0])
            except ModelFailed as failure:
                if candidate.ref == plan.chain[0]:
                    failed = failed or failure
                ended = await self._after(case, turn, plan, failure, model.facts, asked_at)
                if ended is not None:
                    return ended
            else:
                case.tries = case.tries.replied()
                case.mind = await self._minds.worked(candidate, case.session, case.mind, asked_at=asked_at)
                if candidate.ref != plan.chain[0]:
                    case.remark(_instead(candidate, plan, failed))
                return None

    async def _be_told(self, case: Case, facts: ModelFacts) -> None:
        if self._brief is not None:
            await case.be_told(self._brief, facts)

    def _admit(self, facts: ModelFacts) -> None:
        try:
            self._guard.admit(facts)
        except WindowTooSmall as error:
            raise NotAsked(error) from error

    def _effort(self, case: Case, facts: ModelFacts, *, first: bool) -> str | None:
        """Return the requested effort. A fallback without support is called without it, with a remark."""
        assignment, defaults = case.assignment, self._minds.settings.defaults
        effort = assignment.request.effort or assignment.session.mind.effort or defaults.effort_of(assignment.agent)
        try:
            self._minds.catalog.check_effort(facts.ref, effort)
        except RetinueError:
            if first:
                raise
            case.remark(f"{facts.ref} was asked without the effort '{effort}', which it cannot take")
            return None
        return effort

    async def _reply(
        self, case: Case, turn: int, candidate: Candidate, model: Model, measure: Measure, *, first: bool
    ) -> None:
        journal, facts = case.journal, model.facts
        effort = self._effort(case, facts, first=first)
        terms = terms_of(self._minds, case, candidate, facts, measure, output_tokens_max=_room(facts, measure.tokens))
        key = self._minds.key(candidate)

        async def ask(attempt: int, granted: Granted) -> Reply:
            for warning in granted.warnings:
                case.remark(warning)
            prompt = Prompt(
                session=case.session,
                instructions=case.instructions,
                records=self._view(case, facts),  # read late: an envelope may have joined with the intent
                tools=case.tools(facts),
                output_tokens_max=granted.output_tokens_max,
                effort=effort,
                media=self._media,
            )
            hear = partial(listen, model, prompt, journal.run, case.tell, turn=turn, attempt=attempt, key=key)
            return await self._minds.in_turn(facts.ref.provider, measure.tokens, hear)

        try:
            await journal.reply(turn, ask, terms=terms)
        except PriceUnknown as error:
            raise NotAsked(error) from error

    async def _after(
        self, case: Case, turn: int, plan: Plan, failure: ModelFailed, facts: ModelFacts, asked_at: datetime
    ) -> Finished | None:
        """Handle a failure: wait, try another candidate, shorten the context, or end the run."""
        verdict = plan.after(failure, now=self._clock.now(), asked_at=asked_at, may_repeat=True)
        case.journal.failed(turn, failure, next_move=verdict.next_move)
        await self._minds.failed(verdict.mark)
        log.info(
            "model failed",
            extra={
                "model": facts.ref,
                "failure": failure.failure,
                "next": verdict.next_move,
                "run": case.journal.run.id,
            },
        )
        match verdict:
            case Compact():
                return await self._keeper.after_overflow(case, turn, failure, facts)
            case GiveUp(error=error):
                raise error
            case NextModel():
                case.tries = context_policy.Tries()  # another model may have a larger window
            case _:
                pass
        return None

    # --- input of a call ---

    def _view(self, case: Case, facts: ModelFacts) -> Sequence[Record]:
        records = case.journal.records
        return self._shortened.view(
            case.session,
            records,
            self._minds.settings.context.pruning,
            window_tokens=facts.window_tokens,
            idle_s=idle_s(records, self._clock.now()),
            truncate=case.tries.truncated,
        )

    def shortened(self, session: SessionId) -> tuple[int, int]:
        """Return how many results were capped, and how many pruned, in the last call of a session."""
        return self._shortened.counts(session)

    # --- /compact ---

    async def compact_only(self, case: Case, focus: str) -> Finished:
        """Execute a run that only compacts its context. The agent also reads the result, as a note."""
        text = await self._compact_only(case, focus)
        await case.journal.note(Note(text=text))
        return Finished(text=text)

    async def _compact_only(self, case: Case, focus: str) -> str:
        candidate = await next_of(await plan_for(self._minds, case, Role.REASONING), self._clock)
        facts = self._minds.model(candidate.ref).facts
        await self._be_told(case, facts)
        before = self._sizes.measure(case, facts, case.tools(facts))
        session = case.assignment.session
        summary = summary_of(case.journal.records)
        if summary is not None and summary.run == case.journal.run.id:  # it was compacted before a restart
            return context_policy.compacted_before_notice(before.tokens, session.compactions)
        wanted = context_policy.asked(before, self._minds.settings.context, facts.window_tokens)
        if not await self._keeper.compact(case, 0, wanted, facts, focus=focus):
            return context_policy.NOT_COMPACTED
        after = self._sizes.measure(case, facts, case.tools(facts))
        return context_policy.compacted_notice(before.tokens, after.tokens, session.compactions + 1)


def _instead(candidate: Candidate, plan: Plan, failed: ModelFailed | None) -> str:
    """Return the remark about a fallback model. It does not name credentials: the reader need not know them."""
    why = WORDS[failed.failure] if failed is not None else "it rests for a while"
    if isinstance(failed, NotAsked):
        why = failed.sentence
    elif isinstance(failed, ModelGone):
        why = failed.in_short
    return f"answered by {candidate.ref} instead of {plan.chain[0]}: {why}"


def _room(facts: ModelFacts, tokens: int) -> int:
    """Return the maximum length of a reply that still fits into the window after its input."""
    left = facts.window_tokens - int(tokens * WINDOW_MARGIN)
    return max(min(facts.output_tokens_max, left), min(OUTPUT_TOKENS_LEAST, facts.output_tokens_max))
