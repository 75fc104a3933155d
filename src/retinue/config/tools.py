"""Tool settings: rules of the server, in addition to those of each agent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import cast

from retinue.config import validators
from retinue.config.setting_metadata import Effect, setting
from retinue.domain.agent import ToolLists


class Where(StrEnum):
    """Where commands run, strictest first."""

    SANDBOX = "sandbox"
    HOST = "host"


class Security(StrEnum):
    """Which commands may run, strictest first."""

    DENY = "deny"
    ALLOWLIST = "allowlist"
    FULL = "full"


class Asking(StrEnum):
    """When a person is asked, strictest first.

    With `off`, a command that the allowlist does not name is denied.
    """

    ALWAYS = "always"
    ON_MISS = "on-miss"
    OFF = "off"


class Elevated(StrEnum):
    """What happens to a command that asks to leave the sandbox, if all gates are open."""

    OFF = "off"
    ASK = "ask"
    FULL = "full"


_GLOBS = "Names of tools, globs with `*`, groups such as `group:web`."


@dataclass(frozen=True, slots=True, kw_only=True)
class Lists(ToolLists):
    """Rules over tools. Each level can only remove tools that the others leave."""

    profile: str | None = setting(
        None,
        "What to begin with: `minimal`, `coding`, `messaging` or `full`.",
        effect=Effect.MESSAGE,
        check=validators.tool_profile,
        example="coding",
    )
    allow: tuple[str, ...] = setting(("*",), f"What may be used at all; an empty list is nothing. {_GLOBS}")
    also_allow: tuple[str, ...] = setting((), "What is added to the profile or to `allow`.", effect=Effect.MESSAGE)
    ask: tuple[str, ...] = setting((), "What a person is asked about each time.", effect=Effect.MESSAGE)
    deny: tuple[str, ...] = setting((), "What may not be used, whatever else says so.", effect=Effect.MESSAGE)
    capabilities_allow: tuple[str, ...] = setting(
        ("*",), "Capabilities a tool may have; one that has none passes.", effect=Effect.MESSAGE
    )
    capabilities_deny: tuple[str, ...] = setting(
        (), "Capabilities that no tool may have.", effect=Effect.MESSAGE, example="terminal.exec"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelLists(Lists):
    """Rules for senders on one channel; `*` applies to channels without rules."""

    by_sender: Mapping[str, Lists] = field(default_factory=dict[str, Lists], hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideLists(Lists):
    """Rules for senders who are neither the owner nor a member.

    They are guests, paired senders, people in groups and webhooks. A profile in the rules for one
    of them (`by_sender`, `by_channel`) replaces this one.
    """

    profile: str | None = setting(
        "minimal",
        "What outside senders begin with: `minimal`, `coding`, `messaging` or `full`.",
        effect=Effect.MESSAGE,
        check=validators.tool_profile,
        example="messaging",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecSettings:
    """Commands: where they run, which may, and when a person is asked.

    More is allowed in a sandbox, which confines them.
    """

    host: Where = setting(Where.SANDBOX, "Where commands run.", effect=Effect.MESSAGE)
    security: Security = setting(Security.ALLOWLIST, "Which commands may run outside a sandbox.", effect=Effect.MESSAGE)
    ask: Asking = setting(Asking.ON_MISS, "When a person is asked about one outside.", effect=Effect.MESSAGE)
    sandbox_security: Security = setting(Security.FULL, "Which commands may run in a sandbox.", effect=Effect.MESSAGE)
    sandbox_ask: Asking = setting(Asking.OFF, "When a person is asked about one in a sandbox.", effect=Effect.MESSAGE)
    elevated: Elevated = setting(
        Elevated.OFF, "What becomes of a command that asks to leave the sandbox.", effect=Effect.MESSAGE
    )
    allow: tuple[str, ...] = setting(
        (),
        "Commands that pass without a question.",
        effect=Effect.MESSAGE,
        check=validators.command_rule,
        example="git status",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSettings(Lists):
    """Tool rules for the whole server."""

    exec: ExecSettings = ExecSettings()
    outside_senders: OutsideLists = OutsideLists()

    agents_enabled: bool = setting(
        True, "Whether agents may reach each other at all, by `agents_*`.", effect=Effect.MESSAGE
    )
    invoke_allow: tuple[str, ...] = setting(
        (),
        "Of the tools that cannot be called directly, from outside a run, those that can after all.",
        effect=Effect.MESSAGE,
        example="write",
    )
    by_provider: Mapping[str, Lists] = field(default_factory=dict[str, Lists], hash=False)
    by_session: Mapping[str, Lists] = field(default_factory=dict[str, Lists], hash=False)
    by_sender: Mapping[str, Lists] = field(default_factory=dict[str, Lists], hash=False)
    by_channel: Mapping[str, ChannelLists] = field(default_factory=dict[str, ChannelLists], hash=False)
    policies: Mapping[str, Lists] = field(default_factory=dict[str, Lists], hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalSettings:
    """How people are asked for approvals."""

    expires_s: float = setting(
        86_400.0, "How long a question can be answered.", effect=Effect.MESSAGE, least=10, most=30 * 86_400
    )
    escalate_after_s: float | None = setting(
        None,
        "After how long without an answer the next person is asked. Not set: nobody else is.",
        effect=Effect.MESSAGE,
        least=10,
        most=30 * 86_400,
    )
    escalate_to: tuple[str, ...] = setting(
        cast("tuple[str, ...]", ()),
        "Who is asked next, one after the other: people of the house.",
        effect=Effect.MESSAGE,
        example="maria",
    )
