"""The timeline of a run in sentences: its start, each step, each wait, its end."""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa

from retinue.domain.approval import ApprovalState
from retinue.domain.audit import AuditKind
from retinue.domain.event import NewsKind
from retinue.domain.ids import derived, short
from retinue.domain.model import ModelRef
from retinue.domain.record import Mark, Record, Reply
from retinue.domain.run import Run, RunStatus, StepKind, StepState
from retinue.domain.times import to_ms
from retinue.domain.tool import Call, ToolResult
from retinue.store.core import tables as t
from retinue.store.envelopes import envelopes
from retinue.store.runs.run_trace import own_records
from retinue.store.runs.timeline import Fact, addressed, fact, listed, quoted, span
from retinue.store.sessions.record_codec import read_body

NEWS_READ_MAX = 200
WRITTEN_BEFORE_MAX = 64  # records in the commit that starts a run: a reset, and silent messages

_b = sa.bindparam
_call = msgspec.json.Decoder(Call)
_body = msgspec.json.Decoder(dict[str, Any])
_steps = (
    sa.select(t.steps).where(t.steps.c.run == _b("run")).order_by(t.steps.c.opened_ms, t.steps.c.turn, t.steps.c.idx)
)
_told = (
    sa.select(t.news.c.kind, t.news.c.body, t.news.c.at_ms)
    # Not that it was suspended: the approval it waits for is a separate fact.
    .where(t.news.c.run == _b("run"), t.run_went_on, t.news.c.kind != t.word(f"'{NewsKind.RUN_PARKED}'"))
    .order_by(t.news.c.seq)
    .limit(NEWS_READ_MAX)
)
_allowed = sa.select(t.audit.c.content, t.audit.c.because).where(
    t.audit.c.chain == _b("session"),
    t.audit.c.run == _b("run"),
    t.audit.c.kind == t.word(f"'{AuditKind.CALL_ALLOWED}'"),
)
_asked = sa.select(t.approvals).where(t.approvals.c.run == _b("run")).order_by(t.approvals.c.asked_ms, t.approvals.c.id)
# Calls without a known price are unknown too, and have no amount.
_unpriced = sa.and_(t.money.c.unknown == sa.true(), t.money.c.settled_microusd == 0)
_spent = sa.select(
    sa.func.coalesce(sa.func.sum(t.money.c.settled_microusd), 0).label("settled"),
    sa.func.coalesce(sa.func.max(sa.case((t.money.c.unknown == sa.true(), 1), else_=0)), 0).label("unknown"),
    sa.func.coalesce(sa.func.max(sa.case((_unpriced, 1), else_=0)), 0).label("unpriced"),
).where(t.money.c.run == _b("run"))
_failed = (
    sa.select(t.money)
    .where(t.money.c.run == _b("run"), t.money.c.failure.is_not(None))
    .order_by(t.money.c.at_ms, t.money.c.turn, t.money.c.idx, t.money.c.attempt)
)
resets = sa.select(t.records.c.kind, t.records.c.body, t.records.c.at_ms).where(
    t.records.c.session == _b("session"), t.records.c.kind == t.word("'reset'")
)
"""Where the contexts of a session began, and why."""
_reset_with = resets.where(
    t.records.c.seq >= _b("first"), t.records.c.seq < _b("end"), t.records.c.at_ms == _b("at")
).limit(1)
_NEXT = {
    "again": "it was asked again",
    "next-credential": "it was asked with the next key",
    "next-model": "the next model was asked",
    "compaction": "the context was made shorter",
    "give-up": "nothing else was left to try",
}


def story(conn: sa.Connection, run: Run) -> list[Fact]:
    """List every fact of a run, cause before effect."""
    own = own_records(conn, run)
    facts = [*_afresh(conn, run), _start(run), *_taken_up(conn, run), *_turns(conn, run, own)]
    if run.ended_at is not None:
        facts.append(_end(conn, run, turns=sum(isinstance(record.body, Reply) for record in own)))
    return facts


def _afresh(conn: sa.Connection, run: Run) -> list[Fact]:
    """Return the reset with which the run started, if any: written in its first commit, before its own records."""
    began = {"first": run.first_seq - WRITTEN_BEFORE_MAX, "end": run.first_seq, "at": to_ms(run.started_at)}
    return [afresh(*row) for row in conn.execute(_reset_with, {"session": run.session, **began})]


def afresh(kind: str, body: str, at_ms: int) -> Fact:
    mark = read_body(kind, body)
    because = f": {quoted(mark.because)}" if isinstance(mark, Mark) and mark.because else ""
    return fact(at_ms, f"A fresh context began{because}.")


def head(run: Run) -> str:
    ended = f"{run.status}: {quoted(run.error)}" if run.error else str(run.status)
    return f"run {short(run.id)} of {run.agent} in session {short(run.session)}, {ended}"


def _start(run: Run) -> Fact:
    which = listed([short(id_) for id_ in run.envelopes])
    many = "envelopes" if len(run.envelopes) > 1 else "envelope"
    said = f"Run {short(run.id)} of {run.agent} started, over {many} {which} from {addressed(run.sender)}."
    return fact(to_ms(run.started_at), said)


def _end(conn: sa.Connection, run: Run, *, turns: int) -> Fact:
    assert run.ended_at is not None
    took = span(to_ms(run.ended_at) - to_ms(run.started_at))
    spent = conn.execute(_spent, {"run": run.id}).one()
    cost = f", for ${int(spent.settled) / 1e6:.6f}" if spent.settled else ""
    if spent.unpriced:
        cost = f"{cost} and what is not known" if cost else ", at a cost that is not known"
    elif spent.unknown:
        cost += " at most"
    why = f": {quoted(run.error)}" if run.error else ""
    word = "was cancelled" if run.status is RunStatus.CANCELLED else str(run.status)
    said = f"Run {short(run.id)} {word} after {turns} turn{'' if turns == 1 else 's'} and {took}{cost}{why}."
    return fact(to_ms(run.ended_at), said)


def _taken_up(conn: sa.Connection, run: Run) -> list[Fact]:
    """List when the run was resumed, and which messages it read later."""
    facts: list[Fact] = []
    for row in conn.execute(_told, {"run": run.id}):
        body = _body.decode(row.body) if row.body else {}
        if row.kind == NewsKind.RUN_JOINED:
            joined = listed([short(id_) for id_ in body.get("envelopes", [])])
            facts.append(fact(row.at_ms, f"Run {short(run.id)} read {joined} in the middle of its work."))
        else:
            attempt = body.get("attempt", 1)
            again = f", attempt {attempt}" if attempt > 1 else ""
            said = f"Run {short(run.id)} was taken up again after {body.get('after', 'a wait')}{again}."
            facts.append(fact(row.at_ms, said))
    return facts


def _turns(conn: sa.Connection, run: Run, own: list[Record]) -> list[Fact]:
    """List the records in order, each with its step, then the steps without a readable record."""
    steps = {(step.turn, step.idx, step.hash): step for step in conn.execute(_steps, {"run": run.id})}
    asked = {row.id: row for row in conn.execute(_asked, {"run": run.id})}
    failed = conn.execute(_failed, {"run": run.id}).all()
    reasons = {row.content: row.because for row in conn.execute(_allowed, {"session": run.session, "run": run.id})}
    if not steps and run.ended_at is not None and any(isinstance(record.body, Reply) for record in own):
        # Every reply had a step. Without them, times and skipped calls are unknown.
        facts = [fact(to_ms(run.ended_at), "Its steps were purged since; what was said is in its session's history.")]
        facts = [*map(_failure, failed), *facts]
        return [*facts, *(each for row in asked.values() for each in approval_facts(conn, row))]
    by_seq = {step.record_seq: key for key, step in steps.items() if step.record_seq is not None}
    facts: list[Fact] = []
    for record in own:
        step = steps.pop(by_seq[record.seq], None) if record.seq in by_seq else None
        if step is not None:
            facts += [_failure(row) for row in failed if (row.turn, row.idx) == (step.turn, step.idx)]
            failed = [row for row in failed if (row.turn, row.idx) != (step.turn, step.idx)]
            facts.append(_closed(step, record, reasons.get(step.hash, "")))
        elif isinstance(record.body, ToolResult):
            facts.append(_unmade(record, record.body))
        if step is not None and step.kind == StepKind.MODEL:
            for row in [row for row in asked.values() if row.turn == step.turn]:
                facts += approval_facts(conn, asked.pop(row.id))
    facts += [*map(_failure, failed), *(_unrecorded(step, reasons.get(step.hash, "")) for step in steps.values())]
    return [*facts, *(each for row in asked.values() for each in approval_facts(conn, row))]


def _closed(step: sa.Row[Any], record: Record, because: str) -> Fact:
    took = span(step.closed_ms - step.opened_ms)
    if step.state == StepState.INTERRUPTED:
        return fact(step.closed_ms, f"{_named(step, because)} was cut off; nobody saw its end.")
    return fact(step.closed_ms, f"{_named(step, because)} {_came_of(record)} in {took}{_asking(record)}.")


def _unrecorded(step: sa.Row[Any], because: str) -> Fact:
    if step.state == StepState.OPEN:
        is_model = step.kind == StepKind.MODEL
        verb = "was asked and has not replied yet" if is_model else "was called and is at work"
        return fact(step.opened_ms, f"{_named(step, because)} {verb}.")
    verb = "was broken off after" if step.state == StepState.INTERRUPTED else "ended, unreadably, in"
    return fact(step.closed_ms, f"{_named(step, because)} {verb} {span(step.closed_ms - step.opened_ms)}.")


def _failure(call: sa.Row[Any]) -> Fact:
    """Describe a failed model call, its error, and the next action."""
    words = f"{call.failure}: {quoted(call.error)}" if call.error else call.failure
    next_ = f"; {_NEXT.get(call.next_move, call.next_move)}" if call.next_move else ""
    turn = f"Turn {call.turn + 1}" if call.turn >= 0 else "Late"
    ended_ms = call.at_ms if call.ended_ms is None else call.ended_ms
    return fact(ended_ms, f"{turn}: {ModelRef(call.provider, call.model)} failed ({words}){next_}.")


def _named(step: sa.Row[Any], because: str) -> str:
    """Describe a step. `because` is the reason in the audit log why the call was allowed."""
    turn = f"Turn {step.turn + 1}" if step.turn >= 0 else "Late"
    what = step.hash if step.kind == StepKind.MODEL else _call.decode(step.call).tool if step.call else "a tool"
    attempt = f" (attempt {step.attempt})" if step.attempt > 1 else ""
    return f"{turn}: {what}{attempt}" + (f" ({because})" if because else "")


def _came_of(record: Record) -> str:
    match record.body:
        case Reply():
            return "replied"
        case ToolResult(failed=True, output=output):
            return f"failed ({quoted(output)})"
        case _:
            return "returned"


def _asking(record: Record) -> str:
    if not isinstance(record.body, Reply) or not record.body.calls:
        return ""
    return f", asking for {listed([call.tool for call in record.body.calls])}"


def _unmade(record: Record, result: ToolResult) -> Fact:
    """Describe a call that was not made: refused, unknown, or skipped. Its result has no step."""
    return fact(record.at_ms, f"The call {result.tool} was not made: {quoted(result.output)}.")


def approval_facts(conn: sa.Connection, row: sa.Row[Any]) -> list[Fact]:
    """List the facts of an approval since it was asked. `row` is a row of `approvals`."""
    calls = msgspec.json.decode(row.calls, type=tuple[Call, ...])
    tools = listed([call.tool for call in calls])
    question = envelopes.get(conn, derived(row.id, "question"))
    whom = f"{addressed(question.recipient)} was asked" if question else "A person was asked"
    facts = [fact(row.asked_ms, f"{whom} about {tools} (approval {short(row.id)}), because {row.because}.")]
    if row.decided_ms is None:
        return facts
    said = f"Approval {short(row.id)} {_decided(ApprovalState(row.state), row.decided_by)}"
    if row.released and row.state in (ApprovalState.ALLOWED, ApprovalState.DENIED):
        said += ", after its run had gone on without it"
    return [*facts, fact(row.decided_ms, f"{said}.")]


def _decided(state: ApprovalState, by: str) -> str:
    match state:
        case ApprovalState.ALLOWED | ApprovalState.DENIED:
            return f"was {state} by {by}"
        case ApprovalState.EXPIRED:
            return "expired without an answer"
        case ApprovalState.CLOSED:
            return "was closed: nobody waits for it any more"
        case ApprovalState.OPEN:
            return "is open"
