"""Reads and replaces the context of a session, for a fork or a trim."""

from __future__ import annotations

import sqlalchemy as sa

from retinue.domain.history_trim import copy_records, find_context_start, last_reply_text
from retinue.domain.ids import SessionId, short_id
from retinue.domain.record import ContextStart, Record, RecordKind
from retinue.domain.session import SNIPPET_LENGTH_MAX, Session
from retinue.domain.trust import Trust
from retinue.operations.session.errors import SessionContextTooLong
from retinue.store.core.transaction import Transaction
from retinue.store.sessions import records, sessions

RECORDS_COPIED_MAX = 10_000


def read_context(conn: sa.Connection, session: Session, *, before: int) -> list[Record]:
    """Return the records of a context that come before the record number `before`, including its start record."""
    first = records.context_start_seq(conn, session.id, before=before)
    if before - first > RECORDS_COPIED_MAX:
        raise SessionContextTooLong(short_id(session.id), records=before - first, records_max=RECORDS_COPIED_MAX)
    return records.read_range(conn, session.id, first=first, last=before - 1)[0]


def split_start_record(context: list[Record]) -> tuple[Record | None, list[Record]]:
    if context and isinstance(context[0].body, ContextStart):
        return context[0], context[1:]
    return None, context


def write_context(
    tx: Transaction,
    id_: SessionId,
    start_record: Record | None,
    copied_records: list[Record],
    *,
    kind: RecordKind,
    after: int,
) -> int:
    """Write a new context, and return the number of its last record.

    The context begins with a start record that has the text of the old start record. Copies of
    `copied_records` follow.
    """
    words, trust = (
        (start_record.body, start_record.trust) if start_record is not None else (ContextStart(), Trust.PRIVATE)
    )
    beginning = Record(session=id_, seq=after + 1, kind=kind, body=words, at_ms=tx.at_ms, trust=trust)
    made = [beginning, *copy_records(copied_records, session=id_, after=beginning.seq)]
    records.add(tx.conn, made)
    context_from, summaries = find_context_start(made)
    sessions.replace_context(
        tx.conn,
        id_,
        record_seq=made[-1].seq,
        context_from=context_from,
        compactions=summaries,
        snippet=last_reply_text(made)[:SNIPPET_LENGTH_MAX],
        at_ms=tx.at_ms,
    )
    return made[-1].seq
