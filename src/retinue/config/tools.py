"""Tool settings: rules for the whole server, which apply in addition to the rules of each agent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import cast

from retinue.config import validators
from retinue.config.setting_metadata import SettingEffect, setting
from retinue.domain.agent import ToolLists


class CommandLocation(StrEnum):
    """Where commands run. The strictest location is listed first."""

    SANDBOX = "sandbox"
    HOST = "host"


class CommandSecurity(StrEnum):
    """Which commands may run. The strictest value is listed first."""

    DENY = "deny"
    ALLOWLIST = "allowlist"
    FULL = "full"


class CommandAsk(StrEnum):
    """When a person is asked to approve a command. The strictest value is listed first.

    With `off`, a command that the allowlist does not name is denied.
    """

    ALWAYS = "always"
    ON_MISS = "on-miss"
    OFF = "off"


class ElevatedPolicy(StrEnum):
    """What happens to a command that asks to run outside the sandbox, if every other rule allows it."""

    OFF = "off"
    ASK = "ask"
    FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolListSettings(ToolLists):
    """Tool rules that apply together with those of the whole server. A tool must be allowed by all of them."""

    profile: str | None = setting(
        None,
        "Profile to start from: `minimal`, `coding`, `messaging` or `full`.",
        effect=SettingEffect.MESSAGE,
        check=validators.check_tool_profile,
        example="coding",
    )
    allow: tuple[str, ...] = setting(
        ("*",), "Tools that may be used: names, globs with `*`, or groups such as `group:web`. An empty list: none."
    )
    also_allow: tuple[str, ...] = setting(
        (), "Tools that may be used in addition to the profile or to `allow`.", effect=SettingEffect.MESSAGE
    )
    ask: tuple[str, ...] = setting(
        (), "Tools that need a person's approval for every call.", effect=SettingEffect.MESSAGE
    )
    deny: tuple[str, ...] = setting((), "Tools that may never be used.", effect=SettingEffect.MESSAGE)
    capabilities_allow: tuple[str, ...] = setting(
        ("*",),
        "Capabilities that a tool may have. A tool without capabilities is always allowed.",
        effect=SettingEffect.MESSAGE,
    )
    capabilities_deny: tuple[str, ...] = setting(
        (), "Capabilities that no tool may have.", effect=SettingEffect.MESSAGE, example="terminal.exec"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelToolSettings(ToolListSettings):
    """Tool rules for senders on one channel. `*` applies to channels that have no rules of their own."""

    by_sender: Mapping[str, ToolListSettings] = field(default_factory=dict[str, ToolListSettings], hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideSenderToolSettings(ToolListSettings):
    """Tool rules for senders who are neither the owner nor a member.

    They are guests, paired senders, people in groups and webhooks. A profile in the rules for one
    of them (`by_sender`, `by_channel`) replaces this one.
    """

    profile: str | None = setting(
        "minimal",
        "Profile for outside senders: `minimal`, `coding`, `messaging` or `full`.",
        effect=SettingEffect.MESSAGE,
        check=validators.check_tool_profile,
        example="messaging",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecSettings:
    """Where commands run, which commands may run, and when a person is asked.

    More is allowed in a sandbox, which confines them.
    """

    host: CommandLocation = setting(
        CommandLocation.SANDBOX, "Where commands run: in the `sandbox` or on the `host`.", effect=SettingEffect.MESSAGE
    )
    security: CommandSecurity = setting(
        CommandSecurity.ALLOWLIST,
        "Which commands may run outside a sandbox: none (`deny`), those in `allow` and approved ones (`allowlist`), or "
        "all (`full`).",
        effect=SettingEffect.MESSAGE,
    )
    ask: CommandAsk = setting(
        CommandAsk.ON_MISS,
        "When a command outside a sandbox needs approval: `always`, or if the allowlist does not name it (`on-miss`). "
        "With `off`, a command that the allowlist does not name is denied.",
        effect=SettingEffect.MESSAGE,
    )
    sandbox_security: CommandSecurity = setting(
        CommandSecurity.FULL,
        "Which commands may run in a sandbox: none (`deny`), those in `allow` and approved ones (`allowlist`), or all "
        "(`full`).",
        effect=SettingEffect.MESSAGE,
    )
    sandbox_ask: CommandAsk = setting(
        CommandAsk.OFF,
        "When a command in a sandbox needs approval: `always`, or if the allowlist does not name it (`on-miss`). With "
        "`off`, a command that the allowlist does not name is denied.",
        effect=SettingEffect.MESSAGE,
    )
    elevated: ElevatedPolicy = setting(
        ElevatedPolicy.OFF,
        "Whether a command that requests to run outside the sandbox is denied (`off`), needs approval (`ask`) or is "
        "allowed (`full`).",
        effect=SettingEffect.MESSAGE,
    )
    allow: tuple[str, ...] = setting(
        (),
        "Commands that need no approval.",
        effect=SettingEffect.MESSAGE,
        check=validators.check_command_rule,
        example="git status",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSettings(ToolListSettings):
    """Tool rules for the whole server."""

    exec: ExecSettings = ExecSettings()
    outside_senders: OutsideSenderToolSettings = OutsideSenderToolSettings()

    agents_enabled: bool = setting(
        True, "Whether agents may contact each other with the tools `agents_*`.", effect=SettingEffect.MESSAGE
    )
    invoke_allow: tuple[str, ...] = setting(
        (),
        "Tools that may be called directly, outside a run, although direct calls to them are denied by default.",
        effect=SettingEffect.MESSAGE,
        example="write",
    )
    by_provider: Mapping[str, ToolListSettings] = field(default_factory=dict[str, ToolListSettings], hash=False)
    by_session: Mapping[str, ToolListSettings] = field(default_factory=dict[str, ToolListSettings], hash=False)
    by_sender: Mapping[str, ToolListSettings] = field(default_factory=dict[str, ToolListSettings], hash=False)
    by_channel: Mapping[str, ChannelToolSettings] = field(default_factory=dict[str, ChannelToolSettings], hash=False)
    policies: Mapping[str, ToolListSettings] = field(default_factory=dict[str, ToolListSettings], hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalSettings:
    """How long approvals wait for an answer, and who else is asked."""

    expires_s: float = setting(
        86_400.0,
        "Time until an approval expires without an answer, in seconds.",
        effect=SettingEffect.MESSAGE,
        least=10,
        most=30 * 86_400,
    )
    escalate_after_s: float | None = setting(
        None,
        "Time without an answer until the next person is asked, in seconds. Default: no other person is asked.",
        effect=SettingEffect.MESSAGE,
        least=10,
        most=30 * 86_400,
    )
    escalate_to: tuple[str, ...] = setting(
        cast("tuple[str, ...]", ()),
        "People to ask next, in order. Each is asked if the person before does not answer.",
        effect=SettingEffect.MESSAGE,
        example="maria",
    )
