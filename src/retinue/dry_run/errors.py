"""Errors of dry runs: one class for each code."""

from __future__ import annotations

from pathlib import Path

from retinue.domain.errors import Conflict, Invalid, StoreError
from retinue.sandbox.base import SandboxFailed

NO_SANDBOX_REASON = "a dry run runs no command without a sandbox"


class DryRunRequestInvalid(Invalid):
    """A parameter of a dry run is unknown, or its value has the wrong type."""

    code = "dry_run.invalid"

    def __init__(self, because: str) -> None:
        super().__init__("invalid dry run", because=because, try_this="retinue dry-run --help")


class DryRunDaysInvalid(Invalid):
    """The number of days to simulate is out of range."""

    code = "dry_run.days_invalid"

    def __init__(self, days: int, *, days_max: int, days_default: int) -> None:
        super().__init__(
            f"invalid number of days: {days}",
            because=f"a dry run simulates 1 to {days_max} days",
            try_this=f"retinue dry-run --days {days_default}",
        )


class DryRunStartInvalid(Invalid):
    """The start time of a dry run is invalid."""

    code = "dry_run.start_invalid"

    def __init__(self, start: str, *, days_max: int) -> None:
        super().__init__(
            f"a dry run cannot start at {start[:100]}",
            because=f"it must start now or within {days_max} days; for the past, see retinue schedule history",
            try_this="retinue dry-run --from +1d",
        )


class DryRunDurationInvalid(Invalid):
    """The duration of simulated runs is out of range."""

    code = "dry_run.run_takes_invalid"

    def __init__(self, duration: str, *, seconds_max: int) -> None:
        super().__init__(
            f"a simulated run cannot take {duration[:100]}",
            because=f"the limit is {seconds_max:,} seconds",
            try_this="retinue dry-run --run-duration 90s",
        )


class DryRunTargetExists(Conflict):
    """The folder for the copy already exists."""

    code = "dry_run.target_exists"

    def __init__(self, folder: Path) -> None:
        super().__init__(
            f"{folder} already exists",
            because="a dry run does not overwrite existing files",
            try_this="choose a folder that does not exist yet",
        )


class DryRunTargetUnwritable(StoreError):
    """The folder for the copy cannot be created."""

    code = "dry_run.target_unwritable"

    def __init__(self, folder: Path, *, because: str) -> None:
        super().__init__(f"cannot create {folder}", because=because, try_this="choose a folder in which you can write")


class DryRunDiskFull(StoreError):
    """There is not enough free space for the copy."""

    code = "dry_run.disk_full"

    def __init__(self, folder: Path, *, needed_bytes: int, free_bytes: int) -> None:
        super().__init__(
            "not enough disk space for a dry run",
            because=f"a copy of the store needs {needed_bytes:,} bytes, and {free_bytes:,} bytes are free in {folder}",
            try_this="retinue dry-run --keep FOLDER, with a folder on a disk with more free space",
        )


class DryRunUnconfined(SandboxFailed):
    """A gate would run without a sandbox, which a dry run does not allow."""

    code = "dry_run.unconfined"

    def __init__(self) -> None:
        super().__init__(
            "the gate was not run", because=NO_SANDBOX_REASON, try_this='set `kind = "bubblewrap"` in [sandbox]'
        )
