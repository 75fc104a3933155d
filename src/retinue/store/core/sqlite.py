"""The store on SQLite. Concurrent writes share one commit.

It has one connection for writes, one for reads on the event loop, and a few for scans.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.pool import NullPool

from retinue.domain.errors import StoreError
from retinue.domain.ports import CrashPoints
from retinue.store.core.connection import (
    NO_FAULTS,
    AfterCommit,
    CommitListeners,
    TransactionBody,
    resolve_future,
    run_after_commit,
    translate_error,
)
from retinue.store.core.errors import (
    DurableCommitsUnavailable,
    StoreClosed,
    StoreReadOnly,
    WalUnavailable,
    WriteInterrupted,
)
from retinue.store.core.fast_connection import FastConnection

T = TypeVar("T")

GROUP_MAX = 256
LOOP_COMMIT_S_MAX = 0.002  # slower commits do not run on the event loop
COMMITS_MEASURED = 8  # number of latest commits whose duration is considered
FAST_COMMIT_QUANTILE = 4  # the disk is fast if one commit in this many is: the others may have waited for the processor
LOOP_COMMIT_WRITES_MAX = 2  # maximum writes in one commit on the event loop
LOW_LOAD_COMMITS, LOW_LOAD_WRITES_MAX = 16, 20  # the load is low if the latest 16 commits contained at most 20 writes
BUSY_TIMEOUT_MS = 5_000
CACHE_KIB = 2_048
SCAN_CACHE_KIB = 512  # a scan reads each database page once: a larger cache costs more than reading again from the OS
WAL_BYTES_KEPT = 16 * 1024 * 1024
STATEMENTS_CACHED = 256
PARALLEL_SCANS_MAX = 3

# For a value that is neither number nor text, sqlite3 first tries two adaptations that raise. This costs 1 us for
# every NULL and every boolean, and a turn with a tool call writes sixty. A registered adapter is found at once.
sqlite3.register_adapter(type(None), dict[None, None]().get)  # maps None to None
sqlite3.register_adapter(bool, int)


def connect(path: str | Path, *, writable: bool, cache_kib: int = CACHE_KIB) -> FastConnection:
    """Open a connection on which transactions begin and end only with an explicit BEGIN and COMMIT."""

    def dbapi() -> sqlite3.Connection:
        raw = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=STATEMENTS_CACHED)
        try:
            configure(raw, writable=writable, cache_kib=cache_kib)
        except BaseException:
            raw.close()
            raise
        return raw

    engine = sa.create_engine("sqlite://", creator=dbapi, poolclass=NullPool)
    try:
        return FastConnection(engine)
    except (exc.DBAPIError, sqlite3.Error) as error:
        raise translate_error(error) from error


def configure(raw: sqlite3.Connection, *, writable: bool, cache_kib: int = CACHE_KIB) -> None:
    """Set the pragmas of a connection. Raises an error if its commits would not be durable."""
    raw.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
    if writable:
        (journal,) = raw.execute("PRAGMA journal_mode = WAL").fetchone()
        if journal not in ("wal", "memory"):
            raise WalUnavailable(journal)
    # FULL, not NORMAL: with NORMAL a power cut may undo a commit that we have already confirmed to a caller.
    raw.execute("PRAGMA synchronous = FULL")
    raw.execute("PRAGMA foreign_keys = ON")
    raw.execute("PRAGMA temp_store = MEMORY")
    raw.execute(f"PRAGMA cache_size = -{cache_kib}")
    raw.execute(f"PRAGMA journal_size_limit = {WAL_BYTES_KEPT}")
    if raw.execute("PRAGMA synchronous").fetchone() != (2,):
        raise DurableCommitsUnavailable
    if not writable:
        raw.execute("PRAGMA query_only = ON")


def _dbapi_connection(conn: sa.Connection) -> sqlite3.Connection:
    raw: Any = conn.connection.dbapi_connection
    return raw


def _rollback(raw: sqlite3.Connection) -> None:
    if raw.in_transaction:
        with suppress(sqlite3.Error):  # a failing disk may fail here too; the transaction is over in any case
            raw.execute("ROLLBACK")


class _PendingWrite(NamedTuple):
    body: TransactionBody[Any]
    point: str
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop
    then: AfterCommit[Any] | None


class _WriteResult(NamedTuple):
    write: _PendingWrite
    result: Any
    error: BaseException | None


def commit_group(conn: sa.Connection, writes: list[_PendingWrite], faults: CrashPoints) -> list[_WriteResult]:
    """Run each write in its own savepoint, and commit all writes with one COMMIT. Returns the result of each write.

    If COMMIT fails, all of the writes fail.
    """
    raw = _dbapi_connection(conn)
    done: list[_WriteResult] = []
    _rollback(raw)
    try:
        raw.execute("BEGIN IMMEDIATE")
        if len(writes) == 1:
            # A single write needs no savepoint: an error rolls back the transaction, which contains nothing else.
            done.append(_WriteResult(writes[0], writes[0].body(conn), None))
        else:
            for job in writes:
                done.append(_run_in_savepoint(conn, raw, job))
        for kept in done:
            if kept.error is None:
                faults.reach(f"{kept.write.point}.before-commit")
        raw.execute("COMMIT")
    except Exception as error:  # noqa: BLE001 - after any error, no write may be reported as done
        _rollback(raw)
        failure = _caller_error(error, from_body=len(writes) == 1 and not done)
        # A write that failed by itself keeps its own error; the others were lost with the group.
        return [d if d.error is not None else _WriteResult(d.write, None, failure) for d in done] + [
            _WriteResult(job, None, failure) for job in writes[len(done) :]
        ]
    for kept in done:
        if kept.error is None:
            faults.reach(f"{kept.write.point}.after-commit")
    return done


def _caller_error(error: Exception, *, from_body: bool) -> Exception:
    """Return the error to report to the caller of a write: database errors are translated, others are unchanged."""
    if isinstance(error, StoreError) or (from_body and not isinstance(error, exc.SQLAlchemyError | sqlite3.Error)):
        return error
    return translate_error(error)


def _run_in_savepoint(conn: sa.Connection, raw: sqlite3.Connection, write: _PendingWrite) -> _WriteResult:
    raw.execute("SAVEPOINT job")
    try:
        result = write.body(conn)
    except Exception as error:
        failure = _caller_error(error, from_body=True)
        if not raw.in_transaction:
            # After a full disk or a failed read, SQLite rolls back everything, so the error belongs to the group.
            raise failure from error
        raw.execute("ROLLBACK TO job")
        raw.execute("RELEASE job")
        return _WriteResult(write, None, failure)
    raw.execute("RELEASE job")
    return _WriteResult(write, result, None)


class SqliteStore:
    """The default store, in one SQLite file. `retinue.store.open_store.open_store` upgrades the schema and opens it."""

    def __init__(self, path: Path, *, faults: CrashPoints = NO_FAULTS) -> None:
        self.path = path
        self._faults = faults
        with ExitStack() as opened:
            self._writer = opened.enter_context(closing(connect(path, writable=True)))
            self._reader = opened.enter_context(closing(connect(path, writable=False)))
            self._connections = opened.pop_all()
        # More than one: the scheduler scans too, and an export must not delay it.
        self._scan_pool = ThreadPoolExecutor(PARALLEL_SCANS_MAX, thread_name_prefix="retinue-scan")
        self._idle_scanners: SimpleQueue[sa.Connection] = SimpleQueue()
        self._pending: list[_PendingWrite] = []  # to be committed after the current iteration of the event loop
        self._write_queue: SimpleQueue[list[_PendingWrite] | None] = SimpleQueue()
        self._writes_in_thread = 0  # writes given to the writer thread: while any are left, it owns the connection
        self._commit_times_s: deque[float] = deque(maxlen=COMMITS_MEASURED)  # durations of the latest commits
        self._commit_sizes: deque[int] = deque(
            [1] * LOW_LOAD_COMMITS, LOW_LOAD_COMMITS
        )  # numbers of writes in the latest commits
        self._listeners = CommitListeners()
        self._closed = False
        self._thread = threading.Thread(target=self._run_writer, name="retinue-writer", daemon=True)
        self._thread.start()

    async def write(self, body: TransactionBody[T], *, point: str, then: AfterCommit[T] | None = None) -> T:
        if self._closed:
            run_after_commit(then, None)
            raise StoreClosed
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        if not self._pending:
            loop.call_soon(self._commit_pending)
        self._pending.append(_PendingWrite(body, point, future, loop, then))
        return await future

    def _commit_pending(self) -> None:
        """Commit the writes of one event loop iteration, either in the writer thread or on the event loop.

        For a single write, switching to the writer thread and back takes about as long as the
        commit itself. In the thread, however, many writes share one commit, and the event loop is
        not blocked. So a commit runs on the event loop only if the load is low and commits are
        fast. See docs/decisions/0005-small-commits-on-the-event-loop.md.
        """
        group, self._pending = self._pending, []
        here = (
            len(group) <= LOOP_COMMIT_WRITES_MAX
            and self._writes_in_thread == 0
            and sum(self._commit_sizes) <= LOW_LOAD_WRITES_MAX
        )
        if here and self._is_disk_fast():
            self._resolve_writes(self._commit(group), self._writer.take_written_tables())
        else:
            self._writes_in_thread += len(group)
            self._write_queue.put(group)

    def _is_disk_fast(self) -> bool:
        """Whether commits are fast enough to run on the event loop.

        It is enough if some of the latest commits were fast. On a busy processor most commits are
        slow, even if the disk is fast.
        """
        taken_s = sorted(self._commit_times_s)
        return not taken_s or taken_s[len(taken_s) // FAST_COMMIT_QUANTILE] < LOOP_COMMIT_S_MAX

    async def read(self, body: TransactionBody[T]) -> T:
        if self._closed:
            raise StoreClosed
        if self._writes_in_thread == 0:
            # There are no writes in progress, so read on the writing connection, whose cache is still valid. Each
            # commit invalidates the cache of every other connection, which then has to read from the OS and lock
            # again.
            return read_on_writer(self._writer, body)
        try:
            return body(self._reader)
        except (exc.SQLAlchemyError, sqlite3.Error) as error:
            raise translate_error(error) from error

    async def scan(self, body: TransactionBody[T]) -> T:
        if self._closed:
            raise StoreClosed
        return await asyncio.get_running_loop().run_in_executor(self._scan_pool, self._scan, body)

    def on_commit(self, call: Callable[[], None], *tables: sa.Table) -> None:
        self._listeners.add(call, *tables)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._pending:
            self._commit_pending()
        self._write_queue.put(None)
        await asyncio.get_running_loop().run_in_executor(None, self._stop_threads)
        self._connections.close()

    def _stop_threads(self) -> None:
        self._thread.join()
        self._scan_pool.shutdown()
        with suppress(Empty):
            while True:
                self._idle_scanners.get_nowait().close()

    def _scan(self, body: TransactionBody[T]) -> T:
        try:
            conn = self._idle_scanners.get_nowait()
        except Empty:
            conn = connect(self.path, writable=False, cache_kib=SCAN_CACHE_KIB)
        try:
            return snapshot(conn, body)
        finally:
            self._idle_scanners.put(conn)

    def _run_writer(self) -> None:
        stopping = False
        while not stopping and (group := self._write_queue.get()) is not None:
            try:
                while len(group) < GROUP_MAX:
                    following = self._write_queue.get_nowait()
                    if following is None:
                        stopping = True
                        break
                    group += following
            except Empty:
                pass
            done = self._commit(group)
            # A closed event loop means that the server stopped without waiting. Committed data stays committed.
            with suppress(RuntimeError):
                group[0].loop.call_soon_threadsafe(self._finish_thread_commit, done, self._writer.take_written_tables())

    def _commit(self, group: list[_PendingWrite]) -> list[_WriteResult]:
        began = perf_counter()
        try:
            return commit_group(self._writer, group, self._faults)
        except BaseException as error:  # noqa: BLE001 - a dead writer thread would leave every caller waiting
            _rollback(_dbapi_connection(self._writer))
            failure = WriteInterrupted(error)
            return [_WriteResult(job, None, failure) for job in group]
        finally:
            self._commit_times_s.append(perf_counter() - began)

    def _finish_thread_commit(self, done: list[_WriteResult], written: AbstractSet[str] | None) -> None:
        self._writes_in_thread -= len(done)
        self._resolve_writes(done, written)

    def _resolve_writes(self, done: list[_WriteResult], written: AbstractSet[str] | None) -> None:
        self._commit_sizes.append(len(done))
        for d in done:
            run_after_commit(d.write.then, d.result)
            resolve_future(d.write.future, d.result, d.error)
        self._listeners.notify(written)


def snapshot(conn: sa.Connection, body: TransactionBody[T]) -> T:
    """Run `body` in a read transaction, so that all its statements see the same snapshot."""
    raw = _dbapi_connection(conn)
    try:
        raw.execute("BEGIN")
        try:
            return body(conn)
        finally:
            _rollback(raw)
    except (exc.SQLAlchemyError, sqlite3.Error) as error:
        raise translate_error(error) from error


def read_on_writer(conn: sa.Connection, body: TransactionBody[T]) -> T:
    """Run `body` on a consistent snapshot, on the connection for writes.

    If `body` writes, its changes are rolled back, and `StoreReadOnly` is raised as on other
    connections. `PRAGMA query_only` is not used, because changing it makes SQLite prepare every
    statement again.
    """
    raw = _dbapi_connection(conn)
    changes = raw.total_changes
    result = snapshot(conn, body)
    if raw.total_changes != changes:
        raise StoreReadOnly(because="the transaction may only read")
    return result


class InlineStore:
    """The SQLite store without threads, for simulations. Each commit runs on the event loop.

    `write` yields to the event loop before and after its commit, so that a simulation can run other
    tasks in between.
    """

    def __init__(self, path: str | Path = ":memory:", *, faults: CrashPoints = NO_FAULTS, yields: bool = True) -> None:
        self._conn = connect(path, writable=True)
        self._faults = faults
        self._yields = yields
        self._listeners = CommitListeners()
        self._closed = False
        self.written_tables: AbstractSet[str] | None = None  # the tables written by the latest commit

    @property
    def connection(self) -> sa.Connection:
        return self._conn

    async def write(self, body: TransactionBody[T], *, point: str, then: AfterCommit[T] | None = None) -> T:
        try:
            if self._yields:
                await asyncio.sleep(0)
            if self._closed:
                raise StoreClosed
            loop = asyncio.get_running_loop()
            done = commit_group(
                self._conn, [_PendingWrite(body, point, loop.create_future(), loop, then)], self._faults
            )[0]
        except BaseException:
            run_after_commit(then, None)
            raise
        run_after_commit(then, done.result)
        self.written_tables = self._conn.take_written_tables()
        if done.error is None:
            self._listeners.notify(self.written_tables)
        if self._yields:
            await asyncio.sleep(0)
        if done.error is not None:
            raise done.error
        return done.result

    async def read(self, body: TransactionBody[T]) -> T:
        return self._read(body)

    async def scan(self, body: TransactionBody[T]) -> T:
        if self._yields:
            await asyncio.sleep(0)
        return self._read(body)

    def on_commit(self, call: Callable[[], None], *tables: sa.Table) -> None:
        self._listeners.add(call, *tables)

    async def close(self) -> None:
        self._closed = True
        self._conn.close()

    def _read(self, body: TransactionBody[T]) -> T:
        if self._closed:
            raise StoreClosed
        return read_on_writer(self._conn, body)
