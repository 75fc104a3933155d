"""What schedules cost: ten thousand that wait, a thousand that come in the same second, and how late each comes."""

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
from benchmarks.processes import house, mock
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
THOUSAND = 1_000
SINGLES, APART_S = 200, 0.25
DONE_S_MAX = 300.0

IDLE_MS_MAX = 60.0  # CPU more than a house without schedules, in those 60 seconds: a thousandth of a core
LET_GO_S_MAX = 10.0  # far from LATE_S_MAX, from which on a slot was missed
GROWTH_MB_MAX = 30.0
LATE_MS_MAX = 50.0


def measure(folder: Path) -> list[Figure]:
    with mock(0) as port:
        return [*_idle(folder, port), *_thousand(folder / "thousand", port), *_singles(folder / "singles", port)]


# --- ten thousand that wait ---


def _idle(folder: Path, port: int) -> list[Figure]:
    """Two houses in the same minute: what else the machine does, it does to both."""
    full = folder / "full"
    full.mkdir()
    asyncio.run(_fill(full / "house.db"))
    with house(folder / "empty", port) as (empty_pid, _), house(full, port) as (full_pid, ready_s):
        time.sleep(SETTLE_S)
        before = cpu_s(empty_pid), cpu_s(full_pid)
        time.sleep(IDLE_S)
        floor_ms, idle_ms = ((cpu_s(pid) - was) * 1000 for pid, was in zip((empty_pid, full_pid), before, strict=True))
        rss = rss_mb(full_pid)
    note = f"{SCHEDULES_MAX:,} schedules, {IDLE_S:g} s"
    return [
        Figure("clock-ready", ready_s, "s", note=f"with {SCHEDULES_MAX:,} schedules"),
        Figure("clock-idle-floor", floor_ms, "ms", note=f"CPU of a house without any, {IDLE_S:g} s"),
        Figure("clock-idle", idle_ms, "ms", note=f"CPU, {note}"),
        Figure("clock-idle-more", max(0.0, idle_ms - floor_ms), "ms", IDLE_MS_MAX),
        Figure("clock-idle-rss", rss, "MB"),
    ]


async def _fill(path: Path) -> None:
    store = await open_store(path)
    now = datetime.now(UTC)
    far = now + timedelta(days=40)

    def body(conn: sa.Connection) -> None:
        page = Transaction(conn, to_ms(now))
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
            schedules.add(page, schedule, zone=ZoneInfo("UTC"))
        page.close()

    await store.write(body, point="bench")
    await store.close()


# --- a thousand in one second ---


def _thousand(home: Path, port: int) -> list[Figure]:
    with house(home, port) as (pid, _):
        return asyncio.run(_come_together(home, pid))


async def _come_together(home: Path, pid: int) -> list[Figure]:
    client = Client(home)
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=60)
    for number in range(THOUSAND):
        await client.call(
            "schedule.add", {"to": "agent:core", "text": f"message number {number}", "at": at.isoformat()}
        )
    before_mb, most_mb, most = rss_mb(pid), 0.0, 0
    spare_s = (at - datetime.now(UTC)).total_seconds()
    if spare_s < 1:
        raise RuntimeError("they were not all added in time")
    while len(_ended(home)) < THOUSAND:
        if (datetime.now(UTC) - at).total_seconds() > DONE_S_MAX:
            raise RuntimeError(f"not done within {DONE_S_MAX:g} s")
        lanes = await client.call("house.lanes", {"limit": 1})
        most = max(most, *(slots["used"] for slots in lanes["slots"] if slots["lane"] == "schedule"))
        most_mb = max(most_mb, rss_mb(pid))
        await asyncio.sleep(0.1)
    wall_s = (datetime.now(UTC) - at).total_seconds()
    client.close()
    ended = _ended(home)
    ran = sum(state == "ran" for state, _ in ended)
    return [
        Figure("clock-thousand-ran", ran, "", THOUSAND, at_least=True, note="due in the same second"),
        Figure(
            "clock-thousand-let-go",
            max(late_ms for _, late_ms in ended) / 1000,
            "s",
            LET_GO_S_MAX,
            note=f"the last of them; missed from {LATENESS_S_MAX} s on",
        ),
        Figure("clock-thousand-at-work", most, "", SlotLimits().schedule, note="slots of schedules in use at most"),
        Figure("clock-thousand", wall_s, "s", note="until all have been answered"),
        Figure("clock-thousand-growth", most_mb - before_mb, "MB", GROWTH_MB_MAX),
    ]


# --- one at a time ---


def _singles(home: Path, port: int) -> list[Figure]:
    with house(home, port) as (pid, _):
        return asyncio.run(_come_one_by_one(home, pid))


async def _come_one_by_one(home: Path, pid: int) -> list[Figure]:
    """From the time of a slot to the commit in which its run begins, in a house that does nothing else."""
    client = Client(home)
    await client.follow()
    await client.ask("warm up", "warm-up")
    first = datetime.now(UTC) + timedelta(seconds=5)
    for number in range(SINGLES):
        at = (first + timedelta(seconds=number * APART_S)).isoformat(timespec="milliseconds")
        await client.call("schedule.add", {"to": "agent:core", "text": "message number 1", "at": at})
    before = cpu_s(pid)
    deadline = time.monotonic() + SINGLES * APART_S + DONE_S_MAX
    while len(_ended(home)) < SINGLES:
        if time.monotonic() > deadline:
            raise RuntimeError("not all of them came")
        await asyncio.sleep(1)
    cpu_ms = (cpu_s(pid) - before) * 1000 / SINGLES
    client.close()
    late = _begun_late_ms(home)
    return [
        Figure("clock-late-median", late[len(late) // 2], "ms"),
        Figure("clock-late-p99", late[len(late) * 99 // 100], "ms", LATE_MS_MAX, note=f"of {len(late)} runs"),
        Figure("clock-slot-cpu", cpu_ms, "ms", note="for each slot, its run included"),
    ]


@contextmanager
def _looking(home: Path) -> Iterator[sqlite3.Connection]:
    db = sqlite3.connect(f"file:{home / 'house.db'}?mode=ro", uri=True)
    try:
        yield db
    finally:
        db.close()


def _ended(home: Path) -> list[tuple[str, int]]:
    """The slots that are over: how they ended, and how late they were let go."""
    with _looking(home) as db:
        return db.execute(
            "SELECT state, coalesce(begun_ms, ended_ms) - slot_ms FROM schedule_slots"
            " WHERE state NOT IN ('waiting', 'working')"
        ).fetchall()


def _begun_late_ms(home: Path) -> list[float]:
    with _looking(home) as db:
        found = db.execute(
            "SELECT r.started_ms - s.slot_ms FROM schedule_slots s JOIN envelopes e ON e.id = s.envelope"
            " JOIN runs r ON r.id = e.run"
        ).fetchall()
    return sorted(float(late) for (late,) in found)
