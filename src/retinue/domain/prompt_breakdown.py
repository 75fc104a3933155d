"""The size of each part of a system prompt. These sizes show people what fills the context window."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class PromptPartKind(StrEnum):
    SECTION = "section"  # of the system prompt
    FILE = "file"  # included in the system prompt
    SKILL = "skill"
    TOOL = "tool"  # the tool's schema


class PromptPart(Struct, frozen=True, kw_only=True):
    """One part of a system prompt and its approximate size.

    If another part contains it, `within` names that part. The size of the containing part includes this part.
    """

    kind: PromptPartKind
    name: str
    chars: int
    tokens: int
    within: str = ""
