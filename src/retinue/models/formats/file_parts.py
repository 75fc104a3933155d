"""Builds the parts for attached files, for formats that accept PDFs as well as images."""

from __future__ import annotations

import base64
from collections.abc import Iterator

from retinue.domain.attachment import Attachment
from retinue.domain.model import ModelFacts
from retinue.domain.record import UserTurn
from retinue.models.base import AttachmentReader
from retinue.models.formats.wire_formats import AttachmentPart, build_attachment_parts

PDF = "application/pdf"
PDF_BYTES_MAX = 10 * 1024 * 1024


def build_file_parts(
    turn: UserTurn, media: AttachmentReader | None, facts: ModelFacts, *, image_bytes_max: int
) -> Iterator[AttachmentPart]:
    """Yield the attachments of a turn like `build_attachment_parts`, but with support for PDFs.

    A file that the provider would refuse becomes a line of text, because one file must not block a session.
    """
    for attachment in turn.attachments:
        if attachment.media_type == PDF and facts.vision and attachment.size_bytes <= PDF_BYTES_MAX:
            data = media.read(attachment) if media is not None else None
            if data is not None:
                yield AttachmentPart(PDF, base64.b64encode(data).decode(), "")
                continue
        if attachment.media_type.startswith("image/") and attachment.size_bytes > image_bytes_max:
            yield AttachmentPart("", "", _describe_too_large(attachment))
        else:
            yield from build_attachment_parts((attachment,), media, facts, turn.text)


def _describe_too_large(attachment: Attachment) -> str:
    kind = f"{attachment.media_type}, {attachment.size_bytes} bytes"
    return f"[attached: {attachment.name}, {kind}; it is too large to be shown to you]"
