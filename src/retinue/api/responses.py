"""Builds error responses, and the response headers that protect browsers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec

from retinue.api.errors import MisdirectedRequest, RetryLater, SignInCodeInvalid, WrongMethod
from retinue.domain.errors import (
    AmbiguousId,
    Conflict,
    Invalid,
    InvalidFields,
    NotAllowed,
    NotFound,
    RetinueError,
    StoreError,
    TooLarge,
)
from retinue.domain.shared_errors import NotSignedIn
from retinue.intake.errors import UnsignedRequest

Headers = list[tuple[bytes, bytes]]

_encode = msgspec.json.Encoder().encode


STATUS_BY_ERROR: Mapping[type[RetinueError], int] = {
    Invalid: 400,
    NotSignedIn: 401,
    SignInCodeInvalid: 401,
    UnsignedRequest: 401,
    NotAllowed: 403,
    NotFound: 404,
    WrongMethod: 405,
    Conflict: 409,
    AmbiguousId: 409,
    TooLarge: 413,
    MisdirectedRequest: 421,
    RetryLater: 429,
    StoreError: 503,
}

SECURITY_HEADERS: Headers = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
API_HEADERS: Headers = [
    *SECURITY_HEADERS,
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
]


# The web app loads only its own files. No image, script, style or request goes to another host.
_CONTENT_SECURITY_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob: data:",
        "media-src 'self' blob:",
        "connect-src 'self'",
        "manifest-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types svelte-trusted-html",
    ]
)
PAGE_HEADERS: Headers = [
    *SECURITY_HEADERS,
    (b"content-security-policy", _CONTENT_SECURITY_POLICY.encode()),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(self), microphone=(self), geolocation=(), usb=(), serial=()"),
]


def http_status(error: RetinueError) -> int:
    for kind in type(error).__mro__:
        if (status := STATUS_BY_ERROR.get(kind)) is not None:
            return status
    return 500


def to_error_form(error: RetinueError) -> dict[str, Any]:
    """Return an error as JSON, in the form that every interface uses."""
    form: dict[str, Any] = {
        "code": error.code,
        "sentence": error.sentence,
        "because": error.because,
        "try": error.try_this,
    }
    if isinstance(error, AmbiguousId):
        form |= {"candidates": error.candidates, "matches": error.matches}
    if isinstance(error, InvalidFields):
        form["fields"] = error.fields
    if isinstance(error, RetryLater):
        form["retry_after_s"] = math.ceil(error.retry_after_s)
    return form


def build_error_response(error: RetinueError) -> tuple[int, bytes, Headers]:
    """Return the status, body and additional headers of an error response."""
    more: Headers = []
    if isinstance(error, RetryLater):
        more.append((b"retry-after", str(max(1, math.ceil(error.retry_after_s))).encode()))
    if isinstance(error, (NotSignedIn, SignInCodeInvalid)):
        more.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, WrongMethod):
        more.append((b"allow", error.allowed.encode()))
    return http_status(error), _encode({"error": to_error_form(error)}), more


def build_raw_error_response(status: int, error: RetinueError) -> bytes:
    """Return a complete HTTP response as bytes, for a connection refused before its request was parsed."""
    body = _encode({"error": to_error_form(error)})
    head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
    head += f"content-length: {len(body)}\r\nconnection: close\r\ncache-control: no-store\r\n\r\n"
    return head.encode() + body
