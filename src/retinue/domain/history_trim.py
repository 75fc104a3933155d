"""Trims a session's context: computes which records remain, and copies them into a new context.

Records are append-only, so a trim deletes none. The new context is in the same session or in another one. Models read
only the new context. The copies belong to no run, so the actions and cost of a run are not counted twice.

A request is a user turn with all records that followed from it. A trim keeps or removes whole requests, so no call
loses its result.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from retinue.domain.ids import SessionId
from retinue.domain.record import ContextStart, Record, Reply, Summary, UserTurn, effective_trust
from retinue.domain.structs import replace
from retinue.domain.tool import ToolResult
from retinue.domain.trust import Trust


class TrimMode(StrEnum):
    """What a trim removes: the requests before a given request, the requests after it, or that request."""

    BEFORE = "before"
    AFTER = "after"
    REQUEST = "request"


def latest_context(records: Sequence[Record]) -> list[Record]:
    """Return the records of the newest context, starting with its start record.

    A compaction does not begin a new context.
    """
    marks = [i for i, record in enumerate(records) if isinstance(record.body, ContextStart)]
    return list(records[marks[-1] :] if marks else records)


def split_requests(records: Sequence[Record]) -> list[list[Record]]:
    """Split a context into its requests, in order.

    The first item holds the records before the first request, if there are any.
    """
    ends = {record.run: i for i, record in enumerate(records)}
    results = {record.body.call: i for i, record in enumerate(records) if isinstance(record.body, ToolResult)}
    parts: list[list[Record]] = []
    busy_until = -1  # the last record of an open run or call: a user turn before it does not begin a new request
    for i, record in enumerate(records):
        if not parts or (isinstance(record.body, UserTurn) and i > busy_until):
            parts.append([])
        parts[-1].append(record)
        if record.run is not None:
            busy_until = max(busy_until, ends[record.run])
        if isinstance(record.body, Reply):
            busy_until = max(busy_until, *(results.get(call.id, -1) for call in record.body.calls), -1)
    return parts


def trim_records(records: Sequence[Record], seq: int, mode: TrimMode) -> list[Record] | None:
    """Return the records that remain of a context after a trim, or None if no request contains the record `seq`.

    A summary is dropped if a record that it covers is removed. If a removed record is untrusted, the replies after it
    become untrusted: a model may have derived them from that record.
    """
    parts = split_requests(records)
    at = next((i for i, part in enumerate(parts) if any(record.seq == seq for record in part)), None)
    if at is None or not isinstance(parts[at][0].body, UserTurn):
        return None
    match mode:
        case TrimMode.BEFORE:
            gone = range(at)
        case TrimMode.AFTER:
            gone = range(at + 1, len(parts))
        case TrimMode.REQUEST:
            gone = range(at, at + 1)
    left: list[Record] = []
    doubted = gap = False
    first_gone = min((parts[i][0].seq for i in gone), default=None)
    for i, part in enumerate(parts):
        if i in gone:
            gap = True
            doubted = doubted or any(effective_trust(record) is Trust.UNTRUSTED for record in part)
            continue
        for record in part:
            if isinstance(record.body, Summary) and first_gone is not None and first_gone < record.body.kept_from:
                doubted = doubted or record.trust is Trust.UNTRUSTED
                continue
            left.append(_after_gap(record, is_untrusted=doubted) if gap else record)
    return left


def _after_gap(record: Record, *, is_untrusted: bool) -> Record:
    """Return a copy of a record that follows a removed record.

    The token usage of a reply becomes an estimate, because the provider counted a longer context.
    """
    if not isinstance(record.body, Reply):
        return record
    uncounted = replace(record.body, usage=replace(record.body.usage, estimated=True))
    return record._replace(body=uncounted, trust=Trust.UNTRUSTED if is_untrusted else record.trust)


def drop_unanswered_reply(records: Sequence[Record]) -> list[Record]:
    """Remove the last reply from a context, and the records after it, if a call of that reply has no result."""
    results = {record.body.call for record in records if isinstance(record.body, ToolResult)}
    last = next((i for i in range(len(records) - 1, -1, -1) if isinstance(records[i].body, Reply)), None)
    if last is None:
        return list(records)
    reply = records[last].body
    assert isinstance(reply, Reply)
    return list(records if all(call.id in results for call in reply.calls) else records[:last])


def copy_records(records: Sequence[Record], *, session: SessionId, after: int) -> list[Record]:
    """Return copies of the records for `session`, with numbers that begin at `after` + 1.

    References from summaries to records are changed to the new numbers.
    """
    places = {record.seq: number for number, record in enumerate(records, start=after + 1)}
    made: list[Record] = []
    for record in records:
        body = record.body
        if isinstance(body, Summary):
            kept_from = min((new for old, new in places.items() if old >= body.kept_from), default=places[record.seq])
            body = replace(body, kept_from=kept_from)
        made.append(record._replace(session=session, seq=places[record.seq], body=body, run=None))
    return made


def find_context_start(records: Sequence[Record]) -> tuple[int, int]:
    """Return the seq at which the context in these records begins, and the number of summaries in the context."""
    summaries = [record.body for record in records if isinstance(record.body, Summary)]
    return (summaries[-1].kept_from if summaries else records[0].seq), len(summaries)


def last_reply_text(records: Sequence[Record]) -> str:
    return next((r.body.text for r in reversed(records) if isinstance(r.body, Reply) and r.body.text.strip()), "")
