"""A timer that calls a function when the next schedule is due."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from retinue.domain.ports import Clock

log = logging.getLogger(__name__)

# Check at least this often: the wall clock may jump, and timers do not support delays of months.
TICK_MAX_S = 60.0
RETRY_S = 1.0


class Alarm:
    """Calls the function `ring` whenever something is due.

    `ring` does what is due and returns the seconds until it should be called again. It is
    called earlier after `trigger`, and at the latest after `tick_max_s` seconds. If `ring` fails,
    it is called again, because otherwise no schedule would run again.
    """

    def __init__(
        self, clock: Clock, ring: Callable[[], Awaitable[float | None]], *, tick_max_s: float = TICK_MAX_S
    ) -> None:
        self._clock = clock
        self._tick_max_s = tick_max_s
        self._ring = ring
        self._triggered = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="alarm")

    def trigger(self) -> None:
        """Call `ring` as soon as possible, without waiting for the next due time."""
        self._triggered.set()

    def abandon(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            self._triggered.clear()
            try:
                wait_s = await self._ring()
            except Exception:
                log.exception("alarm failed, will retry")
                wait_s = RETRY_S
            await self._wait(self._tick_max_s if wait_s is None else min(wait_s, self._tick_max_s))

    async def _wait(self, seconds: float) -> None:
        """Wait for a number of seconds, or until `trigger` is called.

        The timer is set before other tasks can run. Otherwise a test that advances its clock would
        miss the timer.
        """
        if seconds <= 0:
            await self._clock.sleep(0)
            return
        take_back = self._clock.call_later(seconds, self._triggered.set)
        try:
            await self._triggered.wait()
        finally:
            take_back()
