"""Find a person's unread messages and the open runs of sessions, for lists of sessions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import sqlalchemy as sa

from retinue.domain import address
from retinue.domain.ids import RunId, SessionId
from retinue.domain.run import RunStatus
from retinue.store.core import tables as t

UNREAD_COUNTED_MAX = 1_000  # only the newest are counted: above this, the exact number does not matter

_b = sa.bindparam
_unread = (
    sa.select(t.inbox.c.envelope, t.envelopes.c.sender)
    .join_from(t.inbox, t.envelopes, t.inbox.c.envelope == t.envelopes.c.id)
    .where(t.inbox.c.person == _b("person"), t.inbox.c.read_ms.is_(None))
    .order_by(t.inbox.c.seq.desc())
    .limit(UNREAD_COUNTED_MAX)
)
_unread_from = _unread.where(t.envelopes.c.sender == _b("sender"))
_open_run = sa.select(t.runs.c.id, t.runs.c.status).where(
    t.runs.c.session == _b("session"), t.runs.c.status.in_(t.OPEN_RUN_STATUSES)
)


def count_unread(conn: sa.Connection, person: str) -> Mapping[SessionId, int]:
    """Return how many unread envelopes a person has from each session."""
    senders = (address.parse_address(row.sender) for row in conn.execute(_unread, {"person": person}))
    return Counter(sender.session for sender in senders if sender.session is not None)


def list_unread_from(conn: sa.Connection, person: str, *, agent: str, session: str) -> list[str]:
    """List the ids of a person's unread envelopes from one session."""
    asked = {"person": person, "sender": str(address.agent_address(agent, session))}
    return [row.envelope for row in conn.execute(_unread_from, asked)]


def get_open_runs(conn: sa.Connection, sessions: Iterable[SessionId]) -> Mapping[SessionId, tuple[RunId, RunStatus]]:
    """Return the open runs of these sessions, by session. Sessions without an open run are left out."""
    found: dict[SessionId, tuple[RunId, RunStatus]] = {}
    for session in sessions:
        row = conn.execute(_open_run, {"session": session}).one_or_none()
        if row is not None:
            found[session] = RunId(row.id), RunStatus(row.status)
    return found
