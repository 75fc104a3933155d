"""Contexts kept warm between runs, so that a turn need not read the whole session again. The store is the truth."""

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
    """The context of one session. While a run works with it, it is that run's alone."""

    session: SessionId
    context_from: int
    records: list[Record]
    size_bytes: int = 0
    counted: int = 0  # how many of the records are in `size_bytes`
    trust: Trust = Trust.PRIVATE  # of the least trusted words among those that were judged
    judged: int = 0  # how many of the records that were, from the first on

    def believed(self) -> Trust:
        """How far the least trusted words in it can be believed, at the cost of what is new."""
        new = self.records[self.judged :] if self.judged else self.records
        if new:
            found = least_believed(new)
            self.trust = least((self.trust, found)) if self.judged else found
            self.judged = len(self.records)
        return self.trust

    def rearrange(self) -> None:
        """What a summary stands for goes, and with it what was known of it."""
        self.records[:] = arranged(self.records)
        self.judged = 0

    def count(self) -> None:
        """Bring the size up to date at the cost of what is new, not of what is there."""
        new = self.records[self.counted :]
        plain = [record for record in new if type(record) is Plain]
        self.size_bytes += len(plain) * RECORD_OVERHEAD_BYTES + sum(map(str.__sizeof__, words_of(plain)))
        self.size_bytes += sum(size_of(record) for record in new if type(record) is not Plain)
        self.counted = len(self.records)


class Transcripts:
    def __init__(self, store: Store, *, bytes_max: int = TRANSCRIPTS_BYTES_MAX) -> None:
        self._store = store
        self._bytes_max = bytes_max
        self._size_bytes = 0
        self._kept: OrderedDict[SessionId, Transcript] = OrderedDict()

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    async def take(self, session: Session, fresh: Sequence[Record]) -> Transcript:
        """The context of a session up to its last record. `fresh` are records just appended, if the caller has them."""
        kept = self._kept.pop(session.id, None)
        if kept is not None:
            self._size_bytes -= kept.size_bytes
            if kept.context_from == session.context_from and kept.records:
                have = max(kept.records[0].seq, kept.records[-1].seq)  # a summary stands first, and may be the newest
                if fresh and fresh[0].seq == have + 1:
                    kept.records.extend(fresh)
                    have = kept.records[-1].seq
                if have == session.record_seq:
                    return kept
        return await self._load(session)

    def give_back(self, transcript: Transcript, *, context_from: int | None = None) -> None:
        """Keep a context for the next run, and let the longest unused ones go to make room."""
        if (
            context_from is not None and transcript.context_from != context_from
        ):  # it was compacted: what was counted is not what is there
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
    """Counted at once: who has just read thousands of records goes through them in half the time."""
    found, damage = records.read(conn, session.id, first=session.context_from, last=session.record_seq)
    transcript = Transcript(session.id, session.context_from, as_read(found))
    transcript.count()
    return transcript, damage


def size_of(record: Record) -> int:
    """About what a record costs to keep in memory."""
    if type(record) is Plain:
        return RECORD_OVERHEAD_BYTES + getsizeof(record.words)
    match record.body:
        case Reply(text=text, thinking=thinking, calls=calls):
            asked = sum(CALL_OVERHEAD_BYTES + getsizeof(str(call.arguments)) for call in calls)
            return RECORD_OVERHEAD_BYTES + getsizeof(text) + getsizeof(thinking) + asked
        case ToolResult(output=text) | UserTurn(text=text) | Note(text=text) | Mark(text=text) | Summary(text=text):
            return RECORD_OVERHEAD_BYTES + getsizeof(text)
