"""The store on PostgreSQL, through psycopg 3.

It runs the same transaction bodies, synchronously, on an async connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.ext.asyncio import create_async_engine

from retinue.domain.errors import StoreError
from retinue.domain.ports import Faults
from retinue.store.core.connection import NO_FAULTS, Body, Listeners, Then, closed, explain, follow_up
from retinue.store.core.server_lock import ServerLock, Unguarded

T = TypeVar("T")

POOL_SIZE = 8
RETRIES_MAX = 5
_RETRY = ("40001", "40P01")  # serialization failure and deadlock: the database asks us to run the body again

_WRITTEN = "tables written"
_WHO_KNOWS = "*"  # for a statement that was not built from tables


class PostgresStore:
    """Opened by `retinue.store.open_store`. With a lock, it uses only connections that `ServerLock` has checked."""

    def __init__(self, url: str | sa.URL, *, faults: Faults = NO_FAULTS, lock: ServerLock | None = None) -> None:
        self._faults = faults
        self._lock = lock
        named = {} if lock is None else {"fallback_application_name": lock.label}
        self._engine = create_async_engine(url, pool_size=POOL_SIZE, max_overflow=0, connect_args=named)
        event.listen(self._engine.sync_engine, "connect", _promise_durable_commits)
        if lock is not None:
            event.listen(self._engine.sync_engine, "connect", lock.admit)
        event.listen(self._engine.sync_engine, "after_cursor_execute", _note_what_is_written)
        self._listeners = Listeners()
        self._under_way: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def write(self, body: Body[T], *, point: str, then: Then[T] | None = None) -> T:
        if self._closed:
            follow_up(then, None)
            raise closed()
        return await self._see_through(self._write(body, point, then))

    async def read(self, body: Body[T]) -> T:
        return await self._look(partial(self._look_once, body))

    async def scan(self, body: Body[T]) -> T:
        return await self._look(partial(self._look_once, body, isolation_level="REPEATABLE READ"))

    def on_commit(self, call: Callable[[], None], *tables: sa.Table) -> None:
        self._listeners.add(call, *tables)

    async def close(self) -> None:
        """Wait for running transactions: dropping a connection during COMMIT would leave its result unknown."""
        self._closed = True
        if self._under_way:
            await asyncio.wait(self._under_way)
        await self._engine.dispose()
        if self._lock is not None:
            await self._lock.close()

    async def _see_through(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in its own task, so that a commit in progress completes even if the caller is cancelled."""
        task = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # mark it as retrieved: the caller may have been cancelled

    async def _write(self, body: Body[T], point: str, then: Then[T] | None) -> T:
        kept = False

        def committed(result: T) -> None:
            nonlocal kept
            kept = True
            follow_up(then, result)

        try:
            return await self._again_if_asked(partial(self._write_once, body, point, committed))
        finally:
            if not kept:
                follow_up(then, None)

    async def _write_once(self, body: Body[T], point: str, committed: Callable[[T], None]) -> T:
        async with self._engine.connect() as conn:
            written: set[str] = conn.info.setdefault(_WRITTEN, set())
            written.clear()
            result = await conn.run_sync(body)
            told = None if _WHO_KNOWS in written else frozenset(written)
            self._faults.reach(f"{point}.before-commit")
            try:
                await conn.commit()
            except exc.DBAPIError as error:
                if error.connection_invalidated:
                    raise _nobody_knows(error) from error
                raise
            self._faults.reach(f"{point}.after-commit")
            committed(result)
        self._listeners.tell(told)
        return result

    async def _look(self, once: Callable[[], Awaitable[T]]) -> T:
        if self._closed:
            raise closed()
        return await self._see_through(self._again_if_asked(once))

    async def _look_once(self, body: Body[T], **options: Any) -> T:
        async with self._engine.connect() as conn:
            await conn.execution_options(postgresql_readonly=True, **options)
            return await conn.run_sync(body)

    async def _again_if_asked(self, once: Callable[[], Awaitable[T]]) -> T:
        """Run `once` again if nothing was committed and a retry may succeed. Other errors are translated."""
        attempts = 0
        while True:
            attempts += 1
            try:
                if self._lock is not None:
                    await self._lock.hold()
                return await once()
            except Unguarded as error:
                if attempts == RETRIES_MAX:
                    raise _lock_lost() from error
            except exc.DBAPIError as error:
                gone = error.connection_invalidated  # before COMMIT, else it is `commit-unknown`
                asked = getattr(error.orig, "sqlstate", None) in _RETRY
                if attempts == RETRIES_MAX or not (gone or asked):
                    raise explain(error) from error
            except exc.SQLAlchemyError as error:
                raise explain(error) from error


def _note_what_is_written(conn: sa.Connection, *execution: Any) -> None:
    """Record which tables a transaction writes to, for listeners of certain tables."""
    context = execution[-2]
    if context is None or context.compiled is None or isinstance(context.compiled.statement, sa.TextClause):
        conn.info.setdefault(_WRITTEN, set()).add(_WHO_KNOWS)
    elif context.isinsert or context.isupdate or context.isdelete:
        conn.info.setdefault(_WRITTEN, set()).add(context.compiled.statement.table.name)


def _promise_durable_commits(connection: Any, _record: object) -> None:
    """Turn `synchronous_commit` on if it is off, so that COMMIT waits for the log. Stronger settings are left alone."""
    cursor = connection.cursor()
    cursor.execute(
        "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
    )
    cursor.close()
    connection.commit()


def _nobody_knows(error: exc.DBAPIError) -> StoreError:
    said = str(error.orig).strip() or "the connection broke"
    return StoreError(
        "the database went away in the middle of a commit, and whether it was kept is not known",
        because=said.splitlines()[0],
        try_this="send the same thing again with the same key: what was kept is recognised",
        code="store.commit-unknown",
    )


def _lock_lost() -> StoreError:
    return StoreError(
        "the lock of this database was lost, so nothing was changed",
        because="its connection broke again and again",
        try_this="check the connection to PostgreSQL: the server takes the lock again by itself",
        code="store.lock-lost",
    )
