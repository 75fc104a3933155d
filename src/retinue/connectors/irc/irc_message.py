"""Parses and encodes IRC messages: tags, source, command and parameters.

The parser is tolerant, and the encoder is strict: text with a line break cannot become a second
command.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from msgspec import Struct

LINE_BYTES_MAX = 512  # with CRLF, without tags
TAGS_BYTES_MAX = 8191
RAW_LINE_BYTES_MAX = LINE_BYTES_MAX + TAGS_BYTES_MAX
PARAMS_MAX = 15  # RFC 2812; further ones are joined into the last
CRLF = b"\r\n"

_ESCAPES = {":": ";", "s": " ", "\\": "\\", "r": "\r", "n": "\n"}
_ESCAPED = {meant: f"\\{written}" for written, meant in _ESCAPES.items()}
_ESCAPE = re.compile(r"\\(.?)", re.DOTALL)
_COMMAND = re.compile(r"[A-Za-z]+|[0-9]{3}")
_BREAKS = re.compile(r"[\r\n\x00]")


class IrcMessage(Struct, frozen=True, kw_only=True):
    """One message from an IRC server."""

    command: str
    params: tuple[str, ...] = ()
    source: str = ""  # `nick!user@host` of a user, the name of a server, or empty
    tags: Mapping[str, str] = {}

    @property
    def nick(self) -> str:
        return self.source.partition("!")[0]

    @property
    def last_param(self) -> str:
        return self.params[-1] if self.params else ""

    def get_param(self, number: int) -> str:
        return self.params[number] if number < len(self.params) else ""


def decode_line(raw: bytes) -> str:
    """Decode a line as UTF-8, or else as Windows-1252, which older clients send."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("cp1252", errors="replace")


def parse_message(raw: bytes) -> IrcMessage | None:
    """Parse a line. Returns None if the line is invalid, so that the caller skips it."""
    text = decode_line(raw.rstrip(b"\r\n").replace(b"\x00", b""))
    tags: dict[str, str] = {}
    if text.startswith("@"):
        written, _, text = text[1:].partition(" ")
        tags = _parse_tags(written)
    text = text.lstrip(" ")
    source = ""
    if text.startswith(":"):
        source, _, text = text[1:].partition(" ")
    command, words = _split_params(text)
    if not _COMMAND.fullmatch(command):
        return None
    return IrcMessage(command=command.upper(), params=words, source=source, tags=tags)


def _split_params(text: str) -> tuple[str, tuple[str, ...]]:
    head, colon, last = f" {text}".partition(" :")
    command, *words = head.split() or [""]
    if len(words) >= PARAMS_MAX:
        words = [*words[: PARAMS_MAX - 1], " ".join(words[PARAMS_MAX - 1 :])]
    return command, tuple([*words, last] if colon else words)


def _parse_tags(text: str) -> dict[str, str]:
    tags: dict[str, str] = {}
    for each in text.split(";"):
        key, _, value = each.partition("=")
        if key:
            tags[key] = _unescape(value)
    return tags


def _unescape(value: str) -> str:
    return _ESCAPE.sub(lambda found: _ESCAPES.get(found[1], found[1]), value)


def encode_message(
    command: str, *params: str, trailing: str | None = None, tags: Mapping[str, str] | None = None
) -> bytes:
    """Encode one message.

    `trailing` may contain spaces and is sent after a colon; the other parameters may not contain spaces. Raises
    `ValueError` for a parameter that the server would parse differently, so the caller must sanitize it.
    """
    for word in params:
        if not word or " " in word or word.startswith(":") or _BREAKS.search(word):
            raise ValueError("a parameter before the last must not have a space, a leading colon or a line break")
    if trailing is not None and _BREAKS.search(trailing):
        raise ValueError("a line must not have a line break")
    head = " ".join([command, *params])
    body = head if trailing is None else f"{head} :{trailing}"
    line = body.encode("utf-8", errors="replace") + CRLF
    if len(line) > LINE_BYTES_MAX:
        raise ValueError(f"a line must have at most {LINE_BYTES_MAX} bytes")
    if not tags:
        return line
    written = ";".join(f"{key}={_escape(value)}" for key, value in tags.items())
    return f"@{written} ".encode() + line


def parse_pairs(tokens: Iterable[str]) -> dict[str, str]:
    """Parse tokens such as `NICKLEN=30` into names and values. A token without `=` has an empty value."""
    return {key: value for key, _, value in (word.partition("=") for word in tokens)}


def _escape(value: str) -> str:
    return "".join(_ESCAPED.get(letter, letter) for letter in value)
