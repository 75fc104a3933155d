"""Runs the real engine on a copy of the store, in simulated time that advances when every task waits."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from msgspec import Struct

from retinue.agents.agent_directory import ensure_home
from retinue.config import Settings
from retinue.config.agent_defaults import Defaults
from retinue.connectors.base import Accept, Connector, Delivery, Parcel
from retinue.domain.agent import Agent
from retinue.domain.ids import SessionId
from retinue.domain.ports import AskGate, Clock, ReadChecklist
from retinue.domain.schedule import SCHEDULES_MAX, GateSaid, Schedule, SlotState
from retinue.domain.times import to_ms
from retinue.domain.trust import Trust
from retinue.dry_run.estimates import Estimates
from retinue.dry_run.parameters import Plan
from retinue.dry_run.stub_runner import Understudy
from retinue.engine.embedded_engine import EmbeddedEngine
from retinue.engine.event_broadcast import Live
from retinue.engine.lanes import Slots
from retinue.models.base import WireCache
from retinue.models.local_catalog import Locals
from retinue.models.model_router import Minds
from retinue.models.offline_guide import Guide
from retinue.models.provider_http import Link
from retinue.outbox.deliveries import Outbox
from retinue.store.agents import agents
from retinue.store.core import tables as t
from retinue.store.core.connection import NO_FAULTS, Store
from retinue.store.core.sqlite import InlineStore
from retinue.store.core.transaction import Page
from retinue.store.open_store import open_inline
from retinue.store.schedules import schedules
from retinue.store.schedules.schedules import Kept
from retinue.testing.virtual_time import VirtualClock, simulate

RUNS_MAX = 100_000
SLOTS_MAX = 500_000  # finished occurrences, whatever their result
STEPS_MAX = 1_000_000_000  # event loop steps; the two limits above are reached long before
LOOKED_AT_EVERY_S = 3_600  # simulated time between checks of the limits and progress reports
A_MOMENT = timedelta(milliseconds=1)  # an occurrence at the very end is excluded
CLEARED_ROUNDS_MAX = 5  # cancelling a run may start others
KEPT_SLOTS = "rehearsed_slots"

GATE_OUTPUT = "(what its gate would say)"
LEFT_OUT = "a rehearsal begins with nothing under way"

# The store keeps a limited number of occurrences per schedule. On the copy, triggers record all that end.
_COLUMNS = "schedule, seq, made_by, slot_ms, until_ms, number, state, because, envelope, begun_ms, ended_ms"
_NEW = ", ".join(f"NEW.{name}" for name in _COLUMNS.split(", "))
_WATCHING = (
    f"CREATE TABLE {KEPT_SLOTS} (id INTEGER PRIMARY KEY, {_COLUMNS})",
    f"CREATE TRIGGER {KEPT_SLOTS}_ended AFTER UPDATE OF state ON schedule_slots "
    f"WHEN NEW.state IN ('ran', 'failed', 'skipped') "
    f"BEGIN INSERT INTO {KEPT_SLOTS} ({_COLUMNS}) VALUES ({_NEW}); END",
    f"CREATE TRIGGER {KEPT_SLOTS}_passed AFTER INSERT ON schedule_slots WHEN NEW.state = 'skipped' "
    f"BEGIN INSERT INTO {KEPT_SLOTS} ({_COLUMNS}) VALUES ({_NEW}); END",
)
_under_way = sa.union(
    sa.select(t.runs.c.session).where(t.runs.c.status.in_(t.OPEN_RUN)),
    sa.select(t.envelopes.c.session).where(
        t.envelopes.c.status == t.PENDING,
        t.envelopes.c.session.is_not(None),
        t.envelopes.c.due_ms <= sa.bindparam("now"),
    ),
)


Tell = Callable[[datetime, int], None]
"""Told every so often: the time it is there, and how many runs there were."""


def nobody_watches(now: datetime, runs: int) -> None:
    return


class Scene(Struct, frozen=True, kw_only=True):
    """The schedules, agents and estimates before the dry run starts."""

    schedules: Sequence[Kept]
    staff: Sequence[Agent]
    estimates: Estimates


class Played(Struct, frozen=True, kw_only=True):
    """The result of a dry run that is not in the copy."""

    until: datetime
    stopped: str  # why it ended early, or empty
    left_out: frozenset[str]  # runs that were in progress
    understudy: Understudy
    minds: Minds


@dataclass(frozen=True, slots=True, kw_only=True)
class AtHome(Defaults):
    """Uses the agent directory in the copy as every workspace, so that no agent works in the owner's folders."""

    def workspace_of(self, agent: Agent, home: Path) -> Path:
        return home


class Nowhere(Struct, frozen=True):
    """A connector that accepts every delivery and sends nothing."""

    instance: str
    repeats_safely: bool = True

    async def listen(self, accept: Accept) -> None:
        await asyncio.Event().wait()

    async def deliver(self, parcel: Parcel) -> Delivery:
        return Delivery("rehearsed")


class Everywhere(Mapping[str, Connector]):
    """Returns a `NullConnector` for every name."""

    def __getitem__(self, instance: str) -> Connector:
        return Nowhere(instance)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


class CountedIds:
    """Deterministic ids: the same dry run has the same ones. `seed` keeps them apart from those in the store."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(f"ids {seed}")

    def new(self) -> str:
        return f"{self._chance.getrandbits(128):032x}"


async def assumed_open(schedule: Schedule, agent: Agent, session: SessionId) -> GateSaid:
    """Return an open gate without running its command."""
    return GateSaid(open=True, output=GATE_OUTPUT, trust=Trust.PRIVATE)


def open_copy(path: Path) -> InlineStore:
    """Open the copied store. The copy is disposable, so skip fsync."""
    store = open_inline(path, yields=False)
    raw: Any = store.connection.connection.dbapi_connection
    raw.execute("PRAGMA synchronous = OFF")
    raw.execute("PRAGMA cache_size = -65536")
    return store


def look(store: InlineStore, plan: Plan) -> Scene:
    """Read the schedules, agents and estimates from the copy."""
    conn = store.connection
    kept = schedules.everyone(conn, limit=SCHEDULES_MAX)
    staff = agents.everyone(conn)
    pairs = [(each.id, each.schedule.to.name) for each in kept]
    return Scene(
        schedules=kept,
        staff=staff,
        estimates=Estimates(conn, pairs, [agent.name for agent in staff], run_s=plan.run_s),
    )


def play(
    plan: Plan,
    settings: Settings,
    store: InlineStore,
    scene: Scene,
    *,
    home: Path,
    environment: Mapping[str, str],
    checklists: Callable[[Store, Clock], ReadChecklist],
    ask_gate: AskGate = assumed_open,
    tell: Tell = nobody_watches,
    after_step: Callable[[], None] | None = None,
) -> Played:
    """Simulate. On return, the copy has the resulting runs and occurrences."""
    main = partial(
        _play,
        plan,
        settings,
        store,
        scene,
        home=home,
        environment=environment,
        checklists=checklists,
        ask_gate=ask_gate,
        tell=tell,
    )
    return simulate(plan.seed, main, steps_max=STEPS_MAX, after_step=after_step)


async def _play(
    plan: Plan,
    settings: Settings,
    store: InlineStore,
    scene: Scene,
    *,
    home: Path,
    environment: Mapping[str, str],
    checklists: Callable[[Store, Clock], ReadChecklist],
    ask_gate: AskGate,
    tell: Tell,
) -> Played:
    clock, ids = VirtualClock(plan.begin), CountedIds(plan.seed)
    minds = Minds(
        store,
        clock,
        [Guide(clock), *Locals(clock, ids, Link(), WireCache(), environment).installed()],
        settings=lambda: settings,
        environment=environment,
        chance=random.Random(plan.seed),
        zone=settings.zone,
    )
    await minds.refresh()
    understudy = Understudy(clock, minds, scene.estimates, runs_max=RUNS_MAX, has_guests=bool(settings.plugins))
    outbox = Outbox(store, clock, Everywhere(), faults=NO_FAULTS)
    live = Live()
    store.on_commit(live.committed)
    counts = settings.slots
    engine = EmbeddedEngine(
        store,
        clock,
        ids,
        dict.fromkeys({"loop", *(agent.runner for agent in scene.staff)}, understudy),
        live=live,
        homes=partial(ensure_home, home),
        zone=settings.zone,
        slots=Slots(main=counts.main, schedule=counts.schedule, subagent=counts.subagent, background=counts.background),
        deliver=outbox.wake,
        asking=lambda: settings.approvals,
        defaults=partial(_at_home, settings.defaults),
        sessions=lambda: settings.sessions,
        gates=ask_gate,
        checklists=checklists(store, clock),
        tick_max_s=LOOKED_AT_EVERY_S,
    )
    outbox.on_wake(engine.wake)
    left_out = await _clear(store, engine, clock)
    if not plan.begins_now:
        await store.write(partial(_begin_anew, now_ms=to_ms(clock.now())), point="rehearsal")
    await store.write(_watch, point="rehearsal")
    await outbox.start()
    await engine.start()
    stopped = await _until(plan.until - A_MOMENT, clock, store, understudy, tell)
    engine.abandon()
    outbox.abandon()
    until = clock.now() if stopped else plan.until
    return Played(until=until, stopped=stopped, left_out=left_out, understudy=understudy, minds=minds)


def _at_home(defaults: Defaults) -> Defaults:
    return AtHome(**{field.name: getattr(defaults, field.name) for field in fields(defaults)})


async def _clear(store: Store, engine: EmbeddedEngine, clock: Clock) -> frozenset[str]:
    """Cancel the runs in progress and the envelopes that are due. Returns the ids of the cancelled runs.

    Envelopes with a later due time are kept and processed at that time.
    """
    left_out: set[str] = set()
    for _ in range(CLEARED_ROUNDS_MAX):
        found = await store.read(partial(_sessions_at_work, now_ms=to_ms(clock.now())))
        if not found:
            break
        for session in found:
            ended = await engine.cancel(SessionId(session), by="rehearsal", why=LEFT_OUT, clear_due=True)
            left_out.update(ended.runs)
    return frozenset(left_out)


def _sessions_at_work(conn: sa.Connection, *, now_ms: int) -> list[str]:
    return list(conn.execute(_under_way, {"now": now_ms}).scalars())


def _begin_anew(conn: sa.Connection, *, now_ms: int) -> None:
    """Restart the enabled schedules at a later start: earlier occurrences are not missed, but not simulated."""
    page = Page(conn, now_ms)
    for kept in schedules.everyone(conn, limit=SCHEDULES_MAX):
        waiting = schedules.open_slot(conn, kept.id)
        if kept.enabled and (waiting is None or waiting.state is SlotState.WAITING):
            schedules.enable(page, kept)
    page.close()


def _watch(conn: sa.Connection) -> None:
    for statement in _WATCHING:
        conn.exec_driver_sql(statement)


async def _until(
    until: datetime,
    clock: VirtualClock,
    store: Store,
    understudy: Understudy,
    tell: Tell,
) -> str:
    """Let the time pass. Returns why it ended early, or an empty string."""
    newest = sa.text(f"SELECT COALESCE(MAX(id), 0) FROM {KEPT_SLOTS}")
    while (left := until - clock.now()) > timedelta():
        try:
            async with asyncio.timeout(min(left.total_seconds(), LOOKED_AT_EVERY_S)):
                await understudy.full.wait()
                return f"after {RUNS_MAX:,} runs, which is as many as one rehearsal has"
        except TimeoutError:
            pass
        tell(clock.now(), understudy.runs)
        if await store.read(lambda conn: conn.execute(newest).scalar_one()) >= SLOTS_MAX:
            return f"after {SLOTS_MAX:,} slots, which is as many as one rehearsal has"
    return ""
