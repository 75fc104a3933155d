"""Cancels the open runs of a session and of its subagents, after a stop, a reset or a newer message."""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa
from msgspec import Struct

from retinue.domain import address
from retinue.domain.envelope import Envelope, EnvelopeKind, Outcome
from retinue.domain.ids import RunId, SessionId
from retinue.domain.run import Run, RunStatus
from retinue.domain.session import Session, lane_kind_of
from retinue.engine.context_reset import mark_reset
from retinue.engine.queue_modes import may_interrupt
from retinue.engine.run_finish import NO_UNFINISHED_REPLIES, UnfinishedReply, close_run
from retinue.intake.accept import LaneWake, Wake, settle_and_notify
from retinue.store.core.transaction import Transaction
from retinue.store.envelopes import envelopes
from retinue.store.runs import approvals, delegations, runs
from retinue.store.sessions import sessions

CLEARED_MAX = 1000
CHILDREN_MAX = 1000
DECISIONS_MAX = 50
NEWER_ENVELOPE = "a newer message arrived"


class CancelResult(Struct, frozen=True):
    """The effects of a cancellation: the runs it ended, their sessions, and how many due envelopes it cancelled."""

    runs: tuple[RunId, ...]
    sessions: tuple[SessionId, ...]
    cleared_envelopes: int
    wakes: tuple[Wake, ...]


NOTHING_CANCELLED = CancelResult((), (), 0, ())


def cancel_runs(
    conn: sa.Connection,
    *,
    session_id: str,
    by: str,
    reason: str,
    now_ms: int,
    clear_due: bool = False,
    only_for_newer: bool = False,
    reset: str | None = None,
    unfinished: Mapping[RunId, UnfinishedReply] = NO_UNFINISHED_REPLIES,
) -> CancelResult:
    """Cancel the open runs of a session and of all sessions that it started, directly or indirectly.

    Scheduled envelopes are not cancelled. With `only_for_newer`, nothing happens unless a newer
    envelope is due (queue mode `interrupt`). With `reset`, the context is also reset, and `reset` is
    the first text of the new context.
    """
    tx = Transaction(conn, now_ms)
    if only_for_newer and not _is_newer_due(tx, session_id):
        tx.close()
        return NOTHING_CANCELLED
    done = cancel_runs_in(
        tx,
        session_id,
        by=by,
        reason=reason,
        clear_due=clear_due,
        only_for_newer=only_for_newer,
        reset=reset,
        unfinished=unfinished,
    )
    tx.close()
    return done


def cancel_runs_in(
    tx: Transaction,
    session_id: str,
    *,
    by: str,
    reason: str,
    clear_due: bool = False,
    only_for_newer: bool = False,
    reset: str | None = None,
    unfinished: Mapping[RunId, UnfinishedReply] = NO_UNFINISHED_REPLIES,
) -> CancelResult:
    """Cancel runs like `cancel_runs`, within an open transaction."""
    conn = tx.conn
    ended: list[RunId] = []
    lanes: list[SessionId] = []
    wakes: list[Wake] = []
    cleared = 0
    below = [session_id]
    for id_ in below:  # grows as children are found; each session has one parent, so the loop ends
        session = sessions.get(conn, id_)
        if session is None:
            continue
        run = runs.get_open(conn, id_)
        if id_ != session_id:  # the person who cancels needs no notice for each subagent
            delegations.silence_session(conn, id_)
        if run is not None:
            wakes += _cancel_run(tx, session, run, by=by, reason=reason, unfinished=unfinished.get(run.id))
            ended.append(run.id)
            lanes.append(session.id)
        if not only_for_newer:
            # Also approvals that an earlier run requested and did not wait for.
            approvals.close_in_session(conn, session.id, at_ms=tx.at_ms)
        if clear_due or (id_ != session_id and not only_for_newer):
            # A subagent that is still waiting for a slot is stopped like the others.
            counted, cancel_wakes = _cancel_due(tx, session, by=by, reason=reason, only_delegations=not clear_due)
            cleared += counted
            wakes += cancel_wakes
        if len(below) < CHILDREN_MAX:
            below += [child.id for child in sessions.list_children(conn, id_, limit=CHILDREN_MAX - len(below))]
    if reset is not None:
        mark_reset(tx, session_id, reset, because=f"requested by {by}: {reason}")
    return CancelResult(tuple(ended), tuple(lanes), cleared, tuple(wakes))


def cancel_for_newer(tx: Transaction, session: Session, run: Run) -> tuple[Wake, ...]:
    """Cancel a suspended run, which has no worker, because a newer envelope is due (queue mode `interrupt`)."""
    return _cancel_run(tx, session, run, by="server", reason=NEWER_ENVELOPE)


def _cancel_run(
    tx: Transaction, session: Session, run: Run, *, by: str, reason: str, unfinished: UnfinishedReply | None = None
) -> tuple[Wake, ...]:
    because = f"cancelled by {by}: {reason}"
    text = f"Stopped: {reason}."
    note = f"This run was cancelled by {by}: {reason}."
    wakes = list(
        close_run(
            tx,
            session,
            run,
            RunStatus.CANCELLED,
            Outcome.CANCELLED,
            because=because,
            text=text,
            note=note,
            unfinished=unfinished,
        )
    )
    # A decision for this run has no recipient now, and must not start its calls after a stop.
    for envelope in envelopes.list_due(tx.conn, session.id, tx.at_ms, limit=DECISIONS_MAX):  # decisions sort first
        if envelope.kind is EnvelopeKind.DECISION and _is_decision_for(tx, envelope, run):
            wakes += settle_and_notify(tx, envelope, Outcome.CANCELLED, because=because, text=text, session=session)
    # The lane is checked once more: it runs what is due, or the session goes to sleep.
    return (*wakes, LaneWake(session.id, session.agent, lane_kind_of(session.origin.kind), starts_run=False))


def _is_decision_for(tx: Transaction, decision: Envelope, run: Run) -> bool:
    approval = approvals.get(tx.conn, decision.context.approval)
    return approval is not None and approval.run == run.id and not approval.is_released


def _is_newer_due(tx: Transaction, session_id: str) -> bool:
    """Whether an envelope is due that arrived after the open run started."""
    run = runs.get_open(tx.conn, session_id)
    if run is None:
        return False
    last_seq = max((e.seq for e in envelopes.list_held(tx.conn, run.id)), default=0)
    due = envelopes.list_due(tx.conn, session_id, tx.at_ms, limit=CLEARED_MAX)
    return any(may_interrupt(e) and (e.due_at, e.seq) > (run.started_at, last_seq) for e in due)


def _cancel_due(
    tx: Transaction, session: Session, *, by: str, reason: str, only_delegations: bool = False
) -> tuple[int, list[Wake]]:
    """Cancel due envelopes, or only due delegations. Returns their number and the wake-ups."""
    wakes: list[Wake] = []
    cleared = 0
    for envelope in envelopes.list_due(tx.conn, session.id, tx.at_ms, limit=CLEARED_MAX):
        if envelope.sender.kind is address.AddressKind.SCHEDULE or envelope.deliver_at is not None or envelope.silent:
            continue
        if only_delegations and envelope.kind is not EnvelopeKind.DELEGATION:
            continue
        because = f"cancelled by {by}: {reason}"
        wakes += settle_and_notify(
            tx,
            envelope,
            Outcome.CANCELLED,
            because=because,
            text=f"Stopped before it was processed: {reason}.",
            session=session,
        )
        cleared += 1
    return cleared, wakes
