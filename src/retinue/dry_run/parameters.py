"""The parameters of a dry run: parsing and validation."""

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


class DryRunRequest(Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """The request, as the command line passes it."""

    days: int = DEFAULT_DAYS
    begin: str = ""  # empty: now
    run_takes: str = ""  # empty: estimated from the last runs
    seed: Annotated[int, Meta(ge=0, le=SEED_MAX)] = 0
    gates: bool = False
    keep: str = ""


class DryRunPlan(Struct, frozen=True, kw_only=True):
    """The validated parameters."""

    begin: datetime
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
    begin = parse_time(request.begin, now=now, zone=zone) if request.begin else now
    if not now <= begin <= now + START_WITHIN:
        raise DryRunStartInvalid(request.begin, days_max=START_WITHIN.days)
    run_s = parse_span_s(request.run_takes) if request.run_takes else None
    if run_s is not None and run_s > RUN_S_MAX:
        raise DryRunDurationInvalid(request.run_takes, seconds_max=RUN_S_MAX)
    # Calendar days: thirty days end at the same time of day, even across a daylight saving change.
    until = (begin.astimezone(zone) + timedelta(days=request.days)).astimezone(begin.tzinfo)
    return DryRunPlan(
        begin=begin,
        until=until,
        starts_now=not request.begin,
        days=request.days,
        run_s=run_s,
        seed=request.seed,
        runs_gates=request.gates,
    )
