"""Operations on access requests from unknown senders, and on identities: platform ids linked to people."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import msgspec
import sqlalchemy as sa

from retinue.domain.access import Identity, Pairing, PairingState
from retinue.domain.address import NAME_LENGTH_MAX
from retinue.domain.agent import PermissionLevel
from retinue.domain.errors import Invalid
from retinue.domain.ids import parse_id_prefix
from retinue.domain.principal import Principal
from retinue.domain.storable_text import is_storable
from retinue.domain.times import format_time as show_time
from retinue.domain.times import from_ms, to_ms
from retinue.operations.base import EmptyRequest, Operation, Services
from retinue.operations.connector.errors import (
    IdentityInvalid,
    IdentityIsUsername,
    IdentityNotFound,
    PairingClosed,
    PairingNotFound,
    SenderNotAdmitted,
)
from retinue.store.channels import identities, pairings

LISTED_MAX = 100
ID_CHARS_MAX = 512

Meta = msgspec.Meta


class PairingIdRequest(msgspec.Struct, forbid_unknown_fields=True):
    request: Annotated[str, Meta(description="pairing code that the sender got, or id of the access request")]


class PairingAcceptRequest(msgspec.Struct, forbid_unknown_fields=True):
    request: Annotated[str, Meta(description="pairing code that the sender got, or id of the access request")]
    person: Annotated[str, Meta(description="name of the person to link the sender to")] = ""


class PairingRevokeRequest(msgspec.Struct, forbid_unknown_fields=True):
    connector: Annotated[str, Meta(description="name of the connector on which the sender was admitted")]
    sender_id: Annotated[str, Meta(description="platform id of the sender")]


class IdentityLinkRequest(msgspec.Struct, forbid_unknown_fields=True):
    person: Annotated[str, Meta(description="name of a person")]
    platform: Annotated[str, Meta(description="platform, such as telegram")]
    id: Annotated[str, Meta(description="permanent id on the platform, not a username")]


class IdentityUnlinkRequest(msgspec.Struct, forbid_unknown_fields=True):
    platform: Annotated[str, Meta(description="platform, such as telegram")]
    id: Annotated[str, Meta(description="platform id of the person's account to unlink")]


class PairingDetails(msgspec.Struct, frozen=True):
    """One access request. `name` is chosen by the sender, so it does not prove who the sender is."""

    id: str
    code: str
    connector: str
    platform: str
    sender_id: str
    name: str
    state: PairingState
    requested_at: str
    expires_at: str
    decided_by: str


class AdmittedSenderDetails(msgspec.Struct, frozen=True):
    connector: str
    sender_id: str
    admitted_by: str
    admitted_at: str


class PairingList(msgspec.Struct, frozen=True):
    pairings: list[PairingDetails]
    admitted: list[AdmittedSenderDetails]


class PairingDecided(msgspec.Struct, frozen=True):
    pairing: PairingDetails
    person: str


class PairingRevoked(msgspec.Struct, frozen=True):
    connector: str
    sender_id: str
    revoked: bool


class IdentityDetails(msgspec.Struct, frozen=True):
    person: str
    platform: str
    id: str


class IdentityList(msgspec.Struct, frozen=True):
    identities: list[IdentityDetails]


class IdentityUnlinked(msgspec.Struct, frozen=True):
    platform: str
    id: str
    unlinked: bool


async def list_pairings(services: Services, caller: Principal, request: EmptyRequest) -> PairingList:
    def body(conn: sa.Connection) -> PairingList:
        found = pairings.list_latest(conn, limit=LISTED_MAX)
        now = services.clock.now()
        inside = [
            AdmittedSenderDetails(each.instance, each.sender_id, each.by, show_time(from_ms(each.at_ms), services.zone))
            for each in pairings.list_admitted(conn)
        ]
        return PairingList(
            [_to_pairing_details(services, each, is_expired=each.expires_at <= now) for each in found], inside
        )

    return await services.store.scan(body)


async def accept_pairing(services: Services, caller: Principal, request: PairingAcceptRequest) -> PairingDecided:
    """Admit a sender. With `person`, also link the sender's platform id to that person."""
    return await _decide_pairing(services, caller, request.request, PairingState.ACCEPTED, person=request.person)


async def refuse_pairing(services: Services, caller: Principal, request: PairingIdRequest) -> PairingDecided:
    return await _decide_pairing(services, caller, request.request, PairingState.REFUSED)


async def _decide_pairing(
    services: Services, caller: Principal, code_or_id: str, state: PairingState, *, person: str = ""
) -> PairingDecided:
    at_ms, by = to_ms(services.clock.now()), str(caller.address)

    def body(conn: sa.Connection) -> PairingDecided:
        found = _find_pairing(conn, code_or_id, now_ms=at_ms)
        decided = pairings.decide(conn, found.id, state, by=by, at_ms=at_ms)
        if decided is None:
            raise PairingClosed
        if person:
            identity = Identity(service=decided.platform, id=decided.sender_id, person=person, made_by=by)
            identities.link(conn, identity, at_ms=at_ms)
        return PairingDecided(_to_pairing_details(services, decided), person)

    return await services.store.write(body, point="pairing")


def _find_pairing(conn: sa.Connection, code_or_id: str, *, now_ms: int) -> Pairing:
    """Return the access request with this pairing code or id. Case, spaces and hyphens in a code are ignored."""
    code = code_or_id.strip().replace("-", "").replace(" ", "").upper()
    if (found := pairings.find_by_code(conn, code, now_ms=now_ms)) is not None:
        return found
    try:
        digits = parse_id_prefix(code_or_id)
    except Invalid:
        digits = ""
    fitting = [each for each in pairings.list_latest(conn, limit=LISTED_MAX) if digits and each.id.startswith(digits)]
    if len(fitting) != 1:
        raise PairingNotFound(code_or_id)
    return fitting[0]


async def revoke_sender(services: Services, caller: Principal, request: PairingRevokeRequest) -> PairingRevoked:
    gone = await services.store.write(
        partial(pairings.revoke_admission, connector=request.connector, sender_id=request.sender_id), point="pairing"
    )
    if not gone:
        raise SenderNotAdmitted(request.sender_id, connector=request.connector)
    return PairingRevoked(request.connector, request.sender_id, revoked=True)


async def list_identities(services: Services, caller: Principal, request: EmptyRequest) -> IdentityList:
    found = await services.store.scan(identities.list_all)
    return IdentityList([_to_identity_details(each) for each in found])


async def link_identity(services: Services, caller: Principal, request: IdentityLinkRequest) -> IdentityDetails:
    service, id_ = _normalize_identity(request.platform, request.id)
    identity = Identity(service=service, id=id_, person=request.person, made_by=str(caller.address))
    body = partial(identities.link, identity=identity, at_ms=to_ms(services.clock.now()))
    return _to_identity_details(await services.store.write(body, point="identity"))


async def unlink_identity(services: Services, caller: Principal, request: IdentityUnlinkRequest) -> IdentityUnlinked:
    gone = await services.store.write(
        partial(identities.unlink, service=request.platform, id_=request.id), point="identity"
    )
    if not gone:
        raise IdentityNotFound(request.id, platform=request.platform)
    return IdentityUnlinked(request.platform, request.id, unlinked=True)


def _normalize_identity(service: str, id_: str) -> tuple[str, str]:
    service, id_ = service.strip().casefold(), id_.strip()
    if not 0 < len(service) <= NAME_LENGTH_MAX or not 0 < len(id_) <= ID_CHARS_MAX or not is_storable(service + id_):
        raise IdentityInvalid(platform_chars_max=NAME_LENGTH_MAX, id_chars_max=ID_CHARS_MAX)
    if id_.startswith("@"):
        raise IdentityIsUsername(id_)
    return service, id_


def _to_identity_details(identity: Identity) -> IdentityDetails:
    return IdentityDetails(identity.person, identity.service, identity.id)


def _to_pairing_details(services: Services, pairing: Pairing, *, is_expired: bool = False) -> PairingDetails:
    state = PairingState.EXPIRED if is_expired and pairing.state is PairingState.WAITING else pairing.state
    return PairingDetails(
        pairing.id,
        pairing.code if state is PairingState.WAITING else "",
        pairing.connector,
        pairing.platform,
        pairing.sender_id,
        pairing.name,
        state,
        show_time(pairing.requested_at, services.zone),
        show_time(pairing.expires_at, services.zone),
        pairing.decided_by,
    )


_read_operation = partial(Operation, permission=PermissionLevel.PRIVILEGED)
_write_operation = partial(Operation, permission=PermissionLevel.BOSS, has_effect=True)

OPERATIONS = (
    _read_operation(
        name="pairing.list",
        summary="List access requests and admitted senders.",
        parameters=EmptyRequest,
        handler=list_pairings,
        result=PairingList,
    ),
    _write_operation(
        name="pairing.accept",
        summary="Accept an access request, by its pairing code or its id.",
        parameters=PairingAcceptRequest,
        handler=accept_pairing,
        result=PairingDecided,
    ),
    _write_operation(
        name="pairing.refuse",
        summary="Refuse an access request, by its pairing code or its id.",
        parameters=PairingIdRequest,
        handler=refuse_pairing,
        result=PairingDecided,
    ),
    _write_operation(
        name="pairing.revoke",
        summary="Revoke the access of an admitted sender.",
        parameters=PairingRevokeRequest,
        handler=revoke_sender,
        result=PairingRevoked,
    ),
    _read_operation(
        name="identity.list",
        summary="List identities: platform ids linked to people.",
        parameters=EmptyRequest,
        handler=list_identities,
        result=IdentityList,
    ),
    _write_operation(
        name="identity.link",
        summary="Link a platform id to a person.",
        parameters=IdentityLinkRequest,
        handler=link_identity,
        result=IdentityDetails,
    ),
    _write_operation(
        name="identity.unlink",
        summary="Unlink a platform id from its person.",
        parameters=IdentityUnlinkRequest,
        handler=unlink_identity,
        result=IdentityUnlinked,
    ),
)
