"""The store on PostgreSQL: run again when asked, whole through cancellation and lost connections, and a house on it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.util import await_only
from stores import count, counted, turn_the_clock_until_settled

from retinue.domain.agent import Agent, ToolRules
from retinue.domain.envelope import EnvelopeStatus, Outcome
from retinue.domain.errors import StoreError
from retinue.domain.session import QueueMode, QueuePolicy
from retinue.store.core import tables as t
from retinue.store.core.connection import TransactionBody
from retinue.store.core.postgres import POOL_SIZE, PostgresStore
from retinue.store.envelopes import envelopes
from retinue.store.open_store import open_store
from retinue.store.runs import approvals, runs
from retinue.testing.local_instance import LocalInstance, boss_principal
from retinue.testing.postgres import PostgresServer
from retinue.testing.scripted_model import text_reply, tool_call_reply


@asynccontextmanager
async def opened(url: str, **kw: Any) -> AsyncGenerator[PostgresStore]:
    store = await open_store(url, **kw)
    assert isinstance(store, PostgresStore)
    try:
        yield store
    finally:
        await store.close()


def ask(statement: str, **parameters: Any) -> TransactionBody[Any]:
    return lambda conn: conn.execute(sa.text(statement), parameters).scalar()


async def rows_one_and_two(store: PostgresStore) -> None:
    for day in (1, 2):
        await store.write(count(day, "x"), point="test")


def raised(day: int) -> sa.TextClause:
    return sa.text(f"UPDATE tally SET accepted = accepted + 1 WHERE day = {day}")


# Run again


async def test_a_body_that_met_a_deadlock_is_run_again(empty_postgres_url: str) -> None:
    ran: list[str] = []
    taken = {1: asyncio.Event(), 2: asyncio.Event()}
    one_is_done = asyncio.Event()

    def both(first: int, second: int) -> TransactionBody[None]:
        def body(conn: sa.Connection) -> None:
            if f"{first}{second}" in ran:
                await_only(one_is_done.wait())  # or it could take its row before the other, and meet it once more
            ran.append(f"{first}{second}")
            conn.execute(raised(first))
            taken[first].set()
            await_only(taken[second].wait())  # until the other has its first row too
            conn.execute(raised(second))

        return body

    async with opened(empty_postgres_url) as store:
        await rows_one_and_two(store)

        async def write(first: int, second: int) -> None:
            await store.write(both(first, second), point="test")
            one_is_done.set()

        await asyncio.gather(write(1, 2), write(2, 1))

        assert len(ran) == 3  # one of the two had to begin anew
        assert await store.read(lambda conn: conn.execute(sa.select(t.tally.c.accepted)).scalars().all()) == [3, 3]


async def test_a_body_whose_picture_was_overtaken_is_run_again(empty_postgres_url: str) -> None:
    looked, overtaken = asyncio.Event(), asyncio.Event()
    seen: list[int] = []

    def slow(conn: sa.Connection) -> None:
        conn.execute(sa.text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
        seen.append(conn.execute(sa.text("SELECT accepted FROM tally WHERE day = 1")).scalar_one())
        looked.set()
        await_only(overtaken.wait())
        conn.execute(raised(1))

    async with opened(empty_postgres_url) as store:
        await rows_one_and_two(store)
        writing = asyncio.create_task(store.write(slow, point="test"))
        await looked.wait()
        await store.write(lambda conn: conn.execute(raised(1)) and None, point="test")
        overtaken.set()
        await writing

        assert seen == [1, 2]
        assert await store.read(ask("SELECT accepted FROM tally WHERE day = 1")) == 3


# Connections that break


def backend(conn: sa.Connection) -> int:
    return conn.execute(sa.text("SELECT pg_backend_pid()")).scalar_one()


def end_all_others(url: str) -> int:
    """As a server that is restarted would."""
    with psycopg.connect(sa.make_url(url).set(drivername="postgresql").render_as_string()) as conn:
        ended = conn.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND datname = current_database()"
        ).fetchall()
    return len(ended)


async def test_a_server_that_was_restarted_is_noticed_by_nobody(empty_postgres_url: str) -> None:
    async with opened(empty_postgres_url) as store:
        await asyncio.gather(*(store.write(count(n, "before"), point="test") for n in range(POOL_SIZE)))
        assert end_all_others(empty_postgres_url) >= 1

        await asyncio.gather(*(store.write(count(n, "after"), point="test") for n in range(POOL_SIZE)))
        assert end_all_others(empty_postgres_url) >= 1
        assert len(await store.read(counted)) == 2 * POOL_SIZE
        assert end_all_others(empty_postgres_url) >= 1
        assert len(await store.scan(counted)) == 2 * POOL_SIZE


async def test_a_connection_that_breaks_before_commit_has_its_body_run_again(empty_postgres_url: str) -> None:
    ran = 0

    def body(conn: sa.Connection) -> None:
        nonlocal ran
        ran += 1
        count(1, "x")(conn)
        if ran == 1:
            end_all_others(empty_postgres_url)
            conn.execute(sa.text("SELECT 1"))

    async with opened(empty_postgres_url) as store:
        await store.write(body, point="test")
        assert ran == 2
        assert await store.read(counted) == [(1, "x")]


class BreakAtCommit:
    """Ends the connection between the body's last statement and its COMMIT."""

    def __init__(self, url: str) -> None:
        self.url = url

    def reach(self, point: str) -> None:
        if point == "fragile.before-commit":
            end_all_others(self.url)


async def test_a_commit_whose_answer_was_lost_is_neither_repeated_nor_claimed(empty_postgres_url: str) -> None:
    async with opened(empty_postgres_url, faults=BreakAtCommit(empty_postgres_url)) as store:
        with pytest.raises(StoreError) as lost:
            await store.write(count(1, "x"), point="fragile")
        assert lost.value.code == "store.commit_unknown"
        assert lost.value.because and "same idempotency key" in lost.value.try_this
        await store.write(count(2, "x"), point="test")
        assert await store.read(counted) == [(2, "x")]


async def test_a_server_that_is_not_there_is_named_and_come_back_to() -> None:
    with pytest.raises(StoreError) as refused:
        await open_store("postgresql://postgres@/house?host=/nonexistent")
    assert refused.value.code == "store.unreachable"
    assert refused.value.because and "retinue.toml" in refused.value.try_this


async def test_the_plain_address_of_a_database_is_enough(empty_postgres_url: str) -> None:
    for scheme in ("postgresql", "postgres"):
        async with opened(empty_postgres_url.replace("postgresql+psycopg", scheme)) as store:
            assert await store.read(counted) == []


# Callers who go away


async def test_a_caller_cancelled_in_mid_commit_leaves_the_commit_whole_and_listeners_told(
    empty_postgres_url: str,
) -> None:
    told: list[int] = []
    started = asyncio.Event()

    def slow(conn: sa.Connection) -> None:
        count(1, "left")(conn)
        started.set()
        conn.execute(sa.text("SELECT pg_sleep(0.1)"))
        count(1, "right")(conn)

    async with opened(empty_postgres_url) as store:
        store.on_commit(lambda: told.append(1))
        writing = asyncio.create_task(store.write(slow, point="test"))
        await started.wait()
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        await store.close()
    assert told == [1]
    async with opened(empty_postgres_url) as store:
        assert await store.read(counted) == [(1, "left"), (1, "right")]


async def test_a_write_that_fails_when_its_caller_has_gone_away_is_no_unhandled_error(empty_postgres_url: str) -> None:
    loop = asyncio.get_running_loop()
    unhandled: list[Any] = []
    handler = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: unhandled.append(context))
    started, gone = asyncio.Event(), asyncio.Event()

    def fails(conn: sa.Connection) -> None:
        started.set()
        await_only(gone.wait())
        raise ValueError("nobody is there to be told")

    try:
        async with opened(empty_postgres_url) as store:
            writing = asyncio.create_task(store.write(fails, point="test"))
            await started.wait()
            writing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await writing
            gone.set()
            await store.close()
        gc.collect()
    finally:
        loop.set_exception_handler(handler)
    assert unhandled == []


async def test_many_more_callers_than_connections_all_get_their_turn(empty_postgres_url: str) -> None:
    async with opened(empty_postgres_url) as store:
        callers = [store.write(count(n, "x"), point="test") for n in range(5 * POOL_SIZE)]
        looks = [store.scan(counted) for _ in range(3 * POOL_SIZE)]
        await asyncio.gather(*callers, *looks)
        assert len(await store.read(counted)) == 5 * POOL_SIZE


# What it promises


async def test_commits_are_durable_though_the_server_is_set_otherwise(empty_postgres_url: str) -> None:
    with psycopg.connect(sa.make_url(empty_postgres_url).set(drivername="postgresql").render_as_string()) as conn:
        assert conn.execute("SHOW synchronous_commit").fetchone() == ("off",)  # the test server's own setting
    async with opened(empty_postgres_url) as store:
        assert await store.write(ask("SHOW synchronous_commit"), point="test") == "on"
    async with opened(f"{empty_postgres_url}&options=-c%20synchronous_commit%3Dremote_apply") as store:
        assert await store.write(ask("SHOW synchronous_commit"), point="test") == "remote_apply"


async def test_a_database_that_cannot_keep_every_text_is_refused(postgres_server: PostgresServer) -> None:
    with postgres_server.connect() as conn:
        conn.execute("CREATE DATABASE old ENCODING 'LATIN1' LOCALE 'C' LOCALE_PROVIDER libc TEMPLATE template0")
    try:
        with pytest.raises(StoreError) as refused:
            await open_store(postgres_server.url("old"))
        assert refused.value.code == "store.encoding"
        assert "LATIN1" in refused.value.because and "UTF8" in refused.value.try_this
    finally:
        with postgres_server.connect() as conn:
            conn.execute("DROP DATABASE old WITH (FORCE)")


async def test_processes_that_make_the_tables_at_once_take_turns(empty_postgres_url: str) -> None:
    stores = await asyncio.gather(*(open_store(empty_postgres_url) for _ in range(4)))
    for n, store in enumerate(stores):
        await store.write(count(n, "x"), point="test")
    assert len(await stores[0].read(counted)) == 4
    for store in stores:
        await store.close()


async def test_the_audit_relation_cannot_be_written_through(empty_postgres_url: str) -> None:
    async with opened(empty_postgres_url) as store:
        for refused in ("DELETE FROM agent_runs", "UPDATE agent_runs SET error = 'x'"):
            with pytest.raises(StoreError):
                await store.write(ask(refused), point="test")


HOT = {
    envelopes._due: "ix_envelopes_lane",
    envelopes._count_droppable: "ix_envelopes_lane",
    envelopes._next_outbound: "ix_envelopes_outbox",
    envelopes._next_due: "ix_envelopes_due",
    envelopes._due_lanes: "ix_envelopes_due",
    envelopes._held: "ix_envelopes_held",
    envelopes._expired: "ix_envelopes_expiring",
    envelopes._by_key: "uq_envelopes_source_dedupe_key",
    runs._open_by_session: "uq_runs_open",
    approvals._next_expiry: "ix_approvals_open",
}


async def test_the_hot_statements_use_the_partial_indexes(empty_postgres_url: str) -> None:
    """With fifty thousand settled envelopes and a few that wait."""
    fill = """
        INSERT INTO envelopes (seq, id, sender, recipient, session, kind, text, trust, source, dedupe_key, rank, silent,
                               due_ms, status, attempts, accepted_ms)
        SELECT n, lpad(to_hex(n), 32, '0'), 'person:maria', 'agent:ada', lpad(to_hex(n % 500), 32, '0'), 'message', 'x',
               'person', 'test', n::text, 1, false, n, CASE WHEN n % 1000 = 0 THEN 'pending' ELSE 'done' END, 0, n
        FROM generate_series(1, 50000) AS n
    """
    missing: list[str] = []
    async with opened(empty_postgres_url) as store:
        await store.write(lambda conn: conn.execute(sa.text(fill)) and None, point="test")
        await store.write(lambda conn: conn.execute(sa.text("ANALYZE envelopes")) and None, point="test")
        for statement, index in HOT.items():
            plan = await store.read(lambda conn, s=statement: _plan_of(conn, s))
            if index not in plan or "Seq Scan on envelopes" in plan:
                missing.append(f"{index}: {plan}")
    assert not missing, "\n".join(missing)


def _plan_of(conn: sa.Connection, statement: Any) -> str:
    words = {
        "session": "0" * 31 + "1",
        "the_run": "r" * 32,
        "recipient": "channel:quiet:1",
        "source": "test",
        "key": "7",
    }
    compiled = statement.compile(dialect=PGDialect_psycopg())
    numbers = {"limit": 10, "now": 40_000, "since": 30_000}
    parameters = {
        name: words.get(name) or numbers.get(name) if value is None else value
        for name, value in compiled.params.items()
    }
    conn.execute(sa.text("SET LOCAL enable_seqscan = off"))  # runs and approvals are empty here
    return "\n".join(conn.exec_driver_sql(f"EXPLAIN {compiled}", parameters).scalars())


# A house on PostgreSQL


@pytest.fixture
def household(tmp_path: Path, empty_postgres_url: str) -> LocalInstance:
    return LocalInstance(tmp_path, url=empty_postgres_url)


async def test_a_question_is_answered(household: LocalInstance) -> None:
    async with household.run() as house:
        household.model.will_reply("Lunch with Noor.")
        receipt = await house.send("What is on today?")
        assert await house.wait_for_answer(receipt.envelope) == "Lunch with Noor."


async def test_a_tool_is_used(household: LocalInstance) -> None:
    async with household.run() as house:
        household.model.will_reply(tool_call_reply("append_line", text="hello"), "done")
        receipt = await house.send("do it")
        assert await house.wait_for_answer(receipt.envelope) == "done"
        assert household.witness_file.read_text().split()[1] == "hello"


async def test_an_envelope_accepted_before_a_crash_is_answered_after_it(household: LocalInstance) -> None:
    async with household.run() as house:
        household.model.will_reply(text_reply("never", after_s=3600))
        receipt = await house.send("What is on today?")
        await house.wait_for(lambda _conn: len(household.model.prompts) == 1, what="the model to be asked")
        house.crash()
    household.model.will_reply("Lunch with Noor.")
    async with household.run() as house:
        assert await house.wait_for_answer(receipt.envelope) == "Lunch with Noor."


async def test_a_run_waits_for_a_person_and_goes_on(tmp_path: Path, empty_postgres_url: str) -> None:
    asks = Agent(name="ada", model="scripted", tools=ToolRules(ask=("append_line",)))
    household = LocalInstance(tmp_path, url=empty_postgres_url, agents=[asks])
    async with household.run() as house:
        household.model.will_reply(tool_call_reply("append_line", text="allowed"), "done")
        receipt = await house.send("do it")
        (approval,) = await house.wait_for(lambda conn: approvals.list_open(conn, limit=5) or None, what="a question")
        await house.engine.answer_approval(approval.id, allow=True, by=boss_principal("owner"))
        assert await house.wait_for_answer(receipt.envelope) == "done"
        assert household.witness_file.read_text().split()[1] == "allowed"


async def test_a_run_is_cancelled_and_its_sender_told(household: LocalInstance) -> None:
    async with household.run() as house:
        household.model.will_reply(text_reply("never", after_s=3600))
        receipt = await house.send("take your time")
        await house.wait_for(lambda _conn: len(household.model.prompts) == 1, what="the model to be asked")
        assert receipt.session is not None
        await house.engine.cancel(receipt.session, by="person:owner", reason="enough", clear_due=True)
        assert (await house.wait_for_outcome(receipt.envelope)).outcome is Outcome.CANCELLED
        assert any("Stopped" in letter.text for letter in await house.list_envelopes_to("maria"))


async def test_mail_steers_an_active_run_and_mail_of_many_people_is_worked_in_order(
    tmp_path: Path, empty_postgres_url: str
) -> None:
    steered = Agent(name="ada", model="scripted", queue=QueuePolicy(mode=QueueMode.STEER))
    household = LocalInstance(tmp_path, url=empty_postgres_url, agents=[steered, Agent(name="bob", model="scripted")])
    async with household.run() as house:
        household.model.rule = lambda prompt: text_reply(f"read {len(prompt.records)}")
        receipts = [
            await house.send(f"number {n}", recipient=f"agent:{name}", sender=f"person:{who}")
            for n in range(5)
            for name in ("ada", "bob")
            for who in ("maria", "owner")
        ]
        for receipt in receipts:
            assert (await house.wait_for_outcome(receipt.envelope)).outcome is Outcome.ANSWERED


async def test_mail_for_later_waits_for_its_time_and_mail_that_expired_is_told(
    tmp_path: Path, empty_postgres_url: str
) -> None:
    patient = Agent(name="ada", model="scripted", run_seconds_max=4 * 3600)
    household = LocalInstance(tmp_path, url=empty_postgres_url, agents=[patient])
    async with household.run() as house:
        now = household.clock.now()
        household.model.will_reply(text_reply("busy", after_s=3600 * 2.5))
        await house.send("first")
        await house.wait_for(lambda _conn: len(household.model.prompts) == 1, what="the model to be asked")
        later = await house.send("later", deliver_at=now.replace(hour=12))
        for_maria = await house.send("hello", deliver_at=now.replace(hour=10), recipient="person:maria")
        expires = await house.send("hurry", expires_at=now.replace(hour=11))
        assert {(await house.get_envelope(r.envelope)).status for r in (later, for_maria, expires)} == {
            EnvelopeStatus.PENDING
        }

        household.model.will_reply("in time")
        ids = (for_maria.envelope, expires.envelope, later.envelope)
        ended = await turn_the_clock_until_settled(house, *ids)
        assert [settled.outcome for settled in ended] == [Outcome.DELIVERED, Outcome.EXPIRED, Outcome.ANSWERED]
        assert ended[0].at >= now.replace(hour=10) and ended[2].at >= now.replace(hour=12)


async def test_a_letter_sent_again_and_again_at_once_is_one_letter(household: LocalInstance) -> None:
    async with household.run() as house:
        household.model.will_reply("once")
        receipts = await asyncio.gather(*(house.send("only once", key="k") for _ in range(9)))
        assert len({receipt.envelope for receipt in receipts}) == 1
        assert sum(not receipt.duplicate for receipt in receipts) == 1
        assert await house.wait_for_answer(receipts[0].envelope) == "once"
        await house.wait_until_idle()
        assert len(household.model.prompts) == 1


async def test_who_wants_to_hear_of_one_table_hears_of_that_one(empty_postgres_url: str) -> None:
    store = await open_store(empty_postgres_url)
    try:
        told: list[str] = []
        store.on_commit(lambda: told.append("tally"), t.tally)
        await store.write(lambda conn: conn.execute(t.pins.delete()) and None, point="test")
        assert told == []
        await store.write(lambda conn: conn.execute(t.tally.delete()) and None, point="test")
        assert told == ["tally"]
        await store.write(lambda conn: conn.execute(sa.text("DELETE FROM tally")) and None, point="test")
        assert told == ["tally", "tally"]
    finally:
        await store.close()
