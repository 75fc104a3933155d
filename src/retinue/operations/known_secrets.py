"""Every secret that the house knows of, gathered for `text/redaction`: from the settings, the credentials, the
environment, and its own token.

One that cannot be read is left out: who needs it will say so. Nothing here is kept but by whoever asked.
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
from retinue.config.connectors import Unread
from retinue.config.secret import Secret
from retinue.config.skills import Variable
from retinue.domain.agent import Agent
from retinue.domain.credential import Credential
from retinue.domain.errors import RetinueError
from retinue.domain.structs import names
from retinue.models.credential_order import secret_of
from retinue.operations.model.credential_keys import KEYS
from retinue.store.agents import agents, credentials
from retinue.store.core.connection import Store
from retinue.text.redaction import Masks

KEY_FILES_MAX = 1_000
OWNER_TOKEN = "owner-token"
_PLAIN = (str, int, float, NoneType)  # most of what is set, and quicker to tell than that it is no mapping

# A name that says: my value is secret.
TELLING = re.compile(
    r"(?:.*[_-])?(?:token|secret|password|passwd|passphrase|pwd|apikey|api[_-]?key|access[_-]?key|private[_-]?key"
    r"|credentials?|authorization|cookie)(?:[_-](?:id|key|value|[0-9]{1,3}))?|pgpassword",
    re.I,
)


async def refresh(masks: Masks, store: Store, settings: Settings, environment: Mapping[str, str]) -> None:
    """Have masks know what there is now: when the house opens, and whenever settings or credentials have changed."""
    secrets = await known_secrets(store, settings, environment)
    await asyncio.to_thread(masks.replace, secrets)


async def known_secrets(store: Store, settings: Settings, environment: Mapping[str, str]) -> dict[str, str]:
    """By name, each as it is now."""
    stored = await store.read(credentials.everyone)
    staff = await store.read(agents.everyone)
    return await asyncio.to_thread(gather, settings, stored, environment, staff)


def gather(
    settings: Settings, stored: list[Credential], environment: Mapping[str, str], staff: Sequence[Agent] = ()
) -> dict[str, str]:
    found: dict[str, str] = {}
    values: set[str] = set()

    def add(name: str, value: str | None) -> None:
        value = (value or "").strip()
        if value and value not in values:  # the same one is found in several places: its first name is the closest
            values.add(value)
            found[name] = value

    for name, secret in _in_settings(settings, ""):
        add(name, _read(secret, environment))
    for name, each in _in_variables(settings):
        value = _read(each, environment)
        if value is not None and not _is_place(value):
            add(name, value)
    for name, value in _in_headers(settings):
        add(name, value)
    for name, secret in _of_connectors(settings):
        add(name, _read(secret, environment))
    for credential in stored:
        add(f"{credential.agent}:{credential.id}" if credential.agent else credential.id, _of(credential, environment))
    for agent in staff:
        if agent.external.secret:
            add(f"agents.{agent.name}.external", _read(Secret.referred(agent.external.secret), environment))
    if isinstance(settings.store, str):
        add("house.store", _password(settings.store))
    add(OWNER_TOKEN, _read(Secret(file=settings.home / OWNER_TOKEN), environment))
    for path in _key_files(settings.home / KEYS):
        add(f"{KEYS}:{path.name.partition('.')[0]}", _read(Secret(file=path), environment))
    for name in sorted(environment):
        if TELLING.fullmatch(name) and not _is_place(environment[name]):
            add(f"env:{name}", environment[name])
    return found


def _is_place(value: str) -> bool:
    """Whether a variable says where a secret lies, and not what it is."""
    try:
        return value.startswith("/") and Path(value).exists()
    except (OSError, ValueError):
        return False


def _in_settings(value: Any, path: str) -> Iterator[tuple[str, Secret]]:
    """Wherever in the settings a secret is named, also in sections that we know nothing of."""
    if isinstance(value, Secret):
        yield path.removesuffix(".secret"), value
    elif isinstance(value, _PLAIN):
        return
    elif parts := names(value):
        for name in parts:
            yield from _in_settings(getattr(value, name), f"{path}.{name}" if path else name)
    elif isinstance(value, Mapping):
        for name, each in cast("Mapping[Any, Any]", value).items():
            yield from _in_settings(each, f"{path}.{name}")
    elif isinstance(value, tuple | list):
        for number, each in enumerate(cast("tuple[Any, ...]", value)):
            yield from _in_settings(each, f"{path}.{number}")


def _in_headers(settings: Settings) -> Iterator[tuple[str, str]]:
    """Of providers, those that are written out although their name says that they should not be."""
    for provider, each in settings.providers.items():
        for name, value in each.headers.items():
            if isinstance(value, str) and TELLING.fullmatch(name):
                yield f"providers.{provider}.headers.{name}", value.rpartition(" ")[2]


def _of_connectors(settings: Settings) -> Iterator[tuple[str, Secret]]:
    """Those that the settings of a kind name as `*_env` and `*_file`. Of a kind that is not known yet, whatever ends
    so: what is masked in vain does no harm."""
    for name, connector in settings.connectors.items():
        own = connector.own
        table = own.table if isinstance(own, Unread) else {each: getattr(own, each) for each in names(own)}
        for key, value in table.items():
            if not isinstance(value, str) or not value or not TELLING.fullmatch(key.rpartition("_")[0]):
                continue
            if key.endswith("_env"):
                yield f"connectors.{name}.{key[:-4]}", Secret(env=value)
            elif key.endswith("_file"):
                yield f"connectors.{name}.{key[:-5]}", Secret(file=settings.home / Path(value).expanduser())


def _in_variables(settings: Settings) -> Iterator[tuple[str, Variable]]:
    """What is handed to MCP servers and to the commands of skills: all that comes from elsewhere than the settings,
    and what is written out there although its name says that it should not be."""
    handed = {
        **{f"mcp.{name}.env": each.env for name, each in settings.mcp.items()},
        **{f"mcp.{name}.headers": each.headers for name, each in settings.mcp.items()},
        **{f"skills.entries.{name}.env": each.env for name, each in settings.skills.entries.items()},
    }
    for place, variables in handed.items():
        for name, each in variables.items():
            if isinstance(each, Variable) and (each.value is None or TELLING.fullmatch(name)):
                yield f"{place}.{name}", each


def _read(secret: Secret | Variable, environment: Mapping[str, str]) -> str | None:
    try:
        return secret.read(environment)
    except RetinueError:
        return None


def _of(credential: Credential, environment: Mapping[str, str]) -> str | None:
    return _read(secret_of(credential), environment)


def _password(url: str) -> str | None:
    try:
        return unquote(urlsplit(url).password or "")
    except ValueError:
        return None


def _key_files(folder: Path) -> list[Path]:
    """Also those whose credential is gone: a key is one until its provider takes it back."""
    try:
        return sorted(path for path in folder.rglob("*") if path.is_file())[:KEY_FILES_MAX]
    except OSError:
        return []
