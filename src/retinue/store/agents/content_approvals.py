"""Store the hashes of approved skills, hooks, instructions and MCP tools.

If the content changes, its hash no longer matches, and it needs a new approval.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from msgspec import Struct

from retinue.domain.times import from_ms
from retinue.store.core import tables as t

CONTENT_CHARS_MAX = 500_000
NAME_LENGTH_MAX = 256

_b = sa.bindparam
_p = t.approved_hashes.c
_has_name = sa.and_(_p.kind == _b("the_kind"), _p.name == _b("the_name"))
_find = sa.select(t.approved_hashes).where(_has_name)
_hashes = sa.select(_p.name, _p.hash).where(_p.kind == _b("the_kind"))
_all = sa.select(t.approved_hashes).where(_p.kind == _b("the_kind")).order_by(_p.name)
_insert = t.approved_hashes.insert()
_change = (
    t.approved_hashes.update()
    .where(_has_name)
    .values(hash=_b("new_hash"), content=_b("new_content"), decided_by=_b("who"), at_ms=_b("now"))
)
_remove = t.approved_hashes.delete().where(_has_name)


class ApprovedHash(Struct, frozen=True, kw_only=True):
    """The approval of one skill, hook, instruction file or tool. `content` is stored to show a diff later."""

    kind: str
    name: str
    hash: str
    content: str
    decided_by: str
    at: datetime


def _approved_hash_from_row(row: sa.Row[Any]) -> ApprovedHash:
    return ApprovedHash(
        kind=row.kind,
        name=row.name,
        hash=row.hash,
        content=row.content,
        decided_by=row.decided_by,
        at=from_ms(row.at_ms),
    )


def find(conn: sa.Connection, kind: str, name: str) -> ApprovedHash | None:
    row = conn.execute(_find, {"the_kind": kind, "the_name": name}).one_or_none()
    return _approved_hash_from_row(row) if row else None


def get_hashes(conn: sa.Connection, kind: str) -> dict[str, str]:
    """Return the approved hashes of one kind of content, such as skills or hooks, by name."""
    return {row.name: row.hash for row in conn.execute(_hashes, {"the_kind": kind})}


def list_all(conn: sa.Connection, kind: str) -> list[ApprovedHash]:
    return [_approved_hash_from_row(row) for row in conn.execute(_all, {"the_kind": kind})]


def upsert(conn: sa.Connection, kind: str, name: str, *, hash_: str, content: str, decided_by: str, at_ms: int) -> None:
    """Store an approval. It replaces an earlier approval with the same kind and name.

    Content longer than `CONTENT_CHARS_MAX` is stored truncated. `hash_` is the hash of the complete
    content.
    """
    content = content[:CONTENT_CHARS_MAX]
    values = {"new_hash": hash_, "new_content": content, "who": decided_by, "now": at_ms}
    if conn.execute(_change, {"the_kind": kind, "the_name": name, **values}).rowcount:
        return
    row = {"kind": kind, "name": name, "hash": hash_, "content": content, "decided_by": decided_by, "at_ms": at_ms}
    conn.execute(_insert, row)


def remove(conn: sa.Connection, kind: str, name: str) -> bool:
    """Remove an approval. Returns False if there was none."""
    return bool(conn.execute(_remove, {"the_kind": kind, "the_name": name}).rowcount)
