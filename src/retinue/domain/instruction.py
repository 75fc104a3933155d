"""How much an agent is told before anything is said to it."""

from __future__ import annotations

from enum import StrEnum


class InstructionMode(StrEnum):
    FULL = "full"
    MINIMAL = "minimal"  # what a subagent gets: its tools, its place and its memory, and nobody's persona
    NONE = "none"  # who it is, and nothing else
