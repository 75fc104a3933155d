"""Converts schedules between their written form and the domain type, for the CLI, tools, files and settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import msgspec

from retinue.config.declarations import ScheduleGate
from retinue.domain import address, cron
from retinue.domain.address import Address, AddressKind, valid_name
from retinue.domain.errors import Invalid
from retinue.domain.ids import ScheduleId
from retinue.domain.schedule import (
    GATE_TIMEOUT_MS,
    Cron,
    Every,
    Gate,
    Kind,
    Missed,
    Once,
    Place,
    Schedule,
    When,
    check,
    spell_out,
)
from retinue.domain.times import parse_when, show
from retinue.domain.times import zone as known_zone
from retinue.domain.trust import Trust

SPAN_LENGTH_MAX = 32
NOWHERE = "none"

_SPAN = re.compile(r"(?:[0-9]{1,9}[dhms])+")
_PART = re.compile(r"([0-9]+)([dhms])")
_SECONDS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}

Meta = msgspec.Meta


class GateForm(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A command that decides whether an occurrence runs. Exit code 0 runs it, and its output is added to the text."""

    command: str
    cwd: str = ""
    timeout_ms: int = GATE_TIMEOUT_MS
    env: dict[str, str] = {}
    permissions: list[str] = []
    domains: list[str] = []


class Form(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The written form of a schedule. Exactly one of `at`, `every` and `cron` must be set."""

    to: Annotated[str, Meta(description="agent:NAME, agent:NAME/SESSION, person:NAME or channel:CONNECTOR:ROOM")] = ""
    text: Annotated[str, Meta(description="what is written to them")] = ""
    at: Annotated[str, Meta(description="once, at a time: +2h, or 2026-01-28T20:30 with or without an offset")] = ""
    every: Annotated[str, Meta(description="again and again: 30m, 1h30m, 1d")] = ""
    cron: Annotated[str, Meta(description="5 fields, 6 with seconds first, or @hourly @daily @weekly @monthly")] = ""
    zone: Annotated[str, Meta(description="by which it goes; left out, the owner's, wherever they are")] = ""
    place: Annotated[
        Place | None,
        Meta(
            description="fresh: a conversation of its own, begun anew each time; own: it remembers; main: the owner's"
        ),
    ] = None
    deliver: Annotated[str, Meta(description="where the answer goes: an address, or none")] = ""
    missed: Annotated[Missed | None, Meta(description="what becomes of a slot at which the house was closed")] = None
    delete_after_run: Annotated[bool, Meta(description="delete it once it has run")] = False
    gate: GateForm | None = None
    model: str = ""
    title: Annotated[str, Meta(description="of its own conversation")] = ""
    attributes: Annotated[dict[str, Any], Meta(description="to keep with its own conversation")] = {}
    description: Annotated[str, Meta(description="what it is for")] = ""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about a schedule that is not in its form: who sets it, when and with which time zone."""

    id: ScheduleId
    name: str
    owner: Address
    trust: Trust
    now: datetime
    zone: ZoneInfo  # the owner's time zone
    source: str = "api"
    kind: Kind = Kind.SCHEDULE
    start: datetime | None = None  # start of the intervals; None: now


def read(form: Form, by: Setting) -> Schedule:
    """Return the schedule that a form describes. Raises if it is invalid; nothing is guessed."""
    zone = known_zone(form.zone) if form.zone else by.zone
    schedule = Schedule(
        id=by.id,
        name=valid_name(by.name, what="a schedule") if by.name else "",
        owner=by.owner,
        to=_recipient(form.to),
        when=_when(form, by, zone),
        kind=by.kind,
        text=form.text.strip("\n"),
        description=form.description,
        zone=form.zone or None,
        place=form.place or Place.FRESH,
        deliver=_delivery(form, by),
        missed=form.missed,
        delete_after_run=form.delete_after_run,
        gate=gate_of(form.gate),
        model=form.model or None,
        title=form.title,
        attributes=form.attributes,
        trust=by.trust,
        source=by.source,
    )
    check(schedule, now=by.now, zone=zone)
    return schedule


def _recipient(text: str) -> Address:
    if not text:
        raise Invalid(
            "this schedule is for nobody",
            because="`to` says who is written to",
            try_this="to = agent:NAME",
            code="schedule.recipient-invalid",
        )
    return address.parse(text)


def _delivery(form: Form, by: Setting) -> str:
    if form.deliver in ("", NOWHERE):
        return form.deliver
    to = address.parse(form.deliver)
    if to.kind not in (AddressKind.PERSON, AddressKind.CHANNEL):
        raise Invalid(
            f"an answer cannot go to {to}",
            because="it goes to a person or into a channel, or to nobody",
            try_this="deliver = person:NAME, or none",
            code="schedule.deliver-invalid",
        )
    return str(to)


def gate_of(form: GateForm | None) -> Gate | None:
    if form is None:
        return None
    return Gate(
        command=form.command,
        cwd=form.cwd,
        timeout_ms=form.timeout_ms,
        env=dict(form.env),
        permissions=tuple(form.permissions),
        domains=tuple(form.domains),
    )


def form_of(gate: Gate | ScheduleGate | None) -> GateForm | None:
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


def _when(form: Form, by: Setting, zone: ZoneInfo) -> When:
    given = [name for name in ("at", "every", "cron") if getattr(form, name)]
    if len(given) != 1:
        raise Invalid(
            "this schedule does not say when" if not given else "this schedule says when in two ways",
            because="exactly one of `at`, `every` and `cron` is needed",
            try_this="for example: cron = 0 9 * * 1-5",
            code="schedule.when-invalid",
        )
    return read_when(at=form.at, every=form.every, expression=form.cron, now=by.now, zone=zone, start=by.start)


def read_when(
    *, at: str = "", every: str = "", expression: str = "", now: datetime, zone: ZoneInfo, start: datetime | None = None
) -> When:
    if at:
        return Once(parse_when(at, now=now, zone=zone))
    if every:
        return Every(span_s(every), (start or now).replace(microsecond=0))
    return Cron(cron.checked(expression))


def span_s(text: str) -> int:
    """Parse `1h30m`, `45s` or `1d` into seconds. A bare number is seconds."""
    compact = "".join(text.lower().split())[:SPAN_LENGTH_MAX]
    if compact.isascii() and compact.isdigit():
        return int(compact)
    units = [unit for _, unit in _PART.findall(compact)]
    if not _SPAN.fullmatch(compact) or len(set(units)) != len(units):
        raise Invalid(
            f"{text[:SPAN_LENGTH_MAX]!r} is not a span of time",
            because="it is numbers with the units d h m s, each at most once",
            try_this="for example: 30m, 1h30m, 1d",
            code="schedule.every-invalid",
        )
    return sum(int(number) * _SECONDS[unit] for number, unit in _PART.findall(compact))


def short_span(seconds: int) -> str:
    """Format seconds so that `parse_span_s` can read them."""
    parts: list[str] = []
    for unit, size in _SECONDS.items():
        amount, seconds = divmod(seconds, size)
        if amount:
            parts.append(f"{amount}{unit}")
    return "".join(parts) or "0s"


def write(schedule: Schedule, zone: ZoneInfo) -> Form:
    """Return the form of a schedule, with times in `zone`. Reading it again gives the same schedule."""
    when = schedule.when
    return Form(
        to=str(schedule.to),
        text=schedule.text,
        at=show(when.at, zone) if isinstance(when, Once) else "",
        every=short_span(when.seconds) if isinstance(when, Every) else "",
        cron=when.expression if isinstance(when, Cron) else "",
        zone=schedule.zone or "",
        place=schedule.place if schedule.place is not Place.FRESH else None,
        deliver=schedule.deliver,
        missed=schedule.missed,
        delete_after_run=schedule.delete_after_run,
        gate=form_of(schedule.gate),
        model=schedule.model or "",
        title=schedule.title,
        attributes=dict(schedule.attributes),
        description=schedule.description,
    )


def changed(form: Form, changes: Mapping[str, Any]) -> Form:
    """Return a form with changes applied. A new `at`, `every` or `cron` replaces the old one."""
    if any(changes.get(name) for name in ("at", "every", "cron")):
        form = msgspec.structs.replace(form, at="", every="", cron="")
    return msgspec.structs.replace(form, **changes)


def means_the_same(one: Schedule, other: Schedule) -> bool:
    """Whether two schedules are equal, apart from their author and the start of their intervals."""
    return write(one, ZoneInfo("UTC")) == write(other, ZoneInfo("UTC"))


__all__ = [
    "Form",
    "GateForm",
    "Setting",
    "changed",
    "form_of",
    "gate_of",
    "means_the_same",
    "read",
    "span_s",
    "spell_out",
    "write",
]
