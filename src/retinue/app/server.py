"""Builds all parts of the server and connects them. No other module imports all parts."""

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
from retinue.agents.agent_directory import ensure_agent_directory
from retinue.agents.instruction_builder import SystemPromptBuilder
from retinue.agents.skill_loader import SkillLoader as Skills
from retinue.api.app import build_app as build_api
from retinue.api.connection_limits import ConnectionLimiter, build_server_config
from retinue.api.host_check import HttpSettings
from retinue.api.uvicorn_server import Server
from retinue.app.build_hooks import OwnerPrograms
from retinue.app.build_instructions import RunPrompts
from retinue.app.build_tools import BuiltInTools, list_skill_commands, load_run_resources, measure_skills
from retinue.app.clock_and_ids import RandomIds, RealClock, crash_points_from, new_random, new_token
from retinue.app.errors import ListenAddressInvalid
from retinue.app.instance_files import (
    instance_lock,
    listening_address,
    listening_socket,
    owner_token,
    remove_address,
    socket_path,
)
from retinue.app.logs import set_known_secrets, set_level, set_up_logs
from retinue.config import Configuration, Settings, load_configuration
from retinue.config.access import DEFAULT_ACCESS, AccessSettings
from retinue.config.declarations import MAIN_AGENT
from retinue.config.validators import PORT_MAX
from retinue.connectors.base import Connector, has_numbered_answers
from retinue.connectors.connector_registry import BUILT_IN_PLATFORMS as BUILT_IN_CONNECTORS
from retinue.connectors.connector_registry import PlatformRegistry
from retinue.connectors.redacted_connector import RedactedConnector
from retinue.connectors.supervisor.connector_supervisor import ConnectorSupervisor, SupervisorServices
from retinue.connectors.supervisor.owner_alerts import OwnerAlerts
from retinue.domain import address
from retinue.domain.address import EXTERNAL
from retinue.domain.agent import Agent, PermissionLevel, ToolRules
from retinue.domain.errors import RetinueError, StoreError
from retinue.domain.event import EventKind
from retinue.domain.ids import TokenId
from retinue.domain.model import ModelFacts, ModelRef
from retinue.domain.person import Person, Role
from retinue.domain.ports import Clock, CrashPoints, IdSource
from retinue.domain.principal import Principal
from retinue.domain.reply_delivery import ReplyDelivery
from retinue.domain.session import SessionOptions
from retinue.domain.structs import replace
from retinue.domain.times import to_ms
from retinue.domain.token import Token, TokenKind, hash_token
from retinue.domain.trust import Trust
from retinue.engine.button_presses import ButtonPresses
from retinue.engine.embedded_engine import EmbeddedEngine
from retinue.engine.event_broadcast import EventBroadcast
from retinue.engine.heartbeats import is_session_busy
from retinue.engine.lanes import SlotLimits
from retinue.intake.accept import EnvelopeIntake
from retinue.intake.access_control import PolicyAccessControl
from retinue.intake.attachment_fetch import make_fetcher
from retinue.intake.connector_intake import ConnectorIntake
from retinue.intake.external_callbacks import CallbackIntake
from retinue.models import prices
from retinue.models.base import Model
from retinue.models.encoded_context_cache import EncodedContextCache
from retinue.models.local_catalog import LocalModels
from retinue.models.model_clients import ModelFactory
from retinue.models.model_router import ModelRouter
from retinue.models.offline_guide import OfflineGuide
from retinue.models.provider_http import ProviderConnections
from retinue.models.providers import BUILT_IN_PROVIDERS
from retinue.operations.agent.permanent_agents import PermanentAgentTool
from retinue.operations.audit.audit import anchor_audit, anchor_hourly
from retinue.operations.base import Services, perform_operation
from retinue.operations.catalog import DEFAULT_PERMISSIONS, OPERATIONS
from retinue.operations.config.gateway_tool import GatewayTool
from retinue.operations.config.pending_restarts import announce_restart
from retinue.operations.config_holder import ConfigHolder
from retinue.operations.known_secrets import refresh_redactor as refresh_masks
from retinue.operations.operation_tools import build_operation_tools
from retinue.operations.schedule.cron_tool import build_cron_tools
from retinue.operations.schedule.schedules import explain_command_denial
from retinue.operations.server.maintenance import purge_daily
from retinue.operations.skill.hooks import send_hook_output as say_for_hook
from retinue.outbox.completion_webhooks import CompletionConnector
from retinue.outbox.deliveries import Outbox
from retinue.outbox.external_agent_delivery import ExternalAgentConnector, get_own_url, make_http
from retinue.outbox.outbound_access import AccessCheckedPost, OutboundAccess
from retinue.outbox.posted_questions import PostedQuestions
from retinue.outbox.typing_and_previews import ProgressDisplays
from retinue.plugins.lifecycle import PluginLoader
from retinue.plugins.registry import EntryKind, PluginRegistry, SettingsWithPlugins
from retinue.policy.access.operation_permissions import override_levels
from retinue.runners.attachment_reader import StoredAttachmentReader
from retinue.runners.base import Runner
from retinue.runners.external import ExternalRunner
from retinue.runners.loop import ToolLoop
from retinue.runners.mirror_runner import MirrorRunner
from retinue.runners.model_call import ModelCaller
from retinue.runners.session_options import ConfiguredOptions
from retinue.runners.token_estimate import tokens_of_text
from retinue.schedules.file_reader import read_with_trust
from retinue.schedules.heartbeat_prompt import ChecklistReader
from retinue.schedules.heartbeats import HeartbeatSettings, HeartbeatSync
from retinue.schedules.schedule_files import ScheduleFileSync
from retinue.store.agents import agents
from retinue.store.core.connection import LockRequest, Store
from retinue.store.core.transaction import Transaction
from retinue.store.envelopes.attachment_files import AttachmentFiles
from retinue.store.open_store import open_store, prepare_store_file
from retinue.store.people import people, tokens
from retinue.text.redaction import Redactor
from retinue.tools.base import Tool
from retinue.tools.earlier_messages import EarlierOwnerTurns
from retinue.tools.mcp.server_pool import build_mcp_layers as mcp_layers
from retinue.tools.toolbox import Toolbox

if TYPE_CHECKING:
    from retinue.agents.session_mirror import SessionMirror
    from retinue.intake.inbound_webhooks import WebhookIntake
    from retinue.models.pydantic_ai_bridge import BridgedModels

log = logging.getLogger(__name__)

GC_THRESHOLD = 25_000
OWNER_TOKEN_LABEL = "owner-token"

OWNER = Person(name="owner", role=Role.OWNER)
FIRST_AGENTS = (
    Agent(
        name="main",
        description="Your main agent. Uses the default model once there is an API key, and a script until then.",
    ),
    Agent(
        name="guide",
        description="Explains retinue. An offline script, not a language model: needs no API key and no network.",
        model="guide",
    ),
    Agent(
        name="clerk",
        description="Like guide, but asks for approval before it reads a file.",
        model="guide",
        tools=ToolRules(ask=("read",)),
    ),
)


class ServerParts(Struct, frozen=True, kw_only=True):
    """Parts of the server that a test or benchmark can replace, and parts that it can add."""

    clock: Clock
    ids: IdSource
    crash_points: CrashPoints
    random: Random = field(default_factory=new_random)
    models: Sequence[Model] = ()
    tools: Sequence[Tool] = ()
    first_agents: Sequence[Agent] = FIRST_AGENTS
    connectors: Sequence[Connector] = ()
    slots: SlotLimits | None = None
    configuration: Configuration | None = None  # where the settings come from, to reload them


class RunningServer(Struct, frozen=True, kw_only=True):
    """The parts of a running server that its callers use."""

    store: Store
    engine: EmbeddedEngine
    outbox: Outbox
    services: Services


@asynccontextmanager
async def open_server(
    settings: Settings, parts: ServerParts, *, stop: Callable[[], None] | None = None
) -> AsyncGenerator[RunningServer]:
    """Start all parts of a server except the API: store, engine, outbox and connectors.

    When the context exits, the parts are stopped, and active runs get time to finish. If another
    server takes over the database, `stop` is called, and the context manager raises the error when it
    exits.
    """
    clock, ids = parts.clock, parts.ids
    taken_over: list[StoreError] = []

    def on_taken_over(error: StoreError) -> None:
        taken_over.append(error)
        if stop is not None:
            stop()

    lock = LockRequest(host=socket.gethostname(), pid=os.getpid(), directory=settings.home, on_lost=on_taken_over)
    if isinstance(settings.store, Path):
        prepare_store_file(settings.store, faults=parts.crash_points)
    store = await open_store(settings.store, faults=parts.crash_points, lock=lock)
    try:
        await store.write(
            partial(_add_owner_and_agents, first_agents=parts.first_agents, at_ms=to_ms(clock.now())), point="setup"
        )
        for agent in await store.read(agents.list_all):
            ensure_agent_directory(settings.home, agent.name)
        live = EventBroadcast()
        store.on_commit(live.announce_commit)
        config_holder = ConfigHolder(parts.configuration, os.environ) if parts.configuration is not None else None

        def current() -> Settings:
            return config_holder.current.settings if config_holder is not None else settings

        registry = PluginRegistry(is_taken=lambda kind, name: name in taken.get(kind, frozenset[str]()))
        settings_with_plugins = SettingsWithPlugins(current, registry)
        files = AttachmentFiles(settings.home / "files")
        link = ProviderConnections()
        cache = EncodedContextCache()
        locals_ = LocalModels(clock, ids, link, cache, os.environ)
        models: tuple[Model, ...] = (OfflineGuide(clock), *locals_.list_installed(), *parts.models)
        model_router = ModelRouter(
            store,
            clock,
            models,
            settings=settings_with_plugins,
            environment=os.environ,
            factories={"local": locals_.find, "bridge": _bridge_maker(lambda ref: model_router.catalog.get_facts(ref))},
            connections=link,
            cache=cache,
            random=parts.random,
            zone=settings.zone,
        )
        masks = Redactor()
        set_known_secrets(masks)

        async def learn_secrets() -> None:
            await refresh_masks(masks, store, settings_with_plugins(), os.environ)

        async def credentials_changed() -> None:
            await model_router.refresh()
            await learn_secrets()

        await learn_secrets()
        built_in_tools = BuiltInTools(
            current,
            store=store,
            clock=clock,
            ids=ids,
            files=files,
            environment=os.environ,
            redact=masks.redact,
            random=parts.random,
        )
        gateway = GatewayTool(lambda: services, OPERATIONS)
        own_tools = (
            gateway,
            PermanentAgentTool(lambda: services),
            *build_cron_tools(lambda: services, OPERATIONS, built_in_tools.file_services),
        )
        tools: tuple[Tool, ...] = (
            *built_in_tools.tools,
            *own_tools,
            *parts.tools,
            *build_operation_tools(OPERATIONS.values(), lambda: services),
        )

        def on_plugin_change(instance: str, change: str, because: str) -> None:
            run_in_background(_store_plugin_event(store, clock, instance, change, because))

        plugins = PluginLoader(settings.home, registry, clock, on_change=on_plugin_change)
        toolbox = Toolbox(
            tools,
            clock=clock,
            calls_per_minute=settings.limits.calls_per_minute,
            settings=lambda: settings_with_plugins().tools,
            grants=built_in_tools.grants,
            provenance_policy=built_in_tools.provenance_policy,
            zone=settings.zone,
            earlier_turns=EarlierOwnerTurns(store),
            full_results=built_in_tools.full_results,
            ids=ids,
            redact=masks.redact,
            extra_layers=lambda agent: mcp_layers(current().mcp, agent),
        )
        external_agents = ExternalAgentConnector(
            store, clock, lambda: make_http(current()), lambda: get_own_url(current()), environment=os.environ
        )
        completions = CompletionConnector(store, clock, current, os.environ, masks.redact)
        connectors: dict[str, Connector] = {
            c.name: RedactedConnector(c, masks.redact) for c in (external_agents, completions, *parts.connectors)
        }
        built_in_tools.services.get_connector = connectors.get

        reply_delivery = partial(_reply_delivery, current)

        def kind_of(instance: str) -> str:
            return connector_supervisor.get_platform_name(instance)

        reach = OutboundAccess(
            partial(_access_rules, current), kind_of, get_default_agent=lambda: current().default_agent or MAIN_AGENT
        )
        outbox = Outbox(
            store,
            clock,
            connectors,
            sessions=lambda: current().sessions,
            get_reply_delivery=reply_delivery,
            get_refusal=reach.get_envelope_refusal,
            random=parts.random,
            faults=parts.crash_points,
        )
        prompt_builder = SystemPromptBuilder(
            store,
            clock,
            data_dir=settings.home,
            read_file=partial(read_with_trust, built_in_tools.file_services),
            count_tokens=tokens_of_text,
            owner=OWNER.name,
            redact=masks.redact,
        )
        skills = Skills(
            settings.home, store, settings=current, environment=os.environ, plugin_folders=plugins.skill_folders
        )
        load_resources = partial(load_run_resources, skills, plugins, current)
        run_prompts = RunPrompts(
            prompt_builder,
            store,
            data_dir=settings.home,
            settings=current,
            windows=built_in_tools.windows,
            zone=str(settings.zone),
            load_resources=load_resources,
            offered_tools=toolbox.offered_specs,
            model_facts=lambda agent, options: _first_model_facts(model_router, agent, options),
        )
        programs = OwnerPrograms(
            current,
            store,
            files,
            data_dir=settings.home,
            environment=os.environ,
            send_message=lambda event, hook, text: say_for_hook(services, event, hook, text),
        )
        model_caller = ModelCaller(
            model_router,
            clock,
            settings.zone,
            media=StoredAttachmentReader(files),
            build_system_prompt=run_prompts.build,
        )
        loop: Runner = ToolLoop(model_caller, toolbox, load_resources)
        mirror = _build_mirror(store, settings) if settings.mirror.enabled else None
        external: Runner = ExternalRunner(store, built_in_tools.services.delegate)
        runners: dict[str, Runner] = {
            "loop": MirrorRunner(loop, mirror) if mirror else loop,
            EXTERNAL: MirrorRunner(external, mirror) if mirror else external,
        }
        engine = EmbeddedEngine(
            store,
            clock,
            ids,
            runners,
            broadcast=live,
            agent_directory_of=partial(ensure_agent_directory, settings.home),
            zone=settings.zone,
            slot_limits=parts.slots or _slot_limits(settings),
            deliver=outbox.wake,
            reply_delivery=reply_delivery,
            typing=ProgressDisplays(clock, connectors),
            answers_by_number=lambda instance: has_numbered_answers(connectors.get(instance)),
            synthesize_voice=programs.speak,
            approval_settings=lambda: current().approvals,
            defaults=lambda: current().defaults,
            session_settings=lambda: current().sessions,
            session_ended=built_in_tools.end_session_work,
            available_options=ConfiguredOptions(
                model_router,
                toolbox,
                clock,
                model_caller.shortened_counts,
                run_prompts.list_parts,
                prompt_builder.cached_text,
                partial(measure_skills, skills, current),
            ),
            list_skill_commands=partial(list_skill_commands, skills, current),
            run_gate=built_in_tools.gates,
            read_checklist=ChecklistReader(
                clock=clock,
                read_file=partial(read_with_trust, built_in_tools.file_services),
                is_busy=lambda session: store.read(
                    partial(is_session_busy, session=session, now_ms=to_ms(clock.now()))
                ),
                agent_directory_of=partial(ensure_agent_directory, settings.home),
                workspace_of=lambda agent, home: current().defaults.workspace_of(agent, home),
                run_gate=built_in_tools.gates,
                gate_refusal=partial(explain_command_denial, toolbox),
                redact=masks.redact,
            ),
            faults=parts.crash_points,
        )
        outbox.set_wake_callback(engine.wake)
        policy = override_levels(DEFAULT_PERMISSIONS, settings.permission_policy)

        def apply_settings(now: Settings) -> None:
            policy.update(override_levels(_default_permissions(plugins), now.permission_policy))
            toolbox.limit_calls(now.limits.calls_per_minute)
            engine.set_slot_limits(parts.slots or _slot_limits(now))

        if config_holder is not None:
            config_holder.on_change(apply_settings)
            config_holder.on_change(lambda now: plugins.sync_soon(now.plugins))
            config_holder.on_change(lambda now: connector_supervisor.schedule_sync(now.connectors))
            config_holder.on_change(lambda _: built_in_tools.mcp_servers.sync_soon())
            config_holder.on_change(lambda _: update_tools())
            config_holder.on_change(lambda _: run_in_background(learn_secrets()))
        own_runners = dict(runners)
        taken: dict[EntryKind, AbstractSet[str]] = {
            EntryKind.TOOL: {tool.spec.name for tool in tools},
            EntryKind.OPERATION: set(OPERATIONS),
            EntryKind.MODEL: {model.name for model in models},
            EntryKind.RUNNER: set(own_runners),
            EntryKind.PROVIDER: set(BUILT_IN_PROVIDERS),
            EntryKind.PLATFORM: set(BUILT_IN_CONNECTORS),
        }

        def update_tools() -> None:
            """Set the current tools: the built-in tools, and those of plugins and MCP servers."""
            brought = build_operation_tools(registry.operations().values(), lambda: services)
            toolbox.set_tools([*tools, *registry.tools(), *brought, *built_in_tools.mcp_servers.list_tools()])

        def apply_plugin_change() -> None:
            """Update tools, models, runners and permissions after a plugin was loaded or unloaded, or has failed."""
            update_tools()
            model_router.set_built_in([*models, *registry.models()])
            run_in_background(credentials_changed())  # the plugin may add a model provider with its key
            for name in set(runners) - set(own_runners):
                del runners[name]
            runners.update(registry.runners())
            connector_supervisor.schedule_sync(current().connectors)
            policy.update(override_levels(_default_permissions(plugins), current().permission_policy))

        registry.on_change(apply_plugin_change)
        built_in_tools.mcp_servers.on_change(update_tools)
        one_off_tasks = set[asyncio.Task[None]]()

        def run_in_background(work: Coroutine[Any, Any, None]) -> None:
            task = asyncio.create_task(work)
            one_off_tasks.add(task)
            task.add_done_callback(one_off_tasks.discard)

        schedule_files = ScheduleFileSync(store, clock, ids, settings.home, settings.zone)
        heartbeats = HeartbeatSync(
            store,
            clock,
            lambda: _heartbeat_settings(current()),
            agent_directory_of=partial(ensure_agent_directory, settings.home),
            workspace_of=lambda agent, home: current().defaults.workspace_of(agent, home),
        )
        if config_holder is not None:
            config_holder.on_change(lambda _: heartbeats.trigger())
        inbox = EnvelopeIntake(store, clock, engine.wake, engine.reserve_slot, engine.execute_commands)
        access_control = PolicyAccessControl(
            store,
            clock,
            ids,
            partial(_access_rules, current),
            kind_of,
            post=inbox,
            get_default_agent=lambda: current().default_agent or MAIN_AGENT,
        )
        presses = ButtonPresses(store, clock, engine.wake, connectors)
        questions = PostedQuestions(store, connectors, reply_delivery)
        connector_intake = ConnectorIntake(
            store,
            inbox,
            clock,
            ids,
            access_control,
            lambda: current().sessions,
            fetch_attachment=make_fetcher(files),
            handle_press=presses.handle,
            refuse_press=presses.refuse,
            transcribe=programs.transcribe,
        )

        def redacted(inside: Connector) -> Connector:
            return RedactedConnector(inside, masks.redact, connector_supervisor.record_delivery)

        connector_supervisor = ConnectorSupervisor(
            SupervisorServices(
                store=store,
                clock=clock,
                ids=ids,
                random=parts.random,
                accept=connector_intake.accept,
                data_dir=settings.home,
                environment=os.environ,
                get_attachment_path=lambda attachment: files.path(attachment.hash),
                platforms=PlatformRegistry(registry.platforms),
                get_plugin_connectors=registry.connectors,
                alert_owner=OwnerAlerts(inbox, ids, name=OWNER.name).send,
            ),
            connectors,
            wrap=redacted,
        )
        for connector in parts.connectors:
            connector_supervisor.add(connector)
        services = Services(
            store=store,
            intake=inbox,
            engine=engine,
            event_broadcast=live,
            clock=clock,
            ids=ids,
            data_dir=settings.home,
            attachment_files=files,
            zone=settings.zone,
            version=__version__,
            new_secret=new_token,
            permission_policy=policy,
            toolbox=toolbox,
            file_services=built_in_tools.file_services,
            plugins=plugins,
            mcp=built_in_tools.mcp_servers,
            schedule_files=schedule_files,
            heartbeats=heartbeats,
            ui_windows=built_in_tools.windows,
            prompt_previews=run_prompts,
            redact=masks.redact,
            end_session_work=built_in_tools.end_session_work,
            catalog=lambda: model_router.catalog,
            explain_model_chain=model_router.describe_chain,
            on_credentials_changed=credentials_changed,
            config_holder=config_holder,
            settings=current,
            builtin_runners=frozenset(own_runners),
            external_callbacks=CallbackIntake(store, clock, engine.wake, os.environ),
            inbound_webhooks=lambda: _inbound_webhooks(services, connectors),
            connector_supervisor=connector_supervisor,
            hooks=programs.hooks,
        )
        built_in_tools.services.intake = AccessCheckedPost(services.intake, store, reach)
        built_in_tools.services.request_approval, built_in_tools.services.delegate_work = (
            engine.request_permission,
            engine.delegate,
        )
        built_in_tools.services.get_catalog = lambda: model_router.catalog
        built_in_tools.services.deliver_agent_message = engine.send_agent_message
        await built_in_tools.start()
        await plugins.sync(current().plugins)
        await credentials_changed()
        await built_in_tools.mcp_servers.sync()
        if mirror is not None:
            await mirror.start()
        await connector_supervisor.sync(current().connectors)
        await programs.start()
        await questions.start()
        await outbox.start()
        await engine.start()
        connector_supervisor.start()
        await schedule_files.start()
        await heartbeats.start()
        await announce_restart(settings.home, services.intake, ids)
        programs.notify_started(clock.now())

        background_tasks = [asyncio.create_task(purge_daily(services, lambda: current().retention))]
        background_tasks.append(asyncio.create_task(built_in_tools.probe_sandbox()))
        background_tasks.append(asyncio.create_task(anchor_hourly(services)))
        if model_router.catalog.needs_price_lookup:
            background_tasks.append(
                asyncio.create_task(_load_prices())
            )  # building it takes a while, and the first reply needs it
        try:
            yield RunningServer(store=store, engine=engine, outbox=outbox, services=services)
        finally:
            for task in background_tasks:
                task.cancel()
            await asyncio.gather(*background_tasks, return_exceptions=True)
            drain_s = 0.0 if taken_over else current().drain_s  # running work can no longer store anything
            await connector_supervisor.stop()
            await connector_intake.stop()
            presses.abandon()
            await programs.stop()
            await questions.stop()
            await heartbeats.stop()
            await schedule_files.stop()
            await engine.stop(drain_s=drain_s)
            await built_in_tools.close()
            await plugins.close()
            for task in one_off_tasks:
                task.cancel()
            await asyncio.gather(*one_off_tasks, return_exceptions=True)
            await outbox.stop(drain_s=drain_s)
            await anchor_audit(services)
            if mirror is not None:
                await mirror.stop()
            await locals_.close()
            await model_router.close()
    finally:
        await store.close()
    if taken_over:
        raise taken_over[0]


def _access_rules(settings: Callable[[], Settings], connector: str) -> AccessSettings:
    """Return the access rules of a connector. A connector that is not in the settings accepts messages from no one."""
    named = settings().connectors.get(connector)
    return DEFAULT_ACCESS if named is None else named.access


def _reply_delivery(settings: Callable[[], Settings], connector: str) -> ReplyDelivery:
    """Return how a connector delivers replies. Settings of the connector override those of the server."""
    now = settings()
    named = now.connectors.get(connector)
    defaults = now.replies.with_defaults()
    return defaults if named is None else named.replies.with_defaults(defaults)


def _first_model_facts(models: ModelRouter, agent: Agent, options: SessionOptions) -> ModelFacts:
    """Return the facts about the model that would be called first, or a placeholder if no model can be called."""
    try:
        return models.catalog.get_facts(models.catalog.build_chain(agent=agent, session_options=options)[0])
    except RetinueError:
        return ModelFacts(ref=ModelRef("", agent.model or "none"))


def _inbound_webhooks(services: Services, connectors: Mapping[str, Connector]) -> WebhookIntake:
    """Import webhook support on the first request, because few instances receive any."""
    from retinue.intake.inbound_webhooks import WebhookIntake

    return WebhookIntake(
        services.store,
        services.intake,
        services.clock,
        services.ids,
        connectors=lambda: connectors,
        default_agent=services.default_agent,
    )


def _bridge_maker(facts: Callable[[ModelRef], ModelFacts]) -> ModelFactory:
    """Import the bridge to Pydantic AI on first use, because few instances have such a model."""

    @cache
    def bridges() -> BridgedModels:
        from retinue.models.pydantic_ai_bridge import BridgedModels

        return BridgedModels(facts)

    return lambda ref, entry: bridges().find(ref, entry)


async def _store_plugin_event(store: Store, clock: Clock, plugin: str, change: str, because: str) -> None:
    """Store an event which says that a plugin was loaded or unloaded, or has failed."""

    def body(conn: sa.Connection) -> None:
        transaction = Transaction(conn, to_ms(clock.now()))
        transaction.emit(EventKind.PLUGIN_CHANGED, person=OWNER.name, plugin=plugin, change=change, because=because)
        transaction.close()

    await store.write(body, point="plugin")


def _heartbeat_settings(settings: Settings) -> HeartbeatSettings:
    return HeartbeatSettings(
        defaults=settings.defaults.heartbeat, default_agent=settings.default_agent, zone=settings.zone
    )


def _build_mirror(store: Store, settings: Settings) -> SessionMirror:
    from retinue.agents.session_mirror import SessionMirror  # few instances use it

    return SessionMirror(store, settings.mirror.folder or settings.home / "mirror")


def _default_permissions(plugins: PluginLoader) -> dict[str, PermissionLevel]:
    """Return the permission level that each operation requires by default, including operations of plugins."""
    return {**DEFAULT_PERMISSIONS, **{name: each.permission for name, each in plugins.operations().items()}}


async def _load_prices() -> None:
    await prices.load_prices()
    gc.freeze()  # prices stay loaded: exclude them from garbage collection


def _slot_limits(settings: Settings) -> SlotLimits:
    counts = settings.slots
    return SlotLimits(
        main=counts.main, schedule=counts.schedule, subagent=counts.subagent, background=counts.background
    )


def _add_owner_and_agents(conn: sa.Connection, *, first_agents: Sequence[Agent], at_ms: int) -> None:
    """Add the owner and the first agents when the server starts for the first time."""
    if people.find(conn, OWNER.name) is None:
        people.add(conn, OWNER, at_ms=at_ms)
    for agent in first_agents:
        if not agents.has_existed(conn, agent.name):  # a deleted agent is not added again
            agents.upsert(conn, agent, source="setup", at_ms=at_ms)


async def _store_owner_token(data_dir: Path, store: Store, now: datetime) -> None:
    """Store the hash of the owner's token in the database. The token itself is only in a file in the data directory."""
    token_hash = hash_token(owner_token(data_dir, new_token))

    def body(conn: sa.Connection) -> None:
        owner = str(address.person_address(OWNER.name))
        if not tokens.is_known(conn, token_hash):
            for old in tokens.list_of_principal(conn, owner, now_ms=to_ms(now)):
                if old.label == OWNER_TOKEN_LABEL:  # the file was recreated: revoke its earlier token
                    tokens.revoke(conn, old.id, at_ms=to_ms(now))
            token = Token(
                id=TokenId(token_hash[:32]),
                kind=TokenKind.TOKEN,
                principal=address.person_address(OWNER.name),
                label=OWNER_TOKEN_LABEL,
                created_at=now,
            )
            tokens.add(conn, token, token_hash)

    await store.write(body, point="setup")


class _ApiServer(Server):
    """A uvicorn server without signal handlers. The caller handles signals, because a stop must wait for the engine."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def serve_until(
        self, stop: asyncio.Event, listeners: list[socket.socket], event_broadcast: EventBroadcast
    ) -> None:
        serving = asyncio.create_task(self.serve(sockets=listeners))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        event_broadcast.close()
        self.should_exit = True
        stopping.cancel()
        await serving


async def serve(settings: Settings, parts: ServerParts, *, announce: bool = True, keep_log: bool = False) -> None:
    """Run the server until a signal stops it."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, stop)
    with instance_lock(settings.home):
        if keep_log:  # only with the lock: a refused start must not rotate the log of the running server
            in_background = _set_up_server_logs(settings)
            if parts.configuration is not None and parts.configuration.renamed:
                parts = replace(parts, configuration=_rename_settings(in_background=in_background))
        await _serve_locked(settings, parts, stop, announce=announce)


async def _serve_locked(settings: Settings, parts: ServerParts, stop: asyncio.Event, *, announce: bool) -> None:
    http = http_settings_from(settings, os.environ)
    http.check_exposure()
    path = socket_path(settings.home, os.environ)
    # Bind the port first: if it is taken, fail before any work is resumed.
    with (
        listening_address(settings.home, http.host, http.port) if http.enabled else remove_address(settings.home) as tcp
    ):
        async with open_server(settings, parts, stop=stop.set) as server:
            await _store_owner_token(settings.home, server.store, parts.clock.now())
            with listening_socket(settings.home, path) as listener:
                limiter = ConnectionLimiter(http)
                app = build_api(server.services, http, limiter)
                if server.services.config_holder is not None:
                    server.services.config_holder.on_change(
                        lambda now: app.apply_settings(http_settings_from(now, os.environ))
                    )
                    server.services.config_holder.on_change(lambda now: set_level(now.logs.level))
                    asyncio.get_running_loop().add_signal_handler(
                        signal.SIGHUP, _reload_settings, server.services.config_holder
                    )
                config = build_server_config(app, limiter)
                log.info("server started", extra={"home": settings.home, "address": tcp[1] if tcp else "off"})
                if announce:
                    await _print_startup_message(settings, server.services, path, url=tcp[1] if tcp else "")
                await _ApiServer(config).serve_until(
                    stop, [listener, *([tcp[0]] if tcp else [])], server.services.event_broadcast
                )
                log.info("server stopping", extra={"draining": server.engine.active_lanes})


def http_settings_from(settings: Settings, environment: Mapping[str, str]) -> HttpSettings:
    """Return the HTTP settings. `RETINUE_LISTEN` overrides the settings file: HOST:PORT, or `off`."""
    host, port, enabled = settings.listen.host, settings.listen.port, settings.listen.enabled
    if listen := environment.get("RETINUE_LISTEN"):
        named, _, digits = listen.rpartition(":")
        enabled = listen != "off"
        if enabled and not (named and digits.isdigit() and int(digits) <= PORT_MAX):
            raise ListenAddressInvalid(listen)
        host, port = (named.strip("[]"), int(digits)) if enabled else (host, port)
    limits = settings.limits
    return HttpSettings(
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


def _reload_settings(config_holder: ConfigHolder) -> None:
    """Reload the settings on SIGHUP. If the settings file is invalid, the current settings stay in use."""
    try:
        changes = config_holder.reload()
    except RetinueError as error:
        log.error("settings not reloaded", extra={"error": str(error)})
        return
    log.info(
        "settings reloaded",
        extra={
            "changed": ",".join(change.path for change in changes),
            "waiting": ",".join(change.path for change in config_holder.pending_changes),
        },
    )


def _on_signal(stop: asyncio.Event) -> None:
    if stop.is_set():
        os._exit(130)  # a second signal: exit at once; work resumes at the next start
    stop.set()


async def _print_startup_message(settings: Settings, services: Services, socket_file: Path, *, url: str) -> None:
    web = f"  web app         {await _web_address(services, settings.public_url or url)}\n" if url else ""
    sys.stdout.write(
        f"retinue {__version__} is running.\n"
        f"{web}"
        f"  data directory  {settings.home}\n"
        f"  socket          {socket_file} (this machine, your user only)\n"
        f"  your token      {settings.home / 'owner-token'} (the `retinue` command reads it)\n"
        f"\nChat with an agent, from another terminal:\n"
        f"  {_command()} chat\n"
        f'  {_command()} chat --once "help"\n'
        f"\nStop with Ctrl-C.\n"
    )
    sys.stdout.flush()


async def _web_address(services: Services, url: str) -> str:
    """Return the web app's address to print.

    If stdout is a terminal, the address contains a single-use sign-in code. Any other output may be stored, so it does
    not contain a code.
    """
    if not sys.stdout.isatty():
        return f"{url}/ (to sign in: retinue token code)"
    owner = Principal(address=address.person_address(OWNER.name), level=PermissionLevel.BOSS, trust=Trust.OWNER)
    made = msgspec.json.decode(await perform_operation(services, owner, OPERATIONS["token.code"], b"{}"))
    return f"{url}/#code={made['code']} (signs you in once, within minutes)"


def _command() -> str:
    """Return the command for this program: `retinue` if that is on the PATH, or else the relative path to it."""
    beside = Path(sys.executable).with_name("retinue")
    on_path = any(Path(folder, "retinue") == beside for folder in os.environ.get("PATH", "").split(os.pathsep))
    return "retinue" if on_path or not beside.exists() else os.path.relpath(beside)


def default_parts() -> ServerParts:
    return ServerParts(clock=RealClock(), ids=RandomIds(), crash_points=crash_points_from(dict(os.environ)))


def _set_up_server_logs(settings: Settings) -> bool:
    """Log to the data directory and to stderr. In the background, log only to the data directory.

    In the background, stderr is the start log, which is not rotated. Returns whether the server runs in the background.
    """
    in_background = bool(os.environ.pop("RETINUE_BACKGROUND", "")) and settings.logs.file
    set_up_logs(None if in_background else sys.stderr, data_dir=settings.home, logs=settings.logs)
    return in_background


def _rename_settings(*, in_background: bool) -> Configuration:
    """Replace old names in the settings files, and return the settings read from them.

    Each renamed setting is logged. `retinue up` prints the renamed settings too, because people may not see the log.
    """
    from retinue.config.settings_upgrade import upgrade_settings_files  # lazy: imports what most starts never need

    for each in upgrade_settings_files(os.environ):
        if each.problem:
            log.warning(
                "settings file has old names and cannot be rewritten",
                extra={"settings_file": each.file, "because": each.problem, "try": "rename them in the file"},
            )
        for renamed in each.renamed:
            log.warning("setting renamed", extra={"old": renamed.old, "new": renamed.new, "settings_file": each.file})
        if in_background:
            sys.stdout.write("".join(f"settings: {line}\n" for line in each.format_lines()))
            sys.stdout.flush()
    return load_configuration(os.environ, accept_old_names=True)


def run(settings: Settings, parts: ServerParts, *, announce: bool = True, keep_log: bool = False) -> None:
    """Run the server on the fastest event loop that is installed."""
    try:
        import uvloop

        factory = uvloop.new_event_loop
    except ImportError:
        factory = asyncio.new_event_loop
    # Loaded modules stay for good, so exclude them from garbage collection. Collect less often too: reading back
    # a long session creates thousands of objects.
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)
    speed_up_enums()
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(serve(settings, parts, announce=announce, keep_log=keep_log))


def speed_up_enums() -> None:
    """Make access to enum members as fast as in Python 3.12 and later.

    In Python 3.11, `EnumType` has an obsolete `__getattr__`, which makes each access ten times slower. A turn with a
    tool call makes about 500 such accesses.
    """
    if "__getattr__" in vars(EnumType):
        delattr(EnumType, "__getattr__")
    # The same for `member.value`, which takes two Python calls per access, fifty times a turn.
    Enum.value = property(attrgetter("_value_"))  # type: ignore[assignment]


def main() -> int:
    """Entry point of `python -m retinue.app.server`, which `retinue run` starts."""
    set_up_logs(sys.stderr)
    try:
        parts = default_parts()
        configuration = load_configuration(os.environ, accept_old_names=True)
        settings = configuration.settings
        settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        run(settings, replace(parts, configuration=configuration), keep_log=True)
    except RetinueError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
