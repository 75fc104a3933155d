"""Files that go into an agent's system prompt: read when a conversation starts, and stored with it.

A file that is too long is shortened, with a visible mark. A file with untrusted content is left out
whatever its name: in the system prompt, its text would gain an authority that it must not have. The
prompt names the file. The agent may read it with a tool, which returns it with its trust.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from retinue.agents.instructions import FileState, FileTold, Memory
from retinue.domain.errors import Invalid, RetinueError
from retinue.domain.instruction_mode import INSTRUCTION_FILES
from retinue.domain.storable_text import storable
from retinue.domain.trust import Trust

FILE_CHARS_MAX = 20_000
HEAD_CHARS = 15_000  # kept from a longer file, with the last `TAIL_CHARS`
TAIL_CHARS = 4_500
MEMORY_CHARS_MAX = 12_000
DAYS_MAX = 2
DAY_CHARS_MAX = 4_000
FILE_BYTES_MAX = 1024 * 1024  # read per file
CONTEXT_FILES_MAX = 50
CONTEXT_CHARS_MAX = 120_000  # all of them together
ENTRIES_LOOKED_AT_MAX = 10_000

FIRST_CONVERSATION = "BOOTSTRAP.md"
# Most agents have none of these, so they are not reported as missing.
NOT_MISSED = frozenset({FIRST_CONVERSATION, "CLAUDE.md"})
MEMORY = "internal_space/MEMORY.md"
DAYS = "internal_space/memories"

_DAY = re.compile(r"\d{4}-\d{2}-\d{2}\.md")


class Looked(NamedTuple):
    """The content of a file, and its trust."""

    data: bytes
    trust: Trust


Look = Callable[[str], Awaitable[Looked | None]]
"""The bytes at a path, and how far they can be believed, with the path itself where it is a link; None where there is
no file. Raises where it cannot be read as one: it is too large, or something else than a file."""


class Snapshot(Struct, frozen=True, kw_only=True):
    """The content of the files when a conversation started. Another workspace has another snapshot."""

    workspace: str = ""
    wanted: tuple[str, ...] = ()  # the patterns of `context_files` that were used
    files: tuple[FileTold, ...] = ()
    context_files: tuple[FileTold, ...] = ()
    memory: Memory = Memory()


async def take(
    look: Look, *, home: Path, workspace: Path, wanted: Sequence[str], first: bool, mask: Callable[[str], str] = str
) -> Snapshot:
    """Read all files. `is_first`: this is the first conversation of its session, before any reset or summary."""
    take_one = partial(_take, look, mask)
    roots = [os.path.realpath(root) for root in dict.fromkeys((workspace, home))]
    names = [name for name in INSTRUCTION_FILES if first or name != FIRST_CONVERSATION]
    found = [await _first_of(take_one, roots, name) for name in names]
    own = os.path.realpath(home)
    days = _newest_days(os.path.join(own, DAYS))
    return Snapshot(
        workspace=str(workspace),
        wanted=tuple(wanted),
        files=tuple(cut(each) for each in found if each.state is not FileState.MISSING or each.name not in NOT_MISSED),
        context_files=await _context_files(take_one, os.path.realpath(workspace), wanted) if wanted else (),
        memory=Memory(
            longterm=_cut_memory(await take_one(own, MEMORY), MEMORY_CHARS_MAX, "memory"),
            days=tuple([_cut_memory(await take_one(own, f"{DAYS}/{name}"), DAY_CHARS_MAX, "daily") for name in days]),
        ),
    )


async def take_now(look: Look, *, home: Path, workspace: Path, name: str, mask: Callable[[str], str] = str) -> FileTold:
    """Read one instruction file as it is now, without waiting for the next conversation."""
    roots = [os.path.realpath(root) for root in dict.fromkeys((workspace, home))]
    return cut(await _first_of(partial(_take, look, mask), roots, name))


Take = Callable[[str, str], Awaitable[FileTold]]


async def _first_of(take_one: Take, roots: Sequence[str], name: str) -> FileTold:
    """Return the file of the workspace, or else that of the agent directory."""
    told = [await take_one(root, name) for root in roots]
    return next((each for each in told if each.state is not FileState.MISSING), told[0])


async def _take(look: Look, mask: Callable[[str], str], root: str, name: str) -> FileTold:
    """Read one file.

    A link that leads out of its root counts as missing: it could show any file of the machine.
    """
    path = os.path.join(root, name)
    told = FileTold(name=name, path=path)
    try:
        status = os.lstat(path)
    except OSError:  # most files are missing or empty; then there is no need to read them
        return _as(told, FileState.MISSING)
    real = os.path.realpath(path)
    if real != path and os.path.commonpath((real, root)) != root:
        return _as(told, FileState.MISSING)
    if not status.st_size:
        return _as(told, FileState.EMPTY)
    try:
        looked = await look(path)
    except RetinueError:
        return _as(told, FileState.UNREADABLE)
    if looked is None:
        return _as(told, FileState.MISSING)
    if not looked.data.strip():
        return _as(told, FileState.EMPTY)
    if looked.trust is Trust.UNTRUSTED:
        return _as(told, FileState.UNTRUSTED)
    try:
        text = looked.data.decode()
    except UnicodeDecodeError:
        return _as(told, FileState.UNREADABLE)
    if "\0" in text:
        return _as(told, FileState.UNREADABLE)
    return FileTold(name=name, path=path, text=mask(storable(text)).strip())


def _as(told: FileTold, state: FileState) -> FileTold:
    return FileTold(name=told.name, path=told.path, state=state)


def cut(file: FileTold, chars_max: int = FILE_CHARS_MAX) -> FileTold:
    """Shorten a file to its start and its end, with a mark between them."""
    if len(file.text) <= chars_max:
        return file
    head, tail = HEAD_CHARS * chars_max // FILE_CHARS_MAX, TAIL_CHARS * chars_max // FILE_CHARS_MAX
    left_out = len(file.text) - head - tail
    mark = f"\n\n[... {left_out:,} characters left out here; all of it is in {file.path} ...]\n\n"
    text = file.text[:head] + mark + (file.text[-tail:] if tail else "")
    return FileTold(name=file.name, path=file.path, text=text, state=FileState.CUT)


def _cut_memory(file: FileTold, chars_max: int, what: str) -> FileTold:
    """Keep only the start of a file: the most important notes come first."""
    name = os.path.basename(file.name)
    if len(file.text) <= chars_max:
        return FileTold(name=name, path=file.path, text=file.text, state=file.state)
    mark = f"<<truncated due to internal-space-{what}-max-chars={chars_max}>>"
    return FileTold(name=name, path=file.path, text=f"{file.text[:chars_max]}\n{mark}", state=FileState.CUT)


def _newest_days(folder: str) -> list[str]:
    """Return the daily files of the newest days, newest first."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in islice(entries, ENTRIES_LOOKED_AT_MAX) if _DAY.fullmatch(entry.name)]
    except OSError:
        return []
    return sorted(names, reverse=True)[:DAYS_MAX]


# --- context files ---


async def _context_files(take_one: Take, root: str, wanted: Sequence[str]) -> tuple[FileTold, ...]:
    """Read the files that match the patterns, by pattern and then by path, so that their order is fixed.

    A file that the owner has named and that cannot be read is an error. Without it, the agent would
    silently do something else than intended.
    """
    names = await asyncio.to_thread(_matching, root, wanted)
    told: list[FileTold] = []
    left = CONTEXT_CHARS_MAX
    for name in names:
        file = await take_one(root, name)
        if file.state is FileState.UNREADABLE:
            raise Invalid(
                f"the context file '{name}' cannot be told",
                because=f"it is no UTF-8 text, or larger than {FILE_BYTES_MAX:,} bytes",
                try_this="take it out of `context_files`, or make a text of it",
                code="instructions.context-file-unreadable",
            )
        if file.state is FileState.MISSING:  # removed meanwhile, or a link that leads out of the root
            raise _missing(name)
        file = cut(file, min(FILE_CHARS_MAX, left))
        left = max(left - len(file.text), 0)
        told.append(file)
    return tuple(told)


def _matching(root: str, wanted: Sequence[str]) -> list[str]:
    found: dict[str, None] = {}
    for pattern in wanted:
        here = sorted(_glob(root, pattern))
        if not here:
            raise _missing(pattern)
        found.update(dict.fromkeys(here))
        if len(found) > CONTEXT_FILES_MAX:
            raise Invalid(
                "too many context files",
                because=f"an agent is told {CONTEXT_FILES_MAX} at most",
                try_this="name fewer in `context_files`, or make one of several",
                code="instructions.context-files-too-many",
            )
    return list(found)


def _glob(root: str, pattern: str) -> list[str]:
    """Return the files below the root that match. `context_file` has made sure that a pattern stays below it."""
    paths = islice(Path(root).glob(pattern), ENTRIES_LOOKED_AT_MAX)
    return [path.relative_to(root).as_posix() for path in paths if path.is_file()]


def _missing(name: str) -> Invalid:
    return Invalid(
        f"the context file '{name}' is not there",
        because="`context_files` of the agent names it, and its workspace has no such file",
        try_this="put it there, or take it out of `context_files`",
        code="instructions.context-file-missing",
    )
