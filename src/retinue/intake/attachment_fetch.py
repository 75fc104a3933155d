"""Files that came with a message: fetched from the place once whoever sent them was let in, and never before."""

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
IN_MEMORY_BYTES_MAX = 1024 * 1024  # what is larger waits on disk until it is whole

Keep = Callable[[OfferedFile, int], Awaitable[Attachment]]
"""Fetches a file of at most so many bytes, and keeps it."""


def keeping(files: Files) -> Keep:
    """In the house's own files."""

    async def keep(offered: OfferedFile, bytes_max: int) -> Attachment:
        with tempfile.SpooledTemporaryFile(max_size=IN_MEMORY_BYTES_MAX) as held:
            async with asyncio.timeout(FETCH_S_MAX):
                await _fill(held, offered.fetch(), bytes_max)
            held.seek(0)
            read = partial(files.keep, _chunks(held), name=offered.name, media_type=offered.media_type)
            return await asyncio.to_thread(read)

    return keep


async def keep_nothing(offered: OfferedFile, _bytes_max: int) -> Attachment:
    """In a house that was handed no place for files."""
    raise TooLarge(
        f"'{safe_name(offered.name)}' was not fetched",
        because="there is no place for files here",
        try_this="send its words instead",
        code="attachment.no-place",
    )


async def bring(
    offered: Sequence[OfferedFile], keep: Keep, *, bytes_max: int, instance: str
) -> tuple[tuple[Attachment, ...], tuple[str, ...]]:
    """What could be had, and a line for each that could not. Raises where the store could not say: then all of it is
    offered again."""
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
        except (Exception, TimeoutError) as error:  # whatever a place does, its words are heard
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
