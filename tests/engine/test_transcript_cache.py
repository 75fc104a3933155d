"""In-memory caches of contexts, deltas and encoded records: all are limited, and none is required."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.attachment import Attachment
from retinue.domain.event import Delta, DeltaKind
from retinue.domain.ids import RunId, SessionId
from retinue.domain.record import (
    ContextStart,
    Note,
    Record,
    RecordKind,
    Reply,
    Summary,
    UserTurn,
    body_kind,
    least_trust_in,
)
from retinue.domain.session import Origin, OriginKind, QueueOverride, Session, SessionActivity
from retinue.domain.times import to_ms
from retinue.domain.tool import Call, ToolResult
from retinue.domain.trust import Trust
from retinue.engine.event_broadcast import DELTAS_QUEUED_MAX, PARTIAL_CHARS_MAX, EventBroadcast
from retinue.engine.transcript_cache import CachedTranscript, TranscriptCache, record_size_bytes
from retinue.models.encoded_context_cache import EncodedContextCache
from retinue.store.core.sqlite import InlineStore
from retinue.store.open_store import open_inline_store
from retinue.store.sessions import records
from retinue.testing.local_instance import LocalInstance
from retinue.testing.scripted_model import text_reply

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
SESSION = SessionId("5" * 32)


def record(seq: int, body: Any = None, *, session: SessionId = SESSION) -> Record:
    body = UserTurn(text=f"number {seq}") if body is None else body
    return Record(session=session, seq=seq, kind=body_kind(body), body=body, at_ms=to_ms(NOON))


def session(record_seq: int, *, context_from: int = 1, id_: SessionId = SESSION) -> Session:
    return Session(
        id=id_,
        agent="ada",
        origin=Origin(OriginKind.WEB, "person:maria"),
        name="",
        activity=SessionActivity.ACTIVE,
        queue=QueueOverride(),
        epoch=1,
        record_seq=record_seq,
        context_start_seq=context_from,
        revision=0,
        created_at=NOON,
        updated_at=NOON,
        snippet="",
    )


class CountingStore(InlineStore):
    """Counts its reads."""

    scans = 0

    async def scan(self, body: Any) -> Any:
        self.scans += 1
        return await super().scan(body)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[CountingStore]:
    open_inline_store(tmp_path / "retinue.db").connection.close()
    store = CountingStore(tmp_path / "retinue.db")
    yield store
    await store.close()


async def write(store: InlineStore, *added: Record) -> None:
    await store.write(lambda conn: records.add(conn, added), point="test")


async def test_a_transcript_is_read_once_and_then_served_from_the_cache(store: CountingStore) -> None:
    kept = TranscriptCache(store)
    await write(store, *(record(n) for n in range(1, 6)))
    first = await kept.check_out(session(5), ())
    assert [r.seq for r in first.records] == [1, 2, 3, 4, 5]
    kept.check_in(first)
    again = await kept.check_out(session(5), ())
    assert again is first
    assert store.scans == 1


async def test_records_that_a_claim_appended_are_added_to_the_cached_transcript_without_a_read(
    store: CountingStore,
) -> None:
    kept = TranscriptCache(store)
    await write(store, record(1), record(2))
    kept.check_in(await kept.check_out(session(2), ()))
    fresh = (record(3), record(4))
    await write(store, *fresh)
    taken = await kept.check_out(session(4), fresh)
    assert [r.seq for r in taken.records] == [1, 2, 3, 4]
    assert store.scans == 1


@pytest.mark.parametrize("wrong", ["more was appended elsewhere", "a gap", "a reset"])
async def test_a_cached_transcript_that_does_not_match_the_session_is_read_again(
    store: CountingStore, wrong: str
) -> None:
    kept = TranscriptCache(store)
    await write(store, record(1), record(2))
    kept.check_in(await kept.check_out(session(2), ()))
    await write(store, record(3), record(4))
    match wrong:
        case "more was appended elsewhere":
            taken = await kept.check_out(session(4), ())
            expected = [1, 2, 3, 4]
        case "a gap":
            taken = await kept.check_out(session(4), (record(4),))
            expected = [1, 2, 3, 4]
        case _:
            taken = await kept.check_out(session(4, context_from=3), (record(3), record(4)))
            expected = [3, 4]
    assert [r.seq for r in taken.records] == expected
    assert store.scans == 2


async def test_a_transcript_that_was_not_checked_in_to_the_cache_is_read_again(store: CountingStore) -> None:
    """A run that was interrupted may have left anything in it."""
    kept = TranscriptCache(store)
    await write(store, record(1))
    taken = await kept.check_out(session(1), ())
    taken.records.append(record(2))
    again = await kept.check_out(session(1), ())
    assert [r.seq for r in again.records] == [1]


@pytest.mark.spec("C102")
async def test_the_transcript_cache_is_limited_in_bytes_and_evicts_the_least_recently_used(
    store: CountingStore,
) -> None:
    size = record_size_bytes(record(1, UserTurn(text="x" * 1000)))
    kept = TranscriptCache(store, bytes_max=3 * size)
    ids = [SessionId(f"{n:032x}") for n in range(5)]
    for id_ in ids:
        await write(store, record(1, UserTurn(text="x" * 1000), session=id_))
        kept.check_in(await kept.check_out(session(1, id_=id_), ()))
        assert kept.size_bytes <= 3 * size
    scans = store.scans
    for id_ in reversed(ids[2:]):
        kept.check_in(await kept.check_out(session(1, id_=id_), ()))
    assert store.scans == scans, "the three newest are cached"
    await kept.check_out(session(1, id_=ids[0]), ())
    assert store.scans == scans + 1


@pytest.mark.spec("C102")
async def test_a_transcript_larger_than_the_cache_limit_is_not_kept(store: CountingStore) -> None:
    kept = TranscriptCache(store, bytes_max=1000)
    await write(store, record(1, UserTurn(text="x" * 2000)))
    kept.check_in(await kept.check_out(session(1), ()))
    assert kept.size_bytes == 0


@pytest.mark.spec("C102")
async def test_a_transcript_that_grew_while_checked_out_of_the_cache_is_counted_with_its_new_size(
    store: CountingStore,
) -> None:
    kept = TranscriptCache(store, bytes_max=10_000)
    await write(store, record(1))
    taken = await kept.check_out(session(1), ())
    kept.check_in(taken)
    before = kept.size_bytes
    taken = await kept.check_out(session(1), ())
    assert kept.size_bytes == 0
    taken.records.append(record(2, ToolResult(call="c", tool="t", output="y" * 3000)))
    kept.check_in(taken)
    assert kept.size_bytes > before + 3000
    taken = await kept.check_out(session(2), ())
    taken.records.append(record(3, ToolResult(call="d", tool="t", output="y" * 30_000)))
    kept.check_in(taken)
    assert kept.size_bytes == 0


@pytest.mark.parametrize(
    "body",
    [
        UserTurn(text="x" * 9000),
        Reply(text="x" * 9000),
        Reply(text="", thinking="x" * 9000),
        Reply(text="", calls=(Call(id="1", tool="write", arguments={"content": "x" * 9000}),)),
        Reply(text="é€" * 3000),
        ToolResult(call="1", tool="t", output="x" * 9000),
        Note(text="x" * 9000),
        ContextStart(text="x" * 9000),
    ],
)
def test_the_size_of_a_record_in_the_transcript_cache_includes_every_kind_of_content(body: Any) -> None:
    assert record_size_bytes(record(1, body)) >= 9000


async def test_the_transcript_cache_of_an_engine_stays_within_its_limit(tmp_path: Path) -> None:
    instance = LocalInstance(tmp_path, people=[f"p{n}" for n in range(10)])
    instance.model.rule = lambda prompt: text_reply("y" * 5000)
    async with instance.run() as server:
        transcripts = server.engine._worker.transcripts  # pyright: ignore[reportPrivateUsage]
        transcripts._bytes_max = 20_000  # pyright: ignore[reportPrivateUsage]
        for turn in range(2):
            for n in range(10):
                receipt = await server.send(f"{turn}", sender=f"person:p{n}")
                await server.wait_for_outcome(receipt.envelope)
                assert transcripts.size_bytes <= 20_000
        for prompt in instance.model.prompts[10:]:
            assert [r.kind for r in prompt.records] == [
                RecordKind.START,
                RecordKind.USER,
                RecordKind.ASSISTANT,
                RecordKind.USER,
            ]


# Deltas


def make_delta(
    text: str, *, run: str = "r", turn: int = 0, attempt: int = 1, kind: DeltaKind = DeltaKind.TEXT
) -> Delta:
    return Delta(session=SESSION, run=RunId(run), turn=turn, attempt=attempt, kind=kind, offset=0, text=text)


def test_a_broadcast_delta_of_a_higher_attempt_or_turn_replaces_the_partial_reply() -> None:
    live = EventBroadcast()
    live.on_delta(make_delta("half a"))
    live.on_delta(make_delta("I think", kind=DeltaKind.THINKING))
    live.on_delta(make_delta(" sentence"))
    (partial,) = live.partial_replies(SESSION)
    assert (partial.text, partial.thinking) == ("half a sentence", "I think")
    live.on_delta(make_delta("again", attempt=2))
    assert [(p.attempt, p.text, p.thinking) for p in live.partial_replies()] == [(2, "again", "")]
    live.on_delta(make_delta("next", turn=1))
    assert [(p.turn, p.text) for p in live.partial_replies()] == [(1, "next")]
    assert live.partial_replies(SessionId("another")) == []


@pytest.mark.spec("C102")
def test_broadcast_partial_replies_are_limited_in_length_and_removed_when_their_run_ends() -> None:
    live = EventBroadcast()
    piece = "x" * 100_000
    for _ in range(2 * PARTIAL_CHARS_MAX // len(piece)):
        live.on_delta(make_delta(piece))
    (partial,) = live.partial_replies()
    assert len(partial.text) <= PARTIAL_CHARS_MAX + len(piece)
    for n in range(100):
        live.on_delta(make_delta("x", run=f"{n}"))
        live.run_ended(RunId(f"{n}"))
    live.run_ended(RunId("r"))
    live.run_ended(RunId("unknown"))
    assert live.partial_replies() == []


@pytest.mark.spec("C102")
async def test_a_slow_subscriber_to_the_event_broadcast_has_a_limited_queue_and_a_missed_deltas_mark() -> None:
    live = EventBroadcast()
    slow, other = live.subscribe(SESSION), live.subscribe(SessionId("another"))
    for _ in range(3 * DELTAS_QUEUED_MAX):
        live.on_delta(make_delta("x"))
        assert len(slow.deltas) <= DELTAS_QUEUED_MAX
    assert slow.has_missed_deltas
    await asyncio.wait_for(slow.changed.wait(), 120)
    assert other.deltas == [] and not other.has_missed_deltas
    live.unsubscribe(slow)
    live.unsubscribe(slow)
    slow.deltas.clear()
    live.on_delta(make_delta("x"))
    assert slow.deltas == []


@pytest.mark.spec("C102")
async def test_the_event_broadcast_of_an_idle_server_keeps_no_partial_replies(tmp_path: Path) -> None:
    instance = LocalInstance(tmp_path)
    instance.model.will_reply("a", text_reply("", fails="tired"), text_reply("never", after_s=100))
    async with instance.run(drain_s=0) as server:
        for text in ("one", "two"):
            await server.wait_for_outcome((await server.send(text)).envelope)
        receipt = await server.send("three")
        await server.wait_for(lambda _: len(instance.model.prompts) == 3, what="the third run")
        assert receipt.session is not None
        await server.engine.cancel(receipt.session, by="maria", reason="enough")
        await server.wait_until_idle()
        assert server.events.partial_replies() == []


# Encoded records


def encode_text(record: Record) -> bytes:
    assert isinstance(record.body, UserTurn | ToolResult)
    return (record.body.text if isinstance(record.body, UserTurn) else record.body.output).encode()


@pytest.mark.spec("C102")
def test_the_encoded_context_cache_is_limited_in_bytes() -> None:
    cache = EncodedContextCache(bytes_max=1000)
    for n in range(100):
        session = SessionId(f"{n:032x}")
        assert list(cache.encode_records(session, [record(n, UserTurn(text="x" * 100))], encode_text)) == [b"x" * 100]
        assert cache.size_bytes <= 1000
    assert list(cache.encode_records(SESSION, [record(500, UserTurn(text="x" * 5000))], encode_text)) == [b"x" * 5000]
    assert cache.size_bytes <= 1000


def test_a_record_is_encoded_once_while_it_fits_in_the_encoded_context_cache() -> None:
    cache = EncodedContextCache(bytes_max=1000)
    times: list[int] = []

    def encode(record: Record) -> bytes:
        times.append(record.seq)
        return encode_text(record)

    context = [record(1), record(2)]
    for _ in range(3):
        assert list(cache.encode_records(SESSION, context, encode)) == [b"number 1", b"number 2"]
    context.append(record(3))
    assert list(cache.encode_records(SESSION, [kept._replace() for kept in context], encode))[-1] == b"number 3"
    assert times == [1, 2, 3]


def test_a_record_that_replaced_a_cached_one_with_the_same_number_is_encoded_again() -> None:
    """A reply that could not be stored is gone; its replacement has the same number."""
    cache = EncodedContextCache()
    first = record(1)
    assert list(cache.encode_records(SESSION, [first, record(2, UserTurn(text="lost"))], encode_text)) == [
        b"number 1",
        b"lost",
    ]
    assert list(cache.encode_records(SESSION, [first, record(2, UserTurn(text="kept"))], encode_text)) == [
        b"number 1",
        b"kept",
    ]
    assert cache.size_bytes == len(b"number 1kept")


def test_a_cached_context_that_lost_its_end_or_middle_is_encoded_as_it_is_now() -> None:
    cache = EncodedContextCache()
    context = [record(n) for n in range(1, 5)]
    cache.encode_records(SESSION, context, encode_text)
    assert list(cache.encode_records(SESSION, context[:2], encode_text)) == [b"number 1", b"number 2"]
    cache.encode_records(SESSION, context, encode_text)
    assert list(cache.encode_records(SESSION, [context[0], context[3]], encode_text)) == [b"number 1", b"number 4"]
    assert cache.size_bytes == len(b"number 1number 4")


def test_placeholder_results_are_not_confused_with_the_cached_record_of_the_same_number() -> None:
    cache = EncodedContextCache()
    made = [record(1, ToolResult(call=f"{n}", tool="t", output=f"lost {n}", failed=True)) for n in range(2)]
    assert list(cache.encode_records(SESSION, [record(1), *made], encode_text)) == [b"number 1", b"lost 0", b"lost 1"]


# --- trust ---

ATTACHMENT = Attachment(hash="0" * 64, name="a.txt", media_type="text/plain", size_bytes=1)
RECORD_BODIES = (
    UserTurn(text="words"),
    UserTurn(text="see", attachments=(ATTACHMENT,)),
    Reply(text="so"),
    Note(text="n"),
)


@given(
    st.lists(st.lists(st.tuples(st.sampled_from(RECORD_BODIES), st.sampled_from(list(Trust))), max_size=4), max_size=8)
)
def test_the_least_trust_of_a_cached_transcript_is_correct_after_every_change(
    talk: list[list[tuple[Any, Trust]]],
) -> None:
    transcript = CachedTranscript(SESSION, 1, [])
    for number, added in enumerate(talk, 1):
        for body, trust in added:
            transcript.records.append(record(len(transcript.records) + 1, body)._replace(trust=trust))
        assert transcript.least_trust() is least_trust_in(transcript.records)
        if number % 3 == 0 and transcript.records:
            seq = transcript.records[-1].seq + 1
            summary = Summary(text="in short", kept_from=seq - 1)
            trust = transcript.least_trust()
            transcript.records.append(record(seq, summary)._replace(trust=trust))
            transcript.drop_summarized()
            assert transcript.least_trust() is least_trust_in(transcript.records)


def test_an_untrusted_record_of_a_cached_transcript_no_longer_lowers_its_trust_once_summarized() -> None:
    outside = record(1)._replace(trust=Trust.UNTRUSTED)
    transcript = CachedTranscript(SESSION, 1, [outside, record(2)._replace(trust=Trust.OWNER)])
    assert transcript.least_trust() is Trust.UNTRUSTED
    transcript.records.append(record(3, Summary(text="in short", kept_from=2))._replace(trust=Trust.OWNER))
    transcript.drop_summarized()
    assert transcript.least_trust() is least_trust_in(transcript.records) is Trust.OWNER
