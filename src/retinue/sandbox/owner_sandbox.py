"""Where programs of the owner's run: hooks, and what speaks or listens for the house. Behind the same walls as what
agents run, and with a few folders of the house's own that agents do not see."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from retinue.config.sandbox import SandboxKind, SandboxSettings
from retinue.sandbox.base import Sandbox, SandboxFailed
from retinue.sandbox.bubblewrap import Bubblewrap
from retinue.sandbox.host import Host

HOMES = ("hooks", "hooks-data", "speech")
"""Folders in the home of which such a program may see what lies below."""


class OwnersSandbox:
    """The sandbox as the settings have it at this moment."""

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
        """Raises `SandboxFailed` where there is none that holds: then nothing is run bare in its place."""
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
