"""The embedded engine: wakes lanes within the process, and runs one asyncio task for each active lane.

A wake-up only names a lane. The work of the lane is read from the store.
"""

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

from retinue.config.agent_defaults import AgentDefaults, built_in_agent_defaults
from retinue.config.sessions import SessionSettings
from retinue.config.sessions import built_in_session_settings as plain_sessions
from retinue.config.tools import ApprovalSettings
from retinue.domain.agent import Agent
from retinue.domain.agent_message import AgentMessage, AgentMessageReceipt
from retinue.domain.approval import Approval
from retinue.domain.delegation_request import DelegationRequest, DelegationStatus
from retinue.domain.envelope import Envelope, EnvelopeDraft, Outcome, Receipt
from retinue.domain.errors import StaleEpoch, StoreError
from retinue.domain.grant import GrantScope
from retinue.domain.ids import EnvelopeId, RunId, SessionId
from retinue.domain.permission import Permission
from retinue.domain.ports import Clock, CrashPoints, IdSource, ReadChecklist, RunGate
from retinue.domain.principal import Principal
from retinue.domain.reply_delivery import ReplyDelivery, default_reply_delivery
from retinue.domain.session import LaneKind, OriginKind, QueueMode, Session, lane_kind_of
from retinue.domain.slash_command import ParsedCommands
from retinue.domain.times import to_ms
from retinue.engine.agent_messages import send_agent_message
from retinue.engine.approvals import answer_approval, escalate_overdue, expire_overdue, request_permission
from retinue.engine.delegations import delegate
from retinue.engine.event_broadcast import EventBroadcast
from retinue.engine.heartbeats import no_checklist_reader
from retinue.engine.lanes import WAITING_LANES_MAX, LaneQueue, SlotLimits, SlotStatus
from retinue.engine.run_cancel import NEWER_ENVELOPE, CancelResult, cancel_runs
from retinue.engine.run_claim import CLOSED_PER_COMMIT_MAX, ClaimSettings, claim_lane, start_run_on_accept
from retinue.engine.run_context import ClaimedRun, NothingClaimed
from retinue.engine.run_finish import UnfinishedReply
from retinue.engine.run_worker import RunWorker, SynthesizeVoice
from retinue.engine.scheduler import Scheduler, no_gate_runner
from retinue.engine.session_setting_commands import AvailableOptions, NoAvailableOptions
from retinue.engine.slash_commands import CommandResult, ListSkillCommands, SlashCommands, no_skill_commands
from retinue.engine.subagent_cleanup import clean_up_due_sessions
from retinue.intake.accept import (
    ChannelWake,
    LaneWake,
    SlotReservation,
    TimerWake,
    Wake,
    deliver_due,
    settle_and_notify,
)
from retinue.outbox.typing_and_previews import ProgressDisplays
from retinue.runners.base import Runner
from retinue.schedules.alarm import TICK_MAX_S, Alarm
from retinue.store.agents import agents
from retinue.store.core import tables
from retinue.store.core.connection import NO_FAULTS, Store
from retinue.store.core.transaction import Transaction, latest_ms
from retinue.store.envelopes import envelopes
from retinue.store.runs import approvals, delegations, runs
from retinue.store.schedules import schedules
from retinue.store.sessions import sessions

log = logging.getLogger(__name__)

DRAIN_S = 30.0
STORE_RETRY_S = 1.0
LANES_SCANNED_MAX = 1_000
FAR_FUTURE_MS = 2**62  # later than any real time


class Engine(Protocol):
    """The operations that the engine offers to the rest of the server."""

    async def start(self) -> None:
        """Resume interrupted runs, then start runs for all envelopes that are due."""
        ...

    async def stop(self, *, drain_s: float = DRAIN_S) -> None:
        """Claim no more work and wait up to `drain_s` for active runs. The next start resumes unfinished runs."""
        ...

    def wake(self, wake: Wake) -> None:
        """Notify the engine that work may be due, for example in a lane.

        A wake-up is only a hint: the store is authoritative, and the alarm also finds due work
        without a wake-up.
        """
        ...

    def reserve_slot(self, agent: str, lane: LaneKind) -> SlotReservation | None:
        """Reserve a free slot for an envelope that is being accepted, or return None.

        With a slot, the commit that accepts the envelope also starts its run. Without one, the run
        starts in the next commit. An engine may always return None.
        """
        ...

    def slot_status(self) -> SlotStatus:
        """Return how many slots are in use, and which lanes are waiting."""
        ...

    def agent_changed(self, name: str, concurrency: int | None) -> None:
        """Apply the concurrency limit of an agent that was added or changed."""
        ...

    def agent_removed(self, name: str) -> None:
        """Stop starting runs for a deleted agent."""
        ...

    async def request_permission(
        self, run: RunId, *, call: str, agent: str, permission: Permission, reason: str
    ) -> Approval: ...
    async def delegate(self, request: DelegationRequest) -> DelegationStatus:
        """Delegate work to another session, or return the status of an earlier delegation."""
        ...

    async def send_agent_message(self, message: AgentMessage) -> AgentMessageReceipt:
        """Send an agent message to another session."""
        ...

    async def execute_commands(self, draft: EnvelopeDraft, commands: ParsedCommands) -> Receipt | EnvelopeDraft:
        """Execute the slash commands of a message and answer them.

        If text for the agent remains, returns an envelope draft with this text instead of a
        receipt.
        """
        ...

    async def cancel(self, session: SessionId, *, by: str, reason: str, clear_due: bool = False) -> CancelResult: ...

    async def reset(self, session: SessionId, *, by: str, message: str = "") -> CancelResult: ...

    def stop_workers(self, result: CancelResult | None) -> None:
        """Stop the workers of runs that a commit has already ended in the store."""
        ...

    async def answer_approval(
        self,
        approval: str,
        *,
        allow: bool,
        by: Principal,
        scope: GrantScope = GrantScope.ONCE,
        comment: str = "",
    ) -> Approval: ...


class _Lane(Struct, eq=False):
    wake: LaneWake
    task: asyncio.Task[None] | None = None
    is_woken_again: bool = False  # woken during a run: check once more before sleeping
    mode: QueueMode = QueueMode.COLLECT
    run: RunId | None = None  # the active run, once the claim has returned
    cancelled_runs: set[RunId] = field(default_factory=set[RunId])  # cancelled before their claim returned
    is_cancelled: bool = False
    started_run: ClaimedRun | None = None  # a run that started when its envelope was accepted, and has no worker yet

    def take_started_run(self) -> ClaimedRun | None:
        begun, self.started_run = self.started_run, None
        return begun


class _SlotReservation:
    """A slot reserved for an envelope that is being accepted."""

    def __init__(self, engine: EmbeddedEngine, agent: str, lane: LaneKind, run_id: RunId) -> None:
        self._engine = engine
        self.agent = agent
        self.lane: LaneKind = lane
        self.run_id = run_id

    def start_run(self, tx: Transaction, session: Session, agent: Agent, envelope: Envelope) -> ClaimedRun:
        return start_run_on_accept(
            tx, session, agent, envelope, run_id=self.run_id, settings=self._engine.claim_settings
        )

    def after_commit(self, started_run: object | None) -> None:
        self._engine.end_reservation(self, started_run if isinstance(started_run, ClaimedRun) else None)

    def recheck(self) -> None:
        self._engine.request_full_scan()


class DueWork(Struct, frozen=True):
    """Due work that the alarm found in the store."""

    lanes: list[LaneWake]
    channels: list[str]
    has_overdue: bool
    has_sessions_to_clean_up: bool  # subagent sessions are due for cleanup
    has_occurrences: bool  # occurrences of schedules are due
    next_ms: int | None
    latest_ms: int  # time of the newest commit seen: later envelopes are due no earlier
    is_incomplete: bool  # the scan hit its limit, so there may be more lanes


async def ignore_session_end(_session: SessionId, _reason: str) -> None:
    """Do nothing when a session ends. The default for sessions that start no processes."""


class EmbeddedEngine:
    """Runs the engine in one process, on one database."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        ids: IdSource,
        runners: Mapping[str, Runner],
        *,
        broadcast: EventBroadcast,
        agent_directory_of: Callable[[str], Path],
        zone: ZoneInfo,
        slot_limits: SlotLimits | None = None,
        waiting_lanes_max: int = WAITING_LANES_MAX,
        deliver: Callable[[str], None] = lambda _channel: None,
        available_options: AvailableOptions | None = None,
        list_skill_commands: ListSkillCommands = no_skill_commands,
        approval_settings: Callable[[], ApprovalSettings] = ApprovalSettings,
        defaults: Callable[[], AgentDefaults] = built_in_agent_defaults,
        session_settings: Callable[[], SessionSettings] = plain_sessions,
        reply_delivery: Callable[[str], ReplyDelivery] = default_reply_delivery,
        typing: ProgressDisplays | None = None,
        answers_by_number: Callable[[str], bool] = lambda _instance: False,
        synthesize_voice: SynthesizeVoice | None = None,
        session_ended: Callable[[SessionId, str], Coroutine[Any, Any, None]] = ignore_session_end,
        run_gate: RunGate = no_gate_runner,
        read_checklist: ReadChecklist = no_checklist_reader,
        tick_max_s: float = TICK_MAX_S,
        faults: CrashPoints = NO_FAULTS,
    ) -> None:
        """Create an engine. It does nothing until `start` is called.

        `session_ended` ends processes of a session that is deleted or cleaned up.
        `answers_by_number` returns whether a connector's questions are answered with numbers.
        `synthesize_voice` makes the voice message of an answer. `tick_max_s` is the maximum time
        between two checks for due work. It may be long if the clock cannot jump.
        """
        self._store = store
        self._session_ended = session_ended
        self._clock = clock
        self._ids = ids
        self._deliver = deliver
        available_options = available_options or NoAvailableOptions()
        self.claim_settings = ClaimSettings(
            zone=zone,
            server_started_ms=to_ms(clock.now()),
            approval_settings=approval_settings,
            defaults=defaults,
            session_settings=session_settings,
            reply_delivery=reply_delivery,
        )
        self._broadcast = broadcast
        self._commands = SlashCommands(
            store,
            clock,
            zone=zone,
            available=available_options,
            list_skill_commands=list_skill_commands,
            session_settings=session_settings,
            unfinished_replies=self._unfinished_replies,
            on_committed=self._on_commands_executed,
            answers_by_number=answers_by_number,
        )
        self._worker = RunWorker(
            store,
            clock,
            runners,
            broadcast,
            self.claim_settings,
            agent_directory_of,
            faults,
            self.wake,
            typing,
            synthesize_voice,
        )
        self._typing = typing
        self._concurrency: dict[str, int | None] = {}  # None: the default concurrency
        self._lane_queue = LaneQueue(slot_limits or SlotLimits(), self._concurrency_of, waiting_max=waiting_lanes_max)
        self._lanes: dict[SessionId, _Lane] = {}
        self._store_failed_sessions: set[SessionId] = set()
        self._owned_runs: set[RunId] = set()  # runs started on accept, whose lane is not known yet
        self._side_tasks: set[asyncio.Task[Any]] = set()
        self._scanned_until_ms = 0
        self._next_alarm_ms = FAR_FUTURE_MS
        self._needs_full_scan = False
        self._tick_max_s = tick_max_s
        self._alarm = Alarm(clock, self._on_alarm, tick_max_s=tick_max_s)
        self._scheduler = Scheduler(store, clock, run_gate, self._wake_all, zone, read_checklist)
        store.on_commit(self._alarm.trigger, tables.occurrences)
        self._is_stopping = False

    def _concurrency_of(self, agent: str) -> int:
        own = self._concurrency.get(agent, 1)
        return self.claim_settings.defaults().concurrency if own is None else own

    async def start(self) -> None:
        self._concurrency = await self._store.read(
            lambda conn: {agent.name: agent.concurrency for agent in agents.list_all(conn)}
        )
        active = await self._store.scan(lambda conn: sessions.list_active(conn, limit=LANES_SCANNED_MAX))
        for session, agent, origin in active:
            self.wake(LaneWake(session, agent, lane_kind_of(origin)))
        self._lane_queue.has_overflowed = self._lane_queue.has_overflowed or len(active) == LANES_SCANNED_MAX
        await self._scheduler.start()
        self._alarm.start()

    async def stop(self, *, drain_s: float = DRAIN_S) -> None:
        self._is_stopping = True
        await self._alarm.stop()
        tasks = [lane.task for lane in self._lanes.values() if lane.task is not None]
        if tasks and drain_s > 0:
            await asyncio.wait(tasks, timeout=drain_s)
        self.abandon()
        await self._scheduler.stop()
        await asyncio.gather(*tasks, *self._side_tasks, return_exceptions=True)

    def abandon(self) -> None:
        """Stop at once, as in a crash. The next start resumes all work from the store."""
        self._is_stopping = True
        self._alarm.abandon()
        self._scheduler.abandon()
        for lane in self._lanes.values():
            if lane.task is not None:
                lane.task.cancel()
        for task in self._side_tasks:
            task.cancel()
        if self._typing is not None:
            self._typing.abandon()

    @property
    def active_lanes(self) -> int:
        """The number of lanes with an active task."""
        return len(self._lanes)

    def wake(self, wake: Wake) -> None:
        match wake:
            case ChannelWake(channel):
                self._deliver(channel)
            case TimerWake(at_ms):
                if at_ms <= self._next_alarm_ms or self._next_alarm_ms < self._now_ms():
                    self._alarm.trigger()
            case LaneWake():
                self._wake_lane(wake)

    def reserve_slot(self, agent: str, lane: LaneKind) -> SlotReservation | None:
        if self._is_stopping or agent not in self._concurrency or not self._lane_queue.reserve_slot(agent, lane):
            return None
        seat = _SlotReservation(self, agent, lane, RunId(self._ids.new()))
        self._owned_runs.add(seat.run_id)
        return seat

    def end_reservation(self, reservation: _SlotReservation, started_run: ClaimedRun | None) -> None:
        """End a slot reservation after the commit: execute the run that the commit started, or release the slot."""
        if started_run is None or self._is_stopping:
            # A run that started during shutdown is resumed at the next start.
            self._owned_runs.discard(reservation.run_id)
            self._lane_queue.release_slot(reservation.agent, reservation.lane)
            self._dispatch()
            return
        lane = self._lanes.get(started_run.session.id)
        if lane is None:
            lane = _Lane(LaneWake(started_run.session.id, reservation.agent, reservation.lane), started_run=started_run)
            self._start_lane(lane)
        else:
            # The lane is ending or has found nothing due. Either way it continues with this run.
            lane.started_run = started_run
            self._lane_queue.release_slot(reservation.agent, reservation.lane)
            self._dispatch()

    def slot_status(self) -> SlotStatus:
        return self._lane_queue.slot_status()

    def set_slot_limits(self, limits: SlotLimits) -> None:
        """Apply new slot limits."""
        self._lane_queue.set_limits(limits)
        self._dispatch()

    def agent_changed(self, name: str, concurrency: int | None) -> None:
        self._concurrency[name] = concurrency
        self._dispatch()

    def agent_removed(self, name: str) -> None:
        """Stop work for a deleted agent. Each of its lanes runs once more, to refuse the waiting envelopes."""
        self._concurrency.pop(name, None)

    async def cancel(self, session: SessionId, *, by: str, reason: str, clear_due: bool = False) -> CancelResult:
        return await self._cancel(session, by=by, reason=reason, clear_due=clear_due)

    async def reset(self, session: SessionId, *, by: str, message: str = "") -> CancelResult:
        return await self._cancel(session, by=by, reason="the session was reset", reset=message)

    async def answer_approval(
        self,
        approval: str,
        *,
        allow: bool,
        by: Principal,
        scope: GrantScope = GrantScope.ONCE,
        comment: str = "",
    ) -> Approval:
        body = partial(
            answer_approval,
            approval_id=approval,
            allow=allow,
            by=by,
            envelope_id=EnvelopeId(self._ids.new()),
            now_ms=self._now_ms(),
            scope=scope,
            comment=comment,
        )

        def decided(done: tuple[Approval, tuple[Wake, ...]] | None) -> None:
            if done is not None:
                self._wake_all(done[1])

        return (await self._store.write(body, point="decide", then=decided))[0]

    async def request_permission(
        self, run: RunId, *, call: str, agent: str, permission: Permission, reason: str
    ) -> Approval:
        """Ask a person for a permission, without suspending the run."""
        body = partial(
            request_permission,
            run_id=run,
            call=call,
            agent=agent,
            permission=permission,
            reason=reason,
            now_ms=self._now_ms(),
            settings=self.claim_settings.approval_settings(),
        )

        def asked(done: tuple[Approval, tuple[Wake, ...]] | None) -> None:
            if done is not None:
                self._wake_all(done[1])

        return (await self._store.write(body, point="ask", then=asked))[0]

    async def delegate(self, request: DelegationRequest) -> DelegationStatus:
        def done(delegated: tuple[DelegationStatus, tuple[Wake, ...]] | None) -> None:
            if delegated is not None:
                self._wake_all(delegated[1])

        body = partial(delegate, request=request, now_ms=self._now_ms(), defaults=self.claim_settings.defaults())
        return (await self._store.write(body, point="delegate", then=done))[0]

    async def send_agent_message(self, message: AgentMessage) -> AgentMessageReceipt:
        def done(heard: tuple[AgentMessageReceipt, tuple[Wake, ...]] | None) -> None:
            if heard is not None:
                self._wake_all(heard[1])

        body = partial(send_agent_message, message=message, now_ms=self._now_ms())
        return (await self._store.write(body, point="word", then=done))[0]

    async def execute_commands(self, draft: EnvelopeDraft, commands: ParsedCommands) -> Receipt | EnvelopeDraft:
        return await self._commands.handle(draft, commands)

    def _on_commands_executed(self, result: CommandResult | None) -> None:
        if result is not None:
            self.stop_workers(result.cancelled)
            self._wake_all(result.wakes)

    # Lanes

    def _wake_lane(self, wake: LaneWake) -> None:
        lane = self._lanes.get(wake.session)
        if lane is None:
            self._lane_queue.push(wake)
            self._dispatch()
            return
        lane.is_woken_again = True
        if wake.starts_run and lane.mode is QueueMode.INTERRUPT:
            self._spawn(self._interrupt(wake.session))

    def _wake_all(self, wakes: tuple[Wake, ...]) -> None:
        for wake in wakes:
            self.wake(wake)

    def _dispatch(self) -> None:
        while not self._is_stopping and (wake := self._lane_queue.take_next()) is not None:
            self._start_lane(_Lane(wake))
        if self._lane_queue.has_overflowed and len(self._lane_queue) == 0:
            # Lanes that did not fit in memory are still in the store.
            self._lane_queue.has_overflowed = False
            self.request_full_scan()

    def request_full_scan(self) -> None:
        """Trigger a full scan of the store for lanes that have something to do."""
        self._needs_full_scan = True
        self._alarm.trigger()

    def _start_lane(self, lane: _Lane) -> None:
        self._lanes[lane.wake.session] = lane
        lane.task = asyncio.create_task(self._run_lane(lane))

    async def _run_lane(self, lane: _Lane) -> None:
        """Work on a lane until nothing is due in it, or until another lane is waiting for its slot."""
        wake = lane.wake
        more = False
        try:
            more = await self._work_through_lane(lane)
        except StaleEpoch as error:
            log.info("run claimed by another worker", extra={"session": wake.session, "error": error.sentence})
            more = True
        except StoreError as error:
            log.error("store failed, lane waits", extra={"session": wake.session, "code": error.code})
            if lane.run is not None:  # otherwise an open run was interrupted before this task claimed anything
                self._store_failed_sessions.add(wake.session)
            self._spawn(self._wake_later(wake))
        except asyncio.CancelledError:
            if not lane.is_cancelled:
                raise
        except Exception:
            log.exception("lane failed", extra={"session": wake.session})
            self._spawn(self._wake_later(wake))
        finally:
            self._lanes.pop(wake.session, None)
            self._lane_queue.release_slot(wake.agent, wake.lane)
            if lane.started_run is not None:  # the task ended before it reached this run
                self._owned_runs.discard(lane.started_run.run.id)
                self._store_failed_sessions.add(wake.session)
                more = True
            if not self._is_stopping:
                if more or lane.is_woken_again or lane.is_cancelled:
                    self._lane_queue.push(wake)
                self._dispatch()

    async def _work_through_lane(self, lane: _Lane) -> bool:
        """Claim and execute the runs of a lane. Returns whether more work may be due."""
        lane.is_woken_again = False
        claimed: ClaimedRun | NothingClaimed | None = lane.take_started_run() or await self._claim(lane.wake.session)
        more = False
        while claimed is not None:
            self._wake_all(claimed.wakes)
            if isinstance(claimed, NothingClaimed):
                more, following = claimed.look_again, None
                if claimed.retry_after_s:
                    self._spawn(self._wake_later(lane.wake, claimed.retry_after_s))
            elif claimed.run.id in lane.cancelled_runs:
                self._owned_runs.discard(claimed.run.id)
                return True
            else:
                lane.run, lane.mode = claimed.run.id, claimed.queue.mode
                if lane.is_woken_again and lane.mode is QueueMode.INTERRUPT:
                    self._spawn(self._interrupt(lane.wake.session))
                try:
                    ended = await self._worker.execute(
                        claimed,
                        next_run_id=RunId(self._ids.new()),
                        has_new_envelopes=lambda: lane.is_woken_again,
                        is_contended=lambda: self._is_stopping or self._lane_queue.is_contended(lane.wake),
                    )
                finally:
                    self._owned_runs.discard(claimed.run.id)
                more, following = ended.more_due, ended.next_claim
            claimed = following or lane.take_started_run()
        return more

    async def _claim(self, session: SessionId) -> ClaimedRun | NothingClaimed:
        crashed = session not in self._store_failed_sessions
        body = partial(
            claim_lane,
            session_id=session,
            run_id=RunId(self._ids.new()),
            now_ms=self._now_ms(),
            settings=self.claim_settings,
            crashed=crashed,
            owned_runs=self._owned_runs,
        )
        claimed = await self._store.write(body, point="claim")
        self._store_failed_sessions.discard(session)
        return claimed

    # Cancelling

    async def _interrupt(self, session: SessionId) -> None:
        try:
            await self._cancel(session, by="server", reason=NEWER_ENVELOPE, only_for_newer=True)
        except StoreError as error:
            log.error("store failed, run not interrupted", extra={"session": session, "code": error.code})

    async def _cancel(
        self,
        session: SessionId,
        *,
        by: str,
        reason: str,
        clear_due: bool = False,
        only_for_newer: bool = False,
        reset: str | None = None,
    ) -> CancelResult:
        body = partial(
            cancel_runs,
            session_id=session,
            by=by,
            reason=reason,
            now_ms=self._now_ms(),
            clear_due=clear_due,
            only_for_newer=only_for_newer,
            reset=reset,
            unfinished=self._unfinished_replies(),
        )
        return await self._store.write(body, point="cancel", then=self.stop_workers)

    def _unfinished_replies(self) -> dict[RunId, UnfinishedReply]:
        """Return the text of replies that models are streaming now."""
        return {
            partial.run: UnfinishedReply(partial.turn, partial.text) for partial in self._broadcast.partial_replies()
        }

    def stop_workers(self, result: CancelResult | None) -> None:
        """Stop the workers of runs that a commit has ended. Their epoch is outdated, so they can no longer write."""
        if result is None:
            return
        for session_id, run in zip(result.sessions, result.runs, strict=True):
            lane = self._lanes.get(session_id)
            if lane is None or lane.task is None:
                continue
            if lane.run == run:
                lane.is_cancelled = True
                lane.task.cancel()
            else:
                lane.cancelled_runs.add(run)
        self._wake_all(result.wakes)

    # The clock

    async def _on_alarm(self) -> float | None:
        """Wake everything that has become due. Returns the seconds until the next alarm."""
        now_ms = self._now_ms()
        self._next_alarm_ms = (
            FAR_FUTURE_MS  # a commit during the scan may be missed, so any wake-up must trigger the alarm
        )
        refill, self._needs_full_scan = self._needs_full_scan, False
        body = partial(
            find_due_work, since_ms=0 if refill else self._scanned_until_ms, now_ms=now_ms, include_active=refill
        )
        try:
            look = await self._store.scan(body)
        except BaseException:
            self._needs_full_scan = self._needs_full_scan or refill
            raise
        for lane in look.lanes:
            self.wake(lane)
        for channel in look.channels:
            self._deliver(channel)
        self._lane_queue.has_overflowed = self._lane_queue.has_overflowed or look.is_incomplete
        self._scanned_until_ms = look.latest_ms
        if look.has_overdue:
            closed = await self._store.write(
                partial(settle_overdue, now_ms=now_ms, approval_settings=self.claim_settings.approval_settings()),
                point="sweep",
            )
            self._wake_all(closed)
        if look.has_sessions_to_clean_up:
            over = await self._store.write(partial(clean_up_due_sessions, now_ms=now_ms), point="clean-up")
            for session in over:
                self._spawn(self._session_ended(session, "its session was archived"))
            self._alarm.trigger()  # one commit may not have cleaned up all of them
        if look.has_occurrences:
            await self._scheduler.fire_due()
        now_ms = self._now_ms()  # read the clock again: the scan may have taken a while
        next_s = self._tick_max_s if look.next_ms is None else max(0.0, (look.next_ms - now_ms) / 1000)
        wait_s = min(next_s, self._tick_max_s)
        self._next_alarm_ms = now_ms + round(wait_s * 1000)
        return wait_s

    async def _wake_later(self, wake: LaneWake, seconds: float = STORE_RETRY_S) -> None:
        await self._clock.sleep(seconds)
        self.wake(wake)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._side_tasks.add(task)
        task.add_done_callback(self._side_tasks.discard)

    def _now_ms(self) -> int:
        return to_ms(self._clock.now())


def find_due_work(conn: sa.Connection, *, since_ms: int, now_ms: int, include_active: bool = False) -> DueWork:
    """Return all work that is due now, and the next time to check.

    Finds lanes with envelopes that became due at `since_ms` or later. A new envelope may have the
    same time as the last commit that the previous scan saw, but never an earlier time. With
    `include_active`, also finds the lanes of all active sessions.
    """
    newest_ms = latest_ms(conn)
    at_ms = max(now_ms, newest_ms)  # the same time that a claim uses: the server's time never goes back
    most = LANES_SCANNED_MAX
    due = envelopes.list_due_lanes(conn, since_ms=since_ms - 1, now_ms=at_ms, limit=most)
    waking = runs.list_due_suspended(conn, at_ms, limit=most)
    awake = sessions.list_active(conn, limit=most) if include_active else []
    lanes = [LaneWake(lane.session, lane.agent, lane_kind_of(OriginKind(lane.origin_kind))) for lane in due]
    lanes += [LaneWake(session, agent, lane) for session, agent, lane in waking]
    lanes += [LaneWake(session, agent, lane_kind_of(origin)) for session, agent, origin in awake]
    moments = [
        envelopes.next_due_or_expiry_ms(conn, at_ms),
        runs.next_wake_ms(conn, after_ms=at_ms),
        approvals.next_expiry_or_escalation_ms(conn),
        delegations.next_archive_ms(conn),
        schedules.next_clock_ms(conn),
    ]
    return DueWork(
        lanes=lanes,
        channels=envelopes.list_due_channels(conn, at_ms, limit=most),
        has_overdue=any(m is not None and m <= now_ms for m in (envelopes.next_expiry_ms(conn), moments[2]))
        or bool(envelopes.list_due_for_people(conn, at_ms, limit=1)),
        has_sessions_to_clean_up=moments[3] is not None and moments[3] <= now_ms,
        has_occurrences=moments[4] is not None and moments[4] <= at_ms,
        next_ms=min((m for m in moments if m is not None), default=None),
        latest_ms=newest_ms,
        is_incomplete=most in (len(due), len(waking), len(awake)),
    )


def settle_overdue(conn: sa.Connection, *, now_ms: int, approval_settings: ApprovalSettings) -> tuple[Wake, ...]:
    """Settle expired envelopes and approvals, up to a limit per commit, and notify their senders.

    Also delivers due scheduled envelopes to people, and escalates approvals.
    """
    tx = Transaction(conn, now_ms)
    wakes: list[Wake] = []
    expired: list[Envelope] = envelopes.list_expired(conn, now_ms, limit=CLOSED_PER_COMMIT_MAX)
    for envelope in expired:
        because = "it expired before its turn came"
        wakes += settle_and_notify(tx, envelope, Outcome.EXPIRED, because=because, text=f"Not processed: {because}.")
    deliver_due(tx)
    wakes += expire_overdue(tx)
    wakes += escalate_overdue(tx, approval_settings)
    tx.close()
    return (*wakes, TimerWake())
