"""The interface of the store, with one implementation for SQLite and one for PostgreSQL.

A transaction is a plain function `body(conn) -> T`. It uses no I/O, clock or randomness, so it can
run again from the start when the database asks for a retry.

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
from retinue.domain.ports import Faults

log = logging.getLogger(__name__)

T = TypeVar("T")
Body = Callable[[sa.Connection], T]
Then = Callable[[T | None], None]


LOCK_WAIT_S = 5.0
"""Time to wait for a database's lock: PostgreSQL needs a moment to notice that a killed server is gone."""

HOPELESS = frozenset({"store.constraint-broken", "store.refused"})
"""What a store says when asking again for the same would change nothing."""


class NoFaults:
    """For production: reaching a fault point does nothing."""

    def reach(self, point: str) -> None:
        return


NO_FAULTS: Faults = NoFaults()


class LockRequest(Struct, frozen=True, kw_only=True):
    """Identifies a server that opens a store for exclusive use.

    `on_lost` is called once, if another server has taken over the database.
    """

    host: str
    process: int
    directory: Path
    lost: Callable[[StoreError], None]
    wait_s: float = LOCK_WAIT_S


class Store(Protocol):
    async def write(self, body: Body[T], *, point: str, then: Then[T] | None = None) -> T:
        """Run `body` in its own transaction. Returns only after COMMIT; an error undoes `body` alone.

        If the caller is cancelled, `body` is still committed completely or not at all. Use `then`
        for work that must follow the commit even so. It is called once, on the event loop, in
        commit order, with the result of `body`, or with None if nothing was committed.
        """
        ...

    async def read(self, body: Body[T]) -> T:
        """Run `body`, which must not write. Each statement sees what is committed when it runs."""
        ...

    async def scan(self, body: Body[T]) -> T:
        """Run `body`, which must not write, on one consistent snapshot."""
        ...

    def on_commit(self, call: Callable[[], None], *tables: sa.Table) -> None:
        """Call `call` on the event loop after commits, at least once for each commit.

        With tables, it is called at least for each commit that wrote to one of them.
        """
        ...

    async def close(self) -> None: ...


def explain(error: Exception) -> StoreError:
    """Translate a database error into a `StoreError` that says what happened and what to do."""
    cause = error.orig if isinstance(error, exc.DBAPIError) and error.orig is not None else error
    said = str(cause).strip().splitlines()[0] if str(cause).strip() else type(cause).__name__
    name: str = getattr(cause, "sqlite_errorname", "") or getattr(cause, "sqlstate", "") or ""
    if name.startswith("SQLITE_CONSTRAINT") or isinstance(error, exc.IntegrityError):
        return StoreError(
            "this change contradicts what is stored, so none of it was kept",
            because=said,
            try_this="run `retinue ledger`; if it holds, this is a bug worth reporting",
            code="store.constraint-broken",
        )
    if name in ("SQLITE_FULL", "53100"):
        return StoreError(
            "the disk is full, so this change was not kept",
            because=said,
            try_this="free some space: the house goes on by itself",
            code="store.disk-full",
        )
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return StoreError(
            "the store's file is damaged",
            because=said,
            try_this="stop the house, set the file aside together with its -wal and restore the latest backup",
            code="store.damaged",
        )
    if name.startswith("SQLITE_CANTOPEN"):
        return StoreError(
            "the store's file cannot be opened",
            because=said,
            try_this="check that its directory exists, who owns it and whether its disk is mounted read-only",
            code="store.cannot-open",
        )
    if name.startswith("SQLITE_READONLY") or name == "25006":
        return StoreError(
            "the store cannot be written to",
            because=said,
            try_this="check who owns RETINUE_HOME and whether its disk is mounted read-only",
            code="store.read-only",
        )
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return StoreError(
            "another program holds the store",
            because=said,
            try_this="close whatever else has the file open for writing",
            code="store.held-elsewhere",
        )
    if name.startswith("SQLITE_IOERR"):
        return StoreError(
            "the disk did not do what it was asked, so this change was not kept",
            because=said,
            try_this="check the disk and its free space: the house goes on by itself when it answers again",
            code="store.disk-failed",
        )
    if not name.startswith("SQLITE_") and isinstance(
        error, exc.OperationalError | exc.InterfaceError | exc.TimeoutError
    ):
        return StoreError(
            "the database does not answer",
            because=said,
            try_this="check that it runs and that its address in retinue.toml is right",
            code="store.unreachable",
        )
    return StoreError(
        "the store refused what it was asked, so nothing was changed",
        because=said,
        try_this="this is a bug worth reporting",
        code="store.refused",
    )


def closed() -> StoreError:
    return StoreError(
        "the house is closing",
        because="its store was closed",
        try_this="ask again when it is open",
        code="store.closed",
    )


class Listeners:
    """The callbacks to run after commits."""

    def __init__(self) -> None:
        self._calls: list[tuple[Callable[[], None], frozenset[str]]] = []

    def add(self, call: Callable[[], None], *tables: sa.Table) -> None:
        self._calls.append((call, frozenset(table.name for table in tables)))

    def tell(self, written: AbstractSet[str] | None = None) -> None:
        """Call the listeners of these tables. None means that the written tables are unknown, so all are called."""
        for call, tables in self._calls:
            if tables and written is not None and tables.isdisjoint(written):
                continue
            try:
                call()
            except Exception:
                # The commit is done, so a failing listener must not make the write look failed.
                log.exception("commit listener failed")


def follow_up(then: Then[T] | None, result: T | None) -> None:
    """Run the caller's `then` callback. Its failure is logged and does not affect the commit."""
    if then is None:
        return
    try:
        then(result)
    except Exception:
        log.exception("what follows a commit failed")


def resolve(future: asyncio.Future[T], result: T | None, error: BaseException | None) -> None:
    """Set the result or error of a future, unless its caller was cancelled."""
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)  # type: ignore[arg-type]
