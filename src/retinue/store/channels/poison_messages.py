"""Poison messages: inbound messages that failed repeatedly, stored for a person so that others can continue."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from retinue.domain.access import SetAside, SetAsideState
from retinue.domain.storable_text import storable
from retinue.domain.times import from_ms
from retinue.store.core import tables as t

BECAUSE_CHARS_MAX = 500
WAITING_MAX = 1_000  # per instance; beyond that the oldest is dropped, because a flood must not fill the store
LISTED_MAX = 200

_b = sa.bindparam
_s = t.set_aside.c
_same = sa.and_(_s.instance == _b("the_instance"), _s.room == _b("the_room"), _s.message_id == _b("the_message"))
_is_waiting = _s.state == t.word("'waiting'")
_insert = t.set_aside.insert()
_again = (
    t.set_aside.update()
    .where(_same)
    .values(
        body=_b("new_body"), because=_b("new_because"), tries=_s.tries + _b("more"), state="waiting", at_ms=_b("now")
    )
)
_find = sa.select(t.set_aside).where(_s.id == _b("the_id"))
_by_prefix = sa.select(t.set_aside).where(_s.id >= _b("low"), _s.id < _b("high")).limit(2)
_newest = sa.select(t.set_aside).order_by(_s.at_ms.desc(), _s.id.desc()).limit(_b("limit"))
_newest_waiting = _newest.where(_is_waiting)
_close = t.set_aside.update().where(_s.id == _b("the_id"), _is_waiting).values(state=_b("new_state"), body="")
_waiting = sa.select(sa.func.count()).select_from(t.set_aside).where(_is_waiting)
_beyond = sa.select(_s.id).where(_is_waiting).order_by(_s.at_ms.desc(), _s.id.desc()).limit(100).offset(WAITING_MAX)


def _row(row: sa.Row[Any]) -> SetAside:
    return SetAside(
        id=row.id,
        instance=row.instance,
        room=row.room,
        message_id=row.message_id,
        body=row.body,
        because=row.because,
        tries=row.tries,
        state=SetAsideState(row.state),
        at=from_ms(row.at_ms),
    )


def put(
    conn: sa.Connection,
    *,
    id_: str,
    instance: str,
    room: str,
    message_id: str,
    body: str,
    because: str,
    tries: int,
    at_ms: int,
) -> None:
    """Store a poison message. One that exists is updated and waits again."""
    because = storable(because[:BECAUSE_CHARS_MAX])
    room, message_id, body = storable(room), storable(message_id), storable(body)
    same = {"the_instance": instance, "the_room": room, "the_message": message_id}
    values = {"new_body": body, "new_because": because, "more": tries, "now": at_ms}
    if not conn.execute(_again, {**same, **values}).rowcount:
        row = {"id": id_, "instance": instance, "room": room, "message_id": message_id, "body": body}
        conn.execute(_insert, {**row, "because": because, "tries": tries, "state": "waiting", "at_ms": at_ms})
    for old in conn.execute(_beyond).scalars().all():
        close(conn, old, SetAsideState.DROPPED)


def get(conn: sa.Connection, id_: str) -> SetAside | None:
    row = conn.execute(_find, {"the_id": id_}).one_or_none()
    return _row(row) if row else None


def find(conn: sa.Connection, prefix: str) -> list[SetAside]:
    """Return at most two matches. Only a single one is unambiguous."""
    return [_row(row) for row in conn.execute(_by_prefix, {"low": prefix, "high": prefix + "g"})]


def listed(conn: sa.Connection, *, limit: int = LISTED_MAX, every: bool = False) -> list[SetAside]:
    """List the waiting messages, or all of them with `include_closed`, newest first."""
    return [_row(row) for row in conn.execute(_newest if every else _newest_waiting, {"limit": min(limit, LISTED_MAX)})]


def count_waiting(conn: sa.Connection) -> int:
    return conn.execute(_waiting).scalar_one()


def close(conn: sa.Connection, id_: str, state: SetAsideState) -> bool:
    """Mark a message as accepted or dropped, and clear its body. Returns False if it was not waiting."""
    return bool(conn.execute(_close, {"the_id": id_, "new_state": state.value}).rowcount)
