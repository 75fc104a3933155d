"""Exact text replacements: each text to replace must occur, and only as often as intended."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from msgspec import Struct

from retinue.tools.base import ToolFailed
from retinue.tools.files.errors import EditAmbiguous, EditOldEmpty, EditsOverlap, EditTextNotFound, EditUnchanged

NEAREST_CHARS_MAX = 1_000_000  # searched for a similar line
NEAREST_LINE_CHARS_MAX = 300
NEAREST_SCORE_MIN = 0.4
PLACES_SHOWN_MAX = 10


class TextEdit(Struct, frozen=True, kw_only=True):
    """One replacement of exact text in a file."""

    old: str
    new: str
    replace_all: bool = False


class EditedText(Struct, frozen=True, kw_only=True):
    """The text after all replacements."""

    text: str
    first_lines: tuple[int, ...]  # first changed lines, as line numbers of the original text
    places: int


def apply_edits(text: str, edits: Sequence[TextEdit], *, path: str) -> EditedText | ToolFailed:
    """Apply all replacements or none. Each text to replace is searched for in the original text."""
    spans: list[tuple[int, int, str, str]] = []
    crlf = "\r\n" in text and "\n" not in text.replace("\r\n", "")
    for number, each in enumerate(edits, 1):
        old, new = (_with_crlf(each.old), _with_crlf(each.new)) if crlf else (each.old, each.new)
        which = f"edit {number} of {len(edits)}" if len(edits) > 1 else "the edit"
        if misfit := _find_edit_error(
            text, TextEdit(old=old, new=new, replace_all=each.replace_all), label=which, path=path
        ):
            return misfit
        spans += [(at, at + len(old), new, which) for at in _find_all(text, old)]
    spans.sort()
    for (_, end, _, first), (start, _, _, second) in pairwise(spans):
        if start < end:
            return EditsOverlap(path, first=first, second=second, line=_line_number(text, start))
    pieces: list[str] = []
    at = 0
    for start, end, new, _ in spans:
        pieces += [text[at:start], new]
        at = end
    lines = tuple(dict.fromkeys(_line_number(text, start) for start, *_ in spans[:PLACES_SHOWN_MAX]))
    return EditedText(text="".join([*pieces, text[at:]]), first_lines=lines, places=len(spans))


def _find_edit_error(text: str, edit: TextEdit, *, label: str, path: str) -> ToolFailed | None:
    if not edit.old:
        return EditOldEmpty(path, edit=label)
    if edit.old == edit.new:
        return EditUnchanged(path, edit=label)
    places = _find_first_matches(text, edit.old)
    if not places:
        return EditTextNotFound(path, edit=label, nearest=_find_nearest_line(text, edit.old))
    if len(places) > 1 and not edit.replace_all:
        return EditAmbiguous(path, edit=label, lines=[_line_number(text, at) for at in places])
    return None


def _with_crlf(text: str) -> str:
    """Convert line ends to CRLF, for a file that uses CRLF throughout. A model's edits usually have LF."""
    return text.replace("\r\n", "\n").replace("\n", "\r\n")


def _find_all(text: str, old: str) -> list[int]:
    found: list[int] = []
    at = text.find(old)
    while at >= 0:
        found.append(at)
        at = text.find(old, at + len(old))
    return found


def _find_first_matches(text: str, old: str) -> list[int]:
    """Return the first matches of `old`, including overlapping ones, because each of them could be meant."""
    found: list[int] = []
    at = text.find(old)
    while at >= 0 and len(found) < PLACES_SHOWN_MAX:
        found.append(at)
        at = text.find(old, at + 1)
    return found


def _line_number(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _find_nearest_line(text: str, old: str) -> tuple[int, str] | None:
    """Return the line most similar to the first line of the text that was not found, with its number."""
    wanted = next((line.strip() for line in old.split("\n") if line.strip()), "")[:NEAREST_LINE_CHARS_MAX]
    pairs = _bigrams(wanted)
    best, best_score = 0, NEAREST_SCORE_MIN
    shown = ""
    for number, line in enumerate(text[:NEAREST_CHARS_MAX].split("\n"), 1):
        plain = line.strip()[:NEAREST_LINE_CHARS_MAX]
        others = _bigrams(plain)
        score = 2 * len(pairs & others) / (len(pairs) + len(others)) if pairs and others else 0.0
        if score > best_score:
            best, best_score, shown = number, score, line[:NEAREST_LINE_CHARS_MAX]
    return (best, shown) if best else None


def _bigrams(text: str) -> set[str]:
    return {text[i : i + 2] for i in range(len(text) - 1)}
