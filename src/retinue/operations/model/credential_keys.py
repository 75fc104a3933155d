"""Determine where the key of a new credential is: an environment variable, the owner's file, or a new file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from retinue.config.models import PROVIDER_ALIASES, ProviderSettings
from retinue.domain.address import AddressKind, valid_name
from retinue.domain.credential import Credential, CredentialKind
from retinue.domain.errors import Invalid, NotFound
from retinue.domain.principal import Principal
from retinue.models.credential_order import is_found, secret_of
from retinue.models.providers import BUILT_IN
from retinue.operations.base import Desk
from retinue.operations.model.credential_responses import environment_of
from retinue.store.core.durable_files import put_private

KEYS = "keys"  # directory in the data directory for keys given by value
KEY_LENGTH_MAX = 8_192
PATH_LENGTH_MAX = 4_096
REGION_LENGTH_MAX = 64

_KEY = re.compile(rf"[!-~]{{1,{KEY_LENGTH_MAX}}}")
# Capitals only: a key given here by mistake is rejected, and the error does not repeat it.
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,254}")

Whose = Annotated[str, msgspec.Meta(description="the agent it belongs to; left out, it is the house's")]


class Add(msgspec.Struct, forbid_unknown_fields=True):
    """The key is in one place: an environment variable of the server, a file, or `key`, stored in a new file."""

    provider: Annotated[str, msgspec.Meta(description="whose models it is for")]
    name: Annotated[str, msgspec.Meta(description="what you call it")]
    agent: Whose = ""
    kind: Annotated[CredentialKind, msgspec.Meta(description="tokens are asked before keys")] = CredentialKind.API_KEY
    region: Annotated[str, msgspec.Meta(description="where it is good, if it is not good everywhere")] = ""
    key_env: Annotated[str, msgspec.Meta(description="the variable of the environment that holds the key")] = ""
    key_file: Annotated[str, msgspec.Meta(description="a file that holds the key, readable by its owner alone")] = ""
    key: Annotated[str, msgspec.Meta(description="the key itself; it is put into a file, and shown nowhere")] = ""


def settings_of(desk: Desk) -> Mapping[str, ProviderSettings]:
    """Return the configured providers, by lowercase name."""
    if desk.config is None:
        return {}
    return {name.casefold(): each for name, each in desk.config.current.settings.providers.items()}


def provider_name(desk: Desk, name: str) -> str:
    """Return the canonical provider name. A provider configured under this very name wins over an alias."""
    folded = name.casefold()
    return folded if folded in settings_of(desk) else PROVIDER_ALIASES.get(folded, folded)


def new_id(desk: Desk, asked: Add) -> str:
    own, provider = settings_of(desk), provider_name(desk, asked.provider)
    if provider not in BUILT_IN and provider not in own:
        raise NotFound(
            f"there is no provider '{asked.provider[:64]}' here",
            because=f"the house knows {', '.join(sorted({*BUILT_IN, *own}))}",
            try_this=f"declare it in retinue.toml: [providers.{asked.provider[:64]}], with its `url`",
            code="model.provider-unknown",
        )
    id_ = f"{provider}:{valid_name(asked.name, what='a credential').casefold()}"
    if is_found(id_):
        raise Invalid(
            f"'{asked.name}' cannot be the name of a credential",
            because="so are those called that are found in the environment and in the settings",
            try_this="choose another name",
            code="credential.name-reserved",
        )
    return id_


def valid_region(region: str) -> str | None:
    if len(region) > REGION_LENGTH_MAX or not region.isprintable():
        raise Invalid(
            f"{region[:REGION_LENGTH_MAX]!r} is no region",
            because=f"a region has at most {REGION_LENGTH_MAX} characters that can be seen",
            try_this="for example: eu-west-1",
            code="credential.region-invalid",
        )
    return region or None


def source_of(desk: Desk, caller: Principal, asked: Add, *, agent: str, id_: str) -> tuple[str, Path | None]:
    """Return the location of the key, and the file created for it, if any."""
    if sum(map(bool, (asked.key_env, asked.key_file, asked.key))) != 1:
        raise Invalid(
            "a credential has its key in one place",
            because="one of `key_env`, `key_file` and `key` is to be given",
            try_this=f"retinue credential add {id_.replace(':', ' ')} --key-file FILE",
            code="credential.key-place",
        )
    if asked.key_env:
        if not _VARIABLE.fullmatch(asked.key_env):
            raise Invalid(
                "`key_env` is not the name of a variable",
                because="such a name has capital letters, digits and underscores, and begins with no digit",
                try_this="give the name of the variable here, or the key itself as `key`",
                code="credential.key-place",
            )
        return f"env:{asked.key_env}", None
    if asked.key_file:
        path_fits = len(asked.key_file) <= PATH_LENGTH_MAX and asked.key_file.isprintable()
        if not path_fits or not Path(asked.key_file).is_absolute():
            raise Invalid(
                "`key_file` is no absolute path",
                because="the house has no folder from which a relative one could begin",
                try_this="give the whole path, from / on",
                code="credential.key-place",
            )
        return f"file:{asked.key_file}", None
    path = _put_away(desk, caller, asked.key, agent=agent, id_=id_)
    return f"file:{path}", path


def _put_away(desk: Desk, caller: Principal, key: str, *, agent: str, id_: str) -> Path:
    if caller.address.kind is AddressKind.AGENT:
        raise Invalid(
            "an agent cannot give a key by value",
            because="what an agent says is kept in its history, and a key must not be there",
            try_this="write the key to a file, and name it as `key_file`",
            code="credential.key-by-agent",
        )
    if not _KEY.fullmatch(key):
        raise Invalid(
            "this cannot be a key",
            because=f"a key has 1 to {KEY_LENGTH_MAX:,} letters, digits and signs of ASCII, and no blanks",
            try_this="copy it again, without what is around it",
            code="credential.key-invalid",
        )
    folder = keys_folder(desk, agent)
    for each in (desk.home / KEYS, folder):
        each.mkdir(mode=0o700, parents=True, exist_ok=True)
    # A unique name: concurrent requests for the same credential do not overwrite each other's file.
    path = folder / f"{id_}.{desk.ids.new()}"
    put_private(path, key.encode())
    return path


def keys_folder(desk: Desk, agent: str) -> Path:
    return desk.home / KEYS / (f"agent:{agent}" if agent else "house")


def refuse_unreadable(desk: Desk, credential: Credential) -> None:
    """Raise if the key cannot be read: later it would be skipped without an error."""
    secret_of(credential).read(environment_of(desk))
