"""Computes budget limits and the maximum size of an input: settings and sizes in, plain numbers out.

`domain/budget_caps` uses these numbers. It is in `domain` because the store's commits need it too.
"""

from __future__ import annotations

import math
from datetime import date, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from retinue.domain.agent import Agent
from retinue.domain.budget_caps import OUTPUT_TOKENS_LEAST, affordable, bound_microusd
from retinue.domain.money import MICROUSD, WARN_SHARE, Caps, Days, day_number

__all__ = ["OUTPUT_TOKENS_LEAST", "affordable", "bound_microusd", "caps_of", "days", "input_bound"]

BYTES_PER_TOKEN_LEAST = 2  # of the request, until a reply has shown the actual ratio
DAYS_REMEMBERED = 2  # every model call asks for its day
CALIBRATED_MARGIN = 1.25  # on top of the estimate from the last input


def input_bound(size_bytes: int, *, known_tokens: int = 0, calibrated: float | None = None) -> int:
    """Return the maximum number of tokens that an input may have.

    `known_tokens` are those that its bytes do not show, such as images. `tokens_per_byte` is the ratio
    of tokens to bytes in this session's last request to this model.
    """
    if calibrated is None or not 0 < calibrated < math.inf:
        return -(-size_bytes // BYTES_PER_TOKEN_LEAST) + known_tokens
    return math.ceil((size_bytes * calibrated + known_tokens) * CALIBRATED_MARGIN)


def days(now: datetime, zone: ZoneInfo) -> Days:
    """Return the current day and month in the owner's time zone."""
    return _days_of(now.astimezone(zone).date())


@lru_cache(DAYS_REMEMBERED)
def _days_of(today: date) -> Days:
    first = today.replace(day=1)
    next_month = (first + timedelta(days=31)).replace(day=1)
    return Days(day=day_number(today), month_from=day_number(first), month_to=day_number(next_month) - 1)


def caps_of(
    agent: Agent,
    *,
    run_usd: float | None = None,
    tree_usd: float | None = None,
    person_day_usd: float | None = None,
    person_month_usd: float | None = None,
    house_day_usd: float | None = None,
    house_month_usd: float | None = None,
    warn_share: float = WARN_SHARE,
) -> Caps:
    """Return the limits for a model call of this agent.

    If both the agent and the server have a limit, the lower one applies.
    """
    return Caps(
        run_microusd=_tighter(agent.cost_microusd_max, run_usd),
        tree_microusd=_tighter(agent.tree_microusd_max, tree_usd),
        agent_day_microusd=agent.day_microusd_max,
        agent_month_microusd=agent.month_microusd_max,
        person_day_microusd=_microusd(person_day_usd),
        person_month_microusd=_microusd(person_month_usd),
        house_day_microusd=_microusd(house_day_usd),
        house_month_microusd=_microusd(house_month_usd),
        warn_share=warn_share,
    )


def _microusd(dollars: float | None) -> int | None:
    return None if dollars is None else round(dollars * MICROUSD)


def _tighter(own: int | None, house_usd: float | None) -> int | None:
    house = _microusd(house_usd)
    if own is None or house is None:
        return house if own is None else own
    return min(own, house)
