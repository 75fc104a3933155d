"""Store delivery parts: which platform message each part of an envelope became."""

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
    """Record that a part arrived. The call may be repeated, for example if it is unknown whether a commit succeeded.

    `split_by` is stored with the first part.
    """
    arrived = get_receipts(conn, envelope)
    if part not in arrived:
        row = {"envelope": envelope, "part": part, "channel": channel, "receipt": receipt, "at_ms": at_ms}
        conn.execute(_insert, {**row, "split_by": None if arrived else split_by})


def get_split(conn: sa.Connection, envelope: str) -> str | None:
    """Return how the envelope was split, as stored when its first part arrived; None if no part has arrived."""
    return conn.execute(_split_by, {"envelope": envelope}).scalar()


def get_last_ms(conn: sa.Connection, envelope: str) -> int | None:
    """Return when the latest part of the envelope arrived; None if no part has arrived."""
    return conn.execute(_last_ms, {"envelope": envelope}).scalar()


def get_receipts(conn: sa.Connection, envelope: str) -> dict[int, str]:
    """Return the receipts of the parts that arrived, by part number."""
    return {row.part: row.receipt for row in conn.execute(_receipts, {"envelope": envelope})}


def get_first_receipt(conn: sa.Connection, envelope: str) -> str | None:
    """Return the receipt of the envelope's first part, if it has arrived."""
    return get_receipts(conn, envelope).get(0)


def find_envelope(conn: sa.Connection, channel: str, receipt: str) -> EnvelopeId | None:
    """Return the envelope to which a platform message from the server belongs. `receipt` is the id of that message."""
    found: str | None = conn.execute(_by_receipt, {"channel": channel, "receipt": receipt}).scalar()
    return EnvelopeId(found) if found is not None else None
