"""Messages sent later: to an agent's session (a wake-up) or to a person (a reminder, without a
run).

Both are one-shot schedules, deleted after they fire. Their time has a UTC offset or is relative to
now: it must not depend on the server's time zone.
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
from retinue.domain.errors import Invalid, NotAllowed, NotFound, TooLarge
from retinue.domain.principal import Principal
from retinue.domain.schedule import REMINDERS_MAX, WAKE_UPS_MAX, Kind, Schedule
from retinue.domain.times import show, to_ms
from retinue.intake.routing import OWNER
from retinue.operations.base import Desk, Operation
from retinue.operations.pagination import check_limit
from retinue.operations.schedule.schedule_responses import ScheduleDeleted, ScheduleShown, schedule_form
from retinue.operations.schedule.schedules import LISTED_MAX, check_may, find, new_schedule, zone_of
from retinue.schedules.schedule_parser import Form
from retinue.store.core.transaction import Page
from retinue.store.schedules import schedules
from retinue.store.sessions import sessions

DELAY_S_MAX = 366 * 86_400

_OFFSET = re.compile(r".*(?:Z|[+-][0-9]{2}(?::?[0-9]{2})?)", re.DOTALL)

Meta = msgspec.Meta
At = Annotated[str, Meta(description="with an offset, as 2026-01-28T20:30:00+01:00, or from now, as +2h30m")]
DelayS = Annotated[int, Meta(description="seconds from now, instead of `at`")]


class AddReminder(msgspec.Struct, forbid_unknown_fields=True):
    text: str
    at: At = ""
    delay_s: DelayS = 0
    to: Annotated[str, Meta(description="person:NAME; left out, yourself, or the owner if you are an agent")] = ""


class AddWakeup(msgspec.Struct, forbid_unknown_fields=True):
    session: Annotated[str, Meta(description="the conversation that is written to")]
    text: str
    at: At = ""
    delay_s: DelayS = 0


class Listing(msgspec.Struct, forbid_unknown_fields=True):
    limit: int = 50


class ListWakeups(Listing):
    session: Annotated[
        str, Meta(description="yours: of your other conversations only the times are told, and not the words")
    ] = ""


class ById(msgspec.Struct, forbid_unknown_fields=True):
    id: str


class RemindersListed(msgspec.Struct, frozen=True):
    """Soonest first."""

    reminders: list[ScheduleShown]


class WakeupsListed(msgspec.Struct, frozen=True):
    """Soonest first. Those of an agent's other sessions are `redacted`."""

    wakeups: list[ScheduleShown]


async def add_reminder(desk: Desk, caller: Principal, asked: AddReminder) -> ScheduleShown:
    to = address.parse(asked.to) if asked.to else _oneself(caller)
    if to.kind is not AddressKind.PERSON:
        raise Invalid(
            f"{to} cannot be reminded",
            because="people are; an agent is woken in one of its conversations",
            try_this="to = person:NAME",
            code="reminder.not-a-person",
        )
    if not caller.sees_all and caller.address.kind is AddressKind.PERSON and to != caller.address:
        raise NotAllowed(
            "you may only remind yourself",
            because=f"you are {caller.address}",
            try_this="write to them with a deliver-at instead",
            code="reminder.not-yours",
        )
    form = Form(to=str(to), text=asked.text, at=_at(desk, asked.at, asked.delay_s), delete_after_run=True)
    schedule = new_schedule(desk, caller, form, kind=Kind.REMINDER)
    return await _keep(desk, caller, schedule, most=REMINDERS_MAX)


async def add_wakeup(desk: Desk, caller: Principal, asked: AddWakeup) -> ScheduleShown:
    session = await desk.store.scan(lambda conn: sessions.resolve(conn, asked.session, seen_by=caller))
    to = address.agent(session.agent, session.id)
    form = Form(to=str(to), text=asked.text, at=_at(desk, asked.at, asked.delay_s), delete_after_run=True)
    schedule = new_schedule(desk, caller, form, kind=Kind.WAKE_UP)
    return await _keep(desk, caller, schedule, most=WAKE_UPS_MAX)


def _oneself(caller: Principal) -> Address:
    return caller.address if caller.address.kind is AddressKind.PERSON else OWNER


async def _keep(desk: Desk, caller: Principal, schedule: Schedule, *, most: int) -> ScheduleShown:
    zone = zone_of(desk)

    def body(conn: sa.Connection) -> ScheduleShown:
        page = Page(conn, to_ms(desk.clock.now()))
        check_may(desk, caller, schedule, conn)
        if schedules.count_to(conn, schedule.to, schedule.kind) >= most:
            raise TooLarge(
                f"{most} {schedule.kind}s already wait there",
                because=f"at most {most} wait for one conversation, or for one person",
                try_this="delete some, or let the first of them come",
                code=f"{'wakeup' if schedule.kind is Kind.WAKE_UP else 'reminder'}.too-many",
            )
        kept = schedules.add(page, schedule, zone=zone)
        page.close()
        return schedule_form(kept.schedule, schedules.standing(conn, kept), zone)

    return await desk.store.write(body, point="schedule")


def _at(desk: Desk, at: str, delay_s: int) -> str:
    """Return a time that does not depend on a time zone setting."""
    if bool(at.strip()) == bool(delay_s):
        raise Invalid(
            "this does not say when",
            because="exactly one of `at` and `delay_s` is needed",
            try_this="for example at = +2h",
            code="schedule.when-invalid",
        )
    if delay_s:
        if not 0 < delay_s <= DELAY_S_MAX:
            raise Invalid(
                f"{delay_s} seconds from now is not to be had",
                because=f"a delay is 1 to {DELAY_S_MAX} seconds",
                try_this="name the moment with `at`",
                code="schedule.when-invalid",
            )
        moment: datetime = desk.clock.now() + timedelta(seconds=delay_s)
        return show(moment, zone_of(desk))
    text = at.strip()
    if not text.startswith("+") and not _OFFSET.fullmatch(text.partition("T")[2] or text.partition(" ")[2]):
        raise Invalid(
            f"'{text[:64]}' does not say by which clock",
            because="a time without an offset means another moment in every zone",
            try_this="add one, as in 2026-01-28T20:30:00+01:00, or say how long from now: +2h",
            code="time.no-offset",
        )
    return text


async def list_reminders(desk: Desk, caller: Principal, asked: Listing) -> RemindersListed:
    return RemindersListed(await _list(desk, caller, Kind.REMINDER, asked.limit))


async def list_wakeups(desk: Desk, caller: Principal, asked: ListWakeups) -> WakeupsListed:
    here = asked.session
    if here:
        here = (await desk.store.scan(lambda conn: sessions.resolve(conn, asked.session, seen_by=caller))).id
    return WakeupsListed(await _list(desk, caller, Kind.WAKE_UP, asked.limit, here=here))


async def _list(desk: Desk, caller: Principal, kind: Kind, limit: int, *, here: str = "") -> list[ScheduleShown]:
    check_limit(limit, least=1, most=LISTED_MAX)
    zone = zone_of(desk)

    def body(conn: sa.Connection) -> list[ScheduleShown]:
        found = [kept for kept in schedules.listed_of(conn, kind, limit=limit, seen_by=caller) if kept.enabled]
        stood = [(kept, schedules.standing(conn, kept)) for kept in found]
        stood.sort(key=lambda pair: (pair[1].slot_at is None, pair[1].slot_at))
        # A session of an agent must not read the wake-up texts of its other sessions.
        apart = caller.address.kind is AddressKind.AGENT and kind is Kind.WAKE_UP
        return [
            schedule_form(kept.schedule, standing, zone, redacted=apart and kept.schedule.to.rest != here)
            for kept, standing in stood
        ]

    return await desk.store.scan(body)


async def delete_reminder(desk: Desk, caller: Principal, asked: ById) -> ScheduleDeleted:
    return await _delete(desk, caller, asked.id, Kind.REMINDER)


async def delete_wakeup(desk: Desk, caller: Principal, asked: ById) -> ScheduleDeleted:
    return await _delete(desk, caller, asked.id, Kind.WAKE_UP)


async def _delete(desk: Desk, caller: Principal, id_: str, kind: Kind) -> ScheduleDeleted:
    def body(conn: sa.Connection) -> ScheduleDeleted:
        page = Page(conn, to_ms(desk.clock.now()))
        kept = find(conn, id_, seen_by=caller)
        if kept.schedule.kind is not kind:
            raise NotFound(
                f"no {kind} {id_[:64]}",
                because="what has this id is something else",
                try_this="copy it from the list",
                code="schedule.not-found",
            )
        schedules.delete(page, kept, because=f"it was deleted by {caller.address}")
        page.close()
        return ScheduleDeleted(kept.id, "")

    return await desk.store.write(body, point="schedule")


OPERATIONS = (
    Operation(
        name="reminder.add",
        summary="Remind a person of something at a time. No agent works on it.",
        parameters=AddReminder,
        handler=add_reminder,
        permission=PermissionLevel.RESTRICTED,
        effect=True,
        result=ScheduleShown,
    ),
    Operation(
        name="reminder.list",
        summary="List the reminders that wait, the soonest first.",
        parameters=Listing,
        handler=list_reminders,
        permission=PermissionLevel.RESTRICTED,
        result=RemindersListed,
    ),
    Operation(
        name="reminder.delete",
        summary="Take a reminder back.",
        parameters=ById,
        handler=delete_reminder,
        permission=PermissionLevel.RESTRICTED,
        effect=True,
        result=ScheduleDeleted,
    ),
    Operation(
        name="wakeup.add",
        summary="Write into a conversation at a time.",
        parameters=AddWakeup,
        handler=add_wakeup,
        permission=PermissionLevel.RESTRICTED,
        effect=True,
        result=ScheduleShown,
    ),
    Operation(
        name="wakeup.list",
        summary="List the wake-ups that wait, the soonest first.",
        parameters=ListWakeups,
        handler=list_wakeups,
        permission=PermissionLevel.RESTRICTED,
        result=WakeupsListed,
    ),
    Operation(
        name="wakeup.delete",
        summary="Take a wake-up back.",
        parameters=ById,
        handler=delete_wakeup,
        permission=PermissionLevel.RESTRICTED,
        effect=True,
        result=ScheduleDeleted,
    ),
)
