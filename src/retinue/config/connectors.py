"""Parses connectors in the settings file: `[connectors.NAME]`, where NAME is a name for one account on a platform.

Keys that every connector has are declared here. Each platform has a settings class that declares its other keys. The
class is imported only if a connector uses the platform.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from importlib import import_module
from typing import Any, cast

from retinue.config.access import AccessSettings
from retinue.config.errors import FaultCollector, KeyPath
from retinue.config.reply_delivery import ReplyDeliverySettings
from retinue.config.setting_metadata import FLAT_METADATA, SettingRule, setting
from retinue.config.table_parser import closest_match, expect_table, parse_table, report_unknown_key
from retinue.config.toml_source import Table, format_value
from retinue.domain.address import NAME_LENGTH_MAX

INTERNAL_CONNECTORS = frozenset({"external", "completion"})  # names of internal connectors
_NAME = re.compile(r"[a-z][a-z0-9-]*")


BUILT_IN_PLATFORMS: Mapping[str, str] = {
    "telegram": "retinue.connectors.telegram",
    "email": "retinue.connectors.email",
    "irc": "retinue.connectors.irc",
    "webhook": "retinue.connectors.webhook",
}
"""Each built-in platform, with the module that contains its `PLATFORM`."""
PLATFORM_NAMES = tuple(BUILT_IN_PLATFORMS)

_ALTERNATIVE = "use a `webhook` connector, or a plugin for this platform"
UNSUPPORTED_PLATFORMS: Mapping[str, str] = {
    "whatsapp": (
        "its official API is for companies only, and unofficial access can be blocked at any time, so "
        f"there is no `whatsapp_login` either; {_ALTERNATIVE}"
    ),
    "signal": f"it needs a phone number and an unofficial client; {_ALTERNATIVE}",
    "matrix": f"this version does not support it; {_ALTERNATIVE}",
    "xmpp": f"this version does not support it; {_ALTERNATIVE}",
    "slack": f"this version does not support it; {_ALTERNATIVE}",
    "discord": f"this version does not support it; {_ALTERNATIVE}",
    "imessage": f"it runs on Apple hardware only; {_ALTERNATIVE}",
    "msteams": f"it needs a company account; {_ALTERNATIVE}",
    "googlechat": f"it needs a company account; {_ALTERNATIVE}",
    "sms": f"it needs a contract with an SMS provider; {_ALTERNATIVE}",
}
"""Platforms that similar servers support and this server does not, each with the reason."""


def check_connector_name(text: str) -> str | None:
    """Check the name of a connector. The name is part of addresses such as `channel:NAME:CHANNEL`."""
    if text in INTERNAL_CONNECTORS:
        return "is reserved for an internal connector"
    if len(text) <= NAME_LENGTH_MAX and _NAME.fullmatch(text):
        return None
    return f"must have at most {NAME_LENGTH_MAX} lowercase letters, digits and hyphens, and begin with a letter"


def check_platform_name(text: str) -> str | None:
    if len(text) <= NAME_LENGTH_MAX and _NAME.fullmatch(text):
        return None
    return "must be the name of a platform: lowercase letters, digits and hyphens"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnparsedConnectorSettings:
    """The settings of a connector whose platform is not built in.

    A plugin may provide the platform, so the settings are parsed after plugins are loaded.
    """

    table: Mapping[str, Any] = field(
        default_factory=dict[str, Any], metadata={**FLAT_METADATA, "rule": SettingRule(in_file=False)}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorSettings:
    """A connector: one account on one platform. These are the settings that connectors of all platforms have."""

    platform: str = setting(
        "", "Platform of this connector, such as `telegram`. Required.", check=check_platform_name, example="irc"
    )
    enabled: bool = setting(True, "Whether the connector is started.")
    replies: ReplyDeliverySettings = ReplyDeliverySettings()
    access: AccessSettings = field(default=AccessSettings(), metadata=FLAT_METADATA)
    platform_settings: Any = field(
        default=UnparsedConnectorSettings(), metadata={**FLAT_METADATA, "rule": SettingRule(in_file=False)}
    )


def parse_connectors(value: object, faults: FaultCollector, *, allow_unknown: bool) -> dict[str, ConnectorSettings]:
    """Parse all connectors. An invalid connector is reported and left out.

    With `allow_unknown`, an unknown platform is not an error, because a plugin may provide the platform.
    """
    found: dict[str, ConnectorSettings] = {}
    for name, each in expect_table(value, ("connectors",), faults).items():
        path: KeyPath = ("connectors", name)
        if wrong := check_connector_name(name):
            faults.add(
                path, wrong, because="it is the CONNECTOR in channel:CONNECTOR:CHANNEL", try_this="[connectors.family]"
            )
            continue
        before = faults.count
        made = _parse_connector(expect_table(each, path, faults), path, faults, allow_unknown=allow_unknown)
        if made is not None and faults.count == before:
            found[name] = made
    return found


def _parse_connector(
    table: Table, path: KeyPath, faults: FaultCollector, *, allow_unknown: bool
) -> ConnectorSettings | None:
    platform = table.get("platform")
    if not isinstance(platform, str) or not platform:
        faults.add(
            (*path, "platform"),
            "is missing" if platform is None else f"must be a string in quotes, not {format_value(platform)}",
            because="it names the platform of this connector",
            try_this=f'set platform = "{PLATFORM_NAMES[0]}"',
        )
        return None
    own = load_platform_settings(platform) if platform in BUILT_IN_PLATFORMS else None
    if own is None and (platform in UNSUPPORTED_PLATFORMS or not allow_unknown):
        near = closest_match(platform, PLATFORM_NAMES)
        faults.add(
            (*path, "platform"),
            f"is {format_value(platform)}, which is not a known platform",
            because=UNSUPPORTED_PLATFORMS.get(platform) or f"the platforms are {', '.join(PLATFORM_NAMES)}",
            try_this=f"did you mean `{near}`?" if near else "choose another platform, or install a plugin for this one",
        )
        return None
    return parse_connector_settings(own, table, path, faults)


def load_platform_settings(platform: str) -> type[Any]:
    """Import the settings class of a built-in platform by name, and return it."""
    module: Any = import_module(BUILT_IN_PLATFORMS[platform])
    return module.PLATFORM.settings


def parse_connector_settings(
    platform_settings: type[Any] | None, table: Table, path: KeyPath, faults: FaultCollector
) -> ConnectorSettings:
    """Parse the table of a connector. Keys of the platform are parsed too if its settings class is given."""
    common = {group: _field_names(group) for group in (ConnectorSettings, AccessSettings)}
    theirs = (
        _field_names(platform_settings)
        if platform_settings is not None
        else frozenset(table).difference(*common.values())
    )
    if platform_settings is not None:
        known = theirs.union(*common.values())
        for key, value in table.items():
            if key not in known and value is not None:  # a secret in plain text was already reported
                report_unknown_key(key, path, known, faults)
    mine = {key: value for key, value in table.items() if key in common[ConnectorSettings]}
    access = {key: value for key, value in table.items() if key in common[AccessSettings]}
    rest = {key: value for key, value in table.items() if key in theirs}
    return ConnectorSettings(
        **parse_table(ConnectorSettings, mine, path, faults, leave_out=("access", "platform_settings")),
        access=AccessSettings(**parse_table(AccessSettings, access, path, faults)),
        platform_settings=UnparsedConnectorSettings(table=rest)
        if platform_settings is None
        else platform_settings(**parse_table(platform_settings, rest, path, faults)),
    )


def _field_names(cls: type[Any]) -> frozenset[str]:
    return frozenset(each.name for each in fields(cls)) - {"access", "platform_settings"}


def iterate_secrets(settings: Any) -> Iterator[tuple[str, str, str]]:
    """Yield each secret to which a connector's settings refer, as (purpose, environment variable, file).

    A secret is a pair of keys such as `token_env` and `token_file`. A single key that names a file may be something
    else, such as a certificate.
    """
    for stem in iterate_secret_names(cast("type[Any]", type(settings))):
        env, file = str(getattr(settings, f"{stem}_env") or ""), str(getattr(settings, f"{stem}_file") or "")
        if env or file:
            yield stem, env, file


def iterate_secret_names(cls: type[Any]) -> Iterator[str]:
    """Yield the purpose of each secret in a settings class, such as `token` for `token_env` and `token_file`."""
    names = {each.name for each in fields(cls)}
    for name in sorted(names):
        stem = name.removesuffix("_env")
        if stem != name and f"{stem}_file" in names:
            yield stem
