"""The tool `ls`: lists a folder."""

from __future__ import annotations

import asyncio
import heapq
import os
import stat
from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import Annotated

import msgspec
from msgspec import Struct

from retinue.domain.permission import Permission, PermissionKind, is_fully_visible
from retinue.domain.tool import ToolEffect, ToolSpec
from retinue.domain.trust import least_trust
from retinue.store.agents import file_trust
from retinue.tools.base import ToolContext, ToolOutput
from retinue.tools.files.errors import format_path
from retinue.tools.files.file_arguments import PathArguments, build_shown_schema
from retinue.tools.files.file_services import FileServices
from retinue.tools.files.path_access import (
    ResolvedPath,
    find_reachable_paths,
    locate,
    missing_permissions,
    open_folder_for_listing,
)

ENTRIES_SHOWN_MAX = 500
ENTRIES_SCANNED_MAX = 100_000


class ListFolderArguments(PathArguments, forbid_unknown_fields=True, kw_only=True):
    limit: Annotated[int, msgspec.Meta(ge=1, description=f"Maximum number of entries, up to {ENTRIES_SHOWN_MAX}")] = (
        ENTRIES_SHOWN_MAX
    )

    def default_path(self) -> str:
        return "."


class FolderEntry(Struct, frozen=True):
    """One entry of a listed folder."""

    name: str
    status: os.stat_result

    def format_line(self) -> str:
        mode = self.status.st_mode
        name = self.name if is_fully_visible(self.name) else format_path(self.name)
        if stat.S_ISDIR(mode):
            return f"{name}/"
        if stat.S_ISREG(mode):
            return f"{name}  {self.status.st_size} bytes"
        return f"{name}  (link)" if stat.S_ISLNK(mode) else f"{name}  (not a regular file)"


class ListTool(Struct, frozen=True):
    """The tool `ls`: lists a folder."""

    file_services: FileServices
    arguments: type[msgspec.Struct] = ListFolderArguments
    spec: ToolSpec = msgspec.field(
        default_factory=lambda: ToolSpec(
            name="ls",
            description="List a folder. Returns names in order: folders end in /, files have their size. To search "
            "subfolders, use find.",
            parameters=build_shown_schema(ListFolderArguments, required=()),
            effects=frozenset({ToolEffect.READS_PRIVATE}),
            capabilities=frozenset({"files.read"}),
            is_repeatable=True,
            is_read_only=True,
        )
    )

    def required_permissions(self, arguments: ListFolderArguments, context: ToolContext) -> Sequence[Permission]:
        return missing_permissions(arguments.path, context, PermissionKind.READ, self.file_services.withheld)

    async def perform(self, arguments: ListFolderArguments, context: ToolContext) -> ToolOutput:
        resolved = await asyncio.to_thread(
            locate, arguments.path, context, PermissionKind.READ, self.file_services.withheld
        )
        known = await self.file_services.labels_below(resolved.real)
        shown_max = min(arguments.limit, ENTRIES_SHOWN_MAX)
        entries, more = await asyncio.to_thread(
            partial(self._list_entries, resolved, arguments.path, context=context, shown_max=shown_max)
        )
        since = await self.file_services.labels_below(resolved.real)
        # File names are content too: a name can contain instructions for an agent.
        trust = least_trust(
            each.get_trust(os.path.join(resolved.real, entry.name), ctime_ms=file_trust.ctime_ms(entry.status))
            for entry in entries
            for each in (known, since)
        )
        lines = [entry.format_line() for entry in entries] or ["[the folder is empty]"]
        if more:
            lines.append(f"[{more} more; use find with a glob]")
        return ToolOutput(text="\n".join(lines), trust=trust)

    def _list_entries(
        self, resolved: ResolvedPath, text: str, *, context: ToolContext, shown_max: int
    ) -> tuple[list[FolderEntry], int]:
        """Return the first entries by name, and the number of further entries."""
        reach = find_reachable_paths(context, self.file_services.withheld)
        with open_folder_for_listing(resolved.real, text=text) as folder, os.scandir(folder) as found:
            names = [entry.name for entry in islice(found, ENTRIES_SCANNED_MAX)]
            names = [name for name in names if not reach.why_withheld(os.path.join(resolved.real, name))]
            entries: list[FolderEntry] = []
            for name in heapq.nsmallest(shown_max, names):
                try:
                    entries.append(FolderEntry(name, os.stat(name, dir_fd=folder, follow_symlinks=False)))
                except FileNotFoundError:  # deleted meanwhile
                    continue
        return entries, max(len(names) - shown_max, 0)
