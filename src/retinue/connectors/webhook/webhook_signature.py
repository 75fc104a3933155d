"""Verifies signatures of inbound webhook requests, and signs outbound requests.

A signature covers the exact bytes of the body. Verification also returns an idempotency key, so that
a repeated request is stored only once. The key is an id that the scheme signs, or else the hash of
the signed body. An attacker could change an unsigned id to replay an old request as a new one. The
scheme `token` signs nothing: its key is the optional header `Idempotency-Key`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping

import msgspec

from retinue.connectors.webhook.settings import SignatureScheme
from retinue.net.signatures import SIGNATURE_AGE_MAX_S, is_recent, signatures_match

ID_HEADER, TIMESTAMP_HEADER, SIGNATURE_HEADER = "webhook-id", "webhook-timestamp", "webhook-signature"
GITHUB_HEADER, STRIPE_HEADER, AUTHORIZATION_HEADER = "x-hub-signature-256", "stripe-signature", "authorization"
IDEMPOTENCY_HEADER = "idempotency-key"

SECRET_HEADERS = frozenset(
    {SIGNATURE_HEADER, GITHUB_HEADER, STRIPE_HEADER, AUTHORIZATION_HEADER, "cookie", "x-gitlab-token"}
)
"""Headers with signatures or secrets, which templates cannot read."""

SIGNATURES_MAX = 8  # checked in one header: some services send one for each of their keys
ID_LENGTH_MAX = 200
_SECRET_PREFIX = "whsec_"
_VERSION = "v1"


class SignatureInvalid(Exception):
    """The request does not prove that its sender knows the shared secret.

    The message explains the reason to the person who configures the sender.
    """


def verify_request(
    scheme: SignatureScheme, secret: str, headers: Mapping[str, str], body: bytes, *, now_s: float
) -> str:
    """Verify a request, and return its idempotency key, or an empty string if it has none.

    Names in `headers` must be lowercase. Raises `SignatureInvalid`.
    """
    match scheme:
        case SignatureScheme.STANDARD:
            return _verify_standard(secret, headers, body, now_s=now_s)
        case SignatureScheme.GITHUB:
            return _verify_github(secret, headers, body)
        case SignatureScheme.STRIPE:
            return _verify_stripe(secret, headers, body, now_s=now_s)
        case SignatureScheme.TOKEN:
            return _verify_token(secret, headers)


def sign(secret: str, *, id_: str, at: str, body: bytes) -> str:
    """Sign a request as in Standard Webhooks: over id, time and body, so that none of them can be replaced."""
    head = f"{id_}.{at}.".encode()
    made = hmac.new(_decode_key(secret), head + body, hashlib.sha256).digest()
    return f"{_VERSION},{base64.b64encode(made).decode()}"


def _verify_standard(secret: str, headers: Mapping[str, str], body: bytes, *, now_s: float) -> str:
    id_, at = headers.get(ID_HEADER, ""), headers.get(TIMESTAMP_HEADER, "")
    if not _is_id(id_):
        raise SignatureInvalid(f"the header {ID_HEADER} is missing or invalid")
    _check_recent(at, TIMESTAMP_HEADER, now_s)
    expected = sign(secret, id_=id_, at=at, body=body)
    if not _has_valid_signature(secret, headers.get(SIGNATURE_HEADER, "").split(" "), expected):
        raise SignatureInvalid(f"the header {SIGNATURE_HEADER} does not match the secret of this connector")
    return id_


def _verify_github(secret: str, headers: Mapping[str, str], body: bytes) -> str:
    """Verify a request from GitHub. The idempotency key is the hash of the signed body, which contains times and ids.

    GitHub does not sign its delivery id, so that id cannot be the key.
    """
    expected = "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    if not signatures_match(secret, headers.get(GITHUB_HEADER, ""), expected):
        raise SignatureInvalid("the header X-Hub-Signature-256 does not match the secret of this connector")
    return _digest(body)


def _verify_stripe(secret: str, headers: Mapping[str, str], body: bytes, *, now_s: float) -> str:
    """Verify a request from Stripe.

    The idempotency key is the id in the body, which stays the same in a repeated request. Stripe signs each repeated
    request again, with a new time.
    """
    parts = [part.strip().partition("=") for part in headers.get(STRIPE_HEADER, "").split(",")[: SIGNATURES_MAX + 1]]
    at = next((value for name, _, value in parts if name == "t"), "")
    _check_recent(at, "Stripe-Signature", now_s)
    expected = hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    if not _has_valid_signature(secret, [value for name, _, value in parts if name == _VERSION], expected):
        raise SignatureInvalid("the header Stripe-Signature does not match the secret of this connector")
    return _get_body_id(body) or _digest(body)


def _verify_token(secret: str, headers: Mapping[str, str]) -> str:
    scheme, _, token = headers.get(AUTHORIZATION_HEADER, "").partition(" ")
    if scheme.lower() != "bearer" or not signatures_match(secret, token.strip(), secret):
        raise SignatureInvalid("the bearer token is not the secret of this connector")
    given = headers.get(IDEMPOTENCY_HEADER, "")
    return given if _is_id(given) else ""


def _check_recent(at: str, header: str, now_s: float) -> None:
    if not is_recent(at, now_s=now_s):
        raise SignatureInvalid(
            f"the time in the header {header} is missing, or differs from the current time by more than "
            f"{SIGNATURE_AGE_MAX_S} s"
        )


def _has_valid_signature(secret: str, signatures: list[str], expected: str) -> bool:
    """Whether one of the signatures is valid. All are compared, so that the time taken reveals nothing."""
    fitting = [each for each in signatures[:SIGNATURES_MAX] if signatures_match(secret, each, expected)]
    return bool(fitting)


def _decode_key(secret: str) -> bytes:
    """Decode a secret of the form `whsec_` and base64, as in Standard Webhooks. Any other secret is used unchanged."""
    if secret.startswith(_SECRET_PREFIX):
        try:
            key = base64.b64decode(secret.removeprefix(_SECRET_PREFIX), validate=True)
        except binascii.Error:
            key = b""
        if key:  # with an empty key anyone could sign
            return key
    return secret.encode()


def _is_id(text: str) -> bool:
    return 0 < len(text) <= ID_LENGTH_MAX and text.isascii() and text.isprintable()


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


class _BodyWithId(msgspec.Struct):
    id: str = ""


def _get_body_id(body: bytes) -> str:
    try:
        found = msgspec.json.decode(body, type=_BodyWithId).id
    except (msgspec.DecodeError, RecursionError):
        return ""
    return found if _is_id(found) else ""
