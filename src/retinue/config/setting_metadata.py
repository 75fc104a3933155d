"""Metadata of settings: descriptions, limits, and when a change takes effect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar, cast

INTEGER_MAX = 2**53 - 1

T = TypeVar("T")


class SettingEffect(StrEnum):
    """When a changed setting takes effect."""

    MESSAGE = "message"
    HOT = "hot"  # immediately, on reload
    RESTART = "restart"  # at the next start of the server
    APPLY = "apply"  # by `retinue apply`: the store, not the file, defines agents and people


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingRule:
    """The description of a setting, when a change takes effect, and the limits and check of its value."""

    description: str = ""
    effect: SettingEffect = SettingEffect.HOT
    least: float | None = None
    most: float | None = None
    check: Callable[[str], str | None] | None = None  # checks a string, or each item of a list: returns what is wrong
    example: str = ""
    in_file: bool = True
    values: SettingRule | None = None  # if the setting is a table: the rule for each of its values


NO_RULE = SettingRule()
FLAT_METADATA: Mapping[str, bool] = {"flat": True}
"""Metadata for a group of settings without its own table. Its keys are in the table of the surrounding group."""


def setting(default: T, description: str, **rule: Any) -> T:
    """Declare a setting: a field of a settings class, with a default, a description and other metadata.

    The function returns a dataclass field. To the type checker, it returns a value of the default's type.
    """
    made: Any
    metadata = {"rule": SettingRule(description=description, **rule)}
    if isinstance(default, dict):
        empty = cast("dict[str, object]", default)
        made = field(default_factory=lambda: dict(empty), metadata=metadata)
    else:
        made = field(default=default, metadata=metadata)
    return cast(T, made)
