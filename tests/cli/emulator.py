"""As much of a terminal as our command needs: it keeps what scrolled off, so a test can read everything ever shown."""

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
    """A grid of cells with a cursor that, like a real one, waits at the end of a full row for one more character."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns = columns
        self.rows = rows
        self.gone: list[tuple[str, bool]] = []  # rows that scrolled off, and whether each goes on in the next one
        self.grid: list[list[str]] = [[] for _ in range(rows)]
        self.continues = [False] * rows
        self.row = self.column = 0
        self._unread = ""

    def feed(self, text: str) -> None:
        text, self._unread = self._unread + text, ""
        at = 0
        while at < len(text):
            found = _PIECE.match(text, at)
            if found is None:  # the beginning of something
                self._unread = text[at:]
                return
            at = found.end()
            if found["char"]:
                self._put(found["char"])
            elif found["final"]:
                self._control(found["parameters"], found["final"])

    @property
    def lines(self) -> list[str]:
        """All that can be read, scrolled up as far as it goes, with wrapped rows joined again."""
        rows = [
            *self.gone,
            *(("".join(cells), goes_on) for cells, goes_on in zip(self.grid, self.continues, strict=True)),
        ]
        lines = [""]
        for text, goes_on in rows:
            lines[-1] += text if goes_on else text.rstrip()
            if not goes_on:
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
        """This row, as long as that."""
        row = self.grid[self.row]
        row += [" "] * (column - len(row))
        return row

    def _down(self) -> None:
        if self.row < self.rows - 1:
            self.row += 1
            return
        self.gone.append(("".join(self.grid.pop(0)), self.continues.pop(0)))
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
                raise AssertionError(f"this terminal does not know CSI {parameters}{final}")

    def _erase_row(self) -> None:
        del self.grid[self.row][self.column :]
        self.continues[self.row] = False
