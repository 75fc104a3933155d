"""Agents: named definitions. An agent is a template; a session is where it lives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from enum import StrEnum

from retinue.domain.display_options import Elevation, Verbosity
from retinue.domain.instruction_mode import InstructionMode
from retinue.domain.reset_rules import ResetRules
from retinue.domain.sandbox import SandboxMode, Scope, SessionsSeen, WorkspaceAccess
from retinue.domain.schedule import Place
from retinue.domain.session import QueuePolicy

TURNS_MAX = 100
RUN_SECONDS_MAX = 3600.0
ATTEMPTS_MAX = 3
CONCURRENCY = 4
APPROVAL_WAIT_S = 600.0
DEPTH_MAX = 1
OPEN_MAX = 16
EXCHANGES_MAX = 5
ARCHIVE_AFTER_S = 3600.0
EXTERNAL_TIMEOUT_S = 300.0
EXTERNAL_RETRIES = 3


class Delivery(StrEnum):
    """What becomes of a run that a crash cut off."""

    RESUME = "resume"
    AT_MOST_ONCE = "at-most-once"


class Colour(StrEnum):
    """What a page may tell agents apart by. Without one, it takes one by the name."""

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
    """Globs over names of tools and of groups of them (`group:web`). Deny wins, then ask; what `allow` does not name is
    not offered.

    Not set, `allow` is everything; an empty list is nothing, here as everywhere. `also_allow` adds to a profile or to
    `allow` without replacing it. A tool passes `capabilities_allow` when each of its capabilities does.
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
    """An agent's own. `policy` names one of the house's; `by_provider` is for whoever it thinks with."""

    policy: str | None = None
    by_provider: Mapping[str, ToolLists] = field(default_factory=dict[str, ToolLists], hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationRules:
    """Whom an agent sees and may write to, and how far its work may be handed on.

    `allow` and `deny` are globs over names of agents. `depth_max` is how often work may be handed on below the run that
    a person or the clock began: at 1, whoever is written to writes to nobody else. `open_max` is how much of what one
    session has handed out may be open at once, `exchanges_max` how often two sessions may answer each other.
    """

    allow: tuple[str, ...] = ("*",)
    deny: tuple[str, ...] = ()
    depth_max: int = DEPTH_MAX
    open_max: int = OPEN_MAX
    exchanges_max: int = EXCHANGES_MAX
    circles: bool = False  # whether work may come back to an agent that it came from
    histories: bool = False  # whether it may read and write to sessions of other agents


@dataclass(frozen=True, slots=True, kw_only=True)
class SubagentRules:
    """Whom an agent may send out on its own work, beside itself, and on what terms. What is not set is as the house has
    it for subagents (`[defaults.subagents]`), and else as the one who is sent out has it."""

    allow: tuple[str, ...] = ()
    model: str = ""
    effort: str | None = None
    run_seconds_max: float | None = None
    archive_after_s: float | None = None  # after its end; 0: never


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRules:
    """How often an agent looks by itself whether something needs attention, and how. What is not set is as the house
    has it (`[defaults.heartbeat]`). With anything set, the agent has a heartbeat of its own; where no agent does, the
    one who answers by default has the house's."""

    every_s: float | None = None  # 0: never
    active_start: str | None = None  # HH:MM
    active_end: str | None = None  # HH:MM, up to 24:00; earlier than the start: across midnight
    active_zone: str | None = None  # None: the owner's
    prompt: str | None = None
    model: str | None = None
    place: Place | None = None  # None: a conversation of its own, which remembers
    target: str | None = None  # where answers go: `last`, `none`, or an address
    ack_chars_max: int | None = None

    def over(self, other: HeartbeatRules) -> HeartbeatRules:
        """Both, where this one has the first word."""
        names = [each.name for each in fields(HeartbeatRules)]
        own = {name: getattr(self, name) for name in names}
        return HeartbeatRules(**{n: getattr(other, n) if value is None else value for n, value in own.items()})


NO_HEARTBEAT = HeartbeatRules()


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxRules:
    """How an agent's commands are confined beyond what the house asks for. Looser than the house, none has an effect.

    `image` and `cpus` are of its containers; they are removed after `idle_hours` without use, or `age_days` old.
    """

    mode: SandboxMode | None = None
    scope: Scope | None = None
    workspace: WorkspaceAccess | None = None
    sessions: SessionsSeen | None = None
    browser: bool | None = None
    image: str = ""
    cpus: float | None = None
    idle_hours: float | None = None
    age_days: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class External:
    """Where an agent that runs elsewhere is reached. `secret` says where the key is that signs our letters to it, as
    `env:NAME` or `file:PATH`, and never what it is."""

    url: str = ""
    secret: str = ""
    timeout_s: float = EXTERNAL_TIMEOUT_S
    retries: int = EXTERNAL_RETRIES


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """Who works here: what it is, which model it thinks with, and its bounds."""

    name: str
    display_name: str = ""  # empty: its name
    description: str = ""
    runner: str = "loop"
    external: External = field(default_factory=External)  # for the runner `external`
    provider: str | None = None  # None: whoever sells the model
    model: str = ""  # empty: as the house has it
    fallbacks: tuple[str, ...] | None = None  # None: as the house has them; empty: none
    effort: str | None = None  # None: as the house has it, and else as the model would have it
    verbose: Verbosity | None = None  # None: as the house has it
    elevated: Elevation | None = None  # None: as the house has it; `off`: its commands never leave the sandbox
    instructions: str = ""
    instructions_mode: InstructionMode = InstructionMode.FULL  # how much is told with them
    workspace: str = ""  # where it works: a path, or one below its home; empty: as the house has it
    context_files: tuple[str, ...] = ()  # of its workspace, by path or glob: told with its instructions
    delivery: Delivery = Delivery.RESUME
    concurrency: int | None = None  # None: as the house has it
    queue: QueuePolicy = field(default_factory=QueuePolicy)
    reset: ResetRules = field(default_factory=ResetRules)  # when its contexts begin anew
    tools: ToolRules = field(default_factory=ToolRules)
    delegation: DelegationRules = field(default_factory=DelegationRules)
    subagents: SubagentRules = field(default_factory=SubagentRules)
    heartbeat: HeartbeatRules = field(default_factory=HeartbeatRules)
    sandbox: SandboxRules = field(default_factory=SandboxRules)
    turns_max: int = TURNS_MAX
    run_seconds_max: float | None = None  # None: as the house has it
    tokens_max: int | None = None
    cost_microusd_max: int | None = None  # of one run
    tree_microusd_max: int | None = None  # of a run, and of every run that came of it
    day_microusd_max: int | None = None
    month_microusd_max: int | None = None
    attempts_max: int = ATTEMPTS_MAX
    replay_age_s: float | None = None  # None: pending mail is worked however old; 0: none is worked after a restart
    approval_wait_s: float = APPROVAL_WAIT_S
    permission_level: PermissionLevel = PermissionLevel.STANDARD
    icon: str = ""  # an emoji or a few letters
    colour: Colour | None = None
    visible: bool = True  # whether pages show it
    version: int = 1

    @property
    def called(self) -> str:
        """By what name people are told of it."""
        return self.display_name or self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentVersion:
    """An agent as it once was, and who made it so."""

    agent: Agent
    source: str
    changed_by: str
    at: datetime

    @property
    def number(self) -> int:
        return self.agent.version
