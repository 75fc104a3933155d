"""Serves attachments to callers who may see the envelope or record that contains them.

Files are untrusted content, so the media type from the sender is not passed on. A file is displayed, under a
sandbox policy, only if its type is one of a few that cannot run code. The browser downloads all other files.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from functools import partial
from typing import BinaryIO
from urllib.parse import quote

import sqlalchemy as sa
from msgspec import Struct

from retinue.api.errors import AttachmentLocationMissing
from retinue.api.responses import SECURITY_HEADERS, Headers
from retinue.domain.attachment import Attachment
from retinue.domain.principal import Principal
from retinue.domain.record import Note, UserTurn
from retinue.domain.shared_errors import AttachmentNotFound
from retinue.domain.tool import ToolResult
from retinue.store.envelopes import envelopes
from retinue.store.envelopes.attachment_files import AttachmentFiles
from retinue.store.sessions import records, sessions

DOWNLOAD_PREFIX = "/api/attachments/"
CHUNK_BYTES = 256 * 1024
SNIFFED_BYTES = 16
SEQ_DIGITS_MAX = 18

_IMAGE_SIGNATURES: tuple[tuple[bytes, int, str], ...] = (
    (b"\x89PNG\r\n\x1a\n", 0, "image/png"),
    (b"\xff\xd8\xff", 0, "image/jpeg"),
    (b"GIF87a", 0, "image/gif"),
    (b"GIF89a", 0, "image/gif"),
    (b"WEBP", 8, "image/webp"),
)
_TEXT, _PDF, _UNKNOWN = "text/plain", "application/pdf", "application/octet-stream"


class AttachmentDownload(Struct, frozen=True):
    """An open attachment file and its response headers."""

    attachment: Attachment
    file: BinaryIO
    size_bytes: int
    media_type: str
    is_inline: bool

    @property
    def headers(self) -> Headers:
        kind = f"{self.media_type}; charset=utf-8" if self.media_type == _TEXT else self.media_type
        shown = "inline" if self.is_inline else "attachment"
        return [
            *SECURITY_HEADERS,
            (b"content-type", kind.encode()),
            (b"content-disposition", f"{shown}; filename*=UTF-8''{quote(self.attachment.name, safe='')}".encode()),
            (b"content-security-policy", b"sandbox; default-src 'none'; frame-ancestors 'none'"),
            (b"etag", format_etag(self.attachment.hash)),
            # Revalidate each time, so that a revoked permission takes effect. The ETag saves sending the bytes again.
            (b"cache-control", b"private, no-cache"),
        ]

    async def chunks(self) -> AsyncGenerator[bytes]:
        while chunk := await asyncio.to_thread(self.file.read, CHUNK_BYTES):
            yield chunk


def format_etag(hash_: str) -> bytes:
    return f'"{hash_}"'.encode()


def find_attachment(
    conn: sa.Connection, hash_: str, *, envelope: str, session: str, record: str, seen_by: Principal
) -> Attachment:
    """Return the attachment with this hash from an envelope or record that the caller may see."""
    if envelope:
        found = envelopes.get(conn, envelopes.resolve_id(conn, envelope, seen_by=seen_by))
        attachments = found.attachments if found is not None else ()
    elif session and record.isascii() and record.isdigit() and len(record) <= SEQ_DIGITS_MAX:
        attachments = _list_record_attachments(
            conn, sessions.get_by_short_id(conn, session, seen_by=seen_by).id, int(record)
        )
    else:
        raise AttachmentLocationMissing
    for attachment in attachments:
        if attachment.hash == hash_:
            return attachment
    raise AttachmentNotFound(hash_, because="the envelope or record has no attachment with this hash")


def _list_record_attachments(conn: sa.Connection, session: str, seq: int) -> tuple[Attachment, ...]:
    found = records.get(conn, session, seq)
    match found.body if found is not None else None:
        case UserTurn(attachments=attachments):
            return attachments
        case ToolResult(attachments=attachments, tool=tool, whole=whole):
            return (*attachments, *_list_full_output(whole, tool))
        case Note(whole=whole):
            return _list_full_output(whole, "result")
        case _:
            return ()


def _list_full_output(hash_: str, tool: str) -> tuple[Attachment, ...]:
    """Return the file with a tool's full output as an attachment, or nothing if the result was not truncated."""
    return (Attachment(hash=hash_, name=f"{tool}.txt", media_type=_TEXT, size_bytes=0),) if hash_ else ()


def open_attachment(files: AttachmentFiles, attachment: Attachment) -> AttachmentDownload:
    """Open the file of an attachment. Blocks, so call it in a thread. The caller closes the file."""
    file = files.open(attachment.hash)
    head = file.read(SNIFFED_BYTES)
    size_bytes = file.seek(0, 2)
    file.seek(0)
    image = next((kind for magic, at, kind in _IMAGE_SIGNATURES if head[at : at + len(magic)] == magic), "")
    if image:
        return AttachmentDownload(attachment, file, size_bytes, image, is_inline=True)
    media_type = attachment.media_type if attachment.media_type in (_TEXT, _PDF) else _UNKNOWN
    return AttachmentDownload(attachment, file, size_bytes, media_type, is_inline=media_type == _TEXT)


async def open_attachment_in_thread(files: AttachmentFiles, attachment: Attachment) -> AttachmentDownload:
    return await asyncio.to_thread(partial(open_attachment, files, attachment))
