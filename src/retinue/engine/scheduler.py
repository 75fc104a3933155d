"""The scheduler: releases the envelope of a due occurrence, or records why not. Gates run before any model call."""

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
from retinue.domain.envelope import Draft, Outcome
from retinue.domain.envelope import Kind as Mail
from retinue.domain.errors import StoreError
from retinue.domain.event import NewsKind
from retinue.domain.ids import EnvelopeId, NotificationId, SessionId, derived
from retinue.domain.notification import TITLE_LENGTH_MAX, Notification
from retinue.domain.ports import AskGate, Clock, ReadChecklist
from retinue.domain.principal import HOUSE
from retinue.domain.schedule import LATE_S_MAX, By, GateSaid, Kind, Place, Schedule, Slot, SlotState, spell_out
from retinue.domain.session import Origin, OriginKind, Session, Wakefulness, lane_kind, patched
from retinue.domain.storable_text import clipped_bytes
from retinue.domain.times import from_ms, to_ms
from retinue.domain.trust import Trust
from retinue.engine.heartbeats import no_checklists, why_still
from retinue.engine.run_finish import mark_reset
from retinue.intake.accept import ClockWake, LaneWake, RoomWake, Wake, enter
from retinue.intake.routing import OWNER
from retinue.store.agents import agents
from retinue.store.core.connection import Store
from retinue.store.core.transaction import Page
from retinue.store.envelopes import envelopes, outcomes
from retinue.store.people import notifications, people
from retinue.store.runs import runs
from retinue.store.schedules import schedules
from retinue.store.schedules.schedules import Kept
from retinue.store.sessions import sessions

log = logging.getLogger(__name__)

STRUCK_AT_ONCE_MAX = 100
GATES_AT_ONCE_MAX = 4
ZONES_AT_ONCE_MAX = 200
STORE_RETRY_S = 1.0


async def no_gates(schedule: Schedule, agent: Agent, session: SessionId) -> GateSaid:
    """Refuse every gate: this server cannot run commands."""
    return GateSaid(open=False, because="there is nothing here that could run its gate")


class Asked(Struct, frozen=True):
    """An occurrence whose gate must run, or whose checklist must be read.

    `task_ids` limits the checklist to these tasks. Empty means all.
    """

    slot: Slot
    schedule: Schedule
    agent: Agent
    session: SessionId
    wanted: tuple[str, ...] = ()


class Struck(Struct, frozen=True):
    """What a firing commit did: the lanes to wake, and the gates to run."""

    wakes: tuple[Wake, ...] = ()
    gates: tuple[Asked, ...] = ()


class Clockwork:
    """Fires due schedules for the alarm. All state is in the store; only running gates are kept here."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        ask: AskGate,
        wake: Callable[[tuple[Wake, ...]], None],
        zone: ZoneInfo,
        checklists: ReadChecklist = no_checklists,
    ) -> None:
        self._store = store
        self._clock = clock
        self._ask = ask
        self._checklists = checklists
        self._wake = wake
        self._zone = zone
        self._gates = asyncio.Semaphore(GATES_AT_ONCE_MAX)
        self._asking: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Requeue gates that were running at a crash, and apply the owner's time zone to schedules without one."""
        if not await self._store.read(schedules.count):
            return
        await self._store.write(schedules.give_back, point="clock")
        await self.follow_zone(self._zone)

    async def follow_zone(self, zone: ZoneInfo) -> None:
        after: str | None = ""
        while after is not None:
            body = partial(_follow_zone, zone=zone, after=after, now_ms=self._now_ms())
            after = await self._store.write(body, point="clock")

    async def strike(self) -> None:
        """Fire due occurrences, up to a limit per commit."""
        body = partial(strike, now_ms=self._now_ms())
        struck = await self._store.write(body, point="strike")
        self._wake(struck.wakes)
        for asked in struck.gates:
            task = asyncio.create_task(self._ask_gate(asked))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    def abandon(self) -> None:
        for task in self._asking:
            task.cancel()

    async def stop(self) -> None:
        self.abandon()
        await asyncio.gather(*self._asking, return_exceptions=True)

    async def _ask_gate(self, asked: Asked) -> None:
        try:
            said = await self._said(asked)
        except Exception as error:
            log.exception("gate broke", extra={"schedule": asked.schedule.id})
            said = GateSaid(open=False, because=f"its gate broke: {type(error).__name__}")
        while True:
            try:
                body = partial(answer_gate, slot=asked.slot, said=said, now_ms=self._now_ms())
                self._wake(await self._store.write(body, point="gate"))
                return
            except StoreError as error:
                log.error("store failed, gate waits", extra={"schedule": asked.schedule.id, "code": error.code})
                await self._clock.sleep(STORE_RETRY_S)

    async def _said(self, asked: Asked) -> GateSaid:
        if asked.schedule.heartbeat is not None:  # it may wait long, and runs the gates of its tasks itself
            forced = asked.slot.by is By.FORCE
            return await self._checklists(
                asked.schedule, asked.agent, asked.session, wanted=asked.wanted, forced=forced
            )
        async with self._gates:
            return await self._ask(asked.schedule, asked.agent, asked.session)

    def _now_ms(self) -> int:
        return to_ms(self._clock.now())


def _follow_zone(conn: sa.Connection, *, zone: ZoneInfo, after: str, now_ms: int) -> str | None:
    page = Page(conn, now_ms)
    more = schedules.follow_zone(page, zone, after=after, limit=ZONES_AT_ONCE_MAX)
    page.close()
    return more


def strike(conn: sa.Connection, *, now_ms: int) -> Struck:
    """The commit in which due occurrences are released, skipped, or marked as waiting for their gate."""
    page = Page(conn, now_ms)
    wakes: list[Wake] = []
    gates: list[Asked] = []
    for slot in schedules.due(conn, page.at_ms, limit=STRUCK_AT_ONCE_MAX):
        kept = schedules.get(conn, slot.schedule)
        assert kept is not None  # an occurrence has its schedule
        if because := _why_not(page, kept, slot):
            wakes += _skip(page, slot, because=because)
        elif kept.schedule.heartbeat is None and (kept.schedule.gate is None or slot.by is By.FORCE):
            wakes += _let_go(page, kept.schedule, slot)
        else:
            asked = _before_gate(page, kept.schedule, slot)
            if isinstance(asked, Asked):
                gates.append(asked)
            else:
                wakes += asked
    page.close()
    return Struck((*wakes, ClockWake()), tuple(gates))


def answer_gate(conn: sa.Connection, *, slot: Slot, said: GateSaid, now_ms: int) -> tuple[Wake, ...]:
    """Apply the answer of a gate. Does nothing if its occurrence was withdrawn meanwhile."""
    page = Page(conn, now_ms)
    current = schedules.slot_of(conn, slot.envelope or "")
    kept = schedules.get(conn, slot.schedule)
    wakes: tuple[Wake, ...] = ()
    if kept is not None and current is not None and current.state is SlotState.WAITING:
        # Another occurrence may have been released while this gate ran.
        busy = why_busy(conn, kept.id) if slot.by is not By.FORCE else ""
        because = busy if said.open else said.because
        wakes = _skip(page, slot, because=because) if because else _let_go(page, kept.schedule, slot, said=said)
    page.close()
    return (*wakes, ClockWake())


def _why_not(page: Page, kept: Kept, slot: Slot) -> str:
    """Return why a due occurrence is skipped, or an empty string."""
    late_s = (page.at_ms - to_ms(slot.at)) // 1000
    if slot.by is By.CLOCK and late_s > LATE_S_MAX and not kept.schedule.runs_late:
        return f"missed: the house was closed or asleep at its time, and came to it {spell_out(late_s)} later"
    return why_busy(page.conn, kept.id) or why_still(page, kept, slot) if slot.by is not By.FORCE else ""


def why_busy(conn: sa.Connection, schedule: str) -> str:
    """Return why a schedule cannot fire now, or an empty string if no occurrence of it is active."""
    other = schedules.at_work(conn, schedule)
    if other is None:
        return ""
    return f"overlap: the one of {other.at.isoformat(timespec='seconds')} is still being worked on"


def _skip(page: Page, slot: Slot, *, because: str, outcome: Outcome = Outcome.CANCELLED) -> tuple[Wake, ...]:
    assert slot.envelope is not None  # a waiting occurrence has an envelope
    outcomes.settle(page, [slot.envelope], outcome, because=because)
    page.tell(NewsKind.ENVELOPE_SETTLED, envelope=slot.envelope, outcome=outcome.value, because=because)
    return (ClockWake(),)


def _before_gate(page: Page, schedule: Schedule, slot: Slot) -> Asked | tuple[Wake, ...]:
    """Return the gate to run. It runs in the agent's session, with the grants of that session only."""
    to = schedule.to if schedule.to.kind is AddressKind.AGENT else address.agent(schedule.owner.name)
    found = _conversation(page, replace(schedule, to=to), slot)
    if isinstance(found, str):
        return _give_up(page, schedule, slot, because=found)
    agent, session = found
    schedules.take(page, slot)
    wanted = schedules.wanted_by_hand(page.conn, slot) if schedule.heartbeat is not None else ()
    return Asked(slot, schedule, agent, session.id, wanted)


def _let_go(page: Page, schedule: Schedule, slot: Slot, *, said: GateSaid | None = None) -> tuple[Wake, ...]:
    """Release the envelope: it is due from now on, like any other envelope."""
    text = schedule.text if said is None or said.text is None else said.text
    apart: tuple[Wake, ...] = ()
    recipient, session, wake = schedule.to, None, _room_wake(schedule.to)
    if schedule.to.kind is AddressKind.AGENT:
        found = _conversation(page, schedule, slot)
        if isinstance(found, str):
            return _give_up(page, schedule, slot, because=found)
        agent, session = found
        _settle_conversation(page, schedule, session, text)
        recipient = address.agent(agent.name, session.id)
        wake = LaneWake(session.id, agent.name, lane_kind(session.origin.kind))
    elif schedule.to.kind is AddressKind.PERSON and people.find(page.conn, schedule.to.name) is None:
        return _give_up(page, schedule, slot, because=f"there is no person '{schedule.to.name}' any more")
    if said is not None and said.output:
        if said.trust is Trust.UNTRUSTED and session is not None:
            apart = _put_apart(page, slot, recipient, said.output)
        else:
            text = f"{text}\n\n[Gate output]\n{said.output}".strip()
    if not text.strip():
        if not apart:
            return _skip(page, slot, because="it has no text, and its gate said nothing")
        text = "Look at what the gate of this schedule has said."
    assert slot.envelope is not None  # a waiting occurrence has an envelope
    envelopes.let_go(
        page.conn,
        slot.envelope,
        due_ms=to_ms(slot.at),
        session=session.id if session else None,
        recipient=recipient,
        text=text,
    )
    schedules.begin(page, slot)
    if schedule.kind is Kind.REMINDER:
        _notify(page, schedule, slot)
    return (*apart, wake)


def _room_wake(to: Address) -> Wake:
    return RoomWake(str(to)) if to.kind is AddressKind.CHANNEL else ClockWake()


def _put_apart(page: Page, slot: Slot, recipient: Address, output: str) -> tuple[Wake, ...]:
    """Send untrusted gate output as a separate envelope, so that the schedule's own text keeps its trust."""
    draft = Draft(
        id=EnvelopeId(derived(slot.envelope or "", "gate")),
        sender=Address(AddressKind.SCHEDULE, slot.schedule),
        recipient=recipient,
        text=f"[Gate output]\n{output}",
        source="gate",
        key=f"{slot.envelope}",
        kind=Mail.SYSTEM,
        silent=True,
        trust=Trust.UNTRUSTED,
    )
    return enter(page, draft).wakes


def _notify(page: Page, schedule: Schedule, slot: Slot) -> None:
    """Add a notification for a reminder, so that the person sees it on every screen."""
    first = schedule.text.strip().splitlines()[0] if schedule.text.strip() else "Reminder"
    notifications.add(
        page,
        Notification(
            id=NotificationId(derived(slot.envelope or "", "reminder")),
            person=schedule.to.name,
            sender=str(schedule.owner),
            title=" ".join(first.split())[:TITLE_LENGTH_MAX],
            text=schedule.text,
            trust=schedule.trust,
            at=from_ms(page.at_ms),
        ),
    )


def _give_up(page: Page, schedule: Schedule, slot: Slot, *, because: str) -> tuple[Wake, ...]:
    """Disable the schedule because its recipient is gone, and skip the occurrence."""
    if slot.by is By.CLOCK:
        schedules.give_up(page, slot, because=because)
    return _skip(page, slot, because=because, outcome=Outcome.REFUSED)


def _conversation(page: Page, schedule: Schedule, slot: Slot) -> tuple[Agent, Session] | str:
    """Return the agent and the session of an occurrence, or the reason why there is none."""
    agent = agents.find(page.conn, schedule.to.name)
    if agent is None:
        return f"the agent {schedule.to.name} is no longer here"
    if schedule.to.session is not None:
        found = sessions.by_prefix(page.conn, agent.name, schedule.to.rest)
        session = sessions.get(page.conn, found) if found else None
        if session is None or session.deleted_at is not None:
            return f"{agent.name} has no session {schedule.to.rest[:8]} any more"
        return agent, session
    origin = _origin(page, schedule, agent)
    session = sessions.by_origin(page.conn, agent.name, origin)
    if session is None:
        id_ = SessionId(derived(slot.envelope or "", "session"))
        sessions.start(page, id_, agent=agent.name, origin=origin)
        session = sessions.get(page.conn, id_)
        assert session is not None  # started just above
    return agent, session


def _origin(page: Page, schedule: Schedule, agent: Agent) -> Origin:
    if schedule.place is not Place.MAIN:
        kind = OriginKind.HEARTBEAT if schedule.kind is Kind.HEARTBEAT else OriginKind.SCHEDULE
        return Origin(kind, f"schedule:{schedule.id}")
    person = schedule.owner if schedule.owner.kind is AddressKind.PERSON else OWNER
    latest = sessions.latest(page.conn, agent.name, whose=replace(HOUSE, address=person))
    return latest or Origin(OriginKind.WEB, str(person))


def _settle_conversation(page: Page, schedule: Schedule, session: Session, text: str) -> None:
    """Apply the schedule's current title, attributes and reset rule to its own session."""
    snippet = clipped_bytes(text, 120) or session.snippet
    if session.origin.kind in (OriginKind.SCHEDULE, OriginKind.HEARTBEAT):
        _name(page, schedule, session)
        attributes = patched(session.attributes, schedule.attributes) if schedule.attributes else session.attributes
        if attributes != session.attributes:
            sessions.set_attributes(page.conn, session.id, attributes, at_ms=page.at_ms)
            page.tell(NewsKind.SESSION_CHANGED, session=session.id)
        # A session with a suspended run sleeps too, and must not be reset.
        idle = session.wakefulness is Wakefulness.SLEEPING and runs.open_in(page.conn, session.id) is None
        if schedule.place is Place.FRESH and idle and session.record_seq > session.context_from:
            mark_reset(page, session.id, because="each time of its schedule begins afresh")
    sessions.touch(page.conn, session.id, wakefulness=Wakefulness.ACTIVE, snippet=snippet, at_ms=page.at_ms)


def _name(page: Page, schedule: Schedule, session: Session) -> None:
    title = schedule.title.strip()
    if title and session.name != title and sessions.by_name(page.conn, session.agent, title) is None:
        sessions.rename(page.conn, session.id, title, at_ms=page.at_ms)
        page.tell(NewsKind.SESSION_CHANGED, session=session.id)
