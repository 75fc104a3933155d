"""Operations on preferences: small values by key that a person stores, the same on every device."""

from __future__ import annotations

import re
from typing import Annotated, Any

import msgspec
import sqlalchemy as sa

from retinue.domain.address import AddressKind
from retinue.domain.agent import PermissionLevel
from retinue.domain.errors import Invalid, TooLarge
from retinue.domain.event import NewsKind
from retinue.domain.principal import Principal
from retinue.domain.storable_text import is_storable
from retinue.domain.times import to_ms
from retinue.operations.base import Desk, Nothing, Operation
from retinue.store.core.transaction import Page
from retinue.store.people import preferences

VALUE_BYTES_MAX = 32_768  # per value, as JSON
KEYS_MAX = 100  # per person

_KEY = re.compile(r"[a-z][a-z0-9.-]{0,63}")
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode

Key = Annotated[str, msgspec.Meta(description="lower-case letters, digits, dots and hyphens: page.layout")]


class Get(msgspec.Struct, forbid_unknown_fields=True):
    key: Key


class Set(msgspec.Struct, forbid_unknown_fields=True):
    key: Key
    value: Annotated[Any, msgspec.Meta(description="any JSON; null takes it away")]


class PreferenceShown(msgspec.Struct, frozen=True):
    """One preference. `value` is null if it is not set."""

    key: str
    value: Any


class PreferencesListed(msgspec.Struct, frozen=True):
    preferences: list[PreferenceShown]


async def get(desk: Desk, caller: Principal, asked: Get) -> PreferenceShown:
    person, key = _person(caller), _key(asked.key)
    found = await desk.store.scan(lambda conn: preferences.get(conn, person, key))
    return PreferenceShown(key, value=_decode(found) if found is not None else None)


async def listed(desk: Desk, caller: Principal, asked: Nothing) -> PreferencesListed:
    person = _person(caller)
    found = await desk.store.scan(lambda conn: preferences.everything(conn, person))
    return PreferencesListed([PreferenceShown(key, value=_decode(value)) for key, value in found.items()])


async def put(desk: Desk, caller: Principal, asked: Set) -> PreferenceShown:
    person, key = _person(caller), _key(asked.key)
    value = _encode(asked.value).decode(errors="surrogatepass")
    if len(value.encode(errors="surrogatepass")) > VALUE_BYTES_MAX:
        raise TooLarge(
            f"the value of '{key}' is too large",
            because=f"it may have {VALUE_BYTES_MAX:,} bytes as JSON",
            try_this="keep less in it, or split it over several keys",
            code="preference.too-large",
        )
    if not is_storable(value):
        raise Invalid(
            f"the value of '{key}' cannot be kept",
            because="there is a lone surrogate in it",
            try_this="send it as Unicode text",
            code="preference.value-invalid",
        )

    def body(conn: sa.Connection) -> None:
        page = Page(conn, to_ms(desk.clock.now()))
        before = preferences.get(conn, person, key)
        if asked.value is None:
            preferences.remove(conn, person, key)
        else:
            if before is None and preferences.count(conn, person) >= KEYS_MAX:
                raise TooLarge(
                    f"you have set {KEYS_MAX} preferences already",
                    because="that is the most for one person",
                    try_this="set one that you do not need to null",
                    code="preference.too-many",
                )
            preferences.put(conn, person, key, value, at_ms=page.at_ms)
        if value != (before or "null"):
            page.tell(NewsKind.PREFERENCE_CHANGED, person=person, to=person, key=key)
        page.close()

    await desk.store.write(body, point="preference")
    return PreferenceShown(key, value=asked.value)


def _key(key: str) -> str:
    if not _KEY.fullmatch(key):
        raise Invalid(
            f"'{key[:64]}' is no key",
            because="a key has 1 to 64 lower-case letters, digits, dots and hyphens, and begins with a letter",
            try_this="for example: page.layout",
            code="preference.key-invalid",
        )
    return key


def _person(caller: Principal) -> str:
    if caller.address.kind is not AddressKind.PERSON:
        raise Invalid(
            "only people have preferences",
            because=f"you are {caller.address}",
            try_this="look at the agent's settings: retinue agent show",
            code="preference.not-a-person",
        )
    return caller.address.name


OPERATIONS = (
    Operation(
        name="preference.get",
        summary="Show what you have set under a key.",
        parameters=Get,
        handler=get,
        permission=PermissionLevel.RESTRICTED,
        result=PreferenceShown,
    ),
    Operation(
        name="preference.list",
        summary="Show all that you have set.",
        parameters=Nothing,
        handler=listed,
        permission=PermissionLevel.RESTRICTED,
        result=PreferencesListed,
    ),
    Operation(
        name="preference.set",
        summary="Keep a small value for yourself, the same on every device.",
        parameters=Set,
        handler=put,
        permission=PermissionLevel.RESTRICTED,
        effect=True,
        result=PreferenceShown,
    ),
)
