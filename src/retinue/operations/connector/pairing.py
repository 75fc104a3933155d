"""Operations on pairing requests of unknown senders, and on identities: platform ids linked to people."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import msgspec
import sqlalchemy as sa

from retinue.domain.access import Identity, Pairing, PairingState
from retinue.domain.address import NAME_LENGTH_MAX
from retinue.domain.agent import PermissionLevel
from retinue.domain.errors import Conflict, Invalid, NotFound
from retinue.domain.ids import prefix
from retinue.domain.principal import Principal
from retinue.domain.storable_text import is_storable
from retinue.domain.times import from_ms, to_ms
from retinue.domain.times import show as show_time
from retinue.operations.base import Desk, Nothing, Operation
from retinue.store.channels import identities, pairings

LISTED_MAX = 100
ID_CHARS_MAX = 512

Meta = msgspec.Meta


class Which(msgspec.Struct, forbid_unknown_fields=True):
    which: Annotated[str, Meta(description="the code that they were shown, or the id of the request")]


class Accept(msgspec.Struct, forbid_unknown_fields=True):
    which: Annotated[str, Meta(description="the code that they were shown, or the id of the request")]
    person: Annotated[str, Meta(description="who they are in this house, if they are somebody here")] = ""


class Dismiss(msgspec.Struct, forbid_unknown_fields=True):
    connector: Annotated[str, Meta(description="the connector by which they were let in")]
    speaker: Annotated[str, Meta(description="their id there")]


class Link(msgspec.Struct, forbid_unknown_fields=True):
    person: Annotated[str, Meta(description="a person of the house by name")]
    service: Annotated[str, Meta(description="what the place is called, such as telegram")]
    id: Annotated[str, Meta(description="their id there: the one that stays, not a name")]


class Unlink(msgspec.Struct, forbid_unknown_fields=True):
    service: Annotated[str, Meta(description="what the place is called, such as telegram")]
    id: Annotated[str, Meta(description="their id there")]


class PairingShown(msgspec.Struct, frozen=True, rename="kebab"):
    """One pairing request. `name` is chosen by the sender and proves nothing."""

    id: str
    code: str
    connector: str
    service: str
    speaker: str
    name: str
    state: PairingState
    asked_at: str
    expires_at: str
    decided_by: str


class AdmittedShown(msgspec.Struct, frozen=True):
    connector: str
    speaker: str
    by: str
    at: str


class PairingsListed(msgspec.Struct, frozen=True):
    pairings: list[PairingShown]
    admitted: list[AdmittedShown]


class PairingDecided(msgspec.Struct, frozen=True):
    pairing: PairingShown
    person: str


class Dismissed(msgspec.Struct, frozen=True):
    connector: str
    speaker: str
    dismissed: bool


class IdentityShown(msgspec.Struct, frozen=True):
    person: str
    service: str
    id: str


class IdentitiesListed(msgspec.Struct, frozen=True):
    identities: list[IdentityShown]


class IdentityUnlinked(msgspec.Struct, frozen=True):
    service: str
    id: str
    unlinked: bool


async def listed(desk: Desk, caller: Principal, asked: Nothing) -> PairingsListed:
    def body(conn: sa.Connection) -> PairingsListed:
        found = pairings.latest(conn, limit=LISTED_MAX)
        now = desk.clock.now()
        inside = [
            AdmittedShown(each.instance, each.speaker, each.by, show_time(from_ms(each.at_ms), desk.zone))
            for each in pairings.admitted(conn)
        ]
        return PairingsListed([_form(desk, each, is_over=each.expires_at <= now) for each in found], inside)

    return await desk.store.scan(body)


async def accept(desk: Desk, caller: Principal, asked: Accept) -> PairingDecided:
    """Admit a sender. With `person`, also link the sender's platform id to that person."""
    return await _decide(desk, caller, asked.which, PairingState.ACCEPTED, person=asked.person)


async def refuse(desk: Desk, caller: Principal, asked: Which) -> PairingDecided:
    return await _decide(desk, caller, asked.which, PairingState.REFUSED)


async def _decide(
    desk: Desk, caller: Principal, which: str, state: PairingState, *, person: str = ""
) -> PairingDecided:
    at_ms, by = to_ms(desk.clock.now()), str(caller.address)

    def body(conn: sa.Connection) -> PairingDecided:
        found = _find(conn, which, now_ms=at_ms)
        decided = pairings.decide(conn, found.id, state, by=by, at_ms=at_ms)
        if decided is None:
            raise Conflict(
                "nobody waits there any more",
                because="it was decided already, or the code has expired",
                try_this="have them write once more: they are shown a new code",
                code="pairing.closed",
            )
        if person:
            identity = Identity(service=decided.service, id=decided.speaker, person=person, made_by=by)
            identities.link(conn, identity, at_ms=at_ms)
        return PairingDecided(_form(desk, decided), person)

    return await desk.store.write(body, point="pairing")


def _find(conn: sa.Connection, which: str, *, now_ms: int) -> Pairing:
    """Find a request by its code, ignoring case, spaces and hyphens, or by its id."""
    code = which.strip().replace("-", "").replace(" ", "").upper()
    if (found := pairings.by_code(conn, code, now_ms=now_ms)) is not None:
        return found
    try:
        digits = prefix(which)
    except Invalid:
        digits = ""
    fitting = [each for each in pairings.latest(conn, limit=LISTED_MAX) if digits and each.id.startswith(digits)]
    if len(fitting) != 1:
        raise NotFound(
            f"nobody waits with '{which[:64]}'",
            because="the code is another one, has expired, or was decided on",
            try_this="look at `retinue pairing list`",
            code="pairing.not-found",
        )
    return fitting[0]


async def dismiss(desk: Desk, caller: Principal, asked: Dismiss) -> Dismissed:
    gone = await desk.store.write(
        partial(pairings.dismiss, instance=asked.connector, speaker=asked.speaker), point="pairing"
    )
    if not gone:
        raise NotFound(
            f"nobody '{asked.speaker[:64]}' was let in at '{asked.connector[:64]}'",
            because="who is named in the settings, or linked to a person, is not let in by pairing",
            try_this="look at `retinue pairing list`",
            code="pairing.not-admitted",
        )
    return Dismissed(asked.connector, asked.speaker, dismissed=True)


async def who(desk: Desk, caller: Principal, asked: Nothing) -> IdentitiesListed:
    found = await desk.store.scan(identities.everything)
    return IdentitiesListed([_identity(each) for each in found])


async def link(desk: Desk, caller: Principal, asked: Link) -> IdentityShown:
    service, id_ = _valid(asked.service, asked.id)
    identity = Identity(service=service, id=id_, person=asked.person, made_by=str(caller.address))
    body = partial(identities.link, identity=identity, at_ms=to_ms(desk.clock.now()))
    return _identity(await desk.store.write(body, point="identity"))


async def unlink(desk: Desk, caller: Principal, asked: Unlink) -> IdentityUnlinked:
    gone = await desk.store.write(partial(identities.unlink, service=asked.service, id_=asked.id), point="identity")
    if not gone:
        raise NotFound(
            f"'{asked.id[:64]}' of {asked.service[:64]} is nobody here",
            because="no such id is linked to a person",
            try_this="look at `retinue identity list`",
            code="identity.not-found",
        )
    return IdentityUnlinked(asked.service, asked.id, unlinked=True)


def _valid(service: str, id_: str) -> tuple[str, str]:
    service, id_ = service.strip().casefold(), id_.strip()
    if not 0 < len(service) <= NAME_LENGTH_MAX or not 0 < len(id_) <= ID_CHARS_MAX or not is_storable(service + id_):
        raise Invalid(
            "this cannot be the id of somebody",
            because=f"a service has 1 to {NAME_LENGTH_MAX} characters and an id 1 to {ID_CHARS_MAX}",
            try_this="for example: retinue identity link maria telegram --id 4711",
            code="identity.invalid",
        )
    if id_.startswith("@"):
        raise Invalid(
            f"{id_[:64]!r} is a username",
            because="anyone may take it once it is given up, and would then be that person here",
            try_this="link the id that stays: `retinue pairing list` shows that of whoever has written",
            code="identity.is-username",
        )
    return service, id_


def _identity(each: Identity) -> IdentityShown:
    return IdentityShown(each.person, each.service, each.id)


def _form(desk: Desk, each: Pairing, *, is_over: bool = False) -> PairingShown:
    state = PairingState.EXPIRED if is_over and each.state is PairingState.WAITING else each.state
    return PairingShown(
        each.id,
        each.code if state is PairingState.WAITING else "",
        each.instance,
        each.service,
        each.speaker,
        each.name,
        state,
        show_time(each.asked_at, desk.zone),
        show_time(each.expires_at, desk.zone),
        each.decided_by,
    )


_look = partial(Operation, permission=PermissionLevel.PRIVILEGED)
_act = partial(Operation, permission=PermissionLevel.BOSS, effect=True)

OPERATIONS = (
    _look(
        name="pairing.list",
        summary="List who asked to be let in, and who was.",
        parameters=Nothing,
        handler=listed,
        result=PairingsListed,
    ),
    _act(
        name="pairing.accept",
        summary="Let in whoever was shown this code.",
        parameters=Accept,
        handler=accept,
        result=PairingDecided,
    ),
    _act(
        name="pairing.refuse",
        summary="Do not let in whoever was shown this code.",
        parameters=Which,
        handler=refuse,
        result=PairingDecided,
    ),
    _act(
        name="pairing.dismiss",
        summary="Let somebody in no longer.",
        parameters=Dismiss,
        handler=dismiss,
        result=Dismissed,
    ),
    _look(
        name="identity.list",
        summary="List who is who at which place.",
        parameters=Nothing,
        handler=who,
        result=IdentitiesListed,
    ),
    _act(
        name="identity.link",
        summary="Say that an id of a place is a person of this house.",
        parameters=Link,
        handler=link,
        result=IdentityShown,
    ),
    _act(
        name="identity.unlink",
        summary="Say that an id is nobody in particular any more.",
        parameters=Unlink,
        handler=unlink,
        result=IdentityUnlinked,
    ),
)
