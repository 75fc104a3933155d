"""A complete retinue instance inside a test: real store, real engine, scripted model, fake clock.

`LocalInstance` holds what survives a crash. `LocalInstance.run` starts a `LocalServer` on it, which
a test may crash and start again.

    instance = LocalInstance(tmp_path)
    instance.model.will_reply("Lunch with Noor.")
    async with instance.run() as server:
        receipt = await server.send("What is on today?")
        assert await server.wait_for_answer(receipt.envelope) == "Lunch with Noor."
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

import sqlalchemy as sa

from retinue.agents.agent_directory import ensure_home
from retinue.config import Settings
from retinue.config.connectors import ConnectorSettings
from retinue.config.speech import SpeechSettings
from retinue.config.tools import ApprovalSettings, OutsideLists, ToolSettings
from retinue.connectors.base import Connector, ConnectorKind, by_number
from retinue.connectors.connector_registry import Kinds
from retinue.connectors.supervisor.connector_supervisor import Needs, Switchboard
from retinue.connectors.supervisor.owner_alerts import Owner
from retinue.domain import address
from retinue.domain.agent import Agent, PermissionLevel
from retinue.domain.agent_message import Heard, Word
from retinue.domain.approval import Approval
from retinue.domain.delegation_request import Handed, Handing
from retinue.domain.envelope import Draft, Envelope, Kind, Receipt, Settled
from retinue.domain.ids import EnvelopeId, RunId, SessionId
from retinue.domain.permission import Permission, Withheld
from retinue.domain.person import Person, Role
from retinue.domain.ports import AskGate, Clock, Faults, Ids, ReadChecklist
from retinue.domain.principal import Principal
from retinue.domain.record import Record
from retinue.domain.reply_delivery import PLAIN_WORDS, Words
from retinue.domain.session import Origin, Session
from retinue.domain.times import to_ms
from retinue.domain.trust import Trust
from retinue.engine.button_presses import Presses
from retinue.engine.embedded_engine import EmbeddedEngine
from retinue.engine.event_broadcast import Live
from retinue.engine.heartbeats import is_busy
from retinue.engine.lanes import Slots
from retinue.engine.scheduler import no_gates
from retinue.intake.accept import Inbox
from retinue.intake.access_control import Keeper
from retinue.intake.attachment_fetch import keeping
from retinue.intake.connector_intake import Doorway, TakePress, hears_nothing
from retinue.intake.speech import Speech
from retinue.models.base import Model
from retinue.outbox.deliveries import Bounds, Outbox
from retinue.outbox.outbound_access import WhyNot, everywhere
from retinue.outbox.posted_questions import ShownQuestions
from retinue.outbox.typing_and_previews import Presence
from retinue.runners.base import NO_EQUIPMENT, Assignment, Equipment
from retinue.sandbox.base import Sandbox
from retinue.sandbox.host import Host
from retinue.schedules.heartbeat_prompt import Checklists
from retinue.schedules.read_with_trust import look_for
from retinue.store.agents import agents
from retinue.store.core.connection import NO_FAULTS, Store
from retinue.store.core.tables import envelopes as envelope_table
from retinue.store.envelopes import envelopes
from retinue.store.envelopes.attachment_files import Files
from retinue.store.open_store import open_store
from retinue.store.people import people
from retinue.store.sessions import records, sessions
from retinue.testing.allow_all import OpenDoor
from retinue.testing.empty_store import place_empty_store
from retinue.testing.failure_context import explained
from retinue.testing.fake_clock import FakeClock
from retinue.testing.loop_factory import Thinking
from retinue.testing.scripted_model import ScriptedModel
from retinue.testing.server_description import ServerSource
from retinue.testing.tools import AppendLine
from retinue.testing.waiting import WAIT_LIMIT_S, wait_until
from retinue.tools.base import Tool
from retinue.tools.files import Ground, Read
from retinue.tools.grants import Grants
from retinue.tools.session_status import SessionStatus
from retinue.tools.toolbox import Toolbox

WAIT_S = WAIT_LIMIT_S
LOOK_S = 0.05  # some conditions change without an event, so poll as well


async def _no_walls() -> Sandbox:
    return Host()


def boss(name: str) -> Principal:
    """Returns a person with the permission level `boss`, who may decide about everything."""
    return Principal(address=address.person(name), level=PermissionLevel.BOSS, trust=Trust.OWNER)


class CountedIds:
    """Ids in a fixed order. They are spread, so that their short forms differ."""

    def __init__(self, seed: int = 0) -> None:
        self._count = itertools.count(seed * 1_000_000 + 1)

    def new(self) -> str:
        n = next(self._count)
        return f"{(n * 2654435761) % 2**32:08x}{n:024x}"


@dataclass(slots=True)
class House:
    """A running server of a `LocalInstance`.

    `send` puts an envelope into the intake, `wait_for_outcome` and `wait_for_answer` follow it, and
    `crash` ends the server as `kill -9` would.
    """

    household: Household
    store: Store
    engine: EmbeddedEngine
    inbox: Inbox
    outbox: Outbox
    doorway: Doorway
    switchboard: Switchboard
    live: Live
    questions: ShownQuestions
    presses: Presses
    crashed: bool = False

    async def post(
        self,
        text: str,
        *,
        sender: str = "person:maria",
        recipient: str = "agent:ada",
        key: str | None = None,
        kind: Kind = Kind.MESSAGE,
        **kw: Any,
    ) -> Receipt:
        """Accept one envelope and return its receipt.

        Without an idempotency `key`, every call is a new envelope. Further keywords are fields of
        the draft.
        """
        id_ = EnvelopeId(self.household.ids.new())
        kw.setdefault("trust", Trust.OWNER if sender == "person:owner" else Trust.PERSON)
        draft = Draft(
            id=id_,
            sender=address.parse(sender),
            recipient=address.parse(recipient),
            text=text,
            source=kw.pop("source", sender),
            key=key or id_,
            kind=kind,
            **kw,
        )
        return await self.inbox.post(draft)

    async def outcome(self, envelope: str) -> Settled:
        """Wait until an envelope is settled, and return its outcome."""
        return await self.eventually(
            partial(envelopes.settled, id_=envelope), what=f"envelope {envelope[:8]} to settle"
        )

    async def answer_to(self, envelope: str) -> str:
        """Wait for the answer to an envelope, and return its text.

        Raises `AssertionError` if the envelope ends without an answer.
        """
        settled = await self.outcome(envelope)
        if settled.answer is None:
            raise AssertionError(f"no answer: {settled.outcome}, because {settled.because}")
        answer = settled.answer
        found = await self.store.read(lambda conn: envelopes.get(conn, answer))
        assert found is not None
        return found.text

    async def eventually(self, body: Any, *, what: str) -> Any:
        """Wait until `body(conn)` returns something other than None or False, and return that.

        `what` completes the message of the failure: "waited 120 s in vain for ...".
        """
        watcher = self.live.watch(None)
        try:
            async with asyncio.timeout(WAIT_LIMIT_S):
                while True:
                    watcher.changed.clear()
                    found = await self.store.scan(body)
                    if found is not None and found is not False:
                        return found
                    with suppress(TimeoutError):
                        await asyncio.wait_for(watcher.changed.wait(), LOOK_S)  # time limit: then it polls
        except TimeoutError:
            raise AssertionError(f"waited {WAIT_LIMIT_S:g} s in vain for {what}") from None
        finally:
            self.live.unwatch(watcher)

    async def quiet(self) -> None:
        """Wait until no lane is working and the outbox has nothing to send."""
        await asyncio.sleep(0)
        await wait_until(lambda: not (self.engine.active or self.outbox.active), "the house is at rest", poll_s=0.005)

    async def mail_for(self, person: str) -> list[Envelope]:
        """Returns all envelopes ever addressed to a person, oldest first."""
        statement = (
            sa.select(envelope_table)
            .where(envelope_table.c.recipient == f"person:{person}")
            .order_by(envelope_table.c.seq)
        )
        return await self.store.scan(lambda conn: [envelopes.envelope_of(r) for r in conn.execute(statement)])

    async def envelope(self, id_: str) -> Envelope:
        found = await self.store.read(lambda conn: envelopes.get(conn, id_))
        assert found is not None
        return found

    async def session(self, id_: SessionId | str | None) -> Session:
        assert id_ is not None
        found = await self.store.read(lambda conn: sessions.get(conn, id_))
        assert found is not None
        return found

    async def records(self, session: str | None) -> list[Record]:
        assert session is not None
        found, _ = await self.store.scan(lambda conn: records.read(conn, session, first=0, last=2**60))
        return found

    async def sql(self, statement: str, **parameters: Any) -> list[Any]:
        """Execute SQL directly on the store, to inspect it or to damage it."""

        def body(conn: sa.Connection) -> list[Any]:
            result = conn.execute(sa.text(statement), parameters)
            return list(result) if result.returns_rows else []

        return await self.store.write(body, point="test")

    def crash(self) -> None:
        """Stop as `kill -9` would: nothing more is written."""
        self.crashed = True
        self.switchboard.abandon()
        self.doorway.abandon()
        self.questions.abandon()
        self.presses.abandon()
        self.engine.abandon()
        self.outbox.abandon()


@dataclass(slots=True)
class Ways:
    """A reference to the engine, for tools that are created before the engine is."""

    of: EmbeddedEngine | None = None

    async def __call__(self, run: RunId, *, call: str, agent: str, permission: Permission, reason: str) -> Approval:
        assert self.of is not None
        return await self.of.request(run, call=call, agent=agent, permission=permission, reason=reason)

    async def hand_over(self, handing: Handing) -> Handed:
        assert self.of is not None
        return await self.of.hand_over(handing)

    async def pass_on(self, word: Word) -> Heard:
        assert self.of is not None
        return await self.of.pass_on(word)


@dataclass(slots=True)
class Household:
    """An instance for tests: what survives a crash of its server.

    Only the data directory `root` is needed. The defaults are one agent, `ada`, whose model is
    `model`, and the people `maria` and `owner`. Change fields before `run`. Several servers may run
    one after another.
    """

    root: Path
    clock: Any = field(default_factory=FakeClock)
    url: str | Path | None = None
    ids: Ids = field(default_factory=CountedIds)
    agents: Sequence[Agent] = (Agent(name="ada", model="scripted"),)
    people: Sequence[str] = ("maria", "owner")
    slots: Slots = field(default_factory=lambda: Slots(main=100, subagent=100))
    zone: ZoneInfo = field(default_factory=lambda: ZoneInfo("UTC"))
    faults: Faults = NO_FAULTS
    tools: Sequence[Tool] = ()
    furnishing: Callable[[Store, Ways], Sequence[Tool]] | None = None  # tools that need a store, or the engine
    # Outside senders get all tools here, so that tests see the effect of the other limits.
    rules: ToolSettings = ToolSettings(outside_senders=OutsideLists(profile="full"))
    asking: ApprovalSettings = field(default_factory=ApprovalSettings)
    models: Sequence[Model] = ()  # in addition to the scripted one
    connectors: dict[str, Connector] = field(default_factory=dict[str, Connector])
    # connectors to create from settings
    lines: Mapping[str, ConnectorSettings] = field(default_factory=dict[str, ConnectorSettings])
    # in addition to the built-in platforms
    kinds: dict[str, ConnectorKind] = field(default_factory=dict[str, ConnectorKind])
    keeper: Callable[[Store, Inbox], Keeper] | None = None  # None: everyone may write
    press: TakePress | None = None  # None: a press answers its approval, as in a real server
    speech: Callable[[], SpeechSettings] | None = None
    why_not: WhyNot = everywhere  # where agents may not send
    sending: Bounds = field(default_factory=Bounds)
    words: Words = PLAIN_WORDS  # the same for every connector
    engine: Callable[..., EmbeddedEngine] = EmbeddedEngine
    gates: AskGate = no_gates
    through: Callable[[Store], Store] = lambda store: store  # wraps the store that the server uses
    settings: Settings | None = None
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    equipment: Equipment = NO_EQUIPMENT
    model: ScriptedModel = field(init=False)
    toolbox: Toolbox = field(init=False)
    thinking: Thinking = field(init=False)

    def __post_init__(self) -> None:
        self.model = ScriptedModel(self.clock)

    @property
    def witness(self) -> Path:
        return self.root / "witness"

    @asynccontextmanager
    async def open(self, *, drain_s: float = 5.0) -> AsyncGenerator[House]:
        """Start a server on this instance, and stop it at the end of the block.

        `drain_s`: how long runs and deliveries may take to finish at the end. After `crash` they
        are abandoned at once.
        """
        database = self.url or self.root / "house.db"
        if isinstance(database, Path):
            place_empty_store(database)
        store = await open_store(database, faults=self.faults)
        house = await self.furnish(self.through(store))
        try:
            with explained(ServerSource(database=database)):
                yield house
        finally:
            if house.crashed:
                await asyncio.sleep(0)
            await house.switchboard.stop()
            await house.doorway.stop()
            await house.questions.stop()
            house.presses.abandon()
            await house.engine.stop(drain_s=0 if house.crashed else drain_s)
            await house.outbox.stop(drain_s=0 if house.crashed else drain_s)
            await self.thinking.minds.close()
            await store.close()

    def grants(self, store: Store) -> Grants:
        return Grants(store, self.clock)

    def _checklists(self, store: Store) -> ReadChecklist:
        clock: Clock = self.clock
        ground = Ground(
            store=store, clock=clock, files=Files(self.root / "files"), withheld=Withheld(house=self.root / "house.db")
        )
        return Checklists(
            clock=clock,
            look=partial(look_for, ground),
            is_busy=lambda session: store.read(partial(is_busy, session=session, now_ms=to_ms(clock.now()))),
            home_of=partial(ensure_home, self.root),
            workspace_of=lambda agent, home: self.thinking.settings.defaults.workspace_of(agent, home),
            gates=self.gates,
            why_no_gate=lambda _agent: "",
        )

    async def _equip(self, assignment: Assignment) -> Equipment:
        return self.equipment

    async def furnish(self, store: Store) -> House:
        """Build all parts of a server on an open store, and start them."""
        await store.write(partial(_settle_in, household=self, at_ms=to_ms(self.clock.now())), point="setup")
        live = Live()
        store.on_commit(live.committed)
        clock: Clock = self.clock
        asks = Ways()
        toolbox = self.toolbox = Toolbox(
            [
                SessionStatus(store, clock),
                Read(),
                AppendLine(self.witness),
                *self.tools,
                *(self.furnishing(store, asks) if self.furnishing is not None else ()),
            ],
            settings=lambda: self.rules,
            grants=self.grants(store),
        )
        outbox = Outbox(
            store,
            clock,
            self.connectors,
            bounds=self.sending,
            why_not=self.why_not,
            sessions=lambda: thinking.settings.sessions,
            words=self._words_at,
            faults=self.faults,
        )
        thinking = self.thinking = Thinking(
            store,
            clock,
            [self.model, *self.models],
            toolbox,
            self.zone,
            settings=self.settings,
            environment=self.environment,
            equip=self._equip,
        )
        files = Files(self.root / "files")
        speech = (
            Speech(self.speech, files, home=self.root, sandbox=_no_walls, environment={})
            if self.speech is not None
            else None
        )
        engine = self.engine(
            store,
            clock,
            self.ids,
            {"loop": thinking.loop},
            live=live,
            homes=partial(ensure_home, self.root),
            zone=self.zone,
            slots=self.slots,
            deliver=outbox.wake,
            words=self._words_at,
            presence=Presence(clock, self.connectors),
            by_number=self._by_number,
            speak=speech.answered if speech is not None else None,
            choices=thinking.choices,
            asking=lambda: self.asking,
            defaults=lambda: thinking.settings.defaults,
            sessions=lambda: thinking.settings.sessions,
            gates=self.gates,
            checklists=self._checklists(store),
            faults=self.faults,
        )
        asks.of = engine
        outbox.on_wake(engine.wake)
        inbox = Inbox(store, clock, engine.wake, engine.seat, engine.command)
        # Without access control, the first agent answers in every channel.
        open_door = OpenDoor(lambda _channel: address.agent(self.agents[0].name))
        keeper = self.keeper(store, inbox) if self.keeper is not None else open_door
        presses = Presses(store, clock, engine.wake, self.connectors)
        questions = ShownQuestions(store, self.connectors, self._words_at)
        doorway = Doorway(
            store,
            inbox,
            clock,
            self.ids,
            keeper,
            lambda: thinking.settings.sessions,
            keep=keeping(files),
            press=self.press or presses.take,
            refuse_press=presses.refuse,
            hear=speech.heard if speech is not None else hears_nothing,
        )
        switchboard = self._switchboard(store, inbox, doorway, outbox)
        house = House(self, store, engine, inbox, outbox, doorway, switchboard, live, questions, presses)
        await questions.start()
        for connector in list(self.connectors.values()):
            switchboard.open(connector)
        await switchboard.fit(self.lines)
        await outbox.start()
        await engine.start()
        switchboard.start()
        return house

    def _by_number(self, instance: str) -> bool:
        return by_number(self.connectors.get(instance))

    def _words_at(self, _instance: str) -> Words:
        return self.words

    def _switchboard(self, store: Store, inbox: Inbox, doorway: Doorway, outbox: Outbox) -> Switchboard:
        files = Files(self.root / "files")
        needs = Needs(
            store=store,
            clock=self.clock,
            ids=self.ids,
            chance=Random(0),
            take=doorway.accept,
            home=self.root,
            environment=self.environment,
            path_of=lambda attachment: files.path(attachment.hash),
            kinds=Kinds(lambda: self.kinds),
            tell_owner=Owner(inbox, self.ids).tell,
        )
        return Switchboard(needs, self.connectors)


def _settle_in(conn: sa.Connection, *, household: Household, at_ms: int) -> None:
    for agent in household.agents:
        if agents.find(conn, agent.name) is None:
            agents.put(conn, agent, source="test", at_ms=at_ms)
    for name in household.people:
        if people.find(conn, name) is None:
            role = Role.OWNER if name == "owner" else Role.MEMBER
            people.add(conn, Person(name=name, role=role), at_ms=at_ms)


def terminal(person: str) -> Origin:
    from retinue.domain.session import OriginKind

    return Origin(OriginKind.TERMINAL, f"person:{person}")
