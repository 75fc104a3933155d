"""Sends text of a run to a channel before the answer, and removes that text from the answer.

The text of a model reply with tool calls becomes an envelope in the commit that closes its step.
The text is therefore stored before it reaches a channel, and is sent only once, even if the run is
resumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from msgspec.structs import replace

from retinue.domain import address
from retinue.domain.address import Address, AddressKind
from retinue.domain.envelope import ENVELOPE_TEXT_BYTES_MAX, INTERIM_KEY, EnvelopeDraft, EnvelopeKind
from retinue.domain.ids import EnvelopeId, derive_id
from retinue.domain.record import Reply
from retinue.domain.reply_delivery import ReplyDelivery, StreamMode
from retinue.domain.run import Step
from retinue.domain.storable_text import truncate_bytes
from retinue.domain.times import from_ms
from retinue.domain.trust import Trust, least_trust
from retinue.engine.run_context import ClaimedRun, trust_of_envelopes
from retinue.engine.step_writer import PendingWrite, StepResult
from retinue.intake.accept import ChannelWake, TimerWake, Wake, accept_in_transaction
from retinue.intake.routing import get_answer_address
from retinue.runners.base import SILENT_TOKENS, RunAnswer
from retinue.store.core.transaction import Transaction
from retinue.store.envelopes import envelopes
from retinue.text.answer_dedupe import remove_repeated_text

ALREADY_SENT = "answered by a message that the agent sent itself"


def send_interim_replies(tx: Transaction, claim: ClaimedRun, pending: Sequence[PendingWrite]) -> tuple[Wake, ...]:
    """Send the text of replies with tool calls to the channel that waits for the answer.

    Recipients other than channels see this text as a stream, or not at all.
    """
    words = claim.reply_delivery
    if words is None or not words.interim or (channel := _answer_channel(claim)) is None:
        return ()
    wakes: list[Wake] = []
    for closing in pending:
        match closing:
            case StepResult(Reply(calls=calls) as reply, Step(turn=turn)) if calls and _has_text(reply):
                wakes += _send_reply(tx, claim, words, channel, turn=turn, text=reply.text.strip())
            case _:
                pass
    return tuple(wakes)


def flush_held_reply(tx: Transaction, claim: ClaimedRun) -> tuple[Wake, ...]:
    """Send the reply that block mode is still holding back, before the answer or a question is sent."""
    if (
        claim.reply_delivery is None
        or claim.reply_delivery.stream is not StreamMode.BLOCKS
        or (channel := _answer_channel(claim)) is None
    ):
        return ()
    waits = envelopes.get_waiting_interim(tx.conn, run=claim.run.id, recipient=str(channel))
    if waits is None:
        return ()
    envelopes.release_held(tx.conn, waits.id, due_ms=tx.at_ms, session=None, recipient=channel, text=waits.text)
    return (ChannelWake(str(channel)),)


def remove_sent_text(
    tx: Transaction, claim: ClaimedRun, answer: EnvelopeDraft, result: RunAnswer
) -> EnvelopeDraft | None:
    """Remove text from the answer that this run has already sent to the same channel.

    Returns None if nothing is left.
    """
    sent = envelopes.list_texts_sent_by_run(tx.conn, run=claim.run.id, recipient=str(answer.recipient))
    if not sent:
        return answer
    rest = remove_repeated_text(result.text, sent)
    if rest == result.text:
        return answer
    remarks = [f"[{remark}]" for remark in result.remarks]
    text = "\n\n".join((*((rest,) if rest else ()), *remarks))
    if not text:
        return None
    return replace(answer, text=truncate_bytes(text, ENVELOPE_TEXT_BYTES_MAX))


def _answer_channel(claim: ClaimedRun) -> Address | None:
    if not claim.envelopes or not claim.session.origin.kind.is_foreground:
        return None
    first = claim.envelopes[0]
    if first.kind is EnvelopeKind.DELEGATION:
        return None
    to = get_answer_address(
        claim.run.sender, origin=claim.session.origin, kind=first.kind, requested=first.context.answer_to
    )
    return to if to is not None and to.kind is AddressKind.CHANNEL else None


def _has_text(reply: Reply) -> bool:
    text = reply.text.strip()
    return bool(text) and text not in SILENT_TOKENS


def _send_reply(
    tx: Transaction, claim: ClaimedRun, delivery: ReplyDelivery, channel: Address, *, turn: int, text: str
) -> tuple[Wake, ...]:
    """Send one reply. In block mode, a short reply is held for a moment, so that the next reply can be joined to it."""
    idle_ms = delivery.block_idle_ms if delivery.stream is StreamMode.BLOCKS else 0
    waits = envelopes.get_waiting_interim(tx.conn, run=claim.run.id, recipient=str(channel)) if idle_ms else None
    if waits is not None:
        text = f"{waits.text}\n\n{text}"
        idle_ms = 0 if len(text) >= delivery.block_min else idle_ms
        due_ms = tx.at_ms + idle_ms
        text = truncate_bytes(text, ENVELOPE_TEXT_BYTES_MAX)
        envelopes.release_held(tx.conn, waits.id, due_ms=due_ms, session=None, recipient=channel, text=text)
        return (TimerWake(due_ms),) if idle_ms else (ChannelWake(str(channel)),)
    if len(text) >= delivery.block_min:
        idle_ms = 0
    draft = EnvelopeDraft(
        id=EnvelopeId(derive_id(claim.run.id, f"{INTERIM_KEY} {turn}")),
        sender=address.agent_address(claim.agent.name, claim.session.id),
        recipient=channel,
        text=truncate_bytes(text, ENVELOPE_TEXT_BYTES_MAX),
        source="run",
        idempotency_key=f"{INTERIM_KEY}/{claim.run.id}/{turn}",
        kind=EnvelopeKind.MESSAGE,  # not a reply: only the answer quotes the question
        trust=least_trust((Trust.AGENT, trust_of_envelopes(claim.envelopes))),
        deliver_at=from_ms(tx.at_ms) + timedelta(milliseconds=idle_ms) if idle_ms else None,
    )
    return accept_in_transaction(tx, draft).wakes
