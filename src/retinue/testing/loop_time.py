"""Moves the time of the running event loop forward, so that a time limit passes without waiting.

Time limits of the server stay long, so that a busy machine never reaches them. A test of a time
limit skips the time instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from retinue.testing.wait_conditions import POLL_S


class _ShiftedTime:
    """The time of one event loop: its original time plus the time that was skipped."""

    def __init__(self, original: Callable[[], float]) -> None:
        self._original = original
        self.skipped_s = 0.0

    def __call__(self) -> float:
        return self._original() + self.skipped_s


def skip_loop_time(seconds: float) -> None:
    """End every sleep and timeout of the running event loop that is due within `seconds`.

    They end once the caller awaits something. From then on, the time of the loop stays ahead by
    `seconds`.
    """
    loop = asyncio.get_running_loop()
    time = loop.time
    if not isinstance(time, _ShiftedTime):
        time = _ShiftedTime(time)
        setattr(loop, "time", time)  # noqa: B010 - type checkers reject an assignment to a method
    time.skipped_s += seconds


@asynccontextmanager
async def skip_loop_time_on_increase(seconds: float, *, count: Callable[[], int]) -> AsyncGenerator[None]:
    """Within the block, skip `seconds` of loop time whenever the count increases.

    The count is the number of operations that have hung so far. The skipped time ends each of them
    by its time limit.
    """

    async def skip() -> None:
        skipped = 0
        while True:
            while skipped < count():
                skip_loop_time(seconds)
                skipped += 1
            await asyncio.sleep(POLL_S)  # sleep: before it counts again

    skipping = asyncio.create_task(skip())
    try:
        yield
    finally:
        skipping.cancel()
        await asyncio.gather(skipping, return_exceptions=True)
