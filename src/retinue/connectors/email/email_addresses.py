"""Parses the email addresses and text in headers of inbound emails. Only plain addresses are accepted."""

from __future__ import annotations

import hashlib
import re
from email.errors import HeaderParseError
from email.header import decode_header

from msgspec import Struct

ADDRESS_LENGTH_MAX = 254
FIELD_CHARS_MAX = 4096  # characters of a header with addresses or names; the rest is ignored
ADDRESSES_MAX = 100  # in one header
NAME_LENGTH_MAX = 100
MESSAGE_ID_LENGTH_MAX = 200

# Plain addresses only: a quoted local part may contain anything, and servers disagree on its
# meaning.
_LOCAL = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?:\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_ADDRESS = re.compile(rf"({_LOCAL})@({_LABEL}(?:\.{_LABEL})*)")
_MESSAGE_ID = re.compile(r"<([!-;=?-~]{1,998})>")
_INVISIBLE = re.compile(r"[\x00-\x20\x7f-\xa0\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]+")


class Mailbox(Struct, frozen=True):
    """One address with its display name. The sender can choose any name, so it proves nothing."""

    address: str
    name: str = ""

    @property
    def domain(self) -> str:
        return self.address.rpartition("@")[2]


def parse_address(text: str) -> str | None:
    """Return the address in lower case, or None if the text is not a plain address."""
    return text.lower() if len(text) <= ADDRESS_LENGTH_MAX and _ADDRESS.fullmatch(text) else None


def parse_mailboxes(field: str) -> tuple[Mailbox, ...]:
    """Return the valid addresses in a `From`, `To` or `Cc` header."""
    found: list[Mailbox] = []
    for part in _split_addresses(field[:FIELD_CHARS_MAX]):
        before, angle, after = part.rpartition("<")
        raw = after.partition(">")[0] if angle else part
        if (address := parse_address(raw.strip())) is not None:
            found.append(Mailbox(address, to_display_text(before.strip().strip('"'))))
        if len(found) == ADDRESSES_MAX:
            break
    return tuple(found)


def _split_addresses(field: str) -> list[str]:
    """Split a header at commas outside quotes, comments and angle brackets. Comments are dropped."""
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


def count_addresses(field: str) -> int:
    """Return how many addresses a header seems to contain, valid or not.

    A `From` header with more than one address is not trusted.
    """
    return sum(1 for part in _split_addresses(field[:FIELD_CHARS_MAX]) if part.strip())


def decode_header_text(field: str) -> str:
    """Decode a header, including encoded words. Text that cannot be decoded is returned unchanged."""
    try:
        pieces = decode_header(field[:FIELD_CHARS_MAX])
    except (HeaderParseError, ValueError):
        return field[:FIELD_CHARS_MAX]
    words: list[str] = []
    for piece, charset in pieces:
        words.append(piece if isinstance(piece, str) else decode_text(piece, charset or ""))
    return "".join(words)


def decode_text(raw: bytes, charset: str) -> str:
    """Decode bytes with the declared charset. If that fails, try UTF-8 and then Windows-1252."""
    for each in (charset, "utf-8"):
        try:
            return raw.decode(each or "utf-8")
        except (LookupError, UnicodeError, ValueError):
            continue
    try:
        # Some codecs produce no text; `decode` refuses them with a LookupError.
        return raw.decode(charset or "windows-1252", errors="replace")
    except (LookupError, UnicodeError, ValueError):
        return raw.decode("windows-1252", errors="replace")


def to_display_text(field: str, length_max: int = NAME_LENGTH_MAX) -> str:
    """Return a name or subject as one line, without invisible or bidirectional control characters."""
    return _INVISIBLE.sub(" ", decode_header_text(field)).strip()[:length_max]


def parse_message_ids(field: str) -> tuple[str, ...]:
    """Return the message ids in a `Message-ID`, `In-Reply-To` or `References` header, without angle brackets.

    Ids that are too long are skipped.
    """
    return tuple(each for each in _MESSAGE_ID.findall(field) if len(each) <= MESSAGE_ID_LENGTH_MAX)


def is_message_id(text: str) -> bool:
    """Whether the text is exactly one message id, without angle brackets, that is safe in a header."""
    return len(text) <= MESSAGE_ID_LENGTH_MAX and _MESSAGE_ID.fullmatch(f"<{text}>") is not None


def digest(text: str, length: int = 16) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:length]
