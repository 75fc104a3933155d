"""Who takes an agent's turns in a rehearsal: as long as the last times, at their price, and with no effect at all."""

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

SAYS = "NO_REPLY"  # kept, and sent to nobody
CONTEXT_RECORDS_MAX = 40  # nobody reads them: a conversation that goes on for a month is not to grow for it


class Minds(Protocol):
    @property
    def catalog(self) -> Catalog: ...
    def caps(self, agent: Agent) -> Caps: ...


class Understudy:
    """`full` is set once there were as many runs as there may be."""

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

        # One call for the whole run, at what all of its calls come to: then a cap refuses the run that would pass it.
        price = None if facts.price is None else Price(call=facts.price.cost_microusd(usage))
        terms = CallTerms(ref=facts.ref, price=price, caps=caps)
        await journal.reply(turn, reply, terms=terms)
        return Finished(text=SAYS, reset=len(journal.records) > CONTEXT_RECORDS_MAX)

    def thinks_with(self, agent: Agent, mind: Mind, override: str | None, caps: Caps) -> ModelFacts:
        """The first of its models that could be asked: where a cap is to be kept, one whose price is known."""
        catalog = self._minds.catalog
        try:
            chain = catalog.chain(agent=agent, mind=mind, override=override)
        except NotFound:
            if not self._has_guests:
                raise
            # One that a plug-in brings: nobody here knows what it costs.
            return ModelFacts(ref=ModelRef("", override or mind.model or agent.model or "unknown"))
        for ref in chain:
            facts = catalog.facts(ref)
            if facts.price is not None or not caps.any:
                return facts
        raise PriceUnknown(chain[0])
