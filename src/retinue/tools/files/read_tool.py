"""The tool `read`: reads a text file by lines, a picture as an attachment, or a truncated result."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Struct, field

from retinue.domain.permission import Permission, PermissionKind, is_fully_visible, is_within
from retinue.domain.protected_paths import ProtectedPaths
from retinue.domain.tool import RESULT_CHARS_MAX, ToolEffect, ToolSpec
from retinue.domain.trust import Trust
from retinue.tools.base import ToolContext, ToolOutput
from retinue.tools.files.errors import FileLineNotFound, FileNotShown, PathNotRelative
from retinue.tools.files.file_arguments import PathArguments, build_shown_schema
from retinue.tools.files.file_services import FileServices
from retinue.tools.files.file_snapshot import FileSnapshot, read_snapshot
from retinue.tools.files.file_types import detect_binary_type
from retinue.tools.files.path_access import locate, missing_permissions
from retinue.tools.result_truncation import RESULT_PREFIX, FullResultStore
from retinue.tools.text_pages import TextPage, format_next_page, line_count, slice_page

READ_BYTES_MAX = 32 * 1024 * 1024  # of a file that is read
ATTACHED_BYTES_MAX = 20 * 1024 * 1024  # of a binary file
READ_LINES_MAX = 2_000
READ_CHARS_MAX = RESULT_CHARS_MAX - 1_000  # leaves space for notices, so that a page is never truncated again

Redact = Callable[[str], str]

_NOTHING_WITHHELD = ProtectedPaths()


class ReadArguments(PathArguments, forbid_unknown_fields=True, kw_only=True):
    offset: Annotated[int, msgspec.Meta(ge=1, description="First line to return, counted from 1")] = 1
    limit: Annotated[int, msgspec.Meta(ge=1, description=f"Maximum number of lines, up to {READ_LINES_MAX}")] = (
        READ_LINES_MAX
    )
    column: Annotated[
        int, msgspec.Meta(ge=1, description="First character of that line, counted from 1; for very long lines")
    ] = 1


class ReadTool(Struct, frozen=True):
    """The tool `read`. Without `file_services` it reads text only, and its output is untrusted."""

    file_services: FileServices | None = None
    arguments: type[msgspec.Struct] = ReadArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="read",
            description=(
                "Read a file in your workspace, your agent directory or a folder you were granted. Returns text by "
                f"lines, at most {READ_LINES_MAX} per call; the end of the result tells how to read on. Pictures and "
                "PDFs are attached, if your model can see them. The path result:ID reads a truncated result in full."
            ),
            parameters=build_shown_schema(ReadArguments),
            effects=frozenset({ToolEffect.READS_PRIVATE}),
            capabilities=frozenset({"files.read"}),
            is_repeatable=True,
            is_read_only=True,
        )
    )

    def required_permissions(self, arguments: ReadArguments, context: ToolContext) -> Sequence[Permission]:
        if arguments.path.startswith(RESULT_PREFIX):
            return ()
        return missing_permissions(arguments.path, context, PermissionKind.READ, self._withheld)

    async def perform(self, arguments: ReadArguments, context: ToolContext) -> ToolOutput:
        if arguments.path.startswith(RESULT_PREFIX) and self.file_services is not None:
            text, result = await FullResultStore(self.file_services.files, self.file_services.store).read(
                arguments.path, context.session
            )
            shown = await asyncio.to_thread(_page_text, text, arguments, self._redact)
            return ToolOutput(text=shown, trust=result.trust)
        resolved = await asyncio.to_thread(locate, arguments.path, context, PermissionKind.READ, self._withheld)
        read = partial(read_snapshot, resolved.real, text=arguments.path, bytes_max=READ_BYTES_MAX)
        if self.file_services is None:
            content = await asyncio.to_thread(read)
            return await self._build_output(content, arguments, Trust.UNTRUSTED)
        async with self.file_services.lock_file(resolved.real):
            content = await asyncio.to_thread(read)
            trust = await self.file_services.trust_of(resolved.real, content)
        return await self._build_output(content, arguments, trust)

    @property
    def _withheld(self) -> ProtectedPaths:
        return self.file_services.withheld if self.file_services is not None else _NOTHING_WITHHELD

    @property
    def _redact(self) -> Redact:
        return self.file_services.redact if self.file_services is not None else str

    async def _build_output(self, content: FileSnapshot, arguments: ReadArguments, trust: Trust) -> ToolOutput:
        media_type = detect_binary_type(content.data)
        if media_type is None:
            text = await asyncio.to_thread(_decode_and_page, content.data, arguments, self._redact)
            return ToolOutput(text=text, trust=trust)
        size_bytes = len(content.data)
        if self.file_services is None or size_bytes > ATTACHED_BYTES_MAX:
            raise FileNotShown(
                arguments.path, media_type=media_type, size_bytes=size_bytes, bytes_max=ATTACHED_BYTES_MAX
            )
        keep = partial(
            self.file_services.files.store, [content.data], name=os.path.basename(arguments.path), media_type=media_type
        )
        attachment = await asyncio.to_thread(keep)
        return ToolOutput(
            text=f"[attached: {attachment.name}, {media_type}, {size_bytes} bytes]",
            trust=trust,
            attachments=(attachment,),
        )


def read_file_inside(folder: Path, path: str) -> bytes:
    """Read a file inside a folder, for server code that has no tool context."""
    root = os.path.realpath(folder)
    real = os.path.realpath(os.path.join(root, path)) if is_fully_visible(path) else root
    if path.startswith("/") or real == root or not is_within(real, root):
        raise PathNotRelative(path)
    return read_snapshot(real, text=path, bytes_max=READ_BYTES_MAX).data


def _decode_and_page(data: bytes, arguments: ReadArguments, redact: Redact) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = data.decode(errors="replace")
        shown = _page_text(text.removeprefix(_BOM), arguments, redact)
        return f"{shown}\n[not valid UTF-8: invalid bytes are shown as \ufffd]"
    return _page_text(text.removeprefix(_BOM), arguments, redact)


_BOM = "\ufeff"


def _page_text(text: str, arguments: ReadArguments, redact: Redact) -> str:
    found = slice_page(
        text,
        line=arguments.offset,
        column=arguments.column,
        lines_max=min(arguments.limit, READ_LINES_MAX),
        chars_max=READ_CHARS_MAX,
        redact=redact,
    )
    if found is None:
        raise FileLineNotFound(line=arguments.offset, column=arguments.column, line_count=line_count(text))
    return found.text + _build_next_page_notice(found, text)


def _build_next_page_notice(found: TextPage, text: str) -> str:
    if found.next_line is None:
        return ""
    gap = "" if found.text.endswith("\n") else "\n"
    shown = f"lines {found.first_line}-{found.last_line} of {line_count(text)}"
    return f"{gap}[{shown}; read on with {format_next_page(found)}]"
