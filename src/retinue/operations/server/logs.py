"""Operation that shows the log of the running server.

Secrets are redacted when an entry is written, and again when it is shown.
"""

from __future__ import annotations

import asyncio
from enum import StrEnum
from functools import partial
from typing import Annotated

import msgspec

from retinue.domain.agent import PermissionLevel
from retinue.domain.principal import Principal
from retinue.operations.base import Operation, Services
from retinue.operations.pagination import check_limit, invalid_cursor
from retinue.operations.server.log_reader import LogEntry, LogPosition, read_newest_entries

LIST_LIMIT_MIN, LIST_LIMIT_MAX = 1, 500
CURSOR_DIGITS_MAX = 20  # per number in a cursor


class MinimumLogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


_LEVELS_FROM = {
    level: frozenset([each.value for each in list(MinimumLogLevel)[number:]])
    for number, level in enumerate(MinimumLogLevel)
}


class LogListRequest(msgspec.Struct, forbid_unknown_fields=True):
    """List log entries, newest first. `cursor` is the `next` of the previous page."""

    level: Annotated[MinimumLogLevel, msgspec.Meta(description="minimum level of the entries")] = MinimumLogLevel.DEBUG
    text: Annotated[str, msgspec.Meta(description="only entries that contain this text (case-insensitive)")] = ""
    limit: int = 100
    cursor: str = ""


class LogEntryRow(msgspec.Struct, frozen=True):
    """One log entry. `text` is the message with its fields, followed by attached lines such as a traceback.

    For a line that does not have the server's log format, `level` is empty.
    """

    at: str
    level: str
    text: str


class LogEntryList(msgspec.Struct, frozen=True):
    """One page of log entries. `next` is the cursor of the next page, which has older entries.

    Each request reads a limited part of the log, so a page can be empty and still have a `next`.
    """

    entries: list[LogEntryRow]
    next: str | None


async def list_log_entries(services: Services, caller: Principal, request: LogListRequest) -> LogEntryList:
    check_limit(request.limit, least=LIST_LIMIT_MIN, most=LIST_LIMIT_MAX)
    wanted, grave = request.text.casefold(), _LEVELS_FROM[request.level] | {"critical"}

    def fits(entry: LogEntry) -> bool:
        is_grave = entry.level in grave if entry.level else request.level is MinimumLogLevel.DEBUG
        return is_grave and (not wanted or wanted in entry.text.casefold())

    look = partial(
        read_newest_entries, services.data_dir, before=_parse_cursor(request.cursor), limit=request.limit, matches=fits
    )
    found, more = await asyncio.to_thread(look)
    return LogEntryList(
        entries=[LogEntryRow(at=entry.at, level=entry.level, text=services.redact(entry.text)) for entry in found],
        next=f"{more.inode}.{more.position}" if more is not None else None,
    )


def _parse_cursor(cursor: str) -> LogPosition | None:
    if not cursor:
        return None
    inode, _, position = cursor.partition(".")
    if all(part.isascii() and part.isdigit() and len(part) <= CURSOR_DIGITS_MAX for part in (inode, position)):
        return LogPosition(int(inode), int(position))
    raise invalid_cursor(cursor)


OPERATIONS = (
    Operation(
        name="server.logs",
        summary="Show the server log, newest first.",
        parameters=LogListRequest,
        handler=list_log_entries,
        permission=PermissionLevel.PRIVILEGED,
        result=LogEntryList,
    ),
)
