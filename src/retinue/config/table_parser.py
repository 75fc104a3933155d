"""Parses a TOML table into a frozen dataclass: unknown keys, wrong types and values out of range are reported."""

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
from retinue.config.errors import Faults, KeyPath, dotted
from retinue.config.secret import Secret
from retinue.config.setting_metadata import PLAIN, WHOLE_NUMBER_MAX, Rule
from retinue.config.toml_source import Table, shown
from retinue.domain.errors import Invalid
from retinue.domain.times import zone

UNKNOWN = "an unknown key would be passed over in silence, so it is refused"

Rules = Mapping[str, Rule]


class _Nothing:
    """Marks a value that was invalid and has been reported."""


NOTHING = _Nothing()


@runtime_checkable
class Checked(Protocol):
    """A settings class that checks whether its keys fit each other, after each was validated."""

    def check(self, path: KeyPath, faults: Faults) -> None: ...


def table_at(value: object, path: KeyPath, faults: Faults) -> Table:
    """Return the table at this path; an empty one if the value is not a table. None was already
    reported."""
    if isinstance(value, dict):
        return cast(Table, value)
    if value is not None:
        faults.add(
            path,
            f"must be a table, and is {shown(value)}",
            because="it has keys of its own",
            try_this=_as_section(path),
        )
    return {}


def _as_section(path: KeyPath) -> str:
    if isinstance(path[-1], int):
        return f"write each as [[{dotted(path[:-1])}]], with its keys below"
    return f"write it as [{dotted(path)}], with its keys below"


def values(
    cls: type[Any],
    table: Table,
    path: KeyPath,
    faults: Faults,
    *,
    rules: Rules | None = None,
    leave_out: Iterable[str] = (),
) -> dict[str, Any]:
    """Return the valid values of a table by field name of `cls`. Invalid ones are reported and left
    out."""
    hints = hints_of(cls)
    known = {each.name: each for each in fields(cls) if each.name not in leave_out and rule_of(each).in_file}
    found: dict[str, Any] = {}
    for key, value in table.items():
        if key not in known:
            unknown_key(key, path, known, faults)
            continue
        rule = (rules or {}).get(key, rule_of(known[key]))
        inner = {name.partition(".")[2]: r for name, r in (rules or {}).items() if name.startswith(f"{key}.")}
        read = _value(hints[key], value, (*path, key), faults, rule, inner)
        if read is not NOTHING:
            found[key] = read
    return found


@functools.cache
def hints_of(cls: type[Any]) -> dict[str, Any]:
    """Return the types of the fields. Cached, because computing them takes longer than parsing a
    table."""
    return typing.get_type_hints(cls)


def rule_of(each: Field[Any]) -> Rule:
    return each.metadata.get("rule", PLAIN)


def is_required(each: Field[Any]) -> bool:
    """Whether a table must have this key: it has no default."""
    return each.default is MISSING and each.default_factory is MISSING


def unknown_key(key: str, path: KeyPath, known: Iterable[str], faults: Faults) -> None:
    if path and path[0] in unsupported_keys.SECTIONS and unsupported_keys.refuse(key, path, faults):
        return
    near = None if faults.is_full else nearest(key, known)
    faults.add(
        (*path, key), "is not a setting", because=UNKNOWN, try_this=f"did you mean `{near}`?" if near else _among(known)
    )


def nearest(word: str, known: Iterable[str]) -> str | None:
    by_form = {_form(each): each for each in known}
    import difflib  # imported only for a mistyped key

    close = difflib.get_close_matches(_form(word), by_form, n=1, cutoff=0.6)
    return by_form[close[0]] if close else None


def _form(word: str) -> str:
    return word.casefold().replace("-", "_")


def _among(known: Iterable[str]) -> str:
    return f"one of: {', '.join(sorted(known))}"


def _value(hint: Any, value: object, path: KeyPath, faults: Faults, rule: Rule, inner: Rules) -> object:
    if value is None:
        return NOTHING
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        kinds = [kind for kind in typing.get_args(hint) if kind is not types.NoneType]
        return _value(kinds[0], value, path, faults, rule, inner)
    if hint is Secret:
        return value if isinstance(value, Secret) else _wrong("a secret", '{ env = "NAME" }', value, path, faults)
    if is_dataclass(hint):
        cls = cast("type[Any]", hint)
        short = getattr(cls, "SHORT", None)
        if short is not None and isinstance(value, str):
            value = {short: value}
        if not isinstance(value, dict):
            table_at(value, path, faults)
            return NOTHING
        return _group(cls, cast(Table, value), path, faults, inner)
    if origin is tuple:
        return _several(typing.get_args(hint)[0], value, path, faults, rule)
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(typing.get_args(hint)[1], value, path, faults, rule)
    return _single(hint, value, path, faults, rule)


def _group(cls: type[Any], table: Table, path: KeyPath, faults: Faults, rules: Rules) -> object:
    """Parse a nested table. If a required key is missing or invalid, there is no value."""
    before = faults.count
    found = values(cls, table, path, faults, rules=rules)
    needed = [each for each in fields(cls) if is_required(each)]
    for each in needed:
        if each.name not in table:
            example = rule_of(each).example
            faults.add(
                (*path, each.name),
                "is missing",
                because=_meaning(rule_of(each)),
                try_this=f'for example "{example}"' if example else f"add `{each.name}`",
            )
    if any(each.name not in found for each in needed):
        return NOTHING
    made = cls(**found)
    if faults.count == before and isinstance(made, Checked):
        made.check(path, faults)
    return made


def _several(hint: Any, value: object, path: KeyPath, faults: Faults, rule: Rule) -> object:
    if not isinstance(value, list):
        faults.add(
            path,
            f"must be a list, and is {shown(value)}",
            because="there can be several",
            try_this=f"write each as [[{dotted(path)}]]" if is_dataclass(hint) else f"{path[-1]} = [ ... ]",
        )
        return NOTHING
    items = cast("list[object]", value)
    read = [_value(hint, item, (*path, index), faults, rule, {}) for index, item in enumerate(items)]
    return NOTHING if NOTHING in read else tuple(read)


def _mapping(hint: Any, value: object, path: KeyPath, faults: Faults, rule: Rule) -> object:
    table = table_at(value, path, faults)
    if hint is Any:
        return {key: _as_it_stands(inner, (*path, key), faults) for key, inner in table.items()}
    if not is_dataclass(hint) and typing.get_origin(hint) is None:
        return _by_name(hint, table, path, faults, rule)
    read: dict[str, object] = {}
    for key, inner in table.items():
        at = (*path, key)
        if rule.check and (wrong := rule.check(key)):
            faults.add(at, wrong, because=_meaning(rule), try_this=f'for example "{rule.example}"')
        one = inner if isinstance(inner, Secret) else _value(hint, inner, at, faults, rule.values or PLAIN, {})
        if one is not NOTHING:
            read[key] = one
    return read


def _as_it_stands(value: object, path: KeyPath, faults: Faults) -> object:
    """Parse a value that is passed through unchecked: anything JSON can express."""
    match value:
        case str():
            return str(value)
        case bool() | int():
            return value
        case float() if math.isfinite(value):
            return value
        case list():
            items = cast("list[object]", value)
            return [_as_it_stands(item, (*path, index), faults) for index, item in enumerate(items)]
        case dict():
            return {key: _as_it_stands(inner, (*path, key), faults) for key, inner in cast(Table, value).items()}
        case None:  # already reported
            return None
        case Secret() if path[0] == "plugins":  # passed to the plugin, which reads it when needed
            return value
        case _:
            faults.add(
                path,
                f"is {shown(value)}, which a request cannot say",
                because="it is sent as JSON, and shown to whoever looks at the settings",
                try_this="use a text, a number, true or false, a list or a table",
            )
            return None


def _by_name(hint: Any, value: object, path: KeyPath, faults: Faults, rule: Rule) -> object:
    """Parse a table whose keys are names. An unquoted `agent.set = "boss"` is a nested table and
    means the same."""
    read: dict[str, object] = {}
    for key, inner in table_at(value, path, faults).items():
        if isinstance(inner, dict):
            below = _by_name(hint, cast(Table, inner), (*path, key), faults, Rule(values=rule.values))
            named = {f"{key}.{name}": each for name, each in cast("dict[str, object]", below).items()}
        elif inner is None:
            continue
        else:
            each = _single(hint, inner, (*path, key), faults, rule.values or PLAIN)
            named = {} if each is NOTHING else {key: each}
        for name in named:
            if rule.check and (wrong := rule.check(name)):
                faults.add((*path, key), wrong, because=_meaning(rule), try_this=f'for example "{rule.example}"')
        read |= named
    return read


def _single(hint: Any, value: object, path: KeyPath, faults: Faults, rule: Rule) -> object:
    if hint is bool:
        return value if isinstance(value, bool) else _wrong("true or false", "true", value, path, faults)
    if hint is int or hint is float:
        return _number(hint, value, path, faults, rule)
    if not isinstance(value, str):
        return _wrong("a text in quotes", '"..."', value, path, faults)
    text = str(value)
    if "\0" in text:
        faults.add(path, "holds a NUL character", because="no text of the house may", try_this="take it out")
        return NOTHING
    if rule.check and (wrong := rule.check(text)):
        faults.add(
            path, f"{wrong}, and is {shown(value)}", because=_meaning(rule), try_this=f'for example "{rule.example}"'
        )
        return NOTHING
    if hint is str:
        return text
    if hint is Path:
        return Path(text).expanduser() if text else _wrong("the name of a folder", '"..."', value, path, faults)
    if hint is ZoneInfo:
        return _zone(text, value, path, faults)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return _choice(hint, text, value, path, faults)
    raise TypeError(f"{path}: settings of the type {hint} are not read yet")


def _number(hint: type, value: object, path: KeyPath, faults: Faults, rule: Rule) -> object:
    kinds = (int,) if hint is int else (int, float)
    least = -WHOLE_NUMBER_MAX if rule.least is None else rule.least
    most = WHOLE_NUMBER_MAX if rule.most is None else rule.most
    if isinstance(value, bool) or not isinstance(value, kinds):
        wanted = "a whole number" if hint is int else "a number"
        return _wrong(wanted, _plain(max(least, 10)), value, path, faults)
    if not least <= value <= most:  # false for NaN
        bounds = f"from {_plain(least)} to {_plain(most)}"
        nearer = _plain(most if value > most else least)
        faults.add(
            path, f"must be {bounds}, and is {shown(value)}", because=_meaning(rule), try_this=f"{path[-1]} = {nearer}"
        )
        return NOTHING
    return value if hint is int else float(value)


def _plain(number: float) -> str:
    return f"{int(number)}" if float(number).is_integer() else f"{number}"


def _zone(text: str, value: object, path: KeyPath, faults: Faults) -> object:
    try:
        return zone(text)
    except Invalid as error:
        faults.add(
            path, f"is {shown(value)}, and there is no such time zone", because=error.because, try_this=error.try_this
        )
        return NOTHING


def _choice(kind: type[StrEnum], text: str, value: object, path: KeyPath, faults: Faults) -> object:
    try:
        return kind(text)
    except ValueError:
        names = [str(each) for each in kind]
        near = nearest(text, names)
        faults.add(
            path,
            f"is {shown(value)}, and there is no such choice",
            because=f"it is one of {', '.join(names)}",
            try_this=f"did you mean `{near}`?" if near else f'{path[-1]} = "{names[0]}"',
        )
        return NOTHING


def _meaning(rule: Rule) -> str:
    return f"its meaning: {rule.says.rstrip('.')}" if rule.says else "these are its bounds"


_FORMS = {
    "true or false": "it is a switch; true and false stand without quotes",
    "a whole number": "it is counted with; a number stands without quotes, and a whole one without a point",
    "a number": "it is counted with; a number stands without quotes",
    "a text in quotes": "only a text can be meant here, and it stands in quotes",
    "a secret": "it says where the secret is, not what it is",
    "the name of a folder": "something is to be kept in it",
}


def _wrong(wanted: str, example: str, value: object, path: KeyPath, faults: Faults) -> _Nothing:
    key = path[-1]
    try_this = f"{key} = {example}" if isinstance(key, str) else f"put {example} there"
    faults.add(path, f"must be {wanted}, and is {shown(value)}", because=_FORMS[wanted], try_this=try_this)
    return NOTHING
