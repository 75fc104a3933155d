"""Errors that occur while a backup is created, verified or restored."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from retinue.domain.errors import Conflict, Invalid, StoreError


class BackupUnsupported(Invalid):
    """`retinue backup` does not support PostgreSQL. `url` is the URL of the database, without its password."""

    code = "backup.postgres"

    def __init__(self, url: str, *, folders: Sequence[str]) -> None:
        copied = " and ".join(f"RETINUE_HOME/{folder}" for folder in folders)
        super().__init__(
            "`retinue backup` does not support PostgreSQL",
            because="PostgreSQL has its own backup tool, whose dumps also work with later versions",
            try_this=f"pg_dump --format=custom --file=retinue.dump '{url}', then copy {copied}; "
            f"restore with pg_restore --clean --if-exists --dbname='{url}' retinue.dump",
        )


class BackupSpaceMissing(StoreError):
    """The disk has too little free space for a backup."""

    code = "backup.no_space"

    def __init__(self, folder: Path, *, needed_bytes: int, free_bytes: int) -> None:
        super().__init__(
            "not enough disk space for a backup",
            because=f"it needs {needed_bytes:,} bytes, and {free_bytes:,} bytes are free in {folder}",
            try_this="free some disk space, or choose a folder on another disk",
        )


class BackupFolderExists(Conflict):
    """The folder for a new backup already exists."""

    code = "backup.exists"

    def __init__(self, folder: Path) -> None:
        super().__init__(
            f"{folder} already exists",
            because="a backup never overwrites a folder",
            try_this="choose a folder that does not exist yet",
        )


class BackupManifestUnreadable(Invalid):
    """The folder has no readable manifest, so it is not a backup."""

    code = "backup.invalid"

    def __init__(self, folder: Path, *, manifest: str, reason: str) -> None:
        super().__init__(
            f"{folder} is not a backup",
            because=f"its {manifest} cannot be read ({reason})",
            try_this="pass a folder that `retinue backup` created",
        )


class BackupVersionUnsupported(Invalid):
    """The backup has a format or database schema that this version of retinue does not support."""

    code = "backup.version_unsupported"

    def __init__(self, folder: Path, *, format_: int, schema: str, version: str) -> None:
        super().__init__(
            f"the backup {folder} was created by another version of retinue",
            because=f"its format is {format_}, and its database schema is {schema}",
            try_this=f"install retinue {version} or later",
        )


class BackupUnsound(StoreError):
    """The backup failed its verification. Nothing was changed."""

    code = "backup.unsound"

    def __init__(self, folder: Path, *, problems: Sequence[str]) -> None:
        super().__init__(
            f"the backup {folder} is damaged, so nothing was changed",
            because="; ".join(problems),
            try_this="restore another backup",
        )


class BackupChanged(StoreError):
    """A file of the backup changed while the backup was being restored. Nothing was changed."""

    code = "backup.changed"

    def __init__(self, path: str) -> None:
        super().__init__(
            "the backup changed while it was being read, so nothing was changed",
            because=f"{path} was changed after it had been verified",
            try_this="check the disk that the backup is on",
        )


class BackupWriteFailed(StoreError):
    """The operating system reported an error while a backup was being created."""

    code = "backup.write_failed"

    def __init__(self, *, because: str) -> None:
        super().__init__(
            "cannot create the backup",
            because=because,
            try_this="check the folder, its owner and its free space; the running instance is unchanged",
        )


class RestoreFailed(StoreError):
    """The operating system reported an error while a backup was being restored."""

    code = "backup.restore_failed"

    def __init__(self, *, because: str, marker: str) -> None:
        super().__init__(
            "cannot restore the backup",
            because=because,
            try_this=f"correct the cause and retry; if RETINUE_HOME/{marker} exists, "
            "it contains the path of the old files",
        )
