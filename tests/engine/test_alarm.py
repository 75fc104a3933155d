"""The alarm: one timer for the earliest time, which survives errors when it rings."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

import pytest

from retinue.schedules.alarm import RETRY_S, TICK_MAX_S, Alarm
from retinue.testing.fake_clock import START, FakeClock


class RingRecorder:
    """Records when it was rung, and returns when it wants to be rung next."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.rings: list[datetime] = []
        self.next: Callable[[], float | None] = lambda: None

    async def ring(self) -> float | None:
        self.rings.append(self.clock.now())
        return self.next()

    @property
    def seconds(self) -> list[float]:
        return [(moment - START).total_seconds() for moment in self.rings]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def ring_recorder(clock: FakeClock) -> RingRecorder:
    return RingRecorder(clock)


@asynccontextmanager
async def running_alarm(clock: FakeClock, ring: Callable[[], Awaitable[float | None]]) -> AsyncGenerator[Alarm]:
    alarm = Alarm(clock, ring)
    alarm.start()
    await clock.advance(0)
    try:
        yield alarm
    finally:
        await alarm.stop()


async def test_an_alarm_rings_at_start_and_then_after_each_requested_wait(
    clock: FakeClock, ring_recorder: RingRecorder
) -> None:
    ring_recorder.next = lambda: 7.5
    async with running_alarm(clock, ring_recorder.ring):
        assert ring_recorder.seconds == [0]
        await clock.advance(7)
        assert ring_recorder.seconds == [0]
        await clock.advance(0.5)
        assert ring_recorder.seconds == [0, 7.5]
        await clock.advance(15)
        assert ring_recorder.seconds == [0, 7.5, 15, 22.5]


async def test_the_timer_of_an_alarm_is_set_as_soon_as_ring_returns_the_wait(
    clock: FakeClock, ring_recorder: RingRecorder
) -> None:
    """A timer that was set one loop iteration later counted from a clock that had moved meanwhile."""
    ring_recorder.next = lambda: 7.5
    alarm = Alarm(clock, ring_recorder.ring)
    alarm.start()
    while not ring_recorder.rings:
        await asyncio.sleep(0)
    assert clock.remaining_sleeps() == [7.5]
    await alarm.stop()


@pytest.mark.spec("H14")
@pytest.mark.parametrize("wait_s", [None, 1e9, 3e10, float("inf")])
async def test_an_alarm_rings_every_tick_even_if_the_next_wait_is_years_or_infinite(
    clock: FakeClock, ring_recorder: RingRecorder, wait_s: float | None
) -> None:
    """No timer can wait thirty years, and the wall clock may be set meanwhile."""
    ring_recorder.next = lambda: wait_s
    async with running_alarm(clock, ring_recorder.ring):
        await clock.advance(3 * TICK_MAX_S)
        assert ring_recorder.seconds == [0, TICK_MAX_S, 2 * TICK_MAX_S, 3 * TICK_MAX_S]


async def test_a_jump_of_the_wall_clock_neither_hastens_nor_delays_an_alarm(
    clock: FakeClock, ring_recorder: RingRecorder
) -> None:
    ring_recorder.next = lambda: 30.0
    async with running_alarm(clock, ring_recorder.ring):
        clock.jump(timedelta(days=-400))
        await clock.advance(30)
        clock.jump(timedelta(days=900))
        await clock.advance(30)
        assert len(ring_recorder.rings) == 3


async def test_triggering_an_alarm_rings_it_at_once(clock: FakeClock, ring_recorder: RingRecorder) -> None:
    async with running_alarm(clock, ring_recorder.ring) as alarm:
        await clock.advance(10)
        alarm.trigger()
        await clock.advance(0)
        assert ring_recorder.seconds == [0, 10]


async def test_a_trigger_while_the_alarm_rings_makes_it_ring_again(clock: FakeClock) -> None:
    """The reason for the trigger may have arrived just after the check."""
    gate = asyncio.Event()
    rings = 0

    async def ring() -> float | None:
        nonlocal rings
        rings += 1
        await gate.wait()
        return None

    async with running_alarm(clock, ring) as alarm:
        assert rings == 1
        alarm.trigger()
        alarm.trigger()
        gate.set()
        await clock.advance(0)
        assert rings == 2


async def test_many_triggers_at_once_ring_the_alarm_once_and_leave_no_tasks(
    clock: FakeClock, ring_recorder: RingRecorder
) -> None:
    async with running_alarm(clock, ring_recorder.ring) as alarm:
        for _ in range(200):
            for _ in range(10):
                alarm.trigger()
            await clock.advance(0)
        assert len(ring_recorder.rings) == 201
        assert len(asyncio.all_tasks()) < 10


async def test_an_alarm_whose_ring_raises_logs_the_error_and_retries(
    clock: FakeClock, ring_recorder: RingRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> float | None:
        raise OSError("the disk is gone")

    ring_recorder.next = fail
    async with running_alarm(clock, ring_recorder.ring):
        await clock.advance(5 * RETRY_S)
        assert len(ring_recorder.rings) == 6
        ring_recorder.next = lambda: 20.0
        await clock.advance(RETRY_S)
        await clock.advance(20)
        assert ring_recorder.seconds[-2:] == [6 * RETRY_S, 6 * RETRY_S + 20]
    assert [record.message for record in caplog.records] == ["alarm failed, will retry"] * 6
    assert caplog.records[0].levelno == logging.ERROR


async def test_a_stopped_alarm_never_rings_again_even_if_triggered(
    clock: FakeClock, ring_recorder: RingRecorder
) -> None:
    ring_recorder.next = lambda: 1.0
    async with running_alarm(clock, ring_recorder.ring) as alarm:
        await alarm.stop()
        alarm.trigger()
        await clock.advance(100)
        assert ring_recorder.seconds == [0]


async def test_an_alarm_that_was_never_started_can_be_triggered_and_stopped(
    clock: FakeClock, ring_recorder: RingRecorder
) -> None:
    alarm = Alarm(clock, ring_recorder.ring)
    alarm.trigger()
    alarm.abandon()
    await alarm.stop()
    assert ring_recorder.rings == []
