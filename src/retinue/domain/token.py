"""Tokens prove who makes a request. The secret of a token is shown once; only its hash is stored."""

from __future__ import annotations

import hashlib
from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from retinue.domain.address import Address
from retinue.domain.ids import TokenId


class TokenKind(StrEnum):
    TOKEN = "token"  # for programs and terminals, until it is revoked
    WEB = "web"  # a browser's cookie, until it expires
    CODE = "code"  # signs a browser in, once, within minutes
    INVITE = "invite"  # creates a new person, once, within days


class Token(Struct, frozen=True, kw_only=True):
    id: TokenId
    kind: TokenKind
    principal: Address
    label: str
    created_at: datetime
    used_at: datetime | None = None
    expires_at: datetime | None = None
    body: str = ""


def hash_token(secret: str | bytes) -> str:
    """Hash a token. A fast hash is enough, because a secret of 256 random bits cannot be guessed."""
    return hashlib.sha256(secret if isinstance(secret, bytes) else secret.encode()).hexdigest()
