"""Waits until a condition is true, instead of for a fixed time.

A test that sleeps waits too long on a fast machine, and not long enough on a busy one. The time
limits here are long on purpose. They only end a test that hangs, and never measure speed.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar, cast

WAIT_LIMIT_S = 120.0
POLL_S = 0.01
POLL_S_MAX = 0.25
POLL_GROWTH = 1.2

T = TypeVar("T")


class DescribeState(Protocol):
    """Returns what a failure message should show, such as rows, output or state."""

    def __call__(self) -> object: ...


async def wait_until(
    condition: Callable[[], T | Awaitable[T]],
    what: str,
    *,
    limit_s: float = WAIT_LIMIT_S,
    poll_s: float = POLL_S,
    describe: DescribeState | None = None,
) -> T:
    """Poll until the condition is true, and return its value. `what` completes "timed out waiting until ..."."""
    deadline = time.monotonic() + limit_s
    polls_left = limit_s / poll_s  # a loop with virtual time gets there long before the deadline
    while True:
        answer = condition()
        value = cast("T", await answer if inspect.isawaitable(answer) else answer)
        if value:
            return value
        if polls_left <= 0 or time.monotonic() > deadline:
            raise AssertionError(_timed_out(what, limit_s, describe))
        polls_left -= 1
        await asyncio.sleep(poll_s)


def wait_until_sync(
    condition: Callable[[], T],
    what: str,
    *,
    limit_s: float = WAIT_LIMIT_S,
    poll_s: float = POLL_S,
    describe: DescribeState | None = None,
) -> T:
    """Do the same as `wait_until`, in a test that blocks its thread.

    The polling interval grows, because the condition often calls a server in another process, and
    that server limits the number of requests per minute.
    """
    deadline = time.monotonic() + limit_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(_timed_out(what, limit_s, describe))
        time.sleep(poll_s)
        poll_s = max(poll_s, min(poll_s * POLL_GROWTH, POLL_S_MAX))
    return value


async def assert_stays_true(condition: Callable[[], bool], reason: str, *, for_s: float) -> None:
    """Check that a condition holds for a while.

    Use this only for something that must not happen, if no event, row or fake clock can show it.
    `reason` says why the wait is needed. On a busy machine, this may fail to notice a defect, but
    it never reports a false one.
    """
    deadline = time.monotonic() + for_s
    while time.monotonic() < deadline:
        assert condition(), reason
        await asyncio.sleep(POLL_S)
    assert condition(), reason


def _timed_out(what: str, limit_s: float, describe: DescribeState | None) -> str:
    seen = "" if describe is None else f"\nseen: {describe()}"
    return f"timed out after {limit_s:g} s waiting until {what}{seen}"
