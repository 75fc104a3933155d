"""Finds the position of each key in a TOML text. The standard parser does not report positions.

The text has already been parsed, so it is well-formed. This module scans it without validating it.
"""

from __future__ import annotations

import bisect
import re

from msgspec import Struct

from retinue.config.errors import KeyPath

KEYS_MAX = 100  # parts of a dotted key; a file with more is refused, because no setting is nested so deeply

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR = re.compile(r"[^,\]}\r\n#]*")
_ESCAPED = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_ESCAPES = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", '"': '"', "\\": "\\"}


class TextSpan(Struct, frozen=True):
    """The position of a key or a string value in the file, including its quotes."""

    path: KeyPath
    start: int
    end: int
    is_key: bool


def find_spans(text: str) -> list[TextSpan]:
    """Return the spans of all keys and string values of a well-formed TOML text, in order.

    A table header has a span for each part of its path.
    """
    scanner = _Scanner(text)
    scanner.scan()
    return scanner.spans


def find_key_lines(text: str) -> dict[KeyPath, int]:
    """Return the line number of each key path in a well-formed TOML text. Lines start at 1."""
    scanner = _Scanner(text.replace("\r\n", "\n"))
    try:
        scanner.scan()
    except (IndexError, RecursionError):  # The lines that were found so far are returned.
        pass
    return scanner.key_lines


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.key_lines: dict[KeyPath, int] = {}
        self.spans: list[TextSpan] = []
        self._newlines = [match.start() for match in re.finditer("\n", text)]
        self._counts: dict[KeyPath, int] = {}

    def scan(self) -> None:
        table: KeyPath = ()
        while self._skip(_BLANK) < len(self.text):
            if self.text.startswith("[", self.at):
                table = self._scan_header()
            else:
                self._scan_pair(table)

    def _scan_header(self) -> KeyPath:
        line = self._current_line()
        is_array = self.text.startswith("[[", self.at)
        self.at += 2 if is_array else 1
        parents: KeyPath = ()
        path: KeyPath = ()
        for key, start, end in self._scan_dotted_key():
            path = (*parents, key)
            self.spans.append(TextSpan(path, start, end, is_key=True))
            parents = self._resolve_last_table(path)
        if is_array:
            self.key_lines.setdefault(path, line)
            self._counts[path] = self._counts.get(path, 0) + 1
            path = (*path, self._counts[path] - 1)
        self.key_lines.setdefault(path, line)
        self.at += 2 if is_array else 1
        return path

    def _resolve_last_table(self, path: KeyPath) -> KeyPath:
        """Return the path of the table to which a table header refers.

        In an array of tables, this is the last table.
        """
        return (*path, self._counts[path] - 1) if path in self._counts else path

    def _scan_pair(self, table: KeyPath) -> None:
        line = self._current_line()
        path = table
        for key, start, end in self._scan_dotted_key():
            path = (*path, key)
            self.key_lines.setdefault(path, line)
            self.spans.append(TextSpan(path, start, end, is_key=True))
        self.at += 1  # skip the =
        self._skip(_SPACE)
        self._scan_value(path)

    def _scan_dotted_key(self) -> list[tuple[str, int, int]]:
        """Return each part of a dotted key as (name, start, end)."""
        keys: list[tuple[str, int, int]] = []
        while True:
            self._skip(_SPACE)
            start = self.at
            keys.append((self._scan_key(), start, self.at))
            self._skip(_SPACE)
            if not self.text.startswith(".", self.at):
                return keys
            if len(keys) > KEYS_MAX:
                raise IndexError
            self.at += 1

    def _scan_key(self) -> str:
        start = self.at
        if self.text[start] in "\"'":
            self._scan_string()
            inner = self.text[start + 1 : self.at - 1]
            return _ESCAPED.sub(_unescape, inner) if self.text[start] == '"' else inner
        self._skip(_BARE_KEY)
        return self.text[start : self.at]

    def _scan_value(self, path: KeyPath) -> None:
        match self.text[self.at]:
            case '"' | "'":
                start = self.at
                self._scan_string()
                self.spans.append(TextSpan(path, start, self.at, is_key=False))
            case "[":
                self._scan_array(path)
            case "{":
                self._scan_inline_table(path)
            case _:
                if self.at == self._skip(_SCALAR):
                    raise IndexError  # no value: this is not TOML, and the scan would never end

    def _scan_array(self, path: KeyPath) -> None:
        self.at += 1
        index = 0
        while self._peek() != "]":
            element = (*path, index)
            self.key_lines[element] = self._current_line()
            self._scan_value(element)
            index += 1
            if self._peek() == ",":
                self.at += 1
        self.at += 1

    def _scan_inline_table(self, path: KeyPath) -> None:
        self.at += 1
        while self._peek() != "}":
            self._scan_pair(path)
            if self._peek() == ",":
                self.at += 1
        self.at += 1

    def _scan_string(self) -> None:
        quote = self.text[self.at]
        mark = quote * 3 if self.text.startswith(quote * 3, self.at) else quote
        self.at += len(mark)
        while not self.text.startswith(mark, self.at):
            self.at += 2 if quote == '"' and self.text[self.at] == "\\" else 1
            if self.at >= len(self.text):
                raise IndexError
        self.at += len(mark)
        while len(mark) == 3 and self.text.startswith(quote, self.at):  # one or two quotes may precede the closing mark
            self.at += 1

    def _peek(self) -> str:
        return self.text[self._skip(_BLANK)]

    def _skip(self, what: re.Pattern[str]) -> int:
        if match := what.match(self.text, self.at):
            self.at = match.end()
        return self.at

    def _current_line(self) -> int:
        return bisect.bisect_left(self._newlines, self.at) + 1


def _unescape(match: re.Match[str]) -> str:
    digits = match[1] or match[2]
    return chr(int(digits, 16)) if digits else _ESCAPES.get(match[3], match[3])
