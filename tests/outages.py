"""What a test may do to a house: fail its store, crash it at a named point, let its time pass."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

from retinue.domain.errors import StoreError
from retinue.store.connection import Store, follow_up
from retinue.testing.household import House, Household

WAIT_S = 20.0


class StoreFails:
    """Fails commits at one point, a few times."""

    def __init__(self, point: str, *, times: int, after: int = 0, code: str = "store.disk-full") -> None:
        """`after` so many that go through."""
        self._point = point
        self._left = times
        self._after = after
        self._code = code

    def reach(self, point: str) -> None:
        if point == self._point and self._after:
            self._after -= 1
        elif point == self._point and self._left:
            self._left -= 1
            raise StoreError("the store will not have it", code=self._code)


class Unheard:
    """A database that commits, once, and loses the line before it says so."""

    def __init__(self, store: Store, point: str) -> None:
        self._write = store.write
        self._point = point
        self._left = 1

    async def write(self, body: Any, *, point: str, then: Any = None) -> Any:
        result = await self._write(body, point=point)
        unheard = point == self._point and self._left > 0
        follow_up(then, None if unheard else result)
        if unheard:
            self._left -= 1
            raise StoreError("the database does not answer", code="store.unreachable")
        return result


class Crash(BaseException):
    """The house stops here, as `kill -9` would have it."""


class CrashAt:
    """Crashes a house where a point is reached for the nth time. Commit points are reached in the store's own thread.

    Points before `guard` was called count only where an exception alone can stop whoever reached them.
    """

    def __init__(self, point: str, *, nth: int = 1) -> None:
        self._point = point
        self._left = nth
        self._house: House | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def guard(self, house: House) -> None:
        self._house, self._loop = house, asyncio.get_running_loop()

    @property
    def happened(self) -> bool:
        return self._left == 0

    def reach(self, point: str) -> None:
        in_store = point.endswith("-commit")
        if point != self._point or self.happened or (in_store and self._house is None):
            return
        self._left -= 1
        if self._left:
            return
        if not in_store:
            if self._house is not None:
                self._house.crash()
            raise Crash(point)
        assert self._house is not None and self._loop is not None
        # Queued before the answer to this commit is, so that nobody hears of it.
        self._loop.call_soon_threadsafe(self._house.crash)
        if point.endswith("before-commit"):
            raise StoreError("the lights went off", code="store.closed")


async def until(met: Callable[[], bool], what: str) -> None:
    deadline = asyncio.get_running_loop().time() + WAIT_S
    while not met():
        assert asyncio.get_running_loop().time() < deadline, f"waited in vain until {what}"
        await asyncio.sleep(0.002)


@asynccontextmanager
async def time_passing(household: Household) -> AsyncGenerator[None]:
    """Let the hand-turned clock run, a second at a time."""

    async def run() -> None:
        while True:
            await household.clock.advance(1.0)
            await asyncio.sleep(0.005)

    task = asyncio.create_task(run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
