"""Parses IMAP responses. The code does no I/O, and limits the depth of nested lists."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from msgspec import Struct

DEPTH_MAX = 20

ImapValue = bytes | None | list["ImapValue"]
_LITERAL_AT_END = re.compile(rb"~?\{(\d{1,10})\+?\}$")
_ATOM = re.compile(rb'[^\s()"{\x00-\x1f]+')
_CODE = re.compile(rb"\[([A-Z0-9-]+)(?: ([^\]]*))?\]", re.IGNORECASE)
_INTERNAL_DATE = "%d-%b-%Y %H:%M:%S %z"


class ImapSyntaxError(ValueError):
    """The input is not valid IMAP."""


class ImapResponse(Struct, frozen=True, kw_only=True):
    """One response of an IMAP server. `tag` is `*`, `+` or the tag of a command."""

    tag: bytes
    rest: bytes  # after the tag, up to its first literal
    values: list[ImapValue]

    @property
    def status(self) -> bytes:
        """The status OK, NO, BAD, BYE or PREAUTH. For a data response, its type, such as SEARCH."""
        first = self.values[0] if self.values else None
        return first.upper() if isinstance(first, bytes) else b""

    @property
    def code(self) -> bytes:
        """The response code in brackets, in upper case. Empty if there is none."""
        found = _CODE.search(self.rest)
        return found[1].upper() if found else b""

    @property
    def code_arguments(self) -> bytes:
        found = _CODE.search(self.rest)
        return (found[2] or b"") if found else b""

    @property
    def numbered(self) -> tuple[int, bytes]:
        """The number and type of a response such as `12 EXISTS` or `3 FETCH (...)`.

        For any other response, (0, b"").
        """
        match self.values[:2]:
            case [bytes(number), bytes(word)] if number.isdigit():
                return int(number), word.upper()
            case _:
                return 0, b""


def literal_size(line: bytes) -> int | None:
    """Return the size of the literal that this line announces, or None."""
    found = _LITERAL_AT_END.search(line)
    return int(found[1]) if found else None


def parse_response(lines: list[bytes], literals: list[bytes]) -> ImapResponse:
    """Build a response from its lines and the literals between them. Free text after a status is not parsed."""
    tag, _, rest = lines[0].partition(b" ")
    status = rest.partition(b" ")[0].upper()
    if tag == b"+" or status in (b"OK", b"NO", b"BAD", b"BYE", b"PREAUTH"):
        return ImapResponse(tag=tag, rest=rest, values=[status])
    scanner = _Scanner([rest, *lines[1:]], literals)
    return ImapResponse(tag=tag, rest=rest, values=scanner.read_values(depth=0))


class _Scanner:
    def __init__(self, lines: list[bytes], literals: list[bytes]) -> None:
        self._lines = lines
        self._literals = literals
        self._number = 0
        self._at = 0

    def read_values(self, *, depth: int) -> list[ImapValue]:
        """Parse values up to the closing parenthesis or the end of the response."""
        if depth > DEPTH_MAX:
            raise ImapSyntaxError("too many nested lists")
        found: list[ImapValue] = []
        while True:
            line = self._lines[self._number]
            if self._at >= len(line):
                if depth:
                    raise ImapSyntaxError("a list is not closed")
                return found
            char = line[self._at : self._at + 1]
            if char in b" \t":
                self._at += 1
            elif char == b"(":
                self._at += 1
                found.append(self.read_values(depth=depth + 1))
            elif char == b")":
                self._at += 1
                if depth:
                    return found
            elif char == b'"':
                found.append(self._read_quoted(line))
            elif _LITERAL_AT_END.match(line, self._at) and self._number < len(self._literals):
                found.append(self._literals[self._number])
                self._number, self._at = self._number + 1, 0
            else:
                found.append(self._read_atom(line))

    def _read_quoted(self, line: bytes) -> bytes:
        text = bytearray()
        at = self._at + 1
        while at < len(line):
            char = line[at]
            if char == 0x5C and at + 1 < len(line):  # a backslash
                text.append(line[at + 1])
                at += 2
            elif char == 0x22:
                self._at = at + 1
                return bytes(text)
            else:
                text.append(char)
                at += 1
        raise ImapSyntaxError("a quote is not closed")

    def _read_atom(self, line: bytes) -> ImapValue:
        found = _ATOM.match(line, self._at)
        if found is None:
            self._at += 1  # skip a stray character, which some servers send
            return b""
        self._at = found.end()
        return None if found[0].upper() == b"NIL" else found[0]


def get_numbers(values: list[ImapValue]) -> list[int]:
    return [int(word) for word in values if isinstance(word, bytes) and word.isdigit()]


def parse_fetch_items(values: list[ImapValue]) -> dict[bytes, ImapValue]:
    """Parse the items of a FETCH response, such as `UID 5 RFC822.SIZE 100 ...`."""
    found: dict[bytes, ImapValue] = {}
    for name, value in zip(values[::2], values[1::2], strict=False):
        if isinstance(name, bytes):
            found[name.upper().partition(b"<")[0]] = value
    return found


def parse_internal_date(value: ImapValue) -> datetime | None:
    if not isinstance(value, bytes):
        return None
    try:
        return datetime.strptime(value.decode("ascii", "replace").strip(), _INTERNAL_DATE).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
