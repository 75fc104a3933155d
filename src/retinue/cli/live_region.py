"""Computes what to write to update the last rows of a terminal while an answer grows.

This module does no I/O: it returns the text to write. Callers pass text through `escape_controls` first, so that no
text can move the cursor, change colors or hide part of an approval.
"""

from __future__ import annotations

import unicodedata

REPEATED_TEXT = "[the answer starts again]"
DIM, BOLD, RED, RESET = "\x1b[2m", "\x1b[1m", "\x1b[31m", "\x1b[0m"

_TAB_COLUMNS = 8
# Control characters, and characters that change the direction of the text after them.
_CONTROL_CODES = [
    *range(0x20),
    0x7F,
    *range(0x80, 0xA0),
    0x061C,
    0x200E,
    0x200F,
    *range(0x2028, 0x202F),
    *range(0x2066, 0x206A),
]
_REPLACEMENTS = {code: 0x2400 + code if code < 0x20 else 0xFFFD for code in _CONTROL_CODES if code not in (0x09, 0x0A)}


def escape_controls(text: str) -> str:
    """Replace every control character with a visible symbol, so that the text cannot control a terminal."""
    return text.replace("\r\n", "\n").translate(_REPLACEMENTS)


def get_char_width(char: str) -> int:
    """Return the number of terminal columns that a character occupies."""
    if char < "\u0300":
        return 1
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1


def find_row_starts(text: str, columns: int) -> list[int]:
    """Return the offset at which each screen row of the text starts, as the terminal wraps it.

    If a row is exactly full, the next row starts only when one more character follows, as in terminals.
    """
    starts = [0]
    begin = 0
    for line in text.split("\n"):
        if begin:
            starts.append(begin)
        if line.isascii() and "\t" not in line:
            starts.extend(range(begin + columns, begin + len(line), columns))
        else:
            starts.extend(begin + at for at in _find_breaks(line, columns))
        begin += len(line) + 1
    return starts


def _find_breaks(line: str, columns: int) -> list[int]:
    found: list[int] = []
    column = 0
    for at, char in enumerate(line):
        if char == "\t":
            column = min((column // _TAB_COLUMNS + 1) * _TAB_COLUMNS, columns - 1)
            continue
        width = get_char_width(char)
        if column + width > columns and width:
            found.append(at)
            column = 0
        column += width
    return found


def common_prefix_length(one: str, other: str) -> int:
    """Return the length of the common prefix of two strings."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class LiveRegion:
    """The bottom rows of the screen that may still change: dim text, plain text, and a dim footer below.

    If the new text continues the old text, only the addition is written. If earlier text has changed, the rows from
    the change on are erased and rewritten. If these rows have scrolled off the screen, the whole text is written again
    below a line that says so.
    """

    def __init__(self, *, use_colors: bool) -> None:
        self._use_colors = use_colors
        self._dim = ""
        self._plain = ""
        self._footer = ""

    @property
    def dim(self) -> str:
        return self._dim

    @property
    def plain(self) -> str:
        return self._plain

    @property
    def is_empty(self) -> bool:
        return not self._dim and not self._plain

    def fits(self, *, columns: int, rows: int) -> bool:
        """Whether all rows are still on the screen, so that they can be rewritten."""
        return len(find_row_starts(self._full_text(), max(columns, 2))) <= rows

    def extend(self, dim: str, plain: str, *, columns: int, rows: int) -> str:
        """Draw streamed text. If it is only a prefix of the text on the screen, change nothing."""
        if _join_texts(self._dim, self._plain).startswith(_join_texts(dim, plain)):
            dim, plain = self._dim, self._plain
        return self.paint(dim, plain, "", columns=columns, rows=rows)

    def paint(self, dim: str, plain: str, footer: str, *, columns: int, rows: int) -> str:
        """Draw exactly the given text."""
        if (dim, plain, footer) == (self._dim, self._plain, self._footer):
            return ""
        before, after = self._full_text(), _append_footer(_join_texts(dim, plain), footer)
        same = common_prefix_length(before, after)
        if dim != self._dim or bool(plain) != bool(self._plain):
            same = min(same, len(self._dim), len(dim))
        if footer or self._footer:
            same = min(same, len(_join_texts(dim, plain)), len(_join_texts(self._dim, self._plain)))
        self._dim, self._plain, self._footer = dim, plain, footer
        if same == len(before):
            return self._style_from(after, same)
        starts = find_row_starts(before, max(columns, 2))
        # Rewrite from the row of the last character to keep: if that row is full, no cursor movement reaches its end.
        row = max((row for row, start in enumerate(starts) if start < same), default=0)
        up = len(starts) - 1 - row
        if up >= rows:
            return f"\n{self._apply_style(DIM, REPEATED_TEXT)}\n" + self._style_from(after, 0)
        return "\r" + (f"\x1b[{up}A" if up else "") + "\x1b[J" + self._style_from(after, starts[row])

    def finish(self, *, columns: int, rows: int) -> str:
        """End the region: its text stays on the screen, the footer is erased, and the cursor moves below the text."""
        written = self.paint(self._dim, self._plain, "", columns=columns, rows=rows)
        whole = self._full_text()
        self._dim = self._plain = ""
        return written + ("\n" if whole and not whole.endswith("\n") else "")

    def _full_text(self) -> str:
        return _append_footer(_join_texts(self._dim, self._plain), self._footer)

    def _style_from(self, text: str, begin: int) -> str:
        """Return the text from the offset `begin` on, with escape sequences for dim text."""
        dim_end = len(self._dim)
        plain_end = len(_join_texts(self._dim, self._plain))
        parts = (
            self._apply_style(DIM, text[begin:dim_end]),
            text[max(begin, dim_end) : plain_end],
            self._apply_style(DIM, text[max(begin, plain_end) :]),
        )
        return "".join(parts)

    def _apply_style(self, style: str, text: str) -> str:
        return f"{style}{text}{RESET}" if self._use_colors and text else text


def _join_texts(dim: str, plain: str) -> str:
    return f"{dim}\n{plain}" if dim and plain else dim + plain


def _append_footer(text: str, footer: str) -> str:
    return f"{text}\n{footer}" if text and footer else text + footer
