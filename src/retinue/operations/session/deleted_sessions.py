"""List deleted sessions that can still be restored, and restore one.

`sessions` has the delete operation.
"""

from __future__ import annotations

from datetime import timedelta

import msgspec
import sqlalchemy as sa

from retinue.domain.agent import PermissionLevel
from retinue.domain.errors import Ambiguous, Conflict, NotFound
from retinue.domain.event import NewsKind
from retinue.domain.ids import CANDIDATES_SHOWN_MAX, distinguish, prefix, short
from retinue.domain.principal import Principal
from retinue.domain.session import Origin, OriginKind, Session
from retinue.domain.times import show, to_ms
from retinue.operations.base import Desk, Operation
from retinue.operations.session.sessions import (
    RESTORABLE_DAYS,
    OfSession,
    SessionSummary,
    agent_named,
    check_own,
    free_name,
    summary,
)
from retinue.store.core.transaction import Page
from retinue.store.sessions import sessions

LISTED_MAX = 50


class Listing(msgspec.Struct, forbid_unknown_fields=True):
    limit: int = 10


class DeletedSession(SessionSummary):
    deleted_at: str
    restorable_until: str


class DeletedListed(msgspec.Struct):
    sessions: list[DeletedSession]


async def listed(desk: Desk, caller: Principal, asked: Listing) -> DeletedListed:
    """List deleted sessions, the last deleted first."""
    limit = max(1, min(asked.limit, LISTED_MAX))
    found = await desk.store.scan(
        lambda conn: sessions.deleted(conn, since_ms=_since_ms(desk), limit=limit, seen_by=caller)
    )
    return DeletedListed([_form(desk, session) for session in found])


async def restore(desk: Desk, caller: Principal, asked: OfSession) -> SessionSummary:
    """Restore a deleted session with all its records.

    Runs and envelopes that the deletion ended stay ended.
    """

    def body(conn: sa.Connection) -> Session:
        page = Page(conn, to_ms(desk.clock.now()))
        back = bring_back(page, caller, _deleted(desk, conn, caller, asked.session))
        page.close()
        return back

    return summary(desk, await desk.store.write(body, point="session"))


def bring_back(page: Page, caller: Principal, session: Session) -> Session:
    """Restore a session inside the caller's transaction."""
    check_own(caller, session)
    agent = agent_named(page.conn, session.agent)
    name = free_name(page.conn, agent.name, session.name)
    sessions.restore(page.conn, session.id, name=name, origin=_place(page.conn, session), at_ms=page.at_ms)
    page.tell(NewsKind.SESSION_RESTORED, session=session.id, agent=agent.name, by=str(caller.address))
    back = sessions.get(page.conn, session.id)
    assert back is not None  # written above, in the same transaction
    return back


def _deleted(desk: Desk, conn: sa.Connection, caller: Principal, text: str) -> Session:
    """Return the one restorable session with this id prefix."""
    digits = prefix(text)
    found = sessions.deleted(
        conn, since_ms=_since_ms(desk), limit=CANDIDATES_SHOWN_MAX + 1, digits=digits, seen_by=caller
    )
    if len(found) > 1:
        candidates = tuple(distinguish([session.id for session in found])[:CANDIDATES_SHOWN_MAX])
        raise Ambiguous(digits, candidates, matches=len(found))
    if not found:
        raise NotFound(
            f"no session {digits} can be brought back",
            because=f"none of that id was deleted in the last {RESTORABLE_DAYS} days",
            try_this="look at `session.deleted` for what can",
            code="session.not-restorable",
        )
    return found[0]


def _place(conn: sa.Connection, session: Session) -> Origin:
    """Return the origin of the restored session.

    If another session has taken its origin, a person gets a second session. A channel has only one,
    so that is a conflict.
    """
    if sessions.by_origin(conn, session.agent, session.origin) is None:
        return session.origin
    whose = session.origin.key.partition("/")[0]
    if session.origin.belongs_to(whose):
        return Origin(OriginKind.WEB, f"{whose}/{session.id}", session.origin.parent)
    raise Conflict(
        f"session {short(session.id)} has no place to come back to",
        because=f"another one has begun for {session.origin.kind}:{session.origin.key}",
        try_this="delete that one first",
        code="session.place-taken",
    )


def _since_ms(desk: Desk) -> int:
    return to_ms(desk.clock.now() - timedelta(days=RESTORABLE_DAYS))


def _form(desk: Desk, session: Session) -> DeletedSession:
    assert session.deleted_at is not None  # the query selects by it
    until = session.deleted_at + timedelta(days=RESTORABLE_DAYS)
    return DeletedSession(
        **msgspec.structs.asdict(summary(desk, session)),
        deleted_at=show(session.deleted_at, desk.zone),
        restorable_until=show(until, desk.zone),
    )


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        name="session.deleted",
        summary="List deleted sessions that can be brought back.",
        parameters=Listing,
        handler=listed,
        permission=PermissionLevel.STANDARD,
        result=DeletedListed,
    ),
    Operation(
        name="session.restore",
        summary="Bring a deleted session back.",
        parameters=OfSession,
        handler=restore,
        permission=PermissionLevel.STANDARD,
        effect=True,
        result=SessionSummary,
    ),
)
