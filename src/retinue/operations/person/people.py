"""Operations that list, invite and erase people, and change their roles."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import msgspec
import sqlalchemy as sa

from retinue.domain import address
from retinue.domain.address import validate_name
from retinue.domain.agent import PermissionLevel
from retinue.domain.person import Person, Role
from retinue.domain.principal import LEVEL_BY_ROLE, Principal
from retinue.domain.shared_errors import PersonNotFound
from retinue.domain.times import format_time, to_ms
from retinue.domain.token import TokenKind, hash_token
from retinue.operations.base import EmptyRequest, Operation, Services
from retinue.operations.person.errors import (
    InvitationInvalid,
    OwnerUnchangeable,
    PersonForgetUnconfirmed,
    PersonNameTaken,
    SecondOwnerNotAllowed,
)
from retinue.operations.person.tokens import build_token
from retinue.policy.access.operation_permissions import is_at_least
from retinue.store.people import people, tokens

INVITATION_TTL_DAYS = 7


class PersonInviteRequest(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    role: Role = Role.MEMBER


class PersonNameRequest(msgspec.Struct, forbid_unknown_fields=True):
    name: str


class PersonRoleRequest(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    role: Role


class PersonForgetRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Erase a person. This cannot be undone, so `confirm` must repeat the name."""

    name: str
    confirm: str = ""


class PersonDetails(msgspec.Struct, frozen=True):
    name: str
    role: Role
    level: PermissionLevel


class PersonList(msgspec.Struct, frozen=True):
    people: list[PersonDetails]


class CallerDetails(msgspec.Struct, frozen=True):
    address: str
    level: PermissionLevel
    sees_all: bool


class PersonInvited(msgspec.Struct, frozen=True, kw_only=True):
    """The new invitation.

    If the request is repeated with the same idempotency key, the response has no `invitation`, and
    `shown_once` lists this field.
    """

    name: str
    role: Role
    invitation: str | msgspec.UnsetType = msgspec.UNSET
    expires_at: str
    shown_once: list[str] | msgspec.UnsetType = msgspec.UNSET


class PersonForgotten(msgspec.Struct, frozen=True):
    """Result of erasing a person: the number of sessions, envelopes and records that were erased too."""

    name: str
    sessions: int
    envelopes: int
    records: int


async def list_people(services: Services, caller: Principal, request: EmptyRequest) -> PersonList:
    """List all people. Guests see only themselves."""
    found = await services.store.scan(people.list_all)
    if not is_at_least(caller.level, PermissionLevel.STANDARD):
        found = [person for person in found if address.person_address(person.name) == caller.address]
    return PersonList([to_person_details(person) for person in found])


async def show_caller(services: Services, caller: Principal, request: EmptyRequest) -> CallerDetails:
    return CallerDetails(str(caller.address), level=caller.level, sees_all=caller.sees_everything)


async def invite_person(services: Services, caller: Principal, request: PersonInviteRequest) -> PersonInvited:
    name = validate_name(request.name, what="a person")
    if request.role is Role.OWNER:
        raise SecondOwnerNotAllowed(name)
    now = services.clock.now()
    expires_at = now + timedelta(days=INVITATION_TTL_DAYS)
    token, secret, token_hash = build_token(
        services, address.person_address(name), TokenKind.INVITE, label=request.role, now=now, expires_at=expires_at
    )

    def body(conn: sa.Connection) -> None:
        _check_name_free(conn, name)
        # A new invitation replaces an earlier one for the same name.
        tokens.revoke_all(conn, str(address.person_address(name)), at_ms=to_ms(now))
        tokens.add(conn, token, token_hash)

    await services.store.write(body, point="person")
    return PersonInvited(
        name=name, role=request.role, invitation=secret, expires_at=format_time(expires_at, services.zone)
    )


async def accept_invitation(services: Services, secret: str) -> dict[str, Any]:
    """Accept an invitation: add the person that it names, and return a token for that person.

    An invitation can be accepted only once.
    """
    now = services.clock.now()
    look = partial(tokens.find_by_hash, token_hash=hash_token(secret), now_ms=to_ms(now))
    invitation = await services.store.read(look)
    if invitation is None or invitation.kind is not TokenKind.INVITE:
        raise InvitationInvalid()
    name, role = invitation.principal.name, Role(invitation.label)
    token, made, token_hash = build_token(services, invitation.principal, TokenKind.TOKEN, label="first", now=now)

    def body(conn: sa.Connection) -> None:
        if not tokens.revoke(conn, invitation.id, at_ms=to_ms(now)):
            raise InvitationInvalid()  # redeemed by a concurrent request
        _check_name_free(conn, name)
        people.add(conn, Person(name=name, role=role), at_ms=to_ms(now))
        tokens.add(conn, token, token_hash)

    await services.store.write(body, point="person")
    return {"name": name, "role": role, "level": LEVEL_BY_ROLE[role], "token": made}


def _check_name_free(conn: sa.Connection, name: str) -> None:
    if people.is_taken(conn, name):
        raise PersonNameTaken(name)


async def set_person_role(services: Services, caller: Principal, request: PersonRoleRequest) -> PersonDetails:
    def body(conn: sa.Connection) -> Person:
        person = _require_person(conn, request.name)
        _check_not_owner(person, request.role)
        people.set_role(conn, person.name, request.role)
        return Person(name=person.name, role=request.role)

    return to_person_details(await services.store.write(body, point="person"))


async def forget_person(services: Services, caller: Principal, request: PersonForgetRequest) -> PersonForgotten:
    """Erase a person: revoke all access, remove their messages from the store and block their name."""
    now_ms = to_ms(services.clock.now())
    person = await services.store.read(lambda conn: _require_person(conn, request.name))
    _check_not_owner(person, None)
    if request.confirm != person.name:
        raise PersonForgetUnconfirmed(person.name)
    from retinue.store.maintenance import erase_person

    for session in await services.store.scan(partial(erase_person.list_own_sessions, person=person.name)):
        await services.engine.cancel(
            session, by=str(caller.address), reason=f"{person.name} was forgotten", clear_due=True
        )
    erased = await services.store.write(
        partial(erase_person.erase_person, person=person.name, now_ms=now_ms), point="forget"
    )
    return PersonForgotten(person.name, sessions=erased.sessions, envelopes=erased.envelopes, records=erased.records)


def _require_person(conn: sa.Connection, name: str) -> Person:
    person = people.find(conn, name)
    if person is None:
        raise PersonNotFound(name)
    return person


def _check_not_owner(person: Person, role: Role | None) -> None:
    if person.role is Role.OWNER or role is Role.OWNER:
        raise OwnerUnchangeable()


def to_person_details(person: Person) -> PersonDetails:
    return PersonDetails(person.name, role=person.role, level=LEVEL_BY_ROLE[person.role])


OPERATIONS = (
    Operation(
        name="person.list",
        summary="List people and their roles.",
        parameters=EmptyRequest,
        handler=list_people,
        result=PersonList,
        permission=PermissionLevel.RESTRICTED,
    ),
    Operation(
        name="person.whoami",
        summary="Show your address and your permission level.",
        parameters=EmptyRequest,
        handler=show_caller,
        result=CallerDetails,
        permission=PermissionLevel.RESTRICTED,
    ),
    Operation(
        name="person.invite",
        summary="Invite a person. The invitation is shown only once.",
        parameters=PersonInviteRequest,
        handler=invite_person,
        result=PersonInvited,
        permission=PermissionLevel.BOSS,
        has_effect=True,
        secret_fields=frozenset({"invitation"}),
    ),
    Operation(
        name="person.role",
        summary="Change a person's role.",
        parameters=PersonRoleRequest,
        handler=set_person_role,
        result=PersonDetails,
        permission=PermissionLevel.BOSS,
        has_effect=True,
    ),
    Operation(
        name="person.forget",
        summary="Erase a person: remove their access and delete their messages.",
        parameters=PersonForgetRequest,
        handler=forget_person,
        result=PersonForgotten,
        permission=PermissionLevel.BOSS,
        has_effect=True,
    ),
)
