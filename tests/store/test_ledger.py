"""The ledger holds after every commit of a busy server, and names the one equation that a direct SQL change broke."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
import sqlalchemy as sa
from busy_model import script

from retinue.domain.agent import Agent, CrashPolicy, ToolRules
from retinue.domain.envelope import Outcome
from retinue.domain.ids import EnvelopeId, SessionId
from retinue.domain.ports import Clock
from retinue.domain.session import Origin, OriginKind, Overflow, QueueMode, QueuePolicy
from retinue.domain.times import to_ms
from retinue.outbox.dead_letter_retry import requeue_dead_letter
from retinue.store.channels import deliveries
from retinue.store.core import sqlite
from retinue.store.core.connection import AfterCommit, Store, TransactionBody
from retinue.store.envelopes import envelopes
from retinue.store.ledger import ledger
from retinue.store.ledger.ledger_checks import RULES
from retinue.store.runs import approvals, runs
from retinue.testing.fake_connector import FakeConnector
from retinue.testing.local_instance import LocalInstance, LocalServer, boss_principal
from retinue.testing.postgres import PostgresServer
from retinue.testing.wait_conditions import wait_until

T = TypeVar("T")

NOW_MS = 2**50  # later than all times in the store


@dataclass
class LedgerAudit:
    check_every: int = 1  # checking the ledger takes longer than a commit, most of all on PostgreSQL
    commits: int = 0
    wrong: list[str] = field(default_factory=list[str])


@dataclass
class LedgerCheckingStore:
    """A store that checks the ledger after its commits."""

    store: Store
    audit: LedgerAudit
    clock: Clock

    async def write(self, body: TransactionBody[T], *, point: str, then: AfterCommit[T] | None = None) -> T:
        result = await self.store.write(body, point=point, then=then)
        self.audit.commits += 1
        if self.audit.commits % self.audit.check_every:
            return result
        checked = await self.store.scan(partial(ledger.check_ledger, now_ms=to_ms(self.clock.now())))
        self.audit.wrong += [f"after {point}: {line}" for e in checked.equations if not e.is_ok for line in e.lines()]
        return result

    async def read(self, body: TransactionBody[T]) -> T:
        return await self.store.read(body)

    async def scan(self, body: TransactionBody[T]) -> T:
        return await self.store.scan(body)

    def on_commit(self, call: Callable[[], None], *tables: sa.Table) -> None:
        self.store.on_commit(call, *tables)

    async def close(self) -> None:
        await self.store.close()


AGENTS = (
    Agent(name="ada", model="scripted"),
    Agent(name="careful", model="scripted", tools=ToolRules(ask=("append_line",))),
    Agent(name="once", model="scripted", crash_policy=CrashPolicy.AT_MOST_ONCE),
    Agent(name="small", model="scripted", queue=QueuePolicy(cap=1)),
    Agent(name="newest", model="scripted", queue=QueuePolicy(cap=1, overflow=Overflow.SUMMARIZE)),
    Agent(name="quick", model="scripted", queue=QueuePolicy(mode=QueueMode.STEER)),
    Agent(name="rash", model="scripted", queue=QueuePolicy(mode=QueueMode.INTERRUPT)),
)


def busy_instance(root: Path, url: str | None) -> LocalInstance:
    instance = LocalInstance(root, url=url, agents=AGENTS, people=("maria", "noor", "owner"))
    instance.connectors["quiet"] = FakeConnector(instance.clock)
    instance.model.rule = script
    instance.model.price_microusd = 1000
    return instance


@dataclass
class StoreWithHistory:
    """A store with a history, and with something of every kind left open in it."""

    url: str | Path
    ids: dict[str, str] = field(default_factory=dict[str, str])

    @contextmanager
    def with_statements(self, *statements: str) -> Iterator[sa.Connection]:
        """The store after these statements. They are undone afterwards."""
        if isinstance(self.url, Path):
            conn = sqlite.connect(self.url, writable=True)
            raw: Any = conn.connection.dbapi_connection
            raw.execute("PRAGMA foreign_keys = OFF")
            raw.execute("BEGIN")
        else:
            conn = sa.create_engine(self.url, poolclass=sa.NullPool).connect()
        try:
            for statement in statements:
                names = {name: id_ for name, id_ in self.ids.items() if f":{name}" in statement}
                assert conn.execute(sa.text(statement), names).rowcount != 0, f"changed nothing: {statement}"
            yield conn
        finally:
            if isinstance(self.url, Path):
                conn.connection.dbapi_connection.execute("ROLLBACK")  # type: ignore[union-attr]
            conn.rollback()
            conn.close()

    def check(self, *statements: str) -> ledger.LedgerReport:
        with self.with_statements(*statements) as conn:
            return ledger.check_ledger(conn, now_ms=NOW_MS)


class BusyDay:
    """A day of a busy server, one kind of traffic after the other."""

    def __init__(self, server: LocalServer, ids: dict[str, str] | None = None) -> None:
        self.server = server
        self.instance = server.instance
        self.ids = {} if ids is None else ids

    @property
    def quiet(self) -> FakeConnector:
        connector = self.instance.connectors["quiet"]
        assert isinstance(connector, FakeConnector)
        return connector

    async def post(self, name: str, text: str, to: str = "ada", **kw: Any) -> EnvelopeId:
        receipt = await self.server.send(text, recipient=f"agent:{to}", **kw)
        self.ids[name] = receipt.envelope
        if receipt.session:
            self.ids[f"{name}_session"] = receipt.session
        return receipt.envelope

    async def expect_outcome(self, name: str, outcome: Outcome) -> None:
        settled = await self.server.wait_for_outcome(self.ids[name])
        assert settled.outcome is outcome, settled
        if settled.answer:
            self.ids[f"{name}_answer"] = settled.answer
        self.ids[f"{name}_run"] = (await self.server.get_envelope(self.ids[name])).run or ""

    async def expect_outcome_later(self, name: str, outcome: Outcome) -> None:
        """Like `expect_outcome`, but advances the clock until the envelope is done."""
        id_, server, clock = self.ids[name], self.server, self.instance.clock

        async def ended() -> bool:
            if await server.store.scan(partial(envelopes.get_outcome, id_=id_)) is not None:
                return True
            # A run whose commits are slow must not reach its time limit on the clock.
            await clock.advance(10 if server.engine.active_lanes or server.outbox.active_count else 60)
            return False

        await wait_until(ended, f"{name} has ended")
        await self.expect_outcome(name, outcome)

    async def run_of(self, name: str, status: str) -> None:
        """Wait until the session of an envelope has a run with this status, and its model was asked."""
        session = self.ids[f"{name}_session"]

        def body(conn: sa.Connection) -> str | None:
            run = runs.get_open(conn, session)
            return run.id if run and run.status == status else None

        self.ids[f"{name}_run"] = await self.server.wait_for(body, what=f"the run of {name} to be {status}")

    async def asked(self, times: int) -> None:
        await self.server.wait_for(lambda _: len(self.instance.model.prompts) >= times, what="the model to be asked")

    async def approval(self, name: str) -> str:
        session = self.ids[f"{name}_session"]

        def body(conn: sa.Connection) -> str | None:
            run = runs.get_open(conn, session)
            asked = approvals.list_of_run(conn, run.id) if run and run.status == "suspended" else []
            return asked[-1].id if asked else None

        return await self.server.wait_for(body, what=f"{name}'s approval")

    async def send_ended_envelopes(self) -> None:
        """Send envelopes that end in each possible way."""
        await self.post("answered", "good morning")
        await self.expect_outcome("answered", Outcome.ANSWERED)
        await self.post("other", "and what else?")
        await self.expect_outcome("other", Outcome.ANSWERED)
        await self.post("tool", "use a tool")
        await self.expect_outcome("tool", Outcome.ANSWERED)
        await self.post("hushed", "hush")
        await self.expect_outcome("hushed", Outcome.ANSWERED)
        await self.post("failed", "fail")
        await self.expect_outcome("failed", Outcome.DEAD)
        retried = await self.server.store.write(
            partial(
                requeue_dead_letter,
                id_text=self.ids["failed"],
                new_id=EnvelopeId(self.instance.ids.new()),
                now_ms=to_ms(self.instance.clock.now()),
            ),
            point="retry",
        )
        for wake in retried.wakes:
            self.server.engine.wake(wake)
        self.ids["retried"] = retried.receipt.envelope
        await self.expect_outcome("retried", Outcome.DEAD)
        await self.post("silent", "just so you know", silent=True)
        await self.expect_outcome("silent", Outcome.NOTED)
        await self.server.send("a note for you", recipient="person:noor")
        await self.post("from_agent", "hello from a colleague", sender=f"agent:once/{self.ids['answered_session']}")
        await self.expect_outcome("from_agent", Outcome.ANSWERED)

    async def send_to_busy_agents(self) -> None:
        """Send more messages than fit, messages during a run, and one that ends a run."""
        before = len(self.instance.model.prompts)
        for to, mode in (("small", "be slow"), ("newest", "be slow"), ("rash", "be slow")):
            await self.post(f"{to}_first", mode, to=to)
        await self.asked(before + 3)
        for number in range(3):
            await self.post(f"small_{number}", "me too", to="small")
            await self.post(f"newest_{number}", "me too", to="newest")
        await self.expect_outcome("small_2", Outcome.REFUSED)
        await self.expect_outcome("newest_0", Outcome.REFUSED)
        await self.post("rash_second", "never mind that", to="rash")
        await self.expect_outcome("rash_first", Outcome.CANCELLED)
        await self.expect_outcome("rash_second", Outcome.ANSWERED)
        await self.server.engine.cancel(
            SessionId(self.ids["small_first_session"]), by="person:maria", reason="enough", clear_due=True
        )
        await self.expect_outcome("small_first", Outcome.CANCELLED)
        await self.expect_outcome("small_0", Outcome.CANCELLED)
        await self.expect_outcome_later("newest_first", Outcome.ANSWERED)
        await self.expect_outcome("newest_2", Outcome.ANSWERED)
        await self.post("steered", "use a tool", to="quick")
        await self.post("joins", "and hurry", to="quick")
        await self.expect_outcome("joins", Outcome.ANSWERED)

    async def request_approvals(self) -> None:
        """Start runs that wait for an approval: given in time, given too late, and cancelled."""
        await self.post("asked", "use a tool", to="careful")
        await self.server.engine.answer_approval(await self.approval("asked"), allow=True, by=boss_principal("maria"))
        await self.expect_outcome("asked", Outcome.ANSWERED)
        await self.post("unheard", "use a tool", to="careful")
        approval = await self.approval("unheard")
        await self.post("between", "a silent note", to="careful", silent=True)
        await self.post("goes_on", "and another thing", to="careful", sender="person:noor")
        await self.post("goes_on_2", "and another thing", to="careful")
        await self.expect_outcome("goes_on_2", Outcome.ANSWERED)
        await self.server.engine.answer_approval(approval, allow=True, by=boss_principal("maria"))
        await self.expect_outcome("unheard", Outcome.ANSWERED)
        await self.server.wait_until_idle()  # the run for the late decision asks the model, too
        before = len(self.instance.model.prompts)
        await self.post("busy", "be slow", to="careful")
        await self.asked(before + 1)
        await self.post("parks", "use a tool", to="careful")
        origin = Origin(OriginKind.WEB, "person:maria")
        await self.post("behind_it", "am I next?", to="careful", sender="person:noor", origin=origin)
        await self.expect_outcome_later("parks", Outcome.ANSWERED)
        await self.expect_outcome("behind_it", Outcome.ANSWERED)
        await self.server.wait_until_idle()
        await self.post("dropped", "use a tool", to="careful")
        await self.approval("dropped")
        await self.server.engine.cancel(SessionId(self.ids["dropped_session"]), by="person:maria", reason="no need")
        await self.expect_outcome("dropped", Outcome.CANCELLED)

    async def send_scheduled_envelopes(self) -> None:
        """Send envelopes for later: one is handled when due, and one expires because the clock jumps over its time."""
        now = self.instance.clock.now()
        await self.post("later", "remember this", deliver_at=now + timedelta(hours=1))
        await self.post(
            "expired", "only today", deliver_at=now + timedelta(hours=3), expires_at=now + timedelta(hours=4)
        )
        await self.expect_outcome_later("later", Outcome.ANSWERED)
        self.instance.clock.jump(timedelta(days=2))
        await self.expect_outcome_later("expired", Outcome.EXPIRED)
        self.instance.clock.jump(timedelta(minutes=-5))
        await self.post("back_then", "what time is it?")
        await self.expect_outcome("back_then", Outcome.ANSWERED)

    async def channel(self) -> None:
        """Send to channels: some messages arrive at once, some after a failure, some never, and some perhaps."""
        self.quiet.will_fail(channel="once-closed")
        self.quiet.will_fail(channel="shut", permanent=True)
        self.quiet.will_break(channel="who-knows", arrives=True)
        self.quiet.repeats_safely = False
        for room in ("42", "once-closed", "shut", "who-knows"):
            receipt = await self.server.send("to the world", recipient=f"channel:quiet:{room}", sender="agent:ada")
            self.ids["room" if room == "42" else room.replace("-", "_")] = receipt.envelope
        await self.expect_outcome("room", Outcome.DELIVERED)
        await self.expect_outcome("shut", Outcome.DEAD)
        await self.expect_outcome("who_knows", Outcome.INTERRUPTED)
        await self.expect_outcome_later("once_closed", Outcome.DELIVERED)
        inbound = await self.quiet.send_inbound("is anybody there?")
        assert inbound is not None
        self.ids["said"] = inbound.envelope
        await self.expect_outcome("said", Outcome.ANSWERED)

    async def leave_envelopes_open(self) -> None:
        """Leave envelopes open at the moment of the crash."""
        await self.server.wait_until_idle()
        before = len(self.instance.model.prompts)
        await self.post("claimed", "be slow")
        await self.post("once_claimed", "be slow", to="once")
        await self.asked(before + 2)
        await self.run_of("claimed", "running")
        await self.run_of("once_claimed", "running")
        await self.post("suspended", "use a tool", to="careful")
        await self.approval("suspended")
        await self.run_of("suspended", "suspended")
        await self.server.wait_for(
            lambda conn: len(envelopes.list_held(conn, self.ids["suspended_run"])) == 1,
            what="the suspended run to be written",
        )
        await self.post("due", "and then?")
        self.quiet.will_be_slow(600, channel="far")
        sending = await self.server.send("to the world", recipient="channel:quiet:far", sender="agent:ada")
        self.ids["sending"] = sending.envelope
        await self.server.wait_for(
            lambda conn: deliveries.list_attempts(conn, sending.envelope) != [], what="a delivery"
        )
        await self.post("future", "next year", deliver_at=self.instance.clock.now() + timedelta(days=365))
        await self.post("whisper", "by the way", to="careful", silent=True)


async def simulate_a_busy_day(instance: LocalInstance) -> dict[str, str]:
    """Simulate everything up to the crash."""
    async with instance.run() as server:
        day = BusyDay(server)
        await day.send_ended_envelopes()
        await day.send_to_busy_agents()
        await day.request_approvals()
        await day.send_scheduled_envelopes()
        await day.channel()
        await day.leave_envelopes_open()
        server.crash()
    return day.ids


@pytest.fixture(params=["sqlite", "postgres"])
def instance(request: pytest.FixtureRequest, tmp_path: Path) -> LocalInstance:
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else None
    return busy_instance(tmp_path, url)


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def store_with_history(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StoreWithHistory]:
    """The store that the day leaves behind. Each test changes it within a transaction and rolls back."""
    root = tmp_path_factory.mktemp("books")
    if request.param == "sqlite":
        ids = asyncio.run(simulate_a_busy_day(busy_instance(root, None)))
        yield StoreWithHistory(root / "retinue.db", ids)
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    with server.create_database() as url:
        ids = asyncio.run(simulate_a_busy_day(busy_instance(root, url)))
        yield StoreWithHistory(url, ids)


async def test_the_ledger_holds_after_every_commit_of_a_busy_day(instance: LocalInstance) -> None:
    audit = LedgerAudit(check_every=5 if instance.url else 1)
    instance.wrap_store = partial(LedgerCheckingStore, audit=audit, clock=instance.clock)
    ids = await simulate_a_busy_day(instance)
    assert audit.wrong == []
    assert audit.commits > 100

    async with instance.run() as server:
        day = BusyDay(server, ids)
        await day.expect_outcome("once_claimed", Outcome.INTERRUPTED)
        await day.expect_outcome_later("claimed", Outcome.ANSWERED)
        await day.expect_outcome_later("due", Outcome.ANSWERED)
        await day.expect_outcome_later("suspended", Outcome.ANSWERED)
        await server.wait_until_idle()
        checked = await server.store.scan(partial(ledger.check_ledger, now_ms=to_ms(instance.clock.now())))
    assert audit.wrong == []
    assert checked.lines()[-1] == "ledger is consistent"


async def test_the_ledger_of_an_empty_instance_holds(tmp_path: Path) -> None:
    async with LocalInstance(tmp_path).run() as server:
        checked = await server.store.scan(partial(ledger.check_ledger, now_ms=0))
    assert checked.is_ok
    assert checked.lines()[:3] == ["accepted 0", "done 0", "open 0"]


def test_the_ledger_holds_with_open_envelopes_after_a_crash(store_with_history: StoreWithHistory) -> None:
    checked = store_with_history.check()
    assert checked.broken_equations == ()
    assert checked.sums.open == sum(checked.sums.by_open_status.values()) > 0
    assert checked.sums.accepted == checked.sums.done + checked.sums.open
    assert set(checked.sums.by_outcome) == {str(outcome) for outcome in Outcome}
    assert set(checked.sums.by_open_status) == {"pending", "claimed", "suspended"}


UNKNOWN_ID = "f" * 32


def _insert_delegation(
    id_: str, state: str, *, result: str = "NULL", run: str = ":claimed_run", wait_ms: str = "NULL"
) -> str:
    """Insert a delegation that no operation would have written."""
    return (
        "INSERT INTO delegations (id, kind, run, call, agent, session, target, target_session, task, parent_lineage,"
        " lineage, notify,"
        " wait_ms, label, cleanup, state, because, result, created_ms)"
        f" VALUES ({id_}, 'message', {run}, 'c', 'ada', 's', 'bo', 'b', 't', '{{}}', '{{}}', 'wake',"
        f" {wait_ms}, '', 'keep', '{state}', '', {result}, 0)"
    )


LEDGER_VIOLATIONS = [
    (
        "counted",
        "one was counted that is not here",
        ["UPDATE accepted_counts SET accepted = accepted + 1 WHERE source = 'run'"],
    ),
    ("counted", "one is gone", ["DELETE FROM envelopes WHERE id = :future"]),
    (
        "counted",
        "one is here that was not counted",
        ["UPDATE accepted_counts SET accepted = accepted - 1 WHERE source = 'run'"],
    ),
    ("counted", "a source was never counted", ["DELETE FROM accepted_counts WHERE source = 'server'"]),
    ("counted", "one is here that was purged", ["UPDATE accepted_counts SET purged = 1 WHERE source = 'retry'"]),
    ("settled", "a done one lost its outcome", ["DELETE FROM outcomes WHERE envelope = :expired"]),
    (
        "settled",
        "an open one has an outcome",
        ["INSERT INTO outcomes (envelope, outcome, because, silent, at_ms) VALUES (:future, 'noted', '', false, 0)"],
    ),
    (
        "settled",
        "an unknown one has an outcome",
        [
            "INSERT INTO outcomes (envelope, outcome, because, silent, at_ms) "
            f"VALUES ('{UNKNOWN_ID}', 'noted', '', false, 0)"
        ],
    ),
    ("answered", "the answer is not named", ["UPDATE outcomes SET answer = NULL WHERE envelope = :answered"]),
    (
        "answered",
        "the answer does not exist",
        [f"UPDATE outcomes SET answer = '{UNKNOWN_ID}' WHERE envelope = :answered"],
    ),
    ("answered", "the answer points nowhere", ["UPDATE envelopes SET reply_to = NULL WHERE id = :answered_answer"]),
    ("answered", "the answer points elsewhere", ["UPDATE envelopes SET reply_to = :other WHERE id = :answered_answer"]),
    ("answered", "the answer is to an open one", ["UPDATE envelopes SET reply_to = :future WHERE id = :other_answer"]),
    ("answered", "the silent mark is gone", ["UPDATE outcomes SET silent = false WHERE envelope = :hushed"]),
    ("answered", "another outcome has a silent mark", ["UPDATE outcomes SET silent = true WHERE envelope = :expired"]),
    ("answered", "another outcome has an answer", ["UPDATE outcomes SET outcome = 'noted' WHERE envelope = :answered"]),
    ("delivered", "it is in no inbox", ["DELETE FROM inbox WHERE envelope = :answered_answer"]),
    ("delivered", "it has no receipt", ["UPDATE deliveries SET receipt = NULL WHERE envelope = :room"]),
    ("delivered", "it was not sent", ["UPDATE deliveries SET state = 'failed' WHERE envelope = :room"]),
    ("delivered", "it was sent all the same", ["UPDATE outcomes SET outcome = 'noted' WHERE envelope = :room"]),
    ("delivered", "it is in an inbox", ["UPDATE outcomes SET outcome = 'noted' WHERE envelope = :answered_answer"]),
    ("claimed", "it has no run", ["UPDATE envelopes SET run = NULL WHERE id = :claimed"]),
    ("claimed", "its run has ended", ["UPDATE envelopes SET run = :answered_run WHERE id = :claimed"]),
    ("claimed", "it is suspended in a running run", ["UPDATE envelopes SET status = 'suspended' WHERE id = :claimed"]),
    ("claimed", "it is claimed by a suspended run", ["UPDATE envelopes SET status = 'claimed' WHERE id = :suspended"]),
    ("claimed", "it waits, but a run names it", ["UPDATE envelopes SET status = 'pending' WHERE id = :claimed"]),
    ("claimed", "its run does not name it", ["UPDATE runs SET envelopes = '[]' WHERE id = :claimed_run"]),
    ("claimed", "its run cannot be read", ["UPDATE runs SET envelopes = '[' WHERE id = :claimed_run"]),
    (
        "claimed",
        "a run names another's",
        ["UPDATE runs SET envelopes = '[\"' || :future || '\"]' WHERE id = :suspended_run"],
    ),
    ("claimed", "nothing holds it", ["UPDATE envelopes SET status = 'claimed' WHERE id = :future"]),
    ("claimed", "its delivery has ended", ["UPDATE deliveries SET state = 'unknown' WHERE envelope = :sending"]),
    ("claimed", "it is being sent, but waits", ["UPDATE envelopes SET status = 'pending' WHERE id = :sending"]),
    (
        "claimed",
        "it is being sent twice",
        ["INSERT INTO deliveries (envelope, attempt, state, opened_ms) VALUES (:sending, 9, 'sending', 0)"],
    ),
    (
        "claimed",
        "a run and a delivery hold it",
        ["INSERT INTO deliveries (envelope, attempt, state, opened_ms) VALUES (:claimed, 9, 'sending', 0)"],
    ),
    (
        "charged",
        "some is missing",
        ["UPDATE model_calls SET settled_microusd = settled_microusd - 1 WHERE run = :answered_run"],
    ),
    (
        "charged",
        "some is held by an ended run",
        ["UPDATE model_calls SET held_microusd = reserved_microusd, settled_microusd = 0, released_microusd = 0"],
    ),
    ("charged", "some is held for a closed step", ["UPDATE steps SET state = 'closed' WHERE run = :claimed_run"]),
    (
        "charged",
        "some is held for an earlier attempt",
        ["UPDATE steps SET attempt = 9 WHERE run = :claimed_run"],
    ),
    (
        "charged",
        "the sum of a day is not that of its calls",
        ["UPDATE spending SET settled_microusd = 7"],
    ),
    (
        "charged",
        "more is held by the sums than by the calls",
        ["UPDATE spending SET held_microusd = held_microusd + 1"],
    ),
    ("charged", "a sum has tokens that no provider reported", ["UPDATE model_calls SET estimated = true"]),
    ("charged", "a call is in no sum", ["DELETE FROM spending"]),
    ("charged", "a sum counts calls of another agent", ["UPDATE spending SET agent = 'nobody' WHERE agent = 'ada'"]),
    ("charged", "a call is gone", ["DELETE FROM model_calls WHERE run = :answered_run"]),
    ("delegated", "it is open, and its envelope is done", [_insert_delegation(":answered", "open")]),
    ("delegated", "it has ended, and its envelope is not done", [_insert_delegation(":future", "done")]),
    (
        "delegated",
        "a delegation envelope has no delegation",
        ["UPDATE envelopes SET kind = 'delegation' WHERE id = :answered"],
    ),
    (
        "delegated",
        "its result replies to another envelope",
        [_insert_delegation(":answered", "done", result=":expired")],
    ),
    (
        "delegated",
        "a call of an ended run waits for it",
        [_insert_delegation(":answered", "done", run=":answered_run", wait_ms="1")],
    ),
    ("done", "it was settled at no time", ["UPDATE envelopes SET settled_ms = NULL WHERE id = :answered"]),
    ("done", "it was settled, but is open", ["UPDATE envelopes SET settled_ms = 1 WHERE id = :future"]),
    ("done", "it is in an open run", ["UPDATE envelopes SET run = :claimed_run WHERE id = :expired"]),
    ("active", "its run is running", ["UPDATE sessions SET activity = 'sleeping' WHERE id = :once_claimed_session"]),
    (
        "active",
        "an envelope is due",
        ["UPDATE envelopes SET session = :small_first_session, deliver_ms = NULL, due_ms = 0 WHERE id = :future"],
    ),
    (
        "active",
        "a non-silent envelope is due behind a suspended run",
        [
            "UPDATE envelopes SET session = :suspended_session WHERE id = :due",
            "UPDATE sessions SET activity = 'sleeping' WHERE id = :suspended_session",
        ],
    ),
    ("numbered", "a record is missing", ["DELETE FROM records WHERE session = :answered_session AND seq = 3"]),
    ("numbered", "the first record is missing", ["DELETE FROM records WHERE session = :answered_session AND seq = 1"]),
    ("numbered", "there are no records", ["DELETE FROM records WHERE session = :answered_session"]),
    ("numbered", "it counts on from elsewhere", ["UPDATE sessions SET record_seq = 99 WHERE id = :answered_session"]),
    (
        "numbered",
        "the session does not exist",
        [
            "INSERT INTO records (session, seq, kind, body, trust, at_ms) "
            f"VALUES ('{UNKNOWN_ID}', 1, 'note', '{{\"text\":\"\"}}', 'private', 0)"
        ],
    ),
    (
        "one_run",
        "a second run was opened",
        [
            "DROP INDEX uq_runs_open",
            "INSERT INTO runs"
            " (id, session, agent, lane, epoch, status, sender, envelopes, first_seq, attempt, started_ms)"
            f" VALUES ('{UNKNOWN_ID}', :claimed_session, 'ada', 'main', 1, 'running', 'server', '[]', 1, 1, 0)",
        ],
    ),
    ("steps", "an ended run has an open step", ["UPDATE steps SET state = 'open' WHERE run = :answered_run"]),
    ("counters", "envelopes count on from elsewhere", ["UPDATE counters SET envelope_seq = envelope_seq + 1"]),
    ("counters", "the event counter is wrong", ["UPDATE counters SET event_seq = event_seq - 1"]),
    (
        "schedules",
        "an enabled one has nothing ahead",
        [
            "INSERT INTO schedules"
            " (id, kind, owner, recipient, body, enabled, because, zone, has_file, created_ms, updated_ms)"
            f" VALUES ('{UNKNOWN_ID}', 'schedule', 'person:owner', 'agent:ada', '{{}}', true, '', 'UTC', false, 0, 0)"
        ],
    ),
    (
        "schedules",
        "the envelope of a working occurrence is done",
        [
            "INSERT INTO schedules"
            " (id, kind, owner, recipient, body, enabled, because, zone, has_file, created_ms, updated_ms)"
            f" VALUES ('{UNKNOWN_ID}', 'schedule', 'person:owner', 'agent:ada', '{{}}', true, '', 'UTC', false, 0, 0)",
            "INSERT INTO occurrences (schedule, seq, made_by, occurs_ms, state, because, envelope)"
            f" SELECT '{UNKNOWN_ID}', 1, 'clock', 0, 'working', '', id FROM envelopes WHERE status = 'done' LIMIT 1",
        ],
    ),
    ("readable", "a record is torn", ["UPDATE records SET body = '{' WHERE seq = 2"]),
    (
        "readable",
        "a record is of no kind",
        ["UPDATE records SET kind = 'ode' WHERE seq = 2"],
    ),
]


@pytest.mark.parametrize(
    ("name", "how", "statements"), LEDGER_VIOLATIONS, ids=[f"{name}-{how}" for name, how, _ in LEDGER_VIOLATIONS]
)
def test_breaking_a_ledger_equation_by_sql_reports_exactly_that_equation(
    store_with_history: StoreWithHistory, name: str, how: str, statements: list[str]
) -> None:
    checked = store_with_history.check(*statements)
    assert checked.broken_equations == (name,), "\n".join(checked.lines())
    [broken] = [equation for equation in checked.equations if not equation.is_ok]
    assert 0 < len(broken.findings) <= broken.count
    assert checked.lines()[-1].startswith("ledger is inconsistent: ")
    assert not checked.as_dict()["ok"]


def test_every_ledger_equation_has_a_violation_case() -> None:
    assert {name for name, _, _ in LEDGER_VIOLATIONS} == {rule.name for rule in RULES}


def test_every_ledger_equation_has_a_row_in_the_docs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "concepts" / "ledger.md").read_text()
    assert [rule.name for rule in RULES] == [row.split("`")[1] for row in page.splitlines() if row.startswith("| `")]


def test_a_ledger_finding_names_the_envelope_and_the_reason(store_with_history: StoreWithHistory) -> None:
    checked = store_with_history.check("UPDATE envelopes SET run = NULL WHERE id = :claimed")
    short = store_with_history.ids["claimed"][:8]
    assert f"       - {short}: claimed, but held by 0 open runs and 0 open deliveries" in checked.lines()
    [held] = [equation for equation in checked.as_dict()["equations"] if not equation["ok"]]
    assert held["findings"][0]["id"] == store_with_history.ids["claimed"]


def test_the_ledger_shows_a_limited_number_of_findings_and_counts_the_rest(
    store_with_history: StoreWithHistory,
) -> None:
    checked = store_with_history.check("UPDATE envelopes SET settled_ms = NULL WHERE status = 'done'")
    [broken] = [equation for equation in checked.equations if not equation.is_ok]
    assert len(broken.findings) == ledger.FINDINGS_SHOWN_MAX
    assert broken.count == checked.count == checked.sums.done
    assert checked.lines()[-1] == f"ledger is inconsistent: {checked.sums.done} findings"
    assert f"       - and {broken.count - ledger.FINDINGS_SHOWN_MAX} more" in checked.lines()


def test_an_overdue_envelope_is_no_ledger_finding(store_with_history: StoreWithHistory) -> None:
    assert store_with_history.check("UPDATE envelopes SET session = :small_first_session WHERE id = :future").is_ok


def test_silent_mail_waits_behind_a_suspended_run_and_is_no_finding(store_with_history: StoreWithHistory) -> None:
    silent = "UPDATE sessions SET activity = 'sleeping' WHERE id = :whisper_session"
    assert store_with_history.ids["whisper_session"] == store_with_history.ids["suspended_session"]
    assert store_with_history.check(silent).is_ok


def test_the_ledger_report_starts_with_its_sums(store_with_history: StoreWithHistory) -> None:
    checked = store_with_history.check()
    accepted, done, opened = checked.lines()[:3]
    assert accepted.startswith(f"accepted {checked.sums.accepted}: ") and "run" in accepted
    assert done.startswith(f"done {checked.sums.done}: ") and "answered" in done
    assert opened.startswith(f"open {checked.sums.open}: ") and "suspended" in opened
    assert checked.as_dict()["sums"]["accepted"] == checked.sums.accepted
