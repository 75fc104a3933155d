"""The interface of the store. It has one implementation for SQLite and one for PostgreSQL.

A transaction is a plain function `body(conn) -> T`. It uses no clock, no randomness and no I/O
besides `conn`. So it can run again from the start if the database asks for a retry.

    write   changes something; once it returns, the change is on disk
    read    looks up by key, on the event loop's own connection
    scan    lists, searches and sums, outside the event loop, on one consistent snapshot
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
"""Time to wait for the lock of a database. PostgreSQL needs a moment to notice that a killed server is gone."""

PERMANENT_ERROR_CODES = frozenset({ConstraintViolated.code, StatementRejected.code})
"""Codes of errors that a retry cannot fix."""


class NoFaults:
    """The crash points of a production server. Tests cause faults at crash points; here, reaching one does nothing."""

    def reach(self, point: str) -> None:
        return


NO_FAULTS: CrashPoints = NoFaults()


class LockRequest(Struct, frozen=True, kw_only=True):
    """Identifies a server that opens a store for exclusive use.

    `on_lost` is called once if another server takes over the database.
    """

    host: str
    pid: int
    directory: Path
    on_lost: Callable[[StoreError], None]
    wait_s: float = LOCK_WAIT_S


class Store(Protocol):
    async def write(self, body: TransactionBody[T], *, point: str, then: AfterCommit[T] | None = None) -> T:
        """Run `body` in its own transaction. Returns only after COMMIT. An error undoes `body` and no other write.

        If the caller is cancelled, `body` is still committed completely or not at all. Use `then`
        for work that must follow the commit even if the caller is cancelled. It is called once, on
        the event loop and in commit order. Its argument is the result of `body`, or None if nothing
        was committed.
        """
        ...

    async def read(self, body: TransactionBody[T]) -> T:
        """Run `body`, which must not write. Each statement sees what is committed when the statement runs."""
        ...

    async def scan(self, body: TransactionBody[T]) -> T:
        """Run `body`, which must not write, on one consistent snapshot."""
        ...

    def on_commit(self, call: Callable[[], None], *tables: sa.Table) -> None:
        """Register `call`, to be called on the event loop after commits, at least once for each commit.

        If tables are given, it is called at least once for each commit that wrote to one of them.
        """
        ...

    async def close(self) -> None: ...


def translate_error(error: Exception) -> StoreError:
    """Translate a database error into a `StoreError`, which says what happened and what to do."""
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
    """The callbacks that are called after commits."""

    def __init__(self) -> None:
        self._calls: list[tuple[Callable[[], None], frozenset[str]]] = []

    def add(self, call: Callable[[], None], *tables: sa.Table) -> None:
        self._calls.append((call, frozenset(table.name for table in tables)))

    def notify(self, written: AbstractSet[str] | None = None) -> None:
        """Call the listeners of the written tables. If these are unknown (None), call all listeners."""
        for call, tables in self._calls:
            if tables and written is not None and tables.isdisjoint(written):
                continue
            try:
                call()
            except Exception:
                # The commit is done, so a failing listener must not make the write look failed.
                log.exception("commit listener failed")


def run_after_commit(then: AfterCommit[T] | None, result: T | None) -> None:
    """Call the `then` callback of a write. An exception in it is logged and does not affect the commit."""
    if then is None:
        return
    try:
        then(result)
    except Exception:
        log.exception("callback after commit failed")


def resolve_future(future: asyncio.Future[T], result: T | None, error: BaseException | None) -> None:
    """Set the result or error of a future, unless its caller was cancelled."""
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)  # type: ignore[arg-type]
