"""Store schedules and their occurrences.

Each occurrence has an envelope, which is pending and held until the scheduler releases it. The
commit that ends an occurrence also stores its result, and creates the next occurrence in the
future. After every commit, an enabled schedule therefore has exactly one open occurrence that the
scheduler created, and a crash cannot leave it without one.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import sqlalchemy as sa
from msgspec import Struct

from retinue.domain.address import Address, AddressKind
from retinue.domain.envelope import NO_CONTEXT, EnvelopeContext, EnvelopeDraft, Outcome
from retinue.domain.envelope import EnvelopeKind as Mail
from retinue.domain.event import EventKind
from retinue.domain.ids import EnvelopeId, ScheduleId, derive_id
from retinue.domain.principal import SERVER_PRINCIPAL, Principal
from retinue.domain.run import RunRequest
from retinue.domain.schedule import (
    OCCURRENCES_KEPT_MAX,
    SCHEDULES_MAX,
    Occurrence,
    OccurrenceCause,
    OccurrenceState,
    OnceTrigger,
    Schedule,
    ScheduleKind,
    ScheduleSession,
    ScheduleStatus,
    count_occurrences,
    next_occurrence,
)
from retinue.domain.session import LaneKind
from retinue.domain.times import from_ms, to_ms
from retinue.store.core import tables as t
from retinue.store.core.row_visibility import (
    PerScope,
    VisibilityScope,
    is_address_or_below,
    principal_parameters,
    visibility_scope,
)
from retinue.store.core.transaction import Transaction
from retinue.store.envelopes import envelopes

DELETED_KIND = "deleted"  # stored in place of the kind if the schedule was deleted, but its file still exists
NEVER_AGAIN = "it will not occur again"
ONCE_IS_OVER = "it was to occur once, and its time has passed"
TOO_LATE = "its time had passed when the server processed it"

_s, _o = t.schedules, t.occurrences
_b = sa.bindparam
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Schedule).decode
_RAN_OUTCOMES = frozenset({Outcome.ANSWERED, Outcome.DELIVERED, Outcome.NOTED})

_is_waiting = _o.c.state == t.sql_literal("'waiting'")
_is_open = _o.c.state.in_(t.OPEN_OCCURRENCE_STATES)
_is_by_clock = _o.c.made_by == t.sql_literal("'clock'")

_insert = _s.insert()
_update = (
    _s.update()
    .where(_s.c.id == _b("the_id"))
    .values(
        name_folded=_b("new_folded"),
        owner=_b("new_owner"),
        recipient=_b("new_recipient"),
        body=_b("new_body"),
        zone=_b("new_zone"),
        updated_ms=_b("now"),
    )
)
_set_enabled = (
    _s.update().where(_s.c.id == _b("the_id")).values(enabled=_b("on"), because=_b("why"), updated_ms=_b("now"))
)
_set_zone = _s.update().where(_s.c.id == _b("the_id")).values(zone=_b("new_zone"), updated_ms=_b("now"))
_mark_filed = _s.update().where(_s.c.id == _b("the_id")).values(has_file=True)
_forget_files = _s.update().where(_s.c.has_file.is_(True)).values(has_file=False)
_set_heartbeat_text = (
    _s.update().where(_s.c.id == _b("the_id")).values(heartbeat_hash=_b("new_said"), heartbeat_ms=_b("now"))
)
_heartbeat_text = sa.select(_s.c.heartbeat_hash, _s.c.heartbeat_ms).where(_s.c.id == _b("id"))
_mark_deleted = _s.update().where(_s.c.id == _b("the_id")).values(kind=DELETED_KIND, name_folded=None, enabled=False)
_deleted = sa.select(_s).where(_s.c.kind == DELETED_KIND).order_by(_s.c.id).limit(_b("limit"))
_remove = _s.delete().where(_s.c.id == _b("the_id"))
_remove_occurrences = _o.delete().where(_o.c.schedule == _b("the_id"))
_is_not_deleted = _s.c.kind != DELETED_KIND
_by_id = sa.select(_s).where(_s.c.id == _b("id"), _is_not_deleted)
_by_name = sa.select(_s).where(_s.c.name_folded == _b("name_folded"))
_all = sa.select(_s).where(_s.c.id > _b("after"), _is_not_deleted).order_by(_s.c.id).limit(_b("limit"))
_with_other_zone = _all.where(_s.c.zone != _b("new_zone"))
_to_agent = (
    sa.select(_s)
    .where(_is_not_deleted, sa.or_(is_address_or_below("who", _s.c.recipient), _s.c.owner == _b("who")))
    .limit(_b("limit"))
)
_of_owner = sa.select(_s).where(_s.c.owner == _b("owner"), _is_not_deleted)
_count = sa.select(sa.func.count()).select_from(_s).where(_is_not_deleted)
_count_to = _count.where(_s.c.recipient == _b("recipient"), _s.c.kind == _b("kind"), _s.c.enabled == sa.true())
_count_of = _count.where(_s.c.owner == _b("owner"), _s.c.kind == _b("kind"))

_insert_occurrence = _o.insert()
_open_occurrence = sa.select(_o).where(_o.c.schedule == _b("schedule"), _is_open, _is_by_clock)
_running_occurrence = (
    sa.select(_o).where(_o.c.schedule == _b("schedule"), _o.c.state == t.sql_literal("'working'")).limit(1)
)
_waiting_envelopes = sa.select(_o.c.envelope).where(_o.c.schedule == _b("schedule"), _is_waiting)
_occurrence_by_envelope = sa.select(_o).where(_o.c.envelope == _b("envelope"), _is_open)
_due = (
    sa.select(_o)
    .where(_is_waiting, _o.c.clock_ms <= _b("now"))
    .order_by(_o.c.clock_ms, _o.c.schedule)
    .limit(_b("limit"))
)
_next_clock_ms = sa.select(sa.func.min(_o.c.clock_ms)).where(_is_waiting)
_is_occurrence = sa.and_(_o.c.schedule == _b("the_schedule"), _o.c.seq == _b("the_seq"))
_mark_gate_running = _o.update().where(_is_occurrence, _is_waiting).values(clock_ms=None)
_reset_gates = _o.update().where(_is_waiting, _o.c.clock_ms.is_(None)).values(clock_ms=_o.c.occurs_ms)
_mark_started = (
    _o.update().where(_is_occurrence, _is_waiting).values(state="working", clock_ms=None, started_ms=_b("now"))
)
_end = (
    _o.update()
    .where(_is_occurrence)
    .values(state=_b("new_state"), clock_ms=None, because=_b("why"), ended_ms=_b("now"))
)
_delete_occurrence = _o.delete().where(_is_occurrence)
_set_last_run = (
    _o.update().where(_o.c.schedule == _b("the_schedule"), _o.c.seq > _b("the_seq")).values(last_run_ms=_b("now"))
)
_trim_history = _o.delete().where(_o.c.schedule == _b("the_schedule"), _o.c.seq <= _b("last"), sa.not_(_is_open))
_history = (
    sa.select(_o)
    .where(
        _o.c.schedule == _b("schedule"),
        _o.c.occurs_ms <= _b("until"),
        sa.or_(_o.c.occurs_ms < _b("until"), _o.c.seq < _b("before")),
    )
    .order_by(_o.c.occurs_ms.desc(), _o.c.seq.desc())
    .limit(_b("limit"))
)


def _is_visible(scope: VisibilityScope) -> sa.ColumnElement[bool]:
    return (
        _is_not_deleted
        if scope is VisibilityScope.ALL
        else sa.and_(_is_not_deleted, is_address_or_below("me", _s.c.owner))
    )


_list = PerScope(
    lambda scope: (
        sa.select(_s)
        .where(
            _is_visible(scope),
            _s.c.created_ms <= _b("until"),
            sa.or_(_s.c.created_ms < _b("until"), _s.c.id < _b("before")),
        )
        .order_by(_s.c.created_ms.desc(), _s.c.id.desc())
        .limit(_b("limit"))
    )
)
_list_of_kind = PerScope(
    lambda scope: sa.select(_s).where(_is_visible(scope), _s.c.kind == _b("kind")).order_by(_s.c.id).limit(_b("limit"))
)
_upcoming = PerScope(
    lambda scope: (
        sa.select(_s, _o.c.occurs_ms)
        .join(_o, _o.c.schedule == _s.c.id)
        .where(_is_waiting, _is_by_clock, _o.c.occurs_ms < _b("until"), _is_visible(scope))
        .order_by(_o.c.occurs_ms, _s.c.id)
        .limit(_b("limit"))
    )
)
_by_prefix = PerScope(
    lambda scope: sa.select(_s).where(_s.c.id >= _b("low"), _s.c.id < _b("high"), _is_visible(scope)).limit(_b("limit"))
)
_last_ended = sa.select(_o).where(_o.c.schedule == _b("schedule"), sa.not_(_is_open)).order_by(_o.c.seq.desc()).limit(1)
_newest_occurrence = sa.select(_o).where(_o.c.schedule == _b("schedule")).order_by(_o.c.seq.desc()).limit(1)


class StoredSchedule(Struct, frozen=True):
    """A schedule as stored, without its occurrences. `because` is the reason why it is disabled."""

    schedule: Schedule
    enabled: bool
    because: str
    zone: str
    filed: bool  # whether it has a file; if that file is missing, a person has deleted the schedule
    created_ms: int
    updated_ms: int

    @property
    def id(self) -> ScheduleId:
        return self.schedule.id

    @property
    def zone_info(self) -> ZoneInfo:
        return ZoneInfo(self.zone)


def _schedule_from_row(row: sa.Row[Any]) -> StoredSchedule:
    return StoredSchedule(
        schedule=_decode(row.body),
        enabled=row.enabled,
        because=row.because,
        zone=row.zone,
        filed=row.has_file,
        created_ms=row.created_ms,
        updated_ms=row.updated_ms,
    )


def _occurrence_from_row(row: sa.Row[Any]) -> Occurrence:
    return Occurrence(
        schedule=ScheduleId(row.schedule),
        seq=row.seq,
        cause=OccurrenceCause(row.made_by),
        at=from_ms(row.occurs_ms),
        state=OccurrenceState(row.state),
        because=row.because,
        envelope=EnvelopeId(row.envelope) if row.envelope else None,
        until=from_ms(row.until_ms) if row.until_ms is not None else None,
        count=row.skipped_count,
        started_at=from_ms(row.started_ms) if row.started_ms is not None else None,
        ended_at=from_ms(row.ended_ms) if row.ended_ms is not None else None,
    )


# --- read ---


def get(conn: sa.Connection, id_: str) -> StoredSchedule | None:
    row = conn.execute(_by_id, {"id": id_}).one_or_none()
    return _schedule_from_row(row) if row else None


def get_by_name(conn: sa.Connection, name: str) -> StoredSchedule | None:
    row = conn.execute(_by_name, {"name_folded": name.casefold()}).one_or_none()
    return _schedule_from_row(row) if row else None


def list_by_prefix(
    conn: sa.Connection, digits: str, *, limit: int, seen_by: Principal = SERVER_PRINCIPAL
) -> list[StoredSchedule]:
    bounds = {"low": digits, "high": digits + "g", "limit": limit, **principal_parameters(seen_by)}
    return [_schedule_from_row(row) for row in conn.execute(_by_prefix[visibility_scope(seen_by)], bounds)]


def can_see(principal: Principal, schedule: Schedule) -> bool:
    """Whether a principal may see and change a schedule.

    The owner of the schedule may, and so may the owner of the instance.
    """
    mine = (principal.address.kind, principal.address.name)
    return principal.sees_everything or (schedule.owner.kind, schedule.owner.name) == mine


def list_schedules(
    conn: sa.Connection,
    *,
    limit: int,
    until_ms: int = 2**62,
    before: str = "",
    seen_by: Principal = SERVER_PRINCIPAL,
) -> list[StoredSchedule]:
    """List schedules, newest first.

    For the next page, pass the creation time of the last schedule as `until_ms`, and its id as
    `before`.
    """
    values = {"until": until_ms, "before": before, "limit": limit, **principal_parameters(seen_by)}
    return [_schedule_from_row(row) for row in conn.execute(_list[visibility_scope(seen_by)], values)]


def list_of_kind(
    conn: sa.Connection, kind: ScheduleKind, *, limit: int, seen_by: Principal = SERVER_PRINCIPAL
) -> list[StoredSchedule]:
    """List the schedules of one kind. Use this only for kinds with few schedules, because the list has no pages."""
    values = {"kind": kind.value, "limit": limit, **principal_parameters(seen_by)}
    return [_schedule_from_row(row) for row in conn.execute(_list_of_kind[visibility_scope(seen_by)], values)]


def list_upcoming(
    conn: sa.Connection, *, until_ms: int, limit: int, seen_by: Principal = SERVER_PRINCIPAL
) -> list[tuple[StoredSchedule, datetime]]:
    """List the schedules that will send an envelope before `until_ms`, with the time, soonest first."""
    values = {"until": until_ms, "limit": limit, **principal_parameters(seen_by)}
    return [
        (_schedule_from_row(row), from_ms(row.occurs_ms))
        for row in conn.execute(_upcoming[visibility_scope(seen_by)], values)
    ]


def list_all(conn: sa.Connection, *, after: str = "", limit: int) -> list[StoredSchedule]:
    """List all schedules, sorted by id, starting after the id `after`."""
    return [_schedule_from_row(row) for row in conn.execute(_all, {"after": after, "limit": limit})]


def list_of_agent(conn: sa.Connection, agent: str, *, limit: int) -> list[StoredSchedule]:
    """List the schedules that an agent owns, or that send envelopes to it."""
    who = f"agent:{agent}"
    values = {"who": who, "who_from": f"{who}/", "who_to": f"{who}0", "limit": limit}
    return [_schedule_from_row(row) for row in conn.execute(_to_agent, values)]


def count(conn: sa.Connection) -> int:
    return conn.execute(_count).scalar_one()


def count_enabled_to(conn: sa.Connection, recipient: Address, kind: ScheduleKind) -> int:
    """Count the enabled schedules of one kind that send to this recipient."""
    return conn.execute(_count_to, {"recipient": str(recipient), "kind": kind.value}).scalar_one()


def count_of_owner(conn: sa.Connection, owner: Address, kind: ScheduleKind) -> int:
    return conn.execute(_count_of, {"owner": str(owner), "kind": kind.value}).scalar_one()


def get_open_occurrence(conn: sa.Connection, id_: str) -> Occurrence | None:
    """Return the waiting or running occurrence that the scheduler created, or None.

    Occurrences that a person requested are not considered.
    """
    row = conn.execute(_open_occurrence, {"schedule": id_}).one_or_none()
    return _occurrence_from_row(row) if row else None


def get_running_occurrence(conn: sa.Connection, id_: str) -> Occurrence | None:
    """Return a running occurrence of a schedule, or None. The scheduler or a person may have created it."""
    row = conn.execute(_running_occurrence, {"schedule": id_}).first()
    return _occurrence_from_row(row) if row else None


def get_occurrence_of_envelope(conn: sa.Connection, envelope: str) -> Occurrence | None:
    """Return the open occurrence that sends this envelope, or None."""
    row = conn.execute(_occurrence_by_envelope, {"envelope": envelope}).one_or_none()
    return _occurrence_from_row(row) if row else None


def list_due_occurrences(conn: sa.Connection, now_ms: int, *, limit: int) -> list[Occurrence]:
    """List the waiting occurrences on which the scheduler must act now, earliest first."""
    return [_occurrence_from_row(row) for row in conn.execute(_due, {"now": now_ms, "limit": limit})]


def next_clock_ms(conn: sa.Connection) -> int | None:
    """Return the next time at which the scheduler must act on an occurrence, or None if none is waiting."""
    return conn.execute(_next_clock_ms).scalar()


def list_history(
    conn: sa.Connection, id_: str, *, limit: int, until_ms: int = 2**62, before: int = 2**62
) -> list[Occurrence]:
    """List the occurrences of a schedule, latest first.

    For the next page, pass the time of the last occurrence as `until_ms`, and its number as
    `before`.
    """
    values = {"schedule": id_, "until": until_ms, "before": before, "limit": limit}
    return [_occurrence_from_row(row) for row in conn.execute(_history, values)]


def get_status(conn: sa.Connection, stored: StoredSchedule) -> ScheduleStatus:
    waiting = get_open_occurrence(conn, stored.id)
    last = conn.execute(_last_ended, {"schedule": stored.id}).first()
    last_run_ms = _get_newest(conn, stored.id)[1]
    return ScheduleStatus(
        enabled=stored.enabled,
        because=stored.because,
        zone=stored.zone,
        occurrence_at=waiting.at if waiting else None,
        envelope=waiting.envelope if waiting else None,
        last_run_at=from_ms(last_run_ms) if last_run_ms is not None else None,
        last_state=OccurrenceState(last.state) if last else None,
        created_at=from_ms(stored.created_ms),
        updated_at=from_ms(stored.updated_ms),
    )


# --- change ---


def add(
    tx: Transaction, schedule: Schedule, *, zone: ZoneInfo, enabled: bool = True, because: str = ""
) -> StoredSchedule:
    """Insert a schedule, and create its first occurrence if it is enabled. `zone` is the owner's time zone."""
    tx.conn.execute(
        _insert,
        {
            "id": schedule.id,
            "name_folded": schedule.name.casefold() or None,
            "kind": schedule.kind.value,
            "owner": str(schedule.owner),
            "recipient": str(schedule.to),
            "body": _encode(schedule).decode(),
            "enabled": enabled,
            "because": because,
            "zone": schedule.zone or zone.key,
            "has_file": False,
            "created_ms": tx.at_ms,
            "updated_ms": tx.at_ms,
        },
    )
    kept = _reload(tx, schedule.id)
    emit_change(tx, kept, change="added")
    return create_next_occurrence(tx, kept) if enabled else kept


def change(
    tx: Transaction, stored: StoredSchedule, schedule: Schedule, *, zone: ZoneInfo, because: str
) -> StoredSchedule:
    """Change the definition of a schedule.

    The waiting occurrence is withdrawn, and a new one is created from the new definition.
    """
    withdraw_occurrence(tx, stored, because=because)
    tx.conn.execute(
        _update,
        {
            "the_id": stored.id,
            "new_folded": schedule.name.casefold() or None,
            "new_owner": str(schedule.owner),
            "new_recipient": str(schedule.to),
            "new_body": _encode(schedule).decode(),
            "new_zone": schedule.zone or zone.key,
            "now": tx.at_ms,
        },
    )
    changed = _reload(tx, stored.id)
    emit_change(tx, changed, change="changed")
    return create_next_occurrence(tx, changed) if changed.enabled else changed


def enable(tx: Transaction, stored: StoredSchedule) -> StoredSchedule:
    """Enable a schedule, and create its next occurrence.

    If the schedule was already enabled, its waiting occurrence is withdrawn first.
    """
    withdraw_occurrence(tx, stored, because="its schedule was enabled again")
    tx.conn.execute(_set_enabled, {"the_id": stored.id, "on": True, "why": "", "now": tx.at_ms})
    emit_change(tx, stored, change="enabled")
    return create_next_occurrence(tx, _reload(tx, stored.id))


def disable(tx: Transaction, stored: StoredSchedule, *, because: str) -> StoredSchedule:
    """Disable a schedule. Its waiting occurrence is withdrawn, but a running one continues."""
    withdraw_occurrence(tx, stored, because=f"its schedule was disabled: {because}")
    return mark_disabled(tx, stored.id, because=because)


def mark_disabled(tx: Transaction, id_: str, *, because: str) -> StoredSchedule:
    """Mark a schedule as disabled, so that no more occurrences are created.

    The caller must withdraw or end a waiting occurrence.
    """
    tx.conn.execute(_set_enabled, {"the_id": id_, "on": False, "why": because, "now": tx.at_ms})
    kept = _reload(tx, id_)
    emit_change(tx, kept, change="disabled", because=because)
    return kept


def give_up(tx: Transaction, occurrence: Occurrence, *, because: str) -> None:
    """Disable the schedule of this occurrence, because the recipient no longer exists.

    The occurrences that were missed after this one are stored as skipped. The caller ends this
    occurrence.
    """
    kept = _reload(tx, occurrence.schedule)
    _record_skipped(tx, kept, _recorded_until(kept, occurrence), from_ms(tx.at_ms), because=because)
    mark_disabled(tx, kept.id, because=because)


def delete(tx: Transaction, stored: StoredSchedule, *, because: str) -> None:
    """Delete a schedule and its history. A running occurrence continues.

    If the schedule has a file, its row is kept until the file is deleted too. Otherwise, the
    schedule would be restored from the file.
    """
    withdraw_occurrence(tx, stored, because=because)
    for (envelope,) in tx.conn.execute(_waiting_envelopes, {"schedule": stored.id}).all():
        _cancel_envelope(tx, envelope, because)  # of an occurrence that a person requested and whose gate has not run
    tx.conn.execute(_remove_occurrences, {"the_id": stored.id})
    tx.conn.execute(_mark_deleted if stored.filed else _remove, {"the_id": stored.id})
    emit_change(tx, stored, change="deleted", because=because)


def list_deleted(conn: sa.Connection, *, limit: int) -> list[StoredSchedule]:
    """List deleted schedules whose file may still exist."""
    return [_schedule_from_row(row) for row in conn.execute(_deleted, {"limit": limit})]


def get_heartbeat_text(conn: sa.Connection, id_: str) -> tuple[str, int] | None:
    """Return the hash of the text that a heartbeat last reported, and when it was reported, or None."""
    row = conn.execute(_heartbeat_text, {"id": id_}).one_or_none()
    return (row.heartbeat_hash, row.heartbeat_ms) if row is not None and row.heartbeat_hash is not None else None


def set_heartbeat_text(tx: Transaction, id_: str, text_hash: str) -> None:
    tx.conn.execute(_set_heartbeat_text, {"the_id": id_, "new_said": text_hash, "now": tx.at_ms})


def remove_row(tx: Transaction, id_: str) -> None:
    """Delete the row of a deleted schedule, after its file was deleted."""
    tx.conn.execute(_remove, {"the_id": id_})


def remove_agent(tx: Transaction, agent: str) -> None:
    """Delete the schedules that a removed agent owns, and disable those that send envelopes to it."""
    for kept in list_of_agent(tx.conn, agent, limit=SCHEDULES_MAX):
        if kept.schedule.owner == Address(AddressKind.AGENT, agent):
            delete(tx, kept, because=f"{agent} was deleted")
        elif kept.enabled:
            disable(tx, kept, because=f"{agent} was deleted")


def delete_of_owner(tx: Transaction, owner: Address, *, because: str) -> None:
    """Delete every schedule that this address owns."""
    for row in tx.conn.execute(_of_owner, {"owner": str(owner)}).all():
        delete(tx, _schedule_from_row(row), because=because)


def apply_owner_zone(tx: Transaction, zone: ZoneInfo, *, after: str = "", limit: int) -> str | None:
    """Set the owner's time zone in schedules that do not define a time zone. Reads up to `limit` schedules.

    Returns the last id that was read, to continue after it, or None if there are no more schedules.
    """
    rows = list(tx.conn.execute(_with_other_zone, {"new_zone": zone.key, "after": after, "limit": limit}))
    for kept in map(_schedule_from_row, rows):
        if kept.schedule.zone is not None:
            continue
        waiting = get_open_occurrence(tx.conn, kept.id)
        if waiting is not None and waiting.state is OccurrenceState.WAITING and to_ms(waiting.at) <= tx.at_ms:
            # The scheduler decides whether a due occurrence runs late. Occurrences missed after it are recorded
            # in the old zone.
            _record_skipped(tx, kept, _recorded_until(kept, waiting), from_ms(tx.at_ms), because=TOO_LATE)
        else:
            withdraw_occurrence(tx, kept, because=f"the owner's time zone is now {zone.key}")
        tx.conn.execute(_set_zone, {"the_id": kept.id, "new_zone": zone.key, "now": tx.at_ms})
        if kept.enabled:
            create_next_occurrence(tx, _reload(tx, kept.id))
    return rows[-1].id if len(rows) == limit else None


def mark_filed(tx: Transaction, id_: str) -> StoredSchedule:
    tx.conn.execute(_mark_filed, {"the_id": id_})
    return _reload(tx, id_)


def forget_files(tx: Transaction) -> None:
    """Mark all schedules as not yet written to a file."""
    tx.conn.execute(_forget_files)


def emit_change(tx: Transaction, stored: StoredSchedule, *, change: str, **body: Any) -> None:
    owner = stored.schedule.owner
    person = owner.name if owner.kind is AddressKind.PERSON else None
    if stored.schedule.kind is ScheduleKind.HEARTBEAT:
        agent = stored.schedule.to.name
        tx.emit(EventKind.HEARTBEAT_CHANGED, person=person, schedule=stored.id, agent=agent, change=change, **body)
        return
    tx.emit(
        EventKind.SCHEDULE_CHANGED, person=person, schedule=stored.id, name=stored.schedule.name, change=change, **body
    )


def _reload(tx: Transaction, id_: str) -> StoredSchedule:
    kept = get(tx.conn, id_)
    assert kept is not None  # written in this transaction
    return kept


# --- occurrences ---


def create_next_occurrence(tx: Transaction, stored: StoredSchedule, *, after: datetime | None = None) -> StoredSchedule:
    """Create the next occurrence of a schedule: strictly in the future, and later than `after`.

    If the schedule has no further occurrence, it is disabled, with the reason. If the schedule has
    an open occurrence, nothing is created, because the end of that occurrence creates the next one.
    """
    if get_open_occurrence(tx.conn, stored.id) is not None:
        return stored
    now = from_ms(tx.at_ms)
    at = next_occurrence(stored.schedule.when, max(now, after or now), stored.zone_info)
    if at is None:
        return mark_disabled(
            tx, stored.id, because=ONCE_IS_OVER if isinstance(stored.schedule.when, OnceTrigger) else NEVER_AGAIN
        )
    _create_occurrence(tx, stored, OccurrenceCause.CLOCK, at, clock_ms=to_ms(at))
    return _reload(tx, stored.id)


def create_manual_occurrence(
    tx: Transaction, stored: StoredSchedule, *, is_forced: bool, text: str | None = None
) -> Occurrence:
    """Create an occurrence that is due now, in addition to the one that the scheduler created.

    `text` replaces the text of the schedule. For a heartbeat, `text` contains the ids of the
    requested tasks, or is empty for all tasks.
    """
    by = OccurrenceCause.FORCE if is_forced else OccurrenceCause.MANUAL
    if stored.schedule.heartbeat is not None:
        text = text or ""
    occurrence = _create_occurrence(tx, stored, by, from_ms(tx.at_ms), clock_ms=tx.at_ms, text=text)
    emit_change(tx, stored, change=occurrence.state.value, slot=occurrence.at.isoformat())
    return occurrence


def get_requested_tasks(conn: sa.Connection, occurrence: Occurrence) -> tuple[str, ...]:
    """Return the ids of the heartbeat tasks that a person requested.

    Until the envelope of the occurrence is released, its text consists of these ids.
    """
    if occurrence.cause is OccurrenceCause.CLOCK or occurrence.envelope is None:
        return ()
    held = envelopes.get(conn, occurrence.envelope)
    return tuple(held.text.split()) if held is not None else ()


def record_manual_skip(tx: Transaction, stored: StoredSchedule, *, because: str) -> None:
    """Record that a person requested an immediate occurrence, but that it was skipped."""
    at = from_ms(tx.at_ms)
    _insert_next(
        tx,
        Occurrence(
            schedule=stored.id,
            cause=OccurrenceCause.MANUAL,
            at=at,
            state=OccurrenceState.SKIPPED,
            because=because,
            ended_at=at,
        ),
    )
    emit_change(tx, stored, change=OccurrenceState.SKIPPED.value, because=because, slot=at.isoformat())


def _create_occurrence(
    tx: Transaction,
    stored: StoredSchedule,
    by: OccurrenceCause,
    at: datetime,
    *,
    clock_ms: int,
    text: str | None = None,
) -> Occurrence:
    seq = tx.next_envelope_seq()
    schedule = stored.schedule
    source = f"schedule:{schedule.id}"
    key = at.astimezone(UTC).isoformat(timespec="milliseconds") if by is OccurrenceCause.CLOCK else f"by-hand/{seq}"
    if by is OccurrenceCause.CLOCK and envelopes.get_by_key(tx.conn, source, key) is not None:
        key = f"{key}/{seq}"  # withdrawn before its time, and created again
    draft = EnvelopeDraft(
        id=EnvelopeId(derive_id(schedule.id, f"slot/{seq}")),
        sender=Address(AddressKind.SCHEDULE, schedule.id),
        recipient=schedule.to,
        text=schedule.text if text is None else text,
        source=source,
        idempotency_key=key,
        kind=Mail.SYSTEM if schedule.place is ScheduleSession.MAIN else Mail.MESSAGE,
        context=_context(schedule),
        trust=schedule.trust,
        deliver_at=at,
    )
    envelopes.add(
        tx.conn,
        draft,
        seq=seq,
        at_ms=tx.at_ms,
        session=None,
        recipient=str(draft.recipient),
        held=True,
    )
    tx.emit(EventKind.ENVELOPE_ACCEPTED, envelope=draft.id)
    occurrence = Occurrence(schedule=schedule.id, cause=by, at=at, state=OccurrenceState.WAITING, envelope=draft.id)
    return _insert_next(tx, occurrence, clock_ms=clock_ms)


def _context(schedule: Schedule) -> EnvelopeContext:
    request = RunRequest(model=schedule.model, lane=LaneKind.SCHEDULE) if schedule.model else None
    if request is None and not schedule.deliver:
        return NO_CONTEXT
    return EnvelopeContext(answer_to=schedule.deliver, request=request)


def _get_newest(conn: sa.Connection, id_: str) -> tuple[int, int | None]:
    """Return the number of a schedule's newest occurrence, and when the schedule last ran."""
    row = conn.execute(_newest_occurrence, {"schedule": id_}).first()
    if row is None:
        return 0, None
    return row.seq, row.ended_ms if row.state == OccurrenceState.RAN else row.last_run_ms


def _insert_next(tx: Transaction, occurrence: Occurrence, *, clock_ms: int | None = None) -> Occurrence:
    """Insert an occurrence with the next number.

    The row of the schedule does not change, so commit listeners of the table `schedules` are not
    called.
    """
    newest, last_run_ms = _get_newest(tx.conn, occurrence.schedule)
    occurrence = msgspec.structs.replace(occurrence, seq=newest + 1)
    if occurrence.seq > OCCURRENCES_KEPT_MAX:
        tx.conn.execute(
            _trim_history, {"the_schedule": occurrence.schedule, "last": occurrence.seq - OCCURRENCES_KEPT_MAX}
        )
    tx.conn.execute(
        _insert_occurrence,
        {
            "schedule": occurrence.schedule,
            "seq": occurrence.seq,
            "last_run_ms": last_run_ms,
            "made_by": occurrence.cause.value,
            "occurs_ms": to_ms(occurrence.at),
            "clock_ms": clock_ms,
            "until_ms": to_ms(occurrence.until) if occurrence.until else None,
            "skipped_count": occurrence.count,
            "state": occurrence.state.value,
            "because": occurrence.because,
            "envelope": occurrence.envelope,
            "started_ms": to_ms(occurrence.started_at) if occurrence.started_at else None,
            "ended_ms": to_ms(occurrence.ended_at) if occurrence.ended_at else None,
        },
    )
    return occurrence


def mark_gate_running(tx: Transaction, occurrence: Occurrence) -> None:
    """Record that the gate of an occurrence has started: the command that decides whether the occurrence runs.

    The scheduler does not act on the occurrence until the gate has ended.
    """
    tx.conn.execute(_mark_gate_running, {"the_schedule": occurrence.schedule, "the_seq": occurrence.seq})


def reset_gates(conn: sa.Connection) -> None:
    """Make the scheduler rerun the gates that a stop of the server interrupted. Called when the server starts."""
    conn.execute(_reset_gates)


def mark_started(tx: Transaction, occurrence: Occurrence) -> None:
    """Record that an occurrence is running. In the same transaction, its envelope becomes available for a run."""
    tx.conn.execute(_mark_started, {"the_schedule": occurrence.schedule, "the_seq": occurrence.seq, "now": tx.at_ms})


def withdraw_occurrence(tx: Transaction, stored: StoredSchedule, *, because: str) -> None:
    """Withdraw the open occurrence of a schedule, before the schedule is changed.

    If the occurrence is in the future, it is deleted, and its envelope is cancelled. If it is due,
    it is stored as skipped, and so are the occurrences missed after it. If it is running, it
    continues, and the occurrences missed since it started are stored as skipped,
    according to the old definition.
    """
    occurrence = get_open_occurrence(tx.conn, stored.id)
    if occurrence is None:
        return
    if occurrence.state is OccurrenceState.WORKING:
        if stored.enabled:
            _record_missed_during(tx, stored, occurrence)
        return
    if to_ms(occurrence.at) > tx.at_ms:
        tx.conn.execute(_delete_occurrence, {"the_schedule": stored.id, "the_seq": occurrence.seq})
    else:
        _end_occurrence(tx, occurrence, OccurrenceState.SKIPPED, because)
        _record_skipped(tx, stored, _recorded_until(stored, occurrence), from_ms(tx.at_ms), because=because)
    if occurrence.envelope is not None:
        _cancel_envelope(tx, occurrence.envelope, because)


def _cancel_envelope(tx: Transaction, envelope: str, because: str) -> None:
    envelopes.settle(tx.conn, [envelope], Outcome.CANCELLED, because=because, at_ms=tx.at_ms)
    tx.emit(EventKind.ENVELOPE_SETTLED, envelope=envelope, outcome=Outcome.CANCELLED.value, because=because)


def record_outcomes(tx: Transaction, ids: Iterable[str], outcome: Outcome, *, because: str) -> None:
    """Store the results of the occurrences whose envelopes have ended, and create the next occurrences."""
    for id_ in ids:
        occurrence = get_occurrence_of_envelope(tx.conn, id_)
        if occurrence is not None:
            _record_outcome(tx, occurrence, outcome, because)


def _record_outcome(tx: Transaction, occurrence: Occurrence, outcome: Outcome, because: str) -> None:
    kept = _reload(tx, occurrence.schedule)
    worked = occurrence.state is OccurrenceState.WORKING
    state = (
        OccurrenceState.SKIPPED
        if not worked
        else OccurrenceState.RAN
        if outcome in _RAN_OUTCOMES
        else OccurrenceState.FAILED
    )
    # For a heartbeat, record the reason even if it ran: often, it is that nothing needed attention.
    why = because if state is not OccurrenceState.RAN or kept.schedule.heartbeat is not None else ""
    _end_occurrence(tx, occurrence, state, why)
    emit_change(tx, kept, change=state.value, because=why, slot=occurrence.at.isoformat())
    if state is OccurrenceState.RAN and kept.schedule.delete_after_run:
        delete(tx, kept, because="it was to be deleted after its run")
    elif occurrence.cause is OccurrenceCause.CLOCK:
        _continue_schedule(tx, kept, occurrence, has_run=worked, because=because)


def _end_occurrence(tx: Transaction, occurrence: Occurrence, state: OccurrenceState, because: str) -> None:
    which = {"the_schedule": occurrence.schedule, "the_seq": occurrence.seq, "now": tx.at_ms}
    tx.conn.execute(_end, {**which, "new_state": state.value, "why": because})
    if state is OccurrenceState.RAN:
        tx.conn.execute(_set_last_run, which)  # occurrences missed while it ran have higher numbers


def _continue_schedule(
    tx: Transaction, stored: StoredSchedule, occurrence: Occurrence, *, has_run: bool, because: str
) -> None:
    """Store the occurrences missed until now as skipped, with the reason, and create the next occurrence."""
    if not has_run:
        _record_skipped(tx, stored, _recorded_until(stored, occurrence), from_ms(tx.at_ms), because=because)
    elif stored.enabled:
        _record_missed_during(tx, stored, occurrence)
    if stored.enabled:
        create_next_occurrence(tx, stored, after=occurrence.at)


def _record_missed_during(tx: Transaction, stored: StoredSchedule, occurrence: Occurrence) -> None:
    """Store as skipped the occurrences that were missed before this one started, and while it was running."""
    known, begun, now = _recorded_until(stored, occurrence), occurrence.started_at or occurrence.at, from_ms(tx.at_ms)
    if known < begun:
        _record_skipped(tx, stored, known, begun, because=TOO_LATE)
    _record_skipped(tx, stored, max(known, begun), now, because="the previous occurrence was still running")


def _recorded_until(stored: StoredSchedule, occurrence: Occurrence) -> datetime:
    """Return the time up to which missed occurrences are already stored.

    This is the time of this occurrence or, if later, of the last change to the schedule.
    """
    return max(occurrence.at, from_ms(stored.updated_ms))


def _record_skipped(tx: Transaction, stored: StoredSchedule, since: datetime, until: datetime, *, because: str) -> None:
    """Store the occurrences after `since`, up to and including `until`, as skipped. All of them share one row."""
    when, zone = stored.schedule.when, stored.zone_info
    first = next_occurrence(when, since, zone)
    if first is None or first > until:
        return
    end = next_occurrence(when, until, zone) or until
    occurrence = Occurrence(
        schedule=stored.id,
        cause=OccurrenceCause.CLOCK,
        at=first,
        state=OccurrenceState.SKIPPED,
        because=because,
        until=end,
        count=count_occurrences(when, first, end, zone),
        ended_at=from_ms(tx.at_ms),
    )
    _insert_next(tx, occurrence)
