"""Removes color codes from received IRC text, and splits outbound text into lines."""

from __future__ import annotations

import re
import unicodedata

from retinue.connectors.irc.casemapping import IrcServerFeatures
from retinue.connectors.irc.irc_message import CRLF, LINE_BYTES_MAX

CTCP = "\x01"
ACTION = "ACTION"
USER_BYTES_MAX = 12
HOST_BYTES_MAX = 63
TEXT_BYTES_MIN = 100  # Assumed as the minimum, even if the server announces limits that leave less.

# A color is a control character with up to two decimal or hexadecimal color codes.
_COLORS = re.compile(r"\x03(?:\d{1,2}(?:,\d{1,2})?)?|\x04(?:[0-9A-Fa-f]{6}(?:,[0-9A-Fa-f]{6})?)?")
_CONTROL_CHARS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_BREAKS = re.compile(r"[\r\n\x0b\x0c\x85\u2028\u2029]+")


def strip_formatting(text: str) -> str:
    """Remove color codes and other invisible control characters from text."""
    return _CONTROL_CHARS.sub("", _COLORS.sub("", text))


def parse_ctcp(text: str) -> tuple[str, str] | None:
    """Return the command and arguments of a CTCP request, or None for a normal message."""
    if not text.startswith(CTCP):
        return None
    command, _, rest = text.strip(CTCP).partition(" ")
    return command.upper(), rest


def text_bytes_max(prefix: str, features: IrcServerFeatures, *, target: str | None = None) -> int:
    """Return how many bytes of text fit into one line. The server sends the line to others with the bot's prefix.

    Before the prefix is known, its maximum length is assumed.
    """
    before = len(prefix.encode()) or features.nick_bytes_max + USER_BYTES_MAX + HOST_BYTES_MAX + len("!@")
    name = features.target_bytes_max if target is None else len(target.encode())
    return max(LINE_BYTES_MAX - len(CRLF) - len(":") - before - len(" PRIVMSG ") - name - len(" :"), TEXT_BYTES_MIN)


def split_lines(text: str, bytes_max: int) -> list[str]:
    """Split text into lines to send. No line is empty. Long lines are split at spaces."""
    lines: list[str] = []
    for line in _BREAKS.split(text):
        rest = _CONTROL_CHARS.sub("", line).rstrip()
        while len(rest.encode("utf-8", errors="replace")) > bytes_max:
            head = _cut_head(rest, bytes_max)
            lines.append(head.rstrip())
            rest = rest[len(head) :].lstrip(" ")
        if rest.strip():
            lines.append(rest)
    return lines


def _cut_head(text: str, bytes_max: int) -> str:
    raw = text.encode("utf-8", errors="replace")[:bytes_max]
    head = raw.decode("utf-8", errors="ignore")  # do not cut a character in two
    while len(head) > 1 and len(head) < len(text) and unicodedata.combining(text[len(head)]):
        head = head[:-1]  # nor separate it from its accent
    space = head.rfind(" ", 1)
    return head[: space + 1] if space > len(head) // 2 else head


def strip_address(text: str, nicks: tuple[str, ...], features: IrcServerFeatures) -> tuple[str, bool]:
    """Return the text without one of the bot's nicks at its beginning, and whether it contained one anywhere."""
    folded = features.fold(text)
    for nick in nicks:
        name = re.escape(features.fold(nick))
        if found := re.match(rf"@?{name}\s*[:,]\s+", folded):
            return text[found.end() :], True
    marks = r"[A-Za-z0-9_\-\[\]{}\\|^`]"
    mentioned = any(re.search(rf"(?<!{marks}){re.escape(features.fold(nick))}(?!{marks})", folded) for nick in nicks)
    return text, mentioned
