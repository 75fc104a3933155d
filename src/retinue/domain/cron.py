"""Cron expressions: strict parsing, description in words, and the next times in a time zone.

An expression has five fields (minute, hour, day of month, month, weekday), or six with seconds
first, or is a preset such as `@daily`. cronsim defines the syntax and finds the next time in the
calendar: `*`, lists, ranges, steps, names, `L` for the last day, `5L` for the last Friday, `2#1`
for the first Tuesday. If both day fields are limited, either may match; if one begins with a star,
both must. This is the behavior of every cron since Vixie's.

Clock changes are handled here, the same way for five and six fields:

- An expression that names its hour and its minute means times of day. A time that the clock skips fires as soon
  as the clock continues. A time that the clock shows twice fires once, the first time.
- An expression whose hour or minute begins with a star means an interval, and follows elapsed time. It fires in
  both copies of a repeated hour, and a skipped time does not exist.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from retinue.domain.errors import Invalid

if TYPE_CHECKING:
    from cronsim import CronSim

EXPRESSION_LENGTH_MAX = 256
FIELDS = (5, 6)
GAP_MAX = timedelta(days=1)  # the longest gap ever: Samoa skipped 30 December 2011
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
_LOOKED_AHEAD = timedelta(days=1)
_RANGE_OF_ONE = re.compile(
    r"(?<![0-9A-Za-z])0*([0-9]+|[A-Za-z]{3})-0*\1(?:/[1-9][0-9]*)?(?![0-9/A-Za-z])", re.IGNORECASE
)
_ANY_DAY = datetime(2000, 1, 1)  # noqa: DTZ001 - only what is written is looked at


def checked(expression: str) -> str:
    """Return the expression on one line with single spaces. Raises Invalid (`cron.invalid`) if it
    cannot be parsed."""
    if len(expression) > EXPRESSION_LENGTH_MAX:
        raise _refused(expression, because=f"an expression has at most {EXPRESSION_LENGTH_MAX} characters")
    text = " ".join(_one_alone(part) for part in expression.split())
    if text.startswith("@"):
        if text.lower() not in PRESETS:
            raise _refused(expression, because=f"the presets are {', '.join(PRESETS)}")
        return text.lower()
    if len(text.split()) not in FIELDS:
        raise _refused(expression, because=f"it has {len(text.split())} fields; there are 5, or 6 with seconds first")
    from cronsim import CronSimError

    try:
        _calendar(text, _ANY_DAY)
    except CronSimError as error:
        raise _refused(expression, because=_in_our_words(str(error))) from None
    except (AssertionError, ValueError, TypeError):  # a step of something without steps, such as `1#2/3`
        raise _refused(expression, because="one of its fields cannot be read") from None
    return text


def after(expression: str, moment: datetime, zone: ZoneInfo) -> datetime | None:
    """Return the first time strictly after `moment`, aware and UTC. None if there is none within
    fifty years."""
    return next(following(expression, moment, zone), None)


def following(expression: str, moment: datetime, zone: ZoneInfo) -> Iterator[datetime]:
    """Yield all times after `moment`. Cheaper than searching for each one separately."""
    fields = PRESETS.get(expression, expression)
    try:
        yield from (_as_time_elapses if _goes_by_elapsed_time(fields) else _on_the_wall)(fields, moment, zone)
    except OverflowError:  # datetime ends with the year 9999
        return


def _calendar(fields: str, begin: datetime) -> CronSim:
    from cronsim import CronSim  # imported with the first expression: many instances have none

    return CronSim(fields, begin)


def _on_the_wall(fields: str, moment: datetime, zone: ZoneInfo) -> Iterator[datetime]:
    """Yield wall-clock times, converted to UTC.

    A later wall-clock time never converts to an earlier moment, so every later result is the next
    one.
    """
    wall = moment.astimezone(zone).replace(tzinfo=None, fold=0)
    for found in _calendar(fields, wall):
        real = _shown_first(found, zone)
        if real > moment:
            moment = real
            yield real


def _as_time_elapses(fields: str, moment: datetime, zone: ZoneInfo) -> Iterator[datetime]:
    """Yield interval times, one stretch between clock changes at a time: within it the offset is constant."""
    at: datetime | None = moment.astimezone(UTC)
    while at is not None:
        offset = _offset(at + _SECOND, zone)
        begin, at = at, None
        for found in _calendar(fields, (begin + offset).replace(tzinfo=None)):
            real = found.replace(tzinfo=UTC) - offset
            change = _next_change(begin, real, offset, zone)
            if change is not None:
                at = change - _SECOND  # so that the moment of the change itself counts
                break
            begin = real
            yield real


def words(expression: str) -> str:
    """Describe an expression in English."""
    return _words(PRESETS.get(expression, expression))


@lru_cache(maxsize=1024)
def _words(fields: str) -> str:
    return _calendar(fields, _ANY_DAY).explain()


def _goes_by_elapsed_time(fields: str) -> bool:
    parts = fields.split()
    minute, hour = parts[-5], parts[-4]
    return minute.startswith("*") or hour.startswith("*")


def _shown_first(wall: datetime, zone: ZoneInfo) -> datetime:
    """Return when the clock first shows this time; if it skips it, when the clock continues."""
    before = wall.replace(tzinfo=zone, fold=0)
    real = before.astimezone(UTC)
    if real.astimezone(zone).replace(tzinfo=None, fold=0) == wall:
        return real
    offset = before.utcoffset()
    assert offset is not None  # every zone has an offset at every time
    return _next_change(real - GAP_MAX, real, offset, zone) or real


def _offset(moment: datetime, zone: ZoneInfo) -> timedelta:
    offset = moment.astimezone(zone).utcoffset()
    assert offset is not None  # every zone has an offset at every time
    return offset


def _next_change(begin: datetime, end: datetime, offset: timedelta, zone: ZoneInfo) -> datetime | None:
    """Return the first moment up to `end` at which the zone's offset differs from the one at `begin`."""
    low = begin
    while low < end:
        high = min(low + _LOOKED_AHEAD, end)
        if _offset(high, zone) != offset:
            while high - low > _SECOND:
                middle = low + (high - low) / 2
                low, high = (middle, high) if _offset(middle, zone) == offset else (low, middle)
            return high.replace(microsecond=0)
        low = high
    return None


def _one_alone(field: str) -> str:
    """Replace a range of one value, such as `2-2/3`, by that value.

    cronsim would step on from it, and other implementations read `2-2` as every value.
    """
    return _RANGE_OF_ONE.sub(r"\1", field)


def _in_our_words(said: str) -> str:
    """Explain an error of cronsim, which says no more than `Bad day-of-month`."""
    field = said.removeprefix("Bad ").lower()
    return f"its {field} cannot be read, or never comes" if said.startswith("Bad ") else said.lower()


def _refused(expression: str, *, because: str) -> Invalid:
    return Invalid(
        f"{expression[:80]!r} is not a cron expression",
        because=because,
        try_this="for example: 0 9 * * 1-5 (at nine on weekdays), */15 * * * *, @daily",
        code="cron.invalid",
    )
