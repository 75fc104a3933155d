"""Describe in sentences what happened in a run: its start, steps and waits, and its end."""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa

from retinue.domain.approval import ApprovalState
from retinue.domain.audit import AuditKind
from retinue.domain.event import EventKind
from retinue.domain.ids import derive_id, short_id
from retinue.domain.model import ModelRef
from retinue.domain.record import ContextStart, Record, Reply
from retinue.domain.run import Run, RunStatus, StepKind, StepState
from retinue.domain.times import to_ms
from retinue.domain.tool import Call, ToolResult
from retinue.store.core import tables as t
from retinue.store.envelopes import envelopes
from retinue.store.runs.explanation_facts import (
    Fact,
    build_fact,
    excerpt,
    format_address,
    format_duration,
    join_names,
)
from retinue.store.runs.run_trace import list_own_records
from retinue.store.sessions.record_codec import decode_body

EVENTS_READ_MAX = 200
RECORDS_BEFORE_START_MAX = 64  # records in the commit that starts a run: a reset, and silent messages

_b = sa.bindparam
_call_decoder = msgspec.json.Decoder(Call)
_body_decoder = msgspec.json.Decoder(dict[str, Any])
_steps = (
    sa.select(t.steps)
    .where(t.steps.c.run == _b("run"))
    .order_by(t.steps.c.opened_ms, t.steps.c.turn, t.steps.c.call_index)
)
_progress_events = (
    sa.select(t.events.c.kind, t.events.c.body, t.events.c.at_ms)
    # Without the suspension: the approval for which the run waits is a separate fact.
    .where(
        t.events.c.run == _b("run"), t.is_run_progress, t.events.c.kind != t.sql_literal(f"'{EventKind.RUN_SUSPENDED}'")
    )
    .order_by(t.events.c.seq)
    .limit(EVENTS_READ_MAX)
)
_allowed_calls = sa.select(t.audit.c.content, t.audit.c.because).where(
    t.audit.c.chain == _b("session"),
    t.audit.c.run == _b("run"),
    t.audit.c.kind == t.sql_literal(f"'{AuditKind.CALL_ALLOWED}'"),
)
_approvals = (
    sa.select(t.approvals).where(t.approvals.c.run == _b("run")).order_by(t.approvals.c.asked_ms, t.approvals.c.id)
)
# The cost of calls without a known price is unknown, too, and is stored as 0.
_is_unpriced = sa.and_(t.model_calls.c.cost_unknown == sa.true(), t.model_calls.c.settled_microusd == 0)
_spent = sa.select(
    sa.func.coalesce(sa.func.sum(t.model_calls.c.settled_microusd), 0).label("settled"),
    sa.func.coalesce(sa.func.max(sa.case((t.model_calls.c.cost_unknown == sa.true(), 1), else_=0)), 0).label("unknown"),
    sa.func.coalesce(sa.func.max(sa.case((_is_unpriced, 1), else_=0)), 0).label("unpriced"),
).where(t.model_calls.c.run == _b("run"))
_failed_calls = (
    sa.select(t.model_calls)
    .where(t.model_calls.c.run == _b("run"), t.model_calls.c.failure.is_not(None))
    .order_by(t.model_calls.c.at_ms, t.model_calls.c.turn, t.model_calls.c.call_index, t.model_calls.c.attempt)
)
select_resets = sa.select(t.records.c.kind, t.records.c.body, t.records.c.at_ms).where(
    t.records.c.session == _b("session"), t.records.c.kind == t.sql_literal("'reset'")
)
"""Selects the resets of a session, with their reasons."""
_reset_at_start = select_resets.where(
    t.records.c.seq >= _b("first"), t.records.c.seq < _b("end"), t.records.c.at_ms == _b("at")
).limit(1)
_NEXT_ACTIONS = {
    "retry": "it was retried",
    "next_credential": "it was retried with the next key",
    "next_model": "the next model was tried",
    "compaction": "the context was compacted",
    "give_up": "there was nothing else to try",
}


def list_run_facts(conn: sa.Connection, run: Run) -> list[Fact]:
    """List all facts about a run, each cause before its effect."""
    own = list_own_records(conn, run)
    facts = [*_reset_facts(conn, run), _start_fact(run), *_progress_facts(conn, run), *_turn_facts(conn, run, own)]
    if run.ended_at is not None:
        facts.append(_end_fact(conn, run, turns=sum(isinstance(record.body, Reply) for record in own)))
    return facts


def _reset_facts(conn: sa.Connection, run: Run) -> list[Fact]:
    """Return a fact about the reset of the context at the start of the run, if there was one.

    The reset is stored in the first commit of the run, before the run's records.
    """
    began = {"first": run.first_seq - RECORDS_BEFORE_START_MAX, "end": run.first_seq, "at": to_ms(run.started_at)}
    return [build_reset_fact(*row) for row in conn.execute(_reset_at_start, {"session": run.session, **began})]


def build_reset_fact(kind: str, body: str, at_ms: int) -> Fact:
    mark = decode_body(kind, body)
    because = f": {excerpt(mark.because)}" if isinstance(mark, ContextStart) and mark.because else ""
    return build_fact(at_ms, f"The context was reset{because}.")


def describe_run(run: Run) -> str:
    ended = f"{run.status}: {excerpt(run.error)}" if run.error else str(run.status)
    return f"run {short_id(run.id)} of {run.agent} in session {short_id(run.session)}, {ended}"


def _start_fact(run: Run) -> Fact:
    which = join_names([short_id(id_) for id_ in run.envelopes])
    many = "envelopes" if len(run.envelopes) > 1 else "envelope"
    sentence = f"Run {short_id(run.id)} of {run.agent} started with {many} {which} from {format_address(run.sender)}."
    return build_fact(to_ms(run.started_at), sentence)


def _end_fact(conn: sa.Connection, run: Run, *, turns: int) -> Fact:
    assert run.ended_at is not None
    took = format_duration(to_ms(run.ended_at) - to_ms(run.started_at))
    spent = conn.execute(_spent, {"run": run.id}).one()
    cost = f", for ${int(spent.settled) / 1e6:.6f}" if spent.settled else ""
    if spent.unpriced:
        cost = f"{cost} plus an unknown cost" if cost else ", at an unknown cost"
    elif spent.unknown:
        cost += " at most"
    why = f": {excerpt(run.error)}" if run.error else ""
    word = "was cancelled" if run.status is RunStatus.CANCELLED else str(run.status)
    sentence = f"Run {short_id(run.id)} {word} after {turns} turn{'' if turns == 1 else 's'} and {took}{cost}{why}."
    return build_fact(to_ms(run.ended_at), sentence)


def _progress_facts(conn: sa.Connection, run: Run) -> list[Fact]:
    """List when the run was resumed, and which messages were added while it was running."""
    facts: list[Fact] = []
    for row in conn.execute(_progress_events, {"run": run.id}):
        body = _body_decoder.decode(row.body) if row.body else {}
        if row.kind == EventKind.RUN_JOINED:
            joined = join_names([short_id(id_) for id_ in body.get("envelopes", [])])
            facts.append(build_fact(row.at_ms, f"Run {short_id(run.id)} read {joined} while it was running."))
        else:
            attempt = body.get("attempt", 1)
            again = f", attempt {attempt}" if attempt > 1 else ""
            sentence = f"Run {short_id(run.id)} was resumed after {body.get('after', 'a wait')}{again}."
            facts.append(build_fact(row.at_ms, sentence))
    return facts


def _turn_facts(conn: sa.Connection, run: Run, own: list[Record]) -> list[Fact]:
    """List facts about the run's steps: first those with a readable record, in order, then the others."""
    steps = {(step.turn, step.call_index, step.hash): step for step in conn.execute(_steps, {"run": run.id})}
    asked = {row.id: row for row in conn.execute(_approvals, {"run": run.id})}
    failed = conn.execute(_failed_calls, {"run": run.id}).all()
    reasons = {
        row.content: row.because for row in conn.execute(_allowed_calls, {"session": run.session, "run": run.id})
    }
    if not steps and run.ended_at is not None and any(isinstance(record.body, Reply) for record in own):
        # Every reply had a step. Without them, times and skipped calls are unknown.
        facts = [
            build_fact(to_ms(run.ended_at), "Its steps were purged; the messages are in the history of its session.")
        ]
        facts = [*map(_failed_call_fact, failed), *facts]
        return [*facts, *(each for row in asked.values() for each in list_approval_facts(conn, row))]
    by_seq = {step.record_seq: key for key, step in steps.items() if step.record_seq is not None}
    facts: list[Fact] = []
    for record in own:
        step = steps.pop(by_seq[record.seq], None) if record.seq in by_seq else None
        if step is not None:
            facts += [
                _failed_call_fact(row) for row in failed if (row.turn, row.call_index) == (step.turn, step.call_index)
            ]
            failed = [row for row in failed if (row.turn, row.call_index) != (step.turn, step.call_index)]
            facts.append(_closed_step_fact(step, record, reasons.get(step.hash, "")))
        elif isinstance(record.body, ToolResult):
            facts.append(_skipped_call_fact(record, record.body))
        if step is not None and step.kind == StepKind.MODEL:
            for row in [row for row in asked.values() if row.turn == step.turn]:
                facts += list_approval_facts(conn, asked.pop(row.id))
    facts += [
        *map(_failed_call_fact, failed),
        *(_unrecorded_step_fact(step, reasons.get(step.hash, "")) for step in steps.values()),
    ]
    return [*facts, *(each for row in asked.values() for each in list_approval_facts(conn, row))]


def _closed_step_fact(step: sa.Row[Any], record: Record, because: str) -> Fact:
    took = format_duration(step.closed_ms - step.opened_ms)
    if step.state == StepState.INTERRUPTED:
        return build_fact(
            step.closed_ms, f"{_describe_step(step, because)} was interrupted, and its result is unknown."
        )
    return build_fact(
        step.closed_ms,
        f"{_describe_step(step, because)} {_describe_result(record)} in {took}{_describe_calls(record)}.",
    )


def _unrecorded_step_fact(step: sa.Row[Any], because: str) -> Fact:
    if step.state == StepState.OPEN:
        is_model = step.kind == StepKind.MODEL
        verb = "was called and has not replied yet" if is_model else "was called and is running"
        return build_fact(step.opened_ms, f"{_describe_step(step, because)} {verb}.")
    verb = "was interrupted after" if step.state == StepState.INTERRUPTED else "ended with an unreadable result in"
    return build_fact(
        step.closed_ms, f"{_describe_step(step, because)} {verb} {format_duration(step.closed_ms - step.opened_ms)}."
    )


def _failed_call_fact(call: sa.Row[Any]) -> Fact:
    """Describe a failed model call: its error, and what was tried next."""
    words = f"{call.failure}: {excerpt(call.error)}" if call.error else call.failure
    next_ = f"; {_NEXT_ACTIONS.get(call.next_action, call.next_action)}" if call.next_action else ""
    turn = f"Turn {call.turn + 1}" if call.turn >= 0 else "Late"
    ended_ms = call.at_ms if call.ended_ms is None else call.ended_ms
    return build_fact(ended_ms, f"{turn}: {ModelRef(call.provider, call.model)} failed ({words}){next_}.")


def _describe_step(step: sa.Row[Any], because: str) -> str:
    """Describe a step. `because` is the reason why its call was allowed, from the audit log."""
    turn = f"Turn {step.turn + 1}" if step.turn >= 0 else "Late"
    what = step.hash if step.kind == StepKind.MODEL else _call_decoder.decode(step.call).tool if step.call else "a tool"
    attempt = f" (attempt {step.attempt})" if step.attempt > 1 else ""
    return f"{turn}: {what}{attempt}" + (f" ({because})" if because else "")


def _describe_result(record: Record) -> str:
    match record.body:
        case Reply():
            return "replied"
        case ToolResult(failed=True, output=output):
            return f"failed ({excerpt(output)})"
        case _:
            return "returned"


def _describe_calls(record: Record) -> str:
    if not isinstance(record.body, Reply) or not record.body.calls:
        return ""
    return f", calling {join_names([call.tool for call in record.body.calls])}"


def _skipped_call_fact(record: Record, result: ToolResult) -> Fact:
    """Describe a call that was not made, because it was refused or skipped or its tool is unknown."""
    return build_fact(record.at_ms, f"The call {result.tool} was not made: {excerpt(result.output)}.")


def list_approval_facts(conn: sa.Connection, row: sa.Row[Any]) -> list[Fact]:
    """List the facts about an approval: the request and, if there is one, the decision.

    `row` is a row of the table `approvals`.
    """
    calls = msgspec.json.decode(row.calls, type=tuple[Call, ...])
    tools = join_names([call.tool for call in calls])
    question = envelopes.get(conn, derive_id(row.id, "question"))
    whom = f"{format_address(question.recipient)} was asked" if question else "A person was asked"
    facts = [build_fact(row.asked_ms, f"{whom} about {tools} (approval {short_id(row.id)}), because {row.because}.")]
    if row.decided_ms is None:
        return facts
    sentence = f"Approval {short_id(row.id)} {_describe_decision(ApprovalState(row.state), row.decided_by)}"
    if row.run_continued and row.state in (ApprovalState.ALLOWED, ApprovalState.DENIED):
        sentence += ", after its run had continued without it"
    return [*facts, build_fact(row.decided_ms, f"{sentence}.")]


def _describe_decision(state: ApprovalState, by: str) -> str:
    match state:
        case ApprovalState.ALLOWED | ApprovalState.DENIED:
            return f"was {state} by {by}"
        case ApprovalState.EXPIRED:
            return "expired without an answer"
        case ApprovalState.CLOSED:
            return "was closed: it is no longer needed"
        case ApprovalState.OPEN:
            return "is open"
