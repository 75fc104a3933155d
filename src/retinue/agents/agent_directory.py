"""The agent directory: where an agent keeps its files."""

from __future__ import annotations

import shutil
from functools import lru_cache
from os.path import exists  # takes a third of the time of `Path.exists`
from pathlib import Path

from retinue.domain.errors import Invalid

HOMES_CACHED_MAX = 1_000


@lru_cache(HOMES_CACHED_MAX)
def home_of(root: Path, name: str) -> Path:
    """Return `data_dir/agents/NAME`.

    Names consist of letters, digits and hyphens, so the path never leaves the data
    directory.
    """
    return root / "agents" / name


@lru_cache(HOMES_CACHED_MAX)
def _parts(root: Path, name: str) -> tuple[Path, Path, Path]:
    home = home_of(root, name)
    return home / "SOUL.md", home / "internal_space" / "MEMORY.md", home / "internal_space" / "memories"


def ensure_home(root: Path, name: str) -> Path:
    """Create what is missing of an agent directory, and leave the rest unchanged.

    Called in every run, so it is cheap if nothing is missing.
    """
    soul, memory, memories = _parts(root, name)
    if not (exists(soul) and exists(memory) and exists(memories)):
        # One by one, from the top: `parents=True` ignores the mode for parents, so other users could read them.
        for folder in (home_of(root, name).parent, home_of(root, name), memories.parent, memories):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for file in (soul, memory):
            file.touch(mode=0o600, exist_ok=True)
    return home_of(root, name)


def ensure_workspace(folder: Path, *, home: Path) -> Path | None:
    """Create an agent's workspace if it is missing. Called in every run.

    Returns None if the workspace is the agent directory.
    """
    if folder == home:
        return None
    if not exists(folder):
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise Invalid(
                f"{folder} cannot be a workspace",
                because=error.strerror or str(error),
                try_this="make the folder, or give the agent another workspace",
                code="agent.workspace-unusable",
            ) from error
    return folder


def remove_home(root: Path, name: str) -> None:
    """Delete an agent directory with its contents.

    A symbolic link in its place, or inside it, is removed and not followed.
    """
    home = home_of(root, name)
    if home.is_symlink():
        home.unlink()
    elif home.exists():
        shutil.rmtree(home)
