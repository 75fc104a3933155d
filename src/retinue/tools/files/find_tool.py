"""The tool `find`: finds files by a glob for their paths and by text in them.

The text is matched literally, so no pattern can make a search slower than reading the files.
"""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import Generator, Sequence
from contextlib import closing
from typing import Annotated

import msgspec
from msgspec import Struct, field

from retinue.domain.permission import Permission, PermissionKind, is_fully_visible
from retinue.domain.tool import ToolEffect, ToolSpec
from retinue.domain.trust import least_trust
from retinue.store.agents import file_trust
from retinue.tools.base import ToolContext, ToolFailed, ToolOutput
from retinue.tools.files import globs
from retinue.tools.files.errors import FindTextInvalid, format_path
from retinue.tools.files.file_arguments import PathArguments, build_shown_schema
from retinue.tools.files.file_services import FileServices
from retinue.tools.files.file_types import detect_binary_type
from retinue.tools.files.path_access import (
    ResolvedPath,
    find_reachable_paths,
    locate,
    missing_permissions,
    open_folder,
    open_folder_for_listing,
    open_regular_file,
)

RESULTS_MAX = 200
FIND_TIMEOUT_S = 10.0
FIND_DEPTH_MAX = 32  # folder levels below the start
FIND_ENTRIES_MAX = 100_000
FIND_FILE_BYTES_MAX = 4 * 1024 * 1024  # searched in one file
FIND_BYTES_MAX = 512 * 1024 * 1024  # searched in all files
LINE_CHARS_SHOWN_MAX = 200
TEXT_LENGTH_MAX = 1_000


class FindArguments(PathArguments, forbid_unknown_fields=True, kw_only=True):
    """Arguments of the tool `find`."""

    glob: Annotated[
        str,
        msgspec.Meta(description="Glob: *.md matches names at any depth, docs/**/*.md matches paths below `path`"),
    ] = "*"
    text: Annotated[
        str, msgspec.Meta(description="Return only lines that contain this literal text (not a pattern)")
    ] = ""
    ignore_case: Annotated[bool, msgspec.Meta(description="Whether to ignore case when matching `text`")] = False
    hidden: Annotated[bool, msgspec.Meta(description="Whether to include names that begin with a dot")] = False
    limit: Annotated[int, msgspec.Meta(ge=1, description=f"Maximum number of results, up to {RESULTS_MAX}")] = (
        RESULTS_MAX
    )

    def default_path(self) -> str:
        return "."


class FileHit(Struct, frozen=True):
    """A matching file, or a matching line in it. `real` and `ctime_ms` identify the file version."""

    line: str
    real: str
    ctime_ms: int


class FindTool(Struct, frozen=True):
    """The tool `find`: searches files by path and text."""

    file_services: FileServices
    arguments: type[msgspec.Struct] = FindArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="find",
            description=(
                "Find files below a folder by name, and with `text` also by content. Returns paths, or with `text` "
                "matching lines as PATH:LINE: TEXT. Links are not followed. To list one folder, use ls."
            ),
            parameters=build_shown_schema(FindArguments, required=()),
            effects=frozenset({ToolEffect.READS_PRIVATE}),
            capabilities=frozenset({"files.read"}),
            is_repeatable=True,
            is_read_only=True,
        )
    )

    def required_permissions(self, arguments: FindArguments, context: ToolContext) -> Sequence[Permission]:
        return missing_permissions(arguments.path, context, PermissionKind.READ, self.file_services.withheld)

    async def perform(self, arguments: FindArguments, context: ToolContext) -> ToolOutput:
        if len(arguments.text) > TEXT_LENGTH_MAX or "\n" in arguments.text:
            raise FindTextInvalid(chars_max=TEXT_LENGTH_MAX)
        glob = globs.parse(arguments.glob)
        resolved = await asyncio.to_thread(
            locate, arguments.path, context, PermissionKind.READ, self.file_services.withheld
        )
        known = await self.file_services.labels_below(resolved.real)
        search = FileSearch(arguments, glob, resolved, context, self.file_services)
        hits, notice = await asyncio.to_thread(search.run)
        since = await self.file_services.labels_below(resolved.real)
        trust = least_trust(each.get_trust(hit.real, ctime_ms=hit.ctime_ms) for hit in hits for each in (known, since))
        lines = [hit.line for hit in hits] or ["[nothing found]"]
        return ToolOutput(text="\n".join([*lines, *notice]), trust=trust)


class FileSearch:
    """One search of files. If the search stops at a limit, the result has a notice."""

    def __init__(
        self,
        arguments: FindArguments,
        glob: globs.Glob,
        resolved: ResolvedPath,
        context: ToolContext,
        file_services: FileServices,
    ) -> None:
        self._arguments = arguments
        self._glob = glob
        self._place = resolved
        self._reachable = find_reachable_paths(context, file_services.withheld)
        self._text = arguments.text.lower() if arguments.ignore_case else arguments.text
        self._entries = 0
        self._bytes = 0
        self._notices: dict[str, None] = {}
        self._deadline_s = 0.0

    def run(self) -> tuple[list[FileHit], list[str]]:
        self._deadline_s = time.monotonic() + FIND_TIMEOUT_S
        limit = min(self._arguments.limit, RESULTS_MAX)
        hits: list[FileHit] = []
        with (
            open_folder_for_listing(self._place.real, text=self._arguments.path) as top,
            closing(self._search_folder(top, "", 0)) as found,
        ):
            for hit in found:
                if len(hits) == limit:
                    self._notices[f"there are more results: only the first {limit} are shown"] = None
                    break
                hits.append(hit)
        return hits, [f"[{notice}]" for notice in self._notices]

    def _search_folder(self, folder: int, path: str, depth: int) -> Generator[FileHit]:
        try:
            with os.scandir(folder) as found:
                names = sorted(name for entry in found if self._is_included(name := entry.name))
        except OSError:
            self._notices["some folders could not be read"] = None
            return
        for name in names:
            if self._is_limit_reached():
                return
            below = f"{path}/{name}" if path else name
            real = os.path.join(self._place.real, below)
            if self._reachable.why_withheld(real):
                continue
            try:
                status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            except OSError:
                continue
            if self._glob.matches(below):
                yield from self._match_entry(folder, name, below, real, status)
            if stat.S_ISDIR(status.st_mode):
                yield from self._search_subfolder(folder, name, below, depth)

    def _search_subfolder(self, folder: int, name: str, below: str, depth: int) -> Generator[FileHit]:
        if depth == FIND_DEPTH_MAX:
            self._notices[f"incomplete: folders more than {FIND_DEPTH_MAX} levels deep were skipped"] = None
            return
        try:
            opened = open_folder(name, folder)
        except OSError:
            self._notices["some folders could not be read"] = None
            return
        try:
            yield from self._search_folder(opened, below, depth + 1)
        finally:
            os.close(opened)

    def _match_entry(self, folder: int, name: str, below: str, real: str, status: os.stat_result) -> Generator[FileHit]:
        shown = below if is_fully_visible(below) else format_path(below)
        if not self._text:
            mark = "/" if stat.S_ISDIR(status.st_mode) else ""
            yield FileHit(shown + mark, real, file_trust.ctime_ms(status))
            return
        if not stat.S_ISREG(status.st_mode):
            return
        try:
            data, changed = self._read_file(folder, name)
        except (OSError, ToolFailed):
            self._notices["some files could not be read"] = None
            return
        if detect_binary_type(data) is not None:
            return
        for number, line in enumerate(data.decode(errors="replace").split("\n"), 1):
            if self._text in (line.lower() if self._arguments.ignore_case else line):
                yield FileHit(
                    f"{shown}:{number}: {self._excerpt(line)}", real, max(changed, file_trust.ctime_ms(status))
                )

    def _read_file(self, folder: int, name: str) -> tuple[bytes, int]:
        with os.fdopen(open_regular_file(name, folder, text=name), "rb") as file:
            data = file.read(FIND_FILE_BYTES_MAX + 1)
            status = os.fstat(file.fileno())
        self._bytes += len(data)
        if len(data) > FIND_FILE_BYTES_MAX:
            self._notices[f"only the first {FIND_FILE_BYTES_MAX:,} bytes of large files were searched"] = None
        return data[:FIND_FILE_BYTES_MAX], file_trust.ctime_ms(status)

    def _excerpt(self, line: str) -> str:
        """Return the line, or the part of a long line around the match."""
        line = line.strip()
        if len(line) <= LINE_CHARS_SHOWN_MAX:
            return line
        at = (line.lower() if self._arguments.ignore_case else line).find(self._text)
        start = max(at - LINE_CHARS_SHOWN_MAX // 2, 0)
        return f"...{line[start : start + LINE_CHARS_SHOWN_MAX]}..."

    def _is_included(self, name: str) -> bool:
        self._entries += 1
        return self._entries <= FIND_ENTRIES_MAX and (self._arguments.hidden or not name.startswith("."))

    def _is_limit_reached(self) -> bool:
        if time.monotonic() > self._deadline_s:
            self._notices[f"incomplete: stopped after {FIND_TIMEOUT_S:g} s; search in a subfolder"] = None
        elif self._entries > FIND_ENTRIES_MAX:
            self._notices[
                f"incomplete: only the first {FIND_ENTRIES_MAX:,} names were searched; search in a subfolder"
            ] = None
        elif self._bytes > FIND_BYTES_MAX:
            self._notices[
                f"incomplete: only the first {FIND_BYTES_MAX:,} bytes were searched; search in a subfolder"
            ] = None
        else:
            return False
        return True
