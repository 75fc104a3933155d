"""How what is said leaves the house: in what pieces, how fast, and what is shown until it is there."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class ChunkMode(StrEnum):
    """Where a text is cut: only where it is too long, or also wherever a paragraph ends."""

    LENGTH = "length"
    NEWLINE = "newline"


class Break(StrEnum):
    """What a cut is to fall between, if it can."""

    PARAGRAPH = "paragraph"
    NEWLINE = "newline"
    SENTENCE = "sentence"


class Quoting(StrEnum):
    """Which messages of an answer point to the one that they answer."""

    OFF = "off"
    FIRST = "first"
    ALL = "all"


class HumanDelay(StrEnum):
    """How long it takes until the next message of the same answer."""

    OFF = "off"
    NATURAL = "natural"
    CUSTOM = "custom"


class Stream(StrEnum):
    """What of an answer is to be seen before all of it is there."""

    OFF = "off"
    BLOCKS = "blocks"  # it comes in short messages, as its parts are done
    PREVIEW = "preview"  # one message that grows, and goes when the answer comes


class Typing(StrEnum):
    """From when on it is shown that someone writes."""

    NEVER = "never"
    INSTANT = "instant"  # as soon as the run begins
    THINKING = "thinking"  # with the first that a model thinks or says
    MESSAGE = "message"  # with the first word of what it says


class AckScope(StrEnum):
    """What is marked as seen."""

    OFF = "off"
    DIRECT = "direct"
    GROUP_MENTIONS = "group-mentions"  # in groups, what is said to us
    GROUP_ALL = "group-all"
    ALL = "all"


NATURAL_MS = (800, 2500)


class Words(Struct, frozen=True, kw_only=True):
    """How words leave by one door."""

    chunk_mode: ChunkMode = ChunkMode.LENGTH
    text_max: int | None = None  # None: as much as the place takes
    quoting: Quoting = Quoting.FIRST
    prefix: str = ""
    human_delay: HumanDelay = HumanDelay.OFF
    delay_min_ms: int = NATURAL_MS[0]
    delay_max_ms: int = NATURAL_MS[1]
    intermediate: bool = True
    stream: Stream = Stream.OFF
    block_min: int = 800
    block_max: int = 1200
    block_break: Break = Break.PARAGRAPH
    block_idle_ms: int = 1000
    typing: Typing = Typing.INSTANT
    ack: str = ""
    ack_scope: AckScope = AckScope.GROUP_MENTIONS
    ack_removed: bool = False

    @property
    def delay_ms(self) -> tuple[int, int] | None:
        """The least and the most between two messages; None for none at all."""
        match self.human_delay:
            case HumanDelay.OFF:
                return None
            case HumanDelay.NATURAL:
                return NATURAL_MS
            case HumanDelay.CUSTOM:
                return self.delay_min_ms, max(self.delay_min_ms, self.delay_max_ms)


PLAIN_WORDS = Words()


def plain_words(_connector: str) -> Words:
    """In a house whose settings say nothing of how answers look."""
    return PLAIN_WORDS
