"""Agent definitions: the name, purpose, model, tools and limits of each agent.

The conversations of an agent are not part of its definition. They are sessions (`domain/session`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from enum import StrEnum

from retinue.domain.display_options import Elevation, Verbosity
from retinue.domain.instruction_mode import InstructionMode
from retinue.domain.reset_rules import ResetRules
from retinue.domain.sandbox import SandboxMode, SandboxScope, SandboxVisibleSessions, WorkspaceAccess
from retinue.domain.schedule import ScheduleSession
from retinue.domain.session import QueuePolicy

TURNS_MAX = 100
RUN_SECONDS_MAX = 3600.0
ATTEMPTS_MAX = 3
CONCURRENCY = 4
APPROVAL_WAIT_S = 600.0
DELEGATION_DEPTH_MAX = 1
OPEN_DELEGATIONS_MAX = 16
EXCHANGES_MAX = 5
ARCHIVE_AFTER_S = 3600.0
EXTERNAL_TIMEOUT_S = 300.0
EXTERNAL_RETRIES = 3


class CrashPolicy(StrEnum):
    """What the server does after a restart with a run that a crash interrupted."""

    RESUME = "resume"
    AT_MOST_ONCE = "at-most-once"


class Color(StrEnum):
    """Colors in which the web app shows an agent. If none is set, the web app derives a color from the agent's name."""

    RED = "red"
    ORANGE = "orange"
    AMBER = "amber"
    LIME = "lime"
    GREEN = "green"
    TEAL = "teal"
    CYAN = "cyan"
    BLUE = "blue"
    INDIGO = "indigo"
    VIOLET = "violet"
    PINK = "pink"
    SLATE = "slate"


class PermissionLevel(StrEnum):
    RESTRICTED = "restricted"
    STANDARD = "standard"
    PRIVILEGED = "privileged"
    BOSS = "boss"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolLists:
    """Which tools an agent has, and which of them need an approval.

    Each list contains globs that match tool names, or groups such as `group:web`. A tool is denied
    if `deny` matches it. Otherwise it needs an approval if `ask` matches it. By default, `allow`
    matches every tool; an empty `allow` matches none. `also_allow` adds tools to those of `profile`
    and `allow`. The capability lists contain globs that match capabilities. They deny a tool if
    `capabilities_allow` does not match all of its capabilities, or if `capabilities_deny` matches
    one of them.
    """

    profile: str | None = None
    allow: tuple[str, ...] = ("*",)
    also_allow: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    capabilities_allow: tuple[str, ...] = ("*",)
    capabilities_deny: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRules(ToolLists):
    """An agent's tool rules.

    `policy` is the name of a tool policy in the server's settings. `by_provider` maps a model
    provider, or PROVIDER/MODEL, to lists that also apply while the agent uses that model.
    """

    policy: str | None = None
    by_provider: Mapping[str, ToolLists] = field(default_factory=dict[str, ToolLists], hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationRules:
    """Which agents an agent can see and write to, and the limits of its delegations.

    `allow` and `deny` are globs that match agent names. `depth_max` is the maximum delegation
    depth, counted from a run that a person or a schedule started. At 1, the agents to which that
    run delegates cannot delegate further. `open_max` is the maximum number of open delegations of
    one session. `exchanges_max` is the maximum number of replies that two sessions send each other
    in one exchange.
    """

    allow: tuple[str, ...] = ("*",)
    deny: tuple[str, ...] = ()
    depth_max: int = DELEGATION_DEPTH_MAX
    open_max: int = OPEN_DELEGATIONS_MAX
    exchanges_max: int = EXCHANGES_MAX
    allow_cycles: bool = False  # whether work may be delegated to an agent that is already in the chain of delegations
    other_sessions: bool = False  # whether the agent may read sessions of other agents, and write to them


@dataclass(frozen=True, slots=True, kw_only=True)
class SubagentRules:
    """Which other agents an agent may start as subagents, and the limits of its subagents.

    An unset value is taken from `[defaults.subagents]` or, if it is not set there either, from the
    definition of the subagent.
    """

    allow: tuple[str, ...] = ()
    model: str = ""
    effort: str | None = None
    run_seconds_max: float | None = None
    archive_after_s: float | None = None  # after the run ends; 0: never


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRules:
    """The heartbeat of an agent: how often and how the agent checks whether anything needs attention.

    An agent has a heartbeat if at least one of these values is set. Unset values are taken from
    `[defaults.heartbeat]`. If no agent has a heartbeat, the default agent gets one with the values
    of `[defaults.heartbeat]`.
    """

    every_s: float | None = None  # 0: never
    active_start: str | None = None  # HH:MM
    active_end: str | None = None  # HH:MM, up to 24:00; if earlier than the start, the range crosses midnight
    active_zone: str | None = None  # None: the owner's zone
    prompt: str | None = None
    model: str | None = None
    session: ScheduleSession | None = None  # None: a dedicated session that keeps its history
    target: str | None = None  # where replies go: `last`, `none`, or an address
    ack_chars_max: int | None = None

    def with_defaults(self, defaults: HeartbeatRules) -> HeartbeatRules:
        """Return these rules, with unset values taken from `defaults`."""
        names = [each.name for each in fields(HeartbeatRules)]
        own = {name: getattr(self, name) for name in names}
        return HeartbeatRules(**{n: getattr(defaults, n) if value is None else value for n, value in own.items()})


NO_HEARTBEAT = HeartbeatRules()


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxRules:
    """How an agent's commands are confined, in addition to the server's settings.

    A value that is less strict than the server's setting has no effect. `image` and `cpus` apply to
    the agent's containers. A container is removed when it has not been used for `idle_hours`, or
    when it is `age_days` old.
    """

    mode: SandboxMode | None = None
    scope: SandboxScope | None = None
    workspace: WorkspaceAccess | None = None
    visible_sessions: SandboxVisibleSessions | None = None
    browser: bool | None = None
    image: str = ""
    cpus: float | None = None
    idle_hours: float | None = None
    age_days: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalAgentEndpoint:
    """How to reach an external agent.

    `secret` is the location of the signing key (`env:NAME` or `file:PATH`), never the key.
    """

    url: str = ""
    secret: str = ""
    timeout_s: float = EXTERNAL_TIMEOUT_S
    retries: int = EXTERNAL_RETRIES


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """The definition of one agent: its purpose, model, tools and limits."""

    name: str
    display_name: str = ""  # empty: the name
    description: str = ""
    runner: str = "loop"
    external: ExternalAgentEndpoint = field(default_factory=ExternalAgentEndpoint)  # used by the runner `external` only
    provider: str | None = None  # None: the provider of the model
    model: str = ""  # empty: the server's default
    fallbacks: tuple[str, ...] | None = None  # None: the server's fallbacks; empty: no fallbacks
    effort: str | None = None  # None: the server's default, otherwise the model's default
    verbose: Verbosity | None = None  # None: the server's default
    elevated: Elevation | None = None  # None: the server's default; `off`: its commands never run outside the sandbox
    instructions: str = ""
    instructions_mode: InstructionMode = InstructionMode.FULL  # how much of the system prompt is included
    workspace: str = ""  # absolute, or below the agent directory; empty: the server's default
    context_files: tuple[str, ...] = ()  # paths or globs in its workspace, included in the instructions
    crash_policy: CrashPolicy = CrashPolicy.RESUME
    concurrency: int | None = None  # limit of active runs; None: the server's default
    queue: QueuePolicy = field(default_factory=QueuePolicy)
    reset: ResetRules = field(default_factory=ResetRules)  # when its contexts are reset
    tools: ToolRules = field(default_factory=ToolRules)
    delegation: DelegationRules = field(default_factory=DelegationRules)
    subagents: SubagentRules = field(default_factory=SubagentRules)
    heartbeat: HeartbeatRules = field(default_factory=HeartbeatRules)
    sandbox: SandboxRules = field(default_factory=SandboxRules)
    turns_max: int = TURNS_MAX
    run_seconds_max: float | None = None  # None: the server's default
    tokens_max: int | None = None
    cost_microusd_max: int | None = None  # limit of one run
    tree_microusd_max: int | None = None  # limit of a run and all runs that it starts, directly or indirectly
    day_microusd_max: int | None = None
    month_microusd_max: int | None = None
    attempts_max: int = ATTEMPTS_MAX
    replay_age_s: float | None = None  # None: pending envelopes are processed at any age; 0: none after a restart
    approval_wait_s: float = APPROVAL_WAIT_S
    permission_level: PermissionLevel = PermissionLevel.STANDARD
    icon: str = ""
    color: Color | None = None
    visible: bool = True  # whether the web app and other agents can see it
    version: int = 1

    @property
    def label(self) -> str:
        """The name of the agent that people see."""
        return self.display_name or self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentVersion:
    """One stored version of an agent definition, and who created that version."""

    agent: Agent
    source: str
    changed_by: str
    at: datetime

    @property
    def number(self) -> int:
        return self.agent.version
