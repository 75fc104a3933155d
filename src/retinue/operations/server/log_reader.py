"""Reads the server log backwards, newest entry first, including rotated files.

An entry is a log line and the indented lines below it. A position is the inode of a file and an offset,
so it stays valid when the log is rotated. Each request reads a limited number of bytes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

from retinue.store.core.untrusted_files import open_untrusted

LOG_DIRECTORY = "logs"
LOG_FILE = "retinue.log"
START_LOG_FILE = "start.log"  # output of a server without its own log file
LOG_FILES_MAX = 100
CHUNK_BYTES = 64 * 1024
READ_BYTES_MAX = 8 * 1024 * 1024  # per request
LINE_BYTES_MAX = 1024 * 1024
ENTRY_BYTES_MAX = 64 * 1024  # per entry; the rest is not shown

_LOG_FORMAT = re.compile(
    r"(\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}[+-]\d{4}) (debug|info|warning|error|critical) (.*)", re.S
)


class LogPosition(Struct, frozen=True):
    """A log file and an offset in it. Reading resumes with the entry before this position."""

    inode: int
    position: int


class LogEntry(Struct, frozen=True):
    """One entry of the server log. If its first line does not have the log format, `at` and `level` are empty."""

    at: str
    level: str
    text: str
    position: LogPosition


def read_newest_entries(
    data_dir: Path, *, before: LogPosition | None, limit: int, matches: Callable[[LogEntry], bool]
) -> tuple[list[LogEntry], LogPosition | None]:
    """Return the newest matching entries, newest first, and the position to resume from if there may be more."""
    found: list[LogEntry] = []
    room = READ_BYTES_MAX
    for path in _list_log_files(data_dir, before):
        try:
            file = open_untrusted(path)
        except OSError:  # rotated away, or not readable
            continue
        with file:
            inode, end = os.fstat(file.fileno()).st_ino, os.fstat(file.fileno()).st_size
            if before is not None and before.inode == inode:
                end = min(end, before.position)
            for start, raw in _read_entries(file, end):
                room -= len(raw)
                entry = _parse_entry(raw, LogPosition(inode, start))
                if matches(entry):
                    found.append(entry)
                if len(found) == limit or room <= 0:
                    return found, entry.position
    return found, None


def _list_log_files(data_dir: Path, before: LogPosition | None) -> list[Path]:
    """Return the log and its rotated files, newest first, starting with the file of `before`."""
    folder = data_dir / LOG_DIRECTORY
    own = folder / LOG_FILE
    paths = [own, *(folder / f"{LOG_FILE}.{number}" for number in range(1, LOG_FILES_MAX))]
    there = [path for path in paths if path.exists()] or [folder / START_LOG_FILE]
    if before is None:
        return there
    inodes = [_read_inode(path) for path in there]
    return there[inodes.index(before.inode) :] if before.inode in inodes else []


def _read_inode(path: Path) -> int:
    try:
        return path.stat(follow_symlinks=False).st_ino
    except OSError:
        return -1


def _read_entries(file: BinaryIO, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield the log entries that end before the offset `end`, last entry first, each with its start offset."""
    below: list[bytes] = []  # indented lines whose first line is read later
    size = 0
    for start, line in _read_lines(file, end):
        size += len(line)
        if line[:1] in (b" ", b"\t", b"\n") and start > 0:
            if size <= ENTRY_BYTES_MAX:
                below.append(line)
            continue
        yield start, b"".join([line[:ENTRY_BYTES_MAX], *reversed(below)])
        below, size = [], 0


def _read_lines(file: BinaryIO, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield whole lines of a log file, last line first, each with its start offset."""
    rest, position = b"", end
    while position > 0:
        begin = max(0, position - CHUNK_BYTES)
        file.seek(begin)
        data = file.read(position - begin) + rest
        lines = data.splitlines(keepends=True)
        rest = lines.pop(0) if begin > 0 and lines else b""
        at = begin + len(data)
        for line in reversed(lines):
            at -= len(line)
            yield at, line
        position = begin
        if len(rest) > LINE_BYTES_MAX:  # not the server's log format
            return


def _parse_entry(raw: bytes, position: LogPosition) -> LogEntry:
    text = raw.decode(errors="replace").rstrip("\n")
    match = _LOG_FORMAT.fullmatch(text)
    return LogEntry(match[1], match[2], match[3], position) if match is not None else LogEntry("", "", text, position)
