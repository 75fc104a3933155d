"""Errors of the operations on the server: doctor, purge and backup."""

from __future__ import annotations

from collections.abc import Sequence

from retinue.domain.errors import Conflict, Invalid, NotAllowed, StoreError


class DoctorFixNotAllowed(NotAllowed):
    """The caller may run the security checks, but not change file permissions."""

    code = "doctor.fix_not_allowed"

    def __init__(self, *, level: str) -> None:
        super().__init__(
            "you cannot change the permissions of the server's files",
            because=f"you need the level boss; you have {level}",
            try_this="leave out --fix, or ask the owner",
        )


class MaintenanceInProgress(Conflict):
    """A purge or a backup is running, and the server runs only one of them at a time."""

    code = "server.maintenance_in_progress"

    def __init__(self) -> None:
        super().__init__(
            "a purge or a backup is in progress",
            because="the server runs only one purge or backup at a time",
            try_this="try again when it is done",
        )


class PurgeDaysInvalid(Invalid):
    """The retention period of a purge is too short or too long."""

    code = "purge.days_invalid"

    def __init__(self, field: str, days: int, *, days_max: int) -> None:
        super().__init__(
            f"invalid value for {field}: {days}",
            because=f"it must be a number from 1 to {days_max:,}",
            try_this="leave it out to keep this data",
        )


class BackupPathNotAllowed(NotAllowed):
    """A caller other than the owner chose where a backup is written."""

    code = "backup.path_not_allowed"

    def __init__(self) -> None:
        super().__init__(
            "you cannot choose where a backup is written",
            because="only the owner can choose a path outside the data directory",
            try_this="leave out `to`",
        )


class BackupPathInvalid(Invalid):
    """A backup cannot be written to this path."""

    code = "backup.path_invalid"

    def __init__(self, path: str) -> None:
        super().__init__(
            f"a backup cannot be written to {path[:200]!r}",
            because="it must be an absolute path in an existing folder that the server can write to",
            try_this="use a path such as /path/to/an/existing/folder/NAME",
        )


class BackupVerificationFailed(StoreError):
    """A new backup failed its verification and was deleted."""

    code = "backup.verification_failed"

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(
            "the new backup was damaged, so it was deleted",
            because="; ".join(problems),
            try_this="run `retinue doctor`, and check the disk",
        )
