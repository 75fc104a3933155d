"""Computes the occurrences of schedules a second time, without any code of `domain/cron`.

This computation applies the rule of a schedule to every hour, one after the other. It reads only
the syntax that simulations write: stars, numbers, lists, ranges and steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

from retinue.domain.schedule import CronTrigger, EveryTrigger, OnceTrigger, ScheduleTrigger
from retinue.domain.times import from_ms, to_ms

OFFSET_CHANGE_MAX = timedelta(hours=2)
"""Longer than any change of the clocks in these time zones."""

DAY_MS = 86_400_000
DAYS_CACHED_MAX = 10_000

_FIELD_RANGES = ((0, 59), (0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
_MINUTE, _HOUR = timedelta(minutes=1), timedelta(hours=1)


class CronFields(NamedTuple):
    """A parsed cron expression: the allowed values of each field."""

    seconds: frozenset[int]
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    matches_either_day: bool  # both days and weekdays are restricted, and a match of either is enough
    is_interval: bool  # at intervals, not at times of day


def list_occurrences(when: ScheduleTrigger, zone: ZoneInfo, after_ms: int, until_ms: int) -> list[int]:
    """Return every occurrence after `after_ms`, up to and including `until_ms`, in milliseconds."""
    match when:
        case OnceTrigger(at):
            return [to_ms(at)] if after_ms < to_ms(at) <= until_ms else []
        case EveryTrigger(seconds, start):
            step, first = seconds * 1000, to_ms(start)
            first += max(0, -((first - after_ms - 1) // step)) * step
            return list(range(first, until_ms + 1, step))
        case CronTrigger(expression):
            days = range((after_ms + 1) // DAY_MS, until_ms // DAY_MS + 1)
            return [
                at for day in days for at in _occurrences_of_day(expression, zone.key, day) if after_ms < at <= until_ms
            ]


@lru_cache(maxsize=DAYS_CACHED_MAX)
def _occurrences_of_day(expression: str, zone: str, day: int) -> tuple[int, ...]:
    """Return the occurrences of one UTC day."""
    begin, end = day * DAY_MS, (day + 1) * DAY_MS
    found = {
        to_ms(at) for at in _candidate_instants(parse_cron(expression), ZoneInfo(zone), from_ms(begin), from_ms(end))
    }
    return tuple(sorted(at for at in found if begin <= at < end))


def _candidate_instants(fields: CronFields, zone: ZoneInfo, after: datetime, until: datetime) -> Iterator[datetime]:
    hour = (_to_local(after, zone) - OFFSET_CHANGE_MAX).replace(minute=0, second=0, microsecond=0)
    end = _to_local(until, zone) + OFFSET_CHANGE_MAX
    while hour <= end:
        if hour.hour in fields.hours and _matches_day(fields, hour):
            for minute in fields.minutes:
                for second in fields.seconds:
                    yield from _instants_of(
                        hour.replace(minute=minute, second=second), zone, is_interval=fields.is_interval
                    )
        hour += _HOUR


def _matches_day(fields: CronFields, local: datetime) -> bool:
    in_month, in_week = local.day in fields.days, local.isoweekday() % 7 in fields.weekdays
    return local.month in fields.months and (in_month or in_week if fields.matches_either_day else in_month and in_week)


def _instants_of(local: datetime, zone: ZoneInfo, *, is_interval: bool) -> list[datetime]:
    """Return the times in UTC at which an occurrence at a local time is due.

    If the minutes or hours of the rule begin with a star, these are all times at which the local
    clock shows this time: none, one or two. For other rules, only the first of them counts. If a
    clock change skips the local time, the occurrence is due at the moment of the change.
    """
    read = [local.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1)]
    shown = sorted({at for at in read if _to_local(at, zone) == local})
    if is_interval:
        return shown
    if shown:
        return shown[:1]
    at = min(read).replace(second=0) + OFFSET_CHANGE_MAX  # the clock skipped this time: find the moment of the change
    while at.astimezone(zone).utcoffset() == (at - _MINUTE).astimezone(zone).utcoffset():
        at -= _MINUTE
    return [at]


def _to_local(at: datetime, zone: ZoneInfo) -> datetime:
    return at.astimezone(zone).replace(tzinfo=None, fold=0)


@lru_cache(maxsize=1024)
def parse_cron(expression: str) -> CronFields:
    parts = expression.split()
    parts = ["0", *parts] if len(parts) == 5 else parts
    seconds, minutes, hours, days, months, weekdays = (
        frozenset(_expand_field(part, *bounds)) for part, bounds in zip(parts, _FIELD_RANGES, strict=True)
    )
    return CronFields(
        *(seconds, minutes, hours, days, months),
        weekdays=frozenset(day % 7 for day in weekdays),
        matches_either_day=not parts[3].startswith("*") and not parts[5].startswith("*"),
        is_interval=parts[1].startswith("*") or parts[2].startswith("*"),
    )


def _expand_field(part: str, minimum: int, maximum: int) -> Iterator[int]:
    for piece in part.split(","):
        span, _, step = piece.partition("/")
        first, _, last = span.partition("-")
        begin = minimum if first == "*" else int(first)
        end = maximum if first == "*" or (step and not last) else int(last or first)
        yield from range(begin, end + 1, int(step or 1))
