"""State of one run while a worker executes it, and the cost terms and order of its model calls."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from retinue.domain.ids import SessionId
from retinue.domain.model import ModelFacts, ModelRef
from retinue.domain.money import CallTerms, Caps
from retinue.domain.ports import Clock, Journal, Tell
from retinue.domain.record import Reply, UserTurn
from retinue.domain.session import Mind, OriginKind
from retinue.domain.tool import ToolSpec
from retinue.models.credential_order import let_go
from retinue.models.fallback import Plan
from retinue.models.fallback_actions import Candidate
from retinue.models.model_router import Minds
from retinue.models.model_selection import Role
from retinue.policy.limits.budgets import input_bound
from retinue.policy.tools.delegations import within
from retinue.runners import context_policy
from retinue.runners.base import NO_EQUIPMENT, Assignment, Brief, Equipment
from retinue.runners.result_pruner import result_chars_max
from retinue.runners.token_estimate import Measure, Meter

METERS_MAX = 2_000


@dataclass(slots=True)
class Case:
    """One run while this worker executes it. `remarks` are sent to the person with the answer."""

    assignment: Assignment
    journal: Journal
    tell: Tell
    offered: Callable[[ModelRef], Sequence[ToolSpec]]
    equipment: Equipment = NO_EQUIPMENT
    remarks: list[str] = field(default_factory=list[str])
    tries: context_policy.Tries = context_policy.Tries()
    failed_at: int | None = None  # context tokens when a compaction last failed
    mind: Mind = field(init=False)  # the session's options, then with the model that served this run
    instructions: str = field(init=False)  # system prompt of the next model call
    told: ModelRef | None = None  # the model it was built for; None: not built yet

    def __post_init__(self) -> None:
        mind = self.assignment.session.mind
        begun = any(isinstance(record.body, Reply) for record in self.journal.records)
        # no provider has cached a new context, so any credential may serve it
        self.mind = mind if begun else let_go(mind)
        if self.assignment.session.origin.kind is OriginKind.BACKGROUND:
            self.instructions = ""  # a background job has no other instructions than its text
            return
        said = (self.assignment.agent.instructions, self.assignment.request.extra_system_prompt)
        self.instructions = "\n\n".join(part for part in said if part)

    async def be_told(self, brief: Brief, facts: ModelFacts) -> None:
        """Build the system prompt once per run, and again if another model is called."""
        if self.told != facts.ref and self.assignment.session.origin.kind is not OriginKind.BACKGROUND:
            self.instructions = await brief(self.assignment, self.equipment, facts, self.tools(facts))
            self.told = facts.ref

    @property
    def session(self) -> SessionId:
        return self.assignment.session.id

    @property
    def sees_images(self) -> bool:
        """Whether the messages of this run contain images."""
        turns = (record.body for record in self.journal.own)
        return any(
            attachment.media_type.startswith("image/")
            for turn in turns
            if isinstance(turn, UserTurn)
            for attachment in turn.attachments
        )

    def tools(self, facts: ModelFacts) -> Sequence[ToolSpec]:
        """Return the tools that this model is offered. Empty if it cannot call tools."""
        return self.offered(facts.ref) if facts.tools else ()

    def remark(self, words: str) -> None:
        if words not in self.remarks:
            self.remarks.append(words)


class Sizes:
    """Size of each session's context, measured incrementally: a turn costs only its new records."""

    def __init__(self) -> None:
        self._meters: OrderedDict[SessionId, Meter] = OrderedDict()

    def measure(self, case: Case, facts: ModelFacts, tools: Sequence[ToolSpec]) -> Measure:
        """Measure the context with the tools that this model is offered."""
        meter = self._meters.pop(case.session, None) or Meter()
        self._meters[case.session] = meter
        if len(self._meters) > METERS_MAX:
            self._meters.popitem(last=False)
        return meter.measure(
            case.journal.records,
            instructions=case.instructions,
            tools=tools,
            result_chars_max=result_chars_max(facts.window_tokens),
        )


async def plan_for(minds: Minds, case: Case, role: Role) -> Plan:
    assignment = case.assignment
    return await minds.plan(
        assignment.agent,
        case.mind,
        override=assignment.request.reference,
        images=case.sees_images,
        role=role,
    )


async def settle_before_wait(plan: Plan, case: Case) -> None:
    """Store pending results before a wait for the next candidate, so that nothing is unwritten meanwhile."""
    if plan.current is not None and plan.current.wait_s > 0:
        await case.journal.settle_up()


async def next_of(plan: Plan, clock: Clock) -> Candidate:
    """Return the next candidate, after its back-off. Raises if no candidate is left."""
    candidate = plan.current
    if candidate is None:
        raise plan.error(clock.now())
    if candidate.wait_s > 0:
        await clock.sleep(candidate.wait_s)
    return candidate


def terms_of(
    minds: Minds, case: Case, candidate: Candidate, facts: ModelFacts, measure: Measure, *, output_tokens_max: int
) -> CallTerms:
    return CallTerms(
        ref=facts.ref,
        credential=candidate.credential.id if candidate.credential else "",
        price=facts.price,
        input_tokens_bound=bound_of(measure, facts),
        output_tokens_max=output_tokens_max,
        caps=_caps(minds, case),
    )


def _caps(minds: Minds, case: Case) -> Caps:
    """Return the budgets of the run. A delegated run gets no more than its delegating run."""
    caps, lineage = minds.caps(case.assignment.agent), case.journal.run.lineage
    if lineage is None:
        return caps
    run, tree = within(caps, lineage)
    return replace(caps, run_microusd=run, tree_microusd=tree)


def bound_of(measure: Measure, facts: ModelFacts) -> int:
    """Return the maximum number of input tokens.

    What this model has counted, with a margin; the rest by its bytes.
    """
    if not measure.known_tokens or measure.counted_by != str(facts.ref):
        return input_bound(measure.size_bytes)
    counted = input_bound(0, known_tokens=measure.known_tokens, calibrated=1.0)
    return counted + input_bound(measure.new_bytes + measure.head_bytes)
