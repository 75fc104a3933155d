"""Identities: permanent platform ids, and the people they belong to."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from retinue.domain.access import Identity
from retinue.domain.errors import Conflict, NotFound
from retinue.domain.person import Person, Role
from retinue.domain.times import from_ms
from retinue.store.core import tables as t
from retinue.store.people import people

IDENTITIES_MAX = 10_000

_b = sa.bindparam
_c = t.identities.c
_all = sa.select(t.identities).order_by(_c.person, _c.service, _c.id)
_find = sa.select(t.identities).where(_c.service == _b("service"), _c.id == _b("id"))
_who = (
    sa.select(t.people.c.name, t.people.c.role)
    .join(t.identities, _c.person == t.people.c.name)
    .where(_c.service == _b("service"), _c.id == _b("id"), t.people.c.forgotten_ms.is_(None))
)
_of = sa.select(t.identities).where(_c.person == _b("person")).order_by(_c.service, _c.id)
_count = sa.select(sa.func.count()).select_from(t.identities)
_insert = t.identities.insert()
_remove = t.identities.delete().where(_c.service == _b("the_service"), _c.id == _b("the_id"))
_forget = t.identities.delete().where(_c.person == _b("the_person"))


def _identity(row: sa.Row[Any]) -> Identity:
    return Identity(service=row.service, id=row.id, person=row.person, made_by=row.made_by, at=from_ms(row.at_ms))


def everything(conn: sa.Connection) -> list[Identity]:
    return [_identity(row) for row in conn.execute(_all)]


def of(conn: sa.Connection, person: str) -> list[Identity]:
    return [_identity(row) for row in conn.execute(_of, {"person": person})]


def who(conn: sa.Connection, service: str, id_: str) -> Person | None:
    """Return the person with this id on a platform, or None if it is not linked or the person was erased."""
    row = conn.execute(_who, {"service": service, "id": id_}).one_or_none()
    return Person(name=row.name, role=Role(row.role)) if row else None


def link(conn: sa.Connection, identity: Identity, *, at_ms: int) -> Identity:
    """Link an id to a person. An id belongs to one person until it is unlinked."""
    person = people.find(conn, identity.person)
    if person is None:
        raise NotFound(
            f"there is no person '{identity.person[:64]}'",
            because="an id is linked to somebody of the house",
            try_this="retinue person list",
            code="person.not-found",
        )
    row = conn.execute(_find, {"service": identity.service, "id": identity.id}).one_or_none()
    if row is not None and row.person == person.name:
        return _identity(row)
    if row is not None:
        raise Conflict(
            f"this id of {identity.service} is {row.person}'s",
            because="an id is one person's",
            try_this=f"unlink it from {row.person} first",
            code="identity.taken",
        )
    if conn.execute(_count).scalar_one() >= IDENTITIES_MAX:
        raise Conflict(
            "there are too many linked ids",
            because=f"a house has {IDENTITIES_MAX:,} at most",
            try_this="unlink those that nobody uses",
            code="identity.too-many",
        )
    values = {"service": identity.service, "id": identity.id, "person": person.name, "made_by": identity.made_by}
    conn.execute(_insert, {**values, "at_ms": at_ms})
    return Identity(**values, at=from_ms(at_ms))


def unlink(conn: sa.Connection, service: str, id_: str) -> bool:
    return bool(conn.execute(_remove, {"the_service": service, "the_id": id_}).rowcount)


def forget(conn: sa.Connection, person: str) -> list[Identity]:
    """Unlink all ids of a person. Returns them."""
    theirs = of(conn, person)
    conn.execute(_forget, {"the_person": person})
    return theirs
