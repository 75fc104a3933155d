"""The interface of the store, implemented for SQLite and for PostgreSQL.

A transaction is a plain function `body(conn) -> T`. It uses no clock, no randomness and no I/O
except `conn`, so the store can run it again if the database asks for a retry. The store has three
methods that run a transaction:

    write   may change data; returns when the changes are on disk
    read    for lookups by key; on SQLite it runs on the event loop
    scan    for lists, searches and sums, on one consistent snapshot; outside the event loop
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Protocol, TypeVar

import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import exc

from retinue.domain.errors import StoreError
from retinue.domain.ports import CrashPoints
from retinue.store.core.errors import (
    ConstraintViolated,
    StatementRejected,
    StoreBusy,
    StoreCannotOpen,
    StoreDamaged,
    StoreDiskFailed,
    StoreDiskFull,
    StoreReadOnly,
    StoreUnreachable,
)

log = logging.getLogger(__name__)

T = TypeVar("T")
TransactionBody = Callable[[sa.Connection], T]
AfterCommit = Callable[[T | None], None]


LOCK_WAIT_S = 5.0
"""Time to wait for the lock on a database, in seconds, so that PostgreSQL can notice that a killed server is gone."""

PERMANENT_ERROR_CODES = frozenset({ConstraintViolated.code, StatementRejected.code})
"""Codes of errors that a retry cannot fix."""


class NoFaults:
    """Crash points that do nothing, for production. In tests, reaching a crash point can cause a fault."""

    def reach(self, point: str) -> None:
        return


NO_FAULTS: CrashPoints = NoFaults()


class LockRequest(Struct, frozen=True, kw_only=True):
    """Describes the server that opens a store for exclusive use.

    `on_lost` is called once if another server takes over the database.
    """

    host: str
    pid: int
    directory: Path
    on_lost: Callable[[StoreError], None]
    wait_s: float = LOCK_WAIT_S


class Store(Protocol):
    async def write(self, body: TransactionBody[T], *, point: str, then: AfterCommit[T] | None = None) -> T:
        """Run `body` in its own transaction. Returns only after COMMIT.

        If `body` fails, its changes are rolled back, but those of other writes are not. If the caller is
        cancelled, `body` is still committed completely or not at all. Use `then` for work that must
        follow the commit even if the caller is cancelled. It is called once on the event loop, in
        commit order. Its argument is the result of `body`, or None if nothing was committed.
        """
        ...

    async def read(self, body: TransactionBody[T]) -> T:
        """Run `body`, which must not write. It may see a commit that happens between two of its statements."""
        ...

    async def scan(self, body: TransactionBody[T]) -> T:
        """Run `body`, which must not write. All its statements see the same snapshot of the database."""
        ...

    def on_commit(self, call: Callable[[], None], *tables: sa.Table) -> None:
        """Register a callback, which is called on the event loop after commits.

        Without tables, it is called at least once after each commit. With tables, it is called at
        least once after each commit that wrote to one of them.
        """
        ...

    async def close(self) -> None: ...


def translate_error(error: Exception) -> StoreError:
    """Translate a database error into a `StoreError` with a message for people."""
    cause = error.orig if isinstance(error, exc.DBAPIError) and error.orig is not None else error
    message = str(cause).strip().splitlines()[0] if str(cause).strip() else type(cause).__name__
    name: str = getattr(cause, "sqlite_errorname", "") or getattr(cause, "sqlstate", "") or ""
    if name.startswith("SQLITE_CONSTRAINT") or isinstance(error, exc.IntegrityError):
        return ConstraintViolated(because=message)
    if name in ("SQLITE_FULL", "53100"):
        return StoreDiskFull(because=message)
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return StoreDamaged(because=message)
    if name.startswith("SQLITE_CANTOPEN"):
        return StoreCannotOpen(because=message)
    if name.startswith("SQLITE_READONLY") or name == "25006":
        return StoreReadOnly(because=message)
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return StoreBusy(because=message)
    if name.startswith("SQLITE_IOERR"):
        return StoreDiskFailed(because=message)
    if not name.startswith("SQLITE_") and isinstance(
        error, exc.OperationalError | exc.InterfaceError | exc.TimeoutError
    ):
        return StoreUnreachable(because=message)
    return StatementRejected(because=message)


class CommitListeners:
    """The registered callbacks. Each is called after commits that write to its tables, or after all commits."""

    def __init__(self) -> None:
        self._calls: list[tuple[Callable[[], None], frozenset[str]]] = []

    def add(self, call: Callable[[], None], *tables: sa.Table) -> None:
        self._calls.append((call, frozenset(table.name for table in tables)))

    def notify(self, written: AbstractSet[str] | None = None) -> None:
        """Call the listeners of the written tables. If the written tables are unknown (None), call all listeners."""
        for call, tables in self._calls:
            if tables and written is not None and tables.isdisjoint(written):
                continue
            try:
                call()
            except Exception:
                # The commit is done, so a failing listener must not make the write look failed.
                log.exception("commit listener failed")


def run_after_commit(then: AfterCommit[T] | None, result: T | None) -> None:
    """Call the `then` callback of a write, if it has one. An exception in the callback is logged and ignored."""
    if then is None:
        return
    try:
        then(result)
    except Exception:
        log.exception("callback after commit failed")


def resolve_future(future: asyncio.Future[T], result: T | None, error: BaseException | None) -> None:
    """Set the result or error of a future, unless the task that waits for it was cancelled."""
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)  # type: ignore[arg-type]
