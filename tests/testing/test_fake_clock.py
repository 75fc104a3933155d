"""The fake clock: who wakes up when, and what a jump of the wall clock does not affect."""

from __future__ import annotations

import asyncio
import math
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise

import pytest

from retinue.testing.fake_clock import START, FakeClock


async def _sleep_and_note(clock: FakeClock, seconds: float, notes: list[tuple[str, float]], name: str) -> None:
    await clock.sleep(seconds)
    notes.append((name, (clock.now() - START).total_seconds()))


def test_the_fake_clock_stands_still_until_it_is_advanced() -> None:
    async def main() -> None:
        clock = FakeClock()
        before = clock.now()
        await asyncio.sleep(0.001)  # sleep: real time passes while the fake clock must not
        assert clock.now() == before == START
        await clock.advance(90)
        assert clock.now() == START + timedelta(seconds=90)
        await clock.advance(timedelta(minutes=1))
        assert clock.now() == START + timedelta(seconds=150)

    asyncio.run(main())


def test_the_fake_clock_shows_utc_and_refuses_a_naive_start() -> None:
    clock = FakeClock(datetime(2026, 3, 1, 12, tzinfo=timezone(timedelta(hours=2))))
    assert clock.now() == datetime(2026, 3, 1, 10, tzinfo=UTC)
    assert clock.now().tzinfo is UTC
    with pytest.raises(ValueError, match="no time zone"):
        FakeClock(datetime(2026, 3, 1, 12))


def test_tasks_that_sleep_on_the_fake_clock_wake_in_due_order_each_at_its_own_time() -> None:
    async def main() -> list[tuple[str, float]]:
        clock = FakeClock()
        notes: list[tuple[str, float]] = []
        async with asyncio.TaskGroup() as group:
            for name, seconds in [("late", 30), ("early", 10), ("middle", 20), ("middle too", 20)]:
                group.create_task(_sleep_and_note(clock, seconds, notes, name))
            await clock.advance(60)
        return notes

    assert asyncio.run(main()) == [("early", 10), ("middle", 20), ("middle too", 20), ("late", 30)]


def test_the_fake_clock_does_not_wake_a_task_before_its_time() -> None:
    async def main() -> None:
        clock = FakeClock()
        sleeper = asyncio.create_task(clock.sleep(10))
        await clock.advance(9.999)
        assert not sleeper.done()
        await clock.advance(0.001)
        assert sleeper.done()

    asyncio.run(main())


def test_one_advance_of_the_fake_clock_wakes_a_task_each_time_it_sleeps_within_the_interval() -> None:
    async def main() -> None:
        clock = FakeClock()
        ticks: list[float] = []

        async def tick() -> None:
            while True:
                await clock.sleep(0.1)
                ticks.append((clock.now() - START).total_seconds())

        ticking = asyncio.create_task(tick())
        await clock.advance(1)
        assert ticks == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
        ticking.cancel()

    asyncio.run(main())


def test_advancing_the_fake_clock_returns_only_after_the_tasks_that_follow_a_woken_task_have_run() -> None:
    async def main() -> None:
        clock = FakeClock()
        queues = [asyncio.Queue[str]() for _ in range(11)]

        async def forward(source: asyncio.Queue[str], target: asyncio.Queue[str]) -> None:
            target.put_nowait(await source.get())

        async def put_first_item() -> None:
            await clock.sleep(5)
            queues[0].put_nowait("breakfast")

        tasks = [asyncio.create_task(forward(a, b)) for a, b in pairwise(queues)]
        tasks.append(asyncio.create_task(put_first_item()))
        await clock.advance(5)
        assert queues[-1].get_nowait() == "breakfast"

    asyncio.run(main())


def test_a_cancelled_sleep_on_the_fake_clock_does_not_disturb_other_sleeping_tasks() -> None:
    async def main() -> None:
        clock = FakeClock()
        cancelled, other = asyncio.create_task(clock.sleep(5)), asyncio.create_task(clock.sleep(6))
        await asyncio.sleep(0)
        cancelled.cancel()
        await clock.advance(10)
        assert cancelled.cancelled()
        assert other.done()
        assert not other.cancelled()

    asyncio.run(main())


def test_a_sleep_of_zero_on_the_fake_clock_returns_at_once_and_an_infinite_sleep_never_returns() -> None:
    async def main() -> None:
        clock = FakeClock()
        await clock.sleep(0)
        await clock.sleep(-1)
        forever = asyncio.create_task(clock.sleep(math.inf))
        await clock.advance(timedelta(days=365_000))
        assert not forever.done()
        forever.cancel()

    asyncio.run(main())


@pytest.mark.parametrize("delta", [timedelta(days=2), timedelta(days=-2)])
def test_a_jump_of_the_fake_clock_moves_the_wall_clock_and_does_not_change_sleeps(delta: timedelta) -> None:
    async def main() -> None:
        clock = FakeClock()
        sleeper = asyncio.create_task(clock.sleep(10))
        await clock.advance(4)
        clock.jump(delta)
        assert clock.now() == START + timedelta(seconds=4) + delta
        await clock.advance(5)
        assert not sleeper.done()
        await clock.advance(1)
        assert sleeper.done()

    asyncio.run(main())


def test_the_fake_clock_cannot_go_backward_or_be_advanced_concurrently() -> None:
    async def main() -> None:
        clock = FakeClock()
        with pytest.raises(ValueError, match="jump"):
            await clock.advance(-1)
        first = asyncio.create_task(clock.advance(1))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="already being advanced"):
            await clock.advance(1)
        await first
        assert clock.now() == START + timedelta(seconds=1)

    asyncio.run(main())
