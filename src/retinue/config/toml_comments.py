"""Ties the comments above a table to that table.

The library that keeps our comments counts those above a `[table]` to the table before it. A key added there would land
below a comment that speaks of something else, and taking that table out would take the comment along.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import tomlkit
from tomlkit.container import Container
from tomlkit.items import AoT, Comment, Null, Table, Whitespace

# Stands for the lines above a table. TOML has no such characters, and the library looks for a newline there.
_MARK = re.compile(r"\n\0(\d+)\0")


class Commented:
    """A document to change, whose text has every comment above the table that it stood above."""

    def __init__(self, text: str) -> None:
        self.document = tomlkit.parse(text)
        self._above: list[str] = []
        self._loose = ""  # comments and blank lines since the last key, on our way from top to bottom
        self._walk(self.document)
        is_all_comments = not self.document  # then there is no key to stand below, and what is added comes last
        if is_all_comments or self.text() != text:
            self.document, self._above, self._loose = tomlkit.parse(text), [], ""

    def text(self) -> str:
        written = self.document.as_string()
        above = self._above_those_left({int(mark[1]) for mark in _MARK.finditer(written)})
        return _MARK.sub(lambda mark: above[int(mark[1])], written) + above[-1]

    def _above_those_left(self, left: set[int]) -> list[str]:
        """What stands above each table, and last what stands at the end. A table that was taken out leaves to the next
        one what was not its own: the head of the file, and comments with a blank line below them.
        """
        above: list[str] = []
        carried = ""
        for number, lines in enumerate([*self._above, self._loose]):
            is_end = number == len(self._above)
            if number in left or is_end:
                apart = "\n" if carried and not is_end and not lines.startswith("\n") else ""
                above.append(carried + apart + lines)
                carried = ""
            else:
                above.append("")
                own = lines.rfind("\n\n") + 2 if number or "\n\n" in lines.strip("\n") else len(lines)
                carried += lines[:own].rstrip("\n") + "\n" if "#" in lines[:own] else ""
        return above

    def _walk(self, container: Container) -> None:
        body = container.body
        is_last = _without_key_after(body)
        for index, (_, item) in enumerate(body):
            if isinstance(item, Table):
                self._tie(item)
            elif isinstance(item, AoT):
                for table in item.body:
                    self._tie(table)
            elif isinstance(item, Comment | Whitespace) and is_last[index]:
                self._loose += item.as_string()
                body[index] = (None, Null())

    def _tie(self, table: Table) -> None:
        if not table.is_super_table() and self._loose:
            self._above.append(self._loose + table.trivia.indent)
            table.trivia.indent = f"\n\0{len(self._above) - 1}\0"
            self._loose = ""
        self._walk(table.value)


def _without_key_after(body: Sequence[tuple[object, object]]) -> list[bool]:
    """For each item, whether no key of this table comes after it: it stands above the next table, or at the end."""
    found: list[bool] = []
    is_last = True
    for _, item in reversed(body):
        if not isinstance(item, Comment | Whitespace | Null):
            is_last = isinstance(item, Table | AoT)
        found.append(is_last)
    return found[::-1]
