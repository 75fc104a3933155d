"""The commit in which a lane claims its next batch, or resumes an interrupted or suspended run."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from zoneinfo import ZoneInfo

import sqlalchemy as sa
from msgspec import Struct
from msgspec.structs import replace

from retinue.config.agent_defaults import Defaults, plain
from retinue.config.sessions import SessionSettings
from retinue.config.sessions import plain as plain_sessions
from retinue.config.tools import ApprovalSettings
from retinue.domain.address import EXTERNAL
from retinue.domain.agent import Agent, Delivery
from retinue.domain.approval import Approval, ApprovalState
from retinue.domain.delegation import Delegation, DelegationKind, Lineage, run_made_for
from retinue.domain.envelope import Envelope, Kind, Outcome
from retinue.domain.event import NewsKind
from retinue.domain.ids import EnvelopeId, RunId
from retinue.domain.record import UserTurn
from retinue.domain.reply_delivery import Words, plain_words
from retinue.domain.run import Run, RunStatus, Step, StepKind, StepState
from retinue.domain.session import (
    BATCH_MAX,
    SENT_OUT,
    SNIPPET_LENGTH_MAX,
    LaneKind,
    OriginKind,
    QueueMode,
    Session,
    Wakefulness,
    lane_kind,
)
from retinue.domain.times import from_ms, to_ms
from retinue.domain.tool import Call
from retinue.domain.ui_context import words_of
from retinue.engine.context_reset import as_due
from retinue.engine.lanes import held_back_s, next_batch
from retinue.engine.run_context import Append, Nothing, Work, trust_of_mail
from retinue.engine.run_finish import cancel_for_newer, close_run, interrupts
from retinue.intake.accept import Wake, settle_and_tell
from retinue.intake.background_jobs import runner_of
from retinue.policy.limits.reset_policy import keeps_awake
from retinue.runners import turn_input
from retinue.store.agents import agents
from retinue.store.core.transaction import Page
from retinue.store.envelopes import envelopes, outcomes
from retinue.store.runs import approvals, delegating_agents, delegations, money, runs
from retinue.store.runs.message_authors import speakers
from retinue.store.runs.run_requesters import requesters
from retinue.store.sessions import records, sessions

CLOSED_AT_ONCE_MAX = 100
LOOKED_AT_MAX = BATCH_MAX + 40


class Terms(Struct, frozen=True, kw_only=True):
    """Settings that every claim uses."""

    zone: ZoneInfo
    opened_ms: int  # when the server started; an older envelope waited through a stop
    asking: Callable[[], ApprovalSettings] = ApprovalSettings
    defaults: Callable[[], Defaults] = plain
    sessions: Callable[[], SessionSettings] = plain_sessions
    words: Callable[[str], Words] = plain_words  # by connector name


def claim(
    conn: sa.Connection,
    *,
    session_id: str,
    run_id: RunId,
    now_ms: int,
    terms: Terms,
    crashed: bool = True,
    in_hand: Container[RunId] = (),
) -> Work | Nothing:
    """Claim what this lane does next.

    `crashed` says that an open run, if there is one, lost its worker in a crash. Runs in
    `owned_runs` have a worker in this process.
    """
    page = Page(conn, now_ms)
    session = sessions.get(conn, session_id)
    if session is None:
        return Nothing()
    agent = agents.find(conn, session.agent)
    run = runs.open_in(conn, session_id)
    if run is not None and run.id in in_hand:
        return Nothing()
    if agent is None:
        text = f"Not worked on: the agent {session.agent} is no longer here."
        result = _close_lane(page, session, run, because="agent-not-found", text=text)
    elif session.deleted_at is not None:
        text = "Not worked on: the conversation was deleted."
        result = _close_lane(page, session, run, because="session-deleted", text=text)
    elif run is None:
        result = claim_next(page, session, agent, run_id=run_id, terms=terms)
    elif run.status is RunStatus.PARKED:
        result = _take_up_parked(page, session, agent, run)
    else:
        result = _take_up_cut_off(page, session, agent, run, crashed=crashed)
    page.close()
    return result


def begin(page: Page, session: Session, agent: Agent, envelope: Envelope, *, run_id: RunId, terms: Terms) -> Work:
    """Start a run in the commit that accepts its envelope. The envelope is stored as claimed."""
    session = as_due(page, session, agent, envelope, settings=terms.sessions(), zone=terms.zone)
    append = Append(session, page)
    snippet = words_of(envelope.text)[:SNIPPET_LENGTH_MAX]
    return _start_run(page, session, agent, append, (envelope,), run_id=run_id, terms=terms, snippet=snippet)


def claim_next(page: Page, session: Session, agent: Agent, *, run_id: RunId, terms: Terms) -> Work | Nothing:
    """Start a run over the next batch. This commit also writes its user record and first step."""
    conn = page.conn
    found = envelopes.due(conn, session.id, page.at_ms, limit=LOOKED_AT_MAX)
    wakes, due = _leave_out_expired(page, session, agent, found, terms)
    queue = session.queue.over(agent.queue)
    if wait_s := held_back_s(due, queue, now=from_ms(page.at_ms)):
        return Nothing(wakes, after_s=wait_s)
    batch = next_batch(due, queue)
    # reset before silent envelopes are recorded, so that the next turn reads them
    if first := batch.work or batch.silent:
        session = as_due(page, session, agent, first[0], settings=terms.sessions(), zone=terms.zone)
    append = Append(session, page)
    if batch.silent:
        for envelope in batch.silent:
            append.add(
                UserTurn(text=turn_input.render_note(envelope), envelopes=(envelope.id,)),
                trust=trust_of_mail((envelope,)),
            )
        ids = [envelope.id for envelope in batch.silent]
        because = "read by nobody yet, written down for the next turn"
        outcomes.settle(page, ids, Outcome.NOTED, because=because)
        for record, id_ in zip(append.records, ids, strict=True):
            page.tell(
                NewsKind.ENVELOPE_SETTLED,
                session=session.id,
                envelope=id_,
                record_seq=record.seq,
                outcome=Outcome.NOTED.value,
                because=because,
            )
    if not batch.work:
        more = len(found) >= LOOKED_AT_MAX
        if append.records:
            records.add(conn, append.records)
        sessions.guard(
            conn,
            session.id,
            epoch=session.epoch,
            record_seq=append.seq,
            wakefulness=Wakefulness.ACTIVE if more else Wakefulness.SLEEPING,
            at_ms=to_ms(session.updated_at),
        )
        return Nothing(wakes, again=more)
    if (handed := _handed(batch.work[0])) is not None:  # the delegating call already knows this run id
        run_id = run_made_for(handed)
    envelopes.claim(conn, [envelope.id for envelope in batch.work], run=run_id, now_ms=page.at_ms)
    return _start_run(page, session, agent, append, batch.work, run_id=run_id, terms=terms, wakes=wakes)


def _start_run(
    page: Page,
    session: Session,
    agent: Agent,
    append: Append,
    batch: tuple[Envelope, ...],
    *,
    run_id: RunId,
    terms: Terms,
    wakes: tuple[Wake, ...] = (),
    snippet: str | None = None,
) -> Work:
    conn = page.conn
    now = from_ms(page.at_ms)
    sender, stored, answered = batch[0].sender, (), ()
    lineage = _lineage(page, session, batch[0], run_id)
    if batch[0].kind is Kind.DECISION:
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
        lane=_lane(session, batch[0]),
        epoch=session.epoch + 1,
        status=RunStatus.RUNNING,
        sender=sender,
        envelopes=tuple(envelope.id for envelope in batch),
        first_seq=append.seq + 1,
        attempt=1,
        started_at=now,
        lineage=lineage,
    )
    append.run = run
    if batch[0].kind is Kind.JOB:
        text = turn_input.render_job(batch[0])
    else:
        text = turn_input.render(batch, now=now, zone=terms.zone)
    turn = append.add(
        UserTurn(text=text, envelopes=run.envelopes, attachments=turn_input.shown(batch)),
        trust=trust_of_mail(batch),
    )
    sessions.guard(
        conn,
        session.id,
        epoch=session.epoch,
        new_epoch=run.epoch,
        record_seq=append.seq,
        wakefulness=Wakefulness.ACTIVE,
        at_ms=page.at_ms,
        snippet=snippet,
        active_ms=page.at_ms if keeps_awake(sender, session.origin) else None,
    )
    runs.add(conn, run)
    records.add(conn, append.records)
    steps: tuple[Step, ...] = ()
    if not stored and runner_of(agent, session.origin.kind) != EXTERNAL:  # an external agent calls no model here
        steps = (first_step(run, agent),)
        runs.open_step(conn, steps[0], at_ms=page.at_ms)
    page.tell(
        NewsKind.RUN_STARTED,
        session=session.id,
        run=run.id,
        record_seq=turn.seq,
        agent=agent.name,
        envelopes=run.envelopes,
        waited_ms=page.at_ms - to_ms(batch[0].due_at),
    )
    return Work(
        run=run,
        session=replace(session, epoch=run.epoch, record_seq=append.seq),
        agent=agent,
        envelopes=batch,
        open_steps=steps,
        approvals=answered,
        stored=stored,
        senders=delegating_agents.of(conn, run.lineage, agent=run.agent),
        speakers=speakers(conn, sender, batch),
        requesters=requesters(conn, session, batch, lineage),
        fresh=tuple(append.records),
        wakes=wakes,
    )


def _lineage(page: Page, session: Session, first: Envelope, run_id: RunId) -> Lineage | None:
    """Return the delegation lineage that limits the run in addition to its agent's settings.

    A message from another sender does not free a subagent: the rules of the agents that delegated
    to it always apply.
    """
    lineage = _set_going_by(page, session, first, run_id)
    if session.origin.kind not in SENT_OUT or first.id == session.origin.key:
        return lineage
    sent = delegations.get(page.conn, session.origin.key)
    if sent is None or lineage is None:
        return lineage if sent is None else sent.lineage
    return replace(lineage, sent_by=tuple(dict.fromkeys((*sent.lineage.sent_by, *lineage.sent_by))))


def _set_going_by(page: Page, session: Session, first: Envelope, run_id: RunId) -> Lineage | None:
    """Return the lineage of the run that caused this one, or None.

    That run delegated the work, or did work that this session had delegated. Its limits apply.
    """
    if first.context.lineage is not None:
        return first.context.lineage
    if (handed := _handed(first)) is not None:
        delegation = delegations.get(page.conn, handed)
        if delegation is not None:
            delegations.begin(page.conn, handed, run=run_id, at_ms=page.at_ms)
            return delegation.lineage
    elif first.kind in (Kind.ANSWER, Kind.NOTICE) and first.reply_to is not None:
        delegation = delegations.get(page.conn, first.reply_to)
        if delegation is not None and delegation.session == session.id:
            return delegation.above
    return None


def _handed(first: Envelope) -> EnvelopeId | None:
    """Return the id of the delegation envelope behind this work, or None."""
    match first.kind:
        case Kind.DELEGATION:
            return first.id
        case Kind.JOB:
            return first.reply_to
        case _:
            return None


def _lane(session: Session, first: Envelope) -> LaneKind:
    asked = first.context.request.lane if first.context.request else None
    return asked or lane_kind(session.origin.kind)


def first_step(run: Run, agent: Agent) -> Step:
    """Return the intent to call the model for the first reply."""
    return Step(run=run.id, turn=0, index=0, kind=StepKind.MODEL, hash=agent.model[:32])


def _leave_out_expired(
    page: Page, session: Session, agent: Agent, due: list[Envelope], terms: Terms
) -> tuple[tuple[Wake, ...], list[Envelope]]:
    """Settle envelopes that expired, or that are too old for this agent after a stop.

    Their senders are notified. Returns the wake-ups and the remaining envelopes.
    """
    wakes: list[Wake] = []
    kept: list[Envelope] = []
    for envelope in due:
        because = _why_expired(page, agent, envelope, terms)
        if not because:
            kept.append(envelope)
            continue
        text = f"Not worked on: {because}."
        wakes += settle_and_tell(page, envelope, Outcome.EXPIRED, because=because, text=text, session=session)
    return tuple(wakes), kept


def _why_expired(page: Page, agent: Agent, envelope: Envelope, terms: Terms) -> str:
    if envelope.expires_at is not None and to_ms(envelope.expires_at) <= page.at_ms:
        return "it expired before its turn came"
    due_ms = to_ms(envelope.due_at)
    if agent.replay_age_s is None or envelope.kind is Kind.DECISION or due_ms >= terms.opened_ms:
        return ""
    if terms.opened_ms - due_ms >= agent.replay_age_s * 1000:
        return (
            f"it waited through a stop of the house, and {agent.name} works nothing older than {agent.replay_age_s:g} s"
        )
    return ""


def _close_lane(page: Page, session: Session, run: Run | None, *, because: str, text: str) -> Nothing:
    """Settle the due envelopes of a deleted agent or session, up to a limit per commit."""
    wakes: list[Wake] = []
    if run is not None:
        wakes += close_run(
            page, session, run, RunStatus.FAILED, Outcome.REFUSED, because=because, text=text, note=because
        )
    due = envelopes.due(page.conn, session.id, page.at_ms, limit=CLOSED_AT_ONCE_MAX)
    for envelope in due:
        wakes += settle_and_tell(page, envelope, Outcome.REFUSED, because=because, text=text)
    more = len(due) == CLOSED_AT_ONCE_MAX
    if not more:
        sessions.touch(
            page.conn,
            session.id,
            wakefulness=Wakefulness.SLEEPING,
            snippet=session.snippet,
            at_ms=to_ms(session.updated_at),
        )
    return Nothing(tuple(wakes), again=more)


def _take_up_parked(page: Page, session: Session, agent: Agent, run: Run) -> Work | Nothing:
    """Resume a suspended run: with the decision, or without it if the lane is needed."""
    conn = page.conn
    asked = approvals.of_run(conn, run.id)
    waits_for = {approval.id for approval in asked if not approval.released}
    handed = delegations.waiting(conn, run.id)
    outstanding = [delegation for delegation in handed if delegation.state.open]
    # Decisions sort first, so this page holds all of them however much is due behind.
    due = envelopes.due(conn, session.id, page.at_ms, limit=LOOKED_AT_MAX)
    first = [e for e in due if e.kind is Kind.DECISION]
    decided = [e for e in first if e.context.approval in waits_for]
    undecided = any(a.state is ApprovalState.OPEN and a.id in waits_for for a in asked) or bool(outstanding)
    if undecided:
        # Results that this run waits for are no reason to resume it without the others.
        expected = {delegation.result for delegation in handed} - {None}
        there = sum(1 for envelope in due if envelope.id in expected and not envelope.silent)
        mail = len(first) > len(decided) or envelopes.count_due(conn, session.id, page.at_ms) > there
        waited_enough = run.wake_at is not None and to_ms(run.wake_at) <= page.at_ms
        interrupting = session.queue.over(agent.queue).mode is QueueMode.INTERRUPT and any(map(interrupts, due))
        # A request to an external agent cannot be recalled, and only this run can use its answer.
        waits_behind = mail and not interrupting and any(d.kind is DelegationKind.EXTERNAL for d in outstanding)
        mail = mail and not waits_behind
        if not mail and not waited_enough and not decided:
            _sleep(page, session, Wakefulness.ACTIVE if waits_behind else Wakefulness.SLEEPING)
            return Nothing()
        if interrupting:
            return Nothing(cancel_for_newer(page, session, run), again=True)
        if not decided:
            approvals.release(conn, run.id)
            asked = [replace(approval, released=True) for approval in asked]
        if mail:  # otherwise it keeps waiting for delegations with time left
            delegations.release(conn, run.id)
    if decided:
        because = f"the run {run.id[:8]} goes on with it"
        outcomes.settle(page, [e.id for e in decided], Outcome.NOTED, because=because)
        for envelope in decided:
            page.tell(
                NewsKind.ENVELOPE_SETTLED,
                session=session.id,
                envelope=envelope.id,
                outcome=Outcome.NOTED.value,
                because=because,
            )
    return _take_up(
        page, session, agent, run, asked, attempt=run.attempt, why=_why_taken_up(handed, undecided=undecided)
    )


def _why_taken_up(handed: Sequence[Delegation], *, undecided: bool) -> str:
    if undecided:
        return "mail"
    return "an answer" if handed else "a decision"


def _sleep(page: Page, session: Session, wakefulness: Wakefulness) -> None:
    sessions.guard(
        page.conn,
        session.id,
        epoch=session.epoch,
        record_seq=session.record_seq,
        wakefulness=wakefulness,
        at_ms=to_ms(session.updated_at),
    )


def _take_up_cut_off(page: Page, session: Session, agent: Agent, run: Run, *, crashed: bool) -> Work | Nothing:
    """Resume a run without a worker from its last closed step, or closes it if it must not be retried."""
    is_job = session.origin.kind is OriginKind.BACKGROUND  # a background job is never started twice
    if agent.delivery is Delivery.AT_MOST_ONCE or is_job:
        what = "The house stopped" if crashed else "The store failed"
        wakes = close_run(
            page,
            session,
            run,
            RunStatus.FAILED,
            Outcome.INTERRUPTED,
            because="daemon-stopped" if crashed else "store-failed",
            text=f"{what} while I worked on this. To be safe I did not start over: send it again if it still matters.",
            note=f"{what} in the middle of this run; it was not taken up again.",
        )
        return Nothing(wakes, again=True)
    if crashed and run.attempt >= agent.attempts_max:
        because = f"cut off {run.attempt} times"
        wakes = close_run(
            page,
            session,
            run,
            RunStatus.FAILED,
            Outcome.DEAD,
            because=because,
            text=f"I gave up on this: the run was {because} by a stop of the house. It is kept under `retinue dead`.",
            note=f"This run was given up: {because}.",
        )
        return Nothing(wakes, again=True)
    if crashed:
        envelopes.count_attempt(page.conn, run.id)
    # A model call without a stored reply may have been billed.
    money.count_as_spent(page.conn, run.id)
    asked = [_as_the_run_knows_it(approval) for approval in approvals.of_run(page.conn, run.id)]
    return _take_up(page, session, agent, run, asked, attempt=run.attempt + 1 if crashed else run.attempt, why="a stop")


def _as_the_run_knows_it(approval: Approval) -> Approval:
    """Return the approval in the state that the run acted on.

    A run that went on without a decision stays without it: the decision starts its own run, which
    makes the call.
    """
    if approval.released and approval.state in (ApprovalState.ALLOWED, ApprovalState.DENIED):
        return replace(approval, state=ApprovalState.OPEN)
    return approval


def _take_up(
    page: Page, session: Session, agent: Agent, run: Run, asked: list[Approval], *, attempt: int, why: str
) -> Work:
    """Raise the epoch, marks the run as running and return the claim."""
    conn = page.conn
    epoch = session.epoch + 1
    sessions.guard(
        conn,
        session.id,
        epoch=session.epoch,
        new_epoch=epoch,
        record_seq=session.record_seq,
        wakefulness=Wakefulness.ACTIVE,
        at_ms=page.at_ms,
    )
    runs.take_up(conn, run.id, epoch=epoch, attempt=attempt)
    if run.status is RunStatus.PARKED:
        envelopes.unpark(conn, run.id)
    held = tuple(envelopes.held(conn, run.id))
    page.tell(NewsKind.RUN_RESUMED, session=session.id, run=run.id, after=why, attempt=attempt)
    stored, late = _stored_calls(conn, held)
    steps = tuple(step for step in runs.steps(conn, run.id) if step.state is StepState.OPEN)
    return Work(
        run=replace(run, epoch=epoch, attempt=attempt, status=RunStatus.RUNNING, wake_at=None),
        session=replace(session, epoch=epoch),
        agent=agent,
        envelopes=held,
        open_steps=steps,
        approvals=(*asked, *late),
        stored=stored,
        senders=delegating_agents.of(conn, run.lineage, agent=run.agent),
        speakers=speakers(conn, run.sender, held),
        requesters=requesters(conn, session, held, run.lineage),
    )


def _stored_calls(conn: sa.Connection, held: tuple[Envelope, ...]) -> tuple[tuple[Call, ...], tuple[Approval, ...]]:
    """Return the calls that a run over a late decision performs first, and their approval."""
    for envelope in held:
        if envelope.kind is Kind.DECISION:
            approval = approvals.get(conn, envelope.context.approval)
            if approval is not None:
                return (approval.calls if approval.state is ApprovalState.ALLOWED else ()), (approval,)
    return (), ()
