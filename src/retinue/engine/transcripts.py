"""Contexts kept warm between runs, so that a turn need not read the whole session again. The store is the truth."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from sys import getsizeof

from retinue.domain.ids import SessionId
from retinue.domain.record import Mark, Note, Record, Reply, Summary, UserTurn
from retinue.domain.session import Session
from retinue.domain.tool import ToolResult
from retinue.models.parts import plain_words
from retinue.runners.context import as_read
from retinue.store import records
from retinue.store.connection import Store

log = logging.getLogger(__name__)

TRANSCRIPTS_BYTES_MAX = 16 * 1024 * 1024
RECORD_OVERHEAD_BYTES = 400
CALL_OVERHEAD_BYTES = 400


@dataclass(slots=True)
class Transcript:
    """The context of one session. While a run works with it, it is that run's alone."""

    session: SessionId
    context_from: int
    records: list[Record]
    size_bytes: int = 0
    counted: int = 0  # how many of the records are in `size_bytes`

    def count(self) -> None:
        """Bring the size up to date at the cost of what is new, not of what is there."""
        self.size_bytes += sum(map(size_of, self.records[self.counted :]))
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
        return Transcript(session.id, session.context_from, await self._load(session))

    def give_back(self, transcript: Transcript, *, context_from: int | None = None) -> None:
        """Keep a context for the next run, and let the longest unused ones go to make room."""
        if (
            context_from is not None and transcript.context_from != context_from
        ):  # it was compacted: what was counted is not what is there
            transcript.context_from, transcript.counted, transcript.size_bytes = context_from, 0, 0
        transcript.count()
        if transcript.size_bytes > self._bytes_max or transcript.session in self._kept:
            return
        self._kept[transcript.session] = transcript
        self._size_bytes += transcript.size_bytes
        while self._size_bytes > self._bytes_max:
            _, evicted = self._kept.popitem(last=False)
            self._size_bytes -= evicted.size_bytes

    async def _load(self, session: Session) -> list[Record]:
        found, damage = await self._store.scan(
            lambda conn: records.read(conn, session.id, first=session.context_from, last=session.record_seq)
        )
        for damaged in damage:
            fields = {"session": damaged.session, "seq": damaged.seq, "because": damaged.because}
            log.warning("record damaged, left out", extra=fields)
        return as_read(found)


def size_of(record: Record) -> int:
    """About what a record costs to keep in memory."""
    body = record.body
    if words := plain_words(body):  # as most records are, and thousands of them where a session is restored
        return RECORD_OVERHEAD_BYTES + words.__sizeof__()
    match body:
        case Reply(text=text, thinking=thinking, calls=calls):
            asked = sum(CALL_OVERHEAD_BYTES + getsizeof(str(call.arguments)) for call in calls)
            return RECORD_OVERHEAD_BYTES + getsizeof(text) + getsizeof(thinking) + asked
        case ToolResult(output=text) | UserTurn(text=text) | Note(text=text) | Mark(text=text) | Summary(text=text):
            return RECORD_OVERHEAD_BYTES + getsizeof(text)
