"""Store the responses to requests with an idempotency key.

While a request is in progress, its key is stored with a claim instead of a response.
"""

from __future__ import annotations

import sqlalchemy as sa
from msgspec import Struct

from retinue.store.core import tables as t

CLAIMED = ""
"""The body of a claim, which is empty because there is no response yet. A response is JSON, and never empty."""

_b = sa.bindparam
_has_key = (t.idempotency_keys.c.principal == _b("the_principal"), t.idempotency_keys.c.key == _b("the_key"))
_get = sa.select(t.idempotency_keys).where(*_has_key)
_insert = t.idempotency_keys.insert()
_replace_claim = t.idempotency_keys.update().where(*_has_key).values(body=_b("body"), at_ms=_b("at_ms"))
_release_claim = t.idempotency_keys.delete().where(*_has_key, t.idempotency_keys.c.body == CLAIMED)


class StoredResponse(Struct, frozen=True):
    """The response stored for an idempotency key, or the claim of a request in progress."""

    operation: str
    request_hash: str
    body: str
    at_ms: int

    @property
    def is_claim(self) -> bool:
        return self.body == CLAIMED


def get(conn: sa.Connection, *, principal: str, key: str) -> StoredResponse | None:
    row = conn.execute(_get, {"the_principal": principal, "the_key": key}).one_or_none()
    return StoredResponse(row.operation, row.request_hash, row.body, row.at_ms) if row else None


def insert(conn: sa.Connection, *, principal: str, key: str, response: StoredResponse) -> None:
    """Store a response, or a claim, for a key that is not stored yet."""
    conn.execute(
        _insert,
        {
            "principal": principal,
            "key": key,
            "operation": response.operation,
            "request_hash": response.request_hash,
            "body": response.body,
            "at_ms": response.at_ms,
        },
    )


def replace_claim(conn: sa.Connection, *, principal: str, key: str, response: StoredResponse) -> None:
    """Replace the claim on a key with the response."""
    settled = conn.execute(
        _replace_claim, {"the_principal": principal, "the_key": key, "body": response.body, "at_ms": response.at_ms}
    )
    if not settled.rowcount:  # the claim was purged in between
        insert(conn, principal=principal, key=key, response=response)


def release_claim(conn: sa.Connection, *, principal: str, key: str) -> None:
    """Delete the claim on a key, so that the key can be used again. A stored response is not deleted."""
    conn.execute(_release_claim, {"the_principal": principal, "the_key": key})
