"""How much an agent is told before anything is said to it, and the files that it is told from."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

# Read from an agent's workspace, or else from its home, in the order in which they are told.
INSTRUCTION_FILES = (
    *("AGENTS.md", "SOUL.md", "TOOLS.md", "IDENTITY.md", "USER.md"),
    *("HEARTBEAT.md", "BOOTSTRAP.md", "CLAUDE.md"),
)
SKILLS_FOLDER = "skills"
# What is in these is an instruction or a memory too: what the agent remembers, skills, and tasks of its heartbeat.
FOLDERS_AT_HOME = ("internal_space", SKILLS_FOLDER, "heartbeat")


class InstructionMode(StrEnum):
    FULL = "full"
    MINIMAL = "minimal"  # what a subagent gets: its tools, its place and its memory, and nobody's persona
    NONE = "none"  # who it is, and nothing else


def instruction_paths(*, home: Path, workspace: Path) -> tuple[Path, ...]:
    """Every path from which an agent is told something, whether or not there is a file."""
    at_home = (home / name for name in (*INSTRUCTION_FILES, *FOLDERS_AT_HOME))
    at_work = (workspace / name for name in (*INSTRUCTION_FILES, SKILLS_FOLDER))
    return tuple(dict.fromkeys((*at_home, *at_work)))
