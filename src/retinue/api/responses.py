"""Error responses, and response headers that protect browsers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec

from retinue.api.host_check import Misdirected
from retinue.api.request_limits import TooMany
from retinue.domain.errors import (
    Ambiguous,
    Conflict,
    Invalid,
    NotAllowed,
    NotFound,
    RetinueError,
    StoreError,
    TooLarge,
    Unfit,
)
from retinue.intake.external_callbacks import Unsigned

Headers = list[tuple[bytes, bytes]]

_encode = msgspec.json.Encoder().encode


class NotSignedIn(RetinueError):
    """The request has no valid token or cookie."""

    code = "auth.not-signed-in"


class WrongMethod(RetinueError):
    """The path exists, but not for this method."""

    code = "route.wrong-method"

    def __init__(self, method: str, path: str, allowed: str) -> None:
        super().__init__(
            f"nothing is served at {method[:20]} {path[:200]}",
            because=f"that route is for {allowed}",
            try_this=f"use {allowed}",
        )
        self.allowed = allowed


STATUS: Mapping[type[RetinueError], int] = {
    Invalid: 400,
    NotSignedIn: 401,
    Unsigned: 401,
    NotAllowed: 403,
    NotFound: 404,
    WrongMethod: 405,
    Conflict: 409,
    Ambiguous: 409,
    TooLarge: 413,
    Misdirected: 421,
    TooMany: 429,
    StoreError: 503,
}

GUARDS: Headers = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
API_HEADERS: Headers = [
    *GUARDS,
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
]


# The web app loads only its own files. No image, script, style or request goes to another host.
_PAGE_POLICY = "; ".join(
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
    *GUARDS,
    (b"content-security-policy", _PAGE_POLICY.encode()),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(self), microphone=(self), geolocation=(), usb=(), serial=()"),
]


def status_of(error: RetinueError) -> int:
    for kind in type(error).__mro__:
        if (status := STATUS.get(kind)) is not None:
            return status
    return 500


def form_of(error: RetinueError) -> dict[str, Any]:
    """Return an error in the form that every interface uses."""
    form: dict[str, Any] = {
        "code": error.code,
        "sentence": error.sentence,
        "because": error.because,
        "try": error.try_this,
    }
    if isinstance(error, Ambiguous):
        form |= {"candidates": error.candidates, "matches": error.matches}
    if isinstance(error, Unfit):
        form["fields"] = error.fields
    if isinstance(error, TooMany):
        form["retry-after-s"] = math.ceil(error.retry_after_s)
    return form


def refusal(error: RetinueError) -> tuple[int, bytes, Headers]:
    """Return the status, body and additional headers of an error response."""
    more: Headers = []
    if isinstance(error, TooMany):
        more.append((b"retry-after", str(max(1, math.ceil(error.retry_after_s))).encode()))
    if isinstance(error, NotSignedIn):
        more.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, WrongMethod):
        more.append((b"allow", error.allowed.encode()))
    return status_of(error), _encode({"error": form_of(error)}), more


def raw_refusal(status: int, error: RetinueError) -> bytes:
    """Return a complete HTTP response as bytes, for a connection refused before its request was parsed."""
    body = _encode({"error": form_of(error)})
    head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
    head += f"content-length: {len(body)}\r\nconnection: close\r\ncache-control: no-store\r\n\r\n"
    return head.encode() + body


def broke(what: str) -> RetinueError:
    return RetinueError(
        f"{what} broke",
        because="of a fault in the house, which is in its log",
        try_this="try again; if it stays, report it",
        code="house.broke",
    )
