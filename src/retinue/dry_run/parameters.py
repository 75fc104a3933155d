"""Parses and validates the parameters of a dry run."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated
from zoneinfo import ZoneInfo

import msgspec
from msgspec import Meta, Struct

from retinue.domain.times import parse_time
from retinue.dry_run.errors import DryRunDaysInvalid, DryRunDurationInvalid, DryRunRequestInvalid, DryRunStartInvalid
from retinue.schedules.schedule_parser import parse_span_s

DEFAULT_DAYS, DAYS_MAX = 30, 366
RUN_S_MAX = 86_400
START_WITHIN = timedelta(days=366)
SEED_MAX = 2**32 - 1


class DryRunRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parameters of a dry run, as the command line passes them."""

    days: int = DEFAULT_DAYS
    start: str = ""  # empty: now
    run_duration: str = ""  # empty: estimated from the last runs
    seed: Annotated[int, Meta(ge=0, le=SEED_MAX)] = 0
    gates: bool = False
    keep: str = ""


class DryRunPlan(Struct, frozen=True, kw_only=True):
    """The validated parameters of a dry run."""

    start: datetime
    until: datetime
    starts_now: bool
    days: int
    run_s: float | None
    seed: int
    runs_gates: bool


def parse_dry_run_request(text: bytes) -> DryRunRequest:
    try:
        return msgspec.json.decode(text, type=DryRunRequest)
    except msgspec.ValidationError as error:
        raise DryRunRequestInvalid(str(error)) from None


def make_plan(request: DryRunRequest, *, now: datetime, zone: ZoneInfo) -> DryRunPlan:
    if not 1 <= request.days <= DAYS_MAX:
        raise DryRunDaysInvalid(request.days, days_max=DAYS_MAX, days_default=DEFAULT_DAYS)
    start = parse_time(request.start, now=now, zone=zone) if request.start else now
    if not now <= start <= now + START_WITHIN:
        raise DryRunStartInvalid(request.start, days_max=START_WITHIN.days)
    run_s = parse_span_s(request.run_duration) if request.run_duration else None
    if run_s is not None and run_s > RUN_S_MAX:
        raise DryRunDurationInvalid(request.run_duration, seconds_max=RUN_S_MAX)
    # Calendar days: thirty days end at the same time of day, even across a daylight saving change.
    until = (start.astimezone(zone) + timedelta(days=request.days)).astimezone(start.tzinfo)
    return DryRunPlan(
        start=start,
        until=until,
        starts_now=not request.start,
        days=request.days,
        run_s=run_s,
        seed=request.seed,
        runs_gates=request.gates,
    )
