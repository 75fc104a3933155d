"""What models cost: as the settings say, else as genai-prices knows it, from data on disk: nobody is asked.

Importing it takes a quarter of a second, so that happens when a price is first wanted. `ready` does it in a thread.
"""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from retinue.config.models import ModelSettings
from retinue.domain.model import ModelRef, Price
from retinue.domain.money import MICROUSD, PriceUnknown

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, ModelPrice

PRICES_CACHED_MAX = 512

# What some providers are called there.
_CALLED = {"xai": "x-ai", "moonshot": "moonshotai"}


def set_price(entry: ModelSettings) -> Price | None:
    """What the settings say of a model; None where they do not say both what is read and what is written."""
    if entry.input_usd is None or entry.output_usd is None:
        return None
    return Price(
        input=_microusd(entry.input_usd),
        output=_microusd(entry.output_usd),
        cache_read=None if entry.cache_read_usd is None else _microusd(entry.cache_read_usd),
        cache_write=None if entry.cache_write_usd is None else _microusd(entry.cache_write_usd),
    )


@functools.lru_cache(maxsize=PRICES_CACHED_MAX)
def known_price(ref: ModelRef, on: date) -> Price | None:
    """What is known of a model's price on a day; None where nothing is. Of several that may apply, the dearest."""
    from genai_prices.data_snapshot import get_snapshot

    provider = _CALLED.get(ref.provider, ref.provider)
    try:
        _, model = get_snapshot().find_provider_model(ref.model, None, provider, None)
    except LookupError:
        return None
    prices = list(_applying(model, on))
    read, written = _dearest(prices, "input_mtok"), _dearest(prices, "output_mtok")
    if read is None or written is None:
        return None
    return Price(
        input=read,
        output=written,
        cache_read=_dearest(prices, "cache_read_mtok"),
        cache_write=_dearest(prices, "cache_write_mtok"),
        call=-(-(_dearest(prices, "requests_kcount") or 0) // 1000),
    )


async def ready() -> None:
    """Have the prices at hand, so that nobody waits for them later."""
    await asyncio.to_thread(_load)


def unpriced(ref: ModelRef) -> PriceUnknown:
    """Says which settings would give it a price."""
    return PriceUnknown(ref)


def _load() -> None:
    from genai_prices.data_snapshot import get_snapshot

    get_snapshot()


def _applying(model: ModelInfo, on: date) -> Iterator[ModelPrice]:
    """The prices of a day. Where they differ by the hour, all of them: a call may come at any."""
    from genai_prices.types import TimeOfDateConstraint

    if not isinstance(model.prices, list):
        yield model.prices
    elif any(isinstance(each.constraint, TimeOfDateConstraint) for each in model.prices):
        yield from (each.prices for each in model.prices)
    elif model.prices:
        yield model.get_prices(datetime.combine(on, time.max, tzinfo=UTC))


def _dearest(prices: list[ModelPrice], key: str) -> int | None:
    """A price that grows with the length of a prompt counts as the longest would cost: a cap must hold."""
    found: list[Decimal] = []
    for price in prices:
        said: Any = getattr(price, key, None)
        if isinstance(said, Decimal):
            found.append(said)
        elif said is not None:
            found += [said.base, *(tier.price for tier in said.tiers)]
    return max(map(_microusd, found), default=None)


def _microusd(usd: float | Decimal) -> int:
    """Rounded up: what is charged is never less."""
    return math.ceil(Decimal(str(usd)) * MICROUSD)
