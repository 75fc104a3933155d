"""Functions over msgspec Structs and dataclasses alike: most domain types are Structs, those with
settings dataclasses."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from msgspec import Struct, structs

Noun = TypeVar("Noun")


def names(noun: object) -> tuple[str, ...]:
    """Return the field names of a Struct or dataclass instance; empty for anything else."""
    if isinstance(noun, Struct):
        return noun.__struct_fields__
    if dataclasses.is_dataclass(noun) and not isinstance(noun, type):
        return tuple(each.name for each in dataclasses.fields(noun))
    return ()


def replace(noun: Noun, /, **changes: Any) -> Noun:
    """Return a copy of a Struct or dataclass with changed fields.

    In a hot path, `msgspec.structs.replace` is faster for a Struct.
    """
    if isinstance(noun, Struct):
        return structs.replace(noun, **changes)
    return dataclasses.replace(noun, **changes)  # pyright: ignore[reportUnknownVariableType, reportArgumentType, reportCallIssue]
