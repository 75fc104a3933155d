"""Cron expressions: read strictly, told in plain words, and when each comes next in a zone.

Five fields (minute, hour, day of month, month, weekday), or six with seconds in front, or a preset such as `@daily`.
What a field may hold, and how the next moment on a calendar is found, is cronsim's: `*`, lists, ranges, steps, names,
`L` for the last day, `5L` for the last Friday, `2#1` for the first Tuesday. Where both days are limited, either is
enough; where one of them begins with a star, both must fit. So has it been in every cron since Vixie's.

What a change of the clocks means is ours, and the same for five fields and six:

- An expression that names its hour and its minute means times of day. One that the clock skips comes as soon as the
  clock goes on; one that the clock shows twice comes once, the first time.
- One whose hour or minute begins with a star means every so often. It goes by what has elapsed: through the hour that
  comes twice it comes twice, and what is skipped was never there.
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
GAP_MAX = timedelta(days=1)  # the longest a clock ever skipped: Samoa went without the 30th of December 2011
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
    """The expression, on one line with single blanks. Refused as `cron.invalid` where it cannot be read."""
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
    except (AssertionError, ValueError, TypeError):  # a step of something that has none, such as `1#2/3`
        raise _refused(expression, because="one of its fields cannot be read") from None
    return text


def after(expression: str, moment: datetime, zone: ZoneInfo) -> datetime | None:
    """The first moment strictly after this one, aware and UTC. None where there is none for fifty years."""
    return next(following(expression, moment, zone), None)


def following(expression: str, moment: datetime, zone: ZoneInfo) -> Iterator[datetime]:
    """All moments after this one, one by one: cheaper than to ask for each anew."""
    fields = PRESETS.get(expression, expression)
    try:
        yield from (_as_time_elapses if _goes_by_elapsed_time(fields) else _on_the_wall)(fields, moment, zone)
    except OverflowError:  # the calendar ends with the year 9999
        return


def _calendar(fields: str, begin: datetime) -> CronSim:
    from cronsim import CronSim  # with the first expression: many houses have none

    return CronSim(fields, begin)


def _on_the_wall(fields: str, moment: datetime, zone: ZoneInfo) -> Iterator[datetime]:
    """As if no clock were ever changed: later times of day never come earlier, so each that is later is the next."""
    wall = moment.astimezone(zone).replace(tzinfo=None, fold=0)
    for found in _calendar(fields, wall):
        real = _shown_first(found, zone)
        if real > moment:
            moment = real
            yield real


def _as_time_elapses(fields: str, moment: datetime, zone: ZoneInfo) -> Iterator[datetime]:
    """From one change of the clocks to the next: between two of them the wall goes with the time."""
    at: datetime | None = moment.astimezone(UTC)
    while at is not None:
        offset = _offset(at + _SECOND, zone)
        begin, at = at, None
        for found in _calendar(fields, (begin + offset).replace(tzinfo=None)):
            real = found.replace(tzinfo=UTC) - offset
            change = _next_change(begin, real, offset, zone)
            if change is not None:
                at = change - _SECOND  # so that what is shown at the change itself counts
                break
            begin = real
            yield real


def words(expression: str) -> str:
    """What it says, for someone who does not read cron."""
    return _words(PRESETS.get(expression, expression))


@lru_cache(maxsize=1024)
def _words(fields: str) -> str:
    return _calendar(fields, _ANY_DAY).explain()


def _goes_by_elapsed_time(fields: str) -> bool:
    parts = fields.split()
    minute, hour = parts[-5], parts[-4]
    return minute.startswith("*") or hour.startswith("*")


def _shown_first(wall: datetime, zone: ZoneInfo) -> datetime:
    """When the clock first shows this time; or, where it skips it, when it goes on."""
    before = wall.replace(tzinfo=zone, fold=0)
    real = before.astimezone(UTC)
    if real.astimezone(zone).replace(tzinfo=None, fold=0) == wall:
        return real
    offset = before.utcoffset()
    assert offset is not None  # every zone has one at every time
    return _next_change(real - GAP_MAX, real, offset, zone) or real


def _offset(moment: datetime, zone: ZoneInfo) -> timedelta:
    offset = moment.astimezone(zone).utcoffset()
    assert offset is not None  # every zone has one at every time
    return offset


def _next_change(begin: datetime, end: datetime, offset: timedelta, zone: ZoneInfo) -> datetime | None:
    """The first moment up to `end` at which the clock no longer has the offset that it had at `begin`."""
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
    """`2-2/3` is 2, and nothing else: cronsim would count on from it, and others take `2-2` for all there are."""
    return _RANGE_OF_ONE.sub(r"\1", field)


def _in_our_words(said: str) -> str:
    """`Bad day-of-month` is all that cronsim says."""
    field = said.removeprefix("Bad ").lower()
    return f"its {field} cannot be read, or never comes" if said.startswith("Bad ") else said.lower()


def _refused(expression: str, *, because: str) -> Invalid:
    return Invalid(
        f"{expression[:80]!r} is not a cron expression",
        because=because,
        try_this="for example: 0 9 * * 1-5 (at nine on weekdays), */15 * * * *, @daily",
        code="cron.invalid",
    )
