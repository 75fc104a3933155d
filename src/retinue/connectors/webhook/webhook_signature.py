"""Verifies signatures of inbound requests and signs outbound ones. Pure, and always over the exact
bytes of the body.

Every scheme yields an idempotency key, so that a repeated request is the same envelope. If the
scheme signs an id, the id is the key. If not, the signed content is. Otherwise an old request could
be replayed as a new one under another id.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping

import msgspec

from retinue.connectors.webhook.settings import Proof
from retinue.net.signatures import WINDOW_S, is_recent, is_signed_by

ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
GITHUB, STRIPE, AUTHORIZATION = "x-hub-signature-256", "stripe-signature", "authorization"
IDEMPOTENCY = "idempotency-key"

SECRET_HEADERS = frozenset({SIGNATURE, GITHUB, STRIPE, AUTHORIZATION, "cookie", "x-gitlab-token"})
"""Headers that prove something, and are shown to no template."""

SIGNATURES_MAX = 8  # checked in one header: some services send one for each of their keys
ID_LENGTH_MAX = 200
_SECRET_PREFIX = "whsec_"
_VERSION = "v1"


class Unproved(Exception):
    """The request does not prove knowledge of the shared secret. The text tells the person who
    configures it why."""


def proved(proof: Proof, secret: str, headers: Mapping[str, str], body: bytes, *, now_s: float) -> str:
    """The idempotency key of a verified request; empty if it has none. Names in `headers` are
    lowercase.

    Raises `SignatureInvalid`.
    """
    match proof:
        case Proof.STANDARD:
            return _standard(secret, headers, body, now_s=now_s)
        case Proof.GITHUB:
            return _github(secret, headers, body)
        case Proof.STRIPE:
            return _stripe(secret, headers, body, now_s=now_s)
        case Proof.TOKEN:
            return _token(secret, headers)


def sign(secret: str, *, id_: str, at: str, body: bytes) -> str:
    """Sign as in Standard Webhooks: over id, time and body, so that none can be exchanged."""
    head = f"{id_}.{at}.".encode()
    made = hmac.new(_key(secret), head + body, hashlib.sha256).digest()
    return f"{_VERSION},{base64.b64encode(made).decode()}"


def _standard(secret: str, headers: Mapping[str, str], body: bytes, *, now_s: float) -> str:
    id_, at = headers.get(ID, ""), headers.get(TIMESTAMP, "")
    if not _is_id(id_):
        raise Unproved(f"its {ID} is not there, or is no id")
    _check_recent(at, TIMESTAMP, now_s)
    expected = sign(secret, id_=id_, at=at, body=body)
    if not _any(secret, headers.get(SIGNATURE, "").split(" "), expected):
        raise Unproved(f"its {SIGNATURE} is not by the secret of this connector")
    return id_


def _github(secret: str, headers: Mapping[str, str], body: bytes) -> str:
    """GitHub does not sign its delivery id, so it cannot be the key. The body is signed, and
    contains times and ids."""
    expected = "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    if not is_signed_by(secret, headers.get(GITHUB, ""), expected):
        raise Unproved("its X-Hub-Signature-256 is not by the secret of this connector")
    return _digest(body)


def _stripe(secret: str, headers: Mapping[str, str], body: bytes, *, now_s: float) -> str:
    """Stripe signs a repeated request again with another time. The id in the body stays the same."""
    parts = [part.strip().partition("=") for part in headers.get(STRIPE, "").split(",")[: SIGNATURES_MAX + 1]]
    at = next((value for name, _, value in parts if name == "t"), "")
    _check_recent(at, "Stripe-Signature", now_s)
    expected = hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    if not _any(secret, [value for name, _, value in parts if name == _VERSION], expected):
        raise Unproved("its Stripe-Signature is not by the secret of this connector")
    return _id_within(body) or _digest(body)


def _token(secret: str, headers: Mapping[str, str]) -> str:
    scheme, _, said = headers.get(AUTHORIZATION, "").partition(" ")
    if scheme.lower() != "bearer" or not is_signed_by(secret, said.strip(), secret):
        raise Unproved("its bearer token is not the secret of this connector")
    given = headers.get(IDEMPOTENCY, "")
    return given if _is_id(given) else ""


def _check_recent(at: str, header: str, now_s: float) -> None:
    if not is_recent(at, now_s=now_s):
        raise Unproved(f"the time in its {header} is not there, or over {WINDOW_S} seconds from now")


def _any(secret: str, found: list[str], expected: str) -> bool:
    """Compare all signatures, even after a match, so that the time reveals nothing."""
    fitting = [each for each in found[:SIGNATURES_MAX] if is_signed_by(secret, each, expected)]
    return bool(fitting)


def _key(secret: str) -> bytes:
    """Decode `whsec_` and base64, the key format of Standard Webhooks. Any other secret is used as
    is."""
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


class _Named(msgspec.Struct):
    id: str = ""


def _id_within(body: bytes) -> str:
    try:
        found = msgspec.json.decode(body, type=_Named).id
    except (msgspec.DecodeError, RecursionError):
        return ""
    return found if _is_id(found) else ""
