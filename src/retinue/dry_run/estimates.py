"""Estimates how long a run takes and how many tokens it uses, from the last runs of its schedule or agent.

If there are no such runs, a fixed assumption is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import sqlalchemy as sa
from msgspec import Struct

from retinue.domain.address import Address, AddressKind
from retinue.domain.record import Usage
from retinue.store.core import tables as t

SAMPLE_RUNS_MAX = 20  # last runs per estimate
ASSUMED_S = 30.0
ASSUMED_INPUT_TOKENS = 8_000
ASSUMED_OUTPUT_TOKENS = 500


class RunEstimate(Struct, frozen=True, kw_only=True):
    """The expected duration and tokens of a run."""

    seconds: float
    usage: Usage
    basis: str  # explanation for the report


ASSUMED_ESTIMATE = RunEstimate(
    seconds=ASSUMED_S,
    usage=Usage(input_tokens=ASSUMED_INPUT_TOKENS, output_tokens=ASSUMED_OUTPUT_TOKENS),
    basis=f"assumed: {ASSUMED_INPUT_TOKENS:,} input tokens, {ASSUMED_OUTPUT_TOKENS:,} output tokens, {ASSUMED_S:g} s",
)

_b = sa.bindparam
_r, _m, _s, _e = t.runs, t.model_calls, t.occurrences, t.envelopes
_TOKEN_COLUMNS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens")
_run_columns = (
    _r.c.id,
    (_r.c.ended_ms - _r.c.started_ms).label("took_ms"),
    *(
        sa.select(sa.func.coalesce(sa.func.sum(_m.c[sort]), 0)).where(_m.c.run == _r.c.id).scalar_subquery().label(sort)
        for sort in _TOKEN_COLUMNS
    ),
)
_schedule_runs_query = (
    sa.select(*_run_columns)
    .select_from(_s.join(_e, _e.c.id == _s.c.envelope).join(_r, _r.c.id == _e.c.run))
    .where(_s.c.schedule == _b("schedule"), _s.c.state == "ran", _r.c.status == "completed")
    .order_by(_s.c.seq.desc())
    .limit(SAMPLE_RUNS_MAX)
)
_agent_runs_query = (
    sa.select(*_run_columns)
    .where(_r.c.agent == _b("agent"), _r.c.status == "completed")
    .order_by(_r.c.started_ms.desc())
    .limit(SAMPLE_RUNS_MAX)
)


class RunEstimator:
    """Estimates the duration and tokens of runs.

    It reads its data before the simulation, so simulated runs do not count.
    """

    def __init__(
        self, conn: sa.Connection, schedules: Sequence[tuple[str, str]], agents: Sequence[str], *, run_s: float | None
    ) -> None:
        """`schedules` maps the id of each schedule to the name of its agent, if it has one.

        `run_s` is a fixed duration for every run, in seconds.
        """
        self._run_s = run_s
        self._agents = {
            agent: self._estimate_from(conn.execute(_agent_runs_query, {"agent": agent}).all(), agent)
            for agent in agents
        }
        self._schedules = {
            id_: self._estimate_from(conn.execute(_schedule_runs_query, {"schedule": id_}).all(), "")
            or self._agents.get(agent)
            for id_, agent in schedules
        }

    def for_sender(self, sender: Address, agent: str) -> RunEstimate:
        own = self._schedules.get(sender.name) if sender.kind is AddressKind.SCHEDULE else None
        return own or self._agents.get(agent) or self._with_fixed_duration(ASSUMED_ESTIMATE)

    def for_schedule(self, id_: str) -> RunEstimate:
        return self._schedules.get(id_) or self._with_fixed_duration(ASSUMED_ESTIMATE)

    def _estimate_from(self, rows: Sequence[sa.Row[tuple[object, ...]]], agent: str) -> RunEstimate | None:
        if not rows:
            return None
        whose = f"{agent}'s last" if agent else "its last"
        basis = f"{whose} run" if len(rows) == 1 else f"the median of {whose} {len(rows)} runs"
        tokens = {sort: round(median(getattr(row, sort) for row in rows)) for sort in _TOKEN_COLUMNS}
        seconds = max(0.0, median(row.took_ms for row in rows) / 1000)
        return self._with_fixed_duration(RunEstimate(seconds=seconds, usage=Usage(**tokens), basis=basis))

    def _with_fixed_duration(self, estimate: RunEstimate) -> RunEstimate:
        if self._run_s is None:
            return estimate
        return RunEstimate(
            seconds=self._run_s, usage=estimate.usage, basis=f"{estimate.basis}; {self._run_s:g} s as given"
        )
