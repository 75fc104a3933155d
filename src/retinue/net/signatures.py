"""Signs messages between the server and external agents, in both directions, with a shared key (HMAC-SHA256).

The signature covers the body and everything else that gives a message its meaning: purpose, time, session, message id
and request id. So a signed message cannot be used for anything else, and it is valid for only five minutes.
"""

from __future__ import annotations

import hashlib
import hmac
from enum import StrEnum

SIGNATURE_AGE_MAX_S = 300  # limit for clock difference and transit time together
TIMESTAMP_DIGITS_MAX = 12

TIMESTAMP_HEADER = "X-Retinue-Timestamp"
SIGNATURE_HEADER = "X-Retinue-Signature"
MESSAGE_ID_HEADER = "X-Retinue-Id"
REQUEST_ID_HEADER = "X-Retinue-Request"

_VERSION = "v1="


class SignaturePurpose(StrEnum):
    """The purpose of a message.

    The purpose is signed too, so that a message from the server is not valid as a callback.
    """

    MESSAGE = "message"  # server to external agent
    CALLBACK = "callback"  # external agent to server
    COMPLETION = "completion"  # server to a URL that asked to be notified


def sign_message(
    key: str,
    purpose: SignaturePurpose,
    *,
    timestamp: str,
    session: str,
    message_id: str,
    request_id: str = "",
    body: bytes,
) -> str:
    """Return the value of the signature header. `timestamp` is the exact value of the timestamp
    header, in Unix seconds."""
    head = "\n".join((purpose, timestamp, session, message_id, request_id, ""))
    return _VERSION + hmac.new(key.encode(), head.encode() + body, hashlib.sha256).hexdigest()


def is_recent(timestamp: str, *, now_s: float) -> bool:
    """Whether the timestamp differs from now by at most `SIGNATURE_AGE_MAX_S`."""
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= TIMESTAMP_DIGITS_MAX):
        return False
    return abs(now_s - int(timestamp)) <= SIGNATURE_AGE_MAX_S


def signatures_match(key: str, signature: str, expected: str) -> bool:
    """Whether two signatures are equal, compared in constant time. With an empty key, they never match."""
    return bool(key) and hmac.compare_digest(signature.encode(), expected.encode())
