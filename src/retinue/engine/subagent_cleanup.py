"""Archive or delete the session of a finished subagent.

Only after the delegating session has read the result, and while nothing runs or is due in it.
"""

from __future__ import annotations

import sqlalchemy as sa

from retinue.domain.delegation import Cleanup, Delegation
from retinue.domain.envelope import Status
from retinue.domain.event import NewsKind
from retinue.domain.ids import SessionId
from retinue.domain.session import Session, Wakefulness
from retinue.store.core.transaction import Page
from retinue.store.envelopes import envelopes
from retinue.store.runs import delegations, runs
from retinue.store.sessions import sessions

PUT_AWAY_AT_ONCE_MAX = 100
LOOK_AGAIN_MS = 10_000  # retry delay if a session was busy or its result unread


def put_away(conn: sa.Connection, *, now_ms: int) -> tuple[SessionId, ...]:
    """Clean up due subagent sessions, up to a limit per commit. Returns the sessions that ended."""
    page = Page(conn, now_ms)
    over: list[SessionId] = []
    for delegation in delegations.to_archive(conn, now_ms, limit=PUT_AWAY_AT_ONCE_MAX):
        session = sessions.get(conn, delegation.to) if delegation.to else None
        if session is None or session.deleted_at is not None:
            delegations.archived(conn, delegation.id, at_ms=page.at_ms)
        elif _is_busy(page, session) or not _is_read(page, delegation):
            delegations.archive_later(conn, delegation.id, at_ms=now_ms + LOOK_AGAIN_MS)
        else:
            _put_away(page, delegation, session)
            over.append(session.id)
    page.close()
    return tuple(over)


def _is_busy(page: Page, session: Session) -> bool:
    return (
        session.wakefulness is Wakefulness.ACTIVE
        or runs.open_in(page.conn, session.id) is not None
        or envelopes.any_due(page.conn, session.id, page.at_ms)
    )


def _is_read(page: Page, delegation: Delegation) -> bool:
    result = envelopes.get(page.conn, delegation.result) if delegation.result else None
    return result is None or result.status is Status.DONE


def _put_away(page: Page, delegation: Delegation, session: Session) -> None:
    if delegation.cleanup is Cleanup.DELETE:
        sessions.delete(page.conn, session.id, at_ms=page.at_ms)
        page.tell(NewsKind.SESSION_DELETED, session=session.id, agent=session.agent, by="house")
    elif session.pinned_at is None:  # a pinned session stays in the list
        sessions.archive(page.conn, session.id, at_ms=page.at_ms)
        page.tell(NewsKind.SESSION_CHANGED, session=session.id, archived=True)
    delegations.archived(page.conn, delegation.id, at_ms=page.at_ms)
