"""A simulated server that can be paused and killed: the real engine over the inline store.

Before a server uses anything outside its own memory (the store, the clock, a tool or a model), it
passes a checkpoint. A *paused* server waits at its next checkpoint, like a process that was stopped
or swapped out. A *killed* server passes no checkpoint, as after `kill -9`, even if its tasks still
run while they are cancelled.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar
from zoneinfo import ZoneInfo

import msgspec
import sqlalchemy as sa

from retinue.domain.address import EXTERNAL
from retinue.domain.agent import Agent
from retinue.domain.agent_message import AgentMessage, AgentMessageReceipt
from retinue.domain.delegation_request import DelegationRequest, DelegationStatus
from retinue.domain.envelope import EnvelopeDraft, Receipt
from retinue.domain.ids import SessionId
from retinue.domain.model import DEFAULT_WINDOW_TOKENS, ModelFacts, ModelRef, Price
from retinue.domain.person import Person, Role
from retinue.domain.ports import CrashPoints, IdSource
from retinue.domain.principal import Principal
from retinue.domain.schedule import GateResult, Schedule
from retinue.domain.times import to_ms
from retinue.domain.tool import ToolEffect, ToolSpec
from retinue.engine.embedded_engine import EmbeddedEngine
from retinue.engine.event_broadcast import EventBroadcast
from retinue.engine.lanes import SlotLimits
from retinue.intake.accept import EnvelopeIntake
from retinue.intake.external_callbacks import CallbackIntake
from retinue.models.base import EndChunk, ModelPrompt, ReplyChunk
from retinue.operations.base import Services, perform_operation
from retinue.operations.catalog import DEFAULT_PERMISSIONS, OPERATIONS
from retinue.operations.schedule.cron_tool import CronTool
from retinue.outbox.deliveries import Outbox
from retinue.outbox.external_agent_delivery import ExternalAgentConnector
from retinue.runners.context_policy import WRITE_TOOL
from retinue.runners.external import ExternalRunner
from retinue.schedules.schedule_files import ScheduleFileSync
from retinue.store.agents import agents
from retinue.store.core.connection import (
    AfterCommit,
    CommitListeners,
    TransactionBody,
    run_after_commit,
    translate_error,
)
from retinue.store.core.sqlite import InlineStore
from retinue.store.core.transaction import Transaction
from retinue.store.envelopes.attachment_files import AttachmentFiles
from retinue.store.people import people
from retinue.store.schedules import schedules
from retinue.testing.runner_factory import LoopParts
from retinue.testing.scripted_model import ScriptedModel, ScriptedReply
from retinue.testing.simulated_external_agent import ENVIRONMENT, SERVER_URL, SimulatedExternalAgent, SimulatedHttp
from retinue.testing.simulated_jobs import StartJobTool
from retinue.testing.tools import AppendLineArguments
from retinue.testing.virtual_time import VirtualClock
from retinue.tools.base import Tool, ToolContext, schema_of
from retinue.tools.delegate.agent_message_tools import SendAgentMessageTool
from retinue.tools.delegate.agent_tools import AgentsMessageTool
from retinue.tools.delegate.spawn_tools import SessionsSpawnTool, SubagentSpawner
from retinue.tools.grants import GrantCache
from retinue.tools.session_status import SessionStatusTool
from retinue.tools.toolbox import Toolbox

T = TypeVar("T")

NO_DIRECTORY = Path("/nonexistent")
MAIN_MODEL = "scripted"
SMALL_MODEL = "small"
FALLBACK_MODEL = "spare"
CONTEXT_WINDOWS = {MAIN_MODEL: DEFAULT_WINDOW_TOKENS, SMALL_MODEL: 16_000, FALLBACK_MODEL: DEFAULT_WINDOW_TOKENS}
"""The models of every server, with their context windows. In the small window, conversations are compacted."""

WITNESSED_TOOLS = ("append_line", "sign_line", WRITE_TOOL)
"""The tools whose effects are witnessed: none may happen twice. Some agents need an approval for
the second tool. An agent that has the third tool is asked to use it before a compaction.
"""


class ProcessKilled(asyncio.CancelledError):
    """The simulated server was killed.

    The exception is a cancellation, so that no code handles it as an ordinary error.
    """


class SimulatedServerUnreachable(Exception):
    """The simulated server did not answer, because it was not running or it stopped during the call."""


class SimulationEnvironment(Protocol):
    """The environment of a simulated server: it observes commits, model calls and tool calls, and injects faults."""

    external_agent: SimulatedExternalAgent
    """The external agent of the simulation."""

    def reach_point(self, server: SimulatedServer, point: str) -> None:
        """Called when a server reaches a crash point.

        Raises an error if the disk is full or the server is to be killed.
        """
        ...

    def on_commit(self, server: SimulatedServer, point: str) -> None: ...

    def on_commit_failed(self, server: SimulatedServer, point: str, error: Exception) -> None:
        """Called when a commit has failed."""
        ...

    def on_act_started(self, server: SimulatedServer, session: SessionId, what: str) -> None: ...

    def on_act_ended(self, server: SimulatedServer, session: SessionId) -> None: ...

    def choose_reply(self, server: SimulatedServer, model: str, prompt: ModelPrompt) -> ScriptedReply:
        """Called when a model is called. Returns the reply that the model gives."""
        ...

    def on_call_allowed(self, context: ToolContext, tool: str, text: str) -> None:
        """Called when a tool call was allowed, just before it is performed."""
        ...

    def on_effect(self, server: SimulatedServer, context: ToolContext, tool: str, text: str) -> None:
        """Called after a tool has had its effect."""
        ...

    async def run_gate(self, server: SimulatedServer, schedule: Schedule) -> GateResult:
        """Return the result of a schedule's gate."""
        ...

    def draft_agent_envelope(self, context: ToolContext, text: str) -> EnvelopeDraft | None:
        """Return the envelope that an agent sends to another, or None if there is no recipient."""
        ...

    def record_receipt(self, draft: EnvelopeDraft, receipt: Receipt) -> None: ...

    def record_abandoned(self, draft: EnvelopeDraft) -> None:
        """Called when a sender did not wait for its receipt, so that the envelope may or may not be stored."""
        ...


class ProcessControl:
    """Controls whether a simulated server is running, paused or killed."""

    def __init__(self) -> None:
        self._running = asyncio.Event()
        self._running.set()
        self.is_killed = False

    @property
    def is_paused(self) -> bool:
        return not self._running.is_set()

    def pause(self) -> None:
        self._running.clear()

    def resume(self) -> None:
        self._running.set()

    def kill(self) -> None:
        self.is_killed = True
        self._running.set()  # so that tasks waiting at a checkpoint notice it

    async def checkpoint(self) -> None:
        while not self._running.is_set():
            await self._running.wait()
        if self.is_killed:
            raise ProcessKilled


@dataclass(frozen=True, slots=True)
class SimulatedServerClock:
    """The clock of one simulated server. It uses virtual time, and has a checkpoint after each sleep."""

    clock: VirtualClock
    process: ProcessControl

    def now(self) -> datetime:
        return self.clock.now()

    async def sleep(self, seconds: float) -> None:
        await self.clock.sleep(seconds)
        await self.process.checkpoint()

    def call_later(self, seconds: float, call: Callable[[], None]) -> Callable[[], None]:
        async def wait() -> None:
            with suppress(ProcessKilled):
                await self.sleep(seconds)
                call()

        task = asyncio.create_task(wait())

        def take_back() -> None:
            task.cancel()

        return take_back


@dataclass(frozen=True, slots=True)
class SimulatedCrashPoints:
    """The crash points of one simulated server."""

    server: SimulatedServer

    def reach(self, point: str) -> None:
        if not self.server.process.is_killed:
            self.server.environment.reach_point(self.server, point)


class SimulatedDisk:
    """The one store of a simulation, which is kept when a server is killed. Only one server commits at a time."""

    def __init__(self, open_store: Callable[[CrashPoints], InlineStore]) -> None:
        self.writer: SimulatedServer | None = None
        self.store = open_store(self)

    @property
    def connection(self) -> sa.Connection:
        return self.store.connection

    @property
    def raw_connection(self) -> sqlite3.Connection:
        raw: Any = self.connection.connection.dbapi_connection
        return raw

    def reach(self, point: str) -> None:
        assert self.writer is not None
        self.writer.crash_points.reach(point)


class SimulatedStore:
    """The store of one simulated server, with checkpoints and with the latency of a disk."""

    def __init__(self, server: SimulatedServer, disk: SimulatedDisk, rng: random.Random) -> None:
        self._server = server
        self._disk = disk
        self._rng = rng
        self._listeners = CommitListeners()

    async def write(self, body: TransactionBody[T], *, point: str, then: AfterCommit[T] | None = None) -> T:
        try:
            await self._simulate_latency()
            result = await self._commit(body, point)
        except BaseException:
            if not self._server.process.is_killed:
                run_after_commit(then, None)
            raise
        run_after_commit(then, result)
        await self._simulate_latency()
        return result

    async def read(self, body: TransactionBody[T]) -> T:
        await self._server.process.checkpoint()
        return await self._disk.store.read(body)

    async def scan(self, body: TransactionBody[T]) -> T:
        await self._simulate_latency()
        try:
            self._server.crash_points.reach("scan")
        except sqlite3.Error as error:
            raise translate_error(error) from error
        found = await self._disk.store.scan(body)
        await self._simulate_latency()
        return found

    def on_commit(self, call: Callable[[], None], *tables: sa.Table) -> None:
        self._listeners.add(call, *tables)

    async def close(self) -> None:
        return

    async def _commit(self, body: TransactionBody[T], point: str) -> T:
        """Commit within one step of the event loop, because the inline store does not yield."""
        server, disk = self._server, self._disk
        disk.writer = server
        try:
            result = await disk.store.write(body, point=point)
        except ProcessKilled:
            if disk.raw_connection.in_transaction:
                disk.raw_connection.execute("ROLLBACK")  # killed before the commit: no trace of it may remain
            else:
                # killed after the commit: it is stored, but the server does not know
                server.environment.on_commit(server, point)
            raise
        except Exception as error:
            server.environment.on_commit_failed(server, point, error)
            raise
        server.environment.on_commit(server, point)
        self._listeners.notify(disk.store.written_tables)
        return result

    async def _simulate_latency(self) -> None:
        await self._server.process.checkpoint()
        luck = self._rng.random()
        if luck < 0.6:
            await asyncio.sleep(0)
        else:
            shortest_s, longest_s = (0.0005, 0.01) if luck < 0.9 else (0.01, 0.2)
            await asyncio.sleep(self._rng.uniform(shortest_s, longest_s))  # sleep: virtual time
        await self._server.process.checkpoint()


@dataclass(frozen=True, slots=True)
class SimulatedModel:
    """A model of a simulation. The simulation chooses its replies, and is notified of each call."""

    server: SimulatedServer
    name: str
    price_microusd: int

    @property
    def facts(self) -> ModelFacts:
        price = Price(call=self.price_microusd)
        return ModelFacts(ref=ModelRef("", self.name), price=price, window_tokens=CONTEXT_WINDOWS[self.name])

    async def reply(self, prompt: ModelPrompt, *, key: str = "") -> AsyncIterator[ReplyChunk]:
        server, session = self.server, session_of_prompt(prompt)
        await server.process.checkpoint()
        line = server.environment.choose_reply(server, self.name, prompt)
        server.environment.on_act_started(server, session, f"asks {self.name}")
        speaking = True
        try:
            async for chunk in ScriptedModel(server.clock, rule=lambda _: line).reply(prompt):
                if isinstance(chunk, EndChunk):
                    if line.thinking == BREAKS_STREAM:
                        break
                    # The caller continues with the last chunk, and closes this generator only later.
                    speaking = False
                    server.environment.on_act_ended(server, session)
                yield chunk
        finally:
            if speaking:
                server.environment.on_act_ended(server, session)


def session_of_prompt(prompt: ModelPrompt) -> SessionId:
    """Return the session for which a model is called."""
    return SessionId(prompt.session.partition("/")[0])


def is_summary_request(prompt: ModelPrompt) -> bool:
    """Return whether the prompt requests a summary.

    Such a prompt is a separate request, and not the context of a session.
    """
    return "/" in prompt.session


BREAKS_STREAM = "(breaks off)"
"""A scripted reply with this thinking text is cut short: its stream ends without an end marker."""


@dataclass(frozen=True, slots=True)
class WitnessTool:
    """A tool with an irreversible effect outside the server. Its call takes a while."""

    server: SimulatedServer
    name: str
    rng: random.Random
    arguments: type[msgspec.Struct] = AppendLineArguments

    @property
    def spec(self) -> ToolSpec:
        return ToolSpec(
            name=self.name,
            description="Leave a line with the witness.",
            parameters=schema_of(AppendLineArguments),
            effects=frozenset({ToolEffect.WRITES}),
        )

    async def perform(self, arguments: AppendLineArguments, context: ToolContext) -> str:
        world = self.server.environment
        world.on_call_allowed(context, self.name, arguments.text)  # first: the call was allowed just now
        await self.server.process.checkpoint()
        world.on_act_started(self.server, context.session, f"performs {context.call}")
        try:
            await self.server.clock.sleep(self.rng.choice((0.0, 0.0, 0.01, 2.0)))
            world.on_effect(self.server, context, self.name, arguments.text)
            await self.server.clock.sleep(self.rng.choice((0.0, 0.01, 2.0)))
        finally:
            world.on_act_ended(self.server, context.session)
        return "appended"


@dataclass(frozen=True, slots=True)
class SendEnvelopeTool:
    """A tool that sends an envelope to another agent.

    Its calls may be repeated, because the call id is the idempotency key.
    """

    server: SimulatedServer
    arguments: type[msgspec.Struct] = AppendLineArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="pass_on",
            description="Write to another agent.",
            parameters=schema_of(AppendLineArguments),
            is_repeatable=True,
        )
    )

    async def perform(self, arguments: AppendLineArguments, context: ToolContext) -> str:
        draft = self.server.environment.draft_agent_envelope(context, arguments.text)
        if draft is None:
            return "no recipient found"
        try:
            receipt = await self.server.intake.accept(draft)
        except asyncio.CancelledError:
            self.server.environment.record_abandoned(draft)
            raise
        self.server.environment.record_receipt(draft, receipt)
        return "sent"


@dataclass(frozen=True, slots=True)
class SlowReadTool:
    """A read-only tool that may run for so long that the intent of its call must be stored."""

    server: SimulatedServer
    rng: random.Random
    arguments: type[msgspec.Struct] = AppendLineArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="look_around",
            description="See what there is.",
            parameters=schema_of(AppendLineArguments),
            is_repeatable=True,
            is_read_only=True,
        )
    )

    async def perform(self, arguments: AppendLineArguments, context: ToolContext) -> str:
        await self.server.process.checkpoint()
        self.server.environment.on_act_started(self.server, context.session, f"looks around in {context.call}")
        try:
            await self.server.clock.sleep(self.rng.choice((0.0, 0.005, 0.05, 3.0)))
        finally:
            self.server.environment.on_act_ended(self.server, context.session)
        return "the same as ever"


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationSetup:
    """The parts that all servers of a simulation share, such as agents, people and schedules."""

    ids: IdSource
    agents: Sequence[Agent]
    people: Sequence[str]
    schedules: Sequence[Schedule]
    data_dir: Path  # where the schedule files are
    slots: SlotLimits
    zone: ZoneInfo
    ready_max: int
    price_microusd: int


class ObservedEngine(EmbeddedEngine):
    """The real engine, with a method that tells the simulation whether a session is being worked on."""

    def is_attending(self, session: SessionId) -> bool:
        """Return whether a session's lane is working, or may be among the lanes that wait for a slot."""
        return session in self._lanes or len(self._lane_queue) > 0


class SimulatedServer:
    """One simulated server process, from its start to a stop, a crash or a kill."""

    def __init__(
        self,
        number: int,
        environment: SimulationEnvironment,
        disk: SimulatedDisk,
        clock: VirtualClock,
        setup: SimulationSetup,
        *,
        seed: int,
    ) -> None:
        self.number = number
        self.environment = environment
        self.process = ProcessControl()
        self.accepts_calls = True
        self.is_replaced = False  # another server is running by now
        self.clock = SimulatedServerClock(clock, self.process)
        self.crash_points = SimulatedCrashPoints(self)
        self.store = SimulatedStore(self, disk, random.Random(f"disk {seed} {number}"))
        self._setup = setup
        self._calls: set[asyncio.Future[Any]] = set()
        live = EventBroadcast()
        self.store.on_commit(live.announce_commit)
        chance = random.Random(f"tools {seed} {number}")
        tools: list[Tool] = [WitnessTool(self, name, chance) for name in WITNESSED_TOOLS]
        looks: list[Tool] = [SessionStatusTool(self.store, self.clock), SlowReadTool(self, chance)]
        grants = GrantCache(self.store, self.clock)
        asking = AgentsMessageTool(self._delegate, self.store, self.clock)
        sending = SubagentSpawner(
            self._delegate, self.store, lambda: thinking.models.catalog, lambda: thinking.settings.defaults
        )
        words = SendAgentMessageTool(self._send_agent_message, lambda _scene: False)
        jobs, cron = StartJobTool(self._delegate), CronTool(lambda: self._services, OPERATIONS)
        staff: list[Tool] = [SendEnvelopeTool(self), asking, SessionsSpawnTool(sending), words, jobs, cron]
        toolbox = Toolbox([*looks, *staff, *tools], grants=grants)
        models = [SimulatedModel(self, name, setup.price_microusd) for name in CONTEXT_WINDOWS]
        thinking = LoopParts(self.store, self.clock, models, toolbox, setup.zone, seed=number)
        self.engine = ObservedEngine(
            self.store,
            self.clock,
            setup.ids,
            {"loop": thinking.loop, EXTERNAL: ExternalRunner(self.store, self._delegate)},
            broadcast=live,
            agent_directory_of=lambda _name: NO_DIRECTORY,
            zone=setup.zone,
            slot_limits=setup.slots,
            waiting_lanes_max=setup.ready_max,
            deliver=lambda channel: self.outbox.wake(channel),
            available_options=thinking.options,
            run_gate=self._run_gate,
            faults=self.crash_points,
        )
        self.intake = EnvelopeIntake(
            self.store, self.clock, self.engine.wake, self.engine.reserve_slot, self.engine.execute_commands
        )
        self.schedule_files = ScheduleFileSync(
            self.store, self.clock, setup.ids, setup.data_dir, setup.zone, run_blocking=_run_inline
        )
        self._services = Services(
            store=self.store,
            intake=self.intake,
            engine=self.engine,
            event_broadcast=live,
            clock=self.clock,
            ids=setup.ids,
            new_secret=setup.ids.new,
            data_dir=NO_DIRECTORY,
            attachment_files=AttachmentFiles(NO_DIRECTORY),
            zone=setup.zone,
            version="simulated",
            permission_policy=DEFAULT_PERMISSIONS,
            toolbox=toolbox,
        )
        elsewhere = ExternalAgentConnector(
            self.store,
            self.clock,
            lambda: SimulatedHttp(self, environment.external_agent),
            lambda: SERVER_URL,
            ENVIRONMENT,
        )
        self.outbox = Outbox(self.store, self.clock, {EXTERNAL: elsewhere}, faults=self.crash_points)
        self.outbox.set_wake_callback(self.engine.wake)
        self.callbacks = CallbackIntake(self.store, self.clock, self.engine.wake, ENVIRONMENT)

    async def _delegate(self, request: DelegationRequest) -> DelegationStatus:
        return await self.engine.delegate(request)

    async def _run_gate(self, schedule: Schedule, agent: Agent, session: SessionId) -> GateResult:
        await self.process.checkpoint()
        return await self.environment.run_gate(self, schedule)

    async def perform(self, principal: Principal, operation: str, request: Mapping[str, Any]) -> bytes:
        """Perform an operation as a principal, as the HTTP API does."""
        return await perform_operation(self._services, principal, OPERATIONS[operation], msgspec.json.encode(request))

    async def _send_agent_message(self, message: AgentMessage) -> AgentMessageReceipt:
        return await self.engine.send_agent_message(message)

    def __repr__(self) -> str:
        return f"server {self.number}"

    async def start(self) -> None:
        """Create the initial rows if the store is new, and start the server."""
        settle = partial(_add_initial_rows, furniture=self._setup, at_ms=to_ms(self.clock.now()))
        await self.store.write(settle, point="setup")
        await self.schedule_files.sync()
        await self.outbox.start()
        await self.engine.start()

    async def call(self, operation: Callable[[], Awaitable[T]]) -> T:
        """Call the server from outside. If it stops before it answers, the result is unknown."""
        if self.process.is_killed or not self.accepts_calls:
            raise SimulatedServerUnreachable
        asking = asyncio.ensure_future(operation())
        self._calls.add(asking)
        try:
            return await asking
        except asyncio.CancelledError:
            if self.process.is_killed:
                raise SimulatedServerUnreachable from None
            raise
        finally:
            self._calls.discard(asking)

    def kill(self) -> None:
        """Kill the server as `kill -9` would, so that it does not write, perform or answer anything more."""
        if self.process.is_killed:
            return
        self.accepts_calls = False
        self.process.kill()
        self.engine.abandon()
        self.outbox.abandon()
        for guest in sorted(self._calls, key=hash):
            guest.cancel()

    async def stop(self, *, drain_s: float) -> None:
        """Stop as the real server does: refuse new calls and let runs finish. The next server resumes other runs."""
        self.accepts_calls = False
        await self.engine.stop(drain_s=drain_s)
        await self.outbox.stop(drain_s=drain_s)
        self.kill()


async def _run_inline(call: Callable[..., T], *arguments: Any) -> T:
    """Run a blocking call inline, as if it took no time. No other task runs meanwhile."""
    return call(*arguments)


def _add_initial_rows(conn: sa.Connection, *, furniture: SimulationSetup, at_ms: int) -> None:
    if people.find(conn, furniture.people[0]) is not None:
        return
    for agent in furniture.agents:
        agents.upsert(conn, agent, source="test", at_ms=at_ms)
    for name in furniture.people:
        people.add(conn, Person(name=name, role=Role.OWNER if name == "owner" else Role.MEMBER), at_ms=at_ms)
    tx = Transaction(conn, at_ms)
    for schedule in furniture.schedules:
        schedules.add(tx, schedule, zone=furniture.zone)
    tx.close()
