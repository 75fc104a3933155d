"""Cron expressions: strict parsing, description in words, and the next times in a time zone.

An expression has five fields (minute, hour, day of month, month, weekday), or six with seconds first, or is a preset
such as `@daily`. The library cronsim defines the syntax and finds the next time in the calendar. The syntax has `*`,
lists, ranges, steps, names, `L` for the last day, `5L` for the last Friday and `2#1` for the first Tuesday. If both day
fields are limited, a day needs to match only one of them. If one begins with a star, a day must match both. Every cron
since Vixie cron works this way.

Clock changes are handled here, the same way for five and six fields:

- If neither the hour nor the minute begins with a star, the expression specifies times of day. For a time that the
  clock skips, it fires right after the gap. For a time that the clock shows twice, it fires once, the first time.
- If the hour or the minute begins with a star, the expression specifies an interval of elapsed time. It fires in both
  copies of a repeated hour, and does not fire for a skipped time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from retinue.domain.value_errors import CronInvalid

if TYPE_CHECKING:
    from cronsim import CronSim

EXPRESSION_LENGTH_MAX = 256
FIELD_COUNTS = (5, 6)
CLOCK_GAP_MAX = timedelta(days=1)  # the longest gap ever: Samoa skipped 30 December 2011
PRESETS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

_SECOND = timedelta(seconds=1)
_LOOKAHEAD = timedelta(days=1)
_SINGLE_VALUE_RANGE = re.compile(
    r"(?<![0-9A-Za-z])0*([0-9]+|[A-Za-z]{3})-0*\1(?:/[1-9][0-9]*)?(?![0-9/A-Za-z])", re.IGNORECASE
)
_ARBITRARY_DATE = datetime(2000, 1, 1)  # noqa: DTZ001 - only the text of the expression matters


def normalize_cron(expression: str) -> str:
    """Return the expression on one line with single spaces. Raises `CronInvalid` if the expression is invalid."""
    if len(expression) > EXPRESSION_LENGTH_MAX:
        raise CronInvalid(expression, because=f"the limit is {EXPRESSION_LENGTH_MAX} characters")
    text = " ".join(_collapse_single_range(part) for part in expression.split())
    if text.startswith("@"):
        if text.lower() not in PRESETS:
            raise CronInvalid(expression, because=f"the presets are {', '.join(PRESETS)}")
        return text.lower()
    if len(text.split()) not in FIELD_COUNTS:
        raise CronInvalid(
            expression, because=f"it must have 5 fields, or 6 with seconds first, but has {len(text.split())}"
        )
    from cronsim import CronSimError

    try:
        _cron_iterator(text, _ARBITRARY_DATE)
    except CronSimError as error:
        raise CronInvalid(expression, because=_explain_cronsim_error(str(error))) from None
    except (AssertionError, ValueError, TypeError):  # a step on a value that cannot have one, such as `1#2/3`
        raise CronInvalid(expression, because="one of its fields is invalid") from None
    return text


def next_time(expression: str, moment: datetime, zone: ZoneInfo) -> datetime | None:
    """Return the first time of an expression strictly after `moment`, aware and UTC.

    Returns None if there is no such time within fifty years.
    """
    return next(iterate_times(expression, moment, zone), None)


def iterate_times(expression: str, moment: datetime, zone: ZoneInfo) -> Iterator[datetime]:
    """Yield all times of an expression after `moment`. This is cheaper than calling `next_time` for each."""
    fields = PRESETS.get(expression, expression)
    try:
        yield from (_interval_times if _is_interval(fields) else _wall_clock_times)(fields, moment, zone)
    except OverflowError:  # datetime ends with the year 9999
        return


def _cron_iterator(fields: str, start: datetime) -> CronSim:
    from cronsim import CronSim  # imported for the first expression: many instances have none

    return CronSim(fields, start)


def _wall_clock_times(fields: str, moment: datetime, zone: ZoneInfo) -> Iterator[datetime]:
    """Yield the times of an expression that specifies times of day, converted to UTC.

    A later wall-clock time never converts to an earlier moment, so the results are in order.
    """
    wall = moment.astimezone(zone).replace(tzinfo=None, fold=0)
    for found in _cron_iterator(fields, wall):
        real = _wall_clock_to_utc(found, zone)
        if real > moment:
            moment = real
            yield real


def _interval_times(fields: str, moment: datetime, zone: ZoneInfo) -> Iterator[datetime]:
    """Yield the times of an expression that specifies an interval.

    Each period between two clock changes is searched separately, because its UTC offset is constant.
    """
    at: datetime | None = moment.astimezone(UTC)
    while at is not None:
        offset = _offset(at + _SECOND, zone)
        begin, at = at, None
        for found in _cron_iterator(fields, (begin + offset).replace(tzinfo=None)):
            real = found.replace(tzinfo=UTC) - offset
            change = _next_offset_change(begin, real, offset, zone)
            if change is not None:
                at = change - _SECOND  # so that the moment of the change itself counts
                break
            begin = real
            yield real


def describe_cron(expression: str) -> str:
    """Describe a cron expression in English."""
    return _describe_fields(PRESETS.get(expression, expression))


@lru_cache(maxsize=1024)
def _describe_fields(fields: str) -> str:
    return _cron_iterator(fields, _ARBITRARY_DATE).explain()


def _is_interval(fields: str) -> bool:
    parts = fields.split()
    minute, hour = parts[-5], parts[-4]
    return minute.startswith("*") or hour.startswith("*")


def _wall_clock_to_utc(wall: datetime, zone: ZoneInfo) -> datetime:
    """Return the moment at which the clock in `zone` first shows this time.

    If the clock skips the time, return the end of the gap.
    """
    before = wall.replace(tzinfo=zone, fold=0)
    real = before.astimezone(UTC)
    if real.astimezone(zone).replace(tzinfo=None, fold=0) == wall:
        return real
    offset = before.utcoffset()
    assert offset is not None  # every zone has an offset at every time
    return _next_offset_change(real - CLOCK_GAP_MAX, real, offset, zone) or real


def _offset(moment: datetime, zone: ZoneInfo) -> timedelta:
    offset = moment.astimezone(zone).utcoffset()
    assert offset is not None  # every zone has an offset at every time
    return offset


def _next_offset_change(begin: datetime, end: datetime, offset: timedelta, zone: ZoneInfo) -> datetime | None:
    """Return the first moment up to `end` at which the zone's offset differs from the one at `begin`."""
    low = begin
    while low < end:
        high = min(low + _LOOKAHEAD, end)
        if _offset(high, zone) != offset:
            while high - low > _SECOND:
                middle = low + (high - low) / 2
                low, high = (middle, high) if _offset(middle, zone) == offset else (low, middle)
            return high.replace(microsecond=0)
        low = high
    return None


def _collapse_single_range(field: str) -> str:
    """Replace a range that contains one value with that value: `2-2` becomes `2`. A step is removed.

    cronsim would read `2-2/3` as 2, 5, 8 and so on, and some other implementations read `2-2` as every value.
    """
    return _SINGLE_VALUE_RANGE.sub(r"\1", field)


def _explain_cronsim_error(message: str) -> str:
    """Turn an error message of cronsim, such as `Bad day-of-month`, into the reason for a `CronInvalid` error."""
    field = message.removeprefix("Bad ").lower()
    return f"its {field} is invalid, or never occurs" if message.startswith("Bad ") else message.lower()
