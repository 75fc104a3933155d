"""How the house reaches what survives: one set of calls, two dialects.

A transaction is one plain function `body(conn) -> T` without I/O, clock or randomness inside, so it may be run
again from the start when a database asks for that.

    write   changes something; once it returns, the change is on disk
    read    looks up by key, on the loop's own connection
    scan    lists, searches and sums, beside the loop, on one consistent picture of the store
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
    """The real house: reaching a crash point does nothing."""

    def reach(self, point: str) -> None:
        return


NO_FAULTS: Faults = NoFaults()


class LockRequest(Struct, frozen=True, kw_only=True):
    """Who opens a store to serve it alone. `lost` is called once, if another server has taken the database."""

    host: str
    process: int
    directory: Path
    lost: Callable[[StoreError], None]
    wait_s: float = LOCK_WAIT_S


class Store(Protocol):
    async def write(self, body: Body[T], *, point: str, then: Then[T] | None = None) -> T:
        """Run `body` in a transaction of its own. Returns only after COMMIT; an error undoes `body` alone.

        A caller who is cancelled goes away; what `body` does is still kept as a whole or not at all. For what must
        follow a commit even so there is `then`: called once, on the loop, in the order of commits, with what `body`
        returned, or with None where nothing was kept.
        """
        ...

    async def read(self, body: Body[T]) -> T:
        """Run `body`, which can change nothing. Each statement sees what is committed at its moment."""
        ...

    async def scan(self, body: Body[T]) -> T:
        """Run `body`, which can change nothing, on the store as it is at one moment."""
        ...

    def on_commit(self, call: Callable[[], None], *tables: sa.Table) -> None:
        """Have `call` called on the loop after commits, at least once for each; with tables, at least for each that
        wrote to one of them."""
        ...

    async def close(self) -> None: ...


def explain(error: Exception) -> StoreError:
    """Put what a database said into our words: what happened, and what to do."""
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
    """Calls to make after commits."""

    def __init__(self) -> None:
        self._calls: list[tuple[Callable[[], None], frozenset[str]]] = []

    def add(self, call: Callable[[], None], *tables: sa.Table) -> None:
        self._calls.append((call, frozenset(table.name for table in tables)))

    def tell(self, written: AbstractSet[str] | None = None) -> None:
        """After one that wrote to these tables, or to who knows which."""
        for call, tables in self._calls:
            if tables and written is not None and tables.isdisjoint(written):
                continue
            try:
                call()
            except Exception:
                # The commit stands whatever a listener makes of it, and its caller must hear so.
                log.exception("commit listener failed")


def follow_up(then: Then[T] | None, result: T | None) -> None:
    """Do what follows a commit. The commit stands whatever becomes of that."""
    if then is None:
        return
    try:
        then(result)
    except Exception:
        log.exception("what follows a commit failed")


def resolve(future: asyncio.Future[T], result: T | None, error: BaseException | None) -> None:
    """Answer a caller who may have gone away meanwhile."""
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)  # type: ignore[arg-type]
