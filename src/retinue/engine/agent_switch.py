"""Moves a person's conversation to another agent and back (`/switch`).

The text after the command, or the last reply of the agent that the person leaves, is sent to the
other agent as an ordinary envelope.
"""

from __future__ import annotations

from typing import Any, cast

from msgspec import Struct
from msgspec.structs import replace

from retinue.domain import address
from retinue.domain.address import Address, AddressKind
from retinue.domain.agent import Agent
from retinue.domain.envelope import NO_CONTEXT, EnvelopeDraft, EnvelopeKind
from retinue.domain.event import EventKind
from retinue.domain.ids import EnvelopeId, SessionId, derive_id, short_id
from retinue.domain.principal import Principal
from retinue.domain.record import Reply, least_trust_in
from retinue.domain.session import Origin, OriginKind, Session, patch_attributes
from retinue.domain.storable_text import truncate_bytes
from retinue.domain.trust import Trust
from retinue.intake.accept import Wake, accept_in_transaction
from retinue.store.agents import agents
from retinue.store.core.row_visibility import can_see_session
from retinue.store.core.transaction import Transaction
from retinue.store.sessions import records, sessions

BACK = "back"
# Keys in a session's `core` attributes: the session from which a person last switched to this one.
PREVIOUS_SESSION_KEY = "came_from"
FORMER_PREVIOUS_SESSION_KEY = "cameFrom"  # stored by an earlier version
SUMMARY_BYTES_MAX = 4_096


class SwitchResult(Struct, frozen=True):
    """The reply to a `/switch` command, and the lanes to wake."""

    text: str
    wakes: tuple[Wake, ...] = ()


def switch_agent(
    tx: Transaction, draft: EnvelopeDraft, arguments: str, session: Session, agent: Agent, *, principal: Principal
) -> SwitchResult:
    """Execute /switch AGENT [TEXT] or /switch back [TEXT]."""
    name, _, words = arguments.strip().partition(" ")
    words = words.strip()
    if not name:
        return SwitchResult("Name an agent: /switch AGENT [TEXT]. /agents lists the agents.")
    if name.casefold() == BACK:
        return _switch_back(tx, draft, words, session, agent, principal)
    to = agents.find(tx.conn, name.removeprefix("agent:"))
    if to is None or not to.visible:
        return SwitchResult(f"No agent named '{name[:40]}'. /agents lists the agents.")
    if to.name == agent.name:
        return SwitchResult(f"You are already talking to {to.name}.")
    there = ensure_person_session(tx, draft.sender, session, to, principal, made_by=draft.id)
    record_previous_session(tx, session, there)
    wakes = accept_in_transaction(tx, _build_message(draft, there, words)).wakes if words else ()
    return SwitchResult(_confirm_switch(tx, draft, session, there), wakes)


def record_previous_session(tx: Transaction, session: Session, target: Session) -> None:
    """Record in the target session which session the person came from, for `/switch back`."""
    core = patch_attributes(
        target.attributes, {"core": {PREVIOUS_SESSION_KEY: session.id, FORMER_PREVIOUS_SESSION_KEY: None}}
    )
    sessions.set_attributes(tx.conn, target.id, core, at_ms=tx.at_ms)


def ensure_person_session(
    tx: Transaction, sender: Address, session: Session, agent: Agent, principal: Principal, *, made_by: EnvelopeId
) -> Session:
    """Return the person's latest session with the agent, or a new session.

    If the person writes in a channel, the session belongs to the same channel.
    """
    in_channel = sender.kind is AddressKind.CHANNEL
    if in_channel:
        origin = session.origin
    else:
        kind = session.origin.kind if session.origin.kind is OriginKind.TERMINAL else OriginKind.WEB
        fresh = Origin(kind, str(address.person_address(sender.name)))
        origin = sessions.get_latest_origin(tx.conn, agent.name, principal=principal) or fresh
    found = sessions.get_by_origin(tx.conn, agent.name, origin)
    if found is not None:
        return found
    id_ = SessionId(derive_id(made_by, "switch"))
    sessions.start(tx, id_, agent=agent.name, origin=replace(origin, parent=None))
    made = sessions.get(tx.conn, id_)
    assert made is not None  # started just above
    return made


def find_previous_session(tx: Transaction, sender: Address, session: Session, principal: Principal) -> Session | None:
    """Return the session from which the person switched to this session, if the person may still see it."""
    core = session.attributes.get("core")
    known = cast("dict[str, Any]", core) if isinstance(core, dict) else {}
    before = known.get(PREVIOUS_SESSION_KEY, known.get(FORMER_PREVIOUS_SESSION_KEY))
    there = sessions.get(tx.conn, before) if isinstance(before, str) else None
    if there is None or there.deleted_at is not None:
        return None
    in_channel = sender.kind is AddressKind.CHANNEL
    seen = there.origin == session.origin if in_channel else can_see_session(tx.conn, principal, there.id)
    return there if seen else None


def _switch_back(
    tx: Transaction, draft: EnvelopeDraft, text: str, session: Session, agent: Agent, principal: Principal
) -> SwitchResult:
    there = find_previous_session(tx, draft.sender, session, principal)
    if there is None:
        return SwitchResult("You were not switched here from another agent. /switch AGENT switches to one.")
    if text:
        envelope = _build_message(draft, there, f"Back from {agent.name}. {text}")
    else:
        envelope = _build_last_reply(tx, draft, session, agent, there)
    wakes = accept_in_transaction(tx, envelope).wakes if envelope is not None else ()
    return SwitchResult(_confirm_switch(tx, draft, session, there), wakes)


def _build_message(draft: EnvelopeDraft, target: Session, text: str) -> EnvelopeDraft:
    """Return an envelope with the person's text for the other session."""
    return EnvelopeDraft(
        id=EnvelopeId(derive_id(draft.id, "switched")),
        sender=draft.sender,
        recipient=address.agent_address(target.agent, target.id),
        text=text,
        source="command",
        idempotency_key=f"{draft.id}/switched",
        attachments=draft.attachments,
        context=replace(draft.context, request=None) if draft.context is not NO_CONTEXT else NO_CONTEXT,
        trust=draft.trust,
    )


def _build_last_reply(
    tx: Transaction, draft: EnvelopeDraft, session: Session, agent: Agent, target: Session
) -> EnvelopeDraft | None:
    """Return a message with the last reply of the agent that the person leaves, or None if there is no reply.

    The message is untrusted if the context of that reply contains untrusted content.
    """
    found, _ = records.read_range(tx.conn, session.id, first=session.context_start_seq, last=session.record_seq)
    last_reply = next((r.body.text for r in reversed(found) if isinstance(r.body, Reply) and r.body.text.strip()), "")
    if not last_reply:
        return None
    doubted = least_trust_in(found) is Trust.UNTRUSTED
    return EnvelopeDraft(
        id=EnvelopeId(derive_id(draft.id, "switched")),
        sender=address.agent_address(agent.name, session.id),
        recipient=address.agent_address(target.agent, target.id),
        text=f"{draft.sender} is back from {agent.name}, whose last message was:\n"
        + truncate_bytes(last_reply, SUMMARY_BYTES_MAX),
        source="command",
        idempotency_key=f"{draft.id}/switched",
        kind=EnvelopeKind.SYSTEM,
        trust=Trust.UNTRUSTED if doubted else Trust.AGENT,
        silent=True,
    )


def _confirm_switch(tx: Transaction, draft: EnvelopeDraft, session: Session, target: Session) -> str:
    emit_switched(tx, draft.sender, session, target)
    if draft.sender.kind is AddressKind.CHANNEL:
        return (
            f"{target.agent} got your message and will answer here. "
            f"Your next messages here still go to {session.agent}."
        )
    return f"You are now talking to {target.agent}, in the session {short_id(target.id)}."


def emit_switched(tx: Transaction, sender: Address, session: Session, target: Session) -> None:
    """Emit the event that lets the person's web app switch to the other session."""
    tx.emit(EventKind.SESSION_SWITCHED, session=session.id, to=target.id, agent=target.agent, by=str(sender))
