"""Session settings: which conversations share a session, when contexts are reset, and what is sent to channels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from retinue.config import validators
from retinue.config.setting_metadata import SettingEffect, setting
from retinue.domain.reset_rules import CONTEXT_TOKENS_LIMIT, IDLE_MINUTES_MAX, ResetRules
from retinue.domain.send_policy import SendAction, SendRule
from retinue.domain.session import OriginKind
from retinue.domain.session_keys import ChatType, DmScope

CONVERSATION_KINDS = (*ChatType, *OriginKind)
KEY_PREFIX_LENGTH_MAX = 256


def check_conversation_kind(text: str) -> str | None:
    return None if text in CONVERSATION_KINDS else f"must be one of {', '.join(CONVERSATION_KINDS)}"


def check_key_prefix(text: str) -> str | None:
    fits = 0 < len(text) <= KEY_PREFIX_LENGTH_MAX and text.isprintable()
    return None if fits else f"must be a key prefix of 1 to {KEY_PREFIX_LENGTH_MAX} characters"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetSettings(ResetRules):
    """When a context is reset automatically. Any one of the rules causes a reset. The session's history is kept."""

    daily_at: str | None = setting(
        None,
        "Time of day at which contexts are reset, in the owner's time zone. `never`: no daily reset. Default: the rule "
        "in the next more general section, if there is one.",
        effect=SettingEffect.MESSAGE,
        check=validators.check_daily_at,
        example="04:00",
    )
    idle_minutes: float | None = setting(
        None,
        "Minutes without activity after which a context is reset. Scheduled runs do not count as activity. 0: never. "
        "Default: the rule in the next more general section, if there is one.",
        effect=SettingEffect.MESSAGE,
        least=0,
        most=IDLE_MINUTES_MAX,
    )
    context_tokens_max: int | None = setting(
        None,
        "Maximum size of a context, in tokens. A larger context is reset before the next run. 0: no limit. Default: "
        "the rule in the next more general section, if there is one.",
        effect=SettingEffect.MESSAGE,
        least=0,
        most=CONTEXT_TOKENS_LIMIT,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionResetSettings(ResetSettings):
    """When contexts are reset: rules for all sessions, for one kind of session and for one connector.

    Each value is looked up in this order: rules of the agent, of the connector, of the chat type, of the kind of
    session, and of all sessions.
    """

    by_kind: Mapping[str, ResetSettings] = setting(
        cast("Mapping[str, ResetSettings]", {}),
        "Reset rules for one kind of session, such as `direct`, `group`, `thread`, `chat`, `web`, `terminal` or "
        "`schedule`.",
        effect=SettingEffect.MESSAGE,
        check=check_conversation_kind,
        example="group",
    )
    by_channel: Mapping[str, ResetSettings] = setting(
        cast("Mapping[str, ResetSettings]", {}),
        "Reset rules for the chats of one connector.",
        effect=SettingEffect.MESSAGE,
        check=validators.check_name,
        example="telegram",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SendRuleSettings(SendRule):
    """A rule about which replies are sent to channels. It applies to a reply that meets all conditions set in it."""

    action: SendAction = setting(
        SendAction.DENY,
        "What happens to replies to which this rule applies: they are sent (`allow`), or only stored (`deny`).",
        effect=SettingEffect.MESSAGE,
    )
    channel: str | None = setting(
        None,
        "Condition: the connector through which the reply would be sent. Default: any connector.",
        effect=SettingEffect.MESSAGE,
        check=validators.check_name,
        example="telegram",
    )
    chat_type: ChatType | None = setting(
        None,
        "Condition: the type of the chat to which the reply would be sent. Default: any type.",
        effect=SettingEffect.MESSAGE,
    )
    key_prefix: str | None = setting(
        None,
        "Condition: the beginning of the session key of the reply, case-insensitive. Default: any session.",
        effect=SettingEffect.MESSAGE,
        check=check_key_prefix,
        example="channel:telegram:-100",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SendSettings:
    """Whether replies are sent to channels.

    The agent runs either way. A reply that is not sent is still stored.
    """

    default: SendAction = setting(
        SendAction.ALLOW,
        "What happens to replies to which no rule applies: they are sent (`allow`), or only stored (`deny`). If "
        "several rules apply to a reply, `deny` wins.",
        effect=SettingEffect.MESSAGE,
    )
    rules: Mapping[str, SendRuleSettings] = setting(
        cast("Mapping[str, SendRuleSettings]", {}),
        "Rules about which replies are sent, each with a name that you choose.",
        effect=SettingEffect.MESSAGE,
        check=validators.check_name,
        example="quiet-groups",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """Which conversations share a session, when contexts are reset, and what is sent to channels."""

    dm_scope: DmScope = setting(
        DmScope.PER_ACCOUNT_CHANNEL_PEER,
        "Which direct messages share a session: all (`main`), or those with the same person (`per-peer`), person and "
        "platform (`per-channel-peer`), or person and connector (`per-account-channel-peer`).",
        effect=SettingEffect.MESSAGE,
    )
    identity_links: Mapping[str, tuple[str, ...]] = setting(
        cast("Mapping[str, tuple[str, ...]]", {}),
        "Platform ids that belong to one person, as `PLATFORM:ID`, under a name for that person. In session keys, the "
        "name replaces these ids.",
        effect=SettingEffect.MESSAGE,
        check=validators.check_name,
        example="maria",
    )
    greeting: bool = setting(
        False,
        "Whether the agent greets a person who sends `/new` without text.",
        effect=SettingEffect.MESSAGE,
    )
    reset: SessionResetSettings = SessionResetSettings()
    send: SendSettings = SendSettings()


BUILT_IN_SESSION_SETTINGS = SessionSettings()


def built_in_session_settings() -> SessionSettings:
    """Return the built-in session settings, for an instance whose settings contain none."""
    return BUILT_IN_SESSION_SETTINGS
