"""Reply threads: from an envelope to the envelope that it replies to, and so on back to the first one."""

from __future__ import annotations

import sqlalchemy as sa
from msgspec import Struct

from retinue.domain.envelope import Envelope
from retinue.domain.ids import EnvelopeId
from retinue.domain.principal import SERVER_PRINCIPAL, Principal
from retinue.store.core import tables as t
from retinue.store.core.row_visibility import can_see_envelope
from retinue.store.envelopes.envelopes import get, resolve_id
from retinue.store.maintenance.purge import was_purged

THREAD_SHOWN_MAX = 20
THREAD_HOPS_MAX = 5_000

_b = sa.bindparam
_first = sa.select(t.envelopes.c.id, t.envelopes.c.reply_to, sa.literal(0).label("hop")).where(
    t.envelopes.c.id == _b("id")
)
_chain = _first.cte("chain", recursive=True)
# Every envelope replies to at most one other, so each hop finds at most one row. A cycle ends at the hop limit.
_chain = _chain.union_all(
    sa.select(t.envelopes.c.id, t.envelopes.c.reply_to, _chain.c.hop + 1)
    .join_from(_chain, t.envelopes, t.envelopes.c.id == _chain.c.reply_to)
    .where(_chain.c.hop < _b("hops"))
)
_select_chain = sa.select(_chain.c.id, _chain.c.reply_to).order_by(_chain.c.hop)


class ReplyThread(Struct, frozen=True, kw_only=True):
    """A chain of replies, from the requested envelope back to the root.

    A long chain is shortened to the envelopes nearest to the requested one, and the root.
    `left_out` is the number of omitted envelopes.
    """

    envelopes: tuple[Envelope, ...]
    total: int
    whole: bool  # whether the last envelope is the root: false in a cycle, after a gap, or beyond the hop limit
    purged: bool = False  # whether the chain ends because the next envelope was purged, as far as is still known

    @property
    def left_out(self) -> int:
        return self.total - len(self.envelopes)


def get_reply_thread(conn: sa.Connection, id_text: str, *, seen_by: Principal = SERVER_PRINCIPAL) -> ReplyThread:
    """Return the replies from the envelope with this short id back to the root.

    The thread ends before the first envelope that the caller cannot see.
    """
    ids: dict[EnvelopeId, None] = {}  # in the order of the chain
    earlier: str | None = None
    for row in conn.execute(
        _select_chain, {"id": resolve_id(conn, id_text, seen_by=seen_by), "hops": THREAD_HOPS_MAX - 1}
    ):
        if row.id in ids or not (seen_by.sees_everything or can_see_envelope(conn, seen_by, row.id)):
            break
        ids[EnvelopeId(row.id)] = None
        earlier = row.reply_to
    met = list(ids)
    shown = met if len(met) <= THREAD_SHOWN_MAX else [*met[: THREAD_SHOWN_MAX - 1], met[-1]]
    found = tuple(envelope for id_ in shown if (envelope := get(conn, id_)) is not None)
    # Only if the chain ends in a gap, not at an envelope that the caller cannot see.
    gone = earlier is not None and get(conn, earlier) is None and was_purged(conn, earlier)
    return ReplyThread(envelopes=found, total=len(met), whole=earlier is None, purged=gone)
