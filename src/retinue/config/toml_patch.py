"""Changes the text of a settings file as a person would: only what was requested changes, and comments stay."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any, cast

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import AoT

from retinue.config.loader import text_hash
from retinue.config.toml_comments import Commented
from retinue.config.toml_source import FILE_BYTES_MAX
from retinue.domain.errors import Conflict, Invalid, RetinueError, TooLarge

# Keys that identify a table of an array.
IDENTITY = ("id", "name")

Changes = Mapping[str, Any]


def patch(text: str, changes: Changes, *, expected_hash: str, validate: Callable[[str], object]) -> str:
    """Return the text with the changes applied. `validate` raises if the result is invalid.

    `changes` is a nested mapping: a table is merged into the existing one, None removes a key, and
    anything else replaces the value. In an array whose tables all have an `id` (or all a `name`),
    existing tables are merged and others added; other arrays are replaced.
    """
    if text_hash(text) != expected_hash:
        raise Conflict(
            "the settings file has changed since it was read",
            because="this change was made for another text, and could undo what came in between",
            try_this="read the settings again, and make the change once more",
            code="config.changed",
        )
    _check(changes, "")
    result = _patched(text, changes)
    if result is None:
        validate(text)  # reports errors in the text with their line
        raise RetinueError(
            "the settings file could not be changed without harm",
            because="some of its tables are written in a way that cannot be added to",
            try_this="make this change with an editor",
            code="config.unchangeable",
        )
    if len(result.encode()) > FILE_BYTES_MAX:
        raise TooLarge(
            "the settings file would become too large",
            because=f"it may have {FILE_BYTES_MAX:,} bytes",
            try_this="put part of it into a file of its own, and include that",
            code="config.too-large",
        )
    validate(result)
    return result


def _patched(text: str, changes: Changes) -> str | None:
    """Return the new text; None if its values would not be exactly the old ones with the changes."""
    try:
        before = tomllib.loads(text)
        wanted = _merged(before, changes)
        commented = Commented(text)
        _put(commented.document, changes)
        result = commented.text()
        return result if _says(result, wanted, before) else None
    except (ValueError, TOMLKitError, RecursionError):
        return None


def _says(text: str, wanted: dict[str, Any], before: dict[str, Any]) -> bool:
    """Whether a text has the wanted values. A table that only held other tables disappears with the
    last of them."""
    found = tomllib.loads(text)
    _drop_emptied(wanted, found, before)
    return repr(_sorted(found)) == repr(_sorted(wanted))


def _drop_emptied(wanted: dict[str, Any], found: dict[str, Any], before: dict[str, Any]) -> None:
    for key, value in list(wanted.items()):
        if isinstance(value, dict) and isinstance(before.get(key), dict):
            table = cast("dict[str, Any]", value)
            _drop_emptied(table, found.get(key, {}), before[key])
            if not table and before[key] and key not in found:
                del wanted[key]


def _check(value: object, path: str) -> None:
    """Raise Invalid if TOML cannot express the value."""
    if isinstance(value, Mapping):
        for key, inner in cast("Mapping[object, object]", value).items():
            if not isinstance(key, str):
                raise _unsayable(f"{path}.{key}".lstrip("."), "a key is a text")
            if inner is not None:
                _check(inner, f"{path}.{key}".lstrip("."))
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(cast("Sequence[object]", value)):
            _check(inner, f"{path}[{index}]")
    elif not isinstance(value, str | bool | int | float):
        raise _unsayable(path, "a setting is a text, a number, true or false, a list or a table")


def _unsayable(path: str, because: str) -> Invalid:
    return Invalid(
        f"{path} cannot be written to the settings file",
        because=because,
        try_this="None takes a key out, but has no place in a list",
        code="config.invalid",
    )


def _put(table: MutableMapping[str, Any], changes: Changes) -> None:
    """Apply the changes to a tomlkit table, recursively."""
    for key, change in changes.items():
        value: object = change
        there = table.get(key)
        if value is None:
            table.pop(key, None)
        elif _is_table(value) and isinstance(there, MutableMapping):
            _put(cast("MutableMapping[str, Any]", there), cast(Changes, value))
        elif (identity := _identity(there, value)) is not None:
            _put_by_identity(there, cast("Sequence[Changes]", value), identity)
        else:
            table[key] = _without_none(value)


def _put_by_identity(array: object, changes: Sequence[Changes], identity: str) -> None:
    has_headers = isinstance(array, AoT)
    tables = cast("list[Any]", array)
    for change in changes:
        known = next((each for each in tables if each[identity] == change[identity]), None)
        if known is None:
            added = tomlkit.table() if has_headers else tomlkit.inline_table()
            _put(cast("MutableMapping[str, Any]", added), change)
            tables.append(added)
        else:
            _put(known, change)


def _merged(table: Mapping[str, Any], changes: Changes) -> dict[str, Any]:
    """Compute the expected values on plain dicts, to verify the new text against them."""
    merged = dict(table)
    for key, change in changes.items():
        value: object = change
        there = merged.get(key)
        if value is None:
            merged.pop(key, None)
        elif _is_table(value) and isinstance(there, dict):
            merged[key] = _merged(cast("dict[str, Any]", there), cast(Changes, value))
        elif (identity := _identity(there, value)) is not None:
            kept = {each[identity]: each for each in cast("list[dict[str, Any]]", there)}
            for each in cast("Sequence[Changes]", value):
                kept[each[identity]] = _merged(kept.get(each[identity], {}), each)
            merged[key] = list(kept.values())
        else:
            merged[key] = _without_none(value)
    return merged


def _identity(there: object, value: object) -> str | None:
    """Return the key by which two arrays of tables can be merged: every table of both has it, and
    it is unique in each."""
    if not isinstance(there, list) or not isinstance(value, list | tuple) or not there or not value:
        return None
    arrays = [list(cast("Sequence[object]", there)), list(cast("Sequence[object]", value))]
    for key in IDENTITY:
        if all(_are_told_apart(array, key) for array in arrays):
            return key
    return None


def _are_told_apart(array: list[object], key: str) -> bool:
    names = [cast("Mapping[str, object]", each).get(key) if isinstance(each, Mapping) else None for each in array]
    return all(isinstance(name, str) for name in names) and len(set(names)) == len(names)


def _sorted(value: object) -> object:
    """Normalize a value for comparison: keys sorted, with 1, 1.0 and true distinct."""
    if isinstance(value, dict):
        table = cast("dict[str, object]", value)
        return [(key, _sorted(table[key])) for key in sorted(table)]
    if isinstance(value, list | tuple):
        return [_sorted(each) for each in cast("Sequence[object]", value)]
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
