"""Keeps the comments above a table together with that table when a file is edited.

tomlkit treats the comments above a `[table]` as the end of the previous table. A key added to the previous
table would therefore end up below these comments. If the previous table were removed, they would be removed too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import tomlkit
from tomlkit.container import Container
from tomlkit.items import AoT, Comment, Null, Table, Whitespace

# Placeholder for the lines above a table. TOML forbids NUL characters; tomlkit expects the newline.
_PLACEHOLDER = re.compile(r"\n\0(\d+)\0")


class CommentedDocument:
    """An editable TOML document in which the comments above a table stay with that table."""

    def __init__(self, text: str) -> None:
        self.document = tomlkit.parse(text)
        self._comments_above: list[str] = []
        self._unattached = ""  # comments and blank lines since the last key, from top to bottom
        self._walk(self.document)
        is_all_comments = not self.document  # a document without keys: additions go at the end
        if is_all_comments or self.text() != text:
            self.document, self._comments_above, self._unattached = tomlkit.parse(text), [], ""

    def text(self) -> str:
        written = self.document.as_string()
        above = self._comments_for_remaining({int(mark[1]) for mark in _PLACEHOLDER.finditer(written)})
        return _PLACEHOLDER.sub(lambda mark: above[int(mark[1])], written) + above[-1]

    def _comments_for_remaining(self, remaining: set[int]) -> list[str]:
        """Return the comment lines above each table; the last item is the comments at the end of the file.

        The comment lines of a removed table are removed too. The file header, and comments followed by a blank line,
        do not belong to the table below them. If that table is removed, they move to the next remaining table.
        """
        above: list[str] = []
        carried = ""
        for number, lines in enumerate([*self._comments_above, self._unattached]):
            is_end = number == len(self._comments_above)
            if number in remaining or is_end:
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
        is_last = _has_no_key_after(body)
        for index, (_, item) in enumerate(body):
            if isinstance(item, Table):
                self._attach(item)
            elif isinstance(item, AoT):
                for table in item.body:
                    self._attach(table)
            elif isinstance(item, Comment | Whitespace) and is_last[index]:
                self._unattached += item.as_string()
                body[index] = (None, Null())

    def _attach(self, table: Table) -> None:
        if not table.is_super_table() and self._unattached:
            self._comments_above.append(self._unattached + table.trivia.indent)
            table.trivia.indent = f"\n\0{len(self._comments_above) - 1}\0"
            self._unattached = ""
        self._walk(table.value)


def _has_no_key_after(body: Sequence[tuple[object, object]]) -> list[bool]:
    """Return, for each item of a table, whether it comes after the last key of the table.

    Such an item is a comment or blank line above the next table, or at the end of the file.
    """
    found: list[bool] = []
    is_last = True
    for _, item in reversed(body):
        if not isinstance(item, Comment | Whitespace | Null):
            is_last = isinstance(item, Table | AoT)
        found.append(is_last)
    return found[::-1]
