"""Compares two configurations: which settings changed, and when each change takes effect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, cast

from retinue.config.declarations import Declarations
from retinue.config.errors import KeyPath, format_key_path
from retinue.config.setting_metadata import SettingEffect
from retinue.config.settings import TOP_LEVEL_SECTIONS, Settings
from retinue.config.table_parser import setting_rule


@dataclass(frozen=True, slots=True, order=True)
class SettingChange:
    """The path of a changed setting. The old and new values are not included, because they may be secret."""

    path: str
    effect: SettingEffect


def diff_configurations(old: tuple[Settings, Declarations], new: tuple[Settings, Declarations]) -> list[SettingChange]:
    """Return the path of every changed setting, sorted.

    An agent or person that was added or removed is listed as one path. For a changed agent or person, the path of each
    changed key is listed.
    """
    settings = _changed_paths(dict(_setting_values(old[0])), dict(_setting_values(new[0])))
    staff = _declaration_changes(_declared_tables(old[1]), _declared_tables(new[1]))
    return sorted([*settings, *staff])


def _setting_values(settings: Settings) -> Iterator[tuple[KeyPath, tuple[object, SettingEffect]]]:
    """Yield each setting with its path in the file."""
    for path, leaf in _iterate_values(settings, ()):
        yield (path if path[0] in TOP_LEVEL_SECTIONS else ("server", *path)), leaf


def _changed_paths(
    old: dict[KeyPath, tuple[object, SettingEffect]], new: dict[KeyPath, tuple[object, SettingEffect]]
) -> Iterator[SettingChange]:
    for path in old.keys() | new.keys():
        before, after = old.get(path), new.get(path)
        if before != after:
            effect = (after or before or (None, SettingEffect.RESTART))[1]
            yield SettingChange(format_key_path(path), effect)


def _declaration_changes(old: dict[KeyPath, object], new: dict[KeyPath, object]) -> Iterator[SettingChange]:
    for path in old.keys() | new.keys():
        if (path in old) != (path in new):
            yield SettingChange(format_key_path(path), SettingEffect.APPLY)
        else:
            before = {key: (value, SettingEffect.APPLY) for key, (value, _) in _iterate_values(old[path], path)}
            after = {key: (value, SettingEffect.APPLY) for key, (value, _) in _iterate_values(new[path], path)}
            yield from _changed_paths(before, after)


def _declared_tables(declarations: Declarations) -> dict[KeyPath, object]:
    named: dict[KeyPath, object] = {}
    for agent in declarations.agents:
        named["agents", agent.name] = {field.name: getattr(agent, field.name) for field in fields(agent)}
    for section, tables in (
        ("people", declarations.people),
        ("bindings", declarations.bindings),
        ("schedules", declarations.schedules),
    ):
        named |= {(section, name): table for name, table in tables.items()}
    return named


def _iterate_values(
    value: object, path: KeyPath, effect: SettingEffect = SettingEffect.HOT
) -> Iterator[tuple[KeyPath, tuple[object, SettingEffect]]]:
    """Yield each value below `value` with its path. Mappings are traversed; a list is one value."""
    if is_dataclass(value) and not isinstance(value, type):
        for each in fields(cast(Any, value)):
            at = path if each.metadata.get("flat") else (*path, each.name)
            yield from _iterate_values(getattr(value, each.name), at, setting_rule(each).effect)
    elif isinstance(value, Mapping):
        for key, inner in cast("Mapping[str, object]", value).items():
            for leaf in _iterate_values(inner, (*path, key), effect):
                # An unset key in a named table is left out, so that only the set keys of a new table are reported.
                if not is_dataclass(inner) or leaf[1][0] not in (None, ()):
                    yield leaf
    else:
        yield path, (value, effect)
