"""What was answered to requests that carried a key, and which keys are claimed by a request that has no answer yet."""

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
    """`at_ms` is when it was answered; of a claim, when it was made."""

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
    """Store the answer to a key that is not known yet, or claim such a key."""
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
    """Replace the claim on a key by its answer."""
    settled = conn.execute(
        _settle, {"the_principal": principal, "the_key": key, "body": answer.body, "at_ms": answer.at_ms}
    )
    if not settled.rowcount:  # the claim was purged meanwhile
        keep(conn, principal=principal, key=key, answer=answer)


def release(conn: sa.Connection, *, principal: str, key: str) -> None:
    """Remove the claim on a key, so that it can be used again. An answer stays."""
    conn.execute(_release, {"the_principal": principal, "the_key": key})
