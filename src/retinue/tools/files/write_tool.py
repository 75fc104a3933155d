"""The tool `write`: writes a whole file, or appends to it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Annotated

import msgspec
from msgspec import Struct, field

from retinue.domain.permission import Permission, PermissionKind
from retinue.domain.storable_text import is_storable
from retinue.domain.tool import ToolEffect, ToolSpec
from retinue.domain.trust import Trust
from retinue.tools.base import ToolContext, ToolOutput
from retinue.tools.files.atomic_write import missing_folders, write_atomically
from retinue.tools.files.errors import TextNotWritable, WrittenFileTooLarge, format_path
from retinue.tools.files.file_arguments import TEXT_BYTES_MAX, PathArguments, build_shown_schema
from retinue.tools.files.file_services import FileServices, finish_in_thread
from retinue.tools.files.file_snapshot import FileSnapshot, read_snapshot_if_exists
from retinue.tools.files.instruction_guard import locate_to_write
from retinue.tools.files.path_access import ResolvedPath, missing_permissions


class WriteArguments(PathArguments, forbid_unknown_fields=True, kw_only=True):
    content: Annotated[str, msgspec.Meta(description="The text to write")]
    append: Annotated[bool, msgspec.Meta(description="Whether to append the text instead of replacing the file")] = (
        False
    )


class WriteTool(Struct, frozen=True):
    """The tool `write`. Repeating a call gives the same file, so a call interrupted by a crash can run again.

    Text is not appended if the file already ends with it.
    """

    file_services: FileServices
    arguments: type[msgspec.Struct] = WriteArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="write",
            description=(
                "Create or replace a text file, or append to it with `append`. Missing parent folders are created. "
                "Returns the size in bytes. To change a part of a file, use edit."
            ),
            parameters=build_shown_schema(WriteArguments, required=("path", "content")),
            effects=frozenset({ToolEffect.WRITES}),
            capabilities=frozenset({"files.write"}),
            is_repeatable=True,
        )
    )

    def required_permissions(self, arguments: WriteArguments, context: ToolContext) -> Sequence[Permission]:
        return missing_permissions(arguments.path, context, PermissionKind.WRITE, self.file_services.withheld)

    async def perform(self, arguments: WriteArguments, context: ToolContext) -> ToolOutput:
        data = encode_text(arguments.content, arguments.path)
        resolved = await asyncio.to_thread(locate_to_write, arguments.path, context, self.file_services.withheld)
        async with self.file_services.lock_file(resolved.real):
            if arguments.append:
                return await self._append(resolved, data, arguments, context)
            return await self._replace(resolved, data, arguments, context)

    async def _replace(
        self, resolved: ResolvedPath, data: bytes, arguments: WriteArguments, context: ToolContext
    ) -> ToolOutput:
        await mark_before_write(self.file_services, resolved, context)
        placed = await finish_in_thread(partial(write_atomically, resolved, data, text=arguments.path))
        if context.trust is not Trust.UNTRUSTED:
            await self.file_services.mark_clean(resolved.real, context, ctime_ms=placed.ctime_ms)
        done = "created" if placed.is_new else "replaced"
        return _build_output(f"{done} {format_path(arguments.path)}: {len(data)} bytes")

    async def _append(
        self, resolved: ResolvedPath, data: bytes, arguments: WriteArguments, context: ToolContext
    ) -> ToolOutput:
        old = await asyncio.to_thread(
            read_snapshot_if_exists, resolved.real, text=arguments.path, bytes_max=TEXT_BYTES_MAX
        )
        if old is None:
            return await self._replace(resolved, data, arguments, context)
        if data and old.data.endswith(data):
            return _build_output(f"{format_path(arguments.path)} already ends with this text: nothing was appended")
        await write_changed(self.file_services, resolved, old, old.data + data, text=arguments.path, context=context)
        return _build_output(
            f"appended {len(data)} bytes to {format_path(arguments.path)}: {len(old.data) + len(data)} bytes"
        )


def _build_output(text: str) -> ToolOutput:
    return ToolOutput(text=text, trust=Trust.PRIVATE)


async def mark_before_write(file_services: FileServices, resolved: ResolvedPath, context: ToolContext) -> None:
    """If the context is untrusted, mark the file and its new parent folders as untrusted before writing."""
    if context.trust is Trust.UNTRUSTED:
        new = await asyncio.to_thread(missing_folders, resolved)
        await file_services.mark_untrusted([*new, resolved.real], context)


async def write_changed(
    file_services: FileServices,
    resolved: ResolvedPath,
    old: FileSnapshot,
    data: bytes,
    *,
    text: str,
    context: ToolContext,
) -> None:
    """Write a file that keeps a part of its old content. The file gets the lower trust of the old and the new part."""
    if len(data) > TEXT_BYTES_MAX:
        raise WrittenFileTooLarge(text, bytes_max=TEXT_BYTES_MAX)
    was = await file_services.trust_of(resolved.real, old)
    # Also if only the old part is untrusted: content known by its hash now has a different hash.
    if Trust.UNTRUSTED in (context.trust, was):
        await file_services.mark_untrusted([resolved.real], context)
    placed = await finish_in_thread(partial(write_atomically, resolved, data, text=text, was=old.status))
    if Trust.UNTRUSTED not in (context.trust, was):
        await file_services.mark_clean(resolved.real, context, ctime_ms=placed.ctime_ms)


def encode_text(text: str, path: str) -> bytes:
    if not is_storable(text):
        raise TextNotWritable
    data = text.encode()
    if len(data) > TEXT_BYTES_MAX:
        raise WrittenFileTooLarge(path, bytes_max=TEXT_BYTES_MAX)
    return data
