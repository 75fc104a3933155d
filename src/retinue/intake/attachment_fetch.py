"""Fetches the files of a message from the platform, after the sender was admitted."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import BinaryIO

from retinue.connectors.base import RemoteFile
from retinue.domain.attachment import Attachment, safe_file_name
from retinue.domain.envelope import ATTACHMENTS_MAX
from retinue.domain.errors import RetinueError, StoreError, TooLarge
from retinue.domain.shared_errors import AttachmentTooLarge
from retinue.intake.errors import AttachmentsUnavailable
from retinue.store.envelopes.attachment_files import READ_CHUNK_BYTES, AttachmentFiles
from retinue.text.quantity import format_quantity

log = logging.getLogger(__name__)

FETCH_S_MAX = 300.0  # for one file
IN_MEMORY_BYTES_MAX = 1024 * 1024  # a larger file is buffered on disk until it is complete

FetchAttachment = Callable[[RemoteFile, int], Awaitable[Attachment]]
"""Fetches a file of at most the given number of bytes, and stores it."""


def make_fetcher(files: AttachmentFiles) -> FetchAttachment:
    """Return a function that fetches files into the server's attachment directory."""

    async def keep(offered: RemoteFile, bytes_max: int) -> Attachment:
        with tempfile.SpooledTemporaryFile(max_size=IN_MEMORY_BYTES_MAX) as held:
            async with asyncio.timeout(FETCH_S_MAX):
                await _download(held, offered.fetch(), bytes_max)
            held.seek(0)
            read = partial(files.store, _read_chunks(held), name=offered.name, media_type=offered.media_type)
            return await asyncio.to_thread(read)

    return keep


async def refuse_attachment(offered: RemoteFile, _bytes_max: int) -> Attachment:
    """Refuse every attachment. For servers that store no attachments."""
    raise AttachmentsUnavailable(safe_file_name(offered.name))


async def fetch_attachments(
    offered: Sequence[RemoteFile], fetch: FetchAttachment, *, bytes_max: int, connector: str
) -> tuple[tuple[Attachment, ...], tuple[str, ...]]:
    """Fetch the files of a message. Returns the attachments, and a line of text for each file that is missing.

    Raises `StoreError` if the store fails. The platform then delivers the message again.
    """
    brought: list[Attachment] = []
    missing: list[str] = []
    for file in offered[:ATTACHMENTS_MAX]:
        name = safe_file_name(file.name)
        if file.size_bytes is not None and file.size_bytes > bytes_max:
            missing.append(f"[not fetched: {name}, {file.size_bytes:,} bytes; the limit is {bytes_max:,} bytes]")
            continue
        try:
            brought.append(await fetch(file, bytes_max))
        except StoreError:
            raise
        except TooLarge:
            missing.append(f"[not fetched: {name}, more than {bytes_max:,} bytes]")
        except (Exception, TimeoutError) as error:  # whatever the platform does, the text is accepted
            log.warning(
                "file not fetched",
                exc_info=None if isinstance(error, RetinueError | OSError) else error,
                extra={"connector": connector, "error": type(error).__name__},
            )
            missing.append(f"[could not be fetched: {name}]")
    if beyond := len(offered) - ATTACHMENTS_MAX:
        missing += [f"[left out: {format_quantity(beyond, 'more attachment')}]"] if beyond > 0 else []
    return tuple(brought), tuple(missing)


async def _download(held: tempfile.SpooledTemporaryFile[bytes], chunks: AsyncIterator[bytes], bytes_max: int) -> None:
    size = 0
    async for chunk in chunks:
        size += len(chunk)
        if size > bytes_max:
            raise AttachmentTooLarge("", bytes_max=bytes_max)
        held.write(chunk)


def _read_chunks(held: tempfile.SpooledTemporaryFile[bytes] | BinaryIO) -> Iterator[bytes]:
    while chunk := held.read(READ_CHUNK_BYTES):
        yield chunk
