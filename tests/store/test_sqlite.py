"""The store on SQLite: commit groups, full disks, damage, locks, kill -9, and how much work a commit is."""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from stores import count, list_tallies

from retinue.domain.agent import Agent, ToolRules
from retinue.domain.errors import StoreError
from retinue.store.agents import agents
from retinue.store.channels import deliveries
from retinue.store.core import events, sqlite, transaction
from retinue.store.core import tables as t
from retinue.store.core.connection import TransactionBody
from retinue.store.core.errors import StatementRejected
from retinue.store.core.row_visibility import PerScope, VisibilityScope
from retinue.store.core.sqlite import SqliteStore
from retinue.store.envelopes import envelopes, webhooks
from retinue.store.open_store import open_store, prepare_sqlite
from retinue.store.people import notifications, people, preferences
from retinue.store.runs import approvals, budget_reservations, questionnaires, runs
from retinue.store.sessions import external_keys, instructions, records, sessions
from retinue.testing.local_instance import LocalInstance
from retinue.testing.scripted_model import text_reply, tool_call_reply
from retinue.testing.wait_conditions import WAIT_LIMIT_S, wait_until

FIVE_MB = 5 * 1024 * 1024


@asynccontextmanager
async def open_sqlite(path: Path, **kw: Any) -> AsyncGenerator[SqliteStore]:
    store = await open_store(path, **kw)
    assert isinstance(store, SqliteStore)
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "retinue.db"


def query_file(path: Path, statement: str) -> list[Any]:
    """Query from outside, as `sqlite3 FILE STATEMENT` would."""
    with closing(sqlite3.connect(path)) as raw:
        return raw.execute(statement).fetchall()


def driver_connection(conn: sa.Connection) -> sqlite3.Connection:
    raw: Any = conn.connection.dbapi_connection
    return raw


def run_pragma(text: str) -> TransactionBody[Any]:
    """Run a PRAGMA on the connection of a body. (Some settings cannot be changed within a transaction.)"""
    return lambda conn: driver_connection(conn).execute(f"PRAGMA {text}").fetchone()


def add_large_row(day: int, source: str, kilobytes: int) -> TransactionBody[None]:
    """Add a row of this size."""
    return lambda conn: count(day, source + "x" * 1024 * kilobytes)(conn)


async def commit_as_one_group(store: SqliteStore, bodies: list[TransactionBody[Any]]) -> list[Any]:
    """Block the writer until all bodies are queued, so that they are committed together."""
    busy, go_on = threading.Event(), threading.Event()

    def hold(_conn: sa.Connection) -> None:
        busy.set()
        go_on.wait(WAIT_LIMIT_S)

    # More than the event loop commits itself: they go to the thread, which is blocked then instead of the loop.
    first = [asyncio.create_task(store.write(hold, point="test")) for _ in range(sqlite.LOOP_COMMIT_WRITES_MAX + 1)]
    await wait_until(busy.is_set, "the writer is busy", poll_s=0.001)
    tasks = [asyncio.create_task(store.write(body, point="test")) for body in bodies]
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(*first)
    return await asyncio.gather(*tasks, return_exceptions=True)


# Durability


async def test_the_sqlite_store_uses_wal_full_synchronous_and_foreign_keys(path: Path) -> None:
    async with open_sqlite(path) as store:
        assert await store.write(run_pragma("journal_mode"), point="test") == ("wal",)
        for ask in (lambda body: store.write(body, point="test"), store.read, store.scan):
            assert await ask(run_pragma("synchronous")) == (2,)  # FULL
            assert await ask(run_pragma("foreign_keys")) == (1,)


def test_sqlite_refuses_a_file_system_without_wal_support(path: Path) -> None:
    # This VFS of SQLite has no shared memory, as on network disks.
    address = f"{path.as_uri()}?vfs=unix-dotfile"
    with closing(sqlite3.connect(address, uri=True)) as raw, pytest.raises(StoreError) as refused:
        sqlite.configure(raw, writable=True)
    assert refused.value.code == "store.wal_unavailable"
    assert "local disk" in refused.value.try_this


# Groups


async def test_waiting_sqlite_writes_are_committed_as_one_group(path: Path) -> None:
    statements_run: list[str] = []
    async with open_sqlite(path) as store:
        await store.write(lambda conn: driver_connection(conn).set_trace_callback(statements_run.append), point="test")
        statements_run.clear()
        results = await commit_as_one_group(store, [count(n, "x") for n in range(50)])

        assert results == [None] * 50
        assert statements_run.count("COMMIT") == 2  # one for the blocking writes, and one for the group
        assert sum(line.startswith("SAVEPOINT") for line in statements_run) == sqlite.LOOP_COMMIT_WRITES_MAX + 1 + 50
        assert len(await store.read(list_tallies)) == 50


async def test_a_constraint_violation_fails_only_its_own_write_of_a_sqlite_commit_group(path: Path) -> None:
    bodies = [count(n, "x") for n in range(49)]
    bodies.insert(25, count(10, "x"))
    async with open_sqlite(path) as store:
        results = await commit_as_one_group(store, bodies)

        (failed,) = [(n, r) for n, r in enumerate(results) if r is not None]
        assert failed[0] == 25
        assert isinstance(failed[1], StoreError)
        assert (failed[1].code, bool(failed[1].because), bool(failed[1].try_this)) == (
            "store.constraint_violated",
            True,
            True,
        )
        assert len(await store.read(list_tallies)) == 49


class FailOneCommit:
    """Makes one commit fail."""

    def __init__(self) -> None:
        self.armed = False

    def reach(self, point: str) -> None:
        if self.armed and point == "test.before-commit":
            self.armed = False
            raise OSError("the disk failed")


async def test_a_failed_sqlite_commit_fails_every_caller_of_the_group_with_its_own_error(path: Path) -> None:
    def raise_lookup_error(_conn: sa.Connection) -> None:
        raise LookupError("my own fault")

    faults = FailOneCommit()

    def arm(_conn: sa.Connection) -> None:
        faults.armed = True

    async with open_sqlite(path, faults=faults) as store:
        results = await commit_as_one_group(store, [arm, count(1, "x"), raise_lookup_error, count(2, "x")])

        assert [type(result) for result in results] == [
            StatementRejected,
            StatementRejected,
            LookupError,
            StatementRejected,
        ]
        assert await store.read(list_tallies) == []
        await store.write(count(3, "x"), point="test")
        assert await store.read(list_tallies) == [(3, "x")]


async def test_a_transaction_body_that_raises_system_exit_does_not_stop_the_sqlite_writer(path: Path) -> None:
    def raise_system_exit(conn: sa.Connection) -> None:
        count(1, "x")(conn)
        raise SystemExit(3)

    async with open_sqlite(path) as store:
        with pytest.raises(StoreError) as refused:
            await store.write(raise_system_exit, point="test")
        assert refused.value.code == "store.write_interrupted"
        await store.write(count(2, "x"), point="test")
        assert await store.read(list_tallies) == [(2, "x")]


async def test_a_transaction_body_that_rolls_back_does_not_stop_the_sqlite_writer(path: Path) -> None:
    def roll_back(conn: sa.Connection) -> None:
        driver_connection(conn).execute("ROLLBACK")

    async with open_sqlite(path) as store:
        with pytest.raises(StoreError):
            await store.write(roll_back, point="test")
        await store.write(count(2, "x"), point="test")
        assert await store.read(list_tallies) == [(2, "x")]


async def test_closing_the_store_leaves_no_thread_and_no_wal(path: Path) -> None:
    before = set(threading.enumerate())
    async with open_sqlite(path) as store:
        await store.write(count(1, "x"), point="test")
        await store.scan(list_tallies)
    left = [thread.name for thread in threading.enumerate() if thread not in before]
    assert [name for name in left if name.startswith("retinue")] == []
    assert len(left) <= 1  # the executor of the event loop, which waited for our thread
    assert [file.name for file in path.parent.iterdir()] == ["retinue.db"]


# A full disk


@contextmanager
def small_disk(directory: Path, size_bytes: int) -> Generator[Path]:
    """A real file system with little space."""
    directory.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", directory], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", directory], check=True)


def fill_up(disk: Path, *, leaving_bytes: int = 0) -> Path:
    """Fill a disk, except for some bytes."""
    filler = disk / "filler"
    left = os.statvfs(disk)
    with filler.open("wb") as file:
        file.write(b"\0" * max(0, left.f_bavail * left.f_frsize - leaving_bytes))
    return filler


async def test_a_full_disk_fails_a_whole_sqlite_group_and_writes_work_again_when_space_is_free(
    tmp_path: Path,
) -> None:
    with small_disk(tmp_path / "disk", FIVE_MB) as disk:
        path = disk / "retinue.db"
        async with open_sqlite(path) as store:
            await store.write(count(0, "kept"), point="test")
            filler = fill_up(disk, leaving_bytes=64 * 1024)
            results = await commit_as_one_group(store, [add_large_row(n, "lost", 40) for n in range(1, 11)])

            assert [getattr(result, "code", result) for result in results] == ["store.disk_full"] * 10
            assert all(result.because and "free some disk space" in result.try_this for result in results)
            assert await store.read(list_tallies) == [(0, "kept")]
            assert await store.scan(list_tallies) == [(0, "kept")]

            filler.unlink()
            results = await commit_as_one_group(store, [add_large_row(n, "again", 40) for n in range(1, 11)])
            assert results == [None] * 10
        assert len(query_file(path, "SELECT day FROM accepted_counts")) == 11
        assert query_file(path, "PRAGMA integrity_check") == [("ok",)]


async def test_on_a_full_disk_every_sqlite_write_is_stored_completely_or_refused(tmp_path: Path) -> None:
    """Makes small writes until the disk is full: acknowledged rows are there, and no others."""
    with small_disk(tmp_path / "disk", FIVE_MB) as disk:
        path = disk / "retinue.db"
        async with open_sqlite(path) as store:
            filler = fill_up(disk, leaving_bytes=100 * 1024)
            acknowledged: list[int] = []
            refused = 0
            for n in range(200):
                try:
                    await store.write(add_large_row(n, "x", 4), point="test")
                    acknowledged.append(n)
                except StoreError as error:
                    assert error.code in ("store.disk_full", "store.disk_failed")
                    refused += 1
            assert acknowledged and refused
            filler.unlink()
            await store.write(count(999, "x"), point="test")
        assert [day for (day,) in query_file(path, "SELECT day FROM accepted_counts ORDER BY day")] == [
            *acknowledged,
            999,
        ]
        assert query_file(path, "PRAGMA integrity_check") == [("ok",)]


async def test_a_sqlite_file_at_its_page_limit_refuses_large_writes_until_the_limit_is_raised(path: Path) -> None:
    async with open_sqlite(path) as store:
        (pages,) = await store.write(run_pragma("page_count"), point="test")
        await store.write(run_pragma(f"max_page_count = {pages + 2}"), point="test")
        results = await commit_as_one_group(
            store, [count(1, "small"), add_large_row(2, "large", 100), count(3, "small")]
        )

        # SQLite may undo the transaction or the statement. Either way each caller gets the true result.
        assert getattr(results[1], "code", None) == "store.disk_full"
        stored = [n for n, result in zip((1, 2, 3), results, strict=True) if result is None]
        assert [day for day, _ in await store.read(list_tallies)] == stored
        assert all(result is None or result.code == "store.disk_full" for result in results)

        await store.write(run_pragma("max_page_count = 1073741823"), point="test")
        await store.write(add_large_row(2, "large", 100), point="test")
        assert 2 in [day for day, _ in await store.read(list_tallies)]


# Damage and locks


async def test_a_damaged_sqlite_page_is_reported_and_other_tables_stay_readable(path: Path) -> None:
    async with open_sqlite(path) as store:
        for n in range(300):
            await store.write(add_large_row(n, "x", 1), point="test")
        await store.write(lambda conn: agents.upsert(conn, Agent(name="ada"), source="test", at_ms=0), point="test")
    (root,) = query_file(path, "SELECT rootpage FROM sqlite_master WHERE name = 'accepted_counts'")[0]
    whole = path.read_bytes()
    with path.open("r+b") as file:
        file.seek((root - 1) * 4096)
        file.write(b"\xff" * 4096)
    async with open_sqlite(path) as store:
        for ask in (store.read, store.scan, lambda body: store.write(body, point="test")):
            with pytest.raises(StoreError) as refused:
                await ask(lambda conn: conn.execute(sa.select(sa.func.sum(t.accepted_counts.c.accepted))).scalar())
            assert refused.value.code == "store.damaged"
            assert refused.value.because and "backup" in refused.value.try_this
        found = await store.read(lambda conn: agents.find(conn, "ada"))
        assert found is not None and found.name == "ada"
    assert len(path.read_bytes()) == len(whole)


HOLD_LOCK_SCRIPT = """
import sqlite3, sys
raw = sqlite3.connect(sys.argv[1], isolation_level=None)
raw.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
raw.execute("ROLLBACK")
"""


def hold_write_lock(path: Path) -> subprocess.Popen[str]:
    """Start another program that holds the write lock."""
    command = [sys.executable, "-c", HOLD_LOCK_SCRIPT, path]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


async def test_a_sqlite_write_lock_of_another_program_is_reported_as_busy_and_later_writes_work(path: Path) -> None:
    async with open_sqlite(path) as store:
        await store.write(run_pragma("busy_timeout = 50"), point="test")
        with hold_write_lock(path) as other:
            assert other.stdout is not None and other.stdin is not None
            assert other.stdout.readline() == "held\n"
            with pytest.raises(StoreError) as refused:
                await store.write(count(1, "x"), point="test")
            assert refused.value.code == "store.busy"
            assert "close" in refused.value.try_this
            assert await store.read(list_tallies) == []  # reading is always possible

            other.stdin.close()
            other.wait(timeout=WAIT_LIMIT_S)
        await store.write(count(2, "x"), point="test")
        assert await store.read(list_tallies) == [(2, "x")]


# kill -9

WRITER_SCRIPT = """
import asyncio, os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from stores import count
from retinue.store.open_store import open_store

async def write(round_: int, out: int) -> None:
    store = await open_store(Path(sys.argv[1]))
    async def one(n: int) -> None:
        await store.write(count(n, f"round {round_}"), point="test")
        os.write(out, f"{n}\\n".encode())
    n = 0
    while True:
        await asyncio.gather(*(one(n + i) for i in range(1 + round_ % 7)))
        n += 10

for round_ in range(int(sys.argv[3])):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        asyncio.run(write(round_, writing))
    os.close(writing)
    with os.fdopen(reading) as acknowledged:
        said = [acknowledged.readline().strip() for _ in range(3 + 5 * round_ % 23)]
        os.kill(child, signal.SIGKILL)
        said += acknowledged.read().split()  # what it still said before it died counts, too
    os.waitpid(child, 0)
    print(round_, *said, flush=True)
"""


def test_every_sqlite_commit_acknowledged_before_kill_9_is_there_after_it(path: Path) -> None:
    rounds = 20
    done = subprocess.run(
        [sys.executable, "-c", WRITER_SCRIPT, path, Path(__file__).parent.parent, str(rounds)],
        capture_output=True,
        text=True,
        timeout=WAIT_LIMIT_S,
        check=True,
    )
    acknowledged = {
        (int(n), f"round {round_}") for round_, *said in map(str.split, done.stdout.splitlines()) for n in said
    }
    assert len({source for _, source in acknowledged}) == rounds
    kept = set(query_file(path, "SELECT day, source FROM accepted_counts"))
    assert acknowledged <= kept
    assert query_file(path, "PRAGMA integrity_check") == [("ok",)]


# Work per commit


async def test_a_plain_turn_takes_two_sqlite_commits_and_a_turn_with_a_tool_call_four(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """One commit to accept and one to finish, and one more for each new intent of a tool call."""
    instance = LocalInstance(tmp_path)
    begun: list[list[str]] = []
    groups: list[list[str]] = []

    def trace(statement: str) -> None:
        if statement.startswith("BEGIN"):
            begun.append([])
        begun[-1].append(statement)
        if statement.startswith("COMMIT"):  # and no ROLLBACK, which ends a read
            groups.append(begun[-1])

    async with instance.run() as server:
        instance.model.will_reply("warm", "plain", tool_call_reply("append_line", text="x"), "used a tool")
        await server.wait_for_answer((await server.send("warm up")).envelope)
        await server.wait_until_idle()
        await server.store.write(lambda conn: driver_connection(conn).set_trace_callback(trace), point="test")
        groups.clear()

        await server.wait_for_answer((await server.send("plain")).envelope)
        await server.wait_until_idle()
        plain = list(groups)
        groups.clear()
        await server.wait_for_answer((await server.send("use a tool")).envelope)
        await server.wait_until_idle()
        with_tool = list(groups)

    counts = {
        "plain": [sum(not line.startswith(("BEGIN", "SAVE", "RELEASE", "COMMIT")) for line in g) for g in plain],
        "with a tool": [
            sum(not line.startswith(("BEGIN", "SAVE", "RELEASE", "COMMIT")) for line in g) for g in with_tool
        ],
    }
    print("statements in each commit:", json.dumps(counts))
    record_property("statements", counts)
    assert [len(plain), len(with_tool)] == [2, 4]
    assert max(max(numbers) for numbers in counts.values()) <= 25


async def commit_thread_name(store: SqliteStore) -> str:
    """Return the name of the thread on which a commit is made."""
    return await store.write(lambda _: threading.current_thread().name, point="test")


async def test_few_sqlite_writes_are_committed_on_the_event_loop_and_many_in_the_writer_thread(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "LOOP_COMMIT_S_MAX", math.inf)  # however slow this disk is
    here = threading.current_thread().name
    async with open_sqlite(path) as store:
        assert await commit_thread_name(store) == here
        together = await asyncio.gather(*(commit_thread_name(store) for _ in range(8)))
        assert set(together) == {"retinue-writer"}
        assert {await commit_thread_name(store) for _ in range(sqlite.LOW_LOAD_COMMITS)} == {"retinue-writer"}
        assert await commit_thread_name(store) == here
        assert set(await asyncio.gather(commit_thread_name(store), commit_thread_name(store))) == {here}, (
            "two concurrent commits, as in a delegation"
        )
        assert await commit_thread_name(store) == here


async def test_slow_sqlite_commits_are_moved_to_the_writer_thread(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "LOOP_COMMIT_S_MAX", 0.0)
    async with open_sqlite(path) as store:
        await commit_thread_name(store)  # the speed is known after the first commit
        assert {await commit_thread_name(store) for _ in range(3)} == {"retinue-writer"}


class FakeCommitTimer:
    """Replaces the clock that measures commits: each takes as long as the test sets."""

    def __init__(self) -> None:
        self.commit_s = 0.0
        self._calls = 0

    def __call__(self) -> float:
        self._calls += 1
        return self.commit_s if self._calls % 2 == 0 else 0.0  # read before and after each commit


async def test_some_slow_sqlite_commits_among_fast_ones_stay_on_the_event_loop(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy processor most commits are late, and sending them to the thread doubles the processor time."""
    commit_timer = FakeCommitTimer()
    monkeypatch.setattr(sqlite, "perf_counter", commit_timer)
    here = threading.current_thread().name
    async with open_sqlite(path) as store:
        for _ in range(sqlite.FAST_COMMIT_QUANTILE):
            assert await commit_thread_name(store) == here
        commit_timer.commit_s = 2 * sqlite.LOOP_COMMIT_S_MAX
        for _ in range(sqlite.FAST_COMMIT_QUANTILE):
            assert await commit_thread_name(store) == here
        commit_timer.commit_s = 0.0
        assert await commit_thread_name(store) == here
        commit_timer.commit_s = 2 * sqlite.LOOP_COMMIT_S_MAX
        for _ in range(sqlite.COMMITS_MEASURED):
            await commit_thread_name(store)
        assert await commit_thread_name(store) == "retinue-writer"
        commit_timer.commit_s = 0.0
        while await commit_thread_name(store) != here:  # it was slow, but is fast now
            pass


async def test_a_sqlite_commit_listener_of_one_table_is_called_for_that_table_only(path: Path) -> None:
    def work(conn: sa.Connection) -> None:
        conn.execute(t.accepted_counts.insert(), {"day": 1, "source": "x", "accepted": 0, "purged": 0})

    told: list[str] = []
    async with open_sqlite(path) as store:
        store.on_commit(lambda: told.append("all"))
        store.on_commit(lambda: told.append("tally"), t.accepted_counts)
        await commit_thread_name(store)
        told.clear()
        await commit_thread_name(store)
        assert told == ["all"]
        await store.write(work, point="test")
        assert told == ["all", "all", "tally"]


async def test_a_sqlite_commit_on_the_event_loop_waits_for_writes_in_the_writer_thread(path: Path) -> None:
    """Two threads never share the connection, and commits keep the order of their requests."""
    async with open_sqlite(path) as store:
        free = threading.Event()

        def waits(_: sa.Connection) -> None:
            free.wait(WAIT_LIMIT_S)

        slow = [asyncio.create_task(store.write(waits, point="test")) for _ in range(sqlite.LOOP_COMMIT_WRITES_MAX + 1)]
        await wait_until(lambda: store._writes_in_thread, "the thread has them")
        lone = asyncio.create_task(commit_thread_name(store))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not lone.done()
        free.set()
        assert await lone == "retinue-writer"
        await asyncio.gather(*slow)


MODULES = (
    agents,
    approvals,
    deliveries,
    envelopes,
    external_keys,
    transaction,
    instructions,
    budget_reservations,
    events,
    notifications,
    people,
    preferences,
    questionnaires,
    records,
    runs,
    sessions,
    webhooks,
)
# A window of rows that was read by an index before, or rows of which there are few at a time.
SCAN_OF_FEW = re.compile(
    r"SCAN (walked\b|anon_\d|\(subquery-\d+\)|.*USING (COVERING )?INDEX ix_\w+_(outbox|due|open|sending|active)\b)"
)
# These scan whole tables on purpose: off the event loop, or over few rows.
ALLOWED_SCANS = {
    "agents._all",  # the agents
    "agents._sources",
    "people._all",  # and the people
    "people._erased_names",
    "records._all",  # every record is checked for damage
    "transaction._lock_counters",  # one row
    "transaction._update_counters",
    "transaction._select_latest_ms",
    "events._newest",
    "questionnaires._listed",  # of all people for the owner, or of one agent: few rows, and purged
    "questionnaires._listed_open",
    "runs._open_sessions",  # at most one per slot
    "runs._all_agents",  # the agents
    "runs._ended_ids",  # all of them are deleted, if the owner asks for it
    "runs._clear_steps",
    "runs._clear_approvals",
    "runs._clear",
    "sessions._latest_foreground",  # for a request of an agent without a person, which is rare
    "sessions._latest_of_kind",  # for a message of an agent to the heartbeat, which is rare
    "sessions._list",
    "sessions._recent",  # the sorted list of sessions: people ask for it, and it runs off the event loop
}


def statements(module: ModuleType) -> dict[str, sa.Executable]:
    name = module.__name__.rpartition(".")[2]
    found: dict[str, Any] = {}
    for key, value in vars(module).items():
        if isinstance(value, PerScope):
            found |= {f"{name}.{key}[{scope}]": cast(PerScope[Any], value)[scope] for scope in VisibilityScope}
        else:
            found[f"{name}.{key}"] = value
    return {key: value for key, value in found.items() if isinstance(value, sa.Select | sa.Update | sa.Delete)}


def plan_of(raw: sqlite3.Connection, statement: Any) -> str:
    compiled = statement.compile(dialect=SQLiteDialect_pysqlite(paramstyle="named"))
    parameters = {name: value if value is not None else 1 for name, value in compiled.params.items()}
    rows = raw.execute(f"EXPLAIN QUERY PLAN {compiled}", parameters).fetchall()
    return "\n".join(row[3] for row in rows)


INDEX_BY_STATEMENT = {
    "envelopes._due": "ix_envelopes_lane (session=? AND rank=? AND due_ms<?)",
    "envelopes._count_due": "ix_envelopes_lane (session=? AND rank=? AND due_ms<?)",
    "envelopes._count_droppable": "ix_envelopes_lane (session=? AND rank=? AND due_ms<?)",
    "envelopes._oldest_droppable": "ix_envelopes_lane (session=? AND rank=? AND due_ms<?)",
    "envelopes._next_outbound": "ix_envelopes_outbox (recipient=? AND due_ms<?)",
    "envelopes._due_channels": "ix_envelopes_lane (session=? AND rank=? AND due_ms<?)",
    "envelopes._due_for_people": "ix_envelopes_lane (session=? AND rank=? AND due_ms<?)",
    "envelopes._due_lanes": "ix_envelopes_due (due_ms>? AND due_ms<?)",
    "envelopes._next_due": "ix_envelopes_due (due_ms>?)",
    "envelopes._next_expiry": "ix_envelopes_expiring",
    "envelopes._expired": "ix_envelopes_expiring",
    "envelopes._held": "ix_envelopes_held",
    "envelopes._suspend": "ix_envelopes_held",
    "envelopes._by_key": "sqlite_autoindex_envelopes_2",
    "runs._open_by_session": "uq_runs_open",
    "runs._due_suspended": "ix_runs_resume",
    "runs._next_wake": "ix_runs_resume",
    "approvals._next_expiry": "ix_approvals_open",
    "sessions._active": "ix_sessions_active",
}


# Few rows, or only read when the server starts.
ALLOWED_SORTS = {"envelopes._held", "sessions._active"}


def test_no_statement_of_the_store_scans_a_whole_sqlite_table(path: Path) -> None:
    """With a million envelopes, a scan takes a second instead of a millisecond."""
    prepare_sqlite(path)
    scans: list[str] = []
    missing: list[str] = []
    sorts: list[str] = []
    with closing(sqlite3.connect(path)) as raw:
        for module in MODULES:
            for name, statement in statements(module).items():
                plan = plan_of(raw, statement)
                scanned = [
                    line for line in plan.splitlines() if line.startswith("SCAN") and not SCAN_OF_FEW.match(line)
                ]
                if scanned and name.partition("[")[0] not in ALLOWED_SCANS:
                    scans.append(f"{name}: {plan}")
                if name in INDEX_BY_STATEMENT and INDEX_BY_STATEMENT[name] not in plan:
                    missing.append(f"{name} wants {INDEX_BY_STATEMENT[name]}: {plan}")
                if name in INDEX_BY_STATEMENT and "TEMP B-TREE FOR ORDER BY" in plan and name not in ALLOWED_SORTS:
                    sorts.append(f"{name}: {plan}")
    assert not scans, "\n".join(scans)
    assert not missing, "\n".join(missing)
    assert not sorts, "\n".join(sorts)
    known = {name.partition("[")[0] for module in MODULES for name in statements(module)}
    assert set(INDEX_BY_STATEMENT) <= known and known >= ALLOWED_SCANS


# The audit relation

AUDIT_QUERY = """SELECT id, agent_name, status, datetime(started_at/1000,'unixepoch')
   FROM agent_runs ORDER BY started_at DESC LIMIT 20;"""
AUDIT_COLUMNS = [
    "id",
    "agent_name",
    "started_at",
    "completed_at",
    "envelope_ids",
    "final_response",
    "context_length",
    "status",
    "error",
]


@pytest.mark.spec("H85")
async def test_the_audit_query_works_unchanged_on_the_agent_runs_view_of_sqlite(tmp_path: Path) -> None:
    instance = LocalInstance(tmp_path)
    async with instance.run() as server:
        instance.model.will_reply("Done.", text_reply("", fails="no answer"), text_reply("never", after_s=3600))
        done = (await server.send("one")).envelope
        assert await server.wait_for_answer(done) == "Done."
        failed = (await server.send("two")).envelope
        await server.wait_for_outcome(failed)
        cancelled = await server.send("three")
        await server.wait_for(lambda _conn: len(instance.model.prompts) == 3, what="the model call of the third run")
        path = tmp_path / "retinue.db"
        running = query_file(path, "SELECT status, completed_at, error FROM agent_runs ORDER BY started_at, id")
        assert ("running", None, None) in running
        assert cancelled.session is not None
        await server.engine.cancel(cancelled.session, by="person:owner", reason="enough")
        await server.wait_for_outcome(cancelled.envelope)
        await server.wait_until_idle()

        rows = query_file(path, AUDIT_QUERY)
        assert [row[1] for row in rows] == ["ada"] * 3
        assert sorted(row[2] for row in rows) == ["cancelled", "completed", "failed"]
        assert all(re.fullmatch(r"2026-01-05 09:\d\d:\d\d", row[3]) for row in rows)

    with closing(sqlite3.connect(path)) as raw:
        cursor = raw.execute("SELECT * FROM agent_runs")
        assert [column[0] for column in cursor.description] == AUDIT_COLUMNS
        by_status = {row[7]: dict(zip(AUDIT_COLUMNS, row, strict=True)) for row in cursor}
        for refused in (
            "DELETE FROM agent_runs",
            "UPDATE agent_runs SET error = 'x'",
            "INSERT INTO agent_runs (id) VALUES ('x')",
        ):
            with pytest.raises(sqlite3.OperationalError, match="cannot modify agent_runs because it is a view"):
                raw.execute(refused)
    assert json.loads(by_status["completed"]["envelope_ids"]) == [done]
    assert json.loads(by_status["failed"]["envelope_ids"]) == [failed]
    assert by_status["completed"]["final_response"] == "Done."
    assert by_status["completed"]["error"] is None
    assert "no answer" in by_status["failed"]["error"]
    assert "cancelled by person:owner: enough" in by_status["cancelled"]["error"]
    for row in by_status.values():
        assert isinstance(row["started_at"], int) and row["completed_at"] >= row["started_at"]
        assert row["context_length"] is None or isinstance(row["context_length"], int)


@pytest.mark.spec("H85")
async def test_a_suspended_run_is_running_in_the_agent_runs_view(tmp_path: Path) -> None:
    instance = LocalInstance(
        tmp_path, agents=[Agent(name="ada", model="scripted", tools=ToolRules(ask=("append_line",)))]
    )
    async with instance.run() as server:
        instance.model.will_reply(tool_call_reply("append_line", text="x"))
        await server.send("do it")
        await server.wait_for(
            lambda conn: conn.execute(sa.select(t.runs.c.status)).scalar() == "suspended",
            what="the run to be suspended",
        )
        assert query_file(tmp_path / "retinue.db", "SELECT status, completed_at, error FROM agent_runs") == [
            ("running", None, None)
        ]
