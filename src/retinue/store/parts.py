"""Parts in the store: which message of a platform each part of an envelope became."""

from __future__ import annotations

import sqlalchemy as sa

from retinue.domain.ids import EnvelopeId
from retinue.store import tables as t

_b = sa.bindparam
_p = t.parts
_insert = _p.insert()
_of = sa.select(_p.c.part, _p.c.receipt).where(_p.c.envelope == _b("envelope")).order_by(_p.c.part)
_by_receipt = sa.select(_p.c.envelope).where(_p.c.channel == _b("channel"), _p.c.receipt == _b("receipt")).limit(1)


def add(conn: sa.Connection, envelope: str, part: int, *, channel: str, receipt: str, at_ms: int) -> None:
    """It arrived. Kept once: a commit whose answer was lost is made again."""
    if part not in of(conn, envelope):
        conn.execute(
            _insert, {"envelope": envelope, "part": part, "channel": channel, "receipt": receipt, "at_ms": at_ms}
        )


def of(conn: sa.Connection, envelope: str) -> dict[int, str]:
    """What arrived of an envelope: each part's receipt."""
    return {row.part: row.receipt for row in conn.execute(_of, {"envelope": envelope})}


def first(conn: sa.Connection, envelope: str) -> str | None:
    """The message with which an envelope begins, where it has arrived."""
    return of(conn, envelope).get(0)


def named(conn: sa.Connection, channel: str, receipt: str) -> EnvelopeId | None:
    """The envelope that a message of ours in a room was part of."""
    found: str | None = conn.execute(_by_receipt, {"channel": channel, "receipt": receipt}).scalar()
    return EnvelopeId(found) if found is not None else None
