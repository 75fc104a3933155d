"""Stores the output of commands in log files, and reads it in parts."""

from __future__ import annotations

import contextlib
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TextIO

from msgspec import Struct

from retinue.text.redaction import OVERLAP_CHARS, redact_part

Redact = Callable[[str], str]

LINE_CHARS_MAX = 4_000
TAIL_BYTES = 65_536
UTF8_BYTES_MAX = 4  # per character
AROUND_LINES = 1_000  # read on either side of a page, for a secret that crosses its edge

_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[PX^_][^\x1b]*\x1b\\|[@-Z\\^_=>]|[()][0-9A-Za-z])"
)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
_RETURN = re.compile(r"\r+\n?")


def strip_control_sequences(text: str) -> str:
    """Remove terminal control sequences, which could hide text from a reader."""
    return _CONTROLS.sub("", _RETURN.sub("\n", _ESCAPES.sub("", text)))


class JobLog:
    """Writes the output of a command to a file of limited size.

    The file contains the beginning of the output. On close, the last part is added.
    """

    def __init__(self, path: Path, *, bytes_max: int) -> None:
        self._file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb", 0)
        self._bytes_left = bytes_max
        self._last_chunks = deque[bytes]()
        self._last_bytes = 0
        self._omitted_bytes = 0

    def add(self, chunk: bytes) -> None:
        kept, beyond = chunk[: self._bytes_left], chunk[self._bytes_left :]
        if kept:
            self._file.write(kept)
            self._bytes_left -= len(kept)
        if beyond:
            self._omitted_bytes += len(beyond)
            self._last_chunks.append(beyond)
            self._last_bytes += len(beyond)
            while self._last_bytes - len(self._last_chunks[0]) >= TAIL_BYTES:
                self._last_bytes -= len(self._last_chunks.popleft())

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        if self._file.closed:
            return
        if self._omitted_bytes:
            last = b"".join(self._last_chunks)[-TAIL_BYTES:]
            missing = self._omitted_bytes - len(last)
            notice = f"\n[the log was full: {missing} bytes are missing here]\n" if missing else ""
            with contextlib.suppress(OSError):  # on a full disk, keep what was written so far
                self._file.write(notice.encode() + last)
        self._file.close()


class LogPage(Struct, frozen=True):
    """Some lines of a log. `first_line` counts from 0. A line longer than the limit is split into several."""

    lines: tuple[str, ...]
    first_line: int
    line_count: int


class CommandOutput(Struct, frozen=True):
    """The output of a command, possibly without its middle."""

    text: str
    omitted_bytes: int = 0  # left out in the middle


def read_with_middle_cut(path: Path, *, chars_max: int, mask: Redact = str) -> CommandOutput:
    """Return the whole output of a command. If it is too long, return its beginning and its end."""
    half = max(1, chars_max // 2)
    span = half * UTF8_BYTES_MAX
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= 2 * span:
            first = last = _decode(file.read(size))
            if len(first) <= chars_max:
                return CommandOutput(mask(first))
            gone = len(first[half:-half].encode(errors="replace"))
        else:
            first = _decode(file.read(span + OVERLAP_CHARS))
            file.seek(max(0, size - span - OVERLAP_CHARS))
            last = _decode(file.read())
            gone = size - len(first[:half].encode(errors="replace")) - len(last[-half:].encode(errors="replace"))
    beginning, end = redact_part(first, 0, half, mask), redact_part(last, max(0, len(last) - half), len(last), mask)
    return CommandOutput(f"{beginning}\n[truncated: {gone} bytes in the middle]\n{end}", gone)


def read_tail(path: Path, *, chars_max: int, from_byte: int = 0, mask: Redact = str) -> tuple[str, int]:
    """Return the last part of a command's output, or of the output after `from_byte`, and the position of its end."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        start = max(from_byte, size - chars_max * UTF8_BYTES_MAX, 0)
        around = max(0, min(start, size) - OVERLAP_CHARS)
        file.seek(around)
        before = _decode(file.read(start - around))
        text = _decode(file.read(max(0, size - start)))
    is_whole = len(text) <= chars_max and start == from_byte
    both = before + text
    shown = redact_part(both, len(both) - min(len(text), chars_max), len(both), mask)
    return (shown if is_whole else f"[truncated: earlier output is not shown]\n{shown}"), size


def read_page(path: Path, *, offset: int | None, limit: int, mask: Redact = str) -> LogPage:
    """Return the lines of a log from `offset` on. Without an offset, return the last lines."""
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        lines = _read_lines(file)
        if offset is not None:
            first = 0
            before = deque[str](maxlen=AROUND_LINES)
            for line in islice(lines, offset):
                before.append(line)
                first += 1
            shown = list(islice(lines, limit))
            after = list(islice(lines, AROUND_LINES))
            total = first + len(shown) + len(after) + sum(1 for _ in lines)
            return LogPage(_redact_lines(before, shown, after, mask), first, total)
        last = deque[str](maxlen=limit + AROUND_LINES)
        total = 0
        for line in lines:
            last.append(line)
            total += 1
        shown = [*last][-limit:]
        return LogPage(_redact_lines([*last][: len(last) - len(shown)], shown, (), mask), total - len(shown), total)


def _redact_lines(before: Iterable[str], shown: Sequence[str], after: Iterable[str], redact: Redact) -> tuple[str, ...]:
    """Redact secrets in the shown lines.

    The number of lines stays the same, but near a secret, text may move to another line.
    """
    lead, text, rest = "".join(before), "".join(shown), "".join(after)
    redacted = redact_part(lead + text + rest, len(lead), len(lead) + len(text), redact)
    if redacted == text or not shown:
        return tuple(line.removesuffix("\n") for line in shown)
    lines = [
        line[at : at + LINE_CHARS_MAX]
        for line in redacted.removesuffix("\n").split("\n")
        for at in range(0, max(1, len(line)), LINE_CHARS_MAX)
    ]
    lines[len(shown) - 1 :] = ["\n".join(lines[len(shown) - 1 :])]
    return (*lines, *([""] * (len(shown) - len(lines))))


def _read_lines(file: TextIO) -> Iterator[str]:
    """Yield lines with their line ends. A long line is yielded in parts, and only the last part has a line end."""
    while line := file.readline(LINE_CHARS_MAX):
        text = strip_control_sequences(line.removesuffix("\n"))
        yield f"{text}\n" if line.endswith("\n") else text


def _decode(data: bytes) -> str:
    return strip_control_sequences(data.decode(errors="replace"))
