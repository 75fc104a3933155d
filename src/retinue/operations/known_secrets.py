"""Collects all known secrets for `text/redaction`, from settings, credentials, environment and the owner's token.

A secret that cannot be read is skipped: the code that uses the secret reports the error. This module
stores no secrets.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, cast
from urllib.parse import unquote, urlsplit

from retinue.config import Settings
from retinue.config.connectors import UnparsedConnectorSettings
from retinue.config.secret import SecretReference
from retinue.config.skills import VariableValue
from retinue.domain.agent import Agent
from retinue.domain.credential import Credential
from retinue.domain.errors import RetinueError
from retinue.domain.structs import field_names
from retinue.models.credential_order import get_secret
from retinue.operations.model.credential_keys import KEYS_DIRECTORY
from retinue.store.agents import agents, credentials
from retinue.store.core.connection import Store
from retinue.text.redaction import Redactor

KEY_FILES_MAX = 1_000
OWNER_TOKEN = "owner-token"
_SCALARS = (str, int, float, NoneType)  # most settings; cheaper to test than Mapping

# Names whose values are secret.
SECRET_NAME = re.compile(
    r"(?:.*[_-])?(?:token|secret|password|passwd|passphrase|pwd|apikey|api[_-]?key|access[_-]?key|private[_-]?key"
    r"|credentials?|authorization|cookie)(?:[_-](?:id|key|value|[0-9]{1,3}))?|pgpassword",
    re.I,
)


async def refresh_redactor(
    redactor: Redactor, store: Store, settings: Settings, environment: Mapping[str, str]
) -> None:
    """Update the redactor with all known secrets. Call it at start and after each settings or credentials change."""
    secrets = await collect_secrets(store, settings, environment)
    await asyncio.to_thread(redactor.set_secrets, secrets)


async def collect_secrets(store: Store, settings: Settings, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the values of all known secrets, keyed by a name such as `providers.NAME.headers.NAME` or `env:NAME`."""
    stored = await store.read(credentials.list_all)
    registered = await store.read(agents.list_all)
    return await asyncio.to_thread(collect_secret_values, settings, stored, environment, registered)


def collect_secret_values(
    settings: Settings,
    stored: list[Credential],
    environment: Mapping[str, str],
    registered_agents: Sequence[Agent] = (),
) -> dict[str, str]:
    found: dict[str, str] = {}
    values: set[str] = set()

    def add(name: str, value: str | None) -> None:
        value = (value or "").strip()
        if value and value not in values:  # found in several places: keep the first, most specific name
            values.add(value)
            found[name] = value

    for name, secret in _settings_secrets(settings, ""):
        add(name, _read_secret(secret, environment))
    for name, each in _variable_secrets(settings):
        value = _read_secret(each, environment)
        if value is not None and not _is_secret_path(value):
            add(name, value)
    for name, value in _provider_header_secrets(settings):
        add(name, value)
    for name, secret in _connector_secrets(settings):
        add(name, _read_secret(secret, environment))
    for credential in stored:
        add(
            f"{credential.agent}:{credential.id}" if credential.agent else credential.id,
            _read_credential(credential, environment),
        )
    for agent in registered_agents:
        if agent.external.secret:
            add(
                f"agents.{agent.name}.external",
                _read_secret(SecretReference.from_text(agent.external.secret), environment),
            )
    if isinstance(settings.store, str):
        add("server.store", _url_password(settings.store))
    add(OWNER_TOKEN, _read_secret(SecretReference(file=settings.home / OWNER_TOKEN), environment))
    for path in _key_files(settings.home / KEYS_DIRECTORY):
        add(f"{KEYS_DIRECTORY}:{path.name.partition('.')[0]}", _read_secret(SecretReference(file=path), environment))
    for name in sorted(environment):
        if SECRET_NAME.fullmatch(name) and not _is_secret_path(environment[name]):
            add(f"env:{name}", environment[name])
    return found


def _is_secret_path(value: str) -> bool:
    """Return whether an environment variable contains the path of a secret instead of the secret itself."""
    try:
        return value.startswith("/") and Path(value).exists()
    except (OSError, ValueError):
        return False


def _settings_secrets(value: Any, path: str) -> Iterator[tuple[str, SecretReference]]:
    """Yield every secret in the settings, including those in unknown sections."""
    if isinstance(value, SecretReference):
        yield path.removesuffix(".secret"), value
    elif isinstance(value, _SCALARS):
        return
    elif parts := field_names(value):
        for name in parts:
            yield from _settings_secrets(getattr(value, name), f"{path}.{name}" if path else name)
    elif isinstance(value, Mapping):
        for name, each in cast("Mapping[Any, Any]", value).items():
            yield from _settings_secrets(each, f"{path}.{name}")
    elif isinstance(value, tuple | list):
        for number, each in enumerate(cast("tuple[Any, ...]", value)):
            yield from _settings_secrets(each, f"{path}.{number}")


def _provider_header_secrets(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield each provider header value that is written as plain text, if the header's name suggests a secret."""
    for provider, each in settings.providers.items():
        for name, value in each.headers.items():
            if isinstance(value, str) and SECRET_NAME.fullmatch(name):
                yield f"providers.{provider}.headers.{name}", value.rpartition(" ")[2]


def _connector_secrets(settings: Settings) -> Iterator[tuple[str, SecretReference]]:
    """Yield the secrets that a connector's settings reference as `*_env` and `*_file`.

    If the platform's settings are not parsed yet, every key with one of these endings is treated as a
    reference to a secret. Redacting too much does no harm.
    """
    for name, connector in settings.connectors.items():
        own = connector.platform_settings
        table = (
            own.table
            if isinstance(own, UnparsedConnectorSettings)
            else {each: getattr(own, each) for each in field_names(own)}
        )
        for key, value in table.items():
            if not isinstance(value, str) or not value or not SECRET_NAME.fullmatch(key.rpartition("_")[0]):
                continue
            if key.endswith("_env"):
                yield f"connectors.{name}.{key[:-4]}", SecretReference(env=value)
            elif key.endswith("_file"):
                yield f"connectors.{name}.{key[:-5]}", SecretReference(file=settings.home / Path(value).expanduser())


def _variable_secrets(settings: Settings) -> Iterator[tuple[str, VariableValue]]:
    """Yield the secret environment variables and headers of MCP servers and skill commands.

    A value is secret if it comes from outside the settings file, or if its name suggests a secret.
    """
    handed = {
        **{f"mcp.{name}.env": each.env for name, each in settings.mcp.items()},
        **{f"mcp.{name}.headers": each.headers for name, each in settings.mcp.items()},
        **{f"skills.entries.{name}.env": each.env for name, each in settings.skills.entries.items()},
    }
    for place, variables in handed.items():
        for name, each in variables.items():
            if isinstance(each, VariableValue) and (each.value is None or SECRET_NAME.fullmatch(name)):
                yield f"{place}.{name}", each


def _read_secret(secret: SecretReference | VariableValue, environment: Mapping[str, str]) -> str | None:
    try:
        return secret.read(environment)
    except RetinueError:
        return None


def _read_credential(credential: Credential, environment: Mapping[str, str]) -> str | None:
    return _read_secret(get_secret(credential), environment)


def _url_password(url: str) -> str | None:
    try:
        return unquote(urlsplit(url).password or "")
    except ValueError:
        return None


def _key_files(folder: Path) -> list[Path]:
    """List all key files, including those of removed credentials.

    The key of a removed credential stays valid until its provider revokes it.
    """
    try:
        return sorted(path for path in folder.rglob("*") if path.is_file())[:KEY_FILES_MAX]
    except OSError:
        return []
