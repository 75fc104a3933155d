"""Dead letters: envelopes that failed for good. They are stored so that a person can inspect and retry them.

A retry sends a new envelope (see `outbox/dead_letter_retry`). The dead letter itself does not
change. All retries that go back to the same envelope are numbered in one sequence. The idempotency
key of a retry consists of the id of that envelope and the number, so retries can be found by key.
"""

from __future__ import annotations

import sqlalchemy as sa
from msgspec import Struct

from retinue.domain.envelope import Envelope, Outcome, SettledOutcome
from retinue.domain.ids import EnvelopeId
from retinue.domain.principal import SERVER_PRINCIPAL, Principal
from retinue.domain.times import to_ms
from retinue.store.core import row_visibility
from retinue.store.core import tables as t
from retinue.store.core.row_visibility import PerScope, principal_parameters, visibility_scope
from retinue.store.envelopes.envelopes import envelope_from_row, get, get_by_key, get_outcome, resolve_id

RETRY_SOURCE = "retry"
RETRIES_MAX = 100

DEAD_OUTCOMES = (Outcome.DEAD, Outcome.INTERRUPTED)

_b = sa.bindparam
_newest = PerScope(
    lambda scope: (
        sa.select(t.envelopes)
        .join_from(t.outcomes, t.envelopes, t.outcomes.c.envelope == t.envelopes.c.id)
        .where(
            t.outcomes.c.outcome.in_(tuple(t.sql_literal(f"'{outcome}'") for outcome in DEAD_OUTCOMES)),
            row_visibility.visible_envelopes(scope),
        )
        .order_by(t.outcomes.c.at_ms.desc(), t.envelopes.c.seq.desc())
        .limit(_b("limit"))
    )
)
_before = PerScope(
    lambda scope: _newest[scope].where(
        sa.or_(
            t.outcomes.c.at_ms < _b("at"),
            sa.and_(t.outcomes.c.at_ms == _b("at"), t.envelopes.c.seq < _b("seq")),
        )
    )
)


class DeadLetter(Struct, frozen=True, kw_only=True):
    envelope: Envelope
    settled: SettledOutcome
    retry: Envelope | None = None  # the latest retry


def load_dead_letters(
    conn: sa.Connection, *, limit: int, before: str | None = None, seen_by: Principal = SERVER_PRINCIPAL
) -> list[DeadLetter]:
    """List dead letters, newest first. For the next page, pass the id of the last dead letter as `before`."""
    scope, who = visibility_scope(seen_by), principal_parameters(seen_by)
    if before is None:
        rows = conn.execute(_newest[scope], {"limit": limit, **who}).all()
    else:
        last = resolve_id(conn, before, seen_by=seen_by)
        envelope, ended = get(conn, last), get_outcome(conn, last)
        if envelope is None or ended is None:
            return []
        bounds = {"limit": limit, "at": to_ms(ended.at), "seq": envelope.seq}
        rows = conn.execute(_before[scope], {**bounds, **who}).all()
    letters: list[DeadLetter] = []
    for row in rows:
        envelope = envelope_from_row(row)
        ended = get_outcome(conn, envelope.id)
        assert ended is not None  # it was found by its outcome, in the same snapshot
        retried = list_retries(conn, envelope)
        letters.append(DeadLetter(envelope=envelope, settled=ended, retry=retried[-1] if retried else None))
    return letters


def retry_key(first: EnvelopeId, number: int) -> str:
    return f"{first}/{number}"


def original_envelope_id(envelope: Envelope) -> EnvelopeId:
    """Return the id of the envelope that was retried first. If the envelope is not a retry, return its own id."""
    if envelope.source != RETRY_SOURCE:
        return envelope.id
    return EnvelopeId(envelope.idempotency_key.partition("/")[0])


def list_retries(conn: sa.Connection, envelope: Envelope) -> list[Envelope]:
    """List all retries of this envelope, oldest first. For a retry, list all retries of the original envelope."""
    first = original_envelope_id(envelope)
    found: list[Envelope] = []
    for number in range(1, RETRIES_MAX + 1):
        retried = get_by_key(conn, RETRY_SOURCE, retry_key(first, number))
        if retried is None:
            break
        found.append(retried)
    return found
