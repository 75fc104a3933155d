"""The store on PostgreSQL, through psycopg 3.

It runs the same synchronous transaction functions as SQLite, on an async connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.ext.asyncio import create_async_engine

from retinue.domain.ports import CrashPoints
from retinue.store.core.connection import (
    NO_FAULTS,
    AfterCommit,
    CommitListeners,
    TransactionBody,
    run_after_commit,
    translate_error,
)
from retinue.store.core.errors import CommitUnknown, StoreClosed, StoreLockLost
from retinue.store.core.server_lock import LockNotHeld, ServerLock

T = TypeVar("T")

POOL_SIZE = 8
RETRIES_MAX = 5
_RETRY_SQLSTATES = ("40001", "40P01")  # serialization failure and deadlock: the database asks us to run the body again

_WRITTEN_TABLES = "tables written"
_UNKNOWN_TABLE = "*"  # for a statement that was not built from tables


class PostgresStore:
    """The store on PostgreSQL, opened by `retinue.store.open_store`.

    With a lock, it uses a new connection only after `ServerLock.check_connection` has accepted it.
    """

    def __init__(self, url: str | sa.URL, *, faults: CrashPoints = NO_FAULTS, lock: ServerLock | None = None) -> None:
        self._faults = faults
        self._lock = lock
        named = {} if lock is None else {"fallback_application_name": lock.label}
        self._engine = create_async_engine(url, pool_size=POOL_SIZE, max_overflow=0, connect_args=named)
        event.listen(self._engine.sync_engine, "connect", _enforce_durable_commits)
        if lock is not None:
            event.listen(self._engine.sync_engine, "connect", lock.check_connection)
        event.listen(self._engine.sync_engine, "after_cursor_execute", _record_written_table)
        self._listeners = CommitListeners()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def write(self, body: TransactionBody[T], *, point: str, then: AfterCommit[T] | None = None) -> T:
        if self._closed:
            run_after_commit(then, None)
            raise StoreClosed
        return await self._run_shielded(self._write(body, point, then))

    async def read(self, body: TransactionBody[T]) -> T:
        return await self._read(partial(self._read_once, body))

    async def scan(self, body: TransactionBody[T]) -> T:
        return await self._read(partial(self._read_once, body, isolation_level="REPEATABLE READ"))

    def on_commit(self, call: Callable[[], None], *tables: sa.Table) -> None:
        self._listeners.add(call, *tables)

    async def close(self) -> None:
        """Wait for running transactions, then close all connections.

        If a connection were closed during COMMIT, the result of the commit would be unknown.
        """
        self._closed = True
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._engine.dispose()
        if self._lock is not None:
            await self._lock.close()

    async def _run_shielded(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in a separate task, so that a commit in progress completes even if the caller is cancelled."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._discard_task)
        return await asyncio.shield(task)

    def _discard_task(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # mark it as retrieved: the caller may have been cancelled

    async def _write(self, body: TransactionBody[T], point: str, then: AfterCommit[T] | None) -> T:
        kept = False

        def committed(result: T) -> None:
            nonlocal kept
            kept = True
            run_after_commit(then, result)

        try:
            return await self._retry(partial(self._write_once, body, point, committed))
        finally:
            if not kept:
                run_after_commit(then, None)

    async def _write_once(self, body: TransactionBody[T], point: str, committed: Callable[[T], None]) -> T:
        async with self._engine.connect() as conn:
            written: set[str] = conn.info.setdefault(_WRITTEN_TABLES, set())
            written.clear()
            result = await conn.run_sync(body)
            written_tables = None if _UNKNOWN_TABLE in written else frozenset(written)
            self._faults.reach(f"{point}.before-commit")
            try:
                await conn.commit()
            except exc.DBAPIError as error:
                if error.connection_invalidated:
                    message = str(error.orig).strip() or "the connection broke"
                    raise CommitUnknown(because=message.splitlines()[0]) from error
                raise
            self._faults.reach(f"{point}.after-commit")
            committed(result)
        self._listeners.notify(written_tables)
        return result

    async def _read(self, once: Callable[[], Awaitable[T]]) -> T:
        if self._closed:
            raise StoreClosed
        return await self._run_shielded(self._retry(once))

    async def _read_once(self, body: TransactionBody[T], **options: Any) -> T:
        async with self._engine.connect() as conn:
            await conn.execution_options(postgresql_readonly=True, **options)
            return await conn.run_sync(body)

    async def _retry(self, once: Callable[[], Awaitable[T]]) -> T:
        """Call `once`, and retry it after an error if nothing was committed and a retry may succeed.

        Any other database error is translated into a `StoreError`.
        """
        attempts = 0
        while True:
            attempts += 1
            try:
                if self._lock is not None:
                    await self._lock.ensure_held()
                return await once()
            except LockNotHeld as error:
                if attempts == RETRIES_MAX:
                    raise StoreLockLost from error
            except exc.DBAPIError as error:
                gone = error.connection_invalidated  # before COMMIT: a loss during COMMIT raises `CommitUnknown`
                asked = getattr(error.orig, "sqlstate", None) in _RETRY_SQLSTATES
                if attempts == RETRIES_MAX or not (gone or asked):
                    raise translate_error(error) from error
            except exc.SQLAlchemyError as error:
                raise translate_error(error) from error


def _record_written_table(conn: sa.Connection, *execution: Any) -> None:
    """Record the table that a statement writes to, so that the commit calls the listeners of this table."""
    context = execution[-2]
    if context is None or context.compiled is None or isinstance(context.compiled.statement, sa.TextClause):
        conn.info.setdefault(_WRITTEN_TABLES, set()).add(_UNKNOWN_TABLE)
    elif context.isinsert or context.isupdate or context.isdelete:
        conn.info.setdefault(_WRITTEN_TABLES, set()).add(context.compiled.statement.table.name)


def _enforce_durable_commits(connection: Any, _record: object) -> None:
    """Set `synchronous_commit` to `on` if it is `off`, so that COMMIT waits until the log is on disk.

    Any other value of the setting is kept.
    """
    cursor = connection.cursor()
    cursor.execute(
        "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
    )
    cursor.close()
    connection.commit()
