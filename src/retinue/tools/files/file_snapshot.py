"""The content and status of a file at one moment."""

from __future__ import annotations

import hashlib
import os

from msgspec import Struct

from retinue.store.agents.file_trust import ctime_ms
from retinue.tools.base import ToolFailed
from retinue.tools.files.paths import opened, seen


class Looked(Struct, frozen=True):
    """One read of a file.

    `status` was taken after `data`. If the file changes in between, its trust follows the later
    change.
    """

    data: bytes
    status: os.stat_result

    @property
    def ctime_ms(self) -> int:
        return ctime_ms(self.status)

    @property
    def hash(self) -> str:
        """The SHA-256 hash, as used for attachments; empty for an empty file, which proves nothing."""
        return hashlib.sha256(self.data).hexdigest() if self.data else ""


def look(real: str, *, text: str, bytes_max: int) -> Looked:
    """Read the whole file at a resolved path."""
    with opened(real, text=text) as file:
        data = file.read(bytes_max + 1)
        status = os.fstat(file.fileno())
    if len(data) > bytes_max:
        raise ToolFailed(
            f"'{seen(text)}' is too large",
            because=f"it has {status.st_size} bytes, and at most {bytes_max} are read",
            try_this="use find with `text`, or a command that cuts out what you need",
            code="file.too-large",
        )
    return Looked(data, status)


def look_if_there(real: str, *, text: str, bytes_max: int) -> Looked | None:
    try:
        return look(real, text=text, bytes_max=bytes_max)
    except ToolFailed as failure:
        if failure.code == "path.not-found":
            return None
        raise
