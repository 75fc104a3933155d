"""Refreshing: when the context of a conversation begins anew by itself.

Its history stays, and can be read and searched; only what a model reads of it begins again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import time

NEVER = "never"
IDLE_MINUTES_MAX = 366 * 24 * 60
CONTEXT_TOKENS_MOST = 100_000_000
BECAUSE_LENGTH_MAX = 500  # characters, of all reasons together

_TIME_OF_DAY = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetRules:
    """One voice on it: an agent's, or the house's for a connector, for a kind of conversation, or for all. What it does
    not say, the next one may."""

    daily_at: str | None = None  # HH:MM by the owner's clock, or `never`
    idle_minutes: float | None = None  # after the last that was done for anyone but the clock; 0: never
    context_tokens_max: int | None = None  # beyond this, the next run begins afresh; 0: never

    def over(self, other: ResetRules) -> ResetRules:
        """Both, where this one has the first word."""
        return ResetRules(
            daily_at=other.daily_at if self.daily_at is None else self.daily_at,
            idle_minutes=other.idle_minutes if self.idle_minutes is None else self.idle_minutes,
            context_tokens_max=(
                other.context_tokens_max if self.context_tokens_max is None else self.context_tokens_max
            ),
        )


NO_RULES = ResetRules()


def time_of_day(text: str) -> time | None:
    """`4:05` or `04:05`, as a time of day; None for what is none, `never` among it."""
    found = _TIME_OF_DAY.fullmatch(text)
    return time(int(found[1]), int(found[2])) if found else None


def with_reason(reasons: str, reason: str) -> str:
    """What was asked for several times is asked for once, for all these reasons."""
    if not reasons or reason in reasons.split("; "):
        return reasons or reason[:BECAUSE_LENGTH_MAX]
    return f"{reasons}; {reason}"[:BECAUSE_LENGTH_MAX]
