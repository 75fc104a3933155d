"""Tool settings: rules for all agents, which apply in addition to the rules of each agent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import cast

from retinue.config import validators
from retinue.config.setting_metadata import SettingEffect, SettingRule, setting
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
    """When a command needs approval. The strictest value is listed first.

    With `off` and an allowlist, a command that is not on the allowlist is denied.
    """

    ALWAYS = "always"
    ON_MISS = "on-miss"
    OFF = "off"


class ElevatedPolicy(StrEnum):
    """What happens to a command that requests to run outside the sandbox, if all other rules allow it."""

    OFF = "off"
    ASK = "ask"
    FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolListSettings(ToolLists):
    """Tool rules that apply in addition to those in [tools]. An agent may use a tool only if all rules allow it."""

    profile: str | None = setting(
        None,
        "Set of tools to start from: `minimal`, `coding`, `messaging` or `full`. Default: all tools in `allow`.",
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
        (), "Tools that may be used, with a person's approval for each call.", effect=SettingEffect.MESSAGE
    )
    deny: tuple[str, ...] = setting(
        (), "Tools that may never be used, even if another list names them.", effect=SettingEffect.MESSAGE
    )
    capabilities_allow: tuple[str, ...] = setting(
        ("*",),
        "Permitted capabilities of tools, as globs such as `network.*`. A tool that has any other capability may not "
        "be used. This setting does not restrict a tool without capabilities.",
        effect=SettingEffect.MESSAGE,
    )
    capabilities_deny: tuple[str, ...] = setting(
        (),
        "Forbidden capabilities of tools, as globs such as `network.*`. A tool that has one of them may not be used.",
        effect=SettingEffect.MESSAGE,
        example="terminal.exec",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelToolSettings(ToolListSettings):
    """Tool rules for messages from one channel. The name `*` stands for channels without rules of their own."""

    by_sender: Mapping[str, ToolListSettings] = field(
        default_factory=dict[str, ToolListSettings],
        hash=False,
        metadata={
            "rule": SettingRule(
                description="Tool rules for one sender in this channel, such as `person:maria`. Globs are allowed."
            )
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideSenderToolSettings(ToolListSettings):
    """Tool rules for senders who are neither the owner nor a member.

    Such senders are guests, paired senders, other people in groups, and webhooks. A profile in `by_sender` or
    `by_channel` for one of them replaces the profile set here.
    """

    profile: str | None = setting(
        "minimal",
        "Set of tools to start from, for senders who are neither the owner nor a member: `minimal`, `coding`, "
        "`messaging` or `full`.",
        effect=SettingEffect.MESSAGE,
        check=validators.check_tool_profile,
        example="messaging",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecSettings:
    """Where commands run, which commands may run, and when a command needs approval.

    The defaults allow more in a sandbox, because a sandbox limits what a command can do.
    """

    host: CommandLocation = setting(
        CommandLocation.SANDBOX, "Where commands run: in the `sandbox` or on the `host`.", effect=SettingEffect.MESSAGE
    )
    security: CommandSecurity = setting(
        CommandSecurity.ALLOWLIST,
        "Which commands may run outside a sandbox: none (`deny`), only those in `allow` and those that a person "
        "approves (`allowlist`), or all (`full`).",
        effect=SettingEffect.MESSAGE,
    )
    ask: CommandAsk = setting(
        CommandAsk.ON_MISS,
        "When a command outside a sandbox needs approval: always (`always`), or if `security` is `allowlist` and "
        "the command is not in `allow` (`on-miss`). With `off`, such a command is denied.",
        effect=SettingEffect.MESSAGE,
    )
    sandbox_security: CommandSecurity = setting(
        CommandSecurity.FULL,
        "Which commands may run in a sandbox: none (`deny`), only those in `allow` and those that a person approves "
        "(`allowlist`), or all (`full`).",
        effect=SettingEffect.MESSAGE,
    )
    sandbox_ask: CommandAsk = setting(
        CommandAsk.OFF,
        "When a command in a sandbox needs approval: always (`always`), or if `sandbox_security` is `allowlist` and "
        "the command is not in `allow` (`on-miss`). With `off`, such a command is denied.",
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
        "Commands that may run without approval. A command is written as plain words, such as `git status`.",
        effect=SettingEffect.MESSAGE,
        check=validators.check_command_rule,
        example="git status",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSettings(ToolListSettings):
    """Tool rules for all agents."""

    exec: ExecSettings = ExecSettings()
    outside_senders: OutsideSenderToolSettings = OutsideSenderToolSettings()

    agents_enabled: bool = setting(
        True,
        "Whether agents may see, write to and delegate to other agents, with the tools `agents_*`.",
        effect=SettingEffect.MESSAGE,
    )
    invoke_allow: tuple[str, ...] = setting(
        (),
        "Tools that may be called directly, with `retinue tool invoke` or over MCP, even though direct calls to "
        "these tools are denied by default.",
        effect=SettingEffect.MESSAGE,
        example="write",
    )
    by_provider: Mapping[str, ToolListSettings] = field(
        default_factory=dict[str, ToolListSettings],
        hash=False,
        metadata={
            "rule": SettingRule(
                description="Tool rules for runs with one provider (`PROVIDER`) or one model (`PROVIDER/MODEL`)."
            )
        },
    )
    by_session: Mapping[str, ToolListSettings] = field(
        default_factory=dict[str, ToolListSettings],
        hash=False,
        metadata={
            "rule": SettingRule(
                description="Tool rules for sessions of one kind, such as `chat`, `schedule` or `subagent`."
            )
        },
    )
    by_sender: Mapping[str, ToolListSettings] = field(
        default_factory=dict[str, ToolListSettings],
        hash=False,
        metadata={
            "rule": SettingRule(
                description="Tool rules for messages from one sender, such as `person:maria`. Globs are allowed."
            )
        },
    )
    by_channel: Mapping[str, ChannelToolSettings] = field(
        default_factory=dict[str, ChannelToolSettings],
        hash=False,
        metadata={
            "rule": SettingRule(
                description="Tool rules for messages from one channel, `CONNECTOR:CHANNEL`. `*` stands for channels "
                "without rules of their own."
            )
        },
    )
    policies: Mapping[str, ToolListSettings] = field(
        default_factory=dict[str, ToolListSettings],
        hash=False,
        metadata={
            "rule": SettingRule(
                description="Named tool rules. They apply to agents whose setting `tools.policy` has this name."
            )
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalSettings:
    """How long approval requests wait for an answer, and who is asked next."""

    expires_s: float = setting(
        86_400.0,
        "Time after which an unanswered approval request expires, in seconds.",
        effect=SettingEffect.MESSAGE,
        least=10,
        most=30 * 86_400,
    )
    escalate_after_s: float | None = setting(
        None,
        "Time after which the next person in `escalate_to` is asked, in seconds. Default: no other person is asked.",
        effect=SettingEffect.MESSAGE,
        least=10,
        most=30 * 86_400,
    )
    escalate_to: tuple[str, ...] = setting(
        cast("tuple[str, ...]", ()),
        "People to ask for an approval if the first person does not answer, in this order.",
        effect=SettingEffect.MESSAGE,
        example="maria",
    )
