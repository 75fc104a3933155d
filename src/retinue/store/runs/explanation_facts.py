"""Build the facts of an explanation. A fact is one sentence about what happened at one time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from zoneinfo import ZoneInfo

from msgspec import Struct

from retinue.domain.address import Address, AddressKind
from retinue.domain.ids import short_id
from retinue.domain.times import format_time, from_ms

QUOTED_CHARS_MAX = 160
FACTS_MAX = 200

TextPart = str | datetime
"""A part of a sentence: text or a time. A time is formatted when it is displayed, in the time zone of the reader."""


class Fact(Struct, frozen=True):
    at: datetime
    parts: tuple[TextPart, ...]

    def format_line(self, zone: ZoneInfo) -> str:
        return f"{format_time(self.at, zone)}  {render(self.parts, zone)}"


def render(parts: Sequence[TextPart], zone: ZoneInfo) -> str:
    return "".join(piece if isinstance(piece, str) else format_time(piece, zone) for piece in parts)


def build_fact(at_ms: int, *parts: TextPart) -> Fact:
    return Fact(from_ms(at_ms), parts)


def sort_facts(facts: Sequence[Fact]) -> tuple[Fact, ...]:
    """Sort facts by time, newest last. Facts with the same time keep their order."""
    return tuple(sorted(facts, key=lambda each: each.at))


def format_address(address: Address) -> str:
    """Format an address for people, with ids shortened."""
    if address.kind is AddressKind.AGENT and address.rest:
        return f"agent:{address.name}/{short_id(address.rest)}"
    return str(address)


def excerpt(text: str) -> str:
    """Return the beginning of the text, on one line and without a final period."""
    words = " ".join(text[: 4 * QUOTED_CHARS_MAX].split()).removesuffix(".")
    return words if len(words) <= QUOTED_CHARS_MAX else words[: QUOTED_CHARS_MAX - 1] + "…"


def format_duration(ms: int) -> str:
    """Format a duration with a unit, such as `2.5 s` or `3 h`."""
    seconds = max(0, ms) / 1000
    if seconds < 10:
        return f"{seconds:.1f} s" if seconds >= 0.1 else f"{max(0, ms)} ms"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds // 60:.0f} min"
    return f"{seconds // 3600:.0f} h" if seconds < 48 * 3600 else f"{seconds // 86400:.0f} days"


def join_names(names: Sequence[str]) -> str:
    """Join names for a sentence: `a`, `a and b`, `a, b and c`."""
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)
