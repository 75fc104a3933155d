"""Splits text that is longer than a platform's message limit, at places where a reader would pause.

Lengths are counted as the platform counts them. Text is cut between paragraphs or, if that is not
possible, between lines, sentences or words. A word is cut only if it is longer than a message. If a
code block is cut, its fence is closed before the cut and opened again after it.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator

from msgspec import Struct

from retinue.domain.delivery_part import LengthUnit
from retinue.domain.reply_delivery import BlockBreak, ChunkMode

LIMIT_MIN = 8  # room for a fence and a character of four bytes; no platform has a lower limit
ENTITY_CHARS_MAX = 32
FENCE_SHARE_MAX = 4  # an opening line longer than this fraction (1/n) of a message is not repeated in the next one
GRAPHEME_CHARS_MAX = 64  # longest character with all its combining marks; longer ones are not natural text

_FENCE = re.compile(r"^ {0,3}(`{3,}(?=[^`\n]*$)|~{3,})([^\n]*)$", re.MULTILINE)
_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,30});")
_PARAGRAPH = re.compile(r"\n[ \t]*\r?\n")
_SENTENCE = re.compile("[.!?\u2026][\"'\u00bb\u201d\u2019)\\]]*(?=\\s)|[\u3002\uff01\uff1f]")  # the last three: CJK
_GAP = re.compile(r"\s*\n|[ \t]+")


class _Fence(Struct, frozen=True, kw_only=True):
    """A fenced code block in the text: the offsets of its lines, and its opening and closing lines."""

    start: int
    body: int
    closing: int  # where its closing line begins; the end of the text if there is none
    end: int
    opener: str
    closer: str


def measure_length(text: str, unit: LengthUnit) -> int:
    """Return the length of the text as the platform counts it."""
    match unit:
        case LengthUnit.CHARACTERS:
            return len(text)
        case LengthUnit.UTF16:
            return len(text) if text.isascii() else len(text) + sum(char > "\uffff" for char in text)
        case LengthUnit.BYTES:
            return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def split_text(
    text: str,
    limit: int,
    *,
    unit: LengthUnit = LengthUnit.CHARACTERS,
    mode: ChunkMode = ChunkMode.LENGTH,
    preferred_break: BlockBreak = BlockBreak.PARAGRAPH,
    min_length: int | None = None,
) -> list[str]:
    """Split text into pieces that are at most `limit` long, in `unit`.

    A paragraph, line or sentence break is used only if the piece before it is at least `min_length`
    long (default: half of the limit). Returns no pieces for blank text.
    """
    if limit < LIMIT_MIN:
        raise ValueError(f"no text fits into {limit} {unit.value}")
    if not text.strip():
        return []
    parts = _split_paragraphs(text) if mode is ChunkMode.NEWLINE else (text,)
    return [piece for part in parts for piece in _TextSplitter(part, limit, unit, preferred_break, min_length).pieces()]


def truncate_text(text: str, limit: int, *, unit: LengthUnit) -> str:
    """Return the text if it fits the limit. Otherwise return its beginning with an ellipsis, at most `limit` long."""
    if measure_length(text, unit) <= limit:
        return text
    end = _find_fitting_end(text, 0, limit - measure_length("…", unit), unit)
    return text[: _find_safe_cut(text, 0, end)].rstrip() + "…"


def _split_paragraphs(text: str) -> Iterator[str]:
    """Yield each paragraph of the text. A code block is one paragraph, even with blank lines in it."""
    fences, start = _find_fences(text), 0
    for found in _PARAGRAPH.finditer(text):
        if found.start() < start or _fence_at(fences, found.start()) is not None:
            continue
        if paragraph := text[start : found.start()].strip("\n"):
            yield paragraph
        start = found.end()
    if rest := text[start:].strip("\n"):
        yield rest


def _find_fences(text: str) -> list[_Fence]:
    found: list[_Fence] = []
    opened: re.Match[str] | None = None
    for line in _FENCE.finditer(text):
        if opened is None:
            opened = line
        elif line[1][0] == opened[1][0] and len(line[1]) >= len(opened[1]) and not line[2].strip():
            found.append(_build_fence(text, opened, line.start(), line.end()))
            opened = None
    if opened is not None:
        found.append(_build_fence(text, opened, len(text), len(text)))
    return found


def _build_fence(text: str, opened: re.Match[str], closing: int, end: int) -> _Fence:
    return _Fence(
        start=opened.start(),
        body=min(opened.end() + 1, len(text)),
        closing=closing,
        end=end,
        opener=opened[0].strip(),
        closer=opened[1],
    )


def _fence_at(fences: list[_Fence], at: int) -> _Fence | None:
    """Return the code block that a cut at this offset would split, or None."""
    index = bisect_right(fences, at, key=lambda fence: fence.start) - 1
    fence = fences[index] if index >= 0 else None
    return fence if fence is not None and fence.start < at < fence.end else None


class _TextSplitter:
    """Splits one text, from start to end."""

    def __init__(
        self, text: str, limit: int, unit: LengthUnit, preferred_break: BlockBreak, min_length: int | None
    ) -> None:
        self._text = text
        self._limit = limit
        self._unit = unit
        self._preferred_break = preferred_break
        self._min_length = limit // 2 if min_length is None else min(min_length, limit)
        # A long opening line would fill each message that repeats it. Such code is split like other text.
        bound = limit // FENCE_SHARE_MAX
        fences = _find_fences(text) if "```" in text or "~~~" in text else []
        self._fences = [each for each in fences if measure_length(each.opener + each.closer, unit) + 2 <= bound]

    def pieces(self) -> Iterator[str]:
        text, start = self._text, 0
        inside: _Fence | None = None  # the code block that was cut and that continues in this piece
        while start < len(text):
            head = f"{inside.opener}\n" if inside is not None else ""
            room = self._limit - measure_length(head, self._unit)
            end = _find_fitting_end(text, start, room, self._unit)
            if end >= len(text) and _fence_at(self._fences, end) is None:
                if (rest := text[start:]).strip():
                    yield head + self._close_fence(rest, inside, room)
                return
            end, fence = self._find_cut(start, room)
            piece, start = self._cut_piece(start, end, fence)
            if piece.strip():
                yield head + piece + (f"\n{fence.closer}" if fence is not None else "")
            inside = fence if fence is not None and start < fence.closing else None

    def _close_fence(self, rest: str, inside: _Fence | None, room: int) -> str:
        """Return the last piece of the text.

        If the piece continues a code block that the text never closes, a closing line is added if
        there is room for it.
        """
        if inside is None or inside.closing < len(self._text):
            return rest
        whole = f"{rest.rstrip()}\n{inside.closer}"
        return whole if measure_length(whole, self._unit) <= room else rest

    def _cut_piece(self, start: int, end: int, fence: _Fence | None) -> tuple[str, int]:
        """Return a piece, and the offset at which the next piece begins.

        Whitespace at a cut is dropped, except the indentation of code.
        """
        text = self._text
        if fence is None:
            gap = _GAP.match(text, end)
            return text[start:end].rstrip(), gap.end() if gap else end
        piece = text[start:end].removesuffix("\n")
        following = end + 1 if text.startswith("\n", end) and not text.startswith("\n", end - 1) else end
        if following >= fence.closing:  # all of the code is out, so its own closing line is not needed
            gap = _GAP.match(text, fence.end)
            following = gap.end() if gap else fence.end
        return piece, following

    def _find_cut(self, start: int, room: int) -> tuple[int, _Fence | None]:
        """Return the offset at which to cut, and the code block that the cut splits, if any."""
        end = _find_fitting_end(self._text, start, room, self._unit)
        fence = _fence_at(self._fences, end)
        if fence is None:
            end = self._find_break(start, end)
            fence = _fence_at(self._fences, end)
        if fence is None:
            return end, None
        if end <= fence.body or fence.start > start + self._min_piece_length(start, end):
            if fence.start > start and self._text[start : fence.start].strip():
                return fence.start, None  # before the code, not in its first line
        end = _find_fitting_end(self._text, start, room - measure_length(f"\n{fence.closer}", self._unit), self._unit)
        if end <= fence.body:  # no room for any of the code in this piece
            return (fence.start, None) if fence.start > start else (self._cut_hard(start, end), None)
        end = min(end, max(fence.closing - 1, fence.body))
        return self._find_code_break(max(start, fence.body), end), fence

    def _min_piece_length(self, start: int, end: int) -> int:
        return min(self._min_length, (end - start) // 2) if self._min_length >= end - start else self._min_length

    def _find_break(self, start: int, end: int) -> int:
        """Return the last break before `end` that leaves a long enough piece.

        Tries the preferred kind of break first, then finer kinds.
        """
        text, floor = self._text, start + self._min_piece_length(start, end)
        kinds = list(BlockBreak)
        for kind in kinds[kinds.index(self._preferred_break) :]:
            if (at := self._find_last_break(kind, floor, end)) > floor:
                return at
        at = max(text.rfind(" ", start + 1, end + 1), text.rfind("\n", start + 1, end + 1))
        return at if at > start and text[start:at].strip() else self._cut_hard(start, end)

    def _find_last_break(self, kind: BlockBreak, floor: int, end: int) -> int:
        text = self._text
        match kind:
            case BlockBreak.PARAGRAPH:
                return max(
                    (each.start() for each in _PARAGRAPH.finditer(text, floor, min(end + 2, len(text)))), default=-1
                )
            case BlockBreak.NEWLINE:
                return text.rfind("\n", floor, end + 1)
            case BlockBreak.SENTENCE:
                found = (each.end() for each in _SENTENCE.finditer(text, floor, min(end + 1, len(text))))
                return max((at for at in found if at <= end), default=-1)

    def _find_code_break(self, start: int, end: int) -> int:
        """Return the end of the last line of code that fits. A line is cut only if it is longer than a message."""
        at = self._text.rfind("\n", start + 1, end + 1)
        return at if at > start else self._cut_hard(start, end)

    def _cut_hard(self, start: int, end: int) -> int:
        return _find_safe_cut(self._text, start, end)


def _find_fitting_end(text: str, start: int, room: int, unit: LengthUnit) -> int:
    """Return the end of the longest piece from `start` that fits into `room`. It has at least one character."""
    end = min(start + max(room, 1), len(text))
    if unit is LengthUnit.CHARACTERS or text[start:end].isascii():
        return end
    used = 0
    for at in range(start, end):
        used += _char_width(text[at], unit)
        if used > room:
            return max(at, start + 1)
    return end


def _char_width(char: str, unit: LengthUnit) -> int:
    if unit is LengthUnit.UTF16:
        return 2 if char > "\uffff" else 1
    return 1 if char < "\x80" else 2 if char < "\u0800" else 3 if char <= "\uffff" else 4


def _find_safe_cut(text: str, start: int, end: int) -> int:
    """Return the last offset up to `end` at which a cut splits no grapheme cluster and no HTML entity.

    A grapheme cluster is what a reader sees as one character, such as a letter with accents, an
    emoji or a flag.
    """
    at = end
    while at > start and end - at < GRAPHEME_CHARS_MAX and _splits_grapheme(text, at):
        at -= 1
    if start < at < len(text):
        for entity in _ENTITY.finditer(text, max(start, at - ENTITY_CHARS_MAX), min(at + ENTITY_CHARS_MAX, len(text))):
            if start < entity.start() < at < entity.end():
                return entity.start()
    if at > start and end - at < GRAPHEME_CHARS_MAX:
        return at
    return end - 1 if end - 1 > start and _is_surrogate_pair(text, end) else end


def _is_surrogate_pair(text: str, at: int) -> bool:
    return 0 < at < len(text) and "\ud800" <= text[at - 1] <= "\udbff" and "\udc00" <= text[at] <= "\udfff"


def _splits_grapheme(text: str, at: int) -> bool:
    """Whether a cut at this offset would split a grapheme cluster."""
    if not 0 < at < len(text):
        return False
    left, right = text[at - 1], text[at]
    if right < "\u0300" and left < "\u0300":
        return left == "\r" and right == "\n"
    if (
        _is_surrogate_pair(text, at)
        or left == "\u200d"
        or right == "\u200d"
        or unicodedata.category(right) in ("Mn", "Me", "Mc")
    ):
        return True
    if "\U0001f3fb" <= right <= "\U0001f3ff" or "\U000e0020" <= right <= "\U000e007f" or "\u1160" <= right <= "\u11ff":
        return True
    return (
        _is_regional_indicator(left) and _is_regional_indicator(right) and _count_indicators_before(text, at) % 2 == 1
    )


def _is_regional_indicator(char: str) -> bool:
    return "\U0001f1e6" <= char <= "\U0001f1ff"


def _count_indicators_before(text: str, at: int) -> int:
    first = at
    while first > 0 and at - first < GRAPHEME_CHARS_MAX and _is_regional_indicator(text[first - 1]):
        first -= 1
    return at - first
