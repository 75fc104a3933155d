"""Operation that shows the lanes: active runs, waiting envelopes and the reason why each waits."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from enum import StrEnum

import msgspec
import sqlalchemy as sa

from retinue.domain.agent import PermissionLevel
from retinue.domain.approval import ApprovalState
from retinue.domain.envelope import Envelope, Kind
from retinue.domain.principal import Principal
from retinue.domain.run import Run, RunStatus, StepKind
from retinue.domain.session import LaneKind, OriginKind, lane_kind
from retinue.domain.times import from_ms, show
from retinue.engine.lanes import Standing
from retinue.operations.base import Desk, Operation
from retinue.operations.pagination import check_limit
from retinue.store.runs import approvals
from retinue.store.runs import lanes as store_lanes
from retinue.store.runs.lanes import Lane, Room
from retinue.store.runs.timeline import quoted

LANES_MIN, LANES_MAX = 1, 100
MAIL_SHOWN_MAX = 10  # per lane
ROOMS_SHOWN_MAX = 50


class Waits(StrEnum):
    """Why an envelope is not being processed yet."""

    NEXT = "next"  # it is claimed next
    NOT_DUE = "not-due"
    BUSY = "busy"  # a run is active in its lane
    JOINED = "joined"  # the run was steered with it, and it gets its own run later
    SLOTS = "slots"  # all slots of its lane kind are in use
    AGENT = "agent"  # its agent has reached its concurrency limit


class Lanes(msgspec.Struct, forbid_unknown_fields=True):
    limit: int = 50


class EnvelopeWaiting(msgspec.Struct, frozen=True, rename="kebab"):
    """`position` counts due envelopes only: 1 is next."""

    id: str
    sender: str = msgspec.field(name="from")
    kind: Kind
    words: str
    position: int | None
    due_at: str
    waits: Waits


class RunNow(msgspec.Struct, frozen=True, rename="kebab"):
    """The lane's open run. `doing` is its current step: a model call or a call of `tool`.

    A suspended run has the reason in `because`, its `approval`, and the end of its wait in `until`.
    """

    id: str
    status: RunStatus
    sender: str
    since: str
    attempt: int
    turn: int | None
    doing: StepKind | None
    tool: str
    doing_since: str | None
    because: str
    approval: str | None
    until: str | None


class LaneShown(msgspec.Struct, frozen=True, rename="kebab"):
    session: str
    session_name: str | None
    agent: str
    kind: OriginKind
    lane: LaneKind
    run: RunNow | None
    waiting: list[EnvelopeWaiting]
    waiting_count: int


class SlotsShown(msgspec.Struct, frozen=True, rename="kebab"):
    lane: LaneKind
    used: int
    total: int
    in_line: int


class RoomShown(msgspec.Struct, frozen=True, rename="kebab"):
    """A channel with envelopes in the outbox. `attempts` counts deliveries tried for the next one."""

    channel: str
    waiting_count: int
    next_at: str
    attempts: int
    error: str | None


class LanesShown(msgspec.Struct, frozen=True, rename="kebab"):
    """Envelope and dead letter counts stop at `counted-max`. Only the owner sees `rooms`, the channels."""

    now: str
    lanes: list[LaneShown]
    left_out: int
    slots: list[SlotsShown]
    rooms: list[RoomShown]
    rooms_left_out: int
    dead_count: int
    counted_max: int


async def show_lanes(desk: Desk, caller: Principal, asked: Lanes) -> LanesShown:
    check_limit(asked.limit, least=LANES_MIN, most=LANES_MAX, try_this="ask for fewer")
    now = desk.clock.now()
    standing = desk.engine.standing()

    def body(conn: sa.Connection) -> LanesShown:
        found, left_out = store_lanes.lanes(conn, limit=asked.limit, mail_limit=MAIL_SHOWN_MAX, seen_by=caller)
        rooms, rooms_left_out = store_lanes.rooms(conn, limit=ROOMS_SHOWN_MAX) if caller.sees_all else ([], 0)
        in_line = list(standing.in_line.values())
        return LanesShown(
            now=show(now, desk.zone),
            lanes=[_lane(desk, conn, lane, standing, now) for lane in found],
            left_out=left_out,
            slots=[
                SlotsShown(lane=kind, used=used, total=total, in_line=in_line.count(kind))
                for kind, (used, total) in standing.slots.items()
            ],
            rooms=[_room(desk, room) for room in rooms],
            rooms_left_out=rooms_left_out,
            dead_count=store_lanes.count_dead(conn, seen_by=caller),
            counted_max=store_lanes.COUNTED_MAX,
        )

    return await desk.store.scan(body)


def _lane(desk: Desk, conn: sa.Connection, lane: Lane, standing: Standing, now: datetime) -> LaneShown:
    session = lane.session
    return LaneShown(
        session=session.id,
        session_name=session.name or None,
        agent=session.agent,
        kind=session.origin.kind,
        lane=lane.run.lane if lane.run is not None else lane_kind(session.origin.kind),
        run=_run(desk, conn, lane, lane.run) if lane.run is not None else None,
        waiting=list(_waiting(desk, lane, standing, now)),
        waiting_count=lane.count,
    )


def _run(desk: Desk, conn: sa.Connection, lane: Lane, run: Run) -> RunNow:
    asked = approvals.of_run(conn, run.id) if run.status is RunStatus.PARKED else []
    rests_for = next((each for each in asked if each.state is ApprovalState.OPEN), None)
    step = lane.step
    return RunNow(
        id=run.id,
        status=run.status,
        sender=str(run.sender),
        since=show(run.started_at, desk.zone),
        attempt=run.attempt,
        turn=step.turn if step is not None else None,
        doing=step.kind if step is not None else None,
        tool=step.call.tool if step is not None and step.call is not None else "",
        doing_since=show(from_ms(step.opened_ms), desk.zone) if step is not None else None,
        because=rests_for.because if rests_for is not None else "",
        approval=rests_for.id if rests_for is not None else None,
        until=show(run.wake_at, desk.zone) if run.wake_at is not None else None,
    )


def _waiting(desk: Desk, lane: Lane, standing: Standing, now: datetime) -> Iterator[EnvelopeWaiting]:
    position = 0
    for envelope in lane.mail:
        is_due = envelope.due_at <= now
        position += is_due
        yield EnvelopeWaiting(
            id=envelope.id,
            sender=str(envelope.sender),
            kind=envelope.kind,
            words=quoted(envelope.text),
            position=position if is_due else None,
            due_at=show(envelope.due_at, desk.zone),
            waits=why_waits(envelope, lane, standing, now=now),
        )


def why_waits(envelope: Envelope, lane: Lane, standing: Standing, *, now: datetime) -> Waits:
    """Return why an envelope waits. Pure. A suspended run blocks nothing: a new envelope resumes it."""
    if envelope.due_at > now:
        return Waits.NOT_DUE
    if lane.run is not None and lane.run.status is RunStatus.RUNNING:
        return Waits.JOINED if envelope.steered_into == lane.run.id else Waits.BUSY
    kind = standing.in_line.get(lane.session.id)
    if kind is None:
        return Waits.NEXT
    used, total = standing.slots[kind]
    return Waits.SLOTS if used >= total else Waits.AGENT


def _room(desk: Desk, room: Room) -> RoomShown:
    return RoomShown(
        channel=room.channel,
        waiting_count=room.count,
        next_at=show(room.next.due_at, desk.zone),
        attempts=room.next.attempts,
        error=room.error,
    )


OPERATIONS = (
    Operation(
        name="house.lanes",
        summary="Show what is at work, what waits, and why.",
        parameters=Lanes,
        handler=show_lanes,
        permission=PermissionLevel.RESTRICTED,
        result=LanesShown,
    ),
)
