"""Delegates work to another session: the request envelope, the delegation and its result.

A delegating call may be repeated after a crash or a suspension. The delegation id is derived from
the call, so a repeated call finds the delegation that the first call created.
"""

from __future__ import annotations

from datetime import timedelta

import sqlalchemy as sa
from msgspec.structs import replace

from retinue.config.agent_defaults import BUILT_IN_AGENT_DEFAULTS, AgentDefaults
from retinue.domain import address
from retinue.domain.agent import Agent
from retinue.domain.delegation import (
    LATEST_OR_NEW_SESSION,
    LATEST_SESSION,
    NEW_SESSION,
    Delegation,
    DelegationKind,
    DelegationState,
    derive_session_id,
)
from retinue.domain.delegation_request import DelegationRequest, DelegationStatus
from retinue.domain.envelope import NO_CONTEXT, EnvelopeContext, EnvelopeDraft, EnvelopeKind, EnvelopeStatus, Outcome
from retinue.domain.event import EventKind
from retinue.domain.ids import EnvelopeId, derive_id, short_id
from retinue.domain.run import NO_RUN_REQUEST, Run
from retinue.domain.session import Origin, OriginKind, Session, SessionActivity
from retinue.domain.shared_errors import AgentNotFound, DelegationRefused, SessionNotFound
from retinue.domain.times import from_ms
from retinue.domain.trust import Trust, least_trust
from retinue.engine import session_exchange
from retinue.engine.errors import DelegationWithoutRun
from retinue.intake import background_jobs
from retinue.intake.accept import Wake, accept_in_transaction, accept_job
from retinue.intake.delegation_end import end_delegation
from retinue.policy.access.session_access import may_access_session
from retinue.policy.tools.delegations import SUBAGENT_DELEGATIONS, build_child_lineage, may_delegate
from retinue.store.agents import agents
from retinue.store.core.transaction import Transaction
from retinue.store.envelopes import envelopes, outcomes, webhooks
from retinue.store.runs import delegations, runs
from retinue.store.runs.message_authors import get_lineage
from retinue.store.runs.run_principal import can_see, get_run_principal, is_descendant
from retinue.store.sessions import sessions


def delegation_id(run: str, call: str) -> EnvelopeId:
    return EnvelopeId(derive_id(run, f"delegation/{call}"))


def delegate(
    conn: sa.Connection, *, request: DelegationRequest, now_ms: int, defaults: AgentDefaults = BUILT_IN_AGENT_DEFAULTS
) -> tuple[DelegationStatus, tuple[Wake, ...]]:
    """Create a delegation in one commit, or return its status if the call is repeated."""
    tx = Transaction(conn, now_ms)
    seen = delegations.get(conn, delegation_id(request.run, request.call))
    done = _status_of_repeated_call(tx, seen) if seen is not None else _create(tx, request, defaults)
    tx.close()
    return done


def _create(
    tx: Transaction, delegation_request: DelegationRequest, defaults: AgentDefaults
) -> tuple[DelegationStatus, tuple[Wake, ...]]:
    run = runs.get(tx.conn, delegation_request.run)
    if run is not None and not run.status.is_open:  # ended by another worker just before this call
        run = None
    session = sessions.get(tx.conn, run.session) if run is not None else None
    asker = agents.find(tx.conn, run.agent) if run is not None else None
    if run is None or session is None or asker is None:
        raise DelegationWithoutRun
    id_, above = delegation_id(run.id, delegation_request.call), get_lineage(tx.conn, run)
    if (
        delegation_request.kind is DelegationKind.EXTERNAL
    ):  # the agent's own work, done externally: no other agent is involved
        target, to, lineage = asker, None, above
    else:
        target = _find_target(tx, asker, delegation_request)
        _check_allowed(tx, run, asker, target, delegation_request.kind)
        to = _find_or_start_session(tx, delegation_request, id_, run, session, asker, target)
        lineage = build_child_lineage(above, asker, target, delegation_request.kind)
    made = Delegation(
        id=id_,
        kind=delegation_request.kind,
        run=run.id,
        call=delegation_request.call,
        agent=asker.name,
        session=session.id,
        target=target.name,
        target_session=to.id if to is not None else None,
        task=delegation_request.text,
        parent_lineage=above,
        lineage=lineage,
        notify=delegation_request.notify,
        wait_until=from_ms(tx.at_ms) + timedelta(seconds=delegation_request.wait_s)
        if delegation_request.wait_s
        else None,
        label=delegation_request.label,
        cleanup=delegation_request.cleanup,
        archive_after_s=(defaults.subagents_of(asker).archive_after_s or None)
        if delegation_request.kind in SUBAGENT_DELEGATIONS
        else None,
        created_at=from_ms(tx.at_ms),
    )
    delegations.add(tx.conn, made)
    if delegation_request.webhook is not None:
        webhooks.add(tx.conn, id_, delegation_request.webhook, at_ms=tx.at_ms)
    tx.emit(
        EventKind.DELEGATION_OPENED,
        session=session.id,
        run=run.id,
        delegation=id_,
        delegation_kind=delegation_request.kind.value,
        target=target.name,
        to=made.target_session,
        label=delegation_request.label,
        call=delegation_request.call,
    )
    envelope = _build_request_envelope(_in_same_workspace(tx, delegation_request, run), id_, session, asker, to)
    if delegation_request.kind is DelegationKind.BACKGROUND:
        request = replace(envelope, recipient=background_jobs.BACKGROUND_ADDRESS, kind=EnvelopeKind.MESSAGE)
        return DelegationStatus(delegation=made), accept_job(tx, request, made).wakes
    entered = accept_in_transaction(tx, envelope)
    if entered.receipt.outcome is not None:  # the queue was full, so the result is already there
        return _status(tx, delegations.get(tx.conn, id_) or made), entered.wakes
    return DelegationStatus(
        delegation=made, is_queued=to is not None and to.activity is SessionActivity.ACTIVE
    ), entered.wakes


def _find_target(tx: Transaction, delegating_agent: Agent, request: DelegationRequest) -> Agent:
    found = agents.find(tx.conn, request.target) if request.target else delegating_agent
    if found is None:
        raise AgentNotFound(request.target, try_this="use agents_list to find the name")
    return found


def _check_allowed(tx: Transaction, run: Run, delegating_agent: Agent, target: Agent, kind: DelegationKind) -> None:
    open_count = delegations.count_open(tx.conn, run.session)
    decision = may_delegate(delegating_agent, target, kind, lineage=run.effective_lineage, open_count=open_count)
    if decision.is_denied:
        raise DelegationRefused(
            delegating_agent.name, target.name, because=decision.because, setting=decision.setting_key
        )


def _find_or_start_session(
    tx: Transaction,
    request: DelegationRequest,
    id_: EnvelopeId,
    run: Run,
    session: Session,
    delegating_agent: Agent,
    target: Agent,
) -> Session:
    """Return the session in which the delegated work is done. Start the session if it does not exist."""
    if request.kind is DelegationKind.BACKGROUND:
        made = background_jobs.start_job_session(tx, id_, target, session.id, task=request.text)
        return sessions.get(tx.conn, made) or session
    if request.kind in SUBAGENT_DELEGATIONS:
        return _start_session(tx, id_, target, Origin(OriginKind.SUBAGENT, id_, parent=session.id), name=request.label)
    ours = str(address.agent_address(delegating_agent.name, session.id))
    if request.session in (LATEST_SESSION, LATEST_OR_NEW_SESSION):
        # Only sessions between these two: what another person's session said there is private.
        found = sessions.get_latest_by_origin(tx.conn, target.name, Origin(OriginKind.AGENT, ours))
        if found is not None:
            return found
        if request.session == LATEST_SESSION:
            raise _session_not_found(target, LATEST_SESSION)
        return _start_session(tx, id_, target, Origin(OriginKind.AGENT, ours))
    if request.session == NEW_SESSION:
        return _start_session(tx, id_, target, Origin(OriginKind.AGENT, f"{ours}/{id_}"))
    known = sessions.find_id_by_prefix(tx.conn, target.name, request.session)
    chosen = sessions.get(tx.conn, known) if known is not None else None
    if (
        chosen is None
        or chosen.deleted_at is not None
        or not _may_write(tx, request, run, session, delegating_agent, chosen)
    ):
        raise _session_not_found(target, request.session)
    return chosen


def _may_write(
    tx: Transaction, request: DelegationRequest, run: Run, session: Session, delegating_agent: Agent, chosen: Session
) -> bool:
    """Return whether the run may delegate work to the chosen session.

    This is always allowed if that session descends from the session of the run. Otherwise the owner
    must allow it for the agent, and the run principal must be able to see that session.
    """
    target = agents.find(tx.conn, chosen.agent)
    return (
        target is not None
        and may_access_session(
            delegating_agent,
            target,
            is_confined=request.own_sessions_only,
            is_descendant=is_descendant(tx.conn, chosen, session),
            principal_can_see=can_see(tx.conn, get_run_principal(tx.conn, run), chosen),
        ).is_allowed
    )


def _start_session(tx: Transaction, id_: EnvelopeId, target: Agent, origin: Origin, *, name: str = "") -> Session:
    made = derive_session_id(id_)
    sessions.start(tx, made, agent=target.name, origin=origin, name=name, unique=False)
    session = sessions.get(tx.conn, made)
    assert session is not None  # started just above
    return session


def _session_not_found(target: Agent, session: str) -> SessionNotFound:
    return SessionNotFound(
        session,
        agent=target.name,
        because="it does not exist, or you may not write to it: this conversation did not start it",
        try_this=f"leave `session` out, and {target.name} gets a new one",
    )


def _in_same_workspace(tx: Transaction, request: DelegationRequest, run: Run) -> DelegationRequest:
    """Return the delegation request. A workspace that was requested for the delegating run applies to its subagents."""
    if request.kind not in SUBAGENT_DELEGATIONS:
        return request
    held = (envelopes.get(tx.conn, id_) for id_ in run.envelopes)
    asked = next(
        (envelope.context.request for envelope in held if envelope is not None and envelope.context.request), None
    )
    if asked is None or asked.workspace is None:
        return request
    return replace(request, request=replace(request.request or NO_RUN_REQUEST, workspace=asked.workspace))


def _build_request_envelope(
    request: DelegationRequest, id_: EnvelopeId, session: Session, delegating_agent: Agent, to: Session | None
) -> EnvelopeDraft:
    return EnvelopeDraft(
        id=id_,
        sender=address.agent_address(delegating_agent.name, session.id),
        recipient=address.agent_address(to.agent, to.id) if to is not None else address.external_address(session.id),
        text=request.text,
        source="run",
        idempotency_key=f"{request.run}/{request.call}/delegation",
        kind=EnvelopeKind.DELEGATION,
        attachments=request.attachments,
        reply_to=request.reply_to,
        context=_request_context(request),
        trust=least_trust((Trust.AGENT, request.trust)),
    )


def _status_of_repeated_call(tx: Transaction, delegation: Delegation) -> tuple[DelegationStatus, tuple[Wake, ...]]:
    """Return the status of a delegation for a repeated call.

    If the first answer to `sessions_send` has arrived, this also starts the exchange between the
    sessions.
    """
    status = _status(tx, delegation)
    goes_on = delegation.kind is DelegationKind.SEND and delegation.state is DelegationState.DONE
    envelope = (
        session_exchange.start_exchange(tx, delegation, status.answer)
        if goes_on and status.answer is not None
        else None
    )
    return status, accept_in_transaction(tx, envelope).wakes if envelope is not None else ()


def _request_context(request: DelegationRequest) -> EnvelopeContext:
    if request.request is None and request.webhook is None:
        return NO_CONTEXT
    return EnvelopeContext(request=request.request, webhook=request.webhook is not None)


def _status(tx: Transaction, delegation: Delegation) -> DelegationStatus:
    """Return the status of a delegation.

    If the result has arrived, its envelope is settled, because the call returns the result. A wait
    that has reached its time limit is ended.
    """
    is_started = delegation.kind in SUBAGENT_DELEGATIONS and delegation.started_at is not None
    if is_started or delegation.kind is DelegationKind.BACKGROUND:
        # No call returns the result, so it is read as a message, even if the call is repeated.
        return DelegationStatus(delegation=delegation)
    if not delegation.state.is_open:
        return _collect(tx, delegation)
    if delegation.wait_until is None or from_ms(tx.at_ms) < delegation.wait_until:
        return DelegationStatus(delegation=delegation)
    delegations.release_delegation(tx.conn, delegation.id)
    if delegation.kind is DelegationKind.EXTERNAL:
        # Only this run could use the answer. A later answer counts as an unrequested message.
        waited_s = (delegation.wait_until - delegation.created_at).total_seconds()
        because = f"no answer came within {waited_s:g} seconds"
        end_delegation(tx, delegation, DelegationState.FAILED, because=because, result=None)
        return DelegationStatus(
            delegation=replace(delegation, state=DelegationState.FAILED, because=because), is_timed_out=True
        )
    return DelegationStatus(delegation=replace(delegation, wait_until=None), is_timed_out=True)


def _collect(tx: Transaction, delegation: Delegation) -> DelegationStatus:
    answer = envelopes.get(tx.conn, delegation.result) if delegation.result else None
    delegations.release_delegation(tx.conn, delegation.id)
    if answer is not None and answer.status is EnvelopeStatus.PENDING:
        because = f"the run {short_id(delegation.run)} continues with it"
        outcomes.settle(tx, [answer.id], Outcome.NOTED, because=because)
        tx.emit(
            EventKind.ENVELOPE_SETTLED,
            session=delegation.session,
            envelope=answer.id,
            outcome=Outcome.NOTED.value,
            because=because,
        )
        return DelegationStatus(delegation=delegation, answer=answer)
    # Collected before an interruption, or read as an envelope: the outcome says which.
    taken = envelopes.get_outcome(tx.conn, answer.id) if answer is not None else None
    ours = taken is not None and taken.because == f"the run {short_id(delegation.run)} continues with it"
    return DelegationStatus(delegation=delegation, answer=answer if ours else None, is_already_delivered=not ours)
