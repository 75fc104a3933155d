"""`find`: searches files by a glob over paths and by a text in them.

The text is searched literally, so no pattern can make a search slower than reading the files.
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

from retinue.domain.permission import Access, Permission, is_seen
from retinue.domain.tool import Effect, ToolSpec
from retinue.domain.trust import least
from retinue.store.agents import file_trust
from retinue.tools.base import Output, Scene, ToolFailed
from retinue.tools.files import globs
from retinue.tools.files.file_access import Ground
from retinue.tools.files.file_arguments import PathArguments, shown_schema
from retinue.tools.files.file_types import binary_type
from retinue.tools.files.paths import Place, lacking, listed, locate, open_folder, open_plain, reach_of, seen

FOUND_MAX = 200
FIND_S_MAX = 10.0
FIND_DEPTH_MAX = 32  # folder levels below the start
FIND_ENTRIES_MAX = 100_000
FIND_FILE_BYTES_MAX = 4 * 1024 * 1024  # searched in one file
FIND_BYTES_MAX = 512 * 1024 * 1024  # searched in all files
LINE_CHARS_SHOWN_MAX = 200
TEXT_LENGTH_MAX = 1_000


class FindArguments(PathArguments, forbid_unknown_fields=True, kw_only=True):
    """Arguments of `find`."""

    glob: Annotated[
        str,
        msgspec.Meta(description="Which files: *.md is for names at any depth, docs/**/*.md for paths below `path`"),
    ] = "*"
    text: Annotated[
        str, msgspec.Meta(description="Only files with this text in them, as it stands (no pattern); shows the lines")
    ] = ""
    ignore_case: Annotated[bool, msgspec.Meta(description="Take a and A for the same in `text`")] = False
    hidden: Annotated[bool, msgspec.Meta(description="Also look at names that begin with a dot")] = False
    limit: Annotated[int, msgspec.Meta(ge=1, description=f"How many results, at most {FOUND_MAX}")] = FOUND_MAX

    def default_path(self) -> str:
        return "."


class Hit(Struct, frozen=True):
    """A matching file, or a matching line in it. `real` and `ctime_ms` identify the file version."""

    line: str
    real: str
    ctime_ms: int


class Find(Struct, frozen=True):
    """Searches files."""

    ground: Ground
    arguments: type[msgspec.Struct] = FindArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="find",
            description=(
                "Find files below a folder by a glob, and with `text` by what is in them (PATH:LINE: the line). Links "
                "are not followed."
            ),
            parameters=shown_schema(FindArguments, required=()),
            effects=frozenset({Effect.READS_PRIVATE}),
            capabilities=frozenset({"files.read"}),
            repeatable=True,
            looks=True,
        )
    )

    def needs(self, arguments: FindArguments, scene: Scene) -> Sequence[Permission]:
        return lacking(arguments.path, scene, Access.READ, self.ground.withheld)

    async def perform(self, arguments: FindArguments, scene: Scene) -> Output:
        if len(arguments.text) > TEXT_LENGTH_MAX or "\n" in arguments.text:
            raise ToolFailed(
                "this text cannot be looked for",
                because=f"a text is within a line, and has at most {TEXT_LENGTH_MAX} characters",
                try_this="look for a part of it",
                code="find.text",
            )
        glob = globs.parse(arguments.glob)
        place = await asyncio.to_thread(locate, arguments.path, scene, Access.READ, self.ground.withheld)
        known = await self.ground.below(place.real)
        search = Search(arguments, glob, place, scene, self.ground)
        hits, notice = await asyncio.to_thread(search.run)
        since = await self.ground.below(place.real)
        trust = least(each.trust(hit.real, ctime_ms=hit.ctime_ms) for hit in hits for each in (known, since))
        lines = [hit.line for hit in hits] or ["[nothing found]"]
        return Output(text="\n".join([*lines, *notice]), trust=trust)


class Search:
    """One search. It stops at its limits and adds a notice when it does."""

    def __init__(self, arguments: FindArguments, glob: globs.Glob, place: Place, scene: Scene, ground: Ground) -> None:
        self._arguments = arguments
        self._glob = glob
        self._place = place
        self._reach = reach_of(scene, ground.withheld)
        self._text = arguments.text.lower() if arguments.ignore_case else arguments.text
        self._entries = 0
        self._bytes = 0
        self._notices: dict[str, None] = {}
        self._until_s = 0.0

    def run(self) -> tuple[list[Hit], list[str]]:
        self._until_s = time.monotonic() + FIND_S_MAX
        limit = min(self._arguments.limit, FOUND_MAX)
        hits: list[Hit] = []
        with listed(self._place.real, text=self._arguments.path) as top, closing(self._below(top, "", 0)) as found:
            for hit in found:
                if len(hits) == limit:
                    self._notices[f"there is more: only the first {limit} are shown"] = None
                    break
                hits.append(hit)
        return hits, [f"[{notice}]" for notice in self._notices]

    def _below(self, folder: int, path: str, depth: int) -> Generator[Hit]:
        try:
            with os.scandir(folder) as found:
                names = sorted(name for entry in found if self._is_looked_at(name := entry.name))
        except OSError:
            self._notices["some folders could not be read"] = None
            return
        for name in names:
            if self._is_over():
                return
            below = f"{path}/{name}" if path else name
            real = os.path.join(self._place.real, below)
            if self._reach.why_withheld(real):
                continue
            try:
                status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            except OSError:
                continue
            if self._glob.fits(below):
                yield from self._hits(folder, name, below, real, status)
            if stat.S_ISDIR(status.st_mode):
                yield from self._deeper(folder, name, below, depth)

    def _deeper(self, folder: int, name: str, below: str, depth: int) -> Generator[Hit]:
        if depth == FIND_DEPTH_MAX:
            self._notices[f"not all: folders more than {FIND_DEPTH_MAX} deep were left out"] = None
            return
        try:
            opened = open_folder(name, folder)
        except OSError:
            self._notices["some folders could not be read"] = None
            return
        try:
            yield from self._below(opened, below, depth + 1)
        finally:
            os.close(opened)

    def _hits(self, folder: int, name: str, below: str, real: str, status: os.stat_result) -> Generator[Hit]:
        shown = below if is_seen(below) else seen(below)
        if not self._text:
            mark = "/" if stat.S_ISDIR(status.st_mode) else ""
            yield Hit(shown + mark, real, file_trust.ctime_ms(status))
            return
        if not stat.S_ISREG(status.st_mode):
            return
        try:
            data, changed = self._read(folder, name)
        except (OSError, ToolFailed):
            self._notices["some files could not be read"] = None
            return
        if binary_type(data) is not None:
            return
        for number, line in enumerate(data.decode(errors="replace").split("\n"), 1):
            if self._text in (line.lower() if self._arguments.ignore_case else line):
                yield Hit(f"{shown}:{number}: {self._around(line)}", real, max(changed, file_trust.ctime_ms(status)))

    def _read(self, folder: int, name: str) -> tuple[bytes, int]:
        with os.fdopen(open_plain(name, folder, text=name), "rb") as file:
            data = file.read(FIND_FILE_BYTES_MAX + 1)
            status = os.fstat(file.fileno())
        self._bytes += len(data)
        if len(data) > FIND_FILE_BYTES_MAX:
            self._notices[f"of large files only the first {FIND_FILE_BYTES_MAX} bytes were looked through"] = None
        return data[:FIND_FILE_BYTES_MAX], file_trust.ctime_ms(status)

    def _around(self, line: str) -> str:
        """Return the line, or the part of a long line around the match."""
        line = line.strip()
        if len(line) <= LINE_CHARS_SHOWN_MAX:
            return line
        at = (line.lower() if self._arguments.ignore_case else line).find(self._text)
        start = max(at - LINE_CHARS_SHOWN_MAX // 2, 0)
        return f"...{line[start : start + LINE_CHARS_SHOWN_MAX]}..."

    def _is_looked_at(self, name: str) -> bool:
        self._entries += 1
        return self._entries <= FIND_ENTRIES_MAX and (self._arguments.hidden or not name.startswith("."))

    def _is_over(self) -> bool:
        if time.monotonic() > self._until_s:
            self._notices[f"not all: the search was ended after {FIND_S_MAX:g} s; begin deeper"] = None
        elif self._entries > FIND_ENTRIES_MAX:
            self._notices[f"not all: only the first {FIND_ENTRIES_MAX} names were looked at; begin deeper"] = None
        elif self._bytes > FIND_BYTES_MAX:
            self._notices[f"not all: only the first {FIND_BYTES_MAX} bytes were looked through; begin deeper"] = None
        else:
            return False
        return True
