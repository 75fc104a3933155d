"""Operations that add, list, change, run, explain and delete schedules.

A schedule is visible to its owner and to the owner of the instance.
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
from retinue.domain.errors import AmbiguousId
from retinue.domain.ids import (
    CANDIDATES_SHOWN_MAX,
    SHORT_LENGTH,
    ScheduleId,
    parse_id_prefix,
    short_id,
    shortest_unique_prefixes,
)
from retinue.domain.principal import Principal
from retinue.domain.schedule import (
    AGENT_SCHEDULES_MAX,
    SCHEDULES_MAX,
    EveryTrigger,
    MissedPolicy,
    Schedule,
    ScheduleKind,
    ScheduleSession,
    describe_trigger,
    format_duration,
    next_occurrences,
    shortest_interval,
)
from retinue.domain.session import OriginKind
from retinue.domain.shared_errors import AgentNotFound, PersonNotFound, SessionNotFound
from retinue.domain.times import format_time, to_ms
from retinue.domain.times import load_zone as known_zone
from retinue.engine.scheduler import overlap_reason
from retinue.intake.routing import OWNER
from retinue.operations.base import Operation, Services, unrestricted_operation
from retinue.operations.pagination import check_limit, invalid_cursor
from retinue.operations.schedule.errors import (
    HeartbeatNotEditable,
    ScheduleChangeEmpty,
    ScheduleGateNotAllowed,
    ScheduleMissedInvalid,
    ScheduleModelNotAllowed,
    ScheduleNameTaken,
    ScheduleNotFound,
    ScheduleTooOften,
    TooManySchedules,
    TooManySchedulesOfOwner,
)
from retinue.operations.schedule.schedule_responses import (
    ScheduleChanged,
    ScheduleDeleted,
    ScheduleDetails,
    ScheduleExplanation,
    ScheduleHistory,
    ScheduleList,
    ScheduleRunResult,
    to_occurrence_details,
    to_schedule_details,
)
from retinue.policy.tools.tool_policy import ToolPolicyContext
from retinue.schedules import schedule_parser
from retinue.schedules.errors import ScheduleTriggerInvalid
from retinue.schedules.schedule_parser import ScheduleContext, ScheduleForm
from retinue.store.agents import agents
from retinue.store.core import row_visibility
from retinue.store.core.transaction import Transaction
from retinue.store.people import people
from retinue.store.schedules import schedules
from retinue.store.schedules.schedules import StoredSchedule
from retinue.store.sessions import sessions
from retinue.tools.toolbox import Toolbox

LIST_LIMIT_MAX = 200
OCCURRENCES_MAX = 20
NUMBER_DIGITS_MAX = 18
NON_OWNER_INTERVAL_MIN = timedelta(seconds=60)  # for everyone but the owner, because each occurrence can start a run

Meta = msgspec.Meta


class ScheduleAddRequest(ScheduleForm):
    name: Annotated[
        str,
        Meta(description="name of the schedule: letters, digits and hyphens; a named schedule is also kept in a file"),
    ] = ""
    enabled: bool = True


class ScheduleSetRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Change a schedule. Omitted fields stay unchanged.

    A new `at`, `every` or `cron` replaces the previous times. An empty string clears a field.
    """

    schedule: Annotated[str, Meta(description="name or id of the schedule")]
    to: str | None = None
    text: str | None = None
    at: str | None = None
    every: str | None = None
    cron: str | None = None
    zone: str | None = None
    session: ScheduleSession | None = None
    deliver_to: str | None = None
    missed: Annotated[
        str | None,
        Meta(
            description="what to do with missed occurrences: skip or run; empty: the default for the kind of schedule"
        ),
    ] = None
    delete_after_run: bool | None = None
    gate: Annotated[
        schedule_parser.GateForm | msgspec.UnsetType | None,
        Meta(description="command that decides whether an occurrence starts a run; null removes it"),
    ] = msgspec.UNSET
    model: str | None = None
    title: str | None = None
    attributes: dict[str, Any] | None = None
    description: str | None = None


class ScheduleRequest(msgspec.Struct, forbid_unknown_fields=True):
    schedule: Annotated[str, Meta(description="name or id of the schedule")]


class ScheduleRunRequest(ScheduleRequest):
    force: Annotated[
        bool, Meta(description="run even if the schedule's last run is still in progress, and skip the gate")
    ] = False


class ScheduleListRequest(msgspec.Struct, forbid_unknown_fields=True):
    kind: ScheduleKind | None = None
    agent: Annotated[str, Meta(description="only schedules that send messages to this agent")] = ""
    limit: int = 50
    cursor: str = ""


class ScheduleExplainRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Explain when a schedule with these times would run. Nothing is stored."""

    cron: str = ""
    every: str = ""
    at: str = ""
    zone: str = ""
    count: int = 5


class ScheduleNextRequest(ScheduleRequest):
    count: int = 5


class ScheduleHistoryRequest(ScheduleRequest):
    limit: int = 20
    cursor: Annotated[str, Meta(description="`next` of the previous page; default: the first page")] = ""


# --- lookup and permission checks ---


def find_schedule(conn: sa.Connection, text: str, *, seen_by: Principal) -> StoredSchedule:
    """Return the schedule with this name or id prefix. Raise if the caller sees no such schedule, or sees several."""
    named = schedules.get_by_name(conn, text.strip()) if text.strip() else None
    if named is not None and schedules.can_see(seen_by, named.schedule):
        return named
    looks_like_id = len(text.strip()) >= SHORT_LENGTH and all(c in "0123456789abcdefABCDEF-" for c in text.strip())
    found = (
        schedules.list_by_prefix(conn, parse_id_prefix(text), limit=CANDIDATES_SHOWN_MAX + 1, seen_by=seen_by)
        if looks_like_id
        else []
    )
    if len(found) > 1:
        ids = [each.id for each in found]
        raise AmbiguousId(
            text, shortest_unique_prefixes([str(id_) for id_ in ids])[:CANDIDATES_SHOWN_MAX], matches=len(ids)
        )
    if not found:
        raise ScheduleNotFound(text)
    return found[0]


def owner_zone(services: Services) -> ZoneInfo:
    """Return the owner's current time zone."""
    return services.config_holder.current.settings.zone if services.config_holder is not None else services.zone


def check_schedule_allowed(services: Services, caller: Principal, schedule: Schedule, conn: sa.Connection) -> None:
    """Raise an error if the recipient, frequency, model or gate of a schedule is not allowed for the caller."""
    _check_recipient(conn, caller, schedule)
    if caller.sees_everything:
        return
    step = shortest_interval(schedule.when, services.clock.now(), _schedule_zone(services, schedule))
    if step is not None and step < NON_OWNER_INTERVAL_MIN:
        raise ScheduleTooOften(format_duration(int(step.total_seconds())))
    if schedule.model is not None and caller.level is PermissionLevel.RESTRICTED:
        raise ScheduleModelNotAllowed(level=caller.level)
    if schedule.gate is not None:
        _check_gate(services, caller, conn)


def _schedule_zone(services: Services, schedule: Schedule) -> ZoneInfo:
    return known_zone(schedule.zone) if schedule.zone else owner_zone(services)


def _check_recipient(conn: sa.Connection, caller: Principal, schedule: Schedule) -> None:
    to = schedule.to
    match to.kind:
        case AddressKind.AGENT:
            if agents.find(conn, to.name) is None:
                raise AgentNotFound(to.name)
            if to.session is not None and not row_visibility.can_see_session(
                conn, caller, sessions.find_id_by_prefix(conn, to.name, to.rest)
            ):
                raise SessionNotFound(
                    to.rest,
                    agent=to.name,
                    because="no session of this agent that you may see has an id that starts like this",
                    try_this=f"send to agent:{to.name}",
                )
        case AddressKind.PERSON if people.find(conn, to.name) is None:
            raise PersonNotFound(to.name)
        case _:
            pass
    if schedule.deliver and schedule.deliver != schedule_parser.NOWHERE:
        deliver = address.parse_address(schedule.deliver)
        if deliver.kind is AddressKind.PERSON and people.find(conn, deliver.name) is None:
            raise PersonNotFound(deliver.name, because="the schedule delivers its answers to this person")


def _check_gate(services: Services, caller: Principal, conn: sa.Connection) -> None:
    """Raise an error if the caller may not set a gate. A gate is a command that runs without approval."""
    agent = agents.find(conn, caller.address.name) if caller.address.kind is AddressKind.AGENT else None
    because = "a gate is a command on this machine, and you are not the owner"
    if agent is not None and services.toolbox is not None:
        because = explain_command_denial(services.toolbox, agent)
    if not because:
        return
    raise ScheduleGateNotAllowed(because=because)


def explain_command_denial(toolbox: Toolbox, agent: Agent) -> str:
    """Return the reason why an agent may not run commands without approval, or "" if it may."""
    spec = toolbox.spec("exec")
    if spec is None:
        return "this server has no tool for commands"
    decision = toolbox.rule_chain(agent, ToolPolicyContext(origin=OriginKind.SCHEDULE)).decide(spec)
    return "" if decision.is_allowed else decision.because or "its tool rules do not allow it"


def schedule_owner(caller: Principal) -> Address:
    return address.agent_address(caller.address.name) if caller.address.kind is AddressKind.AGENT else caller.address


# --- operations ---


async def add_schedule(services: Services, caller: Principal, request: ScheduleAddRequest) -> ScheduleDetails:
    schedule = build_schedule(services, caller, _to_form(request), name=request.name)
    body = partial(_store_schedule, services=services, caller=caller, schedule=schedule, enabled=request.enabled)
    return await services.store.write(body, point="schedule")


def _to_form(request: ScheduleAddRequest) -> ScheduleForm:
    return ScheduleForm(**{name: getattr(request, name) for name in ScheduleForm.__struct_fields__})


def build_schedule(
    services: Services,
    caller: Principal,
    form: ScheduleForm,
    *,
    name: str = "",
    kind: ScheduleKind = ScheduleKind.SCHEDULE,
    source: str = "",
) -> Schedule:
    owner = schedule_owner(caller)
    if not form.to and owner.kind is AddressKind.AGENT:
        form = msgspec.structs.replace(form, to=str(owner))
    schedule = schedule_parser.parse_form(
        form,
        ScheduleContext(
            id=ScheduleId(services.ids.new()),
            name=name,
            owner=owner,
            trust=caller.trust,
            now=services.clock.now(),
            zone=owner_zone(services),
            kind=kind,
            source=source or ("agent" if owner.kind is AddressKind.AGENT else "api"),
        ),
    )
    return with_default_delivery(schedule)


def with_default_delivery(schedule: Schedule) -> Schedule:
    """Return the schedule with its owner as the recipient of its answers, if it needs a recipient and has none.

    A schedule needs one only if it has its own session and belongs to a person other than the instance's owner.
    """
    own = (
        schedule.to.kind is AddressKind.AGENT
        and schedule.to.session is None
        and schedule.place is not ScheduleSession.MAIN
    )
    others = schedule.owner.kind is AddressKind.PERSON and schedule.owner != OWNER
    if own and others and not schedule.deliver:
        return msgspec.structs.replace(schedule, deliver=str(schedule.owner))
    return schedule


def _store_schedule(
    conn: sa.Connection, *, services: Services, caller: Principal, schedule: Schedule, enabled: bool
) -> ScheduleDetails:
    tx = Transaction(conn, to_ms(services.clock.now()))
    check_new_schedule(conn, services, caller, schedule)
    kept = schedules.add(
        tx,
        schedule,
        zone=owner_zone(services),
        enabled=enabled,
        because="" if enabled else f"added as disabled by {caller.address}",
    )
    tx.close()
    return to_schedule_details(kept.schedule, schedules.get_status(conn, kept), owner_zone(services))


def check_new_schedule(conn: sa.Connection, services: Services, caller: Principal, schedule: Schedule) -> None:
    check_schedule_allowed(services, caller, schedule, conn)
    _check_name(conn, schedule)
    if schedules.count(conn) >= SCHEDULES_MAX:
        raise TooManySchedules(count_max=SCHEDULES_MAX)
    if (
        not caller.sees_everything
        and schedules.count_of_owner(conn, schedule.owner, schedule.kind) >= AGENT_SCHEDULES_MAX
    ):
        raise TooManySchedulesOfOwner(str(schedule.owner), count_max=AGENT_SCHEDULES_MAX)


def _check_name(conn: sa.Connection, schedule: Schedule) -> None:
    taken = schedules.get_by_name(conn, schedule.name) if schedule.name else None
    if taken is not None and taken.id != schedule.id:
        raise ScheduleNameTaken(schedule.name)


async def list_schedules(services: Services, caller: Principal, request: ScheduleListRequest) -> ScheduleList:
    check_limit(request.limit, least=1, most=LIST_LIMIT_MAX)
    until_ms, before = _parse_cursor(request.cursor)
    zone = owner_zone(services)

    def body(conn: sa.Connection) -> ScheduleList:
        found = schedules.list_schedules(
            conn, limit=request.limit + 1, until_ms=until_ms, before=before, seen_by=caller
        )
        more = found[request.limit - 1] if len(found) > request.limit else None
        shown = [
            to_schedule_details(kept.schedule, schedules.get_status(conn, kept), zone)
            for kept in found[: request.limit]
            if _matches_filter(kept.schedule, request)
        ]
        return ScheduleList(shown, f"{more.created_ms}.{more.id}" if more else None)

    found = await services.store.scan(body)
    unreadable = (
        services.schedule_files.problems() if services.schedule_files is not None and caller.sees_everything else []
    )
    return msgspec.structs.replace(found, unreadable_files=unreadable)


def _matches_filter(schedule: Schedule, request: ScheduleListRequest) -> bool:
    if request.kind is not None and schedule.kind is not request.kind:
        return False
    to = schedule.to
    return not request.agent or (to.kind is AddressKind.AGENT and to.name.casefold() == request.agent.casefold())


def _parse_cursor(text: str) -> tuple[int, str]:
    if not text:
        return 2**62, "g"
    ms, dot, id_ = text.partition(".")
    if not dot or not ms.isascii() or not ms.isdigit() or len(ms) > NUMBER_DIGITS_MAX:
        raise invalid_cursor(text)
    return int(ms), id_


async def show_schedule(services: Services, caller: Principal, request: ScheduleRequest) -> ScheduleDetails:
    def body(conn: sa.Connection) -> ScheduleDetails:
        kept = find_schedule(conn, request.schedule, seen_by=caller)
        return to_schedule_details(kept.schedule, schedules.get_status(conn, kept), owner_zone(services))

    return await services.store.scan(body)


async def change_schedule(services: Services, caller: Principal, request: ScheduleSetRequest) -> ScheduleDetails:
    changes = {name: value for name in ScheduleForm.__struct_fields__ if (value := getattr(request, name)) is not None}
    if request.gate is msgspec.UNSET:
        changes.pop("gate")
    else:
        changes["gate"] = request.gate
    if request.missed is not None:
        changes["missed"] = _parse_missed(request.missed)
    if not changes:
        raise ScheduleChangeEmpty()

    def body(conn: sa.Connection) -> ScheduleDetails:
        tx = Transaction(conn, to_ms(services.clock.now()))
        kept = find_schedule(conn, request.schedule, seen_by=caller)
        _check_not_heartbeat(kept)
        changed = _apply_changes(services, caller, kept, changes)
        check_schedule_allowed(services, caller, changed, conn)
        made = schedules.change(tx, kept, changed, zone=owner_zone(services), because=f"changed by {caller.address}")
        tx.close()
        return to_schedule_details(made.schedule, schedules.get_status(conn, made), owner_zone(services))

    return await services.store.write(body, point="schedule")


def _check_not_heartbeat(stored: StoredSchedule) -> None:
    """Raise if the schedule is a heartbeat. Heartbeats are derived from settings, so a change would be undone."""
    if stored.schedule.kind is ScheduleKind.HEARTBEAT:
        raise HeartbeatNotEditable(stored.schedule.to.name)


def _parse_missed(text: str) -> MissedPolicy | None:
    try:
        return MissedPolicy(text) if text else None
    except ValueError:
        raise ScheduleMissedInvalid(text) from None


def _apply_changes(services: Services, caller: Principal, stored: StoredSchedule, changes: dict[str, Any]) -> Schedule:
    was = stored.schedule
    form = schedule_parser.change_form(schedule_parser.schedule_to_form(was, ZoneInfo(stored.zone)), changes)
    start = was.when.start if isinstance(was.when, EveryTrigger) and "every" not in changes else None
    by = ScheduleContext(
        id=was.id,
        name=was.name,
        owner=was.owner,
        # Unchanged text keeps its trust level. New text or a new gate gets the trust level of the caller.
        trust=caller.trust if "text" in changes or "gate" in changes else was.trust,
        now=services.clock.now(),
        zone=owner_zone(services),
        kind=was.kind,
        source=was.source,
        start=start,
    )
    return with_default_delivery(schedule_parser.parse_form(form, by))


async def enable_schedule(services: Services, caller: Principal, request: ScheduleRequest) -> ScheduleChanged:
    return await _set_enabled(services, caller, request, is_enabled=True)


async def disable_schedule(services: Services, caller: Principal, request: ScheduleRequest) -> ScheduleChanged:
    return await _set_enabled(services, caller, request, is_enabled=False)


async def _set_enabled(
    services: Services, caller: Principal, request: ScheduleRequest, *, is_enabled: bool
) -> ScheduleChanged:
    def body(conn: sa.Connection) -> ScheduleChanged:
        tx = Transaction(conn, to_ms(services.clock.now()))
        kept = find_schedule(conn, request.schedule, seen_by=caller)
        _check_not_heartbeat(kept)
        if is_enabled:
            kept = schedules.enable(tx, kept)
        else:
            kept = schedules.disable(tx, kept, because=f"disabled by {caller.address}")
        tx.close()
        standing = schedules.get_status(conn, kept)
        upcoming = format_time(standing.occurrence_at, owner_zone(services)) if standing.occurrence_at else None
        return ScheduleChanged(kept.id, kept.schedule.name, kept.enabled, kept.because, upcoming)

    return await services.store.write(body, point="schedule")


async def run_schedule(services: Services, caller: Principal, request: ScheduleRunRequest) -> ScheduleRunResult:
    """Run a schedule now, even if it is disabled.

    If the last run of the schedule is still active, no run is started unless `force` is set.
    """

    def body(conn: sa.Connection) -> ScheduleRunResult:
        tx = Transaction(conn, to_ms(services.clock.now()))
        kept = find_schedule(conn, request.schedule, seen_by=caller)
        because = "" if request.force else overlap_reason(conn, kept.id)
        if because:
            schedules.record_manual_skip(tx, kept, because=because)
            tx.close()
            return ScheduleRunResult(kept.id, started=False, because=because, envelope=None)
        occurrence = schedules.create_manual_occurrence(tx, kept, is_forced=request.force)
        tx.close()
        return ScheduleRunResult(kept.id, started=True, because="", envelope=occurrence.envelope)

    return await services.store.write(body, point="schedule")


async def explain_schedule(
    services: Services, caller: Principal, request: ScheduleExplainRequest
) -> ScheduleExplanation:
    check_limit(request.count, least=1, most=OCCURRENCES_MAX, field="count", try_this="request fewer")
    zone = known_zone(request.zone) if request.zone else owner_zone(services)
    given = [name for name in ("at", "every", "cron") if getattr(request, name)]
    if len(given) != 1:
        raise ScheduleTriggerInvalid(given)
    now = services.clock.now()
    when = schedule_parser.parse_when_fields(
        at=request.at, every=request.every, expression=request.cron, now=now, zone=zone
    )
    # In a thread, because the search for a rare date can take thousands of days.
    times = await asyncio.to_thread(next_occurrences, when, now, zone, count=request.count)
    return ScheduleExplanation(
        describe_trigger(when, zone), zone.key, format_time(now, zone), [format_time(at, zone) for at in times]
    )


async def list_next_occurrences(
    services: Services, caller: Principal, request: ScheduleNextRequest
) -> ScheduleExplanation:
    check_limit(request.count, least=1, most=OCCURRENCES_MAX, field="count", try_this="request fewer")
    kept = await services.store.scan(partial(find_schedule, text=request.schedule, seen_by=caller))
    now, zone = services.clock.now(), ZoneInfo(kept.zone)
    times = await asyncio.to_thread(next_occurrences, kept.schedule.when, now, zone, count=request.count)
    return ScheduleExplanation(
        describe_trigger(kept.schedule.when, zone),
        zone.key,
        format_time(now, zone),
        [format_time(at, zone) for at in times],
    )


async def list_occurrences(services: Services, caller: Principal, request: ScheduleHistoryRequest) -> ScheduleHistory:
    check_limit(request.limit, least=1, most=LIST_LIMIT_MAX)
    until_ms, number = _parse_cursor(request.cursor)
    if request.cursor and not (number.isascii() and number.isdigit() and len(number) <= NUMBER_DIGITS_MAX):
        raise invalid_cursor(request.cursor)

    def body(conn: sa.Connection) -> ScheduleHistory:
        kept = find_schedule(conn, request.schedule, seen_by=caller)
        before = int(number) if request.cursor else 2**62
        found = schedules.list_history(conn, kept.id, limit=request.limit + 1, until_ms=until_ms, before=before)
        shown = found[: request.limit]
        more = f"{to_ms(shown[-1].at)}.{shown[-1].seq}" if len(found) > request.limit else None
        return ScheduleHistory([to_occurrence_details(slot, owner_zone(services)) for slot in shown], more)

    return await services.store.scan(body)


async def delete_schedule(services: Services, caller: Principal, request: ScheduleRequest) -> ScheduleDeleted:
    def body(conn: sa.Connection) -> ScheduleDeleted:
        tx = Transaction(conn, to_ms(services.clock.now()))
        kept = find_schedule(conn, request.schedule, seen_by=caller)
        _check_not_heartbeat(kept)
        schedules.delete(tx, kept, because=f"its schedule was deleted by {caller.address}")
        tx.close()
        return ScheduleDeleted(short_id(kept.id), kept.schedule.name)

    return await services.store.write(body, point="schedule")


def _read_operation(name: str, summary: str, parameters: Any, handler: Any, result: Any) -> Operation:
    return unrestricted_operation(name, summary, parameters, handler, result, has_effect=False)


OPERATIONS = (
    unrestricted_operation(
        "schedule.add",
        "Schedule a message, once or repeatedly.",
        ScheduleAddRequest,
        add_schedule,
        ScheduleDetails,
    ),
    _read_operation(
        "schedule.list", "List your schedules, newest first.", ScheduleListRequest, list_schedules, ScheduleList
    ),
    _read_operation("schedule.show", "Show a schedule.", ScheduleRequest, show_schedule, ScheduleDetails),
    unrestricted_operation("schedule.set", "Change a schedule.", ScheduleSetRequest, change_schedule, ScheduleDetails),
    unrestricted_operation("schedule.enable", "Enable a schedule.", ScheduleRequest, enable_schedule, ScheduleChanged),
    unrestricted_operation(
        "schedule.disable",
        "Disable a schedule.",
        ScheduleRequest,
        disable_schedule,
        ScheduleChanged,
    ),
    unrestricted_operation(
        "schedule.run",
        "Run a schedule now, even if it is disabled.",
        ScheduleRunRequest,
        run_schedule,
        ScheduleRunResult,
    ),
    _read_operation(
        "schedule.explain",
        "Describe the times of a schedule in words, and list the next ones.",
        ScheduleExplainRequest,
        explain_schedule,
        ScheduleExplanation,
    ),
    _read_operation(
        "schedule.next",
        "List the next occurrences of a schedule.",
        ScheduleNextRequest,
        list_next_occurrences,
        ScheduleExplanation,
    ),
    _read_operation(
        "schedule.history",
        "List the past occurrences of a schedule and their results.",
        ScheduleHistoryRequest,
        list_occurrences,
        ScheduleHistory,
    ),
    unrestricted_operation(
        "schedule.delete", "Delete a schedule and its history.", ScheduleRequest, delete_schedule, ScheduleDeleted
    ),
)
