"""The models, effort, display options and context figures behind /model, /think, /elevated, /context and others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

import sqlalchemy as sa
from msgspec.structs import replace

from retinue.config.tools import Elevated
from retinue.domain.agent import Agent
from retinue.domain.display_options import Elevation, Manner
from retinue.domain.errors import RetinueError
from retinue.domain.ids import SessionId
from retinue.domain.model import TOKENS_PRICED, ModelRef, Price
from retinue.domain.ports import Clock
from retinue.domain.prompt_breakdown import Part, PartKind
from retinue.domain.record import Record
from retinue.domain.session import Mind, OriginKind, Session
from retinue.domain.tool import ToolSpec
from retinue.models.fallback import why_now
from retinue.models.model_router import Minds
from retinue.policy.tools.exec_placement import KEY_ELEVATED, Gates, closed_gate
from retinue.policy.tools.tools import Circumstances
from retinue.runners.context_policy import report
from retinue.runners.model_context import arranged
from retinue.runners.token_estimate import weight_of_tools
from retinue.tools.toolbox import Toolbox

Told = Callable[[Agent, Session | None], Awaitable[Sequence[Part]]]
"""What instructions are made of for a run of this agent, in this conversation."""


async def nothing_told(_agent: Agent, _session: Session | None) -> Sequence[Part]:
    """Return no prompt parts."""
    return ()


class HouseChoices:
    """Options from the server's settings, models and tools."""

    def __init__(
        self,
        minds: Minds,
        toolbox: Toolbox,
        clock: Clock,
        shortened: Callable[[SessionId], tuple[int, int]],
        told: Told = nothing_told,
        at_hand: Callable[[SessionId], str | None] = lambda _session: None,
        skills: Told = nothing_told,
    ) -> None:
        """`last_system_prompt` returns a session's last system prompt since the server started, if any."""
        self._minds = minds
        self._toolbox = toolbox
        self._clock = clock
        self._shortened = shortened
        self._told = told
        self._at_hand = at_hand
        self._skills = skills

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

    def hinted(self, word: str, agent: Agent, mind: Mind, *, alone: bool) -> Mind | None:
        ref = self._minds.catalog.hinted(word, alone=alone)
        return replace(mind, model=str(ref), credential=None, pinned=False) if ref is not None else None

    def effort(self, agent: Agent, mind: Mind) -> str | None:
        return mind.effort or self._minds.settings.defaults.effort_of(agent)

    def check_effort(self, effort: str, agent: Agent, mind: Mind) -> None:
        self._minds.catalog.check_effort(self._current(agent, mind), effort)

    def manner(self, agent: Agent) -> Manner:
        return self._minds.settings.defaults.manner_of(agent)

    def why_not_elevated(self, level: Elevation, agent: Agent, session: Session, *, owner: bool) -> str:
        setting = self._minds.settings.tools.exec.elevated
        gates = Gates(
            owner=owner,
            foreground=session.origin.kind.foreground,
            agent=agent.elevated is not Elevation.OFF,
            level=level,
        )
        if closed := closed_gate(setting, gates):
            return closed
        if level is Elevation.FULL and setting is not Elevated.FULL:
            return f"`{KEY_ELEVATED}` is {setting}, so that a person is asked: /elevated ask"
        return ""

    def report(self, agent: Agent, session: Session, records: Sequence[Record]) -> Mapping[str, str | int]:
        try:
            ref = self._current(agent, session.mind)
        except RetinueError as error:
            return {"model": error.sentence}
        facts = self._minds.catalog.facts(ref)
        capped, pruned = self._shortened(session.id)
        return report(
            arranged(records),
            model=str(ref),
            window_tokens=self._minds.settings.defaults.context_tokens or facts.window_tokens,
            instructions=self._at_hand(session.id) or agent.instructions,
            tools=self._offered(agent, session, ref),
            compactions=session.compactions,
            capped=capped,
            pruned=pruned,
        )

    async def parts(self, agent: Agent, session: Session | None) -> Sequence[Part]:
        told = [*await self._told(agent, session), *await self._skills(agent, session)]
        try:
            ref = self._current(agent, session.mind if session is not None else Mind())
        except RetinueError:
            return told
        for spec in self._offered(agent, session, ref):
            weight = weight_of_tools([spec])
            told.append(Part(kind=PartKind.TOOL, name=spec.name, chars=weight.size_bytes, tokens=weight.tokens))
        return told

    def _offered(self, agent: Agent, session: Session | None, ref: ModelRef) -> Sequence[ToolSpec]:
        if not self._minds.catalog.facts(ref).tools:
            return ()
        origin = session.origin.kind if session is not None else OriginKind.TERMINAL
        return self._toolbox.offered(agent, Circumstances(provider=ref.provider, model=ref.model, origin=origin))

    def _current(self, agent: Agent, mind: Mind) -> ModelRef:
        return self._minds.catalog.chain(agent=agent, mind=mind)[0]


def _price(price: Price) -> str:
    if price == Price():
        return "free"
    return f"${price.input / TOKENS_PRICED:g} in, ${price.output / TOKENS_PRICED:g} out a million"
