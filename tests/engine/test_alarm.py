"""The alarm: one timer at the earliest moment, that outlives whatever goes wrong when it rings."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

import pytest

from retinue.schedules.alarm import RETRY_S, TICK_MAX_S, Alarm
from retinue.testing.fake_clock import START, FakeClock


class Bell:
    """Remembers when it was rung, and says when it wants to be rung next."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.rung: list[datetime] = []
        self.next: Callable[[], float | None] = lambda: None

    async def ring(self) -> float | None:
        self.rung.append(self.clock.now())
        return self.next()

    @property
    def seconds(self) -> list[float]:
        return [(moment - START).total_seconds() for moment in self.rung]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def bell(clock: FakeClock) -> Bell:
    return Bell(clock)


@asynccontextmanager
async def started(clock: FakeClock, ring: Callable[[], Awaitable[float | None]]) -> AsyncGenerator[Alarm]:
    alarm = Alarm(clock, ring)
    alarm.start()
    await clock.advance(0)
    try:
        yield alarm
    finally:
        await alarm.stop()


async def test_it_rings_at_once_and_then_when_it_was_told_to(clock: FakeClock, bell: Bell) -> None:
    bell.next = lambda: 7.5
    async with started(clock, bell.ring):
        assert bell.seconds == [0]
        await clock.advance(7)
        assert bell.seconds == [0]
        await clock.advance(0.5)
        assert bell.seconds == [0, 7.5]
        await clock.advance(15)
        assert bell.seconds == [0, 7.5, 15, 22.5]


async def test_its_timer_is_set_in_the_moment_in_which_it_learns_when_to_ring(clock: FakeClock, bell: Bell) -> None:
    """Set a round of the loop later, it counted from wherever the clock had been turned to meanwhile."""
    bell.next = lambda: 7.5
    alarm = Alarm(clock, bell.ring)
    alarm.start()
    while not bell.rung:
        await asyncio.sleep(0)
    assert clock.remaining_sleeps() == [7.5]
    await alarm.stop()


@pytest.mark.spec("H14")
@pytest.mark.parametrize("wait_s", [None, 1e9, 3e10, float("inf")])
async def test_however_far_the_next_moment_is_it_looks_every_tick(
    clock: FakeClock, bell: Bell, wait_s: float | None
) -> None:
    """No timer carries thirty years, and the wall may be set meanwhile."""
    bell.next = lambda: wait_s
    async with started(clock, bell.ring):
        await clock.advance(3 * TICK_MAX_S)
        assert bell.seconds == [0, TICK_MAX_S, 2 * TICK_MAX_S, 3 * TICK_MAX_S]


async def test_a_wall_clock_that_jumps_neither_hastens_nor_delays_it(clock: FakeClock, bell: Bell) -> None:
    bell.next = lambda: 30.0
    async with started(clock, bell.ring):
        clock.jump(timedelta(days=-400))
        await clock.advance(30)
        clock.jump(timedelta(days=900))
        await clock.advance(30)
        assert len(bell.rung) == 3


async def test_a_poke_makes_it_look_now(clock: FakeClock, bell: Bell) -> None:
    async with started(clock, bell.ring) as alarm:
        await clock.advance(10)
        alarm.trigger()
        await clock.advance(0)
        assert bell.seconds == [0, 10]


async def test_a_poke_while_it_rings_is_not_lost(clock: FakeClock) -> None:
    """What it was poked for may have come right after it looked."""
    gate = asyncio.Event()
    rung = 0

    async def ring() -> float | None:
        nonlocal rung
        rung += 1
        await gate.wait()
        return None

    async with started(clock, ring) as alarm:
        assert rung == 1
        alarm.trigger()
        alarm.trigger()
        gate.set()
        await clock.advance(0)
        assert rung == 2


async def test_any_number_of_pokes_costs_one_look_and_leaves_nothing_behind(clock: FakeClock, bell: Bell) -> None:
    async with started(clock, bell.ring) as alarm:
        for _ in range(200):
            for _ in range(10):
                alarm.trigger()
            await clock.advance(0)
        assert len(bell.rung) == 201
        assert len(asyncio.all_tasks()) < 10


async def test_it_keeps_ringing_when_ringing_fails(
    clock: FakeClock, bell: Bell, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> float | None:
        raise OSError("the disk is gone")

    bell.next = fail
    async with started(clock, bell.ring):
        await clock.advance(5 * RETRY_S)
        assert len(bell.rung) == 6
        bell.next = lambda: 20.0
        await clock.advance(RETRY_S)
        await clock.advance(20)
        assert bell.seconds[-2:] == [6 * RETRY_S, 6 * RETRY_S + 20]
    assert [record.message for record in caplog.records] == ["alarm failed, will retry"] * 6
    assert caplog.records[0].levelno == logging.ERROR


async def test_a_stopped_alarm_is_silent(clock: FakeClock, bell: Bell) -> None:
    bell.next = lambda: 1.0
    async with started(clock, bell.ring) as alarm:
        await alarm.stop()
        alarm.trigger()
        await clock.advance(100)
        assert bell.seconds == [0]


async def test_an_alarm_that_was_never_started_can_be_stopped(clock: FakeClock, bell: Bell) -> None:
    alarm = Alarm(clock, bell.ring)
    alarm.trigger()
    alarm.abandon()
    await alarm.stop()
    assert bell.rung == []
