"""Money in the store: reserved before a call is made, settled or released with its step."""

from __future__ import annotations

import sqlalchemy as sa

from retinue.domain.address import AddressKind
from retinue.domain.run import Run
from retinue.store import tables as t

DAY_MS = 86_400_000

_b = sa.bindparam
_reserve = t.money.insert()
_this = sa.and_(
    t.money.c.run == _b("the_run"), t.money.c.turn == _b("the_turn"), t.money.c.attempt == _b("the_attempt")
)
_settle = (
    t.money.update()
    .where(_this)
    .values(settled_microusd=_b("spent"), released_microusd=t.money.c.reserved_microusd - _b("spent"), held_microusd=0)
)
_lost = (
    t.money.update()
    .where(t.money.c.run == _b("the_run"), t.money.c.held_microusd > 0)
    .values(settled_microusd=t.money.c.held_microusd, held_microusd=0, unknown=True)
)


def reserve(conn: sa.Connection, run: Run, turn: int, attempt: int, *, microusd: int, at_ms: int) -> None:
    conn.execute(
        _reserve,
        {
            "run": run.id,
            "turn": turn,
            "idx": 0,
            "attempt": attempt,
            "session": run.session,
            "root": run.id,
            "agent": run.agent,
            "person": run.sender.name if run.sender.kind is AddressKind.PERSON else "",
            "provider": "",
            "model": "",
            "credential": "",
            "day": at_ms // DAY_MS,
            "input_tokens": 0,
            "output_tokens": 0,
            "cache_read_tokens": 0,
            "cache_write_tokens": 0,
            "reasoning_tokens": 0,
            "estimated": False,
            "failure": None,
            "next_move": None,
            "error": None,
            "ended_ms": None,
            "reserved_microusd": microusd,
            "settled_microusd": 0,
            "released_microusd": 0,
            "held_microusd": microusd,
            "unknown": False,
            "at_ms": at_ms,
        },
    )


def settle(conn: sa.Connection, run: str, turn: int, attempt: int, *, microusd: int) -> None:
    conn.execute(_settle, {"the_run": run, "the_turn": turn, "the_attempt": attempt, "spent": microusd})


def count_as_spent(conn: sa.Connection, run: str) -> None:
    """A call whose end nobody saw may have cost everything that was reserved for it."""
    conn.execute(_lost, {"the_run": run})
