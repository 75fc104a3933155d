"""Validate page sizes and cursors of paginated lists."""

from __future__ import annotations

from retinue.domain.errors import Invalid

NEXT_BY_CURSOR = "ask for one page after the other with `cursor`"


def check_limit(limit: int, *, least: int, most: int, try_this: str = NEXT_BY_CURSOR) -> None:
    if not least <= limit <= most:
        raise Invalid(
            f"a list of {limit} is not to be had",
            because=f"limit is {least} to {most}",
            try_this=try_this,
            code="list.limit",
        )


def no_cursor(text: str) -> Invalid:
    return Invalid(
        f"'{text[:80]}' is no cursor",
        because="a cursor is what an earlier page gave as `next`",
        try_this="leave it out to begin with the first page",
        code="cursor.invalid",
    )
