"""Proofs on requests that come in, and on those that leave: pure, and each over the very bytes of the body.

Whatever the form, what comes of it is the same: a key under which the request is remembered, so that the same request
brought again is the same letter. Where a form signs an id, that is the key; where it does not, what was signed is, so
that nobody makes a new request of an old one by giving it another name.
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

SIGNATURES_MAX = 8  # looked at in one header: some send one for each of their keys
ID_LENGTH_MAX = 200
_SECRET_PREFIX = "whsec_"
_VERSION = "v1"


class Unproved(Exception):
    """Nothing shows that it is from whoever shares the secret. Says why, in words for whoever sets that up."""


def proved(proof: Proof, secret: str, headers: Mapping[str, str], body: bytes, *, now_s: float) -> str:
    """The key of a request whose proof is good; empty where it has none of its own. `headers` are in small letters.

    Raises `Unproved`.
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
    """As Standard Webhooks has it: over the id, the time and the body, so that none of them can be another's."""
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
    """Its id of a delivery is not signed, so it names nothing; the body is, and holds its own times and ids."""
    expected = "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    if not is_signed_by(secret, headers.get(GITHUB, ""), expected):
        raise Unproved("its X-Hub-Signature-256 is not by the secret of this connector")
    return _digest(body)


def _stripe(secret: str, headers: Mapping[str, str], body: bytes, *, now_s: float) -> str:
    """Brought again it is signed anew, with another time: what stays is the id in the body."""
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
    """All of them are held against it, however soon one fits: how long it takes says nothing."""
    fitting = [each for each in found[:SIGNATURES_MAX] if is_signed_by(secret, each, expected)]
    return bool(fitting)


def _key(secret: str) -> bytes:
    """`whsec_` and base64, as Standard Webhooks hands keys out; or the words as they stand."""
    if secret.startswith(_SECRET_PREFIX):
        try:
            key = base64.b64decode(secret.removeprefix(_SECRET_PREFIX), validate=True)
        except binascii.Error:
            key = b""
        if key:  # an empty one would be everybody's
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
