"""Reads and builds the settings of a connector, and converts answers that a person typed to the settings' types."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, get_origin

import msgspec

from retinue.config.connectors import ConnectorSettings, iterate_secret_names, parse_connector_settings
from retinue.config.errors import FaultCollector, InvalidSettings
from retinue.config.settings_form import to_json_value
from retinue.config.table_parser import cached_type_hints
from retinue.connectors.base import Platform
from retinue.domain.access import DmPolicy
from retinue.operations.base import Services
from retinue.operations.connector.errors import ConnectorSecretInvalid, ConnectorSecretUnknown
from retinue.store.core.durable_files import replace_private_file

SECRETS_DIRECTORY = "secrets"
SECRET_CHARS_MAX = 16 * 1024

Meta = msgspec.Meta


class ConnectorAddRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Add a connector.

    Its `secrets` are written to files in the data directory, and the settings refer to these files.
    """

    platform: Annotated[str, Meta(description="platform, such as telegram; `connector platforms` lists all")]
    name: Annotated[str, Meta(description="name of the connector; default: the platform")] = ""
    settings: Annotated[dict[str, Any], Meta(description="settings of the connector, as in the settings file")] = {}
    answers: Annotated[
        dict[str, str], Meta(description="settings of the connector, with each value as the text that a person typed")
    ] = {}
    secrets: Annotated[dict[str, str], Meta(description="secrets of the connector by name, such as token")] = {}
    check: Annotated[bool, Meta(description="test the connection before adding the connector")] = True


def build_settings_table(
    services: Services, name: str, kind: Platform, request: ConnectorAddRequest, created_files: list[Path]
) -> dict[str, Any]:
    """Write the secrets of the new connector to files, and return its settings table.

    The paths of the files are appended to `created_files`, so that the caller can delete the files after an error.
    """
    answers = {key: parse_typed_value(kind.settings, key, text) for key, text in request.answers.items()}
    given = {**kind.defaults, **answers, **request.settings}
    table: dict[str, Any] = {"platform": kind.name, "dm_policy": DmPolicy.PAIRING.value, **given}
    known = set(iterate_secret_names(kind.settings))
    for stem, secret in request.secrets.items():
        if stem not in known:
            raise ConnectorSecretUnknown(stem, platform=kind.name, known=sorted(known))
        if not secret.strip() or len(secret) > SECRET_CHARS_MAX or not secret.isprintable():
            raise ConnectorSecretInvalid(stem, chars_max=SECRET_CHARS_MAX)
        folder = services.data_dir / SECRETS_DIRECTORY
        folder.mkdir(mode=0o700, exist_ok=True)
        # The name is unique. Otherwise, if this connector is rejected, a file that is in use could be deleted.
        file = folder / f"{name}-{stem}-{services.ids.new()[:8]}"
        replace_private_file(file, secret.strip().encode())
        created_files.append(file)
        table[f"{stem}_file"] = f"{SECRETS_DIRECTORY}/{file.name}"
    return table


def parse_typed_value(settings_class: type[Any], key: str, text: str) -> Any:
    """Convert a string that a person typed to the type of the setting.

    If the string cannot be converted, it is returned unchanged, and the later validation rejects it.
    """
    hint = cached_type_hints(settings_class).get(key, str)
    if get_origin(hint) is tuple:
        return [part for each in text.split(",") if (part := each.strip())]
    if hint is bool:
        return {"true": True, "yes": True, "y": True, "false": False, "no": False, "n": False}.get(text.lower(), text)
    if hint in (int, float):
        try:
            return hint(text)
        except ValueError:
            return text
    return text


def read_connector_settings(kind: Platform, name: str, table: Mapping[str, Any]) -> ConnectorSettings:
    """Parse the settings table of a connector, as if it were in the settings file.

    If settings are invalid, raise one error that lists all of them.
    """
    faults = FaultCollector()
    settings = parse_connector_settings(kind.settings, dict(table), ("connectors", name), faults)
    if faults.count:
        raise InvalidSettings(faults.in_file_order())
    return settings


def to_settings_table(settings: ConnectorSettings) -> dict[str, Any]:
    own = to_json_value(settings.platform_settings)
    rest = {"platform": settings.platform, "enabled": settings.enabled, **to_json_value(settings.access)}
    return {**rest, **own.get("table", own)}
