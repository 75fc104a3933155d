"""The size of each part of a system prompt, for people who ask what takes up the context window."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class PromptPartKind(StrEnum):
    SECTION = "section"  # of the system prompt
    FILE = "file"  # included in the system prompt
    SKILL = "skill"
    TOOL = "tool"  # the tool's schema


class PromptPart(Struct, frozen=True, kw_only=True):
    """One part and its approximate size. If it is contained in another part, `within` names that
    part, whose size includes it."""

    kind: PromptPartKind
    name: str
    chars: int
    tokens: int
    within: str = ""
