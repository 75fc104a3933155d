"""The report of a dry run.

Times are in the owner's time zone. Costs are in millionths of a dollar, and None if the price is
unknown.
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


class SimulatedRun(Struct, frozen=True, kw_only=True, rename="kebab"):
    """One run. `at` is the time of its occurrence, `began` the time when a slot was free for it."""

    at: str
    began: str
    ended: str | None
    schedule: str
    agent: str
    session: str
    state: str
    because: str
    model: str
    input_tokens: int
    output_tokens: int
    cost_microusd: int | None


class SimulatedSkip(Struct, frozen=True, kw_only=True, rename="kebab"):
    """Skipped occurrences. `times` is None if there were too many to count."""

    at: str
    until: str | None
    times: int | None
    schedule: str
    kind: SkipKind
    because: str


class GateSummary(Struct, frozen=True, kw_only=True, rename="kebab"):
    """How the gate was treated here, and how often it was open and closed in the stored history."""

    taken: str
    was_open: int
    was_closed: int


class RunTotals(Struct, frozen=True, kw_only=True, rename="kebab"):
    """Totals of runs, skips, tokens and cost."""

    runs: int = 0
    failed: int = 0
    skipped: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_microusd: int = 0
    unpriced: int = 0  # runs with an unknown price


class ScheduleSummary(Struct, frozen=True, kw_only=True, rename="kebab"):
    """One schedule, with its totals."""

    id: str
    name: str
    to: str
    when: str
    zone: str
    enabled: bool
    because: str
    sums: RunTotals
    model: str
    estimated: str
    gate: GateSummary | None
    next: str | None  # the next occurrence after the simulated time


class NamedTotals(Struct, frozen=True, kw_only=True, rename="kebab"):
    """The totals of one agent or day."""

    name: str
    sums: RunTotals


class BudgetSummary(Struct, frozen=True, kw_only=True, rename="kebab"):
    """The highest spending under a budget, earlier spending included, and when it first refused a run."""

    what: str
    whose: str
    cap_microusd: int
    most_microusd: int
    most_on: str
    refused: int
    first_refused: str | None


class DelayedRuns(Struct, frozen=True, kw_only=True, rename="kebab"):
    """Runs that started over a minute late because their agent or all slots were busy, and the latest of them."""

    runs: int = 0
    longest_s: int = 0
    schedule: str = ""
    at: str = ""


class BusyMinute(Struct, frozen=True, kw_only=True, rename="kebab"):
    """A minute, and the number of runs in progress."""

    at: str
    runs: int


class IdleSchedule(Struct, frozen=True, kw_only=True, rename="kebab"):
    """A schedule without any occurrence, and why."""

    schedule: str
    because: str


class DryRunReport(Struct, frozen=True, kw_only=True, rename="kebab"):
    """The whole report."""

    house: str
    begin: str
    until: str
    days: int
    zone: str
    seed: int
    took_s: float
    stopped: str
    left_out: int
    sums: RunTotals
    schedules: list[ScheduleSummary]
    agents: list[NamedTotals]
    by_day: list[NamedTotals]
    skips: list[SimulatedSkip]
    budgets: list[BudgetSummary]
    busiest: list[BusyMinute]
    held_up: DelayedRuns
    never: list[IdleSchedule]
    notes: list[str]
    runs: list[SimulatedRun]
