"""Find the envelope of a platform message that has no envelope under its own idempotency key.

The message is either a delivery part of an outbound envelope, or was merged with other messages
into one inbound envelope.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from retinue.domain.envelope import Envelope
from retinue.domain.ids import EnvelopeId
from retinue.store.core import tables as t
from retinue.store.envelopes.envelopes import envelope_from_row

_b = sa.bindparam
_p = t.delivery_parts.c
# The join requires that the envelope exists: the process may have stopped before the envelope was accepted.
_find = (
    sa.select(t.envelopes)
    .join(t.delivery_parts, _p.envelope == t.envelopes.c.id)
    .where(_p.channel == _b("channel"), _p.receipt == _b("message_id"))
    .order_by(t.envelopes.c.seq.desc())
    .limit(1)
)
_insert = t.delivery_parts.insert()


def find(conn: sa.Connection, channel: str, message_id: str) -> Envelope | None:
    row = conn.execute(_find, {"channel": channel, "message_id": message_id}).one_or_none()
    return envelope_from_row(row) if row else None


def insert(conn: sa.Connection, envelope: EnvelopeId, channel: str, message_ids: Sequence[str], *, at_ms: int) -> None:
    """Record the ids of the platform messages that are merged into one inbound envelope.

    Call this before the envelope is accepted, so that each of the messages can be found from then
    on.
    """
    rows = [
        {"envelope": envelope, "part": part, "channel": channel, "receipt": message_id, "at_ms": at_ms}
        for part, message_id in enumerate(message_ids)
    ]
    conn.execute(_insert, rows)
