"""Exact text replacements: each old text must occur, and only as often as intended."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from msgspec import Struct

from retinue.tools.base import ToolFailed

NEAREST_CHARS_MAX = 1_000_000  # searched for a similar line
NEAREST_LINE_CHARS_MAX = 300
NEAREST_SCORE_MIN = 0.4
PLACES_SHOWN_MAX = 10


class Change(Struct, frozen=True, kw_only=True):
    """One replacement."""

    old: str
    new: str
    replace_all: bool = False


class Changed(Struct, frozen=True, kw_only=True):
    """The text after all replacements."""

    text: str
    lines: tuple[int, ...]  # first changed lines, as line numbers of the original text
    places: int


def change(text: str, changes: Sequence[Change], *, path: str) -> Changed | ToolFailed:
    """Apply all changes or none. Each is searched in the original text."""
    spans: list[tuple[int, int, str, str]] = []
    crlf = "\r\n" in text and "\n" not in text.replace("\r\n", "")
    for number, each in enumerate(changes, 1):
        old, new = (_with_crlf(each.old), _with_crlf(each.new)) if crlf else (each.old, each.new)
        which = f"edit {number} of {len(changes)}" if len(changes) > 1 else "the edit"
        if misfit := _misfit(text, Change(old=old, new=new, replace_all=each.replace_all), which=which, path=path):
            return misfit
        spans += [(at, at + len(old), new, which) for at in _all(text, old)]
    spans.sort()
    for (_, end, _, first), (start, _, _, second) in pairwise(spans):
        if start < end:
            return ToolFailed(
                f"{first} and {second} overlap in '{path}', and nothing was changed",
                because=f"both would change line {_line(text, start)}",
                try_this="make one edit of the two",
                code="edit.overlap",
            )
    pieces: list[str] = []
    at = 0
    for start, end, new, _ in spans:
        pieces += [text[at:start], new]
        at = end
    lines = tuple(dict.fromkeys(_line(text, start) for start, *_ in spans[:PLACES_SHOWN_MAX]))
    return Changed(text="".join([*pieces, text[at:]]), lines=lines, places=len(spans))


def _misfit(text: str, wanted: Change, *, which: str, path: str) -> ToolFailed | None:
    if not wanted.old:
        return ToolFailed(
            f"{which} does not fit '{path}', and nothing was changed",
            because="`old` is empty",
            try_this="name the text that is to be changed; for a new file use write",
            code="edit.empty",
        )
    if wanted.old == wanted.new:
        return ToolFailed(
            f"{which} of '{path}' would change nothing",
            because="`old` and `new` are the same",
            try_this="leave it out",
            code="edit.same",
        )
    places = _places(text, wanted.old)
    if not places:
        return ToolFailed(
            f"{which} does not fit '{path}', and nothing was changed",
            because="`old` is not in the file",
            try_this=_nearest(text, wanted.old),
            code="edit.missing",
        )
    if len(places) > 1 and not wanted.replace_all:
        return ToolFailed(
            f"{which} does not fit '{path}', and nothing was changed",
            because=f"`old` is there more than once: in lines {', '.join(str(_line(text, at)) for at in places)}",
            try_this="add lines around it until it fits one place, or set replace_all",
            code="edit.ambiguous",
        )
    return None


def _with_crlf(text: str) -> str:
    """Convert to CRLF, for a file that uses it throughout. Models rarely notice the difference."""
    return text.replace("\r\n", "\n").replace("\n", "\r\n")


def _all(text: str, old: str) -> list[int]:
    found: list[int] = []
    at = text.find(old)
    while at >= 0:
        found.append(at)
        at = text.find(old, at + len(old))
    return found


def _places(text: str, old: str) -> list[int]:
    """Return the first matches, including overlapping ones, because each could be meant."""
    found: list[int] = []
    at = text.find(old)
    while at >= 0 and len(found) < PLACES_SHOWN_MAX:
        found.append(at)
        at = text.find(old, at + 1)
    return found


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _nearest(text: str, old: str) -> str:
    """Return advice for a text that was not found: the line most similar to its first line."""
    again = "read the file again and copy the text exactly"
    wanted = next((line.strip() for line in old.split("\n") if line.strip()), "")[:NEAREST_LINE_CHARS_MAX]
    pairs = _pairs(wanted)
    best, best_score = 0, NEAREST_SCORE_MIN
    shown = ""
    for number, line in enumerate(text[:NEAREST_CHARS_MAX].split("\n"), 1):
        plain = line.strip()[:NEAREST_LINE_CHARS_MAX]
        others = _pairs(plain)
        score = 2 * len(pairs & others) / (len(pairs) + len(others)) if pairs and others else 0.0
        if score > best_score:
            best, best_score, shown = number, score, line[:NEAREST_LINE_CHARS_MAX]
    return f"{again}; line {best} comes nearest: {shown!r}" if best else again


def _pairs(text: str) -> set[str]:
    return {text[i : i + 2] for i in range(len(text) - 1)}
