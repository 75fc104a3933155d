"""What a door costs: a thousand messages a second by one connector, each on disk before it is confirmed; strangers, who
are turned away; and a line on which nobody says anything.

`python -m benchmarks.doors FOLDER` takes in messages by the house's own doorway and says, as JSON, what that took.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import sqlalchemy as sa

from benchmarks import floor
from benchmarks.measure import Figure, cpu_s, rss_mb
from benchmarks.processes import house, mock
from retinue.app.clock_and_ids import RandomIds, RealClock
from retinue.config.access import AccessSettings
from retinue.connectors.base import InboundMessage, PlatformUser
from retinue.domain.access import DmPolicy, Identity
from retinue.domain.agent import Agent
from retinue.domain.binding import Binding, BindingMatch
from retinue.domain.person import Person, Role
from retinue.intake.accept import EnvelopeIntake
from retinue.intake.access_control import PolicyAccessControl
from retinue.intake.connector_intake import ConnectorIntake
from retinue.intake.unknown_senders import REFUSALS_MAX
from retinue.store.agents import agents
from retinue.store.channels import bindings, identities
from retinue.store.core.connection import Store
from retinue.store.open_store import open_store
from retinue.store.people import people
from retinue.testing.telegram_server import TelegramServer

MESSAGES, ROOMS, AT_ONCE = 20_000, 100, 64
WARM = 4_000  # from here on memory is looked at: caches are full, and every room was heard of
ONE_ROOM = 1_000
STRANGERS, STRANGERS_IDS = 20_000, 5 * REFUSALS_MAX
COMMITS = 500
TEXT = "a message of ordinary length, as people write them to each other"

IDLE_S = 60.0
SETTLE_S = 5.0

RATE_MIN = 1_000.0
CPU_MS_WHERE_LOADED_MAX = 1.0
GROWTH_MB_MAX = 20.0
IDLE_MS_MAX = 60.0  # CPU more than a house without connectors, in those 60 seconds: a thousandth of a core


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """`rate` is of messages in many rooms, handed in as connectors do: each room in its order, rooms at once."""

    rate: float
    cpu_ms: float
    growth_mb: float
    stored: int
    one_room_rate: float
    refused_rate: float
    refused_growth_mb: float


# --- taking messages in, in a process of its own ---


@contextlib.asynccontextmanager
async def _door(folder: Path) -> AsyncGenerator[tuple[ConnectorIntake, Store]]:
    """The real way in, with nobody who works behind it: what agents do with their mail is measured elsewhere."""
    store = await open_store(folder / "house.db")
    await store.write(_people_a_door, point="bench")
    clock, ids = RealClock(), RandomIds()
    inbox = EnvelopeIntake(store, clock, lambda _wake: None)
    settings = AccessSettings(dm=DmPolicy.ALLOWLIST)
    keeper = PolicyAccessControl(store, clock, ids, lambda _: settings, lambda _: "bench", post=inbox)
    doorway = ConnectorIntake(store, inbox, clock, ids, keeper)
    try:
        yield doorway, store
    finally:
        await doorway.stop()
        await store.close()


def _people_a_door(conn: sa.Connection) -> None:
    agents.upsert(conn, Agent(name="ada"), source="bench", at_ms=1)
    for name, role in (("owner", Role.OWNER), ("maria", Role.MEMBER)):
        people.add(conn, Person(name=name, role=role), at_ms=1)
    for number in range(ROOMS):
        identity = Identity(service="bench", id=f"u{number}", person="maria", made_by="person:owner")
        identities.link(conn, identity, at_ms=1)
    for number in range(10):
        match = BindingMatch(connector="bench", peer=f"u{number}") if number else BindingMatch(connector="bench")
        bindings.replace(conn, Binding(id=f"{number:032x}", agent="ada", match=match), at_ms=1)


def _said(number: int, by: str) -> InboundMessage:
    speaker = PlatformUser(id=by, name="Maria", username="maria")
    return InboundMessage(room=f"dm-{by}", message_id=str(number), text=TEXT, speaker=speaker, peer=by)


async def _hand_in(doorway: ConnectorIntake, count: int, by: Callable[[int], str], *, first: int, at_once: int) -> int:
    """How many were taken in. At most so many are on their way; those who come next wait outside, as on a line."""
    numbers = iter(range(first, first + count))
    taken = 0

    async def hand_in() -> None:
        nonlocal taken
        for number in numbers:
            receipt = await doorway.accept("bench", _said(number, by(number)))
            taken += receipt is not None

    await asyncio.gather(*(hand_in() for _ in range(at_once)))
    return taken


async def _take_in(folder: Path) -> Taken:
    pid = os.getpid()
    async with _door(folder) as (doorway, store):
        in_rooms = partial(_hand_in, doorway, by=lambda number: f"u{number % ROOMS}", at_once=AT_ONCE)
        taken = await in_rooms(WARM, first=0)
        before_mb, before_s, before_cpu_s = rss_mb(pid), time.perf_counter(), cpu_s(pid)
        taken += await in_rooms(MESSAGES, first=WARM)
        wall_s, spent_s, growth_mb = time.perf_counter() - before_s, cpu_s(pid) - before_cpu_s, rss_mb(pid) - before_mb

        before_s = time.perf_counter()
        taken += await _hand_in(doorway, ONE_ROOM, lambda _: "u0", first=WARM + MESSAGES, at_once=1)
        one_room_s = time.perf_counter() - before_s
        if taken != WARM + MESSAGES + ONE_ROOM:
            raise RuntimeError(f"only {taken:,} were taken in")

        def stranger(number: int) -> str:
            return f"s{number % STRANGERS_IDS}"

        before_mb, before_s = rss_mb(pid), time.perf_counter()
        if await _hand_in(doorway, STRANGERS, stranger, first=0, at_once=AT_ONCE):
            raise RuntimeError("a stranger was let in")
        refused_s, refused_mb = time.perf_counter() - before_s, rss_mb(pid) - before_mb
        stored = await store.read(
            lambda conn: conn.execute(
                sa.text("SELECT count(*) FROM envelopes WHERE source = 'connector:bench'")
            ).scalar_one()
        )
    return Taken(
        rate=MESSAGES / wall_s,
        cpu_ms=spent_s * 1000 / MESSAGES,
        growth_mb=growth_mb,
        stored=stored,
        one_room_rate=ONE_ROOM / one_room_s,
        refused_rate=STRANGERS / refused_s,
        refused_growth_mb=refused_mb,
    )


# --- a line on which nobody says anything ---


@contextlib.contextmanager
def _telegram() -> Generator[TelegramServer]:
    """Telegram's stand-in on loopback, beside us."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server = TelegramServer()
    asyncio.run_coroutine_threadsafe(server.start(), loop).result(SETTLE_S)
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(SETTLE_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _idle(folder: Path) -> list[Figure]:
    """Two houses in the same minute: what else the machine does, it does to both."""
    with (
        mock(0) as port,
        _telegram() as telegram,
        house(folder / "shut", port) as (shut_pid, _),
        house(folder / "listening", port, telegram=telegram.url) as (pid, _),
    ):
        time.sleep(SETTLE_S)
        before = cpu_s(shut_pid), cpu_s(pid)
        time.sleep(IDLE_S)
        floor_ms, idle_ms = ((cpu_s(each) - was) * 1000 for each, was in zip((shut_pid, pid), before, strict=True))
        more_mb = rss_mb(pid) - rss_mb(shut_pid)
        if not telegram.poll_count:
            raise RuntimeError("nobody listened")
    return [
        Figure("door-idle-floor", floor_ms, "ms", note=f"CPU of a house without connectors, {IDLE_S:g} s"),
        Figure("door-idle", idle_ms, "ms", note=f"CPU with one that waits for Telegram, {IDLE_S:g} s"),
        Figure("door-idle-more", max(0.0, idle_ms - floor_ms), "ms", IDLE_MS_MAX),
        Figure("door-idle-rss", more_mb, "MB", note="more than a house without connectors"),
    ]


# --- all of it ---


def measure(folder: Path) -> list[Figure]:
    floor_ms = floor.measure_commit_ms(folder / "floor.db", COMMITS)
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.doors", str(folder)], stdout=subprocess.PIPE, check=True, text=True
    )
    taken = Taken(**json.loads(done.stdout))
    # The rate depends on what else this machine does; where it falls short, the CPU a message took decides.
    loaded = taken.rate < RATE_MIN
    return [
        Figure("door-floor", 1000 / floor_ms, "/s", note="bare commits, one after the other"),
        Figure(
            "door-rate",
            taken.rate,
            "/s",
            None if loaded else RATE_MIN,
            at_least=True,
            note=f"{ROOMS} rooms of one connector, each message on disk",
        ),
        Figure("door-cpu", taken.cpu_ms, "ms", CPU_MS_WHERE_LOADED_MAX if loaded else None, note="for each message"),
        Figure("door-growth", taken.growth_mb, "MB", GROWTH_MB_MAX, note=f"over {MESSAGES:,} messages"),
        Figure("door-stored", taken.stored, "", WARM + MESSAGES + ONE_ROOM, at_least=True),
        Figure("door-one-room", taken.one_room_rate, "/s", note="one after the other: a commit each"),
        Figure("door-strangers", taken.refused_rate, "/s", RATE_MIN, at_least=True, note="turned away"),
        Figure(
            "door-strangers-growth",
            taken.refused_growth_mb,
            "MB",
            GROWTH_MB_MAX,
            note=f"{STRANGERS:,} messages of {STRANGERS_IDS:,} strangers",
        ),
        *_idle(folder),
    ]


if __name__ == "__main__":
    json.dump(asdict(asyncio.run(_take_in(Path(sys.argv[1])))), sys.stdout)
