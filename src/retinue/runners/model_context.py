"""Builds the context that a model gets from the stored records of a session, and repairs it.

Records are only ever appended. A compaction appends a summary. Its `kept_from` is the first earlier
record that the model still gets, and older records stay only in the history. The repair ensures
that one damaged record cannot make a session unusable.
"""

from __future__ import annotations

from collections.abc import Sequence

from retinue.domain.record import (
    Note,
    Record,
    RecordKind,
    Reply,
    Summary,
    TextRecord,
    UserTurn,
    are_all_text,
    record_texts,
)
from retinue.domain.tool import Call, ToolResult
from retinue.runners.base import SILENT_TOKENS, is_silent

# Start of the server's note before a compaction. No other text can start a note: envelopes are inside a tag,
# and the result of a stored call follows a fixed phrase.
FLUSH_HEAD = "[Before this conversation is compacted]"

# Records are distinguished by kind, because the body may not be decoded yet.
_MARKS = (RecordKind.START, RecordKind.RESET)
_ASSISTANT, _TOOL, _SUMMARY = RecordKind.ASSISTANT, RecordKind.TOOL, RecordKind.SUMMARY
_SILENT_TOKEN_CHARS_MAX = max(map(len, SILENT_TOKENS))


def context_from_records(records: Sequence[Record]) -> list[Record]:
    """Return the records that a model gets, built from the stored records of a context."""
    if _are_all_plain(records[1:] if records and records[0].kind in _MARKS else records):
        return list(records)
    return pair_calls_with_results(arrange_records([record for record in records if not _is_silent(record)]))


def _are_all_plain(records: Sequence[Record]) -> bool:
    # Fast path without Python code per record: no text is short enough to be a silent token.
    if (
        are_all_text(records)
        and min(map(len, map(str.strip, record_texts(records))), default=0) > _SILENT_TOKEN_CHARS_MAX
    ):
        return True
    return all(map(_is_plain, records))


def _is_silent(record: Record) -> bool:
    if type(record) is TextRecord:
        return record.kind is _ASSISTANT and record.text.strip() in SILENT_TOKENS
    return is_silent(record.body)


def _is_plain(record: Record) -> bool:
    """Whether a record is text only, and not a silent reply. A context of such records needs no repair.

    Most records are text only. This check is fast, because a restart may have to check thousands of
    records before the first answer.
    """
    if type(record) is TextRecord:
        return not _is_silent(record)
    body = record.body
    if type(body) is UserTurn:
        return True
    if isinstance(body, Reply):
        return not body.calls and body.text.strip() not in SILENT_TOKENS
    return isinstance(body, Note)


def arrange_records(records: Sequence[Record]) -> list[Record]:
    """Return the newest summary, then the records that it kept, in the given order.

    Older summaries, and everything before the newest reset mark, are dropped. Records are compared
    by number, not by position. An arranged context can therefore be arranged again without a
    change, and a new summary can be appended to it.
    """
    mark = max((r.seq for r in records if r.kind in _MARKS), default=0)
    summary: Record | None = None
    kept_from = mark
    for record in records:
        if (
            record.kind is _SUMMARY
            and isinstance(record.body, Summary)
            and record.seq >= mark
            and (summary is None or record.seq > summary.seq)
        ):
            summary, kept_from = record, max(record.body.kept_from, mark)
    kept = [r for r in records if r.seq >= kept_from and r.kind is not _SUMMARY]
    return kept if summary is None else [summary, *kept]


def leading_summary(records: Sequence[Record]) -> Record | None:
    """Return the summary at the start of an arranged context, or None."""
    return records[0] if records and records[0].kind is _SUMMARY else None


def _calls_of(record: Record) -> Sequence[Call]:
    if type(record) is TextRecord or record.kind is not _ASSISTANT:
        return ()
    return record.body.calls if isinstance(record.body, Reply) else ()


def pair_calls_with_results(records: Sequence[Record]) -> list[Record]:
    """Put exactly one result directly after every call, because providers reject other contexts.

    Missing results are inserted, and results without a call are dropped. The store is not changed.
    Calls of the last reply get no inserted result while only records of the same run follow,
    because they may still be performed.
    """
    calls = {call.id for record in records for call in _calls_of(record)}
    results = {
        r.body.call: r
        for r in reversed(records)
        if r.kind is _TOOL and isinstance(r.body, ToolResult) and r.body.call in calls
    }
    made: list[Record] = []
    last_reply = max((i for i, r in enumerate(records) if r.kind is _ASSISTANT), default=-1)
    still_open = all(r.run == records[last_reply].run for r in records[last_reply + 1 :])
    for i, record in enumerate(records):
        if record.kind is _TOOL:
            continue
        made.append(record)
        for call in _calls_of(record):
            result = results.get(call.id)
            if result is not None:
                made.append(result)
            elif i != last_reply or not still_open:
                lost = ToolResult(call=call.id, tool=call.tool, output="This result was lost.", failed=True)
                made.append(record._replace(kind=RecordKind.TOOL, body=lost))
    return made
