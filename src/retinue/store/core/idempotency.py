"""Stored responses of requests that carried an idempotency key, and the keys claimed by requests in progress."""

from __future__ import annotations

import sqlalchemy as sa
from msgspec import Struct

from retinue.store.core import tables as t

CLAIMED = ""
"""The body of a key whose request has no answer yet. An answer is JSON, and never empty."""

_b = sa.bindparam
_this = (t.answers.c.principal == _b("the_principal"), t.answers.c.key == _b("the_key"))
_get = sa.select(t.answers).where(*_this)
_insert = t.answers.insert()
_settle = t.answers.update().where(*_this).values(body=_b("body"), at_ms=_b("at_ms"))
_release = t.answers.delete().where(*_this, t.answers.c.body == CLAIMED)


class Answer(Struct, frozen=True):
    """A stored response, or a claim. `at_ms` is the time of the response, or of the claim."""

    operation: str
    request_hash: str
    body: str
    at_ms: int

    @property
    def is_claim(self) -> bool:
        return self.body == CLAIMED


def get(conn: sa.Connection, *, principal: str, key: str) -> Answer | None:
    row = conn.execute(_get, {"the_principal": principal, "the_key": key}).one_or_none()
    return Answer(row.operation, row.request_hash, row.body, row.at_ms) if row else None


def keep(conn: sa.Connection, *, principal: str, key: str, answer: Answer) -> None:
    """Insert the response for a new key, or claim a new key."""
    conn.execute(
        _insert,
        {
            "principal": principal,
            "key": key,
            "operation": answer.operation,
            "request_hash": answer.request_hash,
            "body": answer.body,
            "at_ms": answer.at_ms,
        },
    )


def settle(conn: sa.Connection, *, principal: str, key: str, answer: Answer) -> None:
    """Replace the claim on a key by its response."""
    settled = conn.execute(
        _settle, {"the_principal": principal, "the_key": key, "body": answer.body, "at_ms": answer.at_ms}
    )
    if not settled.rowcount:  # the claim was purged in between
        keep(conn, principal=principal, key=key, answer=answer)


def release(conn: sa.Connection, *, principal: str, key: str) -> None:
    """Remove the claim on a key, so that the key can be used again. A stored response stays."""
    conn.execute(_release, {"the_principal": principal, "the_key": key})
