"""Files on their way into an envelope: sent ahead as they are, and named by their hash when the envelope is sent.

Who has sent a file ahead may name it, for a while, and nobody else: a hash alone opens nothing. What no envelope has
named by then is swept like any file that nobody names.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec import Struct, field

from retinue.domain.attachment import Attachment
from retinue.domain.errors import NotFound, TooLarge
from retinue.domain.structs import replace

UPLOAD_BYTES_MAX = 20 * 1024 * 1024  # of one file
REST_S = 3000.0  # less than `store/envelopes/attachment_files` keeps from a sweep whatever has just come
EACH_MAX = 64  # files of one principal that wait to be named
BYTES_EACH_MAX = 256 * 1024 * 1024  # and all of these together


class _Upload(Struct, frozen=True):
    attachment: Attachment
    at_s: float
    named: bool = False


class Uploads(Struct):
    """What each principal has sent ahead."""

    now: Callable[[], float] = time.monotonic
    _of: dict[str, dict[str, _Upload]] = field(default_factory=dict[str, dict[str, _Upload]])

    def check_room(self, who: str, size_bytes: int) -> None:
        """Before so many bytes more are taken."""
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
        """The file of this hash, for an envelope of whoever has sent it. Named again, it is still there for a while."""
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
        while len(kept) > 2 * EACH_MAX:  # those that were named are kept for whoever asks again, but not all of them
            kept.pop(next(iter(kept)))
        self._of[who] = kept
        return kept
