"""List envelopes by sender, recipient, status and time, or list the newest."""

from __future__ import annotations

import sqlalchemy as sa
from msgspec import Struct

from retinue.domain.address import Address
from retinue.domain.envelope import Envelope, EnvelopeStatus
from retinue.domain.principal import SERVER_PRINCIPAL, Principal
from retinue.domain.times import LAST_MS
from retinue.store.core import row_visibility
from retinue.store.core import tables as t
from retinue.store.core.row_visibility import (
    PerScope,
    address_parameters,
    is_address_or_below,
    principal_parameters,
    visibility_scope,
)
from retinue.store.envelopes.envelopes import envelope_from_row

RECENT_SCANNED_MAX = 5_000  # newest envelopes that a list scans for visible ones

_b = sa.bindparam
_SIDES = {"from": t.envelopes.c.sender, "to": t.envelopes.c.recipient}


class EnvelopeQuery(Struct, frozen=True, kw_only=True):
    """The filters for a list of envelopes.

    The address of an agent also matches the addresses of its sessions. `due_ms` selects envelopes
    that are due at or before this time.
    """

    side: str  # "from" or "to"
    address: Address
    status: EnvelopeStatus
    after_ms: int = 0
    before_ms: int = LAST_MS
    due_ms: int = LAST_MS
    older_than_seq: int = 2**62


_listed = PerScope(
    lambda scope: {
        side: sa.select(t.envelopes)
        .where(
            is_address_or_below("who", column),
            t.envelopes.c.status == _b("status"),
            t.envelopes.c.accepted_ms >= _b("after"),
            t.envelopes.c.accepted_ms < _b("before"),
            t.envelopes.c.due_ms <= _b("due"),
            t.envelopes.c.seq < _b("older"),
            row_visibility.visible_envelopes(scope),
        )
        .order_by(t.envelopes.c.seq.desc())
        .limit(_b("limit"))
        for side, column in _SIDES.items()
    }
)
_recent = PerScope(
    lambda scope: (
        sa.select(t.envelopes)
        .where(
            t.envelopes.c.seq > sa.select(sa.func.max(t.envelopes.c.seq) - RECENT_SCANNED_MAX).scalar_subquery(),
            row_visibility.visible_envelopes(scope),
        )
        .order_by(t.envelopes.c.seq.desc())
        .limit(_b("limit"))
    )
)


def list_envelopes(
    conn: sa.Connection, query: EnvelopeQuery, *, limit: int, seen_by: Principal = SERVER_PRINCIPAL
) -> list[Envelope]:
    """List the matching envelopes, newest first."""
    values = {
        **address_parameters("who", str(query.address)),
        "status": query.status.value,
        "after": query.after_ms,
        "before": query.before_ms,
        "due": query.due_ms,
        "older": query.older_than_seq,
        "limit": limit,
        **principal_parameters(seen_by),
    }
    return [envelope_from_row(row) for row in conn.execute(_listed[visibility_scope(seen_by)][query.side], values)]


def list_recent(conn: sa.Connection, *, limit: int, seen_by: Principal = SERVER_PRINCIPAL) -> list[Envelope]:
    """List the newest envelopes that the caller can see, newest first."""
    return [
        envelope_from_row(row)
        for row in conn.execute(_recent[visibility_scope(seen_by)], {"limit": limit, **principal_parameters(seen_by)})
    ]
