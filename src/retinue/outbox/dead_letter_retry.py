"""Retries dead letters. An envelope that is done never changes, so a retry is a new envelope with the same content."""

from __future__ import annotations

import sqlalchemy as sa
from msgspec.structs import replace

from retinue.domain.envelope import Envelope, EnvelopeDraft, EnvelopeKind
from retinue.domain.ids import EnvelopeId, short_id
from retinue.intake.accept import DELEGATION_KINDS, AcceptResult, accept_in_transaction
from retinue.outbox.errors import (
    AlreadyRetried,
    DecisionNotRetryable,
    DelegationNotRetryable,
    NotDeadLetter,
    TooManyRetries,
)
from retinue.store.core.transaction import Transaction
from retinue.store.envelopes import envelopes
from retinue.store.envelopes.dead_letters import (
    DEAD_OUTCOMES,
    RETRIES_MAX,
    RETRY_SOURCE,
    list_retries,
    original_envelope_id,
    retry_key,
)


def requeue_dead_letter(conn: sa.Connection, *, id_text: str, new_id: EnvelopeId, now_ms: int) -> AcceptResult:
    """Post the content of a dead letter as a new envelope, in the caller's transaction.

    Raises an error unless the envelope and all its earlier retries are dead letters.
    """
    tx = Transaction(conn, now_ms)
    envelope = envelopes.get(conn, envelopes.resolve_id(conn, id_text))
    assert envelope is not None  # resolved in the same transaction
    earlier = list_retries(conn, envelope)
    _refuse_unless_dead(conn, envelope, earlier)
    entered = accept_in_transaction(tx, _build_retry(envelope, new_id, number=len(earlier) + 1), strict=True)
    tx.close()
    return replace(entered, receipt=replace(entered.receipt, event_seq=tx.event_seq))


def _build_retry(envelope: Envelope, new_id: EnvelopeId, *, number: int) -> EnvelopeDraft:
    """Return the draft of a retry: the same content and addresses, but without delay or expiry time."""
    return EnvelopeDraft(
        id=new_id,
        sender=envelope.sender,
        recipient=envelope.recipient,
        text=envelope.text,
        source=RETRY_SOURCE,
        idempotency_key=retry_key(original_envelope_id(envelope), number),
        kind=envelope.kind,
        attachments=envelope.attachments,
        context=envelope.context,
        reply_to=envelope.reply_to,
        trust=envelope.trust,
        silent=envelope.silent,
        retry_of=envelope.id,
    )


def _refuse_unless_dead(conn: sa.Connection, envelope: Envelope, earlier: list[Envelope]) -> None:
    name, ended = short_id(envelope.id), envelopes.get_outcome(conn, envelope.id)
    if ended is None or ended.outcome not in DEAD_OUTCOMES:
        raise NotDeadLetter(
            name,
            because=f"its outcome is {ended.outcome}" if ended else f"it is still {envelope.status}",
            is_done=ended is not None,
        )
    if envelope.kind is EnvelopeKind.DECISION:
        raise DecisionNotRetryable(name)
    if envelope.kind in DELEGATION_KINDS:
        raise DelegationNotRetryable(name)
    for retried in earlier:
        became = envelopes.get_outcome(conn, retried.id)
        if became is None or became.outcome not in DEAD_OUTCOMES:
            raise AlreadyRetried(
                name, retry=short_id(retried.id), status=str(became.outcome if became else retried.status)
            )
    if len(earlier) >= RETRIES_MAX:
        raise TooManyRetries(name, retries=len(earlier), retries_max=RETRIES_MAX)
