"""Operation that shows the lanes, with their active runs and waiting envelopes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from enum import StrEnum

import msgspec
import sqlalchemy as sa

from retinue.domain.agent import PermissionLevel
from retinue.domain.approval import ApprovalState
from retinue.domain.envelope import Envelope, EnvelopeKind
from retinue.domain.principal import Principal
from retinue.domain.run import Run, RunStatus, StepKind
from retinue.domain.session import LaneKind, OriginKind, lane_kind_of
from retinue.domain.times import format_time, from_ms
from retinue.engine.lanes import SlotStatus
from retinue.operations.base import Operation, Services
from retinue.operations.pagination import check_limit
from retinue.store.runs import approvals
from retinue.store.runs import lanes as store_lanes
from retinue.store.runs.explanation_facts import excerpt
from retinue.store.runs.lanes import LaneStatus, OutboundQueue

LANES_MIN, LANES_MAX = 1, 100
ENVELOPES_PER_LANE_MAX = 10  # per lane
CHANNELS_MAX = 50


class WaitReason(StrEnum):
    """Why an envelope is not being processed yet."""

    NEXT = "next"  # it is claimed next
    NOT_DUE = "not_due"
    BUSY = "busy"  # a run is active in its lane
    STEERED = "steered"  # the run was steered with it, and it gets its own run later
    SLOTS = "slots"  # all slots of its lane kind are in use
    AGENT_LIMIT = "agent"  # its agent has reached its concurrency limit


class LaneListRequest(msgspec.Struct, forbid_unknown_fields=True):
    limit: int = 50


class WaitingEnvelope(msgspec.Struct, frozen=True):
    """One envelope that is waiting in a lane. `position` is its position among the due envelopes, from 1."""

    id: str
    sender: str = msgspec.field(name="from")
    kind: EnvelopeKind
    excerpt: str
    position: int | None
    due_at: str
    wait_reason: WaitReason


class ActiveRun(msgspec.Struct, frozen=True):
    """The open run of a lane. `step` is its current step: a model call, or a call of `tool`.

    If the run is suspended, `because` is the reason, and `approval` is the approval that the run is
    waiting for. `resumes_at` is the time at which the wait ends.
    """

    id: str
    status: RunStatus
    sender: str
    started_at: str
    attempt: int
    turn: int | None
    step: StepKind | None
    tool: str
    step_started_at: str | None
    because: str
    approval: str | None
    resumes_at: str | None


class LaneDetails(msgspec.Struct, frozen=True):
    session: str
    session_name: str | None
    agent: str
    kind: OriginKind
    lane: LaneKind
    run: ActiveRun | None
    waiting: list[WaitingEnvelope]
    waiting_count: int


class SlotUsage(msgspec.Struct, frozen=True):
    lane: LaneKind
    used: int
    total: int
    waiting_count: int


class ChannelQueue(msgspec.Struct, frozen=True):
    """A channel with envelopes in the outbox.

    `attempts` counts the delivery attempts for the next envelope.
    """

    channel: str
    waiting_count: int
    next_at: str
    attempts: int
    error: str | None


class LaneList(msgspec.Struct, frozen=True):
    """The lanes of the server.

    Envelopes and dead letters are counted up to `counted_max`. Only the owner sees `channels`.
    """

    now: str
    lanes: list[LaneDetails]
    omitted_count: int
    slots: list[SlotUsage]
    channels: list[ChannelQueue]
    omitted_channels_count: int
    dead_count: int
    counted_max: int


async def list_lanes(services: Services, caller: Principal, request: LaneListRequest) -> LaneList:
    check_limit(request.limit, least=LANES_MIN, most=LANES_MAX, try_this="use a smaller limit")
    now = services.clock.now()
    slots = services.engine.slot_status()

    def body(conn: sa.Connection) -> LaneList:
        found, left_out = store_lanes.list_lanes(
            conn, limit=request.limit, envelopes_limit=ENVELOPES_PER_LANE_MAX, seen_by=caller
        )
        channels, rooms_left_out = (
            store_lanes.list_channels(conn, limit=CHANNELS_MAX) if caller.sees_everything else ([], 0)
        )
        in_line = list(slots.waiting_lanes.values())
        return LaneList(
            now=format_time(now, services.zone),
            lanes=[_to_lane_details(services, conn, lane, slots, now) for lane in found],
            omitted_count=left_out,
            slots=[
                SlotUsage(lane=kind, used=used, total=total, waiting_count=in_line.count(kind))
                for kind, (used, total) in slots.slots.items()
            ],
            channels=[_to_channel_queue(services, channel) for channel in channels],
            omitted_channels_count=rooms_left_out,
            dead_count=store_lanes.count_dead_letters(conn, seen_by=caller),
            counted_max=store_lanes.COUNTED_MAX,
        )

    return await services.store.scan(body)


def _to_lane_details(
    services: Services, conn: sa.Connection, lane: LaneStatus, slots: SlotStatus, now: datetime
) -> LaneDetails:
    session = lane.session
    return LaneDetails(
        session=session.id,
        session_name=session.name or None,
        agent=session.agent,
        kind=session.origin.kind,
        lane=lane.run.lane if lane.run is not None else lane_kind_of(session.origin.kind),
        run=_to_active_run(services, conn, lane, lane.run) if lane.run is not None else None,
        waiting=list(_to_waiting_envelopes(services, lane, slots, now)),
        waiting_count=lane.count,
    )


def _to_active_run(services: Services, conn: sa.Connection, lane: LaneStatus, run: Run) -> ActiveRun:
    asked = approvals.list_of_run(conn, run.id) if run.status is RunStatus.SUSPENDED else []
    approval = next((each for each in asked if each.state is ApprovalState.OPEN), None)
    step = lane.step
    return ActiveRun(
        id=run.id,
        status=run.status,
        sender=str(run.sender),
        started_at=format_time(run.started_at, services.zone),
        attempt=run.attempt,
        turn=step.turn if step is not None else None,
        step=step.kind if step is not None else None,
        tool=step.call.tool if step is not None and step.call is not None else "",
        step_started_at=format_time(from_ms(step.opened_ms), services.zone) if step is not None else None,
        because=approval.because if approval is not None else "",
        approval=approval.id if approval is not None else None,
        resumes_at=format_time(run.wake_at, services.zone) if run.wake_at is not None else None,
    )


def _to_waiting_envelopes(
    services: Services, lane: LaneStatus, slots: SlotStatus, now: datetime
) -> Iterator[WaitingEnvelope]:
    position = 0
    for envelope in lane.envelopes:
        is_due = envelope.due_at <= now
        position += is_due
        yield WaitingEnvelope(
            id=envelope.id,
            sender=str(envelope.sender),
            kind=envelope.kind,
            excerpt=excerpt(envelope.text),
            position=position if is_due else None,
            due_at=format_time(envelope.due_at, services.zone),
            wait_reason=find_wait_reason(envelope, lane, slots, now=now),
        )


def find_wait_reason(envelope: Envelope, lane: LaneStatus, slots: SlotStatus, *, now: datetime) -> WaitReason:
    """Return why an envelope is waiting.

    An envelope does not wait for a suspended run, because a new envelope resumes the run.
    """
    if envelope.due_at > now:
        return WaitReason.NOT_DUE
    if lane.run is not None and lane.run.status is RunStatus.RUNNING:
        return WaitReason.STEERED if envelope.steered_into == lane.run.id else WaitReason.BUSY
    kind = slots.waiting_lanes.get(lane.session.id)
    if kind is None:
        return WaitReason.NEXT
    used, total = slots.slots[kind]
    return WaitReason.SLOTS if used >= total else WaitReason.AGENT_LIMIT


def _to_channel_queue(services: Services, channel: OutboundQueue) -> ChannelQueue:
    return ChannelQueue(
        channel=channel.channel,
        waiting_count=channel.count,
        next_at=format_time(channel.next.due_at, services.zone),
        attempts=channel.next.attempts,
        error=channel.error,
    )


OPERATIONS = (
    Operation(
        name="server.lanes",
        summary="Show active runs, and waiting envelopes with the reason why each is waiting.",
        parameters=LaneListRequest,
        handler=list_lanes,
        permission=PermissionLevel.RESTRICTED,
        result=LaneList,
    ),
)
