"""Reply delivery settings: chunking, pauses, streaming, typing indicator and reactions in chats.

`[words]` applies to all connectors; `[connectors.NAME.words]` overrides it for one.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from msgspec.structs import replace

from retinue.config.setting_metadata import Effect, setting
from retinue.domain.reply_delivery import (
    PLAIN_WORDS,
    AckScope,
    Break,
    ChunkMode,
    HumanDelay,
    Quoting,
    Stream,
    Typing,
    Words,
)

TEXT_LEAST = 100
TEXT_MOST = 1_000_000
PREFIX_CHARS_MAX = 200
DELAY_MS_MOST = 10_000
BLOCK_MOST = 100_000
IDLE_MS_MOST = 60_000
EMOJI_CHARS_MAX = 16


def prefix(text: str) -> str | None:
    fits = len(text) <= PREFIX_CHARS_MAX and text.isprintable()
    return None if fits else f"must be one line of at most {PREFIX_CHARS_MAX} characters"


def emoji(text: str) -> str | None:
    fits = len(text) <= EMOJI_CHARS_MAX and not any(char.isspace() for char in text)
    return None if fits else f"must be one emoji, in at most {EMOJI_CHARS_MAX} characters"


@dataclass(frozen=True, slots=True, kw_only=True)
class WordSettings:
    """How replies are delivered in chats. An unset value comes from the server's settings."""

    chunk_mode: ChunkMode | None = setting(
        None,
        "Where a long answer is cut: `length`, where a message is full, or `newline`, also wherever a paragraph ends. "
        "Not set: `length`.",
        effect=Effect.MESSAGE,
    )
    text_max: int | None = setting(
        None,
        "The longest message, as the place counts. Not set: as much as it takes.",
        effect=Effect.MESSAGE,
        least=TEXT_LEAST,
        most=TEXT_MOST,
    )
    quoting: Quoting | None = setting(
        None,
        "Which messages of an answer point to what they answer, where that is in the same chat: `off`, `first` or "
        "`all`. Not set: `first`.",
        effect=Effect.MESSAGE,
    )
    prefix: str | None = setting(
        None,
        "What stands before each answer. {identity.name}, {agent}, {model}, {modelFull} and {provider} are filled in.",
        effect=Effect.MESSAGE,
        check=prefix,
        example="[{identity.name}]",
    )
    human_delay: HumanDelay | None = setting(
        None,
        "A pause between the messages of one answer: `off`, `natural` (0.8 to 2.5 s) or `custom`. Not set: `off`.",
        effect=Effect.MESSAGE,
    )
    delay_min_ms: int | None = setting(
        None, "The shortest pause, where it is `custom`.", effect=Effect.MESSAGE, least=0, most=DELAY_MS_MOST
    )
    delay_max_ms: int | None = setting(
        None, "The longest pause, where it is `custom`.", effect=Effect.MESSAGE, least=0, most=DELAY_MS_MOST
    )
    intermediate: bool | None = setting(
        None,
        "Whether what an agent says between its calls is sent at once, while it works on. Not set: yes.",
        effect=Effect.MESSAGE,
    )
    stream: Stream | None = setting(
        None,
        "What is to be seen before an answer is whole: `off`; `blocks`, it comes in short messages; `preview`, one "
        "message that grows, where the place can. Not set: `off`.",
        effect=Effect.MESSAGE,
    )
    block_min: int | None = setting(
        None,
        "How long a block is at least, in characters; what is shorter waits a moment for what follows. Not set: 800.",
        effect=Effect.MESSAGE,
        least=1,
        most=BLOCK_MOST,
    )
    block_max: int | None = setting(
        None, "How long a block is at most. Not set: 1200.", effect=Effect.MESSAGE, least=TEXT_LEAST, most=BLOCK_MOST
    )
    block_break: Break | None = setting(
        None,
        "What a block ends with, if it can: a `paragraph`, a `newline` or a `sentence`. Not set: `paragraph`.",
        effect=Effect.MESSAGE,
    )
    block_idle_ms: int | None = setting(
        None,
        "How long a short block waits for what follows. Not set: 1000.",
        effect=Effect.MESSAGE,
        least=0,
        most=IDLE_MS_MOST,
    )
    typing: Typing | None = setting(
        None,
        "From when on it is shown that someone writes: `never`; `instant`, as soon as the run begins; `thinking`, with "
        "the model's first sign; `message`, with the first word of what it says. Not set: `instant`.",
        effect=Effect.MESSAGE,
    )
    ack: str | None = setting(
        None, "The reaction by which a message is marked as seen; empty for none.", check=emoji, example="👀"
    )
    ack_scope: AckScope | None = setting(
        None,
        "What is marked: `off`, `direct`, `group-mentions`, `group-all` or `all`. Not set: `group-mentions`.",
        effect=Effect.MESSAGE,
    )
    ack_removed: bool | None = setting(
        None, "Whether the mark goes once it is answered. Not set: no.", effect=Effect.MESSAGE
    )

    def over(self, other: Words = PLAIN_WORDS) -> Words:
        """Return these settings, with unset values taken from `defaults`."""
        said = {each.name: getattr(self, each.name) for each in fields(self)}
        own = {name: value for name, value in said.items() if value is not None}
        return replace(other, **own) if own else other
