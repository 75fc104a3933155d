"""`read`: reads a text file by lines, a picture as an attachment, or a truncated result."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Struct, field

from retinue.domain.permission import Access, Permission, Withheld, is_seen, within
from retinue.domain.tool import RESULT_CHARS_MAX, Effect, ToolSpec
from retinue.domain.trust import Trust
from retinue.tools.base import Output, Scene, ToolFailed
from retinue.tools.files.file_access import Ground
from retinue.tools.files.file_arguments import PathArguments, shown_schema
from retinue.tools.files.file_snapshot import Looked, look
from retinue.tools.files.file_types import binary_type
from retinue.tools.files.paths import lacking, locate, seen
from retinue.tools.result_truncation import RESULT, Wholes
from retinue.tools.text_pages import Page, go_on, line_count, page

READ_BYTES_MAX = 32 * 1024 * 1024  # of a file that is read
ATTACHED_BYTES_MAX = 20 * 1024 * 1024  # of a binary file
READ_LINES_MAX = 2_000
READ_CHARS_MAX = RESULT_CHARS_MAX - 1_000  # leaves space for notices, so that a page is never truncated again

Mask = Callable[[str], str]

_NO_STATE = Withheld()


class ReadArguments(PathArguments, forbid_unknown_fields=True, kw_only=True):
    offset: Annotated[int, msgspec.Meta(ge=1, description="Line to begin with, from 1")] = 1
    limit: Annotated[int, msgspec.Meta(ge=1, description=f"How many lines, at most {READ_LINES_MAX}")] = READ_LINES_MAX
    column: Annotated[
        int, msgspec.Meta(ge=1, description="Character of that line to begin with: for very long lines")
    ] = 1


class Read(Struct, frozen=True):
    """Reads a file. Without `file_services` it reads text only, and its output is untrusted."""

    ground: Ground | None = None
    arguments: type[msgspec.Struct] = ReadArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="read",
            description=(
                "Read a text file of your home or workspace, or of a folder you were granted; pictures and PDFs are "
                f"shown to you if your model can see them. At most {READ_LINES_MAX} lines at a time: the end of a "
                "longer text says how to go on. `result:ID` reads the whole of a result that was cut."
            ),
            parameters=shown_schema(ReadArguments),
            effects=frozenset({Effect.READS_PRIVATE}),
            capabilities=frozenset({"files.read"}),
            repeatable=True,
            looks=True,
        )
    )

    def needs(self, arguments: ReadArguments, scene: Scene) -> Sequence[Permission]:
        if arguments.path.startswith(RESULT):
            return ()
        return lacking(arguments.path, scene, Access.READ, self._withheld)

    async def perform(self, arguments: ReadArguments, scene: Scene) -> Output:
        if arguments.path.startswith(RESULT) and self.ground is not None:
            text, result = await Wholes(self.ground.files, self.ground.store).read(arguments.path, scene.session)
            shown = await asyncio.to_thread(_shown, text, arguments, self._mask)
            return Output(text=shown, trust=result.trust)
        place = await asyncio.to_thread(locate, arguments.path, scene, Access.READ, self._withheld)
        read = partial(look, place.real, text=arguments.path, bytes_max=READ_BYTES_MAX)
        if self.ground is None:
            content = await asyncio.to_thread(read)
            return await self._told(content, arguments, Trust.UNTRUSTED)
        async with self.ground.alone_with(place.real):
            content = await asyncio.to_thread(read)
            trust = await self.ground.trust_of(place.real, content)
        return await self._told(content, arguments, trust)

    @property
    def _withheld(self) -> Withheld:
        return self.ground.withheld if self.ground is not None else _NO_STATE

    @property
    def _mask(self) -> Mask:
        return self.ground.mask if self.ground is not None else str

    async def _told(self, content: Looked, arguments: ReadArguments, trust: Trust) -> Output:
        media_type = binary_type(content.data)
        if media_type is None:
            text = await asyncio.to_thread(_text, content.data, arguments, self._mask)
            return Output(text=text, trust=trust)
        what = f"{media_type}, {len(content.data)} bytes"
        if self.ground is None or len(content.data) > ATTACHED_BYTES_MAX:
            raise ToolFailed(
                f"'{seen(arguments.path)}' cannot be shown",
                because=f"it is no text ({what}), and such a file is attached up to {ATTACHED_BYTES_MAX} bytes",
                try_this="use a command that gets out of it what you need",
                code="file.not-text",
            )
        keep = partial(
            self.ground.files.keep, [content.data], name=os.path.basename(arguments.path), media_type=media_type
        )
        attachment = await asyncio.to_thread(keep)
        return Output(text=f"[attached: {attachment.name}, {what}]", trust=trust, attachments=(attachment,))


def read_confined(home: Path, path: str) -> bytes:
    """Read a file inside a folder, for server code that has no tool context."""
    root = os.path.realpath(home)
    real = os.path.realpath(os.path.join(root, path)) if is_seen(path) else root
    if path.startswith("/") or real == root or not within(real, root):
        raise ToolFailed(
            f"'{seen(path)}' is not a path inside",
            because="a path here is relative, and leads to nowhere else",
            try_this="for example: SOUL.md",
            code="path.outside",
        )
    return look(real, text=path, bytes_max=READ_BYTES_MAX).data


def _text(data: bytes, arguments: ReadArguments, mask: Mask) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = data.decode(errors="replace")
        shown = _shown(text.removeprefix(_BOM), arguments, mask)
        return f"{shown}\n[not all of it is UTF-8: the rest is shown as \ufffd]"
    return _shown(text.removeprefix(_BOM), arguments, mask)


_BOM = "\ufeff"


def _shown(text: str, arguments: ReadArguments, mask: Mask) -> str:
    found = page(
        text,
        line=arguments.offset,
        column=arguments.column,
        lines_max=min(arguments.limit, READ_LINES_MAX),
        chars_max=READ_CHARS_MAX,
        mask=mask,
    )
    if found is None:
        raise ToolFailed(
            f"there is nothing at line {arguments.offset}, column {arguments.column}",
            because=f"the text ends with line {line_count(text)}, or that line is shorter",
            try_this="use a smaller offset or column",
            code="file.no-line",
        )
    return found.text + _notice(found, text)


def _notice(found: Page, text: str) -> str:
    if found.next_line is None:
        return ""
    gap = "" if found.text.endswith("\n") else "\n"
    return f"{gap}[lines {found.first_line}-{found.last_line} of {line_count(text)}; go on with {go_on(found)}]"
