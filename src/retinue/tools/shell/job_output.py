"""Output of commands: stored in a log file, and read in parts."""

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

from retinue.text.redaction import ACROSS_CHARS, masked_part

Mask = Callable[[str], str]

LINE_CHARS_MAX = 4_000
TAIL_BYTES = 65_536
UTF8_BYTES_MAX = 4  # per character
AROUND_LINES = 1_000  # read on either side of a page, for a secret that crosses its edge

_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[PX^_][^\x1b]*\x1b\\|[@-Z\\^_=>]|[()][0-9A-Za-z])"
)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
_RETURN = re.compile(r"\r+\n?")


def plain(text: str) -> str:
    """Remove terminal control sequences, which could hide text from a reader."""
    return _CONTROLS.sub("", _RETURN.sub("\n", _ESCAPES.sub("", text)))


class Log:
    """Writes the output of a command to a file: the beginning, and on close also the last part."""

    def __init__(self, path: Path, *, bytes_max: int) -> None:
        self._file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb", 0)
        self._room = bytes_max
        self._last = deque[bytes]()
        self._last_bytes = 0
        self._left_out = 0

    def add(self, chunk: bytes) -> None:
        kept, beyond = chunk[: self._room], chunk[self._room :]
        if kept:
            self._file.write(kept)
            self._room -= len(kept)
        if beyond:
            self._left_out += len(beyond)
            self._last.append(beyond)
            self._last_bytes += len(beyond)
            while self._last_bytes - len(self._last[0]) >= TAIL_BYTES:
                self._last_bytes -= len(self._last.popleft())

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        if self._file.closed:
            return
        if self._left_out:
            last = b"".join(self._last)[-TAIL_BYTES:]
            missing = self._left_out - len(last)
            notice = f"\n[the log was full: {missing} bytes are missing here]\n" if missing else ""
            with contextlib.suppress(OSError):  # on a full disk, keep what was written so far
                self._file.write(notice.encode() + last)
        self._file.close()


class Page(Struct, frozen=True):
    """Lines of a log. `first_line` counts from 0. A line longer than the limit is split into
    several.
    """

    lines: tuple[str, ...]
    first: int
    total: int


class Shown(Struct, frozen=True):
    """The output of a command, possibly without its middle."""

    text: str
    cut_bytes: int = 0  # left out in the middle


def middle_cut(path: Path, *, chars_max: int, mask: Mask = str) -> Shown:
    """Return the whole output, or its beginning and its end."""
    half = max(1, chars_max // 2)
    span = half * UTF8_BYTES_MAX
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= 2 * span:
            first = last = _decoded(file.read(size))
            if len(first) <= chars_max:
                return Shown(mask(first))
            gone = len(first[half:-half].encode(errors="replace"))
        else:
            first = _decoded(file.read(span + ACROSS_CHARS))
            file.seek(max(0, size - span - ACROSS_CHARS))
            last = _decoded(file.read())
            gone = size - len(first[:half].encode(errors="replace")) - len(last[-half:].encode(errors="replace"))
    beginning, end = masked_part(first, 0, half, mask), masked_part(last, max(0, len(last) - half), len(last), mask)
    return Shown(f"{beginning}\n[cut: {gone} bytes in the middle]\n{end}", gone)


def tail(path: Path, *, chars_max: int, from_byte: int = 0, mask: Mask = str) -> tuple[str, int]:
    """Return the last part of the output, or of the output after `from_byte`, and the end position."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        start = max(from_byte, size - chars_max * UTF8_BYTES_MAX, 0)
        around = max(0, min(start, size) - ACROSS_CHARS)
        file.seek(around)
        before = _decoded(file.read(start - around))
        text = _decoded(file.read(max(0, size - start)))
    is_whole = len(text) <= chars_max and start == from_byte
    both = before + text
    shown = masked_part(both, len(both) - min(len(text), chars_max), len(both), mask)
    return (shown if is_whole else f"[cut: what came before]\n{shown}"), size


def page(path: Path, *, offset: int | None, limit: int, mask: Mask = str) -> Page:
    """Return lines from `offset` on, or the last lines without one."""
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        lines = _lines(file)
        if offset is not None:
            first = 0
            before = deque[str](maxlen=AROUND_LINES)
            for line in islice(lines, offset):
                before.append(line)
                first += 1
            shown = list(islice(lines, limit))
            after = list(islice(lines, AROUND_LINES))
            total = first + len(shown) + len(after) + sum(1 for _ in lines)
            return Page(_masked(before, shown, after, mask), first, total)
        last = deque[str](maxlen=limit + AROUND_LINES)
        total = 0
        for line in lines:
            last.append(line)
            total += 1
        shown = [*last][-limit:]
        return Page(_masked([*last][: len(last) - len(shown)], shown, (), mask), total - len(shown), total)


def _masked(before: Iterable[str], shown: Sequence[str], after: Iterable[str], mask: Mask) -> tuple[str, ...]:
    """Redact secrets in the shown lines, and keep their number. Line breaks may move around a
    secret.
    """
    lead, text, rest = "".join(before), "".join(shown), "".join(after)
    told = masked_part(lead + text + rest, len(lead), len(lead) + len(text), mask)
    if told == text or not shown:
        return tuple(line.removesuffix("\n") for line in shown)
    lines = [
        line[at : at + LINE_CHARS_MAX]
        for line in told.removesuffix("\n").split("\n")
        for at in range(0, max(1, len(line)), LINE_CHARS_MAX)
    ]
    lines[len(shown) - 1 :] = ["\n".join(lines[len(shown) - 1 :])]
    return (*lines, *([""] * (len(shown) - len(lines))))


def _lines(file: TextIO) -> Iterator[str]:
    """Yield lines with their line ends. A long line is yielded in parts, and only the last one has
    an end.
    """
    while line := file.readline(LINE_CHARS_MAX):
        text = plain(line.removesuffix("\n"))
        yield f"{text}\n" if line.endswith("\n") else text


def _decoded(data: bytes) -> str:
    return plain(data.decode(errors="replace"))
