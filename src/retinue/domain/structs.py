"""What holds for all nouns: most are msgspec Structs, and those with settings are dataclasses."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from msgspec import Struct, structs

Noun = TypeVar("Noun")


def names(noun: object) -> tuple[str, ...]:
    """What a noun's values are called; of anything else, nothing."""
    if isinstance(noun, Struct):
        return noun.__struct_fields__
    if dataclasses.is_dataclass(noun) and not isinstance(noun, type):
        return tuple(each.name for each in dataclasses.fields(noun))
    return ()


def replace(noun: Noun, /, **changes: Any) -> Noun:
    """The same noun with other values, whichever of the two it is. Where a Struct is at hand in a hot place, its own
    `msgspec.structs.replace` is quicker."""
    if isinstance(noun, Struct):
        return structs.replace(noun, **changes)
    return dataclasses.replace(noun, **changes)  # pyright: ignore[reportUnknownVariableType, reportArgumentType, reportCallIssue]
