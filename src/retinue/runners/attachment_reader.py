"""Attachments, for a model that can look at them."""

from __future__ import annotations

from retinue.domain.attachment import Attachment
from retinue.domain.errors import RetinueError
from retinue.store.envelopes.attachment_files import Files


class FileMedia:
    def __init__(self, files: Files) -> None:
        self._files = files

    def read(self, attachment: Attachment) -> bytes | None:
        """What was attached; None where it is gone, and the model reads its name alone."""
        try:
            with self._files.open(attachment.hash) as file:
                return file.read()
        except (RetinueError, OSError):
            return None
