"""The scheduler: sends the envelope of a due occurrence, or records why it was skipped.

If a schedule has a gate, the command of the gate runs before any model call.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from zoneinfo import ZoneInfo

import sqlalchemy as sa
from msgspec import Struct
from msgspec.structs import replace

from retinue.domain import address
from retinue.domain.address import Address, AddressKind
from retinue.domain.agent import Agent
from retinue.domain.envelope import EnvelopeDraft, Outcome
from retinue.domain.envelope import EnvelopeKind as Mail
from retinue.domain.errors import StoreError
from retinue.domain.event import EventKind
from retinue.domain.ids import EnvelopeId, NotificationId, SessionId, derive_id
from retinue.domain.notification import NOTIFICATION_TITLE_LENGTH_MAX, Notification
from retinue.domain.ports import Clock, ReadChecklist, RunGate
from retinue.domain.principal import SERVER_PRINCIPAL
from retinue.domain.schedule import (
    LATENESS_S_MAX,
    GateResult,
    Occurrence,
    OccurrenceCause,
    OccurrenceState,
    Schedule,
    ScheduleKind,
    ScheduleSession,
    format_duration,
)
from retinue.domain.session import Origin, OriginKind, Session, SessionActivity, lane_kind_of, patch_attributes
from retinue.domain.storable_text import truncate_bytes
from retinue.domain.times import from_ms, to_ms
from retinue.domain.trust import Trust
from retinue.engine.context_reset import mark_reset
from retinue.engine.heartbeats import no_checklist_reader, skip_reason
from retinue.intake.accept import ChannelWake, LaneWake, TimerWake, Wake, accept_in_transaction
from retinue.intake.routing import OWNER
from retinue.store.agents import agents
from retinue.store.core.connection import Store
from retinue.store.core.transaction import Transaction
from retinue.store.envelopes import envelopes, outcomes
from retinue.store.people import notifications, people
from retinue.store.runs import runs
from retinue.store.schedules import schedules
from retinue.store.schedules.schedules import StoredSchedule
from retinue.store.sessions import sessions

log = logging.getLogger(__name__)

FIRED_PER_COMMIT_MAX = 100
CONCURRENT_GATES_MAX = 4
ZONES_PER_COMMIT_MAX = 200
STORE_RETRY_S = 1.0


async def no_gate_runner(schedule: Schedule, agent: Agent, session: SessionId) -> GateResult:
    """Refuse every gate. The default for a scheduler that cannot run commands."""
    return GateResult(is_open=False, because="this server cannot run its gate")


class GateRequest(Struct, frozen=True):
    """An occurrence whose gate must run, or whose checklist must be read.

    `task_ids` limits the checklist to these tasks. Empty means all.
    """

    occurrence: Occurrence
    schedule: Schedule
    agent: Agent
    session: SessionId
    task_ids: tuple[str, ...] = ()


class FiredOccurrences(Struct, frozen=True):
    """The result of firing due occurrences: the lanes to wake, and the gates to run."""

    wakes: tuple[Wake, ...] = ()
    gate_requests: tuple[GateRequest, ...] = ()


class Scheduler:
    """Sends or skips due occurrences when the engine's alarm requests it.

    All state except running gates is in the store.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        run_gate: RunGate,
        wake: Callable[[tuple[Wake, ...]], None],
        zone: ZoneInfo,
        read_checklist: ReadChecklist = no_checklist_reader,
    ) -> None:
        self._store = store
        self._clock = clock
        self._run_gate = run_gate
        self._read_checklist = read_checklist
        self._wake = wake
        self._zone = zone
        self._gate_slots = asyncio.Semaphore(CONCURRENT_GATES_MAX)
        self._gate_tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Requeue the gates that a crash interrupted, and apply the owner's time zone to schedules without one."""
        if not await self._store.read(schedules.count):
            return
        await self._store.write(schedules.reset_gates, point="clock")
        await self.set_owner_zone(self._zone)

    async def set_owner_zone(self, zone: ZoneInfo) -> None:
        after: str | None = ""
        while after is not None:
            body = partial(_set_owner_zone, zone=zone, after=after, now_ms=self._now_ms())
            after = await self._store.write(body, point="clock")

    async def fire_due(self) -> None:
        """Release or skip due occurrences, up to a limit per commit, and start their gates."""
        body = partial(fire_due, now_ms=self._now_ms())
        struck = await self._store.write(body, point="strike")
        self._wake(struck.wakes)
        for asked in struck.gate_requests:
            task = asyncio.create_task(self._process_gate(asked))
            self._gate_tasks.add(task)
            task.add_done_callback(self._gate_tasks.discard)

    def abandon(self) -> None:
        for task in self._gate_tasks:
            task.cancel()

    async def stop(self) -> None:
        self.abandon()
        await asyncio.gather(*self._gate_tasks, return_exceptions=True)

    async def _process_gate(self, request: GateRequest) -> None:
        try:
            result = await self._gate_result(request)
        except Exception as error:
            log.exception("gate failed", extra={"schedule": request.schedule.id})
            result = GateResult(is_open=False, because=f"its gate failed: {type(error).__name__}")
        while True:
            try:
                body = partial(apply_gate_result, occurrence=request.occurrence, result=result, now_ms=self._now_ms())
                self._wake(await self._store.write(body, point="gate"))
                return
            except StoreError as error:
                log.error("store failed, gate waits", extra={"schedule": request.schedule.id, "code": error.code})
                await self._clock.sleep(STORE_RETRY_S)

    async def _gate_result(self, request: GateRequest) -> GateResult:
        if request.schedule.heartbeat is not None:  # it may wait long, and runs the gates of its tasks itself
            forced = request.occurrence.cause is OccurrenceCause.FORCE
            return await self._read_checklist(
                request.schedule, request.agent, request.session, wanted=request.task_ids, forced=forced
            )
        async with self._gate_slots:
            return await self._run_gate(request.schedule, request.agent, request.session)

    def _now_ms(self) -> int:
        return to_ms(self._clock.now())


def _set_owner_zone(conn: sa.Connection, *, zone: ZoneInfo, after: str, now_ms: int) -> str | None:
    tx = Transaction(conn, now_ms)
    more = schedules.apply_owner_zone(tx, zone, after=after, limit=ZONES_PER_COMMIT_MAX)
    tx.close()
    return more


def fire_due(conn: sa.Connection, *, now_ms: int) -> FiredOccurrences:
    """Release or skip due occurrences in one commit, or prepare their gates."""
    tx = Transaction(conn, now_ms)
    wakes: list[Wake] = []
    gates: list[GateRequest] = []
    for occurrence in schedules.list_due_occurrences(conn, tx.at_ms, limit=FIRED_PER_COMMIT_MAX):
        kept = schedules.get(conn, occurrence.schedule)
        assert kept is not None  # an occurrence has its schedule
        if because := _skip_reason(tx, kept, occurrence):
            wakes += _skip_occurrence(tx, occurrence, because=because)
        elif kept.schedule.heartbeat is None and (
            kept.schedule.gate is None or occurrence.cause is OccurrenceCause.FORCE
        ):
            wakes += _release_envelope(tx, kept.schedule, occurrence)
        else:
            asked = _prepare_gate(tx, kept.schedule, occurrence)
            if isinstance(asked, GateRequest):
                gates.append(asked)
            else:
                wakes += asked
    tx.close()
    return FiredOccurrences((*wakes, TimerWake()), tuple(gates))


def apply_gate_result(
    conn: sa.Connection, *, occurrence: Occurrence, result: GateResult, now_ms: int
) -> tuple[Wake, ...]:
    """Apply the result of a gate. Does nothing if the occurrence was withdrawn while the gate ran."""
    tx = Transaction(conn, now_ms)
    current = schedules.get_occurrence_of_envelope(conn, occurrence.envelope or "")
    kept = schedules.get(conn, occurrence.schedule)
    wakes: tuple[Wake, ...] = ()
    if kept is not None and current is not None and current.state is OccurrenceState.WAITING:
        # Another occurrence may have been released while this gate ran.
        busy = overlap_reason(conn, kept.id) if occurrence.cause is not OccurrenceCause.FORCE else ""
        because = busy if result.is_open else result.because
        wakes = (
            _skip_occurrence(tx, occurrence, because=because)
            if because
            else _release_envelope(tx, kept.schedule, occurrence, gate_result=result)
        )
    tx.close()
    return (*wakes, TimerWake())


def _skip_reason(tx: Transaction, stored: StoredSchedule, occurrence: Occurrence) -> str:
    """Return why a due occurrence is skipped, or an empty string."""
    late_s = (tx.at_ms - to_ms(occurrence.at)) // 1000
    if occurrence.cause is OccurrenceCause.CLOCK and late_s > LATENESS_S_MAX and not stored.schedule.runs_late:
        return f"missed: the server was not running at this time, and was running again {format_duration(late_s)} later"
    return (
        overlap_reason(tx.conn, stored.id) or skip_reason(tx, stored, occurrence)
        if occurrence.cause is not OccurrenceCause.FORCE
        else ""
    )


def overlap_reason(conn: sa.Connection, schedule: str) -> str:
    """Return why an occurrence of a schedule must be skipped now, or an empty string.

    It is skipped while an earlier occurrence is still active.
    """
    other = schedules.get_running_occurrence(conn, schedule)
    if other is None:
        return ""
    return f"overlap: the occurrence of {other.at.isoformat(timespec='seconds')} is still running"


def _skip_occurrence(
    tx: Transaction, occurrence: Occurrence, *, because: str, outcome: Outcome = Outcome.CANCELLED
) -> tuple[Wake, ...]:
    assert occurrence.envelope is not None  # a waiting occurrence has an envelope
    outcomes.settle(tx, [occurrence.envelope], outcome, because=because)
    tx.emit(EventKind.ENVELOPE_SETTLED, envelope=occurrence.envelope, outcome=outcome.value, because=because)
    return (TimerWake(),)


def _prepare_gate(tx: Transaction, schedule: Schedule, occurrence: Occurrence) -> GateRequest | tuple[Wake, ...]:
    """Return the gate to run for an occurrence, or the wake-ups if the recipient is gone.

    The gate runs in the agent's session for this occurrence, with the grants of that session only.
    """
    to = schedule.to if schedule.to.kind is AddressKind.AGENT else address.agent_address(schedule.owner.name)
    found = _find_session(tx, replace(schedule, to=to), occurrence)
    if isinstance(found, str):
        return _disable_schedule(tx, schedule, occurrence, because=found)
    agent, session = found
    schedules.mark_gate_running(tx, occurrence)
    wanted = schedules.get_requested_tasks(tx.conn, occurrence) if schedule.heartbeat is not None else ()
    return GateRequest(occurrence, schedule, agent, session.id, wanted)


def _release_envelope(
    tx: Transaction, schedule: Schedule, occurrence: Occurrence, *, gate_result: GateResult | None = None
) -> tuple[Wake, ...]:
    """Release the envelope of an occurrence: from now on it is due, like any other envelope."""
    text = schedule.text if gate_result is None or gate_result.text is None else gate_result.text
    apart: tuple[Wake, ...] = ()
    recipient, session, wake = schedule.to, None, _wake_for(schedule.to)
    if schedule.to.kind is AddressKind.AGENT:
        found = _find_session(tx, schedule, occurrence)
        if isinstance(found, str):
            return _disable_schedule(tx, schedule, occurrence, because=found)
        agent, session = found
        _update_session(tx, schedule, session, text)
        recipient = address.agent_address(agent.name, session.id)
        wake = LaneWake(session.id, agent.name, lane_kind_of(session.origin.kind))
    elif schedule.to.kind is AddressKind.PERSON and people.find(tx.conn, schedule.to.name) is None:
        return _disable_schedule(tx, schedule, occurrence, because=f"the person '{schedule.to.name}' was deleted")
    if gate_result is not None and gate_result.output:
        if gate_result.trust is Trust.UNTRUSTED and session is not None:
            apart = _send_gate_output(tx, occurrence, recipient, gate_result.output)
        else:
            text = f"{text}\n\n[Gate output]\n{gate_result.output}".strip()
    if not text.strip():
        if not apart:
            return _skip_occurrence(tx, occurrence, because="it has no text, and its gate wrote no output")
        text = "Read the output of the gate of this schedule."
    assert occurrence.envelope is not None  # a waiting occurrence has an envelope
    envelopes.release_held(
        tx.conn,
        occurrence.envelope,
        due_ms=to_ms(occurrence.at),
        session=session.id if session else None,
        recipient=recipient,
        text=text,
    )
    schedules.mark_started(tx, occurrence)
    if schedule.kind is ScheduleKind.REMINDER:
        _add_notification(tx, schedule, occurrence)
    return (*apart, wake)


def _wake_for(to: Address) -> Wake:
    return ChannelWake(str(to)) if to.kind is AddressKind.CHANNEL else TimerWake()


def _send_gate_output(tx: Transaction, occurrence: Occurrence, recipient: Address, output: str) -> tuple[Wake, ...]:
    """Send untrusted gate output as a separate envelope, so that the schedule's own text keeps its trust."""
    draft = EnvelopeDraft(
        id=EnvelopeId(derive_id(occurrence.envelope or "", "gate")),
        sender=Address(AddressKind.SCHEDULE, occurrence.schedule),
        recipient=recipient,
        text=f"[Gate output]\n{output}",
        source="gate",
        idempotency_key=f"{occurrence.envelope}",
        kind=Mail.SYSTEM,
        silent=True,
        trust=Trust.UNTRUSTED,
    )
    return accept_in_transaction(tx, draft).wakes


def _add_notification(tx: Transaction, schedule: Schedule, occurrence: Occurrence) -> None:
    """Add a notification for a reminder, so that the person sees it on every screen."""
    first = schedule.text.strip().splitlines()[0] if schedule.text.strip() else "Reminder"
    notifications.add(
        tx,
        Notification(
            id=NotificationId(derive_id(occurrence.envelope or "", "reminder")),
            person=schedule.to.name,
            sender=str(schedule.owner),
            title=" ".join(first.split())[:NOTIFICATION_TITLE_LENGTH_MAX],
            text=schedule.text,
            trust=schedule.trust,
            at=from_ms(tx.at_ms),
        ),
    )


def _disable_schedule(tx: Transaction, schedule: Schedule, occurrence: Occurrence, *, because: str) -> tuple[Wake, ...]:
    """Disable the schedule because its recipient is gone, and skip the occurrence."""
    if occurrence.cause is OccurrenceCause.CLOCK:
        schedules.give_up(tx, occurrence, because=because)
    return _skip_occurrence(tx, occurrence, because=because, outcome=Outcome.REFUSED)


def _find_session(tx: Transaction, schedule: Schedule, occurrence: Occurrence) -> tuple[Agent, Session] | str:
    """Return the agent and the session of an occurrence, or the reason why there is none."""
    agent = agents.find(tx.conn, schedule.to.name)
    if agent is None:
        return f"the agent {schedule.to.name} was deleted"
    if schedule.to.session is not None:
        found = sessions.find_id_by_prefix(tx.conn, agent.name, schedule.to.rest)
        session = sessions.get(tx.conn, found) if found else None
        if session is None or session.deleted_at is not None:
            return f"{agent.name} no longer has the session {schedule.to.rest[:8]}"
        return agent, session
    origin = _session_origin(tx, schedule, agent)
    session = sessions.get_by_origin(tx.conn, agent.name, origin)
    if session is None:
        id_ = SessionId(derive_id(occurrence.envelope or "", "session"))
        sessions.start(tx, id_, agent=agent.name, origin=origin)
        session = sessions.get(tx.conn, id_)
        assert session is not None  # started just above
    return agent, session


def _session_origin(tx: Transaction, schedule: Schedule, agent: Agent) -> Origin:
    if schedule.place is not ScheduleSession.MAIN:
        kind = OriginKind.HEARTBEAT if schedule.kind is ScheduleKind.HEARTBEAT else OriginKind.SCHEDULE
        return Origin(kind, f"schedule:{schedule.id}")
    person = schedule.owner if schedule.owner.kind is AddressKind.PERSON else OWNER
    latest = sessions.get_latest_origin(tx.conn, agent.name, principal=replace(SERVER_PRINCIPAL, address=person))
    return latest or Origin(OriginKind.WEB, str(person))


def _update_session(tx: Transaction, schedule: Schedule, session: Session, text: str) -> None:
    """Apply the schedule's current title, attributes and reset rule to its dedicated session."""
    snippet = truncate_bytes(text, 120) or session.snippet
    if session.origin.kind in (OriginKind.SCHEDULE, OriginKind.HEARTBEAT):
        _rename_session(tx, schedule, session)
        attributes = (
            patch_attributes(session.attributes, schedule.attributes) if schedule.attributes else session.attributes
        )
        if attributes != session.attributes:
            sessions.set_attributes(tx.conn, session.id, attributes, at_ms=tx.at_ms)
            tx.emit(EventKind.SESSION_CHANGED, session=session.id)
        # A session with a suspended run is asleep too, and must not be reset.
        idle = session.activity is SessionActivity.SLEEPING and runs.get_open(tx.conn, session.id) is None
        if schedule.place is ScheduleSession.FRESH and idle and session.record_seq > session.context_start_seq:
            mark_reset(tx, session.id, because="each occurrence of its schedule resets the context")
    sessions.touch(tx.conn, session.id, wakefulness=SessionActivity.ACTIVE, snippet=snippet, at_ms=tx.at_ms)


def _rename_session(tx: Transaction, schedule: Schedule, session: Session) -> None:
    title = schedule.title.strip()
    if title and session.name != title and sessions.find_by_name(tx.conn, session.agent, title) is None:
        sessions.rename(tx.conn, session.id, title, at_ms=tx.at_ms)
        tx.emit(EventKind.SESSION_CHANGED, session=session.id)
