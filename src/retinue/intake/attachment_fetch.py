"""Fetches the files of a message from the platform, only after the sender was admitted."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import BinaryIO

from retinue.connectors.base import OfferedFile
from retinue.domain.attachment import Attachment, safe_name
from retinue.domain.envelope import ATTACHMENTS_MAX
from retinue.domain.errors import RetinueError, StoreError, TooLarge
from retinue.store.envelopes.attachment_files import READ_CHUNK_BYTES, Files

log = logging.getLogger(__name__)

FETCH_S_MAX = 300.0  # of one file
IN_MEMORY_BYTES_MAX = 1024 * 1024  # a larger file is buffered on disk until it is complete

Keep = Callable[[OfferedFile, int], Awaitable[Attachment]]
"""Fetches a file of at most so many bytes, and keeps it."""


def keeping(files: Files) -> Keep:
    """Return a function that fetches into the server's attachment files."""

    async def keep(offered: OfferedFile, bytes_max: int) -> Attachment:
        with tempfile.SpooledTemporaryFile(max_size=IN_MEMORY_BYTES_MAX) as held:
            async with asyncio.timeout(FETCH_S_MAX):
                await _fill(held, offered.fetch(), bytes_max)
            held.seek(0)
            read = partial(files.keep, _chunks(held), name=offered.name, media_type=offered.media_type)
            return await asyncio.to_thread(read)

    return keep


async def keep_nothing(offered: OfferedFile, _bytes_max: int) -> Attachment:
    """For a server without attachment files."""
    raise TooLarge(
        f"'{safe_name(offered.name)}' was not fetched",
        because="there is no place for files here",
        try_this="send its words instead",
        code="attachment.no-place",
    )


async def bring(
    offered: Sequence[OfferedFile], keep: Keep, *, bytes_max: int, instance: str
) -> tuple[tuple[Attachment, ...], tuple[str, ...]]:
    """Return the fetched attachments, and a line for each file that failed.

    Raises if the result of a store call is unknown: then the platform offers the whole message
    again.
    """
    brought: list[Attachment] = []
    missing: list[str] = []
    for file in offered[:ATTACHMENTS_MAX]:
        name = safe_name(file.name)
        if file.size_bytes is not None and file.size_bytes > bytes_max:
            missing.append(f"[not fetched: {name}, {file.size_bytes:,} bytes; {bytes_max:,} are taken]")
            continue
        try:
            brought.append(await keep(file, bytes_max))
        except StoreError:
            raise
        except TooLarge:
            missing.append(f"[not fetched: {name}, more than {bytes_max:,} bytes]")
        except (Exception, TimeoutError) as error:  # whatever the platform does, the text is accepted
            log.warning(
                "file not fetched",
                exc_info=None if isinstance(error, RetinueError | OSError) else error,
                extra={"connector": instance, "error": type(error).__name__},
            )
            missing.append(f"[could not be fetched: {name}]")
    if beyond := len(offered) - ATTACHMENTS_MAX:
        missing += [f"[left out: {beyond} more attachments]"] if beyond > 0 else []
    return tuple(brought), tuple(missing)


async def _fill(held: tempfile.SpooledTemporaryFile[bytes], chunks: AsyncIterator[bytes], bytes_max: int) -> None:
    size = 0
    async for chunk in chunks:
        size += len(chunk)
        if size > bytes_max:
            raise TooLarge(
                "this file is too large",
                because=f"{bytes_max:,} bytes are taken here",
                try_this="send a smaller one",
                code="attachment.too-large",
            )
        held.write(chunk)


def _chunks(held: tempfile.SpooledTemporaryFile[bytes] | BinaryIO) -> Iterator[bytes]:
    while chunk := held.read(READ_CHUNK_BYTES):
        yield chunk
