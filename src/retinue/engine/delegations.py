"""Delegate work to another session: the request envelope, the delegation and its result.

A delegating call may be repeated after a crash or a suspension. The delegation id derives from the
call, so a repeated call finds the delegation that it made.
"""

from __future__ import annotations

from datetime import timedelta

import sqlalchemy as sa
from msgspec.structs import replace

from retinue.config.agent_defaults import PLAIN, Defaults
from retinue.domain import address
from retinue.domain.agent import Agent
from retinue.domain.delegation import (
    CREATE,
    LATEST,
    LATEST_OR_CREATE,
    Delegation,
    DelegationKind,
    DelegationState,
    session_made_for,
)
from retinue.domain.delegation_request import Handed, Handing
from retinue.domain.envelope import NO_CONTEXT, Context, Draft, Kind, Outcome, Status
from retinue.domain.errors import NotAllowed, NotFound
from retinue.domain.event import NewsKind
from retinue.domain.ids import EnvelopeId, derived, short
from retinue.domain.run import NO_REQUEST, Run
from retinue.domain.session import Origin, OriginKind, Session, Wakefulness
from retinue.domain.times import from_ms
from retinue.domain.trust import Trust, least
from retinue.engine import session_exchange
from retinue.intake import background_jobs
from retinue.intake.accept import Wake, enter, take_job
from retinue.intake.delegations import end
from retinue.policy.access.session_access import may_reach
from retinue.policy.tools.delegations import SENT_OUT, descends, may_hand_over
from retinue.store.agents import agents
from retinue.store.core.transaction import Page
from retinue.store.envelopes import envelopes, outcomes, webhooks
from retinue.store.runs import delegations, runs
from retinue.store.runs.message_authors import descent
from retinue.store.runs.run_principal import came_of, sees, whose
from retinue.store.sessions import sessions


def delegation_id(run: str, call: str) -> EnvelopeId:
    return EnvelopeId(derived(run, f"delegation/{call}"))


def hand_over(
    conn: sa.Connection, *, handing: Handing, now_ms: int, defaults: Defaults = PLAIN
) -> tuple[Handed, tuple[Wake, ...]]:
    """The commit of a delegating call: creates the delegation the first time, returns its status later."""
    page = Page(conn, now_ms)
    seen = delegations.get(conn, delegation_id(handing.run, handing.call))
    done = _look_again(page, seen) if seen is not None else _make(page, handing, defaults)
    page.close()
    return done


def _make(page: Page, handing: Handing, defaults: Defaults) -> tuple[Handed, tuple[Wake, ...]]:
    run = runs.get(page.conn, handing.run)
    if run is not None and not run.status.open:  # ended by another worker just before this call
        run = None
    session = sessions.get(page.conn, run.session) if run is not None else None
    asker = agents.find(page.conn, run.agent) if run is not None else None
    if run is None or session is None or asker is None:
        raise NotAllowed(
            "work is handed on by a run, and this is none",
            because="its answer would come back to nobody",
            try_this="let the agent do it in a conversation",
            code="delegation.no-run",
        )
    id_, above = delegation_id(run.id, handing.call), descent(page.conn, run)
    if handing.kind is DelegationKind.EXTERNAL:  # the agent's own work, done externally: no other agent is involved
        target, to, lineage = asker, None, above
    else:
        target = _target(page, asker, handing)
        _allow(page, run, asker, target, handing.kind)
        to = _session(page, handing, id_, run, session, asker, target)
        lineage = descends(above, asker, target, handing.kind)
    made = Delegation(
        id=id_,
        kind=handing.kind,
        run=run.id,
        call=handing.call,
        agent=asker.name,
        session=session.id,
        target=target.name,
        to=to.id if to is not None else None,
        task=handing.text,
        above=above,
        lineage=lineage,
        notify=handing.notify,
        wait_until=from_ms(page.at_ms) + timedelta(seconds=handing.wait_s) if handing.wait_s else None,
        label=handing.label,
        cleanup=handing.cleanup,
        archive_after_s=(defaults.subagents_of(asker).archive_after_s or None) if handing.kind in SENT_OUT else None,
        created_at=from_ms(page.at_ms),
    )
    delegations.add(page.conn, made)
    if handing.webhook is not None:
        webhooks.add(page.conn, id_, handing.webhook, at_ms=page.at_ms)
    page.tell(
        NewsKind.DELEGATION_OPENED,
        session=session.id,
        run=run.id,
        delegation=id_,
        kind_of=handing.kind.value,
        target=target.name,
        to=made.to,
        label=handing.label,
        call=handing.call,
    )
    letter = _letter(_on_the_same_ground(page, handing, run), id_, session, asker, to)
    if handing.kind is DelegationKind.BACKGROUND:
        request = replace(letter, recipient=background_jobs.HERE, kind=Kind.MESSAGE)
        return Handed(delegation=made), take_job(page, request, made).wakes
    entered = enter(page, letter)
    if entered.receipt.outcome is not None:  # the queue was full, so the result is already there
        return _look(page, delegations.get(page.conn, id_) or made), entered.wakes
    return Handed(delegation=made, queued=to is not None and to.wakefulness is Wakefulness.ACTIVE), entered.wakes


def _target(page: Page, asker: Agent, handing: Handing) -> Agent:
    found = agents.find(page.conn, handing.target) if handing.target else asker
    if found is None:
        raise NotFound(
            f"there is no agent '{handing.target[:80]}' in this house",
            because="no agent of that name is registered",
            try_this="agents_list tells who is here",
            code="agent.not-found",
        )
    return found


def _allow(page: Page, run: Run, asker: Agent, target: Agent, kind: DelegationKind) -> None:
    open_count = delegations.count_open(page.conn, run.session)
    decision = may_hand_over(asker, target, kind, descent=run.descent, open_count=open_count)
    if decision.denied:
        raise NotAllowed(
            f"{asker.name} cannot hand this to {target.name}",
            because=decision.because,
            try_this=f"ask the owner to change `{decision.key}`, or do it yourself" if decision.key else "",
            code="delegation.refused",
        )


def _session(
    page: Page, handing: Handing, id_: EnvelopeId, run: Run, session: Session, asker: Agent, target: Agent
) -> Session:
    """Return the session in which the work is done."""
    if handing.kind is DelegationKind.BACKGROUND:
        made = background_jobs.session_for(page, id_, target, session.id, task=handing.text)
        return sessions.get(page.conn, made) or session
    if handing.kind in SENT_OUT:
        return _start(page, id_, target, Origin(OriginKind.SUBAGENT, id_, parent=session.id), name=handing.label)
    ours = str(address.agent(asker.name, session.id))
    if handing.session in (LATEST, LATEST_OR_CREATE):
        # Only sessions between these two: what another person's session said there is private.
        found = sessions.latest_of(page.conn, target.name, Origin(OriginKind.AGENT, ours))
        if found is not None:
            return found
        if handing.session == LATEST:
            raise _no_session(f"{target.name} has no session with you yet", target)
        return _start(page, id_, target, Origin(OriginKind.AGENT, ours))
    if handing.session == CREATE:
        return _start(page, id_, target, Origin(OriginKind.AGENT, f"{ours}/{id_}"))
    known = sessions.by_prefix(page.conn, target.name, handing.session)
    chosen = sessions.get(page.conn, known) if known is not None else None
    if chosen is None or chosen.deleted_at is not None or not _may_write(page, handing, run, session, asker, chosen):
        raise _no_session(f"{target.name} has no session '{handing.session[:40]}' that you may write to", target)
    return chosen


def _may_write(page: Page, handing: Handing, run: Run, session: Session, asker: Agent, chosen: Session) -> bool:
    """Whether the run may write into the chosen session.

    Always if that session came from this one. Otherwise the owner must allow the agent, and the run
    principal must be able to see it.
    """
    target = agents.find(page.conn, chosen.agent)
    return (
        target is not None
        and may_reach(
            asker,
            target,
            confined=handing.confined,
            came_of_it=came_of(page.conn, chosen, session),
            behalf_sees=sees(page.conn, whose(page.conn, run), chosen),
        ).allowed
    )


def _start(page: Page, id_: EnvelopeId, target: Agent, origin: Origin, *, name: str = "") -> Session:
    made = session_made_for(id_)
    sessions.start(page, made, agent=target.name, origin=origin, name=name, unique=False)
    session = sessions.get(page.conn, made)
    assert session is not None  # started just above
    return session


def _no_session(sentence: str, target: Agent) -> NotFound:
    return NotFound(
        sentence,
        because="only sessions that came of this conversation are yours to write to",
        try_this=f"leave `session` out, and {target.name} gets one",
        code="session.not-found",
    )


def _on_the_same_ground(page: Page, handing: Handing, run: Run) -> Handing:
    """A subagent of a run with a requested workspace works in that workspace too."""
    if handing.kind not in SENT_OUT:
        return handing
    held = (envelopes.get(page.conn, id_) for id_ in run.envelopes)
    asked = next((letter.context.request for letter in held if letter is not None and letter.context.request), None)
    if asked is None or asked.workspace is None:
        return handing
    return replace(handing, request=replace(handing.request or NO_REQUEST, workspace=asked.workspace))


def _letter(handing: Handing, id_: EnvelopeId, session: Session, asker: Agent, to: Session | None) -> Draft:
    return Draft(
        id=id_,
        sender=address.agent(asker.name, session.id),
        recipient=address.agent(to.agent, to.id) if to is not None else address.external(session.id),
        text=handing.text,
        source="run",
        key=f"{handing.run}/{handing.call}/delegation",
        kind=Kind.DELEGATION,
        attachments=handing.attachments,
        reply_to=handing.reply_to,
        context=_context(handing),
        trust=least((Trust.AGENT, handing.trust)),
    )


def _look_again(page: Page, delegation: Delegation) -> tuple[Handed, tuple[Wake, ...]]:
    """Return the status of a delegation. After a `sessions_send` call the two sessions may continue the exchange."""
    handed = _look(page, delegation)
    goes_on = delegation.kind is DelegationKind.SEND and delegation.state is DelegationState.DONE
    letter = session_exchange.begin(page, delegation, handed.answer) if goes_on and handed.answer is not None else None
    return handed, enter(page, letter).wakes if letter is not None else ()


def _context(handing: Handing) -> Context:
    if handing.request is None and handing.webhook is None:
        return NO_CONTEXT
    return Context(request=handing.request, webhook=handing.webhook is not None)


def _look(page: Page, delegation: Delegation) -> Handed:
    """Return the status. A result that is there is collected; an expired wait ends."""
    is_started = delegation.kind in SENT_OUT and delegation.started_at is not None
    if is_started or delegation.kind is DelegationKind.BACKGROUND:
        # No call returns the result, so it is read as a message, also when the call is repeated.
        return Handed(delegation=delegation)
    if not delegation.state.open:
        return _collect(page, delegation)
    if delegation.wait_until is None or from_ms(page.at_ms) < delegation.wait_until:
        return Handed(delegation=delegation)
    delegations.release_one(page.conn, delegation.id)
    if delegation.kind is DelegationKind.EXTERNAL:
        # Only this run could use the answer. A later one counts as an unrequested message.
        waited_s = (delegation.wait_until - delegation.created_at).total_seconds()
        because = f"no answer came within {waited_s:g} seconds"
        end(page, delegation, DelegationState.FAILED, because=because, result=None)
        return Handed(delegation=replace(delegation, state=DelegationState.FAILED, because=because), late=True)
    return Handed(delegation=replace(delegation, wait_until=None), late=True)


def _collect(page: Page, delegation: Delegation) -> Handed:
    answer = envelopes.get(page.conn, delegation.result) if delegation.result else None
    delegations.release_one(page.conn, delegation.id)
    if answer is not None and answer.status is Status.PENDING:
        because = f"the run {short(delegation.run)} goes on with it"
        outcomes.settle(page, [answer.id], Outcome.NOTED, because=because)
        page.tell(
            NewsKind.ENVELOPE_SETTLED,
            session=delegation.session,
            envelope=answer.id,
            outcome=Outcome.NOTED.value,
            because=because,
        )
        return Handed(delegation=delegation, answer=answer)
    # Collected before an interruption, or read as an envelope: the outcome says which.
    taken = envelopes.settled(page.conn, answer.id) if answer is not None else None
    ours = taken is not None and taken.because == f"the run {short(delegation.run)} goes on with it"
    return Handed(delegation=delegation, answer=answer if ours else None, elsewhere=not ours)
