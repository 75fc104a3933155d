"""An agent's home on disk: where its own files live."""

from __future__ import annotations

import shutil
from functools import lru_cache
from os.path import exists  # a third of what `Path.exists` costs
from pathlib import Path

from retinue.domain.errors import Invalid

HOMES_CACHED_MAX = 1_000


@lru_cache(HOMES_CACHED_MAX)
def home_of(root: Path, name: str) -> Path:
    """`root/agents/NAME`. Names are letters, digits and hyphens, so this never leaves the root."""
    return root / "agents" / name


@lru_cache(HOMES_CACHED_MAX)
def _parts(root: Path, name: str) -> tuple[Path, Path, Path]:
    home = home_of(root, name)
    return home / "SOUL.md", home / "internal_space" / "MEMORY.md", home / "internal_space" / "memories"


def ensure_home(root: Path, name: str) -> Path:
    """Make whatever is missing of a home; what is there stays as it is. Cheap where all is there: asked every run."""
    soul, memory, memories = _parts(root, name)
    if not (exists(soul) and exists(memory) and exists(memories)):
        # One by one, from the top: what `parents=True` makes on the way is open to others.
        for folder in (home_of(root, name).parent, home_of(root, name), memories.parent, memories):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for file in (soul, memory):
            file.touch(mode=0o600, exist_ok=True)
    return home_of(root, name)


def ensure_workspace(folder: Path, *, home: Path) -> Path | None:
    """Make where an agent works, if it is not there; None where that is its home. Asked every run."""
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
    """Take a home away with all that is in it. A link in its place, or inside, is removed and not followed."""
    home = home_of(root, name)
    if home.is_symlink():
        home.unlink()
    elif home.exists():
        shutil.rmtree(home)
