"""Rate limits of our own per provider (requests and tokens per minute).

A call over the limit waits in a queue.

A minute is a sliding window of 60 seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime

from msgspec import Struct, field

from retinue.config.models import ProviderSettings
from retinue.domain.model import Failure, ModelFailed
from retinue.domain.ports import Clock
from retinue.domain.times import to_ms

MINUTE_MS = 60_000
WAIT_MAX_S = 60.0


class HouseLimit(ModelFailed):
    """Our own limit was reached, not the provider's: no credential is at fault."""


class Booked(Struct, eq=False):
    """A reserved call at `at_ms` with an estimated number of tokens."""

    provider: str
    at_ms: int
    tokens: int
    wait_s: float = 0.0


class Limits(Struct):
    """The limits of all providers. In memory: a restart clears the window."""

    settings: Callable[[], Mapping[str, ProviderSettings]]
    _lines: dict[str, deque[Booked]] = field(default_factory=dict[str, "deque[Booked]"])

    def wait_s(self, provider: str, tokens: int, now: datetime) -> float:
        """Return how long a call with this many tokens would wait. Reserves nothing."""
        now_ms = to_ms(now)
        return (self._free_ms(provider, tokens, now_ms) - now_ms) / 1000

    def book(self, provider: str, tokens: int, now: datetime) -> Booked:
        """Reserve the next slot. Raises `ConfiguredLimitReached` if the wait would be too long."""
        now_ms = to_ms(now)
        at_ms = self._free_ms(provider, tokens, now_ms)
        wait_s = (at_ms - now_ms) / 1000
        if wait_s > WAIT_MAX_S:
            raise _too_long(provider, wait_s)
        booked = Booked(provider, at_ms, max(tokens, 0), wait_s)
        if self.limited(provider):
            self._lines.setdefault(provider, deque()).append(booked)
        return booked

    def took(self, booked: Booked, tokens: int) -> None:
        """Replace the estimate by the actual number of tokens."""
        booked.tokens = max(tokens, 0)

    def give_back(self, booked: Booked) -> None:
        """Release the reservation: the call was not made."""
        line = self._lines.get(booked.provider)
        if line is not None and booked in line:
            line.remove(booked)

    @asynccontextmanager
    async def waiting(self, provider: str, tokens: int, clock: Clock) -> AsyncGenerator[Booked]:
        """Wait for the reserved time, then run the body. A cancelled wait releases the reservation."""
        booked = self.book(provider, tokens, clock.now())
        if booked.wait_s > 0:
            try:
                await clock.sleep(booked.wait_s)
            except BaseException:
                self.give_back(booked)
                raise
        yield booked

    def limited(self, provider: str) -> bool:
        """Whether a provider has a limit at all."""
        limits = self.settings().get(provider)
        return limits is not None and (limits.requests_per_minute or limits.tokens_per_minute) is not None

    def _free_ms(self, provider: str, tokens: int, now_ms: int) -> int:
        """Return when the next call may start: not before the one ahead, and not before the window has capacity."""
        limits = self.settings().get(provider)
        line = self._lines.get(provider)
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
            # A call larger than the limit goes alone, or it would never go.
            fits = tokens_max is None or spent + tokens <= tokens_max
            if fits and (requests_max is None or len(inside) - number < requests_max):
                break
            free_ms = max(free_ms, booked.at_ms + MINUTE_MS)
            spent -= booked.tokens
        return free_ms


def _too_long(provider: str, wait_s: float) -> HouseLimit:
    return HouseLimit(
        f"{provider} was not asked: this house has asked it enough for the moment",
        because=f"its limits by the minute are reached, and the next is free in {wait_s:.0f} seconds",
        try_this=f"ask again later, or raise requests_per_minute or tokens_per_minute of [providers.{provider}]",
        code="model.house-limit",
        failure=Failure.RATE_LIMIT,
        retry_after_s=wait_s,
    )
