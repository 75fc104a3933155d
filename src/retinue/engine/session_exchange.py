"""An exchange between two sessions, after one wrote to the other with `sessions_send`.

The first answer goes back to the sender. After that each reply goes to the other session, up to a
maximum, until one has nothing more to say. Then the recipient reports to the person of its session.
"""

from __future__ import annotations

from retinue.domain import address
from retinue.domain.delegation import Delegation, DelegationKind, Exchange
from retinue.domain.envelope import NO_CONTEXT, TEXT_BYTES_MAX, Context, Draft, Envelope, Kind
from retinue.domain.ids import EnvelopeId, SessionId, derived, short
from retinue.domain.run import RunRequest
from retinue.domain.session import Session
from retinue.domain.storable_text import clipped_bytes
from retinue.domain.trust import Trust, least
from retinue.engine.run_context import Work
from retinue.intake.routing import who_listens
from retinue.runners.base import Finished
from retinue.store.agents import agents
from retinue.store.core.transaction import Page
from retinue.store.envelopes import envelopes
from retinue.store.runs import delegations
from retinue.store.sessions import sessions

REPLY_SKIP = "REPLY_SKIP"
ANNOUNCE_SKIP = "ANNOUNCE_SKIP"
SOURCE = "exchange"
TOLD_BYTES_MAX = 8_192  # bytes of each of the three texts in a report request


def turns_max(page: Page, delegation: Delegation) -> int:
    """Return how many replies the exchange may have. A session that writes to itself has none."""
    asker = agents.find(page.conn, delegation.agent)
    apart = delegation.to is not None and delegation.to != delegation.session
    return asker.delegation.exchanges_max if asker is not None and apart else 0


def context_of_answer(page: Page, delegation: Delegation) -> Context:
    """Return the context of a first answer that no call waits for: its reader takes the first turn."""
    if delegation.kind is not DelegationKind.SEND or delegation.wait_until is not None:
        return NO_CONTEXT
    most = turns_max(page, delegation)
    return _context(delegation, 1, most, to=delegation.session) if most else NO_CONTEXT


def begin(page: Page, delegation: Delegation, answer: Envelope) -> Draft | None:
    """Start the exchange after a waiting call took the first answer. It runs beside that run."""
    if envelopes.get(page.conn, _letter_id(delegation, 1)) is not None or delegation.to is None:
        return None
    most = turns_max(page, delegation)
    if most == 0 or answer.text.strip() == REPLY_SKIP:
        return announcement(page, delegation, answer.text, trust=answer.trust)
    return _letter(delegation, 1, most, answer.text, by=delegation.to, to=delegation.session, trust=answer.trust)


def said_at_once(page: Page, delegation: Delegation, answer: Draft) -> Draft | None:
    """Return the report request if the first answer already ends the exchange, or None."""
    waited = delegation.kind is not DelegationKind.SEND or delegation.wait_until is not None
    if waited or answer.context.exchange is not None:
        return None
    return announcement(page, delegation, answer.text, trust=answer.trust)


def following(page: Page, work: Work, finished: Finished) -> Draft | None:
    """Return what a turn leads to: an envelope to the other session, the report request, or None."""
    exchange = work.envelopes[0].context.exchange
    delegation = delegations.get(page.conn, exchange.about) if exchange is not None else None
    if exchange is None or delegation is None or delegation.to is None:
        return None
    words = "" if finished.silent else finished.text.strip()
    if exchange.announces:
        return _to_person(work, finished) if words not in ("", ANNOUNCE_SKIP) else None
    here = work.session.id
    if words in ("", REPLY_SKIP):
        return announcement(page, delegation, "", trust=finished.trust)
    if exchange.turn >= exchange.turns_max:
        return announcement(page, delegation, words, trust=finished.trust)
    other = delegation.to if here == delegation.session else delegation.session
    return _letter(delegation, exchange.turn + 1, exchange.turns_max, words, by=here, to=other, trust=finished.trust)


def announcement(page: Page, delegation: Delegation, last: str, *, trust: Trust) -> Draft | None:
    """Return the request to report the exchange to the person of the recipient's session, if there is one.

    It is made once, because the call that took the answer may be repeated.
    """
    id_ = EnvelopeId(derived(delegation.id, "announce"))
    there = sessions.get(page.conn, delegation.to) if delegation.to is not None else None
    if there is None or not there.origin.kind.foreground or envelopes.get(page.conn, id_) is not None:
        return None
    first = envelopes.get(page.conn, delegation.result) if delegation.result is not None else None
    answered = first.text if first is not None else ""
    said = [("asked", delegation.task), ("answered", answered), ("last", last if last != answered else "")]
    letter = envelopes.get(page.conn, delegation.id)
    trusts = [each.trust for each in (first, letter) if each is not None]
    return Draft(
        id=id_,
        sender=address.agent(delegation.agent, delegation.session),
        recipient=address.agent(there.agent, there.id),
        text="\n\n".join(f"{what}:\n{clipped_bytes(text, TOLD_BYTES_MAX)}" for what, text in said if text),
        source=SOURCE,
        key=f"{delegation.id}/announce",
        kind=Kind.ANSWER,
        context=Context(
            lineage=delegation.lineage,
            exchange=Exchange(about=delegation.id, turn=0, turns_max=0, announces=True),
            request=RunRequest(extra_system_prompt=_announce(delegation)),
        ),
        reply_to=delegation.id,
        trust=least((Trust.AGENT, trust, *trusts)),
    )


def _letter_id(delegation: Delegation, turn: int) -> EnvelopeId:
    return EnvelopeId(derived(delegation.id, f"exchange/{turn}"))


def _letter(
    delegation: Delegation, turn: int, most: int, words: str, *, by: SessionId, to: SessionId, trust: Trust
) -> Draft:
    return Draft(
        id=_letter_id(delegation, turn),
        sender=address.agent(_agent_of(delegation, by), by),
        recipient=address.agent(_agent_of(delegation, to), to),
        text=clipped_bytes(words, TEXT_BYTES_MAX),
        source=SOURCE,
        key=f"{delegation.id}/{turn}",
        kind=Kind.ANSWER,
        context=_context(delegation, turn, most, to=to),
        reply_to=delegation.id if turn == 1 else _letter_id(delegation, turn - 1),
        trust=trust,
    )


def _context(delegation: Delegation, turn: int, most: int, *, to: SessionId) -> Context:
    """Return the context of a turn. It has the limits of the run that it answers, on either side."""
    asking = to == delegation.session
    other = delegation.to if asking else delegation.session
    assert other is not None
    return Context(
        lineage=delegation.above if asking else delegation.lineage,
        exchange=Exchange(about=delegation.id, turn=turn, turns_max=most),
        request=RunRequest(extra_system_prompt=_reply(_agent_of(delegation, other), other, turn, most)),
    )


def _agent_of(delegation: Delegation, session: SessionId) -> str:
    return delegation.agent if session == delegation.session else delegation.target


def _reply(other: str, session: SessionId, turn: int, most: int) -> str:
    return (
        f"You and {other} (session {short(session)}) answer each other: this is turn {turn} of {most}. What you say "
        f"now goes to {other} and to nobody else. Say exactly {REPLY_SKIP} where nothing more is to be said. Whatever "
        "the person you work for should know, tell them with `message`."
    )


def _announce(delegation: Delegation) -> str:
    return (
        f"{delegation.agent} (session {short(delegation.session)}) wrote into this session, and all is said between "
        "you. What you say now goes to the person who sits here: tell them in a sentence or two what they should know "
        f"of it. Say exactly {ANNOUNCE_SKIP} where there is nothing to tell."
    )


def _to_person(work: Work, finished: Finished) -> Draft | None:
    session: Session = work.session
    if not session.origin.kind.foreground:
        return None
    return Draft(
        id=EnvelopeId(derived(work.run.id, "answer")),
        sender=address.agent(work.agent.name, session.id),
        recipient=who_listens(session.origin),
        text=clipped_bytes(finished.answer, TEXT_BYTES_MAX),
        source="run",
        key=f"{work.run.id}/answer",
        reply_to=work.envelopes[0].id,
        trust=finished.trust,
    )
