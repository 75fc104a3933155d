"""The commits in which a run finishes, fails or is cancelled. Each settles everything the run holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sqlalchemy as sa
from msgspec import Struct
from msgspec.structs import replace

from retinue.domain import address
from retinue.domain.delegation import DelegationState
from retinue.domain.envelope import NO_CONTEXT, TEXT_BYTES_MAX, Context, Draft, Envelope, Kind, Outcome, answerable
from retinue.domain.event import NewsKind
from retinue.domain.heartbeat import TOKEN, without_token
from retinue.domain.ids import EnvelopeId, RunId, SessionId, derived
from retinue.domain.record import Mark, Note, RecordKind, Reply, Stop
from retinue.domain.run import Run, RunStatus
from retinue.domain.session import SNIPPET_LENGTH_MAX, Session, Wakefulness, lane_kind
from retinue.domain.storable_text import clipped_bytes, storable
from retinue.domain.tool import ToolResult
from retinue.engine import heartbeats, session_exchange
from retinue.engine.interim_replies import SAID_BEFORE, let_go, say_so_far, without_what_was_said
from retinue.engine.progress_messages import show_work
from retinue.engine.run_context import Append, Work
from retinue.engine.step_writer import Unwritten, warnings_of, write_closings
from retinue.intake import background_jobs
from retinue.intake.accept import HANDED_ON, ClockWake, LaneWake, Wake, enter, notify, ring, settle_and_tell
from retinue.intake.delegations import end, is_silent, is_told, withdraw
from retinue.intake.routing import NOWHERE, answer_address, who_listens
from retinue.intake.subagent_results import announced
from retinue.outbox.external_agent_delivery import said_to
from retinue.policy.limits.reset_policy import keeps_awake
from retinue.runners.base import Finished
from retinue.store.core.transaction import Page
from retinue.store.envelopes import envelopes, outcomes
from retinue.store.runs import approvals, delegations, money, runs
from retinue.store.sessions import records, sessions

CLEARED_MAX = 1000
CHILDREN_MAX = 1000
DECISIONS_MAX = 50
NO_WORDS = "(The model ended without a word.)"
SAID_NOTHING = "(Done, and nothing to say about it.)"
NEWER = "newer mail arrived"
NO_ROOM = "the context no longer fitted into the model's window, and could not be told in short"


class Said(Struct, frozen=True):
    """The text streamed so far of a reply that is not stored yet."""

    turn: int
    text: str


NOTHING_SAID: Mapping[RunId, Said] = {}


def finish(
    page: Page, work: Work, closings: Sequence[Unwritten], finished: Finished, *, wakefulness: Wakefulness
) -> tuple[Wake, ...]:
    """End a run with an answer: write last records, outcomes and the answer.

    The caller may claim the next batch in the same commit.
    """
    conn = page.conn
    append = Append(work.session, page, work.run)
    write_closings(append, closings)
    finished = replace(finished, remarks=(*finished.remarks, *warnings_of(append, closings)))
    owed = [e for e in work.envelopes if answerable(e.kind)]
    unowed = [e.id for e in work.envelopes if not answerable(e.kind)]
    answer = _answer(page, work, owed, finished)
    why = ""
    if work.run.sender.kind is address.AddressKind.SCHEDULE:
        answer, why = _by_clock(page, work, answer, finished)
    said: tuple[Wake, ...] = ()
    if work.words is not None:
        said = (*say_so_far(page, work, closings), *let_go(page, work))
        if answer is not None and answer.recipient.kind is address.AddressKind.CHANNEL:
            answer = without_what_was_said(page, work, answer, finished)
            why = why or ("" if answer else SAID_BEFORE)
    sessions.guard(
        conn,
        work.session.id,
        epoch=work.session.epoch,
        record_seq=append.seq,
        wakefulness=wakefulness,
        at_ms=page.at_ms,
        snippet=answer.text[:SNIPPET_LENGTH_MAX] if answer else None,
        active_ms=page.at_ms if keeps_awake(work.run.sender, work.session.origin) else None,
    )
    if finished.reset:
        append.add(Mark(because=NO_ROOM), kind=RecordKind.RESET)
    if append.records:
        records.add(conn, append.records)
    if finished.reset:
        sessions.set_context_from(conn, work.session.id, append.seq, at_ms=page.at_ms)
        page.tell(
            NewsKind.SESSION_RESET,
            session=work.session.id,
            run=work.run.id,
            record_seq=append.seq,
            revision=work.session.revision + 1,
            because=NO_ROOM,
        )
    wakes = said
    if answer is not None:
        wakes += (*show_work(page, work, closings), *enter(page, answer).wakes)
    if work.envelopes[:1] and work.envelopes[0].kind in HANDED_ON:
        wakes += _end_delegation(page, work.envelopes[0], answer)
    if owed:
        outcomes.settle(
            page,
            [e.id for e in owed],
            Outcome.ANSWERED,
            because=why or ("answered" if answer else "the agent chose to say nothing"),
            answer=answer.id if answer else None,
            silent=answer is None,
        )
        wakes += tuple(wake for e in owed if e.context.webhook for wake in ring(page, e.id))
    if unowed:
        outcomes.settle(page, unowed, Outcome.NOTED, because="read; it asks for no answer")
    if not work.fresh:  # resumed: a call that waited for a delegation may have been closed in another way
        delegations.release(conn, work.run.id)
    runs.end(
        conn,
        work.run.id,
        RunStatus.COMPLETED,
        at_ms=page.at_ms,
        final_text=finished.text,
        context_length=finished.context_length,
    )
    page.tell(
        NewsKind.RUN_ENDED,
        session=work.session.id,
        run=work.run.id,
        record_seq=append.records[-1].seq if append.records else None,
        status=RunStatus.COMPLETED.value,
        outcome=(Outcome.ANSWERED if owed else Outcome.NOTED).value,
        answer=answer.id if answer else None,
        envelopes=[e.id for e in work.envelopes],
    )
    return wakes


def _answer(page: Page, work: Work, owed: Sequence[Envelope], finished: Finished) -> Draft | None:
    """Return the answer and its recipient: the sender, the delegating agent, or the person behind the session."""
    silent, delegation = False, None
    if work.envelopes and work.envelopes[0].context.exchange is not None:
        return session_exchange.following(page, work, finished)
    if work.envelopes and work.envelopes[0].kind is Kind.JOB:
        return background_jobs.result_of(
            work.envelopes[0], "" if finished.silent else finished.answer, trust=finished.trust
        )
    if work.envelopes and work.envelopes[0].sender.is_external:
        (to, silent), reply_to = said_to(page.conn, work.session.origin), None
    elif not owed:
        to, reply_to = _announced(page, work)
    elif owed[0].kind is Kind.DELEGATION:
        # A call may wait for it, so an empty result says that there is nothing to say.
        delegation = delegations.get(page.conn, owed[0].id)
        to, reply_to = (owed[0].sender, owed[0].id) if delegation is None or is_told(delegation) else (None, None)
        silent = delegation is not None and is_silent(delegation)
    else:
        asked = owed[0].context.answer_to
        to = answer_address(work.run.sender, origin=work.session.origin, kind=_asked_as(page, owed[0]), asked=asked)
        # The newest envelope of the answered sender: others may have joined since.
        reply_to = next((e.id for e in reversed(owed) if e.sender == work.run.sender), owed[-1].id)
    delegated = bool(owed) and owed[0].kind is Kind.DELEGATION
    if to is None or (finished.silent and not delegated):
        return None
    words = without_token(finished.answer) if TOKEN in finished.text else finished.answer
    spoken = (finished.voice,) if finished.voice is not None and to.kind is address.AddressKind.CHANNEL else ()
    nothing = "" if spoken else NO_WORDS
    text = SAID_NOTHING if finished.silent else clipped_bytes(words, TEXT_BYTES_MAX) or nothing
    if delegation is not None:
        text = announced(page, delegation, DelegationState.DONE, text, trust=finished.trust)
    return Draft(
        id=EnvelopeId(derived(work.run.id, "answer")),
        sender=address.agent(work.agent.name, work.session.id),
        recipient=to,
        text=text,
        source="run",
        key=f"{work.run.id}/answer",
        # A report on delegated work answers nothing: the person was answered when the work started.
        kind=Kind.ANSWER if owed else Kind.MESSAGE,
        context=session_exchange.context_of_answer(page, delegation)
        if delegation is not None
        else _still_for(work, to),
        reply_to=reply_to,
        silent=silent,
        attachments=spoken,
        trust=finished.trust,
    )


def _still_for(work: Work, to: address.Address) -> Context:
    """Return a context with the run's lineage if the recipient is an agent, which continues the same work."""
    if work.run.lineage is None or to.kind is not address.AddressKind.AGENT:
        return NO_CONTEXT
    return Context(lineage=work.run.lineage)


def _asked_as(page: Page, letter: Envelope) -> Kind:
    """Return the kind to answer as. For a late decision, the kind of the envelope whose run asked for it."""
    if letter.kind is not Kind.DECISION:
        return letter.kind
    approval = approvals.get(page.conn, letter.context.approval)
    run = runs.get(page.conn, approval.run) if approval is not None else None
    asked = envelopes.get(page.conn, run.envelopes[0]) if run is not None and run.envelopes else None
    return asked.kind if asked is not None else letter.kind


def _announced(page: Page, work: Work) -> tuple[address.Address | None, EnvelopeId | None]:
    """Return the address for a report on delegated work, and the envelope it replies to.

    The report goes to the person whose message started the work.
    """
    origin = work.session.origin
    about = work.envelopes[0].reply_to if work.envelopes and work.run.lineage is not None else None
    delegation = delegations.get(page.conn, about) if about is not None else None
    if delegation is None or not origin.kind.foreground:
        return None, None
    asked = runs.get(page.conn, delegation.run)
    return who_listens(origin), asked.envelopes[-1] if asked is not None and asked.envelopes else None


def _end_delegation(page: Page, letter: Envelope, answer: Draft | None) -> tuple[Wake, ...]:
    about = letter.reply_to if letter.kind is Kind.JOB else letter.id
    delegation = delegations.get(page.conn, about) if about is not None else None
    if delegation is None:
        return ()
    archive_ms = end(page, delegation, DelegationState.DONE, because="", result=answer.id if answer else None)
    wakes: tuple[Wake, ...] = (ClockWake(archive_ms),) if archive_ms is not None else ()
    said = session_exchange.said_at_once(page, delegation, answer) if answer is not None else None
    return (*wakes, *enter(page, said).wakes) if said is not None else wakes


def _by_clock(page: Page, work: Work, answer: Draft | None, finished: Finished) -> tuple[Draft | None, str]:
    """Return the answer that a scheduled run sends, and the reason.

    A recipient that the run already wrote to gets no second message.
    """
    schedule = heartbeats.of_run(page.conn, work.run, work.envelopes)
    if schedule is not None and not finished.silent:
        told = heartbeats.told(page, work.run, schedule, answer, text=finished.text, remarks=finished.remarks)
        return told.answer, told.because
    if answer is not None and envelopes.was_sent(page.conn, run=work.run.id, recipient=str(answer.recipient)):
        return None, ""
    return answer, ""


def fail(
    conn: sa.Connection, *, work: Work, closings: Sequence[Unwritten], now_ms: int, error: str, text: str
) -> tuple[Wake, ...]:
    """End a failed run. Its envelopes become dead letters, and the person reads the reason."""
    page = Page(conn, now_ms)
    session = _write_last_words(page, work, closings)
    wakes = close_run(
        page,
        session,
        work.run,
        RunStatus.FAILED,
        Outcome.DEAD,
        because=error,
        text=text,
        note=f"This run failed: {error}",
    )
    page.close()
    return wakes


def _write_last_words(page: Page, work: Work, closings: Sequence[Unwritten]) -> Session:
    """Check that the session is still ours, and write results that are not stored yet."""
    append = Append(work.session, page, work.run)
    write_closings(append, closings)
    sessions.guard(
        page.conn,
        work.session.id,
        epoch=work.session.epoch,
        record_seq=append.seq,
        wakefulness=Wakefulness.ACTIVE,
        at_ms=page.at_ms,
    )
    if append.records:
        records.add(page.conn, append.records)
    return replace(work.session, record_seq=append.seq)


def close_run(
    page: Page,
    session: Session,
    run: Run,
    status: RunStatus,
    outcome: Outcome,
    *,
    because: str,
    text: str,
    note: str,
    said: Said | None = None,
) -> tuple[Wake, ...]:
    """End an open run without an answer: every open call gets a result, every envelope an outcome.

    Raises the epoch, so that a worker that still holds the run can write nothing more. The
    `unfinished` text of a reply that is not stored yet is kept.
    """
    conn = page.conn
    held = envelopes.held(conn, run.id)
    append = Append(session, page, run)
    own, _ = records.read(conn, session.id, first=run.first_seq, last=session.record_seq)
    closed = {r.body.call for r in own if isinstance(r.body, ToolResult)}
    for record in own:
        if isinstance(record.body, Reply):
            for call in record.body.calls:
                if call.id not in closed:
                    append.add(interrupted(call.id, call.tool))
    if said is not None and said.text and said.turn >= sum(isinstance(r.body, Reply) for r in own):
        append.add(Reply(text=storable(said.text), stop=Stop.CUT_OFF))
    last = append.add(Note(text=note))
    sessions.guard(
        conn,
        session.id,
        epoch=session.epoch,
        new_epoch=session.epoch + 1,
        record_seq=append.seq,
        wakefulness=Wakefulness.ACTIVE,
        at_ms=page.at_ms,
        active_ms=page.at_ms if keeps_awake(run.sender, session.origin) else None,
    )
    records.add(conn, append.records)
    runs.abandon_steps(conn, run.id, at_ms=page.at_ms)
    money.count_as_spent(conn, run.id)
    withdraw(page, run.id)
    approvals.close(conn, run.id, at_ms=page.at_ms)
    delegations.release(conn, run.id)
    delegations.hush(conn, run.id)
    runs.end(conn, run.id, status, at_ms=page.at_ms, error=because)
    wakes: tuple[Wake, ...] = ()
    if held:
        outcomes.settle(page, [e.id for e in held], outcome, because=because)
        wakes = _tell_senders(page, session, run, held, outcome, text)
    page.tell(
        NewsKind.RUN_ENDED,
        session=session.id,
        run=run.id,
        record_seq=last.seq,
        status=status.value,
        outcome=outcome.value,
        because=because,
        envelopes=[e.id for e in held],
    )
    return wakes


def _tell_senders(
    page: Page, session: Session, run: Run, held: Sequence[Envelope], outcome: Outcome, text: str
) -> tuple[Wake, ...]:
    """Notify each sender of the run's envelopes once, including senders that joined."""
    newest: dict[address.Address, Envelope] = {}
    for envelope in held:
        sender = run.sender if envelope.kind is Kind.DECISION else envelope.sender
        told = envelope.kind is Kind.SYSTEM and sender.kind is address.AddressKind.AGENT
        # A failure is reported even if the answer would go nowhere: a run never ends in silence. An agent that
        # sent a message without asking for an answer is notified only if no one else is.
        asked = "" if envelope.context.answer_to == NOWHERE else envelope.context.answer_to
        to = answer_address(sender, origin=session.origin, kind=envelope.kind, asked=asked) or (
            sender if told else None
        )
        if to is not None and (answerable(envelope.kind) or to not in newest):
            newest[to] = envelope
    wakes: list[Wake] = []
    for to, envelope in newest.items():
        wakes += notify(page, to, envelope.id, envelope.kind, f"{outcome}", text, session=session)
    return tuple(wakes)


def interrupted(call: str, tool: str) -> ToolResult:
    """Return the result that a model reads for a call whose end is unknown."""
    return ToolResult(
        call=call,
        tool=tool,
        output="Interrupted: this call may or may not have taken effect. Check before you repeat it.",
        failed=True,
    )


class Cancelled(Struct, frozen=True):
    """What a cancellation did: the runs it ended, their sessions, and how many due envelopes it cleared."""

    runs: tuple[RunId, ...]
    lanes: tuple[SessionId, ...]
    cleared: int
    wakes: tuple[Wake, ...]


NOTHING_CANCELLED = Cancelled((), (), 0, ())


def cancel(
    conn: sa.Connection,
    *,
    session_id: str,
    by: str,
    why: str,
    now_ms: int,
    clear_due: bool = False,
    only_for_newer: bool = False,
    reset: str | None = None,
    said: Mapping[RunId, Said] = NOTHING_SAID,
) -> Cancelled:
    """End the open run of a session and of every session below it. Scheduled envelopes stay.

    `only_for_newer` does nothing unless a newer envelope is due (queue mode interrupt). `reset`
    also appends a reset mark.
    """
    page = Page(conn, now_ms)
    if only_for_newer and not _newer_waits(page, session_id):
        page.close()
        return NOTHING_CANCELLED
    done = cancel_in(
        page,
        session_id,
        by=by,
        why=why,
        clear_due=clear_due,
        only_for_newer=only_for_newer,
        reset=reset,
        said=said,
    )
    page.close()
    return done


def cancel_in(
    page: Page,
    session_id: str,
    *,
    by: str,
    why: str,
    clear_due: bool = False,
    only_for_newer: bool = False,
    reset: str | None = None,
    said: Mapping[RunId, Said] = NOTHING_SAID,
) -> Cancelled:
    """Like `cancel_runs`, within an open transaction."""
    conn = page.conn
    ended: list[RunId] = []
    lanes: list[SessionId] = []
    wakes: list[Wake] = []
    cleared = 0
    below = [session_id]
    for id_ in below:  # grows as children are found; each session has one parent, so the loop ends
        session = sessions.get(conn, id_)
        if session is None:
            continue
        run = runs.open_in(conn, id_)
        if id_ != session_id:  # the person who cancels needs no notice for each subagent
            delegations.hush_into(conn, id_)
        if run is not None:
            wakes += _cancel_run(page, session, run, by=by, why=why, said=said.get(run.id))
            ended.append(run.id)
            lanes.append(session.id)
        if not only_for_newer:
            # Also approvals that an earlier run requested and did not wait for.
            approvals.close_in(conn, session.id, at_ms=page.at_ms)
        if clear_due or (id_ != session_id and not only_for_newer):
            # A subagent that still waits for a slot is stopped like the others.
            counted, told = _clear_due(page, session, by=by, why=why, only_work=not clear_due)
            cleared += counted
            wakes += told
        if len(below) < CHILDREN_MAX:
            below += [child.id for child in sessions.children(conn, id_, limit=CHILDREN_MAX - len(below))]
    if reset is not None:
        mark_reset(page, session_id, reset, because=f"{by} asked for it: {why}")
    return Cancelled(tuple(ended), tuple(lanes), cleared, tuple(wakes))


def cancel_for_newer(page: Page, session: Session, run: Run) -> tuple[Wake, ...]:
    """Cancel a run that has no worker for a newer envelope (queue mode interrupt)."""
    return _cancel_run(page, session, run, by="house", why=NEWER)


def _cancel_run(
    page: Page, session: Session, run: Run, *, by: str, why: str, said: Said | None = None
) -> tuple[Wake, ...]:
    because = f"cancelled by {by}: {why}"
    text = f"Stopped: {why}."
    note = f"This run was cancelled by {by}: {why}."
    wakes = list(
        close_run(
            page, session, run, RunStatus.CANCELLED, Outcome.CANCELLED, because=because, text=text, note=note, said=said
        )
    )
    # A decision for this run has no recipient now, and must not start its calls after a stop.
    for envelope in envelopes.due(page.conn, session.id, page.at_ms, limit=DECISIONS_MAX):  # decisions sort first
        if envelope.kind is Kind.DECISION and _decides_for(page, envelope, run):
            wakes += settle_and_tell(page, envelope, Outcome.CANCELLED, because=because, text=text, session=session)
    # The lane is checked once more: it runs what is due, or the session goes to sleep.
    return (*wakes, LaneWake(session.id, session.agent, lane_kind(session.origin.kind), loud=False))


def _decides_for(page: Page, decision: Envelope, run: Run) -> bool:
    approval = approvals.get(page.conn, decision.context.approval)
    return approval is not None and approval.run == run.id and not approval.released


def interrupts(envelope: Envelope) -> bool:
    """Whether the envelope may interrupt a run. Decisions, answers and notices may not."""
    asks = not envelope.silent and envelope.kind in (Kind.MESSAGE, Kind.SYSTEM)
    return asks and envelope.context.when_busy is None


def _newer_waits(page: Page, session_id: str) -> bool:
    """Whether an envelope is due that arrived after the open run started."""
    run = runs.open_in(page.conn, session_id)
    if run is None:
        return False
    last_seq = max((e.seq for e in envelopes.held(page.conn, run.id)), default=0)
    due = envelopes.due(page.conn, session_id, page.at_ms, limit=CLEARED_MAX)
    return any(interrupts(e) and (e.due_at, e.seq) > (run.started_at, last_seq) for e in due)


def _clear_due(page: Page, session: Session, *, by: str, why: str, only_work: bool = False) -> tuple[int, list[Wake]]:
    """Cancel due envelopes. `only_delegations`: only delegations. Returns their number and the wake-ups."""
    wakes: list[Wake] = []
    cleared = 0
    for envelope in envelopes.due(page.conn, session.id, page.at_ms, limit=CLEARED_MAX):
        if envelope.sender.kind is address.AddressKind.SCHEDULE or envelope.deliver_at is not None or envelope.silent:
            continue
        if only_work and envelope.kind is not Kind.DELEGATION:
            continue
        because = f"cancelled by {by}: {why}"
        wakes += settle_and_tell(
            page,
            envelope,
            Outcome.CANCELLED,
            because=because,
            text=f"Stopped before it was read: {why}.",
            session=session,
        )
        cleared += 1
    return cleared, wakes


def mark_reset(page: Page, session_id: str, message: str = "", *, because: str) -> None:
    """Reset the context here, starting with `message`. Earlier records stay in the history."""
    session = sessions.get(page.conn, session_id)
    if session is None:
        return
    append = Append(session, page)
    mark = append.add(Mark(text=message, because=because), kind=RecordKind.RESET)
    records.add(page.conn, append.records)
    sessions.set_context_from(page.conn, session_id, mark.seq, at_ms=page.at_ms)
    page.tell(
        NewsKind.SESSION_RESET,
        session=session_id,
        record_seq=mark.seq,
        revision=session.revision + 1,
        because=because,
    )
