"""Read everything that is stored about a run, to show it to people.

The module `run_timeline` describes the same run in sentences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from msgspec import Struct

from retinue.domain.approval import Approval
from retinue.domain.audit import AuditKind
from retinue.domain.envelope import Envelope
from retinue.domain.event import EventKind
from retinue.domain.record import Record
from retinue.domain.run import Run, Step
from retinue.domain.tool import Call
from retinue.store.core import tables as t
from retinue.store.envelopes import envelopes
from retinue.store.runs import approvals, model_calls
from retinue.store.runs.model_calls import RecordedModelCall
from retinue.store.runs.runs import step_from_row
from retinue.store.sessions import records

RECORDS_READ_MAX = 1_000
STEPS_READ_MAX = 2_000
EVENTS_READ_MAX = 200
ENVELOPES_READ_MAX = 100  # maximum number of envelopes that a run has read, and of those that it has sent

_b = sa.bindparam
decode_call = msgspec.json.Decoder(Call).decode
_body_decoder = msgspec.json.Decoder(dict[str, Any])
_steps = (
    sa.select(t.steps)
    .where(t.steps.c.run == _b("run"))
    .order_by(t.steps.c.opened_ms, t.steps.c.turn, t.steps.c.call_index)
    .limit(STEPS_READ_MAX)
)
_progress_events = (
    sa.select(t.events.c.kind, t.events.c.body, t.events.c.at_ms)
    .where(t.events.c.run == _b("run"), t.is_run_progress)
    .order_by(t.events.c.seq)
    .limit(EVENTS_READ_MAX)
)
_decisions = sa.select(t.audit.c.kind, t.audit.c.content, t.audit.c.because).where(
    t.audit.c.chain == _b("session"),
    t.audit.c.run == _b("run"),
    t.audit.c.kind.in_(tuple(t.sql_literal(f"'{kind}'") for kind in (AuditKind.CALL_ALLOWED, AuditKind.CALL_REFUSED))),
)
# The envelopes that a run sends have keys that begin with its id.
_sent_by_run = (
    sa.select(t.envelopes)
    .where(
        t.envelopes.c.source == t.sql_literal("'run'"),
        t.envelopes.c.dedupe_key >= _b("first"),
        t.envelopes.c.dedupe_key < _b("last"),
    )
    .order_by(t.envelopes.c.dedupe_key)
    .limit(ENVELOPES_READ_MAX)
)
_answer_id = sa.select(t.outcomes.c.answer).where(t.outcomes.c.envelope == _b("envelope"))


class TracedStep(Struct, frozen=True):
    step: Step
    record_seq: int | None
    opened_ms: int
    closed_ms: int | None


class RunProgressEvent(Struct, frozen=True):
    """An event of a run: it was suspended or resumed, or it read messages that were added later."""

    kind: EventKind
    at_ms: int
    body: Mapping[str, Any]


class StoredRunTrace(Struct, frozen=True, kw_only=True):
    """Everything that is stored about a run.

    `allowed` maps the hash of a call to the reason why the call was allowed. `refused` maps the
    hash of the text that was returned in place of a result to the reason why the call was refused.
    """

    run: Run
    records: Sequence[Record]
    steps: Sequence[TracedStep]
    calls: Sequence[RecordedModelCall]
    approvals: Sequence[Approval]
    events: Sequence[RunProgressEvent]
    allowed: Mapping[str, str]
    refused: Mapping[str, str]
    read: Sequence[Envelope]
    sent: Sequence[Envelope]


def load_trace(conn: sa.Connection, run: Run) -> StoredRunTrace:
    of = {"session": run.session, "run": run.id}
    judged = conn.execute(_decisions, of).all()
    read = [found for id_ in run.envelopes[:ENVELOPES_READ_MAX] if (found := envelopes.get(conn, id_)) is not None]
    return StoredRunTrace(
        run=run,
        records=list_own_records(conn, run),
        steps=[_traced_step(row) for row in conn.execute(_steps, {"run": run.id})],
        calls=model_calls.list_of_run(conn, run.id),
        approvals=approvals.list_of_run(conn, run.id),
        events=[
            RunProgressEvent(EventKind(row.kind), row.at_ms, _body_decoder.decode(row.body) if row.body else {})
            for row in conn.execute(_progress_events, of)
        ],
        allowed={row.content: row.because for row in judged if row.kind == AuditKind.CALL_ALLOWED},
        refused={row.content: row.because for row in judged if row.kind == AuditKind.CALL_REFUSED},
        read=read,
        sent=_list_sent(conn, run),
    )


def list_own_records(conn: sa.Connection, run: Run) -> list[Record]:
    """Return the records of a run, in order.

    The records are contiguous, except that silent messages, which belong to no run, may lie between
    them.
    """
    found, _ = records.read_range(conn, run.session, first=run.first_seq, last=run.first_seq + RECORDS_READ_MAX - 1)
    own: list[Record] = []
    for record in found:
        if record.run == run.id:
            own.append(record)
        elif record.run is not None:
            break
    return own


def list_tool_calls(conn: sa.Connection, run: str) -> list[tuple[str, int | None]]:
    """List the tools that a run called, in order, with the duration of each call in milliseconds."""
    taken = [_traced_step(row) for row in conn.execute(_steps, {"run": run})]
    return [
        (each.step.call.tool, each.closed_ms - each.opened_ms if each.closed_ms is not None else None)
        for each in taken
        if each.step.call is not None
    ]


def _list_sent(conn: sa.Connection, run: Run) -> list[Envelope]:
    """List the envelopes that a run sent, and the answers to the envelopes that it read."""
    rows = conn.execute(_sent_by_run, {"first": f"{run.id}/", "last": f"{run.id}0"})
    found = {envelope.id: envelope for envelope in map(envelopes.envelope_from_row, rows)}
    for id_ in run.envelopes[:ENVELOPES_READ_MAX]:
        answer = conn.execute(_answer_id, {"envelope": id_}).scalar()
        if answer and answer not in found and (envelope := envelopes.get(conn, answer)) is not None:
            found[envelope.id] = envelope
    return list(found.values())


def _traced_step(row: sa.Row[Any]) -> TracedStep:
    return TracedStep(step_from_row(row), row.record_seq, row.opened_ms, row.closed_ms)
