"""Store identities. An identity links a user's id on a platform to a person.

The id never changes. The display name is not used, because any user can choose it.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from retinue.domain.access import Identity
from retinue.domain.person import Person, Role
from retinue.domain.shared_errors import PersonNotFound
from retinue.domain.structs import replace
from retinue.domain.times import from_ms
from retinue.store.channels.errors import IdentityTaken, TooManyIdentities
from retinue.store.core import tables as t
from retinue.store.people import people

IDENTITIES_MAX = 10_000

_b = sa.bindparam
_c = t.identities.c
_all = sa.select(t.identities).order_by(_c.person, _c.platform, _c.id)
_find = sa.select(t.identities).where(_c.platform == _b("platform"), _c.id == _b("id"))
_person_by_id = (
    sa.select(t.people.c.name, t.people.c.role)
    .join(t.identities, _c.person == t.people.c.name)
    .where(_c.platform == _b("platform"), _c.id == _b("id"), t.people.c.erased_ms.is_(None))
)
_by_person = sa.select(t.identities).where(_c.person == _b("person")).order_by(_c.platform, _c.id)
_count = sa.select(sa.func.count()).select_from(t.identities)
_insert = t.identities.insert()
_remove = t.identities.delete().where(_c.platform == _b("the_service"), _c.id == _b("the_id"))
_remove_of_person = t.identities.delete().where(_c.person == _b("the_person"))


def _identity_from_row(row: sa.Row[Any]) -> Identity:
    return Identity(service=row.platform, id=row.id, person=row.person, made_by=row.made_by, at=from_ms(row.at_ms))


def list_all(conn: sa.Connection) -> list[Identity]:
    return [_identity_from_row(row) for row in conn.execute(_all)]


def list_of_person(conn: sa.Connection, person: str) -> list[Identity]:
    return [_identity_from_row(row) for row in conn.execute(_by_person, {"person": person})]


def find_person(conn: sa.Connection, service: str, id_: str) -> Person | None:
    """Return the person to whom a platform id is linked. Returns None if it is not linked or the person was erased."""
    row = conn.execute(_person_by_id, {"platform": service, "id": id_}).one_or_none()
    return Person(name=row.name, role=Role(row.role)) if row else None


def link(conn: sa.Connection, identity: Identity, *, at_ms: int) -> Identity:
    """Link a platform id to a person. Raises `IdentityTaken` if the id is linked to another person."""
    person = people.find(conn, identity.person)
    if person is None:
        raise PersonNotFound(identity.person)
    row = conn.execute(_find, {"platform": identity.service, "id": identity.id}).one_or_none()
    if row is not None and row.person == person.name:
        return _identity_from_row(row)
    if row is not None:
        raise IdentityTaken(identity.service, person=row.person)
    if conn.execute(_count).scalar_one() >= IDENTITIES_MAX:
        raise TooManyIdentities(count_max=IDENTITIES_MAX)
    values = {"platform": identity.service, "id": identity.id, "person": person.name, "made_by": identity.made_by}
    conn.execute(_insert, {**values, "at_ms": at_ms})
    return replace(identity, person=person.name, at=from_ms(at_ms))


def unlink(conn: sa.Connection, service: str, id_: str) -> bool:
    return bool(conn.execute(_remove, {"the_service": service, "the_id": id_}).rowcount)


def unlink_all(conn: sa.Connection, person: str) -> list[Identity]:
    """Unlink all platform ids of a person. Returns the removed identities."""
    theirs = list_of_person(conn, person)
    conn.execute(_remove_of_person, {"the_person": person})
    return theirs
