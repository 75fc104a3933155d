"""Finds the prices of models: in the settings, or else in the data that the library genai-prices installs.

This module makes no requests.

Importing genai-prices takes a quarter of a second, so it happens when a price is first needed. `load_prices` does it in
a thread.
"""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from retinue.config.models import ModelEntry
from retinue.domain.budget import MICROUSD_PER_USD
from retinue.domain.model import ModelRef, Price

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, ModelPrice

PRICES_CACHED_MAX = 512

# The names of some providers in genai-prices.
_GENAI_PRICES_NAMES = {"xai": "x-ai", "moonshot": "moonshotai"}


def read_price_setting(entry: ModelEntry) -> Price | None:
    """Return the price in a model's settings, or None if the input or the output price is not set."""
    if entry.input_usd is None or entry.output_usd is None:
        return None
    return Price(
        input=_to_microusd(entry.input_usd),
        output=_to_microusd(entry.output_usd),
        cache_read=None if entry.cache_read_usd is None else _to_microusd(entry.cache_read_usd),
        cache_write=None if entry.cache_write_usd is None else _to_microusd(entry.cache_write_usd),
    )


@functools.lru_cache(maxsize=PRICES_CACHED_MAX)
def find_known_price(ref: ModelRef, on: date) -> Price | None:
    """Return the price of a model on a day, or None if it is unknown.

    If several prices may apply, return the highest.
    """
    from genai_prices.data_snapshot import get_snapshot

    provider = _GENAI_PRICES_NAMES.get(ref.provider, ref.provider)
    try:
        _, model = get_snapshot().find_provider_model(ref.model, None, provider, None)
    except LookupError:
        return None
    prices = list(_iterate_applicable(model, on))
    read, written = _find_highest(prices, "input_mtok"), _find_highest(prices, "output_mtok")
    if read is None or written is None:
        return None
    return Price(
        input=read,
        output=written,
        cache_read=_find_highest(prices, "cache_read_mtok"),
        cache_write=_find_highest(prices, "cache_write_mtok"),
        call=-(-(_find_highest(prices, "requests_kcount") or 0) // 1000),
    )


async def load_prices() -> None:
    """Load the price data in advance, so that later lookups do not block."""
    await asyncio.to_thread(_load_snapshot)


def _load_snapshot() -> None:
    from genai_prices.data_snapshot import get_snapshot

    get_snapshot()


def _iterate_applicable(model: ModelInfo, on: date) -> Iterator[ModelPrice]:
    """Yield the prices of a model on one day.

    If they depend on the hour of the day, yield all, because a call may come at any time.
    """
    from genai_prices.types import TimeOfDateConstraint

    if not isinstance(model.prices, list):
        yield model.prices
    elif any(isinstance(each.constraint, TimeOfDateConstraint) for each in model.prices):
        yield from (each.prices for each in model.prices)
    elif model.prices:
        yield model.get_prices(datetime.combine(on, time.max, tzinfo=UTC))


def _find_highest(prices: list[ModelPrice], key: str) -> int | None:
    """Return the highest price.

    A price that grows with the prompt counts at its highest tier, so that no budget is exceeded.
    """
    found: list[Decimal] = []
    for price in prices:
        value: Any = getattr(price, key, None)
        if isinstance(value, Decimal):
            found.append(value)
        elif value is not None:
            found += [value.base, *(tier.price for tier in value.tiers)]
    return max(map(_to_microusd, found), default=None)


def _to_microusd(usd: float | Decimal) -> int:
    """Convert dollars to micro-dollars, rounded up, so that the price is never below what is charged."""
    return math.ceil(Decimal(str(usd)) * MICROUSD_PER_USD)
