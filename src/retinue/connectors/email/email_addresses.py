"""Addresses of e-mail. What a stranger writes into a header is read here, and what is no plain address is none."""

from __future__ import annotations

import hashlib
import re
from email.errors import HeaderParseError
from email.header import decode_header

from msgspec import Struct

ADDRESS_LENGTH_MAX = 254
FIELD_CHARS_MAX = 4096  # of a header with addresses or names; the rest is not read
ADDRESSES_MAX = 100  # in one header
NAME_LENGTH_MAX = 100
MESSAGE_ID_LENGTH_MAX = 200

# Plain ones only: a quoted local part may hold anything, and servers disagree on what it means.
_LOCAL = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?:\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_ADDRESS = re.compile(rf"({_LOCAL})@({_LABEL}(?:\.{_LABEL})*)")
_MESSAGE_ID = re.compile(r"<([!-;=?-~]{1,998})>")
_UNSEEN = re.compile(r"[\x00-\x20\x7f-\xa0\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]+")


class Mailbox(Struct, frozen=True):
    """One address with the name beside it, which proves nothing."""

    address: str
    name: str = ""

    @property
    def domain(self) -> str:
        return self.address.rpartition("@")[2]


def address_of(text: str) -> str | None:
    """The address, in lower case, where the text is one and nothing else."""
    return text.lower() if len(text) <= ADDRESS_LENGTH_MAX and _ADDRESS.fullmatch(text) else None


def mailboxes(field: str) -> tuple[Mailbox, ...]:
    """Who stands in a `From`, `To` or `Cc`, as far as it can be understood: each address once it is surely one."""
    found: list[Mailbox] = []
    for part in _split(field[:FIELD_CHARS_MAX]):
        before, angle, after = part.rpartition("<")
        raw = after.partition(">")[0] if angle else part
        if (address := address_of(raw.strip())) is not None:
            found.append(Mailbox(address, shown(before.strip().strip('"'))))
        if len(found) == ADDRESSES_MAX:
            break
    return tuple(found)


def _split(field: str) -> list[str]:
    """At its commas, where they stand in no quotes, comment or angles. Comments are left out."""
    parts, now = [""], ""
    quoted, depth, escaped = False, 0, False
    for char in field:
        if escaped:
            escaped = False
        elif char == "\\":
            escaped = True
            continue
        elif char == '"' and not depth:
            quoted = not quoted
        elif not quoted and char == "(":
            depth += 1
        elif not quoted and char == ")" and depth:
            depth -= 1
            continue
        elif not quoted and not depth and char in ",;":
            parts.append("")
            continue
        if not depth:
            now = parts.pop() + char
            parts.append(now)
    return parts


def claims(field: str) -> int:
    """How many addresses a header seems to hold, well-formed or not: more than one in a `From` is nobody's word."""
    return sum(1 for part in _split(field[:FIELD_CHARS_MAX]) if part.strip())


def decoded(field: str) -> str:
    """The words of a header, its encoded ones too. What cannot be decoded stays as it stands."""
    try:
        pieces = decode_header(field[:FIELD_CHARS_MAX])
    except (HeaderParseError, ValueError):
        return field[:FIELD_CHARS_MAX]
    words: list[str] = []
    for piece, charset in pieces:
        words.append(piece if isinstance(piece, str) else text_of(piece, charset or ""))
    return "".join(words)


def text_of(raw: bytes, charset: str) -> str:
    """Bytes as text: by the charset they claim, and where that is wrong or unknown as what they most likely are."""
    for each in (charset, "utf-8"):
        try:
            return raw.decode(each or "utf-8")
        except (LookupError, UnicodeError, ValueError):
            continue
    try:
        # Some codecs turn bytes into something that is no text, and are refused by `decode` with a LookupError.
        return raw.decode(charset or "windows-1252", errors="replace")
    except (LookupError, UnicodeError, ValueError):
        return raw.decode("windows-1252", errors="replace")


def shown(field: str, length_max: int = NAME_LENGTH_MAX) -> str:
    """A name or subject in one line, without characters that hide or turn what stands there."""
    return _UNSEEN.sub(" ", decoded(field)).strip()[:length_max]


def message_ids(field: str) -> tuple[str, ...]:
    """The ids in a `Message-ID`, `In-Reply-To` or `References`, without their angles. Overlong ones are passed over."""
    return tuple(each for each in _MESSAGE_ID.findall(field) if len(each) <= MESSAGE_ID_LENGTH_MAX)


def is_message_id(text: str) -> bool:
    """Whether it is one id, whole and without its angles, that may stand in a header."""
    return len(text) <= MESSAGE_ID_LENGTH_MAX and _MESSAGE_ID.fullmatch(f"<{text}>") is not None


def digest(text: str, length: int = 16) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:length]
