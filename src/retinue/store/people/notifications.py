"""Store notifications. Each person has a limited number of them; the oldest are removed first."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from retinue.domain.event import EventKind
from retinue.domain.ids import NotificationId, SessionId
from retinue.domain.notification import Notification
from retinue.domain.times import from_ms, to_ms
from retinue.domain.trust import Trust
from retinue.store.core import tables as t
from retinue.store.core.transaction import Transaction

NOTIFICATIONS_MAX = 500  # per person

_b = sa.bindparam
_n = t.notifications.c
_is_of_person = _n.person == _b("the_person")
_is_unread = sa.and_(_is_of_person, _n.read_ms.is_(None))
_newest_first = (_n.at_ms.desc(), _n.id.desc())
_insert = t.notifications.insert()
_find = sa.select(t.notifications).where(_n.id == _b("the_id"))
_by_prefix = sa.select(t.notifications).where(_n.id >= _b("low"), _n.id < _b("high"), _is_of_person).limit(2)
_count = sa.select(sa.func.count()).select_from(t.notifications).where(_is_unread)
_is_older = sa.or_(_n.at_ms < _b("before_ms"), sa.and_(_n.at_ms == _b("before_ms"), _n.id < _b("before_id")))
_listed = sa.select(t.notifications).where(_is_of_person, _is_older).order_by(*_newest_first).limit(_b("limit"))
_listed_unread = sa.select(t.notifications).where(_is_unread, _is_older).order_by(*_newest_first).limit(_b("limit"))
_read = t.notifications.update().where(_n.id == _b("the_id"), _is_unread).values(read_ms=_b("now"))
_read_all = t.notifications.update().where(_is_unread).values(read_ms=_b("now"))
_clear = t.notifications.delete().where(_n.id == _b("the_id"), _is_of_person)
_clear_all = t.notifications.delete().where(_is_of_person)
_beyond_max = sa.select(_n.id).where(_is_of_person).order_by(*_newest_first).limit(1_000).offset(NOTIFICATIONS_MAX)
_LAST_MS = 2**62


def _notification_from_row(row: sa.Row[Any]) -> Notification:
    return Notification(
        id=NotificationId(row.id),
        person=row.person,
        sender=row.sender,
        session=SessionId(row.session) if row.session else None,
        title=row.title,
        text=row.text,
        trust=Trust(row.trust),
        at=from_ms(row.at_ms),
        read_at=from_ms(row.read_ms) if row.read_ms is not None else None,
    )


def get(conn: sa.Connection, id_: str) -> Notification | None:
    row = conn.execute(_find, {"the_id": id_}).one_or_none()
    return _notification_from_row(row) if row else None


def find_by_prefix(conn: sa.Connection, person: str, prefix: str) -> list[Notification]:
    """Return up to two of this person's notifications whose ids start with this prefix.

    Two notifications mean that the prefix is ambiguous.
    """
    bounds = {"the_person": person, "low": prefix, "high": prefix + "g"}
    return [_notification_from_row(row) for row in conn.execute(_by_prefix, bounds)]


def list_notifications(
    conn: sa.Connection, person: str, *, limit: int, unread: bool = False, before: Notification | None = None
) -> list[Notification]:
    """List notifications, newest first. For the next page, pass the last notification of this page as `before`."""
    bounds = {
        "the_person": person,
        "limit": limit,
        "before_ms": to_ms(before.at) if before else _LAST_MS,
        "before_id": before.id if before else "",
    }
    return [_notification_from_row(row) for row in conn.execute(_listed_unread if unread else _listed, bounds)]


def count_unread(conn: sa.Connection, person: str) -> int:
    return conn.execute(_count, {"the_person": person}).scalar_one()


def add(tx: Transaction, notification: Notification) -> bool:
    """Insert a notification. Returns False if one with this id exists, so the call can be repeated after a crash."""
    conn = tx.conn
    if get(conn, notification.id) is not None:
        return False
    conn.execute(
        _insert,
        {
            "id": notification.id,
            "person": notification.person,
            "sender": notification.sender,
            "session": notification.session,
            "title": notification.title,
            "text": notification.text,
            "trust": notification.trust.value,
            "at_ms": tx.at_ms,
            "read_ms": None,
        },
    )
    for row in conn.execute(_beyond_max, {"the_person": notification.person}).all():
        conn.execute(_clear, {"the_id": row.id, "the_person": notification.person})
    emit_change(tx, notification.person, change="created", notification=notification.id)
    return True


def mark_read(tx: Transaction, person: str, id_: str | None) -> int:
    """Mark one notification as read, or all of them if `id_` is None. Returns how many were unread."""
    if id_ is None:
        return tx.conn.execute(_read_all, {"the_person": person, "now": tx.at_ms}).rowcount
    return tx.conn.execute(_read, {"the_person": person, "the_id": id_, "now": tx.at_ms}).rowcount


def delete(tx: Transaction, person: str, id_: str | None) -> int:
    """Delete one notification, or all of them if `id_` is None. Returns how many were deleted."""
    if id_ is None:
        return tx.conn.execute(_clear_all, {"the_person": person}).rowcount
    return tx.conn.execute(_clear, {"the_person": person, "the_id": id_}).rowcount


def emit_change(tx: Transaction, person: str, *, change: str, notification: str | None = None) -> None:
    """Emit an event that a person's notifications changed. The event does not contain the notification's text."""
    unread = count_unread(tx.conn, person)
    tx.emit(
        EventKind.NOTIFICATION_CHANGED,
        person=person,
        to=person,
        change=change,
        notification=notification,
        unread=unread,
    )
