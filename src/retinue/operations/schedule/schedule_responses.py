"""Response types of the schedule operations. Times are in the owner's time zone."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import msgspec

from retinue.domain.ids import short_id
from retinue.domain.schedule import Occurrence, Schedule, ScheduleStatus, describe_trigger
from retinue.domain.times import format_time
from retinue.schedules.schedule_parser import GateForm, schedule_to_form


class ScheduleDetails(msgspec.Struct, frozen=True, kw_only=True):
    """One schedule. `when` describes its times, and `zone` is their time zone.

    If `redacted` is true, only the times are shown.
    """

    id: str
    name: str
    kind: str
    owner: str
    to: str
    when: str
    at: str
    every: str
    cron: str
    zone: str
    follows_owner_zone: bool
    enabled: bool
    because: str
    next: str | None
    envelope: str | None
    last_run: str | None
    last_status: str | None
    text: str
    description: str
    session: str
    deliver_to: str
    missed: str
    delete_after_run: bool
    gate: GateForm | None
    model: str
    title: str
    attributes: dict[str, Any]
    source: str
    created_at: str
    updated_at: str
    redacted: bool = False


class ScheduleList(msgspec.Struct, frozen=True):
    """One page of schedules. `next` is the `cursor` of the next page.

    `unreadable_files` lists schedule files that could not be read.
    """

    schedules: list[ScheduleDetails]
    next: str | None
    unreadable_files: list[str] = []


class ScheduleChanged(msgspec.Struct, frozen=True):
    id: str
    name: str
    enabled: bool
    because: str
    next: str | None


class ScheduleDeleted(msgspec.Struct, frozen=True):
    id: str
    name: str


class ScheduleRunResult(msgspec.Struct, frozen=True):
    """Result of a request to run a schedule now.

    If no run was started, `started` is false and `because` is the reason.
    """

    id: str
    started: bool
    because: str
    envelope: str | None


class ScheduleExplanation(msgspec.Struct, frozen=True):
    description: str
    zone: str
    evaluated_at: str
    next: list[str]


class OccurrenceDetails(msgspec.Struct, frozen=True):
    """One occurrence of a schedule, or a group of similar occurrences.

    If `until` is set, the row stands for all occurrences from `at` until that time. `count` is the
    number of these occurrences, or null if it is very large.
    """

    number: int
    at: str
    trigger: str
    state: str
    because: str
    envelope: str | None
    until: str | None
    count: int | None
    started_at: str | None
    ended_at: str | None


class ScheduleHistory(msgspec.Struct, frozen=True):
    """Occurrences of a schedule, newest first. `next` is the `cursor` of the next page."""

    occurrences: list[OccurrenceDetails]
    next: str | None


def to_schedule_details(
    schedule: Schedule, status: ScheduleStatus, zone: ZoneInfo, *, redacted: bool = False
) -> ScheduleDetails:
    own = ZoneInfo(status.zone)
    form = schedule_to_form(schedule, own)
    return ScheduleDetails(
        id=schedule.id,
        name=schedule.name,
        kind=schedule.kind,
        owner=str(schedule.owner),
        to=str(schedule.to),
        when=describe_trigger(schedule.when, own),
        at=form.at,
        every=form.every,
        cron=form.cron,
        zone=status.zone,
        follows_owner_zone=schedule.zone is None,
        enabled=status.enabled,
        because=status.because,
        next=_format_time(status.occurrence_at, zone),
        envelope=short_id(status.envelope) if status.envelope else None,
        last_run=_format_time(status.last_run_at, zone),
        last_status=status.last_state,
        text="" if redacted else schedule.text,
        description="" if redacted else schedule.description,
        session=schedule.place,
        deliver_to=schedule.deliver,
        missed="run" if schedule.runs_late else "skip",
        delete_after_run=schedule.delete_after_run,
        gate=None if redacted else form.gate,
        model=form.model,
        title=form.title,
        attributes={} if redacted else form.attributes,
        source=schedule.source,
        created_at=format_time(status.created_at, zone),
        updated_at=format_time(status.updated_at, zone),
        redacted=redacted,
    )


def to_occurrence_details(occurrence: Occurrence, zone: ZoneInfo) -> OccurrenceDetails:
    return OccurrenceDetails(
        number=occurrence.seq,
        at=format_time(occurrence.at, zone),
        trigger=occurrence.cause,
        state=occurrence.state,
        because=occurrence.because,
        envelope=short_id(occurrence.envelope) if occurrence.envelope else None,
        until=_format_time(occurrence.until, zone),
        count=occurrence.count,
        started_at=_format_time(occurrence.started_at, zone),
        ended_at=_format_time(occurrence.ended_at, zone),
    )


def _format_time(time: datetime | None, zone: ZoneInfo) -> str | None:
    return format_time(time, zone) if time is not None else None
