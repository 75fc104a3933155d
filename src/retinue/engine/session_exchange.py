"""Conducts an exchange between two sessions, after one wrote to the other with `sessions_send`.

The first answer goes back to the sender. After that each reply goes to the other session, up to a
maximum, until a session has nothing more to say. Then the session that received the first message
reports to its person.
"""

from __future__ import annotations

from retinue.domain import address
from retinue.domain.delegation import AgentExchange, Delegation, DelegationKind
from retinue.domain.envelope import (
    ENVELOPE_TEXT_BYTES_MAX,
    NO_CONTEXT,
    Envelope,
    EnvelopeContext,
    EnvelopeDraft,
    EnvelopeKind,
)
from retinue.domain.ids import EnvelopeId, SessionId, derive_id, short_id
from retinue.domain.run import RunRequest
from retinue.domain.session import Session
from retinue.domain.storable_text import truncate_bytes
from retinue.domain.trust import Trust, least_trust
from retinue.engine.run_context import ClaimedRun
from retinue.intake.routing import get_session_address
from retinue.runners.base import RunAnswer
from retinue.store.agents import agents
from retinue.store.core.transaction import Transaction
from retinue.store.envelopes import envelopes
from retinue.store.runs import delegations
from retinue.store.sessions import sessions

REPLY_SKIP = "REPLY_SKIP"
ANNOUNCE_SKIP = "ANNOUNCE_SKIP"
SOURCE = "exchange"
REPORT_TEXT_BYTES_MAX = 8_192  # bytes of each of the three texts in a report request


def exchange_turns_max(tx: Transaction, delegation: Delegation) -> int:
    """Return how many replies the exchange may have. The result is 0 if a session writes to itself."""
    asker = agents.find(tx.conn, delegation.agent)
    apart = delegation.target_session is not None and delegation.target_session != delegation.session
    return asker.delegation.exchanges_max if asker is not None and apart else 0


def first_answer_context(tx: Transaction, delegation: Delegation) -> EnvelopeContext:
    """Return the context for the first answer of an exchange.

    If no call waits for this answer, the session that reads it takes the first turn of the
    exchange.
    """
    if delegation.kind is not DelegationKind.SEND or delegation.wait_until is not None:
        return NO_CONTEXT
    most = exchange_turns_max(tx, delegation)
    return _turn_context(delegation, 1, most, to=delegation.session) if most else NO_CONTEXT


def start_exchange(tx: Transaction, delegation: Delegation, answer: Envelope) -> EnvelopeDraft | None:
    """Start the exchange after a waiting call took the first answer.

    The run of that call does not wait for the exchange.
    """
    if envelopes.get(tx.conn, _turn_envelope_id(delegation, 1)) is not None or delegation.target_session is None:
        return None
    most = exchange_turns_max(tx, delegation)
    if most == 0 or answer.text.strip() == REPLY_SKIP:
        return build_report_request(tx, delegation, answer.text, trust=answer.trust)
    return _build_turn(
        delegation, 1, most, answer.text, by=delegation.target_session, to=delegation.session, trust=answer.trust
    )


def report_without_exchange(tx: Transaction, delegation: Delegation, answer: EnvelopeDraft) -> EnvelopeDraft | None:
    """Return the report request if the first answer ends the exchange. Otherwise return None."""
    waited = delegation.kind is not DelegationKind.SEND or delegation.wait_until is not None
    if waited or answer.context.exchange is not None:
        return None
    return build_report_request(tx, delegation, answer.text, trust=answer.trust)


def next_envelope(tx: Transaction, claim: ClaimedRun, result: RunAnswer) -> EnvelopeDraft | None:
    """Return the envelope that follows a turn: a reply to the other session, a report request, the report, or None."""
    exchange = claim.envelopes[0].context.exchange
    delegation = delegations.get(tx.conn, exchange.about) if exchange is not None else None
    if exchange is None or delegation is None or delegation.target_session is None:
        return None
    words = "" if result.is_silent else result.text.strip()
    if exchange.announces:
        return _build_report(claim, result) if words not in ("", ANNOUNCE_SKIP) else None
    here = claim.session.id
    if words in ("", REPLY_SKIP):
        return build_report_request(tx, delegation, "", trust=result.trust)
    if exchange.turn >= exchange.turns_max:
        return build_report_request(tx, delegation, words, trust=result.trust)
    other = delegation.target_session if here == delegation.session else delegation.session
    return _build_turn(delegation, exchange.turn + 1, exchange.turns_max, words, by=here, to=other, trust=result.trust)


def build_report_request(
    tx: Transaction, delegation: Delegation, last_reply: str, *, trust: Trust
) -> EnvelopeDraft | None:
    """Return the request to report the exchange to the person of the recipient's session, or None if it has no person.

    Each exchange has only one request, even if the call that took the answer is repeated.
    """
    id_ = EnvelopeId(derive_id(delegation.id, "announce"))
    there = sessions.get(tx.conn, delegation.target_session) if delegation.target_session is not None else None
    if there is None or not there.origin.kind.is_foreground or envelopes.get(tx.conn, id_) is not None:
        return None
    first = envelopes.get(tx.conn, delegation.result) if delegation.result is not None else None
    answered = first.text if first is not None else ""
    parts = [("asked", delegation.task), ("answered", answered), ("last", last_reply if last_reply != answered else "")]
    request = envelopes.get(tx.conn, delegation.id)
    trusts = [each.trust for each in (first, request) if each is not None]
    return EnvelopeDraft(
        id=id_,
        sender=address.agent_address(delegation.agent, delegation.session),
        recipient=address.agent_address(there.agent, there.id),
        text="\n\n".join(f"{what}:\n{truncate_bytes(text, REPORT_TEXT_BYTES_MAX)}" for what, text in parts if text),
        source=SOURCE,
        idempotency_key=f"{delegation.id}/announce",
        kind=EnvelopeKind.ANSWER,
        context=EnvelopeContext(
            lineage=delegation.lineage,
            exchange=AgentExchange(about=delegation.id, turn=0, turns_max=0, announces=True),
            request=RunRequest(extra_system_prompt=_report_prompt(delegation)),
        ),
        reply_to=delegation.id,
        trust=least_trust((Trust.AGENT, trust, *trusts)),
    )


def _turn_envelope_id(delegation: Delegation, turn: int) -> EnvelopeId:
    return EnvelopeId(derive_id(delegation.id, f"exchange/{turn}"))


def _build_turn(
    delegation: Delegation, turn: int, limit: int, text: str, *, by: SessionId, to: SessionId, trust: Trust
) -> EnvelopeDraft:
    return EnvelopeDraft(
        id=_turn_envelope_id(delegation, turn),
        sender=address.agent_address(_agent_of(delegation, by), by),
        recipient=address.agent_address(_agent_of(delegation, to), to),
        text=truncate_bytes(text, ENVELOPE_TEXT_BYTES_MAX),
        source=SOURCE,
        idempotency_key=f"{delegation.id}/{turn}",
        kind=EnvelopeKind.ANSWER,
        context=_turn_context(delegation, turn, limit, to=to),
        reply_to=delegation.id if turn == 1 else _turn_envelope_id(delegation, turn - 1),
        trust=trust,
    )


def _turn_context(delegation: Delegation, turn: int, limit: int, *, to: SessionId) -> EnvelopeContext:
    """Return the context for the envelope of a turn. It has the delegation limits of the receiving session's run."""
    asking = to == delegation.session
    other = delegation.target_session if asking else delegation.session
    assert other is not None
    return EnvelopeContext(
        lineage=delegation.parent_lineage if asking else delegation.lineage,
        exchange=AgentExchange(about=delegation.id, turn=turn, turns_max=limit),
        request=RunRequest(extra_system_prompt=_turn_prompt(_agent_of(delegation, other), other, turn, limit)),
    )


def _agent_of(delegation: Delegation, session: SessionId) -> str:
    return delegation.agent if session == delegation.session else delegation.target


def _turn_prompt(other_agent: str, session: SessionId, turn: int, limit: int) -> str:
    return (
        f"You and {other_agent} (session {short_id(session)}) answer each other: this is turn {turn} of {limit}. "
        f"Your reply is sent only to {other_agent}. Reply exactly {REPLY_SKIP} to end the exchange. "
        "Use `message` for anything that the person you work for should know."
    )


def _report_prompt(delegation: Delegation) -> str:
    return (
        f"{delegation.agent} (session {short_id(delegation.session)}) wrote into this session, and your exchange has "
        "ended. Your reply is now sent to the person in this conversation: report in a sentence or two what they "
        f"should know. Reply exactly {ANNOUNCE_SKIP} if there is nothing to report."
    )


def _build_report(claim: ClaimedRun, result: RunAnswer) -> EnvelopeDraft | None:
    session: Session = claim.session
    if not session.origin.kind.is_foreground:
        return None
    return EnvelopeDraft(
        id=EnvelopeId(derive_id(claim.run.id, "answer")),
        sender=address.agent_address(claim.agent.name, session.id),
        recipient=get_session_address(session.origin),
        text=truncate_bytes(result.text_with_remarks, ENVELOPE_TEXT_BYTES_MAX),
        source="run",
        idempotency_key=f"{claim.run.id}/answer",
        reply_to=claim.envelopes[0].id,
        trust=result.trust,
    )
