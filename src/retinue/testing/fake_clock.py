"""A clock that a test advances by hand, on an ordinary event loop, so that no test waits for real time."""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

START = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)
"""The time at which test clocks start by default: a Monday morning."""

LOOP_PASSES = 100
"""The number of loop passes that `advance` makes at each moment at which it wakes a sleeper."""


class FakeClock:
    """A clock that shows the time that the test has set.

    Like the clock of a machine, it has two times: the wall clock, and the monotonic time, which
    `sleep` uses. `advance` moves both forward. `jump` sets only the wall clock, and ends no sleep.
    """

    def __init__(self, start: datetime = START) -> None:
        self._start = to_utc(start)
        self._elapsed = timedelta()  # not a float: ten sleeps of 0.1 s must end together with one of 1 s
        self._offset = timedelta()
        self._sleepers: list[tuple[timedelta, int, asyncio.Future[None]]] = []
        self._sleep_count = 0
        self._advancing = False

    def now(self) -> datetime:
        return self._start + self._elapsed + self._offset

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock has been advanced by this much. If the time is zero or less, yield once."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        await self._wake_after(seconds)

    def call_later(self, seconds: float, call: Callable[[], None]) -> Callable[[], None]:
        """Call `call` once the clock has been advanced by this much. Returns a function that cancels this."""
        woken = self._wake_after(seconds)
        woken.add_done_callback(lambda _: None if woken.cancelled() else call())

        def take_back() -> None:
            woken.cancel()

        return take_back

    def _wake_after(self, seconds: float) -> asyncio.Future[None]:
        due = timedelta.max if math.isinf(seconds) and seconds > 0 else self._elapsed + timedelta(seconds=seconds)
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleep_count += 1
        heapq.heappush(self._sleepers, (due, self._sleep_count, woken))  # the count breaks ties: first in, first out
        return woken

    def remaining_sleeps(self) -> list[float]:
        """Return the remaining time of each pending sleep in seconds, shortest first."""
        return sorted((due - self._elapsed).total_seconds() for due, _, woken in self._sleepers if not woken.done())

    async def advance(self, by: float | timedelta) -> None:
        """Move the clock forward, stopping at every moment at which a sleep ends.

        Each sleeping task wakes at its own moment, earliest first, and runs until it waits again.
        If it then sleeps for a time that also ends within `by`, it is woken again. This method does
        not wait for work that needs real time, such as a thread or a socket.
        """
        step = by if isinstance(by, timedelta) else timedelta(seconds=by)
        if step < timedelta():
            raise ValueError(f"a clock advances forwards, not by {step}; `jump` moves the wall clock back")
        if self._advancing:
            raise RuntimeError("the clock is already being advanced by another caller")
        self._advancing = True
        try:
            await _let_others_run()  # tasks that were just started go to sleep at the old time
            target = self._elapsed + step
            while self._sleepers and self._sleepers[0][0] <= target:
                self._elapsed = self._sleepers[0][0]
                self._wake_due()
                await _let_others_run()
            self._elapsed = target
        finally:
            self._advancing = False

    def jump(self, delta: timedelta) -> None:
        """Set the wall clock forward or back. No sleep ends, and no sleep gets longer or shorter."""
        self._offset += delta

    def _wake_due(self) -> None:
        while self._sleepers and self._sleepers[0][0] <= self._elapsed:
            _, _, woken = heapq.heappop(self._sleepers)
            if not woken.done():  # a cancelled sleeper stays in the heap until it is due
                woken.set_result(None)


def to_utc(moment: datetime) -> datetime:
    """Return the same time in UTC. Raises `ValueError` for a time without a time zone."""
    if moment.tzinfo is None:
        raise ValueError(f"{moment.isoformat()} has no time zone; pass an aware datetime")
    return moment.astimezone(UTC)


async def _let_others_run() -> None:
    # asyncio does not report when all tasks are waiting. This many passes are enough for a woken
    # task to get through dozens of futures, queues and tasks. A pass in which nothing is ready
    # costs microseconds.
    for _ in range(LOOP_PASSES):
        await asyncio.sleep(0)
