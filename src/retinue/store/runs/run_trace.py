"""Everything stored about a run, to display it, not to resume it.

`run_timeline` has the same as sentences.
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
from retinue.domain.event import NewsKind
from retinue.domain.record import Record
from retinue.domain.run import Run, Step
from retinue.domain.tool import Call
from retinue.store.core import tables as t
from retinue.store.envelopes import envelopes
from retinue.store.runs import approvals, model_calls
from retinue.store.runs.model_calls import CallMade
from retinue.store.runs.runs import step_of
from retinue.store.sessions import records

RECORDS_READ_MAX = 1_000
STEPS_READ_MAX = 2_000
NEWS_READ_MAX = 200
ENVELOPES_READ_MAX = 100  # of those a run has read, and of those it has sent

_b = sa.bindparam
call_of = msgspec.json.Decoder(Call).decode
_body = msgspec.json.Decoder(dict[str, Any])
_steps = (
    sa.select(t.steps)
    .where(t.steps.c.run == _b("run"))
    .order_by(t.steps.c.opened_ms, t.steps.c.turn, t.steps.c.idx)
    .limit(STEPS_READ_MAX)
)
_told = (
    sa.select(t.news.c.kind, t.news.c.body, t.news.c.at_ms)
    .where(t.news.c.run == _b("run"), t.run_went_on)
    .order_by(t.news.c.seq)
    .limit(NEWS_READ_MAX)
)
_judged = sa.select(t.audit.c.kind, t.audit.c.content, t.audit.c.because).where(
    t.audit.c.chain == _b("session"),
    t.audit.c.run == _b("run"),
    t.audit.c.kind.in_(tuple(t.word(f"'{kind}'") for kind in (AuditKind.CALL_ALLOWED, AuditKind.CALL_REFUSED))),
)
# The envelopes that a run sends have keys that begin with its id.
_posted = (
    sa.select(t.envelopes)
    .where(
        t.envelopes.c.source == t.word("'run'"),
        t.envelopes.c.dedupe_key >= _b("first"),
        t.envelopes.c.dedupe_key < _b("last"),
    )
    .order_by(t.envelopes.c.dedupe_key)
    .limit(ENVELOPES_READ_MAX)
)
_answers = sa.select(t.outcomes.c.answer).where(t.outcomes.c.envelope == _b("envelope"))


class StepTaken(Struct, frozen=True):
    step: Step
    record_seq: int | None
    opened_ms: int
    closed_ms: int | None


class Told(Struct, frozen=True):
    """An event of a run: suspended, resumed, or further messages read."""

    kind: NewsKind
    at_ms: int
    body: Mapping[str, Any]


class Trace(Struct, frozen=True, kw_only=True):
    """Everything stored about a run.

    `allowed` and `refused` are reasons, by the hash of the call or its replacement.
    """

    run: Run
    records: Sequence[Record]
    steps: Sequence[StepTaken]
    calls: Sequence[CallMade]
    approvals: Sequence[Approval]
    told: Sequence[Told]
    allowed: Mapping[str, str]
    refused: Mapping[str, str]
    read: Sequence[Envelope]
    sent: Sequence[Envelope]


def trace(conn: sa.Connection, run: Run) -> Trace:
    of = {"session": run.session, "run": run.id}
    judged = conn.execute(_judged, of).all()
    read = [found for id_ in run.envelopes[:ENVELOPES_READ_MAX] if (found := envelopes.get(conn, id_)) is not None]
    return Trace(
        run=run,
        records=own_records(conn, run),
        steps=[_step_of(row) for row in conn.execute(_steps, {"run": run.id})],
        calls=model_calls.of_run(conn, run.id),
        approvals=approvals.of_run(conn, run.id),
        told=[
            Told(NewsKind(row.kind), row.at_ms, _body.decode(row.body) if row.body else {})
            for row in conn.execute(_told, of)
        ],
        allowed={row.content: row.because for row in judged if row.kind == AuditKind.CALL_ALLOWED},
        refused={row.content: row.because for row in judged if row.kind == AuditKind.CALL_REFUSED},
        read=read,
        sent=_sent(conn, run),
    )


def own_records(conn: sa.Connection, run: Run) -> list[Record]:
    """Return the records of a run.

    They are contiguous, except for silent messages in between, which belong to no run.
    """
    found, _ = records.read(conn, run.session, first=run.first_seq, last=run.first_seq + RECORDS_READ_MAX - 1)
    own: list[Record] = []
    for record in found:
        if record.run == run.id:
            own.append(record)
        elif record.run is not None:
            break
    return own


def calls_made(conn: sa.Connection, run: str) -> list[tuple[str, int | None]]:
    """List the tools that a run called, in order, and the duration of each in milliseconds."""
    taken = [_step_of(row) for row in conn.execute(_steps, {"run": run})]
    return [
        (each.step.call.tool, each.closed_ms - each.opened_ms if each.closed_ms is not None else None)
        for each in taken
        if each.step.call is not None
    ]


def _sent(conn: sa.Connection, run: Run) -> list[Envelope]:
    """List the envelopes that a run sent, and the answers to those it read."""
    rows = conn.execute(_posted, {"first": f"{run.id}/", "last": f"{run.id}0"})
    found = {envelope.id: envelope for envelope in map(envelopes.envelope_of, rows)}
    for id_ in run.envelopes[:ENVELOPES_READ_MAX]:
        answer = conn.execute(_answers, {"envelope": id_}).scalar()
        if answer and answer not in found and (envelope := envelopes.get(conn, answer)) is not None:
            found[envelope.id] = envelope
    return list(found.values())


def _step_of(row: sa.Row[Any]) -> StepTaken:
    return StepTaken(step_of(row), row.record_seq, row.opened_ms, row.closed_ms)
