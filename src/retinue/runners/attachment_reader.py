"""Reads the files of attachments from the store, for models that accept files."""

from __future__ import annotations

from retinue.domain.attachment import Attachment
from retinue.domain.errors import RetinueError
from retinue.store.envelopes.attachment_files import AttachmentFiles


class StoredAttachmentReader:
    """Reads attachments from the attachment store."""

    def __init__(self, files: AttachmentFiles) -> None:
        self._files = files

    def read(self, attachment: Attachment) -> bytes | None:
        """Return the bytes of an attachment, or None if its file was deleted. The model then gets only the name."""
        try:
            with self._files.open(attachment.hash) as file:
                return file.read()
        except (RetinueError, OSError):
            return None
