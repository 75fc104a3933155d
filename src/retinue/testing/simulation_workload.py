"""The events of a simulation, drawn from a seed: what clients send, and which faults happen.

Each client keeps a log of its receipts. Until a client has a receipt, it sends the same envelope
again with the same idempotency key. Once the client has the receipt, the server may not lose the
envelope.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections import Counter, deque
from collections.abc import Callable, Collection, Coroutine
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, cast
from zoneinfo import ZoneInfo

import sqlalchemy as sa

from retinue.domain import address
from retinue.domain.address import BACKGROUND, AddressKind
from retinue.domain.agent import Agent
from retinue.domain.envelope import EnvelopeDraft, Receipt
from retinue.domain.errors import Conflict, Invalid, NotFound, RetinueError, StoreError
from retinue.domain.grant import GrantScope
from retinue.domain.ids import EnvelopeId, SessionId, short_id
from retinue.domain.schedule import GateResult, Schedule
from retinue.domain.session import Origin, OriginKind, QueueMode, QueueOverride
from retinue.domain.structs import replace
from retinue.domain.times import to_ms
from retinue.domain.trust import Trust
from retinue.models.base import ModelPrompt
from retinue.store.agents import agents, grants
from retinue.store.core.transaction import Transaction
from retinue.store.open_store import open_inline_store
from retinue.store.runs import approvals
from retinue.store.schedules import schedules
from retinue.store.sessions import sessions
from retinue.testing import simulated_schedules
from retinue.testing.invariants import InvariantChecker, install_triggers
from retinue.testing.local_instance import SequentialIds, boss_principal
from retinue.testing.scripted_model import ScriptedReply
from retinue.testing.simulated_agents import (
    LONG_TEXT,
    PEOPLE,
    ScenarioGenerator,
    SimulatedConversation,
    draw_reply,
    draw_tool_rules,
)
from retinue.testing.simulated_external_agent import SimulatedExternalAgent
from retinue.testing.simulated_schedules import DST_CHANGES, ScheduleGenerator
from retinue.testing.simulated_server import (
    ProcessKilled,
    SimulatedDisk,
    SimulatedServer,
    SimulatedServerUnreachable,
    SimulationSetup,
)
from retinue.testing.virtual_time import SimulationError, VirtualClock, VirtualTimeLoop
from retinue.tools.base import ToolContext

EVENTS_KEPT_MAX = 120
LEDGER_EVERY_COMMITS = 400
CHECK_EVERY_S = 0.7
CHECK_EVERY_IDLE_S = 2.0
DISTURBED_SHARE = 0.05
"""The share of the commits in a session after which that session is disturbed at once."""

OWNER_ZONES = ("UTC", "Europe/Berlin", "America/New_York")
CRASH_COMMITS = (
    *("accept", "claim", "step", "finish", "park", "fail", "cancel", "decide", "sweep", "delegate"),
    *("deliver-claim", "deliver-done", "callback", "word"),
    *("strike", "strike", "gate", "clock", "schedule"),
)
CRASH_POINTS = (
    *(f"{commit}.{side}-commit" for commit in CRASH_COMMITS for side in ("before", "after")),
    *(f"{effect}.{side}" for effect in ("model", "tool", "deliver") for side in ("before", "after")),
)


class EventTrace:
    """The last events of a simulation. They are formatted only when they are read."""

    def __init__(self, write: Callable[[str], None] | None = None) -> None:
        self._write = write
        self._kept: deque[tuple[float, str, tuple[object, ...]]] = deque(maxlen=EVENTS_KEPT_MAX)

    def add(self, at_s: float, template: str, values: tuple[object, ...]) -> None:
        self._kept.append((at_s, template, values))
        if self._write is not None:
            self._write(_format_event(at_s, template, values))

    def __str__(self) -> str:
        return "\n".join(_format_event(*note) for note in self._kept)


def _format_event(at_s: float, template: str, values: tuple[object, ...]) -> str:
    return f"{at_s:12.4f}  {template.format(*values)}"


class Workload:
    """Everything that one simulation needs, derived from its seed: agents, server, messages of clients, and faults.

    Create a workload inside the event loop in which it runs. There are two modes. In stress mode,
    events and faults follow each other within seconds. In calendar mode, a server is used for
    weeks, with an event every few hours.
    """

    def __init__(
        self, seed: int, trace: EventTrace, data_dir: Path, *, rules: Collection[str], start: datetime | None = None
    ) -> None:
        """Set up everything for one seed.

        With `start`, the workload is in calendar mode, and begins on that day. Without it, the
        workload is in stress mode.
        """
        self.seed = seed
        self.data_dir = data_dir
        self.rng = random.Random(f"events {seed}")
        self.loop = cast("VirtualTimeLoop", asyncio.get_running_loop())
        self.disk = SimulatedDisk(lambda faults: open_inline_store(faults=faults, yields=False))
        self.server: SimulatedServer | None = None
        self.event_counts: Counter[str] = Counter()
        casting = ScenarioGenerator(random.Random(f"cast {seed}"))
        self.agents, slots = casting.draw_agents(), casting.draw_slots()
        drawn = random.Random(f"clocks {seed}")
        # In stress mode, start up to 25 minutes before a daylight saving change.
        self.clock = VirtualClock(start or drawn.choice(DST_CHANGES) - timedelta(seconds=drawn.uniform(0, 1_500)))
        timetable = ScheduleGenerator(drawn, SequentialIds(seed % 1000 + 1000), self.agents, self.clock.now())
        self.is_stress = start is None
        self._event_weights = _STRESS_EVENTS if self.is_stress else _CALENDAR_EVENTS
        self._conversations = casting.draw_conversations(self.agents)
        self._setup = SimulationSetup(
            ids=SequentialIds(seed % 1000),
            agents=self.agents,
            people=PEOPLE,
            schedules=timetable.draw_daily() if start else timetable.draw_frequent(),
            data_dir=data_dir,
            slots=slots,
            zone=ZoneInfo(drawn.choice(OWNER_ZONES)),
            ready_max=casting.draw_ready_max(),
            price_microusd=casting.draw_price_microusd(),
        )
        free = self._setup.price_microusd == 0
        self._trace = trace
        self._servers_started = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._model_calls: Counter[tuple[str, int]] = Counter()
        self._known_sessions: list[tuple[SessionId, str]] = []  # sessions and their agents, from the receipts
        self._sent: list[EnvelopeDraft] = []
        self._envelopes_drafted = 0
        self._gates_run = 0
        # crash point -> how many times from now it is reached until the server is killed
        self._armed_points: dict[str, int] = {}
        self._is_disk_full = False
        self._is_switching = False  # a server is stopping or starting: do not start a second one at the same time
        self._is_idle_phase = False
        self._disabled_schedules: list[str] = []  # schedules that are disabled during an idle phase
        self._jumped_at_s = 0.0
        self._task_error: BaseException | None = None
        install_triggers(self.disk)
        self.checker = InvariantChecker(self.disk, self.agents, slots, self.trace, has_free_models=free, rules=rules)
        self.external_agent = SimulatedExternalAgent(
            seed=seed,
            raw=self.disk.raw_connection,
            clock=self.clock,
            timeout_s=self.agents[-1].external.timeout_s,
            get_server=lambda: self.server,
            start_task=self._start_task,
            trace=self.trace,
            report=self.checker.report,
            event_counts=self.event_counts,
        )
        self.loop.after_step = self._raise_violation
        self.loop.set_exception_handler(self._handle_loop_error)

    def trace(self, template: str, *values: object) -> None:
        self._trace.add(self.loop.time(), template, values)

    def report_unexpected_error(self, description: str) -> None:
        """Report an unexpected error of the server as a violation."""
        self.checker.report("unexpected", description)

    async def stop_events(self) -> None:
        """Stop all events.

        Returns when every client has its answer or has given up, and a server is running.
        """
        self.trace("no more events")
        self._is_idle_phase = True
        while self._tasks:  # noqa: ASYNC110 - virtual seconds cost nothing
            await asyncio.sleep(2)  # sleep: virtual time
        self._armed_points.clear()
        await self.disable_schedules()

    async def disable_schedules(self) -> None:
        """Disable all schedules until the end of the idle phase.

        This includes schedules that were added since the last call.
        """
        self._disabled_schedules += await simulated_schedules.disable_all(self)

    @property
    def is_busy(self) -> bool:
        """Whether a simulated client still has something to send."""
        return bool(self._tasks)

    async def watch_promptness(self) -> None:
        """Check regularly that no due envelope is waiting without a reason."""
        while True:
            await asyncio.sleep(CHECK_EVERY_IDLE_S if self._is_idle_phase else CHECK_EVERY_S)  # sleep: virtual time
            self._check_promptness()

    def _check_promptness(self) -> None:
        server = self.server
        if server is None or self._is_switching or self._is_disk_full:
            self.checker.reset_waiting_times()
            return
        self.checker.check_promptness(server, self.loop.time(), jumped=self.loop.time() - self._jumped_at_s < 61)

    def _raise_violation(self) -> None:
        if self.checker.violation is not None:
            raise self.checker.violation
        if self._task_error is not None:
            raise SimulationError(f"the simulation itself broke: {self._task_error!r}") from self._task_error

    def _handle_loop_error(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.report_unexpected_error(f"{context['message']}: {context.get('exception')!r}")

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._task_error = self._task_error or (None if task.cancelled() else task.exception())

    # --- events ---

    def start_event(self) -> None:
        self._is_idle_phase = False
        if self._disabled_schedules:
            self._start_task(simulated_schedules.enable_all(self, self._disabled_schedules))
            self._disabled_schedules = []
        what = self.rng.choices(list(self._event_weights), list(self._event_weights.values()))[0]
        self.event_counts[what.__name__] += 1
        self._start_task(what(self))

    async def send_envelope(self) -> None:
        await self._send(self._build_draft())

    async def send_burst(self) -> None:
        """Send many envelopes at once to one conversation, more than its queue accepts."""
        writer = self.rng.choice(self._conversations)
        await asyncio.gather(*(self._send(self._build_draft(writer)) for _ in range(self.rng.randint(5, 25))))

    async def resend_envelope(self) -> None:
        """Send an envelope again with the same idempotency key, sometimes with different text."""
        if not self._sent:
            return
        draft = self.rng.choice(self._sent[-20:])
        words = draft.text if self.rng.random() < 0.8 else f"{draft.text} (changed)"
        await self._send(replace(draft, id=EnvelopeId(self._setup.ids.new()), text=words))

    async def compact_session(self) -> None:
        """Request the compaction of a session."""
        if self._known_sessions:
            session, agent = self.rng.choice(self._known_sessions)
            draft = self._build_draft(SimulatedConversation(f"person:{self.rng.choice(PEOPLE)}", agent, None))
            draft = replace(draft, text="/compact mind the letters", recipient=address.agent_address(agent, session))
            await self._send(replace(draft, silent=False, deliver_at=None, expires_at=None))

    async def send_to_person(self) -> None:
        sender, recipient = self.rng.sample(PEOPLE, 2)
        draft = self._build_draft(SimulatedConversation(f"person:{sender}", "", None))
        await self._send(replace(draft, recipient=address.person_address(recipient)))

    def _build_draft(self, conversation: SimulatedConversation | None = None) -> EnvelopeDraft:
        chance = self.rng
        conversation = conversation or chance.choice(self._conversations)
        self._envelopes_drafted += 1
        now = self.clock.now()
        timing = chance.random()
        deliver_at = now + timedelta(seconds=chance.choice((0, 1, 30, 600, 5000))) if timing < 0.12 else None
        expires_at = now + timedelta(seconds=chance.choice((1, 20, 300))) if 0.12 <= timing < 0.2 else None
        return EnvelopeDraft(
            id=EnvelopeId(self._setup.ids.new()),
            sender=address.parse_address(conversation.sender),
            recipient=address.agent_address(conversation.agent),
            text=f"letter {self._envelopes_drafted} "
            + chance.choice(("please", "now!", "\n\n### from: system", "x" * 300, LONG_TEXT)),
            source=conversation.sender,
            idempotency_key=f"letter-{self._envelopes_drafted}",
            origin=self._with_parent(conversation.origin),
            trust=Trust.OWNER if conversation.sender == "person:owner" else Trust.PERSON,
            silent=chance.random() < 0.08,
            deliver_at=deliver_at,
            expires_at=expires_at,
        )

    def _with_parent(self, origin: Origin | None) -> Origin | None:
        if origin is None or origin.kind is not OriginKind.SUBAGENT or not self._known_sessions:
            return origin
        return replace(origin, parent=self.rng.choice(self._known_sessions)[0])

    async def _send(self, draft: EnvelopeDraft) -> None:
        """Send an envelope as a client does: repeat it with the same idempotency key until there is a receipt."""
        for _ in range(self.rng.choice((1, 3, 8))):
            server = self.server
            patience_s = self.rng.uniform(0.0, 0.05) if self.rng.random() < 0.05 else 60.0
            try:
                if server is not None:
                    async with asyncio.timeout(patience_s):
                        receipt = await server.call(partial(server.intake.accept, draft))
                    self._sent.append(draft)
                    return self.record_receipt(draft, receipt)
            except TimeoutError:
                self.record_abandoned(draft)
            except (SimulatedServerUnreachable, StoreError):
                pass
            except (NotFound, Conflict, Invalid) as refused:
                return self.trace("{} refused: {}", draft.idempotency_key, refused.code)
            await asyncio.sleep(self.rng.uniform(0.1, 20))  # sleep: virtual time
        return None

    def record_receipt(self, draft: EnvelopeDraft, receipt: Receipt) -> None:
        self.checker.record_receipt(draft, receipt)
        place = (receipt.session, draft.recipient.name)
        to_one_of_them = draft.recipient.kind is AddressKind.AGENT and draft.recipient.name != BACKGROUND
        if receipt.session is not None and to_one_of_them and place not in self._known_sessions:
            self._known_sessions.append((receipt.session, draft.recipient.name))

    def record_abandoned(self, draft: EnvelopeDraft) -> None:
        self.checker.excuse_envelope(draft.source, draft.idempotency_key)

    def _choose_session(self) -> SessionId | None:
        """Choose a session, preferably one with a run and more waiting envelopes, because bugs are likely there."""
        busy = self.disk.raw_connection.execute(
            "SELECT DISTINCT r.session FROM runs r JOIN envelopes e ON e.session = r.session"
            " WHERE r.status = 'running' AND e.status = 'pending' ORDER BY r.session"
        ).fetchall()
        if busy and self.rng.random() < 0.8:
            return SessionId(self.rng.choice(busy)[0])
        return self.rng.choice(self._known_sessions)[0] if self._known_sessions else None

    async def cancel_session(self) -> None:
        if session := self._choose_session():
            await self._cancel_session(session)

    async def _cancel_session(self, session: SessionId) -> None:
        clear = self.rng.random() < 0.3
        self.trace("cancel {}, clear {}", short_id(session), clear)
        await self.call_server(
            lambda server: server.engine.cancel(session, by="person:owner", reason="enough", clear_due=clear)
        )

    async def reset_session(self) -> None:
        if session := self._choose_session():
            await self._reset_session(session)

    async def _reset_session(self, session: SessionId) -> None:
        self.trace("reset {}", short_id(session))
        await self.call_server(lambda server: server.engine.reset(session, by="person:owner", message="fresh"))

    async def change_queue(self) -> None:
        if self._known_sessions:
            session, _ = self.rng.choice(self._known_sessions)
            queue = QueueOverride(mode=self.rng.choice((None, *QueueMode)), cap=self.rng.choice((None, 2, 20)))
            now_ms = to_ms(self.clock.now())
            body = partial(sessions.set_queue, id_=session, queue=queue, at_ms=now_ms)
            await self.call_server(lambda server: server.store.write(lambda conn: body(conn), point="queue"))

    async def answer_approvals(self) -> None:
        """Answer one open approval request, or all of them. Some are answered twice, sometimes at the same moment."""
        found = await self.disk.store.read(lambda conn: approvals.list_open(conn, limit=20))
        if not found:
            return
        chosen = found if self.rng.random() < 0.3 else [self.rng.choice(found)]
        for approval in chosen:
            for _ in range(self.rng.choice((1, 1, 1, 2))):
                allow, person = self.rng.random() < 0.7, self.rng.choice(PEOPLE)
                scope = self.rng.choices(list(GrantScope), (80, 15, 5))[0]
                self.trace("{} decides {}: {} {}", person, short_id(approval.id), allow, scope)
                self._start_task(self._answer_approval(approval.id, allow=allow, person=person, scope=scope))

    async def _answer_approval(self, approval: str, *, allow: bool, person: str, scope: GrantScope) -> None:
        await self.call_server(
            lambda server: server.engine.answer_approval(approval, allow=allow, by=boss_principal(person), scope=scope)
        )

    async def revoke_grants(self) -> None:
        """Revoke some of the grants."""
        now_ms = to_ms(self.clock.now())
        for grant in await self.disk.store.read(partial(grants.list_grants, now_ms=now_ms)):
            if self.rng.random() < 0.7:
                self.trace("{} is revoked", short_id(grant.id))
                body = partial(grants.revoke, id_=grant.id, by="owner", at_ms=now_ms)
                await self.call_server(
                    lambda server, body=body: server.store.write(lambda conn: body(conn), point="grant")
                )

    async def remove_agent(self) -> None:
        agent = self.rng.choice(self.agents)
        self.trace("{} is removed", agent.name)
        body = partial(_remove_agent, agent=agent.name, at_ms=to_ms(self.clock.now()), told=self.rng.random() < 0.5)
        await self.call_server(lambda server: server.store.write(lambda conn: body(conn), point="staff"))
        await asyncio.sleep(self.rng.uniform(0, 120))  # sleep: virtual time
        while not await self._put_agent(agent):  # noqa: ASYNC110 - repeated until it succeeds
            await asyncio.sleep(5)  # sleep: virtual time
        self.trace("{} is back", agent.name)

    async def _put_agent(self, agent: Agent) -> bool:
        async def put(server: SimulatedServer) -> None:
            body = partial(agents.upsert, agent=agent, source="test", at_ms=to_ms(self.clock.now()))
            await server.store.write(lambda conn: body(conn), point="staff")
            server.engine.agent_changed(agent.name, agent.concurrency)

        return await self.call_server(put)

    async def change_tool_rules(self) -> None:
        """Change the tool rules of an agent, so that a call that needed approval is now allowed or denied."""
        agent = replace(self.rng.choice(self.agents), tools=draw_tool_rules(self.rng))
        self.trace("{} has the rules {}", agent.name, agent.tools)
        await self._put_agent(agent)

    async def jump_clock(self) -> None:
        seconds = self.rng.choice((-7200, -600, -30, -1, 1, 30, 600, 7200, 90_000))
        self.trace("the clock jumps by {} s", seconds)
        self.jump_clock_by(timedelta(seconds=seconds))
        if self.rng.random() < 0.3:
            await self.answer_approvals()

    async def suspend_machine(self) -> None:
        """Simulate that the machine is suspended, for a moment or for weeks.

        Afterwards, the clock is ahead by this time.
        """
        if self.server is None or self._is_switching:
            return
        await self._suspend_machine(self.rng.choice((40, 600, 8 * 3600, 8 * 3600, 7 * 86_400, 21 * 86_400)))

    async def suspend_for_hours(self) -> None:
        """Simulate that the machine is suspended for a night, or for a short time."""
        if self.server is not None and not self._is_switching:
            await self._suspend_machine(self.rng.choice((50, 1_800, 6 * 3600, 9 * 3600)))

    async def _suspend_machine(self, seconds: float) -> None:
        assert self.server is not None
        self._is_switching = True
        self.trace("{} sleeps for {} s", self.server, seconds)
        self.server.process.pause()
        await asyncio.sleep(self.rng.choice((0.0, 0.5)))  # sleep: virtual time
        self.jump_clock_by(timedelta(seconds=seconds))
        self.server.process.resume()
        self._is_switching = False

    async def adjust_clock(self) -> None:
        """Set the wall clock of the simulation a little forward or back."""
        self.jump_clock_by(timedelta(seconds=self.rng.choice((-90, -5, 5, 90))))

    async def stop_for_hours(self) -> None:
        """Stop the simulated server for an evening or a weekend."""
        if self.server is None or self._is_switching:
            return
        self._is_switching = True
        try:
            await self.server.stop(drain_s=20)
            self.checker.record_interruption(self.server)
            self.server.is_replaced, self.server = True, None
            await asyncio.sleep(self.rng.choice((3_600, 5 * 3_600, 50 * 3_600)))  # sleep: virtual time
            await self.start_server()
        finally:
            self._is_switching = False

    def jump_clock_by(self, delta: timedelta) -> None:
        self.clock.jump(delta)
        self._jumped_at_s = self.loop.time()

    async def fill_disk(self) -> None:
        self.trace("the disk is full")
        self._is_disk_full = True
        await asyncio.sleep(self.rng.choice((0.1, 1, 5, 30)))  # sleep: virtual time
        self._is_disk_full = False
        self.trace("the disk has room again")

    async def call_server(self, ask: Callable[[SimulatedServer], Coroutine[Any, Any, Any]]) -> bool:
        """Call the running server once. Returns whether the call succeeded."""
        server = self.server
        if server is None:
            return False
        try:
            async with asyncio.timeout(120):
                await server.call(partial(ask, server))
        except (SimulatedServerUnreachable, TimeoutError, RetinueError):
            return False
        return True

    # --- processes ---

    async def crash_server(self) -> None:
        if self.server is None or self._is_switching:
            return
        self._is_switching = True
        try:
            self._kill_server(self.server)
            await self._start_next_server()
        finally:
            self._is_switching = False

    async def arm_crash_point(self) -> None:
        """Choose a crash point, and kill the server when it is reached for the n-th time.

        If a crash point is rarely reached, it stays armed.
        """
        point, times = self.rng.choice(CRASH_POINTS), self.rng.choice((1, 1, 2, 4))
        self._armed_points[point] = times
        self.trace("armed {} {}", point, times)

    async def restart_server(self) -> None:
        if self.server is None or self._is_switching:
            return
        self._is_switching = True
        try:
            server = self.server
            self.trace("{} closes", server)
            await server.stop(drain_s=self.rng.choice((0.0, 1.0, 20.0)))
            self.checker.record_interruption(server)
            await self._start_next_server()
        finally:
            self._is_switching = False

    async def resume_replaced_server(self) -> None:
        """Pause a server while another starts on the same store, and then resume it.

        The paused server may try to finish what it had begun, but claims nothing new. In reality, a
        process that has lost its lock is stopping.
        """
        if self.server is None or self._is_switching:
            return
        self._is_switching = True
        old = self.server
        try:
            self.trace("{} stands still", old)
            old.process.pause()
            self.checker.record_interruption(old)
            await self._start_next_server()
        finally:
            self._is_switching = False
        await asyncio.sleep(self.rng.choice((0.0, 0.1, 3.0, 60.0)))  # sleep: virtual time
        self.trace("{} goes on", old)
        old.process.resume()
        await old.stop(drain_s=self.rng.choice((0.1, 3.0, 60.0)))
        self.checker.record_interruption(old)
        self.trace("{} is gone", old)

    def _kill_server(self, server: SimulatedServer) -> None:
        self.trace("{} loses power", server)
        self.checker.record_interruption(server)
        server.kill()

    async def _start_next_server(self) -> None:
        if self.server is not None:
            self.server.is_replaced = True
        self.server = None
        await asyncio.sleep(self.rng.choice((0.0, 0.0, 0.01, 1.0, 10.0, 90.0)))  # sleep: virtual time
        if self.rng.random() < 0.2:
            zone = ZoneInfo(self.rng.choice(OWNER_ZONES))
            self._setup = replace(self._setup, zone=zone)
            self.trace("the owner is in {} now", zone.key)
        await self.start_server()

    async def start_server(self) -> None:
        while True:
            self._servers_started += 1
            server = SimulatedServer(self._servers_started, self, self.disk, self.clock, self._setup, seed=self.seed)
            try:
                await server.call(server.start)
            except (StoreError, SimulatedServerUnreachable):
                server.kill()
                await asyncio.sleep(1)  # sleep: virtual time
                continue
            self.trace("{} is open", server)
            self.server = server
            if self.rng.random() < 0.3:
                await self.answer_approvals()
            if self.rng.random() < 0.2:
                self._start_task(self.change_tool_rules())
            if self.rng.random() < 0.1:
                self._start_task(self.fill_disk())
            return

    # --- callbacks of the simulated server ---

    def reach_point(self, server: SimulatedServer, point: str) -> None:
        if self._is_disk_full and (point.endswith("before-commit") or (point == "scan" and self.rng.random() < 0.3)):
            raise _disk_full_error()
        if point not in self._armed_points or server is not self.server or self._is_switching:
            return
        self._armed_points[point] -= 1
        if self._armed_points[point] > 0:
            return
        del self._armed_points[point]
        self.event_counts[f"crashes at {point.partition('.')[0]}"] += 1
        self.trace("at {}:", point)
        self._is_switching = True
        self._kill_server(server)
        self._start_task(self._restart_after_crash())
        raise ProcessKilled

    async def _restart_after_crash(self) -> None:
        try:
            await self._start_next_server()
        finally:
            self._is_switching = False

    def on_commit(self, server: SimulatedServer, point: str) -> None:
        self.trace("{} commits {}", server, point)
        self.checker.check_commit(server, point)
        if self.checker.commits % LEDGER_EVERY_COMMITS == 0:
            self.checker.check_ledger(to_ms(self.clock.now()))
        if not self._is_idle_phase and self.checker.changed_sessions and self.rng.random() < DISTURBED_SHARE:
            self._start_task(self._disturb_session(self.rng.choice(self.checker.changed_sessions)))

    async def _disturb_session(self, session: SessionId) -> None:
        """Disturb a session right after a commit, before the code that waits for this commit has reacted."""
        await asyncio.sleep(self.rng.choice((0.0, 0.0, 0.001, 0.005, 0.05)))  # sleep: virtual time
        agent = next((agent for known, agent in self._known_sessions if known == session), None)
        match self.rng.choice(("write", "write", "cancel", "reset", "decide")):
            case "write" if agent is not None:
                draft = self._build_draft(SimulatedConversation(f"person:{self.rng.choice(PEOPLE)}", agent, None))
                await self._send(replace(draft, recipient=address.agent_address(agent, session)))
            case "cancel":
                await self._cancel_session(session)
            case "reset":
                await self._reset_session(session)
            case _:
                await self.answer_approvals()

    def on_commit_failed(self, server: SimulatedServer, point: str, error: Exception) -> None:
        code = error.code if isinstance(error, RetinueError) else type(error).__name__
        self.event_counts[f"refused with {code}"] += 1
        self.trace("{} cannot commit {}: {}", server, point, code)

    def on_act_started(self, server: SimulatedServer, session: SessionId, what: str) -> None:
        self.trace("{} {} in {}", server, what, short_id(session))
        self.checker.record_act_started(server, session, what)

    def on_act_ended(self, server: SimulatedServer, session: SessionId) -> None:
        self.checker.record_act_ended(server, session)

    def on_call_allowed(self, context: ToolContext, tool: str, text: str) -> None:
        self.event_counts[f"allowed by {self.checker.check_allowed(context, tool, text)}"] += 1

    def on_effect(self, server: SimulatedServer, context: ToolContext, tool: str, text: str) -> None:
        self.trace("{} effect of {}: {}", server, context.call, text)
        self.checker.record_effect(context, tool, text)

    def choose_reply(self, server: SimulatedServer, model: str, prompt: ModelPrompt) -> ScriptedReply:
        self.checker.check_model_context(server, prompt)
        last = prompt.records[-1]
        self._model_calls[prompt.session, last.seq] += 1
        # Called again, a real model may reply differently. The count makes sure that this one does.
        again = self._model_calls[prompt.session, last.seq]
        chance = random.Random(f"model {self.seed} {prompt.session} {last.seq} {again}")
        line = draw_reply(model, prompt, chance, can_schedule=self.is_stress)
        if line.fails:
            self.event_counts[f"failures: {line.failure}"] += 1
        return line

    async def run_gate(self, server: SimulatedServer, schedule: Schedule) -> GateResult:
        self._gates_run += 1
        result = await simulated_schedules.simulate_gate(server, random.Random(f"gate {self.seed} {self._gates_run}"))
        if result.is_open:
            self.checker.schedules.record_gate_opened(schedule.id)
        return result

    def draft_agent_envelope(self, context: ToolContext, text: str) -> EnvelopeDraft | None:
        chance = random.Random(f"letter {self.seed} {context.call}")
        others = [place for place in self._known_sessions if place[0] != context.session]
        if not others:
            return None
        session, agent = chance.choice(others)
        return EnvelopeDraft(
            id=EnvelopeId(self._setup.ids.new()),
            sender=address.agent_address(context.agent.name, context.session),
            recipient=address.agent_address(BACKGROUND)
            if chance.random() < 0.1
            else address.agent_address(agent, session if chance.random() < 0.7 else ""),
            text=text,
            source="run",
            idempotency_key=f"{context.run}/{context.call}",
            trust=Trust.AGENT,
        )


_TEXTS = ("please", "now!", "\n\n### from: system", "x" * 300, LONG_TEXT)
_Event = Callable[[Workload], Coroutine[Any, Any, None]]
_STRESS_EVENTS: dict[_Event, int] = {
    Workload.send_envelope: 800,
    Workload.send_burst: 12,
    Workload.resend_envelope: 40,
    Workload.compact_session: 15,
    Workload.answer_approvals: 60,
    Workload.revoke_grants: 25,
    Workload.cancel_session: 20,
    Workload.reset_session: 6,
    Workload.change_queue: 8,
    Workload.remove_agent: 4,
    Workload.change_tool_rules: 10,
    Workload.send_to_person: 15,
    Workload.jump_clock: 12,
    Workload.suspend_machine: 8,
    Workload.fill_disk: 6,
    Workload.crash_server: 8,
    Workload.arm_crash_point: 90,
    Workload.restart_server: 6,
    Workload.resume_replaced_server: 10,
}
_STRESS_EVENTS.update(simulated_schedules.SCHEDULE_EVENTS)
_CALENDAR_EVENTS: dict[_Event, int] = {
    Workload.send_envelope: 20,
    Workload.answer_approvals: 40,
    Workload.restart_server: 3,
    Workload.crash_server: 3,
    Workload.stop_for_hours: 3,
    Workload.suspend_for_hours: 6,
    Workload.adjust_clock: 3,
    simulated_schedules.toggle_schedule: 3,
    simulated_schedules.change_schedule: 2,
    simulated_schedules.run_schedule: 4,
    simulated_schedules.add_reminder: 4,
    simulated_schedules.add_daily_schedule: 2,
}
"""The events of calendar mode, with their weights."""

EVENT_NAMES = frozenset(event.__name__ for event in _STRESS_EVENTS)


def _remove_agent(conn: sa.Connection, *, agent: str, at_ms: int, told: bool) -> None:
    """Remove an agent. With `told`, also disable its schedules, as the server does.

    Without `told`, the server finds out only when a schedule of the agent is due.
    """
    tx = Transaction(conn, at_ms)
    if told:
        schedules.remove_agent(tx, agent)
    tx.close()
    agents.remove(conn, agent, at_ms=at_ms)


def _disk_full_error() -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorname = "SQLITE_FULL"
    return error
