"""Operations that show the server's status and initial state, check the ledger, and explain what happened."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import msgspec
import sqlalchemy as sa

from retinue.domain.address import AddressKind
from retinue.domain.agent import Agent, Color, PermissionLevel
from retinue.domain.principal import Principal
from retinue.domain.times import format_time, to_ms
from retinue.operations.approval.approvals import ApprovalDetails, list_open_approvals
from retinue.operations.base import EmptyRequest, Operation, Services
from retinue.operations.session.sessions import SessionRow, to_session_rows
from retinue.store.agents import agents
from retinue.store.core import events
from retinue.store.envelopes import inbox
from retinue.store.ledger import ledger
from retinue.store.sessions import sessions

SESSIONS_LISTED_MAX = 50


class WhyRequest(msgspec.Struct, forbid_unknown_fields=True):
    id: str


class InitialStateRequest(msgspec.Struct, forbid_unknown_fields=True):
    hidden: Annotated[bool, msgspec.Meta(description="include agents that the web app hides")] = False


class ServerAgentRow(msgspec.Struct, frozen=True):
    name: str
    display_name: str  # empty: use `name`
    model: str
    description: str
    icon: str
    color: Color | None
    visible: bool


class ServerStatus(msgspec.Struct, frozen=True):
    version: str
    cursor: int
    agents: list[ServerAgentRow]
    default_agent: str | None  # used if no agent is named
    approvals: list[ApprovalDetails]
    principal: str
    now: str


class InitialState(msgspec.Struct, frozen=True):
    """Everything that a client needs when it starts. The events after `cursor` report later changes."""

    cursor: int
    principal: str
    level: PermissionLevel
    agents: list[ServerAgentRow]
    sessions: list[SessionRow]
    approvals: list[ApprovalDetails]
    unread: int


class LedgerCheckResult(msgspec.Struct, frozen=True):
    ok: bool
    lines: list[str]


class WhyExplanation(msgspec.Struct, frozen=True):
    lines: list[str]


async def show_status(services: Services, caller: Principal, request: EmptyRequest) -> ServerStatus:
    def body(conn: sa.Connection) -> ServerStatus:
        return ServerStatus(
            version=services.version,
            cursor=events.newest_seq(conn),
            agents=(here := [_to_agent_row(agent) for agent in agents.list_all(conn)]),
            default_agent=services.default_agent(conn) if here else None,
            approvals=list_open_approvals(services, conn, caller),
            principal=str(caller.address),
            now=format_time(services.clock.now(), services.zone),
        )

    return await services.store.scan(body)


def _to_agent_row(agent: Agent) -> ServerAgentRow:
    return ServerAgentRow(
        agent.name,
        agent.display_name,
        agent.model,
        agent.description,
        icon=agent.icon,
        color=agent.color,
        visible=agent.visible,
    )


async def show_initial_state(services: Services, caller: Principal, request: InitialStateRequest) -> InitialState:
    person = caller.address.name if caller.address.kind is AddressKind.PERSON else None

    def body(conn: sa.Connection) -> InitialState:
        found = sessions.list_sessions(
            conn, after=sessions.SessionListPosition(), limit=SESSIONS_LISTED_MAX, seen_by=caller
        )
        return InitialState(
            cursor=events.newest_seq(conn),
            principal=str(caller.address),
            level=caller.level,
            agents=[_to_agent_row(agent) for agent in agents.list_all(conn) if agent.visible or request.hidden],
            sessions=to_session_rows(services, conn, caller, found),
            approvals=list_open_approvals(services, conn, caller),
            unread=inbox.count_unread(conn, person) if person else 0,
        )

    return await services.store.scan(body)


async def check_ledger(services: Services, caller: Principal, request: EmptyRequest) -> LedgerCheckResult:
    checked = await services.store.scan(partial(ledger.check_ledger, now_ms=to_ms(services.clock.now())))
    return LedgerCheckResult(ok=checked.is_ok, lines=checked.lines())


async def explain_why(services: Services, caller: Principal, request: WhyRequest) -> WhyExplanation:
    from retinue.store.runs.explanations import explain  # many rarely used queries: keep them out of startup

    found = await services.store.scan(partial(explain, id_text=request.id, seen_by=caller))
    return WhyExplanation(found.format_lines(services.zone))


OPERATIONS = (
    Operation(
        name="server.status",
        summary="Show the agents and your pending approvals.",
        parameters=EmptyRequest,
        handler=show_status,
        result=ServerStatus,
        permission=PermissionLevel.RESTRICTED,
    ),
    Operation(
        name="server.initial_state",
        summary="Return the state that a client needs when it starts, and the cursor for the events that follow.",
        parameters=InitialStateRequest,
        handler=show_initial_state,
        result=InitialState,
        permission=PermissionLevel.RESTRICTED,
    ),
    Operation(
        name="server.ledger",
        summary="Check the ledger: prove that no message was lost.",
        parameters=EmptyRequest,
        handler=check_ledger,
        result=LedgerCheckResult,
        permission=PermissionLevel.PRIVILEGED,
    ),
    Operation(
        name="server.why",
        summary="Explain what happened to an envelope, run, approval or session.",
        parameters=WhyRequest,
        handler=explain_why,
        result=WhyExplanation,
        permission=PermissionLevel.RESTRICTED,
    ),
)
