"""Parses and formats times for people, in the owner's time zone. Inside the server, every time is aware and UTC.

Time zones come from the system (`zoneinfo` reads /usr/share/zoneinfo). On a system without them, such as Windows, they
come from the package `tzdata`.
"""

from __future__ import annotations

import calendar
import re
import zoneinfo
from datetime import MAXYEAR, MINYEAR, UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

from retinue.domain.value_errors import TimeInvalid, ZoneUnknown

YEAR_MIN = 1970
YEAR_MAX = 9999
LAST_MS = 253_402_300_799_999  # the last millisecond of YEAR_MAX
AMOUNT_DIGITS_MAX = 9
TIME_LENGTH_MAX = 64
ZONE_LENGTH_MAX = 64

_EPOCH = datetime(YEAR_MIN, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_RELATIVE = re.compile(r"[+-](?:[0-9]+[YMDhms])+")
_AMOUNT = re.compile(r"([0-9]+)([YMDhms])")
_ABSOLUTE = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[T ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:[.,]([0-9]{1,6}))?)?"
    r"(Z|[+-][0-9]{2}(?::?[0-9]{2}(?::[0-9]{2})?)?)?"
)
_ZONE = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(?:/[A-Za-z0-9_+-]+)*")
# Files in the zone directory that are not zones: `right/` counts leap seconds, the others can change.
_NOT_A_ZONE = frozenset({"right", "posix", "posixrules", "localtime", "Factory"})


def parse_time(text: str, *, now: datetime, zone: ZoneInfo) -> datetime:
    """Parse a time written by a person. Returns it aware and UTC. A past time is valid, and due at once.

    Three forms are accepted:

    - `+1M2h`, `-30m`, `+ 1Y 6M`: relative to now. Units are `Y M D h m s`, and case matters. They may come in any
      order, each at most once: `+1h30h` is more likely a typo for `+1h30m` than 31 hours. Years, months and days move
      the calendar date in `zone`. A day that the new month does not have becomes the last day of that month. Hours,
      minutes and seconds are elapsed time, added afterwards.
    - `2026-01-28T20:30:00Z`, or with an offset such as `+08:00`.
    - `2026-01-28 20:30`, seconds and fractions optional: wall-clock time in `zone`. A time that the clock skips moves
      forward by the gap. A time that occurs twice means the first occurrence.

    Anything else, and any time outside the years 1970 to 9999, raises TimeInvalid.
    """
    if len(text) > TIME_LENGTH_MAX:
        raise TimeInvalid(text, because=f"a time has at most {TIME_LENGTH_MAX} characters")
    trimmed = text.strip()
    try:
        moment = (
            _parse_relative(trimmed, now, zone) if trimmed.startswith(("+", "-")) else _parse_absolute(trimmed, zone)
        )
        moment.astimezone(zone)  # A time that cannot be shown in the owner's zone is out of range too.
    except OverflowError:
        raise _out_of_range(text) from None
    if moment < _EPOCH:
        raise _out_of_range(text)
    return moment


def format_time(moment: datetime, zone: ZoneInfo) -> str:
    """Format a time for people and models: ISO 8601, whole seconds, with the zone's offset."""
    try:
        local = moment.astimezone(zone)
    except OverflowError:  # The first and last hours of the datetime range exist in UTC only.
        local = moment.astimezone(UTC)
    return local.isoformat(timespec="seconds")


def format_time_12h(moment: datetime, zone: ZoneInfo) -> str:
    """Format a time with a 12-hour clock: `2026-01-28 8:30:05 pm +01:00`."""
    whole = datetime.fromisoformat(format_time(moment, zone))
    hour = whole.hour % 12 or 12
    half = "am" if whole.hour < 12 else "pm"
    return f"{whole:%Y-%m-%d} {hour}:{whole:%M:%S} {half} {whole.isoformat()[19:]}"


def to_ms(moment: datetime) -> int:
    """Convert a time to whole Unix milliseconds, rounded down.

    The arithmetic is exact, so converting back and forth does not change the result.
    """
    return (moment - _EPOCH) // _MS


# The range that `from_ms` accepts.
MS_MIN = to_ms(datetime.min.replace(tzinfo=UTC))
MS_MAX = to_ms(datetime.max.replace(tzinfo=UTC))


def from_ms(ms: int) -> datetime:
    """Convert Unix milliseconds to an aware UTC time. The inverse of `to_ms`."""
    try:
        return _EPOCH + ms * _MS  # twice as fast as `timedelta(milliseconds=ms)`
    except OverflowError:
        raise _out_of_range("a number of milliseconds") from None


def load_zone(name: str) -> ZoneInfo:
    """Return the time zone with an IANA name such as `Europe/Berlin`.

    Raises `ZoneUnknown` if the system has no such zone.
    """
    if len(name) <= ZONE_LENGTH_MAX and _ZONE.fullmatch(name) and name.partition("/")[0] not in _NOT_A_ZONE:
        try:
            return ZoneInfo(name)
        except (KeyError, ValueError, OSError):  # OSError: `Europe` alone is a directory
            pass
    raise ZoneUnknown(name, nearest=_nearest_zone(name))


def _parse_relative(text: str, now: datetime, zone: ZoneInfo) -> datetime:
    compact = "".join(text.split())
    if not _RELATIVE.fullmatch(compact):
        raise TimeInvalid(
            text, because="after + or -, write numbers with the units Y M D h m s; M is months, m is minutes"
        )
    amounts = dict.fromkeys("YMDhms", 0)
    seen: set[str] = set()
    for digits, unit in _AMOUNT.findall(compact):
        if unit in seen:
            raise TimeInvalid(text, because=f"the unit {unit} appears twice")
        if len(digits) > AMOUNT_DIGITS_MAX:
            raise TimeInvalid(text, because=f"a number has at most {AMOUNT_DIGITS_MAX} digits")
        seen.add(unit)
        amounts[unit] = -int(digits) if compact[0] == "-" else int(digits)
    moved = _shift_calendar(now, months=12 * amounts["Y"] + amounts["M"], days=amounts["D"], zone=zone)
    return moved + timedelta(hours=amounts["h"], minutes=amounts["m"], seconds=amounts["s"])


def _shift_calendar(now: datetime, *, months: int, days: int, zone: ZoneInfo) -> datetime:
    if not months and not days:  # Wall-clock time would not tell which of two repeated hours it is now.
        return now.astimezone(UTC)
    wall = now.astimezone(zone).replace(fold=0)
    year, month_index = divmod(wall.year * 12 + wall.month - 1 + months, 12)
    if not MINYEAR <= year <= MAXYEAR:
        raise OverflowError
    last_day = calendar.monthrange(year, month_index + 1)[1]
    wall = wall.replace(year=year, month=month_index + 1, day=min(wall.day, last_day))
    return (wall + timedelta(days=days)).astimezone(UTC)  # Within one zone, Python adds in wall-clock time.


def _parse_absolute(text: str, zone: ZoneInfo) -> datetime:
    match = _ABSOLUTE.fullmatch(text)
    if match is None:
        raise TimeInvalid(text, because="it is neither relative to now nor a date with a time of day")
    year, month, day, hour, minute, second, fraction, offset = match.groups()
    if int(year) < YEAR_MIN - 1:  # The first hours of 1970 in UTC are still 1969 in the west.
        raise _out_of_range(text)
    try:
        # fold=0 (the default) is the documented rule: the first of two repeated times, and in a gap
        # the offset from before it, which moves the time forward by exactly the gap.
        wall = datetime(
            int(year),
            int(month),
            int(day),
            int(hour),
            int(minute),
            int(second or 0),
            int((fraction or "0").ljust(6, "0")),
            tzinfo=zone if offset is None else _parse_offset(offset),
            fold=0,
        )
        return wall.astimezone(UTC)
    except ValueError as error:
        raise TimeInvalid(text, because=f"{error}") from None


def _parse_offset(text: str) -> timezone:
    if text == "Z":
        return UTC
    digits = text[1:].replace(":", "").ljust(6, "0")
    hours, minutes, seconds = int(digits[:2]), int(digits[2:4]), int(digits[4:])
    if minutes > 59 or seconds > 59:
        raise ValueError("minutes and seconds of an offset must be at most 59")
    span = timedelta(hours=hours, minutes=minutes, seconds=seconds)
    return timezone(-span if text[0] == "-" else span)


def _nearest_zone(name: str) -> str:
    known = {known.lower(): known for known in zoneinfo.available_timezones()}
    import difflib  # imported only for a mistyped zone

    near = difflib.get_close_matches(name[:ZONE_LENGTH_MAX].lower(), sorted(known), n=1)
    return known[near[0]] if near else ""


def _out_of_range(text: str) -> TimeInvalid:
    return TimeInvalid(text, because=f"times must be in the years {YEAR_MIN} to {YEAR_MAX}")
