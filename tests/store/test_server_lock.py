"""One server for each PostgreSQL database: who is refused, what follows a lost lock, and that two never write."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from faults import poll_until
from stores import count, list_tallies

from retinue.domain.errors import StoreError
from retinue.store.core.connection import LockRequest
from retinue.store.core.postgres import POOL_SIZE, PostgresStore
from retinue.store.core.server_lock import CONNECTIONS, LABEL_BYTES_MAX, LOCK_CLASS, SERVER, server_label
from retinue.store.open_store import open_store

SHORT_S, LONG_S = 0.2, 120.0
PROCESS = 4242
OTHER_LOCK = 99


def lock_request(lost: Callable[[StoreError], None] | None = None, *, wait_s: float = LONG_S) -> LockRequest:
    def unexpected(error: StoreError) -> None:
        raise AssertionError(error)

    directory = Path("/srv/ada")
    return LockRequest(host="maria", pid=PROCESS, directory=directory, on_lost=lost or unexpected, wait_s=wait_s)


@asynccontextmanager
async def open_locked_store(url: str, asked: LockRequest | None = None) -> AsyncGenerator[PostgresStore]:
    store = await open_store(url, lock=asked or lock_request())
    assert isinstance(store, PostgresStore)
    try:
        yield store
    finally:
        await store.close()


class LockObserver:
    """Reads and takes locks, and ends other connections, over its own connection."""

    def __init__(self, url: str) -> None:
        plain = sa.make_url(url).set(drivername="postgresql").render_as_string()
        self.connection = psycopg.connect(plain, autocommit=True, application_name="the onlooker")

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        return self.connection.execute(statement.encode()).fetchall()

    def backends(self, key: int, *, granted: bool = True, lock_class: int = LOCK_CLASS) -> list[int]:
        """Return the connections that have a lock, or wait for it."""
        rows = self.query(
            f"SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted = {granted} AND objsubid = 2 "
            f"AND classid = {lock_class} AND objid = {key} AND pid <> pg_backend_pid() "
            "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        return [pid for (pid,) in rows]

    def lock(self, key: int, *, lock_class: int = LOCK_CLASS) -> None:
        self.query(f"SELECT pg_advisory_lock({lock_class}, {key})")

    def unlock(self, key: int, *, lock_class: int = LOCK_CLASS) -> None:
        self.query(f"SELECT pg_advisory_unlock({lock_class}, {key})")

    def end(self, pid: int) -> None:
        assert self.query(f"SELECT pg_terminate_backend({pid})") == [(True,)]

    def end_all_others(self) -> None:
        self.query(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND datname = current_database() AND application_name <> 'the onlooker'"
        )

    def tables(self) -> int:
        return self.query("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'")[0][0]


@contextmanager
def observe_locks(url: str) -> Generator[LockObserver]:
    lock_observer = LockObserver(url)
    try:
        yield lock_observer
    finally:
        lock_observer.connection.close()


@asynccontextmanager
async def rival_waiting_for_lock(url: str, lock_observer: LockObserver) -> AsyncGenerator[LockObserver]:
    """Another program that waits for the lock, and takes it as soon as it is free."""
    with observe_locks(url) as rival:
        waiting = asyncio.create_task(asyncio.to_thread(rival.lock, SERVER))
        await poll_until(lambda: bool(lock_observer.backends(SERVER, granted=False)), "the rival waits")
        try:
            yield rival
        finally:
            rival.connection.cancel()
            with suppress(psycopg.Error):
                await waiting


# Who is refused


async def test_a_second_server_on_a_database_is_refused_with_the_lock_holder(empty_postgres_url: str) -> None:
    async with open_locked_store(empty_postgres_url) as first:
        with pytest.raises(StoreError) as refused:
            await open_store(empty_postgres_url, lock=lock_request(wait_s=SHORT_S))
        assert refused.value.code == "store.locked"
        for fact in ("pid 4242", "on maria", "/srv/ada", "since 2"):
            assert fact in refused.value.because
        assert "server.store" in refused.value.try_this
        await first.write(count(1, "x"), point="test")
    async with open_locked_store(empty_postgres_url) as second:
        assert await second.read(list_tallies) == [(1, "x")]


async def test_a_server_refused_by_the_lock_changes_nothing_in_the_database(empty_postgres_url: str) -> None:
    with observe_locks(empty_postgres_url) as other:
        other.lock(SERVER)
        with pytest.raises(StoreError) as refused:
            await open_store(empty_postgres_url, lock=lock_request(wait_s=SHORT_S))
        assert refused.value.code == "store.locked"
        assert "the onlooker" in refused.value.because
        assert other.tables() == 0
        assert other.backends(SERVER, granted=False) == []


async def test_a_server_waits_for_a_lock_that_is_released_soon(empty_postgres_url: str) -> None:
    with observe_locks(empty_postgres_url) as lock_observer:
        first = await open_store(empty_postgres_url, lock=lock_request())
        opening = asyncio.create_task(open_store(empty_postgres_url, lock=lock_request()))
        await poll_until(lambda: bool(lock_observer.backends(SERVER, granted=False)), "the second server waits")
        await first.close()
        second = await opening
        await second.write(count(1, "x"), point="test")
        await second.close()


async def test_a_failed_open_releases_the_server_lock(empty_postgres_url: str) -> None:
    with observe_locks(empty_postgres_url) as lock_observer:
        lock_observer.connection.execute("CREATE TABLE alembic_version (version_num text)")
        lock_observer.connection.execute("INSERT INTO alembic_version VALUES ('9999')")
        with pytest.raises(StoreError) as refused:
            await open_store(empty_postgres_url, lock=lock_request(wait_s=SHORT_S))
        assert refused.value.code == "store.newer_schema"
        await poll_until(lambda: lock_observer.backends(SERVER) == [], "the lock is free")


async def test_a_store_opened_without_a_server_lock_can_read(empty_postgres_url: str) -> None:
    async with open_locked_store(empty_postgres_url) as first:
        await first.write(count(1, "x"), point="test")
        looking = await open_store(empty_postgres_url)
        assert await looking.read(list_tallies) == [(1, "x")]
        await looking.close()


def test_the_server_label_fits_the_length_that_postgresql_keeps() -> None:
    short = server_label(host="maria", pid=7, directory="/srv/ada")
    assert short == "retinue pid 7 on maria /srv/ada"
    long = server_label(host="h" * 80, pid=4_194_304, directory=f"/{'d' * 80}/zoë/server")
    assert len(long.encode()) == LABEL_BYTES_MAX
    assert "pid 4194304" in long and long.endswith("/zo?/server") and "..." in long


# A lost lock


async def test_a_lost_server_lock_is_taken_again_without_a_write(empty_postgres_url: str) -> None:
    async with open_locked_store(empty_postgres_url) as store:
        await store.write(count(1, "x"), point="test")
        with observe_locks(empty_postgres_url) as lock_observer:
            (before,) = lock_observer.backends(SERVER)
            lock_observer.end(before)
            await poll_until(lambda: lock_observer.backends(SERVER) not in ([], [before]), "the lock is taken again")
        await store.write(count(2, "x"), point="test")


async def test_callers_do_not_notice_terminated_connections_with_a_server_lock(empty_postgres_url: str) -> None:
    async with open_locked_store(empty_postgres_url) as store:
        with observe_locks(empty_postgres_url) as lock_observer:
            await asyncio.gather(*(store.write(count(n, "before"), point="test") for n in range(POOL_SIZE)))
            lock_observer.end_all_others()
            await asyncio.gather(*(store.write(count(n, "after"), point="test") for n in range(POOL_SIZE)))
            lock_observer.end_all_others()
            assert len(await store.read(list_tallies)) == 2 * POOL_SIZE
            lock_observer.end_all_others()
            assert len(await store.scan(list_tallies)) == 2 * POOL_SIZE
            # The scan may have succeeded just before PostgreSQL released the lock of the ended connection.
            await poll_until(lambda: len(lock_observer.backends(SERVER)) == 1, "the server has its lock again")


async def test_a_server_that_lost_its_lock_to_another_writes_nothing_more(empty_postgres_url: str) -> None:
    lost: list[StoreError] = []
    async with open_locked_store(empty_postgres_url, lock_request(lost.append, wait_s=SHORT_S)) as store:
        await store.write(count(1, "x"), point="test")
        with observe_locks(empty_postgres_url) as lock_observer:
            async with rival_waiting_for_lock(empty_postgres_url, lock_observer):
                lock_observer.end(*lock_observer.backends(SERVER))
                await poll_until(lambda: bool(lost), "the server knows")
            for _ in range(2):
                with pytest.raises(StoreError) as refused:
                    await store.write(count(2, "x"), point="test")
                assert refused.value.code == "store.taken_over"
                assert "the onlooker" in refused.value.because
        assert len(lost) == 1
    async with open_locked_store(empty_postgres_url) as store:
        assert await store.read(list_tallies) == [(1, "x")]


async def test_a_new_connection_is_not_used_before_the_server_lock_is_confirmed(empty_postgres_url: str) -> None:
    """The lock goes to another server before our next check, so no error has reported it yet."""
    lost: list[StoreError] = []
    async with open_locked_store(empty_postgres_url, lock_request(lost.append, wait_s=SHORT_S)) as store:
        with observe_locks(empty_postgres_url) as other:
            other.end(*other.backends(SERVER))
            other.lock(SERVER)
            with pytest.raises(StoreError) as refused:
                await store.write(count(1, "x"), point="test")
            assert refused.value.code == "store.taken_over"
            assert len(lost) == 1
    async with open_locked_store(empty_postgres_url) as store:
        assert await store.read(list_tallies) == []


async def test_a_server_that_takes_over_the_lock_waits_for_the_last_commit_of_the_old_server(
    empty_postgres_url: str,
) -> None:
    def body(conn: sa.Connection) -> None:
        count(1, "late")(conn)
        conn.execute(sa.text(f"SELECT pg_advisory_xact_lock({OTHER_LOCK}, {OTHER_LOCK})"))

    lost: list[StoreError] = []
    with observe_locks(empty_postgres_url) as lock_observer:
        first = await open_store(empty_postgres_url, lock=lock_request(lost.append, wait_s=SHORT_S))
        lock_observer.lock(OTHER_LOCK, lock_class=OTHER_LOCK)
        writing = asyncio.create_task(first.write(body, point="test"))
        in_the_way = lambda: lock_observer.backends(OTHER_LOCK, granted=False, lock_class=OTHER_LOCK)  # noqa: E731
        await poll_until(lambda: bool(in_the_way()), "the first server is about to commit")
        opening = asyncio.create_task(open_store(empty_postgres_url, lock=lock_request()))
        await poll_until(lambda: bool(lock_observer.backends(SERVER, granted=False)), "the second server waits")
        (holder,) = lock_observer.backends(SERVER)
        lock_observer.end(holder)
        await poll_until(
            lambda: bool(lock_observer.backends(CONNECTIONS, granted=False)), "the second server waits again"
        )
        await poll_until(lambda: bool(lost), "the first server knows")
        assert not opening.done()

        lock_observer.unlock(OTHER_LOCK, lock_class=OTHER_LOCK)
        await writing
        await first.close()
        second = await opening
        assert await second.read(list_tallies) == [(1, "late")]
        await second.close()


class CuttableProxy:
    """A proxy to PostgreSQL whose connections can break on our side only, as in a network failure."""

    def __init__(self, url: str, folder: Path) -> None:
        parsed = sa.make_url(url)
        name = f".s.PGSQL.{parsed.query['port']}"
        self._target = f"{parsed.query['host']}/{name}"
        self._path = folder / name
        self.url = parsed.update_query_dict({"host": str(folder)}).render_as_string()
        self._clients: list[asyncio.StreamWriter] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._server_writers: list[asyncio.StreamWriter] = []

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_unix_connection(self._target)
        self._clients.append(writer)
        self._server_writers.append(far_writer)
        for source, target in ((reader, far_writer), (far_reader, writer)):
            self._tasks.append(asyncio.create_task(self._forward(source, target)))

    async def _forward(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await source.read(65536):
                target.write(data)

    def cut(self) -> None:
        """Close our ends of the connections. PostgreSQL notices nothing, because the other ends stay open."""
        for writer in self._clients:
            writer.close()
        self._clients.clear()

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator[None]:
        server = await asyncio.start_unix_server(self._accept, self._path)
        try:
            yield
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for writer in (*self._clients, *self._server_writers):
                writer.close()


async def test_a_server_takes_its_lock_again_although_its_old_connection_still_holds_it(
    empty_postgres_url: str,
) -> None:
    """PostgreSQL still counts the broken connection as open, so its lock is still held."""
    folder = Path(tempfile.mkdtemp(prefix="retinue-detour-", dir="/tmp"))  # the path of a socket must be short
    proxy = CuttableProxy(empty_postgres_url, folder)
    try:
        async with proxy.listening(), open_locked_store(proxy.url, lock_request(wait_s=SHORT_S)) as store:
            with observe_locks(empty_postgres_url) as lock_observer:
                (before,) = lock_observer.backends(SERVER)
                proxy.cut()
                await poll_until(
                    lambda: lock_observer.backends(SERVER) not in ([], [before]), "the lock is taken again"
                )
            await store.write(count(1, "x"), point="test")
            assert await store.read(list_tallies) == [(1, "x")]
    finally:
        for left in folder.iterdir():
            left.unlink()
        folder.rmdir()
