"""Store record chunks: copies of many records in one row, so that long sessions load fast.

A chunk is built from its records in the commit that adds the first record after it. If a chunk is
missing or unreadable, its records are read instead. Code that changes a record must delete the
chunks of the session.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any

import msgspec
import sqlalchemy as sa

from retinue.domain.ids import RunId, SessionId
from retinue.domain.record import Record, RecordBody, RecordKind, TextRecord, make_text_records
from retinue.domain.times import MS_MAX, MS_MIN
from retinue.domain.trust import Trust
from retinue.store.core import tables as t
from retinue.store.core.fast_connection import FastResult
from retinue.store.sessions.record_codec import DECODERS, PLAIN_KINDS, decode_plain_body

CHUNK_RECORDS = 256
ZLIB_LEVEL = 1  # the fastest: apart from their texts, all records look much the same

_b = sa.bindparam
_c, _r = t.record_chunks.c, t.records.c
_select_records = (
    sa.select(_r.seq, _r.kind, _r.body, _r.run, _r.trust, _r.at_ms)
    .where(_r.session == _b("session"), _r.seq >= _b("first"), _r.seq <= _b("last"))
    .order_by(_r.seq)
)
_insert = t.record_chunks.insert()
_select_chunks = (
    sa.select(_c.number, _c.body)
    .where(_c.session == _b("session"), _c.number >= _b("first"), _c.number <= _b("last"))
    .order_by(_c.number)
)
_context_from = sa.select(t.sessions.c.context_from).where(t.sessions.c.id == _b("session"))
_delete_outdated = t.record_chunks.delete().where(
    _c.session == _b("the_session"), sa.or_(_c.number < _b("the_first"), _c.number >= _b("the_next"))
)
_delete = t.record_chunks.delete().where(_c.session == _b("the_session"))
_json = msgspec.json.Encoder().encode
_tails_decoder = msgspec.msgpack.Decoder(list[str])


class RecordChunk(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """The records of a chunk, stored by column.

    A plain body (text only) is split: its text is in `texts`, and the rest of its JSON is in
    `tails`, compressed. `others` contains all other bodies, by index.
    """

    kinds: list[RecordKind]
    trusts: list[Trust]
    at_ms: list[int]
    runs: list[RunId | None]
    texts: list[str]
    others: dict[int, str]
    tails: bytes


class _BodyTails:
    """The rest of the JSON of each plain body in a chunk, after its text. Decompressed when first needed."""

    def __init__(self, first: int, packed: bytes) -> None:
        self._first = first
        self._packed = packed
        self._tails: list[str] | None = None

    def body(self, record: TextRecord) -> RecordBody:
        if self._tails is None:
            self._tails = _tails_decoder.decode(zlib.decompress(self._packed))
        return DECODERS[record.kind].decode(_body_prefix(record.text) + self._tails[record.seq - self._first])


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(RecordChunk).decode
_DECODE_ERRORS = (LookupError, ValueError, TypeError, OverflowError, msgspec.MsgspecError)


def write_chunk(conn: sa.Connection, session: SessionId, *, next_seq: int) -> None:
    """Build the chunk of the records before `next_seq`, and delete the chunks that the context no longer needs."""
    number = next_seq // CHUNK_RECORDS - 1
    first, last = _bounds(number)
    rows = conn.execute(_select_records, {"session": session, "first": first, "last": last}).all()
    try:
        body = _encode(_build_chunk(rows, first, last))
    except _DECODE_ERRORS:
        return  # reading the records reports the damaged one
    context_from = conn.execute(_context_from, {"session": session}).scalar() or 0
    gone_by = {"the_first": context_from // CHUNK_RECORDS, "the_next": number}
    conn.execute(_delete_outdated, {"the_session": session, **gone_by})
    conn.execute(_insert, {"session": session, "number": number, "body": body})


def read_chunks(conn: sa.Connection, session: str, *, first: int, last: int) -> Iterator[tuple[int, Sequence[Record]]]:
    """Yield the records of each chunk between `first` and `last`, with the sequence number of its first record.

    Chunks that are only partly in this range are left out.
    """
    wanted = {"first": -(-first // CHUNK_RECORDS) if first > 1 else 0, "last": (last + 1) // CHUNK_RECORDS - 1}
    if wanted["first"] > wanted["last"]:
        return
    result: Any = conn.execute(_select_chunks, {"session": session, **wanted})
    for number, body in result.plain_rows() if isinstance(result, FastResult) else result:
        begins, ends = _bounds(number)
        try:
            yield begins, _build_records(session, _decode(body), begins, ends)
        except _DECODE_ERRORS:
            continue


def delete_chunks(conn: sa.Connection, session: str) -> None:
    conn.execute(_delete, {"the_session": session})


def _bounds(number: int) -> tuple[int, int]:
    """Return the first and the last sequence number of a chunk.

    The first chunk begins at 1, because there is no record 0.
    """
    return max(number * CHUNK_RECORDS, 1), (number + 1) * CHUNK_RECORDS - 1


def _body_prefix(text: str) -> str:
    """Return the stored JSON of a plain body up to the end of its text."""
    return '{"text":' + _json(text).decode()


def _build_chunk(rows: Sequence[Any], first: int, last: int) -> RecordChunk:
    seqs, kinds, bodies, runs, trusts, at_ms = zip(*rows, strict=True)
    if seqs != tuple(range(first, last + 1)):
        raise ValueError("records are missing")
    words: list[str] = []
    tails: list[str] = []
    others: dict[int, str] = {}
    for place, (kind, body) in enumerate(zip(kinds, bodies, strict=True)):
        said, tail = _split_body(kind, body)
        words.append(said)
        tails.append(tail)
        if not said:
            others[place] = body
    return RecordChunk(
        kinds=[RecordKind(kind) for kind in kinds],
        trusts=[Trust(trust) for trust in trusts],
        at_ms=list(at_ms),
        runs=[run or None for run in runs],
        texts=words,
        others=others,
        tails=zlib.compress(_encode(tails), ZLIB_LEVEL),
    )


def _split_body(kind: str, body: str) -> tuple[str, str]:
    """Split the JSON of a plain body into its decoded text and the JSON after the text.

    Returns two empty strings if the body is not plain.
    """
    if kind not in PLAIN_KINDS:
        return "", ""
    try:
        words = decode_plain_body(body).text
    except msgspec.MsgspecError:
        return "", ""
    opened = _body_prefix(words)
    return (words, body[len(opened) :]) if body.startswith(opened) else ("", "")


def _build_records(session: str, chunk: RecordChunk, first: int, last: int) -> Sequence[Record]:
    """Build the records of a chunk column by column, which is faster than a Python loop over the records."""
    at_ms = chunk.at_ms
    if not MS_MIN <= min(at_ms) <= max(at_ms) <= MS_MAX:
        raise ValueError("milliseconds out of range")
    made_of = _BodyTails(first, chunk.tails)
    fields = zip(
        repeat(SessionId(session), last + 1 - first),
        range(first, last + 1),
        chunk.kinds,
        repeat(made_of, last + 1 - first),
        at_ms,
        chunk.runs,
        chunk.trusts,
        chunk.texts,
        strict=True,
    )
    found: list[Record] = list(make_text_records(fields))
    for place, body in chunk.others.items():
        record = found[place]
        whole = DECODERS[record.kind].decode(body)
        found[place] = Record(record.session, record.seq, record.kind, whole, record.at_ms, record.run, record.trust)
    return found
