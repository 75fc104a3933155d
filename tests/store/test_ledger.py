"""The ledger holds after every commit of a busy house, and names the one equation that was broken behind its back."""

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

T = TypeVar("T")

NOW_MS = 2**50  # long after everything


@dataclass
class Audit:
    every: int = 1  # a ledger takes longer than a commit, most of all on PostgreSQL
    commits: int = 0
    wrong: list[str] = field(default_factory=list[str])


@dataclass
class AuditedStore:
    """A store whose ledger is drawn up after each commit."""

    store: Store
    audit: Audit
    clock: Clock

    async def write(self, body: TransactionBody[T], *, point: str, then: AfterCommit[T] | None = None) -> T:
        result = await self.store.write(body, point=point, then=then)
        self.audit.commits += 1
        if self.audit.commits % self.audit.every:
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
    Agent(name="once", model="scripted", delivery=CrashPolicy.AT_MOST_ONCE),
    Agent(name="small", model="scripted", queue=QueuePolicy(cap=1)),
    Agent(name="newest", model="scripted", queue=QueuePolicy(cap=1, overflow=Overflow.SUMMARIZE)),
    Agent(name="quick", model="scripted", queue=QueuePolicy(mode=QueueMode.STEER)),
    Agent(name="rash", model="scripted", queue=QueuePolicy(mode=QueueMode.INTERRUPT)),
)


def busy_household(root: Path, url: str | None) -> LocalInstance:
    household = LocalInstance(root, url=url, agents=AGENTS, people=("maria", "noor", "owner"))
    household.connectors["quiet"] = FakeConnector(household.clock)
    household.model.rule = script
    household.model.price_microusd = 1000
    return household


@dataclass
class Books:
    """A store with a history, and with something of everything left open in it."""

    url: str | Path
    ids: dict[str, str] = field(default_factory=dict[str, str])

    @contextmanager
    def altered(self, *statements: str) -> Iterator[sa.Connection]:
        """The store as it would be after these statements; they are undone afterwards."""
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
        with self.altered(*statements) as conn:
            return ledger.check_ledger(conn, now_ms=NOW_MS)


class Day:
    """A day in a busy house, one kind of traffic after the other."""

    def __init__(self, house: LocalServer, ids: dict[str, str] | None = None) -> None:
        self.house = house
        self.household = house.instance
        self.ids = {} if ids is None else ids

    @property
    def quiet(self) -> FakeConnector:
        connector = self.household.connectors["quiet"]
        assert isinstance(connector, FakeConnector)
        return connector

    async def post(self, name: str, text: str, to: str = "ada", **kw: Any) -> EnvelopeId:
        receipt = await self.house.send(text, recipient=f"agent:{to}", **kw)
        self.ids[name] = receipt.envelope
        if receipt.session:
            self.ids[f"{name}_session"] = receipt.session
        return receipt.envelope

    async def ends(self, name: str, outcome: Outcome) -> None:
        settled = await self.house.wait_for_outcome(self.ids[name])
        assert settled.outcome is outcome, settled
        if settled.answer:
            self.ids[f"{name}_answer"] = settled.answer
        self.ids[f"{name}_run"] = (await self.house.get_envelope(self.ids[name])).run or ""

    async def in_time(self, name: str, outcome: Outcome) -> None:
        """The same, for what has to wait: turns the clock until it has ended."""
        for _ in range(200):
            if await self.house.store.scan(partial(envelopes.get_outcome, id_=self.ids[name])) is not None:
                break
            await self.household.clock.advance(60)
            await self.house.store.write(lambda conn: None, point="test")  # what the clock woke has gone on
        await self.ends(name, outcome)

    async def run_of(self, name: str, status: str) -> None:
        """Wait until the session of this letter has a run in this state, and its model was asked."""
        session = self.ids[f"{name}_session"]

        def body(conn: sa.Connection) -> str | None:
            run = runs.get_open(conn, session)
            return run.id if run and run.status == status else None

        self.ids[f"{name}_run"] = await self.house.wait_for(body, what=f"the run of {name} to be {status}")

    async def asked(self, times: int) -> None:
        await self.house.wait_for(lambda _: len(self.household.model.prompts) >= times, what="the model to be asked")

    async def approval(self, name: str) -> str:
        session = self.ids[f"{name}_session"]

        def body(conn: sa.Connection) -> str | None:
            run = runs.get_open(conn, session)
            asked = approvals.list_of_run(conn, run.id) if run and run.status == "parked" else []
            return asked[-1].id if asked else None

        return await self.house.wait_for(body, what=f"{name} to be asked about")

    async def morning(self) -> None:
        """What comes to an end."""
        await self.post("answered", "good morning")
        await self.ends("answered", Outcome.ANSWERED)
        await self.post("other", "and what else?")
        await self.ends("other", Outcome.ANSWERED)
        await self.post("tool", "use a tool")
        await self.ends("tool", Outcome.ANSWERED)
        await self.post("hushed", "hush")
        await self.ends("hushed", Outcome.ANSWERED)
        await self.post("failed", "fail")
        await self.ends("failed", Outcome.DEAD)
        retried = await self.house.store.write(
            partial(
                requeue_dead_letter,
                id_text=self.ids["failed"],
                new_id=EnvelopeId(self.household.ids.new()),
                now_ms=to_ms(self.household.clock.now()),
            ),
            point="retry",
        )
        for wake in retried.wakes:
            self.house.engine.wake(wake)
        self.ids["retried"] = retried.receipt.envelope
        await self.ends("retried", Outcome.DEAD)
        await self.post("silent", "just so you know", silent=True)
        await self.ends("silent", Outcome.NOTED)
        await self.house.send("a word for you", recipient="person:noor")
        await self.post("from_agent", "hello from next door", sender=f"agent:once/{self.ids['answered_session']}")
        await self.ends("from_agent", Outcome.ANSWERED)

    async def crowd(self) -> None:
        """More mail than fits, mail in the middle of a run, and mail that ends one."""
        before = len(self.household.model.prompts)
        for to, mode in (("small", "be slow"), ("newest", "be slow"), ("rash", "be slow")):
            await self.post(f"{to}_first", mode, to=to)
        await self.asked(before + 3)
        for number in range(3):
            await self.post(f"small_{number}", "me too", to="small")
            await self.post(f"newest_{number}", "me too", to="newest")
        await self.ends("small_2", Outcome.REFUSED)
        await self.ends("newest_0", Outcome.REFUSED)
        await self.post("rash_second", "never mind that", to="rash")
        await self.ends("rash_first", Outcome.CANCELLED)
        await self.ends("rash_second", Outcome.ANSWERED)
        await self.house.engine.cancel(
            SessionId(self.ids["small_first_session"]), by="person:maria", reason="enough", clear_due=True
        )
        await self.ends("small_first", Outcome.CANCELLED)
        await self.ends("small_0", Outcome.CANCELLED)
        await self.in_time("newest_first", Outcome.ANSWERED)
        await self.ends("newest_2", Outcome.ANSWERED)
        await self.post("steered", "use a tool", to="quick")
        await self.post("joins", "and hurry", to="quick")
        await self.ends("joins", Outcome.ANSWERED)

    async def questions(self) -> None:
        """Runs that wait for a person: allowed in time, allowed too late, and cancelled."""
        await self.post("asked", "use a tool", to="careful")
        await self.house.engine.answer_approval(await self.approval("asked"), allow=True, by=boss_principal("maria"))
        await self.ends("asked", Outcome.ANSWERED)
        await self.post("unheard", "use a tool", to="careful")
        approval = await self.approval("unheard")
        await self.post("between", "a quiet word", to="careful", silent=True)
        await self.post("goes_on", "and another thing", to="careful", sender="person:noor")
        await self.post("goes_on_2", "and another thing", to="careful")
        await self.ends("goes_on_2", Outcome.ANSWERED)
        await self.house.engine.answer_approval(approval, allow=True, by=boss_principal("maria"))
        await self.ends("unheard", Outcome.ANSWERED)
        before = len(self.household.model.prompts)
        await self.post("busy", "be slow", to="careful")
        await self.asked(before + 1)
        await self.post("parks", "use a tool", to="careful")
        origin = Origin(OriginKind.WEB, "person:maria")
        await self.post("behind_it", "am I next?", to="careful", sender="person:noor", origin=origin)
        await self.in_time("parks", Outcome.ANSWERED)
        await self.ends("behind_it", Outcome.ANSWERED)
        await self.house.wait_until_idle()
        await self.post("dropped", "use a tool", to="careful")
        await self.approval("dropped")
        await self.house.engine.cancel(SessionId(self.ids["dropped_session"]), by="person:maria", reason="no need")
        await self.ends("dropped", Outcome.CANCELLED)

    async def clockwork(self) -> None:
        """Mail for later: worked on when it is due, and expired when it was not wanted any more."""
        now = self.household.clock.now()
        await self.post("later", "remember this", deliver_at=now + timedelta(hours=1))
        await self.post(
            "expired", "only today", deliver_at=now + timedelta(hours=3), expires_at=now + timedelta(hours=4)
        )
        await self.in_time("later", Outcome.ANSWERED)
        self.household.clock.jump(timedelta(days=2))
        await self.in_time("expired", Outcome.EXPIRED)
        self.household.clock.jump(timedelta(minutes=-5))
        await self.post("back_then", "what time is it?")
        await self.ends("back_then", Outcome.ANSWERED)

    async def channel(self) -> None:
        """A channel: letters that arrive at once, after a failure, never, and perhaps."""
        self.quiet.will_fail(channel="once-closed")
        self.quiet.will_fail(channel="shut", permanent=True)
        self.quiet.will_break(channel="who-knows", arrives=True)
        self.quiet.repeats_safely = False
        for room in ("42", "once-closed", "shut", "who-knows"):
            receipt = await self.house.send("to the world", recipient=f"channel:quiet:{room}", sender="agent:ada")
            self.ids["room" if room == "42" else room.replace("-", "_")] = receipt.envelope
        await self.ends("room", Outcome.DELIVERED)
        await self.ends("shut", Outcome.DEAD)
        await self.ends("who_knows", Outcome.INTERRUPTED)
        await self.in_time("once_closed", Outcome.DELIVERED)
        said = await self.quiet.send_inbound("is anybody there?")
        assert said is not None
        self.ids["said"] = said.envelope
        await self.ends("said", Outcome.ANSWERED)

    async def evening(self) -> None:
        """What is left open when the light goes out."""
        await self.house.wait_until_idle()
        before = len(self.household.model.prompts)
        await self.post("claimed", "be slow")
        await self.post("once_claimed", "be slow", to="once")
        await self.asked(before + 2)
        await self.run_of("claimed", "running")
        await self.run_of("once_claimed", "running")
        await self.post("parked", "use a tool", to="careful")
        await self.approval("parked")
        await self.run_of("parked", "parked")
        await self.house.wait_for(
            lambda conn: len(envelopes.list_held(conn, self.ids["parked_run"])) == 1,
            what="the parked run to be written",
        )
        await self.post("due", "and then?")
        self.quiet.will_be_slow(600, channel="far")
        sending = await self.house.send("to the world", recipient="channel:quiet:far", sender="agent:ada")
        self.ids["sending"] = sending.envelope
        await self.house.wait_for(
            lambda conn: deliveries.list_attempts(conn, sending.envelope) != [], what="a delivery"
        )
        await self.post("future", "next year", deliver_at=self.household.clock.now() + timedelta(days=365))
        await self.post("whisper", "by the way", to="careful", silent=True)


async def live_through_a_day(household: LocalInstance) -> dict[str, str]:
    """Everything from morning to the moment the light goes out."""
    async with household.run() as house:
        day = Day(house)
        await day.morning()
        await day.crowd()
        await day.questions()
        await day.clockwork()
        await day.channel()
        await day.evening()
        house.crash()
    return day.ids


@pytest.fixture(params=["sqlite", "postgres"])
def household(request: pytest.FixtureRequest, tmp_path: Path) -> LocalInstance:
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else None
    return busy_household(tmp_path, url)


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def books(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Books]:
    """The store that such a day leaves behind. Each test alters it within a transaction, and takes that back."""
    root = tmp_path_factory.mktemp("books")
    if request.param == "sqlite":
        ids = asyncio.run(live_through_a_day(busy_household(root, None)))
        yield Books(root / "house.db", ids)
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    with server.create_database() as url:
        ids = asyncio.run(live_through_a_day(busy_household(root, url)))
        yield Books(url, ids)


async def test_the_ledger_holds_after_every_commit_of_a_busy_day(household: LocalInstance) -> None:
    audit = Audit(every=5 if household.url else 1)
    household.wrap_store = partial(AuditedStore, audit=audit, clock=household.clock)
    ids = await live_through_a_day(household)
    assert audit.wrong == []
    assert audit.commits > 100

    async with household.run() as house:
        day = Day(house, ids)
        await day.ends("once_claimed", Outcome.INTERRUPTED)
        await day.in_time("claimed", Outcome.ANSWERED)
        await day.in_time("due", Outcome.ANSWERED)
        await day.in_time("parked", Outcome.ANSWERED)
        await house.wait_until_idle()
        checked = await house.store.scan(partial(ledger.check_ledger, now_ms=to_ms(household.clock.now())))
    assert audit.wrong == []
    assert checked.lines()[-1] == "ledger holds"


async def test_the_ledger_of_an_empty_house_holds(tmp_path: Path) -> None:
    async with LocalInstance(tmp_path).run() as house:
        checked = await house.store.scan(partial(ledger.check_ledger, now_ms=0))
    assert checked.is_ok
    assert checked.lines()[:3] == ["accepted 0", "done 0", "open 0"]


def test_the_ledger_of_what_a_day_leaves_behind_holds(books: Books) -> None:
    checked = books.check()
    assert checked.broken_equations == ()
    assert checked.sums.open == sum(checked.sums.by_open_status.values()) > 0
    assert checked.sums.accepted == checked.sums.done + checked.sums.open
    assert set(checked.sums.by_outcome) == {str(outcome) for outcome in Outcome}
    assert set(checked.sums.by_open_status) == {"pending", "claimed", "parked"}


NOBODY = "f" * 32


def _handed(id_: str, state: str, *, result: str = "NULL", run: str = ":claimed_run", wait_ms: str = "NULL") -> str:
    """Work that was handed on, as nobody would have written it."""
    return (
        "INSERT INTO delegations (id, kind, run, call, agent, session, target, child, task, above, lineage, notify,"
        " wait_ms, label, cleanup, state, because, result, created_ms)"
        f" VALUES ({id_}, 'message', {run}, 'c', 'ada', 's', 'bo', 'b', 't', '{{}}', '{{}}', 'wake',"
        f" {wait_ms}, '', 'keep', '{state}', '', {result}, 0)"
    )


BREAKS = [
    ("counted", "one was counted that is not here", ["UPDATE tally SET accepted = accepted + 1 WHERE source = 'run'"]),
    ("counted", "one is gone", ["DELETE FROM envelopes WHERE id = :future"]),
    ("counted", "one is here that was not counted", ["UPDATE tally SET accepted = accepted - 1 WHERE source = 'run'"]),
    ("counted", "a source was never counted", ["DELETE FROM tally WHERE source = 'house'"]),
    ("counted", "one is here that was purged", ["UPDATE tally SET purged = 1 WHERE source = 'retry'"]),
    ("settled", "a done one lost its outcome", ["DELETE FROM outcomes WHERE envelope = :expired"]),
    (
        "settled",
        "an open one has an outcome",
        ["INSERT INTO outcomes (envelope, outcome, because, silent, at_ms) VALUES (:future, 'noted', '', false, 0)"],
    ),
    (
        "settled",
        "one that never was has an outcome",
        [
            "INSERT INTO outcomes (envelope, outcome, because, silent, at_ms) "
            f"VALUES ('{NOBODY}', 'noted', '', false, 0)"
        ],
    ),
    ("answered", "the answer is not named", ["UPDATE outcomes SET answer = NULL WHERE envelope = :answered"]),
    ("answered", "the answer does not exist", [f"UPDATE outcomes SET answer = '{NOBODY}' WHERE envelope = :answered"]),
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
    ("held", "it has no run", ["UPDATE envelopes SET run = NULL WHERE id = :claimed"]),
    ("held", "its run has ended", ["UPDATE envelopes SET run = :answered_run WHERE id = :claimed"]),
    ("held", "it is parked in a running run", ["UPDATE envelopes SET status = 'parked' WHERE id = :claimed"]),
    ("held", "it is claimed by a parked run", ["UPDATE envelopes SET status = 'claimed' WHERE id = :parked"]),
    ("held", "it waits, but a run names it", ["UPDATE envelopes SET status = 'pending' WHERE id = :claimed"]),
    ("held", "its run does not name it", ["UPDATE runs SET envelopes = '[]' WHERE id = :claimed_run"]),
    ("held", "its run cannot be read", ["UPDATE runs SET envelopes = '[' WHERE id = :claimed_run"]),
    ("held", "a run names another's", ["UPDATE runs SET envelopes = '[\"' || :future || '\"]' WHERE id = :parked_run"]),
    ("held", "nothing holds it", ["UPDATE envelopes SET status = 'claimed' WHERE id = :future"]),
    ("held", "its delivery has ended", ["UPDATE deliveries SET state = 'unknown' WHERE envelope = :sending"]),
    ("held", "it is being sent, but waits", ["UPDATE envelopes SET status = 'pending' WHERE id = :sending"]),
    (
        "held",
        "it is being sent twice",
        ["INSERT INTO deliveries (envelope, attempt, state, opened_ms) VALUES (:sending, 9, 'sending', 0)"],
    ),
    (
        "held",
        "a run and a delivery hold it",
        ["INSERT INTO deliveries (envelope, attempt, state, opened_ms) VALUES (:claimed, 9, 'sending', 0)"],
    ),
    (
        "money",
        "some is missing",
        ["UPDATE money SET settled_microusd = settled_microusd - 1 WHERE run = :answered_run"],
    ),
    (
        "money",
        "some is held by an ended run",
        ["UPDATE money SET held_microusd = reserved_microusd, settled_microusd = 0, released_microusd = 0"],
    ),
    ("money", "some is held for a closed step", ["UPDATE steps SET state = 'closed' WHERE run = :claimed_run"]),
    (
        "money",
        "some is held for an earlier attempt",
        ["UPDATE steps SET attempt = 9 WHERE run = :claimed_run"],
    ),
    (
        "money",
        "the sum of a day is not that of its calls",
        ["UPDATE spending SET settled_microusd = 7"],
    ),
    ("money", "more is held by the sums than by the calls", ["UPDATE spending SET held_microusd = held_microusd + 1"]),
    ("money", "a token was summed up that no provider told of", ["UPDATE money SET estimated = true"]),
    ("money", "a call is in no sum", ["DELETE FROM spending"]),
    ("money", "a sum is of someone else's calls", ["UPDATE spending SET agent = 'nobody' WHERE agent = 'ada'"]),
    ("money", "a call is gone", ["DELETE FROM money WHERE run = :answered_run"]),
    ("handed", "it is open, and its letter is done", [_handed(":answered", "open")]),
    ("handed", "it has ended, and its letter is not done", [_handed(":future", "done")]),
    (
        "handed",
        "a letter hands on what nobody knows of",
        ["UPDATE envelopes SET kind = 'delegation' WHERE id = :answered"],
    ),
    ("handed", "what came of it replies to something else", [_handed(":answered", "done", result=":expired")]),
    ("handed", "a call of an ended run waits for it", [_handed(":answered", "done", run=":answered_run", wait_ms="1")]),
    ("done", "it was settled at no time", ["UPDATE envelopes SET settled_ms = NULL WHERE id = :answered"]),
    ("done", "it was settled, but is open", ["UPDATE envelopes SET settled_ms = 1 WHERE id = :future"]),
    ("done", "it is in an open run", ["UPDATE envelopes SET run = :claimed_run WHERE id = :expired"]),
    ("awake", "its run is running", ["UPDATE sessions SET wakefulness = 'sleeping' WHERE id = :once_claimed_session"]),
    (
        "awake",
        "mail is due",
        ["UPDATE envelopes SET session = :small_first_session, deliver_ms = NULL, due_ms = 0 WHERE id = :future"],
    ),
    (
        "awake",
        "loud mail is due behind a parked run",
        [
            "UPDATE envelopes SET session = :parked_session WHERE id = :due",
            "UPDATE sessions SET wakefulness = 'sleeping' WHERE id = :parked_session",
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
            f"VALUES ('{NOBODY}', 1, 'note', '{{\"text\":\"\"}}', 'private', 0)"
        ],
    ),
    (
        "alone",
        "a second run was opened",
        [
            "DROP INDEX uq_runs_open",
            "INSERT INTO runs"
            " (id, session, agent, lane, epoch, status, sender, envelopes, first_seq, attempt, started_ms)"
            f" VALUES ('{NOBODY}', :claimed_session, 'ada', 'main', 1, 'running', 'house', '[]', 1, 1, 0)",
        ],
    ),
    ("steps", "an ended run has an open step", ["UPDATE steps SET state = 'open' WHERE run = :answered_run"]),
    ("counters", "envelopes count on from elsewhere", ["UPDATE house SET envelope_seq = envelope_seq + 1"]),
    ("counters", "news counts on from elsewhere", ["UPDATE house SET news_seq = news_seq - 1"]),
    (
        "schedules",
        "an enabled one has nothing ahead",
        [
            "INSERT INTO schedules"
            " (id, kind, owner, recipient, body, enabled, because, zone, filed, created_ms, updated_ms)"
            f" VALUES ('{NOBODY}', 'schedule', 'person:owner', 'agent:ada', '{{}}', true, '', 'UTC', false, 0, 0)"
        ],
    ),
    (
        "schedules",
        "what one works on has ended",
        [
            "INSERT INTO schedules"
            " (id, kind, owner, recipient, body, enabled, because, zone, filed, created_ms, updated_ms)"
            f" VALUES ('{NOBODY}', 'schedule', 'person:owner', 'agent:ada', '{{}}', true, '', 'UTC', false, 0, 0)",
            "INSERT INTO schedule_slots (schedule, seq, made_by, slot_ms, state, because, envelope)"
            f" SELECT '{NOBODY}', 1, 'clock', 0, 'working', '', id FROM envelopes WHERE status = 'done' LIMIT 1",
        ],
    ),
    ("readable", "a record is torn", ["UPDATE records SET body = '{' WHERE seq = 2"]),
    (
        "readable",
        "a record is of no kind",
        ["UPDATE records SET kind = 'ode' WHERE seq = 2"],
    ),
]


@pytest.mark.parametrize(("name", "how", "statements"), BREAKS, ids=[f"{name}-{how}" for name, how, _ in BREAKS])
def test_breaking_an_equation_by_sql_names_exactly_that_one(
    books: Books, name: str, how: str, statements: list[str]
) -> None:
    checked = books.check(*statements)
    assert checked.broken_equations == (name,), "\n".join(checked.lines())
    [broken] = [equation for equation in checked.equations if not equation.is_ok]
    assert 0 < len(broken.findings) <= broken.count
    assert checked.lines()[-1].startswith("ledger does not hold: ")
    assert not checked.as_dict()["holds"]


def test_every_equation_is_broken_by_some_test() -> None:
    assert {name for name, _, _ in BREAKS} == {rule.name for rule in RULES}


def test_every_equation_has_its_row_in_the_docs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "concepts" / "ledger.md").read_text()
    assert [rule.name for rule in RULES] == [row.split("`")[1] for row in page.splitlines() if row.startswith("| `")]


def test_a_finding_names_what_is_wrong_and_why(books: Books) -> None:
    checked = books.check("UPDATE envelopes SET run = NULL WHERE id = :claimed")
    short = books.ids["claimed"][:8]
    assert f"       - {short}: claimed, but 0 open runs and 0 open deliveries hold it" in checked.lines()
    [held] = [equation for equation in checked.as_dict()["equations"] if not equation["ok"]]
    assert held["findings"][0]["id"] == books.ids["claimed"]


def test_a_store_in_great_trouble_shows_a_few_findings_and_counts_the_rest(books: Books) -> None:
    checked = books.check("UPDATE envelopes SET settled_ms = NULL WHERE status = 'done'")
    [broken] = [equation for equation in checked.equations if not equation.is_ok]
    assert len(broken.findings) == ledger.FINDINGS_SHOWN_MAX
    assert broken.count == checked.count == checked.sums.done
    assert checked.lines()[-1] == f"ledger does not hold: {checked.sums.done} findings"
    assert f"       - and {broken.count - ledger.FINDINGS_SHOWN_MAX} more" in checked.lines()


def test_mail_whose_time_has_come_is_the_alarms_and_no_finding(books: Books) -> None:
    assert books.check("UPDATE envelopes SET session = :small_first_session WHERE id = :future").is_ok


def test_silent_mail_waits_behind_a_parked_run_and_is_no_finding(books: Books) -> None:
    silent = "UPDATE sessions SET wakefulness = 'sleeping' WHERE id = :whisper_session"
    assert books.ids["whisper_session"] == books.ids["parked_session"]
    assert books.check(silent).is_ok


def test_the_first_lines_are_the_sums(books: Books) -> None:
    checked = books.check()
    accepted, done, opened = checked.lines()[:3]
    assert accepted.startswith(f"accepted {checked.sums.accepted}: ") and "run" in accepted
    assert done.startswith(f"done {checked.sums.done}: ") and "answered" in done
    assert opened.startswith(f"open {checked.sums.open}: ") and "parked" in opened
    assert checked.as_dict()["sums"]["accepted"] == checked.sums.accepted
