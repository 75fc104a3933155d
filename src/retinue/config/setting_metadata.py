"""What is told and asked of one setting: a line about it, its bounds, and when a change of it takes effect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar, cast

WHOLE_NUMBER_MAX = 2**53 - 1

T = TypeVar("T")


class Effect(StrEnum):
    """When a changed setting takes effect."""

    MESSAGE = "message"  # with the next message
    HOT = "hot"  # at once
    RESTART = "restart"  # when the house is next opened
    APPLY = "apply"  # by `retinue apply`: the store, not the file, says who is on the staff


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What is asked of one setting beyond its type, and what is told of it."""

    says: str = ""
    effect: Effect = Effect.HOT
    least: float | None = None
    most: float | None = None
    check: Callable[[str], str | None] | None = None  # of a text, or of each of several: what is wrong with it
    example: str = ""
    in_file: bool = True
    values: Rule | None = None  # of a table of names: what is asked of each value in it


PLAIN = Rule()
FLAT: Mapping[str, bool] = {"flat": True}
"""The metadata of a group whose keys stand in the table of the group that holds it, and not in one of their own."""


def setting(default: T, says: str, **rule: Any) -> T:
    """A field of a settings group. The default is for the type checker too; the rule is read by the file's reader."""
    made: Any
    metadata = {"rule": Rule(says=says, **rule)}
    if isinstance(default, dict):
        empty = cast("dict[str, object]", default)
        made = field(default_factory=lambda: dict(empty), metadata=metadata)
    else:
        made = field(default=default, metadata=metadata)
    return cast(T, made)
