"""Claims the next batch of a lane, or resumes an interrupted or suspended run, in one commit."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from zoneinfo import ZoneInfo

import sqlalchemy as sa
from msgspec import Struct
from msgspec.structs import replace

from retinue.config.agent_defaults import AgentDefaults, built_in_agent_defaults
from retinue.config.sessions import SessionSettings
from retinue.config.sessions import built_in_session_settings as plain_sessions
from retinue.config.tools import ApprovalSettings
from retinue.domain.address import EXTERNAL
from retinue.domain.agent import Agent, CrashPolicy
from retinue.domain.approval import Approval, ApprovalState
from retinue.domain.delegation import Delegation, DelegationKind, Lineage, derive_run_id
from retinue.domain.envelope import Envelope, EnvelopeKind, Outcome
from retinue.domain.event import EventKind
from retinue.domain.ids import EnvelopeId, RunId
from retinue.domain.record import UserTurn
from retinue.domain.reply_delivery import ReplyDelivery, default_reply_delivery
from retinue.domain.run import Run, RunStatus, Step, StepKind, StepState
from retinue.domain.session import (
    BATCH_MAX,
    SNIPPET_LENGTH_MAX,
    SPAWNED_ORIGINS,
    LaneKind,
    OriginKind,
    QueueMode,
    Session,
    SessionActivity,
    lane_kind_of,
)
from retinue.domain.times import from_ms, to_ms
from retinue.domain.tool import Call
from retinue.domain.ui_context import text_without_context
from retinue.engine.context_reset import reset_if_due
from retinue.engine.queue_modes import debounce_left_s, may_interrupt, next_batch
from retinue.engine.run_cancel import cancel_for_newer
from retinue.engine.run_context import ClaimedRun, NothingClaimed, RecordAppender, trust_of_envelopes
from retinue.engine.run_finish import close_run
from retinue.intake.accept import Wake, settle_and_notify
from retinue.intake.background_jobs import get_runner
from retinue.policy.limits.reset_policy import counts_as_activity
from retinue.runners import turn_input
from retinue.store.agents import agents
from retinue.store.core.transaction import Transaction
from retinue.store.envelopes import envelopes, outcomes
from retinue.store.runs import approvals, budget_reservations, delegating_agents, delegations, runs
from retinue.store.runs.message_authors import list_speakers
from retinue.store.runs.run_requesters import get_requesters
from retinue.store.sessions import records, sessions
from retinue.text.quantity import format_quantity

CLOSED_PER_COMMIT_MAX = 100
DUE_READ_MAX = BATCH_MAX + 40


class ClaimSettings(Struct, frozen=True, kw_only=True):
    """The settings and functions that every claim uses."""

    zone: ZoneInfo
    server_started_ms: int  # when the server started; an older envelope waited while it was stopped
    approval_settings: Callable[[], ApprovalSettings] = ApprovalSettings
    defaults: Callable[[], AgentDefaults] = built_in_agent_defaults
    session_settings: Callable[[], SessionSettings] = plain_sessions
    reply_delivery: Callable[[str], ReplyDelivery] = default_reply_delivery  # by connector name


def claim_lane(
    conn: sa.Connection,
    *,
    session_id: str,
    run_id: RunId,
    now_ms: int,
    settings: ClaimSettings,
    crashed: bool = True,
    owned_runs: Container[RunId] = (),
) -> ClaimedRun | NothingClaimed:
    """Claim the next batch of a lane, or resume the lane's open run.

    `crashed` is False if the open run lost its worker because of a store error, not a crash. A run
    in `owned_runs` has a worker in this process, so it is not resumed.
    """
    tx = Transaction(conn, now_ms)
    session = sessions.get(conn, session_id)
    if session is None:
        return NothingClaimed()
    agent = agents.find(conn, session.agent)
    run = runs.get_open(conn, session_id)
    if run is not None and run.id in owned_runs:
        return NothingClaimed()
    if agent is None:
        text = f"Not processed: the agent {session.agent} was deleted."
        result = _close_lane(tx, session, run, because="agent-not-found", text=text)
    elif session.deleted_at is not None:
        text = "Not processed: the conversation was deleted."
        result = _close_lane(tx, session, run, because="session-deleted", text=text)
    elif run is None:
        result = claim_next_batch(tx, session, agent, run_id=run_id, settings=settings)
    elif run.status is RunStatus.SUSPENDED:
        result = _resume_suspended(tx, session, agent, run)
    else:
        result = _resume_interrupted(tx, session, agent, run, crashed=crashed)
    tx.close()
    return result


def start_run_on_accept(
    tx: Transaction, session: Session, agent: Agent, envelope: Envelope, *, run_id: RunId, settings: ClaimSettings
) -> ClaimedRun:
    """Start a run in the commit that accepts its envelope. The envelope is stored as claimed."""
    session = reset_if_due(tx, session, agent, envelope, settings=settings.session_settings(), zone=settings.zone)
    append = RecordAppender(session, tx)
    snippet = text_without_context(envelope.text)[:SNIPPET_LENGTH_MAX]
    return _start_run(tx, session, agent, append, (envelope,), run_id=run_id, settings=settings, snippet=snippet)


def claim_next_batch(
    tx: Transaction, session: Session, agent: Agent, *, run_id: RunId, settings: ClaimSettings
) -> ClaimedRun | NothingClaimed:
    """Start a run that works on the next batch. This commit also writes the run's user record and first step."""
    conn = tx.conn
    found = envelopes.list_due(conn, session.id, tx.at_ms, limit=DUE_READ_MAX)
    wakes, due = _settle_expired(tx, session, agent, found, settings)
    queue = session.queue.apply_to(agent.queue)
    if wait_s := debounce_left_s(due, queue, now=from_ms(tx.at_ms)):
        return NothingClaimed(wakes, retry_after_s=wait_s)
    batch = next_batch(due, queue)
    # reset before silent envelopes are recorded, so that the next turn reads them
    if first := batch.envelopes or batch.silent:
        session = reset_if_due(tx, session, agent, first[0], settings=settings.session_settings(), zone=settings.zone)
    append = RecordAppender(session, tx)
    if batch.silent:
        for envelope in batch.silent:
            append.add(
                UserTurn(text=turn_input.render_note(envelope), envelopes=(envelope.id,)),
                trust=trust_of_envelopes((envelope,)),
            )
        ids = [envelope.id for envelope in batch.silent]
        because = "not read yet; added to the next turn"
        outcomes.settle(tx, ids, Outcome.NOTED, because=because)
        for record, id_ in zip(append.records, ids, strict=True):
            tx.emit(
                EventKind.ENVELOPE_SETTLED,
                session=session.id,
                envelope=id_,
                record_seq=record.seq,
                outcome=Outcome.NOTED.value,
                because=because,
            )
    if not batch.envelopes:
        more = len(found) >= DUE_READ_MAX
        if append.records:
            records.add(conn, append.records)
        sessions.update_fenced(
            conn,
            session.id,
            epoch=session.epoch,
            record_seq=append.last_seq,
            wakefulness=SessionActivity.ACTIVE if more else SessionActivity.SLEEPING,
            at_ms=to_ms(session.updated_at),
        )
        return NothingClaimed(wakes, look_again=more)
    if (delegation_id := _delegation_of(batch.envelopes[0])) is not None:  # the delegating call already knows the run
        run_id = derive_run_id(delegation_id)
    envelopes.claim(conn, [envelope.id for envelope in batch.envelopes], run=run_id, now_ms=tx.at_ms)
    return _start_run(tx, session, agent, append, batch.envelopes, run_id=run_id, settings=settings, wakes=wakes)


def _start_run(
    tx: Transaction,
    session: Session,
    agent: Agent,
    appender: RecordAppender,
    batch: tuple[Envelope, ...],
    *,
    run_id: RunId,
    settings: ClaimSettings,
    wakes: tuple[Wake, ...] = (),
    snippet: str | None = None,
) -> ClaimedRun:
    conn = tx.conn
    now = from_ms(tx.at_ms)
    sender, stored, answered = batch[0].sender, (), ()
    lineage = _effective_lineage(tx, session, batch[0], run_id)
    if batch[0].kind is EnvelopeKind.DECISION:
        # A late approval: the answer goes to the original sender, and the stored calls run first.
        approval = approvals.get(conn, batch[0].context.approval)
        asked = runs.get(conn, approval.run) if approval else None
        if approval is not None and asked is not None:
            sender, lineage = asked.sender, asked.lineage
            stored = approval.calls if approval.state is ApprovalState.ALLOWED else ()
            answered = (approval,)
    run = Run(
        id=run_id,
        session=session.id,
        agent=agent.name,
        lane=_lane_of(session, batch[0]),
        epoch=session.epoch + 1,
        status=RunStatus.RUNNING,
        sender=sender,
        envelopes=tuple(envelope.id for envelope in batch),
        first_seq=appender.last_seq + 1,
        attempt=1,
        started_at=now,
        lineage=lineage,
    )
    appender.run = run
    if batch[0].kind is EnvelopeKind.JOB:
        text = turn_input.render_job(batch[0])
    else:
        text = turn_input.render_turn(batch, now=now, zone=settings.zone)
    turn = appender.add(
        UserTurn(text=text, envelopes=run.envelopes, attachments=turn_input.collect_attachments(batch)),
        trust=trust_of_envelopes(batch),
    )
    sessions.update_fenced(
        conn,
        session.id,
        epoch=session.epoch,
        new_epoch=run.epoch,
        record_seq=appender.last_seq,
        wakefulness=SessionActivity.ACTIVE,
        at_ms=tx.at_ms,
        snippet=snippet,
        active_ms=tx.at_ms if counts_as_activity(sender, session.origin) else None,
    )
    runs.add(conn, run)
    records.add(conn, appender.records)
    steps: tuple[Step, ...] = ()
    if not stored and get_runner(agent, session.origin.kind) != EXTERNAL:  # an external agent calls no model here
        steps = (first_model_step(run, agent),)
        runs.open_step(conn, steps[0], at_ms=tx.at_ms)
    tx.emit(
        EventKind.RUN_STARTED,
        session=session.id,
        run=run.id,
        record_seq=turn.seq,
        agent=agent.name,
        envelopes=run.envelopes,
        waited_ms=tx.at_ms - to_ms(batch[0].due_at),
    )
    return ClaimedRun(
        run=run,
        session=replace(session, epoch=run.epoch, record_seq=appender.last_seq),
        agent=agent,
        envelopes=batch,
        open_steps=steps,
        approvals=answered,
        stored_calls=stored,
        delegating_agents=delegating_agents.list_delegating_agents(conn, run.lineage, agent=run.agent),
        speakers=list_speakers(conn, sender, batch),
        requesters=get_requesters(conn, session, batch, lineage),
        new_records=tuple(appender.records),
        wakes=wakes,
    )


def _effective_lineage(tx: Transaction, session: Session, first: Envelope, run_id: RunId) -> Lineage | None:
    """Return the delegation lineage that limits the run in addition to its agent's settings.

    The rules of the agents that delegated to a subagent always apply to the subagent, even if
    another sender writes to it.
    """
    lineage = _inherited_lineage(tx, session, first, run_id)
    if session.origin.kind not in SPAWNED_ORIGINS or first.id == session.origin.key:
        return lineage
    sent = delegations.get(tx.conn, session.origin.key)
    if sent is None or lineage is None:
        return lineage if sent is None else sent.lineage
    return replace(lineage, sent_by=tuple(dict.fromkeys((*sent.lineage.sent_by, *lineage.sent_by))))


def _inherited_lineage(tx: Transaction, session: Session, first: Envelope, run_id: RunId) -> Lineage | None:
    """Return the lineage of the run that caused this run, or None.

    That run delegated this work, or did work that this session had delegated. The limits of that
    run apply to this run too.
    """
    if first.context.lineage is not None:
        return first.context.lineage
    if (delegation_id := _delegation_of(first)) is not None:
        delegation = delegations.get(tx.conn, delegation_id)
        if delegation is not None:
            delegations.mark_started(tx.conn, delegation_id, run=run_id, at_ms=tx.at_ms)
            return delegation.lineage
    elif first.kind in (EnvelopeKind.ANSWER, EnvelopeKind.NOTICE) and first.reply_to is not None:
        delegation = delegations.get(tx.conn, first.reply_to)
        if delegation is not None and delegation.session == session.id:
            return delegation.parent_lineage
    return None


def _delegation_of(first: Envelope) -> EnvelopeId | None:
    """Return the id of the delegation envelope that caused this work, or None."""
    match first.kind:
        case EnvelopeKind.DELEGATION:
            return first.id
        case EnvelopeKind.JOB:
            return first.reply_to
        case _:
            return None


def _lane_of(session: Session, first: Envelope) -> LaneKind:
    asked = first.context.request.lane if first.context.request else None
    return asked or lane_kind_of(session.origin.kind)


def first_model_step(run: Run, agent: Agent) -> Step:
    """Return the step of the run's first model call, to be stored before the call."""
    return Step(run=run.id, turn=0, index=0, kind=StepKind.MODEL, hash=agent.model[:32])


def _settle_expired(
    tx: Transaction, session: Session, agent: Agent, due: list[Envelope], settings: ClaimSettings
) -> tuple[tuple[Wake, ...], list[Envelope]]:
    """Settle envelopes that have expired, or that became too old for this agent while the server was stopped.

    Their senders are notified. Returns the wake-ups and the remaining envelopes.
    """
    wakes: list[Wake] = []
    kept: list[Envelope] = []
    for envelope in due:
        because = _expiry_reason(tx, agent, envelope, settings)
        if not because:
            kept.append(envelope)
            continue
        text = f"Not processed: {because}."
        wakes += settle_and_notify(tx, envelope, Outcome.EXPIRED, because=because, text=text, session=session)
    return tuple(wakes), kept


def _expiry_reason(tx: Transaction, agent: Agent, envelope: Envelope, settings: ClaimSettings) -> str:
    if envelope.expires_at is not None and to_ms(envelope.expires_at) <= tx.at_ms:
        return "it expired before its turn came"
    due_ms = to_ms(envelope.due_at)
    if agent.replay_age_s is None or envelope.kind is EnvelopeKind.DECISION or due_ms >= settings.server_started_ms:
        return ""
    if settings.server_started_ms - due_ms >= agent.replay_age_s * 1000:
        limit = f"{agent.name} processes nothing older than {agent.replay_age_s:g} s"
        return f"it waited while the server was stopped, and {limit}"
    return ""


def _close_lane(tx: Transaction, session: Session, run: Run | None, *, because: str, text: str) -> NothingClaimed:
    """Refuse the due envelopes of a deleted agent or session, and end its open run.

    One commit refuses at most `CLOSED_PER_COMMIT_MAX` envelopes. If more may be due, the result says
    so with `look_again`.
    """
    wakes: list[Wake] = []
    if run is not None:
        wakes += close_run(
            tx, session, run, RunStatus.FAILED, Outcome.REFUSED, because=because, text=text, note=because
        )
    due = envelopes.list_due(tx.conn, session.id, tx.at_ms, limit=CLOSED_PER_COMMIT_MAX)
    for envelope in due:
        wakes += settle_and_notify(tx, envelope, Outcome.REFUSED, because=because, text=text)
    more = len(due) == CLOSED_PER_COMMIT_MAX
    if not more:
        sessions.touch(
            tx.conn,
            session.id,
            wakefulness=SessionActivity.SLEEPING,
            snippet=session.snippet,
            at_ms=to_ms(session.updated_at),
        )
    return NothingClaimed(tuple(wakes), look_again=more)


def _resume_suspended(tx: Transaction, session: Session, agent: Agent, run: Run) -> ClaimedRun | NothingClaimed:
    """Resume a suspended run after a decision, or without a decision if other work needs the lane."""
    conn = tx.conn
    asked = approvals.list_of_run(conn, run.id)
    waits_for = {approval.id for approval in asked if not approval.is_released}
    awaited = delegations.list_awaited(conn, run.id)
    outstanding = [delegation for delegation in awaited if delegation.state.is_open]
    # Decisions sort first, so this page holds all of them, however many envelopes are due after them.
    due = envelopes.list_due(conn, session.id, tx.at_ms, limit=DUE_READ_MAX)
    first = [e for e in due if e.kind is EnvelopeKind.DECISION]
    decided = [e for e in first if e.context.approval in waits_for]
    undecided = any(a.state is ApprovalState.OPEN and a.id in waits_for for a in asked) or bool(outstanding)
    if undecided:
        # Results that this run waits for are no reason to resume it without the others.
        expected = {delegation.result for delegation in awaited} - {None}
        there = sum(1 for envelope in due if envelope.id in expected and not envelope.silent)
        mail = len(first) > len(decided) or envelopes.count_due(conn, session.id, tx.at_ms) > there
        waited_enough = run.wake_at is not None and to_ms(run.wake_at) <= tx.at_ms
        interrupting = session.queue.apply_to(agent.queue).mode is QueueMode.INTERRUPT and any(map(may_interrupt, due))
        # A request to an external agent cannot be recalled, and only this run can use its answer.
        waits_behind = mail and not interrupting and any(d.kind is DelegationKind.EXTERNAL for d in outstanding)
        mail = mail and not waits_behind
        if not mail and not waited_enough and not decided:
            _set_wakefulness(tx, session, SessionActivity.ACTIVE if waits_behind else SessionActivity.SLEEPING)
            return NothingClaimed()
        if interrupting:
            return NothingClaimed(cancel_for_newer(tx, session, run), look_again=True)
        if not decided:
            approvals.release_of_run(conn, run.id)
            asked = [replace(approval, is_released=True) for approval in asked]
        if mail:  # otherwise it keeps waiting for delegations with time left
            delegations.release_of_run(conn, run.id)
    if decided:
        because = f"the run {run.id[:8]} continues with it"
        outcomes.settle(tx, [e.id for e in decided], Outcome.NOTED, because=because)
        for envelope in decided:
            tx.emit(
                EventKind.ENVELOPE_SETTLED,
                session=session.id,
                envelope=envelope.id,
                outcome=Outcome.NOTED.value,
                because=because,
            )
    return _resume(
        tx, session, agent, run, asked, attempt=run.attempt, cause=_resume_cause(awaited, is_undecided=undecided)
    )


def _resume_cause(delegated: Sequence[Delegation], *, is_undecided: bool) -> str:
    if is_undecided:
        return "mail"
    return "an answer" if delegated else "a decision"


def _set_wakefulness(tx: Transaction, session: Session, wakefulness: SessionActivity) -> None:
    sessions.update_fenced(
        tx.conn,
        session.id,
        epoch=session.epoch,
        record_seq=session.record_seq,
        wakefulness=wakefulness,
        at_ms=to_ms(session.updated_at),
    )


def _resume_interrupted(
    tx: Transaction, session: Session, agent: Agent, run: Run, *, crashed: bool
) -> ClaimedRun | NothingClaimed:
    """Resume a run that lost its worker, from its last closed step on. Close the run if it must not be retried."""
    is_job = session.origin.kind is OriginKind.BACKGROUND  # a background job is never started twice
    if agent.crash_policy is CrashPolicy.AT_MOST_ONCE or is_job:
        what = "The server stopped" if crashed else "The store failed"
        wakes = close_run(
            tx,
            session,
            run,
            RunStatus.FAILED,
            Outcome.INTERRUPTED,
            because="daemon-stopped" if crashed else "store-failed",
            text=f"{what} while I was working on this. I did not start again: send it again if you still want it.",
            note=f"{what} during this run; it was not resumed.",
        )
        return NothingClaimed(wakes, look_again=True)
    if crashed and run.attempt >= agent.attempts_max:
        because = f"interrupted {format_quantity(run.attempt, 'time')}"
        wakes = close_run(
            tx,
            session,
            run,
            RunStatus.FAILED,
            Outcome.DEAD,
            because=because,
            text=f"I gave up on this: the run was {because}, because the server stopped. See `retinue dead`.",
            note=f"This run was given up: {because}.",
        )
        return NothingClaimed(wakes, look_again=True)
    if crashed:
        envelopes.increment_attempts(tx.conn, run.id)
    # A model call without a stored reply may have been billed.
    budget_reservations.charge_interrupted_calls(tx.conn, run.id)
    asked = [_approval_as_seen_by_run(approval) for approval in approvals.list_of_run(tx.conn, run.id)]
    return _resume(tx, session, agent, run, asked, attempt=run.attempt + 1 if crashed else run.attempt, cause="a stop")


def _approval_as_seen_by_run(approval: Approval) -> Approval:
    """Return the approval in the state that the run acted on.

    A later decision does not change a run that went on without it. Such a decision starts another
    run, which performs the call.
    """
    if approval.is_released and approval.state in (ApprovalState.ALLOWED, ApprovalState.DENIED):
        return replace(approval, state=ApprovalState.OPEN)
    return approval


def _resume(
    tx: Transaction,
    session: Session,
    agent: Agent,
    run: Run,
    requested_approvals: list[Approval],
    *,
    attempt: int,
    cause: str,
) -> ClaimedRun:
    """Raise the epoch, mark the run as running and return the new claim."""
    conn = tx.conn
    epoch = session.epoch + 1
    sessions.update_fenced(
        conn,
        session.id,
        epoch=session.epoch,
        new_epoch=epoch,
        record_seq=session.record_seq,
        wakefulness=SessionActivity.ACTIVE,
        at_ms=tx.at_ms,
    )
    runs.resume(conn, run.id, epoch=epoch, attempt=attempt)
    if run.status is RunStatus.SUSPENDED:
        envelopes.resume(conn, run.id)
    held = tuple(envelopes.list_held(conn, run.id))
    tx.emit(EventKind.RUN_RESUMED, session=session.id, run=run.id, after=cause, attempt=attempt)
    stored, late = _stored_calls(conn, held)
    steps = tuple(step for step in runs.list_steps(conn, run.id) if step.state is StepState.OPEN)
    return ClaimedRun(
        run=replace(run, epoch=epoch, attempt=attempt, status=RunStatus.RUNNING, wake_at=None),
        session=replace(session, epoch=epoch),
        agent=agent,
        envelopes=held,
        open_steps=steps,
        approvals=(*requested_approvals, *late),
        stored_calls=stored,
        delegating_agents=delegating_agents.list_delegating_agents(conn, run.lineage, agent=run.agent),
        speakers=list_speakers(conn, run.sender, held),
        requesters=get_requesters(conn, session, held, run.lineage),
    )


def _stored_calls(conn: sa.Connection, held: tuple[Envelope, ...]) -> tuple[tuple[Call, ...], tuple[Approval, ...]]:
    """Return the calls that a person allowed too late for another run, and their approval. This run performs them."""
    for envelope in held:
        if envelope.kind is EnvelopeKind.DECISION:
            approval = approvals.get(conn, envelope.context.approval)
            if approval is not None:
                return (approval.calls if approval.state is ApprovalState.ALLOWED else ()), (approval,)
    return (), ()
