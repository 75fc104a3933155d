"""Schedules: when an envelope is sent, and the result of each occurrence.

An enabled schedule has exactly one occurrence that is pending or running. How each occurrence ended is recorded: it
ran, it failed, or it was skipped, with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import chain, islice, pairwise, takewhile
from typing import Any
from zoneinfo import ZoneInfo

from msgspec import Struct, field

from retinue.domain import cron
from retinue.domain.address import Address, AddressKind
from retinue.domain.errors import Invalid
from retinue.domain.heartbeat import Heartbeat
from retinue.domain.ids import EnvelopeId, ScheduleId
from retinue.domain.storable_text import is_storable, unstorable_error
from retinue.domain.times import YEAR_MAX, format_time, from_ms, to_ms
from retinue.domain.trust import Trust
from retinue.domain.value_errors import (
    ScheduleGateInvalid,
    ScheduleIntervalInvalid,
    ScheduleNeverOccurs,
    ScheduleRecipientInvalid,
    ScheduleSessionInvalid,
    ScheduleTextMissing,
    ScheduleTextTooLarge,
)

SCHEDULE_TEXT_BYTES_MAX = 100_000
DESCRIPTION_BYTES_MAX = 1_000
TITLE_BYTES_MAX = 100
EVERY_S_MIN = 1
EVERY_S_MAX = 366 * 86_400
GATE_COMMAND_LENGTH_MAX = 16_384
GATE_TIMEOUT_MS_MIN, GATE_TIMEOUT_MS, GATE_TIMEOUT_MS_MAX = 100, 30_000, 300_000
GATE_DOMAINS_MAX = 50
GATE_VARIABLES_MAX = 50
GATE_PERMISSIONS_MAX = 50
SESSION_WAKE_UPS_MAX = 25  # pending wake-ups per session
PERSON_REMINDERS_MAX = 25  # pending reminders per person
REMINDER_BYTES_MAX = 2_000
SCHEDULES_MAX = 10_000  # per instance
AGENT_SCHEDULES_MAX = 100  # per agent
OCCURRENCES_KEPT_MAX = 500  # occurrences kept per schedule
SKIPS_COUNTED_MAX = 1_000  # if more occurrences were skipped, their number is not counted
LATENESS_S_MAX = 60  # later than this, an occurrence counts as missed: the server was down or asleep


class OnceTrigger(Struct, frozen=True, tag="once"):
    at: datetime

    def __str__(self) -> str:
        return f"once at {self.at.astimezone(UTC).isoformat(timespec='seconds')}"


class EveryTrigger(Struct, frozen=True, tag="every"):
    """A trigger that fires at a fixed interval from `start` on. Clock changes do not affect it."""

    seconds: int
    start: datetime

    def __str__(self) -> str:
        return f"every {format_duration(self.seconds)}"


class CronTrigger(Struct, frozen=True, tag="cron"):
    expression: str

    def __str__(self) -> str:
        return self.expression


ScheduleTrigger = OnceTrigger | EveryTrigger | CronTrigger


class ScheduleKind(StrEnum):
    SCHEDULE = "schedule"
    WAKE_UP = "wake-up"  # a message to a session, set by its own agent
    REMINDER = "reminder"  # a message to a person; no agent takes a turn
    HEARTBEAT = "heartbeat"  # a periodic check-in of an agent


class ScheduleSession(StrEnum):
    """The session in which the agent works on an occurrence."""

    FRESH = "fresh"  # a dedicated session, reset before each occurrence
    OWN = "own"  # a dedicated session that keeps its history
    MAIN = "main"  # the owner's most recent session with the agent


class MissedPolicy(StrEnum):
    """What happens to an occurrence if the server was down, or the computer asleep, at its time."""

    SKIP = "skip"
    RUN = "run"  # one run, however many were missed


class ScheduleGate(Struct, frozen=True, kw_only=True):
    """A command that decides, before any model is called, whether an occurrence runs.

    The occurrence runs if the command exits with code 0.
    """

    command: str
    cwd: str = ""
    timeout_ms: int = GATE_TIMEOUT_MS
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    permissions: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()


class GateResult(Struct, frozen=True, kw_only=True):
    """The result of a gate. If the gate is closed, `because` is shown in the schedule's history."""

    is_open: bool
    because: str = ""
    output: str = ""
    trust: Trust = Trust.UNTRUSTED
    text: str | None = None  # replaces the schedule's text, as the prompt of a heartbeat does


class Schedule(Struct, frozen=True, kw_only=True):
    """The definition of a schedule. Its current state is a `ScheduleStatus`."""

    id: ScheduleId
    name: str
    owner: Address
    to: Address
    when: ScheduleTrigger
    kind: ScheduleKind = ScheduleKind.SCHEDULE
    text: str = ""
    description: str = ""
    zone: str | None = None  # None: the owner's current zone
    place: ScheduleSession = ScheduleSession.FRESH
    deliver: str = ""  # where the answer goes: an address or `none`; empty: where the owner last wrote
    missed: MissedPolicy | None = None  # None: skipped, except that a one-time schedule runs late
    delete_after_run: bool = False
    gate: ScheduleGate | None = None
    heartbeat: Heartbeat | None = None  # only for the kind `heartbeat`
    model: str | None = None
    title: str = ""  # title of the dedicated session
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])  # attributes of the dedicated session
    trust: Trust = Trust.PRIVATE
    source: str = "api"  # who defined it: api, agent, file or settings

    @property
    def runs_late(self) -> bool:
        if self.missed is None:
            return isinstance(self.when, OnceTrigger)
        return self.missed is MissedPolicy.RUN


class ScheduleStatus(Struct, frozen=True, kw_only=True):
    """The current state of a schedule: whether it is enabled, and its pending or running occurrence."""

    enabled: bool
    because: str = ""  # why it is disabled
    zone: str  # the zone in effect: the schedule's or, if it has none, the owner's
    occurrence_at: datetime | None = None
    envelope: EnvelopeId | None = None
    last_run_at: datetime | None = None
    last_state: OccurrenceState | None = None
    created_at: datetime
    updated_at: datetime


class OccurrenceState(StrEnum):
    WAITING = "waiting"  # not due yet, or its gate is still running
    WORKING = "working"  # its envelope was sent
    RAN = "ran"
    FAILED = "failed"
    SKIPPED = "skipped"

    @property
    def is_open(self) -> bool:
        return self in (OccurrenceState.WAITING, OccurrenceState.WORKING)


class OccurrenceCause(StrEnum):
    """What started an occurrence."""

    CLOCK = "clock"
    MANUAL = "manual"
    FORCE = "force"  # manually, even while another occurrence is running, and without its gate


class Occurrence(Struct, frozen=True, kw_only=True):
    """One occurrence of a schedule.

    If `until` is set, this entry represents all occurrences from `at` up to that time.
    """

    schedule: ScheduleId
    seq: int = 0  # assigned when it is stored
    cause: OccurrenceCause
    at: datetime
    state: OccurrenceState
    because: str = ""
    envelope: EnvelopeId | None = None
    until: datetime | None = None
    count: int | None = 1  # None: too many to count
    started_at: datetime | None = None
    ended_at: datetime | None = None


# --- when ---


def next_occurrence(when: ScheduleTrigger, moment: datetime, zone: ZoneInfo) -> datetime | None:
    """Return the first occurrence strictly after `moment`, or None if there is none.

    The result is aware, UTC and in whole milliseconds.
    """
    match when:
        case OnceTrigger(at):
            return _round_to_stored(at) if _round_to_stored(at) > moment else None
        case EveryTrigger(seconds, start):
            return _next_interval(seconds, _round_to_stored(start), moment)
        case CronTrigger(expression):
            return cron.next_time(expression, moment, zone)


def _round_to_stored(moment: datetime) -> datetime:
    """Round a time down to whole milliseconds, the stored precision.

    Otherwise an occurrence would be later than its stored time, and would repeat.
    """
    return from_ms(to_ms(moment))


def _next_interval(seconds: int, start: datetime, moment: datetime) -> datetime | None:
    if moment < start:
        return start
    step_ms = seconds * 1000
    steps = (to_ms(moment) - to_ms(start)) // step_ms + 1
    try:
        found = from_ms(to_ms(start) + steps * step_ms)
    except Invalid:  # datetime ends with the year 9999
        return None
    return found if found.year <= YEAR_MAX else None


def next_occurrences(when: ScheduleTrigger, moment: datetime, zone: ZoneInfo, *, count: int) -> list[datetime]:
    times: list[datetime] = []
    while len(times) < count and (found := next_occurrence(when, times[-1] if times else moment, zone)) is not None:
        times.append(found)
    return times


def count_occurrences(when: ScheduleTrigger, first: datetime, until: datetime, zone: ZoneInfo) -> int | None:
    """Count the occurrences from `first`, itself an occurrence, up to but not including `until`.

    Returns None if there are too many to count.
    """
    if isinstance(when, EveryTrigger):
        return -((to_ms(first) - to_ms(until)) // (when.seconds * 1000))
    later = cron.iterate_times(when.expression, first, zone) if isinstance(when, CronTrigger) else ()
    count = sum(1 for _ in islice(takewhile(lambda at: at < until, chain((first,), later)), SKIPS_COUNTED_MAX + 1))
    return count if count <= SKIPS_COUNTED_MAX else None


def describe_trigger(when: ScheduleTrigger, zone: ZoneInfo) -> str:
    """Describe a trigger in English."""
    match when:
        case OnceTrigger(at):
            return f"Once, at {format_time(at, zone)}"
        case EveryTrigger(seconds, start):
            return f"Every {format_duration(seconds)}, counted from {format_time(start, zone)}"
        case CronTrigger(expression):
            return f"{cron.describe_cron(expression)} ({zone.key})"


_UNITS = (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1))


def format_duration(seconds: int) -> str:
    """Format a duration, such as `1 hour 30 minutes`. A single unit has no number: `hour`, as in `every hour`."""
    parts: list[tuple[int, str]] = []
    for unit, size in _UNITS:
        amount, seconds = divmod(seconds, size)
        if amount:
            parts.append((amount, unit))
    if len(parts) == 1 and parts[0][0] == 1:
        return parts[0][1]
    return " ".join(f"{amount} {unit}{'s' if amount > 1 else ''}" for amount, unit in parts) or "0 seconds"


def shortest_interval(
    when: ScheduleTrigger, moment: datetime, zone: ZoneInfo, *, sample_size: int = 10
) -> timedelta | None:
    """Return the shortest interval between the next few occurrences, or None if there is only one occurrence."""
    times = next_occurrences(when, moment, zone, count=sample_size)
    return min((later - earlier for earlier, later in pairwise(times)), default=None)


# --- limits ---


def check_schedule(schedule: Schedule, *, now: datetime, zone: ZoneInfo) -> None:
    """Raise Invalid or TooLarge if a schedule cannot be stored or would never occur.

    `zone` is the time zone in effect.
    """
    _check_texts(schedule)
    when = schedule.when
    if isinstance(when, CronTrigger):
        cron.normalize_cron(when.expression)
    if isinstance(when, EveryTrigger) and not EVERY_S_MIN <= when.seconds <= EVERY_S_MAX:
        raise ScheduleIntervalInvalid(when.seconds, every_s_min=EVERY_S_MIN, every_s_max=EVERY_S_MAX)
    if next_occurrence(when, now, zone) is None:
        raise ScheduleNeverOccurs(has_passed=isinstance(when, OnceTrigger))
    if not schedule.text.strip() and schedule.gate is None:
        raise ScheduleTextMissing
    if schedule.to.kind not in (AddressKind.AGENT, AddressKind.PERSON, AddressKind.CHANNEL):
        raise ScheduleRecipientInvalid(str(schedule.to))
    if schedule.place is ScheduleSession.MAIN and schedule.to.session is not None:
        raise ScheduleSessionInvalid(str(schedule.to))
    if schedule.gate is not None:
        check_gate(schedule.gate)
    if schedule.gate is not None and AddressKind.AGENT not in (schedule.to.kind, schedule.owner.kind):
        raise ScheduleGateInvalid(
            because="the command of a gate runs with the rights of an agent, and this schedule has no agent",
            try_this="send the schedule to an agent: to = agent:NAME",
        )


def _check_texts(schedule: Schedule) -> None:
    text_bytes_max = REMINDER_BYTES_MAX if schedule.kind is ScheduleKind.REMINDER else SCHEDULE_TEXT_BYTES_MAX
    for label, text, bytes_max in (
        ("text", schedule.text, text_bytes_max),
        ("description", schedule.description, DESCRIPTION_BYTES_MAX),
        ("title", schedule.title, TITLE_BYTES_MAX),
    ):
        if len(text.encode(errors="surrogatepass")) > bytes_max:
            raise ScheduleTextTooLarge(label, kind=schedule.kind, bytes_max=bytes_max)
        if not is_storable(text):
            raise unstorable_error(f"the {label} of this {schedule.kind}")


def check_gate(gate: ScheduleGate) -> None:
    if not gate.command.strip() or len(gate.command) > GATE_COMMAND_LENGTH_MAX or "\0" in gate.command:
        raise ScheduleGateInvalid(
            because=f"its command must have 1 to {GATE_COMMAND_LENGTH_MAX:,} characters, without NUL",
            try_this='set a command such as "test -s inbox.txt"',
        )
    if not GATE_TIMEOUT_MS_MIN <= gate.timeout_ms <= GATE_TIMEOUT_MS_MAX:
        raise ScheduleGateInvalid(
            because=f"timeout_ms must be from {GATE_TIMEOUT_MS_MIN} to {GATE_TIMEOUT_MS_MAX}",
            try_this=f"set timeout_ms = {GATE_TIMEOUT_MS}",
        )
    for label, values, count_max in (
        ("domains", gate.domains, GATE_DOMAINS_MAX),
        ("permissions", gate.permissions, GATE_PERMISSIONS_MAX),
        ("variables", gate.env, GATE_VARIABLES_MAX),
    ):
        if len(values) > count_max:
            raise ScheduleGateInvalid(
                because=f"it has {len(values)} {label}, but the limit is {count_max}", try_this=f"remove some {label}"
            )
    if "*" in gate.domains:
        raise ScheduleGateInvalid(
            because="the domain `*` would allow every host", try_this='name the hosts: domains = ["api.example.org"]'
        )
    if gate.domains and "web" not in {each.removeprefix("@") for each in gate.permissions}:
        raise ScheduleGateInvalid(
            because="it lists domains, but does not have the permission `web`",
            try_this='add this permission: permissions = ["web"]',
        )
