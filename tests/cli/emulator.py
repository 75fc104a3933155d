"""A small terminal emulator that keeps the rows that scrolled off, so a test can read all output."""

from __future__ import annotations

import re
import unicodedata

_PIECE = re.compile(
    r"\x1b\[(?P<parameters>[?0-9;]*)(?P<final>[A-Za-z])|\x1b(?P<other>[^\[])|(?P<char>[^\x1b])", re.DOTALL
)


def cells_of(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1


class Screen:
    """A grid of cells. As in a real terminal, the cursor stays at the end of a full row until the next character."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns = columns
        self.rows = rows
        self.scrolled_rows: list[
            tuple[str, bool]
        ] = []  # rows that scrolled off, and whether each continues in the next one
        self.grid: list[list[str]] = [[] for _ in range(rows)]
        self.continues = [False] * rows
        self.row = self.column = 0
        self._unread = ""

    def feed(self, text: str) -> None:
        text, self._unread = self._unread + text, ""
        at = 0
        while at < len(text):
            found = _PIECE.match(text, at)
            if found is None:  # an incomplete escape sequence
                self._unread = text[at:]
                return
            at = found.end()
            if found["char"]:
                self._put(found["char"])
            elif found["final"]:
                self._control(found["parameters"], found["final"])

    @property
    def lines(self) -> list[str]:
        """All rows including those that scrolled off, with wrapped rows joined."""
        rows = [
            *self.scrolled_rows,
            *(
                ("".join(cells), continues_below)
                for cells, continues_below in zip(self.grid, self.continues, strict=True)
            ),
        ]
        lines = [""]
        for text, continues_below in rows:
            lines[-1] += text if continues_below else text.rstrip()
            if not continues_below:
                lines.append("")
        while lines and not lines[-1]:
            lines.pop()
        return lines

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def _put(self, char: str) -> None:
        match char:
            case "\n":
                self._down()
            case "\r":
                self.column = 0
            case "\b":
                self.column = max(min(self.column, self.columns - 1) - 1, 0)
            case "\t":
                self.column = min((self.column // 8 + 1) * 8, self.columns - 1)
            case _ if char < " ":
                pass
            case _:
                self._print(char)

    def _print(self, char: str) -> None:
        cells = cells_of(char)
        if cells == 0:
            if self.column:
                self._row_to(self.column)[self.column - 1] += char
            return
        if self.column + cells > self.columns:
            self.continues[self.row] = True
            self._down()
            self.column = 0
        row = self._row_to(self.column)
        row[self.column : self.column + cells] = [char, *[""] * (cells - 1)]
        self.column += cells

    def _row_to(self, column: int) -> list[str]:
        """A row, padded to the given width."""
        row = self.grid[self.row]
        row += [" "] * (column - len(row))
        return row

    def _down(self) -> None:
        if self.row < self.rows - 1:
            self.row += 1
            return
        self.scrolled_rows.append(("".join(self.grid.pop(0)), self.continues.pop(0)))
        self.grid.append([])
        self.continues.append(False)

    def _control(self, parameters: str, final: str) -> None:
        number = int(parameters) if parameters.isdigit() else None
        match final:
            case "A":
                self.row = max(0, self.row - (number or 1))
                self.column = min(self.column, self.columns - 1)
            case "C":
                self.column = min(self.columns - 1, self.column + (number or 1))
            case "D":
                self.column = max(0, min(self.column, self.columns - 1) - (number or 1))
            case "J" if not number:
                self._erase_row()
                for row in range(self.row + 1, self.rows):
                    self.grid[row], self.continues[row] = [], False
            case "K" if not number:
                self._erase_row()
            case "m" | "h" | "l":
                pass
            case _:
                raise AssertionError(f"the emulator does not know CSI {parameters}{final}")

    def _erase_row(self) -> None:
        del self.grid[self.row][self.column :]
        self.continues[self.row] = False
