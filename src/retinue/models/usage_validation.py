"""Limits the token counts and costs that providers report to possible values.

A wrong number must break neither a reply nor the accounting.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from retinue.domain.budget import MICROUSD_PER_USD
from retinue.domain.record import Usage
from retinue.domain.structs import replace

TOKENS_MAX = 1_000_000_000  # per call; more is an error, and millions of such calls still fit into a sum
_COUNT_FIELDS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens")
_get_counts: Callable[[Usage], tuple[int, ...]] = attrgetter(*_COUNT_FIELDS)
COST_MICROUSD_MAX = 1_000_000 * MICROUSD_PER_USD


def parse_token_count(value: Any) -> int | None:
    """Parse a token count, or return None if it is not a count. Negative counts become 0."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return min(max(value, 0), TOKENS_MAX)


def is_counted(usage: Usage) -> bool:
    """Whether the provider reported the number of input tokens of a call."""
    return usage.input_tokens > 0 and not usage.estimated


def clamp_usage(usage: Usage) -> Usage:
    """Return the usage with every number limited to what a single call can have."""
    found = _get_counts(usage)
    if min(found) >= 0 and max(found) <= TOKENS_MAX and 0 <= usage.cost_microusd <= COST_MICROUSD_MAX:
        return usage
    counts = {name: min(max(count, 0), TOKENS_MAX) for name, count in zip(_COUNT_FIELDS, found, strict=True)}
    cost_microusd = min(max(usage.cost_microusd, 0), COST_MICROUSD_MAX)
    return replace(usage, **counts, cost_microusd=cost_microusd)
