"""Truncates tool results that are too long, and reads the full text later.

The model sees the beginning and how to read on. The full text is stored like an attachment, by the
hash of its bytes. It can be read as `result:ID`, only in the session whose record names it.
"""

from __future__ import annotations

import asyncio
import re
from functools import partial

from msgspec import Struct

from retinue.domain.errors import RetinueError
from retinue.domain.ids import SessionId
from retinue.domain.storable_text import clipped_bytes
from retinue.domain.tool import RESULT_CHARS_MAX, ToolResult
from retinue.store.core.connection import Store
from retinue.store.envelopes.attachment_files import ATTACHMENT_BYTES_MAX, Files
from retinue.store.sessions import full_results
from retinue.tools.base import ToolFailed
from retinue.tools.text_pages import go_on, page

RESULT = "result:"
RESULT_ID_LENGTH = 16  # hex digits of the hash
NOTICE_CHARS_MAX = 400

_ID = re.compile(r"[0-9a-f]{16,64}")


class Wholes(Struct, frozen=True):
    """Stores and reads the full text of truncated tool results."""

    files: Files
    store: Store

    async def shorten(self, text: str) -> tuple[str, str]:
        """Return the shown part of a result and the hash of its full text, or an empty hash if it
        is complete.

        The hash belongs into `ToolResult.whole`. A file that no record names cannot be read, and is
        deleted.
        """
        if len(text) <= RESULT_CHARS_MAX:
            return text, ""
        shown = page(text, lines_max=len(text), chars_max=RESULT_CHARS_MAX - NOTICE_CHARS_MAX)
        assert shown is not None  # every text has a first line
        left = len(text) - len(shown.text)
        try:
            whole = await asyncio.to_thread(self._keep, text)
        except RetinueError as error:
            return f"{shown.text}\n[cut: {left} more characters, and they could not be kept: {error.because}]", ""
        path = RESULT + whole[:RESULT_ID_LENGTH]
        return f"{shown.text}\n[cut: {left} more characters. Read on with read, path={path}, {go_on(shown)}]", whole

    def _keep(self, text: str) -> str:
        kept = clipped_bytes(text, ATTACHMENT_BYTES_MAX).encode()
        return self.files.keep([kept], name="result.txt", media_type="text/plain").hash

    async def read(self, path: str, session: SessionId) -> tuple[str, ToolResult]:
        """Return the full text for a `result:ID` of this session, and the result it belongs to."""
        id_ = path.removeprefix(RESULT).strip().lower()
        found = (
            await self.store.scan(partial(full_results.find, session=session, prefix=id_))
            if _ID.fullmatch(id_)
            else None
        )
        if found is None:
            raise ToolFailed(
                f"there is no '{RESULT}{id_[:64]}' here",
                because="a result that was cut can be read again in its own session, by the id that stands at its end",
                try_this="copy the id, or call the tool again",
                code="result.not-found",
            )
        try:
            return await asyncio.to_thread(self._read, found.whole), found
        except RetinueError as error:
            raise ToolFailed(
                f"'{RESULT}{id_[:64]}' is no longer kept",
                because=error.because,
                try_this="call the tool again",
                code="result.gone",
            ) from error

    def _read(self, hash_: str) -> str:
        with self.files.open(hash_) as file:
            return file.read(ATTACHMENT_BYTES_MAX).decode(errors="replace")
