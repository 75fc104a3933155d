"""Files uploaded before their envelope, which then refers to them by hash.

Only the principal that uploaded a file may refer to it, for a limited time: knowing a hash is not enough.
A file that no envelope refers to by then is deleted like any unreferenced attachment file.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec import Struct, field

from retinue.domain.attachment import Attachment
from retinue.domain.errors import NotFound, TooLarge
from retinue.domain.structs import replace

UPLOAD_BYTES_MAX = 20 * 1024 * 1024  # per file
REST_S = 3000.0  # less than `store/envelopes/attachment_files` protects new files from its sweep
EACH_MAX = 64  # files of one principal that no envelope refers to yet
BYTES_EACH_MAX = 256 * 1024 * 1024  # total size of these


class _Upload(Struct, frozen=True):
    attachment: Attachment
    at_s: float
    named: bool = False


class Uploads(Struct):
    """Recent uploads of each principal, in memory."""

    now: Callable[[], float] = time.monotonic
    _of: dict[str, dict[str, _Upload]] = field(default_factory=dict[str, dict[str, _Upload]])

    def check_room(self, who: str, size_bytes: int) -> None:
        """Raise if the principal may not upload so many more bytes."""
        waiting = [each for each in self._rest_of(who).values() if not each.named]
        if (
            len(waiting) >= EACH_MAX
            or sum(each.attachment.size_bytes for each in waiting) + size_bytes > BYTES_EACH_MAX
        ):
            raise TooLarge(
                "you have sent too much ahead",
                because=f"{EACH_MAX} files and {BYTES_EACH_MAX:,} bytes may wait for an envelope that names them",
                try_this="send the envelope, or wait an hour",
                code="upload.too-much",
            )

    def add(self, who: str, attachment: Attachment) -> None:
        self._rest_of(who)[attachment.hash] = _Upload(attachment, self.now())

    def name(self, who: str, hash_: str) -> Attachment:
        """Return the uploaded file of this hash and mark it as used. It can be used again until it expires."""
        found = self._rest_of(who).get(hash_)
        if found is None:
            raise NotFound(
                f"you have sent no file {hash_[:8]} ahead",
                because="it was another's, or long ago, or the house was closed since",
                try_this="send the file again: POST /api/blob",
                code="upload.not-found",
            )
        self._of[who][hash_] = replace(found, named=True)
        return found.attachment

    def _rest_of(self, who: str) -> dict[str, _Upload]:
        late = self.now() - REST_S
        kept = {hash_: each for hash_, each in self._of.get(who, {}).items() if each.at_s > late}
        while len(kept) > 2 * EACH_MAX:  # used ones are kept for repeated requests, up to a limit
            kept.pop(next(iter(kept)))
        self._of[who] = kept
        return kept
