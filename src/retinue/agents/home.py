"""An agent's home on disk: where its own files live."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

HOMES_CACHED_MAX = 1_000


@lru_cache(HOMES_CACHED_MAX)
def home_of(root: Path, name: str) -> Path:
    """`root/agents/NAME`. Names are letters, digits and hyphens, so this never leaves the root."""
    return root / "agents" / name


def ensure_home(root: Path, name: str) -> Path:
    """Make whatever is missing of a home; what is there stays as it is."""
    home = home_of(root, name)
    (home / "internal_space" / "memories").mkdir(parents=True, exist_ok=True, mode=0o700)
    for file in (home / "SOUL.md", home / "internal_space" / "MEMORY.md"):
        file.touch(mode=0o600, exist_ok=True)
    return home
