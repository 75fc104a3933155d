"""Changes single keys in the text of a settings file. All other text, including comments, stays unchanged."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any, cast

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import AoT

from retinue.config.errors import (
    KeyPath,
    SettingInexpressible,
    SettingRenamed,
    SettingsFileChanged,
    SettingsFileUnchangeable,
)
from retinue.config.renamed_settings import find_platforms, list_old_names, rename_settings
from retinue.config.settings_loader import hash_settings_text
from retinue.config.toml_comments import CommentedDocument
from retinue.config.toml_source import FILE_BYTES_MAX, merge_tables
from retinue.domain.shared_errors import SettingsFileTooLarge

# Keys that can identify a table in an array of tables.
IDENTITY_KEYS = ("id", "name")

Changes = Mapping[str, Any]


def patch_settings_text(text: str, changes: Changes, *, expected_hash: str, validate: Callable[[str], object]) -> str:
    """Return the text with the changes applied. `validate` raises an error if the result is invalid.

    `changes` is a nested mapping. A table in it is merged into the existing table, None removes a key, and any other
    value replaces the old value. An array of tables is merged if each of its tables has an `id`, or each has a `name`:
    tables with an existing id or name are merged, others are added. Any other array is replaced.
    """
    if hash_settings_text(text) != expected_hash:
        raise SettingsFileChanged
    _check_expressible(changes, "")
    _check_names(text, changes)
    result = _apply_changes(text, changes)
    if result is None:
        validate(text)  # raises if the text itself has errors, with their lines
        raise SettingsFileUnchangeable
    if len(result.encode()) > FILE_BYTES_MAX:
        raise SettingsFileTooLarge(bytes_max=FILE_BYTES_MAX)
    validate(result)
    return result


def _apply_changes(text: str, changes: Changes) -> str | None:
    """Return the new text, or None if its values would not be exactly the old values with these changes."""
    try:
        before = tomllib.loads(text)
        wanted = _merge_changes(before, changes)
        commented = CommentedDocument(text)
        _patch_table(commented.document, changes)
        result = commented.text()
        return result if _has_values(result, wanted, before) else None
    except (ValueError, TOMLKitError, RecursionError):
        return None


def _has_values(text: str, wanted: dict[str, Any], before: dict[str, Any]) -> bool:
    """Whether a TOML text has exactly the wanted values.

    A table may be missing if it contained only other tables and all of them were removed.
    """
    found = tomllib.loads(text)
    _drop_emptied(wanted, found, before)
    return repr(_normalize(found)) == repr(_normalize(wanted))


def _drop_emptied(wanted: dict[str, Any], found: dict[str, Any], before: dict[str, Any]) -> None:
    for key, value in list(wanted.items()):
        if isinstance(value, dict) and isinstance(before.get(key), dict):
            table = cast("dict[str, Any]", value)
            _drop_emptied(table, found.get(key, {}), before[key])
            if not table and before[key] and key not in found:
                del wanted[key]


def _check_names(text: str, changes: Changes) -> None:
    """Raise `SettingRenamed` if a change sets a value under an old name. A change may remove a key with an old name."""
    try:
        platforms = find_platforms(merge_tables(tomllib.loads(text), dict(changes)))
    except tomllib.TOMLDecodeError:
        return  # it is reported later, with its line
    set_ = cast("dict[str, Any]", _without_none(changes))
    for each in list_old_names(rename_settings(set_, platforms).renamed, set_, platforms):
        if _sets_value(changes, each.path):
            raise SettingRenamed(each.old, new=each.new)


def _sets_value(changes: Changes, path: KeyPath) -> bool:
    """Whether the changes set a value at or below this path. False if they only remove values there."""
    found: Any = changes
    for part in path:
        found = found[part]

    def has_value(value: Any) -> bool:
        if isinstance(value, Mapping):
            table = cast("Mapping[str, Any]", value)
            return not table or any(has_value(inner) for inner in table.values())
        return value is not None

    return has_value(found)


def _check_expressible(value: object, path: str) -> None:
    """Raise `SettingInexpressible` if TOML cannot express a value in the changes."""
    if isinstance(value, Mapping):
        for key, inner in cast("Mapping[object, object]", value).items():
            if not isinstance(key, str):
                raise SettingInexpressible(f"{path}.{key}".lstrip("."), because="a key must be a string")
            if inner is not None:
                _check_expressible(inner, f"{path}.{key}".lstrip("."))
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(cast("Sequence[object]", value)):
            _check_expressible(inner, f"{path}[{index}]")
    elif not isinstance(value, str | bool | int | float):
        raise SettingInexpressible(
            path, because="a setting must be a string, a number, true or false, a list or a table"
        )


def _patch_table(table: MutableMapping[str, Any], changes: Changes) -> None:
    """Apply the changes to a tomlkit table, recursively."""
    for key, change in changes.items():
        value: object = change
        there = table.get(key)
        if value is None:
            table.pop(key, None)
        elif _is_table(value) and isinstance(there, MutableMapping):
            _patch_table(cast("MutableMapping[str, Any]", there), cast(Changes, value))
        elif (identity := _shared_identity_key(there, value)) is not None:
            _patch_array(there, cast("Sequence[Changes]", value), identity)
        else:
            table[key] = _without_none(value)


def _patch_array(array: object, changes: Sequence[Changes], identity: str) -> None:
    has_headers = isinstance(array, AoT)
    tables = cast("list[Any]", array)
    for change in changes:
        known = next((each for each in tables if each[identity] == change[identity]), None)
        if known is None:
            added = tomlkit.table() if has_headers else tomlkit.inline_table()
            _patch_table(cast("MutableMapping[str, Any]", added), change)
            tables.append(added)
        else:
            _patch_table(known, change)


def _merge_changes(table: Mapping[str, Any], changes: Changes) -> dict[str, Any]:
    """Return the values that the new text must have: the values before, with the changes applied."""
    merged = dict(table)
    for key, change in changes.items():
        value: object = change
        there = merged.get(key)
        if value is None:
            merged.pop(key, None)
        elif _is_table(value) and isinstance(there, dict):
            merged[key] = _merge_changes(cast("dict[str, Any]", there), cast(Changes, value))
        elif (identity := _shared_identity_key(there, value)) is not None:
            kept = {each[identity]: each for each in cast("list[dict[str, Any]]", there)}
            for each in cast("Sequence[Changes]", value):
                kept[each[identity]] = _merge_changes(kept.get(each[identity], {}), each)
            merged[key] = list(kept.values())
        else:
            merged[key] = _without_none(value)
    return merged


def _shared_identity_key(there: object, value: object) -> str | None:
    """Return the key by which the tables of two arrays can be matched, such as `id`, or None.

    Every table in both arrays must have this key, and its values must be unique within each array.
    """
    if not isinstance(there, list) or not isinstance(value, list | tuple) or not there or not value:
        return None
    arrays = [list(cast("Sequence[object]", there)), list(cast("Sequence[object]", value))]
    for key in IDENTITY_KEYS:
        if all(_is_unique_key(array, key) for array in arrays):
            return key
    return None


def _is_unique_key(array: list[object], key: str) -> bool:
    names = [cast("Mapping[str, object]", each).get(key) if isinstance(each, Mapping) else None for each in array]
    return all(isinstance(name, str) for name in names) and len(set(names)) == len(names)


def _normalize(value: object) -> object:
    """Sort the keys of a value, so that two values can be compared by `repr`, which distinguishes 1, 1.0 and true."""
    if isinstance(value, dict):
        table = cast("dict[str, object]", value)
        return [(key, _normalize(table[key])) for key in sorted(table)]
    if isinstance(value, list | tuple):
        return [_normalize(each) for each in cast("Sequence[object]", value)]
    return value


def _is_table(value: object) -> bool:
    return isinstance(value, Mapping)


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        table = cast("Mapping[str, Any]", value)
        return {key: _without_none(inner) for key, inner in table.items() if inner is not None}
    if isinstance(value, list | tuple):
        return [_without_none(each) for each in cast("Sequence[Any]", value)]
    return value
