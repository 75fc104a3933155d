"""Add, list, change, run and explain schedules.

A schedule is visible to its owner and to the instance's owner.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import msgspec
import sqlalchemy as sa

from retinue.domain import address
from retinue.domain.address import Address, AddressKind
from retinue.domain.agent import Agent, PermissionLevel
from retinue.domain.errors import Ambiguous, Conflict, Invalid, NotAllowed, NotFound, TooLarge
from retinue.domain.ids import CANDIDATES_SHOWN_MAX, SHORT_LENGTH, ScheduleId, distinguish, prefix, short
from retinue.domain.principal import Principal
from retinue.domain.schedule import (
    OWN_SCHEDULES_MAX,
    SCHEDULES_MAX,
    Every,
    Kind,
    Missed,
    Place,
    Schedule,
    in_words,
    next_times,
    shortest_step,
    spell_out,
)
from retinue.domain.session import OriginKind
from retinue.domain.times import show, to_ms
from retinue.domain.times import zone as known_zone
from retinue.engine.scheduler import why_busy
from retinue.intake.routing import OWNER
from retinue.operations.base import Desk, Operation, for_everyone
from retinue.operations.pagination import check_limit, no_cursor
from retinue.operations.schedule.schedule_responses import (
    ScheduleChanged,
    ScheduleDeleted,
    ScheduleExplained,
    ScheduleHistory,
    ScheduleRun,
    ScheduleShown,
    SchedulesListed,
    schedule_form,
    slot_form,
)
from retinue.policy.tools.tools import Circumstances
from retinue.schedules import schedule_parser
from retinue.schedules.schedule_parser import Form, Setting
from retinue.store.agents import agents
from retinue.store.core import row_visibility
from retinue.store.core.transaction import Page
from retinue.store.people import people
from retinue.store.schedules import schedules
from retinue.store.schedules.schedules import Kept
from retinue.store.sessions import sessions
from retinue.tools.toolbox import Toolbox

LISTED_MAX = 200
COUNT_MAX = 20
NUMBER_DIGITS_MAX = 18
OTHERS_STEP_MIN = timedelta(seconds=60)  # for everyone but the owner, because each occurrence can cost a run

Meta = msgspec.Meta


class Add(Form):
    name: Annotated[str, Meta(description="letters, digits and hyphens; with one, it has a file of its own")] = ""
    enabled: bool = True


class Set(msgspec.Struct, forbid_unknown_fields=True):
    """Omitted fields stay unchanged.

    A new `at`, `every` or `cron` replaces the old one. An empty text clears a field.
    """

    schedule: Annotated[str, Meta(description="its name or id")]
    to: str | None = None
    text: str | None = None
    at: str | None = None
    every: str | None = None
    cron: str | None = None
    zone: str | None = None
    place: Place | None = None
    deliver: str | None = None
    missed: Annotated[str | None, Meta(description="skip or run; empty: as is usual for its kind")] = None
    delete_after_run: bool | None = None
    gate: Annotated[schedule_parser.GateForm | msgspec.UnsetType | None, Meta(description="null takes it away")] = (
        msgspec.UNSET
    )
    model: str | None = None
    title: str | None = None
    attributes: dict[str, Any] | None = None
    description: str | None = None


class Which(msgspec.Struct, forbid_unknown_fields=True):
    schedule: Annotated[str, Meta(description="its name or id")]


class Run(Which):
    force: Annotated[bool, Meta(description="also while it is at work, and past its gate")] = False


class Listing(msgspec.Struct, forbid_unknown_fields=True):
    kind: Kind | None = None
    agent: Annotated[str, Meta(description="only those that write to this agent")] = ""
    limit: int = 50
    cursor: str = ""


class Explain(msgspec.Struct, forbid_unknown_fields=True):
    """Stores nothing."""

    cron: str = ""
    every: str = ""
    at: str = ""
    zone: str = ""
    count: int = 5


class Next(Which):
    count: int = 5


class History(Which):
    limit: int = 20
    cursor: Annotated[str, Meta(description="what the page before gave as next")] = ""


# --- lookup and permission checks ---


def find(conn: sa.Connection, text: str, *, seen_by: Principal) -> Kept:
    """Return the one visible schedule with this name or id prefix."""
    named = schedules.by_name(conn, text.strip()) if text.strip() else None
    if named is not None and schedules.sees(seen_by, named.schedule):
        return named
    looks_like_id = len(text.strip()) >= SHORT_LENGTH and all(c in "0123456789abcdefABCDEF-" for c in text.strip())
    found = (
        schedules.by_prefix(conn, prefix(text), limit=CANDIDATES_SHOWN_MAX + 1, seen_by=seen_by)
        if looks_like_id
        else []
    )
    if len(found) > 1:
        ids = [each.id for each in found]
        raise Ambiguous(text, distinguish([str(id_) for id_ in ids])[:CANDIDATES_SHOWN_MAX], matches=len(ids))
    if not found:
        raise NotFound(
            f"no schedule '{text[:64]}'",
            because="none that you see has this name, or an id that begins so",
            try_this="look at `retinue schedule list`",
            code="schedule.not-found",
        )
    return found[0]


def zone_of(desk: Desk) -> ZoneInfo:
    """Return the owner's current time zone."""
    return desk.config.current.settings.zone if desk.config is not None else desk.zone


def check_may(desk: Desk, caller: Principal, schedule: Schedule, conn: sa.Connection) -> None:
    """Raise an error if the caller may not have this schedule: its recipient, frequency, model and gate."""
    _check_recipient(conn, caller, schedule)
    if caller.sees_all:
        return
    step = shortest_step(schedule.when, desk.clock.now(), _zone(desk, schedule))
    if step is not None and step < OTHERS_STEP_MIN:
        raise NotAllowed(
            f"this schedule would come every {spell_out(int(step.total_seconds()))}",
            because="only the owner's may come more often than once a minute",
            try_this="let it come less often",
            code="schedule.too-often",
        )
    if schedule.model is not None and caller.level is PermissionLevel.RESTRICTED:
        raise NotAllowed(
            "you may not choose the model of a schedule",
            because="its agent has one, and yours is the lowest level",
            try_this="leave `model` out",
            code="run.request-not-allowed",
        )
    if schedule.gate is not None:
        _check_gate(desk, caller, conn)


def _zone(desk: Desk, schedule: Schedule) -> ZoneInfo:
    return known_zone(schedule.zone) if schedule.zone else zone_of(desk)


def _check_recipient(conn: sa.Connection, caller: Principal, schedule: Schedule) -> None:
    to = schedule.to
    match to.kind:
        case AddressKind.AGENT:
            if agents.find(conn, to.name) is None:
                raise NotFound(
                    f"there is no agent '{to.name}' in this house",
                    because="no agent of that name is registered",
                    try_this="look at `retinue status` for who is here",
                    code="agent.not-found",
                )
            if to.session is not None and not row_visibility.sees_session(
                conn, caller, sessions.by_prefix(conn, to.name, to.rest)
            ):
                raise NotFound(
                    f"{to.name} has no session {to.rest}",
                    because="none of this agent's sessions that you see has an id that begins so",
                    try_this=f"write to agent:{to.name}",
                    code="session.not-found",
                )
        case AddressKind.PERSON if people.find(conn, to.name) is None:
            raise NotFound(
                f"there is no person '{to.name}' in this house",
                because="nobody of that name was added",
                try_this="look at `retinue status` for who is here",
                code="person.not-found",
            )
        case _:
            pass
    if schedule.deliver and schedule.deliver != schedule_parser.NOWHERE:
        deliver = address.parse(schedule.deliver)
        if deliver.kind is AddressKind.PERSON and people.find(conn, deliver.name) is None:
            raise NotFound(
                f"there is no person '{deliver.name}' in this house",
                because="the answers of this schedule are to go to them",
                try_this="look at `retinue status` for who is here",
                code="person.not-found",
            )


def _check_gate(desk: Desk, caller: Principal, conn: sa.Connection) -> None:
    """Raise an error if the caller may not run commands without approval. A gate is a command."""
    agent = agents.find(conn, caller.address.name) if caller.address.kind is AddressKind.AGENT else None
    because = "a gate is a command that runs on this machine, and you are not its owner"
    if agent is not None and desk.toolbox is not None:
        because = why_no_command(desk.toolbox, agent)
    if not because:
        return
    raise NotAllowed(
        "you may not have a schedule with a gate",
        because=because,
        try_this="leave the gate out, or ask the owner to set it",
        code="schedule.gate-not-allowed",
    )


def why_no_command(toolbox: Toolbox, agent: Agent) -> str:
    """Return why an agent may not run commands without approval; empty if it may."""
    spec = toolbox.spec("exec")
    if spec is None:
        return "there are no commands in this house"
    decision = toolbox.chain(agent, Circumstances(origin=OriginKind.SCHEDULE)).decide(spec)
    return "" if decision.allowed else decision.because or "the rules for its tools do not allow it"


def owned_by(caller: Principal) -> Address:
    return address.agent(caller.address.name) if caller.address.kind is AddressKind.AGENT else caller.address


# --- operations ---


async def add(desk: Desk, caller: Principal, asked: Add) -> ScheduleShown:
    schedule = new_schedule(desk, caller, _form_of(asked), name=asked.name)
    body = partial(_add, desk=desk, caller=caller, schedule=schedule, enabled=asked.enabled)
    return await desk.store.write(body, point="schedule")


def _form_of(asked: Add) -> Form:
    return Form(**{name: getattr(asked, name) for name in Form.__struct_fields__})


def new_schedule(
    desk: Desk, caller: Principal, form: Form, *, name: str = "", kind: Kind = Kind.SCHEDULE, source: str = ""
) -> Schedule:
    owner = owned_by(caller)
    if not form.to and owner.kind is AddressKind.AGENT:
        form = msgspec.structs.replace(form, to=str(owner))
    schedule = schedule_parser.read(
        form,
        Setting(
            id=ScheduleId(desk.ids.new()),
            name=name,
            owner=owner,
            trust=caller.trust,
            now=desk.clock.now(),
            zone=zone_of(desk),
            kind=kind,
            source=source or ("agent" if owner.kind is AddressKind.AGENT else "api"),
        ),
    )
    return with_listener(schedule)


def with_listener(schedule: Schedule) -> Schedule:
    """Deliver the answers of a schedule's own session to the person who owns it, unless that is the owner."""
    own = schedule.to.kind is AddressKind.AGENT and schedule.to.session is None and schedule.place is not Place.MAIN
    others = schedule.owner.kind is AddressKind.PERSON and schedule.owner != OWNER
    if own and others and not schedule.deliver:
        return msgspec.structs.replace(schedule, deliver=str(schedule.owner))
    return schedule


def _add(conn: sa.Connection, *, desk: Desk, caller: Principal, schedule: Schedule, enabled: bool) -> ScheduleShown:
    page = Page(conn, to_ms(desk.clock.now()))
    check_new(conn, desk, caller, schedule)
    kept = schedules.add(
        page, schedule, zone=zone_of(desk), enabled=enabled, because="" if enabled else f"added so by {caller.address}"
    )
    page.close()
    return schedule_form(kept.schedule, schedules.standing(conn, kept), zone_of(desk))


def check_new(conn: sa.Connection, desk: Desk, caller: Principal, schedule: Schedule) -> None:
    check_may(desk, caller, schedule, conn)
    _check_name(conn, schedule)
    if schedules.count(conn) >= SCHEDULES_MAX:
        raise TooLarge(
            "there are too many schedules",
            because=f"a house has at most {SCHEDULES_MAX:,}",
            try_this="delete some",
            code="schedule.too-many",
        )
    if not caller.sees_all and schedules.count_of(conn, schedule.owner, schedule.kind) >= OWN_SCHEDULES_MAX:
        raise TooLarge(
            f"{schedule.owner} has too many schedules",
            because=f"whoever is not the owner has at most {OWN_SCHEDULES_MAX}",
            try_this="delete some",
            code="schedule.too-many",
        )


def _check_name(conn: sa.Connection, schedule: Schedule) -> None:
    taken = schedules.by_name(conn, schedule.name) if schedule.name else None
    if taken is not None and taken.id != schedule.id:
        raise Conflict(
            f"there is a schedule '{schedule.name}' already",
            because="a name is for one of them, in whatever case it is written",
            try_this="choose another, or change that one",
            code="schedule.name-taken",
        )


async def listed(desk: Desk, caller: Principal, asked: Listing) -> SchedulesListed:
    check_limit(asked.limit, least=1, most=LISTED_MAX)
    until_ms, before = _cursor(asked.cursor)
    zone = zone_of(desk)

    def body(conn: sa.Connection) -> SchedulesListed:
        found = schedules.listed(conn, limit=asked.limit + 1, until_ms=until_ms, before=before, seen_by=caller)
        more = found[asked.limit - 1] if len(found) > asked.limit else None
        shown = [
            schedule_form(kept.schedule, schedules.standing(conn, kept), zone)
            for kept in found[: asked.limit]
            if _is_wanted(kept.schedule, asked)
        ]
        return SchedulesListed(shown, f"{more.created_ms}.{more.id}" if more else None)

    found = await desk.store.scan(body)
    unread = desk.schedule_files.problems() if desk.schedule_files is not None and caller.sees_all else []
    return msgspec.structs.replace(found, unread=unread)


def _is_wanted(schedule: Schedule, asked: Listing) -> bool:
    if asked.kind is not None and schedule.kind is not asked.kind:
        return False
    to = schedule.to
    return not asked.agent or (to.kind is AddressKind.AGENT and to.name.casefold() == asked.agent.casefold())


def _cursor(text: str) -> tuple[int, str]:
    if not text:
        return 2**62, "g"
    ms, dot, id_ = text.partition(".")
    if not dot or not ms.isascii() or not ms.isdigit() or len(ms) > NUMBER_DIGITS_MAX:
        raise no_cursor(text)
    return int(ms), id_


async def show_one(desk: Desk, caller: Principal, asked: Which) -> ScheduleShown:
    def body(conn: sa.Connection) -> ScheduleShown:
        kept = find(conn, asked.schedule, seen_by=caller)
        return schedule_form(kept.schedule, schedules.standing(conn, kept), zone_of(desk))

    return await desk.store.scan(body)


async def change(desk: Desk, caller: Principal, asked: Set) -> ScheduleShown:
    changes = {name: value for name in Form.__struct_fields__ if (value := getattr(asked, name)) is not None}
    if asked.gate is msgspec.UNSET:
        changes.pop("gate")
    else:
        changes["gate"] = asked.gate
    if asked.missed is not None:
        changes["missed"] = _missed(asked.missed)
    if not changes:
        raise Invalid(
            "nothing is to be changed",
            because="no field was given",
            try_this="for example: --text 'Good morning'",
            code="schedule.nothing-changed",
        )

    def body(conn: sa.Connection) -> ScheduleShown:
        page = Page(conn, to_ms(desk.clock.now()))
        kept = find(conn, asked.schedule, seen_by=caller)
        _check_by_hand(kept)
        changed = _changed(desk, caller, kept, changes)
        check_may(desk, caller, changed, conn)
        made = schedules.change(page, kept, changed, zone=zone_of(desk), because=f"changed by {caller.address}")
        page.close()
        return schedule_form(made.schedule, schedules.standing(conn, made), zone_of(desk))

    return await desk.store.write(body, point="schedule")


def _check_by_hand(kept: Kept) -> None:
    """Refuse to change a heartbeat: it is derived from settings and agents, which would undo the change."""
    if kept.schedule.kind is Kind.HEARTBEAT:
        agent = kept.schedule.to.name
        raise Invalid(
            f"the heartbeat of {agent} cannot be changed as a schedule",
            because=f"it follows from what is set for {agent}, or for everyone in [defaults.heartbeat]",
            try_this=f"retinue agent set {agent} --heartbeat-every-s 3600; 0 is never",
            code="heartbeat.not-by-hand",
        )


def _missed(text: str) -> Missed | None:
    try:
        return Missed(text) if text else None
    except ValueError:
        raise Invalid(
            f"'{text[:32]}' is nothing that can become of a missed slot",
            because="it is skipped, or run late",
            try_this="missed = skip, or run",
            code="schedule.missed-invalid",
        ) from None


def _changed(desk: Desk, caller: Principal, kept: Kept, changes: dict[str, Any]) -> Schedule:
    was = kept.schedule
    form = schedule_parser.changed(schedule_parser.write(was, ZoneInfo(kept.zone)), changes)
    start = was.when.start if isinstance(was.when, Every) and "every" not in changes else None
    by = Setting(
        id=was.id,
        name=was.name,
        owner=was.owner,
        # Unchanged text keeps its trust. New text or a new gate gets the trust of the caller.
        trust=caller.trust if "text" in changes or "gate" in changes else was.trust,
        now=desk.clock.now(),
        zone=zone_of(desk),
        kind=was.kind,
        source=was.source,
        start=start,
    )
    return with_listener(schedule_parser.read(form, by))


async def enable(desk: Desk, caller: Principal, asked: Which) -> ScheduleChanged:
    return await _switch(desk, caller, asked, on=True)


async def disable(desk: Desk, caller: Principal, asked: Which) -> ScheduleChanged:
    return await _switch(desk, caller, asked, on=False)


async def _switch(desk: Desk, caller: Principal, asked: Which, *, on: bool) -> ScheduleChanged:
    def body(conn: sa.Connection) -> ScheduleChanged:
        page = Page(conn, to_ms(desk.clock.now()))
        kept = find(conn, asked.schedule, seen_by=caller)
        _check_by_hand(kept)
        if on:
            kept = schedules.enable(page, kept)
        else:
            kept = schedules.disable(page, kept, because=f"disabled by {caller.address}")
        page.close()
        standing = schedules.standing(conn, kept)
        upcoming = show(standing.slot_at, zone_of(desk)) if standing.slot_at else None
        return ScheduleChanged(kept.id, kept.schedule.name, kept.enabled, kept.because, upcoming)

    return await desk.store.write(body, point="schedule")


async def run(desk: Desk, caller: Principal, asked: Run) -> ScheduleRun:
    """Run a schedule now, even if it is disabled.

    Unless forced, skip it if its last run is still working.
    """

    def body(conn: sa.Connection) -> ScheduleRun:
        page = Page(conn, to_ms(desk.clock.now()))
        kept = find(conn, asked.schedule, seen_by=caller)
        because = "" if asked.force else why_busy(conn, kept.id)
        if because:
            schedules.skipped_by_hand(page, kept, because=because)
            page.close()
            return ScheduleRun(kept.id, begun=False, because=because, envelope=None)
        slot = schedules.by_hand(page, kept, forced=asked.force)
        page.close()
        return ScheduleRun(kept.id, begun=True, because="", envelope=slot.envelope)

    return await desk.store.write(body, point="schedule")


async def explain(desk: Desk, caller: Principal, asked: Explain) -> ScheduleExplained:
    check_limit(asked.count, least=1, most=COUNT_MAX, try_this=f"count=1 to {COUNT_MAX}")
    zone = known_zone(asked.zone) if asked.zone else zone_of(desk)
    if sum(map(bool, (asked.cron, asked.every, asked.at))) != 1:
        raise Invalid(
            "this does not say when",
            because="exactly one of `cron`, `every` and `at` is needed",
            try_this="for example: cron = 0 9 * * 1-5",
            code="schedule.when-invalid",
        )
    now = desk.clock.now()
    when = schedule_parser.read_when(at=asked.at, every=asked.every, expression=asked.cron, now=now, zone=zone)
    # Finding a rare date can mean searching thousands of days.
    times = await asyncio.to_thread(next_times, when, now, zone, count=asked.count)
    return ScheduleExplained(in_words(when, zone), zone.key, show(now, zone), [show(at, zone) for at in times])


async def upcoming(desk: Desk, caller: Principal, asked: Next) -> ScheduleExplained:
    check_limit(asked.count, least=1, most=COUNT_MAX, try_this=f"count=1 to {COUNT_MAX}")
    kept = await desk.store.scan(partial(find, text=asked.schedule, seen_by=caller))
    now, zone = desk.clock.now(), ZoneInfo(kept.zone)
    times = await asyncio.to_thread(next_times, kept.schedule.when, now, zone, count=asked.count)
    return ScheduleExplained(
        in_words(kept.schedule.when, zone), zone.key, show(now, zone), [show(at, zone) for at in times]
    )


async def history(desk: Desk, caller: Principal, asked: History) -> ScheduleHistory:
    check_limit(asked.limit, least=1, most=LISTED_MAX)
    until_ms, number = _cursor(asked.cursor)
    if asked.cursor and not (number.isascii() and number.isdigit() and len(number) <= NUMBER_DIGITS_MAX):
        raise no_cursor(asked.cursor)

    def body(conn: sa.Connection) -> ScheduleHistory:
        kept = find(conn, asked.schedule, seen_by=caller)
        before = int(number) if asked.cursor else 2**62
        found = schedules.history(conn, kept.id, limit=asked.limit + 1, until_ms=until_ms, before=before)
        shown = found[: asked.limit]
        more = f"{to_ms(shown[-1].at)}.{shown[-1].seq}" if len(found) > asked.limit else None
        return ScheduleHistory([slot_form(slot, zone_of(desk)) for slot in shown], more)

    return await desk.store.scan(body)


async def delete(desk: Desk, caller: Principal, asked: Which) -> ScheduleDeleted:
    def body(conn: sa.Connection) -> ScheduleDeleted:
        page = Page(conn, to_ms(desk.clock.now()))
        kept = find(conn, asked.schedule, seen_by=caller)
        _check_by_hand(kept)
        schedules.delete(page, kept, because=f"its schedule was deleted by {caller.address}")
        page.close()
        return ScheduleDeleted(short(kept.id), kept.schedule.name)

    return await desk.store.write(body, point="schedule")


def _looking(name: str, summary: str, parameters: Any, handler: Any, result: Any) -> Operation:
    return for_everyone(name, summary, parameters, handler, result, effect=False)


OPERATIONS = (
    for_everyone("schedule.add", "Have something written at a time, or again and again.", Add, add, ScheduleShown),
    _looking("schedule.list", "List your schedules, the newest first.", Listing, listed, SchedulesListed),
    _looking("schedule.show", "Show a schedule.", Which, show_one, ScheduleShown),
    for_everyone("schedule.set", "Change a schedule.", Set, change, ScheduleShown),
    for_everyone("schedule.enable", "Have a schedule come again.", Which, enable, ScheduleChanged),
    for_everyone(
        "schedule.disable", "Have a schedule come no more, until it is enabled.", Which, disable, ScheduleChanged
    ),
    for_everyone("schedule.run", "Have a schedule come now, whether or not it is enabled.", Run, run, ScheduleRun),
    _looking(
        "schedule.explain", "Say in words what a time means, and when it comes.", Explain, explain, ScheduleExplained
    ),
    _looking("schedule.next", "Say when a schedule comes next.", Next, upcoming, ScheduleExplained),
    _looking("schedule.history", "Tell what became of each time a schedule came.", History, history, ScheduleHistory),
    for_everyone("schedule.delete", "Delete a schedule and its history.", Which, delete, ScheduleDeleted),
)
