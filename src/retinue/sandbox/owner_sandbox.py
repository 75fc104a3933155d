"""The sandbox for the owner's own programs: hooks and speech programs.

It isolates like the sandbox for agents, but gives access to a few folders that agents do not see.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from retinue.config.sandbox import SandboxKind, SandboxSettings
from retinue.sandbox.base import Sandbox
from retinue.sandbox.bubblewrap import BubblewrapSandbox
from retinue.sandbox.errors import CommandNotStarted
from retinue.sandbox.host import HostSandbox

SHAREABLE_FOLDERS = ("hooks", "hooks-data", "speech")
"""Folders of the data directory whose content may be shared with the owner's programs."""


class OwnerSandbox:
    """Returns the sandbox that the current settings choose for programs of the owner."""

    def __init__(self, settings: Callable[[], SandboxSettings], *, data_directory: Path, user_home: Path) -> None:
        self._settings = settings
        self._host = HostSandbox()
        self._bubblewrap = BubblewrapSandbox(
            folder=data_directory / "sandbox",
            private_paths=(data_directory, *settings().hidden),
            shareable_parents=tuple(data_directory / name for name in SHAREABLE_FOLDERS),
            user_home=user_home,
        )

    async def __call__(self) -> Sandbox:
        """Return the sandbox for the owner's programs.

        Raises `SandboxFailed` if the configured sandbox does not work. The program then does not
        run.
        """
        match self._settings().kind:
            case SandboxKind.OFF:
                return self._host
            case SandboxKind.BUBBLEWRAP:
                probe = await self._bubblewrap.probe()
                if not probe.works:
                    raise CommandNotStarted(because=probe.because, try_this=probe.try_this)
                return self._bubblewrap
            case SandboxKind.DOCKER:
                raise CommandNotStarted(
                    because="programs of the owner run in bubblewrap, not in a container",
                    try_this='set `kind = "bubblewrap"` in [sandbox]',
                )
