"""Schedules and their occurrences.

An occurrence is an envelope that waits: accepted, pending, and held until the scheduler releases
it. The commit that ends it, in any way, records how and creates the next one, strictly in the
future. So an enabled schedule has exactly one open occurrence after every commit, and no crash can
fall between two of them.
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
from retinue.domain.envelope import NO_CONTEXT, Context, Draft, Outcome
from retinue.domain.envelope import Kind as Mail
from retinue.domain.event import NewsKind
from retinue.domain.ids import EnvelopeId, ScheduleId, derived
from retinue.domain.principal import HOUSE, Principal
from retinue.domain.run import RunRequest
from retinue.domain.schedule import (
    HISTORY_MAX,
    SCHEDULES_MAX,
    By,
    Kind,
    Once,
    Place,
    Schedule,
    Slot,
    SlotState,
    Standing,
    count_between,
    next_after,
)
from retinue.domain.session import LaneKind
from retinue.domain.times import from_ms, to_ms
from retinue.store.core import tables as t
from retinue.store.core.row_visibility import PerScope, Scope, is_under, me, scope_of
from retinue.store.core.transaction import Page
from retinue.store.envelopes import envelopes

GONE = "gone"  # instead of a kind: it was deleted, but its file still exists
NEVER = "it will never come again"
IS_OVER = "it was to come once, and its time is over"
TOO_LATE = "its time was over when the house came to it"

_s, _o = t.schedules, t.schedule_slots
_b = sa.bindparam
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Schedule).decode
_RAN = frozenset({Outcome.ANSWERED, Outcome.DELIVERED, Outcome.NOTED})

_waiting = _o.c.state == t.word("'waiting'")
_is_open = _o.c.state.in_(t.OPEN_SLOT)
_by_clock = _o.c.made_by == t.word("'clock'")

_insert = _s.insert()
_update = (
    _s.update()
    .where(_s.c.id == _b("the_id"))
    .values(
        folded=_b("new_folded"),
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
_mark_filed = _s.update().where(_s.c.id == _b("the_id")).values(filed=True)
_set_said = _s.update().where(_s.c.id == _b("the_id")).values(said=_b("new_said"), said_ms=_b("now"))
_said = sa.select(_s.c.said, _s.c.said_ms).where(_s.c.id == _b("id"))
_set_gone = _s.update().where(_s.c.id == _b("the_id")).values(kind=GONE, folded=None, enabled=False)
_gone = sa.select(_s).where(_s.c.kind == GONE).order_by(_s.c.id).limit(_b("limit"))
_remove = _s.delete().where(_s.c.id == _b("the_id"))
_remove_slots = _o.delete().where(_o.c.schedule == _b("the_id"))
_is_here = _s.c.kind != GONE
_by_id = sa.select(_s).where(_s.c.id == _b("id"), _is_here)
_by_name = sa.select(_s).where(_s.c.folded == _b("folded"))
_everyone = sa.select(_s).where(_s.c.id > _b("after"), _is_here).order_by(_s.c.id).limit(_b("limit"))
_zoneless = _everyone.where(_s.c.zone != _b("new_zone"))
_to_agent = (
    sa.select(_s).where(_is_here, sa.or_(is_under("who", _s.c.recipient), _s.c.owner == _b("who"))).limit(_b("limit"))
)
_count = sa.select(sa.func.count()).select_from(_s).where(_is_here)
_count_to = _count.where(_s.c.recipient == _b("recipient"), _s.c.kind == _b("kind"), _s.c.enabled == sa.true())
_count_of = _count.where(_s.c.owner == _b("owner"), _s.c.kind == _b("kind"))

_insert_slot = _o.insert()
_open_slot = sa.select(_o).where(_o.c.schedule == _b("schedule"), _is_open, _by_clock)
_at_work = sa.select(_o).where(_o.c.schedule == _b("schedule"), _o.c.state == t.word("'working'")).limit(1)
_still_waiting = sa.select(_o.c.envelope).where(_o.c.schedule == _b("schedule"), _waiting)
_slot_of = sa.select(_o).where(_o.c.envelope == _b("envelope"), _is_open)
_due = (
    sa.select(_o).where(_waiting, _o.c.clock_ms <= _b("now")).order_by(_o.c.clock_ms, _o.c.schedule).limit(_b("limit"))
)
_next_clock = sa.select(sa.func.min(_o.c.clock_ms)).where(_waiting)
_one = sa.and_(_o.c.schedule == _b("the_schedule"), _o.c.seq == _b("the_seq"))
_take = _o.update().where(_one, _waiting).values(clock_ms=None)
_give_back = _o.update().where(_waiting, _o.c.clock_ms.is_(None)).values(clock_ms=_o.c.slot_ms)
_begin = _o.update().where(_one, _waiting).values(state="working", clock_ms=None, begun_ms=_b("now"))
_end = _o.update().where(_one).values(state=_b("new_state"), clock_ms=None, because=_b("why"), ended_ms=_b("now"))
_withdraw = _o.delete().where(_one)
_ran_meanwhile = (
    _o.update().where(_o.c.schedule == _b("the_schedule"), _o.c.seq > _b("the_seq")).values(last_run_ms=_b("now"))
)
_forget = _o.delete().where(_o.c.schedule == _b("the_schedule"), _o.c.seq <= _b("last"), sa.not_(_is_open))
_history = (
    sa.select(_o)
    .where(
        _o.c.schedule == _b("schedule"),
        _o.c.slot_ms <= _b("until"),
        sa.or_(_o.c.slot_ms < _b("until"), _o.c.seq < _b("before")),
    )
    .order_by(_o.c.slot_ms.desc(), _o.c.seq.desc())
    .limit(_b("limit"))
)


def _seen(scope: Scope) -> sa.ColumnElement[bool]:
    return _is_here if scope is Scope.ALL else sa.and_(_is_here, is_under("me", _s.c.owner))


_listed = PerScope(
    lambda scope: (
        sa.select(_s)
        .where(
            _seen(scope), _s.c.created_ms <= _b("until"), sa.or_(_s.c.created_ms < _b("until"), _s.c.id < _b("before"))
        )
        .order_by(_s.c.created_ms.desc(), _s.c.id.desc())
        .limit(_b("limit"))
    )
)
_listed_of = PerScope(
    lambda scope: sa.select(_s).where(_seen(scope), _s.c.kind == _b("kind")).order_by(_s.c.id).limit(_b("limit"))
)
_coming = PerScope(
    lambda scope: (
        sa.select(_s, _o.c.slot_ms)
        .join(_o, _o.c.schedule == _s.c.id)
        .where(_waiting, _by_clock, _o.c.slot_ms < _b("until"), _seen(scope))
        .order_by(_o.c.slot_ms, _s.c.id)
        .limit(_b("limit"))
    )
)
_found = PerScope(
    lambda scope: sa.select(_s).where(_s.c.id >= _b("low"), _s.c.id < _b("high"), _seen(scope)).limit(_b("limit"))
)
_last_of = sa.select(_o).where(_o.c.schedule == _b("schedule"), sa.not_(_is_open)).order_by(_o.c.seq.desc()).limit(1)
_newest = sa.select(_o).where(_o.c.schedule == _b("schedule")).order_by(_o.c.seq.desc()).limit(1)


class Kept(Struct, frozen=True):
    """A stored schedule, without the state of its occurrences."""

    schedule: Schedule
    enabled: bool
    because: str
    zone: str
    filed: bool  # whether it has a file: if that is missing, it was deleted
    created_ms: int
    updated_ms: int

    @property
    def id(self) -> ScheduleId:
        return self.schedule.id

    @property
    def place(self) -> ZoneInfo:
        return ZoneInfo(self.zone)


def _kept(row: sa.Row[Any]) -> Kept:
    return Kept(
        schedule=_decode(row.body),
        enabled=row.enabled,
        because=row.because,
        zone=row.zone,
        filed=row.filed,
        created_ms=row.created_ms,
        updated_ms=row.updated_ms,
    )


def _slot(row: sa.Row[Any]) -> Slot:
    return Slot(
        schedule=ScheduleId(row.schedule),
        seq=row.seq,
        by=By(row.made_by),
        at=from_ms(row.slot_ms),
        state=SlotState(row.state),
        because=row.because,
        envelope=EnvelopeId(row.envelope) if row.envelope else None,
        until=from_ms(row.until_ms) if row.until_ms is not None else None,
        count=row.number,
        begun_at=from_ms(row.begun_ms) if row.begun_ms is not None else None,
        ended_at=from_ms(row.ended_ms) if row.ended_ms is not None else None,
    )


# --- read ---


def get(conn: sa.Connection, id_: str) -> Kept | None:
    row = conn.execute(_by_id, {"id": id_}).one_or_none()
    return _kept(row) if row else None


def by_name(conn: sa.Connection, name: str) -> Kept | None:
    row = conn.execute(_by_name, {"folded": name.casefold()}).one_or_none()
    return _kept(row) if row else None


def by_prefix(conn: sa.Connection, digits: str, *, limit: int, seen_by: Principal = HOUSE) -> list[Kept]:
    bounds = {"low": digits, "high": digits + "g", "limit": limit, **me(seen_by)}
    return [_kept(row) for row in conn.execute(_found[scope_of(seen_by)], bounds)]


def sees(principal: Principal, schedule: Schedule) -> bool:
    """Whether a principal may see and change a schedule: its owner and the owner of the instance may."""
    mine = (principal.address.kind, principal.address.name)
    return principal.sees_all or (schedule.owner.kind, schedule.owner.name) == mine


def listed(
    conn: sa.Connection,
    *,
    limit: int,
    until_ms: int = 2**62,
    before: str = "",
    seen_by: Principal = HOUSE,
) -> list[Kept]:
    """List schedules, newest first. To continue, pass the creation time and id of the last one."""
    values = {"until": until_ms, "before": before, "limit": limit, **me(seen_by)}
    return [_kept(row) for row in conn.execute(_listed[scope_of(seen_by)], values)]


def listed_of(conn: sa.Connection, kind: Kind, *, limit: int, seen_by: Principal = HOUSE) -> list[Kept]:
    """List the schedules of one kind, of which there are few."""
    values = {"kind": kind.value, "limit": limit, **me(seen_by)}
    return [_kept(row) for row in conn.execute(_listed_of[scope_of(seen_by)], values)]


def coming(
    conn: sa.Connection, *, until_ms: int, limit: int, seen_by: Principal = HOUSE
) -> list[tuple[Kept, datetime]]:
    """List schedules whose occurrence waits for a time before `until_ms`, with that time, soonest first."""
    values = {"until": until_ms, "limit": limit, **me(seen_by)}
    return [(_kept(row), from_ms(row.slot_ms)) for row in conn.execute(_coming[scope_of(seen_by)], values)]


def everyone(conn: sa.Connection, *, after: str = "", limit: int) -> list[Kept]:
    """List all schedules by id."""
    return [_kept(row) for row in conn.execute(_everyone, {"after": after, "limit": limit})]


def of_agent(conn: sa.Connection, agent: str, *, limit: int) -> list[Kept]:
    """List the schedules that an agent owns, or that write to it."""
    who = f"agent:{agent}"
    values = {"who": who, "who_from": f"{who}/", "who_to": f"{who}0", "limit": limit}
    return [_kept(row) for row in conn.execute(_to_agent, values)]


def count(conn: sa.Connection) -> int:
    return conn.execute(_count).scalar_one()


def count_to(conn: sa.Connection, recipient: Address, kind: Kind) -> int:
    """Count the enabled schedules of a kind for one recipient."""
    return conn.execute(_count_to, {"recipient": str(recipient), "kind": kind.value}).scalar_one()


def count_of(conn: sa.Connection, owner: Address, kind: Kind) -> int:
    return conn.execute(_count_of, {"owner": str(owner), "kind": kind.value}).scalar_one()


def open_slot(conn: sa.Connection, id_: str) -> Slot | None:
    """Return the open occurrence that the scheduler created."""
    row = conn.execute(_open_slot, {"schedule": id_}).one_or_none()
    return _slot(row) if row else None


def at_work(conn: sa.Connection, id_: str) -> Slot | None:
    """Return an occurrence that is running, whether the scheduler or a person created it."""
    row = conn.execute(_at_work, {"schedule": id_}).first()
    return _slot(row) if row else None


def slot_of(conn: sa.Connection, envelope: str) -> Slot | None:
    """Return the open occurrence of an envelope."""
    row = conn.execute(_slot_of, {"envelope": envelope}).one_or_none()
    return _slot(row) if row else None


def due(conn: sa.Connection, now_ms: int, *, limit: int) -> list[Slot]:
    """List the due occurrences, earliest first."""
    return [_slot(row) for row in conn.execute(_due, {"now": now_ms, "limit": limit})]


def next_clock_ms(conn: sa.Connection) -> int | None:
    """Return when the scheduler must act next."""
    return conn.execute(_next_clock).scalar()


def history(conn: sa.Connection, id_: str, *, limit: int, until_ms: int = 2**62, before: int = 2**62) -> list[Slot]:
    """List the occurrences, latest first. To continue, pass the time and number of the last one."""
    values = {"schedule": id_, "until": until_ms, "before": before, "limit": limit}
    return [_slot(row) for row in conn.execute(_history, values)]


def standing(conn: sa.Connection, kept: Kept) -> Standing:
    waiting = open_slot(conn, kept.id)
    last = conn.execute(_last_of, {"schedule": kept.id}).first()
    last_run_ms = _newest_of(conn, kept.id)[1]
    return Standing(
        enabled=kept.enabled,
        because=kept.because,
        zone=kept.zone,
        slot_at=waiting.at if waiting else None,
        envelope=waiting.envelope if waiting else None,
        last_run_at=from_ms(last_run_ms) if last_run_ms is not None else None,
        last=SlotState(last.state) if last else None,
        created_at=from_ms(kept.created_ms),
        updated_at=from_ms(kept.updated_ms),
    )


# --- change ---


def add(page: Page, schedule: Schedule, *, zone: ZoneInfo, enabled: bool = True, because: str = "") -> Kept:
    """Insert a schedule with its first occurrence. `zone` is the owner's time zone."""
    page.conn.execute(
        _insert,
        {
            "id": schedule.id,
            "folded": schedule.name.casefold() or None,
            "kind": schedule.kind.value,
            "owner": str(schedule.owner),
            "recipient": str(schedule.to),
            "body": _encode(schedule).decode(),
            "enabled": enabled,
            "because": because,
            "zone": schedule.zone or zone.key,
            "filed": False,
            "created_ms": page.at_ms,
            "updated_ms": page.at_ms,
        },
    )
    kept = _again(page, schedule.id)
    tell(page, kept, change="added")
    return arm(page, kept) if enabled else kept


def change(page: Page, kept: Kept, schedule: Schedule, *, zone: ZoneInfo, because: str) -> Kept:
    """Change the definition. The waiting occurrence is withdrawn, and one by the new rule is created."""
    withdraw(page, kept, because=because)
    page.conn.execute(
        _update,
        {
            "the_id": kept.id,
            "new_folded": schedule.name.casefold() or None,
            "new_owner": str(schedule.owner),
            "new_recipient": str(schedule.to),
            "new_body": _encode(schedule).decode(),
            "new_zone": schedule.zone or zone.key,
            "now": page.at_ms,
        },
    )
    changed = _again(page, kept.id)
    tell(page, changed, change="changed")
    return arm(page, changed) if changed.enabled else changed


def enable(page: Page, kept: Kept) -> Kept:
    """Enable a schedule and create its next occurrence again, even if it was enabled."""
    withdraw(page, kept, because="its schedule was enabled anew")
    page.conn.execute(_set_enabled, {"the_id": kept.id, "on": True, "why": "", "now": page.at_ms})
    tell(page, kept, change="enabled")
    return arm(page, _again(page, kept.id))


def disable(page: Page, kept: Kept, *, because: str) -> Kept:
    """Disable a schedule. A waiting occurrence is withdrawn; a running one continues."""
    withdraw(page, kept, because=f"its schedule was disabled: {because}")
    return stand_down(page, kept.id, because=because)


def stand_down(page: Page, id_: str, *, because: str) -> Kept:
    """Create no further occurrences. The caller handles a waiting one."""
    page.conn.execute(_set_enabled, {"the_id": id_, "on": False, "why": because, "now": page.at_ms})
    kept = _again(page, id_)
    tell(page, kept, change="disabled", because=because)
    return kept


def give_up(page: Page, slot: Slot, *, because: str) -> None:
    """Skip this occurrence and all missed after it, and disable the schedule: its recipient is gone for good."""
    kept = _again(page, slot.schedule)
    _pass_by(page, kept, _known(kept, slot), from_ms(page.at_ms), because=because)
    stand_down(page, kept.id, because=because)


def delete(page: Page, kept: Kept, *, because: str) -> None:
    """Delete a schedule with its history. A running occurrence continues.

    If it has a file, its row stays until the file is deleted too: otherwise the file would restore
    it.
    """
    withdraw(page, kept, because=because)
    for (envelope,) in page.conn.execute(_still_waiting, {"schedule": kept.id}).all():
        _take_back(page, envelope, because)  # created by a person, and before its gate
    page.conn.execute(_remove_slots, {"the_id": kept.id})
    page.conn.execute(_set_gone if kept.filed else _remove, {"the_id": kept.id})
    tell(page, kept, change="deleted", because=because)


def gone(conn: sa.Connection, *, limit: int) -> list[Kept]:
    """List deleted schedules that may still have a file."""
    return [_kept(row) for row in conn.execute(_gone, {"limit": limit})]


def said_before(conn: sa.Connection, id_: str) -> tuple[str, int] | None:
    """Return the hash of what a heartbeat last reported, and when that was delivered."""
    row = conn.execute(_said, {"id": id_}).one_or_none()
    return (row.said, row.said_ms) if row is not None and row.said is not None else None


def note_said(page: Page, id_: str, said: str) -> None:
    page.conn.execute(_set_said, {"the_id": id_, "new_said": said, "now": page.at_ms})


def forget(page: Page, id_: str) -> None:
    """Delete the row of a schedule whose file is gone."""
    page.conn.execute(_remove, {"the_id": id_})


def agent_gone(page: Page, agent: str) -> None:
    """Delete the schedules that a removed agent owns, and disable those that write to it."""
    for kept in of_agent(page.conn, agent, limit=SCHEDULES_MAX):
        if kept.schedule.owner == Address(AddressKind.AGENT, agent):
            delete(page, kept, because=f"{agent} was let go")
        elif kept.enabled:
            disable(page, kept, because=f"{agent} was let go")


def follow_zone(page: Page, zone: ZoneInfo, *, after: str = "", limit: int) -> str | None:
    """Apply the owner's time zone to schedules without their own. Returns the last id read if there may be more."""
    rows = list(page.conn.execute(_zoneless, {"new_zone": zone.key, "after": after, "limit": limit}))
    for kept in map(_kept, rows):
        if kept.schedule.zone is not None:
            continue
        waiting = open_slot(page.conn, kept.id)
        if waiting is not None and waiting.state is SlotState.WAITING and to_ms(waiting.at) <= page.at_ms:
            # Leave it to the scheduler, which knows whether to run it late. The ones missed after it follow the old
            # zone.
            _pass_by(page, kept, _known(kept, waiting), from_ms(page.at_ms), because=TOO_LATE)
        else:
            withdraw(page, kept, because=f"the owner's zone is {zone.key} now")
        page.conn.execute(_set_zone, {"the_id": kept.id, "new_zone": zone.key, "now": page.at_ms})
        if kept.enabled:
            arm(page, _again(page, kept.id))
    return rows[-1].id if len(rows) == limit else None


def mark_filed(page: Page, id_: str) -> Kept:
    page.conn.execute(_mark_filed, {"the_id": id_})
    return _again(page, id_)


def tell(page: Page, kept: Kept, *, change: str, **body: Any) -> None:
    owner = kept.schedule.owner
    person = owner.name if owner.kind is AddressKind.PERSON else None
    if kept.schedule.kind is Kind.HEARTBEAT:
        agent = kept.schedule.to.name
        page.tell(NewsKind.HEARTBEAT_CHANGED, person=person, schedule=kept.id, agent=agent, change=change, **body)
        return
    page.tell(
        NewsKind.SCHEDULE_CHANGED, person=person, schedule=kept.id, name=kept.schedule.name, change=change, **body
    )


def _again(page: Page, id_: str) -> Kept:
    kept = get(page.conn, id_)
    assert kept is not None  # written in this transaction
    return kept


# --- occurrences ---


def arm(page: Page, kept: Kept, *, after: datetime | None = None) -> Kept:
    """Create the next occurrence, strictly in the future and after the last one.

    A schedule without further occurrences is disabled, with the reason. If one is open, its end
    creates the next.
    """
    if open_slot(page.conn, kept.id) is not None:
        return kept
    now = from_ms(page.at_ms)
    at = next_after(kept.schedule.when, max(now, after or now), kept.place)
    if at is None:
        return stand_down(page, kept.id, because=IS_OVER if isinstance(kept.schedule.when, Once) else NEVER)
    _occur(page, kept, By.CLOCK, at, clock_ms=to_ms(at))
    return _again(page, kept.id)


def by_hand(page: Page, kept: Kept, *, forced: bool, text: str | None = None) -> Slot:
    """Create an occurrence for now, besides those of the scheduler. `text` replaces the schedule's own text.

    For a heartbeat, `text` is the ids of the requested tasks, or empty for all.
    """
    by = By.FORCE if forced else By.HAND
    if kept.schedule.heartbeat is not None:
        text = text or ""
    slot = _occur(page, kept, by, from_ms(page.at_ms), clock_ms=page.at_ms, text=text)
    tell(page, kept, change=slot.state.value, slot=slot.at.isoformat())
    return slot


def wanted_by_hand(conn: sa.Connection, slot: Slot) -> tuple[str, ...]:
    """Return the heartbeat tasks that a person requested: the text of the envelope until it is released."""
    if slot.by is By.CLOCK or slot.envelope is None:
        return ()
    held = envelopes.get(conn, slot.envelope)
    return tuple(held.text.split()) if held is not None else ()


def skipped_by_hand(page: Page, kept: Kept, *, because: str) -> None:
    """Record that a person requested an occurrence for now and none ran."""
    at = from_ms(page.at_ms)
    _write(page, Slot(schedule=kept.id, by=By.HAND, at=at, state=SlotState.SKIPPED, because=because, ended_at=at))
    tell(page, kept, change=SlotState.SKIPPED.value, because=because, slot=at.isoformat())


def _occur(page: Page, kept: Kept, by: By, at: datetime, *, clock_ms: int, text: str | None = None) -> Slot:
    seq = page.next_envelope_seq()
    schedule = kept.schedule
    source = f"schedule:{schedule.id}"
    key = at.astimezone(UTC).isoformat(timespec="milliseconds") if by is By.CLOCK else f"by-hand/{seq}"
    if by is By.CLOCK and envelopes.by_key(page.conn, source, key) is not None:
        key = f"{key}/{seq}"  # withdrawn before its time, and created again
    draft = Draft(
        id=EnvelopeId(derived(schedule.id, f"slot/{seq}")),
        sender=Address(AddressKind.SCHEDULE, schedule.id),
        recipient=schedule.to,
        text=schedule.text if text is None else text,
        source=source,
        key=key,
        kind=Mail.SYSTEM if schedule.place is Place.MAIN else Mail.MESSAGE,
        context=_context(schedule),
        trust=schedule.trust,
        deliver_at=at,
    )
    envelopes.add(
        page.conn,
        draft,
        seq=seq,
        at_ms=page.at_ms,
        session=None,
        recipient=str(draft.recipient),
        held=True,
    )
    page.tell(NewsKind.ENVELOPE_ACCEPTED, envelope=draft.id)
    slot = Slot(schedule=schedule.id, by=by, at=at, state=SlotState.WAITING, envelope=draft.id)
    return _write(page, slot, clock_ms=clock_ms)


def _context(schedule: Schedule) -> Context:
    request = RunRequest(model=schedule.model, lane=LaneKind.SCHEDULE) if schedule.model else None
    if request is None and not schedule.deliver:
        return NO_CONTEXT
    return Context(answer_to=schedule.deliver, request=request)


def _newest_of(conn: sa.Connection, id_: str) -> tuple[int, int | None]:
    """Return the number of the newest occurrence, and when the schedule last ran."""
    row = conn.execute(_newest, {"schedule": id_}).first()
    if row is None:
        return 0, None
    return row.seq, row.ended_ms if row.state == SlotState.RAN else row.last_run_ms


def _write(page: Page, slot: Slot, *, clock_ms: int | None = None) -> Slot:
    """Insert an occurrence with the next number.

    The schedule's own row is not changed, to avoid needless change events.
    """
    newest, last_run_ms = _newest_of(page.conn, slot.schedule)
    slot = msgspec.structs.replace(slot, seq=newest + 1)
    if slot.seq > HISTORY_MAX:
        page.conn.execute(_forget, {"the_schedule": slot.schedule, "last": slot.seq - HISTORY_MAX})
    page.conn.execute(
        _insert_slot,
        {
            "schedule": slot.schedule,
            "seq": slot.seq,
            "last_run_ms": last_run_ms,
            "made_by": slot.by.value,
            "slot_ms": to_ms(slot.at),
            "clock_ms": clock_ms,
            "until_ms": to_ms(slot.until) if slot.until else None,
            "number": slot.count,
            "state": slot.state.value,
            "because": slot.because,
            "envelope": slot.envelope,
            "begun_ms": to_ms(slot.begun_at) if slot.begun_at else None,
            "ended_ms": to_ms(slot.ended_at) if slot.ended_at else None,
        },
    )
    return slot


def take(page: Page, slot: Slot) -> None:
    """Record that its gate is running: until then the scheduler has nothing to do."""
    page.conn.execute(_take, {"the_schedule": slot.schedule, "the_seq": slot.seq})


def give_back(conn: sa.Connection) -> None:
    """After a start, make the scheduler run interrupted gates again."""
    conn.execute(_give_back)


def begin(page: Page, slot: Slot) -> None:
    """Record that its envelope is sent."""
    page.conn.execute(_begin, {"the_schedule": slot.schedule, "the_seq": slot.seq, "now": page.at_ms})


def withdraw(page: Page, kept: Kept, *, because: str) -> None:
    """Withdraw the waiting occurrence, before a schedule is changed.

    A future occurrence is deleted; only its cancelled envelope remains. A due one is skipped, as
    are those missed after it. If one is running, the ones missed in between are recorded by the old
    rule.
    """
    slot = open_slot(page.conn, kept.id)
    if slot is None:
        return
    if slot.state is SlotState.WORKING:
        if kept.enabled:
            _pass_meanwhile(page, kept, slot)
        return
    if to_ms(slot.at) > page.at_ms:
        page.conn.execute(_withdraw, {"the_schedule": kept.id, "the_seq": slot.seq})
    else:
        _end_slot(page, slot, SlotState.SKIPPED, because)
        _pass_by(page, kept, _known(kept, slot), from_ms(page.at_ms), because=because)
    if slot.envelope is not None:
        _take_back(page, slot.envelope, because)


def _take_back(page: Page, envelope: str, because: str) -> None:
    envelopes.settle(page.conn, [envelope], Outcome.CANCELLED, because=because, at_ms=page.at_ms)
    page.tell(NewsKind.ENVELOPE_SETTLED, envelope=envelope, outcome=Outcome.CANCELLED.value, because=because)


def settled(page: Page, ids: Iterable[str], outcome: Outcome, *, because: str) -> None:
    """Record the result of envelopes that were occurrences, and create the next ones."""
    for id_ in ids:
        slot = slot_of(page.conn, id_)
        if slot is not None:
            _ended(page, slot, outcome, because)


def _ended(page: Page, slot: Slot, outcome: Outcome, because: str) -> None:
    kept = _again(page, slot.schedule)
    worked = slot.state is SlotState.WORKING
    state = SlotState.SKIPPED if not worked else SlotState.RAN if outcome in _RAN else SlotState.FAILED
    # For a heartbeat, record the reason even if it ran: often that nothing needed attention.
    why = because if state is not SlotState.RAN or kept.schedule.heartbeat is not None else ""
    _end_slot(page, slot, state, why)
    tell(page, kept, change=state.value, because=why, slot=slot.at.isoformat())
    if state is SlotState.RAN and kept.schedule.delete_after_run:
        delete(page, kept, because="it has run, and was to be deleted then")
    elif slot.by is By.CLOCK:
        _go_on(page, kept, slot, worked=worked, because=because)


def _end_slot(page: Page, slot: Slot, state: SlotState, because: str) -> None:
    which = {"the_schedule": slot.schedule, "the_seq": slot.seq, "now": page.at_ms}
    page.conn.execute(_end, {**which, "new_state": state.value, "why": because})
    if state is SlotState.RAN:
        page.conn.execute(_ran_meanwhile, which)  # occurrences missed while it ran have higher numbers


def _go_on(page: Page, kept: Kept, slot: Slot, *, worked: bool, because: str) -> None:
    """Record missed occurrences as skipped, with the reason, and create the next one."""
    if not worked:
        _pass_by(page, kept, _known(kept, slot), from_ms(page.at_ms), because=because)
    elif kept.enabled:
        _pass_meanwhile(page, kept, slot)
    if kept.enabled:
        arm(page, kept, after=slot.at)


def _pass_meanwhile(page: Page, kept: Kept, slot: Slot) -> None:
    """Record the occurrences missed while one waited for the server, and while it ran."""
    known, begun, now = _known(kept, slot), slot.begun_at or slot.at, from_ms(page.at_ms)
    if known < begun:
        _pass_by(page, kept, known, begun, because=TOO_LATE)
    _pass_by(page, kept, max(known, begun), now, because="the one before it was still being worked on")


def _known(kept: Kept, slot: Slot) -> datetime:
    """Return the time up to which everything is recorded: a change of the schedule records what was missed before."""
    return max(slot.at, from_ms(kept.updated_ms))


def _pass_by(page: Page, kept: Kept, since: datetime, until: datetime, *, because: str) -> None:
    """Record the occurrences in (since, until] as skipped, in one row for all of them."""
    when, zone = kept.schedule.when, kept.place
    first = next_after(when, since, zone)
    if first is None or first > until:
        return
    end = next_after(when, until, zone) or until
    slot = Slot(
        schedule=kept.id,
        by=By.CLOCK,
        at=first,
        state=SlotState.SKIPPED,
        because=because,
        until=end,
        count=count_between(when, first, end, zone),
        ended_at=from_ms(page.at_ms),
    )
    _write(page, slot)
