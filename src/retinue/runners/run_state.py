"""State of one run while a worker executes it, with functions that prepare its model calls."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from retinue.domain.budget import BudgetLimits, ModelCallReservationRequest
from retinue.domain.ids import SessionId
from retinue.domain.model import ModelFacts, ModelRef
from retinue.domain.ports import Clock, Journal, RunObserver
from retinue.domain.record import Reply, UserTurn
from retinue.domain.session import OriginKind, SessionOptions
from retinue.domain.tool import ToolSpec
from retinue.models.credential_order import release_credential
from retinue.models.fallback import FallbackPlan
from retinue.models.fallback_actions import ModelCandidate
from retinue.models.model_router import ModelRouter
from retinue.models.model_selection import ModelRole
from retinue.policy.limits.budgets import max_input_tokens
from retinue.policy.tools.delegations import limit_spending
from retinue.runners import context_policy
from retinue.runners.base import NO_RUN_RESOURCES, BuildSystemPrompt, RunAssignment, RunResources
from retinue.runners.result_pruner import result_chars_max
from retinue.runners.token_estimate import ContextMeter, ContextSize

CONTEXT_METERS_MAX = 2_000


@dataclass(slots=True)
class RunState:
    """State of one run while this worker executes it. `remarks` are sent together with the answer."""

    assignment: RunAssignment
    journal: Journal
    observer: RunObserver
    offered_tools: Callable[[ModelRef], Sequence[ToolSpec]]
    resources: RunResources = NO_RUN_RESOURCES
    remarks: list[str] = field(default_factory=list[str])
    overflow_attempts: context_policy.OverflowAttempts = context_policy.OverflowAttempts()
    compaction_failed_at_tokens: int | None = None  # context tokens when a compaction last failed
    options: SessionOptions = field(init=False)  # the session's options, then with the model that served this run
    system_prompt: str = field(init=False)  # system prompt of the next model call
    prompt_model: ModelRef | None = None  # the model it was built for; None: not built yet

    def __post_init__(self) -> None:
        options = self.assignment.session.options
        begun = any(isinstance(record.body, Reply) for record in self.journal.records)
        # no provider has cached a new context, so any credential may serve it
        self.options = options if begun else release_credential(options)
        if self.assignment.session.origin.kind is OriginKind.BACKGROUND:
            self.system_prompt = ""  # a background job has no instructions other than its text
            return
        parts = (self.assignment.agent.instructions, self.assignment.request.extra_system_prompt)
        self.system_prompt = "\n\n".join(part for part in parts if part)

    async def load_system_prompt(self, build_system_prompt: BuildSystemPrompt, facts: ModelFacts) -> None:
        """Build the system prompt at the first model call of the run, and again when the model changes."""
        if self.prompt_model != facts.ref and self.assignment.session.origin.kind is not OriginKind.BACKGROUND:
            self.system_prompt = await build_system_prompt(self.assignment, self.resources, facts, self.tools(facts))
            self.prompt_model = facts.ref

    @property
    def session_id(self) -> SessionId:
        return self.assignment.session.id

    @property
    def has_images(self) -> bool:
        """Whether the messages of this run contain images."""
        turns = (record.body for record in self.journal.run_records)
        return any(
            attachment.media_type.startswith("image/")
            for turn in turns
            if isinstance(turn, UserTurn)
            for attachment in turn.attachments
        )

    def tools(self, facts: ModelFacts) -> Sequence[ToolSpec]:
        """Return the tools that this model is offered. Empty if it cannot call tools."""
        return self.offered_tools(facts.ref) if facts.tools else ()

    def add_remark(self, text: str) -> None:
        if text not in self.remarks:
            self.remarks.append(text)


class ContextMeters:
    """Measures the context of each session. Only records that are new since the last turn are measured."""

    def __init__(self) -> None:
        self._meters: OrderedDict[SessionId, ContextMeter] = OrderedDict()

    def measure(self, run: RunState, facts: ModelFacts, tools: Sequence[ToolSpec]) -> ContextSize:
        """Measure a run's context, including the instructions and the tools that this model is offered."""
        meter = self._meters.pop(run.session_id, None) or ContextMeter()
        self._meters[run.session_id] = meter
        if len(self._meters) > CONTEXT_METERS_MAX:
            self._meters.popitem(last=False)
        return meter.measure(
            run.journal.records,
            instructions=run.system_prompt,
            tools=tools,
            result_chars_max=result_chars_max(facts.window_tokens),
        )


async def plan_model_calls(models: ModelRouter, run: RunState, role: ModelRole) -> FallbackPlan:
    assignment = run.assignment
    return await models.build_plan(
        assignment.agent,
        run.options,
        override=assignment.request.model_reference,
        has_images=run.has_images,
        role=role,
    )


async def flush_before_wait(plan: FallbackPlan, run: RunState) -> None:
    """Store results that are not stored yet, if the next model or credential cannot be used at once."""
    if plan.current is not None and plan.current.wait_s > 0:
        await run.journal.flush()


async def next_candidate(plan: FallbackPlan, clock: Clock) -> ModelCandidate:
    """Wait until the next candidate may be called, and return it: a model and a credential. Raises if none is left."""
    candidate = plan.current
    if candidate is None:
        raise plan.build_error(clock.now())
    if candidate.wait_s > 0:
        await clock.sleep(candidate.wait_s)
    return candidate


def call_terms(
    models: ModelRouter,
    run: RunState,
    candidate: ModelCandidate,
    facts: ModelFacts,
    size: ContextSize,
    *,
    output_tokens_max: int,
) -> ModelCallReservationRequest:
    return ModelCallReservationRequest(
        ref=facts.ref,
        credential=candidate.credential.id if candidate.credential else "",
        price=facts.price,
        input_tokens_max=input_tokens_bound(size, facts),
        output_tokens_max=output_tokens_max,
        limits=_effective_caps(models, run),
    )


def _effective_caps(models: ModelRouter, run_state: RunState) -> BudgetLimits:
    """Return the budgets of the run. A delegated run gets no more than the run that delegated to it."""
    caps, lineage = models.caps(run_state.assignment.agent), run_state.journal.run.lineage
    if lineage is None:
        return caps
    run, tree = limit_spending(caps, lineage)
    return replace(caps, run_microusd=run, tree_microusd=tree)


def input_tokens_bound(size: ContextSize, facts: ModelFacts) -> int:
    """Return the maximum number of input tokens that a model call can have.

    For the part of the context that this model has already counted, the maximum is its count plus a
    margin. For the rest, the maximum is computed from the size in bytes.
    """
    if not size.counted_tokens or size.counted_by != str(facts.ref):
        return max_input_tokens(size.size_bytes)
    counted = max_input_tokens(0, known_tokens=size.counted_tokens, tokens_per_byte=1.0)
    return counted + max_input_tokens(size.new_bytes + size.base_growth_bytes)
