"""Signs messages between the server and external agents, in both directions, with a shared key (HMAC-SHA256).

The signature covers everything that gives a message its meaning: its purpose, time, session,
message id and request id. So a signed message cannot be replayed elsewhere, and not for long.
"""

from __future__ import annotations

import hashlib
import hmac
from enum import StrEnum

WINDOW_S = 300  # maximum clock difference and transit time together
TIMESTAMP_DIGITS_MAX = 12

TIMESTAMP = "X-Retinue-Timestamp"
SIGNATURE = "X-Retinue-Signature"
LETTER = "X-Retinue-Id"
ABOUT = "X-Retinue-Request"

_VERSION = "v1="


class Purpose(StrEnum):
    """Part of the signed data: a message of ours is not valid as a callback, even if it is sent back to us."""

    MESSAGE = "message"  # server to external agent
    CALLBACK = "callback"  # external agent to server
    COMPLETION = "completion"  # server to a URL that asked to be notified


def signed(key: str, purpose: Purpose, *, at: str, session: str, letter: str, about: str = "", body: bytes) -> str:
    """Return the signature header. `timestamp` is in Unix seconds, exactly as in the timestamp header."""
    head = "\n".join((purpose, at, session, letter, about, ""))
    return _VERSION + hmac.new(key.encode(), head.encode() + body, hashlib.sha256).hexdigest()


def is_recent(at: str, *, now_s: float) -> bool:
    """Whether the timestamp is within the permitted window."""
    if not (at.isascii() and at.isdigit() and len(at) <= TIMESTAMP_DIGITS_MAX):
        return False
    return abs(now_s - int(at)) <= WINDOW_S


def is_signed_by(key: str, signature: str, expected: str) -> bool:
    """Compare in constant time. An empty key never matches."""
    return bool(key) and hmac.compare_digest(signature.encode(), expected.encode())
