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
    """When a context is reset automatically. The first rule that applies resets it. The history stays."""

    daily_at: str | None = setting(
        None,
        "Time of day at which contexts are reset, in the owner's time zone. `never`: no daily reset.",
        effect=SettingEffect.MESSAGE,
        check=validators.check_daily_at,
        example="04:00",
    )
    idle_minutes: float | None = setting(
        None,
        "Minutes without activity after which a context is reset. Scheduled runs do not count. 0: never.",
        effect=SettingEffect.MESSAGE,
        least=0,
        most=IDLE_MINUTES_MAX,
    )
    context_tokens_max: int | None = setting(
        None,
        "Maximum size of a context, in tokens. The next run resets a larger context. 0: no limit.",
        effect=SettingEffect.MESSAGE,
        least=0,
        most=CONTEXT_TOKENS_LIMIT,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionResetSettings(ResetSettings):
    """When contexts are reset: rules for all sessions, for one kind of session and for one connector.

    An agent's own rules come first, then those for the connector, the chat type and the kind of
    session. An unset value comes from the next level.
    """

    by_kind: Mapping[str, ResetSettings] = setting(
        cast("Mapping[str, ResetSettings]", {}),
        "Reset rules for one kind of session: `direct`, `group`, `thread`, `chat`, `web`, `terminal`, "
        "`schedule` and so on.",
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
    """A rule that decides which replies are sent to channels. It applies if all conditions that it sets match."""

    action: SendAction = setting(
        SendAction.DENY,
        "What happens to replies that match this rule: `allow` sends them, `deny` only stores them.",
        effect=SettingEffect.MESSAGE,
    )
    channel: str | None = setting(
        None,
        "Connector through which a reply must go to match the rule.",
        effect=SettingEffect.MESSAGE,
        check=validators.check_name,
        example="telegram",
    )
    chat_type: ChatType | None = setting(
        None, "Type of chat that a reply must be in to match the rule.", effect=SettingEffect.MESSAGE
    )
    key_prefix: str | None = setting(
        None,
        "Prefix that the key of the reply's session must have to match the rule, case-insensitive.",
        effect=SettingEffect.MESSAGE,
        check=check_key_prefix,
        example="channel:telegram:-100",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SendSettings:
    """Whether replies are sent to channels.

    Runs take place in any case, and replies that are not sent are stored.
    """

    default: SendAction = setting(
        SendAction.ALLOW,
        "What happens to replies that no rule matches. If several rules match, `deny` wins.",
        effect=SettingEffect.MESSAGE,
    )
    rules: Mapping[str, SendRuleSettings] = setting(
        cast("Mapping[str, SendRuleSettings]", {}),
        "Rules by name.",
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
        "Names that replace platform ids in session keys. Each name has the ids of one person, as `PLATFORM:ID`.",
        effect=SettingEffect.MESSAGE,
        check=validators.check_name,
        example="maria",
    )
    greeting: bool = setting(
        False,
        "Whether the agent sends a greeting after `/new` without text.",
        effect=SettingEffect.MESSAGE,
    )
    reset: SessionResetSettings = SessionResetSettings()
    send: SendSettings = SendSettings()


BUILT_IN_SESSION_SETTINGS = SessionSettings()


def built_in_session_settings() -> SessionSettings:
    """Return the built-in session settings, for an instance whose settings contain none."""
    return BUILT_IN_SESSION_SETTINGS
