"""Operation that marks the messages from a session as read."""

from __future__ import annotations

import msgspec
import sqlalchemy as sa

from retinue.domain.agent import PermissionLevel
from retinue.domain.event import EventKind
from retinue.domain.principal import Principal
from retinue.domain.times import to_ms
from retinue.operations.base import Operation, Services
from retinue.operations.envelope.inbox import require_inbox_owner
from retinue.operations.session.sessions import SessionIdRequest
from retinue.store.core.transaction import Transaction
from retinue.store.envelopes import inbox
from retinue.store.sessions import sessions
from retinue.store.sessions import unread as store_unread


class SessionMarkedRead(msgspec.Struct, frozen=True):
    """Result of marking a session as read.

    `read` is the number of envelopes that were marked as read. `unread` is the number of envelopes in
    the whole inbox that are still unread.
    """

    session: str
    read: int
    unread: int


async def mark_session_read(services: Services, caller: Principal, request: SessionIdRequest) -> SessionMarkedRead:
    """Mark the messages from a session as read by the caller.

    The messages stay unread for other people.
    """
    person = require_inbox_owner(caller)

    def body(conn: sa.Connection) -> SessionMarkedRead:
        tx = Transaction(conn, to_ms(services.clock.now()))
        session = sessions.get_by_short_id(conn, request.session, seen_by=caller)
        found = store_unread.list_unread_from(conn, person, agent=session.agent, session=session.id)
        marked = inbox.mark_read(conn, found, person=person, at_ms=tx.at_ms)
        if marked:
            tx.emit(EventKind.SESSION_CHANGED, session=session.id, read_by=person)
        tx.close()
        return SessionMarkedRead(session=session.id, read=marked, unread=inbox.count_unread(conn, person))

    return await services.store.write(body, point="ack")


OPERATIONS = (
    Operation(
        name="session.mark_read",
        summary="Mark the messages from a session as read.",
        parameters=SessionIdRequest,
        handler=mark_session_read,
        permission=PermissionLevel.RESTRICTED,
        has_effect=True,
        result=SessionMarkedRead,
    ),
)
