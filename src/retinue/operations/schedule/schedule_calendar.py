"""Operation that lists the occurrences of the coming days, computed from the schedules."""

from __future__ import annotations

import asyncio
from datetime import datetime, time, timedelta
from typing import Annotated
from zoneinfo import ZoneInfo

import msgspec
import sqlalchemy as sa

from retinue.domain.agent import PermissionLevel
from retinue.domain.principal import Principal
from retinue.domain.schedule import describe_trigger, next_occurrence
from retinue.domain.times import format_time, to_ms
from retinue.operations.base import Operation, Services
from retinue.operations.pagination import check_limit
from retinue.operations.schedule.schedules import owner_zone
from retinue.store.schedules import schedules
from retinue.store.schedules.schedules import StoredSchedule

DAYS_MAX = 31
SCHEDULES_SHOWN_MAX = 200
OCCURRENCES_MAX = 60  # per schedule; if there are more, `when` describes the others
TEXT_LENGTH_MAX = 200  # in characters; enough to recognize a schedule without a name


class CalendarRequest(msgspec.Struct, forbid_unknown_fields=True):
    days: Annotated[int, msgspec.Meta(description="number of days, starting today, in the owner's time zone")] = 7


class CalendarRow(msgspec.Struct, frozen=True, kw_only=True):
    """One schedule in the calendar.

    If `truncated` is true, the schedule has more than 60 occurrences in these days: `times` has only the
    first one, and `when` describes the others. `text` is shortened.
    """

    id: str
    name: str
    kind: str
    to: str
    when: str
    text: str
    times: list[str]
    truncated: bool


class CalendarDetails(msgspec.Struct, frozen=True):
    """The calendar. Times are in the owner's time zone. If `has_more` is true, some schedules were omitted."""

    zone: str
    now: str
    until: str
    schedules: list[CalendarRow]
    has_more: bool


async def show_calendar(services: Services, caller: Principal, request: CalendarRequest) -> CalendarDetails:
    check_limit(request.days, least=1, most=DAYS_MAX, field="days", try_this="request fewer days")
    now, zone = services.clock.now(), owner_zone(services)
    until = calendar_end(now, zone, days=request.days)

    def body(conn: sa.Connection) -> list[tuple[StoredSchedule, datetime]]:
        return schedules.list_upcoming(conn, until_ms=to_ms(until), limit=SCHEDULES_SHOWN_MAX + 1, seen_by=caller)

    found = await services.store.scan(body)
    shown = found[:SCHEDULES_SHOWN_MAX]
    # 200 schedules can have 12,000 occurrences, so compute them in a thread.
    coming = await asyncio.to_thread(lambda: [_to_calendar_row(kept, first, until, zone) for kept, first in shown])
    return CalendarDetails(zone.key, format_time(now, zone), format_time(until, zone), coming, len(found) > len(shown))


def calendar_end(now: datetime, zone: ZoneInfo, *, days: int) -> datetime:
    """Return the midnight at which a calendar of this many days ends. Today is the first day."""
    last = now.astimezone(zone).date() + timedelta(days=days)
    return datetime.combine(last, time(), zone)


def _to_calendar_row(stored: StoredSchedule, first: datetime, until: datetime, zone: ZoneInfo) -> CalendarRow:
    schedule, times = stored.schedule, [first]
    while len(times) <= OCCURRENCES_MAX:
        following = next_occurrence(schedule.when, times[-1], stored.zone_info)
        if following is None or following >= until:
            break
        times.append(following)
    often = len(times) > OCCURRENCES_MAX
    return CalendarRow(
        id=schedule.id,
        name=schedule.name,
        kind=schedule.kind,
        to=str(schedule.to),
        when=describe_trigger(schedule.when, stored.zone_info),
        text=schedule.text[:TEXT_LENGTH_MAX],
        times=[format_time(at, zone) for at in (times[:1] if often else times)],
        truncated=often,
    )


OPERATIONS = (
    Operation(
        name="schedule.calendar",
        summary="List the occurrences scheduled for the coming days.",
        parameters=CalendarRequest,
        handler=show_calendar,
        permission=PermissionLevel.RESTRICTED,
        has_effect=False,
        result=CalendarDetails,
    ),
)
