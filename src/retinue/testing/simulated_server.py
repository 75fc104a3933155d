"""A server that can be paused and killed: the real engine over the inline store, under a simulation's control.

Everything that a server does outside its own memory passes a checkpoint: the store, the clock, a
tool, a model. A *paused* server waits at its next checkpoint, like a process that was stopped or
swapped out. A *killed* one passes none, as after `kill -9`, whatever its tasks still try while they
are cancelled.
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
from retinue.domain.agent_message import Heard, Word
from retinue.domain.delegation_request import Handed, Handing
from retinue.domain.envelope import Draft, Receipt
from retinue.domain.ids import SessionId
from retinue.domain.model import WINDOW_TOKENS, ModelFacts, ModelRef, Price
from retinue.domain.person import Person, Role
from retinue.domain.ports import Faults, Ids
from retinue.domain.principal import Principal
from retinue.domain.schedule import GateSaid, Schedule
from retinue.domain.times import to_ms
from retinue.domain.tool import Effect, ToolSpec
from retinue.engine.embedded_engine import EmbeddedEngine
from retinue.engine.event_broadcast import Live
from retinue.engine.lanes import Slots
from retinue.intake.accept import Inbox
from retinue.intake.external_callbacks import Callbacks
from retinue.models.base import Chunk, Ended, Prompt
from retinue.operations.base import Desk, perform
from retinue.operations.catalog import OPERATIONS, POLICY
from retinue.operations.schedule.cron_tool import Cron
from retinue.outbox.deliveries import Outbox
from retinue.outbox.external_agent_delivery import Elsewhere
from retinue.runners.context_policy import WRITE_TOOL
from retinue.runners.external import External
from retinue.schedules.schedule_files import ScheduleFiles
from retinue.store.agents import agents
from retinue.store.core.connection import Body, Listeners, Then, explain, follow_up
from retinue.store.core.sqlite import InlineStore
from retinue.store.core.transaction import Page
from retinue.store.envelopes.attachment_files import Files
from retinue.store.people import people
from retinue.store.schedules import schedules
from retinue.testing.loop_factory import Thinking
from retinue.testing.scripted_model import Line, ScriptedModel
from retinue.testing.simulated_external_agent import BASE, ENVIRONMENT, FarEnd, Wire
from retinue.testing.simulated_jobs import StartJob
from retinue.testing.tools import AppendLineArguments
from retinue.testing.virtual_time import VirtualClock
from retinue.tools.base import Scene, Tool, schema_of
from retinue.tools.delegate.agent_message_tools import SendAgentMessage
from retinue.tools.delegate.agent_tools import AgentsMessage
from retinue.tools.delegate.spawn_tools import Sending, SessionsSpawn
from retinue.tools.grants import Grants
from retinue.tools.session_status import SessionStatus
from retinue.tools.toolbox import Toolbox

T = TypeVar("T")

NOWHERE = Path("/nonexistent")
MODEL = "scripted"
SMALL = "small"
SPARE = "spare"
WINDOWS = {MODEL: WINDOW_TOKENS, SMALL: 16_000, SPARE: WINDOW_TOKENS}
"""The models of every house, and how much each can have in mind: with the small one, conversations are compacted."""

WITNESSED = ("append_line", "sign_line", WRITE_TOOL)
"""The tools whose effects are witnessed: none may happen twice, and some agents must ask for the second. Who can write
is asked to before a compaction."""


class PowerCut(asyncio.CancelledError):
    """This server was killed. It is a cancellation, so that no code handles it as an ordinary error."""


class Unreachable(Exception):
    """The server did not answer: it was not running, or it went down during the call."""


class World(Protocol):
    """The environment of a simulated server: it observes commits and acts, and injects faults."""

    far: FarEnd
    """Where the agent works that is not here."""

    def strike(self, house: SimulatedHouse, point: str) -> None:
        """A crash point is reached: raise if the disk is full or the server is to be killed."""
        ...

    def committed(self, house: SimulatedHouse, point: str) -> None: ...

    def refused(self, house: SimulatedHouse, point: str, error: Exception) -> None:
        """A commit failed."""
        ...

    def act_begins(self, house: SimulatedHouse, session: SessionId, what: str) -> None: ...

    def act_ends(self, house: SimulatedHouse, session: SessionId) -> None: ...

    def asked(self, house: SimulatedHouse, model: str, prompt: Prompt) -> Line:
        """A model was called: return its reply."""
        ...

    def decided(self, scene: Scene, tool: str, text: str) -> None:
        """A tool call was allowed, and happens now."""
        ...

    def witnessed(self, house: SimulatedHouse, scene: Scene, tool: str, text: str) -> None:
        """A tool had its effect."""
        ...

    async def gate(self, house: SimulatedHouse, schedule: Schedule) -> GateSaid:
        """Return the result of a schedule's gate."""
        ...

    def letter_from(self, scene: Scene, text: str) -> Draft | None:
        """Return the envelope that an agent sends to another, or None if there is no recipient."""
        ...

    def acknowledged(self, draft: Draft, receipt: Receipt) -> None: ...

    def gave_up(self, draft: Draft) -> None:
        """A sender did not wait for the receipt, so the envelope may or may not be stored."""
        ...


class Power:
    """Whether a server is running, paused or killed."""

    def __init__(self) -> None:
        self._on = asyncio.Event()
        self._on.set()
        self.gone = False

    @property
    def paused(self) -> bool:
        return not self._on.is_set()

    def pause(self) -> None:
        self._on.clear()

    def resume(self) -> None:
        self._on.set()

    def cut(self) -> None:
        self.gone = True
        self._on.set()  # tasks that wait at a checkpoint find out

    async def gate(self) -> None:
        while not self._on.is_set():
            await self._on.wait()
        if self.gone:
            raise PowerCut


@dataclass(frozen=True, slots=True)
class HouseClock:
    """The clock of one server: virtual time, with a checkpoint after each sleep."""

    clock: VirtualClock
    power: Power

    def now(self) -> datetime:
        return self.clock.now()

    async def sleep(self, seconds: float) -> None:
        await self.clock.sleep(seconds)
        await self.power.gate()

    def later(self, seconds: float, call: Callable[[], None]) -> Callable[[], None]:
        async def wait() -> None:
            with suppress(PowerCut):
                await self.sleep(seconds)
                call()

        task = asyncio.create_task(wait())

        def take_back() -> None:
            task.cancel()

        return take_back


@dataclass(frozen=True, slots=True)
class HouseFaults:
    """The crash points of one server."""

    house: SimulatedHouse

    def reach(self, point: str) -> None:
        if not self.house.power.gone:
            self.house.world.strike(self.house, point)


class Disk:
    """The one store of a simulation, which survives its servers. One server commits at a time."""

    def __init__(self, open_store: Callable[[Faults], InlineStore]) -> None:
        self.writer: SimulatedHouse | None = None
        self.store = open_store(self)

    @property
    def conn(self) -> sa.Connection:
        return self.store.connection

    @property
    def raw(self) -> sqlite3.Connection:
        raw: Any = self.conn.connection.dbapi_connection
        return raw

    def reach(self, point: str) -> None:
        assert self.writer is not None
        self.writer.faults.reach(point)


class HouseStore:
    """The store as one server uses it: with checkpoints and with the latency of a disk."""

    def __init__(self, house: SimulatedHouse, disk: Disk, chance: random.Random) -> None:
        self._house = house
        self._disk = disk
        self._chance = chance
        self._listeners = Listeners()

    async def write(self, body: Body[T], *, point: str, then: Then[T] | None = None) -> T:
        try:
            await self._pass()
            result = await self._commit(body, point)
        except BaseException:
            if not self._house.power.gone:
                follow_up(then, None)
            raise
        follow_up(then, result)
        await self._pass()
        return result

    async def read(self, body: Body[T]) -> T:
        await self._house.power.gate()
        return await self._disk.store.read(body)

    async def scan(self, body: Body[T]) -> T:
        await self._pass()
        try:
            self._house.faults.reach("scan")
        except sqlite3.Error as error:
            raise explain(error) from error
        found = await self._disk.store.scan(body)
        await self._pass()
        return found

    def on_commit(self, call: Callable[[], None], *tables: sa.Table) -> None:
        self._listeners.add(call, *tables)

    async def close(self) -> None:
        return

    async def _commit(self, body: Body[T], point: str) -> T:
        """Commit within one step of the loop: the inline store does not yield."""
        house, disk = self._house, self._disk
        disk.writer = house
        try:
            result = await disk.store.write(body, point=point)
        except PowerCut:
            if disk.raw.in_transaction:
                disk.raw.execute("ROLLBACK")  # killed before the commit: no trace of it may remain
            else:
                # killed after the commit: it is stored, and the server did not learn so
                house.world.committed(house, point)
            raise
        except Exception as error:
            house.world.refused(house, point, error)
            raise
        house.world.committed(house, point)
        self._listeners.tell(disk.store.written)
        return result

    async def _pass(self) -> None:
        await self._house.power.gate()
        luck = self._chance.random()
        if luck < 0.6:
            await asyncio.sleep(0)
        else:
            shortest_s, longest_s = (0.0005, 0.01) if luck < 0.9 else (0.01, 0.2)
            await asyncio.sleep(self._chance.uniform(shortest_s, longest_s))  # sleep: virtual time
        await self._house.power.gate()


@dataclass(frozen=True, slots=True)
class SimulatedModel:
    """A model whose replies come from the environment, which also learns when the model is called."""

    house: SimulatedHouse
    name: str
    price_microusd: int

    @property
    def facts(self) -> ModelFacts:
        price = Price(call=self.price_microusd)
        return ModelFacts(ref=ModelRef("", self.name), price=price, window_tokens=WINDOWS[self.name])

    async def reply(self, prompt: Prompt, *, key: str = "") -> AsyncIterator[Chunk]:
        house, session = self.house, conversation(prompt)
        await house.power.gate()
        line = house.world.asked(house, self.name, prompt)
        house.world.act_begins(house, session, f"asks {self.name}")
        speaking = True
        try:
            async for chunk in ScriptedModel(house.clock, rule=lambda _: line).reply(prompt):
                if isinstance(chunk, Ended):
                    if line.thinking == BREAKS_OFF:
                        break
                    # The caller continues with the last chunk, and closes this generator only later.
                    speaking = False
                    house.world.act_ends(house, session)
                yield chunk
        finally:
            if speaking:
                house.world.act_ends(house, session)


def conversation(prompt: Prompt) -> SessionId:
    """Returns the session that a model is called for."""
    return SessionId(prompt.session.partition("/")[0])


def is_summary(prompt: Prompt) -> bool:
    """Returns whether the prompt asks for a summary. Then it is a separate request, not the session's context."""
    return "/" in prompt.session


BREAKS_OFF = "(breaks off)"
"""A line that thinks this is cut short: its stream ends without an end."""


@dataclass(frozen=True, slots=True)
class WitnessTool:
    """A tool with an irreversible effect outside the server, which takes a while."""

    house: SimulatedHouse
    name: str
    chance: random.Random
    arguments: type[msgspec.Struct] = AppendLineArguments

    @property
    def spec(self) -> ToolSpec:
        return ToolSpec(
            name=self.name,
            description="Leave a line with the witness.",
            parameters=schema_of(AppendLineArguments),
            effects=frozenset({Effect.WRITES}),
        )

    async def perform(self, arguments: AppendLineArguments, scene: Scene) -> str:
        world = self.house.world
        world.decided(scene, self.name, arguments.text)  # first: the call was allowed just now
        await self.house.power.gate()
        world.act_begins(self.house, scene.session, f"performs {scene.call}")
        try:
            await self.house.clock.sleep(self.chance.choice((0.0, 0.0, 0.01, 2.0)))
            world.witnessed(self.house, scene, self.name, arguments.text)
            await self.house.clock.sleep(self.chance.choice((0.0, 0.01, 2.0)))
        finally:
            world.act_ends(self.house, scene.session)
        return "appended"


@dataclass(frozen=True, slots=True)
class PassOn:
    """A tool that sends an envelope to another agent. Repeatable, because the call id is the idempotency key."""

    house: SimulatedHouse
    arguments: type[msgspec.Struct] = AppendLineArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="pass_on",
            description="Write to another agent.",
            parameters=schema_of(AppendLineArguments),
            repeatable=True,
        )
    )

    async def perform(self, arguments: AppendLineArguments, scene: Scene) -> str:
        draft = self.house.world.letter_from(scene, arguments.text)
        if draft is None:
            return "nobody to write to"
        try:
            receipt = await self.house.inbox.post(draft)
        except asyncio.CancelledError:
            self.house.world.gave_up(draft)
            raise
        self.house.world.acknowledged(draft, receipt)
        return "sent"


@dataclass(frozen=True, slots=True)
class LookAround:
    """A read-only tool that may take longer than a call may run before its intent is stored."""

    house: SimulatedHouse
    chance: random.Random
    arguments: type[msgspec.Struct] = AppendLineArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="look_around",
            description="See what there is.",
            parameters=schema_of(AppendLineArguments),
            repeatable=True,
            looks=True,
        )
    )

    async def perform(self, arguments: AppendLineArguments, scene: Scene) -> str:
        await self.house.power.gate()
        self.house.world.act_begins(self.house, scene.session, f"looks around in {scene.call}")
        try:
            await self.house.clock.sleep(self.chance.choice((0.0, 0.005, 0.05, 3.0)))
        finally:
            self.house.world.act_ends(self.house, scene.session)
        return "the same as ever"


@dataclass(frozen=True, slots=True, kw_only=True)
class Furniture:
    """What all servers of a simulation have in common."""

    ids: Ids
    staff: Sequence[Agent]
    people: Sequence[str]
    schedules: Sequence[Schedule]
    home: Path  # where the schedule files are
    slots: Slots
    zone: ZoneInfo
    ready_max: int
    price_microusd: int


class WatchedEngine(EmbeddedEngine):
    """The engine, with access to which sessions are being worked on."""

    def attends(self, session: SessionId) -> bool:
        """Returns whether a session's lane is working, or may be among the lanes that wait for a slot."""
        return session in self._lanes or len(self._ready) > 0


class SimulatedHouse:
    """One server process, from its start to a stop, a crash or a kill."""

    def __init__(
        self, number: int, world: World, disk: Disk, clock: VirtualClock, furniture: Furniture, *, seed: int
    ) -> None:
        self.number = number
        self.world = world
        self.power = Power()
        self.doors_open = True
        self.replaced = False  # another server is running by now
        self.clock = HouseClock(clock, self.power)
        self.faults = HouseFaults(self)
        self.store = HouseStore(self, disk, random.Random(f"disk {seed} {number}"))
        self._furniture = furniture
        self._guests: set[asyncio.Future[Any]] = set()
        live = Live()
        self.store.on_commit(live.committed)
        chance = random.Random(f"tools {seed} {number}")
        tools: list[Tool] = [WitnessTool(self, name, chance) for name in WITNESSED]
        looks: list[Tool] = [SessionStatus(self.store, self.clock), LookAround(self, chance)]
        grants = Grants(self.store, self.clock)
        asking = AgentsMessage(self._hand_over, self.store, self.clock)
        sending = Sending(
            self._hand_over, self.store, lambda: thinking.minds.catalog, lambda: thinking.settings.defaults
        )
        words = SendAgentMessage(self._say, lambda _scene: False)
        jobs, cron = StartJob(self._hand_over), Cron(lambda: self._desk, OPERATIONS)
        staff: list[Tool] = [PassOn(self), asking, SessionsSpawn(sending), words, jobs, cron]
        toolbox = Toolbox([*looks, *staff, *tools], grants=grants)
        models = [SimulatedModel(self, name, furniture.price_microusd) for name in WINDOWS]
        thinking = Thinking(self.store, self.clock, models, toolbox, furniture.zone, seed=number)
        self.engine = WatchedEngine(
            self.store,
            self.clock,
            furniture.ids,
            {"loop": thinking.loop, EXTERNAL: External(self.store, self._hand_over)},
            live=live,
            homes=lambda _name: NOWHERE,
            zone=furniture.zone,
            slots=furniture.slots,
            ready_max=furniture.ready_max,
            deliver=lambda channel: self.outbox.wake(channel),
            choices=thinking.choices,
            gates=self._ask_gate,
            faults=self.faults,
        )
        self.inbox = Inbox(self.store, self.clock, self.engine.wake, self.engine.seat, self.engine.command)
        self.files = ScheduleFiles(
            self.store, self.clock, furniture.ids, furniture.home, furniture.zone, aside=_at_once
        )
        self._desk = Desk(
            store=self.store,
            post=self.inbox,
            engine=self.engine,
            live=live,
            clock=self.clock,
            ids=furniture.ids,
            secrets=furniture.ids.new,
            home=NOWHERE,
            files=Files(NOWHERE),
            zone=furniture.zone,
            version="simulated",
            policy=POLICY,
            toolbox=toolbox,
        )
        elsewhere = Elsewhere(self.store, self.clock, lambda: Wire(self, world.far), lambda: BASE, ENVIRONMENT)
        self.outbox = Outbox(self.store, self.clock, {EXTERNAL: elsewhere}, faults=self.faults)
        self.outbox.on_wake(self.engine.wake)
        self.callbacks = Callbacks(self.store, self.clock, self.engine.wake, ENVIRONMENT)

    async def _hand_over(self, handing: Handing) -> Handed:
        return await self.engine.hand_over(handing)

    async def _ask_gate(self, schedule: Schedule, agent: Agent, session: SessionId) -> GateSaid:
        await self.power.gate()
        return await self.world.gate(self, schedule)

    async def perform(self, who: Principal, operation: str, asked: Mapping[str, Any]) -> bytes:
        """Perform an operation as a principal, as the HTTP API does."""
        return await perform(self._desk, who, OPERATIONS[operation], msgspec.json.encode(asked))

    async def _say(self, word: Word) -> Heard:
        return await self.engine.pass_on(word)

    def __repr__(self) -> str:
        return f"house {self.number}"

    async def open(self) -> None:
        """Create the initial rows on first use, and start."""
        settle = partial(_settle_in, furniture=self._furniture, at_ms=to_ms(self.clock.now()))
        await self.store.write(settle, point="setup")
        await self.files.look()
        await self.outbox.start()
        await self.engine.start()

    async def call(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Call the server from outside. If it goes down before it answers, the result is unknown."""
        if self.power.gone or not self.doors_open:
            raise Unreachable
        asking = asyncio.ensure_future(ask())
        self._guests.add(asking)
        try:
            return await asking
        except asyncio.CancelledError:
            if self.power.gone:
                raise Unreachable from None
            raise
        finally:
            self._guests.discard(asking)

    def cut_power(self) -> None:
        """Kill the server as `kill -9` would: from here on it neither writes nor acts nor answers."""
        if self.power.gone:
            return
        self.doors_open = False
        self.power.cut()
        self.engine.abandon()
        self.outbox.abandon()
        for guest in sorted(self._guests, key=hash):
            guest.cancel()

    async def stop(self, *, drain_s: float) -> None:
        """Stop as the real server does: refuse new calls, let runs finish, and leave the rest for the next server."""
        self.doors_open = False
        await self.engine.stop(drain_s=drain_s)
        await self.outbox.stop(drain_s=drain_s)
        self.cut_power()


async def _at_once(call: Callable[..., T], *given: Any) -> T:
    """Run a blocking call inline, as if it took no time: no other task runs meanwhile."""
    return call(*given)


def _settle_in(conn: sa.Connection, *, furniture: Furniture, at_ms: int) -> None:
    if people.find(conn, furniture.people[0]) is not None:
        return
    for agent in furniture.staff:
        agents.put(conn, agent, source="test", at_ms=at_ms)
    for name in furniture.people:
        people.add(conn, Person(name=name, role=Role.OWNER if name == "owner" else Role.MEMBER), at_ms=at_ms)
    page = Page(conn, at_ms)
    for schedule in furniture.schedules:
        schedules.add(page, schedule, zone=furniture.zone)
    page.close()
