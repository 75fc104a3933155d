"""Exports agents and people as a settings file, which `apply` would read to recreate them. Never
contains a secret."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, cast

import tomlkit

from retinue.domain.agent import Agent, External
from retinue.domain.person import Person, Role

_PLAIN = Agent(name="plain")
_NOT_SAID = frozenset({"name", "version"})


def export(agents: Iterable[Agent], people: Iterable[Person]) -> str:
    """Return the file as TOML, with only values that differ from the defaults. The owner is not
    declared: each instance has one."""
    document = tomlkit.document()
    document["config_version"] = 2
    staff: dict[str, Any] = {agent.name: _said(agent, _PLAIN) for agent in agents}
    if staff:
        document["agents"] = staff
    members = {person.name: {"role": person.role.value} for person in people if person.role is not Role.OWNER}
    if members:
        document["people"] = members
    return tomlkit.dumps(document)


def _said(value: Any, plain: Any) -> Mapping[str, Any]:
    said: dict[str, Any] = {}
    for each in fields(value):
        own, usual = getattr(value, each.name), getattr(plain, each.name)
        if each.name in _NOT_SAID or own == usual or own is None:
            continue
        said[each.name] = _said(own, usual) if is_dataclass(own) else _toml(own)
    if isinstance(value, External) and value.secret:
        kind, _, where = value.secret.partition(":")
        said["secret"] = {kind: where}
    return said


def _toml(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    return [_toml(part) for part in cast("tuple[Any, ...]", value)] if isinstance(value, tuple) else value
