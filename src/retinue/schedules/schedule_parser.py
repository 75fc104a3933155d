"""Converts schedules between the form that people and files use and the domain type.

Used by the CLI, tools, files and settings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import msgspec

from retinue.config.declarations import DeclaredGate
from retinue.domain import address, cron
from retinue.domain.address import Address, AddressKind, validate_name
from retinue.domain.ids import ScheduleId
from retinue.domain.schedule import (
    GATE_TIMEOUT_MS,
    CronTrigger,
    EveryTrigger,
    MissedPolicy,
    OnceTrigger,
    Schedule,
    ScheduleGate,
    ScheduleKind,
    ScheduleSession,
    ScheduleTrigger,
    check_schedule,
    format_duration,
)
from retinue.domain.times import format_time, parse_time
from retinue.domain.times import load_zone as known_zone
from retinue.domain.trust import Trust
from retinue.schedules.errors import (
    DurationInvalid,
    ScheduleDeliveryInvalid,
    ScheduleRecipientMissing,
    ScheduleTriggerInvalid,
)

SPAN_LENGTH_MAX = 32
NOWHERE = "none"

_SPAN = re.compile(r"(?:[0-9]{1,9}[dhms])+")
_PART = re.compile(r"([0-9]+)([dhms])")
_SECONDS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}

Meta = msgspec.Meta


class GateForm(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A command that decides, each time a schedule is due, whether the message is sent.

    If the command exits with code 0, the message is sent, with the command's output added.
    Otherwise this occurrence is skipped.
    """

    command: str
    cwd: str = ""
    timeout_ms: int = GATE_TIMEOUT_MS
    env: dict[str, str] = {}
    permissions: list[str] = []
    domains: list[str] = []


class ScheduleForm(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The fields of a schedule as people write them. Exactly one of `at`, `every` and `cron` must be set."""

    to: Annotated[
        str, Meta(description="recipient: agent:NAME, agent:NAME/SESSION, person:NAME or channel:CONNECTOR:CHANNEL")
    ] = ""
    text: Annotated[str, Meta(description="text of the message")] = ""
    at: Annotated[
        str, Meta(description="time of a single occurrence: +2h, or 2026-01-28T20:30 with or without an offset")
    ] = ""
    every: Annotated[str, Meta(description="interval: 30m, 1h30m, 1d")] = ""
    cron: Annotated[
        str, Meta(description="cron expression: 5 fields, 6 with seconds first, or @hourly @daily @weekly @monthly")
    ] = ""
    zone: Annotated[str, Meta(description="time zone; default: the owner's")] = ""
    session: Annotated[
        ScheduleSession | None,
        Meta(
            description=("conversation: fresh (a new context each time), own (keeps its context) or main (the owner's)")
        ),
    ] = None
    deliver_to: Annotated[str, Meta(description="address that gets the answer, or `none`")] = ""
    missed: Annotated[MissedPolicy | None, Meta(description="what to do with an occurrence that was missed")] = None
    delete_after_run: Annotated[bool, Meta(description="delete the schedule after its run")] = False
    gate: GateForm | None = None
    model: str = ""
    title: Annotated[str, Meta(description="title of the schedule's dedicated conversation")] = ""
    attributes: Annotated[dict[str, Any], Meta(description="attributes of the schedule's dedicated conversation")] = {}
    description: Annotated[str, Meta(description="purpose of the schedule")] = ""


class ScheduleContext(msgspec.Struct, frozen=True, kw_only=True):
    """What `parse_form` needs besides the form: the author of the schedule, the current time and the time zone."""

    id: ScheduleId
    name: str
    owner: Address
    trust: Trust
    now: datetime
    zone: ZoneInfo  # the owner's time zone
    source: str = "api"
    kind: ScheduleKind = ScheduleKind.SCHEDULE
    start: datetime | None = None  # start of the intervals; None: now


def parse_form(form: ScheduleForm, context: ScheduleContext) -> Schedule:
    """Return the schedule that a form describes. Raises if the form is invalid or ambiguous."""
    zone = known_zone(form.zone) if form.zone else context.zone
    schedule = Schedule(
        id=context.id,
        name=validate_name(context.name, what="a schedule") if context.name else "",
        owner=context.owner,
        to=_parse_recipient(form.to),
        when=_parse_form_when(form, context, zone),
        kind=context.kind,
        text=form.text.strip("\n"),
        description=form.description,
        zone=form.zone or None,
        place=form.session or ScheduleSession.FRESH,
        deliver=_parse_delivery(form, context),
        missed=form.missed,
        delete_after_run=form.delete_after_run,
        gate=parse_gate_form(form.gate),
        model=form.model or None,
        title=form.title,
        attributes=form.attributes,
        trust=context.trust,
        source=context.source,
    )
    check_schedule(schedule, now=context.now, zone=zone)
    return schedule


def _parse_recipient(text: str) -> Address:
    if not text:
        raise ScheduleRecipientMissing
    return address.parse_address(text)


def _parse_delivery(form: ScheduleForm, context: ScheduleContext) -> str:
    if form.deliver_to in ("", NOWHERE):
        return form.deliver_to
    to = address.parse_address(form.deliver_to)
    if to.kind not in (AddressKind.PERSON, AddressKind.CHANNEL):
        raise ScheduleDeliveryInvalid(str(to))
    return str(to)


def parse_gate_form(form: GateForm | None) -> ScheduleGate | None:
    if form is None:
        return None
    return ScheduleGate(
        command=form.command,
        cwd=form.cwd,
        timeout_ms=form.timeout_ms,
        env=dict(form.env),
        permissions=tuple(form.permissions),
        domains=tuple(form.domains),
    )


def gate_to_form(gate: ScheduleGate | DeclaredGate | None) -> GateForm | None:
    if gate is None:
        return None
    return GateForm(
        command=gate.command,
        cwd=gate.cwd,
        timeout_ms=gate.timeout_ms,
        env=dict(gate.env),
        permissions=list(gate.permissions),
        domains=list(gate.domains),
    )


def _parse_form_when(form: ScheduleForm, context: ScheduleContext, zone: ZoneInfo) -> ScheduleTrigger:
    given = [name for name in ("at", "every", "cron") if getattr(form, name)]
    if len(given) != 1:
        raise ScheduleTriggerInvalid(given)
    return parse_when_fields(
        at=form.at, every=form.every, expression=form.cron, now=context.now, zone=zone, start=context.start
    )


def parse_when_fields(
    *, at: str = "", every: str = "", expression: str = "", now: datetime, zone: ZoneInfo, start: datetime | None = None
) -> ScheduleTrigger:
    if at:
        return OnceTrigger(parse_time(at, now=now, zone=zone))
    if every:
        return EveryTrigger(parse_span_s(every), (start or now).replace(microsecond=0))
    return CronTrigger(cron.normalize_cron(expression))


def parse_span_s(text: str) -> int:
    """Parse a duration such as `1h30m`, `45s` or `1d` into seconds. A bare number means seconds."""
    compact = "".join(text.lower().split())[:SPAN_LENGTH_MAX]
    if compact.isascii() and compact.isdigit():
        return int(compact)
    units = [unit for _, unit in _PART.findall(compact)]
    if not _SPAN.fullmatch(compact) or len(set(units)) != len(units):
        raise DurationInvalid(text[:SPAN_LENGTH_MAX])
    return sum(int(number) * _SECONDS[unit] for number, unit in _PART.findall(compact))


def format_span(seconds: int) -> str:
    """Format a number of seconds as a duration that `parse_span_s` can parse."""
    parts: list[str] = []
    for unit, size in _SECONDS.items():
        amount, seconds = divmod(seconds, size)
        if amount:
            parts.append(f"{amount}{unit}")
    return "".join(parts) or "0s"


def schedule_to_form(schedule: Schedule, zone: ZoneInfo) -> ScheduleForm:
    """Return the form of a schedule, with times in `zone`. Parsing the form gives the same schedule again."""
    when = schedule.when
    return ScheduleForm(
        to=str(schedule.to),
        text=schedule.text,
        at=format_time(when.at, zone) if isinstance(when, OnceTrigger) else "",
        every=format_span(when.seconds) if isinstance(when, EveryTrigger) else "",
        cron=when.expression if isinstance(when, CronTrigger) else "",
        zone=schedule.zone or "",
        session=schedule.place if schedule.place is not ScheduleSession.FRESH else None,
        deliver_to=schedule.deliver,
        missed=schedule.missed,
        delete_after_run=schedule.delete_after_run,
        gate=gate_to_form(schedule.gate),
        model=schedule.model or "",
        title=schedule.title,
        attributes=dict(schedule.attributes),
        description=schedule.description,
    )


def change_form(form: ScheduleForm, changes: Mapping[str, Any]) -> ScheduleForm:
    """Return a form with the changes applied. A new `at`, `every` or `cron` replaces the one that was set."""
    if any(changes.get(name) for name in ("at", "every", "cron")):
        form = msgspec.structs.replace(form, at="", every="", cron="")
    return msgspec.structs.replace(form, **changes)


def is_same_schedule(one: Schedule, other: Schedule) -> bool:
    """Whether two schedules are equal. Their authors and the start of their intervals may differ."""
    return schedule_to_form(one, ZoneInfo("UTC")) == schedule_to_form(other, ZoneInfo("UTC"))


__all__ = [
    "GateForm",
    "ScheduleContext",
    "ScheduleForm",
    "change_form",
    "format_duration",
    "gate_to_form",
    "is_same_schedule",
    "parse_form",
    "parse_gate_form",
    "parse_span_s",
    "schedule_to_form",
]
