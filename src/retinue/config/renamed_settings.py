"""Finds renamed settings in a file, and their new names. `renamed_names.SETTINGS` lists all old and new names.

A path is matched level by level, after the old names of its tables have been replaced. One path may therefore mix old
and new names, such as the old `news_days` in the new `[server.retention]`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import cast

from msgspec import Struct

from retinue.config.errors import KeyPath, format_key_path
from retinue.domain.renamed_names import SETTING_PARAMETERS, SETTING_VALUES, SETTINGS

Table = dict[str, object]
Platforms = Mapping[str, str]
"""The platform of each connector, by the connector's name: some keys are renamed for one platform only."""

RENAMED_CODE = "config.renamed"
CONFLICT_CODE = "config.renamed_twice"
_ANY = "*"


class RenamedSetting(Struct, frozen=True):
    """A renamed key or value in a file. `old` and `new` are the names, formatted for display.

    `path` is the path in the file, with the old names. If a value was renamed, `value` is the new value.
    """

    old: str
    new: str
    path: KeyPath
    value: str | None = None


class SettingRenames(Struct, frozen=True, kw_only=True):
    """The renamed keys and values of one file. `tree` is the content of the file with the new names.

    `conflicts` are settings that the file contains under both names. A person must remove one of the two.
    """

    tree: Table
    renamed: tuple[RenamedSetting, ...] = ()
    conflicts: tuple[RenamedSetting, ...] = ()


@dataclass(slots=True)
class _Level:
    """The renames that apply in one table: those of its keys and values, and of the tables in it."""

    tables: dict[str, _Level] = field(default_factory=dict[str, "_Level"])
    keys: dict[str, str] = field(default_factory=dict[str, str])
    values: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])

    def at(self, path: Sequence[str]) -> _Level:
        level = self
        for part in path:
            level = level.tables.setdefault(part, _Level())
        return level


@cache
def _renames() -> _Level:
    root = _Level()
    for old, new in SETTINGS.items():
        *parents, key = new.split(".")
        root.at(parents).keys[old.rpartition(".")[2]] = key
    for path, old, new in SETTING_VALUES:
        *parents, key = path.split(".")
        root.at(parents).values.setdefault(key, {})[old] = new
    for section in ("agents", "templates"):  # `clear` lists keys of an agent
        prefix = f"{section}.{_ANY}."
        cleared = {
            old.removeprefix(prefix): new.removeprefix(prefix)
            for old, new in SETTINGS.items()
            if old.startswith(prefix)
        }
        root.at((section, _ANY)).values["clear"] = cleared
    return root


def _enter(levels: Sequence[_Level], path: KeyPath, key: str, platforms: Platforms) -> list[_Level]:
    """Return the renames that apply in the table `key` at this path.

    For a connector, these are the renames for all connectors and the renames for its platform.
    """
    names = [key, _ANY]
    if path == ("connectors",):
        names.append(f"{_ANY}({platforms.get(key, '')})")
    return [level.tables[name] for level in levels for name in names if name in level.tables]


def list_connectors(tree: Table) -> set[str]:
    connectors = tree.get("connectors")
    return set(cast(Table, connectors)) if isinstance(connectors, dict) else set()


def find_platforms(tree: Table) -> dict[str, str]:
    """Return the platform of each connector in the settings. The key `platform` may still have its old name."""
    connectors = tree.get("connectors")
    if not isinstance(connectors, dict):
        return {}
    found: dict[str, str] = {}
    for name, value in cast(Table, connectors).items():
        table = cast(Table, value) if isinstance(value, dict) else {}
        platform = table.get("platform", table.get("kind"))
        if isinstance(platform, str):
            found[name] = str(platform)
    return found


def rename_settings(tree: Table, platforms: Platforms) -> SettingRenames:
    """Return the content of a file with the new names, and the keys and values that were renamed."""
    renamed: list[RenamedSetting] = []
    conflicts: list[RenamedSetting] = []

    def walk(table: Table, old: KeyPath, new: KeyPath, levels: Sequence[_Level]) -> Table:
        made: Table = {}
        for key, value in table.items():
            name = next((level.keys[key] for level in levels if key in level.keys), key)
            old_path, new_path = (*old, key), (*new, name)
            if name != key:
                found = RenamedSetting(_format(old_path), _format(new_path), old_path)
                (conflicts if name in table else renamed).append(found)
                if name in table:
                    continue
            below = _enter(levels, _without_indexes(new), name, platforms)
            values = next((level.values[name] for level in levels if name in level.values), dict[str, str]())
            made[name] = walk_value(value, old_path, new_path, below, values)
        return made

    def walk_value(
        value: object, old: KeyPath, new: KeyPath, levels: Sequence[_Level], values: Mapping[str, str]
    ) -> object:
        match value:
            case dict() if levels:
                return walk(cast(Table, value), old, new, levels)
            case list() if levels or values:
                items = cast("list[object]", value)
                return [walk_value(item, (*old, n), (*new, n), levels, values) for n, item in enumerate(items)]
            case str() if value in values:
                key, now = _format(new), values[value]
                renamed.append(RenamedSetting(f'{key} = "{value}"', f'{key} = "{now}"', old, value=now))
                return now
            case _:
                return value

    made = walk(tree, (), (), (_renames(),))
    return SettingRenames(tree=made, renamed=tuple(renamed), conflicts=tuple(conflicts))


def list_old_names(renamed: Sequence[RenamedSetting], tree: Table, platforms: Platforms) -> list[RenamedSetting]:
    """Return the old names in a file, without duplicates.

    If a renamed table has only one key, the path of that key is listed: `house.zone`, not `house`.
    """
    shown: dict[str, RenamedSetting] = {}
    for each in renamed:
        if each.value is None:
            path = _follow_only_keys(tree, each.path)
            each = RenamedSetting(_format(path), _format(rename_path(path, platforms)), path)
        shown.setdefault(each.old, each)
    return list(shown.values())


def _follow_only_keys(tree: Table, path: KeyPath) -> KeyPath:
    found: object = tree
    for part in path:
        found = cast("Mapping[str | int, object] | list[object]", found)[part]  # type: ignore[index]
    while isinstance(found, dict) and len(cast(Table, found)) == 1:
        [(key, found)] = cast(Table, found).items()
        path = (*path, key)
    return path


def rename_path(path: KeyPath, platforms: Platforms) -> KeyPath:
    """Return the path of a setting with the new names in place of old ones."""
    levels: Sequence[_Level] = (_renames(),)
    made: KeyPath = ()
    for part in path:
        if isinstance(part, str):
            name = next((level.keys[part] for level in levels if part in level.keys), part)
            levels = _enter(levels, _without_indexes(made), name, platforms)
            part = name
        made = (*made, part)
    return made


def find_new_name(path: KeyPath, key: str) -> str | None:
    """Return the new name of an unknown key in the table at this path.

    For a connector, the renames of all platforms are searched.
    """
    levels: Sequence[_Level] = (_renames(),)
    for part in _without_indexes(path):
        names = {part, _ANY}
        levels = [
            table
            for level in levels
            for name, table in level.tables.items()
            if name in names or name.startswith(f"{_ANY}(")
        ]
    return next((level.keys[key] for level in levels if key in level.keys), None)


def find_new_parameter(key: str, known: Sequence[str]) -> str | None:
    """Return the new name of an operation's parameter, if the given name is an old name of a setting.

    Returns None if the operation has no parameter with the new name.
    """
    return next((new for old, new in _parameters() if old == key and new in known), None)


def _parameters() -> Iterator[tuple[str, str]]:
    for renamed in SETTING_PARAMETERS.values():
        yield from renamed


def _format(path: KeyPath) -> str:
    """Format a path without indexes, because the names are the same in all items of a list."""
    return format_key_path(_without_indexes(path))


def _without_indexes(path: KeyPath) -> tuple[str, ...]:
    return tuple(part for part in path if isinstance(part, str))
