"""The two commits of a delivery attempt: one opens it before anything is sent, one closes it with the result.

If an envelope is sent in several parts, `store_part` commits the receipt of each part in between.

The envelopes of a channel are sent in the order (due time, sequence). An envelope waiting for a
retry has a later due time, but all newer envelopes of the channel must still wait for it. Therefore
`open_attempt` looks for it first (`deliveries.get_waiting_retry`).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import sqlalchemy as sa
from msgspec import Struct
from msgspec.structs import replace

from retinue.config.sessions import SendSettings
from retinue.connectors.base import FailureKind
from retinue.domain import address
from retinue.domain.address import AddressKind
from retinue.domain.delivery_part import ConnectorCapabilities
from retinue.domain.envelope import Envelope, EnvelopeDraft, EnvelopeKind, EnvelopeStatus, Outcome
from retinue.domain.event import EventKind
from retinue.domain.ids import EnvelopeId, derive_id, short_id
from retinue.domain.reply_delivery import DEFAULT_REPLY_DELIVERY, ReplyDelivery
from retinue.domain.times import to_ms
from retinue.domain.trust import Trust
from retinue.intake.accept import Wake, accept_in_transaction, is_completion, notify_sender
from retinue.outbox.outbound_access import GetRefusal, allow_all
from retinue.outbox.reply_context import build_reply_setting
from retinue.policy.access.send_policy import may_send
from retinue.policy.delivery_split import SplitInputs
from retinue.store.channels import deliveries, delivery_parts
from retinue.store.channels.deliveries import DeliveryState
from retinue.store.core.transaction import Transaction
from retinue.store.envelopes import envelopes, outcomes, webhooks
from retinue.store.runs import delegations
from retinue.store.sessions import sessions
from retinue.text.quantity import format_quantity

ATTEMPTS_MAX = 5
BACKOFF_FIRST_S = 1.0
BACKOFF_MAX_S = 60.0
RETRY_AFTER_S_MAX = 3600.0
CLOSED_PER_COMMIT_MAX = 100
UNKNOWN_RESULT = "unknown"
_AGENT_KINDS = frozenset({EnvelopeKind.MESSAGE, EnvelopeKind.ANSWER, EnvelopeKind.SYSTEM})
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(SplitInputs).decode


class PartSent(Struct, frozen=True):
    """Result of sending a part. The result of a complete attempt is the result of its last part."""

    receipt: str  # the platform's proof that it accepted the part
    part: int = 0


class AttemptFailed(Struct, frozen=True, kw_only=True):
    """Result of an attempt that failed. `is_unknown` means that the envelope may have arrived.

    `is_own_stop` means that the server itself stopped between two parts. This does not count as a
    failure of the platform, and the next attempt continues with the next part.
    """

    kind: str
    message: str
    permanent: bool = False
    retry_after_s: float | None = None
    is_unknown: bool = False
    is_own_stop: bool = False


_INTERRUPTED = AttemptFailed(
    kind=UNKNOWN_RESULT, message="the server stopped while this was being sent", is_unknown=True
)


class DeliveryRules(Struct, frozen=True, kw_only=True):
    """The settings and platform capabilities that apply to deliveries in a channel."""

    attempts_max: int = ATTEMPTS_MAX
    repeats_safely: bool = False
    sending: SendSettings = SendSettings()
    capabilities: ConnectorCapabilities | None = None  # None: the platform accepts every envelope unsplit
    reply_delivery: ReplyDelivery = DEFAULT_REPLY_DELIVERY
    get_refusal: GetRefusal = allow_all


class OpenAttempt(Struct, frozen=True):
    """Result of `open_attempt`: send this envelope, except for the parts that have already arrived."""

    envelope: Envelope
    wakes: tuple[Wake, ...] = ()
    receipts: Mapping[int, str] = {}  # by part number, for the parts that have already arrived
    split: SplitInputs | None = None  # None: send the envelope unsplit


class WaitingAttempt(Struct, frozen=True):
    """Result of `open_attempt`: the channel's first envelope is waiting for a retry, so all later envelopes wait."""

    envelope: EnvelopeId
    wait_s: float
    wakes: tuple[Wake, ...] = ()


class NothingDue(Struct, frozen=True):
    """Result of `open_attempt`: no envelope is due.

    `has_more` means that the call reached its limit, and another call may find an envelope.
    """

    wakes: tuple[Wake, ...] = ()
    has_more: bool = False


class ClosedAttempt(Struct, frozen=True):
    """Result of `close_attempt`. `wait_s` is the delay before the next attempt, or None if there is none."""

    wakes: tuple[Wake, ...] = ()
    wait_s: float | None = None


def open_attempt(
    conn: sa.Connection, *, channel: str, look: bool, rested: EnvelopeId | None, terms: DeliveryRules, now_ms: int
) -> OpenAttempt | WaitingAttempt | NothingDue:
    """Open the next delivery attempt in a channel. No other attempt may be in progress there.

    Set `look` if an earlier attempt may have been left open, or may be waiting for a retry. `rested`
    is the id of an envelope whose waiting time is over according to the monotonic clock. It is sent
    even if the wall clock has been set back in the meantime.
    """
    tx = Transaction(conn, now_ms)
    wakes: list[Wake] = []
    changed = False
    for envelope in deliveries.list_unclosed(conn, channel) if look else ():
        wakes += _close_failed(tx, envelope, _INTERRUPTED, terms, wait_s=0.0).wakes
        changed = True
    for _ in range(CLOSED_PER_COMMIT_MAX):
        envelope = deliveries.get_waiting_retry(conn, channel) if look else None
        envelope = envelope or envelopes.get_next_outbound(conn, channel, tx.at_ms)
        if envelope is None:
            return _end_claim(tx, NothingDue(tuple(wakes)), is_changed=changed)
        if envelope.kind is EnvelopeKind.DELEGATION and not _is_wanted(tx, envelope):
            _settle(tx, envelope, Outcome.CANCELLED, because="its result is no longer needed")
            changed = True
            continue
        if because := _get_access_refusal(tx, envelope, terms):
            wakes += _end(tx, envelope, Outcome.DEAD, because=because, kind=FailureKind.NO_BINDING)
            changed = True
            continue
        if because := _get_send_refusal(tx, envelope, terms.sending):
            wakes += _end(tx, envelope, Outcome.REFUSED, because=because)
            changed = True
            continue
        if envelope.expires_at is not None and to_ms(envelope.expires_at) <= tx.at_ms:
            wakes += _end(tx, envelope, Outcome.EXPIRED, because="it expired before it could be sent")
            changed = True
            continue
        wait_ms = to_ms(envelope.due_at) - tx.at_ms
        if wait_ms > 0 and envelope.id != rested:
            return _end_claim(tx, WaitingAttempt(envelope.id, wait_ms / 1000, tuple(wakes)), is_changed=changed)
        envelopes.claim(conn, [envelope.id], run=None, now_ms=tx.at_ms)
        deliveries.open_attempt(conn, envelope.id, envelope.attempts + 1, at_ms=tx.at_ms)
        tx.close()
        return _build_attempt(tx, envelope, terms, tuple(wakes))
    return _end_claim(tx, NothingDue(tuple(wakes), has_more=True), is_changed=True)


def _build_attempt(tx: Transaction, envelope: Envelope, rules: DeliveryRules, wakes: tuple[Wake, ...]) -> OpenAttempt:
    opened = replace(envelope, status=EnvelopeStatus.CLAIMED, attempts=envelope.attempts + 1)
    if rules.capabilities is None:
        return OpenAttempt(opened, wakes)
    arrived = delivery_parts.get_receipts(tx.conn, envelope.id) if envelope.attempts else {}
    cut = _get_stored_split(tx, envelope) if arrived else None
    if cut is None:
        setting = build_reply_setting(tx.conn, envelope, rules.capabilities, rules.reply_delivery)
        cut = SplitInputs(able=rules.capabilities, words=rules.reply_delivery, setting=setting)
    return OpenAttempt(opened, wakes, arrived, cut)


def _get_stored_split(tx: Transaction, envelope: Envelope) -> SplitInputs | None:
    """Return how the envelope was split for the parts that arrived, or None if that is not stored.

    The remaining parts must use the same split, even if settings have changed since.
    """
    kept = delivery_parts.get_split(tx.conn, envelope.id)
    try:
        return _decode(kept) if kept else None
    except msgspec.MsgspecError:  # written by another version of the server
        return None


def store_part(
    conn: sa.Connection, *, envelope: Envelope, part: int, receipt: str, now_ms: int, cut: SplitInputs | None = None
) -> None:
    """Store the receipt of a part that was sent.

    A later attempt then skips this part, and splits the envelope in the same way.
    """
    channel, cut_by = str(envelope.recipient), _encode(cut).decode() if cut is not None else None
    delivery_parts.add(conn, envelope.id, part, channel=channel, receipt=receipt, at_ms=now_ms, split_by=cut_by)


def _get_access_refusal(tx: Transaction, envelope: Envelope, rules: DeliveryRules) -> str:
    """Return why an agent may not write to the channel, or an empty string. Checked only before the first attempt."""
    if envelope.kind not in _AGENT_KINDS or envelope.source == "server" or envelope.attempts:
        return ""
    because = rules.get_refusal(tx.conn, envelope)
    return f"{FailureKind.NO_BINDING}: {because}" if because else ""


def _get_send_refusal(tx: Transaction, envelope: Envelope, sending: SendSettings) -> str:
    """Return why a message from an agent must not be sent, or an empty string.

    The server's own messages are always sent: questions, notices and answers to commands.
    """
    if envelope.kind not in _AGENT_KINDS or envelope.source == "server" or envelope.sender.session is None:
        return ""
    session = sessions.get(tx.conn, envelope.sender.session)
    if session is None:
        return ""
    decision = may_send(session, envelope.recipient.name, sending.rules, sending.default)
    return f"not sent: {decision.because} (`{decision.setting_key}`)" if decision.is_denied else ""


def _end_claim(tx: Transaction, found: WaitingAttempt | NothingDue, *, is_changed: bool) -> WaitingAttempt | NothingDue:
    if is_changed:  # an unchanged transaction needs no commit
        tx.close()
    return found


def close_attempt(
    conn: sa.Connection, *, envelope: Envelope, result: PartSent | AttemptFailed, terms: DeliveryRules, now_ms: int
) -> ClosedAttempt:
    """Store the result of an attempt, and end the envelope or schedule the next attempt."""
    tx = Transaction(conn, now_ms)
    match result:
        case PartSent():
            closed = _close_sent(tx, envelope, result, terms)
        case AttemptFailed():
            closed = _close_failed(tx, envelope, result, terms, wait_s=_get_delay_s(result, envelope.attempts))
    tx.close()
    return closed


def _close_sent(tx: Transaction, envelope: Envelope, sent: PartSent, rules: DeliveryRules) -> ClosedAttempt:
    receipt = sent.receipt
    ours = deliveries.close_attempt(
        tx.conn, envelope.id, envelope.attempts, DeliveryState.SENT, at_ms=tx.at_ms, receipt=receipt
    )
    if not ours:  # this commit already succeeded, and only its result was lost
        return ClosedAttempt()
    if rules.capabilities is not None:
        store_part(tx.conn, envelope=envelope, part=sent.part, receipt=receipt, now_ms=tx.at_ms)
    if envelope.reply_to is not None and is_completion(envelope):
        webhooks.clear_headers(tx.conn, envelope.reply_to)
    return ClosedAttempt(
        _end(tx, envelope, Outcome.DELIVERED, because=f"{envelope.recipient.name} accepted it: {receipt}")
    )


def _close_failed(
    tx: Transaction, envelope: Envelope, failed: AttemptFailed, rules: DeliveryRules, *, wait_s: float
) -> ClosedAttempt:
    ours = deliveries.close_attempt(
        tx.conn,
        envelope.id,
        envelope.attempts,
        DeliveryState.UNKNOWN if failed.is_unknown else DeliveryState.FAILED,
        at_ms=tx.at_ms,
        error_kind=failed.kind,
        error=failed.message,
    )
    if not ours:
        return ClosedAttempt()
    if failed.is_unknown and not rules.repeats_safely:
        because = f"it is unknown whether it arrived: {failed.message}"
        return ClosedAttempt(_end(tx, envelope, Outcome.INTERRUPTED, because=because, kind=failed.kind))
    if failed.is_own_stop:
        envelopes.return_to_pending(tx.conn, envelope.id, due_ms=tx.at_ms)
        return ClosedAttempt(wait_s=0.0)
    because = f"{failed.kind}: {failed.message}"
    if failed.permanent:
        return ClosedAttempt(_end(tx, envelope, Outcome.DEAD, because=because, kind=failed.kind))
    if envelope.attempts >= rules.attempts_max and _count_failed_attempts(tx, envelope) >= rules.attempts_max:
        because += f" (given up after {format_quantity(envelope.attempts, 'attempt')})"
        return ClosedAttempt(_end(tx, envelope, Outcome.DEAD, because=because, kind=failed.kind))
    envelopes.return_to_pending(tx.conn, envelope.id, due_ms=tx.at_ms + round(wait_s * 1000))
    return ClosedAttempt(wait_s=wait_s)


def _count_failed_attempts(tx: Transaction, envelope: Envelope) -> int:
    """Return the number of attempts since a part last arrived.

    Earlier attempts do not count, because a long message that arrives part by part is not failing.
    """
    arrived_ms = delivery_parts.get_last_ms(tx.conn, envelope.id)
    if arrived_ms is None:
        return envelope.attempts
    return sum(attempt.opened_ms >= arrived_ms for attempt in deliveries.list_attempts(tx.conn, envelope.id))


def _get_delay_s(failed: AttemptFailed, attempt: int) -> float:
    """Return the delay before the next attempt: the exponential back-off plus the delay that the platform requested.

    There is no jitter, so the delay is predictable.
    """
    return min(BACKOFF_FIRST_S * 2 ** (attempt - 1), BACKOFF_MAX_S) + get_requested_delay_s(failed)


def get_requested_delay_s(failed: AttemptFailed) -> float:
    """Return the delay that the platform requested, at most `RETRY_AFTER_S_MAX`. 0 if it requested none."""
    asked_s = failed.retry_after_s
    return min(asked_s, RETRY_AFTER_S_MAX) if asked_s is not None and asked_s > 0 else 0.0


def _is_wanted(tx: Transaction, envelope: Envelope) -> bool:
    """Whether an envelope with delegated work still needs to be delivered.

    The work may have been cancelled, or answered before its delivery was confirmed.
    """
    delegation = delegations.get(tx.conn, envelope.id)
    return delegation is not None and delegation.state.is_open


def _settle(tx: Transaction, envelope: Envelope, outcome: Outcome, *, because: str) -> None:
    outcomes.settle(tx, [envelope.id], outcome, because=because)
    tx.emit(
        EventKind.ENVELOPE_SETTLED,
        session=envelope.sender.session,
        envelope=envelope.id,
        outcome=outcome.value,
        because=because,
    )


def _end(tx: Transaction, envelope: Envelope, outcome: Outcome, *, because: str, kind: str = "") -> tuple[Wake, ...]:
    _settle(tx, envelope, outcome, because=because)
    if outcome is Outcome.DELIVERED:
        return ()
    text = f"Envelope {short_id(envelope.id)} to {envelope.recipient} "
    if envelope.kind is EnvelopeKind.DELEGATION:  # the delegating run is waiting for the result, and this is it
        if not _is_wanted(tx, envelope):
            return ()
        text = f"It {_describe_outcome(outcome, kind)}"
        return notify_sender(tx, envelope.sender, envelope.id, envelope.kind, outcome.value, text)
    if envelope.sender.kind is AddressKind.AGENT:
        return _note_for_agent(tx, envelope, outcome, text=text + _describe_outcome(outcome, kind))
    text += f"ended with the outcome {outcome}: {because}"
    return notify_sender(tx, envelope.sender, envelope.id, envelope.kind, outcome.value, text)


def _note_for_agent(tx: Transaction, envelope: Envelope, outcome: Outcome, *, text: str) -> tuple[Wake, ...]:
    """Post a note to an agent, saying that its envelope was not delivered. The agent reads it in its next turn.

    The note starts no run, so it cannot cause a loop.
    """
    if envelope.kind is EnvelopeKind.NOTICE or envelope.sender.session is None:
        return ()
    draft = EnvelopeDraft(
        id=EnvelopeId(derive_id(envelope.id, outcome.value)),
        sender=address.SERVER_ADDRESS,
        recipient=envelope.sender,
        text=text,
        source="server",
        idempotency_key=f"{envelope.id}/{outcome}",
        kind=EnvelopeKind.NOTICE,
        reply_to=envelope.id,
        silent=True,
        trust=Trust.PRIVATE,
    )
    return accept_in_transaction(tx, draft).wakes


def _describe_outcome(outcome: Outcome, kind: str) -> str:
    """Return a fixed phrase for an outcome.

    The error text from the platform is left out, because it may contain text that other people wrote.
    """
    match outcome:
        case Outcome.INTERRUPTED:
            return "may or may not have arrived, and was not sent again."
        case Outcome.EXPIRED:
            return "was not sent: it expired first."
        case Outcome.REFUSED:
            return "was not sent: a rule of this server blocks it. The text is kept."
        case _:
            return f"was not delivered ({kind})."
