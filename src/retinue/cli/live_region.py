"""Computes what to write to update the last rows of a terminal, where an answer is still growing.

Pure: strings in, strings out. Callers pass text through `escape_controls` first. So no text can move
the cursor, recolor the screen or hide part of an approval.
"""

from __future__ import annotations

import unicodedata

BEGUN_AGAIN = "[the answer begins again]"
DIM, BOLD, RED, PLAIN = "\x1b[2m", "\x1b[1m", "\x1b[31m", "\x1b[0m"

_TAB = 8
# Control characters, and characters that change the direction of the text after them.
_ACTS = [*range(0x20), 0x7F, *range(0x80, 0xA0), 0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)]
_SHOWN = {code: 0x2400 + code if code < 0x20 else 0xFFFD for code in _ACTS if code not in (0x09, 0x0A)}


def visible(text: str) -> str:
    """Replace every character that would control a terminal with a visible one."""
    return text.replace("\r\n", "\n").translate(_SHOWN)


def width_of(char: str) -> int:
    """Return the number of columns that a character takes."""
    if char < "\u0300":
        return 1
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1


def row_starts(text: str, columns: int) -> list[int]:
    """Return the offset at which each screen row of a text starts, as the terminal wraps it.

    A row that is exactly full does not start the next one: terminals wait for one more character.
    """
    starts = [0]
    begin = 0
    for line in text.split("\n"):
        if begin:
            starts.append(begin)
        if line.isascii() and "\t" not in line:
            starts.extend(range(begin + columns, begin + len(line), columns))
        else:
            starts.extend(begin + at for at in _breaks(line, columns))
        begin += len(line) + 1
    return starts


def _breaks(line: str, columns: int) -> list[int]:
    found: list[int] = []
    column = 0
    for at, char in enumerate(line):
        if char == "\t":
            column = min((column // _TAB + 1) * _TAB, columns - 1)
            continue
        width = width_of(char)
        if column + width > columns and width:
            found.append(at)
            column = 0
        column += width
    return found


def common_length(one: str, other: str) -> int:
    """Return the length of the common prefix of two texts."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class Region:
    """The bottom of the screen, which may still change: dim text, plain text, and a dim footer below.

    Text that only grows is appended. If it changes, the rows from the change on are erased and
    rewritten. If these have scrolled off the screen, all text is repeated below a line that says so.
    """

    def __init__(self, *, colours: bool) -> None:
        self._colours = colours
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
    def empty(self) -> bool:
        return not self._dim and not self._plain

    def fits(self, *, columns: int, rows: int) -> bool:
        """Whether all rows are still on the screen and can be rewritten."""
        return len(row_starts(self._whole(), max(columns, 2))) <= rows

    def grow(self, dim: str, plain: str, *, columns: int, rows: int) -> str:
        """Draw streamed text. If it is a prefix of the text on the screen, the longer text stays."""
        if _flat(self._dim, self._plain).startswith(_flat(dim, plain)):
            dim, plain = self._dim, self._plain
        return self.paint(dim, plain, "", columns=columns, rows=rows)

    def paint(self, dim: str, plain: str, footer: str, *, columns: int, rows: int) -> str:
        """Draw exactly this text."""
        if (dim, plain, footer) == (self._dim, self._plain, self._footer):
            return ""
        before, after = self._whole(), _with_footer(_flat(dim, plain), footer)
        same = common_length(before, after)
        if dim != self._dim or bool(plain) != bool(self._plain):
            same = min(same, len(self._dim), len(dim))
        if footer or self._footer:
            same = min(same, len(_flat(dim, plain)), len(_flat(self._dim, self._plain)))
        self._dim, self._plain, self._footer = dim, plain, footer
        if same == len(before):
            return self._styled(after, same)
        starts = row_starts(before, max(columns, 2))
        # Rewrite from the row of the last character to keep: if that row is full, no cursor movement reaches its end.
        row = max((row for row, start in enumerate(starts) if start < same), default=0)
        up = len(starts) - 1 - row
        if up >= rows:
            return f"\n{self._in(DIM, BEGUN_AGAIN)}\n" + self._styled(after, 0)
        return "\r" + (f"\x1b[{up}A" if up else "") + "\x1b[J" + self._styled(after, starts[row])

    def leave(self, *, columns: int, rows: int) -> str:
        """Keep the text on the screen, remove the footer and move below."""
        written = self.paint(self._dim, self._plain, "", columns=columns, rows=rows)
        whole = self._whole()
        self._dim = self._plain = ""
        return written + ("\n" if whole and not whole.endswith("\n") else "")

    def _whole(self) -> str:
        return _with_footer(_flat(self._dim, self._plain), self._footer)

    def _styled(self, whole: str, begin: int) -> str:
        """Return the text from `begin` on, with its styles."""
        dim_end = len(self._dim)
        plain_end = len(_flat(self._dim, self._plain))
        parts = (
            self._in(DIM, whole[begin:dim_end]),
            whole[max(begin, dim_end) : plain_end],
            self._in(DIM, whole[max(begin, plain_end) :]),
        )
        return "".join(parts)

    def _in(self, style: str, text: str) -> str:
        return f"{style}{text}{PLAIN}" if self._colours and text else text


def _flat(dim: str, plain: str) -> str:
    return f"{dim}\n{plain}" if dim and plain else dim + plain


def _with_footer(flat: str, footer: str) -> str:
    return f"{flat}\n{footer}" if flat and footer else flat + footer
