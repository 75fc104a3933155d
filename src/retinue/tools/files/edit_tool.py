"""`edit`: replaces exact parts of a text file."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import Struct, field

from retinue.domain.permission import Access, Permission
from retinue.domain.tool import Effect, ToolSpec
from retinue.domain.trust import Trust
from retinue.tools.base import Output, Scene, ToolFailed
from retinue.tools.files.file_access import Ground
from retinue.tools.files.file_arguments import TEXT_BYTES_MAX, PathArguments, shown_schema
from retinue.tools.files.file_snapshot import look
from retinue.tools.files.instruction_guard import locate_to_write
from retinue.tools.files.paths import lacking, seen
from retinue.tools.files.text_edits import PLACES_SHOWN_MAX, Change, change
from retinue.tools.files.write_tool import encoded, put_changed

EDITS_MAX = 100

_OLD = "Text that is there now, exactly, with its white space"
_NEW = "Text to put in its place; empty to remove it"
_ALL = "Change every place where the text is; otherwise it must be there once"
_OTHER_NAMES = {
    "old_string": "old",
    "old_text": "old",
    "oldText": "old",
    "new_string": "new",
    "new_text": "new",
    "newText": "new",
    "replaceAll": "replace_all",
}


class OneEdit(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
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
        _take_other_names(self)
        if self.old is None or self.new is None:
            raise ValueError("each edit has `old` and `new`")


class EditArguments(PathArguments, forbid_unknown_fields=True, kw_only=True):
    old: Annotated[str | None, msgspec.Meta(description=_OLD)] = None
    new: Annotated[str | None, msgspec.Meta(description=_NEW)] = None
    replace_all: Annotated[bool | None, msgspec.Meta(description=_ALL)] = None
    edits: Annotated[list[OneEdit], msgspec.Meta(max_length=EDITS_MAX)] = field(default_factory=list[OneEdit])
    old_string: str | None = None
    old_text: str | None = None
    oldText: str | None = None
    new_string: str | None = None
    new_text: str | None = None
    newText: str | None = None
    replaceAll: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _take_other_names(self)
        if (self.old is None) != (self.new is None):
            raise ValueError("`old` and `new` go together")
        if (self.old is None) == (not self.edits):
            raise ValueError("give either `old` and `new`, or `edits`")

    def changes(self) -> list[Change]:
        if self.old is not None and self.new is not None:
            return [Change(old=self.old, new=self.new, replace_all=bool(self.replace_all))]
        return [Change(old=e.old or "", new=e.new or "", replace_all=bool(e.replace_all)) for e in self.edits]


def _take_other_names(arguments: msgspec.Struct) -> None:
    for other, name in _OTHER_NAMES.items():
        value: Any = getattr(arguments, other)
        if value is None:
            continue
        if getattr(arguments, name) not in (None, value):
            raise ValueError(f"`{name}` is given twice, and not the same")
        setattr(arguments, name, value)
        setattr(arguments, other, None)


def _schema() -> dict[str, Any]:
    schema = shown_schema(EditArguments)
    text, flag = {"type": "string"}, {"type": "boolean"}
    one = {
        "old": {**text, "description": _OLD},
        "new": {**text, "description": _NEW},
        "replace_all": {**flag, "description": _ALL},
    }
    several = {
        "type": "array",
        "description": "Several edits of this file at once, all or none, in the place of `old` and `new`",
        "maxItems": EDITS_MAX,
        "items": {"type": "object", "properties": one, "required": ["old", "new"], "additionalProperties": False},
    }
    return {**schema, "properties": {"path": schema["properties"]["path"], **one, "edits": several}}


class Edit(Struct, frozen=True):
    """Changes parts of a text file."""

    ground: Ground
    arguments: type[msgspec.Struct] = EditArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="edit",
            description=(
                "Change parts of a text file: `old` must be in it exactly, and once, unless `replace_all` is set. "
                "`edits` makes several changes at once, each looked for in the file as it was. If one does not fit, "
                "nothing is changed."
            ),
            parameters=_schema(),
            effects=frozenset({Effect.WRITES}),
            capabilities=frozenset({"files.write"}),
        )
    )

    def needs(self, arguments: EditArguments, scene: Scene) -> Sequence[Permission]:
        return lacking(arguments.path, scene, Access.WRITE, self.ground.withheld)

    async def perform(self, arguments: EditArguments, scene: Scene) -> Output:
        path, changes = arguments.path, arguments.changes()
        for each in changes:
            encoded(each.new, path)
        place = await asyncio.to_thread(locate_to_write, path, scene, self.ground.withheld)
        async with self.ground.alone_with(place.real):
            old = await asyncio.to_thread(partial(look, place.real, text=path, bytes_max=TEXT_BYTES_MAX))
            changed = await asyncio.to_thread(partial(change, _decoded(old.data, path), changes, path=seen(path)))
            if isinstance(changed, ToolFailed):
                # The error may quote the file, so it has the trust of the file.
                return Output(text=str(changed), failed=True, trust=await self.ground.trust_of(place.real, old))
            await put_changed(self.ground, place, old, changed.text.encode(), text=path, scene=scene)
        lines = ", ".join(map(str, changed.lines)) + (", ..." if changed.places > PLACES_SHOWN_MAX else "")
        places = "1 place" if changed.places == 1 else f"{changed.places} places"
        return Output(text=f"edited {seen(path)} in {places} (line {lines})", trust=Trust.PRIVATE)


def _decoded(data: bytes, path: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ToolFailed(
            f"'{seen(path)}' is not a text file",
            because=f"it is not UTF-8 at byte {error.start}",
            try_this="use a command",
            code="file.not-text",
        ) from None
