"""People in the store, each with the hash of a token. The token itself is shown once and never kept."""

from __future__ import annotations

import sqlalchemy as sa

from retinue.domain.person import Person, Role
from retinue.store import tables as t

_b = sa.bindparam
_find = sa.select(t.people.c.name, t.people.c.role).where(t.people.c.folded == _b("folded"))
_by_token = sa.select(t.people.c.name, t.people.c.role).where(t.people.c.token_hash == _b("hash"))
_insert = t.people.insert()
_token = t.people.update().where(t.people.c.name == _b("the_name")).values(token_hash=_b("hash"))


def find(conn: sa.Connection, name: str) -> Person | None:
    """The person of this name, in whatever case it is written."""
    row = conn.execute(_find, {"folded": name.casefold()}).one_or_none()
    return Person(name=row.name, role=Role(row.role)) if row else None


def by_token(conn: sa.Connection, token_hash: str) -> Person | None:
    row = conn.execute(_by_token, {"hash": token_hash}).one_or_none()
    return Person(name=row.name, role=Role(row.role)) if row else None


def add(conn: sa.Connection, person: Person, *, at_ms: int, token_hash: str | None = None) -> None:
    conn.execute(
        _insert,
        {
            "name": person.name,
            "folded": person.name.casefold(),
            "role": person.role.value,
            "token_hash": token_hash,
            "created_ms": at_ms,
        },
    )


def set_token(conn: sa.Connection, name: str, token_hash: str) -> None:
    conn.execute(_token, {"the_name": name, "hash": token_hash})
