"""Determines where the key of a new credential is: in an environment variable, a file of the owner or a new file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from retinue.config.models import PROVIDER_ALIASES, ProviderSettings
from retinue.domain.address import AddressKind, validate_name
from retinue.domain.credential import Credential, CredentialKind
from retinue.domain.principal import Principal
from retinue.domain.shared_errors import CredentialKeyInvalid, ProviderNotFound
from retinue.models.credential_order import get_secret, is_discovered
from retinue.models.providers import BUILT_IN_PROVIDERS
from retinue.operations.base import Services
from retinue.operations.model.credential_responses import server_environment
from retinue.operations.model.errors import (
    CredentialKeyFileInvalid,
    CredentialKeyFromAgent,
    CredentialKeySourceInvalid,
    CredentialNameReserved,
    CredentialRegionInvalid,
    CredentialVariableInvalid,
)
from retinue.store.core.durable_files import replace_private_file

KEYS_DIRECTORY = "keys"  # directory in the data directory for keys given by value
KEY_CHARS_MAX = 8_192
PATH_CHARS_MAX = 4_096
REGION_CHARS_MAX = 64

_KEY_PATTERN = re.compile(rf"[!-~]{{1,{KEY_CHARS_MAX}}}")
# Capitals only: a key given here by mistake is rejected, and the error does not repeat it.
_VARIABLE_PATTERN = re.compile(r"[A-Z_][A-Z0-9_]{0,254}")

CredentialOwner = Annotated[str, msgspec.Meta(description="agent that the credential belongs to; default: the server")]


class CredentialAddRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Add a credential.

    Exactly one of `key_env`, `key_file` and `key` must be set. The server writes `key` to a new file.
    """

    provider: Annotated[str, msgspec.Meta(description="model provider that the credential is for")]
    name: Annotated[str, msgspec.Meta(description="name of the credential")]
    agent: CredentialOwner = ""
    kind: Annotated[CredentialKind, msgspec.Meta(description="kind of the credential; tokens are used before keys")] = (
        CredentialKind.API_KEY
    )
    region: Annotated[str, msgspec.Meta(description="region in which the key is valid; default: everywhere")] = ""
    key_env: Annotated[str, msgspec.Meta(description="environment variable that contains the key")] = ""
    key_file: Annotated[
        str, msgspec.Meta(description="file that contains the key; only its owner may have access to it")
    ] = ""
    key: Annotated[str, msgspec.Meta(description="the key itself; it is stored in a file and never shown")] = ""


def provider_settings(services: Services) -> Mapping[str, ProviderSettings]:
    """Return the configured providers, by lowercase name."""
    if services.config_holder is None:
        return {}
    return {name.casefold(): each for name, each in services.config_holder.current.settings.providers.items()}


def canonical_provider_name(services: Services, name: str) -> str:
    """Return the provider's name for a name or an alias. A configured provider takes precedence over an alias."""
    folded = name.casefold()
    return folded if folded in provider_settings(services) else PROVIDER_ALIASES.get(folded, folded)


def build_credential_id(services: Services, request: CredentialAddRequest) -> str:
    own, provider = provider_settings(services), canonical_provider_name(services, request.provider)
    if provider not in BUILT_IN_PROVIDERS and provider not in own:
        raise ProviderNotFound(request.provider, known=sorted({*BUILT_IN_PROVIDERS, *own}))
    id_ = f"{provider}:{validate_name(request.name, what='a credential').casefold()}"
    if is_discovered(id_):
        raise CredentialNameReserved(request.name)
    return id_


def parse_region(region: str) -> str | None:
    if len(region) > REGION_CHARS_MAX or not region.isprintable():
        raise CredentialRegionInvalid(region, chars_max=REGION_CHARS_MAX)
    return region or None


def resolve_key_source(
    services: Services, caller: Principal, request: CredentialAddRequest, *, agent: str, id_: str
) -> tuple[str, Path | None]:
    """Return the location of the key, and the path of the file that was created for the key, if any."""
    if sum(map(bool, (request.key_env, request.key_file, request.key))) != 1:
        raise CredentialKeySourceInvalid(id_)
    if request.key_env:
        if not _VARIABLE_PATTERN.fullmatch(request.key_env):
            raise CredentialVariableInvalid()
        return f"env:{request.key_env}", None
    if request.key_file:
        path_fits = len(request.key_file) <= PATH_CHARS_MAX and request.key_file.isprintable()
        if not path_fits or not Path(request.key_file).is_absolute():
            raise CredentialKeyFileInvalid(chars_max=PATH_CHARS_MAX)
        return f"file:{request.key_file}", None
    path = _store_key(services, caller, request.key, agent=agent, id_=id_)
    return f"file:{path}", path


def _store_key(services: Services, caller: Principal, key: str, *, agent: str, id_: str) -> Path:
    if caller.address.kind is AddressKind.AGENT:
        raise CredentialKeyFromAgent()
    if not _KEY_PATTERN.fullmatch(key):
        raise CredentialKeyInvalid(id_, chars_max=KEY_CHARS_MAX)
    folder = keys_directory(services, agent)
    for each in (services.data_dir / KEYS_DIRECTORY, folder):
        each.mkdir(mode=0o700, parents=True, exist_ok=True)
    # A unique name: concurrent requests for the same credential do not overwrite each other's file.
    path = folder / f"{id_}.{services.ids.new()}"
    replace_private_file(path, key.encode())
    return path


def keys_directory(services: Services, agent: str) -> Path:
    return services.data_dir / KEYS_DIRECTORY / (f"agent:{agent}" if agent else "instance")


def check_readable(services: Services, credential: Credential) -> None:
    """Raise if the key of a new credential cannot be read.

    Without this check, the server would later skip the credential without an error.
    """
    get_secret(credential).read(server_environment(services))
