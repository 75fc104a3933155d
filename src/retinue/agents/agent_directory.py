"""The agent directory: where an agent keeps its files."""

from __future__ import annotations

import shutil
from functools import lru_cache
from os.path import exists  # takes a third of the time of `Path.exists`
from pathlib import Path

from retinue.agents.errors import WorkspaceUnusable

DIRECTORIES_CACHED_MAX = 1_000


@lru_cache(DIRECTORIES_CACHED_MAX)
def agent_directory_of(data_dir: Path, name: str) -> Path:
    """Return `data_dir/agents/NAME`.

    Names consist of letters, digits and hyphens, so the path never leaves the data
    directory.
    """
    return data_dir / "agents" / name


@lru_cache(DIRECTORIES_CACHED_MAX)
def _required_paths(data_dir: Path, name: str) -> tuple[Path, Path, Path]:
    home = agent_directory_of(data_dir, name)
    return home / "SOUL.md", home / "internal_space" / "MEMORY.md", home / "internal_space" / "memories"


def ensure_agent_directory(data_dir: Path, name: str) -> Path:
    """Create the directories and files of an agent that are missing. Existing ones stay unchanged.

    Called in every run, so it must be fast if nothing is missing.
    """
    soul, memory, memories = _required_paths(data_dir, name)
    if not (exists(soul) and exists(memory) and exists(memories)):
        # One by one, from the top: `parents=True` ignores the mode for parents, so other users could read them.
        for folder in (
            agent_directory_of(data_dir, name).parent,
            agent_directory_of(data_dir, name),
            memories.parent,
            memories,
        ):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for file in (soul, memory):
            file.touch(mode=0o600, exist_ok=True)
    return agent_directory_of(data_dir, name)


def ensure_workspace(folder: Path, *, agent_directory: Path) -> Path | None:
    """Create an agent's workspace if it is missing. Called in every run.

    Returns None if the workspace is the agent directory.
    """
    if folder == agent_directory:
        return None
    if not exists(folder):
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise WorkspaceUnusable(folder, because=error.strerror or str(error)) from error
    return folder


def remove_agent_directory(data_dir: Path, name: str) -> None:
    """Delete an agent directory with its contents.

    A symbolic link is removed, but its target is kept, even if the directory itself is a link.
    """
    home = agent_directory_of(data_dir, name)
    if home.is_symlink():
        home.unlink()
    elif home.exists():
        shutil.rmtree(home)
