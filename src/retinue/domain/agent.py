"""Agents: named definitions. An agent is a template; a session is where it lives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

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
    histories: bool = False  # whether it may read and write to sessions of other agents


@dataclass(frozen=True, slots=True, kw_only=True)
class SubagentRules:
    """Whom an agent may send out on its own work, beside itself, and on what terms."""

    allow: tuple[str, ...] = ()
    model: str = ""  # empty: as the one who is sent out has it
    effort: str | None = None
    run_seconds_max: float | None = None  # None: as the one who is sent out has it
    archive_after_s: float = ARCHIVE_AFTER_S  # after its end; 0: never


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """Who works here: what it is, which model it thinks with, and its bounds."""

    name: str
    description: str = ""
    runner: str = "loop"
    provider: str | None = None  # None: whoever sells the model
    model: str = ""  # empty: as the house has it
    fallbacks: tuple[str, ...] | None = None  # None: as the house has them; empty: none
    effort: str | None = None  # None: as the model would have it
    instructions: str = ""
    delivery: Delivery = Delivery.RESUME
    concurrency: int = CONCURRENCY
    queue: QueuePolicy = field(default_factory=QueuePolicy)
    tools: ToolRules = field(default_factory=ToolRules)
    delegation: DelegationRules = field(default_factory=DelegationRules)
    subagents: SubagentRules = field(default_factory=SubagentRules)
    turns_max: int = TURNS_MAX
    run_seconds_max: float = RUN_SECONDS_MAX
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
