"""Skipping time on an ordinary event loop in tests."""

from __future__ import annotations

import asyncio

import pytest

from retinue.testing.loop_time import skip_loop_time

HOUR_S = 3600.0


async def test_a_timeout_expires_once_the_loop_time_is_skipped() -> None:
    begun = asyncio.Event()

    async def work() -> None:
        async with asyncio.timeout(HOUR_S):
            begun.set()
            await asyncio.Event().wait()

    working = asyncio.create_task(work())
    await begun.wait()
    skip_loop_time(HOUR_S)

    with pytest.raises(TimeoutError):
        await working


async def test_a_sleep_with_time_left_continues_after_a_skip_of_the_loop_time() -> None:
    sleeper = asyncio.create_task(asyncio.sleep(3 * HOUR_S))  # sleep: its time is skipped
    await asyncio.sleep(0)
    skip_loop_time(HOUR_S)
    skip_loop_time(HOUR_S)
    await asyncio.sleep(0.001)  # sleep: timers that are due fire before this one

    assert not sleeper.done()

    skip_loop_time(HOUR_S)
    await sleeper


async def test_a_timeout_set_after_a_skip_of_the_loop_time_has_its_full_time() -> None:
    skip_loop_time(HOUR_S)
    async with asyncio.timeout(HOUR_S):
        await asyncio.sleep(0.001)  # sleep: timers that are due fire before this one
