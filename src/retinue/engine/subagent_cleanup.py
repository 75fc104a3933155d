"""Archives or deletes the session of a finished subagent.

The session is cleaned up only after the delegating session has read the result, and only while nothing in it is running
or due.
"""

from __future__ import annotations

import sqlalchemy as sa

from retinue.domain.delegation import Delegation, SubagentCleanup
from retinue.domain.envelope import EnvelopeStatus
from retinue.domain.event import EventKind
from retinue.domain.ids import SessionId
from retinue.domain.session import Session, SessionActivity
from retinue.store.core.transaction import Transaction
from retinue.store.envelopes import envelopes
from retinue.store.runs import delegations, runs
from retinue.store.sessions import sessions

SESSIONS_PER_COMMIT_MAX = 100
RETRY_AFTER_MS = 10_000  # retry delay if a session was busy or its result unread


def clean_up_due_sessions(conn: sa.Connection, *, now_ms: int) -> tuple[SessionId, ...]:
    """Clean up due subagent sessions, up to a limit per commit. Returns the sessions that were cleaned up."""
    tx = Transaction(conn, now_ms)
    over: list[SessionId] = []
    for delegation in delegations.list_to_archive(conn, now_ms, limit=SESSIONS_PER_COMMIT_MAX):
        session = sessions.get(conn, delegation.target_session) if delegation.target_session else None
        if session is None or session.deleted_at is not None:
            delegations.mark_archived(conn, delegation.id, at_ms=tx.at_ms)
        elif _is_busy(tx, session) or not _is_result_read(tx, delegation):
            delegations.set_archive_time(conn, delegation.id, at_ms=now_ms + RETRY_AFTER_MS)
        else:
            _clean_up(tx, delegation, session)
            over.append(session.id)
    tx.close()
    return tuple(over)


def _is_busy(tx: Transaction, session: Session) -> bool:
    return (
        session.activity is SessionActivity.ACTIVE
        or runs.get_open(tx.conn, session.id) is not None
        or envelopes.has_due(tx.conn, session.id, tx.at_ms)
    )


def _is_result_read(tx: Transaction, delegation: Delegation) -> bool:
    result = envelopes.get(tx.conn, delegation.result) if delegation.result else None
    return result is None or result.status is EnvelopeStatus.DONE


def _clean_up(tx: Transaction, delegation: Delegation, session: Session) -> None:
    if delegation.cleanup is SubagentCleanup.DELETE:
        sessions.delete(tx.conn, session.id, at_ms=tx.at_ms)
        tx.emit(EventKind.SESSION_DELETED, session=session.id, agent=session.agent, by="server")
    elif session.pinned_at is None:  # a pinned session stays in the list
        sessions.set_archived(tx.conn, session.id, at_ms=tx.at_ms)
        tx.emit(EventKind.SESSION_CHANGED, session=session.id, archived=True)
    delegations.mark_archived(tx.conn, delegation.id, at_ms=tx.at_ms)
