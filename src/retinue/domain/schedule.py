"""Schedules: when an envelope is sent, and the result of each occurrence.

An enabled schedule has exactly one occurrence that is pending or running. The end of each
occurrence is recorded: it ran, it failed, or it was skipped, with the reason.
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
from retinue.domain.errors import Invalid, TooLarge
from retinue.domain.heartbeat import Heartbeat
from retinue.domain.ids import EnvelopeId, ScheduleId
from retinue.domain.storable_text import is_storable, unstorable
from retinue.domain.times import YEAR_MAX, from_ms, show, to_ms
from retinue.domain.trust import Trust

TEXT_BYTES_MAX = 100_000
DESCRIPTION_BYTES_MAX = 1_000
TITLE_BYTES_MAX = 100
EVERY_S_MIN = 1
EVERY_S_MAX = 366 * 86_400
GATE_COMMAND_LENGTH_MAX = 16_384
GATE_TIMEOUT_MS_MIN, GATE_TIMEOUT_MS, GATE_TIMEOUT_MS_MAX = 100, 30_000, 300_000
GATE_DOMAINS_MAX = 50
GATE_VARIABLES_MAX = 50
GATE_PERMISSIONS_MAX = 50
WAKE_UPS_MAX = 25  # pending, per session
REMINDERS_MAX = 25  # pending, per person
REMINDER_BYTES_MAX = 2_000
SCHEDULES_MAX = 10_000  # per instance
OWN_SCHEDULES_MAX = 100  # per agent
HISTORY_MAX = 500  # occurrences kept per schedule
SKIPS_COUNTED_MAX = 1_000  # more skipped occurrences than this are not counted
LATE_S_MAX = 60  # later than this, an occurrence counts as missed: the server was down or asleep


class Once(Struct, frozen=True, tag="once"):
    at: datetime

    def __str__(self) -> str:
        return f"once at {self.at.astimezone(UTC).isoformat(timespec='seconds')}"


class Every(Struct, frozen=True, tag="every"):
    """A fixed interval from `start` on, unaffected by clock changes."""

    seconds: int
    start: datetime

    def __str__(self) -> str:
        return f"every {spell_out(self.seconds)}"


class Cron(Struct, frozen=True, tag="cron"):
    expression: str

    def __str__(self) -> str:
        return self.expression


When = Once | Every | Cron


class Kind(StrEnum):
    SCHEDULE = "schedule"
    WAKE_UP = "wake-up"  # a message to a session, set by its own agent
    REMINDER = "reminder"  # a message to a person; no agent takes a turn
    HEARTBEAT = "heartbeat"  # a periodic check-in of an agent


class Place(StrEnum):
    """In which session the agent works on it."""

    FRESH = "fresh"  # a dedicated session, reset before each occurrence
    OWN = "own"  # a dedicated session that keeps its history
    MAIN = "main"  # the owner's most recent session with the agent


class Missed(StrEnum):
    """What happens to an occurrence at which the server was down or asleep."""

    SKIP = "skip"
    RUN = "run"  # one run, however many were missed


class Gate(Struct, frozen=True, kw_only=True):
    """A command that decides whether an occurrence runs, before a token is spent. Exit code 0 means
    yes."""

    command: str
    cwd: str = ""
    timeout_ms: int = GATE_TIMEOUT_MS
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    permissions: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()


class GateSaid(Struct, frozen=True, kw_only=True):
    """The result of a gate. If it is closed, `because` is shown in the schedule's history."""

    open: bool
    because: str = ""
    output: str = ""
    trust: Trust = Trust.UNTRUSTED
    text: str | None = None  # replaces the schedule's text: the prompt of a heartbeat


class Schedule(Struct, frozen=True, kw_only=True):
    """The definition of a schedule. Its current state is a `ScheduleStatus`."""

    id: ScheduleId
    name: str
    owner: Address
    to: Address
    when: When
    kind: Kind = Kind.SCHEDULE
    text: str = ""
    description: str = ""
    zone: str | None = None  # None: the owner's current zone
    place: Place = Place.FRESH
    deliver: str = ""  # where the answer goes: an address or `none`; empty: where the owner last wrote
    missed: Missed | None = None  # None: skipped, except that a one-time schedule runs late
    delete_after_run: bool = False
    gate: Gate | None = None
    heartbeat: Heartbeat | None = None  # only for the kind `heartbeat`
    model: str | None = None
    title: str = ""  # of the dedicated session
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])  # of the dedicated session
    trust: Trust = Trust.PRIVATE
    source: str = "api"  # who defined it: api, agent, file or settings

    @property
    def runs_late(self) -> bool:
        if self.missed is None:
            return isinstance(self.when, Once)
        return self.missed is Missed.RUN


class Standing(Struct, frozen=True, kw_only=True):
    """The current state of a schedule: whether it is enabled, and its pending or running occurrence."""

    enabled: bool
    because: str = ""  # why it is disabled
    zone: str  # the zone in effect: its own, or the owner's
    slot_at: datetime | None = None
    envelope: EnvelopeId | None = None
    last_run_at: datetime | None = None
    last: SlotState | None = None
    created_at: datetime
    updated_at: datetime


class SlotState(StrEnum):
    WAITING = "waiting"  # not due yet, or its gate is still running
    WORKING = "working"  # its envelope was sent
    RAN = "ran"
    FAILED = "failed"
    SKIPPED = "skipped"

    @property
    def open(self) -> bool:
        return self in (SlotState.WAITING, SlotState.WORKING)


class By(StrEnum):
    """What started an occurrence."""

    CLOCK = "clock"
    HAND = "hand"
    FORCE = "force"  # manually, even while another occurrence runs, and without its gate


class Slot(Struct, frozen=True, kw_only=True):
    """One occurrence of a schedule. If `until` is set, it stands for all occurrences before that
    time."""

    schedule: ScheduleId
    seq: int = 0  # assigned when it is stored
    by: By
    at: datetime
    state: SlotState
    because: str = ""
    envelope: EnvelopeId | None = None
    until: datetime | None = None
    count: int | None = 1  # None: too many to count
    begun_at: datetime | None = None
    ended_at: datetime | None = None


# --- when ---


def next_after(when: When, moment: datetime, zone: ZoneInfo) -> datetime | None:
    """Return the first occurrence strictly after `moment`: aware, UTC, in whole milliseconds. None
    if there is none."""
    match when:
        case Once(at):
            return _kept_as(at) if _kept_as(at) > moment else None
        case Every(seconds, start):
            return _step_after(seconds, _kept_as(start), moment)
        case Cron(expression):
            return cron.after(expression, moment, zone)


def _kept_as(moment: datetime) -> datetime:
    """Round to the stored precision. An occurrence that is later than its stored time by less than
    that would repeat."""
    return from_ms(to_ms(moment))


def _step_after(seconds: int, start: datetime, moment: datetime) -> datetime | None:
    if moment < start:
        return start
    step_ms = seconds * 1000
    steps = (to_ms(moment) - to_ms(start)) // step_ms + 1
    try:
        found = from_ms(to_ms(start) + steps * step_ms)
    except Invalid:  # datetime ends with the year 9999
        return None
    return found if found.year <= YEAR_MAX else None


def next_times(when: When, moment: datetime, zone: ZoneInfo, *, count: int) -> list[datetime]:
    times: list[datetime] = []
    while len(times) < count and (found := next_after(when, times[-1] if times else moment, zone)) is not None:
        times.append(found)
    return times


def count_between(when: When, first: datetime, until: datetime, zone: ZoneInfo) -> int | None:
    """Count the occurrences from `first`, which is one, up to but not including `until`. None: too
    many to count."""
    if isinstance(when, Every):
        return -((to_ms(first) - to_ms(until)) // (when.seconds * 1000))
    later = cron.following(when.expression, first, zone) if isinstance(when, Cron) else ()
    count = sum(1 for _ in islice(takewhile(lambda at: at < until, chain((first,), later)), SKIPS_COUNTED_MAX + 1))
    return count if count <= SKIPS_COUNTED_MAX else None


def in_words(when: When, zone: ZoneInfo) -> str:
    """Describe in English when it occurs."""
    match when:
        case Once(at):
            return f"Once, at {show(at, zone)}"
        case Every(seconds, start):
            return f"Every {spell_out(seconds)}, counted from {show(start, zone)}"
        case Cron(expression):
            return f"{cron.words(expression)} ({zone.key})"


_UNITS = (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1))


def spell_out(seconds: int) -> str:
    """Format a duration: `1 hour 30 minutes`. A single unit is only its name: `hour`."""
    parts: list[tuple[int, str]] = []
    for unit, size in _UNITS:
        amount, seconds = divmod(seconds, size)
        if amount:
            parts.append((amount, unit))
    if len(parts) == 1 and parts[0][0] == 1:
        return parts[0][1]
    return " ".join(f"{amount} {unit}{'s' if amount > 1 else ''}" for amount, unit in parts) or "0 seconds"


def shortest_step(when: When, moment: datetime, zone: ZoneInfo, *, looked_at: int = 10) -> timedelta | None:
    """Return the shortest interval between its next few occurrences; None if it occurs once."""
    times = next_times(when, moment, zone, count=looked_at)
    return min((later - earlier for earlier, later in pairwise(times)), default=None)


# --- what may be set ---


def check(schedule: Schedule, *, now: datetime, zone: ZoneInfo) -> None:
    """Raise Invalid or TooLarge if a schedule cannot be stored or would never occur. `zone` is the
    zone in effect."""
    _check_words(schedule)
    when = schedule.when
    if isinstance(when, Cron):
        cron.checked(when.expression)
    if isinstance(when, Every) and not EVERY_S_MIN <= when.seconds <= EVERY_S_MAX:
        raise Invalid(
            f"a schedule cannot come every {when.seconds} seconds",
            because=f"it may be {EVERY_S_MIN} to {EVERY_S_MAX} seconds",
            try_this="for example every_s = 3600",
            code="schedule.every-invalid",
        )
    if next_after(when, now, zone) is None:
        raise Invalid(
            "this schedule would never come",
            because="its time has passed" if isinstance(when, Once) else "no day of the next fifty years fits it",
            try_this="choose a later time" if isinstance(when, Once) else "look at its days and months",
            code="schedule.never",
        )
    if not schedule.text.strip() and schedule.gate is None:
        raise Invalid(
            "this schedule has nothing to say",
            because="it has neither a text nor a gate whose output could be one",
            try_this="give it a text",
            code="schedule.empty",
        )
    if schedule.to.kind not in (AddressKind.AGENT, AddressKind.PERSON, AddressKind.CHANNEL):
        raise Invalid(
            f"a schedule cannot write to {schedule.to}",
            because="it writes to an agent, a person or a channel",
            try_this="to = agent:NAME",
            code="schedule.recipient-invalid",
        )
    if schedule.place is Place.MAIN and schedule.to.session is not None:
        raise Invalid(
            "this schedule names two conversations",
            because=f"`main` is one, and {schedule.to} another",
            try_this="leave one of them out",
            code="schedule.place-invalid",
        )
    if schedule.gate is not None:
        check_gate(schedule.gate)
    if schedule.gate is not None and AddressKind.AGENT not in (schedule.to.kind, schedule.owner.kind):
        raise _bad_gate("it runs as an agent might, and no agent has to do with this schedule", "to = agent:NAME")


def _check_words(schedule: Schedule) -> None:
    most = REMINDER_BYTES_MAX if schedule.kind is Kind.REMINDER else TEXT_BYTES_MAX
    for what, words, longest in (
        ("text", schedule.text, most),
        ("description", schedule.description, DESCRIPTION_BYTES_MAX),
        ("title", schedule.title, TITLE_BYTES_MAX),
    ):
        if len(words.encode(errors="surrogatepass")) > longest:
            raise TooLarge(
                f"the {what} of this {schedule.kind} is too long",
                because=f"it may have {longest:,} bytes",
                try_this="keep the rest in a file, and name it here",
                code="schedule.too-large",
            )
        if not is_storable(words):
            raise unstorable(f"the {what} of this {schedule.kind}")


def check_gate(gate: Gate) -> None:
    if not gate.command.strip() or len(gate.command) > GATE_COMMAND_LENGTH_MAX or "\0" in gate.command:
        raise _bad_gate("its command is empty or too long", 'for example: command = "test -s inbox.txt"')
    if not GATE_TIMEOUT_MS_MIN <= gate.timeout_ms <= GATE_TIMEOUT_MS_MAX:
        raise _bad_gate(
            f"a gate may take {GATE_TIMEOUT_MS_MIN} to {GATE_TIMEOUT_MS_MAX} ms", f"timeout_ms = {GATE_TIMEOUT_MS}"
        )
    for what, given, most in (
        ("domains", gate.domains, GATE_DOMAINS_MAX),
        ("permissions", gate.permissions, GATE_PERMISSIONS_MAX),
        ("variables", gate.env, GATE_VARIABLES_MAX),
    ):
        if len(given) > most:
            raise _bad_gate(f"a gate has at most {most} {what}", f"leave some {what} out")
    if "*" in gate.domains:
        raise _bad_gate("`*` would be every host there is", 'name them: domains = ["api.example.org"]')
    if gate.domains and "web" not in {each.removeprefix("@") for each in gate.permissions}:
        raise _bad_gate("domains are reached by the web, which it does not ask for", 'permissions = ["web"]')


def _bad_gate(because: str, try_this: str) -> Invalid:
    return Invalid("this gate cannot be used", because=because, try_this=try_this, code="schedule.gate-invalid")
