"""Caches the contexts of sessions between runs, so that a run need not read its session again.

The store is authoritative.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from sys import getsizeof

import sqlalchemy as sa
from msgspec import Struct

from retinue.domain.ids import SessionId
from retinue.domain.record import (
    ContextStart,
    Note,
    Record,
    Reply,
    Summary,
    TextRecord,
    UserTurn,
    least_trust_in,
    record_texts,
)
from retinue.domain.session import Session
from retinue.domain.tool import ToolResult
from retinue.domain.trust import Trust, least_trust
from retinue.runners.model_context import arrange_records, context_from_records
from retinue.store.core.connection import Store
from retinue.store.sessions import records

log = logging.getLogger(__name__)

CACHE_BYTES_MAX = 16 * 1024 * 1024
RECORD_OVERHEAD_BYTES = 400
CALL_OVERHEAD_BYTES = 400


class CachedTranscript(Struct):
    """The cached context of one session. A run that has checked it out has exclusive use of it."""

    session: SessionId
    context_from: int
    records: list[Record]
    size_bytes: int = 0
    counted_records: int = 0  # number of records included in `size_bytes`
    trust: Trust = Trust.PRIVATE  # least trust among the records checked so far
    trust_checked_records: int = 0  # number of records checked, counted from the first

    def least_trust(self) -> Trust:
        """Return the least trust of any record in the context. Only records added since the last call are checked."""
        new = self.records[self.trust_checked_records :] if self.trust_checked_records else self.records
        if new:
            found = least_trust_in(new)
            self.trust = least_trust((self.trust, found)) if self.trust_checked_records else found
            self.trust_checked_records = len(self.records)
        return self.trust

    def drop_summarized(self) -> None:
        """Drop the records that a new summary replaces, and reset the trust computed from them."""
        self.records[:] = arrange_records(self.records)
        self.trust_checked_records = 0

    def update_size(self) -> None:
        """Update `size_bytes`. Only the new records are counted."""
        new = self.records[self.counted_records :]
        plain = [record for record in new if type(record) is TextRecord]
        self.size_bytes += len(plain) * RECORD_OVERHEAD_BYTES + sum(map(str.__sizeof__, record_texts(plain)))
        self.size_bytes += sum(record_size_bytes(record) for record in new if type(record) is not TextRecord)
        self.counted_records = len(self.records)


class TranscriptCache:
    """Keeps the contexts of sessions in memory up to a byte limit. The least recently used context is evicted first."""

    def __init__(self, store: Store, *, bytes_max: int = CACHE_BYTES_MAX) -> None:
        self._store = store
        self._bytes_max = bytes_max
        self._size_bytes = 0
        self._transcripts: OrderedDict[SessionId, CachedTranscript] = OrderedDict()

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    async def check_out(self, session: Session, new_records: Sequence[Record]) -> CachedTranscript:
        """Return the context of a session up to its last record, and remove it from the cache.

        `new_records` are records that the caller has just appended. They are added to a cached
        context, so that the store need not be read.
        """
        kept = self._transcripts.pop(session.id, None)
        if kept is not None:
            self._size_bytes -= kept.size_bytes
            if kept.context_from == session.context_start_seq and kept.records:
                # a summary is first in the list, and may be the newest
                have = max(kept.records[0].seq, kept.records[-1].seq)
                if new_records and new_records[0].seq == have + 1:
                    kept.records.extend(new_records)
                    have = kept.records[-1].seq
                if have == session.record_seq:
                    return kept
        return await self._load(session)

    def check_in(self, transcript: CachedTranscript, *, context_from: int | None = None) -> None:
        """Keep a context for the next run. Evicts the least recently used contexts to make space."""
        if (
            context_from is not None and transcript.context_from != context_from
        ):  # it was compacted: the counts no longer match
            transcript.context_from, transcript.counted_records, transcript.size_bytes = context_from, 0, 0
            transcript.trust_checked_records = 0
        transcript.update_size()
        if transcript.size_bytes > self._bytes_max or transcript.session in self._transcripts:
            return
        self._transcripts[transcript.session] = transcript
        self._size_bytes += transcript.size_bytes
        while self._size_bytes > self._bytes_max:
            _, evicted = self._transcripts.popitem(last=False)
            self._size_bytes -= evicted.size_bytes

    async def _load(self, session: Session) -> CachedTranscript:
        transcript, damage = await self._store.scan(lambda conn: _read_transcript(conn, session))
        for damaged in damage:
            fields = {"session": damaged.session, "seq": damaged.seq, "because": damaged.because}
            log.warning("damaged record skipped", extra=fields)
        return transcript


def _read_transcript(conn: sa.Connection, session: Session) -> tuple[CachedTranscript, Sequence[records.DamagedRecord]]:
    """Read the context from the store and count its size. Counting it later takes twice as long."""
    found, damage = records.read_range(conn, session.id, first=session.context_start_seq, last=session.record_seq)
    transcript = CachedTranscript(session.id, session.context_start_seq, context_from_records(found))
    transcript.update_size()
    return transcript, damage


def record_size_bytes(record: Record) -> int:
    """Return the approximate memory size of a record in bytes."""
    if type(record) is TextRecord:
        return RECORD_OVERHEAD_BYTES + getsizeof(record.text)
    match record.body:
        case Reply(text=text, thinking=thinking, calls=calls):
            asked = sum(CALL_OVERHEAD_BYTES + getsizeof(str(call.arguments)) for call in calls)
            return RECORD_OVERHEAD_BYTES + getsizeof(text) + getsizeof(thinking) + asked
        case (
            ToolResult(output=text)
            | UserTurn(text=text)
            | Note(text=text)
            | ContextStart(text=text)
            | Summary(text=text)
        ):
            return RECORD_OVERHEAD_BYTES + getsizeof(text)
