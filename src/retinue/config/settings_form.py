"""The settings as a form: each setting with its current value and where that comes from."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum, StrEnum
from pathlib import Path
from typing import Any, cast
from zoneinfo import ZoneInfo

from msgspec import Struct

from retinue.config.errors import KeyPath, Place, dotted
from retinue.config.loader import Examined
from retinue.config.secret import Secret
from retinue.config.setting_metadata import Effect
from retinue.config.settings import OWN_SECTIONS, Settings
from retinue.config.table_parser import hints_of, rule_of
from retinue.config.toml_source import Filled, Table

HOUSE = "house"
NOT_SHOWN = "(not shown)"

# The environment variable that overrides each setting.
_VARIABLES: Mapping[KeyPath, str] = {
    ("house", "store"): "RETINUE_STORE",
    ("house", "zone"): "RETINUE_ZONE",
    ("house", "listen", "enabled"): "RETINUE_LISTEN",
    ("house", "listen", "host"): "RETINUE_LISTEN",
    ("house", "listen", "port"): "RETINUE_LISTEN",
}
_DEFAULTS: Mapping[KeyPath, str] = {("house", "zone"): "UTC"}  # defaults that are not in the declaration
_PRIVATE: frozenset[KeyPath] = frozenset({("house", "store")})  # a database URL may contain a password


class Shape(StrEnum):
    """The form control of a setting. A setting of any other type is changed in the file."""

    SWITCH = "switch"
    WHOLE = "whole"
    NUMBER = "number"
    CHOICE = "choice"
    TEXT = "text"
    TEXTS = "texts"
    OTHER = "other"


class Origin(StrEnum):
    FILE = "file"
    ENVIRONMENT = "environment"
    DEFAULT = "default"


class Entry(Struct, frozen=True, kw_only=True):
    """One setting. `defined_at` says where its value comes from: a file and line, or a variable."""

    path: tuple[str, ...]
    says: str
    shape: Shape
    choices: tuple[str, ...]
    least: float | None
    most: float | None
    example: str
    effect: Effect
    value: Any
    default: Any
    origin: Origin
    place: str

    @property
    def name(self) -> str:
        return dotted(self.path)


class Section(Struct, frozen=True, kw_only=True):
    """One table of the file."""

    path: tuple[str, ...]
    says: str
    entries: tuple[Entry, ...]


def form_of(examined: Examined, environment: Mapping[str, str]) -> list[Section]:
    """Return every section, in the order of the reference page, with the named tables that exist."""
    return list(_Form(examined, environment).sections())


class _Form(Struct, frozen=True):
    examined: Examined
    environment: Mapping[str, str]

    def sections(self) -> Iterator[Section]:
        settings = self.examined.configuration.settings
        yield from self._below(settings, (HOUSE,), leave_out=OWN_SECTIONS)
        for each in fields(Settings):
            if each.name in OWN_SECTIONS:
                yield from self._named(getattr(settings, each.name), (each.name,), each)

    def _below(self, group: Any, path: tuple[str, ...], *, leave_out: tuple[str, ...] = ()) -> Iterator[Section]:
        known = [each for each in _known(group) if each[0].name not in leave_out]
        tables = {each.name for each, hint, value in known if _is_group(value, hint)}
        entries = [
            self._entry(each, hint, value, (*path, each.name)) for each, hint, value in known if each.name not in tables
        ]
        if entries:
            says = "" if path == (HOUSE,) else (group.__doc__ or "").partition("\n")[0]
            yield Section(path=path, says=says, entries=tuple(entries))
        for each, _, value in known:
            if each.name in tables:
                yield from self._named(value, (*path, each.name), each)

    def _named(self, value: Any, path: tuple[str, ...], field: Field[Any]) -> Iterator[Section]:
        if is_dataclass(value):
            yield from self._below(value, path)
        elif not _is_group(value, hints_of(Settings).get(field.name)) and len(path) == 1:
            entry = self._entry(field, Any, value, path)
            yield Section(path=path, says=entry.says, entries=(entry,))
        else:
            for name, each in cast("Mapping[str, Any]", value).items():
                yield from self._below(each, (*path, name))

    def _entry(self, field: Field[Any], hint: Any, value: Any, path: tuple[str, ...]) -> Entry:
        rule = rule_of(field)
        shape, choices = _shape(hint)
        variable = _VARIABLES.get(path, "")
        place = self.examined.places.get(path)
        written = _at(self.examined.tree, path)
        if variable and self.environment.get(variable):
            origin, where = Origin.ENVIRONMENT, variable
            value = self._listening(path[-1], value) if variable == "RETINUE_LISTEN" else value
        elif written is not None:
            origin, where = Origin.FILE, str(place or Place(self.examined.configuration.file))
            if _has_variable(written):
                value = written  # as written: the variable may hold a secret
        else:
            origin, where = Origin.DEFAULT, ""
        default = _DEFAULTS.get(path) if field.default is MISSING else field.default
        private = path in _PRIVATE
        return Entry(
            path=path,
            says=rule.says,
            shape=Shape.OTHER if private else shape,
            choices=choices,
            least=rule.least,
            most=rule.most,
            example=rule.example,
            effect=rule.effect,
            value=NOT_SHOWN if private else plain(value),
            default=plain(default),
            origin=origin,
            place=where,
        )

    def _listening(self, name: str, value: Any) -> Any:
        """Return the value that the server derives from RETINUE_LISTEN at startup."""
        listen = self.environment["RETINUE_LISTEN"]
        host, _, port = listen.rpartition(":")
        if name == "enabled":
            return listen != "off"
        if listen == "off":
            return value
        return host.strip("[]") if name == "host" else int(port) if port.isdigit() else value


def _known(group: Any) -> Iterator[tuple[Field[Any], Any, Any]]:
    """Yield the keys of one table with type and value: those of the group and of its flat groups."""
    hints = hints_of(cast("type[Any]", type(group)))
    for each in fields(group):
        value = getattr(group, each.name)
        if each.metadata.get("flat"):
            if is_dataclass(value):
                yield from _known(value)
        elif rule_of(each).in_file:
            yield each, hints[each.name], value


def _is_group(value: Any, hint: Any) -> bool:
    """Whether it is a table with its own rows. A choice that may be a plain text is not."""
    if is_dataclass(value):
        return not hasattr(type(value), "SHORT") and not isinstance(value, Secret)
    held = typing.get_args(hint)[-1] if isinstance(value, Mapping) and typing.get_args(hint) else None
    return is_dataclass(held) and not hasattr(held, "SHORT")


def _shape(hint: Any) -> tuple[Shape, tuple[str, ...]]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        kinds = [kind for kind in arguments if kind is not types.NoneType]
        return _shape(kinds[0])
    if origin is tuple:
        shape, choices = _shape(arguments[0])
        return (Shape.TEXTS, choices) if shape in (Shape.TEXT, Shape.CHOICE) else (Shape.OTHER, ())
    if hint is bool:
        return Shape.SWITCH, ()
    if hint is int or hint is float:
        return (Shape.WHOLE if hint is int else Shape.NUMBER), ()
    if hint in (str, Path, ZoneInfo):
        return Shape.TEXT, ()
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return Shape.CHOICE, tuple(str(each) for each in hint)
    return Shape.OTHER, ()


def _at(tree: Table, path: KeyPath) -> object:
    found: object = tree
    for part in path:
        if not isinstance(found, dict):
            return None
        found = cast("dict[str | int, object]", found).get(part)
    return found


def _has_variable(value: object) -> bool:
    match value:
        case Filled():
            return True
        case list():
            return any(_has_variable(each) for each in cast("list[object]", value))
        case dict():
            return any(_has_variable(each) for each in cast(Table, value).values())
        case _:
            return False


def plain(value: Any) -> Any:
    """Convert a value to JSON: a secret to its location, a variable to its name."""
    match value:
        case Filled():
            return value.written
        case Secret():
            return str(value)
        case _ if is_dataclass(value) and not isinstance(value, type):
            return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
        case Mapping():
            return {str(key): plain(part) for key, part in cast("Mapping[Any, Any]", value).items()}
        case list() | tuple():
            return [plain(part) for part in cast("typing.Sequence[Any]", value)]
        case Path() | ZoneInfo():
            return str(value)
        case Enum():
            return value.value
        case _:
            return value
