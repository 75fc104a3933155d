"""The words of an IRC message: without colours on the way in, cut to lines on the way out."""

from __future__ import annotations

import re
import unicodedata

from retinue.connectors.irc.casemapping import Manners
from retinue.connectors.irc.irc_message import END, LINE_BYTES_MAX

CTCP = "\x01"
ACTION = "ACTION"
USER_BYTES_MAX = 12
HOST_BYTES_MAX = 63
TEXT_BYTES_MIN = 100  # below this a server's own names leave no place for words, and we do not believe it

# Colours are a mark with up to two numbers behind it, or a mark with up to two colours in hexadecimal.
_COLOURS = re.compile(r"\x03(?:\d{1,2}(?:,\d{1,2})?)?|\x04(?:[0-9A-Fa-f]{6}(?:,[0-9A-Fa-f]{6})?)?")
_MARKS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_BREAKS = re.compile(r"[\r\n\x0b\x0c\x85\u2028\u2029]+")


def plain(text: str) -> str:
    """Without colours and other marks that a reader would not see."""
    return _MARKS.sub("", _COLOURS.sub("", text))


def ctcp(text: str) -> tuple[str, str] | None:
    """What a client asks of a client, and the rest of it; None where a person says something."""
    if not text.startswith(CTCP):
        return None
    command, _, rest = text.strip(CTCP).partition(" ")
    return command.upper(), rest


def text_bytes_max(prefix: str, manners: Manners, *, target: str | None = None) -> int:
    """How many bytes of words one line has, when the server sends it on with our prefix before it.

    Before we know our prefix it is taken to be as long as it may become.
    """
    before = len(prefix.encode()) or manners.nick_bytes_max + USER_BYTES_MAX + HOST_BYTES_MAX + len("!@")
    name = manners.target_bytes_max if target is None else len(target.encode())
    return max(LINE_BYTES_MAX - len(END) - len(":") - before - len(" PRIVMSG ") - name - len(" :"), TEXT_BYTES_MIN)


def sayable(text: str, bytes_max: int) -> list[str]:
    """The lines to be sent, none of them empty, cut between words where one is too long."""
    lines: list[str] = []
    for line in _BREAKS.split(text):
        rest = _MARKS.sub("", line).rstrip()
        while len(rest.encode("utf-8", errors="replace")) > bytes_max:
            head = _head(rest, bytes_max)
            lines.append(head.rstrip())
            rest = rest[len(head) :].lstrip(" ")
        if rest.strip():
            lines.append(rest)
    return lines


def _head(text: str, bytes_max: int) -> str:
    raw = text.encode("utf-8", errors="replace")[:bytes_max]
    head = raw.decode("utf-8", errors="ignore")  # a letter is not cut in two
    while len(head) > 1 and len(head) < len(text) and unicodedata.combining(text[len(head)]):
        head = head[:-1]  # nor its accent cut off
    space = head.rfind(" ", 1)
    return head[: space + 1] if space > len(head) // 2 else head


def addressed(text: str, nicks: tuple[str, ...], manners: Manners) -> tuple[str, bool]:
    """The words without the name they begin with, and whether one of our names is in them."""
    folded = manners.fold(text)
    for nick in nicks:
        name = re.escape(manners.fold(nick))
        if found := re.match(rf"@?{name}\s*[:,]\s+", folded):
            return text[found.end() :], True
    marks = r"[A-Za-z0-9_\-\[\]{}\\|^`]"
    mentioned = any(re.search(rf"(?<!{marks}){re.escape(manners.fold(nick))}(?!{marks})", folded) for nick in nicks)
    return text, mentioned
