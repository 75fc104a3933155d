"""What a test may do to a house: fail its store, crash it at a named point, let its time pass."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from retinue.domain.errors import StoreError
from retinue.store.core.connection import Store, run_after_commit
from retinue.store.core.errors import StoreUnreachable
from retinue.testing.local_instance import LocalInstance, LocalServer
from retinue.testing.wait_conditions import WAIT_LIMIT_S, wait_until

WAIT_S = WAIT_LIMIT_S


class StoreFails:
    """Fails commits at one point, a few times."""

    def __init__(self, point: str, *, times: int, after: int = 0, code: str = "store.disk_full") -> None:
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
        run_after_commit(then, None if unheard else result)
        if unheard:
            self._left -= 1
            raise StoreUnreachable(because="the test said so")
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
        self._house: LocalServer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def guard(self, house: LocalServer) -> None:
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
    await wait_until(met, what, poll_s=0.002)


@asynccontextmanager
async def time_passing(where: LocalServer | LocalInstance) -> AsyncGenerator[None]:
    """Let the hand-turned clock run, a second at a time. Given a house, it waits for the store: on a slow machine no
    more of its time passes than on a fast one."""
    household = where.instance if isinstance(where, LocalServer) else where

    async def run() -> None:
        while True:
            await household.clock.advance(1.0)
            if isinstance(where, LocalServer):
                with suppress(StoreError):  # of a house that has crashed
                    await where.store.scan(lambda conn: None)
                    await where.store.write(lambda conn: None, point="time-passing")
            await asyncio.sleep(0.005)  # sleep: others than the store have work, too

    task = asyncio.create_task(run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
