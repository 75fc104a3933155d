"""The cost of intake: messages of one connector (each on disk before it is confirmed), refused unknown senders, and an
idle connector.

`python -m benchmarks.connector_intake FOLDER` accepts messages through the real intake and prints the cost as JSON.
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
from benchmarks.processes import mock, server_process
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

MESSAGES, CHANNELS, AT_ONCE = 20_000, 100, 64
WARM_UP_MESSAGES = 4_000  # memory is measured from here on: caches are full, and every channel is known
ONE_CHANNEL_MESSAGES = 1_000
UNKNOWN_SENDER_MESSAGES, UNKNOWN_SENDERS = 20_000, 5 * REFUSALS_MAX
COMMITS = 500
TEXT = "a message of ordinary length, as people write them to each other"

IDLE_S = 60.0
SETTLE_S = 5.0

RATE_MIN = 1_000.0
CPU_MS_WHERE_LOADED_MAX = 1.0
GROWTH_MB_MAX = 20.0
IDLE_MS_MAX = 60.0  # CPU beyond that of a server without connectors, in those 60 seconds: a thousandth of a core


@dataclass(frozen=True, slots=True, kw_only=True)
class IntakeFigures:
    """The figures of intake. `rate` is for messages in many channels, submitted as connectors do:
    in order within a channel, and many channels at once."""

    rate: float
    cpu_ms: float
    growth_mb: float
    stored: int
    one_channel_rate: float
    refused_rate: float
    refused_growth_mb: float


# --- intake, in its own process ---


@contextlib.asynccontextmanager
async def _open_intake(folder: Path) -> AsyncGenerator[tuple[ConnectorIntake, Store]]:
    """Open the real intake. No agent runs, because the work of agents is measured elsewhere."""
    store = await open_store(folder / "retinue.db")
    await store.write(_add_people_and_bindings, point="bench")
    clock, ids = RealClock(), RandomIds()
    inbox = EnvelopeIntake(store, clock, lambda _wake: None)
    settings = AccessSettings(dm_policy=DmPolicy.ALLOWLIST)
    policy_access_control = PolicyAccessControl(store, clock, ids, lambda _: settings, lambda _: "bench", post=inbox)
    message_intake = ConnectorIntake(store, inbox, clock, ids, policy_access_control)
    try:
        yield message_intake, store
    finally:
        await message_intake.stop()
        await store.close()


def _add_people_and_bindings(conn: sa.Connection) -> None:
    agents.upsert(conn, Agent(name="ada"), source="bench", at_ms=1)
    for name, role in (("owner", Role.OWNER), ("maria", Role.MEMBER)):
        people.add(conn, Person(name=name, role=role), at_ms=1)
    for number in range(CHANNELS):
        identity = Identity(service="bench", id=f"u{number}", person="maria", made_by="person:owner")
        identities.link(conn, identity, at_ms=1)
    for number in range(10):
        match = BindingMatch(connector="bench", peer=f"u{number}") if number else BindingMatch(connector="bench")
        bindings.replace(conn, Binding(id=f"{number:032x}", agent="ada", match=match), at_ms=1)


def _inbound_message(number: int, by: str) -> InboundMessage:
    speaker = PlatformUser(id=by, name="Maria", username="maria")
    return InboundMessage(channel=f"dm-{by}", message_id=str(number), text=TEXT, sender=speaker, peer=by)


async def _submit(
    message_intake: ConnectorIntake, count: int, by: Callable[[int], str], *, first: int, at_once: int
) -> int:
    """Submit messages and return how many were accepted. At most `at_once` are in progress."""
    numbers = iter(range(first, first + count))
    taken = 0

    async def submit() -> None:
        nonlocal taken
        for number in numbers:
            receipt = await message_intake.accept("bench", _inbound_message(number, by(number)))
            taken += receipt is not None

    await asyncio.gather(*(submit() for _ in range(at_once)))
    return taken


async def _measure_intake(folder: Path) -> IntakeFigures:
    pid = os.getpid()
    async with _open_intake(folder) as (message_intake, store):
        submit_in_channels = partial(
            _submit, message_intake, by=lambda number: f"u{number % CHANNELS}", at_once=AT_ONCE
        )
        taken = await submit_in_channels(WARM_UP_MESSAGES, first=0)
        before_mb, before_s, before_cpu_s = rss_mb(pid), time.perf_counter(), cpu_s(pid)
        taken += await submit_in_channels(MESSAGES, first=WARM_UP_MESSAGES)
        wall_s, spent_s, growth_mb = time.perf_counter() - before_s, cpu_s(pid) - before_cpu_s, rss_mb(pid) - before_mb

        before_s = time.perf_counter()
        taken += await _submit(
            message_intake, ONE_CHANNEL_MESSAGES, lambda _: "u0", first=WARM_UP_MESSAGES + MESSAGES, at_once=1
        )
        one_channel_s = time.perf_counter() - before_s
        if taken != WARM_UP_MESSAGES + MESSAGES + ONE_CHANNEL_MESSAGES:
            raise RuntimeError(f"only {taken:,} were accepted")

        def unknown_sender(number: int) -> str:
            return f"s{number % UNKNOWN_SENDERS}"

        before_mb, before_s = rss_mb(pid), time.perf_counter()
        if await _submit(message_intake, UNKNOWN_SENDER_MESSAGES, unknown_sender, first=0, at_once=AT_ONCE):
            raise RuntimeError("an unknown sender was accepted")
        refused_s, refused_mb = time.perf_counter() - before_s, rss_mb(pid) - before_mb
        stored = await store.read(
            lambda conn: conn.execute(
                sa.text("SELECT count(*) FROM envelopes WHERE source = 'connector:bench'")
            ).scalar_one()
        )
    return IntakeFigures(
        rate=MESSAGES / wall_s,
        cpu_ms=spent_s * 1000 / MESSAGES,
        growth_mb=growth_mb,
        stored=stored,
        one_channel_rate=ONE_CHANNEL_MESSAGES / one_channel_s,
        refused_rate=UNKNOWN_SENDER_MESSAGES / refused_s,
        refused_growth_mb=refused_mb,
    )


# --- an idle connector ---


@contextlib.contextmanager
def _telegram() -> Generator[TelegramServer]:
    """Run the fake Telegram server on loopback, in this process."""
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
    """Measure a server with the connector and one without in the same minute, so other load on the
    machine affects both."""
    with (
        mock(0) as port,
        _telegram() as telegram,
        server_process(folder / "without", port) as (other_pid, _),
        server_process(folder / "listening", port, telegram=telegram.url) as (pid, _),
    ):
        time.sleep(SETTLE_S)
        before = cpu_s(other_pid), cpu_s(pid)
        time.sleep(IDLE_S)
        floor_ms, idle_ms = ((cpu_s(each) - was) * 1000 for each, was in zip((other_pid, pid), before, strict=True))
        more_mb = rss_mb(pid) - rss_mb(other_pid)
        if not telegram.poll_count:
            raise RuntimeError("the connector did not poll")
    return [
        Figure("idle-connector-floor-cpu", floor_ms, "ms", note=f"CPU of a server without connectors, {IDLE_S:g} s"),
        Figure("idle-connector-cpu", idle_ms, "ms", note=f"CPU with one that is waiting for Telegram, {IDLE_S:g} s"),
        Figure("idle-connector-extra-cpu", max(0.0, idle_ms - floor_ms), "ms", IDLE_MS_MAX),
        Figure("idle-connector-memory", more_mb, "MB", note="more than a server without connectors"),
    ]


# --- all figures ---


def measure(folder: Path) -> list[Figure]:
    floor_ms = floor.measure_commit_ms(folder / "floor.db", COMMITS)
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.connector_intake", str(folder)],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    taken = IntakeFigures(**json.loads(done.stdout))
    # The rate depends on other load on the machine. If it is too low, the CPU of a message decides.
    loaded = taken.rate < RATE_MIN
    return [
        Figure("intake-floor-rate", 1000 / floor_ms, "/s", note="bare commits, one after the other"),
        Figure(
            "intake-rate",
            taken.rate,
            "/s",
            None if loaded else RATE_MIN,
            at_least=True,
            note=f"{CHANNELS} channels of one connector, each message on disk",
        ),
        Figure("intake-cpu", taken.cpu_ms, "ms", CPU_MS_WHERE_LOADED_MAX if loaded else None, note="for each message"),
        Figure("intake-memory-growth", taken.growth_mb, "MB", GROWTH_MB_MAX, note=f"over {MESSAGES:,} messages"),
        Figure("intake-stored", taken.stored, "", WARM_UP_MESSAGES + MESSAGES + ONE_CHANNEL_MESSAGES, at_least=True),
        Figure("intake-one-channel-rate", taken.one_channel_rate, "/s", note="one after the other, a commit each"),
        Figure("intake-unknown-senders-rate", taken.refused_rate, "/s", RATE_MIN, at_least=True, note="refused"),
        Figure(
            "intake-unknown-senders-memory-growth",
            taken.refused_growth_mb,
            "MB",
            GROWTH_MB_MAX,
            note=f"{UNKNOWN_SENDER_MESSAGES:,} messages of {UNKNOWN_SENDERS:,} unknown senders",
        ),
        *_idle(folder),
    ]


if __name__ == "__main__":
    json.dump(asdict(asyncio.run(_measure_intake(Path(sys.argv[1])))), sys.stdout)
