"""Operation that creates or finds a session of an external agent by an id that the caller chooses."""

from __future__ import annotations

import re
from datetime import timedelta
from enum import StrEnum
from typing import Annotated

import msgspec
import sqlalchemy as sa

from retinue.domain.address import EXTERNAL
from retinue.domain.agent import Agent, PermissionLevel
from retinue.domain.errors import NotFound
from retinue.domain.ids import SessionId
from retinue.domain.principal import Principal
from retinue.domain.session import Session
from retinue.domain.times import to_ms
from retinue.operations.base import Operation, Services
from retinue.operations.session.deleted_sessions import RESTORABLE_DAYS, restore_in_transaction
from retinue.operations.session.errors import SessionIdInvalid, SessionIdTaken, SessionNotExternal
from retinue.operations.session.sessions import SessionSummary, build_own_origin, require_agent, to_session_summary
from retinue.store.core.transaction import Transaction
from retinue.store.sessions import external_keys, sessions

ID_LENGTH_MAX = 128

_ID_PATTERN = re.compile(rf"[A-Za-z0-9_-]{{1,{ID_LENGTH_MAX}}}")


class SessionAttachRequest(msgspec.Struct, forbid_unknown_fields=True):
    agent: str
    id: Annotated[str, msgspec.Meta(description="id that you choose for the session")]


class AttachStatus(StrEnum):
    CREATED = "created"
    ATTACHED = "attached"  # the session already existed
    RESTORED = "restored"  # the session was deleted, and is now restored


class SessionAttached(SessionSummary):
    external_id: str
    attached: AttachStatus


async def attach_session(services: Services, caller: Principal, request: SessionAttachRequest) -> SessionAttached:
    """Return the session with this id. If there is none, create it; if it was deleted, restore it."""
    key = _parse_id(request.id)
    new = SessionId(services.ids.new())

    def body(conn: sa.Connection) -> tuple[Session, AttachStatus]:
        tx = Transaction(conn, to_ms(services.clock.now()))
        done = _find_or_create_session(services, tx, caller, require_external_agent(conn, request.agent), key, new)
        tx.close()
        return done

    session, attached = await services.store.write(body, point="session")
    form = msgspec.structs.asdict(to_session_summary(services, session))
    return SessionAttached(**form, external_id=key, attached=attached)


def _find_or_create_session(
    services: Services, tx: Transaction, caller: Principal, agent: Agent, key: str, new_id: SessionId
) -> tuple[Session, AttachStatus]:
    own = sessions.get(tx.conn, key)
    chosen = external_keys.get(tx.conn, key)
    known = own or (sessions.get(tx.conn, chosen) if chosen is not None else None)
    if known is not None:
        if not _belongs_to_caller(tx.conn, caller, agent, known):
            raise SessionIdTaken(key)
        if known.deleted_at is None:
            return known, AttachStatus.ATTACHED
        if known.deleted_at >= services.clock.now() - timedelta(days=RESTORABLE_DAYS):
            return restore_in_transaction(tx, caller, known), AttachStatus.RESTORED
        if own is not None:
            raise SessionIdTaken(key, deleted_days=RESTORABLE_DAYS)
    sessions.start(tx, new_id, agent=agent.name, origin=build_own_origin(caller, agent, new_id))
    external_keys.set_key(tx.conn, key, new_id)
    made = sessions.get(tx.conn, new_id)
    assert made is not None  # written above, in the same transaction
    return made, AttachStatus.CREATED


def _belongs_to_caller(conn: sa.Connection, caller: Principal, agent: Agent, session: Session) -> bool:
    if session.agent != agent.name:
        return False
    if caller.sees_everything or session.origin.belongs_to(str(caller.address)):
        return True
    try:
        return (
            sessions.get_by_short_id(conn, session.id, seen_by=caller).id == session.id
        )  # shared with them, not deleted
    except NotFound:
        return False


def require_external_agent(conn: sa.Connection, name: str) -> Agent:
    agent = require_agent(conn, name)
    if agent.runner != EXTERNAL:
        raise SessionNotExternal(agent.name)
    return agent


def _parse_id(text: str) -> str:
    trimmed = text.strip()
    if not _ID_PATTERN.fullmatch(trimmed):
        raise SessionIdInvalid(text, chars_max=ID_LENGTH_MAX)
    return trimmed


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        name="session.attach",
        summary="Open a session of an external agent under an id that you choose.",
        parameters=SessionAttachRequest,
        handler=attach_session,
        permission=PermissionLevel.STANDARD,
        has_effect=True,
        result=SessionAttached,
    ),
)
