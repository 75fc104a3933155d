"""Write the end of a step as part of a larger commit: its record, the closed step and its cost."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from retinue.domain.audit import Entry, call_allowed, call_ended, call_refused
from retinue.domain.event import NewsKind
from retinue.domain.model import ModelFailed
from retinue.domain.money import CallTerms, Days
from retinue.domain.record import NO_USAGE, Note, Reply, Summary, Usage
from retinue.domain.run import Run, Step, StepKind, StepState
from retinue.domain.tool import ToolResult
from retinue.engine.run_context import Append
from retinue.store.agents import audit
from retinue.store.runs import money, runs
from retinue.store.sessions import sessions

ERROR_LENGTH_MAX = 1_000


class Paid(Struct, frozen=True, kw_only=True):
    """What a model call may cost, and the days whose budgets it counts against."""

    terms: CallTerms
    days: Days


class Closing(Struct, frozen=True):
    """A result that has not been written yet. `step` is None for a result that needed no action.

    `started_ms` is set for a read-only call that ended before its intent was written. Intent and
    result are then written together.
    """

    body: Reply | ToolResult | Note | Summary
    step: Step | None
    paid: Paid | None = None
    begun_ms: int | None = None


class Summed(Struct, frozen=True):
    """A model call for a summary that succeeded. The compaction stores the text, if there is one."""

    step: Step
    paid: Paid
    usage: Usage


class Failing(Struct, frozen=True):
    """A model call that failed. Its step stays open for the next attempt."""

    step: Step
    paid: Paid
    error: ModelFailed
    next_move: str


class Leaving(Struct, frozen=True):
    """A step that was started and is abandoned, because its result is no longer needed."""

    step: Step


Unwritten = Closing | Summed | Failing | Leaving


def write_closings(append: Append, unwritten: Sequence[Unwritten], *, opening: Step | None = None) -> None:
    """Write the pending results. For the audit, also notes that `opening` is about to be performed."""
    entries: list[Entry] = []
    for each in unwritten:
        if isinstance(each, Closing) and each.begun_ms is not None:
            entries += _allowed(append, each.step)
        if (entry := _audited(append, each)) is not None:
            entries.append(entry)
    entries += _allowed(append, opening)
    if entries:
        audit.append(append.page, append.session.id, entries)
    for each in unwritten:
        match each:
            case Closing():
                _close(append, each)
            case Summed(step, paid, usage):
                runs.close_step(append.page.conn, step, record_seq=None, at_ms=append.page.at_ms)
                _settle(append, step, paid, usage)
            case Failing():
                _fail(append, each)
            case Leaving(step):
                runs.leave_step(append.page.conn, step, at_ms=append.page.at_ms)


def _allowed(append: Append, step: Step | None) -> Sequence[Entry]:
    """Return the audit entry of a call that is performed."""
    if step is None or step.call is None:
        return ()
    agent = append.session.agent
    return (call_allowed(step.call.tool, step.hash, agent=agent, run=step.run, because=step.because),)


def _audited(append: Append, unwritten: Unwritten) -> Entry | None:
    """Return the audit entry of a call that ended or was refused."""
    if not isinstance(unwritten, Closing):
        return None
    body, step, agent = unwritten.body, unwritten.step, append.session.agent
    run = append.run.id if append.run is not None else ""
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


def _close(append: Append, closing: Closing) -> None:
    page = append.page
    record = append.add(closing.body)
    if isinstance(closing.body, Summary):
        _compact(append, closing.body, record_seq=record.seq)
    step = closing.step
    if step is None:
        return
    if closing.begun_ms is not None:
        runs.add_ended_step(page.conn, step, record_seq=record.seq, begun_ms=closing.begun_ms, at_ms=page.at_ms)
        tell_opened(append, step)
    else:
        runs.close_step(page.conn, step, record_seq=record.seq, at_ms=page.at_ms)
    if closing.paid is not None and isinstance(closing.body, Reply):
        _settle(append, step, closing.paid, closing.body.usage)
    if step.kind is StepKind.TOOL or _asks(closing.body):
        page.tell(
            NewsKind.STEP_CLOSED,
            session=append.session.id,
            run=step.run,
            record_seq=record.seq,
            turn=step.turn,
            index=step.index,
            interrupted=step.state is StepState.INTERRUPTED,
        )


def tell_opened(append: Append, step: Step) -> None:
    if step.call is None:
        return
    append.page.tell(
        NewsKind.STEP_OPENED,
        session=append.session.id,
        run=step.run,
        turn=step.turn,
        index=step.index,
        tool=step.call.tool,
        arguments=step.call.arguments,
    )


def _compact(append: Append, summary: Summary, *, record_seq: int) -> None:
    """Start the context at the summary, also if the run fails before its next step."""
    page, session = append.page, append.session
    sessions.compact(page.conn, session.id, kept_from=summary.kept_from, at_ms=page.at_ms)
    page.tell(
        NewsKind.SESSION_COMPACTED,
        session=session.id,
        run=append.run.id if append.run else None,
        record_seq=record_seq,
        kept_from=summary.kept_from,
        compactions=session.compactions + 1,
        revision=session.revision + 1,
    )


def _settle(append: Append, step: Step, paid: Paid, usage: Usage) -> None:
    if usage == NO_USAGE and not paid.terms.costs:
        return  # no known usage and no reservation: no ledger entry
    run = _run_of(append)
    money.settle(
        append.page.conn,
        run,
        turn=step.turn,
        index=step.index,
        attempt=step.attempt,
        terms=paid.terms,
        usage=usage,
        days=paid.days,
        root=run.root,
        at_ms=append.page.at_ms,
    )


def _fail(append: Append, failing: Failing) -> None:
    run, step, error = _run_of(append), failing.step, failing.error
    money.fail(
        append.page.conn,
        run,
        turn=step.turn,
        index=step.index,
        attempt=step.attempt,
        terms=failing.paid.terms,
        failure=error.failure.value,
        next_move=failing.next_move,
        error=f"{error.code}: {error.sentence}"[:ERROR_LENGTH_MAX],
        unknown=error.begun,
        usage=error.usage,
        days=failing.paid.days,
        root=run.root,
        at_ms=append.page.at_ms,
    )


def warnings_of(append: Append, unwritten: Sequence[Unwritten]) -> tuple[str, ...]:
    """Return warnings for budgets that the last call of the run has nearly exhausted.

    Warnings for earlier calls were returned with the reservation of the next call.
    """
    paid = next((each.paid for each in reversed(unwritten) if isinstance(each, Closing) and each.paid), None)
    if paid is None or not paid.terms.caps.any:
        return ()
    run = _run_of(append)
    return money.crossed(append.page.conn, run, terms=paid.terms, days=paid.days, root=run.root)


def _run_of(append: Append) -> Run:
    assert append.run is not None
    return append.run


def _asks(body: Reply | ToolResult | Note | Summary) -> bool:
    """Whether a reply contains calls. Only such a reply gets its own event; the last one is in the run's end event."""
    return isinstance(body, Reply) and bool(body.calls)
