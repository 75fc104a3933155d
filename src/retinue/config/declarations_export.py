"""Exports agents and people as a settings file, from which `retinue apply` can create them again.

The exported file never contains a secret.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, cast

import tomlkit

from retinue.domain.agent import Agent, ExternalAgentEndpoint
from retinue.domain.person import Person, Role

_DEFAULT_AGENT = Agent(name="plain")
_OMITTED_FIELDS = frozenset({"name", "version"})


def export_declarations(agents: Iterable[Agent], people: Iterable[Person]) -> str:
    """Return a settings file as TOML, with only the values that differ from the defaults.

    The owner is left out, because every instance has an owner.
    """
    document = tomlkit.document()
    document["config_version"] = 2
    staff: dict[str, Any] = {agent.name: _changed_fields(agent, _DEFAULT_AGENT) for agent in agents}
    if staff:
        document["agents"] = staff
    members = {person.name: {"role": person.role.value} for person in people if person.role is not Role.OWNER}
    if members:
        document["people"] = members
    return tomlkit.dumps(document)


def _changed_fields(value: Any, default: Any) -> Mapping[str, Any]:
    said: dict[str, Any] = {}
    for each in fields(value):
        own, usual = getattr(value, each.name), getattr(default, each.name)
        if each.name in _OMITTED_FIELDS or own == usual or own is None:
            continue
        said[each.name] = _changed_fields(own, usual) if is_dataclass(own) else _to_toml(own)
    if isinstance(value, ExternalAgentEndpoint) and value.secret:
        kind, _, where = value.secret.partition(":")
        said["secret"] = {kind: where}
    return said


def _to_toml(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    return [_to_toml(part) for part in cast("tuple[Any, ...]", value)] if isinstance(value, tuple) else value
