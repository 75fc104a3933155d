"""A complete retinue instance inside a test: real store, real engine, scripted model, fake clock.

`LocalInstance` contains everything that survives a crash. `LocalInstance.run` starts a
`LocalServer` on it, which a test may crash and start again.

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

from retinue.agents.agent_directory import ensure_agent_directory
from retinue.config import Settings
from retinue.config.connectors import ConnectorSettings
from retinue.config.speech import SpeechSettings
from retinue.config.tools import ApprovalSettings, OutsideSenderToolSettings, ToolSettings
from retinue.connectors.base import Connector, Platform, has_numbered_answers
from retinue.connectors.connector_registry import PlatformRegistry
from retinue.connectors.supervisor.connector_supervisor import ConnectorSupervisor, SupervisorServices
from retinue.connectors.supervisor.owner_alerts import OwnerAlerts
from retinue.domain import address
from retinue.domain.agent import Agent, PermissionLevel
from retinue.domain.agent_message import AgentMessage, AgentMessageReceipt
from retinue.domain.approval import Approval
from retinue.domain.delegation_request import DelegationRequest, DelegationStatus
from retinue.domain.envelope import Envelope, EnvelopeDraft, EnvelopeKind, Receipt, SettledOutcome
from retinue.domain.ids import EnvelopeId, RunId, SessionId
from retinue.domain.permission import Permission
from retinue.domain.person import Person, Role
from retinue.domain.ports import Clock, CrashPoints, IdSource, ReadChecklist, RunGate
from retinue.domain.principal import Principal
from retinue.domain.protected_paths import ProtectedPaths
from retinue.domain.record import Record
from retinue.domain.reply_delivery import DEFAULT_REPLY_DELIVERY, ReplyDelivery
from retinue.domain.session import Origin, Session
from retinue.domain.times import to_ms
from retinue.domain.trust import Trust
from retinue.engine.button_presses import ButtonPresses
from retinue.engine.embedded_engine import EmbeddedEngine
from retinue.engine.event_broadcast import EventBroadcast
from retinue.engine.heartbeats import is_session_busy
from retinue.engine.lanes import SlotLimits
from retinue.engine.scheduler import no_gate_runner
from retinue.intake.accept import EnvelopeIntake
from retinue.intake.access_control import AccessControl
from retinue.intake.attachment_fetch import make_fetcher
from retinue.intake.connector_intake import ConnectorIntake, HandlePress, skip_transcription
from retinue.intake.speech import SpeechPrograms
from retinue.models.base import Model
from retinue.outbox.deliveries import Outbox, OutboxLimits
from retinue.outbox.outbound_access import GetRefusal, allow_all
from retinue.outbox.posted_questions import PostedQuestions
from retinue.outbox.typing_and_previews import ProgressDisplays
from retinue.runners.base import NO_RUN_RESOURCES, RunAssignment, RunResources
from retinue.sandbox.base import Sandbox
from retinue.sandbox.host import HostSandbox
from retinue.schedules.file_reader import read_with_trust
from retinue.schedules.heartbeat_prompt import ChecklistReader
from retinue.store.agents import agents
from retinue.store.core.connection import NO_FAULTS, Store
from retinue.store.core.tables import envelopes as envelope_table
from retinue.store.envelopes import envelopes
from retinue.store.envelopes.attachment_files import AttachmentFiles
from retinue.store.open_store import open_store
from retinue.store.people import people
from retinue.store.sessions import records, sessions
from retinue.testing.allow_all import AllowAllAccess
from retinue.testing.empty_store import create_empty_store
from retinue.testing.failure_context import describe_on_failure
from retinue.testing.fake_clock import FakeClock
from retinue.testing.runner_factory import LoopParts
from retinue.testing.scripted_model import ScriptedModel
from retinue.testing.server_description import ServerSource
from retinue.testing.tools import AppendLineTool
from retinue.testing.wait_conditions import WAIT_LIMIT_S, wait_until
from retinue.tools.base import Tool
from retinue.tools.files import FileServices, ReadTool
from retinue.tools.grants import GrantCache
from retinue.tools.session_status import SessionStatusTool
from retinue.tools.toolbox import Toolbox

WAIT_S = WAIT_LIMIT_S
POLL_S = 0.05  # some conditions change without an event, so poll as well


async def _open_host_sandbox() -> Sandbox:
    return HostSandbox()


def boss_principal(name: str) -> Principal:
    """Return a person with the permission level `boss`, who may decide everything."""
    return Principal(address=address.person_address(name), level=PermissionLevel.BOSS, trust=Trust.OWNER)


class SequentialIds:
    """Creates ids in a fixed order. The beginnings of the ids differ, so that their short forms differ, too."""

    def __init__(self, seed: int = 0) -> None:
        self._count = itertools.count(seed * 1_000_000 + 1)

    def new(self) -> str:
        n = next(self._count)
        return f"{(n * 2654435761) % 2**32:08x}{n:024x}"


@dataclass(slots=True)
class LocalServer:
    """A running server of a `LocalInstance`.

    `send` accepts an envelope, `wait_for_outcome` and `wait_for_answer` wait for its end, and
    `crash` ends the server as `kill -9` would.
    """

    instance: LocalInstance
    store: Store
    engine: EmbeddedEngine
    intake: EnvelopeIntake
    outbox: Outbox
    connector_intake: ConnectorIntake
    supervisor: ConnectorSupervisor
    events: EventBroadcast
    posted_questions: PostedQuestions
    button_presses: ButtonPresses
    is_crashed: bool = False

    async def send(
        self,
        text: str,
        *,
        sender: str = "person:maria",
        recipient: str = "agent:ada",
        key: str | None = None,
        kind: EnvelopeKind = EnvelopeKind.MESSAGE,
        **kw: Any,
    ) -> Receipt:
        """Accept one envelope and return its receipt.

        Without an idempotency `key`, every call is a new envelope. Further keywords are fields of
        the draft.
        """
        id_ = EnvelopeId(self.instance.ids.new())
        kw.setdefault("trust", Trust.OWNER if sender == "person:owner" else Trust.PERSON)
        draft = EnvelopeDraft(
            id=id_,
            sender=address.parse_address(sender),
            recipient=address.parse_address(recipient),
            text=text,
            source=kw.pop("source", sender),
            idempotency_key=key or id_,
            kind=kind,
            **kw,
        )
        return await self.intake.accept(draft)

    async def wait_for_outcome(self, envelope: str) -> SettledOutcome:
        """Wait until an envelope is settled, and return its outcome."""
        return await self.wait_for(
            partial(envelopes.get_outcome, id_=envelope), what=f"envelope {envelope[:8]} to settle"
        )

    async def wait_for_answer(self, envelope: str) -> str:
        """Wait for the answer to an envelope, and return its text.

        Raises `AssertionError` if the envelope ends without an answer.
        """
        settled = await self.wait_for_outcome(envelope)
        if settled.answer is None:
            raise AssertionError(f"no answer: {settled.outcome}, because {settled.because}")
        answer = settled.answer
        found = await self.store.read(lambda conn: envelopes.get(conn, answer))
        assert found is not None
        return found.text

    async def wait_for(self, body: Any, *, what: str) -> Any:
        """Wait until `body(conn)` returns something other than None or False, and return that result.

        `what` completes the failure message: "waited 120 s in vain for ...".
        """
        watcher = self.events.subscribe(None)
        try:
            async with asyncio.timeout(WAIT_LIMIT_S):
                while True:
                    watcher.changed.clear()
                    found = await self.store.scan(body)
                    if found is not None and found is not False:
                        return found
                    with suppress(TimeoutError):
                        await asyncio.wait_for(watcher.changed.wait(), POLL_S)  # time limit: then it polls
        except TimeoutError:
            raise AssertionError(f"waited {WAIT_LIMIT_S:g} s in vain for {what}") from None
        finally:
            self.events.unsubscribe(watcher)

    async def wait_until_idle(self) -> None:
        """Wait until no lane is working and the outbox has nothing to send."""
        await asyncio.sleep(0)
        await wait_until(
            lambda: not (self.engine.active_lanes or self.outbox.active_count), "the server is idle", poll_s=0.005
        )

    async def list_envelopes_to(self, person: str) -> list[Envelope]:
        """Return all envelopes to a person, including those that are done, oldest first."""
        statement = (
            sa.select(envelope_table)
            .where(envelope_table.c.recipient == f"person:{person}")
            .order_by(envelope_table.c.seq)
        )
        return await self.store.scan(lambda conn: [envelopes.envelope_from_row(r) for r in conn.execute(statement)])

    async def get_envelope(self, id_: str) -> Envelope:
        found = await self.store.read(lambda conn: envelopes.get(conn, id_))
        assert found is not None
        return found

    async def get_session(self, id_: SessionId | str | None) -> Session:
        assert id_ is not None
        found = await self.store.read(lambda conn: sessions.get(conn, id_))
        assert found is not None
        return found

    async def list_records(self, session: str | None) -> list[Record]:
        assert session is not None
        found, _ = await self.store.scan(lambda conn: records.read_range(conn, session, first=0, last=2**60))
        return found

    async def execute_sql(self, statement: str, **parameters: Any) -> list[Any]:
        """Execute SQL directly on the store, to inspect it or to damage it."""

        def body(conn: sa.Connection) -> list[Any]:
            result = conn.execute(sa.text(statement), parameters)
            return list(result) if result.returns_rows else []

        return await self.store.write(body, point="test")

    def crash(self) -> None:
        """Stop the server as `kill -9` would, so that it writes nothing more."""
        self.is_crashed = True
        self.supervisor.abandon()
        self.connector_intake.abandon()
        self.posted_questions.abandon()
        self.button_presses.abandon()
        self.engine.abandon()
        self.outbox.abandon()


@dataclass(slots=True)
class EngineReference:
    """A reference to the engine, for tools that must be created before the engine."""

    engine: EmbeddedEngine | None = None

    async def __call__(self, run: RunId, *, call: str, agent: str, permission: Permission, reason: str) -> Approval:
        assert self.engine is not None
        return await self.engine.request_permission(run, call=call, agent=agent, permission=permission, reason=reason)

    async def delegate(self, request: DelegationRequest) -> DelegationStatus:
        assert self.engine is not None
        return await self.engine.delegate(request)

    async def send_agent_message(self, message: AgentMessage) -> AgentMessageReceipt:
        assert self.engine is not None
        return await self.engine.send_agent_message(message)


@dataclass(slots=True)
class LocalInstance:
    """An instance for tests: everything that survives a crash of its server.

    Only the data directory `root` is needed. By default, there is one agent, `ada`, whose model is
    `model`, and the people `maria` and `owner`. Change fields before you call `run`. Several
    servers may run one after another.
    """

    root: Path
    clock: Any = field(default_factory=FakeClock)
    url: str | Path | None = None
    ids: IdSource = field(default_factory=SequentialIds)
    agents: Sequence[Agent] = (Agent(name="ada", model="scripted"),)
    people: Sequence[str] = ("maria", "owner")
    slots: SlotLimits = field(default_factory=lambda: SlotLimits(main=100, subagent=100))
    zone: ZoneInfo = field(default_factory=lambda: ZoneInfo("UTC"))
    crash_points: CrashPoints = NO_FAULTS
    tools: Sequence[Tool] = ()
    create_tools: Callable[[Store, EngineReference], Sequence[Tool]] | None = (
        None  # tools that need a store, or the engine
    )
    # Outside senders get all tools here, so that tests see the effect of the other limits.
    tool_settings: ToolSettings = ToolSettings(outside_senders=OutsideSenderToolSettings(profile="full"))
    approval_settings: ApprovalSettings = field(default_factory=ApprovalSettings)
    models: Sequence[Model] = ()  # in addition to the scripted one
    connectors: dict[str, Connector] = field(default_factory=dict[str, Connector])
    # connectors to create from settings
    connector_settings: Mapping[str, ConnectorSettings] = field(default_factory=dict[str, ConnectorSettings])
    # in addition to the built-in platforms
    platforms: dict[str, Platform] = field(default_factory=dict[str, Platform])
    create_access_control: Callable[[Store, EnvelopeIntake], AccessControl] | None = None  # None: everyone may write
    handle_press: HandlePress | None = None  # None: a press answers its approval, as in a real server
    speech_settings: Callable[[], SpeechSettings] | None = None
    get_refusal: GetRefusal = allow_all  # says where agents may not send
    outbox_limits: OutboxLimits = field(default_factory=OutboxLimits)
    reply_delivery: ReplyDelivery = DEFAULT_REPLY_DELIVERY  # the same for every connector
    create_engine: Callable[..., EmbeddedEngine] = EmbeddedEngine
    run_gate: RunGate = no_gate_runner
    wrap_store: Callable[[Store], Store] = lambda store: store  # wraps the store that the server uses
    settings: Settings | None = None
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    run_resources: RunResources = NO_RUN_RESOURCES
    model: ScriptedModel = field(init=False)
    toolbox: Toolbox = field(init=False)
    loop_parts: LoopParts = field(init=False)

    def __post_init__(self) -> None:
        self.model = ScriptedModel(self.clock)

    @property
    def witness_file(self) -> Path:
        return self.root / "witness"

    @asynccontextmanager
    async def run(self, *, drain_s: float = 5.0) -> AsyncGenerator[LocalServer]:
        """Start a server on this instance, and stop it at the end of the block.

        `drain_s` is the time that runs and deliveries may take to finish at the end. After `crash`,
        they are abandoned at once.
        """
        database = self.url or self.root / "retinue.db"
        if isinstance(database, Path):
            create_empty_store(database)
        store = await open_store(database, faults=self.crash_points)
        server = await self.start_server(self.wrap_store(store))
        try:
            with describe_on_failure(ServerSource(database=database)):
                yield server
        finally:
            if server.is_crashed:
                await asyncio.sleep(0)
            await server.supervisor.stop()
            await server.connector_intake.stop()
            await server.posted_questions.stop()
            server.button_presses.abandon()
            await server.engine.stop(drain_s=0 if server.is_crashed else drain_s)
            await server.outbox.stop(drain_s=0 if server.is_crashed else drain_s)
            await self.loop_parts.models.close()
            await store.close()

    def build_grants(self, store: Store) -> GrantCache:
        return GrantCache(store, self.clock)

    def _build_checklists(self, store: Store) -> ReadChecklist:
        clock: Clock = self.clock
        ground = FileServices(
            store=store,
            clock=clock,
            files=AttachmentFiles(self.root / "files"),
            withheld=ProtectedPaths(data_directory=self.root / "retinue.db"),
        )
        return ChecklistReader(
            clock=clock,
            read_file=partial(read_with_trust, ground),
            is_busy=lambda session: store.read(partial(is_session_busy, session=session, now_ms=to_ms(clock.now()))),
            agent_directory_of=partial(ensure_agent_directory, self.root),
            workspace_of=lambda agent, home: self.loop_parts.settings.defaults.workspace_of(agent, home),
            run_gate=self.run_gate,
            gate_refusal=lambda _agent: "",
        )

    async def _get_run_resources(self, assignment: RunAssignment) -> RunResources:
        return self.run_resources

    async def start_server(self, store: Store) -> LocalServer:
        """Build all parts of a server on an open store, and start them."""
        await store.write(partial(_add_agents_and_people, instance=self, at_ms=to_ms(self.clock.now())), point="setup")
        live = EventBroadcast()
        store.on_commit(live.announce_commit)
        clock: Clock = self.clock
        asks = EngineReference()
        toolbox = self.toolbox = Toolbox(
            [
                SessionStatusTool(store, clock),
                ReadTool(),
                AppendLineTool(self.witness_file),
                *self.tools,
                *(self.create_tools(store, asks) if self.create_tools is not None else ()),
            ],
            settings=lambda: self.tool_settings,
            grants=self.build_grants(store),
        )
        outbox = Outbox(
            store,
            clock,
            self.connectors,
            limits=self.outbox_limits,
            get_refusal=self.get_refusal,
            sessions=lambda: thinking.settings.sessions,
            get_reply_delivery=self._get_reply_delivery,
            faults=self.crash_points,
        )
        thinking = self.loop_parts = LoopParts(
            store,
            clock,
            [self.model, *self.models],
            toolbox,
            self.zone,
            settings=self.settings,
            environment=self.environment,
            equip=self._get_run_resources,
        )
        files = AttachmentFiles(self.root / "files")
        speech = (
            SpeechPrograms(self.speech_settings, files, data_dir=self.root, sandbox=_open_host_sandbox, environment={})
            if self.speech_settings is not None
            else None
        )
        engine = self.create_engine(
            store,
            clock,
            self.ids,
            {"loop": thinking.loop},
            broadcast=live,
            agent_directory_of=partial(ensure_agent_directory, self.root),
            zone=self.zone,
            slot_limits=self.slots,
            deliver=outbox.wake,
            reply_delivery=self._get_reply_delivery,
            typing=ProgressDisplays(clock, self.connectors),
            answers_by_number=self._has_numbered_answers,
            synthesize_voice=speech.prepare_answer if speech is not None else None,
            available_options=thinking.options,
            approval_settings=lambda: self.approval_settings,
            defaults=lambda: thinking.settings.defaults,
            session_settings=lambda: thinking.settings.sessions,
            run_gate=self.run_gate,
            read_checklist=self._build_checklists(store),
            faults=self.crash_points,
        )
        asks.engine = engine
        outbox.set_wake_callback(engine.wake)
        inbox = EnvelopeIntake(store, clock, engine.wake, engine.reserve_slot, engine.execute_commands)
        # Without access control, the first agent answers in every channel.
        open_access = AllowAllAccess(lambda _channel: address.agent_address(self.agents[0].name))
        keeper = self.create_access_control(store, inbox) if self.create_access_control is not None else open_access
        presses = ButtonPresses(store, clock, engine.wake, self.connectors)
        questions = PostedQuestions(store, self.connectors, self._get_reply_delivery)
        connector_intake = ConnectorIntake(
            store,
            inbox,
            clock,
            self.ids,
            keeper,
            lambda: thinking.settings.sessions,
            fetch_attachment=make_fetcher(files),
            handle_press=self.handle_press or presses.handle,
            refuse_press=presses.refuse,
            transcribe=speech.transcribe if speech is not None else skip_transcription,
        )
        supervisor = self._build_supervisor(store, inbox, connector_intake, outbox)
        server = LocalServer(self, store, engine, inbox, outbox, connector_intake, supervisor, live, questions, presses)
        await questions.start()
        for connector in list(self.connectors.values()):
            supervisor.add(connector)
        await supervisor.sync(self.connector_settings)
        await outbox.start()
        await engine.start()
        supervisor.start()
        return server

    def _has_numbered_answers(self, connector: str) -> bool:
        return has_numbered_answers(self.connectors.get(connector))

    def _get_reply_delivery(self, _connector: str) -> ReplyDelivery:
        return self.reply_delivery

    def _build_supervisor(
        self, store: Store, intake: EnvelopeIntake, connector_intake: ConnectorIntake, outbox: Outbox
    ) -> ConnectorSupervisor:
        files = AttachmentFiles(self.root / "files")
        needs = SupervisorServices(
            store=store,
            clock=self.clock,
            ids=self.ids,
            random=Random(0),
            accept=connector_intake.accept,
            data_dir=self.root,
            environment=self.environment,
            get_attachment_path=lambda attachment: files.path(attachment.hash),
            platforms=PlatformRegistry(lambda: self.platforms),
            alert_owner=OwnerAlerts(intake, self.ids).send,
        )
        return ConnectorSupervisor(needs, self.connectors)


def _add_agents_and_people(conn: sa.Connection, *, instance: LocalInstance, at_ms: int) -> None:
    for agent in instance.agents:
        if agents.find(conn, agent.name) is None:
            agents.upsert(conn, agent, source="test", at_ms=at_ms)
    for name in instance.people:
        if people.find(conn, name) is None:
            role = Role.OWNER if name == "owner" else Role.MEMBER
            people.add(conn, Person(name=name, role=role), at_ms=at_ms)


def terminal_origin(person: str) -> Origin:
    from retinue.domain.session import OriginKind

    return Origin(OriginKind.TERMINAL, f"person:{person}")
