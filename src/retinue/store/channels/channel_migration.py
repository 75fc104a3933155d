"""Migrate a channel to a new platform id: its bindings, ambient messages and sessions move in one commit."""

from __future__ import annotations

import hashlib

import sqlalchemy as sa

from retinue.domain import address
from retinue.domain.session import OriginKind
from retinue.store.channels import ambient_messages, bindings, connector_state
from retinue.store.core import tables as t

ROOM_CHARS_MAX = 200  # in the key of a connector's state

_b = sa.bindparam
_s = t.sessions.c
_there = sa.and_(_s.origin_kind == OriginKind.CHAT.value, _s.origin_key == _b("key"), _s.deleted_ms.is_(None))
_here = sa.select(_s.id, _s.agent).where(_there)
_rename = t.sessions.update().where(_s.id == _b("the_id")).values(origin_key=_b("new_key"))


def activation_key(room: str) -> str:
    """Return the connector state key for the activation mode that was set in a channel."""
    named = room if len(room) <= ROOM_CHARS_MAX else hashlib.sha256(room.encode(errors="replace")).hexdigest()
    return f"house/activation/{named}"


def move_room(conn: sa.Connection, instance: str, room: str, new_room: str, *, at_ms: int) -> int:
    """Migrate a channel. Returns how many sessions moved.

    If the same agent already has a session in the new channel, that one continues, and the old one
    stays readable.
    """
    new = address.parse(f"channel:{instance}:{new_room}")
    old = address.parse(f"channel:{instance}:{room}")
    if new == old:
        return 0
    bindings.move(conn, instance, room, new_room)
    ambient_messages.move(conn, instance, room, new_room)
    if (activation := connector_state.get(conn, instance, activation_key(room))) is not None:
        connector_state.put(conn, instance, activation_key(new_room), activation, at_ms=at_ms)
        connector_state.remove(conn, instance, activation_key(room))
    taken = {row.agent for row in conn.execute(_here, {"key": str(new)})}
    going = [row.id for row in conn.execute(_here, {"key": str(old)}) if row.agent not in taken]
    for id_ in going:
        conn.execute(_rename, {"the_id": id_, "new_key": str(new)})
    return len(going)
