"""Store the session ids that external agents chose.

Each id is assigned to one session, and stays assigned to it if the session is deleted.
"""

from __future__ import annotations

import sqlalchemy as sa

from retinue.domain.ids import SessionId
from retinue.domain.session import Session
from retinue.store.core import tables as t
from retinue.store.sessions import sessions

_b = sa.bindparam
_k = t.external_keys
_get = sa.select(_k.c.session).where(_k.c.key == _b("key"))
_key_by_session = sa.select(_k.c.key).where(_k.c.session == _b("session"))
_insert = _k.insert()
_delete = _k.delete().where(_k.c.key == _b("the_key"))


def get(conn: sa.Connection, key: str) -> SessionId | None:
    found: str | None = conn.execute(_get, {"key": key}).scalar()
    return SessionId(found) if found is not None else None


def find_session(conn: sa.Connection, key: str) -> Session | None:
    """Return the session with this id. If there is none, return the session to which this external id is assigned."""
    if (session := sessions.get(conn, key)) is not None:
        return session
    chosen = get(conn, key)
    return sessions.get(conn, chosen) if chosen is not None else None


def get_key(conn: sa.Connection, session: str) -> str | None:
    return conn.execute(_key_by_session, {"session": session}).scalar()


def set_key(conn: sa.Connection, key: str, session: SessionId) -> None:
    """Assign an external id to this session. An earlier assignment of the id is replaced."""
    conn.execute(_delete, {"the_key": key})
    conn.execute(_insert, {"key": key, "session": session})
