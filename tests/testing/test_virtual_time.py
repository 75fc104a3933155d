"""The simulated event loop: virtual time, races decided by a seed, and runs that can be repeated."""

from __future__ import annotations

import asyncio
import gc
import math
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest

from retinue.testing.fake_clock import START
from retinue.testing.virtual_time import (
    Deadlock,
    NotSimulated,
    StepLimitReached,
    VirtualClock,
    VirtualTimeLoop,
    simulate,
)


def _loop() -> VirtualTimeLoop:
    return cast("VirtualTimeLoop", asyncio.get_running_loop())


async def _a_busy_afternoon() -> tuple[list[str], str]:
    """Tasks that race for a lock, a queue, timers and a task group. Returns their order and the fingerprint."""
    done: list[str] = []
    lock, queue, bell = asyncio.Lock(), asyncio.Queue[str](maxsize=2), asyncio.Event()

    async def cook(name: str) -> None:
        await bell.wait()
        for course in range(3):
            async with lock:
                done.append(f"{name} cooks {course}")
                await asyncio.sleep(0.5)  # sleep: virtual time
            await queue.put(f"{name}:{course}")

    async def serve() -> None:
        for _ in range(9):
            done.append(f"served {await queue.get()}")

    async def give_up(name: str) -> None:
        try:
            async with asyncio.timeout(1):  # time limit: virtual time
                await asyncio.sleep(1)  # sleep: virtual time
            done.append(f"{name} made it")
        except TimeoutError:
            done.append(f"{name} gave up")

    async def wait_to_be_sent_home(name: str) -> None:
        try:
            await asyncio.sleep(3600)  # sleep: virtual time
        finally:
            done.append(f"{name} goes home")

    async def quit_angrily() -> None:
        await asyncio.sleep(2)  # sleep: virtual time
        raise ArithmeticError("the bill is wrong")

    async with asyncio.TaskGroup() as kitchen:
        for name in ("ada", "bo", "cy"):
            kitchen.create_task(cook(name))
            kitchen.create_task(give_up(name))
        kitchen.create_task(serve())
        asyncio.get_running_loop().call_later(1, bell.set)
    try:
        async with asyncio.TaskGroup() as dining_room:
            for number in range(20):
                dining_room.create_task(wait_to_be_sent_home(f"guest {number}"))
            dining_room.create_task(quit_angrily())
    except* ArithmeticError:
        done.append("closed")
    waiters = {asyncio.create_task(asyncio.sleep(1, f"waiter {number}")) for number in range(20)}  # sleep: virtual time
    done.extend(waiter.result() for waiter in (await asyncio.wait(waiters))[0])
    return done, _loop().fingerprint


async def _observe_task_order() -> str:
    order: list[str] = []

    async def go(name: str) -> None:
        order.append(name)

    await asyncio.gather(*(go(name) for name in "abcd"))
    return "".join(order)


def test_a_year_of_sleep_in_virtual_time_passes_at_once() -> None:
    async def main() -> float:
        await asyncio.sleep(365 * 24 * 3600)  # sleep: virtual time
        return asyncio.get_running_loop().time()

    assert simulate(1, main) == 365 * 24 * 3600  # no real waiting


def test_virtual_time_does_not_advance_while_a_task_is_ready() -> None:
    async def main() -> None:
        sleeper = asyncio.create_task(asyncio.sleep(0.000001))  # sleep: virtual time
        for _ in range(1000):
            await asyncio.sleep(0)
        assert not sleeper.done()
        assert asyncio.get_running_loop().time() == 0

    simulate(1, main)


def test_the_same_seed_gives_the_same_result_and_fingerprint_of_a_simulated_event_loop() -> None:
    for seed in range(20):
        assert simulate(seed, _a_busy_afternoon) == simulate(seed, _a_busy_afternoon)


def test_different_seeds_give_different_results_and_fingerprints_of_a_simulated_event_loop() -> None:
    stories = [simulate(seed, _a_busy_afternoon) for seed in range(20)]
    assert len({tuple(done) for done, _ in stories}) == 20
    assert len({fingerprint for _, fingerprint in stories}) == 20


def test_a_seed_of_the_simulated_event_loop_replays_in_another_process_with_other_hashes() -> None:
    program = (
        "import sys, gc; junk = [object() for _ in range(int(sys.argv[2]))]; sys.path[:0] = sys.argv[3:]\n"
        "from test_virtual_time import _a_busy_afternoon, simulate\n"
        "print(simulate(int(sys.argv[1]), _a_busy_afternoon))"
    )

    def replay(seed: int, junk: int) -> str:
        places = [os.path.dirname(__file__), *sys.path]
        command = [sys.executable, "-c", program, str(seed), str(junk), *places]
        environment = {**os.environ, "PYTHONHASHSEED": str(junk)}
        return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout.strip()

    assert replay(7, 1) == replay(7, 12_345) == str(simulate(7, _a_busy_afternoon))


def test_all_task_orders_of_the_simulated_event_loop_occur_across_seeds() -> None:
    assert len({simulate(seed, _observe_task_order) for seed in range(300)}) == 24


def test_simultaneous_timers_in_virtual_time_run_in_any_order_and_earlier_timers_first() -> None:
    async def main() -> str:
        loop = asyncio.get_running_loop()
        order: list[str] = []
        for when, name in [(5, "d"), (5, "e"), (3, "c"), (-2, "b"), (-4, "a")]:
            loop.call_at(when, order.append, name)
        await asyncio.sleep(6)  # sleep: virtual time
        return "".join(order)

    assert {simulate(seed, main) for seed in range(40)} == {"abcde", "abced"}


def test_many_short_sleeps_and_one_long_sleep_in_virtual_time_end_together_in_either_order() -> None:
    async def main() -> str:
        order: list[str] = []

        async def many() -> None:
            for _ in range(10):
                await asyncio.sleep(0.1)  # sleep: virtual time
            order.append("many")

        async def one() -> None:
            await asyncio.sleep(1)  # sleep: virtual time
            order.append("one")

        await asyncio.gather(many(), one())
        return " ".join(order)

    assert {simulate(seed, main) for seed in range(40)} == {"many one", "one many"}


def test_plain_callbacks_of_the_simulated_event_loop_keep_the_order_of_call_soon() -> None:
    async def main() -> list[int]:
        order: list[int] = []
        bystanders = [asyncio.create_task(asyncio.sleep(0)) for _ in range(5)]
        for number in range(10):
            asyncio.get_running_loop().call_soon(order.append, number)
        await asyncio.gather(*bystanders)
        await asyncio.sleep(0)
        return order

    for seed in range(50):
        assert simulate(seed, main) == list(range(10))


def test_callbacks_and_waiters_of_one_future_keep_their_order_in_the_simulated_event_loop() -> None:
    async def main() -> list[str]:
        order: list[str] = []
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def wait(name: str) -> None:
            await future
            order.append(name)

        def note(name: str) -> Callable[[object], None]:
            return lambda _: order.append(name)

        future.add_done_callback(note("first"))
        waiting = asyncio.create_task(wait("second"))
        await asyncio.sleep(1)  # sleep: virtual time
        future.add_done_callback(note("third"))
        future.set_result(None)
        await waiting
        await asyncio.sleep(0)
        return order

    for seed in range(50):
        assert simulate(seed, main) == ["first", "second", "third"]


def test_a_cancel_passed_to_call_soon_of_the_simulated_event_loop_keeps_its_place() -> None:
    async def main() -> bool:
        loop, seen = asyncio.get_running_loop(), list[int]()
        task = asyncio.create_task(asyncio.sleep(9))  # sleep: virtual time
        await asyncio.sleep(0.1)  # sleep: virtual time
        loop.call_soon(lambda: seen.append(task.cancelling()))
        loop.call_soon(task.cancel)
        loop.call_soon(lambda: seen.append(task.cancelling()))
        await asyncio.wait([task])
        return seen == [0, 1] and task.cancelled()

    assert all(simulate(seed, main) for seed in range(50))


def test_some_seeds_of_the_simulated_event_loop_find_a_lost_update_and_each_of_them_reproduces_it() -> None:
    async def main() -> None:
        stored = 0

        async def add_one(*, slowly: bool) -> None:
            nonlocal stored
            await asyncio.sleep(1)  # sleep: virtual time
            seen = stored
            if slowly:
                await asyncio.sleep(0)
            stored = seen + 1

        await asyncio.gather(add_one(slowly=True), add_one(slowly=False))
        assert stored == 2

    def fails(seed: int) -> bool:
        try:
            simulate(seed, main)
        except AssertionError:
            return True
        return False

    failing = [seed for seed in range(20) if fails(seed)]
    assert 0 < len(failing) < 20
    for seed in failing:
        with pytest.raises(AssertionError) as found:
            simulate(seed, main)
        assert f"seed {seed}:" in found.value.__notes__[0]


def test_the_simulated_event_loop_reports_a_deadlock_with_the_tasks_and_where_they_wait() -> None:
    async def take_both(first: asyncio.Lock, second: asyncio.Lock) -> None:
        async with first:
            await asyncio.sleep(1)  # sleep: virtual time
            async with second:
                pass

    async def main() -> None:
        left, right = asyncio.Lock(), asyncio.Lock()
        async with asyncio.TaskGroup() as group:
            group.create_task(take_both(left, right), name="left-handed")
            group.create_task(take_both(right, left), name="right-handed")

    with pytest.raises(Deadlock) as told:
        simulate(3, main)
    message = str(told.value)
    assert "at 1.0 s nothing is ready and nothing is scheduled" in message
    assert "tasks pending: 3" in message
    assert message.index("Task-1") < message.index("left-handed") < message.index("right-handed")
    assert "take_both (test_virtual_time.py:" in message
    assert "Lock.acquire (locks.py:" in message
    assert "seed 3:" in told.value.__notes__[0]


def test_an_infinite_sleep_in_virtual_time_is_a_deadlock() -> None:
    async def main() -> None:
        await asyncio.sleep(math.inf)  # sleep: virtual time

    with pytest.raises(Deadlock):
        simulate(1, main)


def test_the_simulated_event_loop_ends_an_endless_simulation_at_the_step_limit() -> None:
    async def main() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(
        StepLimitReached, match=r"not finished after 500 steps, at 0.0 s; tasks pending: 1\n  Task-1: .*main"
    ):
        simulate(1, main, steps_max=500)


def test_the_after_step_hook_of_the_simulated_event_loop_runs_after_every_step_and_can_end_the_run() -> None:
    balance = [0]

    async def main() -> None:
        for amount in (5, 5, -20, 20):
            await asyncio.sleep(1)  # sleep: virtual time
            balance[0] += amount

    calls: list[int] = []

    def check_balance() -> None:
        calls.append(balance[0])
        assert balance[0] >= 0, "a timer waits"

    with pytest.raises(AssertionError, match="a timer waits"):
        simulate(1, main, after_step=check_balance)
    assert calls[-1] == -10
    assert sorted(set(calls)) == [-10, 0, 5, 10]


def test_the_simulated_event_loop_cancels_the_remaining_tasks_which_may_clean_up() -> None:
    ended: list[str] = []

    async def linger(name: str) -> None:
        try:
            await asyncio.sleep(3600)  # sleep: virtual time
        finally:
            await asyncio.sleep(1)  # sleep: virtual time
            ended.append(name)

    async def main() -> str:
        tasks = [asyncio.create_task(linger("a")), asyncio.create_task(linger("b"))]
        await asyncio.sleep(1)  # sleep: virtual time
        return f"left {len(tasks)}"

    assert simulate(1, main) == "left 2"
    assert sorted(ended) == ["a", "b"]


def test_a_task_that_ignores_cancellation_in_virtual_time_is_reported_unless_main_failed_first() -> None:
    async def stay() -> None:
        while True:
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    async def main(*, fails: bool) -> None:
        staying.append(asyncio.create_task(stay()))
        await asyncio.sleep(1)  # sleep: virtual time
        if fails:
            raise LookupError("first")

    staying: list[asyncio.Task[None]] = []
    with pytest.raises(Deadlock, match="stay"):
        simulate(1, lambda: main(fails=False))
    with pytest.raises(LookupError, match="first"):
        simulate(1, lambda: main(fails=True))
    for task in staying:  # reported already; asyncio need not log it again when they are collected
        task._log_destroy_pending = False  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]


def test_the_simulated_event_loop_closes_async_generators_left_open() -> None:
    closed: list[bool] = []

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(1)  # sleep: virtual time
            closed.append(True)

    open_ones: list[AsyncIterator[int]] = []

    async def main() -> None:
        open_ones.append(numbers())
        await anext(open_ones[0])

    simulate(1, main)
    assert closed == [True]


def test_the_garbage_collector_is_off_while_the_simulated_event_loop_runs() -> None:
    seen: list[bool] = []

    async def main() -> None:
        seen.append(gc.isenabled())

    simulate(1, main)
    assert seen == [False]
    assert gc.isenabled()


async def _use_a_thread() -> None:
    await asyncio.to_thread(int)


async def _use_a_socket() -> None:
    await asyncio.open_connection("localhost", 80)


async def _use_a_server() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None: ...

    await asyncio.start_server(answer, "localhost", 0)


async def _use_a_process() -> None:
    await asyncio.create_subprocess_exec("true")


async def _use_the_resolver() -> None:
    await asyncio.get_running_loop().getaddrinfo("localhost", 80)


@pytest.mark.parametrize("use", [_use_a_thread, _use_a_socket, _use_a_server, _use_a_process, _use_the_resolver])
def test_the_simulated_event_loop_refuses_real_input_and_output(use: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        with pytest.raises(NotSimulated, match="refused in a simulation"):
            await use()

    simulate(1, main)


def test_another_thread_cannot_wake_the_simulated_event_loop() -> None:
    refusals: list[BaseException] = []

    async def main() -> None:
        loop, woken = asyncio.get_running_loop(), asyncio.Event()

        def call() -> None:
            try:
                loop.call_soon_threadsafe(woken.set)
            except NotSimulated as error:
                refusals.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        loop.call_soon_threadsafe(woken.set)  # in the thread of the loop it is the same as `call_soon`
        await woken.wait()

    simulate(1, main)
    assert len(refusals) == 1


def test_cancelled_timers_of_the_simulated_event_loop_do_not_accumulate() -> None:
    async def main() -> int:
        for _ in range(5000):
            async with asyncio.timeout(3600):
                await asyncio.sleep(0.001)  # sleep: virtual time
        return len(_loop()._timers)  # pyright: ignore[reportPrivateUsage]

    assert simulate(1, main) < 200


def test_a_simulated_event_loop_leaves_no_state_for_the_next() -> None:
    async def main() -> tuple[float, str | None, str]:
        task = asyncio.current_task()
        await asyncio.sleep(1)  # sleep: virtual time
        return asyncio.get_running_loop().time(), task.get_name() if task else None, _loop().fingerprint

    assert simulate(1, main) == simulate(1, main)
    assert simulate(1, main)[:2] == (1.0, "Task-1")


def test_the_virtual_clock_follows_the_loop_time() -> None:
    async def main() -> None:
        clock = VirtualClock()
        assert clock.now() == START
        await clock.sleep(36 * 3600 + 0.25)
        assert clock.now() == START + timedelta(hours=36, seconds=0.25)
        assert clock.now().tzinfo is UTC
        with pytest.raises(ValueError, match="no time zone"):
            VirtualClock(datetime(2026, 1, 1))

    simulate(1, main)


@pytest.mark.parametrize("delta", [timedelta(days=2), timedelta(days=-2)])
def test_a_jump_of_the_virtual_clock_moves_the_wall_clock_but_neither_sleeps_nor_the_loop_time(
    delta: timedelta,
) -> None:
    async def main() -> None:
        clock = VirtualClock(datetime(2026, 6, 1, tzinfo=UTC))
        sleeper = asyncio.create_task(clock.sleep(10))
        await clock.sleep(4)
        clock.jump(delta)
        assert clock.now() == datetime(2026, 6, 1, 0, 0, 4, tzinfo=UTC) + delta
        assert asyncio.get_running_loop().time() == 4
        await sleeper
        assert asyncio.get_running_loop().time() == 10

    simulate(1, main)
