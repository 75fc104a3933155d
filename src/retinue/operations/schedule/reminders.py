"""Operations that add, list and delete reminders for people and wake-ups for sessions of agents.

Reminders and wake-ups are messages that are sent once, at a set time. A reminder does not start a run.
Both are stored as schedules with one occurrence, and are deleted after it. Their time must have a UTC
offset or be relative to now, so that it does not depend on the server's time zone.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Annotated

import msgspec
import sqlalchemy as sa

from retinue.domain import address
from retinue.domain.address import Address, AddressKind
from retinue.domain.agent import PermissionLevel
from retinue.domain.principal import Principal
from retinue.domain.schedule import PERSON_REMINDERS_MAX, SESSION_WAKE_UPS_MAX, Schedule, ScheduleKind
from retinue.domain.times import format_time, to_ms
from retinue.intake.routing import OWNER
from retinue.operations.base import Operation, Services
from retinue.operations.pagination import check_limit
from retinue.operations.schedule.errors import (
    ReminderDelayInvalid,
    ReminderNotAllowed,
    ReminderNotFound,
    ReminderRecipientInvalid,
    ReminderTimeMissing,
    TimeOffsetMissing,
    TooManyReminders,
    TooManyWakeUps,
    WakeUpNotFound,
)
from retinue.operations.schedule.schedule_responses import ScheduleDeleted, ScheduleDetails, to_schedule_details
from retinue.operations.schedule.schedules import (
    LIST_LIMIT_MAX,
    build_schedule,
    check_schedule_allowed,
    find_schedule,
    owner_zone,
)
from retinue.schedules.schedule_parser import ScheduleForm
from retinue.store.core.transaction import Transaction
from retinue.store.schedules import schedules
from retinue.store.sessions import sessions

DELAY_S_MAX = 366 * 86_400

_OFFSET = re.compile(r".*(?:Z|[+-][0-9]{2}(?::?[0-9]{2})?)", re.DOTALL)

Meta = msgspec.Meta
ReminderTime = Annotated[
    str,
    Meta(description="time with a UTC offset, such as 2026-01-28T20:30:00+01:00, or relative to now, such as +2h30m"),
]
ReminderDelayS = Annotated[int, Meta(description="seconds from now, instead of `at`")]


class ReminderAddRequest(msgspec.Struct, forbid_unknown_fields=True):
    text: str
    at: ReminderTime = ""
    delay_s: ReminderDelayS = 0
    to: Annotated[
        str, Meta(description="recipient: person:NAME; default: yourself, or the owner if you are an agent")
    ] = ""


class WakeupAddRequest(msgspec.Struct, forbid_unknown_fields=True):
    session: Annotated[str, Meta(description="id of the session that gets the message")]
    text: str
    at: ReminderTime = ""
    delay_s: ReminderDelayS = 0


class ReminderListRequest(msgspec.Struct, forbid_unknown_fields=True):
    limit: int = 50


class WakeupListRequest(ReminderListRequest):
    session: Annotated[
        str, Meta(description="id of your current session; the text of wake-ups for your other sessions is not shown")
    ] = ""


class ReminderIdRequest(msgspec.Struct, forbid_unknown_fields=True):
    id: str


class ReminderList(msgspec.Struct, frozen=True):
    """Reminders, soonest first."""

    reminders: list[ScheduleDetails]


class WakeupList(msgspec.Struct, frozen=True):
    """Wake-ups, soonest first. If an agent lists them, those for its other sessions are `redacted`."""

    wakeups: list[ScheduleDetails]


async def add_reminder(services: Services, caller: Principal, request: ReminderAddRequest) -> ScheduleDetails:
    to = address.parse_address(request.to) if request.to else _default_recipient(caller)
    if to.kind is not AddressKind.PERSON:
        raise ReminderRecipientInvalid(str(to))
    if not caller.sees_everything and caller.address.kind is AddressKind.PERSON and to != caller.address:
        raise ReminderNotAllowed(str(caller.address))
    form = ScheduleForm(
        to=str(to), text=request.text, at=_resolve_time(services, request.at, request.delay_s), delete_after_run=True
    )
    schedule = build_schedule(services, caller, form, kind=ScheduleKind.REMINDER)
    return await _store_schedule(services, caller, schedule, count_max=PERSON_REMINDERS_MAX)


async def add_wakeup(services: Services, caller: Principal, request: WakeupAddRequest) -> ScheduleDetails:
    session = await services.store.scan(lambda conn: sessions.get_by_short_id(conn, request.session, seen_by=caller))
    to = address.agent_address(session.agent, session.id)
    form = ScheduleForm(
        to=str(to), text=request.text, at=_resolve_time(services, request.at, request.delay_s), delete_after_run=True
    )
    schedule = build_schedule(services, caller, form, kind=ScheduleKind.WAKE_UP)
    return await _store_schedule(services, caller, schedule, count_max=SESSION_WAKE_UPS_MAX)


def _default_recipient(caller: Principal) -> Address:
    return caller.address if caller.address.kind is AddressKind.PERSON else OWNER


async def _store_schedule(
    services: Services, caller: Principal, schedule: Schedule, *, count_max: int
) -> ScheduleDetails:
    zone = owner_zone(services)

    def body(conn: sa.Connection) -> ScheduleDetails:
        tx = Transaction(conn, to_ms(services.clock.now()))
        check_schedule_allowed(services, caller, schedule, conn)
        if schedules.count_enabled_to(conn, schedule.to, schedule.kind) >= count_max:
            raise (
                TooManyWakeUps(str(schedule.to), count_max=count_max)
                if schedule.kind is ScheduleKind.WAKE_UP
                else TooManyReminders(str(schedule.to), count_max=count_max)
            )
        kept = schedules.add(tx, schedule, zone=zone)
        tx.close()
        return to_schedule_details(kept.schedule, schedules.get_status(conn, kept), zone)

    return await services.store.write(body, point="schedule")


def _resolve_time(services: Services, at: str, delay_s: int) -> str:
    """Return the time of a reminder or wake-up with a UTC offset, from `at` or from the delay in seconds."""
    if bool(at.strip()) == bool(delay_s):
        raise ReminderTimeMissing()
    if delay_s:
        if not 0 < delay_s <= DELAY_S_MAX:
            raise ReminderDelayInvalid(delay_s, delay_s_max=DELAY_S_MAX)
        moment: datetime = services.clock.now() + timedelta(seconds=delay_s)
        return format_time(moment, owner_zone(services))
    text = at.strip()
    if not text.startswith("+") and not _OFFSET.fullmatch(text.partition("T")[2] or text.partition(" ")[2]):
        raise TimeOffsetMissing(text)
    return text


async def list_reminders(services: Services, caller: Principal, request: ReminderListRequest) -> ReminderList:
    return ReminderList(await _list_schedules(services, caller, ScheduleKind.REMINDER, request.limit))


async def list_wakeups(services: Services, caller: Principal, request: WakeupListRequest) -> WakeupList:
    here = request.session
    if here:
        here = (
            await services.store.scan(lambda conn: sessions.get_by_short_id(conn, request.session, seen_by=caller))
        ).id
    return WakeupList(await _list_schedules(services, caller, ScheduleKind.WAKE_UP, request.limit, session=here))


async def _list_schedules(
    services: Services, caller: Principal, kind: ScheduleKind, limit: int, *, session: str = ""
) -> list[ScheduleDetails]:
    check_limit(limit, least=1, most=LIST_LIMIT_MAX)
    zone = owner_zone(services)

    def body(conn: sa.Connection) -> list[ScheduleDetails]:
        found = [kept for kept in schedules.list_of_kind(conn, kind, limit=limit, seen_by=caller) if kept.enabled]
        stood = [(kept, schedules.get_status(conn, kept)) for kept in found]
        stood.sort(key=lambda pair: (pair[1].occurrence_at is None, pair[1].occurrence_at))
        # A session of an agent must not read the wake-up texts of its other sessions.
        apart = caller.address.kind is AddressKind.AGENT and kind is ScheduleKind.WAKE_UP
        return [
            to_schedule_details(kept.schedule, standing, zone, redacted=apart and kept.schedule.to.rest != session)
            for kept, standing in stood
        ]

    return await services.store.scan(body)


async def delete_reminder(services: Services, caller: Principal, request: ReminderIdRequest) -> ScheduleDeleted:
    return await _delete_schedule(services, caller, request.id, ScheduleKind.REMINDER)


async def delete_wakeup(services: Services, caller: Principal, request: ReminderIdRequest) -> ScheduleDeleted:
    return await _delete_schedule(services, caller, request.id, ScheduleKind.WAKE_UP)


async def _delete_schedule(services: Services, caller: Principal, id_: str, kind: ScheduleKind) -> ScheduleDeleted:
    def body(conn: sa.Connection) -> ScheduleDeleted:
        tx = Transaction(conn, to_ms(services.clock.now()))
        kept = find_schedule(conn, id_, seen_by=caller)
        if kept.schedule.kind is not kind:
            raise WakeUpNotFound(id_) if kind is ScheduleKind.WAKE_UP else ReminderNotFound(id_)
        schedules.delete(tx, kept, because=f"it was deleted by {caller.address}")
        tx.close()
        return ScheduleDeleted(kept.id, "")

    return await services.store.write(body, point="schedule")


OPERATIONS = (
    Operation(
        name="reminder.add",
        summary="Send a person a reminder at a set time, without starting a run.",
        parameters=ReminderAddRequest,
        handler=add_reminder,
        permission=PermissionLevel.RESTRICTED,
        has_effect=True,
        result=ScheduleDetails,
    ),
    Operation(
        name="reminder.list",
        summary="List pending reminders, soonest first.",
        parameters=ReminderListRequest,
        handler=list_reminders,
        permission=PermissionLevel.RESTRICTED,
        result=ReminderList,
    ),
    Operation(
        name="reminder.delete",
        summary="Delete a reminder.",
        parameters=ReminderIdRequest,
        handler=delete_reminder,
        permission=PermissionLevel.RESTRICTED,
        has_effect=True,
        result=ScheduleDeleted,
    ),
    Operation(
        name="wakeup.add",
        summary="Send a message to a session at a set time, to wake its agent.",
        parameters=WakeupAddRequest,
        handler=add_wakeup,
        permission=PermissionLevel.RESTRICTED,
        has_effect=True,
        result=ScheduleDetails,
    ),
    Operation(
        name="wakeup.list",
        summary="List pending wake-ups (messages to sessions), soonest first.",
        parameters=WakeupListRequest,
        handler=list_wakeups,
        permission=PermissionLevel.RESTRICTED,
        result=WakeupList,
    ),
    Operation(
        name="wakeup.delete",
        summary="Delete a wake-up.",
        parameters=ReminderIdRequest,
        handler=delete_wakeup,
        permission=PermissionLevel.RESTRICTED,
        has_effect=True,
        result=ScheduleDeleted,
    ),
)
