"""Sessions of external agents, identified by an id that the caller chooses."""

from __future__ import annotations

import re
from datetime import timedelta
from enum import StrEnum
from typing import Annotated

import msgspec
import sqlalchemy as sa

from retinue.domain.address import EXTERNAL
from retinue.domain.agent import Agent, PermissionLevel
from retinue.domain.errors import Conflict, Invalid, NotFound
from retinue.domain.ids import SessionId
from retinue.domain.principal import Principal
from retinue.domain.session import Session
from retinue.domain.times import to_ms
from retinue.operations.base import Desk, Operation
from retinue.operations.session.deleted_sessions import bring_back
from retinue.operations.session.sessions import RESTORABLE_DAYS, SessionSummary, agent_named, own_origin, summary
from retinue.store.core.transaction import Page
from retinue.store.sessions import external_keys, sessions

ID_LENGTH_MAX = 128

_ID = re.compile(rf"[A-Za-z0-9_-]{{1,{ID_LENGTH_MAX}}}")


class Attach(msgspec.Struct, forbid_unknown_fields=True):
    agent: str
    id: Annotated[str, msgspec.Meta(description="what the far side is to know the session by")]


class Attached(StrEnum):
    CREATED = "created"
    ATTACHED = "attached"  # it existed
    REVIVED = "revived"  # it was deleted, and is restored


class SessionAttached(SessionSummary):
    external_id: str
    attached: Attached


async def attach(desk: Desk, caller: Principal, asked: Attach) -> SessionAttached:
    """Return the session with this id: create, find or restore it. Idempotent."""
    key = _valid(asked.id)
    new = SessionId(desk.ids.new())

    def body(conn: sa.Connection) -> tuple[Session, Attached]:
        page = Page(conn, to_ms(desk.clock.now()))
        done = _attach(desk, page, caller, agent_elsewhere(conn, asked.agent), key, new)
        page.close()
        return done

    session, attached = await desk.store.write(body, point="session")
    form = msgspec.structs.asdict(summary(desk, session))
    return SessionAttached(**form, external_id=key, attached=attached)


def _attach(
    desk: Desk, page: Page, caller: Principal, agent: Agent, key: str, new: SessionId
) -> tuple[Session, Attached]:
    own = sessions.get(page.conn, key)
    chosen = external_keys.get(page.conn, key)
    known = own or (sessions.get(page.conn, chosen) if chosen is not None else None)
    if known is not None:
        if not _is_theirs(page.conn, caller, agent, known):
            raise _taken(key, "a session of another agent, or of somebody else, has it")
        if known.deleted_at is None:
            return known, Attached.ATTACHED
        if known.deleted_at >= desk.clock.now() - timedelta(days=RESTORABLE_DAYS):
            return bring_back(page, caller, known), Attached.REVIVED
        if own is not None:
            raise _taken(key, f"it is that of a session which was deleted over {RESTORABLE_DAYS} days ago")
    sessions.start(page, new, agent=agent.name, origin=own_origin(caller, agent, new))
    external_keys.put(page.conn, key, new)
    made = sessions.get(page.conn, new)
    assert made is not None  # written above, in the same transaction
    return made, Attached.CREATED


def _taken(key: str, because: str) -> Conflict:
    return Conflict(f"the id '{key}' is taken", because=because, try_this="choose another one", code="session.id-taken")


def _is_theirs(conn: sa.Connection, caller: Principal, agent: Agent, session: Session) -> bool:
    if session.agent != agent.name:
        return False
    if caller.sees_all or session.origin.belongs_to(str(caller.address)):
        return True
    try:
        return sessions.resolve(conn, session.id, seen_by=caller).id == session.id  # shared with them, not deleted
    except NotFound:
        return False


def agent_elsewhere(conn: sa.Connection, name: str) -> Agent:
    agent = agent_named(conn, name)
    if agent.runner != EXTERNAL:
        raise Invalid(
            f"{agent.name} runs here",
            because="ids are chosen for sessions of agents that run elsewhere; here, each has its own",
            try_this="use `session.create`",
            code="session.not-external",
        )
    return agent


def _valid(text: str) -> str:
    trimmed = text.strip()
    if not _ID.fullmatch(trimmed):
        raise Invalid(
            f"{text[:ID_LENGTH_MAX]!r} cannot be the id of a session",
            because=f"an id is 1 to {ID_LENGTH_MAX} letters, digits, hyphens and underscores",
            try_this="for example: garden-2027",
            code="session.id-invalid",
        )
    return trimmed


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        name="session.attach",
        summary="Open the session of an agent that runs elsewhere by an id of your choice.",
        parameters=Attach,
        handler=attach,
        permission=PermissionLevel.STANDARD,
        effect=True,
        result=SessionAttached,
    ),
)
