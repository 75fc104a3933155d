"""The parameters of a dry run: parsing and validation."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated
from zoneinfo import ZoneInfo

import msgspec
from msgspec import Meta, Struct

from retinue.domain.errors import Invalid
from retinue.domain.times import parse_when
from retinue.schedules.schedule_parser import span_s

DAYS, DAYS_MAX = 30, 366
RUN_S_MAX = 86_400
BEGINS_WITHIN = timedelta(days=366)
SEED_MAX = 2**32 - 1


class Asked(Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """The request, as the command line passes it."""

    days: int = DAYS
    begin: str = ""  # empty: now
    run_takes: str = ""  # empty: estimated from the last runs
    seed: Annotated[int, Meta(ge=0, le=SEED_MAX)] = 0
    gates: bool = False
    keep: str = ""


class Plan(Struct, frozen=True, kw_only=True):
    """The validated parameters."""

    begin: datetime
    until: datetime
    begins_now: bool
    days: int
    run_s: float | None
    seed: int
    gates: bool


def read(text: bytes) -> Asked:
    try:
        return msgspec.json.decode(text, type=Asked)
    except msgspec.ValidationError as error:
        raise Invalid(
            "this cannot be rehearsed", because=str(error), try_this="retinue rehearse --help", code="rehearse.invalid"
        ) from None


def plan(asked: Asked, *, now: datetime, zone: ZoneInfo) -> Plan:
    if not 1 <= asked.days <= DAYS_MAX:
        raise Invalid(
            f"{asked.days} days cannot be rehearsed",
            because=f"a rehearsal goes from 1 to {DAYS_MAX} days",
            try_this=f"retinue rehearse --days {DAYS}",
            code="rehearse.days",
        )
    begin = parse_when(asked.begin, now=now, zone=zone) if asked.begin else now
    if not now <= begin <= now + BEGINS_WITHIN:
        raise Invalid(
            f"a rehearsal cannot begin at {asked.begin[:100]}",
            because=f"it begins now or within {BEGINS_WITHIN.days} days; what was before is in their histories",
            try_this="retinue rehearse --from +1d",
            code="rehearse.from",
        )
    run_s = span_s(asked.run_takes) if asked.run_takes else None
    if run_s is not None and run_s > RUN_S_MAX:
        raise Invalid(
            f"no run takes {asked.run_takes[:100]}",
            because=f"at most {RUN_S_MAX:,} seconds can be rehearsed",
            try_this="retinue rehearse --run-takes 90s",
            code="rehearse.run-takes",
        )
    # Calendar days: thirty days end at the same time of day, even across a daylight saving change.
    until = (begin.astimezone(zone) + timedelta(days=asked.days)).astimezone(begin.tzinfo)
    return Plan(
        begin=begin,
        until=until,
        begins_now=not asked.begin,
        days=asked.days,
        run_s=run_s,
        seed=asked.seed,
        gates=asked.gates,
    )
