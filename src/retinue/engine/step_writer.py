"""Writes the end of a step as part of a larger commit: its record, the closed step and its cost."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from retinue.domain.audit import AuditEntry, call_allowed, call_ended, call_refused
from retinue.domain.budget import BudgetPeriod, ModelCallReservationRequest
from retinue.domain.event import EventKind
from retinue.domain.model import ModelFailed
from retinue.domain.record import NO_USAGE, Note, Reply, Summary, Usage
from retinue.domain.run import Run, Step, StepKind, StepState
from retinue.domain.tool import ToolResult
from retinue.engine.run_context import RecordAppender
from retinue.store.agents import audit
from retinue.store.runs import budget_reservations, runs
from retinue.store.sessions import sessions

ERROR_LENGTH_MAX = 1_000


class CallCharge(Struct, frozen=True, kw_only=True):
    """The maximum cost of a model call, and the days whose budgets it counts against."""

    terms: ModelCallReservationRequest
    days: BudgetPeriod


class StepResult(Struct, frozen=True):
    """The result of a step that has not been written yet. `step` is None for a result without a step, such as a note.

    `started_ms` is set for a read-only call that ended before its intent was written. Intent and
    result are then written together.
    """

    body: Reply | ToolResult | Note | Summary
    step: Step | None
    charge: CallCharge | None = None
    started_ms: int | None = None


class CompletedSummaryCall(Struct, frozen=True):
    """A successful model call that wrote a summary.

    The step writer stores only the end of its step and its cost. The compaction stores the text of
    the summary.
    """

    step: Step
    charge: CallCharge
    usage: Usage


class FailedModelCall(Struct, frozen=True):
    """A model call that failed. Its step stays open for the next attempt."""

    step: Step
    charge: CallCharge
    error: ModelFailed
    next_action: str


class AbandonedStep(Struct, frozen=True):
    """A step that was started and is now given up, because its result is not needed."""

    step: Step


PendingWrite = StepResult | CompletedSummaryCall | FailedModelCall | AbandonedStep


def write_pending(appender: RecordAppender, pending: Sequence[PendingWrite], *, opening: Step | None = None) -> None:
    """Write the pending results, and an audit entry for the step `opening`, which is performed next."""
    entries: list[AuditEntry] = []
    for each in pending:
        if isinstance(each, StepResult) and each.started_ms is not None:
            entries += _audit_allowed(appender, each.step)
        if (entry := _audit_end(appender, each)) is not None:
            entries.append(entry)
    entries += _audit_allowed(appender, opening)
    if entries:
        audit.append(appender.tx, appender.session.id, entries)
    for each in pending:
        match each:
            case StepResult():
                _write_result(appender, each)
            case CompletedSummaryCall(step, paid, usage):
                runs.close_step(appender.tx.conn, step, record_seq=None, at_ms=appender.tx.at_ms)
                _settle_charge(appender, step, paid, usage)
            case FailedModelCall():
                _write_failed_call(appender, each)
            case AbandonedStep(step):
                runs.interrupt_step(appender.tx.conn, step, at_ms=appender.tx.at_ms)


def _audit_allowed(appender: RecordAppender, step: Step | None) -> Sequence[AuditEntry]:
    """Return the audit entry for a call that was allowed and will be performed."""
    if step is None or step.call is None:
        return ()
    agent = appender.session.agent
    return (call_allowed(step.call.tool, step.hash, agent=agent, run=step.run, because=step.because),)


def _audit_end(appender: RecordAppender, pending: PendingWrite) -> AuditEntry | None:
    """Return the audit entry of a call that ended or was refused."""
    if not isinstance(pending, StepResult):
        return None
    body, step, agent = pending.body, pending.step, appender.session.agent
    run = appender.run.id if appender.run is not None else ""
    match body:
        case ToolResult() if step is None:
            return call_refused(body.tool, body.output, agent=agent, run=run)
        case ToolResult() if step is not None:
            verdict = "interrupted" if step.state is StepState.INTERRUPTED else "failed" if body.failed else "done"
            return call_ended(body.tool, body.output, agent=agent, run=run, verdict=verdict)
        case Note() if step is not None and step.call is not None:  # a stored call, performed after its turn
            verdict = "interrupted" if step.state is StepState.INTERRUPTED else "done"
            return call_ended(step.call.tool, body.text, agent=agent, run=run, verdict=verdict)
        case _:
            return None


def _write_result(appender: RecordAppender, result: StepResult) -> None:
    tx = appender.tx
    record = appender.add(result.body)
    if isinstance(result.body, Summary):
        _write_compaction(appender, result.body, record_seq=record.seq)
    step = result.step
    if step is None:
        return
    if result.started_ms is not None:
        runs.add_ended_step(tx.conn, step, record_seq=record.seq, begun_ms=result.started_ms, at_ms=tx.at_ms)
        emit_step_opened(appender, step)
    else:
        runs.close_step(tx.conn, step, record_seq=record.seq, at_ms=tx.at_ms)
    if result.charge is not None and isinstance(result.body, Reply):
        _settle_charge(appender, step, result.charge, result.body.usage)
    if step.kind is StepKind.TOOL or _has_calls(result.body):
        tx.emit(
            EventKind.STEP_CLOSED,
            session=appender.session.id,
            run=step.run,
            record_seq=record.seq,
            turn=step.turn,
            index=step.index,
            interrupted=step.state is StepState.INTERRUPTED,
        )


def emit_step_opened(appender: RecordAppender, step: Step) -> None:
    if step.call is None:
        return
    appender.tx.emit(
        EventKind.STEP_OPENED,
        session=appender.session.id,
        run=step.run,
        turn=step.turn,
        index=step.index,
        tool=step.call.tool,
        arguments=step.call.arguments,
    )


def _write_compaction(appender: RecordAppender, summary: Summary, *, record_seq: int) -> None:
    """Start a new context with the summary now, so that it applies even if the run fails before its next step."""
    tx, session = appender.tx, appender.session
    sessions.compact(tx.conn, session.id, kept_from=summary.kept_from, at_ms=tx.at_ms)
    tx.emit(
        EventKind.SESSION_COMPACTED,
        session=session.id,
        run=appender.run.id if appender.run else None,
        record_seq=record_seq,
        kept_from=summary.kept_from,
        compactions=session.compactions + 1,
        revision=session.revision + 1,
    )


def _settle_charge(appender: RecordAppender, step: Step, charge: CallCharge, usage: Usage) -> None:
    if usage == NO_USAGE and not charge.terms.is_charged:
        return  # no known usage and no reservation: no ledger entry
    run = _require_run(appender)
    budget_reservations.settle(
        appender.tx.conn,
        run,
        turn=step.turn,
        index=step.index,
        attempt=step.attempt,
        terms=charge.terms,
        usage=usage,
        days=charge.days,
        root=run.root_run,
        at_ms=appender.tx.at_ms,
    )


def _write_failed_call(appender: RecordAppender, failed: FailedModelCall) -> None:
    run, step, error = _require_run(appender), failed.step, failed.error
    budget_reservations.fail(
        appender.tx.conn,
        run,
        turn=step.turn,
        index=step.index,
        attempt=step.attempt,
        terms=failed.charge.terms,
        failure=error.failure.value,
        next_action=failed.next_action,
        error=f"{error.code}: {error.sentence}"[:ERROR_LENGTH_MAX],
        unknown=error.may_be_charged,
        usage=error.usage,
        days=failed.charge.days,
        root=run.root_run,
        at_ms=appender.tx.at_ms,
    )


def budget_warnings(appender: RecordAppender, pending: Sequence[PendingWrite]) -> tuple[str, ...]:
    """Return warnings for budgets that the last call of the run has nearly exhausted.

    Warnings for an earlier call were returned when the cost of the call after it was reserved.
    """
    paid = next((each.charge for each in reversed(pending) if isinstance(each, StepResult) and each.charge), None)
    if paid is None or not paid.terms.limits.has_any:
        return ()
    run = _require_run(appender)
    return budget_reservations.list_warnings(appender.tx.conn, run, terms=paid.terms, days=paid.days, root=run.root_run)


def _require_run(appender: RecordAppender) -> Run:
    assert appender.run is not None
    return appender.run


def _has_calls(body: Reply | ToolResult | Note | Summary) -> bool:
    """Whether a reply contains tool calls.

    Only a reply with calls gets an event, because the last reply is in the event of the run's end.
    """
    return isinstance(body, Reply) and bool(body.calls)
