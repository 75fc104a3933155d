"""Functions that work with both msgspec Structs and dataclasses.

Most domain types are Structs; the types that settings use are dataclasses.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from msgspec import Struct, structs

StructOrDataclass = TypeVar("StructOrDataclass")


def field_names(value: object) -> tuple[str, ...]:
    """Return the field names of a Struct or dataclass instance. Returns no names for any other value."""
    if isinstance(value, Struct):
        return value.__struct_fields__
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return tuple(each.name for each in dataclasses.fields(value))
    return ()


def replace(value: StructOrDataclass, /, **changes: Any) -> StructOrDataclass:
    """Return a copy of a Struct or dataclass with changed fields.

    In a hot path, `msgspec.structs.replace` is faster for a Struct.
    """
    if isinstance(value, Struct):
        return structs.replace(value, **changes)
    return dataclasses.replace(value, **changes)  # pyright: ignore[reportUnknownVariableType, reportArgumentType, reportCallIssue]
