"""The context a model is given: arranged behind its newest summary, and made whole, so that one damaged line cannot
brick a conversation.

Records are only ever appended. A compaction appends a summary, whose `kept_from` says which of the records before it
are still read; everything else stays in the history, untouched and unread.
"""

from __future__ import annotations

from collections.abc import Sequence

from retinue.domain.record import Note, Plain, Record, RecordKind, Reply, Summary, UserTurn, all_plain, words_of
from retinue.domain.tool import Call, ToolResult
from retinue.runners.base import SILENT_TOKENS, is_silent

# How the house begins its note before a compaction. Nobody else's words can begin a note: mail stands in a tag, and
# the result of a stored call behind a phrase of its own.
FLUSH_HEAD = "[Before this conversation is compacted]"

# What a record is, is seen by its kind: its body may have yet to be made.
_MARKS = (RecordKind.START, RecordKind.RESET)
_ASSISTANT, _TOOL, _SUMMARY = RecordKind.ASSISTANT, RecordKind.TOOL, RecordKind.SUMMARY
_SILENCE_CHARS_MAX = max(map(len, SILENT_TOKENS))


def as_read(records: Sequence[Record]) -> list[Record]:
    """What a model is given of the records of a context, as they are stored."""
    if _are_plain(records[1:] if records and records[0].kind in _MARKS else records):
        return list(records)
    return whole(arranged([record for record in records if not _is_silent(record)]))


def _are_plain(records: Sequence[Record]) -> bool:
    # No words so short that they may be silence: seen without a line of Python for each record.
    if all_plain(records) and min(map(len, map(str.strip, words_of(records))), default=0) > _SILENCE_CHARS_MAX:
        return True
    return all(map(_is_plain, records))


def _is_silent(record: Record) -> bool:
    if type(record) is Plain:
        return record.kind is _ASSISTANT and record.words.strip() in SILENT_TOKENS
    return is_silent(record.body)


def _is_plain(record: Record) -> bool:
    """Words and nothing else: neither the order nor the company of such a record matters. Most are, and there may be
    thousands of them between a person and the first answer after a restart."""
    if type(record) is Plain:
        return not _is_silent(record)
    body = record.body
    if type(body) is UserTurn:
        return True
    if isinstance(body, Reply):
        return not body.calls and body.text.strip() not in SILENT_TOKENS
    return isinstance(body, Note)


def arranged(records: Sequence[Record]) -> list[Record]:
    """The newest summary first, then what it has kept, in the order given; older summaries are left out.

    A mark begins afresh: nothing before the newest one is read. Told by their numbers and not by their places, so
    that a context already arranged stays as it is, and a summary may simply be put behind one that grew.
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


def summary_of(records: Sequence[Record]) -> Record | None:
    """The summary that an arranged context begins with, if it has one."""
    return records[0] if records and records[0].kind is _SUMMARY else None


def _calls(record: Record) -> Sequence[Call]:
    if type(record) is Plain or record.kind is not _ASSISTANT:
        return ()
    return record.body.calls if isinstance(record.body, Reply) else ()


def whole(records: Sequence[Record]) -> list[Record]:
    """Pair every call with one result, next to it: providers refuse a context in which they are not.

    A missing result is put in, a result without its call is left out. The store is not changed. Only the calls of a
    run that nothing has followed yet are left open: they may still be made.
    """
    calls = {call.id for record in records for call in _calls(record)}
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
        for call in _calls(record):
            result = results.get(call.id)
            if result is not None:
                made.append(result)
            elif i != last_reply or not still_open:
                lost = ToolResult(call=call.id, tool=call.tool, output="This result was lost.", failed=True)
                made.append(record._replace(kind=RecordKind.TOOL, body=lost))
    return made
