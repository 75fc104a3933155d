"""The events of a simulation, drawn from a seed: what clients send, and which faults happen.

Each client keeps its own log of receipts. Until it has a receipt, it sends the same envelope again
with the same idempotency key. From then on the server may not lose the envelope.
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
from retinue.domain.envelope import Draft, Receipt
from retinue.domain.errors import Conflict, Invalid, NotFound, RetinueError, StoreError
from retinue.domain.grant import GrantScope
from retinue.domain.ids import EnvelopeId, SessionId, short
from retinue.domain.schedule import GateSaid, Schedule
from retinue.domain.session import Origin, OriginKind, QueueMode, QueueOverride
from retinue.domain.structs import replace
from retinue.domain.times import to_ms
from retinue.domain.trust import Trust
from retinue.models.base import Prompt
from retinue.store.agents import agents, grants
from retinue.store.core.transaction import Page
from retinue.store.open_store import open_inline
from retinue.store.runs import approvals
from retinue.store.schedules import schedules
from retinue.store.sessions import sessions
from retinue.testing import simulated_schedules
from retinue.testing.invariants import Judge, keep_watch
from retinue.testing.local_instance import CountedIds, boss
from retinue.testing.scripted_model import Line
from retinue.testing.simulated_cast import LONG_WORDS, PEOPLE, Casting, Correspondence, say, tool_rules
from retinue.testing.simulated_external_agent import FarEnd
from retinue.testing.simulated_schedules import CHANGES, Timetable
from retinue.testing.simulated_server import Disk, Furniture, PowerCut, SimulatedHouse, Unreachable
from retinue.testing.virtual_time import SimulationError, VirtualClock, VirtualTimeLoop
from retinue.tools.base import Scene

NOTES_KEPT = 120
LEDGER_EVERY_COMMITS = 400
LOOK_EVERY_S = 0.7
LOOK_EVERY_QUIET_S = 2.0
PROVOKED = 0.05
"""How many of the commits in a session provoke someone to strike it at once."""

OWNERS_ZONES = ("UTC", "Europe/Berlin", "America/New_York")
COMMITS = (
    *("accept", "claim", "step", "finish", "park", "fail", "cancel", "decide", "sweep", "delegate"),
    *("deliver-claim", "deliver-done", "callback", "word"),
    *("strike", "strike", "gate", "clock", "schedule"),
)
CRASH_POINTS = (
    *(f"{commit}.{side}-commit" for commit in COMMITS for side in ("before", "after")),
    *(f"{effect}.{side}" for effect in ("model", "tool", "deliver") for side in ("before", "after")),
)


class Notes:
    """The last events of a simulation. They are formatted only when they are read."""

    def __init__(self, tell: Callable[[str], None] | None = None) -> None:
        self._tell = tell
        self._kept: deque[tuple[float, str, tuple[object, ...]]] = deque(maxlen=NOTES_KEPT)

    def add(self, at_s: float, words: str, about: tuple[object, ...]) -> None:
        self._kept.append((at_s, words, about))
        if self._tell is not None:
            self._tell(_written(at_s, words, about))

    def __str__(self) -> str:
        return "\n".join(_written(*note) for note in self._kept)


def _written(at_s: float, words: str, about: tuple[object, ...]) -> str:
    return f"{at_s:12.4f}  {words.format(*about)}"


class Storm:
    """The environment of one seed. Create it inside the loop in which it runs.

    There are two modes. In stress mode, events and faults follow each other within seconds. In
    calendar mode, a server is used for weeks, with an event every few hours.
    """

    def __init__(
        self, seed: int, notes: Notes, home: Path, *, rules: Collection[str], begin: datetime | None = None
    ) -> None:
        """Set up the environment. With `start` it is calendar mode from that day on, else stress mode."""
        self.seed = seed
        self.home = home
        self.chance = random.Random(f"events {seed}")
        self.loop = cast("VirtualTimeLoop", asyncio.get_running_loop())
        self.disk = Disk(lambda faults: open_inline(faults=faults, yields=False))
        self.house: SimulatedHouse | None = None
        self.strikes: Counter[str] = Counter()
        casting = Casting(random.Random(f"cast {seed}"))
        self.staff, slots = casting.staff(), casting.slots()
        drawn = random.Random(f"clocks {seed}")
        # In stress mode, start up to 25 minutes before a daylight saving change.
        self.clock = VirtualClock(begin or drawn.choice(CHANGES) - timedelta(seconds=drawn.uniform(0, 1_500)))
        timetable = Timetable(drawn, CountedIds(seed % 1000 + 1000), self.staff, self.clock.now())
        self.stormy = begin is None
        self._events = _STORM if self.stormy else _WEEKS
        self._writers = casting.correspondence(self.staff)
        self._furniture = Furniture(
            ids=CountedIds(seed % 1000),
            staff=self.staff,
            people=PEOPLE,
            schedules=timetable.daily() if begin else timetable.often(),
            home=home,
            slots=slots,
            zone=ZoneInfo(drawn.choice(OWNERS_ZONES)),
            ready_max=casting.ready_max(),
            price_microusd=casting.price_microusd(),
        )
        free = self._furniture.price_microusd == 0
        self._notes = notes
        self._houses = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._asked: Counter[tuple[str, int]] = Counter()
        self._known: list[tuple[SessionId, str]] = []  # sessions and their agents, from the receipts
        self._sent: list[Draft] = []
        self._letters = 0
        self._gates = 0
        # crash point -> how many times from now it is reached until the server is killed
        self._armed: dict[str, int] = {}
        self._disk_full = False
        self._moving = False  # a server is stopping or starting: do not start a second one at the same time
        self._quiet = False
        self._stopped: list[str] = []  # schedules that are disabled during an idle phase
        self._jumped_s = 0.0
        self._broken: BaseException | None = None
        keep_watch(self.disk)
        self.judge = Judge(self.disk, self.staff, slots, self.note, free=free, rules=rules)
        self.far = FarEnd(
            seed=seed,
            raw=self.disk.raw,
            clock=self.clock,
            timeout_s=self.staff[-1].external.timeout_s,
            house=lambda: self.house,
            do=self._do,
            note=self.note,
            blame=self.judge.blame,
            strikes=self.strikes,
        )
        self.loop.after_step = self._after_step
        self.loop.set_exception_handler(self._unhandled)

    def note(self, words: str, *about: object) -> None:
        self._notes.add(self.loop.time(), words, about)

    def surprised(self, story: str) -> None:
        """Report an error that the server did not expect."""
        self.judge.blame("foreseen", story)

    async def calm_down(self) -> None:
        """Stop all events. Returns when every client has its answer or has given up, and a server is running."""
        self.note("everyone goes quiet")
        self._quiet = True
        while self._tasks:  # noqa: ASYNC110 - virtual seconds cost nothing
            await asyncio.sleep(2)  # sleep: virtual time
        self._armed.clear()
        await self.stop_the_clock()

    async def stop_the_clock(self) -> None:
        """Disable all schedules for now, including those added meanwhile."""
        self._stopped += await simulated_schedules.stop_all(self)

    @property
    def busy(self) -> bool:
        """Whether a client still has something to send."""
        return bool(self._tasks)

    async def keep_looking(self) -> None:
        """Check regularly that no due envelope waits without need."""
        while True:
            await asyncio.sleep(LOOK_EVERY_QUIET_S if self._quiet else LOOK_EVERY_S)  # sleep: virtual time
            self._look()

    def _look(self) -> None:
        house = self.house
        if house is None or self._moving or self._disk_full:
            self.judge.forgive_waiting()
            return
        self.judge.check_promptness(house, self.loop.time(), jumped=self.loop.time() - self._jumped_s < 61)

    def _after_step(self) -> None:
        if self.judge.violation is not None:
            raise self.judge.violation
        if self._broken is not None:
            raise SimulationError(f"the simulation itself broke: {self._broken!r}") from self._broken

    def _unhandled(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.surprised(f"{context['message']}: {context.get('exception')!r}")

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._broken = self._broken or (None if task.cancelled() else task.exception())

    # --- events ---

    def happen(self) -> None:
        self._quiet = False
        if self._stopped:
            self._do(simulated_schedules.start_again(self, self._stopped))
            self._stopped = []
        what = self.chance.choices(list(self._events), list(self._events.values()))[0]
        self.strikes[what.__name__] += 1
        self._do(what(self))

    async def write(self) -> None:
        await self._send(self._draft())

    async def flood(self) -> None:
        """Send many envelopes at once to one conversation, more than its queue accepts."""
        writer = self.chance.choice(self._writers)
        await asyncio.gather(*(self._send(self._draft(writer)) for _ in range(self.chance.randint(5, 25))))

    async def write_again(self) -> None:
        """Send an envelope again with the same key, sometimes with another text."""
        if not self._sent:
            return
        draft = self.chance.choice(self._sent[-20:])
        words = draft.text if self.chance.random() < 0.8 else f"{draft.text} (changed)"
        await self._send(replace(draft, id=EnvelopeId(self._furniture.ids.new()), text=words))

    async def compact(self) -> None:
        """Ask for a session to be compacted."""
        if self._known:
            session, agent = self.chance.choice(self._known)
            draft = self._draft(Correspondence(f"person:{self.chance.choice(PEOPLE)}", agent, None))
            draft = replace(draft, text="/compact mind the letters", recipient=address.agent(agent, session))
            await self._send(replace(draft, silent=False, deliver_at=None, expires_at=None))

    async def write_to_a_person(self) -> None:
        sender, recipient = self.chance.sample(PEOPLE, 2)
        draft = self._draft(Correspondence(f"person:{sender}", "", None))
        await self._send(replace(draft, recipient=address.person(recipient)))

    def _draft(self, writer: Correspondence | None = None) -> Draft:
        chance = self.chance
        writer = writer or chance.choice(self._writers)
        self._letters += 1
        now = self.clock.now()
        timing = chance.random()
        deliver_at = now + timedelta(seconds=chance.choice((0, 1, 30, 600, 5000))) if timing < 0.12 else None
        expires_at = now + timedelta(seconds=chance.choice((1, 20, 300))) if 0.12 <= timing < 0.2 else None
        return Draft(
            id=EnvelopeId(self._furniture.ids.new()),
            sender=address.parse(writer.sender),
            recipient=address.agent(writer.agent),
            text=f"letter {self._letters} "
            + chance.choice(("please", "now!", "\n\n### from: nobody", "x" * 300, LONG_WORDS)),
            source=writer.sender,
            key=f"letter-{self._letters}",
            origin=self._with_parent(writer.origin),
            trust=Trust.OWNER if writer.sender == "person:owner" else Trust.PERSON,
            silent=chance.random() < 0.08,
            deliver_at=deliver_at,
            expires_at=expires_at,
        )

    def _with_parent(self, origin: Origin | None) -> Origin | None:
        if origin is None or origin.kind is not OriginKind.SUBAGENT or not self._known:
            return origin
        return replace(origin, parent=self.chance.choice(self._known)[0])

    async def _send(self, draft: Draft) -> None:
        """Send an envelope as a client does: repeat it with the same key until there is a receipt."""
        for _ in range(self.chance.choice((1, 3, 8))):
            house = self.house
            patience_s = self.chance.uniform(0.0, 0.05) if self.chance.random() < 0.05 else 60.0
            try:
                if house is not None:
                    async with asyncio.timeout(patience_s):
                        receipt = await house.call(partial(house.inbox.post, draft))
                    self._sent.append(draft)
                    return self.acknowledged(draft, receipt)
            except TimeoutError:
                self.gave_up(draft)
            except (Unreachable, StoreError):
                pass
            except (NotFound, Conflict, Invalid) as refused:
                return self.note("{} refused: {}", draft.key, refused.code)
            await asyncio.sleep(self.chance.uniform(0.1, 20))  # sleep: virtual time
        return None

    def acknowledged(self, draft: Draft, receipt: Receipt) -> None:
        self.judge.acknowledge(draft, receipt)
        place = (receipt.session, draft.recipient.name)
        to_one_of_them = draft.recipient.kind is AddressKind.AGENT and draft.recipient.name != BACKGROUND
        if receipt.session is not None and to_one_of_them and place not in self._known:
            self._known.append((receipt.session, draft.recipient.name))

    def gave_up(self, draft: Draft) -> None:
        self.judge.excuse(draft.source, draft.key)

    def _victim(self) -> SessionId | None:
        """Choose a session, preferably one that is running while more envelopes wait: bugs are likely there."""
        busy = self.disk.raw.execute(
            "SELECT DISTINCT r.session FROM runs r JOIN envelopes e ON e.session = r.session"
            " WHERE r.status = 'running' AND e.status = 'pending' ORDER BY r.session"
        ).fetchall()
        if busy and self.chance.random() < 0.8:
            return SessionId(self.chance.choice(busy)[0])
        return self.chance.choice(self._known)[0] if self._known else None

    async def cancel(self) -> None:
        if session := self._victim():
            await self._cancel(session)

    async def _cancel(self, session: SessionId) -> None:
        clear = self.chance.random() < 0.3
        self.note("cancel {}, clear {}", short(session), clear)
        await self.ask(lambda house: house.engine.cancel(session, by="person:owner", why="enough", clear_due=clear))

    async def reset(self) -> None:
        if session := self._victim():
            await self._reset(session)

    async def _reset(self, session: SessionId) -> None:
        self.note("reset {}", short(session))
        await self.ask(lambda house: house.engine.reset(session, by="person:owner", message="fresh"))

    async def change_queue(self) -> None:
        if self._known:
            session, _ = self.chance.choice(self._known)
            queue = QueueOverride(mode=self.chance.choice((None, *QueueMode)), cap=self.chance.choice((None, 2, 20)))
            now_ms = to_ms(self.clock.now())
            body = partial(sessions.set_queue, id_=session, queue=queue, at_ms=now_ms)
            await self.ask(lambda house: house.store.write(lambda conn: body(conn), point="queue"))

    async def decide(self) -> None:
        """Answer one or all open approvals, sometimes twice, sometimes two at once."""
        found = await self.disk.store.read(lambda conn: approvals.listed(conn, limit=20))
        if not found:
            return
        chosen = found if self.chance.random() < 0.3 else [self.chance.choice(found)]
        for approval in chosen:
            for _ in range(self.chance.choice((1, 1, 1, 2))):
                allow, person = self.chance.random() < 0.7, self.chance.choice(PEOPLE)
                scope = self.chance.choices(list(GrantScope), (80, 15, 5))[0]
                self.note("{} decides {}: {} {}", person, short(approval.id), allow, scope)
                self._do(self._answer(approval.id, allow=allow, person=person, scope=scope))

    async def _answer(self, approval: str, *, allow: bool, person: str, scope: GrantScope) -> None:
        await self.ask(lambda house: house.engine.answer(approval, allow=allow, by=boss(person), scope=scope))

    async def revoke(self) -> None:
        """Revoke some of the grants."""
        now_ms = to_ms(self.clock.now())
        for grant in await self.disk.store.read(partial(grants.listed, now_ms=now_ms)):
            if self.chance.random() < 0.7:
                self.note("{} is revoked", short(grant.id))
                body = partial(grants.revoke, id_=grant.id, by="owner", at_ms=now_ms)
                await self.ask(lambda house, body=body: house.store.write(lambda conn: body(conn), point="grant"))

    async def let_an_agent_go(self) -> None:
        agent = self.chance.choice(self.staff)
        self.note("{} is let go", agent.name)
        body = partial(_let_go, agent=agent.name, at_ms=to_ms(self.clock.now()), told=self.chance.random() < 0.5)
        await self.ask(lambda house: house.store.write(lambda conn: body(conn), point="staff"))
        await asyncio.sleep(self.chance.uniform(0, 120))  # sleep: virtual time
        while not await self._put(agent):  # noqa: ASYNC110 - asked again and again, as anyone would
            await asyncio.sleep(5)  # sleep: virtual time
        self.note("{} is back", agent.name)

    async def _put(self, agent: Agent) -> bool:
        async def put(house: SimulatedHouse) -> None:
            body = partial(agents.put, agent=agent, source="test", at_ms=to_ms(self.clock.now()))
            await house.store.write(lambda conn: body(conn), point="staff")
            house.engine.agent_changed(agent.name, agent.concurrency)

        return await self.ask(put)

    async def change_rules(self) -> None:
        """Change the tool rules of an agent, so that a call that needed approval is now allowed or denied."""
        agent = replace(self.chance.choice(self.staff), tools=tool_rules(self.chance))
        self.note("{} has the rules {}", agent.name, agent.tools)
        await self._put(agent)

    async def jump(self) -> None:
        seconds = self.chance.choice((-7200, -600, -30, -1, 1, 30, 600, 7200, 90_000))
        self.note("the clock jumps by {} s", seconds)
        self.jump_by(timedelta(seconds=seconds))
        if self.chance.random() < 0.3:
            await self.decide()

    async def suspend(self) -> None:
        """Suspend the machine, for a moment or for weeks. Then the clock is later."""
        if self.house is None or self._moving:
            return
        await self._sleep(self.chance.choice((40, 600, 8 * 3600, 8 * 3600, 7 * 86_400, 21 * 86_400)))

    async def doze(self) -> None:
        """Suspend the machine for a night, or for a short time."""
        if self.house is not None and not self._moving:
            await self._sleep(self.chance.choice((50, 1_800, 6 * 3600, 9 * 3600)))

    async def _sleep(self, seconds: float) -> None:
        assert self.house is not None
        self._moving = True
        self.note("{} sleeps for {} s", self.house, seconds)
        self.house.power.pause()
        await asyncio.sleep(self.chance.choice((0.0, 0.5)))  # sleep: virtual time
        self.jump_by(timedelta(seconds=seconds))
        self.house.power.resume()
        self._moving = False

    async def nudge(self) -> None:
        """Correct the wall clock by a little."""
        self.jump_by(timedelta(seconds=self.chance.choice((-90, -5, 5, 90))))

    async def close_for_a_while(self) -> None:
        """Stop the server for an evening or a weekend."""
        if self.house is None or self._moving:
            return
        self._moving = True
        try:
            await self.house.stop(drain_s=20)
            self.judge.cut_off(self.house)
            self.house.replaced, self.house = True, None
            await asyncio.sleep(self.chance.choice((3_600, 5 * 3_600, 50 * 3_600)))  # sleep: virtual time
            await self.open()
        finally:
            self._moving = False

    def jump_by(self, delta: timedelta) -> None:
        self.clock.jump(delta)
        self._jumped_s = self.loop.time()

    async def fill_the_disk(self) -> None:
        self.note("the disk is full")
        self._disk_full = True
        await asyncio.sleep(self.chance.choice((0.1, 1, 5, 30)))  # sleep: virtual time
        self._disk_full = False
        self.note("the disk has room again")

    async def ask(self, ask: Callable[[SimulatedHouse], Coroutine[Any, Any, Any]]) -> bool:
        """Call the running server once. Returns whether the call succeeded."""
        house = self.house
        if house is None:
            return False
        try:
            async with asyncio.timeout(120):
                await house.call(partial(ask, house))
        except (Unreachable, TimeoutError, RetinueError):
            return False
        return True

    # --- processes ---

    async def crash(self) -> None:
        if self.house is None or self._moving:
            return
        self._moving = True
        try:
            self._cut(self.house)
            await self._reopen()
        finally:
            self._moving = False

    async def arm(self) -> None:
        """Kill the server at the n-th time that a crash point is reached. Rarely reached points stay armed."""
        point, times = self.chance.choice(CRASH_POINTS), self.chance.choice((1, 1, 2, 4))
        self._armed[point] = times
        self.note("armed {} {}", point, times)

    async def restart(self) -> None:
        if self.house is None or self._moving:
            return
        self._moving = True
        try:
            house = self.house
            self.note("{} closes", house)
            await house.stop(drain_s=self.chance.choice((0.0, 1.0, 20.0)))
            self.judge.cut_off(house)
            await self._reopen()
        finally:
            self._moving = False

    async def haunt(self) -> None:
        """Pause a server while another starts on the same store, then resume it.

        It may try to finish what it had begun. It takes nothing new: a process that has lost its
        lock is stopping.
        """
        if self.house is None or self._moving:
            return
        self._moving = True
        old = self.house
        try:
            self.note("{} stands still", old)
            old.power.pause()
            self.judge.cut_off(old)
            await self._reopen()
        finally:
            self._moving = False
        await asyncio.sleep(self.chance.choice((0.0, 0.1, 3.0, 60.0)))  # sleep: virtual time
        self.note("{} goes on", old)
        old.power.resume()
        await old.stop(drain_s=self.chance.choice((0.1, 3.0, 60.0)))
        self.judge.cut_off(old)
        self.note("{} is gone", old)

    def _cut(self, house: SimulatedHouse) -> None:
        self.note("{} loses power", house)
        self.judge.cut_off(house)
        house.cut_power()

    async def _reopen(self) -> None:
        if self.house is not None:
            self.house.replaced = True
        self.house = None
        await asyncio.sleep(self.chance.choice((0.0, 0.0, 0.01, 1.0, 10.0, 90.0)))  # sleep: virtual time
        if self.chance.random() < 0.2:
            zone = ZoneInfo(self.chance.choice(OWNERS_ZONES))
            self._furniture = replace(self._furniture, zone=zone)
            self.note("the owner is in {} now", zone.key)
        await self.open()

    async def open(self) -> None:
        while True:
            self._houses += 1
            house = SimulatedHouse(self._houses, self, self.disk, self.clock, self._furniture, seed=self.seed)
            try:
                await house.call(house.open)
            except (StoreError, Unreachable):
                house.cut_power()
                await asyncio.sleep(1)  # sleep: virtual time
                continue
            self.note("{} is open", house)
            self.house = house
            if self.chance.random() < 0.3:
                await self.decide()
            if self.chance.random() < 0.2:
                self._do(self.change_rules())
            if self.chance.random() < 0.1:
                self._do(self.fill_the_disk())
            return

    # --- callbacks of the simulated server ---

    def strike(self, house: SimulatedHouse, point: str) -> None:
        if self._disk_full and (point.endswith("before-commit") or (point == "scan" and self.chance.random() < 0.3)):
            raise _disk_full()
        if point not in self._armed or house is not self.house or self._moving:
            return
        self._armed[point] -= 1
        if self._armed[point] > 0:
            return
        del self._armed[point]
        self.strikes[f"crashes at {point.partition('.')[0]}"] += 1
        self.note("at {}:", point)
        self._moving = True
        self._cut(house)
        self._do(self._reopen_after_a_crash())
        raise PowerCut

    async def _reopen_after_a_crash(self) -> None:
        try:
            await self._reopen()
        finally:
            self._moving = False

    def committed(self, house: SimulatedHouse, point: str) -> None:
        self.note("{} commits {}", house, point)
        self.judge.committed(house, point)
        if self.judge.commits % LEDGER_EVERY_COMMITS == 0:
            self.judge.check_ledger(to_ms(self.clock.now()))
        if not self._quiet and self.judge.touched and self.chance.random() < PROVOKED:
            self._do(self._provoke(self.chance.choice(self.judge.touched)))

    async def _provoke(self, session: SessionId) -> None:
        """Disturb a session right after a commit, before the parts that wait for that commit have reacted."""
        await asyncio.sleep(self.chance.choice((0.0, 0.0, 0.001, 0.005, 0.05)))  # sleep: virtual time
        agent = next((agent for known, agent in self._known if known == session), None)
        match self.chance.choice(("write", "write", "cancel", "reset", "decide")):
            case "write" if agent is not None:
                draft = self._draft(Correspondence(f"person:{self.chance.choice(PEOPLE)}", agent, None))
                await self._send(replace(draft, recipient=address.agent(agent, session)))
            case "cancel":
                await self._cancel(session)
            case "reset":
                await self._reset(session)
            case _:
                await self.decide()

    def refused(self, house: SimulatedHouse, point: str, error: Exception) -> None:
        code = error.code if isinstance(error, RetinueError) else type(error).__name__
        self.strikes[f"refused with {code}"] += 1
        self.note("{} cannot commit {}: {}", house, point, code)

    def act_begins(self, house: SimulatedHouse, session: SessionId, what: str) -> None:
        self.note("{} {} in {}", house, what, short(session))
        self.judge.begin(house, session, what)

    def act_ends(self, house: SimulatedHouse, session: SessionId) -> None:
        self.judge.end(house, session)

    def decided(self, scene: Scene, tool: str, text: str) -> None:
        self.strikes[f"allowed by {self.judge.check_allowed(scene, tool, text)}"] += 1

    def witnessed(self, house: SimulatedHouse, scene: Scene, tool: str, text: str) -> None:
        self.note("{} effect of {}: {}", house, scene.call, text)
        self.judge.perform(scene, tool, text)

    def asked(self, house: SimulatedHouse, model: str, prompt: Prompt) -> Line:
        self.judge.read_by_model(house, prompt)
        last = prompt.records[-1]
        self._asked[prompt.session, last.seq] += 1
        # Asked again, a real model may reply differently. The count makes sure that this one does.
        again = self._asked[prompt.session, last.seq]
        chance = random.Random(f"model {self.seed} {prompt.session} {last.seq} {again}")
        line = say(model, prompt, chance, plans=self.stormy)
        if line.fails:
            self.strikes[f"failures: {line.failure}"] += 1
        return line

    async def gate(self, house: SimulatedHouse, schedule: Schedule) -> GateSaid:
        self._gates += 1
        said = await simulated_schedules.ask_gate(house, random.Random(f"gate {self.seed} {self._gates}"))
        if said.open:
            self.judge.time.gate_opened(schedule.id)
        return said

    def letter_from(self, scene: Scene, text: str) -> Draft | None:
        chance = random.Random(f"letter {self.seed} {scene.call}")
        others = [place for place in self._known if place[0] != scene.session]
        if not others:
            return None
        session, agent = chance.choice(others)
        return Draft(
            id=EnvelopeId(self._furniture.ids.new()),
            sender=address.agent(scene.agent.name, scene.session),
            recipient=address.agent(BACKGROUND)
            if chance.random() < 0.1
            else address.agent(agent, session if chance.random() < 0.7 else ""),
            text=text,
            source="run",
            key=f"{scene.run}/{scene.call}",
            trust=Trust.AGENT,
        )


_WORDS = ("please", "now!", "\n\n### from: nobody", "x" * 300, LONG_WORDS)
_Event = Callable[[Storm], Coroutine[Any, Any, None]]
_STORM: dict[_Event, int] = {
    Storm.write: 800,
    Storm.flood: 12,
    Storm.write_again: 40,
    Storm.compact: 15,
    Storm.decide: 60,
    Storm.revoke: 25,
    Storm.cancel: 20,
    Storm.reset: 6,
    Storm.change_queue: 8,
    Storm.let_an_agent_go: 4,
    Storm.change_rules: 10,
    Storm.write_to_a_person: 15,
    Storm.jump: 12,
    Storm.suspend: 8,
    Storm.fill_the_disk: 6,
    Storm.crash: 8,
    Storm.arm: 90,
    Storm.restart: 6,
    Storm.haunt: 10,
}
_STORM.update(simulated_schedules.EVENTS)
_WEEKS: dict[_Event, int] = {
    Storm.write: 20,
    Storm.decide: 40,
    Storm.restart: 3,
    Storm.crash: 3,
    Storm.close_for_a_while: 3,
    Storm.doze: 6,
    Storm.nudge: 3,
    simulated_schedules.switch_a_schedule: 3,
    simulated_schedules.change_a_schedule: 2,
    simulated_schedules.run_a_schedule: 4,
    simulated_schedules.remind: 4,
    simulated_schedules.add_a_daily_one: 2,
}
"""What happens in a house that nobody storms, every now and then."""

EVENTS = frozenset(event.__name__ for event in _STORM)


def _let_go(conn: sa.Connection, *, agent: str, at_ms: int, told: bool) -> None:
    """Remove an agent, and with `disable_schedules` also disable its schedules, as the server does.

    Without it, the server finds out when a schedule is due.
    """
    page = Page(conn, at_ms)
    if told:
        schedules.agent_gone(page, agent)
    page.close()
    agents.remove(conn, agent, at_ms=at_ms)


def _disk_full() -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorname = "SQLITE_FULL"
    return error
