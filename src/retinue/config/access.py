"""Access settings that every connector has: who may write, in which groups, and how messages are
received.

All rules use platform ids that do not change. Names and usernames prove nothing, because anyone can
choose any name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from retinue.config.setting_metadata import SettingEffect, setting
from retinue.domain.access import EVERYONE, Activation, DmPolicy, GroupPolicy

ID_CHARS_MAX = 512
PATTERN_CHARS_MAX = 200
PATTERNS_MAX = 50


def check_sender_id(text: str) -> str | None:
    """Check the platform id of a sender, such as `4711` or `maria@example.org`."""
    if not text.strip() or len(text) > ID_CHARS_MAX:
        return f"must be an id of 1 to {ID_CHARS_MAX} characters"
    if text.startswith("@"):
        return "is a username, which another person can take over later; use the permanent id"
    return None


def check_named_sender_id(text: str) -> str | None:
    return f"cannot be {EVERYONE}: commands cannot be open to everyone" if text == EVERYONE else check_sender_id(text)


def check_group_id(text: str) -> str | None:
    return (
        None
        if text.strip() and len(text) <= ID_CHARS_MAX
        else f"must be the id of a channel, or {EVERYONE} for all of them"
    )


def check_mention_pattern(text: str) -> str | None:
    if not 0 < len(text) <= PATTERN_CHARS_MAX:
        return f"must have 1 to {PATTERN_CHARS_MAX} characters"
    try:
        re.compile(text, re.IGNORECASE)
    except re.error as error:
        return f"is not a regular expression: {error}"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Settings of one group. A value that is not set comes from the connector."""

    activation: Activation | None = setting(
        None,
        "Which messages in this group are addressed to the agent. Default: the connector's `activation`.",
        effect=SettingEffect.MESSAGE,
    )
    allow_from: tuple[str, ...] = setting(
        (),
        "Platform ids of the senders whose messages in this group are accepted. Default: the connector's "
        "`group_allow_from`.",
        effect=SettingEffect.MESSAGE,
        check=check_sender_id,
        example="42",
    )
    mention_patterns: tuple[str, ...] = setting(
        (),
        "Additional regular expressions for this group. A message that matches one is addressed to the agent.",
        effect=SettingEffect.MESSAGE,
        check=check_mention_pattern,
        example=r"\bada\b",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSettings:
    """Who may write through a connector, in which groups, and how messages are received."""

    dm_policy: DmPolicy = setting(
        DmPolicy.CLOSED,
        "Who may send direct messages: people with a linked platform id (`closed`), plus the ids in `allow_from` "
        "(`allowlist`), plus senders whose pairing code was accepted (`pairing`), or everyone (`open`).",
        effect=SettingEffect.MESSAGE,
    )
    allow_from: tuple[str, ...] = setting(
        (),
        "Platform ids of the senders who may send direct messages.",
        effect=SettingEffect.MESSAGE,
        check=check_sender_id,
        example="4711",
    )
    group_policy: GroupPolicy = setting(
        GroupPolicy.CLOSED,
        "Which group messages are accepted: none (`closed`), those of the senders in `group_allow_from` (`allowlist`), "
        "or those of all senders (`open`). The groups are listed in `groups`.",
        effect=SettingEffect.MESSAGE,
    )
    groups: Mapping[str, GroupSettings] = setting(
        cast("Mapping[str, GroupSettings]", {}),
        "Groups in which the connector listens. `*` means all. Default: none, or all if `group_policy` is `open`.",
        effect=SettingEffect.MESSAGE,
        check=check_group_id,
        example="-100200300",
    )
    group_allow_from: tuple[str, ...] = setting(
        (),
        "Platform ids of the senders whose group messages are accepted. `*` means everyone. Default: `allow_from`.",
        effect=SettingEffect.MESSAGE,
        check=check_sender_id,
        example="4711",
    )
    activation: Activation = setting(
        Activation.MENTION,
        "Which group messages are addressed to the agent: mentions, replies and commands (`mention`), or all "
        "(`always`).",
        effect=SettingEffect.MESSAGE,
    )
    mention_patterns: tuple[str, ...] = setting(
        (),
        "Regular expressions, case-insensitive. A group message that matches one is addressed to the agent.",
        effect=SettingEffect.MESSAGE,
        check=check_mention_pattern,
        example=r"\bada\b",
    )
    commands_from: tuple[str, ...] = setting(
        (),
        "Platform ids of the senders whose slash commands are executed, in addition to the owner's. Default: senders "
        "who are linked to a person, listed in `allow_from`, or paired.",
        effect=SettingEffect.MESSAGE,
        check=check_named_sender_id,
        example="4711",
    )
    ambient_messages_max: int = setting(
        50,
        "Maximum number of ambient messages (those not addressed to the agent) to keep for each group. They are added "
        "to the next message to the agent. 0: none are kept.",
        effect=SettingEffect.MESSAGE,
        least=0,
        most=500,
    )
    debounce_ms: int = setting(
        0,
        "Time to wait for further text messages from the same sender, in milliseconds. The agent gets them as one "
        "message. 0: it gets each one separately.",
        effect=SettingEffect.MESSAGE,
        least=0,
        most=30_000,
    )
    catch_up_hours: float = setting(
        24.0,
        "Maximum age of messages that arrived while the server was down, in hours. Older messages are not "
        "answered. 0: no limit.",
        effect=SettingEffect.MESSAGE,
        least=0,
        most=8_760,
    )
    pairing_minutes: int = setting(
        60, "Time until a pairing code expires, in minutes.", effect=SettingEffect.MESSAGE, least=1, most=10_080
    )
    pairing_max: int = setting(
        3,
        "Maximum number of pending pairing requests from unknown senders.",
        effect=SettingEffect.MESSAGE,
        least=1,
        most=100,
    )
    messages_per_minute: int = setting(
        60,
        "Maximum number of messages per minute from one unknown sender, if `dm_policy` or `group_policy` is `open`.",
        effect=SettingEffect.MESSAGE,
        least=1,
        most=100_000,
    )
    unknown_senders_per_minute: int = setting(
        120,
        "Maximum number of messages per minute from all unknown senders together, if `dm_policy` or `group_policy` is "
        "`open`.",
        effect=SettingEffect.MESSAGE,
        least=1,
        most=100_000,
    )
    file_bytes_max: int = setting(
        20 * 1024 * 1024,
        "Maximum size of a file in an inbound message, in bytes. The message contains only the name of a larger file.",
        effect=SettingEffect.MESSAGE,
        least=0,
        most=2 * 1024**3,
    )


DEFAULT_ACCESS = AccessSettings()
"""The access rules of a connector for which none are set."""
