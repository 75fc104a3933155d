"""Reset rules: when the context of a session is reset automatically.

The history stays readable and searchable; the model starts with an empty context.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import time

NEVER = "never"
IDLE_MINUTES_MAX = 366 * 24 * 60
CONTEXT_TOKENS_LIMIT = 100_000_000
REASONS_LENGTH_MAX = 500  # characters of all reasons together

_TIME_OF_DAY = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetRules:
    """The reset rules of an agent, a connector, a kind of session, or the server.

    A value that is not set comes from the next more general rules.
    """

    daily_at: str | None = None  # HH:MM in the owner's zone, or `never`
    idle_minutes: float | None = None  # since the last activity that was not scheduled; 0: never
    context_tokens_max: int | None = None  # above this, the next run starts with a new context; 0: never

    def with_defaults(self, defaults: ResetRules) -> ResetRules:
        """Return these rules, with unset values taken from `defaults`."""
        return ResetRules(
            daily_at=defaults.daily_at if self.daily_at is None else self.daily_at,
            idle_minutes=defaults.idle_minutes if self.idle_minutes is None else self.idle_minutes,
            context_tokens_max=(
                defaults.context_tokens_max if self.context_tokens_max is None else self.context_tokens_max
            ),
        )


NO_RESET_RULES = ResetRules()


def parse_time_of_day(text: str) -> time | None:
    """Parse a time of day such as `4:05` or `04:05`. Returns None for any other text, including `never`."""
    found = _TIME_OF_DAY.fullmatch(text)
    return time(int(found[1]), int(found[2])) if found else None


def add_reason(reasons: str, reason: str) -> str:
    """Add a reason to the reasons of a requested reset, without duplicates. Several requests cause only one reset."""
    if not reasons or reason in reasons.split("; "):
        return reasons or reason[:REASONS_LENGTH_MAX]
    return f"{reasons}; {reason}"[:REASONS_LENGTH_MAX]
