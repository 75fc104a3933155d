"""Declares all settings. Each field has a description and limits, and says when a change takes effect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import cast
from zoneinfo import ZoneInfo

from retinue.config import validators
from retinue.config.agent_defaults import AgentDefaults
from retinue.config.connectors import ConnectorSettings
from retinue.config.external_agents import ExternalAgentSettings
from retinue.config.hooks import HookSettings
from retinue.config.mcp import McpServerSettings
from retinue.config.models import BudgetSettings, ContextSettings, ModelRoutingSettings, ProviderSettings
from retinue.config.provenance import ProvenanceSettings
from retinue.config.reply_delivery import ReplyDeliverySettings
from retinue.config.sandbox import SandboxSettings
from retinue.config.sessions import SessionSettings
from retinue.config.setting_metadata import SettingEffect, SettingRule, setting
from retinue.config.skills import PluginSettings, SkillSettings
from retinue.config.speech import SpeechSettings
from retinue.config.tools import ApprovalSettings, ToolSettings
from retinue.config.web import WebSettings
from retinue.domain.agent import PermissionLevel

DEFAULT_DRAIN_S = 10.0
DEFAULT_PORT = 7717
MIB = 1024 * 1024
DAYS_MAX = 36_500


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenSettings:
    """The TCP listener. The Unix socket is always open and is not configurable."""

    enabled: bool = setting(
        True, "Whether the server listens on TCP in addition to its Unix socket.", effect=SettingEffect.RESTART
    )
    host: str = setting(
        "127.0.0.1",
        "Host name or IP address to listen on. An address that other machines can reach requires an https `public_url` "
        "and `trusted_proxies`.",
        effect=SettingEffect.RESTART,
        check=validators.check_host,
        example="127.0.0.1",
    )
    port: int = setting(
        DEFAULT_PORT,
        "TCP port. 0: any free port.",
        effect=SettingEffect.RESTART,
        least=0,
        most=validators.PORT_MAX,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimitSettings:
    """Rate and size limits for requests."""

    body_bytes_max: int = setting(16 * MIB, "Maximum size of a request body, in bytes.", least=1024, most=1024 * MIB)
    requests_per_minute: int = setting(600, "Maximum number of API requests of one principal per minute.", least=1)
    envelopes_per_minute: int = setting(60, "Maximum number of envelopes sent by one principal per minute.", least=1)
    calls_per_minute: int = setting(600, "Maximum number of tool calls of one agent per minute.", least=1)
    sign_in_attempts_max: int = setting(
        5,
        "Maximum number of failed sign-ins from one IP address. After that, the address is locked out.",
        least=1,
        most=1000,
    )
    lockout_s: float = setting(900.0, "Time that an IP address stays locked out, in seconds.", least=1, most=86_400)
    websockets_max: int = setting(64, "Maximum number of open WebSockets of one principal.", least=1, most=10_000)
    connections_max: int = setting(512, "Maximum number of open TCP connections.", least=1, most=65_536)
    request_wait_s: float = setting(
        15.0,
        "Time in which a complete request must arrive, in seconds. A large upload may take longer if its data "
        "arrives fast enough.",
        least=1,
        most=3600,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """What the server logs, and how many log files it keeps."""

    level: LogLevel = setting(LogLevel.INFO, "Minimum level of log messages.")
    file: bool = setting(
        True,
        "Whether the server also logs to a file in the data directory, in addition to the terminal.",
        effect=SettingEffect.RESTART,
    )
    bytes_max: int = setting(
        10 * MIB,
        "Maximum size of a log file, in bytes. A new file is started when this size is reached.",
        least=64 * 1024,
        effect=SettingEffect.RESTART,
    )
    files_kept: int = setting(
        5, "Number of old log files to keep. 0: none.", least=0, most=1000, effect=SettingEffect.RESTART
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionSettings:
    """How long finished work stays in the store. Default: forever."""

    done_days: int | None = setting(
        None, "Days to keep envelopes after they are done. Default: forever.", least=1, most=DAYS_MAX
    )
    events_days: int | None = setting(
        None,
        "Days to keep stored events, from which clients read what they missed. Default: forever.",
        least=1,
        most=DAYS_MAX,
    )
    runs_days: int | None = setting(
        None, "Days to keep the steps of finished runs. Default: forever.", least=1, most=DAYS_MAX
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorSettings:
    """A copy of each session in files, updated as the session changes. The server never reads these files back."""

    enabled: bool = setting(False, "Whether each session is also written to files.", effect=SettingEffect.RESTART)
    folder: Path | None = setting(
        None,
        "Folder to which sessions are written. A relative path is relative to the data directory. Default: `mirror`.",
        effect=SettingEffect.RESTART,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSettings:
    """How many runs may be active at once, for each kind of lane."""

    main: int = setting(
        4, "Maximum number of concurrent runs that answer people, agents and channels.", least=1, most=1000
    )
    subagent: int = setting(8, "Maximum number of concurrent runs of subagents.", least=1, most=1000)
    background: int = setting(4, "Maximum number of concurrent background jobs.", least=1, most=32)
    schedule: int = setting(2, "Maximum number of concurrent runs that schedules start.", least=1, most=1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of the server. `store` is the path of the database file, or the URL of a PostgreSQL database.

    `store` is excluded from `repr` because a database URL may contain a password. Fields in
    `TOP_LEVEL_SECTIONS` are top-level sections of the file; all others are in [server].
    """

    home: Path = field(
        metadata={
            "rule": SettingRule(
                description="Data directory, set by the environment variable `RETINUE_HOME`.",
                effect=SettingEffect.RESTART,
                in_file=False,
            ),
        }
    )
    store: str | Path = field(
        repr=False,
        metadata={
            "rule": SettingRule(
                description="URL of a PostgreSQL database, postgresql://USER@HOST/NAME. Default: the SQLite file "
                "`retinue.db` in the data directory.",
                effect=SettingEffect.RESTART,
                check=validators.check_store,
                example="postgresql://retinue@localhost/retinue",
            )
        },
    )
    zone: ZoneInfo = field(
        metadata={
            "rule": SettingRule(
                description="Time zone of the owner, such as `Europe/Berlin`.", effect=SettingEffect.RESTART
            )
        }
    )
    drain_s: float = setting(
        DEFAULT_DRAIN_S,
        "Time to wait for active runs when the server stops, in seconds. Unfinished runs continue after the next "
        "start.",
        least=0,
        most=3600,
    )
    default_agent: str | None = setting(
        None,
        "Agent that gets messages for which no agent is given. Default: `main`, otherwise the first declared agent.",
        effect=SettingEffect.MESSAGE,
        check=validators.check_agent_name,
        example="ada",
    )
    public_url: str | None = setting(
        None,
        "URL at which people reach the server through a reverse proxy. Default: the server is used without a proxy.",
        effect=SettingEffect.RESTART,
        check=validators.check_public_url,
        example="https://agents.example",
    )
    allowed_hosts: tuple[str, ...] = setting(
        (),
        "Host names that the server accepts in the Host header of a request, in addition to `localhost` and the host "
        "of `public_url`.",
        check=validators.check_host,
        example="agents.example",
    )
    trusted_proxies: tuple[str, ...] = setting(
        (),
        "IP addresses or networks of your reverse proxies. The server accepts headers such as X-Forwarded-For only "
        "from these.",
        effect=SettingEffect.RESTART,
        check=validators.check_network,
        example="10.0.0.0/8",
    )
    permission_policy: Mapping[str, PermissionLevel] = setting(
        cast("Mapping[str, PermissionLevel]", {}),
        "Permission level that an operation requires, by the name of the operation. Default: the operation's built-in "
        "level.",
        effect=SettingEffect.MESSAGE,
        check=validators.check_operation,
        example="agent.set",
    )
    listen: ListenSettings = ListenSettings()
    limits: RequestLimitSettings = RequestLimitSettings()
    logs: LogSettings = LogSettings()
    retention: RetentionSettings = RetentionSettings()
    mirror: MirrorSettings = MirrorSettings()
    slots: SlotSettings = SlotSettings()
    defaults: AgentDefaults = AgentDefaults()
    sessions: SessionSettings = SessionSettings()
    providers: Mapping[str, ProviderSettings] = field(default_factory=dict[str, ProviderSettings])
    models: ModelRoutingSettings = ModelRoutingSettings()
    context: ContextSettings = ContextSettings()
    budgets: BudgetSettings = BudgetSettings()
    tools: ToolSettings = ToolSettings()
    approvals: ApprovalSettings = ApprovalSettings()
    provenance: ProvenanceSettings = ProvenanceSettings()
    sandbox: SandboxSettings = SandboxSettings()
    web: WebSettings = WebSettings()
    external: ExternalAgentSettings = ExternalAgentSettings()
    mcp: Mapping[str, McpServerSettings] = field(default_factory=dict[str, McpServerSettings])
    connectors: Mapping[str, ConnectorSettings] = field(default_factory=dict[str, ConnectorSettings])
    replies: ReplyDeliverySettings = ReplyDeliverySettings()
    skills: SkillSettings = SkillSettings()
    plugins: Mapping[str, PluginSettings] = field(default_factory=dict[str, PluginSettings])
    hooks: HookSettings = HookSettings()
    speech: SpeechSettings = SpeechSettings()


TOP_LEVEL_SECTIONS = (
    "defaults",
    "sessions",
    "providers",
    "models",
    "context",
    "budgets",
    "tools",
    "approvals",
    "provenance",
    "sandbox",
    "web",
    "external",
    "mcp",
    "connectors",
    "replies",
    "skills",
    "plugins",
    "hooks",
    "speech",
)
"""Fields of the settings that are top-level sections of the file."""
