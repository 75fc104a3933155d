"""What the engine's contract is tested with: a house whose commits a test can hold, fail or cut off.

An engine joins the contract with a test module that brings four fixtures, as `test_engine.py` does: `hands`,
`household`, `any_household` (the same on every kind of store) and `new_household`, which makes one after another.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import sqlalchemy as sa

from retinue.domain.agent import Agent
from retinue.domain.envelope import Envelope, Outcome
from retinue.domain.errors import StoreError
from retinue.domain.event import EventKind, StoredEvent
from retinue.domain.record import Record, RecordKind, UserTurn
from retinue.domain.session import QueueOverride
from retinue.domain.structs import replace
from retinue.domain.times import to_ms
from retinue.domain.tool import ToolResult
from retinue.models.base import ModelPrompt
from retinue.store.agents import agents
from retinue.store.core import events
from retinue.store.core.connection import AfterCommit, Store, TransactionBody, run_after_commit
from retinue.store.envelopes import envelopes
from retinue.store.ledger import ledger
from retinue.store.sessions import sessions
from retinue.testing.local_instance import LocalInstance, LocalServer
from retinue.testing.wait_conditions import wait_until

T = TypeVar("T")

MOMENT_S = 0.002


@dataclass(slots=True, eq=False)
class Hold:
    """A commit that waits for the test."""

    reached: asyncio.Event = field(default_factory=asyncio.Event)
    free: asyncio.Event = field(default_factory=asyncio.Event)

    async def pass_by(self) -> None:
        self.reached.set()
        await self.free.wait()


@dataclass(slots=True, eq=False)
class Hands:
    """A test's hands on the store: what is to happen to which commit, and which commits there were.

    A commit that a caller no longer waits for still happens, as it does with a real store.
    """

    before: dict[str, Hold] = field(default_factory=dict[str, Hold])
    after: dict[str, Hold] = field(default_factory=dict[str, Hold])
    failing: Counter[str] = field(default_factory=Counter[str])
    points: list[str] = field(default_factory=list[str])  # of all commits, in order
    looks: int = 0  # how often somebody other than the test has looked around
    failing_looks: int = 0
    cut_at: tuple[int, bool] | None = None  # how many more commits, and whether the last of them still happens
    under_way: set[asyncio.Task[Any]] = field(default_factory=set[asyncio.Task[Any]])
    test: asyncio.Task[Any] | None = None

    def over(self, store: Store) -> HandledStore:
        self.test = asyncio.current_task()
        return HandledStore(store, self)

    @contextmanager
    def holding(self, point: str, *, committed: bool = False) -> Generator[Hold]:
        """Hold commits at `point` before they begin, or when they are done and nobody has been told."""
        holds = self.after if committed else self.before
        hold = holds[point] = Hold()
        try:
            yield hold
        finally:
            holds.pop(point, None)
            hold.free.set()

    def release(self, point: str) -> None:
        """Let commits at `point` begin again, in the middle of `holding` them."""
        if hold := self.before.pop(point, None):
            hold.free.set()

    def on(self, point: str) -> bool:
        return point in self.before or point in self.after or self.failing[point] > 0

    def let_go(self) -> None:
        for task in self.under_way:
            task.cancel()


class HandledStore:
    def __init__(self, store: Store, hands: Hands) -> None:
        self._store = store
        self._hands = hands
        self.cut = asyncio.Event()  # set when the power went: nothing is answered from then on

    async def write(self, body: TransactionBody[T], *, point: str, then: AfterCommit[T] | None = None) -> T:
        task = asyncio.create_task(self._write_and_follow_up(body, point, then))
        self._hands.under_way.add(task)
        task.add_done_callback(self._forget)
        return await asyncio.shield(task)

    async def _write_and_follow_up(self, body: TransactionBody[T], point: str, then: AfterCommit[T] | None) -> T:
        try:
            result = await self._write(body, point)
        except BaseException:
            if not self.cut.is_set():
                run_after_commit(then, None)
            raise
        run_after_commit(then, result)
        return result

    async def _write(self, body: TransactionBody[T], point: str) -> T:
        hands = self._hands
        if hold := hands.before.get(point):
            await hold.pass_by()
        if hands.failing[point] > 0:
            hands.failing[point] -= 1
            raise StoreError("the disk is full, so this change was not kept", code="store.disk_full")
        if self._is_last() and not self._last_happens():
            self.cut.set()
        if self.cut.is_set():
            await asyncio.Event().wait()
        done = await self._store.write(body, point=point)
        hands.points.append(point)
        if self._is_last():
            self.cut.set()
        if hands.cut_at is not None:
            hands.cut_at = (hands.cut_at[0] - 1, hands.cut_at[1])
        if self.cut.is_set():
            await asyncio.Event().wait()
        if hold := hands.after.get(point):
            await hold.pass_by()
        return done

    def _is_last(self) -> bool:
        return self._hands.cut_at is not None and self._hands.cut_at[0] == 1

    def _last_happens(self) -> bool:
        return self._hands.cut_at is not None and self._hands.cut_at[1]

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._hands.under_way.discard(task)
        if not task.cancelled():
            task.exception()  # seen, whether or not someone still waits for it

    async def read(self, body: TransactionBody[T]) -> T:
        return await self._store.read(body)

    async def scan(self, body: TransactionBody[T]) -> T:
        hands = self._hands
        if asyncio.current_task() is not hands.test:
            hands.looks += 1
            if hands.failing_looks > 0:
                hands.failing_looks -= 1
                raise StoreError("the disk did not do what it was asked", code="store.disk_failed")
        return await self._store.scan(body)

    def on_commit(self, call: Callable[[], None], *tables: sa.Table) -> None:
        self._store.on_commit(call, *tables)

    async def close(self) -> None:
        await self._store.close()


def ada(**kw: Any) -> Agent:
    """The agent of most of these tests."""
    return replace(Agent(name="ada", model="scripted"), **kw)


@asynccontextmanager
async def opened(household: LocalInstance, *, drain_s: float = 0.0) -> AsyncGenerator[LocalServer]:
    """An open house whose books must be in order when the test leaves it."""
    async with household.run(drain_s=drain_s) as house:
        yield house
        if not house.is_crashed:
            await books_hold(house)


async def books_hold(house: LocalServer) -> None:
    now_ms = to_ms(house.instance.clock.now())
    found = await house.store.scan(lambda conn: ledger.check_ledger(conn, now_ms=now_ms))
    assert found.is_ok, "\n".join(found.lines())


def power_goes(house: LocalServer) -> None:
    """Crash, and let no commit that is still held happen after all."""
    assert isinstance(house.store, HandledStore)
    house.store.cut.set()
    house.crash()


Story = Callable[[LocalServer], Coroutine[Any, Any, None]]


async def power_cuts(
    new_household: Callable[[], LocalInstance], hands: Hands, story: Story
) -> AsyncGenerator[LocalServer]:
    """Live through a story once for each of its commits, and once more for each, with the power cut there.

    One time the commit still happens and one time it does not. Then the house is opened again and the story told from
    its beginning: it must be one that can be told twice. Each time the house is handed over as the story left it.
    """
    household = new_household()
    async with opened(household) as house:
        begun = len(hands.points)
        await story(house)
        await house.wait_until_idle()
        commits = len(hands.points) - begun
        yield house
    for nth in range(1, commits + 1):
        for happens in (False, True):
            household = new_household()
            await _until_cut(household, hands, story, nth, happens=happens)
            async with opened(household) as house:
                await story(house)
                await house.wait_until_idle()
                yield house


async def _until_cut(household: LocalInstance, hands: Hands, story: Story, nth: int, *, happens: bool) -> None:
    async with household.run() as house:
        hands.cut_at = (nth, happens)
        assert isinstance(house.store, HandledStore)
        cut = asyncio.create_task(house.store.cut.wait())
        told = asyncio.create_task(story(house))
        await asyncio.wait({cut, told}, return_when=asyncio.FIRST_COMPLETED)
        house.crash()
        hands.cut_at = None
        while not (cut.done() and told.done()):  # more than once: before Python 3.12 `wait_for` may swallow it
            cut.cancel()
            told.cancel()
            await asyncio.sleep(MOMENT_S)  # sleep: before both are cancelled again


async def until(condition: Callable[[], Any], *, what: str) -> None:
    """Wait for something in memory."""
    await wait_until(condition, what, poll_s=MOMENT_S)


async def until_somebody_sleeps(house: LocalServer, *, seconds_max: float) -> None:
    """Wait until the clock, turned so far, wakes somebody: whatever went wrong, it is tried again then."""
    clock = house.instance.clock
    await until(
        lambda: any(left <= seconds_max for left in clock.remaining_sleeps()), what="somebody waits for the clock"
    )


async def as_time_goes_by(house: LocalServer, awaited: Coroutine[Any, Any, T], *, step_s: float = 1.0) -> T:
    """Wait for something while the clock is turned, a step at a time. The clock waits for the store: on a slow machine
    no more of its time passes than on a fast one."""
    task = asyncio.ensure_future(awaited)
    while not task.done():
        await house.instance.clock.advance(step_s)
        await a_moment(house)
    return task.result()


async def a_moment(house: LocalServer) -> None:
    """Long enough for whatever is going to happen without the clock to have happened."""
    for _ in range(3):
        await house.store.write(lambda conn: None, point="moment")
        await house.store.scan(lambda conn: None)
        await asyncio.sleep(MOMENT_S)  # sleep: what must not happen has no event; the store has done all before this


async def change_agent(house: LocalServer, agent: Agent) -> None:
    await house.store.write(lambda conn: agents.upsert(conn, agent, source="test", at_ms=1), point="test")


async def set_queue(house: LocalServer, session: str, queue: QueueOverride) -> None:
    await house.store.write(lambda conn: sessions.set_queue(conn, session, queue, at_ms=1), point="test")


async def all_news(house: LocalServer, *kinds: EventKind) -> list[StoredEvent]:
    found = await house.store.scan(lambda conn: events.list_after(conn, 0, limit=100_000))
    return [piece for piece in found if not kinds or piece.kind in kinds]


async def rows(house: LocalServer, statement: str, **parameters: Any) -> list[Any]:
    """Look at the store from behind, without a commit."""
    return await house.store.scan(lambda conn: list(conn.execute(sa.text(statement), parameters)))


async def outcomes(house: LocalServer, ids: Sequence[str]) -> list[Outcome | None]:
    def body(conn: sa.Connection) -> list[Outcome | None]:
        found = [envelopes.get_outcome(conn, id_) for id_ in ids]
        return [settled.outcome if settled else None for settled in found]

    return await house.store.scan(body)


async def notices_to(house: LocalServer, person: str) -> list[str]:
    return [envelope.text for envelope in await house.list_envelopes_to(person) if envelope.kind == "notice"]


async def answers_to(house: LocalServer, person: str) -> list[str]:
    return [envelope.text for envelope in await house.list_envelopes_to(person) if envelope.kind == "answer"]


async def questions_to(house: LocalServer, person: str) -> list[Envelope]:
    return [envelope for envelope in await house.list_envelopes_to(person) if envelope.kind == "approval"]


async def open_approval(house: LocalServer) -> str:
    """Wait until somebody is asked, and say what about."""
    statement = sa.text("SELECT id FROM approvals WHERE state = 'open' ORDER BY asked_ms DESC, id")
    return await house.wait_for(lambda conn: conn.execute(statement).scalars().first(), what="a question")


async def parked(house: LocalServer) -> None:
    """Wait until a run is parked and its lane has let go of it."""
    statement = sa.text("SELECT count(*) FROM runs WHERE status = 'parked'")
    await house.wait_for(lambda conn: conn.execute(statement).scalar_one() > 0, what="a run to park")
    await house.wait_until_idle()


def witness(household: LocalInstance) -> list[str]:
    """What `append_line` has really done, outside the house."""
    if not household.witness_file.exists():
        return []
    return [line.split(" ", 1)[1] for line in household.witness_file.read_text().splitlines()]


def user_turns(records: Sequence[Record]) -> list[str]:
    return [record.body.text for record in records if isinstance(record.body, UserTurn)]


def results(records: Sequence[Record]) -> list[ToolResult]:
    return [record.body for record in records if isinstance(record.body, ToolResult)]


def shown(prompt: ModelPrompt) -> str:
    """The newest words a prompt holds for the model to read."""
    return user_turns(prompt.records)[-1]


def kinds(records: Sequence[Record]) -> list[RecordKind]:
    return [record.kind for record in records]


def lane_tasks() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("lane ")]
