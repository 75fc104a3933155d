"""One server for each PostgreSQL database: who is refused, what follows a lost lock, and that two never write."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from faults import until
from stores import count, counted

from retinue.domain.errors import StoreError
from retinue.store.core.connection import LockRequest
from retinue.store.core.postgres import POOL_SIZE, PostgresStore
from retinue.store.core.server_lock import CONNECTIONS, LABEL_BYTES_MAX, LOCK_CLASS, SERVER, server_label
from retinue.store.open_store import open_store

SHORT_S, LONG_S = 0.2, 30.0
PROCESS = 4242
OBSTACLE = 99


def request(lost: Callable[[StoreError], None] | None = None, *, wait_s: float = LONG_S) -> LockRequest:
    def unexpected(error: StoreError) -> None:
        raise AssertionError(error)

    directory = Path("/srv/ada")
    return LockRequest(host="maria", pid=PROCESS, directory=directory, on_lost=lost or unexpected, wait_s=wait_s)


@asynccontextmanager
async def served(url: str, asked: LockRequest | None = None) -> AsyncGenerator[PostgresStore]:
    store = await open_store(url, lock=asked or request())
    assert isinstance(store, PostgresStore)
    try:
        yield store
    finally:
        await store.close()


class Onlooker:
    """A connection of its own: it looks at locks, takes some, and ends other connections."""

    def __init__(self, url: str) -> None:
        plain = sa.make_url(url).set(drivername="postgresql").render_as_string()
        self.connection = psycopg.connect(plain, autocommit=True, application_name="the onlooker")

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        return self.connection.execute(statement.encode()).fetchall()

    def backends(self, key: int, *, granted: bool = True, lock_class: int = LOCK_CLASS) -> list[int]:
        """The connections that have a lock, or wait for it."""
        rows = self.ask(
            f"SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted = {granted} AND objsubid = 2 "
            f"AND classid = {lock_class} AND objid = {key} AND pid <> pg_backend_pid() "
            "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        return [pid for (pid,) in rows]

    def lock(self, key: int, *, lock_class: int = LOCK_CLASS) -> None:
        self.ask(f"SELECT pg_advisory_lock({lock_class}, {key})")

    def unlock(self, key: int, *, lock_class: int = LOCK_CLASS) -> None:
        self.ask(f"SELECT pg_advisory_unlock({lock_class}, {key})")

    def end(self, pid: int) -> None:
        assert self.ask(f"SELECT pg_terminate_backend({pid})") == [(True,)]

    def end_all_others(self) -> None:
        self.ask(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND datname = current_database() AND application_name <> 'the onlooker'"
        )

    def tables(self) -> int:
        return self.ask("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'")[0][0]


@contextmanager
def onlooking(url: str) -> Generator[Onlooker]:
    onlooker = Onlooker(url)
    try:
        yield onlooker
    finally:
        onlooker.connection.close()


@asynccontextmanager
async def rival_in_line(url: str, onlooker: Onlooker) -> AsyncGenerator[Onlooker]:
    """Another program that waits for the lock, and has it as soon as it is free."""
    with onlooking(url) as rival:
        waiting = asyncio.create_task(asyncio.to_thread(rival.lock, SERVER))
        await until(lambda: bool(onlooker.backends(SERVER, granted=False)), "the rival waits")
        try:
            yield rival
        finally:
            rival.connection.cancel()
            with suppress(psycopg.Error):
                await waiting


# Who is refused


async def test_a_second_server_is_refused_and_told_who_has_the_database(empty_postgres_url: str) -> None:
    async with served(empty_postgres_url) as first:
        with pytest.raises(StoreError) as refused:
            await open_store(empty_postgres_url, lock=request(wait_s=SHORT_S))
        assert refused.value.code == "store.locked"
        for fact in ("pid 4242", "on maria", "/srv/ada", "since 2"):
            assert fact in refused.value.because
        assert "house.store" in refused.value.try_this
        await first.write(count(1, "x"), point="test")
    async with served(empty_postgres_url) as second:
        assert await second.read(counted) == [(1, "x")]


async def test_nothing_is_changed_in_a_database_that_is_refused(empty_postgres_url: str) -> None:
    with onlooking(empty_postgres_url) as other:
        other.lock(SERVER)
        with pytest.raises(StoreError) as refused:
            await open_store(empty_postgres_url, lock=request(wait_s=SHORT_S))
        assert refused.value.code == "store.locked"
        assert "the onlooker" in refused.value.because
        assert other.tables() == 0
        assert other.backends(SERVER, granted=False) == []


async def test_a_server_waits_for_a_lock_that_is_being_freed(empty_postgres_url: str) -> None:
    with onlooking(empty_postgres_url) as onlooker:
        first = await open_store(empty_postgres_url, lock=request())
        opening = asyncio.create_task(open_store(empty_postgres_url, lock=request()))
        await until(lambda: bool(onlooker.backends(SERVER, granted=False)), "the second server waits")
        await first.close()
        second = await opening
        await second.write(count(1, "x"), point="test")
        await second.close()


async def test_a_database_that_could_not_be_opened_is_free_for_the_next(empty_postgres_url: str) -> None:
    with onlooking(empty_postgres_url) as onlooker:
        onlooker.connection.execute("CREATE TABLE alembic_version (version_num text)")
        onlooker.connection.execute("INSERT INTO alembic_version VALUES ('9999')")
        with pytest.raises(StoreError) as refused:
            await open_store(empty_postgres_url, lock=request(wait_s=SHORT_S))
        assert refused.value.code == "store.newer_schema"
        await until(lambda: onlooker.backends(SERVER) == [], "the lock is free")


async def test_who_only_looks_needs_no_lock(empty_postgres_url: str) -> None:
    async with served(empty_postgres_url) as first:
        await first.write(count(1, "x"), point="test")
        looking = await open_store(empty_postgres_url)
        assert await looking.read(counted) == [(1, "x")]
        await looking.close()


def test_a_server_is_named_in_as_many_bytes_as_postgresql_keeps() -> None:
    short = server_label(host="maria", pid=7, directory="/srv/ada")
    assert short == "retinue pid 7 on maria /srv/ada"
    long = server_label(host="h" * 80, pid=4_194_304, directory=f"/{'d' * 80}/zoë/house")
    assert len(long.encode()) == LABEL_BYTES_MAX
    assert "pid 4194304" in long and long.endswith("/zo?/house") and "..." in long


# A lost lock


async def test_a_lost_lock_is_taken_again_though_nobody_writes(empty_postgres_url: str) -> None:
    async with served(empty_postgres_url) as store:
        await store.write(count(1, "x"), point="test")
        with onlooking(empty_postgres_url) as onlooker:
            (before,) = onlooker.backends(SERVER)
            onlooker.end(before)
            await until(lambda: onlooker.backends(SERVER) not in ([], [before]), "the lock is taken again")
        await store.write(count(2, "x"), point="test")


async def test_a_database_that_was_restarted_is_noticed_by_no_caller(empty_postgres_url: str) -> None:
    async with served(empty_postgres_url) as store:
        with onlooking(empty_postgres_url) as onlooker:
            await asyncio.gather(*(store.write(count(n, "before"), point="test") for n in range(POOL_SIZE)))
            onlooker.end_all_others()
            await asyncio.gather(*(store.write(count(n, "after"), point="test") for n in range(POOL_SIZE)))
            onlooker.end_all_others()
            assert len(await store.read(counted)) == 2 * POOL_SIZE
            onlooker.end_all_others()
            assert len(await store.scan(counted)) == 2 * POOL_SIZE
            assert len(onlooker.backends(SERVER)) == 1


async def test_a_server_whose_database_was_taken_over_writes_nothing_more(empty_postgres_url: str) -> None:
    lost: list[StoreError] = []
    async with served(empty_postgres_url, request(lost.append, wait_s=SHORT_S)) as store:
        await store.write(count(1, "x"), point="test")
        with onlooking(empty_postgres_url) as onlooker:
            async with rival_in_line(empty_postgres_url, onlooker):
                onlooker.end(*onlooker.backends(SERVER))
                await until(lambda: bool(lost), "the server knows")
            for _ in range(2):
                with pytest.raises(StoreError) as refused:
                    await store.write(count(2, "x"), point="test")
                assert refused.value.code == "store.taken_over"
                assert "the onlooker" in refused.value.because
        assert len(lost) == 1
    async with served(empty_postgres_url) as store:
        assert await store.read(counted) == [(1, "x")]


async def test_a_new_connection_is_not_used_before_the_lock_is_known_to_be_held(empty_postgres_url: str) -> None:
    """The lock goes to another server between two moments of our loop, so nothing has told us yet."""
    lost: list[StoreError] = []
    async with served(empty_postgres_url, request(lost.append, wait_s=SHORT_S)) as store:
        with onlooking(empty_postgres_url) as other:
            other.end(*other.backends(SERVER))
            other.lock(SERVER)
            with pytest.raises(StoreError) as refused:
                await store.write(count(1, "x"), point="test")
            assert refused.value.code == "store.taken_over"
            assert len(lost) == 1
    async with served(empty_postgres_url) as store:
        assert await store.read(counted) == []


async def test_a_server_that_takes_over_waits_for_the_last_commit_of_the_one_before(empty_postgres_url: str) -> None:
    def body(conn: sa.Connection) -> None:
        count(1, "late")(conn)
        conn.execute(sa.text(f"SELECT pg_advisory_xact_lock({OBSTACLE}, {OBSTACLE})"))

    lost: list[StoreError] = []
    with onlooking(empty_postgres_url) as onlooker:
        first = await open_store(empty_postgres_url, lock=request(lost.append, wait_s=SHORT_S))
        onlooker.lock(OBSTACLE, lock_class=OBSTACLE)
        writing = asyncio.create_task(first.write(body, point="test"))
        in_the_way = lambda: onlooker.backends(OBSTACLE, granted=False, lock_class=OBSTACLE)  # noqa: E731
        await until(lambda: bool(in_the_way()), "the first server is about to commit")
        opening = asyncio.create_task(open_store(empty_postgres_url, lock=request()))
        await until(lambda: bool(onlooker.backends(SERVER, granted=False)), "the second server waits")
        (holder,) = onlooker.backends(SERVER)
        onlooker.end(holder)
        await until(lambda: bool(onlooker.backends(CONNECTIONS, granted=False)), "the second server waits again")
        await until(lambda: bool(lost), "the first server knows")
        assert not opening.done()

        onlooker.unlock(OBSTACLE, lock_class=OBSTACLE)
        await writing
        await first.close()
        second = await opening
        assert await second.read(counted) == [(1, "late")]
        await second.close()


class Detour:
    """A way to PostgreSQL that can be cut on our side alone, as a network that drops a connection does."""

    def __init__(self, url: str, folder: Path) -> None:
        parsed = sa.make_url(url)
        name = f".s.PGSQL.{parsed.query['port']}"
        self._target = f"{parsed.query['host']}/{name}"
        self._path = folder / name
        self.url = parsed.update_query_dict({"host": str(folder)}).render_as_string()
        self._clients: list[asyncio.StreamWriter] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._far: list[asyncio.StreamWriter] = []

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_unix_connection(self._target)
        self._clients.append(writer)
        self._far.append(far_writer)
        for source, target in ((reader, far_writer), (far_reader, writer)):
            self._tasks.append(asyncio.create_task(self._carry(source, target)))

    async def _carry(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await source.read(65536):
                target.write(data)

    def cut(self) -> None:
        """The near ends are closed; the far ones stay open, so PostgreSQL notices nothing."""
        for writer in self._clients:
            writer.close()
        self._clients.clear()

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[None]:
        server = await asyncio.start_unix_server(self._accept, self._path)
        try:
            yield
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for writer in (*self._clients, *self._far):
                writer.close()


async def test_a_server_is_not_stopped_by_its_own_connection_from_before(empty_postgres_url: str) -> None:
    """PostgreSQL still counts a connection as open, and so its lock as held, that has broken on the way."""
    folder = Path(f"/tmp/retinue-detour-{os.getpid()}")
    folder.mkdir()
    detour = Detour(empty_postgres_url, folder)
    try:
        async with detour.opened(), served(detour.url, request(wait_s=SHORT_S)) as store:
            with onlooking(empty_postgres_url) as onlooker:
                (before,) = onlooker.backends(SERVER)
                detour.cut()
                await until(lambda: onlooker.backends(SERVER) not in ([], [before]), "the lock is taken again")
            await store.write(count(1, "x"), point="test")
            assert await store.read(counted) == [(1, "x")]
    finally:
        for left in folder.iterdir():
            left.unlink()
        folder.rmdir()
