"""Session settings: which conversations share a session, when contexts are reset, and what is sent to channels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from retinue.config import validators
from retinue.config.setting_metadata import Effect, setting
from retinue.domain.reset_rules import CONTEXT_TOKENS_MOST, IDLE_MINUTES_MAX, ResetRules
from retinue.domain.send_policy import SendAction, SendRule
from retinue.domain.session import OriginKind
from retinue.domain.session_keys import ChatType, DmScope

KINDS = (*ChatType, *OriginKind)
KEY_PREFIX_LENGTH_MAX = 256


def kind_of_conversation(text: str) -> str | None:
    return None if text in KINDS else f"must be a kind of conversation: {', '.join(KINDS)}"


def key_prefix(text: str) -> str | None:
    fits = 0 < len(text) <= KEY_PREFIX_LENGTH_MAX and text.isprintable()
    return None if fits else f"must be the beginning of a key, in 1 to {KEY_PREFIX_LENGTH_MAX} characters"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetSettings(ResetRules):
    """When a context is reset automatically, by whichever rule applies first. The history stays."""

    daily_at: str | None = setting(
        None,
        "The time of day, in the owner's zone, from which on the first run begins afresh; `never` for not.",
        effect=Effect.MESSAGE,
        check=validators.daily_at,
        example="04:00",
    )
    idle_minutes: float | None = setting(
        None,
        "After how many minutes in which nothing was done for anyone a run begins afresh; 0 is never. What the clock "
        "sends does not count.",
        effect=Effect.MESSAGE,
        least=0,
        most=IDLE_MINUTES_MAX,
    )
    context_tokens_max: int | None = setting(
        None,
        "How many tokens a context may have come to for the next run to go on with it; 0 is any number.",
        effect=Effect.MESSAGE,
        least=0,
        most=CONTEXT_TOKENS_MOST,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HouseReset(ResetSettings):
    """When contexts are reset: for all sessions, and for some.

    An agent's own rules come first, then those for the connector, the chat type and the kind of
    session. An unset value comes from the next level.
    """

    by_kind: Mapping[str, ResetSettings] = setting(
        cast("Mapping[str, ResetSettings]", {}),
        "The same for one kind of conversation: `direct`, `group`, `thread`, `chat`, `web`, `terminal`, `schedule` and "
        "so on.",
        effect=Effect.MESSAGE,
        check=kind_of_conversation,
        example="group",
    )
    by_channel: Mapping[str, ResetSettings] = setting(
        cast("Mapping[str, ResetSettings]", {}),
        "The same for chats of one connector.",
        effect=Effect.MESSAGE,
        check=validators.name,
        example="telegram",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SendRuleSettings(SendRule):
    """A rule on what is sent to channels. It applies if all its set conditions match."""

    action: SendAction = setting(SendAction.DENY, "What it says where it fits.", effect=Effect.MESSAGE)
    channel: str | None = setting(
        None, "Of which connector.", effect=Effect.MESSAGE, check=validators.name, example="telegram"
    )
    chat_type: ChatType | None = setting(None, "In which type of chat.", effect=Effect.MESSAGE)
    key_prefix: str | None = setting(
        None,
        "How the key of the conversation begins, in any case.",
        effect=Effect.MESSAGE,
        check=key_prefix,
        example="channel:telegram:-100",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SendSettings:
    """Whether replies are sent to channels.

    Runs happen in any case, and replies that are not sent are stored.
    """

    default: SendAction = setting(
        SendAction.ALLOW, "What holds where no rule fits. A rule that denies wins.", effect=Effect.MESSAGE
    )
    rules: Mapping[str, SendRuleSettings] = setting(
        cast("Mapping[str, SendRuleSettings]", {}),
        "Rules by name.",
        effect=Effect.MESSAGE,
        check=validators.name,
        example="quiet-groups",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """Which conversations share a session, when contexts are reset, and what is sent to channels."""

    dm_scope: DmScope = setting(
        DmScope.PER_ACCOUNT_CHANNEL_PEER,
        "Which letters from people in channels go to one session of an agent: all (`main`), those of one person "
        "(`per-peer`), of one person in one service (`per-channel-peer`), or of one person at one account there "
        "(`per-account-channel-peer`).",
        effect=Effect.MESSAGE,
    )
    identity_links: Mapping[str, tuple[str, ...]] = setting(
        cast("Mapping[str, tuple[str, ...]]", {}),
        "For a name, who is that person in which service, as `SERVICE:ID`: the name then stands for the id in keys.",
        effect=Effect.MESSAGE,
        check=validators.name,
        example="maria",
    )
    greeting: bool = setting(
        False,
        "Whether the agent greets, in a run of its own, when somebody begins afresh with a bare `/new`.",
        effect=Effect.MESSAGE,
    )
    reset: HouseReset = HouseReset()
    send: SendSettings = SendSettings()


PLAIN = SessionSettings()


def plain() -> SessionSettings:
    """Return the built-in defaults, for an instance without such settings."""
    return PLAIN
