"""The store on PostgreSQL: retries, cancellation, lost connections, and a server on it."""

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
from psycopg import sql
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.util import await_only
from stores import advance_until_settled, count, list_tallies

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
async def open_postgres(url: str, **kw: Any) -> AsyncGenerator[PostgresStore]:
    store = await open_store(url, **kw)
    assert isinstance(store, PostgresStore)
    try:
        yield store
    finally:
        await store.close()


def ask(statement: str, **parameters: Any) -> TransactionBody[Any]:
    return lambda conn: conn.execute(sa.text(statement), parameters).scalar()


async def add_two_rows(store: PostgresStore) -> None:
    for day in (1, 2):
        await store.write(count(day, "x"), point="test")


def increment_statement(day: int) -> sa.TextClause:
    return sa.text(f"UPDATE accepted_counts SET accepted = accepted + 1 WHERE day = {day}")


# Retries


async def test_a_postgresql_transaction_is_retried_after_a_deadlock(empty_postgres_url: str) -> None:
    ran: list[str] = []
    taken = {1: asyncio.Event(), 2: asyncio.Event()}
    one_is_done = asyncio.Event()

    def both(first: int, second: int) -> TransactionBody[None]:
        def body(conn: sa.Connection) -> None:
            if f"{first}{second}" in ran:
                await_only(one_is_done.wait())  # otherwise the retry could deadlock again
            ran.append(f"{first}{second}")
            conn.execute(increment_statement(first))
            taken[first].set()
            await_only(taken[second].wait())  # until the other has its first row, too
            conn.execute(increment_statement(second))

        return body

    async with open_postgres(empty_postgres_url) as store:
        await add_two_rows(store)

        async def write(first: int, second: int) -> None:
            await store.write(both(first, second), point="test")
            one_is_done.set()

        await asyncio.gather(write(1, 2), write(2, 1))

        assert len(ran) == 3  # one of the two had to start again
        assert await store.read(lambda conn: conn.execute(sa.select(t.accepted_counts.c.accepted)).scalars().all()) == [
            3,
            3,
        ]


async def test_a_postgresql_transaction_is_retried_after_a_serialization_failure(empty_postgres_url: str) -> None:
    looked, overtaken = asyncio.Event(), asyncio.Event()
    seen: list[int] = []

    def slow(conn: sa.Connection) -> None:
        conn.execute(sa.text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
        seen.append(conn.execute(sa.text("SELECT accepted FROM accepted_counts WHERE day = 1")).scalar_one())
        looked.set()
        await_only(overtaken.wait())
        conn.execute(increment_statement(1))

    async with open_postgres(empty_postgres_url) as store:
        await add_two_rows(store)
        writing = asyncio.create_task(store.write(slow, point="test"))
        await looked.wait()
        await store.write(lambda conn: conn.execute(increment_statement(1)) and None, point="test")
        overtaken.set()
        await writing

        assert seen == [1, 2]
        assert await store.read(ask("SELECT accepted FROM accepted_counts WHERE day = 1")) == 3


# Lost connections


def backend_pid(conn: sa.Connection) -> int:
    return conn.execute(sa.text("SELECT pg_backend_pid()")).scalar_one()


def terminate_other_connections(url: str) -> int:
    """Do what a restart of PostgreSQL does."""
    with psycopg.connect(sa.make_url(url).set(drivername="postgresql").render_as_string()) as conn:
        ended = conn.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND datname = current_database()"
        ).fetchall()
    return len(ended)


async def test_callers_do_not_notice_terminated_postgresql_connections(empty_postgres_url: str) -> None:
    async with open_postgres(empty_postgres_url) as store:
        await asyncio.gather(*(store.write(count(n, "before"), point="test") for n in range(POOL_SIZE)))
        assert terminate_other_connections(empty_postgres_url) >= 1

        await asyncio.gather(*(store.write(count(n, "after"), point="test") for n in range(POOL_SIZE)))
        assert terminate_other_connections(empty_postgres_url) >= 1
        assert len(await store.read(list_tallies)) == 2 * POOL_SIZE
        assert terminate_other_connections(empty_postgres_url) >= 1
        assert len(await store.scan(list_tallies)) == 2 * POOL_SIZE


async def test_a_postgresql_transaction_is_retried_if_its_connection_breaks_before_the_commit(
    empty_postgres_url: str,
) -> None:
    ran = 0

    def body(conn: sa.Connection) -> None:
        nonlocal ran
        ran += 1
        count(1, "x")(conn)
        if ran == 1:
            terminate_other_connections(empty_postgres_url)
            conn.execute(sa.text("SELECT 1"))

    async with open_postgres(empty_postgres_url) as store:
        await store.write(body, point="test")
        assert ran == 2
        assert await store.read(list_tallies) == [(1, "x")]


class DisconnectBeforeCommit:
    """Ends the connection between the last statement of the body and its COMMIT."""

    def __init__(self, url: str) -> None:
        self.url = url

    def reach(self, point: str) -> None:
        if point == "fragile.before-commit":
            terminate_other_connections(self.url)


async def test_a_postgresql_commit_without_an_answer_is_reported_as_unknown_and_not_repeated(
    empty_postgres_url: str,
) -> None:
    async with open_postgres(empty_postgres_url, faults=DisconnectBeforeCommit(empty_postgres_url)) as store:
        with pytest.raises(StoreError) as lost:
            await store.write(count(1, "x"), point="fragile")
        assert lost.value.code == "store.commit_unknown"
        assert lost.value.because and "same idempotency key" in lost.value.try_this
        await store.write(count(2, "x"), point="test")
        assert await store.read(list_tallies) == [(2, "x")]


async def test_an_unreachable_postgresql_server_is_refused_with_the_reason() -> None:
    with pytest.raises(StoreError) as refused:
        await open_store("postgresql://postgres@/retinue?host=/nonexistent")
    assert refused.value.code == "store.unreachable"
    assert refused.value.because and "retinue.toml" in refused.value.try_this


async def test_a_postgresql_url_without_a_driver_is_accepted(empty_postgres_url: str) -> None:
    for scheme in ("postgresql", "postgres"):
        async with open_postgres(empty_postgres_url.replace("postgresql+psycopg", scheme)) as store:
            assert await store.read(list_tallies) == []


# Cancelled callers


async def test_a_caller_cancelled_during_a_postgresql_commit_leaves_it_complete_and_listeners_notified(
    empty_postgres_url: str,
) -> None:
    told: list[int] = []
    started = asyncio.Event()

    def slow(conn: sa.Connection) -> None:
        count(1, "left")(conn)
        started.set()
        conn.execute(sa.text("SELECT pg_sleep(0.1)"))
        count(1, "right")(conn)

    async with open_postgres(empty_postgres_url) as store:
        store.on_commit(lambda: told.append(1))
        writing = asyncio.create_task(store.write(slow, point="test"))
        await started.wait()
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        await store.close()
    assert told == [1]
    async with open_postgres(empty_postgres_url) as store:
        assert await store.read(list_tallies) == [(1, "left"), (1, "right")]


async def test_a_failed_postgresql_write_of_a_cancelled_caller_is_no_unhandled_error(empty_postgres_url: str) -> None:
    loop = asyncio.get_running_loop()
    unhandled: list[Any] = []
    handler = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: unhandled.append(context))
    started, gone = asyncio.Event(), asyncio.Event()

    def fails(conn: sa.Connection) -> None:
        started.set()
        await_only(gone.wait())
        raise ValueError("the caller is gone")

    try:
        async with open_postgres(empty_postgres_url) as store:
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


async def test_more_callers_than_postgresql_connections_are_all_served(empty_postgres_url: str) -> None:
    async with open_postgres(empty_postgres_url) as store:
        callers = [store.write(count(n, "x"), point="test") for n in range(5 * POOL_SIZE)]
        looks = [store.scan(list_tallies) for _ in range(3 * POOL_SIZE)]
        await asyncio.gather(*callers, *looks)
        assert len(await store.read(list_tallies)) == 5 * POOL_SIZE


# Settings and plans


async def test_postgresql_commits_are_durable_even_if_the_server_default_is_not(empty_postgres_url: str) -> None:
    url = sa.make_url(empty_postgres_url)
    with psycopg.connect(url.set(drivername="postgresql").render_as_string()) as conn:
        statement = sql.SQL("ALTER DATABASE {} SET synchronous_commit = off")
        conn.execute(statement.format(sql.Identifier(url.database or "")))
    async with open_postgres(empty_postgres_url) as store:
        assert await store.write(ask("SHOW synchronous_commit"), point="test") == "on"
    async with open_postgres(f"{empty_postgres_url}&options=-c%20synchronous_commit%3Dremote_apply") as store:
        assert await store.write(ask("SHOW synchronous_commit"), point="test") == "remote_apply"


async def test_a_postgresql_database_without_utf8_encoding_is_refused(postgres_server: PostgresServer) -> None:
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


async def test_stores_that_create_the_postgresql_tables_at_once_take_turns(empty_postgres_url: str) -> None:
    stores = await asyncio.gather(*(open_store(empty_postgres_url) for _ in range(4)))
    for n, store in enumerate(stores):
        await store.write(count(n, "x"), point="test")
    assert len(await stores[0].read(list_tallies)) == 4
    for store in stores:
        await store.close()


async def test_the_agent_runs_view_cannot_be_written_on_postgresql(empty_postgres_url: str) -> None:
    async with open_postgres(empty_postgres_url) as store:
        for refused in ("DELETE FROM agent_runs", "UPDATE agent_runs SET error = 'x'"):
            with pytest.raises(StoreError):
                await store.write(ask(refused), point="test")


INDEX_BY_STATEMENT = {
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


async def test_frequent_postgresql_statements_use_the_partial_indexes(empty_postgres_url: str) -> None:
    """Tested with fifty thousand done envelopes and a few pending ones."""
    fill = """
        INSERT INTO envelopes (seq, id, sender, recipient, session, kind, text, trust, source, dedupe_key, rank, silent,
                               due_ms, status, attempts, accepted_ms)
        SELECT n, lpad(to_hex(n), 32, '0'), 'person:maria', 'agent:ada', lpad(to_hex(n % 500), 32, '0'), 'message', 'x',
               'person', 'test', n::text, 1, false, n, CASE WHEN n % 1000 = 0 THEN 'pending' ELSE 'done' END, 0, n
        FROM generate_series(1, 50000) AS n
    """
    missing: list[str] = []
    async with open_postgres(empty_postgres_url) as store:
        await store.write(lambda conn: conn.execute(sa.text(fill)) and None, point="test")
        await store.write(lambda conn: conn.execute(sa.text("ANALYZE envelopes")) and None, point="test")
        for statement, index in INDEX_BY_STATEMENT.items():
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


# A server on PostgreSQL


@pytest.fixture
def instance(tmp_path: Path, empty_postgres_url: str) -> LocalInstance:
    return LocalInstance(tmp_path, url=empty_postgres_url)


async def test_an_envelope_is_answered_on_postgresql(instance: LocalInstance) -> None:
    async with instance.run() as server:
        instance.model.will_reply("Lunch with Noor.")
        receipt = await server.send("What is on today?")
        assert await server.wait_for_answer(receipt.envelope) == "Lunch with Noor."


async def test_a_tool_call_is_made_on_postgresql(instance: LocalInstance) -> None:
    async with instance.run() as server:
        instance.model.will_reply(tool_call_reply("append_line", text="hello"), "done")
        receipt = await server.send("do it")
        assert await server.wait_for_answer(receipt.envelope) == "done"
        assert instance.witness_file.read_text().split()[1] == "hello"


async def test_an_envelope_accepted_before_a_crash_is_answered_after_it_on_postgresql(instance: LocalInstance) -> None:
    async with instance.run() as server:
        instance.model.will_reply(text_reply("never", after_s=3600))
        receipt = await server.send("What is on today?")
        await server.wait_for(lambda _conn: len(instance.model.prompts) == 1, what="the model to be asked")
        server.crash()
    instance.model.will_reply("Lunch with Noor.")
    async with instance.run() as server:
        assert await server.wait_for_answer(receipt.envelope) == "Lunch with Noor."


async def test_a_run_waits_for_an_approval_and_resumes_on_postgresql(tmp_path: Path, empty_postgres_url: str) -> None:
    asks = Agent(name="ada", model="scripted", tools=ToolRules(ask=("append_line",)))
    instance = LocalInstance(tmp_path, url=empty_postgres_url, agents=[asks])
    async with instance.run() as server:
        instance.model.will_reply(tool_call_reply("append_line", text="allowed"), "done")
        receipt = await server.send("do it")
        (approval,) = await server.wait_for(lambda conn: approvals.list_open(conn, limit=5) or None, what="a question")
        await server.engine.answer_approval(approval.id, allow=True, by=boss_principal("owner"))
        assert await server.wait_for_answer(receipt.envelope) == "done"
        assert instance.witness_file.read_text().split()[1] == "allowed"


async def test_a_run_is_cancelled_and_its_sender_notified_on_postgresql(instance: LocalInstance) -> None:
    async with instance.run() as server:
        instance.model.will_reply(text_reply("never", after_s=3600))
        receipt = await server.send("take your time")
        await server.wait_for(lambda _conn: len(instance.model.prompts) == 1, what="the model to be asked")
        assert receipt.session is not None
        await server.engine.cancel(receipt.session, by="person:owner", reason="enough", clear_due=True)
        assert (await server.wait_for_outcome(receipt.envelope)).outcome is Outcome.CANCELLED
        assert any("Stopped" in each.text for each in await server.list_envelopes_to("maria"))


async def test_envelopes_of_several_people_to_busy_agents_are_answered_on_postgresql(
    tmp_path: Path, empty_postgres_url: str
) -> None:
    steered = Agent(name="ada", model="scripted", queue=QueuePolicy(mode=QueueMode.STEER))
    instance = LocalInstance(tmp_path, url=empty_postgres_url, agents=[steered, Agent(name="bob", model="scripted")])
    async with instance.run() as server:
        instance.model.rule = lambda prompt: text_reply(f"read {len(prompt.records)}")
        receipts = [
            await server.send(f"number {n}", recipient=f"agent:{name}", sender=f"person:{who}")
            for n in range(5)
            for name in ("ada", "bob")
            for who in ("maria", "owner")
        ]
        for receipt in receipts:
            assert (await server.wait_for_outcome(receipt.envelope)).outcome is Outcome.ANSWERED


async def test_envelopes_wait_for_their_delivery_time_or_expire_on_postgresql(
    tmp_path: Path, empty_postgres_url: str
) -> None:
    patient = Agent(name="ada", model="scripted", run_seconds_max=4 * 3600)
    instance = LocalInstance(tmp_path, url=empty_postgres_url, agents=[patient])
    async with instance.run() as server:
        now = instance.clock.now()
        instance.model.will_reply(text_reply("busy", after_s=3600 * 2.5))
        await server.send("first")
        await server.wait_for(lambda _conn: len(instance.model.prompts) == 1, what="the model to be asked")
        later = await server.send("later", deliver_at=now.replace(hour=12))
        for_maria = await server.send("hello", deliver_at=now.replace(hour=10), recipient="person:maria")
        expires = await server.send("hurry", expires_at=now.replace(hour=11))
        assert {(await server.get_envelope(r.envelope)).status for r in (later, for_maria, expires)} == {
            EnvelopeStatus.PENDING
        }

        instance.model.will_reply("in time")
        ids = (for_maria.envelope, expires.envelope, later.envelope)
        ended = await advance_until_settled(server, *ids)
        assert [settled.outcome for settled in ended] == [Outcome.DELIVERED, Outcome.EXPIRED, Outcome.ANSWERED]
        assert ended[0].at >= now.replace(hour=10) and ended[2].at >= now.replace(hour=12)


async def test_simultaneous_sends_with_one_idempotency_key_make_one_envelope_on_postgresql(
    instance: LocalInstance,
) -> None:
    async with instance.run() as server:
        instance.model.will_reply("once")
        receipts = await asyncio.gather(*(server.send("only once", key="k") for _ in range(9)))
        assert len({receipt.envelope for receipt in receipts}) == 1
        assert sum(not receipt.duplicate for receipt in receipts) == 1
        assert await server.wait_for_answer(receipts[0].envelope) == "once"
        await server.wait_until_idle()
        assert len(instance.model.prompts) == 1


async def test_a_commit_listener_of_one_table_is_called_for_that_table_only_on_postgresql(
    empty_postgres_url: str,
) -> None:
    store = await open_store(empty_postgres_url)
    try:
        told: list[str] = []
        store.on_commit(lambda: told.append("tally"), t.accepted_counts)
        await store.write(lambda conn: conn.execute(t.approved_hashes.delete()) and None, point="test")
        assert told == []
        await store.write(lambda conn: conn.execute(t.accepted_counts.delete()) and None, point="test")
        assert told == ["tally"]
        await store.write(lambda conn: conn.execute(sa.text("DELETE FROM accepted_counts")) and None, point="test")
        assert told == ["tally", "tally"]
    finally:
        await store.close()
