"""Store ambient messages: the latest messages in a channel that were not addressed to the agent.

The agent reads each ambient message once, together with the next message that is addressed to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from retinue.domain.access import AmbientMessage
from retinue.domain.times import from_ms
from retinue.store.core import tables as t

TEXT_CHARS_MAX = 1_000  # characters per message
CHANNELS_MAX = 2_000  # channels per connector; in further channels, nothing is stored

_b = sa.bindparam
_c = t.ambient_messages.c
_in_channel = sa.and_(_c.connector == _b("the_instance"), _c.channel == _b("the_room"))
_read = sa.select(t.ambient_messages).where(_in_channel).order_by(_c.seq)
_last = sa.select(sa.func.max(_c.seq)).where(_in_channel)
_by_message_id = sa.select(_c.seq).where(_in_channel, _c.message_id == _b("message_id")).limit(1)
_count_channels = sa.select(sa.func.count(_c.channel.distinct())).where(_c.connector == _b("the_instance"))
_insert = t.ambient_messages.insert()
_change = t.ambient_messages.update().where(_in_channel, _c.seq == _b("the_seq")).values(text=_b("new_text"))
_delete_upto = t.ambient_messages.delete().where(_in_channel, _c.seq <= _b("upto"))
_move = t.ambient_messages.update().where(_in_channel).values(channel=_b("new_room"))
_delete_all = t.ambient_messages.delete().where(_in_channel)
_delete_of_sender = t.ambient_messages.delete().where(
    _c.connector == _b("the_instance"), _c.sender == _b("the_sender_id")
)
_instances = sa.select(_c.connector).where(_c.sender == _b("sender")).distinct()


def _message_from_row(row: sa.Row[Any]) -> AmbientMessage:
    return AmbientMessage(
        seq=row.seq,
        message_id=row.message_id,
        sender_id=row.sender,
        sender_name=row.name,
        text=row.text,
        at=from_ms(row.at_ms),
    )


def list_messages(conn: sa.Connection, connector: str, channel: str) -> list[AmbientMessage]:
    """List the ambient messages of a channel, oldest first."""
    return [_message_from_row(row) for row in conn.execute(_read, {"the_instance": connector, "the_room": channel})]


def add(
    conn: sa.Connection,
    connector: str,
    channel: str,
    *,
    message_id: str,
    sender_id: str,
    name: str,
    text: str,
    limit: int,
    at_ms: int,
) -> bool:
    """Store an ambient message, and delete all but the latest `limit` messages of its channel.

    If a message with this id is already stored, only its text is replaced. Returns whether a new
    message was stored.
    """
    here = {"the_instance": connector, "the_room": channel}
    text = text[:TEXT_CHARS_MAX]
    seen = conn.execute(_by_message_id, {**here, "message_id": message_id}).scalar()
    if seen is not None:
        conn.execute(_change, {**here, "the_seq": seen, "new_text": text})
        return False
    last: int = conn.execute(_last, here).scalar() or 0
    if limit <= 0 or (
        not last and conn.execute(_count_channels, {"the_instance": connector}).scalar_one() >= CHANNELS_MAX
    ):
        return False
    row = {"message_id": message_id, "sender": sender_id, "name": name, "text": text, "at_ms": at_ms}
    conn.execute(_insert, {"connector": connector, "channel": channel, "seq": last + 1, **row})
    conn.execute(_delete_upto, {**here, "upto": last + 1 - limit})
    return True


def delete_shown(conn: sa.Connection, connector: str, channel: str, *, upto: int) -> None:
    """Delete the messages of a channel up to number `upto`, because the agent has read them."""
    conn.execute(_delete_upto, {"the_instance": connector, "the_room": channel, "upto": upto})


def move(conn: sa.Connection, connector: str, channel: str, new_channel: str) -> None:
    """Move the ambient messages of a channel to the channel's new id.

    If messages are already stored under the new id, the messages under the old id are deleted.
    """
    new = {"the_instance": connector, "the_room": new_channel}
    old = {"the_instance": connector, "the_room": channel}
    if conn.execute(_last, new).scalar() is None:
        conn.execute(_move, {**old, "new_room": new_channel})
    else:
        conn.execute(_delete_all, old)


def delete_of_sender(conn: sa.Connection, connectors: Sequence[str], sender_id: str) -> None:
    for instance in connectors:
        conn.execute(_delete_of_sender, {"the_instance": instance, "the_sender_id": sender_id})


def list_connectors(conn: sa.Connection, sender_id: str) -> list[str]:
    """List the connectors with ambient messages from this sender."""
    return [row.connector for row in conn.execute(_instances, {"sender": sender_id})]
