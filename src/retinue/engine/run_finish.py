"""Finishes, fails or cancels a run in one commit, which also settles the run's envelopes and closes its calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sqlalchemy as sa
from msgspec import Struct
from msgspec.structs import replace

from retinue.domain import address
from retinue.domain.delegation import DelegationState
from retinue.domain.envelope import (
    ENVELOPE_TEXT_BYTES_MAX,
    NO_CONTEXT,
    Envelope,
    EnvelopeContext,
    EnvelopeDraft,
    EnvelopeKind,
    Outcome,
    needs_answer,
)
from retinue.domain.event import EventKind
from retinue.domain.heartbeat import OK_TOKEN, remove_token
from retinue.domain.ids import EnvelopeId, RunId, derive_id
from retinue.domain.record import ContextStart, Note, RecordKind, Reply, StopReason
from retinue.domain.run import Run, RunStatus
from retinue.domain.session import SNIPPET_LENGTH_MAX, Session, SessionActivity
from retinue.domain.storable_text import make_storable, truncate_bytes
from retinue.domain.tool import ToolResult
from retinue.engine import heartbeats, session_exchange
from retinue.engine.interim_replies import ALREADY_SENT, flush_held_reply, remove_sent_text, send_interim_replies
from retinue.engine.progress_messages import send_progress
from retinue.engine.run_context import ClaimedRun, RecordAppender
from retinue.engine.step_writer import PendingWrite, budget_warnings, write_pending
from retinue.intake import background_jobs
from retinue.intake.accept import (
    DELEGATION_KINDS,
    TimerWake,
    Wake,
    accept_in_transaction,
    notify_sender,
    notify_webhook,
)
from retinue.intake.delegation_end import cancel_external_requests, end_delegation, is_reported, is_silent
from retinue.intake.routing import NO_ANSWER, get_answer_address, get_session_address
from retinue.intake.subagent_results import format_result
from retinue.outbox.external_agent_delivery import get_unsolicited_recipient
from retinue.policy.limits.reset_policy import counts_as_activity
from retinue.runners.base import RunAnswer
from retinue.store.core.transaction import Transaction
from retinue.store.envelopes import envelopes, outcomes
from retinue.store.runs import approvals, budget_reservations, delegations, runs
from retinue.store.sessions import records, sessions

EMPTY_ANSWER = "(The model ended without an answer.)"
SILENT_ANSWER = "(Done, without an answer.)"
CONTEXT_TOO_LARGE = "the context no longer fits the model's window, and could not be compacted"


class UnfinishedReply(Struct, frozen=True):
    """The streamed text of a reply that is not stored yet."""

    turn: int
    text: str


NO_UNFINISHED_REPLIES: Mapping[RunId, UnfinishedReply] = {}


def finish_run(
    tx: Transaction,
    claim: ClaimedRun,
    pending: Sequence[PendingWrite],
    result: RunAnswer,
    *,
    wakefulness: SessionActivity,
) -> tuple[Wake, ...]:
    """End a run with an answer: write the last records, the outcomes and the answer.

    The caller may claim the next batch in the same commit.
    """
    conn = tx.conn
    append = RecordAppender(claim.session, tx, claim.run)
    write_pending(append, pending)
    result = replace(result, remarks=(*result.remarks, *budget_warnings(append, pending)))
    owed = [e for e in claim.envelopes if needs_answer(e.kind)]
    unowed = [e.id for e in claim.envelopes if not needs_answer(e.kind)]
    answer = _build_answer(tx, claim, owed, result)
    why = ""
    if claim.run.sender.kind is address.AddressKind.SCHEDULE:
        answer, why = _scheduled_answer(tx, claim, answer, result)
    reply_wakes: tuple[Wake, ...] = ()
    if claim.reply_delivery is not None:
        reply_wakes = (*send_interim_replies(tx, claim, pending), *flush_held_reply(tx, claim))
        if answer is not None and answer.recipient.kind is address.AddressKind.CHANNEL:
            answer = remove_sent_text(tx, claim, answer, result)
            why = why or ("" if answer else ALREADY_SENT)
    sessions.update_fenced(
        conn,
        claim.session.id,
        epoch=claim.session.epoch,
        record_seq=append.last_seq,
        wakefulness=wakefulness,
        at_ms=tx.at_ms,
        snippet=answer.text[:SNIPPET_LENGTH_MAX] if answer else None,
        active_ms=tx.at_ms if counts_as_activity(claim.run.sender, claim.session.origin) else None,
    )
    if result.resets_context:
        append.add(ContextStart(because=CONTEXT_TOO_LARGE), kind=RecordKind.RESET)
    if append.records:
        records.add(conn, append.records)
    if result.resets_context:
        sessions.reset_context(conn, claim.session.id, append.last_seq, at_ms=tx.at_ms)
        tx.emit(
            EventKind.SESSION_RESET,
            session=claim.session.id,
            run=claim.run.id,
            record_seq=append.last_seq,
            revision=claim.session.revision + 1,
            because=CONTEXT_TOO_LARGE,
        )
    wakes = reply_wakes
    if answer is not None:
        wakes += (*send_progress(tx, claim, pending), *accept_in_transaction(tx, answer).wakes)
    if claim.envelopes[:1] and claim.envelopes[0].kind in DELEGATION_KINDS:
        wakes += _end_delegation(tx, claim.envelopes[0], answer)
    if owed:
        outcomes.settle(
            tx,
            [e.id for e in owed],
            Outcome.ANSWERED,
            because=why or ("answered" if answer else "the agent chose not to answer"),
            answer=answer.id if answer else None,
            silent=answer is None,
            by_schedule=any(e.sender.kind is address.AddressKind.SCHEDULE for e in owed),
        )
        wakes += tuple(wake for e in owed if e.context.webhook for wake in notify_webhook(tx, e.id))
    if unowed:
        outcomes.settle(tx, unowed, Outcome.NOTED, because="read; it needs no answer")
    if not claim.new_records:  # resumed: a call that waited for a delegation may have been closed in another way
        delegations.release_of_run(conn, claim.run.id)
    runs.end(
        conn,
        claim.run.id,
        RunStatus.COMPLETED,
        at_ms=tx.at_ms,
        final_text=result.text,
        context_length=result.context_length,
    )
    tx.emit(
        EventKind.RUN_ENDED,
        session=claim.session.id,
        run=claim.run.id,
        record_seq=append.records[-1].seq if append.records else None,
        status=RunStatus.COMPLETED.value,
        outcome=(Outcome.ANSWERED if owed else Outcome.NOTED).value,
        answer=answer.id if answer else None,
        envelopes=[e.id for e in claim.envelopes],
    )
    return wakes


def _build_answer(
    tx: Transaction, claim: ClaimedRun, answerable_envelopes: Sequence[Envelope], result: RunAnswer
) -> EnvelopeDraft | None:
    """Return the run's answer, addressed to the sender, the delegating agent or the session's person, or None."""
    silent, delegation = False, None
    if claim.envelopes and claim.envelopes[0].context.exchange is not None:
        return session_exchange.next_envelope(tx, claim, result)
    if claim.envelopes and claim.envelopes[0].kind is EnvelopeKind.JOB:
        return background_jobs.build_result(
            claim.envelopes[0], "" if result.is_silent else result.text_with_remarks, trust=result.trust
        )
    if claim.envelopes and claim.envelopes[0].sender.is_external:
        (to, silent), reply_to = get_unsolicited_recipient(tx.conn, claim.session.origin), None
    elif not answerable_envelopes:
        to, reply_to = _report_address(tx, claim)
    elif answerable_envelopes[0].kind is EnvelopeKind.DELEGATION:
        # A call may be waiting for it, so an empty result says that there is nothing to say.
        delegation = delegations.get(tx.conn, answerable_envelopes[0].id)
        to, reply_to = (
            (answerable_envelopes[0].sender, answerable_envelopes[0].id)
            if delegation is None or is_reported(delegation)
            else (None, None)
        )
        silent = delegation is not None and is_silent(delegation)
    else:
        asked = answerable_envelopes[0].context.answer_to
        to = get_answer_address(
            claim.run.sender,
            origin=claim.session.origin,
            kind=_answer_kind(tx, answerable_envelopes[0]),
            requested=asked,
        )
        # The newest envelope of the answered sender: others may have joined since.
        reply_to = next(
            (e.id for e in reversed(answerable_envelopes) if e.sender == claim.run.sender), answerable_envelopes[-1].id
        )
    delegated = bool(answerable_envelopes) and answerable_envelopes[0].kind is EnvelopeKind.DELEGATION
    if to is None or (result.is_silent and not delegated):
        return None
    words = remove_token(result.text_with_remarks) if OK_TOKEN in result.text else result.text_with_remarks
    spoken = (
        (result.voice_message,) if result.voice_message is not None and to.kind is address.AddressKind.CHANNEL else ()
    )
    nothing = "" if spoken else EMPTY_ANSWER
    text = SILENT_ANSWER if result.is_silent else truncate_bytes(words, ENVELOPE_TEXT_BYTES_MAX) or nothing
    if delegation is not None:
        text = format_result(tx, delegation, DelegationState.DONE, text, trust=result.trust)
    return EnvelopeDraft(
        id=EnvelopeId(derive_id(claim.run.id, "answer")),
        sender=address.agent_address(claim.agent.name, claim.session.id),
        recipient=to,
        text=text,
        source="run",
        idempotency_key=f"{claim.run.id}/answer",
        # A report on delegated work is not an answer: the person was answered when the work started.
        kind=EnvelopeKind.ANSWER if answerable_envelopes else EnvelopeKind.MESSAGE,
        context=session_exchange.first_answer_context(tx, delegation)
        if delegation is not None
        else _lineage_context(claim, to),
        reply_to=reply_to,
        silent=silent,
        attachments=spoken,
        trust=result.trust,
    )


def _lineage_context(claim: ClaimedRun, to: address.Address) -> EnvelopeContext:
    """Return a context with the run's lineage if the recipient is an agent, whose run then continues the work."""
    if claim.run.lineage is None or to.kind is not address.AddressKind.AGENT:
        return NO_CONTEXT
    return EnvelopeContext(lineage=claim.run.lineage)


def _answer_kind(tx: Transaction, envelope: Envelope) -> EnvelopeKind:
    """Return the kind of the envelope that the run answers.

    For a late decision, return the kind of the envelope whose run requested the decision.
    """
    if envelope.kind is not EnvelopeKind.DECISION:
        return envelope.kind
    approval = approvals.get(tx.conn, envelope.context.approval)
    run = runs.get(tx.conn, approval.run) if approval is not None else None
    asked = envelopes.get(tx.conn, run.envelopes[0]) if run is not None and run.envelopes else None
    return asked.kind if asked is not None else envelope.kind


def _report_address(tx: Transaction, claim: ClaimedRun) -> tuple[address.Address | None, EnvelopeId | None]:
    """Return the address for a report on delegated work, and the envelope to which the report replies.

    The report goes to the person whose message started the work.
    """
    origin = claim.session.origin
    about = claim.envelopes[0].reply_to if claim.envelopes and claim.run.lineage is not None else None
    delegation = delegations.get(tx.conn, about) if about is not None else None
    if delegation is None or not origin.kind.is_foreground:
        return None, None
    asked = runs.get(tx.conn, delegation.run)
    return get_session_address(origin), asked.envelopes[-1] if asked is not None and asked.envelopes else None


def _end_delegation(tx: Transaction, envelope: Envelope, answer: EnvelopeDraft | None) -> tuple[Wake, ...]:
    about = envelope.reply_to if envelope.kind is EnvelopeKind.JOB else envelope.id
    delegation = delegations.get(tx.conn, about) if about is not None else None
    if delegation is None:
        return ()
    archive_ms = end_delegation(tx, delegation, DelegationState.DONE, because="", result=answer.id if answer else None)
    wakes: tuple[Wake, ...] = (TimerWake(archive_ms),) if archive_ms is not None else ()
    report = session_exchange.report_without_exchange(tx, delegation, answer) if answer is not None else None
    return (*wakes, *accept_in_transaction(tx, report).wakes) if report is not None else wakes


def _scheduled_answer(
    tx: Transaction, claim: ClaimedRun, answer: EnvelopeDraft | None, result: RunAnswer
) -> tuple[EnvelopeDraft | None, str]:
    """Return the answer that a scheduled run sends, if any, and the reason why it is sent or not, if known.

    A recipient that the run has already written to gets no second message.
    """
    schedule = heartbeats.find_heartbeat_schedule(tx.conn, claim.run, claim.envelopes)
    if schedule is not None and not result.is_silent:
        reply = heartbeats.build_heartbeat_reply(
            tx, claim.run, schedule, answer, text=result.text, remarks=result.remarks
        )
        return reply.answer, reply.because
    if answer is not None and envelopes.has_run_sent(tx.conn, run=claim.run.id, recipient=str(answer.recipient)):
        return None, ""
    return answer, ""


def fail_run(
    conn: sa.Connection, *, claim: ClaimedRun, pending: Sequence[PendingWrite], now_ms: int, error: str, text: str
) -> tuple[Wake, ...]:
    """End a failed run. Its envelopes become dead letters, and their senders get the reason."""
    tx = Transaction(conn, now_ms)
    session = _write_last_records(tx, claim, pending)
    wakes = close_run(
        tx,
        session,
        claim.run,
        RunStatus.FAILED,
        Outcome.DEAD,
        because=error,
        text=text,
        note=f"This run failed: {error}",
    )
    tx.close()
    return wakes


def _write_last_records(tx: Transaction, claim: ClaimedRun, pending: Sequence[PendingWrite]) -> Session:
    """Write the results that are not stored yet. Raises an error if another worker has claimed the session."""
    append = RecordAppender(claim.session, tx, claim.run)
    write_pending(append, pending)
    sessions.update_fenced(
        tx.conn,
        claim.session.id,
        epoch=claim.session.epoch,
        record_seq=append.last_seq,
        wakefulness=SessionActivity.ACTIVE,
        at_ms=tx.at_ms,
    )
    if append.records:
        records.add(tx.conn, append.records)
    return replace(claim.session, record_seq=append.last_seq)


def close_run(
    tx: Transaction,
    session: Session,
    run: Run,
    status: RunStatus,
    outcome: Outcome,
    *,
    because: str,
    text: str,
    note: str,
    unfinished: UnfinishedReply | None = None,
) -> tuple[Wake, ...]:
    """End an open run without an answer: every open call gets a result, and every envelope an outcome.

    Raises the epoch, so that a worker that still has the run can no longer write. If a reply was
    still streaming, its text in `unfinished` is stored as a cut-off reply.
    """
    conn = tx.conn
    held = envelopes.list_held(conn, run.id)
    append = RecordAppender(session, tx, run)
    own, _ = records.read_range(conn, session.id, first=run.first_seq, last=session.record_seq)
    closed = {r.body.call for r in own if isinstance(r.body, ToolResult)}
    for record in own:
        if isinstance(record.body, Reply):
            for call in record.body.calls:
                if call.id not in closed:
                    append.add(interrupted_result(call.id, call.tool))
    if unfinished is not None and unfinished.text and unfinished.turn >= sum(isinstance(r.body, Reply) for r in own):
        append.add(Reply(text=make_storable(unfinished.text), stop=StopReason.CUT_OFF))
    last = append.add(Note(text=note))
    sessions.update_fenced(
        conn,
        session.id,
        epoch=session.epoch,
        new_epoch=session.epoch + 1,
        record_seq=append.last_seq,
        wakefulness=SessionActivity.ACTIVE,
        at_ms=tx.at_ms,
        active_ms=tx.at_ms if counts_as_activity(run.sender, session.origin) else None,
    )
    records.add(conn, append.records)
    runs.interrupt_open_steps(conn, run.id, at_ms=tx.at_ms)
    budget_reservations.charge_interrupted_calls(conn, run.id)
    cancel_external_requests(tx, run.id)
    approvals.close_of_run(conn, run.id, at_ms=tx.at_ms)
    delegations.release_of_run(conn, run.id)
    delegations.silence_run(conn, run.id)
    runs.end(conn, run.id, status, at_ms=tx.at_ms, error=because)
    wakes: tuple[Wake, ...] = ()
    if held:
        outcomes.settle(tx, [e.id for e in held], outcome, because=because)
        wakes = _notify_senders(tx, session, run, held, outcome, text)
    tx.emit(
        EventKind.RUN_ENDED,
        session=session.id,
        run=run.id,
        record_seq=last.seq,
        status=status.value,
        outcome=outcome.value,
        because=because,
        envelopes=[e.id for e in held],
    )
    return wakes


def _notify_senders(
    tx: Transaction, session: Session, run: Run, envelopes_held: Sequence[Envelope], outcome: Outcome, text: str
) -> tuple[Wake, ...]:
    """Send the outcome of a run to each sender whose envelopes it processed, once for each sender.

    This includes senders of envelopes that were added while the run was active.
    """
    newest: dict[address.Address, Envelope] = {}
    for envelope in envelopes_held:
        sender = run.sender if envelope.kind is EnvelopeKind.DECISION else envelope.sender
        is_agent_message = envelope.kind is EnvelopeKind.SYSTEM and sender.kind is address.AddressKind.AGENT
        # A failure is reported even if the answer would go nowhere: a run never ends in silence. An agent that
        # sent a message without asking for an answer is notified only if no one else is.
        asked = "" if envelope.context.answer_to == NO_ANSWER else envelope.context.answer_to
        to = get_answer_address(sender, origin=session.origin, kind=envelope.kind, requested=asked) or (
            sender if is_agent_message else None
        )
        if to is not None and (needs_answer(envelope.kind) or to not in newest):
            newest[to] = envelope
    wakes: list[Wake] = []
    for to, envelope in newest.items():
        wakes += notify_sender(tx, to, envelope.id, envelope.kind, f"{outcome}", text, session=session)
    return tuple(wakes)


def interrupted_result(call: str, tool: str) -> ToolResult:
    """Return the result that a model reads for a call if it is unknown how the call ended."""
    return ToolResult(
        call=call,
        tool=tool,
        output="Interrupted: this call may or may not have taken effect. Check before you repeat it.",
        failed=True,
    )
