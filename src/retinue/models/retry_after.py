"""Finds the retry delay that a provider gives: in its headers, its body or its message."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from retinue.domain.model import ModelFailureKind
from retinue.models.error_classification import ErrorBody

RETRY_AFTER_S_MAX = 24 * 3600.0
_DURATION_CHARS_MAX = 40
_WORTH_WAITING = frozenset(
    {
        ModelFailureKind.RATE_LIMIT,
        ModelFailureKind.OVERLOADED,
        ModelFailureKind.SERVER,
        ModelFailureKind.TIMEOUT,
        ModelFailureKind.QUOTA,
        ModelFailureKind.CONNECTION,
    }
)

_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER = r"\d{1,15}(?:\.\d{1,15})?"
_DURATION_PART = re.compile(rf"({_NUMBER})(ms|s|m|h|d)")
_DELAY_PHRASE = re.compile(
    r"\b(?:try again|retry|wait)\s(?:in|after|for)?\s?"
    rf"((?:{_NUMBER}\s?(?:milliseconds?|ms|seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|h|days?|d)(?![a-z])[\s,]{{0,2}})+)",
    re.I,
)
_DELAY_PART = re.compile(rf"({_NUMBER})\s?(ms|milli|s|m|h|d)", re.I)


def find_retry_after_s(failure: ModelFailureKind, headers: Mapping[str, str], error_body: ErrorBody) -> float | None:
    """Return the delay in seconds. None if the provider gives none, or if waiting would not help."""
    if failure not in _WORTH_WAITING:
        return None
    found = (
        _parse_milliseconds(headers.get("retry-after-ms"))
        or _parse_retry_after(headers.get("retry-after"), headers.get("date"))
        or _parse_delay_field(error_body.retry_s)
        or parse_message_delay_s(error_body.message)
    )
    if not found and failure is ModelFailureKind.RATE_LIMIT:
        found = _find_reset_s(headers)
    return min(found, RETRY_AFTER_S_MAX) if found else None


def parse_duration_s(text: str) -> float | None:
    """Parse `1.5s`, `250ms`, `6m0s`, `1h2m3s`, or a bare number of seconds."""
    text = text.strip().lower()
    if len(text) > _DURATION_CHARS_MAX:
        return None
    if (plain := _parse_number(text)) is not None:
        return plain
    total, at = 0.0, 0
    while step := _DURATION_PART.match(text, at):
        total += float(step[1]) * _UNIT_S[step[2]]
        at = step.end()
    return total if at and at == len(text) else None


def parse_message_delay_s(message: str) -> float | None:
    """Parse the delay in a message such as `Please try again in 1m26.4s` or `retry after 20 seconds`."""
    found = _DELAY_PHRASE.search(message)
    if found is None:
        return None
    steps = _DELAY_PART.findall(found[1].lower())
    return sum(float(number) * _UNIT_S["ms" if unit == "milli" else unit] for number, unit in steps)


def _parse_number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _parse_milliseconds(value: str | None) -> float | None:
    number = _parse_number(value.strip()) if value else None
    return number / 1000 if number is not None else None


def _parse_retry_after(value: str | None, date: str | None) -> float | None:
    if not value:
        return None
    seconds = parse_duration_s(value)
    return seconds if seconds is not None else _seconds_until(_parse_http_date(value), _parse_http_date(date))


def _parse_delay_field(value: float | str | None) -> float | None:
    return parse_duration_s(str(value)) if value is not None else None


def _parse_http_date(value: str | None) -> datetime | None:
    try:
        when = parsedate_to_datetime(value) if value else None
    except (ValueError, IndexError, OverflowError):
        return None
    return when.replace(tzinfo=UTC) if when is not None and when.tzinfo is None else when


def _seconds_until(when: datetime | None, now: datetime | None) -> float | None:
    """Return the seconds between two times of the provider's clock. Our clock may differ and is not used."""
    if when is None or now is None:
        return None
    return max((when - now).total_seconds(), 0.0)


_RESET = re.compile(
    r"(?:x-ratelimit-reset(?P<openai>-[\w-]{1,40})?|anthropic-ratelimit-(?P<anthropic>[\w-]{1,40})-reset)"
)


def _find_reset_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds until all exhausted limits have reset, or None."""
    now = _parse_http_date(headers.get("date"))
    found: list[float] = []
    for name, value in headers.items():
        if (limit := _RESET.fullmatch(name.lower())) is None:
            continue
        which = limit["anthropic"]
        left = headers.get(
            f"anthropic-ratelimit-{which}-remaining" if which else f"x-ratelimit-remaining{limit['openai'] or ''}"
        )
        if left is not None and _parse_number(left.strip()) != 0:
            continue
        seconds = _seconds_until(_parse_iso_time(value), now) if which or "T" in value else parse_duration_s(value)
        if seconds is not None and seconds <= RETRY_AFTER_S_MAX:  # more is a point in time, in an unknown unit
            found.append(seconds)
    return max(found, default=None)


def _parse_iso_time(value: str) -> datetime | None:
    try:
        when = datetime.fromisoformat(value.strip())
    except ValueError:
        return None
    return when if when.tzinfo is not None else when.replace(tzinfo=UTC)
