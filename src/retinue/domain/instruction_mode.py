"""Defines how much of the system prompt an agent gets, and the files from which the prompt is built."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

# Read in this order, each from an agent's workspace or, if missing there, from its agent directory.
INSTRUCTION_FILES = (
    *("AGENTS.md", "SOUL.md", "TOOLS.md", "IDENTITY.md", "USER.md"),
    *("HEARTBEAT.md", "BOOTSTRAP.md", "CLAUDE.md"),
)
SKILLS_FOLDER = "skills"
# These folders also hold instructions or memory: the agent's memory, its skills and its heartbeat tasks.
INSTRUCTION_FOLDERS = ("internal_space", SKILLS_FOLDER, "heartbeat")


class InstructionMode(StrEnum):
    FULL = "full"
    MINIMAL = "minimal"  # for subagents: tools, workspace and memory, without the persona
    NONE = "none"  # only the agent's identity


def instruction_paths(*, agent_directory: Path, workspace: Path) -> tuple[Path, ...]:
    """Return every path from which instructions may be read, whether or not the file exists."""
    at_home = (agent_directory / name for name in (*INSTRUCTION_FILES, *INSTRUCTION_FOLDERS))
    at_work = (workspace / name for name in (*INSTRUCTION_FILES, SKILLS_FOLDER))
    return tuple(dict.fromkeys((*at_home, *at_work)))
