"""The contract of stores: SQLite with a writer thread, SQLite inline without one, and a real PostgreSQL."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa
from store.model_spending import run_of
from stores import (
    INLINE,
    POSTGRES,
    SQLITE,
    StoreLocation,
    add_agents_and_people,
    count,
    create_store_location,
    list_tallies,
)

from retinue.domain import address
from retinue.domain.budget import BudgetPeriod, ModelCallReservationRequest
from retinue.domain.envelope import EnvelopeDraft, EnvelopeKind, Trust
from retinue.domain.errors import StaleEpoch, StoreError
from retinue.domain.event import EventKind
from retinue.domain.ids import EnvelopeId, RunId, SessionId
from retinue.domain.model import ModelRef, Price
from retinue.domain.record import (
    ContextStart,
    Note,
    Record,
    RecordKind,
    Reply,
    StopReason,
    Summary,
    Usage,
    UserTurn,
    body_kind,
)
from retinue.domain.record import RecordBody as RecordBody
from retinue.domain.session import Origin, OriginKind, QueueMode, QueueOverride, SessionActivity
from retinue.domain.tool import Call, ToolResult
from retinue.store.agents import agents
from retinue.store.core import events
from retinue.store.core import tables as t
from retinue.store.core.connection import Store, TransactionBody
from retinue.store.core.transaction import Transaction
from retinue.store.envelopes import envelopes
from retinue.store.maintenance import erase_person
from retinue.store.people import people, tokens
from retinue.store.runs import approvals, budget_reservations, runs
from retinue.store.sessions import records, sessions
from retinue.testing.local_instance import SequentialIds

TEXTS = [
    "",
    "plain",
    "Grüße, 世界 🌍",
    "line\nline\r\n\ttab",
    "'; DROP TABLE envelopes; --",
    "\u202eevil\u202c",
    "%s :x ?",
]
SESSION = SessionId("a" * 32)
MS_MAX = 253_402_300_799_999  # the last millisecond of the year 9999


@pytest.fixture(params=[SQLITE, INLINE, POSTGRES])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> StoreLocation:
    return create_store_location(request.param, request, tmp_path)


class RecordingCrashPoints:
    """Records which crash points were reached, and calls back at each."""

    def __init__(self) -> None:
        self.reached: list[str] = []
        self.call: Callable[[str], None] = lambda _point: None

    def reach(self, point: str) -> None:
        self.reached.append(point)
        self.call(point)


async def test_a_store_write_returns_only_after_its_commit(place: StoreLocation) -> None:
    points = RecordingCrashPoints()
    seen: dict[str, int] = {}
    async with place.open(faults=points) as store:
        with place.outside() as outside:
            points.call = lambda point: seen.update({point: len(list_tallies(outside))})
            await store.write(count(1, "a"), point="accept")

            assert list_tallies(outside) == [(1, "a")]
    assert seen == {"accept.before-commit": 0, "accept.after-commit": 1}
    assert points.reached == ["accept.before-commit", "accept.after-commit"]


async def test_a_store_write_returns_the_result_of_its_body(place: StoreLocation) -> None:
    async with place.open() as store:
        assert await store.write(lambda conn: conn.dialect.name, point="test") in ("sqlite", "postgresql")
        assert await store.write(lambda _conn: None, point="test") is None


async def test_an_error_in_a_store_write_rolls_back_only_that_write_and_is_raised_unchanged(
    place: StoreLocation,
) -> None:
    def raise_error(conn: sa.Connection) -> None:
        count(1, "broken")(conn)
        raise LookupError("nothing of this stays")

    async with place.open() as store:
        before, broken, after = await asyncio.gather(
            store.write(count(1, "before"), point="test"),
            store.write(raise_error, point="test"),
            store.write(count(1, "after"), point="test"),
            return_exceptions=True,
        )

        assert (before, after) == (None, None)
        assert isinstance(broken, LookupError)
        assert await store.read(list_tallies) == [(1, "after"), (1, "before")]


async def test_a_constraint_error_among_fifty_store_writes_fails_only_its_own_caller(place: StoreLocation) -> None:
    def insert_existing_row(conn: sa.Connection) -> None:
        count(25, "half")(conn)
        count(24, "x")(conn)  # number 24 already wrote this row

    async with place.open() as store:
        await store.write(count(24, "x"), point="test")
        others = [n for n in range(50) if n != 24]
        writes = [store.write(insert_existing_row if n == 24 else count(n, "x"), point="test") for n in range(50)]
        results = await asyncio.gather(*writes, return_exceptions=True)

        failed = [(n, result) for n, result in enumerate(results) if result is not None]
        assert [n for n, _ in failed] == [24]
        error = failed[0][1]
        assert isinstance(error, StoreError)
        assert error.code == "store.constraint_violated"
        assert "contradicts" in error.sentence and error.because and error.try_this
        assert await store.read(list_tallies) == [(n, "x") for n in sorted([24, *others])]


async def test_every_store_lists_the_events_of_one_session_in_bounded_ranges(
    place: StoreLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def emit_events(conn: sa.Connection) -> None:
        tx = Transaction(conn, 1)
        for number in range(1, 21):
            tx.emit(EventKind.SESSION_CHANGED, session="mine" if number in (2, 3, 4, 17) else "theirs")
        tx.close()

    async with place.open() as store:
        await store.write(emit_events, point="test")
        monkeypatch.setattr(events, "SCANNED_EVENTS_MAX", 6)
        looks: list[tuple[list[int], int]] = []
        cursor, more = 0, True
        while more:
            read = await store.read(lambda conn, since=cursor: events.list_next(conn, "mine", since, limit=2))
            looks.append(([piece.seq for piece in read.events], read.cursor))
            cursor, more = read.cursor, read.has_more
        # A full read ends at its last event; every other read checks at most six.
        assert looks == [([2, 3], 3), ([4], 9), ([], 15), ([17], 20)]
        assert await store.read(lambda conn: events.list_next(conn, "mine", 20, limit=2)) == events.EventRange(
            [], 20, has_more=False
        )
        read = await store.read(lambda conn: events.list_next(conn, None, 0, limit=7))
        assert ([piece.seq for piece in read.events], read.cursor, read.has_more) == (list(range(1, 8)), 7, True)


async def test_event_numbers_follow_the_commit_order_in_every_store(place: StoreLocation) -> None:
    """A reader that has seen event 7 has seen all before it, so it can resume by cursor and miss none."""

    def emit_events(conn: sa.Connection) -> int:
        tx = Transaction(conn, 1)
        tx.emit(EventKind.SESSION_CHANGED)
        tx.emit(EventKind.SESSION_CHANGED)
        tx.close()
        return tx.event_seq

    async def watch(store: Store, until: int) -> list[list[int]]:
        looks: list[list[int]] = []
        while not looks or len(looks[-1]) < until:
            looks.append([piece.seq for piece in await store.scan(lambda conn: events.list_after(conn, 0, limit=1000))])
            await asyncio.sleep(0)
        return looks

    async with place.open() as store:
        watching = asyncio.create_task(watch(store, until=80))
        seqs = await asyncio.gather(*(store.write(emit_events, point="test") for _ in range(40)))
        looks = await watching

        assert sorted(seqs) == list(range(2, 82, 2))
        assert all(look == list(range(1, len(look) + 1)) for look in looks)
        if place.kind != POSTGRES:  # one writer: first come, first served; in PostgreSQL callers race
            assert list(seqs) == sorted(seqs)


async def test_sequential_writes_to_a_store_get_consecutive_envelope_numbers(place: StoreLocation) -> None:
    async with place.open() as store:
        seqs = [await store.write(_next_envelope_seq, point="test") for _ in range(5)]
        assert seqs == [1, 2, 3, 4, 5]


def _next_envelope_seq(conn: sa.Connection) -> int:
    tx = Transaction(conn, 1)
    seq = tx.next_envelope_seq()
    tx.close()
    return seq


async def test_commit_times_of_a_store_never_decrease(place: StoreLocation) -> None:
    def at(now_ms: int) -> TransactionBody[int]:
        def body(conn: sa.Connection) -> int:
            tx = Transaction(conn, now_ms)
            tx.close()
            return tx.at_ms

        return body

    async with place.open() as store:
        times = [await store.write(at(now), point="test") for now in (1_000, 5_000, 2_000, 4_999, 6_000)]
    async with place.open() as store:
        times.append(await store.write(at(3_000), point="test"))
    assert times == [1_000, 5_000, 5_000, 5_000, 6_000, 6_000]


async def test_a_store_scan_sees_one_snapshot_during_concurrent_writes(place: StoreLocation) -> None:
    loop = asyncio.get_running_loop()
    looked, written = asyncio.Event(), asyncio.Event()

    def scan_twice(conn: sa.Connection) -> tuple[int, int]:
        first = len(list_tallies(conn))
        loop.call_soon_threadsafe(looked.set)
        place.wait_in_body(written, loop)
        return first, len(list_tallies(conn))

    async with place.open() as store:
        await store.write(count(1, "before"), point="test")
        scanning = asyncio.create_task(store.scan(scan_twice))
        await looked.wait()
        await store.write(count(2, "meanwhile"), point="test")
        written.set()

        assert await scanning == (1, 1)
        assert await store.scan(lambda conn: len(list_tallies(conn))) == 2


async def test_a_long_store_scan_blocks_neither_writes_nor_other_scans(place: StoreLocation) -> None:
    if place.kind == INLINE:
        pytest.skip("inline, each look is over within one step of the loop")
    loop = asyncio.get_running_loop()
    begun, enough = asyncio.Event(), asyncio.Event()

    def scan_slowly(conn: sa.Connection) -> int:
        found = len(list_tallies(conn))
        loop.call_soon_threadsafe(begun.set)
        place.wait_in_body(enough, loop)
        return found

    async with place.open() as store:
        slow_scan = asyncio.create_task(store.scan(scan_slowly))
        await begun.wait()
        for n in range(5):
            await store.write(count(n, "x"), point="test")
            assert len(await store.scan(list_tallies)) == n + 1
        enough.set()
        assert await slow_scan == 0


async def test_reads_and_scans_of_a_store_see_the_latest_write(place: StoreLocation) -> None:
    async with place.open() as store:
        for n in range(20):
            await store.write(count(n, "x"), point="test")
            assert len(await store.read(list_tallies)) == n + 1
            assert len(await store.scan(list_tallies)) == n + 1


@pytest.mark.parametrize("way", ["read", "scan"])
async def test_reads_and_scans_of_a_store_cannot_write(place: StoreLocation, way: str) -> None:
    async with place.open() as store:
        with pytest.raises(StoreError) as refused:
            await getattr(store, way)(count(1, "sly"))

        assert refused.value.code == "store.read_only"
        await store.write(count(2, "open"), point="test")
        assert await store.read(list_tallies) == [(2, "open")]


async def test_an_error_in_a_read_or_scan_leaves_the_store_usable(place: StoreLocation) -> None:
    def raise_error(conn: sa.Connection) -> None:
        list_tallies(conn)
        raise LookupError

    def run_invalid_query(conn: sa.Connection) -> None:
        conn.execute(sa.text("SELECT nothing FROM nowhere"))

    async with place.open() as store:
        for look in (store.read, store.scan):
            with pytest.raises(LookupError):
                await look(raise_error)
            with pytest.raises(StoreError) as refused:
                await look(run_invalid_query)
            assert refused.value.code == "store.statement_rejected" and refused.value.because and refused.value.try_this
            assert await look(list_tallies) == []


async def test_every_store_calls_a_commit_listener_after_each_commit(place: StoreLocation) -> None:
    notifications: list[int] = []
    async with place.open() as store:
        store.on_commit(lambda: notifications.append(1))
        for n in range(3):
            await store.write(count(n, "x"), point="test")
            assert len(notifications) > n


async def test_every_store_calls_a_table_listener_after_each_write_to_its_tables(place: StoreLocation) -> None:
    notifications: list[int] = []

    def update_with_plain_sql(conn: sa.Connection) -> None:
        conn.execute(sa.text("UPDATE accepted_counts SET purged = 1"))

    async with place.open() as store:
        store.on_commit(lambda: notifications.append(1), t.people, t.accepted_counts)
        for writes in (count(1, "x"), count(2, "x"), update_with_plain_sql):
            notifications.clear()
            await store.write(writes, point="test")
            assert notifications
        notifications.clear()
        many = [asyncio.create_task(store.write(count(n, "y"), point="test")) for n in range(5)]
        await many[0]
        assert notifications
        await asyncio.gather(*many)


async def test_a_failing_commit_listener_of_a_store_affects_neither_the_writer_nor_other_listeners(
    place: StoreLocation, caplog: pytest.LogCaptureFixture
) -> None:
    def raise_error() -> None:
        raise RuntimeError("not my day")

    notifications: list[int] = []
    async with place.open() as store:
        store.on_commit(raise_error)
        store.on_commit(lambda: notifications.append(1))
        await store.write(count(1, "x"), point="test")

        assert notifications
        assert "commit listener failed" in caplog.text


async def test_cancelled_store_writes_leave_no_partial_changes(place: StoreLocation) -> None:
    def pair(n: int) -> TransactionBody[None]:
        def body(conn: sa.Connection) -> None:
            count(n, "left")(conn)
            count(n, "right")(conn)

        return body

    chance = random.Random(7)
    async with place.open() as store:
        tasks = [asyncio.create_task(store.write(pair(n), point="test")) for n in range(60)]
        for _ in range(20):
            await asyncio.sleep(chance.choice([0, 0, 0.001]))  # sleep: some are cancelled at once, some later
            chance.choice(tasks).cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(result) for result in results} <= {type(None), asyncio.CancelledError}
        await store.write(count(99, "after"), point="test")

    with place.outside() as outside:
        rows = list_tallies(outside)
    kept = {day for day, source in rows if source == "left"}
    assert kept == {day for day, source in rows if source == "right"}
    assert kept >= {n for n, result in enumerate(results) if result is None}
    assert (99, "after") in rows


async def test_every_store_calls_an_after_commit_callback_once_even_if_the_caller_was_cancelled(
    place: StoreLocation,
) -> None:
    followed: list[int | None] = []

    def numbered(n: int) -> TransactionBody[int]:
        def body(conn: sa.Connection) -> int:
            Transaction(conn, n).close()
            count(n, "x")(conn)
            return n

        return body

    async with place.open() as store:

        def follow(n: int | None) -> None:
            with place.outside() as outside:
                assert n is None or (n, "x") in list_tallies(outside)
            followed.append(n)

        tasks = [asyncio.create_task(store.write(numbered(n), point="test", then=follow)) for n in range(1, 21)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await store.write(count(99, "after"), point="test")
    assert len(followed) == 20
    kept = [n for n in followed if n is not None]
    assert set(range(2, 21, 2)) <= set(kept)
    with place.outside() as outside:
        assert sorted(kept) == sorted(day for day, source in list_tallies(outside) if source == "x")


async def test_every_store_calls_an_after_commit_callback_with_none_if_the_write_failed(place: StoreLocation) -> None:
    followed: list[object] = []

    def broken(_conn: sa.Connection) -> int:
        raise ValueError("no")

    async with place.open() as store:
        with pytest.raises(ValueError, match="no"):
            await store.write(broken, point="test", then=followed.append)
        await store.close()
        with pytest.raises(StoreError):
            await store.write(lambda _: 1, point="test", then=followed.append)
    assert followed == [None, None]


async def test_an_error_in_an_after_commit_callback_does_not_fail_the_store_write(place: StoreLocation) -> None:
    def broken(_result: object) -> None:
        raise ValueError("no")

    async with place.open() as store:
        assert await store.write(lambda _: 1, point="test", then=broken) == 1
        await store.write(count(1, "x"), point="test")


async def test_pending_writes_are_committed_when_the_store_closes(place: StoreLocation) -> None:
    async with place.open() as store:
        tasks = [asyncio.create_task(store.write(count(n, "x"), point="test")) for n in range(10)]
        looking = asyncio.create_task(store.scan(list_tallies))
        await asyncio.sleep(0)
        await store.close()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(looking, return_exceptions=True)

    notifications = sum(result is None for result in done)
    with place.outside() as outside:
        assert len(list_tallies(outside)) == notifications
    if place.kind != INLINE:  # inline, no write begins before the loop runs it
        assert notifications == 10


async def test_a_closed_store_raises_store_closed(place: StoreLocation) -> None:
    async with place.open() as store:
        await store.close()
        await store.close()
        for call in (partial(store.write, point="test"), store.read, store.scan):
            with pytest.raises(StoreError) as refused:
                await call(list_tallies)
            assert refused.value.code == "store.closed"


async def test_written_rows_are_there_after_reopening_the_store(place: StoreLocation) -> None:
    async with place.open() as store:
        await store.write(count(1, "kept"), point="test")
    async with place.open() as store:
        assert await store.read(list_tallies) == [(1, "kept")]


async def test_two_stores_on_one_database_never_assign_a_number_twice(place: StoreLocation) -> None:
    if place.kind == INLINE:
        pytest.skip("an inline store waits for a lock in the loop that the other would release it in")
    async with place.open() as one, place.open() as other:
        writes = [store.write(_next_envelope_seq, point="test") for _ in range(25) for store in (one, other)]
        assert sorted(await asyncio.gather(*writes)) == list(range(1, 51))
        await one.write(count(1, "mine"), point="test")
        assert await other.read(list_tallies) == [(1, "mine")]


# Records


async def test_every_store_reads_records_back_unchanged_and_lists_damaged_ones(place: StoreLocation) -> None:
    bodies: list[RecordBody] = [
        ContextStart(),
        *(UserTurn(text=text, envelopes=(EnvelopeId("e" * 32),)) for text in TEXTS),
        *(Reply(text=text, usage=Usage(input_tokens=3), model="m/1", provider="m") for text in TEXTS),
        Reply(
            text="", thinking="hm", calls=(Call(id="1", tool="t", arguments={"a": [1, None]}),), stop=StopReason.CALLS
        ),
        ToolResult(call="1", tool="t", output="done"),
        Note(text="by the way"),
        Summary(text="so far", kept_from=3),
    ]
    written = [
        Record(
            session=SESSION,
            seq=seq,
            kind=body_kind(body),
            body=body,
            at_ms=MS_MAX - seq,
            run=RunId("r" * 32) if seq % 2 else None,
            trust=Trust.UNTRUSTED if seq % 3 else Trust.PRIVATE,
        )
        for seq, body in enumerate(bodies, start=1)
    ]
    async with place.open() as store:
        await store.write(lambda conn: records.add(conn, written), point="test")
        read = partial(records.read_range, session=SESSION, first=0, last=len(written))
        assert await store.scan(read) == (written, [])

        no_stop, no_usage = '{"text":"x","stop":"nowhere"}', '{"text":"x","usage":{"input_tokens":"many"}}'
        for seq, wrong in (
            (2, {"body": "{"}),
            (3, {"kind": "gossip"}),
            (4, {"at_ms": 10 * MS_MAX}),
            (5, {"trust": "blind"}),
            (6, {"kind": "assistant", "body": no_stop}),
            (7, {"kind": "assistant", "body": no_usage}),
        ):
            change = t.records.update().where(t.records.c.seq == seq).values(**wrong)
            await store.write(lambda conn, change=change: conn.execute(change) and None, point="test")
        found, damaged = await store.scan(read)
        assert found == [written[0], *written[7:]]
        assert [(each.session, each.seq) for each in damaged] == [(SESSION, seq) for seq in range(2, 8)]


async def test_every_store_reads_a_long_session_back_unchanged_and_erasure_removes_its_record_chunks(
    place: StoreLocation,
) -> None:
    bodies = [Reply(text=f"{seq} {TEXTS[2]}") if seq % 2 else UserTurn(text=f"{seq}?") for seq in range(1, 600)]
    written = [
        Record(session=SESSION, seq=seq, kind=body_kind(body), body=body, at_ms=seq, run=RunId("r" * 32))
        for seq, body in enumerate(bodies, start=1)
    ]
    async with place.open() as store:
        await store.write(_add_session, point="test")
        for at in range(0, len(written), 100):
            await store.write(partial(records.add, records=written[at : at + 100]), point="test")
        assert await store.scan(_list_chapters) == [0, 1]
        assert await store.scan(partial(records.read_range, session=SESSION, first=1, last=599)) == (written, [])
        await store.write(partial(erase_person.erase_person, person="maria", now_ms=9), point="test")
        assert await store.scan(_list_chapters) == []
        found, _ = await store.scan(partial(records.read_range, session=SESSION, first=1, last=599))
        assert {record.body.text for record in found if isinstance(record.body, UserTurn)} == {erase_person.ERASED}


def _list_chapters(conn: sa.Connection) -> list[int]:
    return [row.number for row in conn.execute(sa.select(t.record_chunks.c.number).order_by(t.record_chunks.c.number))]


# Epochs


def _add_session(conn: sa.Connection) -> None:
    add_agents_and_people("ada")(conn)
    sessions.add(conn, SESSION, agent="ada", origin=Origin(OriginKind.WEB, "person:maria"), name="", at_ms=5)


def _fenced_write(*, worker: int, epoch: int, new_epoch: int | None = None) -> TransactionBody[None]:
    """Return the body of a run's commit: a write before the epoch check, the check, and writes after it."""

    def body(conn: sa.Connection) -> None:
        tx = Transaction(conn, 10)
        count(worker, "before the guard")(conn)
        sessions.update_fenced(
            conn,
            SESSION,
            epoch=epoch,
            new_epoch=new_epoch,
            record_seq=2,
            wakefulness=SessionActivity.ACTIVE,
            at_ms=tx.at_ms,
        )
        records.add(conn, [Record(session=SESSION, seq=2, kind=RecordKind.NOTE, body=Note(text="x"), at_ms=1)])
        tx.emit(EventKind.SESSION_CHANGED, session=SESSION)
        tx.close()

    return body


async def test_a_worker_with_an_old_epoch_can_write_nothing_to_any_store(place: StoreLocation) -> None:
    async with place.open() as store:
        await store.write(_add_session, point="test")
        await store.write(_claim_next_epoch, point="test")

        with pytest.raises(StaleEpoch):
            await store.write(_fenced_write(worker=1, epoch=0), point="step")

        assert await store.read(list_tallies) == []
        assert await store.read(lambda conn: records.read_range(conn, SESSION, first=0, last=9)) == ([], [])
        assert await store.read(events.newest_seq) == 0
        kept = await store.read(lambda conn: sessions.get(conn, SESSION))
        assert kept is not None and (kept.epoch, kept.record_seq) == (1, 1)


def _claim_next_epoch(conn: sa.Connection) -> None:
    sessions.update_fenced(
        conn, SESSION, epoch=0, new_epoch=1, record_seq=1, wakefulness=SessionActivity.ACTIVE, at_ms=6
    )


async def test_only_one_of_several_concurrent_claims_in_a_store_wins(place: StoreLocation) -> None:
    async with place.open() as store:
        await store.write(_add_session, point="test")
        writes = [store.write(_fenced_write(worker=n, epoch=0, new_epoch=1), point="claim") for n in range(5)]
        results = await asyncio.gather(*writes, return_exceptions=True)

        winners = [n for n, result in enumerate(results) if result is None]
        assert len(winners) == 1
        assert sum(isinstance(result, StaleEpoch) for result in results) == 4
        assert await store.read(list_tallies) == [(winners[0], "before the guard")]


# Round trips


async def test_every_store_reads_texts_numbers_and_flags_back_unchanged(place: StoreLocation) -> None:
    ids = SequentialIds()

    def add_rows(conn: sa.Connection) -> None:
        _add_session(conn)
        for n, text in enumerate(TEXTS, start=1):
            draft = _make_draft(ids.new(), text, key=f"{n}{text}")
            envelopes.add(conn, draft, seq=n, at_ms=MS_MAX - n, session=SESSION, recipient="agent:ada")
        sessions.set_queue(conn, SESSION, QueueOverride(mode=QueueMode.STEER, cap=0), at_ms=7)
        dear = ModelCallReservationRequest(ref=ModelRef("", "dear"), price=Price(call=2**40))
        days = BudgetPeriod(day=1, month_first_day=1, month_last_day=31)
        run = run_of("b", agent="ada")
        budget_reservations.reserve(conn, run, turn=0, index=0, attempt=1, terms=dear, days=days, root=run.id, at_ms=1)

    async with place.open() as store:
        await store.write(add_rows, point="test")
        due = await store.scan(lambda conn: envelopes.list_due(conn, SESSION, MS_MAX, limit=100))

        assert [e.text for e in due] == list(reversed(TEXTS))
        assert {e.silent for e in due} == {True}
        assert all(e.silent is True for e in due)
        assert [e.accepted_at for e in due] == sorted(e.accepted_at for e in due)
        first = due[0]
        assert (first.reply_to, first.deliver_at, first.run, first.kind) == (None, None, None, EnvelopeKind.SYSTEM)
        assert await store.read(lambda conn: envelopes.get(conn, first.id)) == first
        found = await store.read(lambda conn: envelopes.get_by_key(conn, first.source, first.idempotency_key))
        assert found == first
        session = await store.read(lambda conn: sessions.get(conn, SESSION))
        assert session is not None
        assert session.queue == QueueOverride(mode=QueueMode.STEER, cap=0)
        assert await store.read(lambda conn: conn.execute(sa.select(t.model_calls.c.held_microusd)).scalar()) == 2**40


def _make_draft(id_: str, text: str, *, key: str) -> EnvelopeDraft:
    return EnvelopeDraft(
        id=EnvelopeId(id_),
        sender=address.person_address("maria"),
        recipient=address.agent_address("ada"),
        text=text,
        source="test",
        idempotency_key=key,
        kind=EnvelopeKind.SYSTEM,
        silent=True,
    )


async def test_every_store_query_runs_on_sqlite_and_postgresql(place: StoreLocation) -> None:
    """Run each query once without rows: this finds a type, flag or limit that one of the two databases refuses."""

    def run_every_query(conn: sa.Connection) -> None:
        assert agents.find(conn, "ADA") is None and agents.list_all(conn) == []
        assert people.find(conn, "Maria") is None and tokens.find_by_hash(conn, "x", now_ms=0) is None
        assert (
            envelopes.list_due(conn, "s", 5, limit=3) == []
            and envelopes.list_oldest_droppable(conn, "s", 5, limit=3) == []
        )
        assert envelopes.count_due(conn, "s", 5) == 0 == envelopes.count_droppable(conn, "s", 5)
        assert envelopes.get_next_outbound(conn, "channel:a:b", 5) is None
        assert envelopes.list_due_lanes(conn, since_ms=0, now_ms=5, limit=3) == []
        assert (
            envelopes.list_due_channels(conn, 5, limit=3) == []
            and envelopes.list_due_for_people(conn, 5, limit=3) == []
        )
        assert envelopes.next_due_or_expiry_ms(conn, 5) is None and envelopes.list_expired(conn, 5, limit=3) == []
        assert envelopes.list_held(conn, "r") == [] and envelopes.get_outcome(conn, "e") is None
        assert sessions.list_active(conn, limit=3) == [] and sessions.list_recent(conn, limit=3) == []
        assert (
            sessions.list_children(conn, "s", limit=3) == []
            and sessions.find_id_by_prefix(conn, "ada", "abcdef01") is None
        )
        assert (
            runs.get_open(conn, "s") is None
            and runs.list_due_suspended(conn, 5, limit=3) == []
            and runs.list_steps(conn, "r") == []
        )
        assert runs.next_wake_ms(conn, after_ms=5) is None
        assert approvals.list_of_run(conn, "r") == [] and approvals.list_open(conn, limit=3) == []
        assert approvals.next_expiry_or_escalation_ms(conn) is None and approvals.list_expired(conn, 5, limit=3) == []
        assert approvals.list_to_escalate(conn, 5, limit=3) == []
        assert records.list_damaged(conn) == [] and records.get(conn, "s", 1) is None
        assert events.list_after(conn, 0, limit=3) == [] and events.list_next(conn, "s", 0, limit=3).events == []
        assert events.newest_seq(conn) == 0 and events.oldest_seq(conn) is None
        budget_reservations.charge_interrupted_calls(conn, "r")
        approvals.release_of_run(conn, "r")
        approvals.close_of_run(conn, "r", at_ms=5)
        runs.interrupt_open_steps(conn, "r", at_ms=5)

    async with place.open() as store:
        await store.write(run_every_query, point="test")
