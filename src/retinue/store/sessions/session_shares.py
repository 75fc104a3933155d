"""Store the people with whom sessions are shared. What these people can see is defined in `core/row_visibility`."""

from __future__ import annotations

import sqlalchemy as sa

from retinue.store.core import tables as t

_b = sa.bindparam
_insert = t.session_shares.insert()
_delete = t.session_shares.delete().where(
    t.session_shares.c.session == _b("the_session"), t.session_shares.c.person == _b("the_person")
)
_select_people = (
    sa.select(t.session_shares.c.person)
    .where(t.session_shares.c.session == _b("session"))
    .order_by(t.session_shares.c.person)
)


def list_people(conn: sa.Connection, session: str) -> list[str]:
    """List the people with whom this session is shared."""
    return conn.execute(_select_people, {"session": session}).scalars().all()  # type: ignore[return-value]


def add(conn: sa.Connection, session: str, person: str, *, at_ms: int) -> bool:
    """Share a session with a person. Returns False if it was already shared with them."""
    if person in list_people(conn, session):
        return False
    conn.execute(_insert, {"session": session, "person": person, "at_ms": at_ms})
    return True


def remove(conn: sa.Connection, session: str, person: str) -> bool:
    """Stop sharing a session with a person. Returns False if it was not shared with them."""
    return conn.execute(_delete, {"the_session": session, "the_person": person}).rowcount == 1
