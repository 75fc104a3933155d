"""What may be spent, and how much an input may come to: settings and sizes into plain numbers.

They are used by `domain/budget_caps`, which commits need too: it is where the store can import it.
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

BYTES_PER_TOKEN_LEAST = 2  # of what is sent, while no reply has told us better
DAYS_REMEMBERED = 2  # every call of a model asks for its day
CALIBRATED_MARGIN = 1.25  # over what an input of this size would come to by the last one


def input_bound(size_bytes: int, *, known_tokens: int = 0, calibrated: float | None = None) -> int:
    """The most tokens that an input may come to.

    `known_tokens` are those that its bytes do not tell of, as those of images. `calibrated` is how many tokens a byte
    came to in what this session last sent to this model.
    """
    if calibrated is None or not 0 < calibrated < math.inf:
        return -(-size_bytes // BYTES_PER_TOKEN_LEAST) + known_tokens
    return math.ceil((size_bytes * calibrated + known_tokens) * CALIBRATED_MARGIN)


def days(now: datetime, zone: ZoneInfo) -> Days:
    """The owner's day and month at this moment."""
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
    """The caps that hold for a call of this agent. Where both it and the house have one, the tighter holds."""
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
