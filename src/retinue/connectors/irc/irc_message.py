"""Parses and encodes IRC messages: tags, source, command and parameters.

The parser is tolerant and the encoder strict: no text can become a second line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from msgspec import Struct

LINE_BYTES_MAX = 512  # with CRLF, without tags
TAGS_BYTES_MAX = 8191
LONGEST_BYTES = LINE_BYTES_MAX + TAGS_BYTES_MAX
WORDS_MAX = 15  # RFC 2812; further ones are joined into the last
END = b"\r\n"

_ESCAPES = {":": ";", "s": " ", "\\": "\\", "r": "\r", "n": "\n"}
_ESCAPED = {meant: f"\\{written}" for written, meant in _ESCAPES.items()}
_ESCAPE = re.compile(r"\\(.?)", re.DOTALL)
_COMMAND = re.compile(r"[A-Za-z]+|[0-9]{3}")
_BREAKS = re.compile(r"[\r\n\x00]")


class Line(Struct, frozen=True, kw_only=True):
    """One message from the server."""

    command: str
    words: tuple[str, ...] = ()
    source: str = ""  # `nick!user@host` of a user, the name of a server, or empty
    tags: Mapping[str, str] = {}

    @property
    def nick(self) -> str:
        return self.source.partition("!")[0]

    @property
    def last(self) -> str:
        return self.words[-1] if self.words else ""

    def word(self, number: int) -> str:
        return self.words[number] if number < len(self.words) else ""


def decoded(raw: bytes) -> str:
    """Decode as UTF-8, or else as Windows-1252, which older clients send."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("cp1252", errors="replace")


def parsed(raw: bytes) -> Line | None:
    """Parse a line. Returns None if it is invalid; callers skip it."""
    text = decoded(raw.rstrip(b"\r\n").replace(b"\x00", b""))
    tags: dict[str, str] = {}
    if text.startswith("@"):
        written, _, text = text[1:].partition(" ")
        tags = _tags(written)
    text = text.lstrip(" ")
    source = ""
    if text.startswith(":"):
        source, _, text = text[1:].partition(" ")
    command, words = _words(text)
    if not _COMMAND.fullmatch(command):
        return None
    return Line(command=command.upper(), words=words, source=source, tags=tags)


def _words(text: str) -> tuple[str, tuple[str, ...]]:
    head, colon, last = f" {text}".partition(" :")
    command, *words = head.split() or [""]
    if len(words) >= WORDS_MAX:
        words = [*words[: WORDS_MAX - 1], " ".join(words[WORDS_MAX - 1 :])]
    return command, tuple([*words, last] if colon else words)


def _tags(written: str) -> dict[str, str]:
    tags: dict[str, str] = {}
    for each in written.split(";"):
        key, _, value = each.partition("=")
        if key:
            tags[key] = _meant(value)
    return tags


def _meant(value: str) -> str:
    return _ESCAPE.sub(lambda found: _ESCAPES.get(found[1], found[1]), value)


def encoded(command: str, *words: str, last: str | None = None, tags: Mapping[str, str] | None = None) -> bytes:
    """Encode one message. `trailing` may contain spaces and is sent after a colon; the other
    parameters may not.

    Raises ValueError for a parameter that the server would parse differently. The caller sanitizes
    its input.
    """
    for word in words:
        if not word or " " in word or word.startswith(":") or _BREAKS.search(word):
            raise ValueError("a word in the middle of a line has no space, colon or break")
    if last is not None and _BREAKS.search(last):
        raise ValueError("a line has no break in it")
    head = " ".join([command, *words])
    body = head if last is None else f"{head} :{last}"
    line = body.encode("utf-8", errors="replace") + END
    if len(line) > LINE_BYTES_MAX:
        raise ValueError(f"a line has at most {LINE_BYTES_MAX} bytes")
    if not tags:
        return line
    written = ";".join(f"{key}={_escaped(value)}" for key, value in tags.items())
    return f"@{written} ".encode() + line


def pairs(words: Iterable[str]) -> dict[str, str]:
    """Parse tokens such as `NICKLEN=30`. The value is empty for a token without one."""
    return {key: value for key, _, value in (word.partition("=") for word in words)}


def _escaped(value: str) -> str:
    return "".join(_ESCAPED.get(letter, letter) for letter in value)
