"""Sends agent messages between sessions.

Finds the recipient, and the lineage (the chain of delegations) of the run that a message starts.

An agent message is an envelope of kind `system`. It may start a run, whose answer goes to the
person of the receiving session. The sending agent gets no answer.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from retinue.domain import address
from retinue.domain.address import AddressKind
from retinue.domain.agent import Agent, PermissionLevel
from retinue.domain.agent_message import AgentMessage, AgentMessageReceipt, RecipientStrategy
from retinue.domain.delegation import Delegation, DelegationKind, Lineage
from retinue.domain.envelope import NO_CONTEXT, EnvelopeContext, EnvelopeDraft, EnvelopeKind, Outcome
from retinue.domain.ids import EnvelopeId, SessionId, derive_id
from retinue.domain.principal import Principal
from retinue.domain.run import Run
from retinue.domain.session import SPAWNED_ORIGINS, Origin, OriginKind, Session
from retinue.domain.shared_errors import shorten_name
from retinue.domain.trust import Trust, least_trust
from retinue.engine import agent_switch
from retinue.engine.errors import (
    AgentMessageRecipientMissing,
    AgentMessageRecipientNotFound,
    AgentMessageRecipientTwice,
    AgentMessageRefused,
    AgentMessageStrategyUnknown,
    AgentMessageWithoutRun,
    SwitchBackImpossible,
    SwitchWithoutPerson,
)
from retinue.intake.accept import Wake, accept_in_transaction
from retinue.policy.access.agent_visibility import may_message
from retinue.policy.access.session_access import may_access_session
from retinue.policy.tools.delegations import build_child_lineage, may_delegate
from retinue.store.agents import agents
from retinue.store.core.transaction import Transaction
from retinue.store.envelopes import envelopes
from retinue.store.runs import delegations, runs
from retinue.store.runs.message_authors import get_lineage
from retinue.store.runs.run_principal import can_see, get_run_principal, is_descendant
from retinue.store.sessions import sessions
from retinue.store.sessions.session_names import find_session

SESSIONS_READ_MAX = 100
PERSON_KINDS = frozenset({AddressKind.PERSON, AddressKind.CHANNEL})


def send_agent_message(
    conn: sa.Connection, *, message: AgentMessage, now_ms: int
) -> tuple[AgentMessageReceipt, tuple[Wake, ...]]:
    """Send an agent message in one commit. If the tool call is repeated, return the first result."""
    id_ = EnvelopeId(derive_id(message.run, f"word/{message.call}"))
    sent = envelopes.get(conn, id_)
    if sent is not None and sent.session is not None:
        ended = envelopes.get_outcome(conn, id_)
        refused = ended.because if ended is not None and ended.outcome is Outcome.REFUSED else ""
        return AgentMessageReceipt(
            envelope=id_, agent=sent.recipient.name, session=sent.session, refused_because=refused
        ), ()
    tx = Transaction(conn, now_ms)
    heard = _send(tx, message, id_)
    tx.close()
    return heard


def _send(tx: Transaction, message: AgentMessage, id_: EnvelopeId) -> tuple[AgentMessageReceipt, tuple[Wake, ...]]:
    run = runs.get(tx.conn, message.run)
    here = sessions.get(tx.conn, run.session) if run is not None else None
    sender_agent = agents.find(tx.conn, run.agent) if run is not None else None
    if run is None or here is None or sender_agent is None:
        raise AgentMessageWithoutRun
    if message.is_switch:
        to, target = _switch_target(tx, message, id_, run, here, sender_agent)
    else:
        to, target = _find_recipient(tx, message, id_, run, here, sender_agent)
    lineage = _message_lineage(tx, message, run, here, sender_agent, to, target)
    draft = EnvelopeDraft(
        id=id_,
        sender=address.agent_address(sender_agent.name, here.id),
        recipient=address.agent_address(to.agent, to.id),
        text=message.text,
        source="run",
        idempotency_key=f"{run.id}/{message.call}/word",
        kind=EnvelopeKind.SYSTEM,
        context=EnvelopeContext(lineage=lineage) if lineage is not None else NO_CONTEXT,
        trust=least_trust((Trust.AGENT, message.trust)),
        silent=message.silent,
    )
    entered = accept_in_transaction(tx, draft)
    if message.is_switch:
        agent_switch.emit_switched(tx, run.sender, here, to)
    refused = entered.receipt.because if entered.receipt.outcome is Outcome.REFUSED else ""
    return AgentMessageReceipt(envelope=id_, agent=to.agent, session=to.id, refused_because=refused), entered.wakes


# --- recipient ---


def _find_recipient(
    tx: Transaction, message: AgentMessage, id_: EnvelopeId, run: Run, session: Session, sender: Agent
) -> tuple[Session, Agent]:
    if message.recipient and message.strategy:
        raise AgentMessageRecipientTwice
    if message.strategy:
        found = _find_by_strategy(tx, message.strategy, run, session, sender)
    elif message.recipient:
        found = _find_named(tx, message, id_, run, session, sender)
    else:
        found = _parent_session(tx, session) or _latest_reachable(tx, run, session, sender, _latest_foreground(tx))
    target = agents.find(tx.conn, found.agent) if found is not None else None
    if found is None or target is None:
        raise AgentMessageRecipientMissing
    return found, target


def _parent_session(tx: Transaction, session: Session) -> Session | None:
    """Return the session that started this session, or None if there is none or it was deleted."""
    parent = sessions.get(tx.conn, session.origin.parent) if session.origin.parent is not None else None
    return parent if parent is not None and parent.deleted_at is None else None


def _find_by_strategy(tx: Transaction, strategy: str, run: Run, session: Session, sender: Agent) -> Session | None:
    match strategy.strip().casefold():
        case RecipientStrategy.MOST_RECENT_FOREGROUND:
            return _latest_reachable(tx, run, session, sender, _latest_foreground(tx))
        case RecipientStrategy.HEARTBEAT:
            latest = sessions.list_latest_of_kind(tx.conn, OriginKind.HEARTBEAT, limit=SESSIONS_READ_MAX)
            return _latest_reachable(tx, run, session, sender, latest)
        case _:
            raise AgentMessageStrategyUnknown(strategy, known=list(RecipientStrategy))


def _latest_foreground(tx: Transaction) -> Sequence[Session]:
    return sessions.list_latest_foreground(tx.conn, limit=SESSIONS_READ_MAX)


def _latest_reachable(
    tx: Transaction, run: Run, session: Session, sender: Agent, newest_first: Sequence[Session]
) -> Session | None:
    """Return the latest other session to which the sender may write, or None.

    Sessions of the run principal come first, then other sessions that the run principal may see.
    """
    behalf = str(run.effective_lineage.behalf)
    who = get_run_principal(tx.conn, run)
    seen = [each for each in newest_first if each.id != session.id and can_see(tx.conn, who, each)]
    theirs = [each for each in seen if each.origin.belongs_to(behalf) or each.origin.key == behalf]
    return next((each for each in (*theirs, *seen) if _may_message_session(tx, sender, each)), None)


def _may_message_session(tx: Transaction, sender: Agent, session: Session) -> bool:
    target = agents.find(tx.conn, session.agent)
    return target is not None and (target.name == sender.name or may_message(sender, target).is_allowed)


def _find_named(
    tx: Transaction, message: AgentMessage, id_: EnvelopeId, run: Run, current: Session, sender: Agent
) -> Session | None:
    """Find the recipient that the message names.

    If the message names an agent, the recipient is the session in which that agent gets messages
    from the current session.
    """
    name = message.recipient.removeprefix("agent:")
    target = agents.find(tx.conn, name)
    if target is not None:
        return ensure_agent_session(tx, id_, current, target)
    who = get_run_principal(tx.conn, run)
    found = find_session(tx.conn, message.recipient, agent=sender.name, principal=who)
    owner = agents.find(tx.conn, found.agent) if found is not None else None
    if found is None or owner is None:
        raise AgentMessageRecipientNotFound(message.recipient)
    reach = may_access_session(
        sender,
        owner,
        is_confined=message.own_sessions_only,
        is_descendant=found.id in (current.origin.parent, _delegating_session(tx, run, current))
        or is_descendant(tx.conn, found, current),
        principal_can_see=can_see(tx.conn, who, found),
    )
    if reach.is_denied:
        if not reach.setting_key:
            raise AgentMessageRecipientNotFound(message.recipient)
        raise AgentMessageRefused(
            sender.name,
            f"session '{shorten_name(message.recipient)}'",
            because=reach.because,
            setting=reach.setting_key,
        )
    return found


def ensure_agent_session(tx: Transaction, id_: EnvelopeId, current: Session, target: Agent) -> Session:
    """Return the latest session in which the target agent gets messages from the session `current`, or start one.

    An agent has a separate session for each session that sends it messages.
    """
    origin = Origin(OriginKind.AGENT, str(address.agent_address(current.agent, current.id)))
    found = sessions.get_latest_by_origin(tx.conn, target.name, origin)
    if found is not None:
        return found
    made = SessionId(derive_id(id_, "session"))
    sessions.start(tx, made, agent=target.name, origin=origin)
    session = sessions.get(tx.conn, made)
    assert session is not None  # started just above
    return session


# --- switching a person to another agent ---


def _switch_target(
    tx: Transaction, message: AgentMessage, id_: EnvelopeId, run: Run, session: Session, sender: Agent
) -> tuple[Session, Agent]:
    """Return the session and the agent to which a switch moves the person."""
    if not session.origin.kind.is_foreground or run.lineage is not None or run.sender.kind not in PERSON_KINDS:
        raise SwitchWithoutPerson
    # At restricted level, so that even the owner moves only within their own conversations.
    who = Principal(address=run.sender, level=PermissionLevel.RESTRICTED, trust=Trust.PERSON)
    back = message.recipient.casefold() == agent_switch.BACK
    if back:
        there = agent_switch.find_previous_session(tx, run.sender, session, who)
        target = agents.find(tx.conn, there.agent) if there is not None else None
        if there is None or target is None:
            raise SwitchBackImpossible
        return there, target
    target = agents.find(tx.conn, message.recipient.removeprefix("agent:"))
    if target is None or not may_message(sender, target).is_allowed:
        raise AgentMessageRecipientNotFound(message.recipient)
    there = agent_switch.ensure_person_session(tx, run.sender, session, target, who, made_by=id_)
    agent_switch.record_previous_session(tx, session, there)
    return there, target


# --- lineage ---


def _delegating_session(tx: Transaction, run: Run, session: Session) -> SessionId | None:
    delegation = _delegation_of_run(tx, run, session)
    return delegation.session if delegation is not None else None


def _delegation_of_run(tx: Transaction, run: Run, session: Session) -> Delegation | None:
    """Return the delegation that this run is working on, or the delegation for which its session was created.

    A delegation that an earlier run in the same session worked on does not count.
    """
    asked = delegations.get(tx.conn, run.envelopes[0]) if run.envelopes else None
    if asked is None and session.origin.kind in SPAWNED_ORIGINS:
        return delegations.get(tx.conn, session.origin.key)
    return asked


def _message_lineage(
    tx: Transaction, message: AgentMessage, run: Run, session: Session, sender: Agent, to: Session, target: Agent
) -> Lineage | None:
    """Return the lineage of the run that the message starts.

    A message back to the delegating session has the same lineage as the delegation's result. For
    any other message, the delegation limits apply. A silent message has no lineage, because it
    starts no run.
    """
    delegation = _delegation_of_run(tx, run, session)
    if delegation is not None and delegation.session == to.id:
        return delegation.parent_lineage
    own = target.name == sender.name
    if message.is_switch and message.recipient.casefold() == agent_switch.BACK:  # the way back is always allowed
        decision = None
    elif message.silent:  # a silent message starts no run
        decision = None if own else may_message(sender, target)
    else:
        kind = DelegationKind.SEND if own else DelegationKind.MESSAGE
        decision = may_delegate(sender, target, kind, lineage=run.effective_lineage, open_count=0)
    if decision is not None and decision.is_denied:
        raise AgentMessageRefused(sender.name, target.name, because=decision.because, setting=decision.setting_key)
    return (
        None
        if message.silent
        else build_child_lineage(get_lineage(tx.conn, run), sender, target, DelegationKind.MESSAGE)
    )
