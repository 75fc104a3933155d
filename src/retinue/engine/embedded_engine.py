"""The embedded engine: in-process wake-ups over the store, and one asyncio task for each active lane."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from zoneinfo import ZoneInfo

import sqlalchemy as sa
from msgspec import Struct, field

from retinue.config.agent_defaults import Defaults, plain
from retinue.config.sessions import SessionSettings
from retinue.config.sessions import plain as plain_sessions
from retinue.config.tools import ApprovalSettings
from retinue.domain.agent import Agent
from retinue.domain.agent_message import Heard, Word
from retinue.domain.approval import Approval
from retinue.domain.delegation_request import Handed, Handing
from retinue.domain.envelope import Draft, Envelope, Outcome, Receipt
from retinue.domain.errors import Stale, StoreError
from retinue.domain.grant import GrantScope
from retinue.domain.ids import EnvelopeId, RunId, SessionId
from retinue.domain.permission import Permission
from retinue.domain.ports import AskGate, Clock, Faults, Ids, ReadChecklist
from retinue.domain.principal import Principal
from retinue.domain.reply_delivery import Words, plain_words
from retinue.domain.session import LaneKind, OriginKind, QueueMode, Session, lane_kind
from retinue.domain.slash_command import Asked
from retinue.domain.times import to_ms
from retinue.engine.agent_messages import pass_on
from retinue.engine.approvals import answer_approval, escalate, expire, request
from retinue.engine.delegations import hand_over
from retinue.engine.event_broadcast import Live
from retinue.engine.heartbeats import no_checklists
from retinue.engine.lanes import READY_MAX, Ready, Slots, Standing
from retinue.engine.run_claim import CLOSED_AT_ONCE_MAX, Terms, begin, claim
from retinue.engine.run_context import Nothing, Work
from retinue.engine.run_finish import NEWER, Cancelled, Said, cancel
from retinue.engine.run_worker import Ended, Speak, Watch
from retinue.engine.scheduler import Clockwork, no_gates
from retinue.engine.session_commands import Choices, NoChoices
from retinue.engine.slash_commands import Commanded, Commands, Skills, no_skills
from retinue.engine.subagent_cleanup import put_away
from retinue.intake.accept import ClockWake, LaneWake, RoomWake, Seat, Wake, hand_over_due, settle_and_tell
from retinue.outbox.typing_and_previews import Presence
from retinue.runners.base import Runner
from retinue.schedules.alarm import TICK_MAX_S, Alarm
from retinue.store.agents import agents
from retinue.store.core import tables
from retinue.store.core.connection import NO_FAULTS, Store
from retinue.store.core.transaction import Page, latest_ms
from retinue.store.envelopes import envelopes
from retinue.store.runs import approvals, delegations, runs
from retinue.store.schedules import schedules
from retinue.store.sessions import sessions

log = logging.getLogger(__name__)

DRAIN_S = 30.0
STORE_RETRY_S = 1.0
LANES_LOOKED_UP_MAX = 1_000
LATEST_MS = 2**62  # later than any real time


class Engine(Protocol):
    """The engine interface for the rest of the server."""

    async def start(self) -> None:
        """Resume interrupted runs, then runs everything that is due."""
        ...

    async def stop(self, *, drain_s: float = DRAIN_S) -> None:
        """Claim nothing more and wait up to `drain_s` for active runs. The next start resumes the others."""
        ...

    def wake(self, wake: Wake) -> None:
        """Report that something may have changed.

        Only a hint: the store is authoritative, and the alarm finds lost hints.
        """
        ...

    def seat(self, agent: str, lane: LaneKind) -> Seat | None:
        """Reserve a free slot for an envelope that is being accepted.

        An engine may always return None. The run then starts one commit later.
        """
        ...

    def standing(self) -> Standing:
        """Return slot usage and the waiting lanes."""
        ...

    def agent_changed(self, name: str, concurrency: int | None) -> None:
        """Apply the concurrency of an agent that was added or changed."""
        ...

    def agent_removed(self, name: str) -> None:
        """Stop starting runs for a deleted agent."""
        ...

    async def request(self, run: RunId, *, call: str, agent: str, permission: Permission, reason: str) -> Approval: ...
    async def hand_over(self, handing: Handing) -> Handed:
        """Delegate work to another session, or return the status of an earlier delegation."""
        ...

    async def pass_on(self, word: Word) -> Heard:
        """Send an agent message to another session."""
        ...

    async def command(self, draft: Draft, asked: Asked) -> Receipt | Draft:
        """Execute the slash commands of a message and answer them.

        Returns a draft if a message for the agent remains.
        """
        ...

    async def cancel(self, session: SessionId, *, by: str, why: str, clear_due: bool = False) -> Cancelled: ...

    async def reset(self, session: SessionId, *, by: str, message: str = "") -> Cancelled: ...

    def cancelled(self, done: Cancelled | None) -> None:
        """Stop the workers of runs that a commit has already ended."""
        ...

    async def answer(
        self,
        approval: str,
        *,
        allow: bool,
        by: Principal,
        scope: GrantScope = GrantScope.ONCE,
        words: str = "",
    ) -> Approval: ...


class _Lane(Struct, eq=False):
    wake: LaneWake
    task: asyncio.Task[None] | None = None
    again: bool = False  # woken during a run: check once more before sleeping
    mode: QueueMode = QueueMode.COLLECT
    run: RunId | None = None  # the active run, once the claim has returned
    ended: set[RunId] = field(default_factory=set[RunId])  # cancelled before their claim returned
    cancelled: bool = False
    begun: Work | None = None  # a run that started when its envelope was accepted, and has no worker yet

    def take_begun(self) -> Work | None:
        begun, self.begun = self.begun, None
        return begun


class _Seat:
    """A slot reserved for an envelope that is being accepted."""

    def __init__(self, engine: EmbeddedEngine, agent: str, lane: LaneKind, run_id: RunId) -> None:
        self._engine = engine
        self.agent = agent
        self.lane: LaneKind = lane
        self.run_id = run_id

    def begin(self, page: Page, session: Session, agent: Agent, envelope: Envelope) -> Work:
        return begin(page, session, agent, envelope, run_id=self.run_id, terms=self._engine.terms)

    def settle(self, begun: object | None) -> None:
        self._engine.seated(self, begun if isinstance(begun, Work) else None)

    def doubt(self) -> None:
        self._engine.look_for_lanes()


class Look(Struct, frozen=True):
    """What the alarm found in the store."""

    lanes: list[LaneWake]
    rooms: list[str]
    overdue: bool
    put_away: bool  # subagent sessions are due for cleanup
    slots: bool  # occurrences of schedules are due
    next_ms: int | None
    latest_ms: int  # time of the newest commit seen: later envelopes are due no earlier
    full: bool  # the scan hit its limit, so there may be more lanes


async def nobody_cares(_session: SessionId, _because: str) -> None:
    """Do nothing, for sessions that leave nothing running."""


class EmbeddedEngine:
    """An engine for one process and one database."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        ids: Ids,
        runners: Mapping[str, Runner],
        *,
        live: Live,
        homes: Callable[[str], Path],
        zone: ZoneInfo,
        slots: Slots | None = None,
        ready_max: int = READY_MAX,
        deliver: Callable[[str], None] = lambda _channel: None,
        choices: Choices | None = None,
        skills: Skills = no_skills,
        asking: Callable[[], ApprovalSettings] = ApprovalSettings,
        defaults: Callable[[], Defaults] = plain,
        sessions: Callable[[], SessionSettings] = plain_sessions,
        words: Callable[[str], Words] = plain_words,
        presence: Presence | None = None,
        by_number: Callable[[str], bool] = lambda _instance: False,
        speak: Speak | None = None,
        session_ended: Callable[[SessionId, str], Coroutine[Any, Any, None]] = nobody_cares,
        gates: AskGate = no_gates,
        checklists: ReadChecklist = no_checklists,
        tick_max_s: float = TICK_MAX_S,
        faults: Faults = NO_FAULTS,
    ) -> None:
        """`session_ended` ends processes of a session that is deleted or cleaned up.
        `answers_by_number` returns whether a connector's questions are answered with numbers.
        `synthesize_voice` makes the voice message of an answer.

        `tick_max_s` is the maximum time between two checks. It may be long if the clock cannot
        jump.
        """
        self._store = store
        self._session_ended = session_ended
        self._clock = clock
        self._ids = ids
        self._deliver = deliver
        choices = choices or NoChoices()
        self.terms = Terms(
            zone=zone,
            opened_ms=to_ms(clock.now()),
            asking=asking,
            defaults=defaults,
            sessions=sessions,
            words=words,
        )
        self._live = live
        self._commands = Commands(
            store,
            clock,
            zone=zone,
            choices=choices,
            skills=skills,
            sessions=sessions,
            said=self._said,
            done=self._commanded,
            by_number=by_number,
        )
        self._watch = Watch(store, clock, runners, live, self.terms, homes, faults, self.wake, presence, speak)
        self._presence = presence
        self._concurrency: dict[str, int | None] = {}  # None: the default concurrency
        self._ready = Ready(slots or Slots(), self._concurrency_of, ready_max=ready_max)
        self._lanes: dict[SessionId, _Lane] = {}
        self._left_open: set[SessionId] = set()
        self._in_hand: set[RunId] = set()  # runs started on accept, whose lane is not known yet
        self._side: set[asyncio.Task[Any]] = set()
        self._looked_ms = 0
        self._rings_ms = LATEST_MS
        self._refill = False
        self._tick_max_s = tick_max_s
        self._alarm = Alarm(clock, self._ring, tick_max_s=tick_max_s)
        self._clockwork = Clockwork(store, clock, gates, self._wake_all, zone, checklists)
        store.on_commit(self._alarm.poke, tables.schedule_slots)
        self._stopping = False

    def _concurrency_of(self, agent: str) -> int:
        own = self._concurrency.get(agent, 1)
        return self.terms.defaults().concurrency if own is None else own

    async def start(self) -> None:
        self._concurrency = await self._store.read(
            lambda conn: {agent.name: agent.concurrency for agent in agents.everyone(conn)}
        )
        active = await self._store.scan(lambda conn: sessions.active(conn, limit=LANES_LOOKED_UP_MAX))
        for session, agent, origin in active:
            self.wake(LaneWake(session, agent, lane_kind(origin)))
        self._ready.overflowed = self._ready.overflowed or len(active) == LANES_LOOKED_UP_MAX
        await self._clockwork.start()
        self._alarm.start()

    async def stop(self, *, drain_s: float = DRAIN_S) -> None:
        self._stopping = True
        await self._alarm.stop()
        tasks = [lane.task for lane in self._lanes.values() if lane.task is not None]
        if tasks and drain_s > 0:
            await asyncio.wait(tasks, timeout=drain_s)
        self.abandon()
        await self._clockwork.stop()
        await asyncio.gather(*tasks, *self._side, return_exceptions=True)

    def abandon(self) -> None:
        """Drop everything at once, as a crash would. The store knows how to continue."""
        self._stopping = True
        self._alarm.abandon()
        self._clockwork.abandon()
        for lane in self._lanes.values():
            if lane.task is not None:
                lane.task.cancel()
        for task in self._side:
            task.cancel()
        if self._presence is not None:
            self._presence.abandon()

    @property
    def active(self) -> int:
        """Number of lanes with an active task."""
        return len(self._lanes)

    def wake(self, wake: Wake) -> None:
        match wake:
            case RoomWake(channel):
                self._deliver(channel)
            case ClockWake(at_ms):
                if at_ms <= self._rings_ms or self._rings_ms < self._now_ms():
                    self._alarm.poke()
            case LaneWake():
                self._wake_lane(wake)

    def seat(self, agent: str, lane: LaneKind) -> Seat | None:
        if self._stopping or agent not in self._concurrency or not self._ready.hold(agent, lane):
            return None
        seat = _Seat(self, agent, lane, RunId(self._ids.new()))
        self._in_hand.add(seat.run_id)
        return seat

    def seated(self, seat: _Seat, begun: Work | None) -> None:
        """End a slot reservation after its commit: work on the started run, or release the slot."""
        if begun is None or self._stopping:
            # A run that started during shutdown is resumed at the next start.
            self._in_hand.discard(seat.run_id)
            self._ready.release(seat.agent, seat.lane)
            self._dispatch()
            return
        lane = self._lanes.get(begun.session.id)
        if lane is None:
            lane = _Lane(LaneWake(begun.session.id, seat.agent, seat.lane), begun=begun)
            self._start(lane)
        else:
            # The lane is ending or has found nothing due. Either way it continues with this run.
            lane.begun = begun
            self._ready.release(seat.agent, seat.lane)
            self._dispatch()

    def standing(self) -> Standing:
        return self._ready.standing()

    def slots_changed(self, slots: Slots) -> None:
        """Apply new slot limits."""
        self._ready.resize(slots)
        self._dispatch()

    def agent_changed(self, name: str, concurrency: int | None) -> None:
        self._concurrency[name] = concurrency
        self._dispatch()

    def agent_removed(self, name: str) -> None:
        """Remove the agent. Its lanes still run once, to settle the envelopes that wait."""
        self._concurrency.pop(name, None)

    async def cancel(self, session: SessionId, *, by: str, why: str, clear_due: bool = False) -> Cancelled:
        return await self._cancel(session, by=by, why=why, clear_due=clear_due)

    async def reset(self, session: SessionId, *, by: str, message: str = "") -> Cancelled:
        return await self._cancel(session, by=by, why="the session was reset", reset=message)

    async def answer(
        self,
        approval: str,
        *,
        allow: bool,
        by: Principal,
        scope: GrantScope = GrantScope.ONCE,
        words: str = "",
    ) -> Approval:
        body = partial(
            answer_approval,
            approval_text=approval,
            allow=allow,
            by=by,
            envelope_id=EnvelopeId(self._ids.new()),
            now_ms=self._now_ms(),
            scope=scope,
            words=words,
        )

        def decided(done: tuple[Approval, tuple[Wake, ...]] | None) -> None:
            if done is not None:
                self._wake_all(done[1])

        return (await self._store.write(body, point="decide", then=decided))[0]

    async def request(self, run: RunId, *, call: str, agent: str, permission: Permission, reason: str) -> Approval:
        """Ask a person for a permission while the run goes on."""
        body = partial(
            request,
            run_id=run,
            call=call,
            agent=agent,
            permission=permission,
            reason=reason,
            now_ms=self._now_ms(),
            asking=self.terms.asking(),
        )

        def asked(done: tuple[Approval, tuple[Wake, ...]] | None) -> None:
            if done is not None:
                self._wake_all(done[1])

        return (await self._store.write(body, point="ask", then=asked))[0]

    async def hand_over(self, handing: Handing) -> Handed:
        def done(handed: tuple[Handed, tuple[Wake, ...]] | None) -> None:
            if handed is not None:
                self._wake_all(handed[1])

        body = partial(hand_over, handing=handing, now_ms=self._now_ms(), defaults=self.terms.defaults())
        return (await self._store.write(body, point="delegate", then=done))[0]

    async def pass_on(self, word: Word) -> Heard:
        def done(heard: tuple[Heard, tuple[Wake, ...]] | None) -> None:
            if heard is not None:
                self._wake_all(heard[1])

        body = partial(pass_on, word=word, now_ms=self._now_ms())
        return (await self._store.write(body, point="word", then=done))[0]

    async def command(self, draft: Draft, asked: Asked) -> Receipt | Draft:
        return await self._commands.take(draft, asked)

    def _commanded(self, commanded: Commanded | None) -> None:
        if commanded is not None:
            self.cancelled(commanded.cancelled)
            self._wake_all(commanded.wakes)

    # Lanes

    def _wake_lane(self, wake: LaneWake) -> None:
        lane = self._lanes.get(wake.session)
        if lane is None:
            self._ready.push(wake)
            self._dispatch()
            return
        lane.again = True
        if wake.loud and lane.mode is QueueMode.INTERRUPT:
            self._aside(self._interrupt(wake.session))

    def _wake_all(self, wakes: tuple[Wake, ...]) -> None:
        for wake in wakes:
            self.wake(wake)

    def _dispatch(self) -> None:
        while not self._stopping and (wake := self._ready.take()) is not None:
            self._start(_Lane(wake))
        if self._ready.overflowed and len(self._ready) == 0:
            # Lanes that did not fit in memory are still in the store.
            self._ready.overflowed = False
            self.look_for_lanes()

    def look_for_lanes(self) -> None:
        """Trigger a full scan of the store for lanes that have something to do."""
        self._refill = True
        self._alarm.poke()

    def _start(self, lane: _Lane) -> None:
        self._lanes[lane.wake.session] = lane
        lane.task = asyncio.create_task(self._drain(lane))

    async def _drain(self, lane: _Lane) -> None:
        """Work on a lane until nothing is due, or until another lane waits for its slot."""
        wake = lane.wake
        more = False
        try:
            more = await self._work_lane(lane)
        except Stale as error:
            log.info("run taken over", extra={"session": wake.session, "error": error.sentence})
            more = True
        except StoreError as error:
            log.error("store failed, lane waits", extra={"session": wake.session, "code": error.code})
            if lane.run is not None:  # otherwise an open run was interrupted before this task claimed anything
                self._left_open.add(wake.session)
            self._aside(self._wake_later(wake))
        except asyncio.CancelledError:
            if not lane.cancelled:
                raise
        except Exception:
            log.exception("lane broke", extra={"session": wake.session})
            self._aside(self._wake_later(wake))
        finally:
            self._lanes.pop(wake.session, None)
            self._ready.release(wake.agent, wake.lane)
            if lane.begun is not None:  # the task ended before it reached this run
                self._in_hand.discard(lane.begun.run.id)
                self._left_open.add(wake.session)
                more = True
            if not self._stopping:
                if more or lane.again or lane.cancelled:
                    self._ready.push(wake)
                self._dispatch()

    async def _work_lane(self, lane: _Lane) -> bool:
        """Claim and execute runs. Returns whether more may be due."""
        lane.again = False
        claimed: Work | Nothing | None = lane.take_begun() or await self._claim(lane.wake.session)
        more = False
        while claimed is not None:
            self._wake_all(claimed.wakes)
            if isinstance(claimed, Nothing):
                more, following = claimed.again, None
                if claimed.after_s:
                    self._aside(self._wake_later(lane.wake, claimed.after_s))
            elif claimed.run.id in lane.ended:
                self._in_hand.discard(claimed.run.id)
                return True
            else:
                ended = await self._work(lane, claimed)
                more, following = ended.more, ended.next
            claimed = following or lane.take_begun()
        return more

    async def _work(self, lane: _Lane, work: Work) -> Ended:
        lane.run, lane.mode = work.run.id, work.queue.mode
        if lane.again and lane.mode is QueueMode.INTERRUPT:
            self._aside(self._interrupt(lane.wake.session))
        try:
            ended = await self._watch.over(
                work,
                next_run=RunId(self._ids.new()),
                has_mail=lambda: lane.again,
                contended=lambda: self._stopping or self._ready.contended(lane.wake),
            )
        finally:
            self._in_hand.discard(work.run.id)
        return ended

    async def _claim(self, session: SessionId) -> Work | Nothing:
        crashed = session not in self._left_open
        body = partial(
            claim,
            session_id=session,
            run_id=RunId(self._ids.new()),
            now_ms=self._now_ms(),
            terms=self.terms,
            crashed=crashed,
            in_hand=self._in_hand,
        )
        claimed = await self._store.write(body, point="claim")
        self._left_open.discard(session)
        return claimed

    # Cancelling

    async def _interrupt(self, session: SessionId) -> None:
        try:
            await self._cancel(session, by="house", why=NEWER, only_for_newer=True)
        except StoreError as error:
            log.error("store failed, run not interrupted", extra={"session": session, "code": error.code})

    async def _cancel(
        self,
        session: SessionId,
        *,
        by: str,
        why: str,
        clear_due: bool = False,
        only_for_newer: bool = False,
        reset: str | None = None,
    ) -> Cancelled:
        body = partial(
            cancel,
            session_id=session,
            by=by,
            why=why,
            now_ms=self._now_ms(),
            clear_due=clear_due,
            only_for_newer=only_for_newer,
            reset=reset,
            said=self._said(),
        )
        return await self._store.write(body, point="cancel", then=self.cancelled)

    def _said(self) -> dict[RunId, Said]:
        """Return the text of replies that models are streaming now."""
        return {partial.run: Said(partial.turn, partial.text) for partial in self._live.partials()}

    def cancelled(self, done: Cancelled | None) -> None:
        """Stop workers after the commit. Their epoch is outdated, so they can write nothing more."""
        if done is None:
            return
        for session_id, run in zip(done.lanes, done.runs, strict=True):
            lane = self._lanes.get(session_id)
            if lane is None or lane.task is None:
                continue
            if lane.run == run:
                lane.cancelled = True
                lane.task.cancel()
            else:
                lane.ended.add(run)
        self._wake_all(done.wakes)

    # The clock

    async def _ring(self) -> float | None:
        """Wake everything that became due. Returns the seconds until the next alarm."""
        now_ms = self._now_ms()
        self._rings_ms = LATEST_MS  # a commit during the scan may be missed, so any wake-up must trigger the alarm
        refill, self._refill = self._refill, False
        body = partial(look_around, since_ms=0 if refill else self._looked_ms, now_ms=now_ms, active=refill)
        try:
            look = await self._store.scan(body)
        except BaseException:
            self._refill = self._refill or refill
            raise
        for lane in look.lanes:
            self.wake(lane)
        for room in look.rooms:
            self._deliver(room)
        self._ready.overflowed = self._ready.overflowed or look.full
        self._looked_ms = look.latest_ms
        if look.overdue:
            closed = await self._store.write(partial(sweep, now_ms=now_ms, asking=self.terms.asking()), point="sweep")
            self._wake_all(closed)
        if look.put_away:
            over = await self._store.write(partial(put_away, now_ms=now_ms), point="put-away")
            for session in over:
                self._aside(self._session_ended(session, "its session was put away"))
            self._alarm.poke()  # there may be more than one commit's worth
        if look.slots:
            await self._clockwork.strike()
        now_ms = self._now_ms()  # read the clock again: the scan may have taken a while
        next_s = self._tick_max_s if look.next_ms is None else max(0.0, (look.next_ms - now_ms) / 1000)
        wait_s = min(next_s, self._tick_max_s)
        self._rings_ms = now_ms + round(wait_s * 1000)
        return wait_s

    async def _wake_later(self, wake: LaneWake, seconds: float = STORE_RETRY_S) -> None:
        await self._clock.sleep(seconds)
        self.wake(wake)

    def _aside(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._side.add(task)
        task.add_done_callback(self._side.discard)

    def _now_ms(self) -> int:
        return to_ms(self._clock.now())


def look_around(conn: sa.Connection, *, since_ms: int, now_ms: int, active: bool = False) -> Look:
    """Return everything that is due now, and the next time to check.

    Scans from `since_ms` on, inclusive. An envelope may carry the time of the last commit that the
    previous scan saw, but never an earlier one. `include_active` finds every lane that has
    something to do.
    """
    newest_ms = latest_ms(conn)
    at_ms = max(now_ms, newest_ms)  # the same time that a claim uses: the server's time never goes back
    most = LANES_LOOKED_UP_MAX
    due = envelopes.due_lanes(conn, since_ms=since_ms - 1, now_ms=at_ms, limit=most)
    waking = runs.waking(conn, at_ms, limit=most)
    awake = sessions.active(conn, limit=most) if active else []
    lanes = [LaneWake(lane.session, lane.agent, lane_kind(OriginKind(lane.origin_kind))) for lane in due]
    lanes += [LaneWake(session, agent, lane) for session, agent, lane in waking]
    lanes += [LaneWake(session, agent, lane_kind(origin)) for session, agent, origin in awake]
    moments = [
        envelopes.next_moment_ms(conn, at_ms),
        runs.next_wake_ms(conn, after_ms=at_ms),
        approvals.next_moment_ms(conn),
        delegations.next_archive_ms(conn),
        schedules.next_clock_ms(conn),
    ]
    return Look(
        lanes=lanes,
        rooms=envelopes.due_rooms(conn, at_ms, limit=most),
        overdue=any(m is not None and m <= now_ms for m in (envelopes.next_expiry_ms(conn), moments[2]))
        or bool(envelopes.due_for_people(conn, at_ms, limit=1)),
        put_away=moments[3] is not None and moments[3] <= now_ms,
        slots=moments[4] is not None and moments[4] <= at_ms,
        next_ms=min((m for m in moments if m is not None), default=None),
        latest_ms=newest_ms,
        full=most in (len(due), len(waking), len(awake)),
    )


def sweep(conn: sa.Connection, *, now_ms: int, asking: ApprovalSettings) -> tuple[Wake, ...]:
    """Settle expired envelopes and approvals, up to a limit per commit, and notify their senders.

    Also delivers scheduled envelopes for people that are due, and escalates approvals.
    """
    page = Page(conn, now_ms)
    wakes: list[Wake] = []
    expired: list[Envelope] = envelopes.expired(conn, now_ms, limit=CLOSED_AT_ONCE_MAX)
    for envelope in expired:
        because = "it expired before its turn came"
        wakes += settle_and_tell(page, envelope, Outcome.EXPIRED, because=because, text=f"Not worked on: {because}.")
    hand_over_due(page)
    wakes += expire(page)
    wakes += escalate(page, asking)
    page.close()
    return (*wakes, ClockWake())
