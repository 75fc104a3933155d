"""How replies are delivered to a channel: chunking, pauses, streaming, typing indicator and reactions."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class ChunkMode(StrEnum):
    """Where an answer is split: only where it is too long, or also after every paragraph."""

    LENGTH = "length"
    NEWLINE = "newline"


class BlockBreak(StrEnum):
    """The preferred boundary of a streamed block."""

    PARAGRAPH = "paragraph"
    NEWLINE = "newline"
    SENTENCE = "sentence"


class QuoteMode(StrEnum):
    """Which messages of an answer quote the message that is answered: none, the first or all."""

    OFF = "off"
    FIRST = "first"
    ALL = "all"


class HumanDelay(StrEnum):
    """The pause between two messages of the same answer."""

    OFF = "off"
    NATURAL = "natural"
    CUSTOM = "custom"


class StreamMode(StrEnum):
    """How much of an answer a person sees before it is complete."""

    OFF = "off"
    BLOCKS = "blocks"  # short messages, sent as blocks are finished
    PREVIEW = "preview"  # one message that is edited as it grows, and removed when the answer is sent


class TypingMode(StrEnum):
    """When the typing indicator starts."""

    NEVER = "never"
    INSTANT = "instant"  # when the run begins
    THINKING = "thinking"  # with the model's first reasoning or text
    MESSAGE = "message"  # with the first text


class AckScope(StrEnum):
    """Which messages get a reaction that marks them as seen."""

    OFF = "off"
    DIRECT = "direct"
    GROUP_MENTIONS = "group-mentions"  # in groups, messages addressed to the agent
    GROUP_ALL = "group-all"
    ALL = "all"


NATURAL_DELAY_MS = (800, 2500)


class ReplyDelivery(Struct, frozen=True, kw_only=True):
    """How one connector delivers replies."""

    chunk_mode: ChunkMode = ChunkMode.LENGTH
    text_max: int | None = None  # None: the platform's limit
    quoting: QuoteMode = QuoteMode.FIRST
    prefix: str = ""
    human_delay: HumanDelay = HumanDelay.OFF
    delay_min_ms: int = NATURAL_DELAY_MS[0]
    delay_max_ms: int = NATURAL_DELAY_MS[1]
    interim: bool = True
    stream: StreamMode = StreamMode.OFF
    block_min: int = 800
    block_max: int = 1200
    block_break: BlockBreak = BlockBreak.PARAGRAPH
    block_idle_ms: int = 1000
    typing: TypingMode = TypingMode.INSTANT
    ack: str = ""
    ack_scope: AckScope = AckScope.GROUP_MENTIONS
    remove_ack: bool = False

    @property
    def delay_range_ms(self) -> tuple[int, int] | None:
        """The minimum and maximum pause between two messages, or None if there is no pause."""
        match self.human_delay:
            case HumanDelay.OFF:
                return None
            case HumanDelay.NATURAL:
                return NATURAL_DELAY_MS
            case HumanDelay.CUSTOM:
                return self.delay_min_ms, max(self.delay_min_ms, self.delay_max_ms)


DEFAULT_REPLY_DELIVERY = ReplyDelivery()


def default_reply_delivery(_connector: str) -> ReplyDelivery:
    """Return the built-in defaults for reply delivery, for a server whose settings contain none."""
    return DEFAULT_REPLY_DELIVERY
