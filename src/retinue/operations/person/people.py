"""Operations on people: list, invite, change the role, and erase."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import msgspec
import sqlalchemy as sa

from retinue.domain import address
from retinue.domain.address import valid_name
from retinue.domain.agent import PermissionLevel
from retinue.domain.errors import Conflict, Invalid, NotAllowed, NotFound
from retinue.domain.person import Person, Role
from retinue.domain.principal import LEVEL_OF, Principal
from retinue.domain.times import show, to_ms
from retinue.domain.token import TokenKind, hash_of
from retinue.operations.base import Desk, Nothing, Operation
from retinue.operations.person.tokens import new_token
from retinue.policy.access.permissions import reaches
from retinue.store.people import people, tokens

INVITATION_DAYS = 7


class Invite(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    role: Role = Role.MEMBER


class Named(msgspec.Struct, forbid_unknown_fields=True):
    name: str


class SetRole(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    role: Role


class Forget(msgspec.Struct, forbid_unknown_fields=True):
    """`confirm` repeats the name, because erasing cannot be undone."""

    name: str
    confirm: str = ""


class PersonShown(msgspec.Struct, frozen=True):
    name: str
    role: Role
    level: PermissionLevel


class PeopleListed(msgspec.Struct, frozen=True):
    people: list[PersonShown]


class CallerShown(msgspec.Struct, frozen=True, rename="kebab"):
    address: str
    level: PermissionLevel
    sees_all: bool


class PersonInvited(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """If the request is repeated with the same key, `shown-once` lists `invitation` instead."""

    name: str
    role: Role
    invitation: str | msgspec.UnsetType = msgspec.UNSET
    expires_at: str
    shown_once: list[str] | msgspec.UnsetType = msgspec.UNSET


class PersonForgotten(msgspec.Struct, frozen=True):
    """Numbers of rows erased from the store."""

    name: str
    sessions: int
    envelopes: int
    records: int


async def listed(desk: Desk, caller: Principal, asked: Nothing) -> PeopleListed:
    """List all people. Guests see only themselves."""
    found = await desk.store.scan(people.everyone)
    if not reaches(caller.level, PermissionLevel.STANDARD):
        found = [person for person in found if address.person(person.name) == caller.address]
    return PeopleListed([form(person) for person in found])


async def whoami(desk: Desk, caller: Principal, asked: Nothing) -> CallerShown:
    return CallerShown(str(caller.address), level=caller.level, sees_all=caller.sees_all)


async def invite(desk: Desk, caller: Principal, asked: Invite) -> PersonInvited:
    name = valid_name(asked.name, what="a person")
    if asked.role is Role.OWNER:
        raise Invalid(
            "a house has one owner",
            because="the owner sees and may do everything",
            try_this="invite a member",
            code="person.second-owner",
        )
    now = desk.clock.now()
    expires_at = now + timedelta(days=INVITATION_DAYS)
    token, secret, token_hash = new_token(
        desk, address.person(name), TokenKind.INVITE, label=asked.role, now=now, expires_at=expires_at
    )

    def body(conn: sa.Connection) -> None:
        _refuse_taken(conn, name)
        # A new invitation replaces an earlier one of the same name.
        tokens.revoke_all(conn, str(address.person(name)), at_ms=to_ms(now))
        tokens.add(conn, token, token_hash)

    await desk.store.write(body, point="person")
    return PersonInvited(name=name, role=asked.role, invitation=secret, expires_at=show(expires_at, desk.zone))


async def accept_invitation(desk: Desk, secret: str) -> dict[str, Any]:
    """Redeem an invitation, once: add the person it names and return a token for them."""
    now = desk.clock.now()
    look = partial(tokens.by_hash, token_hash=hash_of(secret), now_ms=to_ms(now))
    invitation = await desk.store.read(look)
    if invitation is None or invitation.kind is not TokenKind.INVITE:
        raise _not_good()
    name, role = invitation.principal.name, Role(invitation.label)
    token, made, token_hash = new_token(desk, invitation.principal, TokenKind.TOKEN, label="first", now=now)

    def body(conn: sa.Connection) -> None:
        if not tokens.revoke(conn, invitation.id, at_ms=to_ms(now)):
            raise _not_good()  # redeemed by a concurrent request
        _refuse_taken(conn, name)
        people.add(conn, Person(name=name, role=role), at_ms=to_ms(now))
        tokens.add(conn, token, token_hash)

    await desk.store.write(body, point="person")
    return {"name": name, "role": role, "level": LEVEL_OF[role], "token": made}


def _not_good() -> NotAllowed:
    return NotAllowed(
        "this invitation is not good",
        because="it was used, taken back, or has expired",
        try_this="ask for a new one",
        code="invitation.not-good",
    )


def _refuse_taken(conn: sa.Connection, name: str) -> None:
    if people.is_taken(conn, name):
        raise Conflict(
            f"the name '{name}' is taken",
            because="there is, or was, a person of that name, and mail under it",
            try_this="choose another name",
            code="person.taken",
        )


async def set_role(desk: Desk, caller: Principal, asked: SetRole) -> PersonShown:
    def body(conn: sa.Connection) -> Person:
        person = _find(conn, asked.name)
        _refuse_owner(person, asked.role)
        people.set_role(conn, person.name, asked.role)
        return Person(name=person.name, role=asked.role)

    return form(await desk.store.write(body, point="person"))


async def forget(desk: Desk, caller: Principal, asked: Forget) -> PersonForgotten:
    """Erase a person: revoke all access, remove their messages from the store and block their name."""
    now_ms = to_ms(desk.clock.now())
    person = await desk.store.read(lambda conn: _find(conn, asked.name))
    _refuse_owner(person, None)
    if asked.confirm != person.name:
        raise Invalid(
            f"say again whom to forget: confirm must be '{person.name}'",
            because="what is forgotten cannot be brought back",
            try_this=f"repeat the name in `confirm`: {person.name}",
            code="person.not-confirmed",
        )
    from retinue.store.maintenance import (
        erase_person,  # lazy: large and rarely needed
    )

    for session in await desk.store.scan(partial(erase_person.own_sessions, person=person.name)):
        await desk.engine.cancel(session, by=str(caller.address), why=f"{person.name} is forgotten", clear_due=True)
    told = await desk.store.write(partial(erase_person.forget, person=person.name, now_ms=now_ms), point="forget")
    return PersonForgotten(person.name, sessions=told.sessions, envelopes=told.envelopes, records=told.records)


def _find(conn: sa.Connection, name: str) -> Person:
    person = people.find(conn, name)
    if person is None:
        raise NotFound(
            f"there is no person '{name[:80]}' in this house",
            because="nobody of that name was added",
            try_this="look at `retinue person list`",
            code="person.not-found",
        )
    return person


def _refuse_owner(person: Person, role: Role | None) -> None:
    if person.role is Role.OWNER or role is Role.OWNER:
        raise Invalid(
            "this is not possible for the owner",
            because="a house has one owner, whose rights cannot be lost by accident",
            try_this="choose someone else",
            code="person.is-owner",
        )


def form(person: Person) -> PersonShown:
    return PersonShown(person.name, role=person.role, level=LEVEL_OF[person.role])


OPERATIONS = (
    Operation(
        name="person.list",
        summary="Who is at home here.",
        parameters=Nothing,
        handler=listed,
        result=PeopleListed,
        permission=PermissionLevel.RESTRICTED,
    ),
    Operation(
        name="person.whoami",
        summary="Who you are, and what you may do.",
        parameters=Nothing,
        handler=whoami,
        result=CallerShown,
        permission=PermissionLevel.RESTRICTED,
    ),
    Operation(
        name="person.invite",
        summary="Invite someone. The invitation is shown this once.",
        parameters=Invite,
        handler=invite,
        result=PersonInvited,
        permission=PermissionLevel.BOSS,
        effect=True,
        shown_once=frozenset({"invitation"}),
    ),
    Operation(
        name="person.role",
        summary="Make someone a member or a guest.",
        parameters=SetRole,
        handler=set_role,
        result=PersonShown,
        permission=PermissionLevel.BOSS,
        effect=True,
    ),
    Operation(
        name="person.forget",
        summary="Sign someone out for good, and take their words out of the store.",
        parameters=Forget,
        handler=forget,
        result=PersonForgotten,
        permission=PermissionLevel.BOSS,
        effect=True,
    ),
)
