"""Ambient messages: the latest messages in a channel that were not for the agent.

The next inbound message includes them once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from retinue.domain.access import Overheard
from retinue.domain.times import from_ms
from retinue.store.core import tables as t

TEXT_CHARS_MAX = 1_000  # per message
ROOMS_MAX = 2_000  # per connector: in further channels, nothing is stored

_b = sa.bindparam
_c = t.overheard.c
_here = sa.and_(_c.instance == _b("the_instance"), _c.room == _b("the_room"))
_read = sa.select(t.overheard).where(_here).order_by(_c.seq)
_last = sa.select(sa.func.max(_c.seq)).where(_here)
_seen = sa.select(_c.seq).where(_here, _c.message_id == _b("message_id")).limit(1)
_rooms = sa.select(sa.func.count(_c.room.distinct())).where(_c.instance == _b("the_instance"))
_insert = t.overheard.insert()
_change = t.overheard.update().where(_here, _c.seq == _b("the_seq")).values(text=_b("new_text"))
_upto = t.overheard.delete().where(_here, _c.seq <= _b("upto"))
_move = t.overheard.update().where(_here).values(room=_b("new_room"))
_all_there = t.overheard.delete().where(_here)
_forget = t.overheard.delete().where(_c.instance == _b("the_instance"), _c.speaker == _b("the_speaker"))
_instances = sa.select(_c.instance).where(_c.speaker == _b("speaker")).distinct()


def _overheard(row: sa.Row[Any]) -> Overheard:
    return Overheard(
        seq=row.seq,
        message_id=row.message_id,
        speaker=row.speaker,
        name=row.name,
        text=row.text,
        at=from_ms(row.at_ms),
    )


def read(conn: sa.Connection, instance: str, room: str) -> list[Overheard]:
    """List the ambient messages of a channel, oldest first."""
    return [_overheard(row) for row in conn.execute(_read, {"the_instance": instance, "the_room": room})]


def add(
    conn: sa.Connection,
    instance: str,
    room: str,
    *,
    message_id: str,
    speaker: str,
    name: str,
    text: str,
    limit: int,
    at_ms: int,
) -> bool:
    """Store a message and remove all but the latest `limit`. One that is received again replaces its earlier text.

    Returns whether it is new.
    """
    here = {"the_instance": instance, "the_room": room}
    text = text[:TEXT_CHARS_MAX]
    seen = conn.execute(_seen, {**here, "message_id": message_id}).scalar()
    if seen is not None:
        conn.execute(_change, {**here, "the_seq": seen, "new_text": text})
        return False
    last: int = conn.execute(_last, here).scalar() or 0
    if limit <= 0 or (not last and conn.execute(_rooms, {"the_instance": instance}).scalar_one() >= ROOMS_MAX):
        return False
    row = {"message_id": message_id, "speaker": speaker, "name": name, "text": text, "at_ms": at_ms}
    conn.execute(_insert, {"instance": instance, "room": room, "seq": last + 1, **row})
    conn.execute(_upto, {**here, "upto": last + 1 - limit})
    return True


def told(conn: sa.Connection, instance: str, room: str, *, upto: int) -> None:
    """Delete the messages that were shown, so that they are not shown again."""
    conn.execute(_upto, {"the_instance": instance, "the_room": room, "upto": upto})


def move(conn: sa.Connection, instance: str, room: str, new_room: str) -> None:
    """Move the messages of a channel to its new id. They are dropped if the new one already has some."""
    new = {"the_instance": instance, "the_room": new_room}
    old = {"the_instance": instance, "the_room": room}
    if conn.execute(_last, new).scalar() is None:
        conn.execute(_move, {**old, "new_room": new_room})
    else:
        conn.execute(_all_there, old)


def forget(conn: sa.Connection, instances: Sequence[str], speaker: str) -> None:
    for instance in instances:
        conn.execute(_forget, {"the_instance": instance, "the_speaker": speaker})


def where_heard(conn: sa.Connection, speaker: str) -> list[str]:
    """List the connectors that have ambient messages of this speaker."""
    return [row.instance for row in conn.execute(_instances, {"speaker": speaker})]
