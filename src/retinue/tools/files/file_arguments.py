"""The arguments that file tools share.

Aliases of an argument are resolved during parsing, so that no alias bypasses a check.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from retinue.tools.base import schema_of

PATH_ALIASES = ("file_path", "file", "filename")
TEXT_BYTES_MAX = 8 * 1024 * 1024  # of the text written or edited in one call

PathArgument = Annotated[
    str,
    msgspec.Meta(
        description="Path in your workspace, such as notes/today.md; also absolute, or ~/ for your agent directory"
    ),
]
Alias = str | None


class PathArguments(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Arguments with a `path`, which may be given under any of its aliases."""

    path: PathArgument = ""
    file_path: Alias = None
    file: Alias = None
    filename: Alias = None

    def __post_init__(self) -> None:
        given = {value for value in (self.path or None, self.file_path, self.file, self.filename) if value is not None}
        if len(given) > 1:
            raise ValueError("`path` is given twice, with different values")
        self.path = given.pop() if given else self.default_path()
        self.file_path = self.file = self.filename = None

    def default_path(self) -> str:
        raise ValueError("`path` is missing")


def build_shown_schema(arguments: type[msgspec.Struct], *, required: tuple[str, ...] = ("path",)) -> dict[str, Any]:
    """Return the schema shown to a model: one name for each argument, without aliases."""
    schema = schema_of(arguments)
    properties = {name: value for name, value in schema["properties"].items() if name not in PATH_ALIASES}
    for value in properties.values():
        value.pop("default", None)
    order = {name: properties.pop(name) for name in ("path",) if name in properties}
    return {**schema, "properties": {**order, **properties}, "required": list(required)}
