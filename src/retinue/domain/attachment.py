"""Attachments: files received or created, identified by the hash of their bytes."""

from __future__ import annotations

import re

from msgspec import Struct

ATTACHMENT_NAME_LENGTH_MAX = 120
_UNSAFE_CHARS = re.compile(r"[^\w.\- ()\[\]]", re.UNICODE)
_INVISIBLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


class Attachment(Struct, frozen=True, kw_only=True):
    hash: str
    name: str
    media_type: str
    size_bytes: int


def safe_file_name(name: str) -> str:
    """Return a safe version of a file name.

    The result has no path and no control or bidirectional characters. It is never empty, and never the name of a hidden
    file.
    """
    last = re.split(r"[/\\]", _INVISIBLE.sub("", name))[-1]
    plain = _UNSAFE_CHARS.sub("_", last).strip(" .")
    if len(plain) > ATTACHMENT_NAME_LENGTH_MAX:
        stem, dot, ending = plain.rpartition(".")
        keep = ATTACHMENT_NAME_LENGTH_MAX - len(ending) - 1
        plain = f"{stem[:keep]}.{ending}" if dot and 0 < len(ending) <= 16 else plain[:ATTACHMENT_NAME_LENGTH_MAX]
    return plain or "file"
