"""Errors that occur when attachment files are stored or read."""

from __future__ import annotations

from retinue.domain.errors import Invalid, StoreError


class AttachmentHashInvalid(Invalid):
    """The given string is not the hash of an attachment."""

    code = "attachment.hash_invalid"

    def __init__(self, hash_: str) -> None:
        super().__init__(
            f"invalid attachment hash: {hash_[:80]!r}",
            because="it must have 64 lowercase hex digits",
            try_this="copy it from the envelope that has the attachment",
        )


class AttachmentDiskFull(StoreError):
    """The disk has no space left. Nothing was changed. `action` is what failed, such as "store an attachment"."""

    code = "attachment.disk_full"

    def __init__(self, action: str) -> None:
        super().__init__(
            f"cannot {action}: the disk is full",
            because="the disk of the data directory has no space left, or a quota is used up",
            try_this="free some disk space; nothing was changed",
        )


class AttachmentDiskFailed(StoreError):
    """The operating system reported an error for the attachment directory. `action` is what failed."""

    code = "attachment.disk_failed"

    def __init__(self, action: str, *, because: str) -> None:
        super().__init__(
            f"cannot {action}: the disk failed",
            because=because,
            try_this="check that the server can write to its data directory, and check the disk",
        )


class AttachmentNotPlainFile(StoreError):
    """The path of an attachment is a link, a directory or a device. `action` is what failed."""

    code = "attachment.not_plain_file"

    def __init__(self, action: str) -> None:
        super().__init__(
            f"cannot {action}: it is not a regular file",
            because="the path of the attachment is a link, a directory or a device",
            try_this="find out who put it there, then remove it",
        )
