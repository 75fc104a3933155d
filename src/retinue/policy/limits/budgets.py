"""Computes the budget limits of a call and the maximum size of its input. All functions are pure.

`domain/budget_reservation` uses these numbers. That module is in `domain`, because the store uses it too.
"""

from __future__ import annotations

import math
from datetime import date, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from retinue.domain.agent import Agent
from retinue.domain.budget import DEFAULT_WARN_SHARE, MICROUSD_PER_USD, BudgetLimits, BudgetPeriod, day_number
from retinue.domain.budget_reservation import OUTPUT_TOKENS_MIN, affordable_output_tokens, max_cost_microusd

__all__ = [
    "OUTPUT_TOKENS_MIN",
    "affordable_output_tokens",
    "build_budget_caps",
    "compute_budget_days",
    "max_cost_microusd",
    "max_input_tokens",
]

BYTES_PER_TOKEN_MIN = 2  # bytes of the request per token, until a reply has shown the actual ratio
DAYS_CACHED_MAX = 2  # every model call asks for its day
CALIBRATED_MARGIN = 1.25  # factor for the estimate from the last request


def max_input_tokens(size_bytes: int, *, known_tokens: int = 0, tokens_per_byte: float | None = None) -> int:
    """Return the maximum number of tokens that an input of this size can have.

    `known_tokens` are tokens that `size_bytes` does not include, such as those of images.
    `tokens_per_byte` is the ratio of tokens to bytes in this session's last request to this model,
    if it is known.
    """
    if tokens_per_byte is None or not 0 < tokens_per_byte < math.inf:
        return -(-size_bytes // BYTES_PER_TOKEN_MIN) + known_tokens
    return math.ceil((size_bytes * tokens_per_byte + known_tokens) * CALIBRATED_MARGIN)


def compute_budget_days(now: datetime, zone: ZoneInfo) -> BudgetPeriod:
    """Return the current day and month in the owner's time zone."""
    return _compute_days_of_date(now.astimezone(zone).date())


@lru_cache(DAYS_CACHED_MAX)
def _compute_days_of_date(today: date) -> BudgetPeriod:
    first = today.replace(day=1)
    next_month = (first + timedelta(days=31)).replace(day=1)
    return BudgetPeriod(
        day=day_number(today), month_first_day=day_number(first), month_last_day=day_number(next_month) - 1
    )


def build_budget_caps(
    agent: Agent,
    *,
    run_usd: float | None = None,
    tree_usd: float | None = None,
    person_day_usd: float | None = None,
    person_month_usd: float | None = None,
    server_day_usd: float | None = None,
    server_month_usd: float | None = None,
    warn_share: float = DEFAULT_WARN_SHARE,
) -> BudgetLimits:
    """Return the budget limits that apply to a model call of this agent.

    If both the agent and the server have a limit, the lower one applies.
    """
    return BudgetLimits(
        run_microusd=_lower_limit(agent.cost_microusd_max, run_usd),
        tree_microusd=_lower_limit(agent.tree_microusd_max, tree_usd),
        agent_day_microusd=agent.day_microusd_max,
        agent_month_microusd=agent.month_microusd_max,
        person_day_microusd=_to_microusd(person_day_usd),
        person_month_microusd=_to_microusd(person_month_usd),
        instance_day_microusd=_to_microusd(server_day_usd),
        instance_month_microusd=_to_microusd(server_month_usd),
        warn_share=warn_share,
    )


def _to_microusd(dollars: float | None) -> int | None:
    return None if dollars is None else round(dollars * MICROUSD_PER_USD)


def _lower_limit(own: int | None, server_usd: float | None) -> int | None:
    server = _to_microusd(server_usd)
    if own is None or server is None:
        return server if own is None else own
    return min(own, server)
