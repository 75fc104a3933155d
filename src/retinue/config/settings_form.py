"""Builds a form of the settings: each setting with its current value and where that value was set."""

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

from retinue.config.errors import KeyPath, SettingPosition, format_key_path
from retinue.config.secret import SecretReference
from retinue.config.setting_metadata import SettingEffect
from retinue.config.settings import TOP_LEVEL_SECTIONS, Settings
from retinue.config.settings_loader import ExaminedSettings
from retinue.config.table_parser import cached_type_hints, setting_rule
from retinue.config.toml_source import ExpandedText, Table

SERVER_SECTION = "server"
REDACTED_VALUE = "(not shown)"

# The environment variable that overrides each setting.
_OVERRIDING_VARIABLES: Mapping[KeyPath, str] = {
    ("server", "store"): "RETINUE_STORE",
    ("server", "zone"): "RETINUE_ZONE",
    ("server", "listen", "enabled"): "RETINUE_LISTEN",
    ("server", "listen", "host"): "RETINUE_LISTEN",
    ("server", "listen", "port"): "RETINUE_LISTEN",
}
_DEFAULTS: Mapping[KeyPath, str] = {("server", "zone"): "UTC"}  # defaults that are not in the declaration
_PRIVATE_PATHS: frozenset[KeyPath] = frozenset({("server", "store")})  # a database URL may contain a password


class SettingControl(StrEnum):
    """The form control for a setting. `OTHER` means that the setting can be changed only in the text of the file."""

    SWITCH = "switch"
    INTEGER = "integer"
    NUMBER = "number"
    CHOICE = "choice"
    TEXT = "text"
    TEXTS = "list"
    OTHER = "other"


class SettingOrigin(StrEnum):
    FILE = "file"
    ENVIRONMENT = "environment"
    DEFAULT = "default"


class SettingField(Struct, frozen=True, kw_only=True):
    """One setting in the form. `defined_at` says where its value is set: a file and line, or a variable."""

    path: tuple[str, ...]
    description: str
    control: SettingControl
    choices: tuple[str, ...]
    minimum: float | None
    maximum: float | None
    example: str
    effect: SettingEffect
    value: Any
    default: Any
    origin: SettingOrigin
    defined_at: str

    @property
    def name(self) -> str:
        return format_key_path(self.path)


class SettingSection(Struct, frozen=True, kw_only=True):
    """One section of the form: a table of the file."""

    path: tuple[str, ...]
    description: str
    fields: tuple[SettingField, ...]


def build_settings_form(examined: ExaminedSettings, environment: Mapping[str, str]) -> list[SettingSection]:
    """Return all sections of the form, in the order of the reference page.

    A table with a name that a person chose, such as `[connectors.NAME]`, has a section if the settings contain it.
    """
    return list(_FormBuilder(examined, environment).sections())


class _FormBuilder(Struct, frozen=True):
    examined: ExaminedSettings
    environment: Mapping[str, str]

    def sections(self) -> Iterator[SettingSection]:
        settings = self.examined.configuration.settings
        yield from self._group_sections(settings, (SERVER_SECTION,), leave_out=TOP_LEVEL_SECTIONS)
        for each in fields(Settings):
            if each.name in TOP_LEVEL_SECTIONS:
                yield from self._field_sections(getattr(settings, each.name), (each.name,), each)

    def _group_sections(
        self, group: Any, path: tuple[str, ...], *, leave_out: tuple[str, ...] = ()
    ) -> Iterator[SettingSection]:
        known = [each for each in _iterate_keys(group) if each[0].name not in leave_out]
        tables = {each.name for each, hint, value in known if _is_group(value, hint)}
        entries = [
            self._build_field(each, hint, value, (*path, each.name))
            for each, hint, value in known
            if each.name not in tables
        ]
        if entries:
            says = "" if path == (SERVER_SECTION,) else (group.__doc__ or "").partition("\n")[0]
            yield SettingSection(path=path, description=says, fields=tuple(entries))
        for each, _, value in known:
            if each.name in tables:
                yield from self._field_sections(value, (*path, each.name), each)

    def _field_sections(self, value: Any, path: tuple[str, ...], field: Field[Any]) -> Iterator[SettingSection]:
        if is_dataclass(value):
            yield from self._group_sections(value, path)
        elif not _is_group(value, cached_type_hints(Settings).get(field.name)) and len(path) == 1:
            entry = self._build_field(field, Any, value, path)
            yield SettingSection(path=path, description=entry.description, fields=(entry,))
        else:
            for name, each in cast("Mapping[str, Any]", value).items():
                yield from self._group_sections(each, (*path, name))

    def _build_field(self, field: Field[Any], hint: Any, value: Any, path: tuple[str, ...]) -> SettingField:
        rule = setting_rule(field)
        shape, choices = _control_for(hint)
        variable = _OVERRIDING_VARIABLES.get(path, "")
        place = self.examined.positions.get(path)
        written = _value_at(self.examined.tree, path)
        if variable and self.environment.get(variable):
            origin, where = SettingOrigin.ENVIRONMENT, variable
            value = self._listen_value(path[-1], value) if variable == "RETINUE_LISTEN" else value
        elif written is not None:
            origin, where = SettingOrigin.FILE, str(place or SettingPosition(self.examined.configuration.file))
            if _has_variable(written):
                value = written  # without expansion, because the variable may contain a secret
        else:
            origin, where = SettingOrigin.DEFAULT, ""
        default = _DEFAULTS.get(path) if field.default is MISSING else field.default
        private = path in _PRIVATE_PATHS
        return SettingField(
            path=path,
            description=rule.description,
            control=SettingControl.OTHER if private else shape,
            choices=choices,
            minimum=rule.least,
            maximum=rule.most,
            example=rule.example,
            effect=rule.effect,
            value=REDACTED_VALUE if private else to_json_value(value),
            default=to_json_value(default),
            origin=origin,
            defined_at=where,
        )

    def _listen_value(self, name: str, value: Any) -> Any:
        """Return the value that a key of the listen address gets from the environment variable RETINUE_LISTEN."""
        listen = self.environment["RETINUE_LISTEN"]
        host, _, port = listen.rpartition(":")
        if name == "enabled":
            return listen != "off"
        if listen == "off":
            return value
        return host.strip("[]") if name == "host" else int(port) if port.isdigit() else value


def _iterate_keys(group: Any) -> Iterator[tuple[Field[Any], Any, Any]]:
    """Yield the keys of one table with their types and values, including keys of groups without their own table."""
    hints = cached_type_hints(cast("type[Any]", type(group)))
    for each in fields(group):
        value = getattr(group, each.name)
        if each.metadata.get("flat"):
            if is_dataclass(value):
                yield from _iterate_keys(value)
        elif setting_rule(each).in_file:
            yield each, hints[each.name], value


def _is_group(value: Any, hint: Any) -> bool:
    """Whether a value has its own section in the form. A group that can also be one string has no section."""
    if is_dataclass(value):
        return not hasattr(type(value), "SHORT") and not isinstance(value, SecretReference)
    held = typing.get_args(hint)[-1] if isinstance(value, Mapping) and typing.get_args(hint) else None
    return is_dataclass(held) and not hasattr(held, "SHORT")


def _control_for(hint: Any) -> tuple[SettingControl, tuple[str, ...]]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        kinds = [kind for kind in arguments if kind is not types.NoneType]
        return _control_for(kinds[0])
    if origin is tuple:
        shape, choices = _control_for(arguments[0])
        return (
            (SettingControl.TEXTS, choices)
            if shape in (SettingControl.TEXT, SettingControl.CHOICE)
            else (SettingControl.OTHER, ())
        )
    if hint is bool:
        return SettingControl.SWITCH, ()
    if hint is int or hint is float:
        return (SettingControl.INTEGER if hint is int else SettingControl.NUMBER), ()
    if hint in (str, Path, ZoneInfo):
        return SettingControl.TEXT, ()
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return SettingControl.CHOICE, tuple(str(each) for each in hint)
    return SettingControl.OTHER, ()


def _value_at(tree: Table, path: KeyPath) -> object:
    found: object = tree
    for part in path:
        if not isinstance(found, dict):
            return None
        found = cast("dict[str | int, object]", found).get(part)
    return found


def _has_variable(value: object) -> bool:
    match value:
        case ExpandedText():
            return True
        case list():
            return any(_has_variable(each) for each in cast("list[object]", value))
        case dict():
            return any(_has_variable(each) for each in cast(Table, value).values())
        case _:
            return False


def to_json_value(value: Any) -> Any:
    """Convert a setting's value to JSON. A secret becomes its location. A string with a variable stays as written."""
    match value:
        case ExpandedText():
            return value.original
        case SecretReference():
            return str(value)
        case _ if is_dataclass(value) and not isinstance(value, type):
            return {each.name: to_json_value(getattr(value, each.name)) for each in fields(value)}
        case Mapping():
            return {str(key): to_json_value(part) for key, part in cast("Mapping[Any, Any]", value).items()}
        case list() | tuple():
            return [to_json_value(part) for part in cast("typing.Sequence[Any]", value)]
        case Path() | ZoneInfo():
            return str(value)
        case Enum():
            return value.value
        case _:
            return value
