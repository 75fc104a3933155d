"""Parses the usage of a reply, as servers of the two OpenAI formats report it."""

from __future__ import annotations

import math
from typing import Any, cast

from retinue.domain.budget import MICROUSD_PER_USD
from retinue.domain.record import Usage
from retinue.models.usage_validation import COST_MICROUSD_MAX, parse_token_count

XAI_TICKS_PER_MICROUSD = 10_000  # xAI reports ten-billionths of a dollar


def parse_usage(found: Any) -> Usage | None:
    """Return the usage from the field of a response, or None if it is missing.

    Unexpected values count as missing, so that a reply never fails because of its usage.
    """
    if not isinstance(found, dict):
        return None
    usage = cast("dict[str, Any]", found)
    read = _find_count(usage, "prompt_tokens", "input_tokens")
    written = _find_count(usage, "completion_tokens", "output_tokens")
    if read is None and written is None:
        return None
    read, written = read or 0, written or 0
    of_input = _get_object(usage, "prompt_tokens_details") or _get_object(usage, "input_tokens_details")
    of_output = _get_object(usage, "completion_tokens_details") or _get_object(usage, "output_tokens_details")
    cached = (
        _find_count(of_input, "cached_tokens") or _find_count(usage, "prompt_cache_hit_tokens", "cached_tokens") or 0
    )
    thought = _find_count(of_output, "reasoning_tokens") or 0
    if thought and _find_count(usage, "total_tokens") == read + written + thought:
        written += thought  # xAI counts it separately, at the same price
    cached = min(cached, read)
    return Usage(
        input_tokens=read,
        output_tokens=written,
        cost_microusd=_compute_cost_microusd(usage),
        cache_read_tokens=cached,
        cache_write_tokens=min(_find_count(of_input, "cache_write_tokens") or 0, read - cached),
        reasoning_tokens=thought,
    )


def _compute_cost_microusd(usage: dict[str, Any]) -> int:
    """Return the cost that the server reports, in millionths of a dollar, rounded up. 0 if it reports none."""
    microusd = _get_number(usage, "cost") * MICROUSD_PER_USD
    if usage.get("is_byok") is True:  # OpenRouter with a key of the user: its fee plus the provider's cost
        microusd += _get_number(_get_object(usage, "cost_details"), "upstream_inference_cost") * MICROUSD_PER_USD
    if not microusd:
        microusd = _get_number(usage, "cost_in_usd_ticks") / XAI_TICKS_PER_MICROUSD
    return math.ceil(min(microusd, COST_MICROUSD_MAX) - 1e-6)  # minus the floating-point error


def _get_object(usage: dict[str, Any], name: str) -> dict[str, Any]:
    part = usage.get(name)
    return cast("dict[str, Any]", part) if isinstance(part, dict) else {}


def _find_count(usage: dict[str, Any], *names: str) -> int | None:
    """Return the first valid token count found under these names, or None."""
    for name in names:
        if (count := parse_token_count(usage.get(name))) is not None:
            return count
    return None


def _get_number(usage: dict[str, Any], name: str) -> float:
    value = usage.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return 0.0
    return max(float(value), 0.0)
