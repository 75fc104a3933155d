"""The context a model is given: records made whole, so that one damaged line cannot brick a conversation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from retinue.domain.record import Record, RecordKind, Reply
from retinue.domain.tool import ToolResult


def whole(records: Sequence[Record]) -> list[Record]:
    """Pair every call with one result, next to it: providers refuse a context in which they are not.

    A missing result is put in, a result without its call is left out. The store is not changed. Only the calls of a
    run that nothing has followed yet are left open: they may still be made.
    """
    calls = {call.id for record in records if isinstance(record.body, Reply) for call in record.body.calls}
    results = {r.body.call: r for r in reversed(records) if isinstance(r.body, ToolResult) and r.body.call in calls}
    made: list[Record] = []
    last_reply = max((i for i, r in enumerate(records) if isinstance(r.body, Reply)), default=-1)
    still_open = all(r.run == records[last_reply].run for r in records[last_reply + 1 :])
    for i, record in enumerate(records):
        if isinstance(record.body, ToolResult):
            continue
        made.append(record)
        if not isinstance(record.body, Reply):
            continue
        for call in record.body.calls:
            result = results.get(call.id)
            if result is not None:
                made.append(result)
            elif i != last_reply or not still_open:
                lost = ToolResult(call=call.id, tool=call.tool, output="This result was lost.", failed=True)
                made.append(replace(record, kind=RecordKind.TOOL, body=lost))
    return made
