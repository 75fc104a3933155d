"""The store on SQLite, with group commit.

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
from retinue.domain.ports import Faults
from retinue.store.core.connection import NO_FAULTS, Body, Listeners, Then, closed, explain, follow_up, resolve
from retinue.store.core.fast_connection import QuickConnection

T = TypeVar("T")

GROUP_MAX = 256
COMMIT_HERE_S_MAX = 0.002  # slower commits do not run on the event loop
COMMITS_BELIEVED = 8  # number of latest commits whose duration is considered
QUICK_AMONG_THEM = 4  # on a fast disk, one commit in this many is fast: others may have waited for the processor
HERE_MAX = 2  # maximum writes in one commit on the event loop
FEW_COMMITS, FEW_JOBS = 16, 20  # the load is low if the latest 16 commits held at most 20 writes
BUSY_TIMEOUT_MS = 5_000
CACHE_KIB = 2_048
SCAN_CACHE_KIB = 512  # a scan reads each database page once: a larger cache costs more than reading again from the OS
WAL_BYTES_KEPT = 16 * 1024 * 1024
STATEMENTS_CACHED = 256
SCANS_AT_ONCE_MAX = 3

# For a value that is neither number nor text, sqlite3 first tries two adaptations that raise. This costs 1 us for
# every NULL and every boolean, and a turn with a tool call writes sixty. A registered adapter is found at once.
sqlite3.register_adapter(type(None), dict[None, None]().get)  # maps None to None
sqlite3.register_adapter(bool, int)


def connect(path: str | Path, *, writable: bool, cache_kib: int = CACHE_KIB) -> QuickConnection:
    """Open a connection that leaves every BEGIN and COMMIT to us."""

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
        return QuickConnection(engine)
    except (exc.DBAPIError, sqlite3.Error) as error:
        raise explain(error) from error


def configure(raw: sqlite3.Connection, *, writable: bool, cache_kib: int = CACHE_KIB) -> None:
    """Set the durability pragmas, and read back that they took effect."""
    raw.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
    if writable:
        (journal,) = raw.execute("PRAGMA journal_mode = WAL").fetchone()
        if journal not in ("wal", "memory"):
            raise StoreError(
                "the store's file cannot be written and read at once",
                because=f"SQLite keeps its journal as '{journal}' here, not as a write-ahead log",
                try_this="keep the store on a local disk: network disks cannot share the memory that a log needs",
                code="store.not-durable",
            )
    # FULL, not NORMAL: with NORMAL a power cut may undo a commit that we have already confirmed to a caller.
    raw.execute("PRAGMA synchronous = FULL")
    raw.execute("PRAGMA foreign_keys = ON")
    raw.execute("PRAGMA temp_store = MEMORY")
    raw.execute(f"PRAGMA cache_size = -{cache_kib}")
    raw.execute(f"PRAGMA journal_size_limit = {WAL_BYTES_KEPT}")
    if raw.execute("PRAGMA synchronous").fetchone() != (2,):
        raise StoreError(
            "this SQLite will not promise durable commits",
            because="PRAGMA synchronous = FULL was not taken",
            try_this="use another Python build",
            code="store.not-durable",
        )
    if not writable:
        raw.execute("PRAGMA query_only = ON")


def _raw(conn: sa.Connection) -> sqlite3.Connection:
    raw: Any = conn.connection.dbapi_connection
    return raw


def _undo(raw: sqlite3.Connection) -> None:
    if raw.in_transaction:
        with suppress(sqlite3.Error):  # a failing disk may fail here too; the transaction is over in any case
            raw.execute("ROLLBACK")


class _Job(NamedTuple):
    body: Body[Any]
    point: str
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop
    then: Then[Any] | None


class _Done(NamedTuple):
    job: _Job
    result: Any
    error: BaseException | None


def commit_group(conn: sa.Connection, jobs: list[_Job], faults: Faults) -> list[_Done]:
    """Run each write in its own savepoint and commit them together. No result is reported before COMMIT returns."""
    raw = _raw(conn)
    done: list[_Done] = []
    _undo(raw)
    try:
        raw.execute("BEGIN IMMEDIATE")
        if len(jobs) == 1:
            # A single write needs no savepoint: an error undoes the transaction, which is its own.
            done.append(_Done(jobs[0], jobs[0].body(conn), None))
        else:
            for job in jobs:
                done.append(_in_savepoint(conn, raw, job))
        for kept in done:
            if kept.error is None:
                faults.reach(f"{kept.job.point}.before-commit")
        raw.execute("COMMIT")
    except Exception as error:  # noqa: BLE001 - whatever it was, nobody may be answered as if it had worked
        _undo(raw)
        failure = _failure(error, of_a_body=len(jobs) == 1 and not done)
        # A write that failed by itself keeps its own error; the others were lost with the group.
        return [d if d.error is not None else _Done(d.job, None, failure) for d in done] + [
            _Done(job, None, failure) for job in jobs[len(done) :]
        ]
    for kept in done:
        if kept.error is None:
            faults.reach(f"{kept.job.point}.after-commit")
    return done


def _failure(error: Exception, *, of_a_body: bool) -> Exception:
    """Return an error raised by a body unchanged, and translate an error of the database."""
    if isinstance(error, StoreError) or (of_a_body and not isinstance(error, exc.SQLAlchemyError | sqlite3.Error)):
        return error
    return explain(error)


def _in_savepoint(conn: sa.Connection, raw: sqlite3.Connection, job: _Job) -> _Done:
    raw.execute("SAVEPOINT job")
    try:
        result = job.body(conn)
    except Exception as error:
        failure = _failure(error, of_a_body=True)
        if not raw.in_transaction:
            # After a full disk or a failed read SQLite undoes everything, so the error belongs to the group.
            raise failure from error
        raw.execute("ROLLBACK TO job")
        raw.execute("RELEASE job")
        return _Done(job, None, failure)
    raw.execute("RELEASE job")
    return _Done(job, result, None)


class SqliteStore:
    """The default store. Opened by `retinue.store.open_store.open_store`, which upgrades the schema first."""

    def __init__(self, path: Path, *, faults: Faults = NO_FAULTS) -> None:
        self.path = path
        self._faults = faults
        with ExitStack() as opened:
            self._writer = opened.enter_context(closing(connect(path, writable=True)))
            self._reader = opened.enter_context(closing(connect(path, writable=False)))
            self._connections = opened.pop_all()
        # More than one: the scheduler scans too, and an export must not delay it.
        self._scans = ThreadPoolExecutor(SCANS_AT_ONCE_MAX, thread_name_prefix="retinue-scan")
        self._idle_scanners: SimpleQueue[sa.Connection] = SimpleQueue()
        self._waiting: list[_Job] = []  # to be committed after the current iteration of the event loop
        self._jobs: SimpleQueue[list[_Job] | None] = SimpleQueue()
        self._with_thread = 0  # writes given to the writer thread: while there are any, it owns the connection
        self._commits_s: deque[float] = deque(maxlen=COMMITS_BELIEVED)  # durations of the latest commits
        self._sizes: deque[int] = deque([1] * FEW_COMMITS, FEW_COMMITS)  # numbers of writes in the latest commits
        self._listeners = Listeners()
        self._closed = False
        self._thread = threading.Thread(target=self._write_forever, name="retinue-writer", daemon=True)
        self._thread.start()

    async def write(self, body: Body[T], *, point: str, then: Then[T] | None = None) -> T:
        if self._closed:
            follow_up(then, None)
            raise closed()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._commit_waiting)
        self._waiting.append(_Job(body, point, future, loop, then))
        return await future

    def _commit_waiting(self) -> None:
        """Commit the writes of one event loop iteration, in the writer thread or right here.

        For a single write, switching to another thread and back costs about as much as its commit.
        But many writes share one commit, and the event loop continues while the thread commits. So
        we commit here only while the load is low and commits are fast. See
        docs/decisions/0005-a-lone-commit-is-made-on-the-loop.md.
        """
        group, self._waiting = self._waiting, []
        here = len(group) <= HERE_MAX and self._with_thread == 0 and sum(self._sizes) <= FEW_JOBS
        if here and self._is_quick():
            self._answer(self._commit(group), self._writer.written())
        else:
            self._with_thread += len(group)
            self._jobs.put(group)

    def _is_quick(self) -> bool:
        """Whether the disk is fast. On a busy processor most commits are slow too, but not all of them."""
        taken_s = sorted(self._commits_s)
        return not taken_s or taken_s[len(taken_s) // QUICK_AMONG_THEM] < COMMIT_HERE_S_MAX

    async def read(self, body: Body[T]) -> T:
        if self._closed:
            raise closed()
        if self._with_thread == 0:
            # There are no writes in progress, so read on the writing connection, whose cache is still valid. Each
            # commit invalidates the cache of every other connection, which then has to read from the OS and lock
            # again.
            return look(self._writer, body)
        try:
            return body(self._reader)
        except (exc.SQLAlchemyError, sqlite3.Error) as error:
            raise explain(error) from error

    async def scan(self, body: Body[T]) -> T:
        if self._closed:
            raise closed()
        return await asyncio.get_running_loop().run_in_executor(self._scans, self._scan, body)

    def on_commit(self, call: Callable[[], None], *tables: sa.Table) -> None:
        self._listeners.add(call, *tables)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._waiting:
            self._commit_waiting()
        self._jobs.put(None)
        await asyncio.get_running_loop().run_in_executor(None, self._finish)
        self._connections.close()

    def _finish(self) -> None:
        self._thread.join()
        self._scans.shutdown()
        with suppress(Empty):
            while True:
                self._idle_scanners.get_nowait().close()

    def _scan(self, body: Body[T]) -> T:
        try:
            conn = self._idle_scanners.get_nowait()
        except Empty:
            conn = connect(self.path, writable=False, cache_kib=SCAN_CACHE_KIB)
        try:
            return snapshot(conn, body)
        finally:
            self._idle_scanners.put(conn)

    def _write_forever(self) -> None:
        stopping = False
        while not stopping and (group := self._jobs.get()) is not None:
            try:
                while len(group) < GROUP_MAX:
                    following = self._jobs.get_nowait()
                    if following is None:
                        stopping = True
                        break
                    group += following
            except Empty:
                pass
            done = self._commit(group)
            # A closed event loop means that the server stopped without waiting. Committed data stays committed.
            with suppress(RuntimeError):
                group[0].loop.call_soon_threadsafe(self._thread_answers, done, self._writer.written())

    def _commit(self, group: list[_Job]) -> list[_Done]:
        began = perf_counter()
        try:
            return commit_group(self._writer, group, self._faults)
        except BaseException as error:  # noqa: BLE001 - a writer that died in silence would leave everyone waiting
            _undo(_raw(self._writer))
            failure = StoreError(
                "a change broke off, and whether it was kept is not known",
                because=f"{type(error).__name__}: {error}",
                try_this="look at what is stored before you repeat it; this is a bug worth reporting",
                code="store.broke-off",
            )
            return [_Done(job, None, failure) for job in group]
        finally:
            self._commits_s.append(perf_counter() - began)

    def _thread_answers(self, done: list[_Done], written: AbstractSet[str] | None) -> None:
        self._with_thread -= len(done)
        self._answer(done, written)

    def _answer(self, done: list[_Done], written: AbstractSet[str] | None) -> None:
        self._sizes.append(len(done))
        for d in done:
            follow_up(d.job.then, d.result)
            resolve(d.job.future, d.result, d.error)
        self._listeners.tell(written)


def snapshot(conn: sa.Connection, body: Body[T]) -> T:
    """Run `body` on one consistent snapshot."""
    raw = _raw(conn)
    try:
        raw.execute("BEGIN")
        try:
            return body(conn)
        finally:
            _undo(raw)
    except (exc.SQLAlchemyError, sqlite3.Error) as error:
        raise explain(error) from error


def look(conn: sa.Connection, body: Body[T]) -> T:
    """Run `body` on a consistent snapshot of the writing connection.

    `PRAGMA query_only` is not used: each change of it makes SQLite prepare every statement again.
    `snapshot` ends with ROLLBACK, so a body that writes has no effect. The write is reported as an
    error, as on the other connections.
    """
    raw = _raw(conn)
    changes = raw.total_changes
    result = snapshot(conn, body)
    if raw.total_changes != changes:
        raise StoreError(
            "a look may not change anything, so nothing was changed",
            because="its body wrote to the store",
            try_this="this is a bug worth reporting",
            code="store.read-only",
        )
    return result


class InlineStore:
    """The same store without threads, for simulation: each commit happens within one event loop step.

    `write` yields to the event loop before and after its commit, so that a simulation can run
    anything in between.
    """

    def __init__(self, path: str | Path = ":memory:", *, faults: Faults = NO_FAULTS, yields: bool = True) -> None:
        self._conn = connect(path, writable=True)
        self._faults = faults
        self._yields = yields
        self._listeners = Listeners()
        self._closed = False
        self.written: AbstractSet[str] | None = None  # the tables written by the latest commit

    @property
    def connection(self) -> sa.Connection:
        return self._conn

    async def write(self, body: Body[T], *, point: str, then: Then[T] | None = None) -> T:
        try:
            if self._yields:
                await asyncio.sleep(0)
            if self._closed:
                raise closed()
            loop = asyncio.get_running_loop()
            done = commit_group(self._conn, [_Job(body, point, loop.create_future(), loop, then)], self._faults)[0]
        except BaseException:
            follow_up(then, None)
            raise
        follow_up(then, done.result)
        self.written = self._conn.written()
        if done.error is None:
            self._listeners.tell(self.written)
        if self._yields:
            await asyncio.sleep(0)
        if done.error is not None:
            raise done.error
        return done.result

    async def read(self, body: Body[T]) -> T:
        return self._look(body)

    async def scan(self, body: Body[T]) -> T:
        if self._yields:
            await asyncio.sleep(0)
        return self._look(body)

    def on_commit(self, call: Callable[[], None], *tables: sa.Table) -> None:
        self._listeners.add(call, *tables)

    async def close(self) -> None:
        self._closed = True
        self._conn.close()

    def _look(self, body: Body[T]) -> T:
        if self._closed:
            raise closed()
        return look(self._conn, body)
