"""The models, effort, display options and context figures behind commands such as /model, /think and /context."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

import sqlalchemy as sa
from msgspec.structs import replace

from retinue.config.tools import ElevatedPolicy
from retinue.domain.agent import Agent
from retinue.domain.display_options import DisplayOptions, Elevation
from retinue.domain.errors import RetinueError
from retinue.domain.ids import SessionId
from retinue.domain.model import PRICE_UNIT_TOKENS, ModelRef, Price
from retinue.domain.ports import Clock
from retinue.domain.prompt_breakdown import PromptPart, PromptPartKind
from retinue.domain.record import Record
from retinue.domain.session import OriginKind, Session, SessionOptions
from retinue.domain.tool import ToolSpec
from retinue.models.fallback import describe_plan
from retinue.models.model_router import ModelRouter
from retinue.policy.tools.exec_placement import ELEVATED_KEY, ElevationGates, find_closed_gate
from retinue.policy.tools.tool_policy import ToolPolicyContext
from retinue.runners.context_policy import context_figures
from retinue.runners.model_context import arrange_records
from retinue.runners.token_estimate import weight_of_tools
from retinue.tools.toolbox import Toolbox

ListPromptParts = Callable[[Agent, Session | None], Awaitable[Sequence[PromptPart]]]
"""Returns the parts of the system prompt for an agent and session, such as files or skills."""


async def no_prompt_parts(_agent: Agent, _session: Session | None) -> Sequence[PromptPart]:
    """Return no prompt parts. Used if the server builds no system prompts."""
    return ()


class ConfiguredOptions:
    """Answers the chat commands about a session's options, from the server's settings, models and tools."""

    def __init__(
        self,
        models: ModelRouter,
        toolbox: Toolbox,
        clock: Clock,
        shortened_counts: Callable[[SessionId], tuple[int, int]],
        instruction_parts: ListPromptParts = no_prompt_parts,
        last_system_prompt: Callable[[SessionId], str | None] = lambda _session: None,
        skill_parts: ListPromptParts = no_prompt_parts,
    ) -> None:
        """`last_system_prompt` returns the last prompt that this server process built for a session, or None."""
        self._models = models
        self._toolbox = toolbox
        self._clock = clock
        self._shortened_counts = shortened_counts
        self._instruction_parts = instruction_parts
        self._last_system_prompt = last_system_prompt
        self._skill_parts = skill_parts

    def list_models(self, agent: Agent, options: SessionOptions) -> Sequence[str]:
        lines: list[str] = []
        for offer in self._models.catalog.list_offers(self._current_model(agent, options)):
            facts = offer.facts
            facts_shown = [f"{facts.window_tokens:,} tokens"]
            if facts.price is not None:
                facts_shown.append(_format_price(facts.price))
            if facts.vision:
                facts_shown.append("images")
            if not offer.has_key:
                facts_shown.append("no key")
            alias = f" ({offer.alias})" if offer.alias else ""
            mark = "*" if offer.is_current else " "
            lines.append(f"{mark}{offer.number:>3}. {facts.ref}{alias}: {', '.join(facts_shown)}")
        return lines

    def model_status(self, conn: sa.Connection, agent: Agent, options: SessionOptions) -> Sequence[str]:
        return describe_plan(self._models.build_plan_in(conn, agent, options), self._clock.now())

    def choose_model(self, text: str, agent: Agent, options: SessionOptions) -> SessionOptions:
        chosen = self._models.catalog.parse_selection(text)
        model = str(chosen.ref) if chosen.ref is not None else None
        return replace(options, model=model, credential=chosen.credential, pinned=chosen.credential is not None)

    def match_model_hint(
        self, word: str, agent: Agent, options: SessionOptions, *, alone: bool
    ) -> SessionOptions | None:
        ref = self._models.catalog.find_hinted_model(word, alone=alone)
        return replace(options, model=str(ref), credential=None, pinned=False) if ref is not None else None

    def effective_effort(self, agent: Agent, options: SessionOptions) -> str | None:
        return options.effort or self._models.settings.defaults.effort_of(agent)

    def check_effort(self, effort: str, agent: Agent, options: SessionOptions) -> None:
        self._models.catalog.check_effort(self._current_model(agent, options), effort)

    def default_display(self, agent: Agent) -> DisplayOptions:
        return self._models.settings.defaults.display_options_of(agent)

    def elevation_refusal(self, level: Elevation, agent: Agent, session: Session, *, is_owner: bool) -> str:
        setting = self._models.settings.tools.exec.elevated
        gates = ElevationGates(
            is_for_owner=is_owner,
            is_foreground=session.origin.kind.is_foreground,
            is_agent_permitted=agent.elevated is not Elevation.OFF,
            level=level,
        )
        if closed := find_closed_gate(setting, gates):
            return closed
        if level is Elevation.FULL and setting is not ElevatedPolicy.FULL:
            return f"`{ELEVATED_KEY}` is {setting}, so a person must approve each call: /elevated ask"
        return ""

    def context_report(self, agent: Agent, session: Session, records: Sequence[Record]) -> Mapping[str, str | int]:
        try:
            ref = self._current_model(agent, session.options)
        except RetinueError as error:
            return {"model": error.sentence}
        facts = self._models.catalog.get_facts(ref)
        capped, pruned = self._shortened_counts(session.id)
        return context_figures(
            arrange_records(records),
            model=str(ref),
            window_tokens=self._models.settings.defaults.context_tokens or facts.window_tokens,
            instructions=self._last_system_prompt(session.id) or agent.instructions,
            tools=self._offered_tools(agent, session, ref),
            compactions=session.compactions,
            capped_results=capped,
            pruned_results=pruned,
        )

    async def prompt_parts(self, agent: Agent, session: Session | None) -> Sequence[PromptPart]:
        parts = [*await self._instruction_parts(agent, session), *await self._skill_parts(agent, session)]
        try:
            ref = self._current_model(agent, session.options if session is not None else SessionOptions())
        except RetinueError:
            return parts
        for spec in self._offered_tools(agent, session, ref):
            weight = weight_of_tools([spec])
            parts.append(
                PromptPart(kind=PromptPartKind.TOOL, name=spec.name, chars=weight.size_bytes, tokens=weight.tokens)
            )
        return parts

    def _offered_tools(self, agent: Agent, session: Session | None, ref: ModelRef) -> Sequence[ToolSpec]:
        if not self._models.catalog.get_facts(ref).tools:
            return ()
        origin = session.origin.kind if session is not None else OriginKind.TERMINAL
        return self._toolbox.offered_specs(
            agent, ToolPolicyContext(provider=ref.provider, model=ref.model, origin=origin)
        )

    def _current_model(self, agent: Agent, options: SessionOptions) -> ModelRef:
        return self._models.catalog.build_chain(agent=agent, session_options=options)[0]


def _format_price(price: Price) -> str:
    if price == Price():
        return "free"
    return f"${price.input / PRICE_UNIT_TOKENS:g} in, ${price.output / PRICE_UNIT_TOKENS:g} out per million tokens"
