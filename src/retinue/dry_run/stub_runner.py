"""The runner of a dry run. It simulates the duration and cost of each run, and has no effects.

Both are estimated from the last real runs.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from retinue.domain.agent import Agent
from retinue.domain.budget import BudgetLimits, ModelCallReservationRequest, PriceUnknown
from retinue.domain.errors import NotFound
from retinue.domain.model import ModelFacts, ModelRef, Price
from retinue.domain.ports import Clock, Journal, RunApprovals, RunObserver
from retinue.domain.record import Reply
from retinue.domain.session import SessionOptions
from retinue.dry_run.estimates import RunEstimator
from retinue.models.model_selection import ModelSelector
from retinue.runners.base import RunAnswer, RunAssignment

SILENT_REPLY = "NO_REPLY"  # stored, and not sent
CONTEXT_RECORDS_MAX = 40  # keeps a session of a long dry run from growing: nothing reads its records


class ModelSource(Protocol):
    """The methods of the model router that the stub runner needs."""

    @property
    def catalog(self) -> ModelSelector: ...
    def caps(self, agent: Agent) -> BudgetLimits: ...


class StubRunner:
    """Takes the place of every runner in a dry run. `is_full` is set once the limit on runs is reached."""

    def __init__(
        self, clock: Clock, models: ModelSource, estimates: RunEstimator, *, runs_max: int, has_plugins: bool
    ) -> None:
        self._clock = clock
        self._models = models
        self._estimates = estimates
        self._runs_max = runs_max
        self._has_plugins = has_plugins
        self.runs = 0
        self.is_full = asyncio.Event()

    async def take_turns(
        self, assignment: RunAssignment, journal: Journal, approvals: RunApprovals, observer: RunObserver
    ) -> RunAnswer:
        self.runs += 1
        if self.runs >= self._runs_max:
            self.is_full.set()
        agent = assignment.agent
        estimate = self._estimates.for_sender(journal.run.sender, agent.name)
        caps = self._models.caps(agent)
        facts = self.select_model(agent, assignment.session.options, assignment.request.model_reference, caps)
        usage, turn = estimate.usage, sum(isinstance(record.body, Reply) for record in journal.run_records)

        # One model call with the cost of the whole run, so that a budget refuses a run that would exceed it.
        price = None if facts.price is None else Price(call=facts.price.cost_microusd(usage))
        terms = ModelCallReservationRequest(ref=facts.ref, price=price, limits=caps)
        async with journal.model_call(turn, request=terms) as step:
            await self._clock.sleep(estimate.seconds)
            step.record(Reply(text=SILENT_REPLY, model=str(facts.ref), usage=usage, provider=facts.ref.provider))
        return RunAnswer(text=SILENT_REPLY, resets_context=len(journal.records) > CONTEXT_RECORDS_MAX)

    def select_model(
        self, agent: Agent, options: SessionOptions, override: str | None, limits: BudgetLimits
    ) -> ModelFacts:
        """Return the first model that can be used. If a budget applies, return the first model with a known price."""
        catalog = self._models.catalog
        try:
            chain = catalog.build_chain(agent=agent, session_options=options, override=override)
        except NotFound:
            if not self._has_plugins:
                raise
            # The model may come from a plugin, which is not loaded here, so its price is unknown.
            return ModelFacts(ref=ModelRef("", override or options.model or agent.model or "unknown"))
        for ref in chain:
            facts = catalog.get_facts(ref)
            if facts.price is not None or not limits.has_any:
                return facts
        raise PriceUnknown(chain[0])
