"""Estimates the duration and tokens of a run from the last runs of its schedule, or else of its agent.

If there are none, a fixed assumption is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import sqlalchemy as sa
from msgspec import Struct

from retinue.domain.address import Address, AddressKind
from retinue.domain.record import Usage
from retinue.store.core import tables as t

LOOKED_AT_MAX = 20  # last runs per estimate
ASSUMED_S = 30.0
ASSUMED_INPUT_TOKENS = 8_000
ASSUMED_OUTPUT_TOKENS = 500


class Estimate(Struct, frozen=True, kw_only=True):
    """The expected duration and tokens of a run."""

    seconds: float
    usage: Usage
    basis: str  # explanation for the report


ASSUMED = Estimate(
    seconds=ASSUMED_S,
    usage=Usage(input_tokens=ASSUMED_INPUT_TOKENS, output_tokens=ASSUMED_OUTPUT_TOKENS),
    basis=f"assumed: {ASSUMED_INPUT_TOKENS:,} tokens read, {ASSUMED_OUTPUT_TOKENS:,} written, {ASSUMED_S:g} s",
)

_b = sa.bindparam
_r, _m, _s, _e = t.runs, t.money, t.schedule_slots, t.envelopes
_SORTS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens")
_took = (
    _r.c.id,
    (_r.c.ended_ms - _r.c.started_ms).label("took_ms"),
    *(
        sa.select(sa.func.coalesce(sa.func.sum(_m.c[sort]), 0)).where(_m.c.run == _r.c.id).scalar_subquery().label(sort)
        for sort in _SORTS
    ),
)
_of_schedule = (
    sa.select(*_took)
    .select_from(_s.join(_e, _e.c.id == _s.c.envelope).join(_r, _r.c.id == _e.c.run))
    .where(_s.c.schedule == _b("schedule"), _s.c.state == "ran", _r.c.status == "completed")
    .order_by(_s.c.seq.desc())
    .limit(LOOKED_AT_MAX)
)
_of_agent = (
    sa.select(*_took)
    .where(_r.c.agent == _b("agent"), _r.c.status == "completed")
    .order_by(_r.c.started_ms.desc())
    .limit(LOOKED_AT_MAX)
)


class Estimates:
    """Reads its data once, before the simulation, so that simulated runs do not count."""

    def __init__(
        self, conn: sa.Connection, schedules: Sequence[tuple[str, str]], agents: Sequence[str], *, run_s: float | None
    ) -> None:
        """`schedules` are ids, each with the name of its agent, if it has one.

        `run_s`: use this duration for every run.
        """
        self._run_s = run_s
        self._agents = {agent: self._of(conn.execute(_of_agent, {"agent": agent}).all(), agent) for agent in agents}
        self._schedules = {
            id_: self._of(conn.execute(_of_schedule, {"schedule": id_}).all(), "") or self._agents.get(agent)
            for id_, agent in schedules
        }

    def of(self, sender: Address, agent: str) -> Estimate:
        own = self._schedules.get(sender.name) if sender.kind is AddressKind.SCHEDULE else None
        return own or self._agents.get(agent) or self._timed(ASSUMED)

    def of_schedule(self, id_: str) -> Estimate:
        return self._schedules.get(id_) or self._timed(ASSUMED)

    def _of(self, rows: Sequence[sa.Row[tuple[object, ...]]], agent: str) -> Estimate | None:
        if not rows:
            return None
        whose = f"{agent}'s last" if agent else "its last"
        basis = f"{whose} run" if len(rows) == 1 else f"the median of {whose} {len(rows)} runs"
        tokens = {sort: round(median(getattr(row, sort) for row in rows)) for sort in _SORTS}
        seconds = max(0.0, median(row.took_ms for row in rows) / 1000)
        return self._timed(Estimate(seconds=seconds, usage=Usage(**tokens), basis=basis))

    def _timed(self, estimate: Estimate) -> Estimate:
        if self._run_s is None:
            return estimate
        return Estimate(seconds=self._run_s, usage=estimate.usage, basis=f"{estimate.basis}; {self._run_s:g} s as told")
