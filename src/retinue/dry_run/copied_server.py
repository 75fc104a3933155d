"""Runs the real engine on a copy of the store, in simulated time that advances when every task is waiting."""

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

from retinue.agents.agent_directory import ensure_agent_directory
from retinue.config import Settings
from retinue.config.agent_defaults import AgentDefaults
from retinue.connectors.base import Accept, Connector, Delivery, DeliveryPart
from retinue.domain.agent import Agent
from retinue.domain.ids import SessionId
from retinue.domain.ports import Clock, ReadChecklist, RunGate
from retinue.domain.schedule import SCHEDULES_MAX, GateResult, OccurrenceState, Schedule
from retinue.domain.times import to_ms
from retinue.domain.trust import Trust
from retinue.dry_run.estimates import RunEstimator
from retinue.dry_run.parameters import DryRunPlan
from retinue.dry_run.stub_runner import StubRunner
from retinue.engine.embedded_engine import EmbeddedEngine
from retinue.engine.event_broadcast import EventBroadcast
from retinue.engine.lanes import SlotLimits
from retinue.models.encoded_context_cache import EncodedContextCache
from retinue.models.local_catalog import LocalModels
from retinue.models.model_router import ModelRouter
from retinue.models.offline_guide import OfflineGuide
from retinue.models.provider_http import ProviderConnections
from retinue.outbox.deliveries import Outbox
from retinue.store.agents import agents
from retinue.store.core import tables as t
from retinue.store.core.connection import NO_FAULTS, Store
from retinue.store.core.sqlite import InlineStore
from retinue.store.core.transaction import Transaction
from retinue.store.open_store import open_inline_store
from retinue.store.schedules import schedules
from retinue.store.schedules.schedules import StoredSchedule
from retinue.testing.virtual_time import VirtualClock, simulate

RUNS_MAX = 100_000
OCCURRENCES_MAX = 500_000  # finished occurrences, whatever their result
LOOP_STEPS_MAX = 1_000_000_000  # event loop steps; the two limits above are reached long before
CHECK_INTERVAL_S = 3_600  # simulated time between checks of the limits and progress reports
END_MARGIN = timedelta(milliseconds=1)  # an occurrence at the very end is excluded
CANCEL_ROUNDS_MAX = 5  # cancelling a run may start others
RECORDED_TABLE = "recorded_occurrences"

GATE_OUTPUT = "(the output of its gate)"
CANCEL_REASON = "a dry run starts without active runs"

# The store keeps a limited number of occurrences per schedule. On the copy, triggers record all that end.
_COLUMNS = "schedule, seq, made_by, occurs_ms, until_ms, skipped_count, state, because, envelope, started_ms, ended_ms"
_NEW_COLUMNS = ", ".join(f"NEW.{name}" for name in _COLUMNS.split(", "))
_RECORDING_STATEMENTS = (
    f"CREATE TABLE {RECORDED_TABLE} (id INTEGER PRIMARY KEY, {_COLUMNS})",
    f"CREATE TRIGGER {RECORDED_TABLE}_ended AFTER UPDATE OF state ON occurrences "
    f"WHEN NEW.state IN ('ran', 'failed', 'skipped') "
    f"BEGIN INSERT INTO {RECORDED_TABLE} ({_COLUMNS}) VALUES ({_NEW_COLUMNS}); END",
    f"CREATE TRIGGER {RECORDED_TABLE}_passed AFTER INSERT ON occurrences WHEN NEW.state = 'skipped' "
    f"BEGIN INSERT INTO {RECORDED_TABLE} ({_COLUMNS}) VALUES ({_NEW_COLUMNS}); END",
)
_busy_sessions_query = sa.union(
    sa.select(t.runs.c.session).where(t.runs.c.status.in_(t.OPEN_RUN_STATUSES)),
    sa.select(t.envelopes.c.session).where(
        t.envelopes.c.status == t.PENDING,
        t.envelopes.c.session.is_not(None),
        t.envelopes.c.due_ms <= sa.bindparam("now"),
    ),
)


OnProgress = Callable[[datetime, int], None]
"""Called at intervals to report progress: the simulated time, and the number of runs so far."""


def ignore_progress(now: datetime, runs: int) -> None:
    return


class DryRunContext(Struct, frozen=True, kw_only=True):
    """The schedules, agents and run estimates, read before the simulation starts."""

    schedules: Sequence[StoredSchedule]
    agents: Sequence[Agent]
    estimates: RunEstimator


class SimulationResult(Struct, frozen=True, kw_only=True):
    """The results of a simulation that are not stored in the copy."""

    until: datetime
    stopped_because: str  # why it ended early, or empty
    cancelled_runs: frozenset[str]  # runs that were in progress
    stub_runner: StubRunner
    models: ModelRouter


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentDirectoryDefaults(AgentDefaults):
    """Agent defaults in which each workspace is the copy of the agent's directory.

    This way, no agent works in a folder of the owner.
    """

    def workspace_of(self, agent: Agent, agent_directory: Path) -> Path:
        return agent_directory


class NullConnector(Struct, frozen=True):
    """A connector that accepts every delivery and sends nothing."""

    name: str
    repeats_safely: bool = True

    async def listen(self, accept: Accept) -> None:
        await asyncio.Event().wait()

    async def deliver(self, part: DeliveryPart) -> Delivery:
        return Delivery("dry_run")


class NullConnectorMap(Mapping[str, Connector]):
    """Returns a `NullConnector` for every name."""

    def __getitem__(self, instance: str) -> Connector:
        return NullConnector(instance)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


class SeededIds:
    """Generates ids for a dry run. The same `seed` gives the same ids again."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(f"ids {seed}")

    def new(self) -> str:
        return f"{self._random.getrandbits(128):032x}"


async def assume_gate_open(schedule: Schedule, agent: Agent, session: SessionId) -> GateResult:
    """Return an open gate result without running the gate's command."""
    return GateResult(is_open=True, output=GATE_OUTPUT, trust=Trust.PRIVATE)


def open_copy(path: Path) -> InlineStore:
    """Open the copied store. The copy is disposable, so fsync is skipped."""
    store = open_inline_store(path, yields=False)
    raw: Any = store.connection.connection.dbapi_connection
    raw.execute("PRAGMA synchronous = OFF")
    raw.execute("PRAGMA cache_size = -65536")
    return store


def read_context(store: InlineStore, plan: DryRunPlan) -> DryRunContext:
    """Read the schedules, agents and run estimates from the copy."""
    conn = store.connection
    kept = schedules.list_all(conn, limit=SCHEDULES_MAX)
    agents_found = agents.list_all(conn)
    pairs = [(each.id, each.schedule.to.name) for each in kept]
    return DryRunContext(
        schedules=kept,
        agents=agents_found,
        estimates=RunEstimator(conn, pairs, [agent.name for agent in agents_found], run_s=plan.run_s),
    )


def run_simulation(
    plan: DryRunPlan,
    settings: Settings,
    store: InlineStore,
    context: DryRunContext,
    *,
    data_dir: Path,
    environment: Mapping[str, str],
    build_checklist_reader: Callable[[Store, Clock], ReadChecklist],
    run_gate: RunGate = assume_gate_open,
    on_progress: OnProgress = ignore_progress,
    after_step: Callable[[], None] | None = None,
) -> SimulationResult:
    """Run the simulation. Afterwards the copy contains the resulting runs and occurrences."""
    main = partial(
        _simulate,
        plan,
        settings,
        store,
        context,
        data_dir=data_dir,
        environment=environment,
        build_checklist_reader=build_checklist_reader,
        run_gate=run_gate,
        on_progress=on_progress,
    )
    return simulate(plan.seed, main, steps_max=LOOP_STEPS_MAX, after_step=after_step)


async def _simulate(
    plan: DryRunPlan,
    settings: Settings,
    store: InlineStore,
    context: DryRunContext,
    *,
    data_dir: Path,
    environment: Mapping[str, str],
    build_checklist_reader: Callable[[Store, Clock], ReadChecklist],
    run_gate: RunGate,
    on_progress: OnProgress,
) -> SimulationResult:
    clock, ids = VirtualClock(plan.start), SeededIds(plan.seed)
    model_router = ModelRouter(
        store,
        clock,
        [
            OfflineGuide(clock),
            *LocalModels(clock, ids, ProviderConnections(), EncodedContextCache(), environment).list_installed(),
        ],
        settings=lambda: settings,
        environment=environment,
        random=random.Random(plan.seed),
        zone=settings.zone,
    )
    await model_router.refresh()
    stub_runner = StubRunner(
        clock, model_router, context.estimates, runs_max=RUNS_MAX, has_plugins=bool(settings.plugins)
    )
    outbox = Outbox(store, clock, NullConnectorMap(), faults=NO_FAULTS)
    live = EventBroadcast()
    store.on_commit(live.announce_commit)
    counts = settings.slots
    engine = EmbeddedEngine(
        store,
        clock,
        ids,
        dict.fromkeys({"loop", *(agent.runner for agent in context.agents)}, stub_runner),
        broadcast=live,
        agent_directory_of=partial(ensure_agent_directory, data_dir),
        zone=settings.zone,
        slot_limits=SlotLimits(
            main=counts.main, schedule=counts.schedule, subagent=counts.subagent, background=counts.background
        ),
        deliver=outbox.wake,
        approval_settings=lambda: settings.approvals,
        defaults=partial(_with_agent_directories, settings.defaults),
        session_settings=lambda: settings.sessions,
        run_gate=run_gate,
        read_checklist=build_checklist_reader(store, clock),
        tick_max_s=CHECK_INTERVAL_S,
    )
    outbox.set_wake_callback(engine.wake)
    left_out = await _cancel_pending_work(store, engine, clock)
    if not plan.starts_now:
        await store.write(partial(_restart_schedules, now_ms=to_ms(clock.now())), point="dry_run")
    await store.write(_install_recording, point="dry_run")
    await outbox.start()
    await engine.start()
    stopped = await _pass_time(plan.until - END_MARGIN, clock, store, stub_runner, on_progress)
    engine.abandon()
    outbox.abandon()
    until = clock.now() if stopped else plan.until
    return SimulationResult(
        until=until, stopped_because=stopped, cancelled_runs=left_out, stub_runner=stub_runner, models=model_router
    )


def _with_agent_directories(defaults: AgentDefaults) -> AgentDefaults:
    return AgentDirectoryDefaults(**{field.name: getattr(defaults, field.name) for field in fields(defaults)})


async def _cancel_pending_work(store: Store, engine: EmbeddedEngine, clock: Clock) -> frozenset[str]:
    """Cancel the runs in progress and the envelopes that are due. Returns the ids of the cancelled runs.

    Envelopes with a later due time stay, and are processed at that time.
    """
    left_out: set[str] = set()
    for _ in range(CANCEL_ROUNDS_MAX):
        found = await store.read(partial(_find_busy_sessions, now_ms=to_ms(clock.now())))
        if not found:
            break
        for session in found:
            ended = await engine.cancel(SessionId(session), by="dry_run", reason=CANCEL_REASON, clear_due=True)
            left_out.update(ended.runs)
    return frozenset(left_out)


def _find_busy_sessions(conn: sa.Connection, *, now_ms: int) -> list[str]:
    return list(conn.execute(_busy_sessions_query, {"now": now_ms}).scalars())


def _restart_schedules(conn: sa.Connection, *, now_ms: int) -> None:
    """Compute the next occurrences from the start time, for a dry run that starts in the future.

    Their occurrences before the start time are neither simulated nor reported as missed.
    """
    tx = Transaction(conn, now_ms)
    for kept in schedules.list_all(conn, limit=SCHEDULES_MAX):
        waiting = schedules.get_open_occurrence(conn, kept.id)
        if kept.enabled and (waiting is None or waiting.state is OccurrenceState.WAITING):
            schedules.enable(tx, kept)
    tx.close()


def _install_recording(conn: sa.Connection) -> None:
    for statement in _RECORDING_STATEMENTS:
        conn.exec_driver_sql(statement)


async def _pass_time(
    until: datetime,
    clock: VirtualClock,
    store: Store,
    stub_runner: StubRunner,
    on_progress: OnProgress,
) -> str:
    """Advance the simulated time to the end. Returns why the simulation ended early, or an empty string."""
    newest = sa.text(f"SELECT COALESCE(MAX(id), 0) FROM {RECORDED_TABLE}")
    while (left := until - clock.now()) > timedelta():
        try:
            async with asyncio.timeout(min(left.total_seconds(), CHECK_INTERVAL_S)):
                await stub_runner.is_full.wait()
                return f"after {RUNS_MAX:,} runs, which is the limit of a dry run"
        except TimeoutError:
            pass
        on_progress(clock.now(), stub_runner.runs)
        if await store.read(lambda conn: conn.execute(newest).scalar_one()) >= OCCURRENCES_MAX:
            return f"after {OCCURRENCES_MAX:,} occurrences, which is the limit of a dry run"
    return ""
