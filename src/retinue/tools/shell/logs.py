"""What a command says: kept in a file to page through, and shown in part."""

from __future__ import annotations

import contextlib
import os
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TextIO

LINE_CHARS_MAX = 4_000
TAIL_BYTES = 65_536
UTF8_BYTES_MAX = 4  # of one character

_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[PX^_][^\x1b]*\x1b\\|[@-Z\\^_=>]|[()][0-9A-Za-z])"
)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
_RETURN = re.compile(r"\r+\n?")


def plain(text: str) -> str:
    """Without the colours and moves of a terminal: these are for a screen, and can hide words from a reader."""
    return _CONTROLS.sub("", _RETURN.sub("\n", _ESCAPES.sub("", text)))


class Log:
    """Takes what a command says, as it comes. The file keeps the beginning, and at the end also the last of it."""

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
            with contextlib.suppress(OSError):  # where there is no room, what is kept is what was kept so far
                self._file.write(notice.encode() + last)
        self._file.close()


@dataclass(frozen=True, slots=True)
class Page:
    """Some lines of a log. `first` counts from 0; a line longer than the bound is told as several."""

    lines: tuple[str, ...]
    first: int
    total: int


@dataclass(frozen=True, slots=True)
class Shown:
    text: str
    cut_bytes: int = 0  # missing in the middle


def middle_cut(path: Path, *, chars_max: int) -> Shown:
    """The whole, or its beginning and its end."""
    half = max(1, chars_max // 2)
    span = half * UTF8_BYTES_MAX
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= 2 * span:
            text = _decoded(file.read(size))
            if len(text) <= chars_max:
                return Shown(text)
            beginning, end = text[:half], text[-half:]
            gone = len(text[half:-half].encode(errors="replace"))
        else:
            beginning = _decoded(file.read(span))[:half]
            file.seek(size - span)
            end = _decoded(file.read(span))[-half:]
            gone = size - len(beginning.encode(errors="replace")) - len(end.encode(errors="replace"))
    return Shown(f"{beginning}\n[cut: {gone} bytes in the middle]\n{end}", gone)


def tail(path: Path, *, chars_max: int, from_byte: int = 0) -> tuple[str, int]:
    """The last of it, or of what came after `from_byte`, and where it ends."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        start = max(from_byte, size - chars_max * UTF8_BYTES_MAX, 0)
        file.seek(start)
        text = _decoded(file.read(max(0, size - start)))
    if len(text) <= chars_max and start == from_byte:
        return text, size
    return f"[cut: what came before]\n{text[-chars_max:]}", size


def page(path: Path, *, offset: int | None, limit: int) -> Page:
    """Lines from `offset` on; without one, the last."""
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        lines = _lines(file)
        if offset is not None:
            before = sum(1 for _ in islice(lines, offset))
            shown = tuple(islice(lines, limit))
            return Page(shown, before, before + len(shown) + sum(1 for _ in lines))
        last = deque[str](maxlen=limit)
        total = 0
        for line in lines:
            last.append(line)
            total += 1
        return Page(tuple(last), total - len(last), total)


def _lines(file: TextIO) -> Iterator[str]:
    while line := file.readline(LINE_CHARS_MAX):
        yield plain(line.rstrip("\n"))


def _decoded(data: bytes) -> str:
    return plain(data.decode(errors="replace"))
