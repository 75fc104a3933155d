"""What a conversation can choose from, and how its context stands: the words behind /model, /think and /context."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import sqlalchemy as sa
from msgspec.structs import replace

from retinue.domain.agent import Agent
from retinue.domain.errors import RetinueError
from retinue.domain.ids import SessionId
from retinue.domain.model import TOKENS_PRICED, ModelRef, Price
from retinue.domain.ports import Clock
from retinue.domain.record import Record
from retinue.domain.session import Mind, Session
from retinue.models.fallback import why_now
from retinue.models.minds import Minds
from retinue.policy.tools import Circumstances
from retinue.runners.context import arranged
from retinue.runners.keeping import report
from retinue.tools.toolbox import Toolbox


class HouseChoices:
    def __init__(
        self, minds: Minds, toolbox: Toolbox, clock: Clock, shortened: Callable[[SessionId], tuple[int, int]]
    ) -> None:
        self._minds = minds
        self._toolbox = toolbox
        self._clock = clock
        self._shortened = shortened

    def listed(self, agent: Agent, mind: Mind) -> Sequence[str]:
        lines: list[str] = []
        for offer in self._minds.catalog.numbered(self._current(agent, mind)):
            facts = offer.facts
            said = [f"{facts.window_tokens:,} tokens"]
            if facts.price is not None:
                said.append(_price(facts.price))
            if facts.vision:
                said.append("sees images")
            if not offer.has_key:
                said.append("no key")
            alias = f" ({offer.alias})" if offer.alias else ""
            mark = "*" if offer.is_current else " "
            lines.append(f"{mark}{offer.number:>3}. {facts.ref}{alias}: {', '.join(said)}")
        return lines

    def status(self, conn: sa.Connection, agent: Agent, mind: Mind) -> Sequence[str]:
        return why_now(self._minds.plan_in(conn, agent, mind), self._clock.now())

    def choose(self, text: str, agent: Agent, mind: Mind) -> Mind:
        chosen = self._minds.catalog.choose(text)
        model = str(chosen.ref) if chosen.ref is not None else None
        return replace(mind, model=model, credential=chosen.credential, pinned=chosen.credential is not None)

    def check_effort(self, effort: str, agent: Agent, mind: Mind) -> None:
        self._minds.catalog.check_effort(self._current(agent, mind), effort)

    def report(self, agent: Agent, session: Session, records: Sequence[Record]) -> Sequence[str]:
        try:
            ref = self._current(agent, session.mind)
        except RetinueError as error:
            return [f"model: {error.sentence}"]
        facts = self._minds.catalog.facts(ref)
        capped, pruned = self._shortened(session.id)
        where = Circumstances(provider=ref.provider, model=ref.model, origin=session.origin.kind)
        figures = report(
            arranged(records),
            model=str(ref),
            window_tokens=facts.window_tokens,
            instructions=agent.instructions,
            tools=self._toolbox.offered(agent, where) if facts.tools else (),
            compactions=session.compactions,
            capped=capped,
            pruned=pruned,
        )
        return [f"{name}: {value}" for name, value in figures.items()]

    def _current(self, agent: Agent, mind: Mind) -> ModelRef:
        return self._minds.catalog.chain(agent=agent, mind=mind)[0]


def _price(price: Price) -> str:
    if price == Price():
        return "free"
    return f"${price.input / TOKENS_PRICED:g} in, ${price.output / TOKENS_PRICED:g} out a million"
