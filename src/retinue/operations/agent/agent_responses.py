"""Response types of the agent operations: list rows for every caller, full definitions for those permitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from enum import StrEnum
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from retinue.domain.agent import Agent, Colour, Delivery, PermissionLevel
from retinue.domain.display_options import Elevation, Verbosity
from retinue.domain.instruction_mode import InstructionMode
from retinue.domain.sandbox import SandboxMode, Scope, SessionsSeen, WorkspaceAccess
from retinue.domain.schedule import Place
from retinue.domain.session import Overflow, QueueMode
from retinue.operations.agent.effective_settings import InForce


class AgentState(StrEnum):
    RUNNING = "running"
    IDLE = "idle"


class AgentListed(msgspec.Struct, frozen=True):
    name: str
    display_name: str
    description: str
    runner: str
    model: str
    version: int
    icon: str
    colour: Colour | None
    visible: bool


class AgentsListed(msgspec.Struct, frozen=True):
    agents: list[AgentListed]


class AgentQueue(msgspec.Struct, frozen=True):
    mode: QueueMode
    cap: int
    overflow: Overflow
    debounce_s: float


class AgentReset(msgspec.Struct, frozen=True):
    daily_at: str | None
    idle_minutes: float | None
    context_tokens_max: int | None


class AgentToolLists(msgspec.Struct, frozen=True, kw_only=True):
    profile: str | None
    allow: list[str]
    also_allow: list[str]
    ask: list[str]
    deny: list[str]
    capabilities_allow: list[str]
    capabilities_deny: list[str]


class AgentTools(AgentToolLists, frozen=True, kw_only=True):
    policy: str | None
    by_provider: dict[str, AgentToolLists]


class AgentDelegation(msgspec.Struct, frozen=True, kw_only=True):
    allow: list[str]
    deny: list[str]
    depth_max: int
    open_max: int
    exchanges_max: int
    circles: bool
    histories: bool


class AgentSubagents(msgspec.Struct, frozen=True, kw_only=True):
    allow: list[str]
    model: str
    effort: str | None
    run_seconds_max: float | None
    archive_after_s: float | None


class AgentHeartbeat(msgspec.Struct, frozen=True, kw_only=True):
    every_s: float | None
    active_start: str | None
    active_end: str | None
    active_zone: str | None
    prompt: str | None
    model: str | None
    place: Place | None
    target: str | None
    ack_chars_max: int | None


class AgentSandbox(msgspec.Struct, frozen=True, kw_only=True):
    mode: SandboxMode | None
    scope: Scope | None
    workspace: WorkspaceAccess | None
    sessions: SessionsSeen | None
    browser: bool | None
    image: str
    cpus: float | None
    idle_hours: float | None
    age_days: float | None


class AgentExternal(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of an external agent. `secret` is the location of the secret, not its value."""

    url: str
    secret: str
    timeout_s: float
    retries: int


class AgentShown(msgspec.Struct, frozen=True, kw_only=True):
    """One agent. Guests get only the fields of the list and the state."""

    name: str
    display_name: str
    description: str
    runner: str
    external: AgentExternal | UnsetType = UNSET
    provider: str | UnsetType | None = UNSET
    model: str
    fallbacks: list[str] | UnsetType | None = UNSET
    effort: str | UnsetType | None = UNSET
    verbose: Verbosity | UnsetType | None = UNSET
    elevated: Elevation | UnsetType | None = UNSET
    instructions: str | UnsetType = UNSET
    instructions_mode: InstructionMode | UnsetType = UNSET
    workspace: str | UnsetType = UNSET
    context_files: list[str] | UnsetType = UNSET
    delivery: Delivery | UnsetType = UNSET
    concurrency: int | UnsetType | None = UNSET
    queue: AgentQueue | UnsetType = UNSET
    reset: AgentReset | UnsetType = UNSET
    tools: AgentTools | UnsetType = UNSET
    delegation: AgentDelegation | UnsetType = UNSET
    subagents: AgentSubagents | UnsetType = UNSET
    heartbeat: AgentHeartbeat | UnsetType = UNSET
    sandbox: AgentSandbox | UnsetType = UNSET
    turns_max: int | UnsetType = UNSET
    run_seconds_max: float | UnsetType | None = UNSET
    tokens_max: int | UnsetType | None = UNSET
    cost_microusd_max: int | UnsetType | None = UNSET
    tree_microusd_max: int | UnsetType | None = UNSET
    day_microusd_max: int | UnsetType | None = UNSET
    month_microusd_max: int | UnsetType | None = UNSET
    attempts_max: int | UnsetType = UNSET
    replay_age_s: float | UnsetType | None = UNSET
    approval_wait_s: float | UnsetType = UNSET
    permission_level: PermissionLevel | UnsetType = UNSET
    icon: str
    colour: Colour | None
    visible: bool
    version: int
    state: AgentState
    in_force: dict[str, InForce] | UnsetType = UNSET  # for settings that the instance can set too


class AgentDefinition(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    display_name: str
    description: str
    runner: str
    external: AgentExternal
    provider: str | None
    model: str
    fallbacks: list[str] | None
    effort: str | None
    verbose: Verbosity | None
    elevated: Elevation | None
    instructions: str
    instructions_mode: InstructionMode
    workspace: str
    context_files: list[str]
    delivery: Delivery
    concurrency: int | None
    queue: AgentQueue
    reset: AgentReset
    tools: AgentTools
    delegation: AgentDelegation
    subagents: AgentSubagents
    heartbeat: AgentHeartbeat
    sandbox: AgentSandbox
    turns_max: int
    run_seconds_max: float | None
    tokens_max: int | None
    cost_microusd_max: int | None
    tree_microusd_max: int | None
    day_microusd_max: int | None
    month_microusd_max: int | None
    attempts_max: int
    replay_age_s: float | None
    approval_wait_s: float
    permission_level: PermissionLevel
    icon: str
    colour: Colour | None
    visible: bool
    version: int


class AgentRegistered(AgentDefinition, frozen=True, kw_only=True):
    home: str | UnsetType = UNSET
    token: str | UnsetType = UNSET
    dry_run: bool | UnsetType = msgspec.field(name="dry-run", default=UNSET)
    shown_once: list[str] | UnsetType = msgspec.field(name="shown-once", default=UNSET)


class AgentChanged(AgentDefinition, frozen=True, kw_only=True):
    changed: list[str]
    dry_run: bool | UnsetType = msgspec.field(name="dry-run", default=UNSET)


class AgentRestored(AgentDefinition, frozen=True, kw_only=True):
    restored: int


class AgentVersionListed(msgspec.Struct, frozen=True):
    version: int
    at: str
    by: str
    source: str
    changed: list[str]


class AgentVersionsListed(msgspec.Struct, frozen=True):
    versions: list[AgentVersionListed]
    next: int | None


class AgentFieldChange(msgspec.Struct, frozen=True):
    field: str
    old: Any
    new: Any


class AgentsCompared(msgspec.Struct, frozen=True):
    name: str
    old: int
    new: int
    changes: list[AgentFieldChange]


class AgentDeleted(msgspec.Struct, frozen=True, rename="kebab"):
    name: str
    deleted: bool
    cancelled_runs: list[str]
    home: str | None


_GROUPS: Mapping[str, Any] = {
    "queue": AgentQueue,
    "reset": AgentReset,
    "tools": AgentTools,
    "delegation": AgentDelegation,
    "subagents": AgentSubagents,
    "heartbeat": AgentHeartbeat,
    "sandbox": AgentSandbox,
    "external": AgentExternal,
}
Form = TypeVar("Form", AgentShown, AgentRegistered, AgentChanged, AgentRestored)


def listed_form(agent: Agent) -> AgentListed:
    return AgentListed(
        agent.name,
        agent.display_name,
        agent.description,
        agent.runner,
        agent.model,
        agent.version,
        icon=agent.icon,
        colour=agent.colour,
        visible=agent.visible,
    )


def full_form(agent: Agent, form: type[Form], /, **more: Any) -> Form:
    """Return the full definition of an agent as `form`, plus the fields in `more`."""
    told: dict[str, Any] = {each.name: getattr(agent, each.name) for each in fields(agent)}
    told["fallbacks"] = None if agent.fallbacks is None else list(agent.fallbacks)
    told["context_files"] = list(agent.context_files)
    for name, group in _GROUPS.items():
        told[name] = msgspec.convert(getattr(agent, name), group, from_attributes=True)
    return form(**told, **more)
