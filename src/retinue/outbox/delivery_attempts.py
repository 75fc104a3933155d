"""The two commits of a delivery: one opens an attempt before anything is sent, and one closes it
with the result.

An attempt with several parts has a small commit between them (`store_part`).

The order of a channel is (due time, sequence), also with retries. An envelope that failed
temporarily waits with a later due time. So a channel first asks for an envelope with an earlier
attempt (`deliveries.get_waiting_retry`). While that one waits, all later ones wait too.
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
from retinue.domain.delivery_part import Abilities
from retinue.domain.envelope import Draft, Envelope, Kind, Outcome, Status
from retinue.domain.event import NewsKind
from retinue.domain.ids import EnvelopeId, derived, short
from retinue.domain.reply_delivery import PLAIN_WORDS, Words
from retinue.domain.times import to_ms
from retinue.domain.trust import Trust
from retinue.intake.accept import Wake, enter, is_completion, notify
from retinue.outbox.outbound_access import WhyNot, everywhere
from retinue.outbox.reply_context import setting_of
from retinue.policy.access.send_policy import may_send
from retinue.policy.delivery_split import Cut
from retinue.store.channels import deliveries, delivery_parts
from retinue.store.channels.deliveries import DeliveryState
from retinue.store.core.transaction import Page
from retinue.store.envelopes import envelopes, outcomes, webhooks
from retinue.store.runs import delegations
from retinue.store.sessions import sessions

ATTEMPTS_MAX = 5
BACKOFF_FIRST_S = 1.0
BACKOFF_MAX_S = 60.0
RETRY_AFTER_S_MAX = 3600.0
CLOSED_AT_ONCE_MAX = 100
UNKNOWN = "unknown"
_AGENTS_WORDS = frozenset({Kind.MESSAGE, Kind.ANSWER, Kind.SYSTEM})
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Cut).decode


class Sent(Struct, frozen=True):
    """An attempt succeeded."""

    receipt: str  # of its last part
    part: int = 0


class Failed(Struct, frozen=True, kw_only=True):
    """An attempt failed. `is_unknown` means that it may have arrived.

    `is_own_stop` means that the server itself stopped between two parts: the next attempt
    continues, and the platform is not to blame.
    """

    kind: str
    message: str
    permanent: bool = False
    retry_after_s: float | None = None
    arrived_maybe: bool = False
    ours: bool = False


_CUT_OFF = Failed(kind=UNKNOWN, message="the house stopped while this was being sent", arrived_maybe=True)


class Terms(Struct, frozen=True, kw_only=True):
    """The settings and capabilities for the attempts in a channel."""

    attempts_max: int = ATTEMPTS_MAX
    repeats_safely: bool = False
    sending: SendSettings = SendSettings()
    able: Abilities | None = None  # None: the platform accepts every envelope unsplit
    words: Words = PLAIN_WORDS
    why_not: WhyNot = everywhere


class Taken(Struct, frozen=True):
    """An attempt is open: send this envelope now, except for the parts that have arrived."""

    envelope: Envelope
    wakes: tuple[Wake, ...] = ()
    arrived: Mapping[int, str] = {}  # receipts by part
    cut: Cut | None = None  # None: it is sent unsplit


class Resting(Struct, frozen=True):
    """The first envelope waits for its next attempt, and those behind it wait with it."""

    envelope: EnvelopeId
    wait_s: float
    wakes: tuple[Wake, ...] = ()


class Nothing(Struct, frozen=True):
    """Nothing is due. `has_more` means that the limit per commit was reached, and there may be
    more."""

    wakes: tuple[Wake, ...] = ()
    again: bool = False


class Closed(Struct, frozen=True):
    """How an attempt was closed. `wait_s` is set if there will be another."""

    wakes: tuple[Wake, ...] = ()
    wait_s: float | None = None


def claim(
    conn: sa.Connection, *, channel: str, look: bool, rested: EnvelopeId | None, terms: Terms, now_ms: int
) -> Taken | Resting | Nothing:
    """Open the next attempt in a channel in which no other attempt is in progress.

    `look` says that an earlier attempt may have been left open, or may wait for a retry. `rested`
    is an envelope that has waited long enough by a monotonic clock, whatever the wall clock says.
    """
    page = Page(conn, now_ms)
    wakes: list[Wake] = []
    changed = False
    for envelope in deliveries.cut_off(conn, channel) if look else ():
        wakes += _close_failed(page, envelope, _CUT_OFF, terms, wait_s=0.0).wakes
        changed = True
    for _ in range(CLOSED_AT_ONCE_MAX):
        envelope = deliveries.begun(conn, channel) if look else None
        envelope = envelope or envelopes.outbox_next(conn, channel, page.at_ms)
        if envelope is None:
            return _leave(page, Nothing(tuple(wakes)), changed=changed)
        if envelope.kind is Kind.DELEGATION and not _is_wanted(page, envelope):
            _settle(page, envelope, Outcome.CANCELLED, because="nobody waits for what would come of it")
            changed = True
            continue
        if because := _out_of_reach(page, envelope, terms):
            wakes += _end(page, envelope, Outcome.DEAD, because=because, kind=FailureKind.NO_BINDING)
            changed = True
            continue
        if because := _held_back(page, envelope, terms.sending):
            wakes += _end(page, envelope, Outcome.REFUSED, because=because)
            changed = True
            continue
        if envelope.expires_at is not None and to_ms(envelope.expires_at) <= page.at_ms:
            wakes += _end(page, envelope, Outcome.EXPIRED, because="it expired before it could be sent")
            changed = True
            continue
        wait_ms = to_ms(envelope.due_at) - page.at_ms
        if wait_ms > 0 and envelope.id != rested:
            return _leave(page, Resting(envelope.id, wait_ms / 1000, tuple(wakes)), changed=changed)
        envelopes.claim(conn, [envelope.id], run=None, now_ms=page.at_ms)
        deliveries.open_attempt(conn, envelope.id, envelope.attempts + 1, at_ms=page.at_ms)
        page.close()
        return _taken(page, envelope, terms, tuple(wakes))
    return _leave(page, Nothing(tuple(wakes), again=True), changed=True)


def _taken(page: Page, envelope: Envelope, terms: Terms, wakes: tuple[Wake, ...]) -> Taken:
    opened = replace(envelope, status=Status.CLAIMED, attempts=envelope.attempts + 1)
    if terms.able is None:
        return Taken(opened, wakes)
    arrived = delivery_parts.of(page.conn, envelope.id) if envelope.attempts else {}
    cut = _cut_before(page, envelope) if arrived else None
    if cut is None:
        setting = setting_of(page.conn, envelope, terms.able, terms.words)
        cut = Cut(able=terms.able, words=terms.words, setting=setting)
    return Taken(opened, wakes, arrived, cut)


def _cut_before(page: Page, envelope: Envelope) -> Cut | None:
    """The split of the parts that have arrived, whatever the settings and the platform say now."""
    kept = delivery_parts.cut_by(page.conn, envelope.id)
    try:
        return _decode(kept) if kept else None
    except msgspec.MsgspecError:  # written by another version of the server
        return None


def keep_part(
    conn: sa.Connection, *, envelope: Envelope, part: int, receipt: str, now_ms: int, cut: Cut | None = None
) -> None:
    """Store the receipt of one part, if there are more. It is not sent again, and the others keep
    the same split."""
    channel, cut_by = str(envelope.recipient), _encode(cut).decode() if cut is not None else None
    delivery_parts.add(conn, envelope.id, part, channel=channel, receipt=receipt, at_ms=now_ms, cut_by=cut_by)


def _out_of_reach(page: Page, envelope: Envelope, terms: Terms) -> str:
    """Why an agent may not write there; empty if it may. Checked once, before any part is sent."""
    if envelope.kind not in _AGENTS_WORDS or envelope.source == "house" or envelope.attempts:
        return ""
    because = terms.why_not(page.conn, envelope)
    return f"{FailureKind.NO_BINDING}: {because}" if because else ""


def _held_back(page: Page, envelope: Envelope, sending: SendSettings) -> str:
    """Why a message of an agent is not sent; empty if it is. The server's own messages always are:
    command answers, questions and notices."""
    if envelope.kind not in _AGENTS_WORDS or envelope.source == "house" or envelope.sender.session is None:
        return ""
    session = sessions.get(page.conn, envelope.sender.session)
    if session is None:
        return ""
    decision = may_send(session, envelope.recipient.name, sending.rules, sending.default)
    return f"not sent: {decision.because} (`{decision.key}`)" if decision.denied else ""


def _leave(page: Page, found: Resting | Nothing, *, changed: bool) -> Resting | Nothing:
    if changed:  # an unchanged transaction needs no commit
        page.close()
    return found


def close(conn: sa.Connection, *, envelope: Envelope, result: Sent | Failed, terms: Terms, now_ms: int) -> Closed:
    """Store the result of an attempt, and end the envelope or schedule the next attempt."""
    page = Page(conn, now_ms)
    match result:
        case Sent():
            closed = _close_sent(page, envelope, result, terms)
        case Failed():
            closed = _close_failed(page, envelope, result, terms, wait_s=_wait_s(result, envelope.attempts))
    page.close()
    return closed


def _close_sent(page: Page, envelope: Envelope, sent: Sent, terms: Terms) -> Closed:
    receipt = sent.receipt
    ours = deliveries.close_attempt(
        page.conn, envelope.id, envelope.attempts, DeliveryState.SENT, at_ms=page.at_ms, receipt=receipt
    )
    if not ours:  # this commit already succeeded, and only its result was lost
        return Closed()
    if terms.able is not None:
        keep_part(page.conn, envelope=envelope, part=sent.part, receipt=receipt, now_ms=page.at_ms)
    if envelope.reply_to is not None and is_completion(envelope):
        webhooks.blank(page.conn, envelope.reply_to)
    return Closed(_end(page, envelope, Outcome.DELIVERED, because=f"{envelope.recipient.name} took it: {receipt}"))


def _close_failed(page: Page, envelope: Envelope, failed: Failed, terms: Terms, *, wait_s: float) -> Closed:
    ours = deliveries.close_attempt(
        page.conn,
        envelope.id,
        envelope.attempts,
        DeliveryState.UNKNOWN if failed.arrived_maybe else DeliveryState.FAILED,
        at_ms=page.at_ms,
        error_kind=failed.kind,
        error=failed.message,
    )
    if not ours:
        return Closed()
    if failed.arrived_maybe and not terms.repeats_safely:
        because = f"nobody knows whether it arrived: {failed.message}"
        return Closed(_end(page, envelope, Outcome.INTERRUPTED, because=because, kind=failed.kind))
    if failed.ours:
        envelopes.back_to_pending(page.conn, envelope.id, due_ms=page.at_ms)
        return Closed(wait_s=0.0)
    because = f"{failed.kind}: {failed.message}"
    if failed.permanent:
        return Closed(_end(page, envelope, Outcome.DEAD, because=because, kind=failed.kind))
    if envelope.attempts >= terms.attempts_max and _in_vain(page, envelope) >= terms.attempts_max:
        because += f" (given up after {envelope.attempts} attempts)"
        return Closed(_end(page, envelope, Outcome.DEAD, because=because, kind=failed.kind))
    envelopes.back_to_pending(page.conn, envelope.id, due_ms=page.at_ms + round(wait_s * 1000))
    return Closed(wait_s=wait_s)


def _in_vain(page: Page, envelope: Envelope) -> int:
    """Attempts since a part last arrived: a long message that arrives part by part is not failing."""
    arrived_ms = delivery_parts.last_ms(page.conn, envelope.id)
    if arrived_ms is None:
        return envelope.attempts
    return sum(attempt.opened_ms >= arrived_ms for attempt in deliveries.of(page.conn, envelope.id))


def _wait_s(failed: Failed, attempt: int) -> float:
    """Exponential back-off, plus the delay that the platform requested. Without jitter: the store
    alone determines what comes next."""
    return min(BACKOFF_FIRST_S * 2 ** (attempt - 1), BACKOFF_MAX_S) + polite_s(failed)


def polite_s(failed: Failed) -> float:
    """The delay that the platform requested, limited."""
    asked_s = failed.retry_after_s
    return min(asked_s, RETRY_AFTER_S_MAX) if asked_s is not None and asked_s > 0 else 0.0


def _is_wanted(page: Page, envelope: Envelope) -> bool:
    """Whether outbound work is still waited for. It may be answered before its delivery is
    confirmed, or its requester stopped."""
    delegation = delegations.get(page.conn, envelope.id)
    return delegation is not None and delegation.state.open


def _settle(page: Page, envelope: Envelope, outcome: Outcome, *, because: str) -> None:
    outcomes.settle(page, [envelope.id], outcome, because=because)
    page.tell(
        NewsKind.ENVELOPE_SETTLED,
        session=envelope.sender.session,
        envelope=envelope.id,
        outcome=outcome.value,
        because=because,
    )


def _end(page: Page, envelope: Envelope, outcome: Outcome, *, because: str, kind: str = "") -> tuple[Wake, ...]:
    _settle(page, envelope, outcome, because=because)
    if outcome is Outcome.DELIVERED:
        return ()
    text = f"Envelope {short(envelope.id)} to {envelope.recipient} "
    if envelope.kind is Kind.DELEGATION:  # the delegating run waits for the result, and this is it
        if not _is_wanted(page, envelope):
            return ()
        text = f"It {_in_our_words(outcome, kind)}"
        return notify(page, envelope.sender, envelope.id, envelope.kind, outcome.value, text)
    if envelope.sender.kind is AddressKind.AGENT:
        return _note_for_agent(page, envelope, outcome, text=text + _in_our_words(outcome, kind))
    return notify(page, envelope.sender, envelope.id, envelope.kind, outcome.value, f"{text}ended {outcome}: {because}")


def _note_for_agent(page: Page, envelope: Envelope, outcome: Outcome, *, text: str) -> tuple[Wake, ...]:
    """A note that the agent reads with its next turn. It starts no run, so it cannot cause a loop."""
    if envelope.kind is Kind.NOTICE or envelope.sender.session is None:
        return ()
    draft = Draft(
        id=EnvelopeId(derived(envelope.id, outcome.value)),
        sender=address.HOUSE,
        recipient=envelope.sender,
        text=text,
        source="house",
        key=f"{envelope.id}/{outcome}",
        kind=Kind.NOTICE,
        reply_to=envelope.id,
        silent=True,
        trust=Trust.PRIVATE,
    )
    return enter(page, draft).wakes


def _in_our_words(outcome: Outcome, kind: str) -> str:
    """A fixed text. The platform's own text is not shown to a model as the server's: anyone may
    have written it."""
    match outcome:
        case Outcome.INTERRUPTED:
            return "may or may not have arrived, and was not sent again."
        case Outcome.EXPIRED:
            return "was not sent: it expired first."
        case Outcome.REFUSED:
            return "was not sent: the rules of the house hold it back. Your words are kept."
        case _:
            return f"was not delivered ({kind})."
