"""The alarm: one timer at the earliest moment something is due. It knows nothing of what it rings for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from retinue.domain.ports import Clock

log = logging.getLogger(__name__)

# However far away the next moment is, look again after this long: the wall clock may have jumped, and no timer
# carries a delay of months.
TICK_MAX_S = 60.0
RETRY_S = 1.0


class Alarm:
    """Calls `ring` when it said it wanted to be called, sooner when poked, and never later than a tick.

    Outlives every failure of `ring`: an alarm that quietly stops is a house that quietly forgets.
    """

    def __init__(
        self, clock: Clock, ring: Callable[[], Awaitable[float | None]], *, tick_max_s: float = TICK_MAX_S
    ) -> None:
        self._clock = clock
        self._tick_max_s = tick_max_s
        self._ring = ring
        self._poked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._forever(), name="alarm")

    def poke(self) -> None:
        """Look again now."""
        self._poked.set()

    def abandon(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _forever(self) -> None:
        while True:
            self._poked.clear()
            try:
                wait_s = await self._ring()
            except Exception:
                log.exception("alarm failed, rings again")
                wait_s = RETRY_S
            await self._wait(self._tick_max_s if wait_s is None else min(wait_s, self._tick_max_s))

    async def _wait(self, seconds: float) -> None:
        """Until then, or until poked. The timer is set before anything else can happen: whoever turns a clock by hand
        would turn it past us."""
        if seconds <= 0:
            await self._clock.sleep(0)
            return
        take_back = self._clock.later(seconds, self._poked.set)
        try:
            await self._poked.wait()
        finally:
            take_back()
