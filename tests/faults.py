"""Faults for tests: fail commits of the store, crash the server at a named point, advance its clock."""

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


class StoreFailure:
    """Fails a number of commits at one point."""

    def __init__(self, point: str, *, times: int, after: int = 0, code: str = "store.disk_full") -> None:
        """Let the first `after` commits succeed."""
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


class LostCommitResponse:
    """A database that commits once and then loses the connection before the response."""

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


class SimulatedCrash(BaseException):
    """The server stops here, as with `kill -9`."""


class CrashAt:
    """Crashes a server when a point is reached for the nth time. Commit points are reached in the thread of the store.

    At points reached before `guard` was called, only the raised exception stops the caller.
    """

    def __init__(self, point: str, *, nth: int = 1) -> None:
        self._point = point
        self._left = nth
        self._server: LocalServer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def watch(self, server: LocalServer) -> None:
        self._server, self._loop = server, asyncio.get_running_loop()

    @property
    def happened(self) -> bool:
        return self._left == 0

    def reach(self, point: str) -> None:
        in_store = point.endswith("-commit")
        if point != self._point or self.happened or (in_store and self._server is None):
            return
        self._left -= 1
        if self._left:
            return
        if not in_store:
            if self._server is not None:
                self._server.crash()
            raise SimulatedCrash(point)
        assert self._server is not None and self._loop is not None
        # Queued before the response to this commit, so that no caller receives the response.
        self._loop.call_soon_threadsafe(self._server.crash)
        if point.endswith("before-commit"):
            raise StoreError("the lights went off", code="store.closed")


async def poll_until(met: Callable[[], bool], what: str) -> None:
    await wait_until(met, what, poll_s=0.002)


@asynccontextmanager
async def advancing_clock(where: LocalServer | LocalInstance) -> AsyncGenerator[None]:
    """Advance the fake clock, one second at a time.

    Given a server, wait for its store after each second, so that a slow machine gets as far as a fast one.
    """
    instance = where.instance if isinstance(where, LocalServer) else where

    async def run() -> None:
        while True:
            await instance.clock.advance(1.0)
            if isinstance(where, LocalServer):
                with suppress(StoreError):  # the server has crashed
                    await where.store.scan(lambda conn: None)
                    await where.store.write(lambda conn: None, point="time-passing")
            await asyncio.sleep(0.005)  # sleep: parts other than the store have work, too

    task = asyncio.create_task(run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
