"""Signatures of what goes between the house and agents that run elsewhere, both ways, by a key that the two share.

Signed is all that gives the words their meaning: what kind of letter it is, when it was signed, which session and which
letter it is about. So nothing that was signed for one place can be brought to another, and nothing for long.
"""

from __future__ import annotations

import hashlib
import hmac
from enum import StrEnum

WINDOW_S = 300  # how far the clocks of the two may be apart, and how long a letter may be on its way
TIMESTAMP_DIGITS_MAX = 12

TIMESTAMP = "X-Retinue-Timestamp"
SIGNATURE = "X-Retinue-Signature"
LETTER = "X-Retinue-Id"
ABOUT = "X-Retinue-Request"

_VERSION = "v1="


class Purpose(StrEnum):
    """Part of what is signed: a letter of ours is no answer, even where someone sends it back to us."""

    MESSAGE = "message"  # from the house to an agent elsewhere
    CALLBACK = "callback"  # from an agent elsewhere to the house
    COMPLETION = "completion"  # from the house, to whoever wants to know that something was done


def signed(key: str, purpose: Purpose, *, at: str, session: str, letter: str, about: str = "", body: bytes) -> str:
    """`at` is in seconds since 1970, as it stands in the header."""
    head = "\n".join((purpose, at, session, letter, about, ""))
    return _VERSION + hmac.new(key.encode(), head.encode() + body, hashlib.sha256).hexdigest()


def is_recent(at: str, *, now_s: float) -> bool:
    """Whether what was signed then is still good."""
    if not (at.isascii() and at.isdigit() and len(at) <= TIMESTAMP_DIGITS_MAX):
        return False
    return abs(now_s - int(at)) <= WINDOW_S


def is_signed_by(key: str, signature: str, expected: str) -> bool:
    """In a time that says nothing of how much of it was right. An empty key signs nothing."""
    return bool(key) and hmac.compare_digest(signature.encode(), expected.encode())
