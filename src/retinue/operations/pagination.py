"""Validates page sizes and cursors of paginated lists."""

from __future__ import annotations

from retinue.domain.shared_errors import CursorInvalid
from retinue.operations.errors import ListLimitInvalid

USE_CURSOR = "request one page after another with `cursor`"


def check_limit(limit: int, *, least: int, most: int, field: str = "limit", try_this: str = USE_CURSOR) -> None:
    if not least <= limit <= most:
        raise ListLimitInvalid(field, limit, least=least, most=most, try_this=try_this)


def invalid_cursor(text: str) -> CursorInvalid:
    return CursorInvalid(
        text,
        because="it must be the value of `next` in an earlier page",
        try_this="leave it out to get the first page",
    )
