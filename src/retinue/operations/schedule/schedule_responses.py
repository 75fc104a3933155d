"""Response types of the schedule operations. Times are in the owner's time zone."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import msgspec

from retinue.domain.ids import short
from retinue.domain.schedule import Schedule, Slot, Standing, in_words
from retinue.domain.times import show
from retinue.schedules.schedule_parser import GateForm, write


class ScheduleShown(msgspec.Struct, frozen=True, rename="kebab", kw_only=True):
    """`when` is a description of the times, and `zone` their time zone.

    `redacted`: only the times are shown.
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
    last: str | None
    text: str
    description: str
    place: str
    deliver: str
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


class SchedulesListed(msgspec.Struct, frozen=True, rename="kebab"):
    """`next` is the `cursor` of the next page.

    `unread` are schedule files that could not be read.
    """

    schedules: list[ScheduleShown]
    next: str | None
    unread: list[str] = []


class ScheduleChanged(msgspec.Struct, frozen=True, rename="kebab"):
    id: str
    name: str
    enabled: bool
    because: str
    next: str | None


class ScheduleDeleted(msgspec.Struct, frozen=True):
    id: str
    name: str


class ScheduleRun(msgspec.Struct, frozen=True, rename="kebab"):
    """`begun` is false if the run was skipped; `because` is the reason."""

    id: str
    begun: bool
    because: str
    envelope: str | None


class ScheduleExplained(msgspec.Struct, frozen=True, rename="kebab"):
    words: str
    zone: str
    evaluated_at: str
    next: list[str]


class SlotShown(msgspec.Struct, frozen=True, rename="kebab"):
    """One occurrence.

    If `until` is set, the row covers all occurrences before that time. `count` is null for a very
    large number of them.
    """

    number: int
    at: str
    by: str
    state: str
    because: str
    envelope: str | None
    until: str | None
    count: int | None
    begun_at: str | None
    ended_at: str | None


class ScheduleHistory(msgspec.Struct, frozen=True):
    """Newest first. `next` is the `cursor` of the next page."""

    slots: list[SlotShown]
    next: str | None


def schedule_form(schedule: Schedule, standing: Standing, zone: ZoneInfo, *, redacted: bool = False) -> ScheduleShown:
    own = ZoneInfo(standing.zone)
    form = write(schedule, own)
    return ScheduleShown(
        id=schedule.id,
        name=schedule.name,
        kind=schedule.kind,
        owner=str(schedule.owner),
        to=str(schedule.to),
        when=in_words(schedule.when, own),
        at=form.at,
        every=form.every,
        cron=form.cron,
        zone=standing.zone,
        follows_owner_zone=schedule.zone is None,
        enabled=standing.enabled,
        because=standing.because,
        next=_shown(standing.slot_at, zone),
        envelope=short(standing.envelope) if standing.envelope else None,
        last_run=_shown(standing.last_run_at, zone),
        last=standing.last,
        text="" if redacted else schedule.text,
        description="" if redacted else schedule.description,
        place=schedule.place,
        deliver=schedule.deliver,
        missed="run" if schedule.runs_late else "skip",
        delete_after_run=schedule.delete_after_run,
        gate=None if redacted else form.gate,
        model=form.model,
        title=form.title,
        attributes={} if redacted else form.attributes,
        source=schedule.source,
        created_at=show(standing.created_at, zone),
        updated_at=show(standing.updated_at, zone),
        redacted=redacted,
    )


def slot_form(slot: Slot, zone: ZoneInfo) -> SlotShown:
    return SlotShown(
        number=slot.seq,
        at=show(slot.at, zone),
        by=slot.by,
        state=slot.state,
        because=slot.because,
        envelope=short(slot.envelope) if slot.envelope else None,
        until=_shown(slot.until, zone),
        count=slot.count,
        begun_at=_shown(slot.begun_at, zone),
        ended_at=_shown(slot.ended_at, zone),
    )


def _shown(moment: datetime | None, zone: ZoneInfo) -> str | None:
    return show(moment, zone) if moment is not None else None
