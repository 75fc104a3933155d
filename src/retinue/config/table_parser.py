"""Parses a TOML table into a frozen dataclass. Unknown keys, wrong types and values out of range are reported."""

from __future__ import annotations

import functools
import math
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable
from zoneinfo import ZoneInfo

from retinue.config import unsupported_keys
from retinue.config.errors import FaultCollector, KeyPath, format_key_path
from retinue.config.renamed_settings import RENAMED_CODE, find_new_name
from retinue.config.secret import SecretReference
from retinue.config.setting_metadata import INTEGER_MAX, NO_RULE, SettingRule
from retinue.config.toml_source import Table, format_value
from retinue.domain.errors import Invalid
from retinue.domain.times import load_zone

UNKNOWN_KEY_REASON = "unknown keys are refused, so that a typo does not go unnoticed"

Rules = Mapping[str, SettingRule]


class _Invalid:
    """Type of the marker `INVALID`, which stands for a value that was invalid and has been reported."""


INVALID = _Invalid()


@runtime_checkable
class SelfCheckedSettings(Protocol):
    """A settings class that also checks its values as a whole. `check` is called only if each value is valid."""

    def check(self, path: KeyPath, faults: FaultCollector) -> None: ...


def expect_table(value: object, path: KeyPath, faults: FaultCollector) -> Table:
    """Return the value if it is a table. Otherwise report an error and return an empty table.

    None is not reported here, because it stands for a value that was already reported.
    """
    if isinstance(value, dict):
        return cast(Table, value)
    if value is not None:
        faults.add(
            path,
            f"must be a table, not {format_value(value)}",
            because="this setting contains other keys",
            try_this=_section_example(path),
        )
    return {}


def _section_example(path: KeyPath) -> str:
    if isinstance(path[-1], int):
        return f"write each as [[{format_key_path(path[:-1])}]], with its keys below"
    return f"write it as [{format_key_path(path)}], with its keys below"


def parse_table(
    cls: type[Any],
    table: Table,
    path: KeyPath,
    faults: FaultCollector,
    *,
    rules: Rules | None = None,
    leave_out: Iterable[str] = (),
) -> dict[str, Any]:
    """Return the valid values of a table by the field names of `cls`. Invalid values are reported and left out."""
    hints = cached_type_hints(cls)
    known = {each.name: each for each in fields(cls) if each.name not in leave_out and setting_rule(each).in_file}
    found: dict[str, Any] = {}
    for key, value in table.items():
        if key not in known:
            report_unknown_key(key, path, known, faults)
            continue
        rule = (rules or {}).get(key, setting_rule(known[key]))
        inner = {name.partition(".")[2]: r for name, r in (rules or {}).items() if name.startswith(f"{key}.")}
        read = _parse_value(hints[key], value, (*path, key), faults, rule, inner)
        if read is not INVALID:
            found[key] = read
    return found


@functools.cache
def cached_type_hints(cls: type[Any]) -> dict[str, Any]:
    """Return the types of a class's fields. They are cached: computing them takes longer than parsing a table."""
    return typing.get_type_hints(cls)


def setting_rule(field: Field[Any]) -> SettingRule:
    return field.metadata.get("rule", NO_RULE)


def is_required(field: Field[Any]) -> bool:
    """Whether a table must have this key. A key with a default may be missing."""
    return field.default is MISSING and field.default_factory is MISSING


def report_unknown_key(key: str, path: KeyPath, known: Iterable[str], faults: FaultCollector) -> None:
    if path and path[0] in unsupported_keys.SECTIONS and unsupported_keys.report_unsupported_key(key, path, faults):
        return
    known = list(known)
    if (new := find_new_name(path, key)) is not None and new in known:
        faults.add_at(
            faults.position_of((*path, key)),
            f"`{format_key_path((*path, key))}` is now `{format_key_path((*path, new))}`",
            path=format_key_path((*path, key)),
            because="the setting has a new name in this version",
            try_this=f"write {new}",
            code=RENAMED_CODE,
        )
        return
    near = None if faults.is_full else closest_match(key, known)
    faults.add(
        (*path, key),
        "is not a setting",
        because=UNKNOWN_KEY_REASON,
        try_this=f"did you mean `{near}`?" if near else _list_options(known),
    )


def closest_match(word: str, known: Iterable[str]) -> str | None:
    by_form = {_normalize_key(each): each for each in known}
    import difflib  # imported only for a mistyped key

    close = difflib.get_close_matches(_normalize_key(word), by_form, n=1, cutoff=0.6)
    return by_form[close[0]] if close else None


def _normalize_key(word: str) -> str:
    return word.casefold().replace("-", "_")


def _list_options(known: Iterable[str]) -> str:
    return f"use one of: {', '.join(sorted(known))}"


def _parse_value(
    hint: Any, value: object, path: KeyPath, faults: FaultCollector, rule: SettingRule, inner_rules: Rules
) -> object:
    if value is None:
        return INVALID
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        kinds = [kind for kind in typing.get_args(hint) if kind is not types.NoneType]
        return _parse_value(kinds[0], value, path, faults, rule, inner_rules)
    if hint is SecretReference:
        return (
            value
            if isinstance(value, SecretReference)
            else _report_wrong_type("a secret", '{ env = "NAME" }', value, path, faults)
        )
    if is_dataclass(hint):
        cls = cast("type[Any]", hint)
        short = getattr(cls, "SHORT", None)
        if short is not None and isinstance(value, str):
            value = {short: value}
        if not isinstance(value, dict):
            expect_table(value, path, faults)
            return INVALID
        return _parse_group(cls, cast(Table, value), path, faults, inner_rules)
    if origin is tuple:
        return _parse_list(typing.get_args(hint)[0], value, path, faults, rule)
    if origin is not None and issubclass(origin, Mapping):
        return _parse_mapping(typing.get_args(hint)[1], value, path, faults, rule)
    return _parse_scalar(hint, value, path, faults, rule)


def _parse_group(cls: type[Any], table: Table, path: KeyPath, faults: FaultCollector, rules: Rules) -> object:
    """Parse a nested table into an instance of `cls`. Returns `INVALID` if a required key is missing or invalid."""
    before = faults.count
    found = parse_table(cls, table, path, faults, rules=rules)
    needed = [each for each in fields(cls) if is_required(each)]
    for each in needed:
        if each.name not in table:
            example = setting_rule(each).example
            faults.add(
                (*path, each.name),
                "is missing",
                because=_reason_from_rule(setting_rule(each)),
                try_this=f'for example "{example}"' if example else f"add `{each.name}`",
            )
    if any(each.name not in found for each in needed):
        return INVALID
    made = cls(**found)
    if faults.count == before and isinstance(made, SelfCheckedSettings):
        made.check(path, faults)
    return made


def _parse_list(hint: Any, value: object, path: KeyPath, faults: FaultCollector, rule: SettingRule) -> object:
    if not isinstance(value, list):
        faults.add(
            path,
            f"must be a list, not {format_value(value)}",
            because="this setting can have several values",
            try_this=f"write each as [[{format_key_path(path)}]]"
            if is_dataclass(hint)
            else f"write {path[-1]} = [ ... ]",
        )
        return INVALID
    items = cast("list[object]", value)
    read = [_parse_value(hint, item, (*path, index), faults, rule, {}) for index, item in enumerate(items)]
    return INVALID if INVALID in read else tuple(read)


def _parse_mapping(hint: Any, value: object, path: KeyPath, faults: FaultCollector, rule: SettingRule) -> object:
    table = expect_table(value, path, faults)
    if hint is Any:
        return {key: _parse_json_value(inner, (*path, key), faults) for key, inner in table.items()}
    if not is_dataclass(hint) and typing.get_origin(hint) is None:
        return _parse_named_values(hint, table, path, faults, rule)
    read: dict[str, object] = {}
    for key, inner in table.items():
        at = (*path, key)
        if rule.check and (wrong := rule.check(key)):
            faults.add(at, wrong, because=_reason_from_rule(rule), try_this=f'for example "{rule.example}"')
        one = (
            inner
            if isinstance(inner, SecretReference)
            else _parse_value(hint, inner, at, faults, rule.values or NO_RULE, {})
        )
        if one is not INVALID:
            read[key] = one
    return read


def _parse_json_value(value: object, path: KeyPath, faults: FaultCollector) -> object:
    """Parse a value that is passed on without a check of its keys. Any value that JSON can express is allowed."""
    match value:
        case str():
            return str(value)
        case bool() | int():
            return value
        case float() if math.isfinite(value):
            return value
        case list():
            items = cast("list[object]", value)
            return [_parse_json_value(item, (*path, index), faults) for index, item in enumerate(items)]
        case dict():
            return {key: _parse_json_value(inner, (*path, key), faults) for key, inner in cast(Table, value).items()}
        case None:  # already reported
            return None
        case SecretReference() if path[0] == "plugins":  # passed to the plugin, which reads it when needed
            return value
        case _:
            faults.add(
                path,
                f"is {format_value(value)}, which JSON cannot express",
                because="it is sent as JSON and shown in the settings",
                try_this="use a string, a number, true or false, a list or a table",
            )
            return None


def _parse_named_values(hint: Any, value: object, path: KeyPath, faults: FaultCollector, rule: SettingRule) -> object:
    """Parse a table whose keys are names, such as operation names.

    A name that contains a dot may be written without quotes. TOML reads `agent.set = "boss"` as a nested table, which
    is converted back to the name `agent.set`.
    """
    read: dict[str, object] = {}
    for key, inner in expect_table(value, path, faults).items():
        if isinstance(inner, dict):
            below = _parse_named_values(hint, cast(Table, inner), (*path, key), faults, SettingRule(values=rule.values))
            named = {f"{key}.{name}": each for name, each in cast("dict[str, object]", below).items()}
        elif inner is None:
            continue
        else:
            each = _parse_scalar(hint, inner, (*path, key), faults, rule.values or NO_RULE)
            named = {} if each is INVALID else {key: each}
        for name in named:
            if rule.check and (wrong := rule.check(name)):
                faults.add(
                    (*path, key), wrong, because=_reason_from_rule(rule), try_this=f'for example "{rule.example}"'
                )
        read |= named
    return read


def _parse_scalar(hint: Any, value: object, path: KeyPath, faults: FaultCollector, rule: SettingRule) -> object:
    if hint is bool:
        return value if isinstance(value, bool) else _report_wrong_type("true or false", "true", value, path, faults)
    if hint is int or hint is float:
        return _parse_number(hint, value, path, faults, rule)
    if not isinstance(value, str):
        return _report_wrong_type("a string in quotes", '"..."', value, path, faults)
    text = str(value)
    if "\0" in text:
        faults.add(path, "contains a NUL character", because="text must not contain NUL", try_this="remove it")
        return INVALID
    if rule.check and (wrong := rule.check(text)):
        faults.add(
            path,
            f"{wrong}, not {format_value(value)}",
            because=_reason_from_rule(rule),
            try_this=f'for example "{rule.example}"',
        )
        return INVALID
    if hint is str:
        return text
    if hint is Path:
        return (
            Path(text).expanduser()
            if text
            else _report_wrong_type("the name of a folder", '"..."', value, path, faults)
        )
    if hint is ZoneInfo:
        return _parse_zone(text, value, path, faults)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return _parse_choice(hint, text, value, path, faults)
    raise TypeError(f"{path}: settings of the type {hint} are not supported")


def _parse_number(hint: type, value: object, path: KeyPath, faults: FaultCollector, rule: SettingRule) -> object:
    kinds = (int,) if hint is int else (int, float)
    least = -INTEGER_MAX if rule.least is None else rule.least
    most = INTEGER_MAX if rule.most is None else rule.most
    if isinstance(value, bool) or not isinstance(value, kinds):
        wanted = "a whole number" if hint is int else "a number"
        return _report_wrong_type(wanted, _format_number(max(least, 10)), value, path, faults)
    if not least <= value <= most:  # false for NaN
        bounds = f"from {_format_number(least)} to {_format_number(most)}"
        nearer = _format_number(most if value > most else least)
        faults.add(
            path,
            f"must be {bounds}, not {format_value(value)}",
            because=_reason_from_rule(rule),
            try_this=f"{path[-1]} = {nearer}",
        )
        return INVALID
    return value if hint is int else float(value)


def _format_number(number: float) -> str:
    return f"{int(number)}" if float(number).is_integer() else f"{number}"


def _parse_zone(text: str, value: object, path: KeyPath, faults: FaultCollector) -> object:
    try:
        return load_zone(text)
    except Invalid as error:
        faults.add(
            path,
            f"is {format_value(value)}, which is not a known time zone",
            because=error.because,
            try_this=error.try_this,
        )
        return INVALID


def _parse_choice(kind: type[StrEnum], text: str, value: object, path: KeyPath, faults: FaultCollector) -> object:
    try:
        return kind(text)
    except ValueError:
        names = [str(each) for each in kind]
        near = closest_match(text, names)
        faults.add(
            path,
            f"is {format_value(value)}, which is not a valid choice",
            because=f"it must be one of {', '.join(names)}",
            try_this=f"did you mean `{near}`?" if near else f'set {path[-1]} = "{names[0]}"',
        )
        return INVALID


def _reason_from_rule(rule: SettingRule) -> str:
    return (
        f"meaning of this setting: {rule.description.rstrip('.')}" if rule.description else "this is the allowed range"
    )


_TYPE_REASONS = {
    "true or false": "true and false are written without quotes",
    "a whole number": "a whole number is written without quotes and without a decimal point",
    "a number": "a number is written without quotes",
    "a string in quotes": "this setting is a string, which is written in quotes",
    "a secret": "this setting says where the secret is; it does not contain the secret",
    "the name of a folder": "the server keeps files in this folder",
}


def _report_wrong_type(expected: str, example: str, value: object, path: KeyPath, faults: FaultCollector) -> _Invalid:
    key = path[-1]
    try_this = f"{key} = {example}" if isinstance(key, str) else f"replace it with {example}"
    faults.add(
        path, f"must be {expected}, not {format_value(value)}", because=_TYPE_REASONS[expected], try_this=try_this
    )
    return INVALID
