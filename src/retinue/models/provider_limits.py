"""Our own rate limits per provider, in requests and tokens per minute.

A call over the limit waits in a queue. A minute is a sliding window of 60 seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime

from msgspec import Struct, field

from retinue.config.models import ProviderSettings
from retinue.domain.ports import Clock
from retinue.domain.record import Usage
from retinue.domain.times import to_ms
from retinue.models.errors import ConfiguredLimitReached

MINUTE_MS = 60_000
WAIT_MAX_S = 60.0


class RateReservation(Struct, eq=False):
    """The permission to make a call at `at_ms`, with the estimated number of its tokens."""

    provider: str
    at_ms: int
    tokens: int
    wait_s: float = 0.0

    def record(self, usage: Usage) -> None:
        """Replace the estimated number of tokens of the call with the actual number."""
        self.tokens = max(usage.input_tokens + usage.output_tokens, 0)


class ProviderRateLimits(Struct):
    """Applies the rate limits of all providers. The calls are counted in memory, so a restart forgets earlier calls."""

    settings: Callable[[], Mapping[str, ProviderSettings]]
    _queues: dict[str, deque[RateReservation]] = field(default_factory=dict[str, "deque[RateReservation]"])

    def wait_s(self, provider: str, tokens: int, now: datetime) -> float:
        """Return how long a call with this many tokens would wait, without reserving a time for it."""
        now_ms = to_ms(now)
        return (self._find_free_ms(provider, tokens, now_ms) - now_ms) / 1000

    def reserve(self, provider: str, tokens: int, now: datetime) -> RateReservation:
        """Reserve the earliest possible time for a call.

        Raises `ConfiguredLimitReached` if the wait would be too long.
        """
        now_ms = to_ms(now)
        at_ms = self._find_free_ms(provider, tokens, now_ms)
        wait_s = (at_ms - now_ms) / 1000
        if wait_s > WAIT_MAX_S:
            raise ConfiguredLimitReached(provider, wait_s=wait_s)
        booked = RateReservation(provider, at_ms, max(tokens, 0), wait_s)
        if self.is_limited(provider):
            self._queues.setdefault(provider, deque()).append(booked)
        return booked

    def release(self, reservation: RateReservation) -> None:
        """Release the reservation of a call that was not made."""
        line = self._queues.get(reservation.provider)
        if line is not None and reservation in line:
            line.remove(reservation)

    @asynccontextmanager
    async def slot(self, provider: str, tokens: int, clock: Clock) -> AsyncGenerator[RateReservation]:
        """Wait until the call may be made, then enter the `async with` body.

        If the wait is cancelled, the reservation is released.
        """
        booked = self.reserve(provider, tokens, clock.now())
        if booked.wait_s > 0:
            try:
                await clock.sleep(booked.wait_s)
            except BaseException:
                self.release(booked)
                raise
        yield booked

    def is_limited(self, provider: str) -> bool:
        """Whether the settings limit the rate of calls to a provider."""
        limits = self.settings().get(provider)
        return limits is not None and (limits.requests_per_minute or limits.tokens_per_minute) is not None

    def _find_free_ms(self, provider: str, tokens: int, now_ms: int) -> int:
        """Return when the next call may start: not before the previous one, and not before the limits allow it."""
        limits = self.settings().get(provider)
        line = self._queues.get(provider)
        if limits is None or not line:
            return now_ms
        if line[-1].at_ms - now_ms > WAIT_MAX_S * 1000:  # no wait is that long: the clock was set back
            line.clear()
        while line and line[0].at_ms <= now_ms - MINUTE_MS:
            line.popleft()
        free_ms = max(now_ms, line[-1].at_ms) if line else now_ms
        inside = [booked for booked in line if booked.at_ms > free_ms - MINUTE_MS]
        spent = sum(booked.tokens for booked in inside)
        requests_max, tokens_max = limits.requests_per_minute, limits.tokens_per_minute
        for number, booked in enumerate(inside):
            # A call larger than the limit is made alone, or it would never be made.
            fits = tokens_max is None or spent + tokens <= tokens_max
            if fits and (requests_max is None or len(inside) - number < requests_max):
                break
            free_ms = max(free_ms, booked.at_ms + MINUTE_MS)
            spent -= booked.tokens
        return free_ms
