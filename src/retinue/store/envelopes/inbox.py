"""Store the inbox of each person: which envelopes they received, and which of these are unread."""

from __future__ import annotations

import sqlalchemy as sa

from retinue.domain.envelope import Envelope
from retinue.store.core import tables as t
from retinue.store.envelopes.envelopes import envelope_from_row

_b = sa.bindparam
_insert = t.inbox.insert()

_unread = (
    sa.select(t.envelopes)
    .join_from(t.inbox, t.envelopes, t.inbox.c.envelope == t.envelopes.c.id)
    .where(t.inbox.c.person == _b("person"), t.inbox.c.read_ms.is_(None), t.inbox.c.seq > _b("after"))
    .order_by(t.inbox.c.seq)
    .limit(_b("limit"))
)
_count_unread = sa.select(sa.func.count()).where(t.inbox.c.person == _b("person"), t.inbox.c.read_ms.is_(None))
_mark_read = (
    t.inbox.update()
    .where(t.inbox.c.envelope == _b("the_id"), t.inbox.c.person == _b("the_person"), t.inbox.c.read_ms.is_(None))
    .values(read_ms=_b("now"))
)


def add(conn: sa.Connection, id_: str, *, person: str, seq: int) -> None:
    conn.execute(_insert, {"envelope": id_, "person": person, "seq": seq, "read_ms": None})


def list_unread(conn: sa.Connection, person: str, *, limit: int, after_seq: int = 0) -> list[Envelope]:
    """List the unread envelopes of a person, oldest first."""
    return [
        envelope_from_row(row) for row in conn.execute(_unread, {"person": person, "limit": limit, "after": after_seq})
    ]


def count_unread(conn: sa.Connection, person: str) -> int:
    return conn.execute(_count_unread, {"person": person}).scalar_one()


def mark_read(conn: sa.Connection, ids: list[str], *, person: str, at_ms: int) -> int:
    if not ids:
        return 0
    return sum(conn.execute(_mark_read, {"the_id": id_, "the_person": person, "now": at_ms}).rowcount for id_ in ids)
