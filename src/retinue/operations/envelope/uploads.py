"""Keeps track of files that clients upload before they send the envelope that refers to them by hash.

Only the principal that uploaded a file may refer to it by its hash, and only for a limited time. If no envelope refers
to the file by then, the file is deleted like any unreferenced attachment file.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec import Struct, field

from retinue.domain.attachment import Attachment
from retinue.domain.structs import replace
from retinue.operations.envelope.errors import UploadNotFound, UploadQuotaReached

UPLOAD_BYTES_MAX = 20 * 1024 * 1024  # per file
UPLOAD_TTL_S = 3000.0  # less than the time for which `store/envelopes/attachment_files` spares new files
UNUSED_FILES_MAX = 64  # files of one principal that no envelope refers to yet
UNUSED_BYTES_MAX = 256 * 1024 * 1024  # total size of these files


class _PendingUpload(Struct, frozen=True):
    attachment: Attachment
    at_s: float
    is_used: bool = False


class Uploads(Struct):
    """Recent uploads of each principal, in memory."""

    monotonic_s: Callable[[], float] = time.monotonic
    _by_principal: dict[str, dict[str, _PendingUpload]] = field(default_factory=dict[str, dict[str, _PendingUpload]])

    def check_quota(self, principal: str, size_bytes: int) -> None:
        """Raise if an upload of this size would exceed the quota of the principal."""
        waiting = [each for each in self._unexpired(principal).values() if not each.is_used]
        if (
            len(waiting) >= UNUSED_FILES_MAX
            or sum(each.attachment.size_bytes for each in waiting) + size_bytes > UNUSED_BYTES_MAX
        ):
            raise UploadQuotaReached(files_max=UNUSED_FILES_MAX, bytes_max=UNUSED_BYTES_MAX)

    def add(self, principal: str, attachment: Attachment) -> None:
        self._unexpired(principal)[attachment.hash] = _PendingUpload(attachment, self.monotonic_s())

    def use(self, principal: str, hash_: str) -> Attachment:
        """Return the uploaded file with this hash and mark it as used. It can be used again until it expires."""
        found = self._unexpired(principal).get(hash_)
        if found is None:
            raise UploadNotFound(hash_)
        self._by_principal[principal][hash_] = replace(found, is_used=True)
        return found.attachment

    def _unexpired(self, principal: str) -> dict[str, _PendingUpload]:
        late = self.monotonic_s() - UPLOAD_TTL_S
        kept = {hash_: each for hash_, each in self._by_principal.get(principal, {}).items() if each.at_s > late}
        while len(kept) > 2 * UNUSED_FILES_MAX:  # used ones are kept for repeated requests, up to a limit
            kept.pop(next(iter(kept)))
        self._by_principal[principal] = kept
        return kept
