"""Text that every supported database can store: it has no NUL characters and no lone surrogates."""

from __future__ import annotations

import re

from retinue.domain.shared_errors import TextUnstorable

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def is_storable(text: str) -> bool:
    return _UNSTORABLE.search(text) is None


def unstorable_error(field: str) -> TextUnstorable:
    """Return the error for text that cannot be stored. Use it if the sender can correct the text."""
    return TextUnstorable(field)


def make_storable(text: str) -> str:
    """Substitute U+FFFD for each character that cannot be stored. Use this if the sender cannot correct the text."""
    return _UNSTORABLE.sub("\ufffd", text)


def escape_markup(text: str) -> str:
    """Escape text that is put between tags, so that the text cannot form a tag.

    The result is the same as with `html.escape`. That function is not used, because its import is
    slow: it loads the table of all HTML entities.
    """
    for plain, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;"), ("'", "&#x27;")):
        text = text.replace(plain, entity)
    return text


def truncate_bytes(text: str, bytes_max: int) -> str:
    """Truncate text to at most `bytes_max` bytes of UTF-8, with a notice of how much was cut."""
    encoded = text.encode()
    if len(encoded) <= bytes_max:
        return text
    notice = f"\n[cut: {len(encoded) - bytes_max} more bytes]"
    return encoded[: bytes_max - len(notice.encode())].decode(errors="ignore") + notice
