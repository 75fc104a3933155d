"""Chunks of completed records, each in one row, so that a long session loads fast.

A chunk is built from its records when the next one begins, in the same commit. It contains only
what the records contain: if it is missing or unreadable, the records are read instead. Code that
changes a record must delete the chunks of its session.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any

import msgspec
import sqlalchemy as sa

from retinue.domain.ids import RunId, SessionId
from retinue.domain.record import Body, Plain, Record, RecordKind, plain_records
from retinue.domain.times import MS_MAX, MS_MIN
from retinue.domain.trust import Trust
from retinue.store.core import tables as t
from retinue.store.core.fast_connection import Rows
from retinue.store.sessions.record_codec import DECODERS, PLAIN_KINDS, as_words

CHAPTER_RECORDS = 256
FAST = 1  # level of zlib: apart from the texts, all records look much the same

_b = sa.bindparam
_c, _r = t.chapters.c, t.records.c
_rows = (
    sa.select(_r.seq, _r.kind, _r.body, _r.run, _r.trust, _r.at_ms)
    .where(_r.session == _b("session"), _r.seq >= _b("first"), _r.seq <= _b("last"))
    .order_by(_r.seq)
)
_insert = t.chapters.insert()
_chapters = (
    sa.select(_c.number, _c.body)
    .where(_c.session == _b("session"), _c.number >= _b("first"), _c.number <= _b("last"))
    .order_by(_c.number)
)
_context_from = sa.select(t.sessions.c.context_from).where(t.sessions.c.id == _b("session"))
_gone_by = t.chapters.delete().where(
    _c.session == _b("the_session"), sa.or_(_c.number < _b("the_first"), _c.number >= _b("the_next"))
)
_forget = t.chapters.delete().where(_c.session == _b("the_session"))
_json = msgspec.json.Encoder().encode
_tails = msgspec.msgpack.Decoder(list[str])


class Chapter(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """The records of a chunk, by column.

    `tails` holds, compressed, what follows the text in each plain body. `others` holds the
    remaining bodies by index.
    """

    kinds: list[RecordKind]
    trusts: list[Trust]
    at_ms: list[int]
    runs: list[RunId | None]
    words: list[str]
    others: dict[int, str]
    tails: bytes


class _Tails:
    """The parts of bodies besides their texts, decompressed on first use."""

    def __init__(self, first: int, packed: bytes) -> None:
        self._first = first
        self._packed = packed
        self._tails: list[str] | None = None

    def body(self, record: Plain) -> Body:
        if self._tails is None:
            self._tails = _tails.decode(zlib.decompress(self._packed))
        return DECODERS[record.kind].decode(_opened(record.words) + self._tails[record.seq - self._first])


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Chapter).decode
_UNREADABLE = (LookupError, ValueError, TypeError, OverflowError, msgspec.MsgspecError)


def close(conn: sa.Connection, session: SessionId, *, next_seq: int) -> None:
    """Build the chunk of the records before `next_seq`. Delete chunks that are no longer in the context."""
    number = next_seq // CHAPTER_RECORDS - 1
    first, last = _bounds(number)
    rows = conn.execute(_rows, {"session": session, "first": first, "last": last}).all()
    try:
        body = _encode(_made_of(rows, first, last))
    except _UNREADABLE:
        return  # reading the records reports the damaged one
    context_from = conn.execute(_context_from, {"session": session}).scalar() or 0
    gone_by = {"the_first": context_from // CHAPTER_RECORDS, "the_next": number}
    conn.execute(_gone_by, {"the_session": session, **gone_by})
    conn.execute(_insert, {"session": session, "number": number, "body": body})


def read(conn: sa.Connection, session: str, *, first: int, last: int) -> Iterator[tuple[int, Sequence[Record]]]:
    """Yield the chunks within first..last, each with the sequence number of its first record."""
    wanted = {"first": -(-first // CHAPTER_RECORDS) if first > 1 else 0, "last": (last + 1) // CHAPTER_RECORDS - 1}
    if wanted["first"] > wanted["last"]:
        return
    result: Any = conn.execute(_chapters, {"session": session, **wanted})
    for number, body in result.plain() if isinstance(result, Rows) else result:
        begins, ends = _bounds(number)
        try:
            yield begins, _records(session, _decode(body), begins, ends)
        except _UNREADABLE:
            continue


def forget(conn: sa.Connection, session: str) -> None:
    conn.execute(_forget, {"the_session": session})


def _bounds(number: int) -> tuple[int, int]:
    """Return the first and the last sequence number of a chunk. Records are numbered from 1."""
    return max(number * CHAPTER_RECORDS, 1), (number + 1) * CHAPTER_RECORDS - 1


def _opened(words: str) -> str:
    """Return the beginning of a plain body as it is stored."""
    return '{"text":' + _json(words).decode()


def _made_of(rows: Sequence[Any], first: int, last: int) -> Chapter:
    seqs, kinds, bodies, runs, trusts, at_ms = zip(*rows, strict=True)
    if seqs != tuple(range(first, last + 1)):
        raise ValueError("records are missing")
    words: list[str] = []
    tails: list[str] = []
    others: dict[int, str] = {}
    for place, (kind, body) in enumerate(zip(kinds, bodies, strict=True)):
        said, tail = _split(kind, body)
        words.append(said)
        tails.append(tail)
        if not said:
            others[place] = body
    return Chapter(
        kinds=[RecordKind(kind) for kind in kinds],
        trusts=[Trust(trust) for trust in trusts],
        at_ms=list(at_ms),
        runs=[run or None for run in runs],
        words=words,
        others=others,
        tails=zlib.compress(_encode(tails), FAST),
    )


def _split(kind: str, body: str) -> tuple[str, str]:
    """Split a plain body into its text and the rest, which joined give the stored body.

    Other bodies give two empty strings.
    """
    if kind not in PLAIN_KINDS:
        return "", ""
    try:
        words = as_words(body).text
    except msgspec.MsgspecError:
        return "", ""
    opened = _opened(words)
    return (words, body[len(opened) :]) if body.startswith(opened) else ("", "")


def _records(session: str, chapter: Chapter, first: int, last: int) -> Sequence[Record]:
    """Build the records column by column, so that no Python statement runs for each of thousands."""
    at_ms = chapter.at_ms
    if not MS_MIN <= min(at_ms) <= max(at_ms) <= MS_MAX:
        raise ValueError("milliseconds out of range")
    made_of = _Tails(first, chapter.tails)
    fields = zip(
        repeat(SessionId(session), last + 1 - first),
        range(first, last + 1),
        chapter.kinds,
        repeat(made_of, last + 1 - first),
        at_ms,
        chapter.runs,
        chapter.trusts,
        chapter.words,
        strict=True,
    )
    found: list[Record] = list(plain_records(fields))
    for place, body in chapter.others.items():
        record = found[place]
        whole = DECODERS[record.kind].decode(body)
        found[place] = Record(record.session, record.seq, record.kind, whole, record.at_ms, record.run, record.trust)
    return found
