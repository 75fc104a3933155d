"""Connectors in the settings file: `[connectors.NAME]`, where NAME is one of our accounts on a
platform.

The keys that every connector has are parsed here, the rest with the settings class of its platform.
That class is imported by name, as for a plugin, so an instance without connectors imports none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from importlib import import_module
from typing import Any, cast

from retinue.config.access import DoorSettings
from retinue.config.errors import Faults, KeyPath
from retinue.config.reply_delivery import WordSettings
from retinue.config.setting_metadata import FLAT, Rule, setting
from retinue.config.table_parser import nearest, table_at, unknown_key, values
from retinue.config.toml_source import Table, shown
from retinue.domain.address import NAME_LENGTH_MAX

OWN_CONNECTORS = frozenset({"external", "completion"})  # names of internal connectors
_NAME = re.compile(r"[a-z][a-z0-9-]*")


BUILT_IN: Mapping[str, str] = {
    "telegram": "retinue.connectors.telegram",
    "email": "retinue.connectors.email",
    "irc": "retinue.connectors.irc",
    "webhook": "retinue.connectors.webhook",
}
"""Each names the module whose `KIND` it is."""
NAMES = tuple(BUILT_IN)

_ACCOUNT = "it can be spoken to by a `webhook` connector, or by a plug-in that brings this kind"
ABSENT: Mapping[str, str] = {
    "whatsapp": "it has no way in for programs but an account of its maker's for companies, or one that is not allowed "
    f"and may be closed at any time, so there is no `whatsapp_login` either; {_ACCOUNT}",
    "signal": f"it needs a telephone number and a program that its makers do not support; {_ACCOUNT}",
    "matrix": f"this version of the house does not speak it yet; {_ACCOUNT}",
    "xmpp": f"this version of the house does not speak it yet; {_ACCOUNT}",
    "slack": f"this version of the house does not speak it yet; {_ACCOUNT}",
    "discord": f"this version of the house does not speak it yet; {_ACCOUNT}",
    "imessage": f"it runs on one maker's machines alone; {_ACCOUNT}",
    "msteams": f"it needs a company's account; {_ACCOUNT}",
    "googlechat": f"it needs a company's account; {_ACCOUNT}",
    "sms": f"it needs a contract with someone who sends them; {_ACCOUNT}",
}
"""Kinds that other houses have and this one does not, each with the reason."""


def connector_name(text: str) -> str | None:
    """Check the name of a connector. It is part of addresses such as `channel:NAME:CHANNEL`."""
    if text in OWN_CONNECTORS:
        return "is a name that the house has for its own"
    if len(text) <= NAME_LENGTH_MAX and _NAME.fullmatch(text):
        return None
    return f"must have at most {NAME_LENGTH_MAX} small letters, digits and hyphens, and begin with a letter"


def kind_name(text: str) -> str | None:
    if len(text) <= NAME_LENGTH_MAX and _NAME.fullmatch(text):
        return None
    return "must be the name of a kind of connector: small letters, digits and hyphens"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """The unparsed keys of a platform that is not built in: a plugin may provide it."""

    table: Mapping[str, Any] = field(default_factory=dict[str, Any], metadata={**FLAT, "rule": Rule(in_file=False)})


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorSettings:
    """One account on one platform. Each platform adds keys to these."""

    kind: str = setting("", "What it speaks, such as `telegram`. It must be set.", check=kind_name, example="irc")
    enabled: bool = setting(True, "Whether it is used at all.")
    words: WordSettings = WordSettings()
    door: DoorSettings = field(default=DoorSettings(), metadata=FLAT)
    own: Any = field(default=Unread(), metadata={**FLAT, "rule": Rule(in_file=False)})


def read_connectors(value: object, faults: Faults, *, guests: bool) -> dict[str, ConnectorSettings]:
    """Parse all connectors. An invalid one is reported and left out.

    With `allow_unknown`, an unknown platform may come from a plugin.
    """
    found: dict[str, ConnectorSettings] = {}
    for name, each in table_at(value, ("connectors",), faults).items():
        path: KeyPath = ("connectors", name)
        if wrong := connector_name(name):
            faults.add(
                path, wrong, because="it is the CONNECTOR of channel:CONNECTOR:ROOM", try_this="[connectors.family]"
            )
            continue
        before = faults.count
        made = _read(table_at(each, path, faults), path, faults, guests=guests)
        if made is not None and faults.count == before:
            found[name] = made
    return found


def _read(table: Table, path: KeyPath, faults: Faults, *, guests: bool) -> ConnectorSettings | None:
    kind = table.get("kind")
    if not isinstance(kind, str) or not kind:
        faults.add(
            (*path, "kind"),
            "is missing" if kind is None else f"must be a text in quotes, and is {shown(kind)}",
            because="it says what this connector speaks",
            try_this=f'kind = "{NAMES[0]}"',
        )
        return None
    own = group_of(kind) if kind in BUILT_IN else None
    if own is None and (kind in ABSENT or not guests):
        near = nearest(kind, NAMES)
        faults.add(
            (*path, "kind"),
            f"is {shown(kind)}, and there is no such connector here",
            because=ABSENT.get(kind) or f"the house has {', '.join(NAMES)}",
            try_this=f"did you mean `{near}`?" if near else "choose one of those, or a plug-in that brings it",
        )
        return None
    return settings_from(own, table, path, faults)


def group_of(kind: str) -> type[Any]:
    """Return the settings class of a built-in platform, importing it by name."""
    module: Any = import_module(BUILT_IN[kind])
    return module.KIND.settings


def settings_from(own: type[Any] | None, table: Table, path: KeyPath, faults: Faults) -> ConnectorSettings:
    """Parse a table with the settings classes of every connector and with that of its platform, if known."""
    common = {group: _names(group) for group in (ConnectorSettings, DoorSettings)}
    theirs = _names(own) if own is not None else frozenset(table).difference(*common.values())
    if own is not None:
        known = theirs.union(*common.values())
        for key, value in table.items():
            if key not in known and value is not None:  # a secret in plain text was already reported
                unknown_key(key, path, known, faults)
    mine = {key: value for key, value in table.items() if key in common[ConnectorSettings]}
    door = {key: value for key, value in table.items() if key in common[DoorSettings]}
    rest = {key: value for key, value in table.items() if key in theirs}
    return ConnectorSettings(
        **values(ConnectorSettings, mine, path, faults, leave_out=("door", "own")),
        door=DoorSettings(**values(DoorSettings, door, path, faults)),
        own=Unread(table=rest) if own is None else own(**values(own, rest, path, faults)),
    )


def _names(group: type[Any]) -> frozenset[str]:
    return frozenset(each.name for each in fields(group)) - {"door", "own"}


def named_secrets(own: Any) -> Iterator[tuple[str, str, str]]:
    """Yield each secret that the settings of a platform refer to: its purpose, environment variable
    and file.

    A secret is a value that can be in either. A file alone may be anything, such as a certificate.
    """
    for stem in secret_stems(cast("type[Any]", type(own))):
        env, file = str(getattr(own, f"{stem}_env") or ""), str(getattr(own, f"{stem}_file") or "")
        if env or file:
            yield stem, env, file


def secret_stems(group: type[Any]) -> Iterator[str]:
    """Yield the names of possible secrets in a settings class: `token` if it has `token_env` and `token_file`."""
    names = {each.name for each in fields(group)}
    for name in sorted(names):
        stem = name.removesuffix("_env")
        if stem != name and f"{stem}_file" in names:
            yield stem
