"""Operations that list, show and stop subagents, read their history, and send them messages."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import msgspec
import sqlalchemy as sa

from retinue.domain import address
from retinue.domain.agent import PermissionLevel
from retinue.domain.delegation import Delegation, SubagentCleanup
from retinue.domain.errors import Invalid
from retinue.domain.ids import parse_id_prefix, short_id
from retinue.domain.principal import Principal
from retinue.domain.times import format_time, to_ms
from retinue.intake.subagent_results import describe_outcome, one_line
from retinue.operations.base import Operation, Services
from retinue.operations.delegation.errors import SubagentSelectionInvalid, SubagentSessionDeleted
from retinue.operations.envelope.envelopes import EnvelopeReceipt, EnvelopeSendRequest, send_envelope
from retinue.operations.pagination import check_limit, invalid_cursor
from retinue.operations.session.session_history import SessionHistory, SessionHistoryRequest, read_history
from retinue.store.envelopes import envelopes
from retinue.store.runs import delegations, spend_report, subagents
from retinue.store.runs.delegations import DelegationPosition
from retinue.store.sessions import sessions

LIST_MIN, LIST_MAX = 1, 100
STOPPED_MAX = 1_000


class SubagentListRequest(msgspec.Struct, forbid_unknown_fields=True):
    """List subagents. `cursor` is the `next` of the previous page."""

    session: Annotated[str, msgspec.Meta(description="only subagents started from this session")] = ""
    all: Annotated[bool, msgspec.Meta(description="include subagents whose session was archived or deleted")] = False
    limit: int = 20
    cursor: str = ""


class SubagentIdRequest(msgspec.Struct, forbid_unknown_fields=True):
    id: str


class SubagentStopRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Stop one subagent by `id`, or all that were started from `session`."""

    id: str = ""
    session: Annotated[str, msgspec.Meta(description="id of a session; all its subagents are stopped")] = ""
    reason: str = "asked to stop"


class SubagentLogRequest(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    limit: int = 50
    before: int | None = None


class SubagentSendRequest(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    text: str
    key: str = ""


class SubagentRow(msgspec.Struct, frozen=True):
    """One subagent. `outcome` is open, ok, error, timeout or stopped.

    `session` is the session of the subagent, and `requester` is the agent and session that started
    it.
    """

    id: str
    label: str
    agent: str
    outcome: str
    session: str | None
    session_key: str
    requester: str
    run: str
    task: str
    cleanup: SubagentCleanup
    created_at: str
    started_at: str | None
    ended_at: str | None
    archived_at: str | None


class SubagentDetails(SubagentRow, frozen=True):
    """One subagent with its full task, its result and its usage."""

    because: str
    result: str | None
    result_text: str
    input_tokens: int
    output_tokens: int
    cost_microusd: int


class SubagentList(msgspec.Struct, frozen=True):
    subagents: list[SubagentRow]
    next: str | None


class SubagentsStopped(msgspec.Struct, frozen=True):
    stopped: int
    subagents: list[str]
    cancelled_runs: list[str]
    cleared_pending_count: int


async def list_subagents(services: Services, caller: Principal, request: SubagentListRequest) -> SubagentList:
    check_limit(request.limit, least=LIST_MIN, most=LIST_MAX)
    after = _parse_cursor(request.cursor)

    def body(conn: sa.Connection) -> SubagentList:
        session = sessions.get_by_short_id(conn, request.session, seen_by=caller).id if request.session else ""
        found = subagents.list_subagents(
            conn, after=after, limit=request.limit + 1, session=session, include_archived=request.all, seen_by=caller
        )
        more = _format_cursor(found[request.limit - 1]) if len(found) > request.limit else None
        return SubagentList([_to_row(services, conn, each) for each in found[: request.limit]], more)

    return await services.store.scan(body)


async def show_subagent(services: Services, caller: Principal, request: SubagentIdRequest) -> SubagentDetails:
    def body(conn: sa.Connection) -> SubagentDetails:
        found = subagents.get_by_short_id(conn, request.id, seen_by=caller)
        result = envelopes.get(conn, found.result) if found.result else None
        used = spend_report.get_session_usage(conn, found.target_session or "")
        listed = msgspec.structs.replace(_to_row(services, conn, found), task=found.task)
        return SubagentDetails(
            **msgspec.structs.asdict(listed),
            because=found.because,
            result=found.result,
            result_text=result.text if result is not None else "",
            input_tokens=used.input_tokens,
            output_tokens=used.output_tokens,
            cost_microusd=used.cost_microusd,
        )

    return await services.store.scan(body)


async def stop_subagents(services: Services, caller: Principal, request: SubagentStopRequest) -> SubagentsStopped:
    """Stop subagents, and the subagents that they started.

    For each stopped subagent, the session that started it is notified once.
    """
    if bool(request.id) == bool(request.session):
        raise SubagentSelectionInvalid

    def body(conn: sa.Connection) -> list[Delegation]:
        if request.id:
            return [subagents.get_by_short_id(conn, request.id, seen_by=caller)]
        session = sessions.get_by_short_id(conn, request.session, seen_by=caller)
        return subagents.list_open(conn, session.id, limit=STOPPED_MAX)

    stopped: list[str] = []
    runs: list[str] = []
    cleared = 0
    for each in await services.store.read(body):
        if not each.state.is_open or each.target_session is None:
            continue
        done = await services.engine.cancel(
            each.target_session, by=str(caller.address), reason=request.reason[:200], clear_due=True
        )
        runs += map(short_id, done.runs)
        cleared += done.cleared_envelopes
        now = await services.store.read(partial(delegations.get, id_=each.id))
        if now is not None and not now.state.is_open:
            stopped.append(each.id)
    return SubagentsStopped(len(stopped), stopped, runs, cleared)


async def show_subagent_log(services: Services, caller: Principal, request: SubagentLogRequest) -> SessionHistory:
    session = await _require_session(services, caller, request.id)
    return await read_history(
        services, caller, SessionHistoryRequest(session=session, limit=request.limit, before=request.before)
    )


async def send_to_subagent(services: Services, caller: Principal, request: SubagentSendRequest) -> EnvelopeReceipt:
    """Send a message to a subagent. The answer goes to the caller, not to the agent that started the subagent."""
    found = await services.store.read(partial(subagents.get_by_short_id, text=request.id, seen_by=caller))
    session = await _require_session(services, caller, request.id)
    return await send_envelope(
        services,
        caller,
        EnvelopeSendRequest(
            to=str(address.agent_address(found.target)), session=session, text=request.text, key=request.key
        ),
    )


async def _require_session(services: Services, caller: Principal, id_: str) -> str:
    """Return the id of the subagent's session. Raise if it was deleted."""
    found = await services.store.read(partial(subagents.get_by_short_id, text=id_, seen_by=caller))
    session = await services.store.read(lambda conn: sessions.get(conn, found.target_session or ""))
    if session is None or session.deleted_at is not None:
        raise SubagentSessionDeleted(short_id(found.id), by_cleanup=found.cleanup is SubagentCleanup.DELETE)
    return session.id


def _to_row(services: Services, conn: sa.Connection, delegation: Delegation) -> SubagentRow:
    return SubagentRow(
        id=delegation.id,
        label=delegation.label,
        agent=delegation.target,
        outcome=describe_outcome(conn, delegation, delegation.state),
        session=delegation.target_session,
        session_key=delegation.worker_session_key,
        requester=str(address.agent_address(delegation.agent, delegation.session)),
        run=delegation.worker_run_id,
        task=one_line(delegation.task),
        cleanup=delegation.cleanup,
        created_at=format_time(delegation.created_at, services.zone),
        started_at=format_time(delegation.started_at, services.zone) if delegation.started_at else None,
        ended_at=format_time(delegation.ended_at, services.zone) if delegation.ended_at else None,
        archived_at=format_time(delegation.archived_at, services.zone) if delegation.archived_at else None,
    )


def _format_cursor(delegation: Delegation) -> str:
    return f"{to_ms(delegation.created_at)}.{delegation.id}"


def _parse_cursor(cursor: str) -> DelegationPosition:
    if not cursor:
        return DelegationPosition()
    created, _, id_ = cursor.partition(".")
    try:
        return DelegationPosition(int(created[:18]), parse_id_prefix(id_))
    except (ValueError, Invalid):
        raise invalid_cursor(cursor) from None


OPERATIONS = (
    Operation(
        name="subagent.list",
        summary="List subagents.",
        parameters=SubagentListRequest,
        handler=list_subagents,
        permission=PermissionLevel.RESTRICTED,
        result=SubagentList,
    ),
    Operation(
        name="subagent.show",
        summary="Show a subagent and its result.",
        parameters=SubagentIdRequest,
        handler=show_subagent,
        permission=PermissionLevel.RESTRICTED,
        result=SubagentDetails,
    ),
    Operation(
        name="subagent.stop",
        summary="Stop a subagent, or all subagents of a session.",
        parameters=SubagentStopRequest,
        handler=stop_subagents,
        permission=PermissionLevel.RESTRICTED,
        has_effect=True,
        result=SubagentsStopped,
    ),
    Operation(
        name="subagent.log",
        summary="Show the history of a subagent.",
        parameters=SubagentLogRequest,
        handler=show_subagent_log,
        permission=PermissionLevel.RESTRICTED,
        result=SessionHistory,
    ),
    Operation(
        name="subagent.send",
        summary="Send a message to a subagent.",
        parameters=SubagentSendRequest,
        handler=send_to_subagent,
        permission=PermissionLevel.RESTRICTED,
        has_effect=True,
        result=EnvelopeReceipt,
    ),
)
