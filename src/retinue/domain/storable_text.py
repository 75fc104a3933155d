"""Text that every store can keep: no NUL, no lone surrogate."""

from __future__ import annotations

import re

from retinue.domain.errors import Invalid

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def is_storable(text: str) -> bool:
    return _UNSTORABLE.search(text) is None


def unstorable(what: str) -> Invalid:
    """For words whose sender can be told."""
    return Invalid(
        f"{what} holds characters that are no text",
        because="NUL bytes and lone surrogates cannot be stored on every database",
        try_this="remove them; where bytes are meant, send them as an attachment",
        code="text.unstorable",
    )


def storable(text: str) -> str:
    """For words we cannot send back to be corrected: what no store can keep is shown as U+FFFD."""
    return _UNSTORABLE.sub("\ufffd", text)


def escaped(text: str) -> str:
    """Text between tags, so that it cannot be one. As `html.escape`, whose module brings a table of every entity."""
    for plain, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;"), ("'", "&#x27;")):
        text = text.replace(plain, entity)
    return text


def clipped_bytes(text: str, bytes_max: int) -> str:
    """At most so many bytes of UTF-8, and visibly so."""
    encoded = text.encode()
    if len(encoded) <= bytes_max:
        return text
    notice = f"\n[cut: {len(encoded) - bytes_max} more bytes]"
    return encoded[: bytes_max - len(notice.encode())].decode(errors="ignore") + notice
