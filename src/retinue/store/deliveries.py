"""Deliveries in the store: each attempt on a channel is written down before it is made."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import sqlalchemy as sa

from retinue.domain.envelope import Envelope
from retinue.store import tables as t
from retinue.store.envelopes import envelope_of

_b = sa.bindparam


class DeliveryState(StrEnum):
    SENDING = "sending"
    SENT = "sent"
    UNKNOWN = "unknown"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
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
        t.deliveries.c.state == t.word("'sending'"),
    )
    .values(state=_b("new_state"), receipt=_b("proof"), error_kind=_b("what"), error=_b("why"), closed_ms=_b("now"))
)
_sending = (
    sa.select(t.envelopes)
    .join_from(t.deliveries, t.envelopes, t.deliveries.c.envelope == t.envelopes.c.id)
    .where(t.deliveries.c.state == t.word("'sending'"))
    .order_by(t.envelopes.c.seq)
    .limit(_b("limit"))
)
_of = sa.select(t.deliveries).where(t.deliveries.c.envelope == _b("envelope")).order_by(t.deliveries.c.attempt)


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
    """Whether the attempt was still ours to close."""
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


def sending(conn: sa.Connection, *, limit: int) -> list[Envelope]:
    """Envelopes whose attempt was cut off: nobody knows whether they arrived."""
    return [envelope_of(row) for row in conn.execute(_sending, {"limit": limit})]


def of(conn: sa.Connection, envelope: str) -> list[Attempt]:
    return [
        Attempt(
            envelope=r.envelope,
            attempt=r.attempt,
            state=DeliveryState(r.state),
            receipt=r.receipt,
            error_kind=r.error_kind,
            error=r.error,
            opened_ms=r.opened_ms,
            closed_ms=r.closed_ms,
        )
        for r in conn.execute(_of, {"envelope": envelope})
    ]
