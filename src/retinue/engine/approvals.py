"""Approvals: whom to ask, what a decision does, and whom to ask next.

A question is an envelope, and so is its answer. Both survive a restart, and the first answer
counts.
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
from retinue.domain.envelope import TEXT_BYTES_MAX, Context, Draft, Kind
from retinue.domain.errors import Conflict, NotAllowed
from retinue.domain.event import NewsKind
from retinue.domain.grant import Grant, GrantScope
from retinue.domain.ids import ApprovalId, EnvelopeId, GrantId, RunId, SessionId, derived, short
from retinue.domain.permission import Permission
from retinue.domain.person import Role
from retinue.domain.principal import LEVEL_OF, Principal
from retinue.domain.record import RecordKind, least_believed
from retinue.domain.run import Run
from retinue.domain.session import Session, Wakefulness
from retinue.domain.storable_text import clipped_bytes, storable
from retinue.domain.times import from_ms, to_ms
from retinue.domain.tool import Call, call_hash
from retinue.domain.trust import Trust
from retinue.engine.interim_replies import let_go, say_so_far
from retinue.engine.progress_messages import show_work
from retinue.engine.run_context import Append, Work
from retinue.engine.step_writer import Unwritten, write_closings
from retinue.intake.accept import ClockWake, Wake, enter
from retinue.intake.routing import OWNER, who_listens
from retinue.policy.access.permissions import reaches
from retinue.policy.tools.approvals import LEAST_LEVEL, is_owners, may_decide, next_to_ask, scope_of
from retinue.runners.base import Parked
from retinue.store.agents import agents, audit, grants
from retinue.store.core.transaction import Page
from retinue.store.envelopes import envelopes
from retinue.store.people import people
from retinue.store.runs import approvals, runs
from retinue.store.runs.message_authors import who_wrote
from retinue.store.sessions import records, sessions
from retinue.text.answer_options import IN_ROOM
from retinue.text.approval_text import PERMISSIONS_SHOWN_MAX, question, what
from retinue.text.approval_text import words as in_words

ESCALATED_AT_ONCE_MAX = 100
CONVERSATIONS_LOOKED_AT_MAX = 20  # sessions read, to find the latest one of a person who may decide
WORDS_LENGTH_MAX = 2_000  # characters of the comment on a decision
OPEN_IN_SESSION_MAX = 20  # open permission requests
RECORDS_READ_MAX = 200  # records read to find who writes in a channel, or the trust of a context
FOR_ANOTHER_S = 86_400.0  # lifetime of a grant that another agent requested, unless it is permanent


# --- requesting an approval ---


def park(
    conn: sa.Connection,
    *,
    work: Work,
    closings: Sequence[Unwritten],
    parked: Parked,
    now_ms: int,
    asking: ApprovalSettings,
) -> tuple[bool, tuple[Wake, ...]]:
    """The commit that suspends a run: asks a person, if calls need it, and releases everything else.

    Returns whether envelopes already wait for the lane, and the wake-ups.
    """
    page = Page(conn, now_ms)
    append = Append(work.session, page, work.run)
    write_closings(append, closings)
    waits = _mail_waits(page, work.session.id)
    sessions.guard(
        conn,
        work.session.id,
        epoch=work.session.epoch,
        record_seq=append.seq,
        wakefulness=Wakefulness.ACTIVE if waits else Wakefulness.SLEEPING,
        at_ms=page.at_ms,
    )
    if append.records:
        records.add(conn, append.records)
    envelopes.park(conn, work.run.id)
    shown = show_work(page, work, closings)
    if work.words is not None:
        shown += (*say_so_far(page, work, closings), *let_go(page, work))
    approval, wakes = _ask_about(page, work, parked, asking) if parked.calls else (None, ())
    moments = [parked.until] if parked.until is not None else []
    if approval is not None:
        moments.append(min(approval.asked_at + timedelta(seconds=work.agent.approval_wait_s), approval.expires_at))
    wake_ms = to_ms(min(moments))
    runs.park(conn, work.run.id, wake_ms=wake_ms)
    page.tell(
        NewsKind.RUN_PARKED,
        session=work.session.id,
        run=work.run.id,
        approval=approval.id if approval is not None else None,
        waits=list(parked.waits),
    )
    page.close()
    return waits, (*shown, *wakes, ClockWake(wake_ms))


def _ask_about(page: Page, work: Work, parked: Parked, asking: ApprovalSettings) -> tuple[Approval, tuple[Wake, ...]]:
    exactly = ",".join(f"{call.id}={call_hash(call)}" for call in parked.calls)
    return _ask(
        page,
        work.run,
        work.session,
        id_=ApprovalId(derived(work.run.id, f"approval/{parked.turn}/{exactly}")),
        calls=parked.calls,
        because=parked.because,
        gives=parked.gives,
        # A grant is offered only if the person sees all of its permissions.
        would_grant=parked.would_grant if len(parked.would_grant) <= PERMISSIONS_SHOWN_MAX else (),
        asking=asking,
        turn=parked.turn,
        reply_to=work.envelopes[-1].id if work.envelopes else None,
    )


def request(
    conn: sa.Connection,
    *,
    run_id: RunId,
    call: str,
    agent: str,
    permission: Permission,
    reason: str,
    now_ms: int,
    asking: ApprovalSettings,
) -> tuple[Approval, tuple[Wake, ...]]:
    """Ask for a permission while the run goes on. The answer comes as an envelope.

    `agent` gets the permission; it may differ from the requesting agent. A repeated call does not
    ask again.
    """
    page = Page(conn, now_ms)
    run = runs.get(conn, run_id)
    session = sessions.get(conn, run.session) if run is not None else None
    if run is None or session is None:
        raise NotAllowed(
            "nobody can be asked here",
            because="this call is part of no conversation, and the answer would come as mail",
            try_this="let the agent ask in a conversation, or grant it: retinue grant add",
            code="approval.nobody-to-ask",
        )
    id_ = ApprovalId(derived(run_id, f"request/{call}/{agent}/{permission}"))
    for_another = "" if agent == session.agent else agent
    if (seen := approvals.get(conn, id_) or _same_wish(page, session, for_another, permission)) is not None:
        return seen, ()
    approval, wakes = _ask(
        page,
        run,
        session,
        id_=id_,
        calls=(),
        because=reason,
        gives=(),
        would_grant=(permission,),
        agent=for_another,
        asking=asking,
        turn=0,
        reply_to=None,
    )
    approvals.release_one(conn, approval.id)
    page.close()
    return replace(approval, released=True), (*wakes, ClockWake())


def _same_wish(page: Page, session: Session, for_another: str, permission: Permission) -> Approval | None:
    """Return an open request for the same permission. An agent must not flood a person with requests."""
    waiting = approvals.open_in(page.conn, session.id, limit=OPEN_IN_SESSION_MAX)
    for each in waiting:
        if not each.calls and each.agent == for_another and each.would_grant == (permission,):
            return each
    if len(waiting) >= OPEN_IN_SESSION_MAX:
        raise Conflict(
            "nobody is asked for more now",
            because=f"{len(waiting)} questions of this conversation are still open",
            try_this="wait for an answer",
            code="approval.too-many",
        )
    return None


def _ask(
    page: Page,
    run: Run,
    session: Session,
    *,
    id_: ApprovalId,
    calls: tuple[Call, ...],
    because: str,
    gives: tuple[Permission, ...],
    would_grant: tuple[Permission, ...],
    asking: ApprovalSettings,
    turn: int,
    reply_to: EnvelopeId | None,
    agent: str = "",
) -> tuple[Approval, tuple[Wake, ...]]:
    now = from_ms(page.at_ms)
    to, rooms, beside = _whom(page, run, session)
    if to != OWNER and is_owners(calls):
        to, rooms, beside = OWNER, (), None
    approval = Approval(
        id=id_,
        session=session.id,
        run=run.id,
        calls=calls,
        because=because,
        state=ApprovalState.OPEN,
        asked_at=now,
        expires_at=now + timedelta(seconds=asking.expires_s),
        gives=gives,
        would_grant=would_grant,
        asked_of=(to,),
        agent=agent,
        escalate_at=None if is_owners(calls) else _escalate_at(page, now, (to,), asking),
    )
    approvals.add(page.conn, approval, turn=turn)
    question = [[call.tool, call.arguments] for call in calls], [str(each) for each in approval.would_grant], because
    audit.append(page, session.id, [approval_asked(approval.id, question, agent=session.agent, run=run.id)])
    wakes: list[Wake] = []
    for place in (to, *rooms):
        wakes += enter(page, _question(page, approval, session, place, reply_to=reply_to)).wakes
    if beside is not None:
        words = f"{session.agent} asks {to}: {_what(approval)} (approval {short(id_)}; because: {in_words(because)})."
        wakes += _tell_beside(page, approval, session, beside, "asked", words)
    page.tell(
        NewsKind.APPROVAL_ASKED,
        session=session.id,
        run=run.id,
        approval=id_,
        agent=session.agent,
        for_whom=_for_whom(approval, session),
        calls=calls,
        because=because,
        gives=[str(each) for each in gives],
        would_grant=[str(each) for each in would_grant],
        asked_of=[str(to)],
        expires_at=approval.expires_at,
    )
    return approval, tuple(wakes)


def _whom(page: Page, run: Run, session: Session) -> tuple[Address, tuple[Address, ...], Session | None]:
    """Return the person to ask, the channels to ask in, and the session whose agent is notified.

    For a background session that is the person's latest conversation. A person who may not decide
    is replaced by the owner. For delegated work the person for whom it is done is asked.
    """
    if session.origin.kind.foreground or run.sender.kind is AddressKind.PERSON:
        wrote = who_wrote(page.conn, run) if run.sender.kind is AddressKind.CHANNEL else run.sender
        to = wrote if wrote is not None and _can_decide(page, wrote) else OWNER
        rooms = (run.sender,) if run.sender.kind is AddressKind.CHANNEL and wrote == to else ()
        return to, rooms, None
    behalf = run.descent.behalf
    began = behalf if _can_decide(page, behalf) else OWNER
    anyone = behalf.kind not in (AddressKind.PERSON, AddressKind.CHANNEL)
    for beside in sessions.latest_foreground(page.conn, limit=CONVERSATIONS_LOOKED_AT_MAX):
        listens = who_listens(beside.origin)
        if _can_decide(page, listens) and (anyone or listens == began):
            return listens, (), beside
        if listens.kind is AddressKind.CHANNEL and (anyone or began == OWNER) and _only_owner_wrote(page, beside):
            return OWNER, (listens,), beside
    return began, (), None


def _can_decide(page: Page, who: Address) -> bool:
    known = people.find(page.conn, who.name) if who.kind is AddressKind.PERSON else None
    return known is not None and reaches(LEVEL_OF[known.role], LEAST_LEVEL)


def _only_owner_wrote(page: Page, session: Session) -> bool:
    """Whether only the owner writes in this channel, as far as the records read show."""
    first = max(1, session.record_seq - RECORDS_READ_MAX)
    found, damaged = records.read(page.conn, session.id, first=first, last=session.record_seq)
    people_said = {record.trust for record in found if record.kind is RecordKind.USER} - {Trust.AGENT, Trust.PRIVATE}
    return people_said == {Trust.OWNER} and not damaged


def _question(
    page: Page, approval: Approval, session: Session, to: Address, *, reply_to: EnvelopeId | None = None, nth: int = 0
) -> Draft:
    in_room = to.kind is AddressKind.CHANNEL
    purpose = IN_ROOM if in_room else f"question/{nth}" if nth else "question"
    text = question(
        id_=short(approval.id),
        asker=session.agent,
        background=not session.origin.kind.foreground,
        for_whom=_for_whom(approval, session),
        calls=approval.calls,
        because=approval.because,
        gives=approval.gives,
        would_grant=approval.would_grant,
        until=approval.expires_at,
        always=_is_owner(page, approval.asked_of[0] if in_room else to),
    )
    return Draft(
        id=EnvelopeId(derived(approval.id, purpose)),
        sender=address.agent(session.agent, session.id),
        recipient=to,
        text=clipped_bytes(storable(text), TEXT_BYTES_MAX),
        source="run",
        key=f"{approval.id}/{purpose}",
        kind=Kind.APPROVAL,
        context=Context(approval=approval.id),
        reply_to=reply_to,
        trust=Trust.AGENT,
    )


def _is_owner(page: Page, to: Address) -> bool:
    known = people.find(page.conn, to.name) if to.kind is AddressKind.PERSON else None
    return known is not None and known.role is Role.OWNER


def _what(approval: Approval) -> str:
    return what(approval.calls, approval.would_grant)


def _tell_beside(
    page: Page, approval: Approval, asker: Session, beside: Session, purpose: str, words: str
) -> tuple[Wake, ...]:
    """Send a silent notice to the agent that the person talks to. It may be asked about the approval."""
    if beside.id == asker.id:
        return ()
    draft = Draft(
        id=EnvelopeId(derived(approval.id, _beside(purpose))),
        sender=address.agent(asker.agent, asker.id),
        recipient=address.agent(beside.agent, beside.id),
        text=clipped_bytes(words, TEXT_BYTES_MAX),
        source="house",
        key=f"{approval.id}/{_beside(purpose)}",
        kind=Kind.SYSTEM,
        silent=True,
        trust=_believed(page, asker),
    )
    return enter(page, draft).wakes


def _believed(page: Page, session: Session) -> Trust:
    """Return the trust of an agent's text: that of its context. A context too long to check is untrusted."""
    first = session.context_from
    found, damaged = records.read(page.conn, session.id, first=first, last=first + RECORDS_READ_MAX)
    doubted = damaged or len(found) > RECORDS_READ_MAX or least_believed(found) is Trust.UNTRUSTED
    return Trust.UNTRUSTED if doubted else Trust.AGENT


def _beside(purpose: str) -> str:
    return f"beside/{purpose}"


def _mail_waits(page: Page, session_id: SessionId) -> bool:
    """Whether an envelope is due for which a suspended run gives up its lane: a late decision or a non-silent one."""
    first = envelopes.due(page.conn, session_id, page.at_ms, limit=1)
    decision = any(envelope.kind is Kind.DECISION for envelope in first)
    return decision or envelopes.count_due(page.conn, session_id, page.at_ms) > 0


# --- escalation and expiry ---


def _next(page: Page, asked: Sequence[Address], asking: ApprovalSettings) -> Address | None:
    """Return the next person to ask, among those configured who exist and may decide."""
    line = (address.person(name) for name in asking.escalate_to)
    return next_to_ask(asked, [who for who in line if _can_decide(page, who)])


def _escalate_at(page: Page, now: datetime, asked: Sequence[Address], asking: ApprovalSettings) -> datetime | None:
    if asking.escalate_after_s is None or _next(page, asked, asking) is None:
        return None
    return now + timedelta(seconds=asking.escalate_after_s)


def escalate(page: Page, asking: ApprovalSettings) -> tuple[Wake, ...]:
    """Ask the next person if an approval was unanswered for too long. The others may still answer."""
    wakes: list[Wake] = []
    now = from_ms(page.at_ms)
    for approval in approvals.overdue(page.conn, page.at_ms, limit=ESCALATED_AT_ONCE_MAX):
        session = sessions.get(page.conn, approval.session)
        to = _next(page, approval.asked_of, asking)
        if to is None or session is None:
            approvals.set_asked(page.conn, approval.id, approval.asked_of, escalate_ms=None)
            continue
        asked = (*approval.asked_of, to)
        at = _escalate_at(page, now, asked, asking)
        approvals.set_asked(page.conn, approval.id, asked, escalate_ms=to_ms(at) if at is not None else None)
        wakes += enter(page, _question(page, approval, session, to, nth=len(approval.asked_of))).wakes
    return tuple(wakes)


def expire(page: Page) -> tuple[Wake, ...]:
    """Expire unanswered approvals. An agent that did not wait is notified that no answer will come."""
    wakes: list[Wake] = []
    for approval in approvals.expiring(page.conn, page.at_ms, limit=ESCALATED_AT_ONCE_MAX):
        approvals.decide(page.conn, approval.id, ApprovalState.EXPIRED, by="house", at_ms=page.at_ms)
        audit.append(page, approval.session, [approval_expired(approval.id, agent="", run=approval.run)])
        _tell_decided(page, approval, ApprovalState.EXPIRED, by="house")
        session = sessions.get(page.conn, approval.session)
        if session is None:
            continue
        words = f"Nobody has answered approval {short(approval.id)} ({_what(approval)}) in time: it was not done."
        wakes += _tell_beside_again(page, approval, session, words)
        if approval.released:
            wakes += _tell_asker(page, approval, session, words)
    return tuple(wakes)


def _tell_asker(page: Page, approval: Approval, session: Session, words: str) -> tuple[Wake, ...]:
    draft = Draft(
        id=EnvelopeId(derived(approval.id, "expired")),
        sender=address.HOUSE,
        recipient=address.agent(session.agent, session.id),
        text=words,
        source="house",
        key=f"{approval.id}/expired",
        kind=Kind.SYSTEM,
        silent=True,
        trust=Trust.PRIVATE,
    )
    return enter(page, draft).wakes


def _tell_beside_again(page: Page, approval: Approval, asker: Session, words: str) -> tuple[Wake, ...]:
    """Send the second silent notice, to the session that got the first."""
    first = envelopes.get(page.conn, derived(approval.id, _beside("asked")))
    beside = sessions.get(page.conn, first.session) if first is not None and first.session is not None else None
    return _tell_beside(page, approval, asker, beside, "decided", words) if beside is not None else ()


def _tell_decided(page: Page, approval: Approval, state: ApprovalState, *, by: str) -> None:
    page.tell(
        NewsKind.APPROVAL_DECIDED,
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
    approval_text: str,
    allow: bool,
    by: Principal,
    envelope_id: EnvelopeId,
    now_ms: int,
    scope: GrantScope = GrantScope.ONCE,
    words: str = "",
) -> tuple[Approval, tuple[Wake, ...]]:
    """Record a person's decision. The first answer counts; it is an envelope at the head of its lane."""
    page = Page(conn, now_ms)
    approval = approvals.resolve(conn, approval_text)
    decided = decide_in(page, approval, allow=allow, by=by, envelope_id=envelope_id, scope=scope, words=words)
    page.close()
    return decided


def decide_in(
    page: Page,
    approval: Approval,
    *,
    allow: bool,
    by: Principal,
    envelope_id: EnvelopeId,
    scope: GrantScope = GrantScope.ONCE,
    words: str = "",
) -> tuple[Approval, tuple[Wake, ...]]:
    """Like `answer_approval`, within an open transaction."""
    conn = page.conn
    person = by.address.name
    scope = _checked(approval, by, allow=allow, scope=scope)
    words = storable(words)[:WORDS_LENGTH_MAX]
    if approval.state is ApprovalState.OPEN and to_ms(approval.expires_at) <= page.at_ms:
        raise _not_open(approval, because="it is expired")
    session = sessions.get(conn, approval.session)
    assert session is not None  # approvals reference sessions, which are not purged while referenced
    if approval.state is ApprovalState.OPEN and (gone := _gone(page, approval, session)):
        raise _not_open(approval, because=gone)
    state = ApprovalState.ALLOWED if allow else ApprovalState.DENIED
    if not approvals.decide(
        conn, approval.id, state, by=person, at_ms=page.at_ms, scope=scope if allow else None, words=words
    ):
        by_whom = f" by {approval.decided_by}" if approval.decided_by else ""
        raise _not_open(approval, because=f"it is {approval.state}{by_whom}")
    decided = approval_decided(
        approval.id,
        by=f"person:{person}",
        agent=session.agent,
        run=approval.run,
        state=state.value,
        scope=scope.value if allow else "",
        words=words,
    )
    audit.append(page, session.id, [decided])
    granted = _grant(page, approval, session, by=person, scope=scope, words=words) if allow else ""
    word = "allowed" if allow else "denied"
    said = f" They said: {in_words(words)}" if words else ""
    draft = Draft(
        id=envelope_id,
        sender=address.person(person),
        recipient=address.agent(session.agent, session.id),
        text=f"{person} {word} {_what(approval)} (approval {short(approval.id)}).{granted}{said}",
        source=f"person:{person}",
        key=f"{approval.id}/decision",
        kind=Kind.DECISION,
        context=Context(approval=approval.id, verdict="allow" if allow else "deny"),
        trust=by.trust,
    )
    wakes = list(enter(page, draft).wakes)
    told = f"{person} {word} what {session.agent} asked for: {_what(approval)} (approval {short(approval.id)})."
    wakes += _tell_beside_again(page, approval, session, told)
    _tell_decided(page, approval, state, by=person)
    return replace(approval, state=state, decided_by=person, scope=scope if allow else None, words=words), tuple(wakes)


def _gone(page: Page, approval: Approval, session: Session) -> str:
    """Return why a decision has no recipient any more, or an empty string."""
    for name in (session.agent, _for_whom(approval, session)):
        if agents.find(page.conn, name) is None:
            return f"{name} is no longer here"
    return "its conversation was deleted" if session.deleted_at is not None else ""


def _not_open(approval: Approval, *, because: str) -> Conflict:
    return Conflict(
        f"approval {short(approval.id)} is no longer open",
        because=because,
        try_this="ask the agent again if it still matters",
        code="approval.not-open",
    )


def _checked(approval: Approval, by: Principal, *, allow: bool, scope: GrantScope) -> GrantScope:
    if not allow:
        scope = GrantScope.ONCE
    entitled = may_decide(by, approval, scope)
    if not entitled.allowed:
        raise NotAllowed(
            f"you may not decide approval {short(approval.id)} so",
            because=entitled.because,
            try_this="ask the owner of this house",
            code="approval.not-yours",
        )
    good_for = scope_of(scope, approval)
    if good_for is None:
        raise Conflict(
            f"approval {short(approval.id)} can only be given once",
            because="these exact arguments are asked about, and a yes to them says nothing about others",
            try_this=f"/allow {short(approval.id)}",
            code="approval.only-once",
        )
    return good_for


def _grant(page: Page, approval: Approval, session: Session, *, by: str, scope: GrantScope, words: str) -> str:
    """Store a grant for a decision that lasts longer than one call.

    A permission that was requested by itself lasts for the session at least.
    """
    if scope is GrantScope.ONCE and approval.calls:
        return ""
    now = from_ms(page.at_ms)
    always = scope is GrantScope.ALWAYS
    for permission in approval.would_grant:
        grant = Grant(
            id=GrantId(derived(approval.id, f"grant/{permission}")),
            agent=_for_whom(approval, session),
            session=None if always or approval.agent else session.id,
            permission=permission,
            granted_by=by,
            because=words or approval.because,
            at=now,
            approval=approval.id,
            # The other agent has no part in this session, so the grant is limited by time.
            expires_at=now + timedelta(seconds=FOR_ANOTHER_S) if approval.agent and not always else None,
        )
        grants.add(page.conn, grant)
        given = grant_given(str(grant.permission), by=f"person:{by}", agent=grant.agent, grant=grant.id)
        audit.append(page, session.id, [given])
        page.tell(NewsKind.GRANT_CHANGED, grant=grant.id, agent=grant.agent, permission=str(permission), good=True)
    named = ", ".join(str(each) for each in approval.would_grant)
    for_long = "for good" if always else "for a day" if approval.agent else "for this conversation"
    return f" Granted {for_long}: {named}."


def _for_whom(approval: Approval, session: Session) -> str:
    return approval.agent or session.agent
