"""Store the preferences of each person: small JSON values with a key, such as the theme."""

from __future__ import annotations

import sqlalchemy as sa

from retinue.store.core import tables as t

_b = sa.bindparam
_p = t.preferences.c
_is_of_person = _p.person == _b("the_person")
_has_key = sa.and_(_is_of_person, _p.key == _b("the_key"))
_get = sa.select(_p.value).where(_has_key)
_all = sa.select(_p.key, _p.value).where(_is_of_person).order_by(_p.key)
_count = sa.select(sa.func.count()).select_from(t.preferences).where(_is_of_person)
_insert = t.preferences.insert()
_change = t.preferences.update().where(_has_key).values(value=_b("new_value"), at_ms=_b("now"))
_remove = t.preferences.delete().where(_has_key)


def get(conn: sa.Connection, person: str, key: str) -> str | None:
    """Return the value of a preference as JSON, or None if it is not set."""
    return conn.execute(_get, {"the_person": person, "the_key": key}).scalar()


def list_all(conn: sa.Connection, person: str) -> dict[str, str]:
    return {row.key: row.value for row in conn.execute(_all, {"the_person": person})}


def count(conn: sa.Connection, person: str) -> int:
    return conn.execute(_count, {"the_person": person}).scalar_one()


def upsert(conn: sa.Connection, person: str, key: str, value: str, *, at_ms: int) -> None:
    changed = conn.execute(_change, {"the_person": person, "the_key": key, "new_value": value, "now": at_ms})
    if not changed.rowcount:
        conn.execute(_insert, {"person": person, "key": key, "value": value, "at_ms": at_ms})


def remove(conn: sa.Connection, person: str, key: str) -> bool:
    """Remove a preference. Returns whether it was set."""
    return conn.execute(_remove, {"the_person": person, "the_key": key}).rowcount == 1
