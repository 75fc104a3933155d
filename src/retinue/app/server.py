"""Builds every part of the server and connects them. The only module that knows all of them."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from enum import Enum, EnumType
from functools import cache, partial
from operator import attrgetter
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec
import sqlalchemy as sa
from msgspec import Struct, field

from retinue import __version__
from retinue.agents.agent_directory import ensure_home
from retinue.agents.instruction_builder import Briefing
from retinue.agents.skill_loader import Shelf as Skills
from retinue.api.app import build as build_api
from retinue.api.connection_limits import Gate, server_config
from retinue.api.host_check import Door
from retinue.api.uvicorn_server import Server
from retinue.app.build_hooks import Programs
from retinue.app.build_instructions import Instructing
from retinue.app.build_tools import Hands, called_by_people, equip, skills_told
from retinue.app.clock_and_ids import RandomIds, RealClock, faults_from, new_chance, new_token
from retinue.app.instance_files import (
    instance_lock,
    listening_address,
    listening_socket,
    no_address,
    owner_token,
    socket_path,
)
from retinue.app.logs import set_level, set_masks, set_up_logs
from retinue.config import Configuration, Settings, load
from retinue.config.access import CLOSED, DoorSettings
from retinue.config.declarations import MAIN
from retinue.config.validators import PORT_MAX
from retinue.connectors.base import Connector, by_number
from retinue.connectors.connector_registry import BUILT_IN as BUILT_IN_CONNECTORS
from retinue.connectors.connector_registry import Kinds
from retinue.connectors.redacted_connector import Masked
from retinue.connectors.supervisor.connector_supervisor import Needs, Switchboard
from retinue.connectors.supervisor.owner_alerts import Owner
from retinue.domain import address
from retinue.domain.address import EXTERNAL
from retinue.domain.agent import Agent, PermissionLevel, ToolRules
from retinue.domain.errors import Invalid, RetinueError, StoreError
from retinue.domain.event import NewsKind
from retinue.domain.ids import TokenId
from retinue.domain.model import ModelFacts, ModelRef
from retinue.domain.person import Person, Role
from retinue.domain.ports import Clock, Faults, Ids
from retinue.domain.principal import Principal
from retinue.domain.reply_delivery import Words
from retinue.domain.session import Mind
from retinue.domain.structs import replace
from retinue.domain.times import to_ms
from retinue.domain.token import Token, TokenKind, hash_of
from retinue.domain.trust import Trust
from retinue.engine.button_presses import Presses
from retinue.engine.embedded_engine import EmbeddedEngine
from retinue.engine.event_broadcast import Live
from retinue.engine.heartbeats import is_busy
from retinue.engine.lanes import Slots
from retinue.intake.accept import Inbox
from retinue.intake.access_control import Doorkeeper
from retinue.intake.attachment_fetch import keeping
from retinue.intake.connector_intake import Doorway
from retinue.intake.external_callbacks import Callbacks
from retinue.models import prices
from retinue.models.base import Model, WireCache
from retinue.models.local_catalog import Locals
from retinue.models.model_clients import Maker
from retinue.models.model_router import Minds
from retinue.models.offline_guide import Guide
from retinue.models.provider_http import Link
from retinue.models.providers import BUILT_IN
from retinue.operations.agent.permanent_agents import CreatePermanentAgent
from retinue.operations.audit.audit import anchor_forever, anchor_now
from retinue.operations.base import Desk, perform
from retinue.operations.catalog import OPERATIONS, POLICY
from retinue.operations.config.gateway_tool import Gateway
from retinue.operations.config.pending_restarts import tell
from retinue.operations.config_holder import Keeper
from retinue.operations.known_secrets import refresh as refresh_masks
from retinue.operations.operation_tools import tools_of
from retinue.operations.schedule.cron_tool import clock_tools
from retinue.operations.schedule.schedules import why_no_command
from retinue.operations.server.maintenance import tidy_forever
from retinue.operations.skill.hooks import say as say_for_hook
from retinue.outbox.completion_webhooks import Completions
from retinue.outbox.deliveries import Outbox
from retinue.outbox.external_agent_delivery import Elsewhere, own_address, way_out
from retinue.outbox.outbound_access import Reach, WithinReach
from retinue.outbox.posted_questions import ShownQuestions
from retinue.outbox.typing_and_previews import Presence
from retinue.plugins.lifecycle import Plugins
from retinue.plugins.registry import Furnished, Kind, Registry
from retinue.runners.attachment_reader import FileMedia
from retinue.runners.base import Runner
from retinue.runners.external import External
from retinue.runners.loop import Loop
from retinue.runners.mirror_runner import Mirrored
from retinue.runners.model_call import Asker
from retinue.runners.session_options import HouseChoices
from retinue.runners.token_estimate import tokens_of_text
from retinue.schedules.heartbeat_prompt import Checklists
from retinue.schedules.heartbeats import Heartbeats, Wishes
from retinue.schedules.read_with_trust import look_for
from retinue.schedules.schedule_files import ScheduleFiles
from retinue.store.agents import agents
from retinue.store.core.connection import LockRequest, Store
from retinue.store.core.transaction import Page
from retinue.store.envelopes.attachment_files import Files
from retinue.store.open_store import open_store
from retinue.store.people import people, tokens
from retinue.text.redaction import Masks
from retinue.tools.base import Tool
from retinue.tools.earlier_messages import EarlierWords
from retinue.tools.mcp.server_pool import layers as mcp_layers
from retinue.tools.toolbox import Toolbox

if TYPE_CHECKING:
    from retinue.agents.session_mirror import Mirror
    from retinue.intake.inbound_webhooks import Requests
    from retinue.models.pydantic_ai_bridge import Bridges

log = logging.getLogger(__name__)

GC_OBJECTS = 25_000
OWNERS_FILE = "owner-token"

OWNER = Person(name="owner", role=Role.OWNER)
FIRST_STAFF = (
    Agent(
        name="main",
        description="Your own. Thinks with the house's model, once there is a key; with the guide's script until then.",
    ),
    Agent(
        name="guide",
        description="Shows you round. A script, no language model: needs no key and no network.",
        model="guide",
    ),
    Agent(
        name="clerk",
        description="Like the guide, but asks you before it reads a file.",
        model="guide",
        tools=ToolRules(ask=("read",)),
    ),
)


class Parts(Struct, frozen=True, kw_only=True):
    """Parts that a test or a benchmark replaces or adds."""

    clock: Clock
    ids: Ids
    faults: Faults
    chance: Random = field(default_factory=new_chance)
    models: Sequence[Model] = ()
    tools: Sequence[Tool] = ()
    staff: Sequence[Agent] = FIRST_STAFF
    connectors: Sequence[Connector] = ()
    slots: Slots | None = None
    configuration: Configuration | None = None  # where the settings come from, to reload them


class House(Struct, frozen=True, kw_only=True):
    """The parts of a running server that its callers use."""

    store: Store
    engine: EmbeddedEngine
    outbox: Outbox
    desk: Desk


@asynccontextmanager
async def open_house(
    settings: Settings, parts: Parts, *, stop: Callable[[], None] | None = None
) -> AsyncGenerator[House]:
    """Start everything except the API: store, engine, outbox, connectors. On exit, running work is drained.

    `stop` is called if another server takes over the database. The exit then raises the reason.
    """
    clock, ids = parts.clock, parts.ids
    taken_over: list[StoreError] = []

    def lost(error: StoreError) -> None:
        taken_over.append(error)
        if stop is not None:
            stop()

    lock = LockRequest(host=socket.gethostname(), process=os.getpid(), directory=settings.home, lost=lost)
    store = await open_store(settings.store, faults=parts.faults, lock=lock)
    try:
        await store.write(partial(_settle_in, staff=parts.staff, at_ms=to_ms(clock.now())), point="setup")
        for agent in await store.read(agents.everyone):
            ensure_home(settings.home, agent.name)
        live = Live()
        store.on_commit(live.committed)
        keeper = Keeper(parts.configuration, os.environ) if parts.configuration is not None else None

        def current() -> Settings:
            return keeper.current.settings if keeper is not None else settings

        registry = Registry(taken=lambda kind, name: name in taken.get(kind, frozenset[str]()))
        furnished = Furnished(current, registry)
        files = Files(settings.home / "files")
        link = Link()
        cache = WireCache()
        locals_ = Locals(clock, ids, link, cache, os.environ)
        models: tuple[Model, ...] = (Guide(clock), *locals_.installed(), *parts.models)
        minds = Minds(
            store,
            clock,
            models,
            settings=furnished,
            environment=os.environ,
            makers={"local": locals_.find, "bridge": _bridge_maker(lambda ref: minds.catalog.facts(ref))},
            link=link,
            cache=cache,
            chance=parts.chance,
            zone=settings.zone,
        )
        masks = Masks()
        set_masks(masks)

        async def learn_secrets() -> None:
            await refresh_masks(masks, store, furnished(), os.environ)

        async def credentials_changed() -> None:
            await minds.refresh()
            await learn_secrets()

        await learn_secrets()
        hands = Hands(
            current,
            store=store,
            clock=clock,
            ids=ids,
            files=files,
            environment=os.environ,
            mask=masks.mask,
            chance=parts.chance,
        )
        gateway = Gateway(lambda: desk, OPERATIONS)
        own_tools = (gateway, CreatePermanentAgent(lambda: desk), *clock_tools(lambda: desk, OPERATIONS, hands.ground))
        tools: tuple[Tool, ...] = (*hands.tools, *own_tools, *parts.tools, *tools_of(OPERATIONS.values(), lambda: desk))

        def plugin_told(instance: str, change: str, because: str) -> None:
            on_the_side(_plugin_told(store, clock, instance, change, because))

        plugins = Plugins(settings.home, registry, clock, told=plugin_told)
        toolbox = Toolbox(
            tools,
            clock=clock,
            calls_per_minute=settings.limits.calls_per_minute,
            settings=lambda: furnished().tools,
            grants=hands.grants,
            origin=hands.origin,
            zone=settings.zone,
            earlier=EarlierWords(store),
            wholes=hands.wholes,
            ids=ids,
            mask=masks.mask,
            more=lambda agent: mcp_layers(current().mcp, agent),
        )
        elsewhere = Elsewhere(
            store, clock, lambda: way_out(current()), lambda: own_address(current()), environment=os.environ
        )
        completions = Completions(store, clock, current, os.environ, masks.mask)
        lines: dict[str, Connector] = {
            c.instance: Masked(c, masks.mask) for c in (elsewhere, completions, *parts.connectors)
        }
        hands.ways.rooms = lines.get

        words = partial(_words, current)

        def kind_of(instance: str) -> str:
            return switchboard.kind_of(instance)

        reach = Reach(partial(_door, current), kind_of, default=lambda: current().default_agent or MAIN)
        outbox = Outbox(
            store,
            clock,
            lines,
            sessions=lambda: current().sessions,
            words=words,
            why_not=reach.of_envelope,
            chance=parts.chance,
            faults=parts.faults,
        )
        briefing = Briefing(
            store,
            clock,
            home=settings.home,
            look=partial(look_for, hands.ground),
            weigh=tokens_of_text,
            owner=OWNER.name,
            mask=masks.mask,
        )
        skills = Skills(settings.home, store, settings=current, environment=os.environ, plugins=plugins.skill_folders)
        equipping = partial(equip, skills, plugins, current)
        instructing = Instructing(
            briefing,
            store,
            house=settings.home,
            settings=current,
            windows=hands.windows,
            zone=str(settings.zone),
            equip=equipping,
            offered=toolbox.offered,
            facts=lambda agent, mind: _first_asked(minds, agent, mind),
        )
        programs = Programs(
            current,
            store,
            files,
            home=settings.home,
            environment=os.environ,
            say=lambda event, hook, text: say_for_hook(desk, event, hook, text),
        )
        asker = Asker(minds, clock, settings.zone, media=FileMedia(files), brief=instructing.tell)
        loop: Runner = Loop(asker, toolbox, equipping)
        mirror = _mirror(store, settings) if settings.mirror.enabled else None
        external: Runner = External(store, hands.ways.hand_over)
        runners: dict[str, Runner] = {
            "loop": Mirrored(loop, mirror) if mirror else loop,
            EXTERNAL: Mirrored(external, mirror) if mirror else external,
        }
        engine = EmbeddedEngine(
            store,
            clock,
            ids,
            runners,
            live=live,
            homes=partial(ensure_home, settings.home),
            zone=settings.zone,
            slots=parts.slots or _slots(settings),
            deliver=outbox.wake,
            words=words,
            presence=Presence(clock, lines),
            by_number=lambda instance: by_number(lines.get(instance)),
            speak=programs.speak,
            asking=lambda: current().approvals,
            defaults=lambda: current().defaults,
            sessions=lambda: current().sessions,
            session_ended=hands.session_ended,
            choices=HouseChoices(
                minds,
                toolbox,
                clock,
                asker.shortened,
                instructing.parts,
                briefing.at_hand,
                partial(skills_told, skills, current),
            ),
            skills=partial(called_by_people, skills, current),
            gates=hands.gates,
            checklists=Checklists(
                clock=clock,
                look=partial(look_for, hands.ground),
                is_busy=lambda session: store.read(partial(is_busy, session=session, now_ms=to_ms(clock.now()))),
                home_of=partial(ensure_home, settings.home),
                workspace_of=lambda agent, home: current().defaults.workspace_of(agent, home),
                gates=hands.gates,
                why_no_gate=partial(why_no_command, toolbox),
                mask=masks.mask,
            ),
            faults=parts.faults,
        )
        outbox.on_wake(engine.wake)
        policy = {**POLICY, **settings.permission_policy}

        def take_up(now: Settings) -> None:
            policy.update({**_needed(plugins), **now.permission_policy})
            toolbox.limit_calls(now.limits.calls_per_minute)
            engine.slots_changed(parts.slots or _slots(now))

        if keeper is not None:
            keeper.on_change(take_up)
            keeper.on_change(lambda now: plugins.take_up(now.plugins))
            keeper.on_change(lambda now: switchboard.take_up(now.connectors))
            keeper.on_change(lambda _: hands.servers.fit_soon())
            keeper.on_change(lambda _: bring_tools())
            keeper.on_change(lambda _: on_the_side(learn_secrets()))
        own_runners = dict(runners)
        taken: dict[Kind, AbstractSet[str]] = {
            Kind.TOOL: {tool.spec.name for tool in tools},
            Kind.OPERATION: set(OPERATIONS),
            Kind.MODEL: {model.name for model in models},
            Kind.RUNNER: set(own_runners),
            Kind.PROVIDER: set(BUILT_IN),
            Kind.CONNECTOR_KIND: set(BUILT_IN_CONNECTORS),
        }

        def bring_tools() -> None:
            """Set the current tools: the built-in ones, and those of plugins and MCP servers."""
            brought = tools_of(registry.operations().values(), lambda: desk)
            toolbox.bring([*tools, *registry.tools(), *brought, *hands.servers.tools()])

        def fit_in() -> None:
            """Apply a change in the loaded plugins."""
            bring_tools()
            minds.bring([*models, *registry.models()])
            on_the_side(credentials_changed())  # the plugin may add a model provider with its key
            for name in set(runners) - set(own_runners):
                del runners[name]
            runners.update(registry.runners())
            switchboard.take_up(current().connectors)
            policy.update({**_needed(plugins), **current().permission_policy})

        registry.on_change(fit_in)
        hands.servers.on_change(bring_tools)
        asides = set[asyncio.Task[None]]()

        def on_the_side(work: Coroutine[Any, Any, None]) -> None:
            task = asyncio.create_task(work)
            asides.add(task)
            task.add_done_callback(asides.discard)

        schedule_files = ScheduleFiles(store, clock, ids, settings.home, settings.zone)
        heartbeats = Heartbeats(
            store,
            clock,
            lambda: _wishes(current()),
            home_of=partial(ensure_home, settings.home),
            workspace_of=lambda agent, home: current().defaults.workspace_of(agent, home),
        )
        if keeper is not None:
            keeper.on_change(lambda _: heartbeats.poke())
        inbox = Inbox(store, clock, engine.wake, engine.seat, engine.command)
        doorkeeper = Doorkeeper(
            store,
            clock,
            ids,
            partial(_door, current),
            kind_of,
            post=inbox,
            default=lambda: current().default_agent or MAIN,
        )
        presses = Presses(store, clock, engine.wake, lines)
        questions = ShownQuestions(store, lines, words)
        doorway = Doorway(
            store,
            inbox,
            clock,
            ids,
            doorkeeper,
            lambda: current().sessions,
            keep=keeping(files),
            press=presses.take,
            refuse_press=presses.refuse,
            hear=programs.hear,
        )

        def masked(inside: Connector) -> Connector:
            return Masked(inside, masks.mask, switchboard.took)

        switchboard = Switchboard(
            Needs(
                store=store,
                clock=clock,
                ids=ids,
                chance=parts.chance,
                take=doorway.accept,
                home=settings.home,
                environment=os.environ,
                path_of=lambda attachment: files.path(attachment.hash),
                kinds=Kinds(registry.connector_kinds),
                ready=registry.connectors,
                tell_owner=Owner(inbox, ids, name=OWNER.name).tell,
            ),
            lines,
            wrap=masked,
        )
        for connector in parts.connectors:
            switchboard.open(connector)
        desk = Desk(
            store=store,
            post=inbox,
            engine=engine,
            live=live,
            clock=clock,
            ids=ids,
            home=settings.home,
            files=files,
            zone=settings.zone,
            version=__version__,
            secrets=new_token,
            policy=policy,
            toolbox=toolbox,
            ground=hands.ground,
            plugins=plugins,
            mcp=hands.servers,
            schedule_files=schedule_files,
            heartbeats=heartbeats,
            windows=hands.windows,
            previews=instructing,
            mask=masks.mask,
            session_ended=hands.session_ended,
            catalog=lambda: minds.catalog,
            why_now=minds.why_now,
            credentials_changed=credentials_changed,
            config=keeper,
            settings=current,
            runners=frozenset(own_runners),
            callbacks=Callbacks(store, clock, engine.wake, os.environ),
            requests=lambda: _requests(desk, lines),
            switchboard=switchboard,
            hooks=programs.hooks,
        )
        hands.ways.inbox = WithinReach(desk.post, store, reach)
        hands.ways.asks, hands.ways.hands = engine.request, engine.hand_over
        hands.ways.models = lambda: minds.catalog
        hands.ways.words = engine.pass_on
        await hands.open()
        await plugins.fit(current().plugins)
        await credentials_changed()
        await hands.servers.fit()
        if mirror is not None:
            await mirror.start()
        await switchboard.fit(current().connectors)
        await programs.start()
        await questions.start()
        await outbox.start()
        await engine.start()
        switchboard.start()
        await schedule_files.start()
        await heartbeats.start()
        await tell(settings.home, desk.post, ids)
        programs.opened(clock.now())

        aside = [asyncio.create_task(tidy_forever(desk, lambda: current().retention))]
        aside.append(asyncio.create_task(hands.look_around()))
        aside.append(asyncio.create_task(anchor_forever(desk)))
        if minds.catalog.wants_prices:
            aside.append(asyncio.create_task(_load_prices()))  # takes a while, and is needed for the first reply
        try:
            yield House(store=store, engine=engine, outbox=outbox, desk=desk)
        finally:
            for task in aside:
                task.cancel()
            await asyncio.gather(*aside, return_exceptions=True)
            drain_s = 0.0 if taken_over else current().drain_s  # running work could not store anything any more
            await switchboard.stop()
            await doorway.stop()
            presses.abandon()
            await programs.stop()
            await questions.stop()
            await heartbeats.stop()
            await schedule_files.stop()
            await engine.stop(drain_s=drain_s)
            await hands.close()
            await plugins.close()
            for task in asides:
                task.cancel()
            await asyncio.gather(*asides, return_exceptions=True)
            await outbox.stop(drain_s=drain_s)
            await anchor_now(desk)
            if mirror is not None:
                await mirror.stop()
            await locals_.close()
            await minds.close()
    finally:
        await store.close()
    if taken_over:
        raise taken_over[0]


def _door(settings: Callable[[], Settings], instance: str) -> DoorSettings:
    """Return the access rules of a connector. One that the settings do not name accepts no one."""
    named = settings().connectors.get(instance)
    return CLOSED if named is None else named.door


def _words(settings: Callable[[], Settings], instance: str) -> Words:
    """Return how replies are delivered by a connector: its own settings over those of the server."""
    now = settings()
    named = now.connectors.get(instance)
    house = now.words.over()
    return house if named is None else named.words.over(house)


def _first_asked(minds: Minds, agent: Agent, mind: Mind) -> ModelFacts:
    """Return the facts of the model that would be called first, or a placeholder if none can be."""
    try:
        return minds.catalog.facts(minds.catalog.chain(agent=agent, mind=mind)[0])
    except RetinueError:
        return ModelFacts(ref=ModelRef("", agent.model or "none"))


def _requests(desk: Desk, lines: Mapping[str, Connector]) -> Requests:
    """Import webhook support on the first request: few instances receive any."""
    from retinue.intake.inbound_webhooks import Requests

    return Requests(
        desk.store, desk.post, desk.clock, desk.ids, connectors=lambda: lines, default_agent=desk.default_agent
    )


def _bridge_maker(facts: Callable[[ModelRef], ModelFacts]) -> Maker:
    """Import the bridge to Pydantic AI on first use: few instances have such a model."""

    @cache
    def bridges() -> Bridges:
        from retinue.models.pydantic_ai_bridge import Bridges

        return Bridges(facts)

    return lambda ref, entry: bridges().find(ref, entry)


async def _plugin_told(store: Store, clock: Clock, instance: str, change: str, because: str) -> None:
    """Store an event: a plugin was loaded or unloaded, or has failed."""

    def body(conn: sa.Connection) -> None:
        page = Page(conn, to_ms(clock.now()))
        page.tell(NewsKind.PLUGIN_CHANGED, person=OWNER.name, plugin=instance, change=change, because=because)
        page.close()

    await store.write(body, point="plugin")


def _wishes(settings: Settings) -> Wishes:
    return Wishes(house=settings.defaults.heartbeat, default_agent=settings.default_agent, zone=settings.zone)


def _mirror(store: Store, settings: Settings) -> Mirror:
    from retinue.agents.session_mirror import Mirror  # few instances use it

    return Mirror(store, settings.mirror.folder or settings.home / "mirror")


def _needed(plugins: Plugins) -> dict[str, PermissionLevel]:
    """Return the default permission of each operation: the built-in ones, and those of plugins."""
    return {**POLICY, **{name: each.permission for name, each in plugins.operations().items()}}


async def _load_prices() -> None:
    await prices.ready()
    gc.freeze()  # prices stay loaded: exclude them from garbage collection


def _slots(settings: Settings) -> Slots:
    counts = settings.slots
    return Slots(main=counts.main, schedule=counts.schedule, subagent=counts.subagent, background=counts.background)


def _settle_in(conn: sa.Connection, *, staff: Sequence[Agent], at_ms: int) -> None:
    """Add the owner and the first agents once. Later starts change nothing."""
    if people.find(conn, OWNER.name) is None:
        people.add(conn, OWNER, at_ms=at_ms)
    for agent in staff:
        if not agents.was_here(conn, agent.name):  # a deleted agent is not added again
            agents.put(conn, agent, source="setup", at_ms=at_ms)


async def _sign_in_owner(home: Path, store: Store, now: datetime) -> None:
    """Store the hash of the owner's token. The token itself is only in a file of the data directory."""
    token_hash = hash_of(owner_token(home, new_token))

    def body(conn: sa.Connection) -> None:
        owner = str(address.person(OWNER.name))
        if not tokens.is_known(conn, token_hash):
            for old in tokens.of(conn, owner, now_ms=to_ms(now)):
                if old.label == OWNERS_FILE:  # the file was recreated: revoke its earlier token
                    tokens.revoke(conn, old.id, at_ms=to_ms(now))
            token = Token(
                id=TokenId(token_hash[:32]),
                kind=TokenKind.TOKEN,
                principal=address.person(OWNER.name),
                label=OWNERS_FILE,
                created_at=now,
            )
            tokens.add(conn, token, token_hash)

    await store.write(body, point="setup")


class _Server(Server):
    """A uvicorn server that leaves signals to us: a stop must drain the engine too."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def serve_until(self, stop: asyncio.Event, listeners: list[socket.socket], live: Live) -> None:
        serving = asyncio.create_task(self.serve(sockets=listeners))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        live.close()
        self.should_exit = True
        stopping.cancel()
        await serving


async def serve(settings: Settings, parts: Parts, *, announce: bool = True, keep_log: bool = False) -> None:
    """Run the server until a signal stops it."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, stop)
    with instance_lock(settings.home):
        if keep_log:  # only with the lock: a refused start must not rotate the log of the running server
            _keep_log(settings)
        await _serve_locked(settings, parts, stop, announce=announce)


async def _serve_locked(settings: Settings, parts: Parts, stop: asyncio.Event, *, announce: bool) -> None:
    door = door_from(settings, os.environ)
    door.check()
    path = socket_path(settings.home, os.environ)
    # Bind the port first: if it is taken, fail before any work is resumed.
    with listening_address(settings.home, door.host, door.port) if door.enabled else no_address(settings.home) as tcp:
        async with open_house(settings, parts, stop=stop.set) as house:
            await _sign_in_owner(settings.home, house.store, parts.clock.now())
            with listening_socket(settings.home, path) as listener:
                gate = Gate(door)
                app = build_api(house.desk, door, gate)
                if house.desk.config is not None:
                    house.desk.config.on_change(lambda now: app.refit(door_from(now, os.environ)))
                    house.desk.config.on_change(lambda now: set_level(now.logs.level))
                    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _read_again, house.desk.config)
                config = server_config(app, gate)
                log.info("house open", extra={"home": settings.home, "address": tcp[1] if tcp else "off"})
                if announce:
                    await _announce(settings, house.desk, path, url=tcp[1] if tcp else "")
                await _Server(config).serve_until(stop, [listener, *([tcp[0]] if tcp else [])], house.desk.live)
                log.info("house closing", extra={"draining": house.engine.active})


def door_from(settings: Settings, environment: Mapping[str, str]) -> Door:
    """Return the API settings. `RETINUE_LISTEN` wins: HOST:PORT, or `off`."""
    host, port, enabled = settings.listen.host, settings.listen.port, settings.listen.enabled
    if listen := environment.get("RETINUE_LISTEN"):
        named, _, digits = listen.rpartition(":")
        enabled = listen != "off"
        if enabled and not (named and digits.isdigit() and int(digits) <= PORT_MAX):
            raise Invalid(
                f"RETINUE_LISTEN is '{listen}'",
                because="it is HOST:PORT, or `off`",
                try_this="RETINUE_LISTEN=127.0.0.1:7717",
                code="listen.invalid",
            )
        host, port = (named.strip("[]"), int(digits)) if enabled else (host, port)
    limits = settings.limits
    return Door(
        enabled=enabled,
        host=host,
        port=port,
        public_url=settings.public_url,
        allowed_hosts=settings.allowed_hosts,
        trusted_proxies=settings.trusted_proxies,
        body_bytes_max=limits.body_bytes_max,
        requests_per_minute=limits.requests_per_minute,
        envelopes_per_minute=limits.envelopes_per_minute,
        sign_in_attempts_max=limits.sign_in_attempts_max,
        lockout_s=limits.lockout_s,
        websockets_max=limits.websockets_max,
        connections_max=limits.connections_max,
        request_wait_s=limits.request_wait_s,
    )


def _read_again(keeper: Keeper) -> None:
    """Reload the settings on SIGHUP. An invalid file changes nothing."""
    try:
        changes = keeper.reload()
    except RetinueError as error:
        log.error("settings not taken", extra={"error": str(error)})
        return
    log.info(
        "settings read again",
        extra={
            "changed": ",".join(change.path for change in changes),
            "waiting": ",".join(change.path for change in keeper.waiting),
        },
    )


def _on_signal(stop: asyncio.Event) -> None:
    if stop.is_set():
        os._exit(130)  # a second signal: exit at once; work resumes at the next start
    stop.set()


async def _announce(settings: Settings, desk: Desk, path: Path, *, url: str) -> None:
    web = f"  web      {await _web_address(desk, settings.public_url or url)}\n" if url else ""
    sys.stdout.write(
        f"retinue {__version__} is open.\n"
        f"  home     {settings.home}\n"
        f"  listens  {path} (this machine, your user only)\n"
        f"{web}"
        f"  sign-in  your token is in {settings.home / 'owner-token'}; the `retinue` command finds it there\n"
        f"\nTalk to your staff from another terminal:\n"
        f"  {_command()} chat\n"
        f'  {_command()} chat --once "help"\n'
        f"\nStop with Ctrl-C.\n"
    )
    sys.stdout.flush()


async def _web_address(desk: Desk, url: str) -> str:
    """Return the web app's address. On a terminal it has a one-time sign-in code; other outputs may be stored."""
    if not sys.stdout.isatty():
        return f"{url}/"
    owner = Principal(address=address.person(OWNER.name), level=PermissionLevel.BOSS, trust=Trust.OWNER)
    made = msgspec.json.decode(await perform(desk, owner, OPERATIONS["token.code"], b"{}"))
    return f"{url}/#code={made['code']} (signs you in, once, within minutes)"


def _command() -> str:
    """Return how to type our command here: by its name if it is on the path."""
    beside = Path(sys.executable).with_name("retinue")
    on_path = any(Path(folder, "retinue") == beside for folder in os.environ.get("PATH", "").split(os.pathsep))
    return "retinue" if on_path or not beside.exists() else os.path.relpath(beside)


def default_parts() -> Parts:
    return Parts(clock=RealClock(), ids=RandomIds(), faults=faults_from(dict(os.environ)))


def _keep_log(settings: Settings) -> None:
    """Log to the data directory, and to stderr too unless that goes to a file that is never rotated."""
    in_background = os.environ.pop("RETINUE_BACKGROUND", "") and settings.logs.file
    set_up_logs(None if in_background else sys.stderr, home=settings.home, logs=settings.logs)


def run(settings: Settings, parts: Parts, *, announce: bool = True, keep_log: bool = False) -> None:
    """Run the server on the fastest event loop that is installed."""
    try:
        import uvloop

        factory = uvloop.new_event_loop
    except ImportError:
        factory = asyncio.new_event_loop
    # Loaded modules stay for good, so exclude them from garbage collection. Collect less often too: reading back
    # a long session creates thousands of objects.
    gc.freeze()
    gc.set_threshold(GC_OBJECTS)
    name_members_directly()
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(serve(settings, parts, announce=announce, keep_log=keep_log))


def name_members_directly() -> None:
    """Make access to enum members as fast as any attribute, as it is from Python 3.12 on.

    Python 3.11 still has a `__getattr__` on `EnumType` from when members were not attributes. It
    finds nothing any more, but makes each access ten times slower. A turn with a tool call makes
    about 500 of them.
    """
    if "__getattr__" in vars(EnumType):
        delattr(EnumType, "__getattr__")
    # The same for `member.value`, which takes two Python calls per access, fifty times a turn.
    Enum.value = property(attrgetter("_value_"))  # type: ignore[assignment]


def main() -> int:
    """`python -m retinue.app.server`, which `retinue run` starts."""
    set_up_logs(sys.stderr)
    try:
        parts = default_parts()
        configuration = load(os.environ)
        settings = configuration.settings
        settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        run(settings, replace(parts, configuration=configuration), keep_log=True)
    except RetinueError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
