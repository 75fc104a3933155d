"""Operations on agents: list, show, register, change, delete, and their version history."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any, cast

import msgspec
import sqlalchemy as sa

from retinue.agents.agent_diff import DEFAULT, FIELDS, OWN_BUSINESS, changed, differences, key_of
from retinue.agents.agent_directory import ensure_home, home_of, remove_home
from retinue.config.declarations import AGENT_RULES, RUNNERS
from retinue.config.setting_metadata import PLAIN, WHOLE_NUMBER_MAX
from retinue.config.validators import effort_or_default
from retinue.domain import address
from retinue.domain.address import BACKGROUND, AddressKind, valid_name
from retinue.domain.agent import Agent, AgentVersion, Colour, Delivery, External, PermissionLevel
from retinue.domain.display_options import Elevation, Verbosity
from retinue.domain.errors import Conflict, Invalid, NotAllowed, NotFound, RetinueError, TooLarge, Unfit
from retinue.domain.event import NewsKind
from retinue.domain.ids import SessionId, short
from retinue.domain.instruction_mode import InstructionMode
from retinue.domain.principal import Principal
from retinue.domain.sandbox import SandboxMode, Scope, SessionsSeen, WorkspaceAccess
from retinue.domain.schedule import Place
from retinue.domain.session import Overflow, QueueMode
from retinue.domain.storable_text import is_storable
from retinue.domain.structs import replace
from retinue.domain.times import show, to_ms
from retinue.domain.token import TokenKind
from retinue.operations.agent.agent_responses import (
    AgentChanged,
    AgentDeleted,
    AgentFieldChange,
    AgentRegistered,
    AgentRestored,
    AgentsCompared,
    AgentShown,
    AgentsListed,
    AgentState,
    AgentVersionListed,
    AgentVersionsListed,
    full_form,
    listed_form,
)
from retinue.operations.agent.effective_settings import in_force
from retinue.operations.base import Desk, Nothing, Operation
from retinue.operations.person.tokens import new_token
from retinue.policy.access.permissions import reaches
from retinue.store.agents import agents, grants
from retinue.store.channels import bindings
from retinue.store.core.transaction import Page
from retinue.store.people import tokens
from retinue.store.schedules import schedules

WORDS_BYTES_MAX = 65_536  # per text field of a definition
RULES_MAX = 200
RULE_LENGTH_MAX = 200
VERSIONS_LISTED_MAX = 50


class ModelGiven(msgspec.Struct, forbid_unknown_fields=True):
    """A model and its fallbacks, in one value."""

    primary: str | None = None
    fallbacks: list[str] | None = None


ONLY_DECLARED = frozenset({"tools_by_provider"})  # a table: can only be set in the settings file
_NEVER_EMPTY = frozenset({"provider", "model", "effort", "subagents_model", "subagents_effort"})


class Fields(msgspec.Struct, forbid_unknown_fields=True):
    """Settings of an agent. An omitted field keeps its value, or gets its default in a new agent.

    `default` as model or effort clears it. An agent without a model or without `fallbacks` uses those
    of the instance. An empty list means no fallbacks.
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
    model: str | ModelGiven | None = None
    fallbacks: list[str] | None = None
    effort: str | None = None
    verbose: Verbosity | None = None
    elevated: Elevation | None = None
    instructions: str | None = None
    instructions_mode: InstructionMode | None = None
    workspace: str | None = None
    context_files: list[str] | None = None
    delivery: Delivery | None = None
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
    delegation_circles: bool | None = None
    delegation_histories: bool | None = None
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
    heartbeat_place: Place | None = None
    heartbeat_target: str | None = None
    heartbeat_ack_chars_max: int | None = None
    sandbox_mode: SandboxMode | None = None
    sandbox_scope: Scope | None = None
    sandbox_workspace: WorkspaceAccess | None = None
    sandbox_sessions: SessionsSeen | None = None
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
    colour: Colour | None = None
    visible: bool | None = None


class Register(Fields):
    """`dry_run` validates and stores nothing. `token` also creates a token, shown only in this answer."""

    dry_run: bool = False
    token: bool = False


class Set(Fields):
    """`clear` lists fields to reset to their defaults."""

    clear: list[str] = []
    dry_run: bool = False


class Named(msgspec.Struct, forbid_unknown_fields=True):
    name: str


class Versions(msgspec.Struct, forbid_unknown_fields=True):
    """`before` is the `next` of the previous page."""

    name: str
    limit: int = 20
    before: int | None = None


class Diff(msgspec.Struct, forbid_unknown_fields=True):
    """Versions to compare. Without `new`, compare with the current version."""

    name: str
    old: int
    new: int | None = None


class Restore(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    version: int


class Delete(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    keep_home: bool = False


async def listed(desk: Desk, caller: Principal, asked: Nothing) -> AgentsListed:
    """List all agents by name. Every caller may write to all of them."""
    return AgentsListed([listed_form(agent) for agent in await desk.store.scan(agents.everyone)])


async def show_agent(desk: Desk, caller: Principal, asked: Named) -> AgentShown:
    """Show one agent. Guests see only what the list shows; an agent sees only itself."""

    def body(conn: sa.Connection) -> tuple[Agent, list[SessionId]]:
        agent = find_agent(conn, caller, asked.name)
        return agent, agents.at_work(conn, agent.name)

    agent, working = await desk.store.scan(body)
    state = AgentState.RUNNING if working else AgentState.IDLE
    if caller.address.kind is AddressKind.PERSON and not reaches(caller.level, PermissionLevel.STANDARD):
        return AgentShown(
            name=agent.name,
            display_name=agent.display_name,
            description=agent.description,
            runner=agent.runner,
            model=agent.model,
            icon=agent.icon,
            colour=agent.colour,
            visible=agent.visible,
            version=agent.version,
            state=state,
        )
    settings = desk.settings() if desk.settings is not None else None
    if settings is None:
        return full_form(agent, AgentShown, state=state)
    held = in_force(agent, settings, home_of(desk.home, agent.name), model=_model_of(desk, agent))
    return full_form(agent, AgentShown, state=state, in_force=held)


async def register(desk: Desk, caller: Principal, asked: Register) -> AgentRegistered:
    name = valid_name(asked.name, what="an agent")
    if name.casefold() == BACKGROUND:
        raise Invalid(
            f"no agent can be called {name}",
            because="agent:background is the house's own",
            try_this="choose another name",
            code="agent.name-reserved",
        )
    made = changed(Agent(name=name), _given(asked, runners_known(desk)))
    _check_whole(made)
    _check_effort(desk, made)
    now = desk.clock.now()
    token, secret, token_hash = new_token(desk, address.agent(name), TokenKind.TOKEN, label="registered", now=now)

    def body(conn: sa.Connection) -> Agent:
        page = Page(conn, to_ms(now))
        _check_free(conn, name)
        kept = put_agent(page, made, caller)
        if asked.token:
            tokens.add(conn, replace(token, principal=address.agent(kept.name)), token_hash)
        page.close()
        return kept

    if asked.dry_run:
        await desk.store.read(partial(_check_free, name=name))
        return full_form(made, AgentRegistered, dry_run=True)
    kept = await desk.store.write(body, point="agent", then=partial(tell_engine, desk))
    home = await asyncio.to_thread(ensure_home, desk.home, kept.name)
    return full_form(kept, AgentRegistered, home=str(home), token=secret if asked.token else msgspec.UNSET)


async def change(desk: Desk, caller: Principal, asked: Set) -> AgentChanged:
    given = _given(asked, runners_known(desk))

    def look(conn: sa.Connection) -> tuple[Agent, Agent]:
        agent = find_agent(conn, caller, asked.name, to_change=True)
        new = changed(agent, given, clear=asked.clear)
        _check_whole(new)
        _may_become(caller, agent, new)
        if given.keys() & {"model", "provider", "effort"}:
            _check_effort(desk, new)
        return agent, new

    def body(conn: sa.Connection) -> tuple[Agent, Agent]:
        page = Page(conn, to_ms(desk.clock.now()))
        agent, new = look(conn)
        if new != agent:
            new = put_agent(page, new, caller)
        page.close()
        return agent, new

    if asked.dry_run:
        agent, new = await desk.store.read(look)
        return full_form(new, AgentChanged, changed=list(differences(agent, new)), dry_run=True)
    agent, new = await desk.store.write(
        body, point="agent", then=lambda done: tell_engine(desk, done[1] if done else None)
    )
    return full_form(new, AgentChanged, changed=list(differences(agent, new)))


async def list_versions(desk: Desk, caller: Principal, asked: Versions) -> AgentVersionsListed:
    limit = max(1, min(asked.limit, VERSIONS_LISTED_MAX))

    def body(conn: sa.Connection) -> list[AgentVersion]:
        agent = find_agent(conn, caller, asked.name, to_change=True)
        before = {} if asked.before is None else {"before": asked.before}
        # One more than shown: to compare the last one with, and to know whether there is a next page.
        return list(agents.versions(conn, agent.name, limit=limit + 1, **before))

    found = await desk.store.scan(body)
    forms = [
        _version_form(desk, version, found[i + 1] if i + 1 < len(found) else None)
        for i, version in enumerate(found[:limit])
    ]
    return AgentVersionsListed(forms, next=found[limit - 1].number if len(found) > limit else None)


async def diff(desk: Desk, caller: Principal, asked: Diff) -> AgentsCompared:
    def body(conn: sa.Connection) -> tuple[Agent, Agent]:
        agent = find_agent(conn, caller, asked.name, to_change=True)
        new = agent if asked.new is None else _version(conn, agent, asked.new).agent
        return _version(conn, agent, asked.old).agent, new

    old, new = await desk.store.scan(body)
    changes = [AgentFieldChange(name, was, is_) for name, (was, is_) in differences(old, new).items()]
    return AgentsCompared(new.name, old=old.version, new=new.version, changes=changes)


async def restore(desk: Desk, caller: Principal, asked: Restore) -> AgentRestored:
    """Store an old version as the newest one. The versions in between are kept."""

    def body(conn: sa.Connection) -> Agent:
        page = Page(conn, to_ms(desk.clock.now()))
        agent = find_agent(conn, caller, asked.name, to_change=True)
        old = replace(_version(conn, agent, asked.version).agent, name=agent.name, version=agent.version)
        _may_become(caller, agent, old)
        kept = put_agent(page, old, caller)
        page.close()
        return kept

    kept = await desk.store.write(body, point="agent", then=partial(tell_engine, desk))
    return full_form(kept, AgentRestored, restored=asked.version)


async def delete(desk: Desk, caller: Principal, asked: Delete) -> AgentDeleted:
    """Delete an agent: commit the deletion, then stop its runs.

    If the server stops in between, the runs are stopped after the restart.
    """

    def body(conn: sa.Connection) -> tuple[Agent, list[SessionId]]:
        page = Page(conn, to_ms(desk.clock.now()))
        agent = find_agent(conn, caller, asked.name, to_change=True)
        agents.remove(conn, agent.name, at_ms=page.at_ms)
        tokens.revoke_all(conn, str(address.agent(agent.name)), at_ms=page.at_ms)
        grants.revoke_all(conn, agent.name, by=caller.address.name, at_ms=page.at_ms)
        schedules.agent_gone(page, agent.name)
        bindings.forget_agent(conn, agent.name, at_ms=page.at_ms)
        page.tell(NewsKind.AGENT_CHANGED, agent=agent.name, deleted=True, by=str(caller.address))
        page.close()
        return agent, agents.at_work(conn, agent.name)

    def gone(done: tuple[Agent, list[SessionId]] | None) -> None:
        if done is not None:
            desk.engine.agent_removed(done[0].name)

    agent, working = await desk.store.write(body, point="agent", then=gone)
    stopped: list[str] = []
    for session in working:
        done = await desk.engine.cancel(session, by=str(caller.address), why=f"{agent.name} was let go")
        stopped += [short(run) for run in done.runs]
    if not asked.keep_home:
        await asyncio.to_thread(remove_home, desk.home, agent.name)
    kept = str(home_of(desk.home, agent.name)) if asked.keep_home else None
    return AgentDeleted(agent.name, deleted=True, cancelled_runs=stopped, home=kept)


# --- shared by the handlers ---


def find_agent(conn: sa.Connection, caller: Principal, name: str, *, to_change: bool = False) -> Agent:
    """Return an agent by name. Agents find only themselves; an agent with level boss may change the others."""
    agent = agents.find(conn, name)
    outranks = to_change and caller.level is PermissionLevel.BOSS
    hidden = (
        agent is not None
        and caller.address.kind is AddressKind.AGENT
        and caller.address.name.casefold() != agent.name.casefold()
        and not outranks
    )
    if agent is None or hidden:
        raise NotFound(
            f"there is no agent '{name[:64]}' here",
            because="no agent of that name is registered, or none that you may ask about",
            try_this="look at `agent.list` for who is here",
            code="agent.not-found",
        )
    return agent


def _version(conn: sa.Connection, agent: Agent, number: int) -> AgentVersion:
    found = agents.version(conn, agent.name, number)
    if found is None:
        raise NotFound(
            f"{agent.name} has no version {number}",
            because=f"its newest is {agent.version}",
            try_this="look at `agent.versions`",
            code="agent.version-not-found",
        )
    return found


def _check_free(conn: sa.Connection, name: str) -> None:
    there = agents.find(conn, name)
    if there is not None:
        raise Conflict(
            f"there is an agent '{there.name}' already",
            because="capitals do not tell names apart",
            try_this="choose another name, or change that one",
            code="agent.exists",
        )


def put_agent(page: Page, agent: Agent, caller: Principal) -> Agent:
    source = "agent" if caller.address.kind is AddressKind.AGENT else "api"
    by = str(caller.address)
    kept = agents.put(page.conn, agent, source=source, at_ms=page.at_ms, changed_by=by)
    page.tell(NewsKind.AGENT_CHANGED, agent=kept.name, version=kept.version, by=by)
    return kept


def _model_of(desk: Desk, agent: Agent) -> str:
    """Return the model that the agent would use first, or its setting unchanged if it cannot be resolved."""
    try:
        return str(desk.catalog().own_model(agent)) if desk.catalog is not None else agent.model
    except RetinueError:
        return agent.model


def tell_engine(desk: Desk, agent: Agent | None) -> None:
    if agent is not None:
        desk.engine.agent_changed(agent.name, agent.concurrency)


def _may_become(caller: Principal, old: Agent, new: Agent) -> None:
    bounds = [name for name in differences(old, new) if name not in OWN_BUSINESS]
    if bounds and caller.level is not PermissionLevel.BOSS:
        raise NotAllowed(
            f"you may not change {', '.join(bounds)} of {old.name}",
            because=f"these are bounds, which only boss level sets, and you have {caller.level}",
            try_this=f"change only {', '.join(sorted(OWN_BUSINESS))}, or ask the owner of this house",
            code="agent.bounds-not-yours",
        )


def as_if_set(agent: Agent, *, changes: Mapping[str, Any]) -> Agent:
    """Return the agent as `agent.set` would change it."""
    try:
        asked = msgspec.convert({**changes, "name": agent.name}, Set)
    except msgspec.ValidationError as error:
        raise Invalid(
            "these changes do not fit",
            because=str(error),
            try_this="give the fields as for `agent.set`",
            code="request.invalid",
        ) from error
    return changed(agent, _given(asked), clear=asked.clear)


def runners_known(desk: Desk) -> frozenset[str]:
    """Return the runners that an agent may be set to, including known ones that are not available yet."""
    return RUNNERS.union(desk.plugins.runners() if desk.plugins is not None else ())


def _given(asked: Fields, runners: frozenset[str] = RUNNERS) -> dict[str, Any]:
    """Return the given fields as stored values. Raises one error that names all invalid fields."""
    given: dict[str, Any] = {}
    wrong: dict[str, str] = {}
    for name in FIELDS:
        value = None if name in ONLY_DECLARED else _said(asked, name)
        if value is None:
            continue
        given[name] = tuple(cast(list[str], value)) if isinstance(value, list) else value
        unfit = _unfit_runner(given[name], runners) if name == "runner" else _unfit(name, given[name])
        if unfit is not None:
            wrong[name] = unfit
    if wrong:
        names = ", ".join(wrong)
        because = next(iter(wrong.values())) if len(wrong) == 1 else "; ".join(f"{k}: {v}" for k, v in wrong.items())
        raise Unfit(
            f"{names} cannot be this",
            fields=wrong,
            because=because,
            try_this="give another value",
            code="agent.field-invalid",
        )
    return given


def _said(asked: Fields, name: str) -> Any:
    """Return the given value of one field. `model` can carry the fallbacks too."""
    model = asked.model
    if not isinstance(model, ModelGiven) or name not in ("model", "fallbacks"):
        return getattr(asked, name)
    if name == "model":
        return model.primary
    if model.fallbacks is not None and asked.fallbacks is not None:
        raise Invalid(
            "fallbacks cannot be this",
            because="it is said twice, and `model` says it too",
            try_this="say it once",
            code="agent.field-invalid",
        )
    return asked.fallbacks if model.fallbacks is None else model.fallbacks


def _check_whole(agent: Agent) -> None:
    """Check fields that depend on each other."""
    elsewhere = agent.runner == "external"
    if elsewhere and not agent.external.url:
        raise Unfit(
            "external_url is missing",
            fields={"external_url": "an agent with the runner external needs it"},
            because=f"{agent.name} runs elsewhere, and nothing says where",
            try_this="give external_url as well, as in https://agent.example/in",
            code="agent.external-url-missing",
        )
    if not elsewhere and agent.external != External():
        raise Unfit(
            "external_url is set for an agent that runs here",
            fields={"external_url": "it goes with the runner external alone"},
            because=f"the runner of {agent.name} is {agent.runner}",
            try_this="set runner to external, or clear what begins with external_",
            code="agent.external-unused",
        )


def _check_effort(desk: Desk, agent: Agent) -> None:
    """Reject now, not at the next run, an effort that the agent's model is known not to support."""
    if desk.catalog is None or agent.effort is None or agent.runner != "loop":
        return
    catalog = desk.catalog()
    if agent.provider is None or agent.model or catalog.default_model_of(catalog.provider_name(agent.provider)):
        catalog.check_effort(catalog.own_model(agent), agent.effort)


def _unfit(name: str, value: Any) -> str | None:
    """Return what is wrong with the value of one field, or None."""
    if isinstance(value, tuple):
        rules = cast(tuple[str, ...], value)
        return _unfit_rules(rules) or _unfit_each(name, rules)
    if isinstance(value, str):
        return _unfit_words(name, value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _unfit_number(name, value)
    return None


def check_text(name: str, words: str) -> None:
    """Raise if a text field of a definition is invalid."""
    if (unfit := _unfit_words(name, words)) is not None:
        raise Unfit(
            f"{name} cannot be this",
            fields={name: unfit},
            because=unfit,
            try_this="give another value",
            code="agent.field-invalid",
        )


def _unfit_runner(name: str, runners: frozenset[str]) -> str | None:
    return None if name in runners else f"there is no runner {name[:64]!r}; there are {', '.join(sorted(runners))}"


def _unfit_words(name: str, words: str) -> str | None:
    if not is_storable(words):
        return "it holds NUL or a lone surrogate"
    if len(words.encode()) > WORDS_BYTES_MAX:
        raise TooLarge(
            f"{name} is too long",
            because=f"it may have {WORDS_BYTES_MAX:,} bytes",
            try_this="keep the rest in files of the agent's home",
            code="agent.text-too-large",
        )
    if words == "" and name in _NEVER_EMPTY:
        return "it is empty; `clear` is there to take it back"
    check = AGENT_RULES.get(key_of(name), PLAIN).check
    wrong = check(words) if check else None
    if not wrong:
        return None
    return f"it {wrong}, or {DEFAULT}" if check is effort_or_default else f"it {wrong}"


def _unfit_rules(rules: tuple[str, ...]) -> str | None:
    if len(rules) <= RULES_MAX and all(0 < len(rule) <= RULE_LENGTH_MAX and is_storable(rule) for rule in rules):
        return None
    return f"it is a list of at most {RULES_MAX} names or patterns of 1 to {RULE_LENGTH_MAX} characters"


def _unfit_each(name: str, texts: tuple[str, ...]) -> str | None:
    check = AGENT_RULES.get(key_of(name), PLAIN).check
    wrong = next(filter(None, map(check, texts)), None) if check else None
    return f"each {wrong}" if wrong else None


def _unfit_number(name: str, number: float) -> str | None:
    rule = AGENT_RULES.get(key_of(name), PLAIN)
    least = 0 if rule.least is None else rule.least
    most = WHOLE_NUMBER_MAX if rule.most is None else rule.most
    return None if least <= number <= most else f"{number} is not between {least:g} and {most:g}"


def _version_form(desk: Desk, version: AgentVersion, before: AgentVersion | None) -> AgentVersionListed:
    return AgentVersionListed(
        version=version.number,
        at=show(version.at, desk.zone),
        by=version.changed_by,
        source=version.source,
        changed=list(differences(before.agent, version.agent)) if before else [],
    )


OPERATIONS = (
    Operation(
        name="agent.list",
        summary="List the staff.",
        parameters=Nothing,
        handler=listed,
        result=AgentsListed,
        permission=PermissionLevel.RESTRICTED,
    ),
    Operation(
        name="agent.show",
        summary="Show one agent.",
        parameters=Named,
        handler=show_agent,
        result=AgentShown,
        permission=PermissionLevel.RESTRICTED,
    ),
    Operation(
        name="agent.register",
        summary="Take an agent on.",
        parameters=Register,
        handler=register,
        result=AgentRegistered,
        permission=PermissionLevel.BOSS,
        effect=True,
        shown_once=frozenset({"token"}),
    ),
    Operation(
        name="agent.set",
        summary="Change an agent.",
        parameters=Set,
        handler=change,
        result=AgentChanged,
        permission=PermissionLevel.PRIVILEGED,
        effect=True,
    ),
    Operation(
        name="agent.versions",
        summary="List what an agent has been.",
        parameters=Versions,
        handler=list_versions,
        result=AgentVersionsListed,
        permission=PermissionLevel.STANDARD,
    ),
    Operation(
        name="agent.diff",
        summary="Compare two versions of an agent.",
        parameters=Diff,
        handler=diff,
        result=AgentsCompared,
        permission=PermissionLevel.STANDARD,
    ),
    Operation(
        name="agent.restore",
        summary="Make an old version of an agent the newest.",
        parameters=Restore,
        handler=restore,
        result=AgentRestored,
        permission=PermissionLevel.PRIVILEGED,
        effect=True,
    ),
    Operation(
        name="agent.delete",
        summary="Let an agent go.",
        parameters=Delete,
        handler=delete,
        result=AgentDeleted,
        permission=PermissionLevel.BOSS,
        effect=True,
    ),
)
