"""Show the log of the running server.

Secrets were redacted when it was written, and are redacted again.
"""

from __future__ import annotations

import asyncio
from enum import StrEnum
from functools import partial
from typing import Annotated

import msgspec

from retinue.domain.agent import PermissionLevel
from retinue.domain.principal import Principal
from retinue.operations.base import Desk, Operation
from retinue.operations.pagination import check_limit, no_cursor
from retinue.operations.server.log_reader import Entry, Place, read_back

LISTED_MIN, LISTED_MAX = 1, 500
DIGITS_MAX = 20  # per number in a cursor


class Level(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


_FROM = {level: frozenset([each.value for each in list(Level)[number:]]) for number, level in enumerate(Level)}


class Logs(msgspec.Struct, forbid_unknown_fields=True):
    """Newest first. `cursor` is the `next` of the previous page."""

    level: Annotated[Level, msgspec.Meta(description="only lines that are as grave as this, or graver")] = Level.DEBUG
    text: Annotated[str, msgspec.Meta(description="only lines in which this stands, in whatever case")] = ""
    limit: int = 100
    cursor: str = ""


class LogLine(msgspec.Struct, frozen=True):
    """`text` is the phrase and its fields. Attached lines, such as a traceback, follow.

    A line without the server's log format has no `level`.
    """

    at: str
    level: str
    text: str


class LogShown(msgspec.Struct, frozen=True):
    """`next` is the cursor of the next page, with older entries.

    Each request reads a limited part of the log. A page can be empty and still have a `next`.
    """

    entries: list[LogLine]
    next: str | None


async def show_logs(desk: Desk, caller: Principal, asked: Logs) -> LogShown:
    check_limit(asked.limit, least=LISTED_MIN, most=LISTED_MAX)
    wanted, grave = asked.text.casefold(), _FROM[asked.level] | {"critical"}

    def fits(entry: Entry) -> bool:
        is_grave = entry.level in grave if entry.level else asked.level is Level.DEBUG
        return is_grave and (not wanted or wanted in entry.text.casefold())

    look = partial(read_back, desk.home, before=_place(asked.cursor), limit=asked.limit, fits=fits)
    found, more = await asyncio.to_thread(look)
    return LogShown(
        entries=[LogLine(at=entry.at, level=entry.level, text=desk.mask(entry.text)) for entry in found],
        next=f"{more.inode}.{more.position}" if more is not None else None,
    )


def _place(cursor: str) -> Place | None:
    if not cursor:
        return None
    inode, _, position = cursor.partition(".")
    if all(part.isascii() and part.isdigit() and len(part) <= DIGITS_MAX for part in (inode, position)):
        return Place(int(inode), int(position))
    raise no_cursor(cursor)


OPERATIONS = (
    Operation(
        name="house.logs",
        summary="Show what the house has logged, the newest first.",
        parameters=Logs,
        handler=show_logs,
        permission=PermissionLevel.PRIVILEGED,
        result=LogShown,
    ),
)
