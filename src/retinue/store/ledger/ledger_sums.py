"""Compute the totals of the ledger: accepted envelopes, their outcomes, open envelopes, and cost."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from msgspec import Struct

from retinue.store.core import tables as t
from retinue.text.quantity import format_quantity

SOURCES_SHOWN_MAX = 20

_accepted = (
    sa.select(t.accepted_counts.c.source, sa.func.sum(t.accepted_counts.c.accepted).label("n"))
    .group_by(t.accepted_counts.c.source)
    .order_by(sa.desc("n"), t.accepted_counts.c.source)
    .limit(SOURCES_SHOWN_MAX)
)
_totals = sa.select(
    sa.func.coalesce(sa.func.sum(t.accepted_counts.c.accepted), 0).label("accepted"),
    sa.func.coalesce(sa.func.sum(t.accepted_counts.c.purged), 0).label("purged"),
    sa.func.count(t.accepted_counts.c.source.distinct()).label("sources"),
)
_outcomes = (
    sa.select(t.outcomes.c.outcome, sa.func.count().label("n")).group_by(t.outcomes.c.outcome).order_by(sa.desc("n"))
)
_open = (
    # With literals, so that the query planner uses a partial index and only open rows are read.
    sa.union_all(
        sa.select(t.PENDING.label("status"), sa.func.count().label("n")).where(t.envelopes.c.status == t.PENDING),
        sa.select(t.envelopes.c.status, sa.func.count())
        .where(t.envelopes.c.status.in_(t.HELD_STATUSES))
        .group_by(t.envelopes.c.status),
    )
)
_excess = t.model_calls.c.settled_microusd - t.model_calls.c.reserved_microusd
_money = sa.select(
    *(
        sa.func.coalesce(sa.func.sum(t.model_calls.c[f"{name}_microusd"]), 0).label(name)
        for name in ("reserved", "settled", "released", "held")
    ),
    sa.func.coalesce(sa.func.sum(sa.case((_excess > 0, _excess), else_=0)), 0).label("excess"),
)


class LedgerMoney(Struct, frozen=True, kw_only=True):
    reserved_microusd: int
    settled_microusd: int
    released_microusd: int  # minus the amounts by which calls exceeded their reservations
    held_microusd: int
    excess_microusd: int  # the sum of those amounts


class LedgerSums(Struct, frozen=True, kw_only=True):
    accepted: int
    purged: int
    sources: int
    by_source: dict[str, int]  # accepted envelopes of the largest sources; `sources` is the number of all sources
    by_outcome: dict[str, int]
    by_open_status: dict[str, int]
    money: LedgerMoney

    @property
    def done(self) -> int:
        return sum(self.by_outcome.values())

    @property
    def open(self) -> int:
        return sum(self.by_open_status.values())

    def lines(self) -> list[str]:
        left_out = self.sources - len(self.by_source)
        lines = [
            f"accepted {_format_parts(self.accepted, self.by_source)}"
            + (f", and the rest from {format_quantity(left_out, 'other source')}" if left_out else ""),
            f"done {_format_parts(self.done, self.by_outcome)}",
            f"open {_format_parts(self.open, self.by_open_status)}",
        ]
        if self.purged:
            lines.append(f"purged {self.purged:,}")
        money = self.money
        if money.reserved_microusd or money.settled_microusd:
            lines.append(
                f"reserved {_format_usd(money.reserved_microusd)}: {_format_usd(money.settled_microusd)} settled, "
                f"{_format_usd(money.released_microusd)} released, {_format_usd(money.held_microusd)} held"
                + (f"; {_format_usd(money.excess_microusd)} was spent beyond it" if money.excess_microusd else "")
            )
        return lines

    def as_dict(self) -> dict[str, Any]:
        return {
            "accepted": self.accepted,
            "purged": self.purged,
            "sources": self.sources,
            "by_source": self.by_source,
            "done": self.done,
            "by_outcome": self.by_outcome,
            "open": self.open,
            "by_open_status": self.by_open_status,
            "reserved_microusd": self.money.reserved_microusd,
            "settled_microusd": self.money.settled_microusd,
            "released_microusd": self.money.released_microusd,
            "held_microusd": self.money.held_microusd,
            "excess_microusd": self.money.excess_microusd,
        }


def compute_sums(conn: sa.Connection) -> LedgerSums:
    totals = conn.execute(_totals).one()
    money = conn.execute(_money).one()
    return LedgerSums(
        accepted=int(totals.accepted),
        purged=int(totals.purged),
        sources=totals.sources,
        by_source={row.source: int(row.n) for row in conn.execute(_accepted)},
        by_outcome={row.outcome: row.n for row in conn.execute(_outcomes)},
        by_open_status={row.status: row.n for row in conn.execute(_open) if row.n},
        money=LedgerMoney(
            reserved_microusd=int(money.reserved),
            settled_microusd=int(money.settled),
            released_microusd=int(money.released),
            held_microusd=int(money.held),
            excess_microusd=int(money.excess),
        ),
    )


def _format_parts(total: int, parts: dict[str, int]) -> str:
    return f"{total:,}: " + ", ".join(f"{n:,} {name}" for name, n in parts.items()) if parts else f"{total:,}"


def _format_usd(microusd: int) -> str:
    return f"${microusd / 1e6:.6f}"
