"""Gets one reply from the first model that can give one.

Before a call, the context is shortened if needed and the cost is reserved. If a model fails, the
next model is called. Each attempt is stored as a step of the run.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime
from zoneinfo import ZoneInfo

from retinue.domain.budget import PriceUnknown
from retinue.domain.errors import RetinueError
from retinue.domain.ids import SessionId
from retinue.domain.model import ModelFacts, ModelFailed
from retinue.domain.ports import Clock
from retinue.domain.record import Note, Record
from retinue.models.base import AttachmentReader, Model, ModelPrompt
from retinue.models.errors import ModelNotOffered, ModelRetired
from retinue.models.fallback import FAILURE_TEXTS, FallbackPlan, ModelNotCalled
from retinue.models.fallback_actions import CompactAction, GiveUpAction, ModelCandidate, NextModelAction
from retinue.models.model_router import ModelRouter
from retinue.models.model_selection import ModelRole
from retinue.models.reply_reader import read_reply
from retinue.policy.limits.budgets import OUTPUT_TOKENS_MIN
from retinue.runners import context_policy
from retinue.runners.base import BuildSystemPrompt, RunAnswer
from retinue.runners.compactor import ContextCompactor
from retinue.runners.model_context import leading_summary
from retinue.runners.result_pruner import ResultShortener, seconds_since_reply
from retinue.runners.run_state import (
    ContextMeters,
    RunState,
    call_terms,
    flush_before_wait,
    next_candidate,
    plan_model_calls,
)
from retinue.runners.token_estimate import ContextSize
from retinue.runners.window_guard import WindowChecker, WindowTooSmall

log = logging.getLogger(__name__)

ESTIMATE_MARGIN = 1.1  # factor by which estimates may be off before a reply no longer fits


class ModelCaller:
    """Calls models for a run, with fallback, budgets and compaction."""

    def __init__(
        self,
        models: ModelRouter,
        clock: Clock,
        zone: ZoneInfo,
        *,
        media: AttachmentReader | None = None,
        build_system_prompt: BuildSystemPrompt | None = None,
    ) -> None:
        """Without `build_system_prompt`, the system prompt is the agent's own instructions."""
        self._models = models
        self._clock = clock
        self._zone = zone
        self._media = media
        self._build_system_prompt = build_system_prompt
        self._window_checker = WindowChecker()
        self._meters = ContextMeters()
        self._result_shortener = ResultShortener()
        self._compactor = ContextCompactor(models, clock, zone, self._meters)

    # --- replies ---

    async def get_reply(self, run: RunState, turn: int) -> RunAnswer | None:
        """Get a reply and write it to the journal.

        Returns None on success, and otherwise an answer that ends the run.
        """
        plan = await plan_model_calls(self._models, run, ModelRole.REASONING)
        failed: ModelFailed | None = None  # why the first model of the chain failed, if it was called
        while True:
            await flush_before_wait(plan, run)
            candidate = await next_candidate(plan, self._clock)
            model = self._models.get_client(candidate.ref)
            asked_at = self._clock.now()
            try:
                self._check_window(model.facts)
                await self._load_system_prompt(run, model.facts)
                size = await self._compactor.shorten_to_fit(run, turn, model.facts)
                if isinstance(size, RunAnswer):
                    return size
                asked_at = self._clock.now()
                await self._call_model(
                    run, turn, candidate, model, size, is_first_choice=candidate.ref == plan.chain[0]
                )
            except ModelFailed as failure:
                if candidate.ref == plan.chain[0]:
                    failed = failed or failure
                ended = await self._handle_failure(run, turn, plan, failure, model.facts, asked_at)
                if ended is not None:
                    return ended
            else:
                run.overflow_attempts = run.overflow_attempts.after_reply()
                run.options = await self._models.record_success(
                    candidate, run.session_id, run.options, asked_at=asked_at
                )
                if candidate.ref != plan.chain[0]:
                    run.add_remark(_fallback_remark(candidate, plan, failed))
                return None

    async def _load_system_prompt(self, run: RunState, facts: ModelFacts) -> None:
        if self._build_system_prompt is not None:
            await run.load_system_prompt(self._build_system_prompt, facts)

    def _check_window(self, facts: ModelFacts) -> None:
        try:
            self._window_checker.check(facts)
        except WindowTooSmall as error:
            raise ModelNotCalled(error) from error

    def _choose_effort(self, run: RunState, facts: ModelFacts, *, is_first_choice: bool) -> str | None:
        """Return the reasoning effort to request from a model.

        A fallback model that does not support the effort is called without it, and the answer gets
        a remark.
        """
        assignment, defaults = run.assignment, self._models.settings.defaults
        effort = assignment.request.effort or assignment.session.options.effort or defaults.effort_of(assignment.agent)
        try:
            self._models.catalog.check_effort(facts.ref, effort)
        except RetinueError:
            if is_first_choice:
                raise
            run.add_remark(f"{facts.ref} was called without the effort '{effort}', which it does not support")
            return None
        return effort

    async def _call_model(
        self,
        run: RunState,
        turn: int,
        candidate: ModelCandidate,
        model: Model,
        size: ContextSize,
        *,
        is_first_choice: bool,
    ) -> None:
        """Call one model. The journal stores the intent before the call, and the reply after it."""
        journal, facts = run.journal, model.facts
        effort = self._choose_effort(run, facts, is_first_choice=is_first_choice)
        terms = call_terms(
            self._models, run, candidate, facts, size, output_tokens_max=_output_tokens_max(facts, size.tokens)
        )
        key = self._models.read_key(candidate)

        try:
            async with journal.model_call(turn, request=terms) as step:
                for warning in step.granted.warnings:
                    run.add_remark(warning)
                prompt = ModelPrompt(
                    session=run.session_id,
                    instructions=run.system_prompt,
                    records=self._records_to_send(run, facts),  # read late: an envelope may have joined with the intent
                    tools=run.tools(facts),
                    output_tokens_max=step.granted.output_tokens_max,
                    effort=effort,
                    media=self._media,
                )
                async with self._models.slot(facts.ref.provider, size.tokens) as slot:
                    reply = await read_reply(
                        model, prompt, journal.run, run.observer, turn=turn, attempt=step.attempt, key=key
                    )
                slot.record(step.record(reply).usage)
        except PriceUnknown as error:
            raise ModelNotCalled(error) from error

    async def _handle_failure(
        self, run: RunState, turn: int, plan: FallbackPlan, failure: ModelFailed, facts: ModelFacts, asked_at: datetime
    ) -> RunAnswer | None:
        """Handle a failure: wait, try another candidate, shorten the context, or end the run."""
        verdict = plan.handle_failure(failure, now=self._clock.now(), asked_at=asked_at, may_repeat=True)
        run.journal.record_failure(turn, failure, next_action=verdict.kind)
        await self._models.record_failure(verdict.mark)
        log.info(
            "model failed",
            extra={
                "model": facts.ref,
                "failure": failure.failure,
                "next": verdict.kind,
                "run": run.journal.run.id,
            },
        )
        match verdict:
            case CompactAction():
                return await self._compactor.shorten_after_overflow(run, turn, failure, facts)
            case GiveUpAction(error=error):
                raise error
            case NextModelAction():
                run.overflow_attempts = context_policy.OverflowAttempts()  # another model may have a larger window
            case _:
                pass
        return None

    # --- input of a call ---

    def _records_to_send(self, run: RunState, facts: ModelFacts) -> Sequence[Record]:
        records = run.journal.records
        return self._result_shortener.shorten(
            run.session_id,
            records,
            self._models.settings.context.pruning,
            window_tokens=facts.window_tokens,
            idle_s=seconds_since_reply(records, self._clock.now()),
            truncate=run.overflow_attempts.is_truncated,
        )

    def shortened_counts(self, session: SessionId) -> tuple[int, int]:
        """Return how many tool results were capped, and how many pruned, in the last call of a session."""
        return self._result_shortener.counts(session)

    # --- /compact ---

    async def compact_only(self, run: RunState, focus: str) -> RunAnswer:
        """Execute a run that only compacts its context. The answer is also stored as a note for the agent."""
        text = await self._compact_and_report(run, focus)
        await run.journal.add_note(Note(text=text))
        return RunAnswer(text=text)

    async def _compact_and_report(self, run: RunState, focus: str) -> str:
        candidate = await next_candidate(await plan_model_calls(self._models, run, ModelRole.REASONING), self._clock)
        facts = self._models.get_client(candidate.ref).facts
        await self._load_system_prompt(run, facts)
        before = self._meters.measure(run, facts, run.tools(facts))
        session = run.assignment.session
        summary = leading_summary(run.journal.records)
        if summary is not None and summary.run == run.journal.run.id:  # it was compacted before a restart
            return context_policy.compacted_before_notice(before.tokens, session.compactions)
        wanted = context_policy.requested_compaction(before, self._models.settings.context, facts.window_tokens)
        if not await self._compactor.compact(run, 0, wanted, facts, focus=focus):
            return context_policy.NOT_COMPACTED_NOTICE
        after = self._meters.measure(run, facts, run.tools(facts))
        return context_policy.compacted_notice(before.tokens, after.tokens, session.compactions + 1)


def _fallback_remark(candidate: ModelCandidate, plan: FallbackPlan, failed: ModelFailed | None) -> str:
    """Return the remark that a fallback model answered, and why.

    The remark names no credentials, because the reader need not know them.
    """
    why = FAILURE_TEXTS[failed.failure] if failed is not None else "it is in cooldown"
    if isinstance(failed, ModelNotCalled):
        why = failed.sentence
    elif isinstance(failed, ModelNotOffered | ModelRetired):
        why = failed.summary
    return f"answered by {candidate.ref} instead of {plan.chain[0]}: {why}"


def _output_tokens_max(facts: ModelFacts, tokens: int) -> int:
    """Return the maximum length of a reply in tokens: what the input leaves free in the window, or a minimum."""
    left = facts.window_tokens - int(tokens * ESTIMATE_MARGIN)
    return max(min(facts.output_tokens_max, left), min(OUTPUT_TOKENS_MIN, facts.output_tokens_max))
