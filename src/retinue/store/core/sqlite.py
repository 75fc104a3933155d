"""The store on SQLite: one connection that writes, with group commit; one that the loop reads on; a few for scans."""

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
COMMIT_HERE_S_MAX = 0.002  # where commits take longer, they are not the loop's to wait for
COMMITS_BELIEVED = 8  # the latest ones
QUICK_AMONG_THEM = 4  # one in so many is quick on any disk that is: the others may have waited for the processor
HERE_MAX = 2  # jobs that one commit on the loop may hold
FEW_COMMITS, FEW_JOBS = 16, 20  # in so many of the latest commits, at most so many jobs: little happens
BUSY_TIMEOUT_MS = 5_000
CACHE_KIB = 2_048
SCAN_CACHE_KIB = 512  # a scan reads each page once: new memory for it costs more than reading it again from the system
WAL_BYTES_KEPT = 16 * 1024 * 1024
STATEMENTS_CACHED = 256
SCANS_AT_ONCE_MAX = 3

# About what is no number and no word, sqlite3 first asks two questions in vain, with an exception each: 1 us for every
# empty column and every yes or no, and a turn with a tool writes sixty. Found here, they are taken at once.
sqlite3.register_adapter(type(None), dict[None, None]().get)  # of nothing it makes nothing
sqlite3.register_adapter(bool, int)


def connect(path: str | Path, *, writable: bool, cache_kib: int = CACHE_KIB) -> QuickConnection:
    """One connection that leaves every BEGIN and COMMIT to us."""

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
    """Have it promise what we promise, and read back that it does."""
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
    # FULL, not NORMAL: with NORMAL a power cut may take back a commit that we have already told someone about.
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
        with suppress(sqlite3.Error):  # a disk that fails may fail here too; the transaction is over all the same
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
    """Run each job in its own savepoint and commit them together. Nobody's answer is given before COMMIT returned."""
    raw = _raw(conn)
    done: list[_Done] = []
    _undo(raw)
    try:
        raw.execute("BEGIN IMMEDIATE")
        if len(jobs) == 1:
            # Alone, a job needs no savepoint: its error undoes the transaction, which is its own.
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
        # A job that had failed on its own keeps its own reason; the others lost their work with the group.
        return [d if d.error is not None else _Done(d.job, None, failure) for d in done] + [
            _Done(job, None, failure) for job in jobs[len(done) :]
        ]
    for kept in done:
        if kept.error is None:
            faults.reach(f"{kept.job.point}.after-commit")
    return done


def _failure(error: Exception, *, of_a_body: bool) -> Exception:
    """What a body raised is its caller's to hear as it is, unless the database said it."""
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
            # A full disk or a failed read makes SQLite undo everything: then this is the group's failure.
            raise failure from error
        raw.execute("ROLLBACK TO job")
        raw.execute("RELEASE job")
        return _Done(job, None, failure)
    raw.execute("RELEASE job")
    return _Done(job, result, None)


class SqliteStore:
    """The default store. Opened by `retinue.store.open_store.open_store`, which brings the schema up to date first."""

    def __init__(self, path: Path, *, faults: Faults = NO_FAULTS) -> None:
        self.path = path
        self._faults = faults
        with ExitStack() as opened:
            self._writer = opened.enter_context(closing(connect(path, writable=True)))
            self._reader = opened.enter_context(closing(connect(path, writable=False)))
            self._connections = opened.pop_all()
        # More than one: the clock looks at the store this way, and an export must not make it late.
        self._scans = ThreadPoolExecutor(SCANS_AT_ONCE_MAX, thread_name_prefix="retinue-scan")
        self._idle_scanners: SimpleQueue[sa.Connection] = SimpleQueue()
        self._waiting: list[_Job] = []  # to be committed once the loop has gone round
        self._jobs: SimpleQueue[list[_Job] | None] = SimpleQueue()
        self._with_thread = 0  # how many jobs the writer thread has: while it has any, the connection is its own
        self._commits_s: deque[float] = deque(maxlen=COMMITS_BELIEVED)  # how long the latest ones took
        self._sizes: deque[int] = deque([1] * FEW_COMMITS, FEW_COMMITS)  # how many jobs the latest ones held
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
        """Commit what came up in one round of the loop: beside it, or here where nobody else would have to wait.

        To a lone job, the way to another thread and back costs about as much as its commit. But many at once share
        one, and while it is made the loop goes on: so this is only for a house in which little happens, and commits
        are quick. See docs/decisions/0005-a-lone-commit-is-made-on-the-loop.md.
        """
        group, self._waiting = self._waiting, []
        here = len(group) <= HERE_MAX and self._with_thread == 0 and sum(self._sizes) <= FEW_JOBS
        if here and self._is_quick():
            self._answer(self._commit(group), self._writer.written())
        else:
            self._with_thread += len(group)
            self._jobs.put(group)

    def _is_quick(self) -> bool:
        """Whether the disk is. Where the processor is busy most commits are late too, but not all of them."""
        taken_s = sorted(self._commits_s)
        return not taken_s or taken_s[len(taken_s) // QUICK_AMONG_THEM] < COMMIT_HERE_S_MAX

    async def read(self, body: Body[T]) -> T:
        if self._closed:
            raise closed()
        if self._with_thread == 0:
            # Nobody writes now, so it is read where all that was written still lies in memory: each commit empties the
            # memory of every other connection, and what is read there is fetched from the system and locked anew.
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
            # A closed loop means the house went down without waiting; what was committed stays committed.
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
    """Run `body` on one consistent picture of the store."""
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
    """The same on a connection that writes.

    No `PRAGMA query_only` here: each change of it makes SQLite prepare every statement anew. `snapshot` ends in
    ROLLBACK, so a body that writes where it should only look keeps nothing; and it is told so, as elsewhere.
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
    """The same store without threads, for simulation: each commit happens within one step of the loop.

    `write` yields to the loop before and after its commit, so that a simulation can put anything in between.
    """

    def __init__(self, path: str | Path = ":memory:", *, faults: Faults = NO_FAULTS, yields: bool = True) -> None:
        self._conn = connect(path, writable=True)
        self._faults = faults
        self._yields = yields
        self._listeners = Listeners()
        self._closed = False
        self.written: AbstractSet[str] | None = None  # the tables of the latest commit

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
