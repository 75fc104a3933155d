"""Mark a session's messages as read."""

from __future__ import annotations

import msgspec
import sqlalchemy as sa

from retinue.domain.agent import PermissionLevel
from retinue.domain.event import NewsKind
from retinue.domain.principal import Principal
from retinue.domain.times import to_ms
from retinue.operations.base import Desk, Operation
from retinue.operations.envelope.envelope_lists import whose_inbox
from retinue.operations.session.sessions import OfSession
from retinue.store.core.transaction import Page
from retinue.store.envelopes import envelope_lists
from retinue.store.sessions import sessions
from retinue.store.sessions import unread as store_unread


class SessionRead(msgspec.Struct, frozen=True):
    """`read` is the number of envelopes marked, and `unread` the number still unread in the whole inbox."""

    session: str
    read: int
    unread: int


async def read(desk: Desk, caller: Principal, asked: OfSession) -> SessionRead:
    """Mark the messages from a session as read by the caller.

    Other people's read marks stay unchanged.
    """
    person = whose_inbox(caller)

    def body(conn: sa.Connection) -> SessionRead:
        page = Page(conn, to_ms(desk.clock.now()))
        session = sessions.resolve(conn, asked.session, seen_by=caller)
        found = store_unread.unread_from(conn, person, agent=session.agent, session=session.id)
        marked = envelope_lists.mark_read(conn, found, person=person, at_ms=page.at_ms)
        if marked:
            page.tell(NewsKind.SESSION_CHANGED, session=session.id, read_by=person)
        page.close()
        return SessionRead(session=session.id, read=marked, unread=envelope_lists.count_unread(conn, person))

    return await desk.store.write(body, point="ack")


OPERATIONS = (
    Operation(
        name="session.read",
        summary="Mark the mail from a session as read.",
        parameters=OfSession,
        handler=read,
        permission=PermissionLevel.RESTRICTED,
        effect=True,
        result=SessionRead,
    ),
)
