"""Store the latest system prompt of each session, and a snapshot of the files that its context started with."""

from __future__ import annotations

from typing import NamedTuple

import sqlalchemy as sa

from retinue.domain.ids import SessionId
from retinue.store.core import tables as t

_b = sa.bindparam
_i = t.instructions.c
_get = sa.select(t.instructions).where(_i.session == _b("session"))
_text = sa.select(_i.text).where(_i.session == _b("session"))
_insert = t.instructions.insert()
_change = (
    t.instructions.update()
    .where(_i.session == _b("the_session"))
    .values(
        context_key=_b("new_context_key"),
        snapshot=_b("new_snapshot"),
        text=_b("new_text"),
        parts=_b("new_parts"),
        at_ms=_b("now"),
    )
)
_delete = t.instructions.delete().where(_i.session == _b("the_session"))


class StoredInstructions(NamedTuple):
    """The stored system prompt of a session. `snapshot` and `parts` are JSON.

    `context_key` identifies the context of the session to which the prompt belongs.
    """

    context_key: str
    snapshot: str
    text: str
    parts: str
    at_ms: int


def get(conn: sa.Connection, session: SessionId) -> StoredInstructions | None:
    row = conn.execute(_get, {"session": session}).one_or_none()
    return StoredInstructions(row.context_key, row.snapshot, row.text, row.parts, row.at_ms) if row else None


def get_text(conn: sa.Connection, session: SessionId) -> str | None:
    row = conn.execute(_text, {"session": session}).one_or_none()
    return row.text if row is not None else None


def upsert(conn: sa.Connection, session: SessionId, stored: StoredInstructions) -> None:
    values = {
        "new_context_key": stored.context_key,
        "new_snapshot": stored.snapshot,
        "new_text": stored.text,
        "new_parts": stored.parts,
        "now": stored.at_ms,
    }
    if not conn.execute(_change, {"the_session": session, **values}).rowcount:
        conn.execute(_insert, {"session": session, **stored._asdict()})


def delete(conn: sa.Connection, session: SessionId) -> None:
    conn.execute(_delete, {"the_session": session})
