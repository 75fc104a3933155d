"""Store delivery parts: the platform messages into which an envelope was split, with their ids."""

from __future__ import annotations

import sqlalchemy as sa

from retinue.domain.ids import EnvelopeId
from retinue.store.core import tables as t

_b = sa.bindparam
_p = t.delivery_parts
_insert = _p.insert()
_receipts = sa.select(_p.c.part, _p.c.receipt).where(_p.c.envelope == _b("envelope")).order_by(_p.c.part)
_split_by = sa.select(_p.c.split_by).where(_p.c.envelope == _b("envelope"), _p.c.split_by.is_not(None)).limit(1)
_last_ms = sa.select(sa.func.max(_p.c.at_ms)).where(_p.c.envelope == _b("envelope"))
_by_receipt = sa.select(_p.c.envelope).where(_p.c.channel == _b("channel"), _p.c.receipt == _b("receipt")).limit(1)


def add(
    conn: sa.Connection,
    envelope: str,
    part: int,
    *,
    channel: str,
    receipt: str,
    at_ms: int,
    split_by: str | None = None,
) -> None:
    """Record that a part was delivered. The call may be repeated, for example if a commit's result is unknown.

    `split_by` says how the envelope was split. It is stored only with the first delivered part.
    """
    arrived = get_receipts(conn, envelope)
    if part not in arrived:
        row = {"envelope": envelope, "part": part, "channel": channel, "receipt": receipt, "at_ms": at_ms}
        conn.execute(_insert, {**row, "split_by": None if arrived else split_by})


def get_split(conn: sa.Connection, envelope: str) -> str | None:
    """Return how the envelope was split, or None if no part has been delivered yet."""
    return conn.execute(_split_by, {"envelope": envelope}).scalar()


def get_last_ms(conn: sa.Connection, envelope: str) -> int | None:
    """Return when the last part was delivered, or None if no part has been delivered yet."""
    return conn.execute(_last_ms, {"envelope": envelope}).scalar()


def get_receipts(conn: sa.Connection, envelope: str) -> dict[int, str]:
    """Return the platform message ids of the delivered parts, by part number."""
    return {row.part: row.receipt for row in conn.execute(_receipts, {"envelope": envelope})}


def get_first_receipt(conn: sa.Connection, envelope: str) -> str | None:
    """Return the platform message id of the envelope's first part, or None if it has not been delivered yet."""
    return get_receipts(conn, envelope).get(0)


def find_envelope(conn: sa.Connection, channel: str, receipt: str) -> EnvelopeId | None:
    """Return the id of the envelope that was delivered as this platform message, or None.

    `receipt` is the id of the platform message in the channel.
    """
    found: str | None = conn.execute(_by_receipt, {"channel": channel, "receipt": receipt}).scalar()
    return EnvelopeId(found) if found is not None else None
