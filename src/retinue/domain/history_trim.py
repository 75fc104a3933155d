"""Cutting a history: which of its records are kept, and what they become where they begin another context.

Records are only ever appended, so nothing is taken out: what is kept is copied behind a fresh mark, in the same session
or in another, and what is not copied is no longer read. A copy belongs to no run: what a run did and cost is told once.

A request is a turn of mail with everything that came of it. Cuts fall between requests, so no call loses its result.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from retinue.domain.ids import SessionId
from retinue.domain.record import Mark, Record, Reply, Summary, UserTurn, believed
from retinue.domain.structs import replace
from retinue.domain.tool import ToolResult
from retinue.domain.trust import Trust


class Cut(StrEnum):
    """What goes: all before the request that a record belongs to, all after it, or the request itself."""

    BEFORE = "before"
    AFTER = "after"
    REQUEST = "request"


def since_mark(records: Sequence[Record]) -> list[Record]:
    """The newest context of a history, from its mark on. A compaction does not begin one."""
    marks = [i for i, record in enumerate(records) if isinstance(record.body, Mark)]
    return list(records[marks[-1] :] if marks else records)


def requests(records: Sequence[Record]) -> list[list[Record]]:
    """A context as its requests, in their order; first, as one of them, what stands before the first, if anything."""
    ends = {record.run: i for i, record in enumerate(records)}
    results = {record.body.call: i for i, record in enumerate(records) if isinstance(record.body, ToolResult)}
    parts: list[list[Record]] = []
    busy_until = -1  # the last record of a run or of a call that has begun: mail in its midst begins nothing
    for i, record in enumerate(records):
        if not parts or (isinstance(record.body, UserTurn) and i > busy_until):
            parts.append([])
        parts[-1].append(record)
        if record.run is not None:
            busy_until = max(busy_until, ends[record.run])
        if isinstance(record.body, Reply):
            busy_until = max(busy_until, *(results.get(call.id, -1) for call in record.body.calls), -1)
    return parts


def kept(records: Sequence[Record], seq: int, cut: Cut) -> list[Record] | None:
    """What is left of a context. None where no request holds that record.

    A summary goes with anything that it tells of. What was said by a model that had read what is now gone can be
    believed no further than that could: a cut does not clean the words that came of it.
    """
    parts = requests(records)
    at = next((i for i, part in enumerate(parts) if any(record.seq == seq for record in part)), None)
    if at is None or not isinstance(parts[at][0].body, UserTurn):
        return None
    match cut:
        case Cut.BEFORE:
            gone = range(at)
        case Cut.AFTER:
            gone = range(at + 1, len(parts))
        case Cut.REQUEST:
            gone = range(at, at + 1)
    left: list[Record] = []
    doubted = gap = False
    first_gone = min((parts[i][0].seq for i in gone), default=None)
    for i, part in enumerate(parts):
        if i in gone:
            gap = True
            doubted = doubted or any(believed(record) is Trust.UNTRUSTED for record in part)
            continue
        for record in part:
            if isinstance(record.body, Summary) and first_gone is not None and first_gone < record.body.kept_from:
                doubted = doubted or record.trust is Trust.UNTRUSTED
                continue
            left.append(_behind(record, doubted=doubted) if gap else record)
    return left


def _behind(record: Record, *, doubted: bool) -> Record:
    """A record behind a gap. What its provider had counted is a context that is no more."""
    if not isinstance(record.body, Reply):
        return record
    uncounted = replace(record.body, usage=replace(record.body.usage, estimated=True))
    return record._replace(body=uncounted, trust=Trust.UNTRUSTED if doubted else record.trust)


def answered(records: Sequence[Record]) -> list[Record]:
    """The beginning of a context, without its last reply where that has calls whose results are not in it."""
    results = {record.body.call for record in records if isinstance(record.body, ToolResult)}
    last = next((i for i in range(len(records) - 1, -1, -1) if isinstance(records[i].body, Reply)), None)
    if last is None:
        return list(records)
    reply = records[last].body
    assert isinstance(reply, Reply)
    return list(records if all(call.id in results for call in reply.calls) else records[:last])


def copies(records: Sequence[Record], *, session: SessionId, after: int) -> list[Record]:
    """The same records behind the one of this number. What a summary has kept is found at its new place."""
    places = {record.seq: number for number, record in enumerate(records, start=after + 1)}
    made: list[Record] = []
    for record in records:
        body = record.body
        if isinstance(body, Summary):
            kept_from = min((new for old, new in places.items() if old >= body.kept_from), default=places[record.seq])
            body = replace(body, kept_from=kept_from)
        made.append(record._replace(session=session, seq=places[record.seq], body=body, run=None))
    return made


def begins_at(records: Sequence[Record]) -> tuple[int, int]:
    """Where a context of these records begins, a mark first, and how many summaries it has."""
    told = [record.body for record in records if isinstance(record.body, Summary)]
    return (told[-1].kept_from if told else records[0].seq), len(told)


def last_words(records: Sequence[Record]) -> str:
    return next((r.body.text for r in reversed(records) if isinstance(r.body, Reply) and r.body.text.strip()), "")
