"""Migrate a channel whose id on the platform has changed.

Its bindings, ambient messages, activation mode and sessions move to the new id in one commit.
"""

from __future__ import annotations

import hashlib

import sqlalchemy as sa

from retinue.domain import address
from retinue.domain.session import OriginKind
from retinue.store.channels import ambient_messages, bindings, connector_state
from retinue.store.core import tables as t

CHANNEL_CHARS_MAX = 200  # longer channel ids are hashed in the keys of a connector's state

_b = sa.bindparam
_s = t.sessions.c
_is_in_channel = sa.and_(_s.origin_kind == OriginKind.CHAT.value, _s.origin_key == _b("key"), _s.deleted_ms.is_(None))
_sessions_in_channel = sa.select(_s.id, _s.agent).where(_is_in_channel)
_rename = t.sessions.update().where(_s.id == _b("the_id")).values(origin_key=_b("new_key"))


def activation_key(channel: str) -> str:
    """Return the key under which a connector's state stores the activation mode of a channel."""
    named = (
        channel if len(channel) <= CHANNEL_CHARS_MAX else hashlib.sha256(channel.encode(errors="replace")).hexdigest()
    )
    return f"server/activation/{named}"


def migrate_channel(conn: sa.Connection, connector: str, channel: str, new_channel: str, *, at_ms: int) -> int:
    """Migrate a channel to its new id. Returns how many sessions moved.

    If an agent already has a session in the new channel, that session continues. The agent's
    session in the old channel is not moved and stays readable.
    """
    new = address.parse_address(f"channel:{connector}:{new_channel}")
    old = address.parse_address(f"channel:{connector}:{channel}")
    if new == old:
        return 0
    bindings.move_channel(conn, connector, channel, new_channel)
    ambient_messages.move(conn, connector, channel, new_channel)
    if (activation := connector_state.get_value(conn, connector, activation_key(channel))) is not None:
        connector_state.set_value(conn, connector, activation_key(new_channel), activation, at_ms=at_ms)
        connector_state.delete_value(conn, connector, activation_key(channel))
    taken = {row.agent for row in conn.execute(_sessions_in_channel, {"key": str(new)})}
    going = [row.id for row in conn.execute(_sessions_in_channel, {"key": str(old)}) if row.agent not in taken]
    for id_ in going:
        conn.execute(_rename, {"the_id": id_, "new_key": str(new)})
    return len(going)
