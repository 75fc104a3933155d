"""The differences between two configurations, by path, and when each change takes effect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, cast

from retinue.config.declarations import Staff
from retinue.config.errors import KeyPath, dotted
from retinue.config.setting_metadata import Effect
from retinue.config.settings import OWN_SECTIONS, Settings
from retinue.config.table_parser import rule_of


@dataclass(frozen=True, slots=True, order=True)
class Change:
    """One changed path. The values are left out because some are secret."""

    path: str
    effect: Effect


def diff(old: tuple[Settings, Staff], new: tuple[Settings, Staff]) -> list[Change]:
    """Return every changed path, sorted. An added or removed agent or person is one path; a changed
    one is listed by key."""
    settings = _changed(dict(_settings(old[0])), dict(_settings(new[0])))
    staff = _staff_changes(_staff(old[1]), _staff(new[1]))
    return sorted([*settings, *staff])


def _settings(settings: Settings) -> Iterator[tuple[KeyPath, tuple[object, Effect]]]:
    """Yield each setting by its path in the file."""
    for path, leaf in _leaves(settings, ()):
        yield (path if path[0] in OWN_SECTIONS else ("house", *path)), leaf


def _changed(old: dict[KeyPath, tuple[object, Effect]], new: dict[KeyPath, tuple[object, Effect]]) -> Iterator[Change]:
    for path in old.keys() | new.keys():
        before, after = old.get(path), new.get(path)
        if before != after:
            effect = (after or before or (None, Effect.RESTART))[1]
            yield Change(dotted(path), effect)


def _staff_changes(old: dict[KeyPath, object], new: dict[KeyPath, object]) -> Iterator[Change]:
    for path in old.keys() | new.keys():
        if (path in old) != (path in new):
            yield Change(dotted(path), Effect.APPLY)
        else:
            before = {key: (value, Effect.APPLY) for key, (value, _) in _leaves(old[path], path)}
            after = {key: (value, Effect.APPLY) for key, (value, _) in _leaves(new[path], path)}
            yield from _changed(before, after)


def _staff(staff: Staff) -> dict[KeyPath, object]:
    named: dict[KeyPath, object] = {}
    for agent in staff.agents:
        named["agents", agent.name] = {field.name: getattr(agent, field.name) for field in fields(agent)}
    for section, tables in (("people", staff.people), ("bindings", staff.bindings), ("schedules", staff.schedules)):
        named |= {(section, name): table for name, table in tables.items()}
    return named


def _leaves(
    value: object, path: KeyPath, effect: Effect = Effect.HOT
) -> Iterator[tuple[KeyPath, tuple[object, Effect]]]:
    """Yield each single value below `value` by its path. Mappings are expanded; a list is one
    value."""
    if is_dataclass(value) and not isinstance(value, type):
        for each in fields(cast(Any, value)):
            at = path if each.metadata.get("flat") else (*path, each.name)
            yield from _leaves(getattr(value, each.name), at, rule_of(each).effect)
    elif isinstance(value, Mapping):
        for key, inner in cast("Mapping[str, object]", value).items():
            for leaf in _leaves(inner, (*path, key), effect):
                # An unset key of a named table is no change, whether the table exists or not.
                if not is_dataclass(inner) or leaf[1][0] not in (None, ()):
                    yield leaf
    else:
        yield path, (value, effect)
