"""Signs HTTP messages with a shared key (HMAC-SHA256): to and from external agents, and to webhooks.

The signature covers the body, purpose, time, session, message id and request id. An attacker who
copies a signed message therefore cannot change it or use it for another session or purpose. The
signature is valid for five minutes.
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
    """The purpose of a signed message.

    The signature includes the purpose, so a message from the server cannot be sent back to it as a
    callback.
    """

    MESSAGE = "message"  # server to external agent
    CALLBACK = "callback"  # external agent to server
    COMPLETION = "completion"  # server to the webhook of an envelope that is done


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
    """Return the value of the signature header.

    `timestamp` is the exact value of the timestamp header, in Unix seconds.
    """
    head = "\n".join((purpose, timestamp, session, message_id, request_id, ""))
    return _VERSION + hmac.new(key.encode(), head.encode() + body, hashlib.sha256).hexdigest()


def is_recent(timestamp: str, *, now_s: float) -> bool:
    """Whether the timestamp differs from the current time by at most `SIGNATURE_AGE_MAX_S`."""
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= TIMESTAMP_DIGITS_MAX):
        return False
    return abs(now_s - int(timestamp)) <= SIGNATURE_AGE_MAX_S


def signatures_match(key: str, signature: str, expected: str) -> bool:
    """Whether two signatures are equal, compared in constant time. False if the key is empty."""
    return bool(key) and hmac.compare_digest(signature.encode(), expected.encode())
