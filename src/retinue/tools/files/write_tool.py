"""`write`: writes a whole file, or appends to it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Annotated

import msgspec
from msgspec import Struct, field

from retinue.domain.permission import Access, Permission
from retinue.domain.storable_text import is_storable
from retinue.domain.tool import Effect, ToolSpec
from retinue.domain.trust import Trust
from retinue.tools.base import Output, Scene, ToolFailed
from retinue.tools.files.atomic_write import missing_folders, put
from retinue.tools.files.file_access import Ground, done_in_thread
from retinue.tools.files.file_arguments import TEXT_BYTES_MAX, PathArguments, shown_schema
from retinue.tools.files.file_snapshot import Looked, look_if_there
from retinue.tools.files.instruction_guard import locate_to_write
from retinue.tools.files.paths import Place, lacking, seen


class WriteArguments(PathArguments, forbid_unknown_fields=True, kw_only=True):
    content: Annotated[str, msgspec.Meta(description="The text to write")]
    append: Annotated[
        bool, msgspec.Meta(description="Add the text to the end of the file instead of replacing the file")
    ] = False


class Write(Struct, frozen=True):
    """Writes a file. Repeating a call gives the same file, so a call interrupted by a crash can run
    again.

    An append is skipped if the file already ends with the text.
    """

    ground: Ground
    arguments: type[msgspec.Struct] = WriteArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="write",
            description=(
                "Write a text file, replacing what is there, or with `append` add to its end. Folders on the way are "
                "made. To change a part of a file, use edit."
            ),
            parameters=shown_schema(WriteArguments, required=("path", "content")),
            effects=frozenset({Effect.WRITES}),
            capabilities=frozenset({"files.write"}),
            repeatable=True,
        )
    )

    def needs(self, arguments: WriteArguments, scene: Scene) -> Sequence[Permission]:
        return lacking(arguments.path, scene, Access.WRITE, self.ground.withheld)

    async def perform(self, arguments: WriteArguments, scene: Scene) -> Output:
        data = encoded(arguments.content, arguments.path)
        place = await asyncio.to_thread(locate_to_write, arguments.path, scene, self.ground.withheld)
        async with self.ground.alone_with(place.real):
            if arguments.append:
                return await self._add(place, data, arguments, scene)
            return await self._replace(place, data, arguments, scene)

    async def _replace(self, place: Place, data: bytes, arguments: WriteArguments, scene: Scene) -> Output:
        await label_before(self.ground, place, scene)
        placed = await done_in_thread(partial(put, place, data, text=arguments.path))
        if scene.trust is not Trust.UNTRUSTED:
            await self.ground.mark_clean(place.real, scene, ctime_ms=placed.ctime_ms)
        done = "made" if placed.is_new else "replaced"
        return _said(f"{done} {seen(arguments.path)}: {len(data)} bytes")

    async def _add(self, place: Place, data: bytes, arguments: WriteArguments, scene: Scene) -> Output:
        old = await asyncio.to_thread(look_if_there, place.real, text=arguments.path, bytes_max=TEXT_BYTES_MAX)
        if old is None:
            return await self._replace(place, data, arguments, scene)
        if data and old.data.endswith(data):
            return _said(f"{seen(arguments.path)} already ends with this text: nothing was added")
        await put_changed(self.ground, place, old, old.data + data, text=arguments.path, scene=scene)
        return _said(f"added {len(data)} bytes to {seen(arguments.path)}: {len(old.data) + len(data)} bytes")


def _said(text: str) -> Output:
    return Output(text=text, trust=Trust.PRIVATE)


async def label_before(ground: Ground, place: Place, scene: Scene) -> None:
    """Mark the file and its new parent folders as untrusted before writing, if the context is
    untrusted.
    """
    if scene.trust is Trust.UNTRUSTED:
        new = await asyncio.to_thread(missing_folders, place)
        await ground.mark_untrusted([*new, place.real], scene)


async def put_changed(ground: Ground, place: Place, old: Looked, data: bytes, *, text: str, scene: Scene) -> None:
    """Write a file of which a part existed before. It gets the lower trust of the old and the new
    part.
    """
    if len(data) > TEXT_BYTES_MAX:
        raise too_large(text)
    was = await ground.trust_of(place.real, old)
    # Also if only the old part is untrusted: content known by its hash has another hash now.
    if Trust.UNTRUSTED in (scene.trust, was):
        await ground.mark_untrusted([place.real], scene)
    placed = await done_in_thread(partial(put, place, data, text=text, was=old.status))
    if Trust.UNTRUSTED not in (scene.trust, was):
        await ground.mark_clean(place.real, scene, ctime_ms=placed.ctime_ms)


def encoded(text: str, path: str) -> bytes:
    if not is_storable(text):
        raise ToolFailed(
            "this text cannot be written",
            because="it has a NUL or half of a character in it",
            try_this="leave that out",
            code="file.not-text",
        )
    data = text.encode()
    if len(data) > TEXT_BYTES_MAX:
        raise too_large(path)
    return data


def too_large(path: str) -> ToolFailed:
    return ToolFailed(
        f"'{seen(path)}' would be too large",
        because=f"a text that is written has at most {TEXT_BYTES_MAX} bytes; nothing was changed",
        try_this="write several files",
        code="file.too-large",
    )
