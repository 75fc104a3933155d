"""The store on SQLite: groups, full disks, damage, locks, kill -9, and how much work a commit is."""

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
from stores import count, counted

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
from retinue.store.runs import approvals, money, questionnaires, runs
from retinue.store.sessions import external_keys, instructions, records, sessions
from retinue.testing.local_instance import LocalInstance
from retinue.testing.scripted_model import text_reply, tool_call_reply
from retinue.testing.wait_conditions import WAIT_LIMIT_S, wait_until

FIVE_MB = 5 * 1024 * 1024


@asynccontextmanager
async def opened(path: Path, **kw: Any) -> AsyncGenerator[SqliteStore]:
    store = await open_store(path, **kw)
    assert isinstance(store, SqliteStore)
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "house.db"


def look(path: Path, statement: str) -> list[Any]:
    """From outside, as `sqlite3 FILE STATEMENT` would."""
    with closing(sqlite3.connect(path)) as raw:
        return raw.execute(statement).fetchall()


def driver(conn: sa.Connection) -> sqlite3.Connection:
    raw: Any = conn.connection.dbapi_connection
    return raw


def pragma(text: str) -> TransactionBody[Any]:
    """Ask or tell the connection that a body runs on. (Some settings are only taken within no transaction.)"""
    return lambda conn: driver(conn).execute(f"PRAGMA {text}").fetchone()


def big(day: int, source: str, kilobytes: int) -> TransactionBody[None]:
    """A row that takes room."""
    return lambda conn: count(day, source + "x" * 1024 * kilobytes)(conn)


async def as_one_group(store: SqliteStore, bodies: list[TransactionBody[Any]]) -> list[Any]:
    """Hold the writer up until all of these stand in line behind it; they are then committed together."""
    busy, go_on = threading.Event(), threading.Event()

    def hold(_conn: sa.Connection) -> None:
        busy.set()
        go_on.wait(WAIT_LIMIT_S)

    # More than the loop commits itself: they go to the thread, which is then held up, and not the loop.
    first = [asyncio.create_task(store.write(hold, point="test")) for _ in range(sqlite.LOOP_COMMIT_WRITES_MAX + 1)]
    await wait_until(busy.is_set, "the writer is busy", poll_s=0.001)
    tasks = [asyncio.create_task(store.write(body, point="test")) for body in bodies]
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(*first)
    return await asyncio.gather(*tasks, return_exceptions=True)


# Durability


async def test_commits_are_durable_and_this_is_read_back(path: Path) -> None:
    async with opened(path) as store:
        assert await store.write(pragma("journal_mode"), point="test") == ("wal",)
        for ask in (lambda body: store.write(body, point="test"), store.read, store.scan):
            assert await ask(pragma("synchronous")) == (2,)  # FULL
            assert await ask(pragma("foreign_keys")) == (1,)


def test_a_disk_that_cannot_share_a_log_is_refused(path: Path) -> None:
    # This way of SQLite's to reach files knows no shared memory, as it is on network disks.
    address = f"{path.as_uri()}?vfs=unix-dotfile"
    with closing(sqlite3.connect(address, uri=True)) as raw, pytest.raises(StoreError) as refused:
        sqlite.configure(raw, writable=True)
    assert refused.value.code == "store.wal_unavailable"
    assert "local disk" in refused.value.try_this


# Groups


async def test_writes_that_wait_together_are_committed_together(path: Path) -> None:
    said: list[str] = []
    async with opened(path) as store:
        await store.write(lambda conn: driver(conn).set_trace_callback(said.append), point="test")
        said.clear()
        results = await as_one_group(store, [count(n, "x") for n in range(50)])

        assert results == [None] * 50
        assert said.count("COMMIT") == 2  # of those that held the others up, and theirs
        assert sum(line.startswith("SAVEPOINT") for line in said) == sqlite.LOOP_COMMIT_WRITES_MAX + 1 + 50
        assert len(await store.read(counted)) == 50


async def test_a_broken_constraint_in_a_group_of_fifty_takes_no_neighbour_with_it(path: Path) -> None:
    bodies = [count(n, "x") for n in range(49)]
    bodies.insert(25, count(10, "x"))
    async with opened(path) as store:
        results = await as_one_group(store, bodies)

        (failed,) = [(n, r) for n, r in enumerate(results) if r is not None]
        assert failed[0] == 25
        assert isinstance(failed[1], StoreError)
        assert (failed[1].code, bool(failed[1].because), bool(failed[1].try_this)) == (
            "store.constraint_violated",
            True,
            True,
        )
        assert len(await store.read(counted)) == 49


class FailingCommit:
    """A commit that is lost once."""

    def __init__(self) -> None:
        self.armed = False

    def reach(self, point: str) -> None:
        if self.armed and point == "test.before-commit":
            self.armed = False
            raise OSError("the disk said no")


async def test_a_failed_commit_fails_every_caller_of_the_group_each_with_its_own_reason(path: Path) -> None:
    def breaks(_conn: sa.Connection) -> None:
        raise LookupError("my own fault")

    faults = FailingCommit()

    def arm(_conn: sa.Connection) -> None:
        faults.armed = True

    async with opened(path, faults=faults) as store:
        results = await as_one_group(store, [arm, count(1, "x"), breaks, count(2, "x")])

        assert [type(result) for result in results] == [
            StatementRejected,
            StatementRejected,
            LookupError,
            StatementRejected,
        ]
        assert await store.read(counted) == []
        await store.write(count(3, "x"), point="test")
        assert await store.read(counted) == [(3, "x")]


async def test_a_body_that_breaks_out_of_everything_does_not_silence_the_writer(path: Path) -> None:
    def breaks_out(conn: sa.Connection) -> None:
        count(1, "x")(conn)
        raise SystemExit(3)

    async with opened(path) as store:
        with pytest.raises(StoreError) as told:
            await store.write(breaks_out, point="test")
        assert told.value.code == "store.write_interrupted"
        await store.write(count(2, "x"), point="test")
        assert await store.read(counted) == [(2, "x")]


async def test_a_body_that_ends_the_transaction_itself_does_not_silence_the_writer(path: Path) -> None:
    def meddles(conn: sa.Connection) -> None:
        driver(conn).execute("ROLLBACK")

    async with opened(path) as store:
        with pytest.raises(StoreError):
            await store.write(meddles, point="test")
        await store.write(count(2, "x"), point="test")
        assert await store.read(counted) == [(2, "x")]


async def test_closing_leaves_no_thread_and_no_log_behind(path: Path) -> None:
    before = threading.active_count()
    async with opened(path) as store:
        await store.write(count(1, "x"), point="test")
        await store.scan(counted)
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("retinue")] == []
    assert threading.active_count() <= before + 1  # the loop's own helper, which waited for ours
    assert [file.name for file in path.parent.iterdir()] == ["house.db"]


# A full disk


@contextmanager
def small_disk(directory: Path, size_bytes: int) -> Generator[Path]:
    """A real file system with little room."""
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
    """Take all the room there is but a little."""
    filler = disk / "filler"
    left = os.statvfs(disk)
    with filler.open("wb") as file:
        file.write(b"\0" * max(0, left.f_bavail * left.f_frsize - leaving_bytes))
    return filler


async def test_a_disk_that_is_full_at_commit_fails_the_whole_group_and_the_house_goes_on_when_there_is_room(
    tmp_path: Path,
) -> None:
    with small_disk(tmp_path / "disk", FIVE_MB) as disk:
        path = disk / "house.db"
        async with opened(path) as store:
            await store.write(count(0, "kept"), point="test")
            filler = fill_up(disk, leaving_bytes=64 * 1024)
            results = await as_one_group(store, [big(n, "lost", 40) for n in range(1, 11)])

            assert [getattr(result, "code", result) for result in results] == ["store.disk_full"] * 10
            assert all(result.because and "free some disk space" in result.try_this for result in results)
            assert await store.read(counted) == [(0, "kept")]
            assert await store.scan(counted) == [(0, "kept")]

            filler.unlink()
            results = await as_one_group(store, [big(n, "again", 40) for n in range(1, 11)])
            assert results == [None] * 10
        assert len(look(path, "SELECT day FROM tally")) == 11
        assert look(path, "PRAGMA integrity_check") == [("ok",)]


async def test_on_a_full_disk_every_write_is_kept_as_a_whole_or_refused(tmp_path: Path) -> None:
    """Small writes go on until the last page is taken; whatever was acknowledged is there, and nothing else."""
    with small_disk(tmp_path / "disk", FIVE_MB) as disk:
        path = disk / "house.db"
        async with opened(path) as store:
            filler = fill_up(disk, leaving_bytes=100 * 1024)
            acknowledged: list[int] = []
            refused = 0
            for n in range(200):
                try:
                    await store.write(big(n, "x", 4), point="test")
                    acknowledged.append(n)
                except StoreError as error:
                    assert error.code in ("store.disk_full", "store.disk_failed")
                    refused += 1
            assert acknowledged and refused
            filler.unlink()
            await store.write(count(999, "x"), point="test")
        assert [day for (day,) in look(path, "SELECT day FROM tally ORDER BY day")] == [*acknowledged, 999]
        assert look(path, "PRAGMA integrity_check") == [("ok",)]


async def test_a_file_that_may_not_grow_refuses_in_the_body_and_goes_on_when_it_may(path: Path) -> None:
    async with opened(path) as store:
        (pages,) = await store.write(pragma("page_count"), point="test")
        await store.write(pragma(f"max_page_count = {pages + 2}"), point="test")
        results = await as_one_group(store, [count(1, "small"), big(2, "large", 100), count(3, "small")])

        # SQLite may undo the whole transaction or the one statement. Either way each caller hears what is so.
        assert getattr(results[1], "code", None) == "store.disk_full"
        told = [n for n, result in zip((1, 2, 3), results, strict=True) if result is None]
        assert [day for day, _ in await store.read(counted)] == told
        assert all(result is None or result.code == "store.disk_full" for result in results)

        await store.write(pragma("max_page_count = 1073741823"), point="test")
        await store.write(big(2, "large", 100), point="test")
        assert 2 in [day for day, _ in await store.read(counted)]


# Damage and locks


async def test_a_page_that_cannot_be_read_is_told_and_the_rest_stays_readable(path: Path) -> None:
    async with opened(path) as store:
        for n in range(300):
            await store.write(big(n, "x", 1), point="test")
        await store.write(lambda conn: agents.upsert(conn, Agent(name="ada"), source="test", at_ms=0), point="test")
    (root,) = look(path, "SELECT rootpage FROM sqlite_master WHERE name = 'tally'")[0]
    whole = path.read_bytes()
    with path.open("r+b") as file:
        file.seek((root - 1) * 4096)
        file.write(b"\xff" * 4096)
    async with opened(path) as store:
        for ask in (store.read, store.scan, lambda body: store.write(body, point="test")):
            with pytest.raises(StoreError) as told:
                await ask(lambda conn: conn.execute(sa.select(sa.func.sum(t.tally.c.accepted))).scalar())
            assert told.value.code == "store.damaged"
            assert told.value.because and "backup" in told.value.try_this
        found = await store.read(lambda conn: agents.find(conn, "ada"))
        assert found is not None and found.name == "ada"
    assert len(path.read_bytes()) == len(whole)


HOLD = """
import sqlite3, sys
raw = sqlite3.connect(sys.argv[1], isolation_level=None)
raw.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
raw.execute("ROLLBACK")
"""


def holding(path: Path) -> subprocess.Popen[str]:
    """Another program, with the write lock in its hand."""
    command = [sys.executable, "-c", HOLD, path]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


async def test_another_program_that_holds_the_file_is_waited_for_then_named_and_then_outlived(path: Path) -> None:
    async with opened(path) as store:
        await store.write(pragma("busy_timeout = 50"), point="test")
        with holding(path) as other:
            assert other.stdout is not None and other.stdin is not None
            assert other.stdout.readline() == "held\n"
            with pytest.raises(StoreError) as told:
                await store.write(count(1, "x"), point="test")
            assert told.value.code == "store.busy"
            assert "close" in told.value.try_this
            assert await store.read(counted) == []  # looking is always possible

            other.stdin.close()
            other.wait(timeout=WAIT_LIMIT_S)
        await store.write(count(2, "x"), point="test")
        assert await store.read(counted) == [(2, "x")]


# kill -9

WRITER = """
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


def test_whatever_was_acknowledged_before_kill_9_is_there_after_it(path: Path) -> None:
    rounds = 20
    told = subprocess.run(
        [sys.executable, "-c", WRITER, path, Path(__file__).parent.parent, str(rounds)],
        capture_output=True,
        text=True,
        timeout=WAIT_LIMIT_S,
        check=True,
    )
    acknowledged = {
        (int(n), f"round {round_}") for round_, *said in map(str.split, told.stdout.splitlines()) for n in said
    }
    assert len({source for _, source in acknowledged}) == rounds
    kept = set(look(path, "SELECT day, source FROM tally"))
    assert acknowledged <= kept
    assert look(path, "PRAGMA integrity_check") == [("ok",)]


# How much work it is


async def test_a_plain_turn_takes_two_commits_and_one_with_a_tool_call_four(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Accept with the first intent, and finish; for a tool call, one more for each new intent."""
    household = LocalInstance(tmp_path)
    begun: list[list[str]] = []
    groups: list[list[str]] = []

    def trace(statement: str) -> None:
        if statement.startswith("BEGIN"):
            begun.append([])
        begun[-1].append(statement)
        if statement.startswith("COMMIT"):  # and no ROLLBACK, with which a look ends
            groups.append(begun[-1])

    async with household.run() as house:
        household.model.will_reply("warm", "plain", tool_call_reply("append_line", text="x"), "used a tool")
        await house.wait_for_answer((await house.send("warm up")).envelope)
        await house.wait_until_idle()
        await house.store.write(lambda conn: driver(conn).set_trace_callback(trace), point="test")
        groups.clear()

        await house.wait_for_answer((await house.send("plain")).envelope)
        await house.wait_until_idle()
        plain = list(groups)
        groups.clear()
        await house.wait_for_answer((await house.send("use a tool")).envelope)
        await house.wait_until_idle()
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


async def where(store: SqliteStore) -> str:
    """On which thread a commit is made."""
    return await store.write(lambda _: threading.current_thread().name, point="test")


async def test_a_commit_of_one_or_two_is_made_on_the_loop_and_a_crowds_beside_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "LOOP_COMMIT_S_MAX", math.inf)  # however slow this disk is
    here = threading.current_thread().name
    async with opened(path) as store:
        assert await where(store) == here
        together = await asyncio.gather(*(where(store) for _ in range(8)))
        assert set(together) == {"retinue-writer"}
        assert {await where(store) for _ in range(sqlite.LOW_LOAD_COMMITS)} == {"retinue-writer"}
        assert await where(store) == here
        assert set(await asyncio.gather(where(store), where(store))) == {here}, "one who asks, and one who is asked"
        assert await where(store) == here


async def test_where_commits_are_slow_the_loop_does_not_wait_for_them(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "LOOP_COMMIT_S_MAX", 0.0)
    async with opened(path) as store:
        await where(store)  # how slow they are is known after the first
        assert {await where(store) for _ in range(3)} == {"retinue-writer"}


class Watch:
    """Stands in for the clock by which commits are measured: each takes as long as the test says."""

    def __init__(self) -> None:
        self.commit_s = 0.0
        self._looked = 0

    def __call__(self) -> float:
        self._looked += 1
        return self.commit_s if self._looked % 2 == 0 else 0.0  # looked at before and after each commit


async def test_slow_commits_with_quick_ones_among_them_are_not_yet_a_slow_disk(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where others use the processor, most commits are late: twice as much of it was used for sending them away."""
    watch = Watch()
    monkeypatch.setattr(sqlite, "perf_counter", watch)
    here = threading.current_thread().name
    async with opened(path) as store:
        for _ in range(sqlite.FAST_COMMIT_QUANTILE):
            assert await where(store) == here
        watch.commit_s = 2 * sqlite.LOOP_COMMIT_S_MAX
        for _ in range(sqlite.FAST_COMMIT_QUANTILE):
            assert await where(store) == here
        watch.commit_s = 0.0
        assert await where(store) == here
        watch.commit_s = 2 * sqlite.LOOP_COMMIT_S_MAX
        for _ in range(sqlite.COMMITS_MEASURED):
            await where(store)
        assert await where(store) == "retinue-writer"
        watch.commit_s = 0.0
        while await where(store) != here:  # it was slow, and is no more
            pass


async def test_who_listens_for_a_table_is_not_disturbed_by_others(path: Path) -> None:
    def work(conn: sa.Connection) -> None:
        conn.execute(t.tally.insert(), {"day": 1, "source": "x", "accepted": 0, "purged": 0})

    told: list[str] = []
    async with opened(path) as store:
        store.on_commit(lambda: told.append("all"))
        store.on_commit(lambda: told.append("tally"), t.tally)
        await where(store)
        told.clear()
        await where(store)
        assert told == ["all"]
        await store.write(work, point="test")
        assert told == ["all", "all", "tally"]


async def test_a_job_for_the_loop_waits_for_what_the_thread_still_has(path: Path) -> None:
    """Two threads never share the connection, and commits stay in the order in which they were asked for."""
    async with opened(path) as store:
        free = threading.Event()

        def waits(_: sa.Connection) -> None:
            free.wait(WAIT_LIMIT_S)

        slow = [asyncio.create_task(store.write(waits, point="test")) for _ in range(sqlite.LOOP_COMMIT_WRITES_MAX + 1)]
        await wait_until(lambda: store._writes_in_thread, "the thread has them")
        lone = asyncio.create_task(where(store))
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
    money,
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
# These read whole tables on purpose, beside the loop or over a handful of rows.
WHOLE = {
    "agents._all",  # the staff
    "agents._sources",
    "people._all",  # and whom it works for
    "records._all",  # every record is looked at for damage
    "transaction._lock_counters",  # one row
    "transaction._update_counters",
    "transaction._select_latest_ms",
    "events._newest",
    "questionnaires._listed",  # of all people for the owner, of an agent for itself: they are few, and purged
    "questionnaires._listed_open",
    "runs._open_sessions",  # as many as there are slots
    "runs._ended_ids",  # all of them are cleared, where the owner asks for it
    "runs._clear_steps",
    "runs._clear_approvals",
    "runs._clear",
    "sessions._latest_foreground",  # where an agent asks for whom nobody sits, which is seldom
    "sessions._latest_of_kind",  # where an agent writes to the heartbeat, which is as seldom
    "sessions._list",
    "sessions._recent",  # the list of sessions, sorted: it is asked for by people, beside the loop
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


HOT = {
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
    "runs._due_suspended": "ix_runs_wake",
    "runs._next_wake": "ix_runs_wake",
    "approvals._next_expiry": "ix_approvals_open",
    "sessions._active": "ix_sessions_active",
}


# Few at a time, or asked for when the house opens.
SORTED = {"envelopes._held", "sessions._active"}


def test_no_statement_of_the_house_reads_a_table_from_end_to_end(path: Path) -> None:
    """With a million envelopes in it, a scan is the difference between a millisecond and a second."""
    prepare_sqlite(path)
    scans: list[str] = []
    missing: list[str] = []
    sorts: list[str] = []
    with closing(sqlite3.connect(path)) as raw:
        for module in MODULES:
            for name, statement in statements(module).items():
                plan = plan_of(raw, statement)
                if re.search(
                    r"^SCAN (?!.*USING (COVERING )?INDEX ix_\w+_(outbox|due|open|sending|active))", plan, re.M
                ):
                    if name.partition("[")[0] not in WHOLE:
                        scans.append(f"{name}: {plan}")
                if name in HOT and HOT[name] not in plan:
                    missing.append(f"{name} wants {HOT[name]}: {plan}")
                if name in HOT and "TEMP B-TREE FOR ORDER BY" in plan and name not in SORTED:
                    sorts.append(f"{name}: {plan}")
    assert not scans, "\n".join(scans)
    assert not missing, "\n".join(missing)
    assert not sorts, "\n".join(sorts)
    known = {name.partition("[")[0] for module in MODULES for name in statements(module)}
    assert set(HOT) <= known and known >= WHOLE


# The audit relation

EXCERPT = """SELECT id, agent_name, status, datetime(started_at/1000,'unixepoch')
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
async def test_the_excerpts_query_runs_unchanged_on_a_house_that_really_ran(tmp_path: Path) -> None:
    household = LocalInstance(tmp_path)
    async with household.run() as house:
        household.model.will_reply("Done.", text_reply("", fails="no answer"), text_reply("never", after_s=3600))
        done = (await house.send("one")).envelope
        assert await house.wait_for_answer(done) == "Done."
        failed = (await house.send("two")).envelope
        await house.wait_for_outcome(failed)
        cancelled = await house.send("three")
        await house.wait_for(lambda _conn: len(household.model.prompts) == 3, what="the third run to ask its model")
        path = tmp_path / "house.db"
        running = look(path, "SELECT status, completed_at, error FROM agent_runs ORDER BY started_at, id")
        assert ("running", None, None) in running
        assert cancelled.session is not None
        await house.engine.cancel(cancelled.session, by="person:owner", reason="enough")
        await house.wait_for_outcome(cancelled.envelope)
        await house.wait_until_idle()

        rows = look(path, EXCERPT)
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
async def test_a_run_that_waits_for_a_person_still_runs_in_the_audit(tmp_path: Path) -> None:
    household = LocalInstance(
        tmp_path, agents=[Agent(name="ada", model="scripted", tools=ToolRules(ask=("append_line",)))]
    )
    async with household.run() as house:
        household.model.will_reply(tool_call_reply("append_line", text="x"))
        await house.send("do it")
        await house.wait_for(
            lambda conn: conn.execute(sa.select(t.runs.c.status)).scalar() == "parked", what="the run to park"
        )
        assert look(tmp_path / "house.db", "SELECT status, completed_at, error FROM agent_runs") == [
            ("running", None, None)
        ]
