"""Creates a connector from its settings: parses its platform's own keys and passes it what it
needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from retinue.config.connectors import ConnectorSettings, Unread, named_secrets, settings_from
from retinue.config.errors import BadConfig, Faults
from retinue.config.secret import Secret
from retinue.connectors.base import Connector, ConnectorKind, Surroundings
from retinue.domain.errors import Invalid
from retinue.domain.structs import replace


def settled(kind: ConnectorKind, instance: str, settings: ConnectorSettings) -> ConnectorSettings:
    """Return the settings with the keys of the platform parsed. Keys that all connectors have were
    parsed with the file."""
    own = settings.own
    if not isinstance(own, Unread):
        return settings
    faults = Faults()
    read = settings_from(kind.settings, dict(own.table), ("connectors", instance), faults)
    if faults.count:
        raise BadConfig(faults.in_order())
    return replace(settings, own=read.own)


def make(kind: ConnectorKind, settings: ConnectorSettings, surroundings: Surroundings) -> Connector:
    """Create a connector. Its name must be the requested one, whatever the plugin's factory
    returns."""
    made = kind.make(settings.own, surroundings)
    if made.instance != surroundings.instance:
        raise Invalid(
            f"a connector of the kind '{kind.name}' calls itself '{made.instance[:64]}'",
            because=f"it was made as '{surroundings.instance}', and two of a kind are told apart by that",
            try_this="mend the plug-in that brings this kind",
            code="connector.misnamed",
        )
    return made


def secrets_of(own: Any, *, instance: str, home: Path, environment: Mapping[str, str]) -> Callable[[str], str]:
    """Return a function that reads the secrets these settings name, each on demand. A relative path
    starts at `data_dir`."""
    named = {stem: (env, file) for stem, env, file in named_secrets(own)}

    def secret(key: str) -> str:
        stem = key.removesuffix("_env").removesuffix("_file")
        env, file = named.get(stem, ("", ""))
        if env and file:
            raise Invalid(
                f"connectors.{instance} names two places for its {stem}",
                because=f"both `{stem}_env` and `{stem}_file` are set",
                try_this="take one of them out",
                code="connector.secret-place",
            )
        if not env and not file:
            raise Invalid(
                f"connectors.{instance} does not say where its {stem} is",
                because=f"neither `{stem}_env` nor `{stem}_file` is set",
                try_this=f'{stem}_file = "PATH", with the secret and nothing else in it, readable by you alone',
                code="connector.secret-place",
            )
        return (Secret(env=env) if env else Secret(file=home / Path(file).expanduser())).read(environment)

    return secret
