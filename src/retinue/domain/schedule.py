"""Schedules: when an envelope is to be sent, and what became of each time it was.

A schedule that is enabled has exactly one occurrence ahead of it, or under way. Its time is called a slot, and how a
slot ended is kept: it ran, it failed, or it was skipped because of something that can be told.
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
WAKE_UPS_MAX = 25  # that wait, of one session
REMINDERS_MAX = 25  # that wait, for one person
REMINDER_BYTES_MAX = 2_000
SCHEDULES_MAX = 10_000  # in a house
OWN_SCHEDULES_MAX = 100  # that one agent may have
HISTORY_MAX = 500  # slots that are kept of one schedule
SKIPS_COUNTED_MAX = 1_000  # beyond this, slots that went by are not counted one by one
LATE_S_MAX = 60  # later than this, a slot was missed: the house was closed, or asleep, at its time


class Once(Struct, frozen=True, tag="once"):
    at: datetime

    def __str__(self) -> str:
        return f"once at {self.at.astimezone(UTC).isoformat(timespec='seconds')}"


class Every(Struct, frozen=True, tag="every"):
    """Steps of so many seconds from `start` on, whatever the clock on the wall does meanwhile."""

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
    WAKE_UP = "wake-up"  # a word to a session, by whoever works in it
    REMINDER = "reminder"  # a word to a person: no agent has a turn over it
    HEARTBEAT = "heartbeat"  # an agent looks by itself whether something needs attention


class Place(StrEnum):
    """In which conversation an agent works on it."""

    FRESH = "fresh"  # one of its own, whose context begins anew each time
    OWN = "own"  # one of its own, which remembers the times before
    MAIN = "main"  # the one that the owner last had with the agent


class Missed(StrEnum):
    """What becomes of a slot at which the house was closed, or asleep."""

    SKIP = "skip"
    RUN = "run"  # one run, however many were missed


class Gate(Struct, frozen=True, kw_only=True):
    """A command that decides whether a slot runs, before a token is spent. Exit 0 runs it, anything else does not."""

    command: str
    cwd: str = ""
    timeout_ms: int = GATE_TIMEOUT_MS
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    permissions: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()


class GateSaid(Struct, frozen=True, kw_only=True):
    """What a gate came to. Where it is not open, `because` is told in the schedule's history."""

    open: bool
    because: str = ""
    output: str = ""
    trust: Trust = Trust.UNTRUSTED
    text: str | None = None  # instead of the schedule's own: what a heartbeat came to find


class Schedule(Struct, frozen=True, kw_only=True):
    """What someone has set. What the clock makes of it is a `Standing`."""

    id: ScheduleId
    name: str
    owner: Address
    to: Address
    when: When
    kind: Kind = Kind.SCHEDULE
    text: str = ""
    description: str = ""
    zone: str | None = None  # None: the owner's, wherever they are
    place: Place = Place.FRESH
    deliver: str = ""  # where the answer goes: an address, `none`; empty where whoever listens is told
    missed: Missed | None = None  # None: skipped, and for what comes only once, run late
    delete_after_run: bool = False
    gate: Gate | None = None
    heartbeat: Heartbeat | None = None  # of that kind alone
    model: str | None = None
    title: str = ""  # of its own conversation
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])  # of its own conversation
    trust: Trust = Trust.PRIVATE
    source: str = "api"  # by which road it became what it is: api, agent, file, settings

    @property
    def runs_late(self) -> bool:
        if self.missed is None:
            return isinstance(self.when, Once)
        return self.missed is Missed.RUN


class Standing(Struct, frozen=True, kw_only=True):
    """Where a schedule stands: whether the clock minds it, and the occurrence that it waits for or works on."""

    enabled: bool
    because: str = ""  # why it is not enabled
    zone: str  # by which it goes now: its own, or the owner's
    slot_at: datetime | None = None
    envelope: EnvelopeId | None = None
    last_run_at: datetime | None = None
    last: SlotState | None = None
    created_at: datetime
    updated_at: datetime


class SlotState(StrEnum):
    WAITING = "waiting"  # its time has not come, or its gate has not spoken
    WORKING = "working"  # its envelope is out
    RAN = "ran"
    FAILED = "failed"
    SKIPPED = "skipped"

    @property
    def open(self) -> bool:
        return self in (SlotState.WAITING, SlotState.WORKING)


class By(StrEnum):
    """Who made an occurrence."""

    CLOCK = "clock"
    HAND = "hand"
    FORCE = "force"  # by hand: beside one that is at work, and past its gate


class Slot(Struct, frozen=True, kw_only=True):
    """One time that a schedule came, or would have. `until` is set where it stands for all before that moment."""

    schedule: ScheduleId
    seq: int = 0  # given when it is written down
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
    """The first slot strictly after a moment, aware and UTC, in whole milliseconds. None where there is none."""
    match when:
        case Once(at):
            return _kept_as(at) if _kept_as(at) > moment else None
        case Every(seconds, start):
            return _step_after(seconds, _kept_as(start), moment)
        case Cron(expression):
            return cron.after(expression, moment, zone)


def _kept_as(moment: datetime) -> datetime:
    """As slots are kept: one that came a fraction of a millisecond later than it is kept would come again."""
    return from_ms(to_ms(moment))


def _step_after(seconds: int, start: datetime, moment: datetime) -> datetime | None:
    if moment < start:
        return start
    step_ms = seconds * 1000
    steps = (to_ms(moment) - to_ms(start)) // step_ms + 1
    try:
        found = from_ms(to_ms(start) + steps * step_ms)
    except Invalid:  # the calendar ends with the year 9999
        return None
    return found if found.year <= YEAR_MAX else None


def next_times(when: When, moment: datetime, zone: ZoneInfo, *, count: int) -> list[datetime]:
    times: list[datetime] = []
    while len(times) < count and (found := next_after(when, times[-1] if times else moment, zone)) is not None:
        times.append(found)
    return times


def count_between(when: When, first: datetime, until: datetime, zone: ZoneInfo) -> int | None:
    """How many slots there are from `first`, which is one, to before `until`. None: too many to count."""
    if isinstance(when, Every):
        return -((to_ms(first) - to_ms(until)) // (when.seconds * 1000))
    later = cron.following(when.expression, first, zone) if isinstance(when, Cron) else ()
    count = sum(1 for _ in islice(takewhile(lambda at: at < until, chain((first,), later)), SKIPS_COUNTED_MAX + 1))
    return count if count <= SKIPS_COUNTED_MAX else None


def in_words(when: When, zone: ZoneInfo) -> str:
    """When it comes, for someone who does not read cron."""
    match when:
        case Once(at):
            return f"Once, at {show(at, zone)}"
        case Every(seconds, start):
            return f"Every {spell_out(seconds)}, counted from {show(start, zone)}"
        case Cron(expression):
            return f"{cron.words(expression)} ({zone.key})"


_UNITS = (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1))


def spell_out(seconds: int) -> str:
    """`1 hour 30 minutes`; a single one of its unit alone is just its name."""
    parts: list[tuple[int, str]] = []
    for unit, size in _UNITS:
        amount, seconds = divmod(seconds, size)
        if amount:
            parts.append((amount, unit))
    if len(parts) == 1 and parts[0][0] == 1:
        return parts[0][1]
    return " ".join(f"{amount} {unit}{'s' if amount > 1 else ''}" for amount, unit in parts) or "0 seconds"


def shortest_step(when: When, moment: datetime, zone: ZoneInfo, *, looked_at: int = 10) -> timedelta | None:
    """The least time between its next few slots; None for what comes once."""
    times = next_times(when, moment, zone, count=looked_at)
    return min((later - earlier for earlier, later in pairwise(times)), default=None)


# --- what may be set ---


def check(schedule: Schedule, *, now: datetime, zone: ZoneInfo) -> None:
    """Refuse what could never be kept or come, and say what is wrong with it. `zone` is the one it goes by."""
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
