"""Response types of the agent operations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from enum import StrEnum
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from retinue.domain.agent import Agent, Color, CrashPolicy, PermissionLevel
from retinue.domain.display_options import Elevation, Verbosity
from retinue.domain.instruction_mode import InstructionMode
from retinue.domain.sandbox import SandboxMode, SandboxScope, SandboxVisibleSessions, WorkspaceAccess
from retinue.domain.schedule import ScheduleSession
from retinue.domain.session import Overflow, QueueMode
from retinue.operations.agent.effective_settings import EffectiveSetting


class AgentState(StrEnum):
    RUNNING = "running"
    IDLE = "idle"


class AgentRow(msgspec.Struct, frozen=True):
    name: str
    display_name: str
    description: str
    runner: str
    model: str
    version: int
    icon: str
    color: Color | None
    visible: bool


class AgentList(msgspec.Struct, frozen=True):
    agents: list[AgentRow]


class AgentQueueSettings(msgspec.Struct, frozen=True):
    mode: QueueMode
    cap: int
    overflow: Overflow
    debounce_s: float


class AgentResetSettings(msgspec.Struct, frozen=True):
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


class AgentToolSettings(AgentToolLists, frozen=True, kw_only=True):
    policy: str | None
    by_provider: dict[str, AgentToolLists]


class AgentDelegationSettings(msgspec.Struct, frozen=True, kw_only=True):
    allow: list[str]
    deny: list[str]
    depth_max: int
    open_max: int
    exchanges_max: int
    allow_cycles: bool
    other_sessions: bool


class AgentSubagentSettings(msgspec.Struct, frozen=True, kw_only=True):
    allow: list[str]
    model: str
    effort: str | None
    run_seconds_max: float | None
    archive_after_s: float | None


class AgentHeartbeatSettings(msgspec.Struct, frozen=True, kw_only=True):
    every_s: float | None
    active_start: str | None
    active_end: str | None
    active_zone: str | None
    prompt: str | None
    model: str | None
    session: ScheduleSession | None
    target: str | None
    ack_chars_max: int | None


class AgentSandboxSettings(msgspec.Struct, frozen=True, kw_only=True):
    mode: SandboxMode | None
    scope: SandboxScope | None
    workspace: WorkspaceAccess | None
    visible_sessions: SandboxVisibleSessions | None
    browser: bool | None
    image: str
    cpus: float | None
    idle_hours: float | None
    age_days: float | None


class AgentExternalSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of an external agent. `secret` is the location of the secret, not its value."""

    url: str
    secret: str
    timeout_s: float
    retries: int


class AgentDetails(msgspec.Struct, frozen=True, kw_only=True):
    """One agent. For guests, the response has only `state` and the fields of `agent.list`."""

    name: str
    display_name: str
    description: str
    runner: str
    external: AgentExternalSettings | UnsetType = UNSET
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
    crash_policy: CrashPolicy | UnsetType = UNSET
    concurrency: int | UnsetType | None = UNSET
    queue: AgentQueueSettings | UnsetType = UNSET
    reset: AgentResetSettings | UnsetType = UNSET
    tools: AgentToolSettings | UnsetType = UNSET
    delegation: AgentDelegationSettings | UnsetType = UNSET
    subagents: AgentSubagentSettings | UnsetType = UNSET
    heartbeat: AgentHeartbeatSettings | UnsetType = UNSET
    sandbox: AgentSandboxSettings | UnsetType = UNSET
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
    color: Color | None
    visible: bool
    version: int
    state: AgentState
    effective_settings: dict[str, EffectiveSetting] | UnsetType = UNSET  # for settings that have instance-wide defaults


class AgentDefinition(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    display_name: str
    description: str
    runner: str
    external: AgentExternalSettings
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
    crash_policy: CrashPolicy
    concurrency: int | None
    queue: AgentQueueSettings
    reset: AgentResetSettings
    tools: AgentToolSettings
    delegation: AgentDelegationSettings
    subagents: AgentSubagentSettings
    heartbeat: AgentHeartbeatSettings
    sandbox: AgentSandboxSettings
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
    color: Color | None
    visible: bool
    version: int


class AgentRegistered(AgentDefinition, frozen=True, kw_only=True):
    directory: str | UnsetType = UNSET
    token: str | UnsetType = UNSET
    dry_run: bool | UnsetType = msgspec.field(default=UNSET)
    shown_once: list[str] | UnsetType = msgspec.field(default=UNSET)


class AgentChanged(AgentDefinition, frozen=True, kw_only=True):
    changed: list[str]
    dry_run: bool | UnsetType = msgspec.field(default=UNSET)


class AgentRestored(AgentDefinition, frozen=True, kw_only=True):
    restored: int


class AgentVersionRow(msgspec.Struct, frozen=True):
    version: int
    at: str
    by: str
    source: str
    changed: list[str]


class AgentVersionList(msgspec.Struct, frozen=True):
    versions: list[AgentVersionRow]
    next: int | None


class AgentFieldChange(msgspec.Struct, frozen=True):
    field: str
    old: Any
    new: Any


class AgentComparison(msgspec.Struct, frozen=True):
    name: str
    old: int
    new: int
    changes: list[AgentFieldChange]


class AgentDeleted(msgspec.Struct, frozen=True):
    name: str
    deleted: bool
    cancelled_runs: list[str]
    directory: str | None


_SETTING_GROUPS: Mapping[str, Any] = {
    "queue": AgentQueueSettings,
    "reset": AgentResetSettings,
    "tools": AgentToolSettings,
    "delegation": AgentDelegationSettings,
    "subagents": AgentSubagentSettings,
    "heartbeat": AgentHeartbeatSettings,
    "sandbox": AgentSandboxSettings,
    "external": AgentExternalSettings,
}
Response = TypeVar("Response", AgentDetails, AgentRegistered, AgentChanged, AgentRestored)


def to_agent_row(agent: Agent) -> AgentRow:
    return AgentRow(
        agent.name,
        agent.display_name,
        agent.description,
        agent.runner,
        agent.model,
        agent.version,
        icon=agent.icon,
        color=agent.color,
        visible=agent.visible,
    )


def to_agent_response(agent: Agent, form: type[Response], /, **more: Any) -> Response:
    """Return the full definition of an agent as an instance of `form`, with the additional fields in `more`."""
    values: dict[str, Any] = {each.name: getattr(agent, each.name) for each in fields(agent)}
    values["fallbacks"] = None if agent.fallbacks is None else list(agent.fallbacks)
    values["context_files"] = list(agent.context_files)
    for name, group in _SETTING_GROUPS.items():
        values[name] = msgspec.convert(getattr(agent, name), group, from_attributes=True)
    return form(**values, **more)
