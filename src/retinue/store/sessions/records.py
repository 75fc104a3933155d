"""Store the records of sessions. Each record is written in the same commit as the change that it describes.

Damaged records do not prevent other records from being read. They are returned separately.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, repeat
from typing import Any

import msgspec
import sqlalchemy as sa
from msgspec import Struct

from retinue.domain.ids import SessionId
from retinue.domain.record import Record, RecordKind, make_text_records
from retinue.domain.times import MS_MAX, MS_MIN
from retinue.domain.trust import Trust
from retinue.store.core import tables as t
from retinue.store.core.fast_connection import FastResult
from retinue.store.sessions import record_chunks
from retinue.store.sessions.record_codec import DECODERS, PLAIN_KINDS, decode_body, decode_plain_body, get_text

_b = sa.bindparam
_encode = msgspec.json.Encoder().encode
_KINDS = {kind.value: (kind, decoder.decode) for kind, decoder in DECODERS.items()}
ROWS_PER_BATCH = 128  # if a batch contains anything but plain text, its rows are decoded one by one
_DECODE_ERRORS = (LookupError, ValueError, TypeError, OverflowError, msgspec.MsgspecError)
_TRUSTS = {trust.value: trust for trust in Trust}
_make_record = Record._make  # pyright: ignore[reportPrivateUsage]
_insert = t.records.insert()
_range = (
    sa.select(*(column for column in t.records.c if column is not t.records.c.session))
    .where(t.records.c.session == _b("session"), t.records.c.seq >= _b("first"), t.records.c.seq <= _b("last"))
    .order_by(t.records.c.seq)
)
_by_seq = sa.select(t.records).where(t.records.c.session == _b("session"), t.records.c.seq == _b("seq"))
_context_start = sa.select(sa.func.max(t.records.c.seq)).where(
    t.records.c.session == _b("session"),
    t.records.c.seq < _b("before"),
    t.records.c.kind.in_([t.sql_literal(f"'{RecordKind.START}'"), t.sql_literal(f"'{RecordKind.RESET}'")]),
)
_owner_turns = (
    sa.select(t.records)
    .where(
        t.records.c.session == _b("session"),
        t.records.c.seq > _b("after"),
        t.records.c.seq < _b("before"),
        t.records.c.kind == t.sql_literal(f"'{RecordKind.USER}'"),
        t.records.c.trust == t.sql_literal(f"'{Trust.OWNER}'"),
    )
    .order_by(t.records.c.seq.desc())
    .limit(_b("limit"))
)
_all = (
    sa.select(t.records.c.session, t.records.c.seq, t.records.c.kind, t.records.c.body)
    .order_by(t.records.c.session, t.records.c.seq)
    .execution_options(yield_per=1000)
)


class DamagedRecord(Struct, frozen=True):
    """A record that cannot be decoded, and the reason."""

    session: SessionId
    seq: int
    because: str


def add(conn: sa.Connection, records: Sequence[Record]) -> None:
    conn.execute(
        _insert,
        [
            {
                "session": r.session,
                "seq": r.seq,
                "kind": r.kind.value,
                "body": _encode(r.body).decode(),
                "run": r.run,
                "trust": r.trust.value,
                "at_ms": r.at_ms,
            }
            for r in records
        ],
    )
    for r in records:
        if r.seq % record_chunks.CHUNK_RECORDS == 0:
            record_chunks.write_chunk(conn, r.session, next_seq=r.seq)


def read_range(conn: sa.Connection, session: str, *, first: int, last: int) -> tuple[list[Record], list[DamagedRecord]]:
    """Return the records from `first` to `last` that can be decoded, and those that cannot."""
    found: list[Record] = []
    damaged: list[DamagedRecord] = []
    for begins, chapter in record_chunks.read_chunks(conn, session, first=first, last=last):
        if begins > first:
            _read_rows(conn, session, first, begins - 1, found, damaged)
        found += chapter
        first = begins + len(chapter)
    _read_rows(conn, session, first, last, found, damaged)
    return found, damaged


def _read_rows(
    conn: sa.Connection, session: str, first: int, last: int, found: list[Record], damaged: list[DamagedRecord]
) -> None:
    result: Any = conn.execute(_range, {"session": session, "first": first, "last": last})
    rows: Iterator[Any] = result.plain_rows() if isinstance(result, FastResult) else iter(result)
    # Fetch many rows at once, then decode them at once: alternating row by row takes 10% longer.
    at_once = 1  # the first record of a context is a marker, which is not plain text
    while batch := list(islice(rows, at_once)):
        at_once = ROWS_PER_BATCH
        try:
            found += _decode_plain_rows(session, batch)
        except _DECODE_ERRORS:  # a row is damaged, or not plain text
            _decode_each(session, batch, found, damaged)


def _decode_plain_rows(session: str, rows: Sequence[Any]) -> Iterable[Record]:
    """Decode rows with plain bodies. Raises an error if a row is damaged or its body is not plain.

    The rows are decoded column by column, which is faster than a Python loop over the rows.
    """
    seqs, kinds, bodies, runs, trusts, at_ms = zip(*rows, strict=True)
    if not MS_MIN <= min(at_ms) <= max(at_ms) <= MS_MAX:
        raise ValueError("milliseconds out of range")
    kinds = list(map(PLAIN_KINDS.__getitem__, kinds))
    words = list(map(decode_plain_body, bodies))
    if not all(runs):
        runs = [run or None for run in runs]
    trusts = map(_TRUSTS.__getitem__, trusts)
    fields = zip(repeat(session), seqs, kinds, words, at_ms, runs, trusts, map(get_text, words))
    return make_text_records(fields)


def _decode_each(session: str, rows: Iterable[Any], found: list[Record], damaged: list[DamagedRecord]) -> None:
    for row in rows:
        try:
            found.append(record_from_row(session, *row))
        except _DECODE_ERRORS as error:
            damaged.append(DamagedRecord(SessionId(session), row[0], _describe_error(error)))


def record_from_row(session: str, seq: int, kind: str, body: str, run: str | None, trust: str, at_ms: int) -> Record:
    """Decode a row of the table `records`. Raises an error if the row is damaged."""
    # After a restart, thousands of these calls delay the first answer. So each lookup is done only once, and `_make`
    # takes half the time of a call with keywords.
    kind_, decode = _KINDS[kind]
    if not MS_MIN <= at_ms <= MS_MAX:
        raise ValueError(f"{at_ms} milliseconds are out of range")
    return _make_record((session, seq, kind_, decode(body), at_ms, run or None, _TRUSTS[trust]))


def _describe_error(error: Exception) -> str:
    return f"unknown value: {error}" if isinstance(error, LookupError) else str(error)


def list_damaged(conn: sa.Connection) -> list[DamagedRecord]:
    """List the records of all sessions that cannot be decoded."""
    found: list[DamagedRecord] = []
    for row in conn.execute(_all):
        try:
            decode_body(row.kind, row.body)
        except (ValueError, msgspec.MsgspecError) as error:
            found.append(DamagedRecord(SessionId(row.session), row.seq, str(error)))
    return found


def list_owner_turns(conn: sa.Connection, session: str, *, before: int, limit: int) -> list[Record]:
    """List the owner's latest messages since the last reset, before the record `before`, oldest first."""
    begun = conn.execute(_context_start, {"session": session, "before": before}).scalar() or 0
    rows = conn.execute(_owner_turns, {"session": session, "after": begun, "before": before, "limit": limit})
    found: list[Record] = []
    for row in rows:
        try:
            found.append(record_from_row(*row))
        except (LookupError, ValueError, TypeError, OverflowError, msgspec.MsgspecError):
            continue  # `list_damaged` reports it
    return found[::-1]


def context_start_seq(conn: sa.Connection, session: str, *, before: int) -> int:
    """Return the sequence number of the last start or reset marker before the record `before`."""
    return conn.execute(_context_start, {"session": session, "before": before}).scalar() or 1


def get(conn: sa.Connection, session: str, seq: int) -> Record | None:
    row = conn.execute(_by_seq, {"session": session, "seq": seq}).one_or_none()
    return record_from_row(*row) if row else None
