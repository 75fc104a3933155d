"""Operations that delete sessions, list deleted sessions that can still be restored, and restore them."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import sqlalchemy as sa

from retinue.domain.agent import PermissionLevel
from retinue.domain.errors import AmbiguousId
from retinue.domain.event import EventKind
from retinue.domain.ids import CANDIDATES_SHOWN_MAX, parse_id_prefix, short_id, shortest_unique_prefixes
from retinue.domain.principal import Principal
from retinue.domain.session import Origin, OriginKind, Session
from retinue.domain.times import format_time, to_ms
from retinue.operations.base import Operation, Services
from retinue.operations.session.errors import SessionNotRestorable, SessionOriginTaken
from retinue.operations.session.sessions import (
    SessionIdRequest,
    SessionSummary,
    check_owner,
    find_free_name,
    require_agent,
    to_session_summary,
    write_session,
)
from retinue.store.core.transaction import Transaction
from retinue.store.sessions import sessions

LIST_LIMIT_MAX = 50

RESTORABLE_DAYS = 30  # after deletion


class DeletedSessionListRequest(msgspec.Struct, forbid_unknown_fields=True):
    limit: int = 10


class DeletedSessionRow(SessionSummary):
    deleted_at: str
    restorable_until: str


class DeletedSessionList(msgspec.Struct):
    sessions: list[DeletedSessionRow]


async def list_deleted_sessions(
    services: Services, caller: Principal, request: DeletedSessionListRequest
) -> DeletedSessionList:
    """List the deleted sessions that can be restored, most recently deleted first."""
    limit = max(1, min(request.limit, LIST_LIMIT_MAX))
    found = await services.store.scan(
        lambda conn: sessions.list_deleted(conn, since_ms=_restorable_since_ms(services), limit=limit, seen_by=caller)
    )
    return DeletedSessionList([_to_deleted_session_row(services, session) for session in found])


async def restore_session(services: Services, caller: Principal, request: SessionIdRequest) -> SessionSummary:
    """Restore a deleted session with all its records.

    Runs and envelopes that were cancelled by the deletion stay cancelled.
    """

    def body(conn: sa.Connection) -> Session:
        tx = Transaction(conn, to_ms(services.clock.now()))
        back = restore_in_transaction(tx, caller, _require_deleted_session(services, conn, caller, request.session))
        tx.close()
        return back

    return to_session_summary(services, await services.store.write(body, point="session"))


def restore_in_transaction(tx: Transaction, caller: Principal, session: Session) -> Session:
    """Restore a session inside the caller's transaction."""
    check_owner(caller, session)
    agent = require_agent(tx.conn, session.agent)
    name = find_free_name(tx.conn, agent.name, session.name)
    sessions.restore(tx.conn, session.id, name=name, origin=_restored_origin(tx.conn, session), at_ms=tx.at_ms)
    tx.emit(EventKind.SESSION_RESTORED, session=session.id, agent=agent.name, by=str(caller.address))
    back = sessions.get(tx.conn, session.id)
    assert back is not None  # written above, in the same transaction
    return back


def _require_deleted_session(services: Services, conn: sa.Connection, caller: Principal, text: str) -> Session:
    """Return the deleted session with this id prefix. Raise if none can be restored, or if several match."""
    digits = parse_id_prefix(text)
    found = sessions.list_deleted(
        conn, since_ms=_restorable_since_ms(services), limit=CANDIDATES_SHOWN_MAX + 1, digits=digits, seen_by=caller
    )
    if len(found) > 1:
        candidates = tuple(shortest_unique_prefixes([session.id for session in found])[:CANDIDATES_SHOWN_MAX])
        raise AmbiguousId(digits, candidates, matches=len(found))
    if not found:
        raise SessionNotRestorable(digits, days_max=RESTORABLE_DAYS)
    return found[0]


def _restored_origin(conn: sa.Connection, session: Session) -> Origin:
    """Return the origin for a restored session.

    If another session has taken the old origin, a person's session gets a new one. A channel can have only
    one session, so in that case its session cannot be restored.
    """
    if sessions.get_by_origin(conn, session.agent, session.origin) is None:
        return session.origin
    whose = session.origin.key.partition("/")[0]
    if session.origin.belongs_to(whose):
        return Origin(OriginKind.WEB, f"{whose}/{session.id}", session.origin.parent)
    raise SessionOriginTaken(short_id(session.id), origin=f"{session.origin.kind}:{session.origin.key}")


def _restorable_since_ms(services: Services) -> int:
    return to_ms(services.clock.now() - timedelta(days=RESTORABLE_DAYS))


def _to_deleted_session_row(services: Services, session: Session) -> DeletedSessionRow:
    assert session.deleted_at is not None  # the query selects by it
    until = session.deleted_at + timedelta(days=RESTORABLE_DAYS)
    return DeletedSessionRow(
        **msgspec.structs.asdict(to_session_summary(services, session)),
        deleted_at=format_time(session.deleted_at, services.zone),
        restorable_until=format_time(until, services.zone),
    )


class SessionDeleted(msgspec.Struct):
    session: str
    deleted: bool
    cancelled_runs: list[str]
    cleared_pending_count: int
    restorable_until: str


async def delete_session(services: Services, caller: Principal, request: SessionIdRequest) -> SessionDeleted:
    """Delete a session, then stop its run.

    If the server stops before it has stopped the run, the run is ended at the next start.
    """

    def act(tx: Transaction, session: Session) -> None:
        check_owner(caller, session)
        sessions.delete(tx.conn, session.id, at_ms=tx.at_ms)
        tx.emit(EventKind.SESSION_DELETED, session=session.id, agent=session.agent, by=str(caller.address))

    until = services.clock.now() + timedelta(days=RESTORABLE_DAYS)
    session = await write_session(services, caller, request.session, act)
    done = await services.engine.cancel(
        session.id, by=str(caller.address), reason="the conversation was deleted", clear_due=True
    )
    if services.end_session_work is not None:
        await services.end_session_work(session.id, "its conversation was deleted")
    return SessionDeleted(
        session=session.id,
        deleted=True,
        cancelled_runs=[short_id(run) for run in done.runs],
        cleared_pending_count=done.cleared_envelopes,
        restorable_until=format_time(until, services.zone),
    )


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        name="session.deleted",
        summary="List deleted sessions that can be restored.",
        parameters=DeletedSessionListRequest,
        handler=list_deleted_sessions,
        permission=PermissionLevel.STANDARD,
        result=DeletedSessionList,
    ),
    Operation(
        name="session.restore",
        summary="Restore a deleted session.",
        parameters=SessionIdRequest,
        handler=restore_session,
        permission=PermissionLevel.STANDARD,
        has_effect=True,
        result=SessionSummary,
    ),
    Operation(
        name="session.delete",
        summary="Delete a session.",
        parameters=SessionIdRequest,
        handler=delete_session,
        permission=PermissionLevel.STANDARD,
        has_effect=True,
        result=SessionDeleted,
    ),
)
