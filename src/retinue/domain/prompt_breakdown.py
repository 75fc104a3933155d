"""What a run is told before anything is said, piece by piece: for people who ask what takes up the room."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class PartKind(StrEnum):
    SECTION = "section"  # of the instructions
    FILE = "file"  # told in them
    SKILL = "skill"
    TOOL = "tool"  # its schema


class Part(Struct, frozen=True, kw_only=True):
    """One piece, and about how much of a window it takes. What `within` names holds it, and has counted it already."""

    kind: PartKind
    name: str
    chars: int
    tokens: int
    within: str = ""
