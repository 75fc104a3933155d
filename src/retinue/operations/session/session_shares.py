"""Operations that share a session with a person, and stop sharing it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import sqlalchemy as sa

from retinue.domain.address import AddressKind
from retinue.domain.agent import PermissionLevel
from retinue.domain.event import EventKind
from retinue.domain.ids import short_id
from retinue.domain.principal import Principal
from retinue.domain.session import Session
from retinue.domain.shared_errors import PersonNotFound
from retinue.operations.base import Operation, Services
from retinue.operations.session.errors import SessionNotShared, TooManySessionShares
from retinue.operations.session.sessions import check_owner, write_session
from retinue.store.core.transaction import Transaction
from retinue.store.people import people
from retinue.store.sessions import session_shares

SHARES_MAX = 100


class SessionShareRequest(msgspec.Struct, forbid_unknown_fields=True):
    session: str
    person: str


class SessionShared(msgspec.Struct):
    session: str
    shared_with: list[str]


async def share_session(services: Services, caller: Principal, request: SessionShareRequest) -> SessionShared:
    """Let another person see a session and write in it.

    Only the owner of the session and the owner of the instance may share it.
    """

    def act(tx: Transaction, session: Session) -> list[str]:
        check_owner(caller, session, people_only=True)
        person = _require_person_name(tx.conn, request.person)
        if len(session_shares.list_people(tx.conn, session.id)) >= SHARES_MAX:
            raise TooManySessionShares(short_id(session.id), count_max=SHARES_MAX)
        session_shares.add(tx.conn, session.id, person, at_ms=tx.at_ms)
        return session_shares.list_people(tx.conn, session.id)

    return await _change_shares(services, caller, request, act)


async def unshare_session(services: Services, caller: Principal, request: SessionShareRequest) -> SessionShared:
    """Stop sharing a session with a person. The person can use this operation too, to leave the session."""

    def act(tx: Transaction, session: Session) -> list[str]:
        person = _require_person_name(tx.conn, request.person)
        if (caller.address.kind, caller.address.name) != (AddressKind.PERSON, person):
            check_owner(caller, session, people_only=True)
        if not session_shares.remove(tx.conn, session.id, person):
            raise SessionNotShared(short_id(session.id), person)
        return session_shares.list_people(tx.conn, session.id)

    return await _change_shares(services, caller, request, act)


async def _change_shares(
    services: Services,
    caller: Principal,
    request: SessionShareRequest,
    change_shares: Callable[[Transaction, Session], list[str]],
) -> SessionShared:
    now: list[str] = []

    def shared(tx: Transaction, session: Session) -> None:
        now[:] = change_shares(tx, session)
        tx.emit(EventKind.SESSION_CHANGED, session=session.id, shared=now)

    session = await write_session(services, caller, request.session, shared)
    return SessionShared(session=session.id, shared_with=now)


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        name="session.share",
        summary="Share a session with a person.",
        parameters=SessionShareRequest,
        handler=share_session,
        permission=PermissionLevel.STANDARD,
        has_effect=True,
        result=SessionShared,
    ),
    Operation(
        name="session.unshare",
        summary="Stop sharing a session with a person.",
        parameters=SessionShareRequest,
        handler=unshare_session,
        permission=PermissionLevel.RESTRICTED,
        has_effect=True,
        result=SessionShared,
    ),
)


def _require_person_name(conn: sa.Connection, name: str) -> str:
    person = people.find(conn, name)
    if person is None:
        raise PersonNotFound(name)
    return person.name
