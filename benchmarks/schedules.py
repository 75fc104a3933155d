"""The cost of schedules: ten thousand that are waiting, a thousand due in the same second, and the delay of each."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import sqlalchemy as sa

from benchmarks.client import Client
from benchmarks.measure import Figure, cpu_s, rss_mb
from benchmarks.processes import mock, server_process
from retinue.domain import address
from retinue.domain.ids import ScheduleId
from retinue.domain.schedule import LATENESS_S_MAX, SCHEDULES_MAX, CronTrigger, Schedule
from retinue.domain.times import to_ms
from retinue.domain.trust import Trust
from retinue.engine.lanes import SlotLimits
from retinue.store.core.transaction import Transaction
from retinue.store.open_store import open_store
from retinue.store.schedules import schedules

IDLE_S = 60.0
SETTLE_S = 5.0
SIMULTANEOUS = 1_000
ONE_BY_ONE, INTERVAL_S = 200, 0.25
DONE_S_MAX = 300.0

IDLE_MS_MAX = 60.0  # CPU beyond that of a server without schedules, in those 60 seconds: a thousandth of a core
RELEASE_S_MAX = 10.0  # far below LATENESS_S_MAX, from which an occurrence counts as missed
GROWTH_MB_MAX = 30.0
START_DELAY_MS_MAX = 50.0


def measure(folder: Path) -> list[Figure]:
    with mock(0) as port:
        return [
            *_idle(folder, port),
            *_simultaneous_figures(folder / "simultaneous", port),
            *_one_by_one_figures(folder / "singles", port),
        ]


# --- ten thousand waiting schedules ---


def _idle(folder: Path, port: int) -> list[Figure]:
    """Measure a server with schedules and one without in the same minute, so other load on the machine affects both."""
    full = folder / "full"
    full.mkdir()
    asyncio.run(_fill(full / "retinue.db"))
    with server_process(folder / "empty", port) as (empty_pid, _), server_process(full, port) as (full_pid, ready_s):
        time.sleep(SETTLE_S)
        before = cpu_s(empty_pid), cpu_s(full_pid)
        time.sleep(IDLE_S)
        floor_ms, idle_ms = ((cpu_s(pid) - was) * 1000 for pid, was in zip((empty_pid, full_pid), before, strict=True))
        rss = rss_mb(full_pid)
    note = f"{SCHEDULES_MAX:,} schedules, {IDLE_S:g} s"
    return [
        Figure("schedules-start-time", ready_s, "s", note=f"with {SCHEDULES_MAX:,} schedules"),
        Figure("schedules-idle-floor-cpu", floor_ms, "ms", note=f"CPU of a server without any, {IDLE_S:g} s"),
        Figure("schedules-idle-cpu", idle_ms, "ms", note=f"CPU, {note}"),
        Figure("schedules-idle-extra-cpu", max(0.0, idle_ms - floor_ms), "ms", IDLE_MS_MAX),
        Figure("schedules-idle-memory", rss, "MB"),
    ]


async def _fill(path: Path) -> None:
    store = await open_store(path)
    now = datetime.now(UTC)
    far = now + timedelta(days=40)

    def body(conn: sa.Connection) -> None:
        transaction = Transaction(conn, to_ms(now))
        for number in range(SCHEDULES_MAX):
            when = CronTrigger(f"{number % 60} {number % 24} {far.day if far.day < 29 else 1} {far.month} *")
            schedule = Schedule(
                id=ScheduleId(f"{number * 2654435761 % 2**32:08x}{number:024x}"),
                name="",
                owner=address.person_address("owner"),
                to=address.agent_address("core"),
                when=when,
                text="message number 1",
                trust=Trust.OWNER,
            )
            schedules.add(transaction, schedule, zone=ZoneInfo("UTC"))
        transaction.close()

    await store.write(body, point="bench")
    await store.close()


# --- a thousand in one second ---


def _simultaneous_figures(home: Path, port: int) -> list[Figure]:
    with server_process(home, port) as (pid, _):
        return asyncio.run(_measure_simultaneous(home, pid))


async def _measure_simultaneous(home: Path, pid: int) -> list[Figure]:
    client = Client(home)
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=60)
    for number in range(SIMULTANEOUS):
        await client.call(
            "schedule.add", {"to": "agent:core", "text": f"message number {number}", "at": at.isoformat()}
        )
    before_mb, most_mb, most = rss_mb(pid), 0.0, 0
    spare_s = (at - datetime.now(UTC)).total_seconds()
    if spare_s < 1:
        raise RuntimeError("not all were added in time")
    while len(_ended_occurrences(home)) < SIMULTANEOUS:
        if (datetime.now(UTC) - at).total_seconds() > DONE_S_MAX:
            raise RuntimeError(f"not done within {DONE_S_MAX:g} s")
        lanes = await client.call("server.lanes", {"limit": 1})
        most = max(most, *(slots["used"] for slots in lanes["slots"] if slots["lane"] == "schedule"))
        most_mb = max(most_mb, rss_mb(pid))
        await asyncio.sleep(0.1)
    wall_s = (datetime.now(UTC) - at).total_seconds()
    client.close()
    ended = _ended_occurrences(home)
    ran = sum(state == "ran" for state, _ in ended)
    return [
        Figure("schedules-simultaneous-ran", ran, "", SIMULTANEOUS, at_least=True, note="due in the same second"),
        Figure(
            "schedules-simultaneous-delay",
            max(late_ms for _, late_ms in ended) / 1000,
            "s",
            RELEASE_S_MAX,
            note=f"the latest one; from {LATENESS_S_MAX} s on, it counts as missed",
        ),
        Figure("schedules-simultaneous-slots", most, "", SlotLimits().schedule, note="most slots of schedules in use"),
        Figure("schedules-simultaneous-time", wall_s, "s", note="until all were answered"),
        Figure("schedules-simultaneous-memory-growth", most_mb - before_mb, "MB", GROWTH_MB_MAX),
    ]


# --- one at a time ---


def _one_by_one_figures(home: Path, port: int) -> list[Figure]:
    with server_process(home, port) as (pid, _):
        return asyncio.run(_measure_one_by_one(home, pid))


async def _measure_one_by_one(home: Path, pid: int) -> list[Figure]:
    """Measure from the time of an occurrence to the commit that starts its run, on an otherwise idle server."""
    client = Client(home)
    await client.follow()
    await client.ask("warm up", "warm-up")
    first = datetime.now(UTC) + timedelta(seconds=5)
    for number in range(ONE_BY_ONE):
        at = (first + timedelta(seconds=number * INTERVAL_S)).isoformat(timespec="milliseconds")
        await client.call("schedule.add", {"to": "agent:core", "text": "message number 1", "at": at})
    before = cpu_s(pid)
    deadline = time.monotonic() + ONE_BY_ONE * INTERVAL_S + DONE_S_MAX
    while len(_ended_occurrences(home)) < ONE_BY_ONE:
        if time.monotonic() > deadline:
            raise RuntimeError("not all occurrences ended")
        await asyncio.sleep(1)
    cpu_ms = (cpu_s(pid) - before) * 1000 / ONE_BY_ONE
    client.close()
    late = _start_delays_ms(home)
    return [
        Figure("schedules-delay-median", late[len(late) // 2], "ms"),
        Figure(
            "schedules-delay-p99", late[len(late) * 99 // 100], "ms", START_DELAY_MS_MAX, note=f"of {len(late)} runs"
        ),
        Figure("schedules-occurrence-cpu", cpu_ms, "ms", note="for each occurrence, with its run"),
    ]


@contextmanager
def _open_database(home: Path) -> Iterator[sqlite3.Connection]:
    db = sqlite3.connect(f"file:{home / 'retinue.db'}?mode=ro", uri=True)
    try:
        yield db
    finally:
        db.close()


def _ended_occurrences(home: Path) -> list[tuple[str, int]]:
    """Return the occurrences that have ended, with their state and how late they started."""
    with _open_database(home) as db:
        return db.execute(
            "SELECT state, coalesce(started_ms, ended_ms) - occurs_ms FROM occurrences"
            " WHERE state NOT IN ('waiting', 'working')"
        ).fetchall()


def _start_delays_ms(home: Path) -> list[float]:
    with _open_database(home) as db:
        found = db.execute(
            "SELECT r.started_ms - s.occurs_ms FROM occurrences s JOIN envelopes e ON e.id = s.envelope"
            " JOIN runs r ON r.id = e.run"
        ).fetchall()
    return sorted(float(late) for (late,) in found)
