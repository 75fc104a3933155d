"""Read stored events in commit order, starting after a cursor."""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa
from msgspec import Struct

from retinue.domain.event import EventKind, StoredEvent
from retinue.domain.ids import SessionId
from retinue.domain.principal import SERVER_PRINCIPAL, Principal
from retinue.domain.times import from_ms
from retinue.store.core import row_visibility
from retinue.store.core import tables as t
from retinue.store.core.row_visibility import PerScope, VisibilityScope, principal_parameters, visibility_scope

SCANNED_EVENTS_MAX = 5_000  # maximum events, of all sessions, that a query for one session scans

_b = sa.bindparam
_body_decoder = msgspec.json.Decoder(dict[str, Any])
_KINDS = {kind.value: kind for kind in EventKind}
_RENAMED_FIELDS = {"for_whom": "grantee", "asked_of": "asked", "kind_of": "delegation_kind", "refresh": "pending_reset"}
"""Old and new names of event fields. Stored events are not rewritten, so fields are renamed when they are read."""
_newest = sa.select(t.counters.c.event_seq)
_oldest = sa.select(sa.func.min(t.events.c.seq))
_columns = (
    t.events,
    t.envelopes.c.sender.label("e_sender"),
    t.envelopes.c.recipient.label("e_recipient"),
    t.envelopes.c.kind.label("e_kind"),
    t.envelopes.c.text.label("e_text"),
    t.envelopes.c.reply_to.label("e_reply_to"),
    t.records.c.kind.label("r_kind"),
    t.records.c.body.label("r_body"),
)


def _is_visible(scope: VisibilityScope) -> sa.ColumnElement[bool]:
    if scope is VisibilityScope.ALL:
        return sa.true()
    mail = sa.and_(t.envelopes.c.id.is_not(None), row_visibility.visible_envelopes(scope))
    seen = sa.or_(row_visibility.in_visible_session(scope, t.events.c.session), mail)
    return sa.or_(seen, t.events.c.person == _b("my_name")) if scope is VisibilityScope.PERSON else seen


_after = PerScope(
    lambda scope: (
        sa.select(*_columns)
        .outerjoin_from(t.events, t.envelopes, t.events.c.envelope == t.envelopes.c.id)
        .outerjoin(
            t.records, sa.and_(t.events.c.session == t.records.c.session, t.events.c.record_seq == t.records.c.seq)
        )
        .where(t.events.c.seq > _b("after"), _is_visible(scope))
        .order_by(t.events.c.seq)
        .limit(_b("limit"))
    )
)
_after_in_session = PerScope(
    lambda scope: _after[scope].where(t.events.c.session == _b("session"), t.events.c.seq <= _b("upto"))
)


class EventRange(Struct, frozen=True):
    """The events after a cursor. The next query continues at `cursor`; `has_more` says whether more may follow."""

    events: list[StoredEvent]
    cursor: int
    has_more: bool


def newest_seq(conn: sa.Connection) -> int:
    return conn.execute(_newest).scalar_one()


def oldest_seq(conn: sa.Connection) -> int | None:
    return conn.execute(_oldest).scalar()


def event_from_row(row: sa.Row[Any]) -> StoredEvent:
    """Decode an event, and add the content of the envelope or record that it refers to.

    The row of the event contains only their ids.
    """
    body: dict[str, Any] = _body_decoder.decode(row.body) if row.body else {}
    for old in _RENAMED_FIELDS.keys() & body.keys():
        body[_RENAMED_FIELDS[old]] = body.pop(old)
    if row.envelope:
        body["envelope"] = row.envelope
        if row.e_sender is not None:
            body |= {
                "from": row.e_sender,
                "to": row.e_recipient,
                "kind": row.e_kind,
                "text": row.e_text,
                "reply_to": row.e_reply_to,
            }
    if row.run:
        body["run"] = row.run
    if row.record_seq is not None and row.r_body is not None:
        body["record"] = {"seq": row.record_seq, "kind": row.r_kind, "body": msgspec.Raw(row.r_body.encode())}
    return StoredEvent(
        seq=row.seq,
        kind=_KINDS[row.kind],
        session=SessionId(row.session) if row.session else None,
        at=from_ms(row.at_ms),
        body=body,
    )


def list_after(
    conn: sa.Connection, cursor: int, *, limit: int, seen_by: Principal = SERVER_PRINCIPAL
) -> list[StoredEvent]:
    """List up to `limit` events after the cursor, oldest first."""
    rows = conn.execute(
        _after[visibility_scope(seen_by)], {"after": cursor, "limit": limit, **principal_parameters(seen_by)}
    )
    return [event_from_row(row) for row in rows]


def list_next(
    conn: sa.Connection, session: str | None, cursor: int, *, limit: int, seen_by: Principal = SERVER_PRINCIPAL
) -> EventRange:
    """List the events that follow a cursor, of one session or of all sessions.

    Events have no index by session. A query for one session scans the events of all sessions, at
    most `SCANNED_EVENTS_MAX` at a time. It may therefore return none even though more exist.
    """
    if session is None:
        found = list_after(conn, cursor, limit=limit, seen_by=seen_by)
        return EventRange(found, found[-1].seq if found else cursor, len(found) == limit)
    end = newest_seq(conn)  # read first: events added after this belong to the next call
    upto = min(end, cursor + SCANNED_EVENTS_MAX)
    bounds = {"after": cursor, "upto": upto, "limit": limit, "session": session, **principal_parameters(seen_by)}
    found = [event_from_row(row) for row in conn.execute(_after_in_session[visibility_scope(seen_by)], bounds)]
    upto = found[-1].seq if len(found) == limit else max(upto, cursor)
    return EventRange(found, upto, upto < end)
