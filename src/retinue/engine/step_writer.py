"""How a step's end is written: the record it left, the step closed, its money settled. Part of a larger commit."""

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
    """On what terms a model was asked, and when, for the books."""

    terms: CallTerms
    days: Days


class Closing(Struct, frozen=True):
    """What came back and is not written yet. `step` is None for a result that took no act.

    `begun_ms`: a look that has ended before its intent was written. Both are written now.
    """

    body: Reply | ToolResult | Note | Summary
    step: Step | None
    paid: Paid | None = None
    begun_ms: int | None = None


class Summed(Struct, frozen=True):
    """A model that was asked for a summary, and replied. What it said is kept with the compaction, if there is one."""

    step: Step
    paid: Paid
    usage: Usage


class Failing(Struct, frozen=True):
    """A model that was asked and did not reply. Its step stays open for whoever is asked next."""

    step: Step
    paid: Paid
    error: ModelFailed
    next_move: str


class Leaving(Struct, frozen=True):
    """A step that was begun and is not gone on with: what it was for is no longer needed."""

    step: Step


Unwritten = Closing | Summed | Failing | Leaving


def write_closings(append: Append, unwritten: Sequence[Unwritten], *, opening: Step | None = None) -> None:
    """What came back so far; and, for the audit, that `opening` is about to be performed."""
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
    """The line that the audit has of a call that is performed."""
    if step is None or step.call is None:
        return ()
    agent = append.session.agent
    return (call_allowed(step.call.tool, step.hash, agent=agent, run=step.run, because=step.because),)


def _audited(append: Append, unwritten: Unwritten) -> Entry | None:
    """The line that the audit has of a call that has ended, or was never made."""
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
        case Note() if step is not None and step.call is not None:  # one whose turn had gone by
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
    """Wherever a summary is written down, the context begins anew: also by a run that fails before its next step."""
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
        return  # nothing was read, written or reserved, as far as anyone knows: no line in the books
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
    """Which caps the run's last call has brought near their end. Calls before it were told with the next one."""
    paid = next((each.paid for each in reversed(unwritten) if isinstance(each, Closing) and each.paid), None)
    if paid is None or not paid.terms.caps.any:
        return ()
    run = _run_of(append)
    return money.crossed(append.page.conn, run, terms=paid.terms, days=paid.days, root=run.root)


def _run_of(append: Append) -> Run:
    assert append.run is not None  # only runs take steps
    return append.run


def _asks(body: Reply | ToolResult | Note | Summary) -> bool:
    """A reply that asks for calls is news of its own; a last reply is told with the run's end."""
    return isinstance(body, Reply) and bool(body.calls)
