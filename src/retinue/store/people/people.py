"""Store people. Their tokens are stored by the module `tokens`."""

from __future__ import annotations

import sqlalchemy as sa

from retinue.domain.person import Person, Role
from retinue.store.core import tables as t

_b = sa.bindparam
_columns = (t.people.c.name, t.people.c.role)
_is_not_erased = t.people.c.erased_ms.is_(None)
_find = sa.select(*_columns).where(t.people.c.name_folded == _b("name_folded"), _is_not_erased)
_all = sa.select(*_columns).where(_is_not_erased).order_by(t.people.c.name_folded)
_any_by_name = sa.select(t.people.c.name).where(t.people.c.name_folded == _b("name_folded"))
_erased_names = sa.select(t.people.c.name_folded).where(t.people.c.erased_ms.is_not(None))
_insert = t.people.insert()
_set_role = t.people.update().where(t.people.c.name == _b("the_name")).values(role=_b("new_role"))
_mark_erased = t.people.update().where(t.people.c.name == _b("the_name")).values(erased_ms=_b("now"))


def find(conn: sa.Connection, name: str) -> Person | None:
    """Return the person with this name (case-insensitive), or None if there is none or the person was erased."""
    row = conn.execute(_find, {"name_folded": name.casefold()}).one_or_none()
    return Person(name=row.name, role=Role(row.role)) if row else None


def is_taken(conn: sa.Connection, name: str) -> bool:
    """Whether a person with this name exists or existed."""
    return conn.execute(_any_by_name, {"name_folded": name.casefold()}).scalar() is not None


def list_all(conn: sa.Connection) -> list[Person]:
    return [Person(name=row.name, role=Role(row.role)) for row in conn.execute(_all)]


def list_erased_names(conn: sa.Connection) -> set[str]:
    """Return the names of erased people, case-folded. These names stay reserved."""
    return set(conn.execute(_erased_names).scalars())


def add(conn: sa.Connection, person: Person, *, at_ms: int) -> None:
    conn.execute(
        _insert,
        {
            "name": person.name,
            "name_folded": person.name.casefold(),
            "role": person.role.value,
            "created_ms": at_ms,
            "erased_ms": None,
        },
    )


def set_role(conn: sa.Connection, name: str, role: Role) -> None:
    conn.execute(_set_role, {"the_name": name, "new_role": role.value})


def mark_erased(conn: sa.Connection, name: str, *, at_ms: int) -> None:
    """Mark a person as erased. The name stays reserved, so that no later person gets their messages."""
    conn.execute(_mark_erased, {"the_name": name, "now": at_ms})
