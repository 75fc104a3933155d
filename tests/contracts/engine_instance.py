"""Helpers for the engine's contract: an instance whose commits a test can hold, fail or cut off.

An engine joins the contract with a test module that defines four fixtures, as `test_engine.py` does: `store_control`,
`instance`, `any_instance` (the same on every kind of store) and `new_instance`, which makes one after another.
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

POLL_S = 0.002


@dataclass(slots=True, eq=False)
class CommitHold:
    """A commit that waits for the test."""

    reached: asyncio.Event = field(default_factory=asyncio.Event)
    released: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait_for_release(self) -> None:
        self.reached.set()
        await self.released.wait()


@dataclass(slots=True, eq=False)
class StoreControl:
    """Control of the store by a test: what happens to which commit, and a list of all commits.

    A commit that its caller no longer waits for still happens, as it does with a real store.
    """

    before: dict[str, CommitHold] = field(default_factory=dict[str, CommitHold])
    after: dict[str, CommitHold] = field(default_factory=dict[str, CommitHold])
    failing: Counter[str] = field(default_factory=Counter[str])
    commit_points: list[str] = field(default_factory=list[str])  # of all commits, in order
    scan_count: int = 0  # how often the store was scanned, other than by the test
    scan_failures_left: int = 0
    cut_at: tuple[int, bool] | None = None  # how many more commits happen, and whether the last of them succeeds
    pending_writes: set[asyncio.Task[Any]] = field(default_factory=set[asyncio.Task[Any]])
    test: asyncio.Task[Any] | None = None

    def wrap(self, store: Store) -> ControlledStore:
        self.test = asyncio.current_task()
        return ControlledStore(store, self)

    @contextmanager
    def hold_commits(self, point: str, *, committed: bool = False) -> Generator[CommitHold]:
        """Hold commits at `point`: before they begin, or when they are done and their callers do not know it yet."""
        holds = self.after if committed else self.before
        hold = holds[point] = CommitHold()
        try:
            yield hold
        finally:
            holds.pop(point, None)
            hold.released.set()

    def release(self, point: str) -> None:
        """Release the commits at `point` while `hold_commits` is still open."""
        if hold := self.before.pop(point, None):
            hold.released.set()

    def is_controlled(self, point: str) -> bool:
        return point in self.before or point in self.after or self.failing[point] > 0

    def cancel_pending_writes(self) -> None:
        for task in self.pending_writes:
            task.cancel()


class ControlledStore:
    def __init__(self, store: Store, store_control: StoreControl) -> None:
        self._store = store
        self._control = store_control
        self.cut = asyncio.Event()  # set by a power cut: no caller gets a result after it

    async def write(self, body: TransactionBody[T], *, point: str, then: AfterCommit[T] | None = None) -> T:
        task = asyncio.create_task(self._write_and_follow_up(body, point, then))
        self._control.pending_writes.add(task)
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
        store_control = self._control
        if hold := store_control.before.get(point):
            await hold.wait_for_release()
        if store_control.failing[point] > 0:
            store_control.failing[point] -= 1
            raise StoreError("the disk is full, so this change was not kept", code="store.disk_full")
        if self._is_last() and not self._last_is_committed():
            self.cut.set()
        if self.cut.is_set():
            await asyncio.Event().wait()
        done = await self._store.write(body, point=point)
        store_control.commit_points.append(point)
        if self._is_last():
            self.cut.set()
        if store_control.cut_at is not None:
            store_control.cut_at = (store_control.cut_at[0] - 1, store_control.cut_at[1])
        if self.cut.is_set():
            await asyncio.Event().wait()
        if hold := store_control.after.get(point):
            await hold.wait_for_release()
        return done

    def _is_last(self) -> bool:
        return self._control.cut_at is not None and self._control.cut_at[0] == 1

    def _last_is_committed(self) -> bool:
        return self._control.cut_at is not None and self._control.cut_at[1]

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._control.pending_writes.discard(task)
        if not task.cancelled():
            task.exception()  # consumed, whether or not a caller still waits for it

    async def read(self, body: TransactionBody[T]) -> T:
        return await self._store.read(body)

    async def scan(self, body: TransactionBody[T]) -> T:
        store_control = self._control
        if asyncio.current_task() is not store_control.test:
            store_control.scan_count += 1
            if store_control.scan_failures_left > 0:
                store_control.scan_failures_left -= 1
                raise StoreError("the disk did not do what it was asked", code="store.disk_failed")
        return await self._store.scan(body)

    def on_commit(self, call: Callable[[], None], *tables: sa.Table) -> None:
        self._store.on_commit(call, *tables)

    async def close(self) -> None:
        await self._store.close()


def ada(**kw: Any) -> Agent:
    """Return the agent that most of these tests use."""
    return replace(Agent(name="ada", model="scripted"), **kw)


@asynccontextmanager
async def run_with_ledger_check(instance: LocalInstance, *, drain_s: float = 0.0) -> AsyncGenerator[LocalServer]:
    """Run an instance whose ledger must balance when the test ends."""
    async with instance.run(drain_s=drain_s) as server:
        yield server
        if not server.is_crashed:
            await assert_ledger_balances(server)


async def assert_ledger_balances(server: LocalServer) -> None:
    now_ms = to_ms(server.instance.clock.now())
    found = await server.store.scan(lambda conn: ledger.check_ledger(conn, now_ms=now_ms))
    assert found.is_ok, "\n".join(found.lines())


def cut_power(server: LocalServer) -> None:
    """Crash the server. A commit that is still held never happens."""
    assert isinstance(server.store, ControlledStore)
    server.store.cut.set()
    server.crash()


Scenario = Callable[[LocalServer], Coroutine[Any, Any, None]]


async def run_with_power_cuts(
    new_instance: Callable[[], LocalInstance], store_control: StoreControl, scenario: Scenario
) -> AsyncGenerator[LocalServer]:
    """Run a scenario, then run it again with a power cut at each of its commits.

    Each commit is cut twice: once before it happens and once after. Then the server is restarted and the scenario runs
    from its beginning, so it must be safe to repeat. Yields the server after each scenario.
    """
    instance = new_instance()
    async with run_with_ledger_check(instance) as server:
        begun = len(store_control.commit_points)
        await scenario(server)
        await server.wait_until_idle()
        commits = len(store_control.commit_points) - begun
        yield server
    for nth in range(1, commits + 1):
        for happens in (False, True):
            instance = new_instance()
            await _run_until_power_cut(instance, store_control, scenario, nth, happens=happens)
            async with run_with_ledger_check(instance) as server:
                await scenario(server)
                await server.wait_until_idle()
                yield server


async def _run_until_power_cut(
    instance: LocalInstance, store_control: StoreControl, scenario: Scenario, nth: int, *, happens: bool
) -> None:
    async with instance.run() as server:
        store_control.cut_at = (nth, happens)
        assert isinstance(server.store, ControlledStore)
        cut = asyncio.create_task(server.store.cut.wait())
        scenario_task = asyncio.create_task(scenario(server))
        await asyncio.wait({cut, scenario_task}, return_when=asyncio.FIRST_COMPLETED)
        server.crash()
        store_control.cut_at = None
        while not (cut.done() and scenario_task.done()):  # repeated: before Python 3.12 `wait_for` may swallow a cancel
            cut.cancel()
            scenario_task.cancel()
            await asyncio.sleep(POLL_S)  # sleep: before both are cancelled again


async def wait_until_true(condition: Callable[[], Any], *, what: str) -> None:
    """Wait for a condition in memory."""
    await wait_until(condition, what, poll_s=POLL_S)


async def wait_until_clock_sleep(server: LocalServer, *, seconds_max: float) -> None:
    """Wait until a task sleeps on the clock for at most `seconds_max`: after that, a failed action is tried again."""
    clock = server.instance.clock
    await wait_until_true(
        lambda: any(left <= seconds_max for left in clock.remaining_sleeps()), what="a task waits for the clock"
    )


async def advance_clock_until_done(server: LocalServer, awaited: Coroutine[Any, Any, T], *, step_s: float = 1.0) -> T:
    """Advance the clock in steps until something is done. The clock waits for the store, so a slow machine sees no more
    virtual time pass than a fast one."""
    task = asyncio.ensure_future(awaited)
    while not task.done():
        await server.instance.clock.advance(step_s)
        await let_tasks_settle(server)
    return task.result()


async def let_tasks_settle(server: LocalServer) -> None:
    """Give everything that does not need the clock enough time to happen."""
    for _ in range(3):
        await server.store.write(lambda conn: None, point="moment")
        await server.store.scan(lambda conn: None)
        await asyncio.sleep(POLL_S)  # sleep: what must not happen has no event; the store has done all before this


async def change_agent(server: LocalServer, agent: Agent) -> None:
    await server.store.write(lambda conn: agents.upsert(conn, agent, source="test", at_ms=1), point="test")


async def set_queue(server: LocalServer, session: str, queue: QueueOverride) -> None:
    await server.store.write(lambda conn: sessions.set_queue(conn, session, queue, at_ms=1), point="test")


async def list_events(server: LocalServer, *record_kinds: EventKind) -> list[StoredEvent]:
    found = await server.store.scan(lambda conn: events.list_after(conn, 0, limit=100_000))
    return [piece for piece in found if not record_kinds or piece.kind in record_kinds]


async def query_rows(server: LocalServer, statement: str, **parameters: Any) -> list[Any]:
    """Query the store directly, without a commit."""
    return await server.store.scan(lambda conn: list(conn.execute(sa.text(statement), parameters)))


async def list_outcomes(server: LocalServer, ids: Sequence[str]) -> list[Outcome | None]:
    def body(conn: sa.Connection) -> list[Outcome | None]:
        found = [envelopes.get_outcome(conn, id_) for id_ in ids]
        return [settled.outcome if settled else None for settled in found]

    return await server.store.scan(body)


async def list_notices_to(server: LocalServer, person: str) -> list[str]:
    return [envelope.text for envelope in await server.list_envelopes_to(person) if envelope.kind == "notice"]


async def list_answers_to(server: LocalServer, person: str) -> list[str]:
    return [envelope.text for envelope in await server.list_envelopes_to(person) if envelope.kind == "answer"]


async def list_approval_questions_to(server: LocalServer, person: str) -> list[Envelope]:
    return [envelope for envelope in await server.list_envelopes_to(person) if envelope.kind == "approval"]


async def wait_for_open_approval(server: LocalServer) -> str:
    """Wait for an open approval and return its id."""
    statement = sa.text("SELECT id FROM approvals WHERE state = 'open' ORDER BY asked_ms DESC, id")
    return await server.wait_for(lambda conn: conn.execute(statement).scalars().first(), what="an open approval")


async def wait_until_suspended(server: LocalServer) -> None:
    """Wait until a run is suspended and has released its lane."""
    statement = sa.text("SELECT count(*) FROM runs WHERE status = 'suspended'")
    await server.wait_for(lambda conn: conn.execute(statement).scalar_one() > 0, what="a suspended run")
    await server.wait_until_idle()


def read_witness_file(instance: LocalInstance) -> list[str]:
    """Return the lines that `append_line` has really written."""
    if not instance.witness_file.exists():
        return []
    return [line.split(" ", 1)[1] for line in instance.witness_file.read_text().splitlines()]


def user_turns(records: Sequence[Record]) -> list[str]:
    return [record.body.text for record in records if isinstance(record.body, UserTurn)]


def list_tool_results(records: Sequence[Record]) -> list[ToolResult]:
    return [record.body for record in records if isinstance(record.body, ToolResult)]


def newest_user_text(prompt: ModelPrompt) -> str:
    """Return the newest user text in a prompt."""
    return user_turns(prompt.records)[-1]


def record_kinds(records: Sequence[Record]) -> list[RecordKind]:
    return [record.kind for record in records]


def list_lane_tasks() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("lane ")]
