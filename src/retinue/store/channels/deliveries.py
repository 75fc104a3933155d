"""Store delivery attempts. Each attempt is stored before anything is sent."""

from __future__ import annotations

from enum import StrEnum

import sqlalchemy as sa
from msgspec import Struct

from retinue.domain.envelope import Envelope
from retinue.store.core import tables as t
from retinue.store.core.transaction import latest_ms
from retinue.store.envelopes.envelopes import envelope_from_row

_b = sa.bindparam


class DeliveryState(StrEnum):
    SENDING = "sending"
    SENT = "sent"
    UNKNOWN = "unknown"
    FAILED = "failed"


class DeliveryAttempt(Struct, frozen=True, kw_only=True):
    envelope: str
    attempt: int
    state: DeliveryState
    receipt: str | None
    error_kind: str | None
    error: str | None
    opened_ms: int
    closed_ms: int | None


_insert = t.deliveries.insert()
_close = (
    t.deliveries.update()
    .where(
        t.deliveries.c.envelope == _b("the_envelope"),
        t.deliveries.c.attempt == _b("the_attempt"),
        t.deliveries.c.state == t.sql_literal("'sending'"),
    )
    .values(state=_b("new_state"), receipt=_b("proof"), error_kind=_b("what"), error=_b("why"), closed_ms=_b("now"))
)
_is_sending = t.deliveries.c.state == t.sql_literal("'sending'")
_unclosed = (
    sa.select(t.envelopes)
    .join_from(t.deliveries, t.envelopes, t.deliveries.c.envelope == t.envelopes.c.id)
    .where(_is_sending, t.envelopes.c.recipient == _b("recipient"))
    .order_by(t.envelopes.c.seq)
)
_unclosed_channels = (
    sa.select(t.envelopes.c.recipient)
    .join_from(t.deliveries, t.envelopes, t.deliveries.c.envelope == t.envelopes.c.id)
    .where(_is_sending)
    .distinct()
)
# Envelopes to people also wait outside lanes until they are due; the scheduler delivers those.
_is_waiting = sa.and_(
    t.envelopes.c.status == t.PENDING, t.envelopes.c.session.is_(None), t.envelopes.c.recipient.like("channel:%")
)
_next_retry = (
    sa.select(t.envelopes)
    .where(_is_waiting, t.envelopes.c.recipient == _b("recipient"), t.envelopes.c.attempts > 0)
    .order_by(t.envelopes.c.due_ms, t.envelopes.c.seq)
    .limit(1)
)
_due_channels = (
    sa.select(t.envelopes.c.recipient)
    .where(
        _is_waiting,
        t.envelopes.c.due_ms <= _b("at"),
        t.envelopes.c.recipient > _b("after"),
    )
    .distinct()
    .order_by(t.envelopes.c.recipient)
    .limit(_b("limit"))
)
_by_envelope = sa.select(t.deliveries).where(t.deliveries.c.envelope == _b("envelope")).order_by(t.deliveries.c.attempt)


def open_attempt(conn: sa.Connection, envelope: str, attempt: int, *, at_ms: int) -> None:
    conn.execute(
        _insert,
        {
            "envelope": envelope,
            "attempt": attempt,
            "state": DeliveryState.SENDING.value,
            "receipt": None,
            "error_kind": None,
            "error": None,
            "opened_ms": at_ms,
            "closed_ms": None,
        },
    )


def close_attempt(
    conn: sa.Connection,
    envelope: str,
    attempt: int,
    state: DeliveryState,
    *,
    at_ms: int,
    receipt: str | None = None,
    error_kind: str | None = None,
    error: str | None = None,
) -> bool:
    """Close a delivery attempt. Returns whether it was still open."""
    values = {
        "the_envelope": envelope,
        "the_attempt": attempt,
        "new_state": state.value,
        "proof": receipt,
        "what": error_kind,
        "why": error,
        "now": at_ms,
    }
    return conn.execute(_close, values).rowcount == 1


def list_unclosed(conn: sa.Connection, recipient: str) -> list[Envelope]:
    """List the envelopes to a channel whose delivery attempt was opened but not closed.

    Call this only while nothing is being sent to the channel. In that case, these attempts were
    interrupted, and it is unknown whether their envelopes arrived.
    """
    return [envelope_from_row(row) for row in conn.execute(_unclosed, {"recipient": recipient})]


def list_unclosed_channels(conn: sa.Connection) -> list[str]:
    """List the channels with a delivery attempt that was opened but not closed.

    Their number is at most the number of deliveries that can run at the same time.
    """
    return [row.recipient for row in conn.execute(_unclosed_channels)]


def get_waiting_retry(conn: sa.Connection, recipient: str) -> Envelope | None:
    """Return the envelope to this channel that was tried before and is waiting for its next attempt, or None.

    A channel has at most one, because later envelopes are tried only when this one has ended. The
    query reads all envelopes that are waiting for the channel, so call it only if a retry may be
    waiting.
    """
    row = conn.execute(_next_retry, {"recipient": recipient}).one_or_none()
    return envelope_from_row(row) if row else None


def list_due_channels(conn: sa.Connection, now_ms: int, *, after: str, limit: int) -> list[str]:
    """List up to `limit` channels that have due envelopes, sorted by address, starting after the address `after`."""
    at_ms = max(now_ms, latest_ms(conn))  # as a claim does: the time of the store never goes backwards
    return [row.recipient for row in conn.execute(_due_channels, {"at": at_ms, "after": after, "limit": limit})]


def list_attempts(conn: sa.Connection, envelope: str) -> list[DeliveryAttempt]:
    return [
        DeliveryAttempt(
            envelope=r.envelope,
            attempt=r.attempt,
            state=DeliveryState(r.state),
            receipt=r.receipt,
            error_kind=r.error_kind,
            error=r.error,
            opened_ms=r.opened_ms,
            closed_ms=r.closed_ms,
        )
        for r in conn.execute(_by_envelope, {"envelope": envelope})
    ]
