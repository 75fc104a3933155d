"""What is told of a rehearsal. Times are in the owner's zone; money is in millionths of a dollar, and none where the
price is not known."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class SkipKind(StrEnum):
    MISSED = "missed"
    OVERLAP = "overlap"
    GATE = "gate"
    HOURS = "hours"  # in which a heartbeat rests
    EMPTY = "empty"  # its checklist
    BUSY = "busy"  # its conversation
    OTHER = "other"


class RunTold(Struct, frozen=True, kw_only=True, rename="kebab"):
    """`at` is when its slot was, `began` when somebody was free for it."""

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


class SkipTold(Struct, frozen=True, kw_only=True, rename="kebab"):
    """`times` is none where there were too many to count."""

    at: str
    until: str | None
    times: int | None
    schedule: str
    kind: SkipKind
    because: str


class GateTold(Struct, frozen=True, kw_only=True, rename="kebab"):
    """How its gate was taken here, and how often it was open and closed in what is kept of its history."""

    taken: str
    was_open: int
    was_closed: int


class Sums(Struct, frozen=True, kw_only=True, rename="kebab"):
    runs: int = 0
    failed: int = 0
    skipped: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_microusd: int = 0
    unpriced: int = 0  # runs whose price is not known


class ScheduleTold(Struct, frozen=True, kw_only=True, rename="kebab"):
    id: str
    name: str
    to: str
    when: str
    zone: str
    enabled: bool
    because: str
    sums: Sums
    model: str
    estimated: str
    gate: GateTold | None
    next: str | None  # after what was rehearsed


class SumsOf(Struct, frozen=True, kw_only=True, rename="kebab"):
    name: str
    sums: Sums


class BudgetTold(Struct, frozen=True, kw_only=True, rename="kebab"):
    """The most that was spent of a cap, what had been spent before with it, and when it first refused a run."""

    what: str
    whose: str
    cap_microusd: int
    most_microusd: int
    most_on: str
    refused: int
    first_refused: str | None


class HeldUp(Struct, frozen=True, kw_only=True, rename="kebab"):
    """Runs that began over a minute late, because their agent or all seats of the house were taken, and the latest."""

    runs: int = 0
    longest_s: int = 0
    schedule: str = ""
    at: str = ""


class MinuteTold(Struct, frozen=True, kw_only=True, rename="kebab"):
    at: str
    runs: int


class Never(Struct, frozen=True, kw_only=True, rename="kebab"):
    schedule: str
    because: str


class Report(Struct, frozen=True, kw_only=True, rename="kebab"):
    house: str
    begin: str
    until: str
    days: int
    zone: str
    seed: int
    took_s: float
    stopped: str
    left_out: int
    sums: Sums
    schedules: list[ScheduleTold]
    agents: list[SumsOf]
    by_day: list[SumsOf]
    skips: list[SkipTold]
    budgets: list[BudgetTold]
    busiest: list[MinuteTold]
    held_up: HeldUp
    never: list[Never]
    notes: list[str]
    runs: list[RunTold]
