"""Operations that list the available models, and show which models an agent would use now, and why."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import msgspec
import sqlalchemy as sa
from msgspec import UNSET, UnsetType

from retinue.domain.address import AddressKind
from retinue.domain.agent import Agent, PermissionLevel
from retinue.domain.budget import format_usd
from retinue.domain.errors import RetinueError
from retinue.domain.ids import SessionId
from retinue.domain.model import ModelFacts, Price
from retinue.domain.principal import Principal
from retinue.domain.session import SessionOptions
from retinue.models.model_selection import ModelSelector
from retinue.models.providers import MODELS_KNOWN_ON
from retinue.operations.agent.agents import require_visible_agent
from retinue.operations.base import EmptyRequest, Operation, Services
from retinue.operations.model.errors import ModelAgentMismatch, ModelCatalogUnavailable
from retinue.store.agents import agents
from retinue.store.sessions import sessions

NOT_KNOWN = "unknown"
FREE = "free"


class ModelShowRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Show the models that agents would use.

    Without `agent`, the response has all agents. With `session`, the model that was chosen for that
    session comes first.
    """

    agent: str = ""
    session: str = ""


class ModelRow(msgspec.Struct, frozen=True, kw_only=True):
    """One model. People can use `number` to choose the model with a chat command.

    `missing` says what must be set before the model can be used. If the model is retired, `retired` says
    which model to use instead.
    """

    number: int
    model: str
    alias: str | UnsetType = UNSET
    provider_name: str | UnsetType = UNSET  # display name of the provider, if it has one
    window_tokens: int
    output_tokens_max: int
    vision: bool
    tools: bool
    efforts: list[str] | None
    price: str
    default: bool
    missing: str | UnsetType = UNSET
    retired: str | UnsetType = UNSET


class ModelList(msgspec.Struct, frozen=True):
    """The available models.

    `allow` lists the models that may be used; if it is empty, all models may be used. `catalog_date` is
    the date of the built-in model data.
    """

    models: list[ModelRow]
    allow: list[str]
    catalog_date: str


class ModelChainEntry(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    because: str
    window_tokens: int
    price: str
    missing: str | UnsetType = UNSET
    retired: str | UnsetType = UNSET


class AgentModelChain(msgspec.Struct, frozen=True, kw_only=True):
    """The models that an agent would use, in the order in which they are tried.

    `current` explains which model and credential are used now. If no model can be used, `error` is the
    reason.
    """

    agent: str
    session: str | UnsetType = UNSET
    runner: str
    effort: str | None
    chain: list[ModelChainEntry]
    current: list[str] | UnsetType = UNSET
    error: str | UnsetType = UNSET


class ModelChainList(msgspec.Struct, frozen=True):
    """The models that each agent would use. `catalog_date` is the date of the built-in model data."""

    default: str
    default_because: str
    agents: list[AgentModelChain]
    catalog_date: str


async def list_models(services: Services, caller: Principal, request: EmptyRequest) -> ModelList:
    catalog = _require_catalog(services)
    offers = await asyncio.to_thread(catalog.list_offers)  # in a thread: the first call loads the prices
    return ModelList(
        models=[
            ModelRow(
                number=offer.number,
                model=str(offer.facts.ref),
                alias=offer.alias or UNSET,
                provider_name=catalog.get_display_name(offer.facts.ref.provider) or UNSET,
                window_tokens=offer.facts.window_tokens,
                output_tokens_max=offer.facts.output_tokens_max,
                vision=offer.facts.vision,
                tools=offer.facts.tools,
                efforts=None if offer.facts.efforts is None else list(offer.facts.efforts),
                price=format_price(offer.facts.price),
                default=offer.is_default,
                missing=_missing_key_hint(catalog, offer.facts),
                retired=catalog.describe_retirement(offer.facts.ref) or UNSET,
            )
            for offer in offers
        ],
        allow=list(catalog.allow),
        catalog_date=MODELS_KNOWN_ON.isoformat(),
    )


async def show_model_chains(services: Services, caller: Principal, request: ModelShowRequest) -> ModelChainList:
    catalog = _require_catalog(services)

    def body(conn: sa.Connection) -> list[tuple[Agent, SessionOptions, SessionId | None]]:
        if not request.session:
            return [(agent, SessionOptions(), None) for agent in _find_agents(conn, caller, request.agent)]
        session = sessions.get_by_short_id(conn, request.session, seen_by=caller)
        agent = require_visible_agent(conn, caller, session.agent)
        if request.agent.casefold() not in ("", agent.name.casefold()):
            raise ModelAgentMismatch(agent.name, named=request.agent)
        return [(agent, session.options, session.id)]

    found = await services.store.scan(body)
    return ModelChainList(
        default=str(catalog.default),
        default_because=catalog.default_because,
        agents=[await _build_chain(services, catalog, agent, options, session) for agent, options, session in found],
        catalog_date=MODELS_KNOWN_ON.isoformat(),
    )


async def _build_chain(
    services: Services, catalog: ModelSelector, agent: Agent, model_choice: SessionOptions, session: SessionId | None
) -> AgentModelChain:
    form = partial(
        AgentModelChain,
        agent=agent.name,
        session=session or UNSET,
        runner=agent.runner,
        effort=model_choice.effort or agent.effort,
    )
    if agent.runner != "loop":
        return form(chain=[], error=f"its runner, {agent.runner}, chooses the model")
    try:
        links = catalog.build_chain_links(agent=agent, session_options=model_choice)
    except RetinueError as error:
        return form(chain=[], error=f"{error.sentence}: {error.because}; try: {error.try_this}")
    facts = await asyncio.to_thread(lambda: [catalog.get_facts(link.ref) for link in links])
    chain = [
        ModelChainEntry(
            model=str(link.ref),
            because=link.because,
            window_tokens=known.window_tokens,
            price=format_price(known.price),
            missing=_missing_key_hint(catalog, known),
            retired=catalog.describe_retirement(link.ref) or UNSET,
        )
        for link, known in zip(links, facts, strict=True)
    ]
    if services.explain_model_chain is None:
        return form(chain=chain)
    return form(
        chain=chain, current=list(await services.explain_model_chain(agent, model_choice, [link.ref for link in links]))
    )


def format_price(price: Price | None) -> str:
    """Return the price per million input and output tokens, formatted for display."""
    if price is None:
        return NOT_KNOWN
    text = f"{format_usd(price.input)} in, {format_usd(price.output)} out"
    if price.call:
        text += f", {format_usd(price.call)} a call"
    return text if price != Price() else FREE


def _missing_key_hint(catalog: ModelSelector, facts: ModelFacts) -> str | UnsetType:
    provider = facts.ref.provider
    return UNSET if catalog.has_key(provider) else catalog.explain_missing_key(provider)


def _require_catalog(services: Services) -> ModelSelector:
    if services.catalog is None:
        raise ModelCatalogUnavailable()
    return services.catalog()


def _find_agents(conn: sa.Connection, caller: Principal, name: str) -> Sequence[Agent]:
    """Return the agent with this name, or all agents if it is empty. A caller that is an agent gets only itself."""
    own = caller.address.name if caller.address.kind is AddressKind.AGENT else ""
    return [require_visible_agent(conn, caller, name or own)] if name or own else agents.list_all(conn)


OPERATIONS = (
    Operation(
        name="model.list",
        summary="List the available models.",
        parameters=EmptyRequest,
        handler=list_models,
        result=ModelList,
        permission=PermissionLevel.STANDARD,
    ),
    Operation(
        name="model.show",
        summary="Show which models an agent would use now, and why.",
        parameters=ModelShowRequest,
        handler=show_model_chains,
        result=ModelChainList,
        permission=PermissionLevel.STANDARD,
    ),
)
