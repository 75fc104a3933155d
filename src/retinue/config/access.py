"""Access settings that every connector has: who may write, in which groups, and how their messages
are received.

All rules use the permanent ids of a platform. A name or username proves nothing, because anyone may
take it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from retinue.config.setting_metadata import Effect, setting
from retinue.domain.access import EVERYONE, Activation, DmPolicy, GroupPolicy

ID_CHARS_MAX = 512
PATTERN_CHARS_MAX = 200
PATTERNS_MAX = 50


def speaker_id(text: str) -> str | None:
    """Check the platform id of a sender: `4711`, `maria@example.org`."""
    if not text.strip() or len(text) > ID_CHARS_MAX:
        return f"must be an id of 1 to {ID_CHARS_MAX} characters"
    if text.startswith("@"):
        return "is a username, which anyone may take once it is given up; name the id that stays"
    return None


def named_speaker(text: str) -> str | None:
    return f"cannot be {EVERYONE}: commands are never open to everyone" if text == EVERYONE else speaker_id(text)


def room_id(text: str) -> str | None:
    return None if text.strip() and len(text) <= ID_CHARS_MAX else f"must be a room, or {EVERYONE} for every room"


def mention_pattern(text: str) -> str | None:
    if not 0 < len(text) <= PATTERN_CHARS_MAX:
        return f"must have 1 to {PATTERN_CHARS_MAX} characters"
    try:
        re.compile(text, re.IGNORECASE)
    except re.error as error:
        return f"is no regular expression: {error}"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """One group. A value that is not set comes from the connector."""

    activation: Activation | None = setting(None, "What is said to the agent there.", effect=Effect.MESSAGE)
    allow_from: tuple[str, ...] = setting(
        (), "Who is heard there, in place of `group_allow_from`.", effect=Effect.MESSAGE, check=speaker_id, example="42"
    )
    mention_patterns: tuple[str, ...] = setting(
        (),
        "What counts as a mention there beside the connector's own patterns.",
        effect=Effect.MESSAGE,
        check=mention_pattern,
        example=r"\bada\b",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorSettings:
    """Who may write through a connector, in which groups, and how their messages are received."""

    dm: DmPolicy = setting(
        DmPolicy.CLOSED,
        "Who may write in person: people of the house by their linked ids (`closed`), also who is on `allow_from` "
        "(`allowlist`), also whoever the owner lets in by a code (`pairing`), or everyone (`open`).",
        effect=Effect.MESSAGE,
    )
    allow_from: tuple[str, ...] = setting(
        (), "Ids of those who may write in person.", effect=Effect.MESSAGE, check=speaker_id, example="4711"
    )
    group_policy: GroupPolicy = setting(
        GroupPolicy.CLOSED,
        "Whether it listens where several speak: nowhere (`closed`), in `groups` to `group_allow_from` (`allowlist`), "
        "or to everyone there (`open`).",
        effect=Effect.MESSAGE,
    )
    groups: Mapping[str, GroupSettings] = setting(
        cast("Mapping[str, GroupSettings]", {}),
        "The rooms in which it listens; `*` is every room. With `open`, none named means every room.",
        effect=Effect.MESSAGE,
        check=room_id,
        example="-100200300",
    )
    group_allow_from: tuple[str, ...] = setting(
        (),
        "Ids of those who are heard in groups; `*` is everyone there. None: those of `allow_from`.",
        effect=Effect.MESSAGE,
        check=speaker_id,
        example="4711",
    )
    activation: Activation = setting(Activation.MENTION, "What in a group is said to the agent.", effect=Effect.MESSAGE)
    mention_patterns: tuple[str, ...] = setting(
        (),
        "Regular expressions, in any case: what fits one is said to the agent as if it were named.",
        effect=Effect.MESSAGE,
        check=mention_pattern,
        example=r"\bada\b",
    )
    commands_from: tuple[str, ...] = setting(
        (),
        "Ids of those whose commands are carried out, beside the owner's. None: of everyone who is linked, listed or "
        "paired; never of those who are let in because a door is open.",
        effect=Effect.MESSAGE,
        check=named_speaker,
        example="4711",
    )
    history_limit: int = setting(
        50,
        "How many messages of a group that were not said to the agent are kept, and told with the next one that is.",
        effect=Effect.MESSAGE,
        least=0,
        most=500,
    )
    debounce_ms: int = setting(
        0,
        "Texts that somebody writes one after the other within so long are one envelope; 0: each is its own.",
        effect=Effect.MESSAGE,
        least=0,
        most=30_000,
    )
    catch_up_hours: float = setting(
        24.0,
        "Messages older than this, found after the house was closed, are not answered any more; 0: however old.",
        effect=Effect.MESSAGE,
        least=0,
        most=8_760,
    )
    pairing_minutes: int = setting(60, "How long a pairing code holds.", effect=Effect.MESSAGE, least=1, most=10_080)
    pairing_max: int = setting(
        3, "How many strangers may wait to be let in at once.", effect=Effect.MESSAGE, least=1, most=100
    )
    messages_per_minute: int = setting(
        60, "How many messages of one sender are taken in a minute.", effect=Effect.MESSAGE, least=1, most=100_000
    )
    strangers_per_minute: int = setting(
        120,
        "How many messages of those who are not known are taken in a minute, of all of them together.",
        effect=Effect.MESSAGE,
        least=1,
        most=100_000,
    )
    file_bytes_max: int = setting(
        20 * 1024 * 1024, "How large a file may be that is taken in.", effect=Effect.MESSAGE, least=0, most=2 * 1024**3
    )


CLOSED = DoorSettings()
"""A door about which nothing was said."""
