"""Operations on preferences: small values that a person stores under a key, for use on all devices."""

from __future__ import annotations

import re
from typing import Annotated, Any

import msgspec
import sqlalchemy as sa

from retinue.domain.address import AddressKind
from retinue.domain.agent import PermissionLevel
from retinue.domain.event import EventKind
from retinue.domain.principal import Principal
from retinue.domain.storable_text import is_storable
from retinue.domain.times import to_ms
from retinue.operations.base import EmptyRequest, Operation, Services
from retinue.operations.person.errors import (
    PreferenceKeyInvalid,
    PreferencesNotForAgents,
    PreferenceTooLarge,
    PreferenceValueInvalid,
    TooManyPreferences,
)
from retinue.store.core.transaction import Transaction
from retinue.store.people import preferences

VALUE_BYTES_MAX = 32_768  # per value, as JSON
KEYS_MAX = 100  # per person

_KEY_PATTERN = re.compile(r"[a-z][a-z0-9.-]{0,63}")
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode

PreferenceKey = Annotated[
    str, msgspec.Meta(description="key of lowercase letters, digits, dots and hyphens, such as page.layout")
]


class PreferenceGetRequest(msgspec.Struct, forbid_unknown_fields=True):
    key: PreferenceKey


class PreferenceSetRequest(msgspec.Struct, forbid_unknown_fields=True):
    key: PreferenceKey
    value: Annotated[Any, msgspec.Meta(description="any JSON value; null removes the preference")]


class PreferenceDetails(msgspec.Struct, frozen=True):
    """One preference of a person. `value` is null if the preference is not set."""

    key: str
    value: Any


class PreferenceList(msgspec.Struct, frozen=True):
    preferences: list[PreferenceDetails]


async def get_preference(services: Services, caller: Principal, request: PreferenceGetRequest) -> PreferenceDetails:
    person, key = _require_person(caller), _check_key(request.key)
    found = await services.store.scan(lambda conn: preferences.get(conn, person, key))
    return PreferenceDetails(key, value=_decode(found) if found is not None else None)


async def list_preferences(services: Services, caller: Principal, request: EmptyRequest) -> PreferenceList:
    person = _require_person(caller)
    found = await services.store.scan(lambda conn: preferences.list_all(conn, person))
    return PreferenceList([PreferenceDetails(key, value=_decode(value)) for key, value in found.items()])


async def set_preference(services: Services, caller: Principal, request: PreferenceSetRequest) -> PreferenceDetails:
    person, key = _require_person(caller), _check_key(request.key)
    value = _encode(request.value).decode(errors="surrogatepass")
    if len(value.encode(errors="surrogatepass")) > VALUE_BYTES_MAX:
        raise PreferenceTooLarge(key, bytes_max=VALUE_BYTES_MAX)
    if not is_storable(value):
        raise PreferenceValueInvalid(key)

    def body(conn: sa.Connection) -> None:
        tx = Transaction(conn, to_ms(services.clock.now()))
        before = preferences.get(conn, person, key)
        if request.value is None:
            preferences.remove(conn, person, key)
        else:
            if before is None and preferences.count(conn, person) >= KEYS_MAX:
                raise TooManyPreferences(count_max=KEYS_MAX)
            preferences.upsert(conn, person, key, value, at_ms=tx.at_ms)
        if value != (before or "null"):
            tx.emit(EventKind.PREFERENCE_CHANGED, person=person, to=person, key=key)
        tx.close()

    await services.store.write(body, point="preference")
    return PreferenceDetails(key, value=request.value)


def _check_key(key: str) -> str:
    if not _KEY_PATTERN.fullmatch(key):
        raise PreferenceKeyInvalid(key)
    return key


def _require_person(caller: Principal) -> str:
    if caller.address.kind is not AddressKind.PERSON:
        raise PreferencesNotForAgents(str(caller.address))
    return caller.address.name


OPERATIONS = (
    Operation(
        name="preference.get",
        summary="Show one of your preferences.",
        parameters=PreferenceGetRequest,
        handler=get_preference,
        permission=PermissionLevel.RESTRICTED,
        result=PreferenceDetails,
    ),
    Operation(
        name="preference.list",
        summary="List your preferences.",
        parameters=EmptyRequest,
        handler=list_preferences,
        permission=PermissionLevel.RESTRICTED,
        result=PreferenceList,
    ),
    Operation(
        name="preference.set",
        summary="Set one of your preferences, for all your devices.",
        parameters=PreferenceSetRequest,
        handler=set_preference,
        permission=PermissionLevel.RESTRICTED,
        has_effect=True,
        result=PreferenceDetails,
    ),
)
