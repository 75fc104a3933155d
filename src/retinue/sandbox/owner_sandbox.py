"""The sandbox for the owner's own programs: hooks and speech programs.

It isolates like the sandbox for agents, with access to a few folders that agents do not see.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from retinue.config.sandbox import SandboxKind, SandboxSettings
from retinue.sandbox.base import Sandbox, SandboxFailed
from retinue.sandbox.bubblewrap import Bubblewrap
from retinue.sandbox.host import Host

HOMES = ("hooks", "hooks-data", "speech")
"""Folders of the data directory below which the owner's programs may see files."""


class OwnersSandbox:
    """Returns the sandbox of the current settings."""

    def __init__(self, settings: Callable[[], SandboxSettings], *, home: Path, user_home: Path) -> None:
        self._settings = settings
        self._host = Host()
        self._walls = Bubblewrap(
            folder=home / "sandbox",
            state=(home, *settings().hidden),
            homes=tuple(home / name for name in HOMES),
            user_home=user_home,
        )

    async def __call__(self) -> Sandbox:
        """Raises `SandboxFailed` if no sandbox works. A program never runs unconfined instead."""
        match self._settings().kind:
            case SandboxKind.OFF:
                return self._host
            case SandboxKind.BUBBLEWRAP:
                probe = await self._walls.probe()
                if not probe.works:
                    raise SandboxFailed("it was not begun", because=probe.because, try_this=probe.try_this)
                return self._walls
            case SandboxKind.DOCKER:
                raise SandboxFailed(
                    "it was not begun",
                    because="programs of the house itself run behind bubblewrap, not in a container",
                    try_this='set `kind = "bubblewrap"` of [sandbox]',
                )
