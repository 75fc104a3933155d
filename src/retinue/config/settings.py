"""All settings. Each field has a description, limits and when a change takes effect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import cast
from zoneinfo import ZoneInfo

from retinue.config import validators
from retinue.config.agent_defaults import Defaults
from retinue.config.connectors import ConnectorSettings
from retinue.config.external_agents import ExternalSettings
from retinue.config.hooks import HookSettings
from retinue.config.mcp import McpServer
from retinue.config.models import Budgets, Context, Models, ProviderSettings
from retinue.config.provenance import OriginSettings
from retinue.config.reply_delivery import WordSettings
from retinue.config.sandbox import SandboxSettings
from retinue.config.sessions import SessionSettings
from retinue.config.setting_metadata import Effect, Rule, setting
from retinue.config.skills import PluginSettings, SkillSettings
from retinue.config.speech import SpeechSettings
from retinue.config.tools import ApprovalSettings, ToolSettings
from retinue.config.web import WebSettings
from retinue.domain.agent import PermissionLevel

DRAIN_S = 10.0
PORT = 7717
MIB = 1024 * 1024
DAYS_MAX = 36_500


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    """The TCP listener. The Unix socket is always open and not configurable."""

    enabled: bool = setting(True, "Whether the house listens on TCP beside its socket.", effect=Effect.RESTART)
    host: str = setting(
        "127.0.0.1",
        "The address to listen on. Beyond this machine only with an https `public_url` and `trusted_proxies`.",
        effect=Effect.RESTART,
        check=validators.host,
        example="127.0.0.1",
    )
    port: int = setting(
        PORT, "The TCP port; 0 takes any that is free.", effect=Effect.RESTART, least=0, most=validators.PORT_MAX
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Rate and size limits for one caller."""

    body_bytes_max: int = setting(16 * MIB, "The largest body of a request.", least=1024, most=1024 * MIB)
    requests_per_minute: int = setting(600, "Requests of one principal in a minute.", least=1)
    envelopes_per_minute: int = setting(60, "Envelopes that one principal may send in a minute.", least=1)
    calls_per_minute: int = setting(600, "Tool calls that one agent may make in a minute.", least=1)
    sign_in_attempts_max: int = setting(
        5, "Failed sign-ins from one address before it is locked out.", least=1, most=1000
    )
    lockout_s: float = setting(900.0, "How long an address stays locked out.", least=1, most=86_400)
    websockets_max: int = setting(64, "Open WebSockets of one principal.", least=1, most=10_000)
    connections_max: int = setting(512, "Open TCP connections of all callers together.", least=1, most=65_536)
    request_wait_s: float = setting(15.0, "How long a caller may take to send its request in full.", least=1, most=3600)


@dataclass(frozen=True, slots=True, kw_only=True)
class Logs:
    """What is logged, and how much of it is kept."""

    level: LogLevel = setting(LogLevel.INFO, "The least that is logged.")
    file: bool = setting(
        True, "Whether a log is kept in the home, beside what goes to the terminal.", effect=Effect.RESTART
    )
    bytes_max: int = setting(
        10 * MIB,
        "The size at which a log file is put away and a new one begun.",
        least=64 * 1024,
        effect=Effect.RESTART,
    )
    files_kept: int = setting(5, "How many log files put away are kept.", least=0, most=1000, effect=Effect.RESTART)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long finished work stays in the store. An unset value means forever."""

    done_days: int | None = setting(None, "Days to keep envelopes after their outcome.", least=1, most=DAYS_MAX)
    news_days: int | None = setting(None, "Days to keep news for clients that resume.", least=1, most=DAYS_MAX)
    runs_days: int | None = setting(None, "Days to keep the steps of finished runs.", least=1, most=DAYS_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirror:
    """A live copy of each session as files. The store stays authoritative."""

    enabled: bool = setting(False, "Whether sessions are mirrored as files.", effect=Effect.RESTART)
    folder: Path | None = setting(
        None, "Where to; from the home if relative. Not set: `mirror` in the home.", effect=Effect.RESTART
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotCounts:
    """How many runs may be active at once, per lane kind."""

    main: int = setting(4, "Runs for people, agents and channels.", least=1, most=1000)
    subagent: int = setting(8, "Runs of subagents.", least=1, most=1000)
    background: int = setting(4, "Jobs of `agent:background`.", least=1, most=32)
    schedule: int = setting(2, "Runs that the clock began.", least=1, most=1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings. `store` is a file in the data directory unless it names a PostgreSQL database.

    `store` is excluded from `repr` because a database URL may contain a password. Fields in
    `TOP_LEVEL_SECTIONS` are top-level sections of the file; all others are in [house].
    """

    home: Path = field(
        metadata={
            "rule": Rule(says="Where the house lives: `RETINUE_HOME`.", effect=Effect.RESTART, in_file=False),
        }
    )
    store: str | Path = field(
        repr=False,
        metadata={
            "rule": Rule(
                says="A PostgreSQL address, postgresql://USER@HOST/NAME. Not set: `house.db` in the home.",
                effect=Effect.RESTART,
                check=validators.store,
                example="postgresql://retinue@localhost/house",
            )
        },
    )
    zone: ZoneInfo = field(
        metadata={"rule": Rule(says="The owner's time zone, as in `Europe/Berlin`.", effect=Effect.RESTART)}
    )
    drain_s: float = setting(DRAIN_S, "How long a stop waits for what is running.", least=0, most=3600)
    default_agent: str | None = setting(
        None,
        "Who answers where nobody is named. Not set: the agent `main`, else the first declared.",
        effect=Effect.MESSAGE,
        check=validators.agent_name,
        example="ada",
    )
    public_url: str | None = setting(
        None,
        "The address at which people reach the house through a proxy.",
        effect=Effect.RESTART,
        check=validators.public_url,
        example="https://house.example",
    )
    allowed_hosts: tuple[str, ...] = setting(
        (),
        "Names under which the house answers, beside those of this machine and `public_url`.",
        check=validators.host,
        example="house.example",
    )
    trusted_proxies: tuple[str, ...] = setting(
        (),
        "Addresses or networks of proxies whose word on the caller is believed.",
        effect=Effect.RESTART,
        check=validators.network,
        example="10.0.0.0/8",
    )
    permission_policy: Mapping[str, PermissionLevel] = setting(
        cast("Mapping[str, PermissionLevel]", {}),
        "For an operation, the level it needs; one that is not named keeps its own.",
        effect=Effect.MESSAGE,
        check=validators.operation,
        example="agent.set",
    )
    listen: Listen = Listen()
    limits: Limits = Limits()
    logs: Logs = Logs()
    retention: Retention = Retention()
    mirror: Mirror = Mirror()
    slots: SlotCounts = SlotCounts()
    defaults: Defaults = Defaults()
    sessions: SessionSettings = SessionSettings()
    providers: Mapping[str, ProviderSettings] = field(default_factory=dict[str, ProviderSettings])
    models: Models = Models()
    context: Context = Context()
    budgets: Budgets = Budgets()
    tools: ToolSettings = ToolSettings()
    approvals: ApprovalSettings = ApprovalSettings()
    origin: OriginSettings = OriginSettings()
    sandbox: SandboxSettings = SandboxSettings()
    web: WebSettings = WebSettings()
    external: ExternalSettings = ExternalSettings()
    mcp: Mapping[str, McpServer] = field(default_factory=dict[str, McpServer])
    connectors: Mapping[str, ConnectorSettings] = field(default_factory=dict[str, ConnectorSettings])
    words: WordSettings = WordSettings()
    skills: SkillSettings = SkillSettings()
    plugins: Mapping[str, PluginSettings] = field(default_factory=dict[str, PluginSettings])
    hooks: HookSettings = HookSettings()
    speech: SpeechSettings = SpeechSettings()


OWN_SECTIONS = (
    "defaults",
    "sessions",
    "providers",
    "models",
    "context",
    "budgets",
    "tools",
    "approvals",
    "origin",
    "sandbox",
    "web",
    "external",
    "mcp",
    "connectors",
    "words",
    "skills",
    "plugins",
    "hooks",
    "speech",
)
"""Fields of the settings that are sections of the file on their own."""
