"""The content and status of a file at one moment."""

from __future__ import annotations

import hashlib
import os

from msgspec import Struct

from retinue.store.agents.file_trust import ctime_ms
from retinue.tools.files.errors import FileTooLarge, PathNotFound
from retinue.tools.files.path_access import open_file


class FileSnapshot(Struct, frozen=True):
    """The content and status of a file, from one read.

    `status` was taken after `data`. If the file changes in between, the trust of the changed file
    applies.
    """

    data: bytes
    status: os.stat_result

    @property
    def ctime_ms(self) -> int:
        return ctime_ms(self.status)

    @property
    def hash(self) -> str:
        """The SHA-256 hash of the content, as used for attachments. Empty for an empty file.

        All empty files have the same hash, so the hash cannot show where an empty file came from.
        """
        return hashlib.sha256(self.data).hexdigest() if self.data else ""


def read_snapshot(real: str, *, text: str, bytes_max: int) -> FileSnapshot:
    """Read the whole file at a resolved path."""
    with open_file(real, text=text) as file:
        data = file.read(bytes_max + 1)
        status = os.fstat(file.fileno())
    if len(data) > bytes_max:
        raise FileTooLarge(text, size_bytes=status.st_size, bytes_max=bytes_max)
    return FileSnapshot(data, status)


def read_snapshot_if_exists(real: str, *, text: str, bytes_max: int) -> FileSnapshot | None:
    try:
        return read_snapshot(real, text=text, bytes_max=bytes_max)
    except PathNotFound:
        return None
