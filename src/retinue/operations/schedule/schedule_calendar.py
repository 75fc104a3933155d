"""Calendar of the coming days, computed from the schedules. Nothing is stored."""

from __future__ import annotations

import asyncio
from datetime import datetime, time, timedelta
from typing import Annotated
from zoneinfo import ZoneInfo

import msgspec
import sqlalchemy as sa

from retinue.domain.agent import PermissionLevel
from retinue.domain.principal import Principal
from retinue.domain.schedule import in_words, next_after
from retinue.domain.times import show, to_ms
from retinue.operations.base import Desk, Operation
from retinue.operations.pagination import check_limit
from retinue.operations.schedule.schedules import zone_of
from retinue.store.schedules import schedules
from retinue.store.schedules.schedules import Kept

DAYS_MAX = 31
SCHEDULES_SHOWN_MAX = 200
TIMES_MAX = 60  # per schedule; if there are more, `when` describes them
TEXT_LENGTH_MAX = 200  # identifies a schedule without a name


class Calendar(msgspec.Struct, forbid_unknown_fields=True):
    days: Annotated[int, msgspec.Meta(description="from today on, whole days in the owner's zone")] = 7


class ComingShown(msgspec.Struct, frozen=True, rename="kebab", kw_only=True):
    """One schedule in the calendar.

    `often`: it has more than 60 occurrences, so `times` has only the first; `when` describes the
    rest. `text` is truncated.
    """

    id: str
    name: str
    kind: str
    to: str
    when: str
    text: str
    times: list[str]
    often: bool


class CalendarShown(msgspec.Struct, frozen=True, rename="kebab"):
    """Times are in the owner's time zone, soonest first. `more`: further schedules were omitted."""

    zone: str
    now: str
    until: str
    coming: list[ComingShown]
    more: bool


async def calendar(desk: Desk, caller: Principal, asked: Calendar) -> CalendarShown:
    check_limit(asked.days, least=1, most=DAYS_MAX, try_this=f"days=1 to {DAYS_MAX}")
    now, zone = desk.clock.now(), zone_of(desk)
    until = end_of_days(now, zone, days=asked.days)

    def body(conn: sa.Connection) -> list[tuple[Kept, datetime]]:
        return schedules.coming(conn, until_ms=to_ms(until), limit=SCHEDULES_SHOWN_MAX + 1, seen_by=caller)

    found = await desk.store.scan(body)
    shown = found[:SCHEDULES_SHOWN_MAX]
    # 200 schedules can have 12,000 occurrences, so compute them in a thread.
    coming = await asyncio.to_thread(lambda: [_coming(kept, first, until, zone) for kept, first in shown])
    return CalendarShown(zone.key, show(now, zone), show(until, zone), coming, len(found) > len(shown))


def end_of_days(now: datetime, zone: ZoneInfo, *, days: int) -> datetime:
    """Return the midnight that ends this many days, counting today."""
    last = now.astimezone(zone).date() + timedelta(days=days)
    return datetime.combine(last, time(), zone)


def _coming(kept: Kept, first: datetime, until: datetime, zone: ZoneInfo) -> ComingShown:
    schedule, times = kept.schedule, [first]
    while len(times) <= TIMES_MAX:
        following = next_after(schedule.when, times[-1], kept.place)
        if following is None or following >= until:
            break
        times.append(following)
    often = len(times) > TIMES_MAX
    return ComingShown(
        id=schedule.id,
        name=schedule.name,
        kind=schedule.kind,
        to=str(schedule.to),
        when=in_words(schedule.when, kept.place),
        text=schedule.text[:TEXT_LENGTH_MAX],
        times=[show(at, zone) for at in (times[:1] if often else times)],
        often=often,
    )


OPERATIONS = (
    Operation(
        name="schedule.calendar",
        summary="Tell what comes in the days from today on.",
        parameters=Calendar,
        handler=calendar,
        permission=PermissionLevel.RESTRICTED,
        effect=False,
        result=CalendarShown,
    ),
)
