"""What was answered to requests that carried a key."""

from __future__ import annotations

import sqlalchemy as sa
from msgspec import Struct

from retinue.store import tables as t

_b = sa.bindparam
_get = sa.select(t.answers).where(t.answers.c.principal == _b("principal"), t.answers.c.key == _b("key"))
_insert = t.answers.insert()


class Answer(Struct, frozen=True):
    operation: str
    request_hash: str
    body: str


def get(conn: sa.Connection, *, principal: str, key: str) -> Answer | None:
    row = conn.execute(_get, {"principal": principal, "key": key}).one_or_none()
    return Answer(row.operation, row.request_hash, row.body) if row else None


def keep(conn: sa.Connection, *, principal: str, key: str, answer: Answer, at_ms: int) -> None:
    conn.execute(
        _insert,
        {
            "principal": principal,
            "key": key,
            "operation": answer.operation,
            "request_hash": answer.request_hash,
            "body": answer.body,
            "at_ms": at_ms,
        },
    )
