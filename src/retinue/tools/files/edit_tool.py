"""The tool `edit`: replaces exact parts of a text file."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import Struct, field

from retinue.domain.permission import Permission, PermissionKind
from retinue.domain.tool import ToolEffect, ToolSpec
from retinue.domain.trust import Trust
from retinue.tools.base import ToolContext, ToolFailed, ToolOutput
from retinue.tools.files.errors import FileNotUtf8, format_path
from retinue.tools.files.file_arguments import TEXT_BYTES_MAX, PathArguments, build_shown_schema
from retinue.tools.files.file_services import FileServices
from retinue.tools.files.file_snapshot import read_snapshot
from retinue.tools.files.instruction_guard import locate_to_write
from retinue.tools.files.path_access import missing_permissions
from retinue.tools.files.text_edits import PLACES_SHOWN_MAX, TextEdit, apply_edits
from retinue.tools.files.write_tool import encode_text, write_changed

EDITS_MAX = 100

_OLD = "Text to replace, exactly as in the file, including white space"
_NEW = "Text to replace it with; empty removes it"
_ALL = "Whether to replace every occurrence. Otherwise `old` must occur once"
_ALIASES = {
    "old_string": "old",
    "old_text": "old",
    "oldText": "old",
    "new_string": "new",
    "new_text": "new",
    "newText": "new",
    "replaceAll": "replace_all",
}


class EditItem(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    old: str | None = None
    new: str | None = None
    replace_all: bool | None = None
    old_string: str | None = None
    old_text: str | None = None
    oldText: str | None = None
    new_string: str | None = None
    new_text: str | None = None
    newText: str | None = None
    replaceAll: bool | None = None

    def __post_init__(self) -> None:
        _resolve_aliases(self)
        if self.old is None or self.new is None:
            raise ValueError("each edit needs `old` and `new`")


class EditArguments(PathArguments, forbid_unknown_fields=True, kw_only=True):
    old: Annotated[str | None, msgspec.Meta(description=_OLD)] = None
    new: Annotated[str | None, msgspec.Meta(description=_NEW)] = None
    replace_all: Annotated[bool | None, msgspec.Meta(description=_ALL)] = None
    edits: Annotated[list[EditItem], msgspec.Meta(max_length=EDITS_MAX)] = field(default_factory=list[EditItem])
    old_string: str | None = None
    old_text: str | None = None
    oldText: str | None = None
    new_string: str | None = None
    new_text: str | None = None
    newText: str | None = None
    replaceAll: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _resolve_aliases(self)
        if (self.old is None) != (self.new is None):
            raise ValueError("`old` and `new` must be set together")
        if (self.old is None) == (not self.edits):
            raise ValueError("set either `old` and `new`, or `edits`")

    def changes(self) -> list[TextEdit]:
        if self.old is not None and self.new is not None:
            return [TextEdit(old=self.old, new=self.new, replace_all=bool(self.replace_all))]
        return [TextEdit(old=e.old or "", new=e.new or "", replace_all=bool(e.replace_all)) for e in self.edits]


def _resolve_aliases(arguments: msgspec.Struct) -> None:
    for other, name in _ALIASES.items():
        value: Any = getattr(arguments, other)
        if value is None:
            continue
        if getattr(arguments, name) not in (None, value):
            raise ValueError(f"`{name}` is given twice, with different values")
        setattr(arguments, name, value)
        setattr(arguments, other, None)


def _build_schema() -> dict[str, Any]:
    schema = build_shown_schema(EditArguments)
    text, flag = {"type": "string"}, {"type": "boolean"}
    one = {
        "old": {**text, "description": _OLD},
        "new": {**text, "description": _NEW},
        "replace_all": {**flag, "description": _ALL},
    }
    several = {
        "type": "array",
        "description": "Several edits of this file, applied all or none; use it instead of `old` and `new`",
        "maxItems": EDITS_MAX,
        "items": {"type": "object", "properties": one, "required": ["old", "new"], "additionalProperties": False},
    }
    return {**schema, "properties": {"path": schema["properties"]["path"], **one, "edits": several}}


class EditTool(Struct, frozen=True):
    """The tool `edit`: replaces parts of a text file."""

    file_services: FileServices
    arguments: type[msgspec.Struct] = EditArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="edit",
            description=(
                "Replace text in a file. `old` must occur in it exactly once, unless `replace_all` is set. "
                "`edits` makes several replacements in one call; each `old` is searched for in the original file. "
                "If one cannot be applied, nothing is changed. Returns the changed lines. To create or overwrite a "
                "file, use write."
            ),
            parameters=_build_schema(),
            effects=frozenset({ToolEffect.WRITES}),
            capabilities=frozenset({"files.write"}),
        )
    )

    def required_permissions(self, arguments: EditArguments, context: ToolContext) -> Sequence[Permission]:
        return missing_permissions(arguments.path, context, PermissionKind.WRITE, self.file_services.withheld)

    async def perform(self, arguments: EditArguments, context: ToolContext) -> ToolOutput:
        path, changes = arguments.path, arguments.changes()
        for each in changes:
            encode_text(each.new, path)
        resolved = await asyncio.to_thread(locate_to_write, path, context, self.file_services.withheld)
        async with self.file_services.lock_file(resolved.real):
            old = await asyncio.to_thread(partial(read_snapshot, resolved.real, text=path, bytes_max=TEXT_BYTES_MAX))
            changed = await asyncio.to_thread(
                partial(apply_edits, _decode_text(old.data, path), changes, path=format_path(path))
            )
            if isinstance(changed, ToolFailed):
                # The error may quote the file, so it is trusted only as far as the file is.
                return ToolOutput(
                    text=str(changed), failed=True, trust=await self.file_services.trust_of(resolved.real, old)
                )
            await write_changed(self.file_services, resolved, old, changed.text.encode(), text=path, context=context)
        lines = ", ".join(map(str, changed.first_lines)) + (", ..." if changed.places > PLACES_SHOWN_MAX else "")
        places = "1 place" if changed.places == 1 else f"{changed.places} places"
        return ToolOutput(text=f"edited {format_path(path)} in {places} (line {lines})", trust=Trust.PRIVATE)


def _decode_text(data: bytes, path: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise FileNotUtf8(path, at_byte=error.start) from None
