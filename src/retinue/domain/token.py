"""Tokens: what proves who someone is. The secret itself is shown once and never kept; we keep its hash."""

from __future__ import annotations

import hashlib
from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from retinue.domain.address import Address
from retinue.domain.ids import TokenId


class TokenKind(StrEnum):
    TOKEN = "token"  # for programs and terminals, until revoked
    WEB = "web"  # a browser's cookie, until it expires
    CODE = "code"  # signs a browser in, once, within minutes
    INVITE = "invite"  # makes a new person, once, within days


class Token(Struct, frozen=True, kw_only=True):
    id: TokenId
    kind: TokenKind
    principal: Address
    label: str
    created_at: datetime
    used_at: datetime | None = None
    expires_at: datetime | None = None
    body: str = ""


def hash_of(secret: str | bytes) -> str:
    """A fast hash is enough: a secret has 256 random bits, and nobody can try them all."""
    return hashlib.sha256(secret if isinstance(secret, bytes) else secret.encode()).hexdigest()
