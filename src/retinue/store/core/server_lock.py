"""An advisory lock that ensures that only one server at a time uses a PostgreSQL database.

There are two locks (docs/decisions/0017-one-server-per-postgresql-database.md):

    SERVER        exclusive, held by one dedicated connection of the server that owns the database
    CONNECTIONS   shared, held by every other connection of that server. A server that has just acquired SERVER
                  waits until it can hold CONNECTIONS exclusively for a moment. After that, no connection of the
                  previous server can commit
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import psycopg
import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import exc
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.pool import NullPool

from retinue.domain.errors import StoreError
from retinue.store.core.connection import LockRequest, translate_error
from retinue.store.core.errors import StoreLocked, StoreTakenOver

log = logging.getLogger(__name__)

LOCK_CLASS = 1_380_275_273  # programs that use the same database share advisory lock numbers; this one is "RETI"
SERVER, CONNECTIONS = 1, 2

RETAKE_INTERVAL_S = 1.0
"""Time between two attempts to acquire the lock again after it was lost, in seconds."""
KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_COUNT = 15, 5, 3
LABEL_BYTES_MAX = 63  # PostgreSQL truncates an application_name to this length
HOST_BYTES_MAX = 24

_LOCK_NOT_AVAILABLE = "55P03"
# A machine that loses power closes no connection. Without keepalives, PostgreSQL notices this after two hours.
_SERVER_KEEPALIVES: Mapping[str, str] = {
    "tcp_keepalives_idle": str(KEEPALIVE_IDLE_S),
    "tcp_keepalives_interval": str(KEEPALIVE_INTERVAL_S),
    "tcp_keepalives_count": str(KEEPALIVE_COUNT),
}
_CLIENT_KEEPALIVES: Mapping[str, object] = {
    "keepalives": 1,
    "keepalives_idle": KEEPALIVE_IDLE_S,
    "keepalives_interval": KEEPALIVE_INTERVAL_S,
    "keepalives_count": KEEPALIVE_COUNT,
}
_HOLDERS = """
    SELECT l.pid, a.application_name, host(a.client_addr), a.backend_start
    FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
    WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 2
      AND l.classid::bigint = {lock_class} AND l.objid::bigint = {key} AND l.pid <> pg_backend_pid()
      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    ORDER BY a.backend_start LIMIT 1
"""


class LockNotHeld(Exception):
    """A new connection was refused because this server does not hold the lock.

    The caller acquires the lock again and retries.
    """


class LockHolder(Struct, frozen=True):
    """The PostgreSQL connection that holds a lock: its process id, application name, address and start time."""

    pid: int
    label: str
    address: str
    since: datetime | None


def server_label(*, host: str, pid: int, directory: str) -> str:
    """Return an `application_name` that describes a server. A long directory is shortened at its beginning."""
    start = f"retinue pid {pid} on {_to_ascii(host)[:HOST_BYTES_MAX]} "
    left = LABEL_BYTES_MAX - len(start)
    shown = _to_ascii(directory)
    return start + (shown if len(shown) <= left else f"...{shown[len(shown) - left + 3 :]}")


def _to_ascii(text: str) -> str:
    """Replace each character that is not printable ASCII with `?`, because PostgreSQL allows no others in a label."""
    return "".join(each if " " <= each <= "~" else "?" for each in text)


class ServerLock:
    """The lock of a server on its database, held from `acquire` to `close`.

    If the connection that holds the lock is lost, the lock is acquired again at once.
    """

    def __init__(self, url: sa.URL, request: LockRequest) -> None:
        self.label = server_label(host=request.host, pid=request.pid, directory=str(request.directory))
        self._request = request
        self._engine = create_async_engine(
            url,
            poolclass=NullPool,
            isolation_level="AUTOCOMMIT",
            connect_args={**_CLIENT_KEEPALIVES, "application_name": self.label},
        )
        self._conn: AsyncConnection | None = None
        self._pid = 0
        self._held = False
        self._taken_by: LockHolder | None = None
        self._retake_mutex = asyncio.Lock()
        self._lost = asyncio.Event()
        self._watch_task: asyncio.Task[None] | None = None
        self._keep_task: asyncio.Task[None] | None = None

    async def acquire(self) -> None:
        """Acquire the lock when the server starts. Raises `StoreLocked` if another server holds it."""
        try:
            conn = await self._connect()
            for key in (SERVER, CONNECTIONS):
                if (holder := await self._acquire_key(conn, key)) is not None:
                    raise StoreLocked(_describe_holder(holder))
            await conn.execute(sa.text(f"SELECT pg_advisory_unlock({LOCK_CLASS}, {CONNECTIONS})"))
            await self._set_connection(conn)
        except exc.SQLAlchemyError as error:
            await self.close()
            raise translate_error(error) from error
        except BaseException:
            await self.close()
            raise
        self._keep_task = asyncio.create_task(self._retake_when_lost())

    async def ensure_held(self) -> None:
        """Acquire the lock again if it was lost. Raises a `StoreError` if that fails."""
        if self._held:
            return
        async with self._retake_mutex:
            if not self._held:
                await self._retake()

    def check_connection(self, connection: Any, _record: object) -> None:
        """Make a new connection of the store hold CONNECTIONS, and check that this server still holds SERVER.

        Raises `LockNotHeld` if it does not. The order matters: a server that acquires SERVER after
        this check must wait for CONNECTIONS, so it waits until this connection ends.
        """
        held_by = self._pid
        cursor = connection.cursor()
        cursor.execute(f"SELECT pg_try_advisory_lock_shared({LOCK_CLASS}, {CONNECTIONS})")
        shares: bool = cursor.fetchone()[0]
        cursor.execute(_HOLDERS.format(lock_class=LOCK_CLASS, key=SERVER))
        found: tuple[Any, ...] | None = cursor.fetchone()
        cursor.execute(_set_config_sql(_SERVER_KEEPALIVES))
        cursor.close()
        connection.commit()
        if shares and found is not None and found[0] == self._pid:
            return
        connection.close()
        if self._pid == held_by:  # otherwise it was acquired again during the check
            self._mark_lost()
        raise LockNotHeld

    async def close(self) -> None:
        tasks = [task for task in (self._keep_task, self._watch_task) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._disconnect()
        await self._engine.dispose()

    async def _connect(self) -> AsyncConnection:
        self._conn = conn = await self._engine.connect()
        settings = {
            **_SERVER_KEEPALIVES,
            "lock_timeout": f"{int(self._request.wait_s * 1000)}ms",
            "statement_timeout": "0",
            "idle_session_timeout": "0",  # it idles for as long as the server runs
        }
        await conn.execute(sa.text(_set_config_sql(settings)))
        return conn

    async def _disconnect(self) -> None:
        conn, self._conn = self._conn, None
        if conn is not None:
            with contextlib.suppress(exc.SQLAlchemyError, psycopg.Error):
                await conn.invalidate()  # closing the connection releases its locks, and it may be broken
                await conn.close()

    async def _acquire_key(self, conn: AsyncConnection, key: int) -> LockHolder | None:
        """Acquire one of the two locks. Returns None on success, and otherwise the connection that holds it."""
        while not await _try_acquire(conn, key):
            row = (await conn.execute(sa.text(_HOLDERS.format(lock_class=LOCK_CLASS, key=key)))).one_or_none()
            if row is None:
                continue  # released in between
            holder = LockHolder(row[0], row[1] or "an unnamed program", row[2] or "", row[3])
            if holder.pid != self._pid:
                return holder
            # Our own earlier connection, which PostgreSQL does not yet know to be gone.
            await conn.execute(sa.text("SELECT pg_terminate_backend(:pid)"), {"pid": self._pid})
        return None

    async def _set_connection(self, conn: AsyncConnection) -> None:
        self._pid = (await conn.execute(sa.text("SELECT pg_backend_pid()"))).scalar_one()
        driver: Any = (await conn.get_raw_connection()).driver_connection
        self._watch_task = asyncio.create_task(self._watch(driver))
        self._held = True
        self._lost.clear()

    async def _watch(self, driver: Any) -> None:
        """Wait until the connection that holds the lock ends, then mark the lock as lost.

        PostgreSQL sends no notifications on this connection, so waiting for one lasts until the connection ends.
        """
        with contextlib.suppress(psycopg.Error, OSError):
            async for _ in driver.notifies():
                pass
        log.warning("database lock lost", extra={"backend": self._pid})
        self._mark_lost()

    def _mark_lost(self) -> None:
        self._held = False
        self._lost.set()

    async def _retake_when_lost(self) -> None:
        """Whenever the lock is lost, acquire it again, even if nothing is being written."""
        while True:
            await self._lost.wait()
            try:
                await self.ensure_held()
            except StoreError:
                if self._taken_by is not None:
                    return
                await asyncio.sleep(RETAKE_INTERVAL_S)

    async def _retake(self) -> None:
        if self._taken_by is not None:
            raise StoreTakenOver(_describe_holder(self._taken_by))
        if self._watch_task is not None:
            self._watch_task.cancel()
            await asyncio.gather(self._watch_task, return_exceptions=True)
        await self._disconnect()
        try:
            conn = await self._connect()
            holder = await self._acquire_key(conn, SERVER)
            if holder is None:
                await self._set_connection(conn)
                log.info("database lock acquired again", extra={"backend": self._pid})
                return
        except exc.SQLAlchemyError as error:
            raise translate_error(error) from error
        await self._disconnect()
        self._taken_by = holder
        error = StoreTakenOver(_describe_holder(holder))
        log.error("database taken by another server", extra={"holder": holder.label})
        self._request.on_lost(error)
        raise error


async def _try_acquire(conn: AsyncConnection, key: int) -> bool:
    try:
        await conn.execute(sa.text(f"SELECT pg_advisory_lock({LOCK_CLASS}, {key})"))
    except exc.DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) == _LOCK_NOT_AVAILABLE:
            return False
        raise
    return True


def _set_config_sql(wanted: Mapping[str, str]) -> str:
    """Return SQL that changes settings of this database connection.

    A setting that this version of PostgreSQL does not have is ignored.
    """
    values = ", ".join(f"('{name}', '{value}')" for name, value in wanted.items())
    return f"SELECT set_config(name, value, false) FROM pg_settings JOIN (VALUES {values}) w(name, value) USING (name)"


def _describe_holder(holder: LockHolder) -> str:
    address = f" from {holder.address}" if holder.address else ""
    since = f" since {holder.since.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if holder.since else ""
    return f"{holder.label}, connected{address}{since} (PostgreSQL process {holder.pid})"
