"""Operations on agents: list, show, register, change, delete, and their version history."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any, cast

import msgspec
import sqlalchemy as sa

from retinue.agents.agent_diff import (
    AGENT_FIELDS,
    DEFAULT,
    SELF_EDITABLE_FIELDS,
    apply_changes,
    diff_agents,
    settings_key_of,
)
from retinue.agents.agent_directory import agent_directory_of, ensure_agent_directory, remove_agent_directory
from retinue.config.declarations import AGENT_SETTING_RULES, RUNNERS
from retinue.config.setting_metadata import INTEGER_MAX, NO_RULE
from retinue.config.validators import check_effort_or_default
from retinue.domain import address
from retinue.domain.address import BACKGROUND, AddressKind, validate_name
from retinue.domain.agent import Agent, AgentVersion, Color, CrashPolicy, ExternalAgentEndpoint, PermissionLevel
from retinue.domain.display_options import Elevation, Verbosity
from retinue.domain.errors import RetinueError
from retinue.domain.event import EventKind
from retinue.domain.ids import SessionId, short_id
from retinue.domain.instruction_mode import InstructionMode
from retinue.domain.principal import Principal
from retinue.domain.sandbox import SandboxMode, SandboxScope, SandboxVisibleSessions, WorkspaceAccess
from retinue.domain.schedule import ScheduleSession
from retinue.domain.session import Overflow, QueueMode
from retinue.domain.shared_errors import AgentNotFound
from retinue.domain.storable_text import is_storable
from retinue.domain.structs import replace
from retinue.domain.times import format_time, to_ms
from retinue.domain.token import TokenKind
from retinue.operations.agent.agent_responses import (
    AgentChanged,
    AgentComparison,
    AgentDeleted,
    AgentDetails,
    AgentFieldChange,
    AgentList,
    AgentRegistered,
    AgentRestored,
    AgentState,
    AgentVersionList,
    AgentVersionRow,
    to_agent_response,
    to_agent_row,
)
from retinue.operations.agent.effective_settings import resolve_effective_settings
from retinue.operations.agent.errors import (
    AgentChangesInvalid,
    AgentExists,
    AgentFallbacksTwice,
    AgentFieldsInvalid,
    AgentFieldsNotAllowed,
    AgentNameReserved,
    AgentTextTooLarge,
    AgentVersionNotFound,
    ExternalSettingsUnused,
    ExternalUrlMissing,
)
from retinue.operations.base import EmptyRequest, Operation, Services
from retinue.operations.person.tokens import build_token
from retinue.policy.access.operation_permissions import is_at_least
from retinue.store.agents import agents, grants
from retinue.store.channels import bindings
from retinue.store.core.transaction import Transaction
from retinue.store.people import tokens
from retinue.store.schedules import schedules

TEXT_BYTES_MAX = 65_536  # per text field of a definition
LIST_ITEMS_MAX = 200
LIST_ITEM_CHARS_MAX = 200
VERSIONS_LISTED_MAX = 50


class ModelWithFallbacks(msgspec.Struct, forbid_unknown_fields=True):
    """A model and its fallback models, as the value of the field `model`."""

    primary: str | None = None
    fallbacks: list[str] | None = None


FILE_ONLY_FIELDS = frozenset({"tools_by_provider"})  # a table: can only be set in the settings file
_NON_EMPTY_FIELDS = frozenset({"provider", "model", "effort", "subagents_model", "subagents_effort"})


class AgentFields(msgspec.Struct, forbid_unknown_fields=True):
    """Settings of an agent. An omitted field keeps its current value; in a new agent, it gets its default.

    The value `default` clears `model` or `effort`. An agent without a model uses the default model of the
    instance. An agent without `fallbacks` uses the fallback models of the instance; with an empty list,
    it has no fallback models.
    """

    name: str
    display_name: str | None = None
    description: str | None = None
    runner: str | None = None
    external_url: str | None = None
    external_secret: str | None = None
    external_timeout_s: float | None = None
    external_retries: int | None = None
    provider: str | None = None
    model: str | ModelWithFallbacks | None = None
    fallbacks: list[str] | None = None
    effort: str | None = None
    verbose: Verbosity | None = None
    elevated: Elevation | None = None
    instructions: str | None = None
    instructions_mode: InstructionMode | None = None
    workspace: str | None = None
    context_files: list[str] | None = None
    crash_policy: CrashPolicy | None = None
    concurrency: int | None = None
    queue_mode: QueueMode | None = None
    queue_cap: int | None = None
    queue_overflow: Overflow | None = None
    queue_debounce_s: float | None = None
    reset_daily_at: str | None = None
    reset_idle_minutes: float | None = None
    reset_context_tokens_max: int | None = None
    tools_profile: str | None = None
    tools_allow: list[str] | None = None
    tools_also_allow: list[str] | None = None
    tools_ask: list[str] | None = None
    tools_deny: list[str] | None = None
    tools_capabilities_allow: list[str] | None = None
    tools_capabilities_deny: list[str] | None = None
    tools_policy: str | None = None
    delegation_allow: list[str] | None = None
    delegation_deny: list[str] | None = None
    delegation_depth_max: int | None = None
    delegation_open_max: int | None = None
    delegation_exchanges_max: int | None = None
    delegation_allow_cycles: bool | None = None
    delegation_other_sessions: bool | None = None
    subagents_allow: list[str] | None = None
    subagents_model: str | None = None
    subagents_effort: str | None = None
    subagents_run_seconds_max: float | None = None
    subagents_archive_after_s: float | None = None
    heartbeat_every_s: float | None = None
    heartbeat_active_start: str | None = None
    heartbeat_active_end: str | None = None
    heartbeat_active_zone: str | None = None
    heartbeat_prompt: str | None = None
    heartbeat_model: str | None = None
    heartbeat_session: ScheduleSession | None = None
    heartbeat_target: str | None = None
    heartbeat_ack_chars_max: int | None = None
    sandbox_mode: SandboxMode | None = None
    sandbox_scope: SandboxScope | None = None
    sandbox_workspace: WorkspaceAccess | None = None
    sandbox_visible_sessions: SandboxVisibleSessions | None = None
    sandbox_browser: bool | None = None
    sandbox_image: str | None = None
    sandbox_cpus: float | None = None
    sandbox_idle_hours: float | None = None
    sandbox_age_days: float | None = None
    turns_max: int | None = None
    run_seconds_max: float | None = None
    tokens_max: int | None = None
    cost_microusd_max: int | None = None
    tree_microusd_max: int | None = None
    day_microusd_max: int | None = None
    month_microusd_max: int | None = None
    attempts_max: int | None = None
    replay_age_s: float | None = None
    approval_wait_s: float | None = None
    permission_level: PermissionLevel | None = None
    icon: str | None = None
    color: Color | None = None
    visible: bool | None = None


class AgentRegisterRequest(AgentFields):
    """Register an agent. `dry_run` validates the fields and stores nothing.

    `token` also creates a token for the agent, which is shown only in this response.
    """

    dry_run: bool = False
    token: bool = False


class AgentSetRequest(AgentFields):
    """Change the settings of an agent. `clear` lists fields to reset to their defaults."""

    clear: list[str] = []
    dry_run: bool = False


class AgentNameRequest(msgspec.Struct, forbid_unknown_fields=True):
    name: str


class AgentVersionsRequest(msgspec.Struct, forbid_unknown_fields=True):
    """List the versions of an agent. `before` is the `next` of the previous page."""

    name: str
    limit: int = 20
    before: int | None = None


class AgentDiffRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Compare two versions of an agent. `new` defaults to the current version."""

    name: str
    old: int
    new: int | None = None


class AgentRestoreRequest(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    version: int


class AgentDeleteRequest(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    keep_directory: bool = False


async def list_agents(services: Services, caller: Principal, request: EmptyRequest) -> AgentList:
    """List all agents by name. Every caller sees all agents, because every caller may send messages to them."""
    return AgentList([to_agent_row(agent) for agent in await services.store.scan(agents.list_all)])


async def show_agent(services: Services, caller: Principal, request: AgentNameRequest) -> AgentDetails:
    """Show one agent. Guests see only its state and what `agent.list` shows. An agent can show only itself."""

    def body(conn: sa.Connection) -> tuple[Agent, list[SessionId]]:
        agent = require_visible_agent(conn, caller, request.name)
        return agent, agents.list_working_sessions(conn, agent.name)

    agent, working = await services.store.scan(body)
    state = AgentState.RUNNING if working else AgentState.IDLE
    if caller.address.kind is AddressKind.PERSON and not is_at_least(caller.level, PermissionLevel.STANDARD):
        return AgentDetails(
            name=agent.name,
            display_name=agent.display_name,
            description=agent.description,
            runner=agent.runner,
            model=agent.model,
            icon=agent.icon,
            color=agent.color,
            visible=agent.visible,
            version=agent.version,
            state=state,
        )
    settings = services.settings() if services.settings is not None else None
    if settings is None:
        return to_agent_response(agent, AgentDetails, state=state)
    held = resolve_effective_settings(
        agent, settings, agent_directory_of(services.data_dir, agent.name), model=_first_model(services, agent)
    )
    return to_agent_response(agent, AgentDetails, state=state, effective_settings=held)


async def register_agent(services: Services, caller: Principal, request: AgentRegisterRequest) -> AgentRegistered:
    name = validate_name(request.name, what="an agent")
    if name.casefold() == BACKGROUND:
        raise AgentNameReserved(name)
    made = apply_changes(Agent(name=name), _validated_fields(request, known_runners(services)))
    _check_combination(made)
    _check_effort(services, made)
    now = services.clock.now()
    token, secret, token_hash = build_token(
        services, address.agent_address(name), TokenKind.TOKEN, label="registered", now=now
    )

    def body(conn: sa.Connection) -> Agent:
        tx = Transaction(conn, to_ms(now))
        _check_name_free(conn, name)
        kept = store_agent(tx, made, caller)
        if request.token:
            tokens.add(conn, replace(token, principal=address.agent_address(kept.name)), token_hash)
        tx.close()
        return kept

    if request.dry_run:
        await services.store.read(partial(_check_name_free, name=name))
        return to_agent_response(made, AgentRegistered, dry_run=True)
    kept = await services.store.write(body, point="agent", then=partial(notify_engine, services))
    directory = await asyncio.to_thread(ensure_agent_directory, services.data_dir, kept.name)
    return to_agent_response(
        kept, AgentRegistered, directory=str(directory), token=secret if request.token else msgspec.UNSET
    )


async def change_agent(services: Services, caller: Principal, request: AgentSetRequest) -> AgentChanged:
    given = _validated_fields(request, known_runners(services))

    def read_change(conn: sa.Connection) -> tuple[Agent, Agent]:
        agent = require_visible_agent(conn, caller, request.name, to_change=True)
        new = apply_changes(agent, given, clear=request.clear)
        _check_combination(new)
        _check_may_change(caller, agent, new)
        if given.keys() & {"model", "provider", "effort"}:
            _check_effort(services, new)
        return agent, new

    def body(conn: sa.Connection) -> tuple[Agent, Agent]:
        tx = Transaction(conn, to_ms(services.clock.now()))
        agent, new = read_change(conn)
        if new != agent:
            new = store_agent(tx, new, caller)
        tx.close()
        return agent, new

    if request.dry_run:
        agent, new = await services.store.read(read_change)
        return to_agent_response(new, AgentChanged, changed=list(diff_agents(agent, new)), dry_run=True)
    agent, new = await services.store.write(
        body, point="agent", then=lambda done: notify_engine(services, done[1] if done else None)
    )
    return to_agent_response(new, AgentChanged, changed=list(diff_agents(agent, new)))


async def list_agent_versions(services: Services, caller: Principal, request: AgentVersionsRequest) -> AgentVersionList:
    limit = max(1, min(request.limit, VERSIONS_LISTED_MAX))

    def body(conn: sa.Connection) -> list[AgentVersion]:
        agent = require_visible_agent(conn, caller, request.name, to_change=True)
        before = {} if request.before is None else {"before": request.before}
        # Read one version past the end of the page, to compare the last row with it and to detect a next page.
        return list(agents.list_versions(conn, agent.name, limit=limit + 1, **before))

    found = await services.store.scan(body)
    rows = [
        _to_version_row(services, version, found[i + 1] if i + 1 < len(found) else None)
        for i, version in enumerate(found[:limit])
    ]
    return AgentVersionList(rows, next=found[limit - 1].number if len(found) > limit else None)


async def compare_versions(services: Services, caller: Principal, request: AgentDiffRequest) -> AgentComparison:
    def body(conn: sa.Connection) -> tuple[Agent, Agent]:
        agent = require_visible_agent(conn, caller, request.name, to_change=True)
        new = agent if request.new is None else _require_version(conn, agent, request.new).agent
        return _require_version(conn, agent, request.old).agent, new

    old, new = await services.store.scan(body)
    changes = [AgentFieldChange(name, was, is_) for name, (was, is_) in diff_agents(old, new).items()]
    return AgentComparison(new.name, old=old.version, new=new.version, changes=changes)


async def restore_version(services: Services, caller: Principal, request: AgentRestoreRequest) -> AgentRestored:
    """Store an old version of an agent's definition again, as a new version. All other versions are kept."""

    def body(conn: sa.Connection) -> Agent:
        tx = Transaction(conn, to_ms(services.clock.now()))
        agent = require_visible_agent(conn, caller, request.name, to_change=True)
        old = replace(_require_version(conn, agent, request.version).agent, name=agent.name, version=agent.version)
        _check_may_change(caller, agent, old)
        kept = store_agent(tx, old, caller)
        tx.close()
        return kept

    kept = await services.store.write(body, point="agent", then=partial(notify_engine, services))
    return to_agent_response(kept, AgentRestored, restored=request.version)


async def delete_agent(services: Services, caller: Principal, request: AgentDeleteRequest) -> AgentDeleted:
    """Delete an agent: commit the deletion, then stop its runs.

    If the server stops before all runs are stopped, it stops the remaining ones after the restart.
    """

    def body(conn: sa.Connection) -> tuple[Agent, list[SessionId]]:
        tx = Transaction(conn, to_ms(services.clock.now()))
        agent = require_visible_agent(conn, caller, request.name, to_change=True)
        agents.remove(conn, agent.name, at_ms=tx.at_ms)
        tokens.revoke_all(conn, str(address.agent_address(agent.name)), at_ms=tx.at_ms)
        grants.revoke_all(conn, agent.name, by=caller.address.name, at_ms=tx.at_ms)
        schedules.remove_agent(tx, agent.name)
        bindings.remove_agent(conn, agent.name, at_ms=tx.at_ms)
        tx.emit(EventKind.AGENT_CHANGED, agent=agent.name, deleted=True, by=str(caller.address))
        tx.close()
        return agent, agents.list_working_sessions(conn, agent.name)

    def on_commit(done: tuple[Agent, list[SessionId]] | None) -> None:
        if done is not None:
            services.engine.agent_removed(done[0].name)

    agent, working = await services.store.write(body, point="agent", then=on_commit)
    stopped: list[str] = []
    for session in working:
        done = await services.engine.cancel(session, by=str(caller.address), reason=f"agent {agent.name} was deleted")
        stopped += [short_id(run) for run in done.runs]
    if not request.keep_directory:
        await asyncio.to_thread(remove_agent_directory, services.data_dir, agent.name)
    kept = str(agent_directory_of(services.data_dir, agent.name)) if request.keep_directory else None
    return AgentDeleted(agent.name, deleted=True, cancelled_runs=stopped, directory=kept)


# --- shared by the handlers ---


def require_visible_agent(conn: sa.Connection, caller: Principal, name: str, *, to_change: bool = False) -> Agent:
    """Return the agent with this name. Raise if there is none, or if the caller may not see it.

    If the caller is an agent, it may see only itself. With `to_change`, an agent with the level boss may
    see all agents.
    """
    agent = agents.find(conn, name)
    outranks = to_change and caller.level is PermissionLevel.BOSS
    hidden = (
        agent is not None
        and caller.address.kind is AddressKind.AGENT
        and caller.address.name.casefold() != agent.name.casefold()
        and not outranks
    )
    if agent is None or hidden:
        raise AgentNotFound(name)
    return agent


def _require_version(conn: sa.Connection, agent: Agent, number: int) -> AgentVersion:
    found = agents.get_version(conn, agent.name, number)
    if found is None:
        raise AgentVersionNotFound(agent.name, number, newest=agent.version)
    return found


def _check_name_free(conn: sa.Connection, name: str) -> None:
    there = agents.find(conn, name)
    if there is not None:
        raise AgentExists(there.name)


def store_agent(tx: Transaction, agent: Agent, caller: Principal) -> Agent:
    source = "agent" if caller.address.kind is AddressKind.AGENT else "api"
    by = str(caller.address)
    kept = agents.upsert(tx.conn, agent, source=source, at_ms=tx.at_ms, changed_by=by)
    tx.emit(EventKind.AGENT_CHANGED, agent=kept.name, version=kept.version, by=by)
    return kept


def _first_model(services: Services, agent: Agent) -> str:
    """Return the model that the agent would use first, or the setting `model` unchanged if it cannot be resolved."""
    try:
        return str(services.catalog().resolve_own_model(agent)) if services.catalog is not None else agent.model
    except RetinueError:
        return agent.model


def notify_engine(services: Services, agent: Agent | None) -> None:
    if agent is not None:
        services.engine.agent_changed(agent.name, agent.concurrency)


def _check_may_change(caller: Principal, old: Agent, new: Agent) -> None:
    limits = [name for name in diff_agents(old, new) if name not in SELF_EDITABLE_FIELDS]
    if limits and caller.level is not PermissionLevel.BOSS:
        raise AgentFieldsNotAllowed(old.name, limits, level=caller.level, allowed=sorted(SELF_EDITABLE_FIELDS))


def preview_agent_set(agent: Agent, *, changes: Mapping[str, Any]) -> Agent:
    """Return the agent as it would be after `agent.set` with these changes. Stores nothing."""
    try:
        asked = msgspec.convert({**changes, "name": agent.name}, AgentSetRequest)
    except msgspec.ValidationError as error:
        raise AgentChangesInvalid(because=str(error)) from error
    return apply_changes(agent, _validated_fields(asked), clear=asked.clear)


def known_runners(services: Services) -> frozenset[str]:
    """Return the names that the field `runner` of an agent accepts, even if some runners are not available yet."""
    return RUNNERS.union(services.plugins.runners() if services.plugins is not None else ())


def _validated_fields(request: AgentFields, runners: frozenset[str] = RUNNERS) -> dict[str, Any]:
    """Return the fields that the request sets, as values to store. Raise one error that lists all invalid fields."""
    given: dict[str, Any] = {}
    wrong: dict[str, str] = {}
    for name in AGENT_FIELDS:
        value = None if name in FILE_ONLY_FIELDS else _given_value(request, name)
        if value is None:
            continue
        given[name] = tuple(cast(list[str], value)) if isinstance(value, list) else value
        reason = (
            _invalid_runner_reason(given[name], runners) if name == "runner" else _invalid_reason(name, given[name])
        )
        if reason is not None:
            wrong[name] = reason
    if wrong:
        raise AgentFieldsInvalid(wrong)
    return given


def _given_value(request: AgentFields, name: str) -> Any:
    """Return the value of one field in a request. The field `model` can contain the fallback models too."""
    model = request.model
    if not isinstance(model, ModelWithFallbacks) or name not in ("model", "fallbacks"):
        return getattr(request, name)
    if name == "model":
        return model.primary
    if model.fallbacks is not None and request.fallbacks is not None:
        raise AgentFallbacksTwice
    return request.fallbacks if model.fallbacks is None else model.fallbacks


def _check_combination(agent: Agent) -> None:
    """Raise if an external agent has no URL, or if an agent that is not external has settings for external agents."""
    is_external = agent.runner == "external"
    if is_external and not agent.external.url:
        raise ExternalUrlMissing(agent.name)
    if not is_external and agent.external != ExternalAgentEndpoint():
        raise ExternalSettingsUnused(agent.name, runner=agent.runner)


def _check_effort(services: Services, agent: Agent) -> None:
    """Raise if the agent's model is known not to support its reasoning effort. Otherwise its next run would fail."""
    if services.catalog is None or agent.effort is None or agent.runner != "loop":
        return
    catalog = services.catalog()
    if agent.provider is None or agent.model or catalog.get_default_model(catalog.normalize_provider(agent.provider)):
        catalog.check_effort(catalog.resolve_own_model(agent), agent.effort)


def _invalid_reason(name: str, value: Any) -> str | None:
    """Return the reason why the value of one field is invalid, or None if it is valid."""
    if isinstance(value, tuple):
        rules = cast(tuple[str, ...], value)
        return _invalid_list_reason(rules) or _invalid_item_reason(name, rules)
    if isinstance(value, str):
        return _invalid_text_reason(name, value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _invalid_number_reason(name, value)
    return None


def check_text(name: str, text: str) -> None:
    """Raise if the text is not valid as the value of this field of an agent."""
    if (reason := _invalid_text_reason(name, text)) is not None:
        raise AgentFieldsInvalid({name: reason})


def _invalid_runner_reason(name: str, runners: frozenset[str]) -> str | None:
    return None if name in runners else f"no runner named {name[:64]!r}; the runners are {', '.join(sorted(runners))}"


def _invalid_text_reason(name: str, text: str) -> str | None:
    if not is_storable(text):
        return "it has NUL bytes or lone surrogates, which cannot be stored"
    if len(text.encode()) > TEXT_BYTES_MAX:
        raise AgentTextTooLarge(name, bytes_max=TEXT_BYTES_MAX)
    if text == "" and name in _NON_EMPTY_FIELDS:
        return "it is empty; use `clear` to remove it"
    check = AGENT_SETTING_RULES.get(settings_key_of(name), NO_RULE).check
    wrong = check(text) if check else None
    if not wrong:
        return None
    return f"it {wrong}, or {DEFAULT}" if check is check_effort_or_default else f"it {wrong}"


def _invalid_list_reason(items: tuple[str, ...]) -> str | None:
    if len(items) <= LIST_ITEMS_MAX and all(
        0 < len(rule) <= LIST_ITEM_CHARS_MAX and is_storable(rule) for rule in items
    ):
        return None
    return f"it must have at most {LIST_ITEMS_MAX} names or patterns, each of 1 to {LIST_ITEM_CHARS_MAX} characters"


def _invalid_item_reason(name: str, texts: tuple[str, ...]) -> str | None:
    check = AGENT_SETTING_RULES.get(settings_key_of(name), NO_RULE).check
    wrong = next(filter(None, map(check, texts)), None) if check else None
    return f"each {wrong}" if wrong else None


def _invalid_number_reason(name: str, number: float) -> str | None:
    rule = AGENT_SETTING_RULES.get(settings_key_of(name), NO_RULE)
    least = 0 if rule.least is None else rule.least
    most = INTEGER_MAX if rule.most is None else rule.most
    return None if least <= number <= most else f"{number} is not between {least:g} and {most:g}"


def _to_version_row(services: Services, version: AgentVersion, previous: AgentVersion | None) -> AgentVersionRow:
    return AgentVersionRow(
        version=version.number,
        at=format_time(version.at, services.zone),
        by=version.changed_by,
        source=version.source,
        changed=list(diff_agents(previous.agent, version.agent)) if previous else [],
    )


OPERATIONS = (
    Operation(
        name="agent.list",
        summary="List agents.",
        parameters=EmptyRequest,
        handler=list_agents,
        result=AgentList,
        permission=PermissionLevel.RESTRICTED,
    ),
    Operation(
        name="agent.show",
        summary="Show an agent.",
        parameters=AgentNameRequest,
        handler=show_agent,
        result=AgentDetails,
        permission=PermissionLevel.RESTRICTED,
    ),
    Operation(
        name="agent.register",
        summary="Register an agent.",
        parameters=AgentRegisterRequest,
        handler=register_agent,
        result=AgentRegistered,
        permission=PermissionLevel.BOSS,
        has_effect=True,
        secret_fields=frozenset({"token"}),
    ),
    Operation(
        name="agent.set",
        summary="Change an agent.",
        parameters=AgentSetRequest,
        handler=change_agent,
        result=AgentChanged,
        permission=PermissionLevel.PRIVILEGED,
        has_effect=True,
    ),
    Operation(
        name="agent.versions",
        summary="List the versions of an agent.",
        parameters=AgentVersionsRequest,
        handler=list_agent_versions,
        result=AgentVersionList,
        permission=PermissionLevel.STANDARD,
    ),
    Operation(
        name="agent.diff",
        summary="Compare two versions of an agent.",
        parameters=AgentDiffRequest,
        handler=compare_versions,
        result=AgentComparison,
        permission=PermissionLevel.STANDARD,
    ),
    Operation(
        name="agent.restore",
        summary="Restore an old version of an agent.",
        parameters=AgentRestoreRequest,
        handler=restore_version,
        result=AgentRestored,
        permission=PermissionLevel.PRIVILEGED,
        has_effect=True,
    ),
    Operation(
        name="agent.delete",
        summary="Delete an agent.",
        parameters=AgentDeleteRequest,
        handler=delete_agent,
        result=AgentDeleted,
        permission=PermissionLevel.BOSS,
        has_effect=True,
    ),
)
