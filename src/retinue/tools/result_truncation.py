"""Truncates tool results that are too long, and reads the full text later.

The model sees the beginning and how to read on. The full text is stored like an attachment, by the
hash of its bytes. It can be read as `result:ID`, but only in the session whose record names it.
"""

from __future__ import annotations

import asyncio
import re
from functools import partial

from msgspec import Struct

from retinue.domain.errors import RetinueError
from retinue.domain.ids import SessionId
from retinue.domain.storable_text import truncate_bytes
from retinue.domain.tool import RESULT_CHARS_MAX, ToolResult
from retinue.store.core.connection import Store
from retinue.store.envelopes.attachment_files import ATTACHMENT_BYTES_MAX, AttachmentFiles
from retinue.store.sessions import full_results
from retinue.tools.errors import ResultGone, ResultNotFound
from retinue.tools.text_pages import format_next_page, slice_page

RESULT_PREFIX = "result:"
RESULT_ID_LENGTH = 16  # hex digits of the hash
NOTICE_CHARS_MAX = 400

_ID_PATTERN = re.compile(r"[0-9a-f]{16,64}")


class FullResultStore(Struct, frozen=True):
    """Stores and reads the full text of truncated tool results."""

    files: AttachmentFiles
    store: Store

    async def truncate(self, text: str) -> tuple[str, str]:
        """Return the shown part of a result and the hash of its full text. The hash is empty if nothing was cut.

        Store the hash in `ToolResult.whole`: a file that no record names cannot be read, and is
        deleted.
        """
        if len(text) <= RESULT_CHARS_MAX:
            return text, ""
        shown = slice_page(text, lines_max=len(text), chars_max=RESULT_CHARS_MAX - NOTICE_CHARS_MAX)
        assert shown is not None  # every text has a first line
        left = len(text) - len(shown.text)
        try:
            whole = await asyncio.to_thread(self._store_text, text)
        except RetinueError as error:
            return f"{shown.text}\n[cut: {left} more characters, which could not be stored: {error.because}]", ""
        path = RESULT_PREFIX + whole[:RESULT_ID_LENGTH]
        return (
            f"{shown.text}\n[cut: {left} more characters. Read on with read, path={path}, {format_next_page(shown)}]",
            whole,
        )

    def _store_text(self, text: str) -> str:
        kept = truncate_bytes(text, ATTACHMENT_BYTES_MAX).encode()
        return self.files.store([kept], name="result.txt", media_type="text/plain").hash

    async def read(self, path: str, session: SessionId) -> tuple[str, ToolResult]:
        """Return the full text for a `result:ID` of this session, and the result it belongs to."""
        id_ = path.removeprefix(RESULT_PREFIX).strip().lower()
        found = (
            await self.store.scan(partial(full_results.find_by_hash, session=session, prefix=id_))
            if _ID_PATTERN.fullmatch(id_)
            else None
        )
        if found is None:
            raise ResultNotFound(f"{RESULT_PREFIX}{id_[:64]}")
        try:
            return await asyncio.to_thread(self._read_text, found.whole), found
        except RetinueError as error:
            raise ResultGone(f"{RESULT_PREFIX}{id_[:64]}", because=error.because) from error

    def _read_text(self, hash_: str) -> str:
        with self.files.open(hash_) as file:
            return file.read(ATTACHMENT_BYTES_MAX).decode(errors="replace")
