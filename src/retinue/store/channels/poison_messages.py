"""Store poison messages: inbound messages that raised an error again and again.

They are stored for a person to inspect, so that they do not block other messages.
"""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa
from msgspec import Struct, field

from retinue.domain.access import PoisonMessage, PoisonMessageState
from retinue.domain.storable_text import make_storable
from retinue.domain.times import from_ms
from retinue.store.core import tables as t

BECAUSE_CHARS_MAX = 500
WAITING_MAX = 1_000  # per instance; beyond this, the oldest are dropped, so that a flood does not fill the store
LISTED_MAX = 200

_b = sa.bindparam
_s = t.poison_messages.c
_is_same_message = sa.and_(
    _s.connector == _b("the_instance"), _s.channel == _b("the_room"), _s.message_id == _b("the_message")
)
_is_waiting = _s.state == t.sql_literal("'waiting'")
_insert = t.poison_messages.insert()
_update = (
    t.poison_messages.update()
    .where(_is_same_message)
    .values(
        body=_b("new_body"),
        because=_b("new_because"),
        attempts=_s.attempts + _b("more"),
        state="waiting",
        at_ms=_b("now"),
    )
)
_find = sa.select(t.poison_messages).where(_s.id == _b("the_id"))
_by_prefix = sa.select(t.poison_messages).where(_s.id >= _b("low"), _s.id < _b("high")).limit(2)
_newest = sa.select(t.poison_messages).order_by(_s.at_ms.desc(), _s.id.desc()).limit(_b("limit"))
_newest_waiting = _newest.where(_is_waiting)
_all_waiting = sa.select(_s.id, _s.body).where(_is_waiting)
_close = t.poison_messages.update().where(_s.id == _b("the_id"), _is_waiting).values(state=_b("new_state"), body="")
_waiting = sa.select(sa.func.count()).select_from(t.poison_messages).where(_is_waiting)
_beyond = sa.select(_s.id).where(_is_waiting).order_by(_s.at_ms.desc(), _s.id.desc()).limit(100).offset(WAITING_MAX)


class _Sender(Struct, frozen=True):
    id: str = ""


class _Body(Struct, frozen=True):
    """The fields of a stored poison message that identify its sender."""

    sender: _Sender = field(default=_Sender(), name="speaker")
    service: str = ""


_decode_body = msgspec.json.Decoder(_Body).decode


def _message_from_row(row: sa.Row[Any]) -> PoisonMessage:
    return PoisonMessage(
        id=row.id,
        connector=row.connector,
        channel=row.channel,
        message_id=row.message_id,
        body=row.body,
        because=row.because,
        attempts=row.attempts,
        state=PoisonMessageState(row.state),
        at=from_ms(row.at_ms),
    )


def upsert(
    conn: sa.Connection,
    *,
    id_: str,
    connector: str,
    channel: str,
    message_id: str,
    body: str,
    because: str,
    tries: int,
    at_ms: int,
) -> None:
    """Store a poison message. If the message is already stored, it is updated and waits again."""
    because = make_storable(because[:BECAUSE_CHARS_MAX])
    channel, message_id, body = make_storable(channel), make_storable(message_id), make_storable(body)
    same = {"the_instance": connector, "the_room": channel, "the_message": message_id}
    values = {"new_body": body, "new_because": because, "more": tries, "now": at_ms}
    if not conn.execute(_update, {**same, **values}).rowcount:
        row = {"id": id_, "connector": connector, "channel": channel, "message_id": message_id, "body": body}
        conn.execute(_insert, {**row, "because": because, "attempts": tries, "state": "waiting", "at_ms": at_ms})
    for old in conn.execute(_beyond).scalars().all():
        close(conn, old, PoisonMessageState.DROPPED)


def get(conn: sa.Connection, id_: str) -> PoisonMessage | None:
    row = conn.execute(_find, {"the_id": id_}).one_or_none()
    return _message_from_row(row) if row else None


def find_by_prefix(conn: sa.Connection, prefix: str) -> list[PoisonMessage]:
    """Return up to two messages whose ids start with this prefix. Two messages mean that the prefix is ambiguous."""
    return [_message_from_row(row) for row in conn.execute(_by_prefix, {"low": prefix, "high": prefix + "g"})]


def list_messages(conn: sa.Connection, *, limit: int = LISTED_MAX, include_closed: bool = False) -> list[PoisonMessage]:
    """List the waiting poison messages, newest first. With `include_closed`, accepted and dropped ones are included."""
    return [
        _message_from_row(row)
        for row in conn.execute(_newest if include_closed else _newest_waiting, {"limit": min(limit, LISTED_MAX)})
    ]


def count_waiting(conn: sa.Connection) -> int:
    return conn.execute(_waiting).scalar_one()


def close(conn: sa.Connection, id_: str, state: PoisonMessageState) -> bool:
    """Mark a poison message as accepted or dropped, and clear its body. Returns False if it was not waiting."""
    return bool(conn.execute(_close, {"the_id": id_, "new_state": state.value}).rowcount)


def delete_of_sender(conn: sa.Connection, service: str, sender: str) -> None:
    """Mark the waiting messages of a sender as dropped, and clear their bodies.

    If a message does not contain its platform, only its sender id is compared.
    """
    for row in conn.execute(_all_waiting).all():
        try:
            body = _decode_body(row.body)
        except msgspec.DecodeError:
            continue  # another program wrote it
        if body.sender.id == sender and body.service in {service, ""}:
            close(conn, row.id, PoisonMessageState.DROPPED)
