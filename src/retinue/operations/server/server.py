"""Show the server's status and initial client state, check the ledger, and explain what happened to an item."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import msgspec
import sqlalchemy as sa

from retinue.domain.address import AddressKind
from retinue.domain.agent import Agent, Colour, PermissionLevel
from retinue.domain.principal import Principal
from retinue.domain.times import show, to_ms
from retinue.operations.approval.approvals import ApprovalShown, waiting
from retinue.operations.base import Desk, Nothing, Operation
from retinue.operations.session.sessions import SessionListed, with_marks
from retinue.store.agents import agents
from retinue.store.core import events
from retinue.store.envelopes import envelope_lists
from retinue.store.ledger import ledger
from retinue.store.sessions import sessions

SESSIONS_SHOWN_MAX = 50


class Why(msgspec.Struct, forbid_unknown_fields=True):
    id: str


class State(msgspec.Struct, forbid_unknown_fields=True):
    hidden: Annotated[bool, msgspec.Meta(description="also the agents that pages do not show")] = False


class AgentHere(msgspec.Struct, frozen=True):
    name: str
    display_name: str  # empty: use `name`
    model: str
    description: str
    icon: str
    colour: Colour | None
    visible: bool


class HouseStatus(msgspec.Struct, frozen=True):
    version: str
    cursor: int
    agents: list[AgentHere]
    default_agent: str | None  # used if no agent is named
    approvals: list[ApprovalShown]
    you: str
    now: str


class HouseState(msgspec.Struct, frozen=True):
    """Initial state of a client, as of `cursor`. Events continue from there."""

    cursor: int
    you: str
    level: PermissionLevel
    agents: list[AgentHere]
    sessions: list[SessionListed]
    approvals: list[ApprovalShown]
    unread: int


class LedgerChecked(msgspec.Struct, frozen=True):
    holds: bool
    lines: list[str]


class Explained(msgspec.Struct, frozen=True):
    lines: list[str]


async def status(desk: Desk, caller: Principal, asked: Nothing) -> HouseStatus:
    def body(conn: sa.Connection) -> HouseStatus:
        return HouseStatus(
            version=desk.version,
            cursor=events.newest(conn),
            agents=(here := [_here(agent) for agent in agents.everyone(conn)]),
            default_agent=desk.default_agent(conn) if here else None,
            approvals=waiting(desk, conn, caller),
            you=str(caller.address),
            now=show(desk.clock.now(), desk.zone),
        )

    return await desk.store.scan(body)


def _here(agent: Agent) -> AgentHere:
    return AgentHere(
        agent.name,
        agent.display_name,
        agent.model,
        agent.description,
        icon=agent.icon,
        colour=agent.colour,
        visible=agent.visible,
    )


async def state(desk: Desk, caller: Principal, asked: State) -> HouseState:
    person = caller.address.name if caller.address.kind is AddressKind.PERSON else None

    def body(conn: sa.Connection) -> HouseState:
        found = sessions.listed(conn, after=sessions.Place(), limit=SESSIONS_SHOWN_MAX, seen_by=caller)
        return HouseState(
            cursor=events.newest(conn),
            you=str(caller.address),
            level=caller.level,
            agents=[_here(agent) for agent in agents.everyone(conn) if agent.visible or asked.hidden],
            sessions=with_marks(desk, conn, caller, found),
            approvals=waiting(desk, conn, caller),
            unread=envelope_lists.count_unread(conn, person) if person else 0,
        )

    return await desk.store.scan(body)


async def check_ledger(desk: Desk, caller: Principal, asked: Nothing) -> LedgerChecked:
    checked = await desk.store.scan(partial(ledger.check, now_ms=to_ms(desk.clock.now())))
    return LedgerChecked(holds=checked.holds, lines=checked.lines())


async def explain(desk: Desk, caller: Principal, asked: Why) -> Explained:
    from retinue.store.runs.why import why  # many rarely used queries: keep them out of startup

    found = await desk.store.scan(partial(why, id_text=asked.id, seen_by=caller))
    return Explained(found.lines(desk.zone))


OPERATIONS = (
    Operation(
        name="house.status",
        summary="Who is here, and what waits for you.",
        parameters=Nothing,
        handler=status,
        result=HouseStatus,
        permission=PermissionLevel.RESTRICTED,
    ),
    Operation(
        name="house.state",
        summary="Everything a client shows first, and the cursor from which its news goes on.",
        parameters=State,
        handler=state,
        result=HouseState,
        permission=PermissionLevel.RESTRICTED,
    ),
    Operation(
        name="house.ledger",
        summary="Prove that nothing is lost.",
        parameters=Nothing,
        handler=check_ledger,
        result=LedgerChecked,
        permission=PermissionLevel.PRIVILEGED,
    ),
    Operation(
        name="house.why",
        summary="Tell why something became what it is.",
        parameters=Why,
        handler=explain,
        result=Explained,
        permission=PermissionLevel.RESTRICTED,
    ),
)
