"""Requests, escalates and expires approvals, and carries out the decisions of people.

A question to a person is an envelope, and so is the decision. Both survive a restart. Only the
first decision counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import sqlalchemy as sa
from msgspec.structs import replace

from retinue.config.tools import ApprovalSettings
from retinue.domain import address
from retinue.domain.address import Address, AddressKind
from retinue.domain.approval import Approval, ApprovalState
from retinue.domain.audit import approval_asked, approval_decided, approval_expired, grant_given
from retinue.domain.envelope import ENVELOPE_TEXT_BYTES_MAX, EnvelopeContext, EnvelopeDraft, EnvelopeKind
from retinue.domain.event import EventKind
from retinue.domain.grant import Grant, GrantScope
from retinue.domain.ids import ApprovalId, EnvelopeId, GrantId, RunId, SessionId, derive_id, short_id
from retinue.domain.permission import Permission
from retinue.domain.person import Role
from retinue.domain.principal import LEVEL_BY_ROLE, Principal
from retinue.domain.record import RecordKind, least_trust_in
from retinue.domain.run import Run
from retinue.domain.session import Session, SessionActivity
from retinue.domain.storable_text import make_storable, truncate_bytes
from retinue.domain.times import from_ms, to_ms
from retinue.domain.tool import Call, call_hash
from retinue.domain.trust import Trust
from retinue.engine.errors import (
    ApprovalNotAllowed,
    ApprovalNotOpen,
    ApprovalOnlyOnce,
    ApprovalWithoutSession,
    TooManyApprovals,
)
from retinue.engine.interim_replies import flush_held_reply, send_interim_replies
from retinue.engine.progress_messages import send_progress
from retinue.engine.run_context import ClaimedRun, RecordAppender
from retinue.engine.step_writer import PendingWrite, write_pending
from retinue.intake.accept import TimerWake, Wake, accept_in_transaction
from retinue.intake.routing import OWNER, get_session_address
from retinue.policy.access.operation_permissions import is_at_least
from retinue.policy.tools.approvals import APPROVER_LEVEL_MIN, find_next_approver, limit_scope, may_decide, needs_owner
from retinue.runners.base import Suspended
from retinue.store.agents import agents, audit, grants
from retinue.store.core.transaction import Transaction
from retinue.store.envelopes import envelopes
from retinue.store.people import people
from retinue.store.runs import approvals, runs
from retinue.store.runs.message_authors import get_author
from retinue.store.sessions import records, sessions
from retinue.text.answer_options import CHANNEL_QUESTION
from retinue.text.approval_text import PERMISSIONS_SHOWN_MAX, format_question, summarize_request
from retinue.text.approval_text import shorten_reason as in_words

ESCALATED_PER_COMMIT_MAX = 100
SESSIONS_READ_MAX = 20  # sessions read to find the latest session of a person who may decide
COMMENT_LENGTH_MAX = 2_000  # characters of the comment on a decision
OPEN_IN_SESSION_MAX = 20  # open permission requests
RECORDS_READ_MAX = 200  # records read to find who writes in a channel, or the trust of a context
OTHER_AGENT_GRANT_S = 86_400.0  # lifetime of a grant to an agent other than the requesting one, unless permanent


# --- requesting an approval ---


def suspend_run(
    conn: sa.Connection,
    *,
    claim: ClaimedRun,
    pending: Sequence[PendingWrite],
    suspended: Suspended,
    now_ms: int,
    settings: ApprovalSettings,
) -> tuple[bool, tuple[Wake, ...]]:
    """Suspend a run in one commit and, if calls need an approval, ask a person.

    Returns whether the lane is already needed for due envelopes, and the wake-ups.
    """
    tx = Transaction(conn, now_ms)
    append = RecordAppender(claim.session, tx, claim.run)
    write_pending(append, pending)
    waits = _is_lane_needed(tx, claim.session.id)
    sessions.update_fenced(
        conn,
        claim.session.id,
        epoch=claim.session.epoch,
        record_seq=append.last_seq,
        wakefulness=SessionActivity.ACTIVE if waits else SessionActivity.SLEEPING,
        at_ms=tx.at_ms,
    )
    if append.records:
        records.add(conn, append.records)
    envelopes.suspend(conn, claim.run.id)
    shown = send_progress(tx, claim, pending)
    if claim.reply_delivery is not None:
        shown += (*send_interim_replies(tx, claim, pending), *flush_held_reply(tx, claim))
    approval, wakes = _ask_about_calls(tx, claim, suspended, settings) if suspended.calls else (None, ())
    moments = [suspended.until] if suspended.until is not None else []
    if approval is not None:
        moments.append(min(approval.requested_at + timedelta(seconds=claim.agent.approval_wait_s), approval.expires_at))
    wake_ms = to_ms(min(moments))
    runs.suspend(conn, claim.run.id, wake_ms=wake_ms)
    tx.emit(
        EventKind.RUN_SUSPENDED,
        session=claim.session.id,
        run=claim.run.id,
        approval=approval.id if approval is not None else None,
        waits=list(suspended.waiting_calls),
    )
    tx.close()
    return waits, (*shown, *wakes, TimerWake(wake_ms))


def _ask_about_calls(
    tx: Transaction, claim: ClaimedRun, suspended: Suspended, settings: ApprovalSettings
) -> tuple[Approval, tuple[Wake, ...]]:
    exactly = ",".join(f"{call.id}={call_hash(call)}" for call in suspended.calls)
    return _open_approval(
        tx,
        claim.run,
        claim.session,
        id_=ApprovalId(derive_id(claim.run.id, f"approval/{suspended.turn}/{exactly}")),
        calls=suspended.calls,
        because=suspended.because,
        gives=suspended.gives,
        # A grant is offered only if the person sees all of its permissions.
        would_grant=suspended.would_grant if len(suspended.would_grant) <= PERMISSIONS_SHOWN_MAX else (),
        settings=settings,
        turn=suspended.turn,
        reply_to=claim.envelopes[-1].id if claim.envelopes else None,
    )


def request_permission(
    conn: sa.Connection,
    *,
    run_id: RunId,
    call: str,
    agent: str,
    permission: Permission,
    reason: str,
    now_ms: int,
    settings: ApprovalSettings,
) -> tuple[Approval, tuple[Wake, ...]]:
    """Ask a person for a permission, without suspending the run. The decision comes as an envelope.

    The permission is for `agent`, which may differ from the requesting agent. A repeated call does
    not ask again.
    """
    tx = Transaction(conn, now_ms)
    run = runs.get(conn, run_id)
    session = sessions.get(conn, run.session) if run is not None else None
    if run is None or session is None:
        raise ApprovalWithoutSession
    id_ = ApprovalId(derive_id(run_id, f"request/{call}/{agent}/{permission}"))
    for_another = "" if agent == session.agent else agent
    if (seen := approvals.get(conn, id_) or _find_same_request(tx, session, for_another, permission)) is not None:
        return seen, ()
    approval, wakes = _open_approval(
        tx,
        run,
        session,
        id_=id_,
        calls=(),
        because=reason,
        gives=(),
        would_grant=(permission,),
        agent=for_another,
        settings=settings,
        turn=0,
        reply_to=None,
    )
    approvals.release_approval(conn, approval.id)
    tx.close()
    return replace(approval, is_released=True), (*wakes, TimerWake())


def _find_same_request(tx: Transaction, session: Session, other_agent: str, permission: Permission) -> Approval | None:
    """Return an open request for the same permission, so that an agent cannot flood a person with requests."""
    waiting = approvals.list_open_in_session(tx.conn, session.id, limit=OPEN_IN_SESSION_MAX)
    for each in waiting:
        if not each.calls and each.agent == other_agent and each.grant_permissions == (permission,):
            return each
    if len(waiting) >= OPEN_IN_SESSION_MAX:
        raise TooManyApprovals(len(waiting))
    return None


def _open_approval(
    tx: Transaction,
    run: Run,
    session: Session,
    *,
    id_: ApprovalId,
    calls: tuple[Call, ...],
    because: str,
    gives: tuple[Permission, ...],
    would_grant: tuple[Permission, ...],
    settings: ApprovalSettings,
    turn: int,
    reply_to: EnvelopeId | None,
    agent: str = "",
) -> tuple[Approval, tuple[Wake, ...]]:
    now = from_ms(tx.at_ms)
    to, rooms, beside = _find_approver(tx, run, session)
    if to != OWNER and needs_owner(calls):
        to, rooms, beside = OWNER, (), None
    approval = Approval(
        id=id_,
        session=session.id,
        run=run.id,
        calls=calls,
        because=because,
        state=ApprovalState.OPEN,
        requested_at=now,
        expires_at=now + timedelta(seconds=settings.expires_s),
        call_permissions=gives,
        grant_permissions=would_grant,
        recipients=(to,),
        agent=agent,
        escalate_at=None if needs_owner(calls) else _escalation_time(tx, now, (to,), settings),
    )
    approvals.add(tx.conn, approval, turn=turn)
    question = (
        [[call.tool, call.arguments] for call in calls],
        [str(each) for each in approval.grant_permissions],
        because,
    )
    audit.append(tx, session.id, [approval_asked(approval.id, question, agent=session.agent, run=run.id)])
    wakes: list[Wake] = []
    for place in (to, *rooms):
        wakes += accept_in_transaction(tx, _build_question(tx, approval, session, place, reply_to=reply_to)).wakes
    if beside is not None:
        words = (
            f"{session.agent} asks {to}: {_describe(approval)} "
            f"(approval {short_id(id_)}; because: {in_words(because)})."
        )
        wakes += _notify_other_session(tx, approval, session, beside, "asked", words)
    tx.emit(
        EventKind.APPROVAL_CREATED,
        session=session.id,
        run=run.id,
        approval=id_,
        agent=session.agent,
        grantee=_grantee(approval, session),
        calls=calls,
        because=because,
        gives=[str(each) for each in gives],
        would_grant=[str(each) for each in would_grant],
        asked=[str(to)],
        expires_at=approval.expires_at,
    )
    return approval, tuple(wakes)


def _find_approver(tx: Transaction, run: Run, session: Session) -> tuple[Address, tuple[Address, ...], Session | None]:
    """Return the person to ask, the channels to ask in, and another session whose agent gets a notice.

    For delegated work, the person to ask is the run principal. If this person may not decide, the
    owner is asked. The other session is the person's latest conversation if the run is in the
    background, and otherwise None.
    """
    if session.origin.kind.is_foreground or run.sender.kind is AddressKind.PERSON:
        wrote = get_author(tx.conn, run) if run.sender.kind is AddressKind.CHANNEL else run.sender
        to = wrote if wrote is not None and _can_decide(tx, wrote) else OWNER
        rooms = (run.sender,) if run.sender.kind is AddressKind.CHANNEL and wrote == to else ()
        return to, rooms, None
    behalf = run.effective_lineage.behalf
    began = behalf if _can_decide(tx, behalf) else OWNER
    anyone = behalf.kind not in (AddressKind.PERSON, AddressKind.CHANNEL)
    for beside in sessions.list_latest_foreground(tx.conn, limit=SESSIONS_READ_MAX):
        listens = get_session_address(beside.origin)
        if _can_decide(tx, listens) and (anyone or listens == began):
            return listens, (), beside
        if listens.kind is AddressKind.CHANNEL and (anyone or began == OWNER) and _only_owner_wrote(tx, beside):
            return OWNER, (listens,), beside
    return began, (), None


def _can_decide(tx: Transaction, person: Address) -> bool:
    known = people.find(tx.conn, person.name) if person.kind is AddressKind.PERSON else None
    return known is not None and is_at_least(LEVEL_BY_ROLE[known.role], APPROVER_LEVEL_MIN)


def _only_owner_wrote(tx: Transaction, session: Session) -> bool:
    """Return whether only the owner has written in this channel, judging by the session's newest records."""
    first = max(1, session.record_seq - RECORDS_READ_MAX)
    found, damaged = records.read_range(tx.conn, session.id, first=first, last=session.record_seq)
    people_said = {record.trust for record in found if record.kind is RecordKind.USER} - {Trust.AGENT, Trust.PRIVATE}
    return people_said == {Trust.OWNER} and not damaged


def _build_question(
    tx: Transaction,
    approval: Approval,
    session: Session,
    to: Address,
    *,
    reply_to: EnvelopeId | None = None,
    nth: int = 0,
) -> EnvelopeDraft:
    in_room = to.kind is AddressKind.CHANNEL
    purpose = CHANNEL_QUESTION if in_room else f"question/{nth}" if nth else "question"
    text = format_question(
        id_=short_id(approval.id),
        asker=session.agent,
        is_background=not session.origin.kind.is_foreground,
        grantee=_grantee(approval, session),
        calls=approval.calls,
        because=approval.because,
        permissions_needed=approval.call_permissions,
        would_grant=approval.grant_permissions,
        expires_at=approval.expires_at,
        can_grant_always=_is_owner(tx, approval.recipients[0] if in_room else to),
    )
    return EnvelopeDraft(
        id=EnvelopeId(derive_id(approval.id, purpose)),
        sender=address.agent_address(session.agent, session.id),
        recipient=to,
        text=truncate_bytes(make_storable(text), ENVELOPE_TEXT_BYTES_MAX),
        source="run",
        idempotency_key=f"{approval.id}/{purpose}",
        kind=EnvelopeKind.APPROVAL,
        context=EnvelopeContext(approval=approval.id),
        reply_to=reply_to,
        trust=Trust.AGENT,
    )


def _is_owner(tx: Transaction, to: Address) -> bool:
    known = people.find(tx.conn, to.name) if to.kind is AddressKind.PERSON else None
    return known is not None and known.role is Role.OWNER


def _describe(approval: Approval) -> str:
    return summarize_request(approval.calls, approval.grant_permissions)


def _notify_other_session(
    tx: Transaction, approval: Approval, requesting_session: Session, other_session: Session, purpose: str, text: str
) -> tuple[Wake, ...]:
    """Send a silent notice about an approval to the agent that the person is talking to.

    The person can then ask this agent about the approval.
    """
    if other_session.id == requesting_session.id:
        return ()
    draft = EnvelopeDraft(
        id=EnvelopeId(derive_id(approval.id, _notice_key(purpose))),
        sender=address.agent_address(requesting_session.agent, requesting_session.id),
        recipient=address.agent_address(other_session.agent, other_session.id),
        text=truncate_bytes(text, ENVELOPE_TEXT_BYTES_MAX),
        source="server",
        idempotency_key=f"{approval.id}/{_notice_key(purpose)}",
        kind=EnvelopeKind.SYSTEM,
        silent=True,
        trust=_trust_of_context(tx, requesting_session),
    )
    return accept_in_transaction(tx, draft).wakes


def _trust_of_context(tx: Transaction, session: Session) -> Trust:
    """Return the trust of text that an agent writes, which depends on the trust of its context.

    If the context is too long to check, the text is untrusted.
    """
    first = session.context_start_seq
    found, damaged = records.read_range(tx.conn, session.id, first=first, last=first + RECORDS_READ_MAX)
    doubted = damaged or len(found) > RECORDS_READ_MAX or least_trust_in(found) is Trust.UNTRUSTED
    return Trust.UNTRUSTED if doubted else Trust.AGENT


def _notice_key(purpose: str) -> str:
    return f"beside/{purpose}"


def _is_lane_needed(tx: Transaction, session_id: SessionId) -> bool:
    """Return whether a suspended run must give up its lane, because an envelope is due.

    A silent envelope does not need the lane, unless it is a late decision.
    """
    first = envelopes.list_due(tx.conn, session_id, tx.at_ms, limit=1)
    decision = any(envelope.kind is EnvelopeKind.DECISION for envelope in first)
    return decision or envelopes.count_due(tx.conn, session_id, tx.at_ms) > 0


# --- escalation and expiry ---


def _next_approver(tx: Transaction, already_asked: Sequence[Address], settings: ApprovalSettings) -> Address | None:
    """Return the next person in `escalate_to` who exists, may decide and was not asked yet, or None."""
    line = (address.person_address(name) for name in settings.escalate_to)
    return find_next_approver(already_asked, [who for who in line if _can_decide(tx, who)])


def _escalation_time(
    tx: Transaction, now: datetime, already_asked: Sequence[Address], settings: ApprovalSettings
) -> datetime | None:
    if settings.escalate_after_s is None or _next_approver(tx, already_asked, settings) is None:
        return None
    return now + timedelta(seconds=settings.escalate_after_s)


def escalate_overdue(tx: Transaction, settings: ApprovalSettings) -> tuple[Wake, ...]:
    """Ask the next person about each approval that has waited too long.

    The people who were asked before may still answer.
    """
    wakes: list[Wake] = []
    now = from_ms(tx.at_ms)
    for approval in approvals.list_to_escalate(tx.conn, tx.at_ms, limit=ESCALATED_PER_COMMIT_MAX):
        session = sessions.get(tx.conn, approval.session)
        to = _next_approver(tx, approval.recipients, settings)
        if to is None or session is None:
            approvals.set_asked(tx.conn, approval.id, approval.recipients, escalate_ms=None)
            continue
        asked = (*approval.recipients, to)
        at = _escalation_time(tx, now, asked, settings)
        approvals.set_asked(tx.conn, approval.id, asked, escalate_ms=to_ms(at) if at is not None else None)
        wakes += accept_in_transaction(
            tx, _build_question(tx, approval, session, to, nth=len(approval.recipients))
        ).wakes
    return tuple(wakes)


def expire_overdue(tx: Transaction) -> tuple[Wake, ...]:
    """Expire approvals that no person answered in time.

    If a run did not wait for its approval, its agent gets a notice that the approval has expired.
    """
    wakes: list[Wake] = []
    for approval in approvals.list_expired(tx.conn, tx.at_ms, limit=ESCALATED_PER_COMMIT_MAX):
        approvals.decide(tx.conn, approval.id, ApprovalState.EXPIRED, by="server", at_ms=tx.at_ms)
        audit.append(tx, approval.session, [approval_expired(approval.id, agent="", run=approval.run)])
        _emit_decided(tx, approval, ApprovalState.EXPIRED, by="server")
        session = sessions.get(tx.conn, approval.session)
        if session is None:
            continue
        words = f"No one answered approval {short_id(approval.id)} ({_describe(approval)}) in time: it was not done."
        wakes += _notify_other_session_again(tx, approval, session, words)
        if approval.is_released:
            wakes += _notify_requester(tx, approval, session, words)
    return tuple(wakes)


def _notify_requester(tx: Transaction, approval: Approval, session: Session, text: str) -> tuple[Wake, ...]:
    draft = EnvelopeDraft(
        id=EnvelopeId(derive_id(approval.id, "expired")),
        sender=address.SERVER_ADDRESS,
        recipient=address.agent_address(session.agent, session.id),
        text=text,
        source="server",
        idempotency_key=f"{approval.id}/expired",
        kind=EnvelopeKind.SYSTEM,
        silent=True,
        trust=Trust.PRIVATE,
    )
    return accept_in_transaction(tx, draft).wakes


def _notify_other_session_again(
    tx: Transaction, approval: Approval, requesting_session: Session, text: str
) -> tuple[Wake, ...]:
    """Send the second silent notice about an approval to the session that got the first one, if any."""
    first = envelopes.get(tx.conn, derive_id(approval.id, _notice_key("asked")))
    beside = sessions.get(tx.conn, first.session) if first is not None and first.session is not None else None
    return (
        _notify_other_session(tx, approval, requesting_session, beside, "decided", text) if beside is not None else ()
    )


def _emit_decided(tx: Transaction, approval: Approval, state: ApprovalState, *, by: str) -> None:
    tx.emit(
        EventKind.APPROVAL_DECIDED,
        session=approval.session,
        run=approval.run,
        approval=approval.id,
        state=state.value,
        by=by,
    )


# --- deciding ---


def answer_approval(
    conn: sa.Connection,
    *,
    approval_id: str,
    allow: bool,
    by: Principal,
    envelope_id: EnvelopeId,
    now_ms: int,
    scope: GrantScope = GrantScope.ONCE,
    comment: str = "",
) -> tuple[Approval, tuple[Wake, ...]]:
    """Record a person's decision about an approval. Only the first decision counts.

    The envelope with the decision goes to the head of the agent's lane.
    """
    tx = Transaction(conn, now_ms)
    approval = approvals.get_by_short_id(conn, approval_id)
    decided = decide_approval(tx, approval, allow=allow, by=by, envelope_id=envelope_id, scope=scope, comment=comment)
    tx.close()
    return decided


def decide_approval(
    tx: Transaction,
    approval: Approval,
    *,
    allow: bool,
    by: Principal,
    envelope_id: EnvelopeId,
    scope: GrantScope = GrantScope.ONCE,
    comment: str = "",
) -> tuple[Approval, tuple[Wake, ...]]:
    """Record a person's decision like `answer_approval`, within an open transaction."""
    conn = tx.conn
    person = by.address.name
    scope = _check_entitled(approval, by, allow=allow, scope=scope)
    comment = make_storable(comment)[:COMMENT_LENGTH_MAX]
    if approval.state is ApprovalState.OPEN and to_ms(approval.expires_at) <= tx.at_ms:
        raise ApprovalNotOpen(short_id(approval.id), because="it has expired")
    session = sessions.get(conn, approval.session)
    assert session is not None  # approvals reference sessions, which are not purged while referenced
    if approval.state is ApprovalState.OPEN and (gone := _missing_recipient(tx, approval, session)):
        raise ApprovalNotOpen(short_id(approval.id), because=gone)
    state = ApprovalState.ALLOWED if allow else ApprovalState.DENIED
    if not approvals.decide(
        conn, approval.id, state, by=person, at_ms=tx.at_ms, scope=scope if allow else None, comment=comment
    ):
        by_whom = f" by {approval.decided_by}" if approval.decided_by else ""
        raise ApprovalNotOpen(short_id(approval.id), because=f"it is {approval.state}{by_whom}")
    decided = approval_decided(
        approval.id,
        by=f"person:{person}",
        agent=session.agent,
        run=approval.run,
        state=state.value,
        scope=scope.value if allow else "",
        comment=comment,
    )
    audit.append(tx, session.id, [decided])
    granted = _store_grants(tx, approval, session, by=person, scope=scope, comment=comment) if allow else ""
    word = "allowed" if allow else "denied"
    remark = f" Comment: {in_words(comment)}" if comment else ""
    draft = EnvelopeDraft(
        id=envelope_id,
        sender=address.person_address(person),
        recipient=address.agent_address(session.agent, session.id),
        text=f"{person} {word} {_describe(approval)} (approval {short_id(approval.id)}).{granted}{remark}",
        source=f"person:{person}",
        idempotency_key=f"{approval.id}/decision",
        kind=EnvelopeKind.DECISION,
        context=EnvelopeContext(approval=approval.id, verdict="allow" if allow else "deny"),
        trust=by.trust,
    )
    wakes = list(accept_in_transaction(tx, draft).wakes)
    notice = (
        f"{person} {word} the request of {session.agent}: {_describe(approval)} (approval {short_id(approval.id)})."
    )
    wakes += _notify_other_session_again(tx, approval, session, notice)
    _emit_decided(tx, approval, state, by=person)
    return replace(approval, state=state, decided_by=person, scope=scope if allow else None, comment=comment), tuple(
        wakes
    )


def _missing_recipient(tx: Transaction, approval: Approval, session: Session) -> str:
    """Return why a decision no longer has a recipient, or an empty string."""
    for name in (session.agent, _grantee(approval, session)):
        if agents.find(tx.conn, name) is None:
            return f"the agent {name} was deleted"
    return "its conversation was deleted" if session.deleted_at is not None else ""


def _check_entitled(approval: Approval, by: Principal, *, allow: bool, scope: GrantScope) -> GrantScope:
    if not allow:
        scope = GrantScope.ONCE
    entitled = may_decide(by, approval, scope)
    if not entitled.is_allowed:
        raise ApprovalNotAllowed(short_id(approval.id), because=entitled.because)
    good_for = limit_scope(scope, approval)
    if good_for is None:
        raise ApprovalOnlyOnce(short_id(approval.id))
    return good_for


def _store_grants(
    tx: Transaction, approval: Approval, session: Session, *, by: str, scope: GrantScope, comment: str
) -> str:
    """Store a grant if the decision also applies to later calls.

    Returns a sentence about the grant, or an empty string. A permission that an agent requested
    without a call is granted at least for the session. If the agent requested it for another agent,
    it is granted to that agent for a day or permanently.
    """
    if scope is GrantScope.ONCE and approval.calls:
        return ""
    now = from_ms(tx.at_ms)
    always = scope is GrantScope.ALWAYS
    for permission in approval.grant_permissions:
        grant = Grant(
            id=GrantId(derive_id(approval.id, f"grant/{permission}")),
            agent=_grantee(approval, session),
            session=None if always or approval.agent else session.id,
            permission=permission,
            granted_by=by,
            because=comment or approval.because,
            at=now,
            approval=approval.id,
            # The other agent has no part in this session, so the grant is limited by time.
            expires_at=now + timedelta(seconds=OTHER_AGENT_GRANT_S) if approval.agent and not always else None,
        )
        grants.add(tx.conn, grant)
        given = grant_given(str(grant.permission), by=f"person:{by}", agent=grant.agent, grant=grant.id)
        audit.append(tx, session.id, [given])
        tx.emit(EventKind.GRANT_CHANGED, grant=grant.id, agent=grant.agent, permission=str(permission), good=True)
    named = ", ".join(str(each) for each in approval.grant_permissions)
    for_long = "permanently" if always else "for a day" if approval.agent else "for this conversation"
    return f" Granted {for_long}: {named}."


def _grantee(approval: Approval, session: Session) -> str:
    return approval.agent or session.agent
