"""Operations on models: list the available ones, and show which an agent would use now, and why."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import msgspec
import sqlalchemy as sa
from msgspec import UNSET, UnsetType

from retinue.domain.address import AddressKind
from retinue.domain.agent import Agent, PermissionLevel
from retinue.domain.errors import Conflict, NotFound, RetinueError
from retinue.domain.ids import SessionId
from retinue.domain.model import ModelFacts, Price
from retinue.domain.money import usd
from retinue.domain.principal import Principal
from retinue.domain.session import Mind
from retinue.models.model_selection import Catalog
from retinue.models.providers import MODELS_KNOWN_ON
from retinue.operations.agent.agents import find_agent
from retinue.operations.base import Desk, Nothing, Operation
from retinue.store.agents import agents
from retinue.store.sessions import sessions

NOT_KNOWN = "not known"
FREE = "free"


class Show(msgspec.Struct, forbid_unknown_fields=True):
    """Without an agent, show all agents. With a session, apply the model chosen in it."""

    agent: str = ""
    session: str = ""


class ModelListed(msgspec.Struct, frozen=True, rename="kebab", kw_only=True):
    """One model. `number` selects it in a chat command.

    `missing` says what to set before it can be used; `retired` says what to use instead.
    """

    number: int
    model: str
    alias: str | UnsetType = UNSET
    sold_by: str | UnsetType = UNSET  # display name of the provider, if it has one
    window_tokens: int
    output_tokens_max: int
    vision: bool
    tools: bool
    efforts: list[str] | None
    price: str
    default: bool
    missing: str | UnsetType = UNSET
    retired: str | UnsetType = UNSET


class ModelsListed(msgspec.Struct, frozen=True, rename="kebab"):
    """`allow` is empty if all models may be used. `known_on` is the date of the built-in model data."""

    models: list[ModelListed]
    allow: list[str]
    known_on: str


class ModelInChain(msgspec.Struct, frozen=True, rename="kebab", kw_only=True):
    model: str
    because: str
    window_tokens: int
    price: str
    missing: str | UnsetType = UNSET
    retired: str | UnsetType = UNSET


class AgentsModels(msgspec.Struct, frozen=True, rename="kebab", kw_only=True):
    """The models that an agent would use, in order. `now` explains their current status.

    If no model can be used, `refused` has the reason.
    """

    agent: str
    session: str | UnsetType = UNSET
    runner: str
    effort: str | None
    chain: list[ModelInChain]
    now: list[str] | UnsetType = UNSET
    refused: str | UnsetType = UNSET


class ModelsShown(msgspec.Struct, frozen=True, rename="kebab"):
    """Models per agent. `known_on` is the date of the built-in model data."""

    default: str
    default_because: str
    agents: list[AgentsModels]
    known_on: str


async def list_models(desk: Desk, caller: Principal, asked: Nothing) -> ModelsListed:
    catalog = _catalog(desk)
    offers = await asyncio.to_thread(catalog.numbered)  # in a thread: the first call loads the prices
    return ModelsListed(
        models=[
            ModelListed(
                number=offer.number,
                model=str(offer.facts.ref),
                alias=offer.alias or UNSET,
                sold_by=catalog.name_of(offer.facts.ref.provider) or UNSET,
                window_tokens=offer.facts.window_tokens,
                output_tokens_max=offer.facts.output_tokens_max,
                vision=offer.facts.vision,
                tools=offer.facts.tools,
                efforts=None if offer.facts.efforts is None else list(offer.facts.efforts),
                price=price_words(offer.facts.price),
                default=offer.is_default,
                missing=_missing(catalog, offer.facts),
                retired=catalog.retired(offer.facts.ref) or UNSET,
            )
            for offer in offers
        ],
        allow=list(catalog.allow),
        known_on=MODELS_KNOWN_ON.isoformat(),
    )


async def show_models(desk: Desk, caller: Principal, asked: Show) -> ModelsShown:
    catalog = _catalog(desk)

    def body(conn: sa.Connection) -> list[tuple[Agent, Mind, SessionId | None]]:
        if not asked.session:
            return [(agent, Mind(), None) for agent in _asked_about(conn, caller, asked.agent)]
        session = sessions.resolve(conn, asked.session, seen_by=caller)
        agent = find_agent(conn, caller, session.agent)
        if asked.agent.casefold() not in ("", agent.name.casefold()):
            raise Conflict(
                f"this is a session of {agent.name}, not of {asked.agent[:64]}",
                because="a session is one agent's",
                try_this="leave the agent out",
                code="model.other-agent",
            )
        return [(agent, session.mind, session.id)]

    found = await desk.store.scan(body)
    return ModelsShown(
        default=str(catalog.default),
        default_because=catalog.default_because,
        agents=[await _of_agent(desk, catalog, agent, mind, session) for agent, mind, session in found],
        known_on=MODELS_KNOWN_ON.isoformat(),
    )


async def _of_agent(desk: Desk, catalog: Catalog, agent: Agent, mind: Mind, session: SessionId | None) -> AgentsModels:
    form = partial(
        AgentsModels,
        agent=agent.name,
        session=session or UNSET,
        runner=agent.runner,
        effort=mind.effort or agent.effort,
    )
    if agent.runner != "loop":
        return form(chain=[], refused=f"its runner, {agent.runner}, brings its own")
    try:
        links = catalog.links(agent=agent, mind=mind)
    except RetinueError as error:
        return form(chain=[], refused=f"{error.sentence}: {error.because}; try: {error.try_this}")
    facts = await asyncio.to_thread(lambda: [catalog.facts(link.ref) for link in links])
    chain = [
        ModelInChain(
            model=str(link.ref),
            because=link.because,
            window_tokens=known.window_tokens,
            price=price_words(known.price),
            missing=_missing(catalog, known),
            retired=catalog.retired(link.ref) or UNSET,
        )
        for link, known in zip(links, facts, strict=True)
    ]
    if desk.why_now is None:
        return form(chain=chain)
    return form(chain=chain, now=list(await desk.why_now(agent, mind, [link.ref for link in links])))


def price_words(price: Price | None) -> str:
    """Return the price per million input and output tokens as text."""
    if price is None:
        return NOT_KNOWN
    words = f"{usd(price.input)} in, {usd(price.output)} out"
    if price.call:
        words += f", {usd(price.call)} a call"
    return words if price != Price() else FREE


def _missing(catalog: Catalog, facts: ModelFacts) -> str | UnsetType:
    provider = facts.ref.provider
    return UNSET if catalog.has_key(provider) else catalog.missing_key(provider)


def _catalog(desk: Desk) -> Catalog:
    if desk.catalog is None:
        raise NotFound(
            "this house has no catalog of models",
            because="its models were put there by hand",
            try_this="open it with `retinue run`",
            code="model.no-catalog",
        )
    return desk.catalog()


def _asked_about(conn: sa.Connection, caller: Principal, name: str) -> Sequence[Agent]:
    """Return one agent, or all. An agent sees only itself."""
    own = caller.address.name if caller.address.kind is AddressKind.AGENT else ""
    return [find_agent(conn, caller, name or own)] if name or own else agents.everyone(conn)


OPERATIONS = (
    Operation(
        name="model.list",
        summary="List the models there are to choose from.",
        parameters=Nothing,
        handler=list_models,
        result=ModelsListed,
        permission=PermissionLevel.STANDARD,
    ),
    Operation(
        name="model.show",
        summary="Show which models would be asked now, and why.",
        parameters=Show,
        handler=show_models,
        result=ModelsShown,
        permission=PermissionLevel.STANDARD,
    ),
)
