"""The runner of a dry run: takes as long and costs as much as the last real runs, and has no effects."""

from __future__ import annotations

import asyncio
from typing import Protocol

from retinue.domain.agent import Agent
from retinue.domain.errors import NotFound
from retinue.domain.model import ModelFacts, ModelRef, Price
from retinue.domain.money import CallTerms, Caps, Granted, PriceUnknown
from retinue.domain.ports import Ask, Clock, Journal, Tell
from retinue.domain.record import Reply
from retinue.domain.session import Mind
from retinue.dry_run.estimates import Estimates
from retinue.models.model_selection import Catalog
from retinue.runners.base import Assignment, Finished

SAYS = "NO_REPLY"  # stored, and not sent
CONTEXT_RECORDS_MAX = 40  # keeps a session of a long dry run from growing: nothing reads its records


class Minds(Protocol):
    """The parts of the model router that the stub needs."""

    @property
    def catalog(self) -> Catalog: ...
    def caps(self, agent: Agent) -> Caps: ...


class Understudy:
    """Replaces every runner. `is_full` is set once the limit on runs is reached."""

    def __init__(self, clock: Clock, minds: Minds, estimates: Estimates, *, runs_max: int, has_guests: bool) -> None:
        self._clock = clock
        self._minds = minds
        self._estimates = estimates
        self._runs_max = runs_max
        self._has_guests = has_guests
        self.runs = 0
        self.full = asyncio.Event()

    async def work(self, assignment: Assignment, journal: Journal, ask: Ask, tell: Tell) -> Finished:
        self.runs += 1
        if self.runs >= self._runs_max:
            self.full.set()
        agent = assignment.agent
        estimate = self._estimates.of(journal.run.sender, agent.name)
        caps = self._minds.caps(agent)
        facts = self.thinks_with(agent, assignment.session.mind, assignment.request.reference, caps)
        usage, turn = estimate.usage, sum(isinstance(record.body, Reply) for record in journal.own)

        async def reply(attempt: int, granted: Granted) -> Reply:
            await self._clock.sleep(estimate.seconds)
            return Reply(text=SAYS, model=str(facts.ref), usage=usage, provider=facts.ref.provider)

        # One model call with the cost of the whole run: then a budget refuses a run that would exceed it.
        price = None if facts.price is None else Price(call=facts.price.cost_microusd(usage))
        terms = CallTerms(ref=facts.ref, price=price, caps=caps)
        await journal.reply(turn, reply, terms=terms)
        return Finished(text=SAYS, reset=len(journal.records) > CONTEXT_RECORDS_MAX)

    def thinks_with(self, agent: Agent, mind: Mind, override: str | None, caps: Caps) -> ModelFacts:
        """Return the first usable model; if a budget applies, the first with a known price."""
        catalog = self._minds.catalog
        try:
            chain = catalog.chain(agent=agent, mind=mind, override=override)
        except NotFound:
            if not self._has_guests:
                raise
            # The model may come from a plugin, which is not loaded here, so its price is unknown.
            return ModelFacts(ref=ModelRef("", override or mind.model or agent.model or "unknown"))
        for ref in chain:
            facts = catalog.facts(ref)
            if facts.price is not None or not caps.any:
                return facts
        raise PriceUnknown(chain[0])
