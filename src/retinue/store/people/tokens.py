"""Store tokens, and find them by the hash of their secret or by their principal."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from retinue.domain import address
from retinue.domain.ids import TokenId
from retinue.domain.times import from_ms, to_ms
from retinue.domain.token import Token, TokenKind
from retinue.store.core import tables as t

_b = sa.bindparam
IS_VALID = sa.and_(
    t.tokens.c.revoked_ms.is_(None), sa.or_(t.tokens.c.expires_ms.is_(None), t.tokens.c.expires_ms > _b("now"))
)
_by_hash = sa.select(t.tokens).where(t.tokens.c.hash == _b("hash"), IS_VALID)
_by_principal = (
    sa.select(t.tokens).where(t.tokens.c.principal == _b("principal"), IS_VALID).order_by(t.tokens.c.created_ms)
)
_id_by_hash = sa.select(t.tokens.c.id).where(t.tokens.c.hash == _b("hash"))
_insert = t.tokens.insert()
_mark_used = t.tokens.update().where(t.tokens.c.id == _b("the_id")).values(used_ms=_b("now"))
_revoke = (
    t.tokens.update().where(t.tokens.c.id == _b("the_id"), t.tokens.c.revoked_ms.is_(None)).values(revoked_ms=_b("now"))
)
_revoke_all = (
    t.tokens.update()
    .where(t.tokens.c.principal == _b("the_principal"), t.tokens.c.revoked_ms.is_(None))
    .values(revoked_ms=_b("now"))
)
_revoke_hash = (
    t.tokens.update()
    .where(t.tokens.c.hash == _b("the_hash"), t.tokens.c.revoked_ms.is_(None))
    .values(revoked_ms=_b("now"))
)


def token_from_row(row: sa.Row[Any]) -> Token:
    return Token(
        id=TokenId(row.id),
        kind=TokenKind(row.kind),
        principal=address.parse_address(row.principal),
        label=row.label,
        created_at=from_ms(row.created_ms),
        used_at=from_ms(row.used_ms) if row.used_ms is not None else None,
        expires_at=from_ms(row.expires_ms) if row.expires_ms is not None else None,
        body=row.body or "",
    )


def find_by_hash(conn: sa.Connection, token_hash: str, *, now_ms: int) -> Token | None:
    """Return the token with this hash, or None if it is unknown, expired or revoked."""
    row = conn.execute(_by_hash, {"hash": token_hash, "now": now_ms}).one_or_none()
    return token_from_row(row) if row else None


def is_known(conn: sa.Connection, token_hash: str) -> bool:
    """Whether a token with this hash is stored, even if it is expired or revoked."""
    return conn.execute(_id_by_hash, {"hash": token_hash}).scalar() is not None


def list_of_principal(conn: sa.Connection, principal: str, *, now_ms: int) -> list[Token]:
    return [token_from_row(row) for row in conn.execute(_by_principal, {"principal": principal, "now": now_ms})]


def add(conn: sa.Connection, token: Token, token_hash: str) -> None:
    conn.execute(
        _insert,
        {
            "id": token.id,
            "kind": token.kind.value,
            "principal": str(token.principal),
            "hash": token_hash,
            "label": token.label,
            "body": token.body or None,
            "created_ms": to_ms(token.created_at),
            "used_ms": None,
            "expires_ms": to_ms(token.expires_at) if token.expires_at else None,
            "revoked_ms": None,
        },
    )


def mark_used(conn: sa.Connection, id_: str, *, at_ms: int) -> None:
    conn.execute(_mark_used, {"the_id": id_, "now": at_ms})


def revoke(conn: sa.Connection, id_: str, *, at_ms: int) -> bool:
    """Revoke a token. Returns False if it was already revoked."""
    return conn.execute(_revoke, {"the_id": id_, "now": at_ms}).rowcount == 1


def revoke_by_hash(conn: sa.Connection, token_hash: str, *, at_ms: int) -> None:
    conn.execute(_revoke_hash, {"the_hash": token_hash, "now": at_ms})


def revoke_all(conn: sa.Connection, principal: str, *, at_ms: int) -> int:
    """Revoke every token of this principal. Returns how many were revoked."""
    return conn.execute(_revoke_all, {"the_principal": principal, "now": at_ms}).rowcount
