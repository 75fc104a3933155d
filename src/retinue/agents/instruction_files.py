"""Reads the files that go into an agent's system prompt. They are read when a conversation starts, and stored with it.

A file that is too long is shortened, with a note where text is missing. A file with untrusted
content is always left out, because the system prompt would give its text authority. The prompt then
contains only the name of the file. The agent may read the file with a tool, which marks the content
as untrusted.
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

from retinue.agents.errors import ContextFileMissing, ContextFileUnreadable, TooManyContextFiles
from retinue.agents.instructions import InstructionFile, InstructionFileState, PromptMemory
from retinue.domain.errors import RetinueError
from retinue.domain.instruction_mode import INSTRUCTION_FILES
from retinue.domain.storable_text import make_storable
from retinue.domain.trust import Trust

FILE_CHARS_MAX = 20_000
HEAD_CHARS = 15_000  # kept from a longer file, with the last `TAIL_CHARS`
TAIL_CHARS = 4_500
MEMORY_CHARS_MAX = 12_000
DAILY_FILES_MAX = 2
DAILY_FILE_CHARS_MAX = 4_000
FILE_BYTES_MAX = 1024 * 1024  # read per file
CONTEXT_FILES_MAX = 50
CONTEXT_FILES_CHARS_MAX = 120_000  # all of them together
ENTRIES_SCANNED_MAX = 10_000

BOOTSTRAP_FILE = "BOOTSTRAP.md"
# Most agents have none of these, so they are not reported as missing.
OPTIONAL_FILES = frozenset({BOOTSTRAP_FILE, "CLAUDE.md"})
MEMORY_FILE = "internal_space/MEMORY.md"
DAILY_FOLDER = "internal_space/memories"

_DAILY_FILE_NAME = re.compile(r"\d{4}-\d{2}-\d{2}\.md")


class ContentWithTrust(NamedTuple):
    """The content of a file, and how far that content is trusted."""

    data: bytes
    trust: Trust


ReadWithTrust = Callable[[str], Awaitable[ContentWithTrust | None]]
"""Reads the file at a path and returns its bytes, its trust and, for a link, the path itself. Returns None if there is
no file. Raises an error if the file is too large or is not a regular file."""


class InstructionSnapshot(Struct, frozen=True, kw_only=True):
    """The content of the instruction files, as it was when a conversation started in this workspace."""

    workspace: str = ""
    wanted: tuple[str, ...] = ()  # the patterns of `context_files` that were used
    files: tuple[InstructionFile, ...] = ()
    context_files: tuple[InstructionFile, ...] = ()
    memory: PromptMemory = PromptMemory()


async def read_snapshot(
    read_file: ReadWithTrust,
    *,
    agent_directory: Path,
    workspace: Path,
    patterns: Sequence[str],
    is_first: bool,
    redact: Callable[[str], str] = str,
) -> InstructionSnapshot:
    """Read all instruction files of an agent.

    `is_first` says whether the session is new, without any reset or summary. Only then is `BOOTSTRAP.md` read.
    """
    take_one = partial(_read_file, read_file, redact)
    roots = [os.path.realpath(root) for root in dict.fromkeys((workspace, agent_directory))]
    names = [name for name in INSTRUCTION_FILES if is_first or name != BOOTSTRAP_FILE]
    found = [await _read_first(take_one, roots, name) for name in names]
    own = os.path.realpath(agent_directory)
    days = _newest_daily_files(os.path.join(own, DAILY_FOLDER))
    return InstructionSnapshot(
        workspace=str(workspace),
        wanted=tuple(patterns),
        files=tuple(
            shorten_file(each)
            for each in found
            if each.state is not InstructionFileState.MISSING or each.name not in OPTIONAL_FILES
        ),
        context_files=await _read_context_files(take_one, os.path.realpath(workspace), patterns) if patterns else (),
        memory=PromptMemory(
            longterm=_shorten_memory_file(await take_one(own, MEMORY_FILE), MEMORY_CHARS_MAX, "memory"),
            days=tuple(
                [
                    _shorten_memory_file(await take_one(own, f"{DAILY_FOLDER}/{name}"), DAILY_FILE_CHARS_MAX, "daily")
                    for name in days
                ]
            ),
        ),
    )


async def read_instruction_file(
    read_file: ReadWithTrust, *, agent_directory: Path, workspace: Path, name: str, redact: Callable[[str], str] = str
) -> InstructionFile:
    """Return one instruction file as it is on disk now, not as it was when the conversation started."""
    roots = [os.path.realpath(root) for root in dict.fromkeys((workspace, agent_directory))]
    return shorten_file(await _read_first(partial(_read_file, read_file, redact), roots, name))


ReadNamedFile = Callable[[str, str], Awaitable[InstructionFile]]


async def _read_first(read_one: ReadNamedFile, roots: Sequence[str], name: str) -> InstructionFile:
    """Return the file from the first directory in `roots` that contains it."""
    found = [await read_one(root, name) for root in roots]
    return next((each for each in found if each.state is not InstructionFileState.MISSING), found[0])


async def _read_file(read_file: ReadWithTrust, redact: Callable[[str], str], root: str, name: str) -> InstructionFile:
    """Read one file. A link out of `root` counts as missing, because it could make any file readable."""
    path = os.path.join(root, name)
    file = InstructionFile(name=name, path=path)
    try:
        status = os.lstat(path)
    except OSError:  # most files are missing or empty; then there is no need to read them
        return _with_state(file, InstructionFileState.MISSING)
    real = os.path.realpath(path)
    if real != path and os.path.commonpath((real, root)) != root:
        return _with_state(file, InstructionFileState.MISSING)
    if not status.st_size:
        return _with_state(file, InstructionFileState.EMPTY)
    try:
        content = await read_file(path)
    except RetinueError:
        return _with_state(file, InstructionFileState.UNREADABLE)
    if content is None:
        return _with_state(file, InstructionFileState.MISSING)
    if not content.data.strip():
        return _with_state(file, InstructionFileState.EMPTY)
    if content.trust is Trust.UNTRUSTED:
        return _with_state(file, InstructionFileState.UNTRUSTED)
    try:
        text = content.data.decode()
    except UnicodeDecodeError:
        return _with_state(file, InstructionFileState.UNREADABLE)
    if "\0" in text:
        return _with_state(file, InstructionFileState.UNREADABLE)
    return InstructionFile(name=name, path=path, text=redact(make_storable(text)).strip())


def _with_state(file: InstructionFile, state: InstructionFileState) -> InstructionFile:
    return InstructionFile(name=file.name, path=file.path, state=state)


def shorten_file(file: InstructionFile, chars_max: int = FILE_CHARS_MAX) -> InstructionFile:
    """Shorten a file to its start and its end, with a mark between them."""
    if len(file.text) <= chars_max:
        return file
    head, tail = HEAD_CHARS * chars_max // FILE_CHARS_MAX, TAIL_CHARS * chars_max // FILE_CHARS_MAX
    left_out = len(file.text) - head - tail
    mark = f"\n\n[... {left_out:,} characters omitted here; the full text is in {file.path} ...]\n\n"
    text = file.text[:head] + mark + (file.text[-tail:] if tail else "")
    return InstructionFile(name=file.name, path=file.path, text=text, state=InstructionFileState.CUT)


def _shorten_memory_file(file: InstructionFile, chars_max: int, label: str) -> InstructionFile:
    """Shorten a memory file to its beginning, where the most important notes are."""
    name = os.path.basename(file.name)
    if len(file.text) <= chars_max:
        return InstructionFile(name=name, path=file.path, text=file.text, state=file.state)
    mark = f"<<truncated due to internal-space-{label}-max-chars={chars_max}>>"
    return InstructionFile(
        name=name, path=file.path, text=f"{file.text[:chars_max]}\n{mark}", state=InstructionFileState.CUT
    )


def _newest_daily_files(folder: str) -> list[str]:
    """Return the daily memory files of the most recent days, newest first."""
    try:
        with os.scandir(folder) as entries:
            names = [
                entry.name for entry in islice(entries, ENTRIES_SCANNED_MAX) if _DAILY_FILE_NAME.fullmatch(entry.name)
            ]
    except OSError:
        return []
    return sorted(names, reverse=True)[:DAILY_FILES_MAX]


# --- context files ---


async def _read_context_files(
    read_one: ReadNamedFile, root: str, patterns: Sequence[str]
) -> tuple[InstructionFile, ...]:
    """Read the files that match the patterns.

    The files are ordered by pattern and then by path, so the order never varies. A file that cannot
    be read is an error, because the agent would otherwise work without these instructions.
    """
    names = await asyncio.to_thread(_matching_names, root, patterns)
    read_files: list[InstructionFile] = []
    left = CONTEXT_FILES_CHARS_MAX
    for name in names:
        file = await read_one(root, name)
        if file.state is InstructionFileState.UNREADABLE:
            raise ContextFileUnreadable(name, bytes_max=FILE_BYTES_MAX)
        if file.state is InstructionFileState.MISSING:  # removed meanwhile, or a link that leads out of the root
            raise ContextFileMissing(name)
        file = shorten_file(file, min(FILE_CHARS_MAX, left))
        left = max(left - len(file.text), 0)
        read_files.append(file)
    return tuple(read_files)


def _matching_names(root: str, patterns: Sequence[str]) -> list[str]:
    found: dict[str, None] = {}
    for pattern in patterns:
        here = sorted(_glob(root, pattern))
        if not here:
            raise ContextFileMissing(pattern)
        found.update(dict.fromkeys(here))
        if len(found) > CONTEXT_FILES_MAX:
            raise TooManyContextFiles(files_max=CONTEXT_FILES_MAX)
    return list(found)


def _glob(root: str, pattern: str) -> list[str]:
    """Return the files below the root that match the pattern.

    Patterns that lead out of the root were already rejected by `check_context_file`.
    """
    paths = islice(Path(root).glob(pattern), ENTRIES_SCANNED_MAX)
    return [path.relative_to(root).as_posix() for path in paths if path.is_file()]
