"""Cache of session contexts between runs, so that a run need not reread its session. The store is authoritative."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from sys import getsizeof

import sqlalchemy as sa
from msgspec import Struct

from retinue.domain.ids import SessionId
from retinue.domain.record import Mark, Note, Plain, Record, Reply, Summary, UserTurn, least_believed, words_of
from retinue.domain.session import Session
from retinue.domain.tool import ToolResult
from retinue.domain.trust import Trust, least
from retinue.runners.model_context import arranged, as_read
from retinue.store.core.connection import Store
from retinue.store.sessions import records

log = logging.getLogger(__name__)

TRANSCRIPTS_BYTES_MAX = 16 * 1024 * 1024
RECORD_OVERHEAD_BYTES = 400
CALL_OVERHEAD_BYTES = 400


class Transcript(Struct):
    """The context of one session. A run that has checked it out owns it exclusively."""

    session: SessionId
    context_from: int
    records: list[Record]
    size_bytes: int = 0
    counted: int = 0  # number of records included in `size_bytes`
    trust: Trust = Trust.PRIVATE  # least trust among the records checked so far
    judged: int = 0  # number of records checked, from the first on

    def believed(self) -> Trust:
        """Return the least trust of any record. Checks only records added since the last call."""
        new = self.records[self.judged :] if self.judged else self.records
        if new:
            found = least_believed(new)
            self.trust = least((self.trust, found)) if self.judged else found
            self.judged = len(self.records)
        return self.trust

    def rearrange(self) -> None:
        """Drop the records that a new summary replaces, and reset the trust computed from them."""
        self.records[:] = arranged(self.records)
        self.judged = 0

    def count(self) -> None:
        """Update `size_bytes`. The cost depends on the new records only."""
        new = self.records[self.counted :]
        plain = [record for record in new if type(record) is Plain]
        self.size_bytes += len(plain) * RECORD_OVERHEAD_BYTES + sum(map(str.__sizeof__, words_of(plain)))
        self.size_bytes += sum(size_of(record) for record in new if type(record) is not Plain)
        self.counted = len(self.records)


class Transcripts:
    """Keeps transcripts in memory up to a byte limit, least recently used evicted first."""

    def __init__(self, store: Store, *, bytes_max: int = TRANSCRIPTS_BYTES_MAX) -> None:
        self._store = store
        self._bytes_max = bytes_max
        self._size_bytes = 0
        self._kept: OrderedDict[SessionId, Transcript] = OrderedDict()

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    async def take(self, session: Session, fresh: Sequence[Record]) -> Transcript:
        """Return the context of a session up to its last record, and remove it from the cache.

        `new_records` are records just appended, if the caller has them: then the store is not read.
        """
        kept = self._kept.pop(session.id, None)
        if kept is not None:
            self._size_bytes -= kept.size_bytes
            if kept.context_from == session.context_from and kept.records:
                # a summary is first in the list, and may be the newest
                have = max(kept.records[0].seq, kept.records[-1].seq)
                if fresh and fresh[0].seq == have + 1:
                    kept.records.extend(fresh)
                    have = kept.records[-1].seq
                if have == session.record_seq:
                    return kept
        return await self._load(session)

    def give_back(self, transcript: Transcript, *, context_from: int | None = None) -> None:
        """Keep a context for the next run, and evict the least recently used ones to make space."""
        if (
            context_from is not None and transcript.context_from != context_from
        ):  # it was compacted: the counts no longer match
            transcript.context_from, transcript.counted, transcript.size_bytes = context_from, 0, 0
            transcript.judged = 0
        transcript.count()
        if transcript.size_bytes > self._bytes_max or transcript.session in self._kept:
            return
        self._kept[transcript.session] = transcript
        self._size_bytes += transcript.size_bytes
        while self._size_bytes > self._bytes_max:
            _, evicted = self._kept.popitem(last=False)
            self._size_bytes -= evicted.size_bytes

    async def _load(self, session: Session) -> Transcript:
        transcript, damage = await self._store.scan(lambda conn: _read(conn, session))
        for damaged in damage:
            fields = {"session": damaged.session, "seq": damaged.seq, "because": damaged.because}
            log.warning("record damaged, left out", extra=fields)
        return transcript


def _read(conn: sa.Connection, session: Session) -> tuple[Transcript, Sequence[records.Damage]]:
    """Read the context and count its size at once: counting right after reading takes half the time."""
    found, damage = records.read(conn, session.id, first=session.context_from, last=session.record_seq)
    transcript = Transcript(session.id, session.context_from, as_read(found))
    transcript.count()
    return transcript, damage


def size_of(record: Record) -> int:
    """Return the approximate memory size of a record in bytes."""
    if type(record) is Plain:
        return RECORD_OVERHEAD_BYTES + getsizeof(record.words)
    match record.body:
        case Reply(text=text, thinking=thinking, calls=calls):
            asked = sum(CALL_OVERHEAD_BYTES + getsizeof(str(call.arguments)) for call in calls)
            return RECORD_OVERHEAD_BYTES + getsizeof(text) + getsizeof(thinking) + asked
        case ToolResult(output=text) | UserTurn(text=text) | Note(text=text) | Mark(text=text) | Summary(text=text):
            return RECORD_OVERHEAD_BYTES + getsizeof(text)
