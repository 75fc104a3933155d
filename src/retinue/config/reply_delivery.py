"""Settings for the delivery of replies in chats: chunking, pauses, streaming, typing indicator and reactions.

`[replies]` applies to all connectors. `[connectors.NAME.replies]` overrides it for one connector.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from msgspec.structs import replace

from retinue.config.setting_metadata import SettingEffect, setting
from retinue.domain.reply_delivery import (
    DEFAULT_REPLY_DELIVERY,
    AckScope,
    BlockBreak,
    ChunkMode,
    HumanDelay,
    QuoteMode,
    ReplyDelivery,
    StreamMode,
    TypingMode,
)

TEXT_CHARS_MIN = 100
TEXT_CHARS_LIMIT = 1_000_000
PREFIX_CHARS_MAX = 200
DELAY_MS_LIMIT = 10_000
BLOCK_CHARS_LIMIT = 100_000
IDLE_MS_LIMIT = 60_000
EMOJI_CHARS_MAX = 16


def check_prefix(text: str) -> str | None:
    fits = len(text) <= PREFIX_CHARS_MAX and text.isprintable()
    return None if fits else f"must be one line of at most {PREFIX_CHARS_MAX} characters"


def check_emoji(text: str) -> str | None:
    fits = len(text) <= EMOJI_CHARS_MAX and not any(char.isspace() for char in text)
    return None if fits else f"must be one emoji, in at most {EMOJI_CHARS_MAX} characters"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyDeliverySettings:
    """How replies are delivered in chats. A value that is not set for a connector comes from `[replies]`."""

    chunk_mode: ChunkMode | None = setting(
        None,
        "Where an answer is split into messages: only where it exceeds the maximum length (`length`), or also after "
        "each paragraph (`newline`). Default: `length`.",
        effect=SettingEffect.MESSAGE,
    )
    text_max: int | None = setting(
        None,
        "Maximum length of a message, in the unit that the platform uses. Default: the platform's limit.",
        effect=SettingEffect.MESSAGE,
        least=TEXT_CHARS_MIN,
        most=TEXT_CHARS_LIMIT,
    )
    quoting: QuoteMode | None = setting(
        None,
        "Which messages of an answer quote the question, if it is in the same chat: none (`off`), the first (`first`) "
        "or all (`all`). Default: `first`.",
        effect=SettingEffect.MESSAGE,
    )
    prefix: str | None = setting(
        None,
        "Text before each answer. Default: none. Placeholders: {identity.name}, {agent}, {model}, {modelFull} and "
        "{provider}.",
        effect=SettingEffect.MESSAGE,
        check=check_prefix,
        example="[{identity.name}]",
    )
    human_delay: HumanDelay | None = setting(
        None,
        "Pause between the messages of one answer: none (`off`), 0.8 to 2.5 seconds (`natural`), or between "
        "`delay_min_ms` and `delay_max_ms` (`custom`). Default: `off`.",
        effect=SettingEffect.MESSAGE,
    )
    delay_min_ms: int | None = setting(
        None,
        "Minimum pause if `human_delay` is `custom`, in milliseconds.",
        effect=SettingEffect.MESSAGE,
        least=0,
        most=DELAY_MS_LIMIT,
    )
    delay_max_ms: int | None = setting(
        None,
        "Maximum pause if `human_delay` is `custom`, in milliseconds.",
        effect=SettingEffect.MESSAGE,
        least=0,
        most=DELAY_MS_LIMIT,
    )
    interim: bool | None = setting(
        None,
        "Whether text that an agent writes between its tool calls is sent at once. Otherwise only the answer is sent. "
        "Default: true.",
        effect=SettingEffect.MESSAGE,
    )
    stream: StreamMode | None = setting(
        None,
        "What people see of an answer before it is complete: nothing (`off`), short messages (`blocks`), or one "
        "message that grows, if the platform supports edits (`preview`). Default: `off`.",
        effect=SettingEffect.MESSAGE,
    )
    block_min: int | None = setting(
        None,
        "Minimum length of a message if `stream` is `blocks`, in characters. Shorter text waits for more text. "
        "Default: 800.",
        effect=SettingEffect.MESSAGE,
        least=1,
        most=BLOCK_CHARS_LIMIT,
    )
    block_max: int | None = setting(
        None,
        "Maximum length of a message if `stream` is `blocks`, in characters. Default: 1200.",
        effect=SettingEffect.MESSAGE,
        least=TEXT_CHARS_MIN,
        most=BLOCK_CHARS_LIMIT,
    )
    block_break: BlockBreak | None = setting(
        None,
        "Preferred end of a message if `stream` is `blocks`: the end of a paragraph (`paragraph`), line (`newline`) or "
        "sentence (`sentence`). Default: `paragraph`.",
        effect=SettingEffect.MESSAGE,
    )
    block_idle_ms: int | None = setting(
        None,
        "Time that text shorter than `block_min` waits for more text, in milliseconds. Default: 1000.",
        effect=SettingEffect.MESSAGE,
        least=0,
        most=IDLE_MS_LIMIT,
    )
    typing: TypingMode | None = setting(
        None,
        "When the typing indicator appears: never (`never`), when the run starts (`instant`), with the first output of "
        "the model (`thinking`), or with the first word of the answer (`message`). Default: `instant`.",
        effect=SettingEffect.MESSAGE,
    )
    ack: str | None = setting(
        None,
        "Emoji with which the agent reacts to a message as soon as it is received. Default: no reaction.",
        check=check_emoji,
        example="👀",
    )
    ack_scope: AckScope | None = setting(
        None,
        "Which messages get the reaction `ack`: none (`off`), direct messages (`direct`), group messages addressed to "
        "the agent (`group-mentions`), all group messages (`group-all`) or all (`all`). Default: `group-mentions`.",
        effect=SettingEffect.MESSAGE,
    )
    remove_ack: bool | None = setting(
        None,
        "Whether the reaction `ack` is removed once the message is answered. Default: false.",
        effect=SettingEffect.MESSAGE,
    )

    def with_defaults(self, defaults: ReplyDelivery = DEFAULT_REPLY_DELIVERY) -> ReplyDelivery:
        """Return these settings, with unset values taken from `defaults`."""
        said = {each.name: getattr(self, each.name) for each in fields(self)}
        own = {name: value for name, value in said.items() if value is not None}
        return replace(defaults, **own) if own else defaults
