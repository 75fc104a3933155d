"""Creates a connector from its settings, and passes it the services that it needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from retinue.config.connectors import (
    ConnectorSettings,
    UnparsedConnectorSettings,
    iterate_secrets,
    parse_connector_settings,
)
from retinue.config.errors import FaultCollector, InvalidSettings
from retinue.config.secret import SecretReference
from retinue.connectors.base import Connector, ConnectorContext, Platform
from retinue.connectors.errors import ConnectorNameMismatch, ConnectorSecretAmbiguous, ConnectorSecretMissing
from retinue.domain.structs import replace


def parse_platform_settings(platform: Platform, connector_name: str, settings: ConnectorSettings) -> ConnectorSettings:
    """Parse the keys of a connector's settings that are specific to its platform, and return all its settings.

    The keys that all connectors share were already parsed with the settings file.
    """
    own = settings.platform_settings
    if not isinstance(own, UnparsedConnectorSettings):
        return settings
    faults = FaultCollector()
    read = parse_connector_settings(platform.settings, dict(own.table), ("connectors", connector_name), faults)
    if faults.count:
        raise InvalidSettings(faults.in_file_order())
    return replace(settings, platform_settings=read.platform_settings)


def make_connector(platform: Platform, settings: ConnectorSettings, context: ConnectorContext) -> Connector:
    """Create a connector. Raises `ConnectorNameMismatch` if the platform's factory created it under another name."""
    made = platform.make_connector(settings.platform_settings, context)
    if made.name != context.name:
        raise ConnectorNameMismatch(platform.name, name=made.name, requested=context.name)
    return made


def make_secret_reader(
    settings: Any, *, connector_name: str, data_dir: Path, environment: Mapping[str, str]
) -> Callable[[str], str]:
    """Return a function that reads the secret of a setting, such as `token_env` or `token_file`.

    The secret is read again on each call. A relative path is resolved against `data_dir`.
    """
    named = {stem: (env, file) for stem, env, file in iterate_secrets(settings)}

    def secret(key: str) -> str:
        stem = key.removesuffix("_env").removesuffix("_file")
        env, file = named.get(stem, ("", ""))
        if env and file:
            raise ConnectorSecretAmbiguous(connector_name, stem)
        if not env and not file:
            raise ConnectorSecretMissing(connector_name, stem)
        return (SecretReference(env=env) if env else SecretReference(file=data_dir / Path(file).expanduser())).read(
            environment
        )

    return secret
