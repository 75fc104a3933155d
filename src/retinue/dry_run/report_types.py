"""The types of a dry run's report.

Times are in the owner's time zone. Costs are in millionths of a dollar, or None if the price is unknown.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class SkipKind(StrEnum):
    MISSED = "missed"
    OVERLAP = "overlap"
    GATE = "gate"
    HOURS = "hours"  # outside the active hours of a heartbeat
    EMPTY = "empty"  # its checklist is empty
    BUSY = "busy"  # its session is busy
    OTHER = "other"


class SimulatedRun(Struct, frozen=True, kw_only=True):
    """One simulated run. `at` is the time of its occurrence. `started_at` is when a slot became free for the run."""

    at: str
    started_at: str
    ended_at: str | None
    schedule: str
    agent: str
    session: str
    state: str
    because: str
    model: str
    input_tokens: int
    output_tokens: int
    cost_microusd: int | None


class SimulatedSkip(Struct, frozen=True, kw_only=True):
    """Occurrences of a schedule that were skipped for one reason. `times` is None if there were too many to count."""

    at: str
    until: str | None
    times: int | None
    schedule: str
    kind: SkipKind
    because: str


class GateSummary(Struct, frozen=True, kw_only=True):
    """How the dry run treated a gate, and how often the gate was open and closed in the stored history."""

    treatment: str
    was_open: int
    was_closed: int


class RunTotals(Struct, frozen=True, kw_only=True):
    """Totals of runs, skips, tokens and cost."""

    runs: int = 0
    failed: int = 0
    skipped: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_microusd: int = 0
    unpriced: int = 0  # runs with an unknown price


class ScheduleSummary(Struct, frozen=True, kw_only=True):
    """One schedule, with its totals."""

    id: str
    name: str
    to: str
    when: str
    zone: str
    enabled: bool
    because: str
    totals: RunTotals
    model: str
    estimate_basis: str
    gate: GateSummary | None
    next: str | None  # the next occurrence after the simulated time


class NamedTotals(Struct, frozen=True, kw_only=True):
    """The totals of one agent or day."""

    name: str
    totals: RunTotals


class BudgetSummary(Struct, frozen=True, kw_only=True):
    """The highest spending in a period of a budget, and when the budget first refused a run.

    Real spending before the dry run is included.
    """

    name: str
    owner: str
    cap_microusd: int
    highest_microusd: int
    highest_on: str
    refused: int
    first_refused: str | None


class DelayedRuns(Struct, frozen=True, kw_only=True):
    """How many runs started over a minute late because their agent or all slots were busy.

    The other fields describe the run with the longest delay.
    """

    runs: int = 0
    longest_s: int = 0
    schedule: str = ""
    at: str = ""


class BusyMinute(Struct, frozen=True, kw_only=True):
    """A minute, and the number of runs in progress during it."""

    at: str
    runs: int


class IdleSchedule(Struct, frozen=True, kw_only=True):
    """A schedule without any occurrence in the simulated time, and the reason."""

    schedule: str
    because: str


class DryRunReport(Struct, frozen=True, kw_only=True):
    """The complete report of a dry run."""

    data_directory: str
    start: str
    until: str
    days: int
    zone: str
    seed: int
    duration_s: float
    stopped_because: str
    cancelled_runs: int
    totals: RunTotals
    schedules: list[ScheduleSummary]
    agents: list[NamedTotals]
    by_day: list[NamedTotals]
    skips: list[SimulatedSkip]
    budgets: list[BudgetSummary]
    busiest_minutes: list[BusyMinute]
    delayed: DelayedRuns
    idle_schedules: list[IdleSchedule]
    notes: list[str]
    runs: list[SimulatedRun]
