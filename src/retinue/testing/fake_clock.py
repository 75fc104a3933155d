"""A clock turned by hand, for tests on an ordinary event loop: nothing waits longer than the test wants it to."""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

START = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)
"""When the clocks for tests start, unless told otherwise: a Monday morning."""

YIELDS = 100
"""How often `advance` lets the loop go round for each moment at which it wakes someone."""


class FakeClock:
    """Shows the time it was turned to.

    It keeps two times, as a machine does: the monotonic one, which only `advance` moves and which sleepers
    measure, and the wall's, which `jump` may set forwards or back without waking anyone.
    """

    def __init__(self, start: datetime = START) -> None:
        self._start = in_utc(start)
        self._elapsed = timedelta()  # not a float: ten sleeps of 0.1 s must end where one of 1 s does
        self._offset = timedelta()
        self._sleepers: list[tuple[timedelta, int, asyncio.Future[None]]] = []
        self._slept = 0
        self._advancing = False

    def now(self) -> datetime:
        return self._start + self._elapsed + self._offset

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock has been advanced by this much; for nothing or less, only let others run."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        await self._wake_after(seconds)

    def later(self, seconds: float, call: Callable[[], None]) -> Callable[[], None]:
        """Have `call` called once the clock has been advanced by this much."""
        woken = self._wake_after(seconds)
        woken.add_done_callback(lambda _: None if woken.cancelled() else call())

        def take_back() -> None:
            woken.cancel()

        return take_back

    def _wake_after(self, seconds: float) -> asyncio.Future[None]:
        due = timedelta.max if math.isinf(seconds) and seconds > 0 else self._elapsed + timedelta(seconds=seconds)
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._slept += 1
        heapq.heappush(self._sleepers, (due, self._slept, woken))  # the count settles ties: first come, first woken
        return woken

    def wakes_in(self) -> list[float]:
        """How long each sleeper still sleeps, in seconds."""
        return sorted((due - self._elapsed).total_seconds() for due, _, woken in self._sleepers if not woken.done())

    async def advance(self, by: float | timedelta) -> None:
        """Turn the clock forwards, stopping at every moment for which someone sleeps.

        Each sleeper wakes at its own moment, earliest first, and runs until it waits again; when it then sleeps
        for a while that also ends within `by`, it is woken again. Work that needs real time (a thread, a socket)
        is not waited for.
        """
        step = by if isinstance(by, timedelta) else timedelta(seconds=by)
        if step < timedelta():
            raise ValueError(f"a clock advances forwards, not by {step}; `jump` moves the wall clock back")
        if self._advancing:
            raise RuntimeError("the clock is already being advanced: two hands cannot turn it at once")
        self._advancing = True
        try:
            await _let_others_run()  # who was just started gets to fall asleep at the old time
            target = self._elapsed + step
            while self._sleepers and self._sleepers[0][0] <= target:
                self._elapsed = self._sleepers[0][0]
                self._wake_due()
                await _let_others_run()
            self._elapsed = target
        finally:
            self._advancing = False

    def jump(self, delta: timedelta) -> None:
        """Set the wall clock forwards or back. No one wakes: a sleep is as long as it was."""
        self._offset += delta

    def _wake_due(self) -> None:
        while self._sleepers and self._sleepers[0][0] <= self._elapsed:
            _, _, woken = heapq.heappop(self._sleepers)
            if not woken.done():  # a cancelled sleeper stays in the heap until its moment
                woken.set_result(None)


def in_utc(moment: datetime) -> datetime:
    """The same instant in UTC. A naive time is refused, because it names no instant."""
    if moment.tzinfo is None:
        raise ValueError(f"{moment.isoformat()} has no time zone; hand over an aware datetime")
    return moment.astimezone(UTC)


async def _let_others_run() -> None:
    # asyncio does not tell when all tasks wait, so we go round often enough for a woken task to pass through
    # some dozens of futures, queues and tasks; a round in which nothing is ready costs microseconds.
    for _ in range(YIELDS):
        await asyncio.sleep(0)
