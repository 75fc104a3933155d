"""`ls`: lists a folder."""

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

from retinue.domain.permission import Access, Permission, is_seen
from retinue.domain.tool import Effect, ToolSpec
from retinue.domain.trust import least
from retinue.store.agents import file_trust
from retinue.tools.base import Output, Scene
from retinue.tools.files.file_access import Ground
from retinue.tools.files.file_arguments import PathArguments, shown_schema
from retinue.tools.files.paths import Place, lacking, listed, locate, reach_of, seen

ENTRIES_SHOWN_MAX = 500
ENTRIES_LOOKED_AT_MAX = 100_000


class LsArguments(PathArguments, forbid_unknown_fields=True, kw_only=True):
    limit: Annotated[int, msgspec.Meta(ge=1, description=f"How many entries, at most {ENTRIES_SHOWN_MAX}")] = (
        ENTRIES_SHOWN_MAX
    )

    def default_path(self) -> str:
        return "."


class Entry(Struct, frozen=True):
    """One entry of a folder."""

    name: str
    status: os.stat_result

    def line(self) -> str:
        mode = self.status.st_mode
        name = self.name if is_seen(self.name) else seen(self.name)
        if stat.S_ISDIR(mode):
            return f"{name}/"
        if stat.S_ISREG(mode):
            return f"{name}  {self.status.st_size} bytes"
        return f"{name}  (link)" if stat.S_ISLNK(mode) else f"{name}  (no file)"


class Ls(Struct, frozen=True):
    """Lists a folder."""

    ground: Ground
    arguments: type[msgspec.Struct] = LsArguments
    spec: ToolSpec = msgspec.field(
        default_factory=lambda: ToolSpec(
            name="ls",
            description="List a folder: names in order, folders with a / behind them, files with their size.",
            parameters=shown_schema(LsArguments, required=()),
            effects=frozenset({Effect.READS_PRIVATE}),
            capabilities=frozenset({"files.read"}),
            repeatable=True,
            looks=True,
        )
    )

    def needs(self, arguments: LsArguments, scene: Scene) -> Sequence[Permission]:
        return lacking(arguments.path, scene, Access.READ, self.ground.withheld)

    async def perform(self, arguments: LsArguments, scene: Scene) -> Output:
        place = await asyncio.to_thread(locate, arguments.path, scene, Access.READ, self.ground.withheld)
        known = await self.ground.below(place.real)
        shown_max = min(arguments.limit, ENTRIES_SHOWN_MAX)
        entries, more = await asyncio.to_thread(
            partial(self._look, place, arguments.path, scene=scene, shown_max=shown_max)
        )
        since = await self.ground.below(place.real)
        # File names are content too: a name can contain instructions for an agent.
        trust = least(
            each.trust(os.path.join(place.real, entry.name), ctime_ms=file_trust.ctime_ms(entry.status))
            for entry in entries
            for each in (known, since)
        )
        lines = [entry.line() for entry in entries] or ["[the folder is empty]"]
        if more:
            lines.append(f"[{more} more; use find with a glob]")
        return Output(text="\n".join(lines), trust=trust)

    def _look(self, place: Place, text: str, *, scene: Scene, shown_max: int) -> tuple[list[Entry], int]:
        """Return the first entries by name, and the number of further entries."""
        reach = reach_of(scene, self.ground.withheld)
        with listed(place.real, text=text) as folder, os.scandir(folder) as found:
            names = [entry.name for entry in islice(found, ENTRIES_LOOKED_AT_MAX)]
            names = [name for name in names if not reach.why_withheld(os.path.join(place.real, name))]
            entries: list[Entry] = []
            for name in heapq.nsmallest(shown_max, names):
                try:
                    entries.append(Entry(name, os.stat(name, dir_fd=folder, follow_symlinks=False)))
                except FileNotFoundError:  # deleted meanwhile
                    continue
        return entries, max(len(names) - shown_max, 0)
