"""Operations that list, create, change, clear, stop and reset sessions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import msgspec
import sqlalchemy as sa

from retinue.domain.address import AddressKind
from retinue.domain.agent import Agent, PermissionLevel
from retinue.domain.errors import Invalid
from retinue.domain.event import EventKind
from retinue.domain.ids import SessionId, parse_id_prefix, short_id
from retinue.domain.principal import Principal
from retinue.domain.run import RunStatus
from retinue.domain.session import (
    SESSION_NAME_LENGTH_MAX,
    Origin,
    OriginKind,
    Session,
    SessionActivity,
    patch_attributes,
    validate_session_name,
)
from retinue.domain.shared_errors import AgentNotFound
from retinue.domain.times import format_time, to_ms
from retinue.operations.base import Operation, Services
from retinue.operations.pagination import invalid_cursor
from retinue.operations.session.errors import (
    SessionAttributesTooLarge,
    SessionCreationNotAllowed,
    SessionNameTaken,
    SessionNotOwned,
)
from retinue.store.agents import agents
from retinue.store.core.transaction import Transaction
from retinue.store.sessions import sessions
from retinue.store.sessions import unread as store_unread

LIST_LIMIT_MAX = 50
ATTRIBUTES_BYTES_MAX = 65_536
NAME_SUFFIX_MAX = 100

_encode = msgspec.json.Encoder().encode


class SessionIdRequest(msgspec.Struct, forbid_unknown_fields=True):
    session: str


class SessionStopRequest(msgspec.Struct, forbid_unknown_fields=True):
    session: str
    reason: str = "asked to stop"
    clear: bool = True


class SessionResetRequest(msgspec.Struct, forbid_unknown_fields=True):
    session: str
    message: str = ""


class SessionListRequest(msgspec.Struct, forbid_unknown_fields=True):
    """List sessions. `cursor` is the `next` of the previous page."""

    limit: int = 10
    agent: str = ""
    cursor: str = ""
    archived: Annotated[bool, msgspec.Meta(description="include archived sessions")] = False


class SessionCreateRequest(msgspec.Struct, forbid_unknown_fields=True):
    agent: str
    name: str | None = None
    attributes: dict[str, Any] = {}


class SessionRenameRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Rename a session. If `name` is null, the session has no name afterwards."""

    session: str
    name: str | None


class SessionAttributesRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Change the attributes of a session by merging `patch` into them.

    Objects are merged recursively, null removes a value, and any other value replaces the old value.
    """

    session: str
    patch: dict[str, Any]


class OpenRun(msgspec.Struct):
    id: str
    status: RunStatus
    attempt: int


class SessionSummary(msgspec.Struct, rename="camel"):
    """The fields that every response about a session contains."""

    session_id: str
    agent_id: str
    name: str | None
    pinned_at: str | None
    created_at: str
    updated_at: str
    last_snippet: str
    attributes: Mapping[str, Any]
    origin: str
    wakefulness: SessionActivity
    archived_at: str | None


class SessionRow(SessionSummary):
    """One row of the session list.

    `unread` is the number of unread envelopes from this session. `run` is the open run of the session,
    and `runStatus` says whether that run is working or suspended.
    """

    kind: OriginKind
    run: str | None
    run_status: RunStatus | None
    unread: int


class SessionCleared(SessionSummary):
    cancelled_runs: list[str] = msgspec.field(name="cancelled_runs")  # not camelCase: no field of a summary


class SessionList(msgspec.Struct):
    """One page of sessions. `next` is the cursor of the next page."""

    sessions: list[SessionRow]
    next: str | None


class SessionStopped(msgspec.Struct):
    cancelled_runs: list[str]
    cleared_pending_count: int


class SessionResetResult(msgspec.Struct):
    session: str
    cancelled_runs: list[str]


async def stop_session(services: Services, caller: Principal, request: SessionStopRequest) -> SessionStopped:
    session = await services.store.read(partial(sessions.get_by_short_id, text=request.session, seen_by=caller))
    done = await services.engine.cancel(
        session.id, by=str(caller.address), reason=request.reason[:200], clear_due=request.clear
    )
    return SessionStopped(
        cancelled_runs=[short_id(run) for run in done.runs], cleared_pending_count=done.cleared_envelopes
    )


async def reset_session(services: Services, caller: Principal, request: SessionResetRequest) -> SessionResetResult:
    session = await services.store.read(partial(sessions.get_by_short_id, text=request.session, seen_by=caller))
    done = await services.engine.reset(session.id, by=str(caller.address), message=request.message[:2000])
    return SessionResetResult(session=session.id, cancelled_runs=[short_id(run) for run in done.runs])


def to_session_summary(services: Services, session: Session) -> SessionSummary:
    return SessionSummary(
        session_id=session.id,
        agent_id=session.agent,
        name=session.name or None,
        pinned_at=format_time(session.pinned_at, services.zone) if session.pinned_at else None,
        created_at=format_time(session.created_at, services.zone),
        updated_at=format_time(session.updated_at, services.zone),
        last_snippet=session.snippet,
        attributes=session.attributes,
        origin=f"{session.origin.kind}:{session.origin.key}",
        wakefulness=session.activity,
        archived_at=format_time(session.archived_at, services.zone) if session.archived_at else None,
    )


async def list_sessions(services: Services, caller: Principal, request: SessionListRequest) -> SessionList:
    """List sessions: pinned ones first, most recently pinned first, then the others, most recently updated first."""
    limit = max(1, min(request.limit, LIST_LIMIT_MAX))
    after = _parse_cursor(request.cursor)

    def body(conn: sa.Connection) -> SessionList:
        agent = require_agent(conn, request.agent).name if request.agent else ""
        found = sessions.list_sessions(
            conn, after=after, limit=limit + 1, agent=agent, archived=request.archived, seen_by=caller
        )
        more = _format_cursor(found[limit - 1]) if len(found) > limit else None
        return SessionList(sessions=to_session_rows(services, conn, caller, found[:limit]), next=more)

    return await services.store.scan(body)


def to_session_rows(
    services: Services, conn: sa.Connection, caller: Principal, listed_sessions: Sequence[Session]
) -> list[SessionRow]:
    """Build the rows of a session list for this caller."""
    at_work = store_unread.get_open_runs(conn, [session.id for session in listed_sessions])
    is_person = caller.address.kind is AddressKind.PERSON
    unread = store_unread.count_unread(conn, caller.address.name) if is_person else dict[SessionId, int]()
    return [
        SessionRow(
            **msgspec.structs.asdict(to_session_summary(services, session)),
            kind=session.origin.kind,
            run=at_work[session.id][0] if session.id in at_work else None,
            run_status=at_work[session.id][1] if session.id in at_work else None,
            unread=unread.get(session.id, 0),
        )
        for session in listed_sessions
    ]


def _format_cursor(session: Session) -> str:
    pinned_ms = to_ms(session.pinned_at) if session.pinned_at else -1
    return f"{pinned_ms}.{to_ms(session.updated_at)}.{session.id}"


def _parse_cursor(cursor: str) -> sessions.SessionListPosition:
    if not cursor:
        return sessions.SessionListPosition()
    pinned, _, rest = cursor.partition(".")
    updated, _, id_ = rest.partition(".")
    try:
        return sessions.SessionListPosition(int(pinned[:18]), int(updated[:18]), parse_id_prefix(id_))
    except (ValueError, Invalid):
        raise invalid_cursor(cursor) from None


async def create_session(services: Services, caller: Principal, request: SessionCreateRequest) -> SessionSummary:
    """Create a session of the caller. The server also creates sessions by itself when messages arrive."""
    id_ = SessionId(services.ids.new())
    attributes = check_attributes_size(patch_attributes({}, request.attributes))
    name = validate_session_name(request.name) if request.name is not None else ""

    def body(conn: sa.Connection) -> Session:
        tx = Transaction(conn, to_ms(services.clock.now()))
        agent = require_agent(conn, request.agent)
        origin = build_own_origin(caller, agent, id_)
        if name:
            check_name_free(conn, agent.name, name)
        sessions.start(tx, id_, agent=agent.name, origin=origin, name=name, attributes=attributes)
        tx.close()
        return _require_session(conn, id_)

    return to_session_summary(services, await services.store.write(body, point="session"))


def build_own_origin(caller: Principal, agent: Agent, id_: SessionId) -> Origin:
    """Return the origin of a new session of the caller.

    Raise if the caller is another agent. An agent can create only its own sessions, because it could not
    see a session of another agent.
    """
    if caller.address.kind is AddressKind.PERSON:
        return Origin(OriginKind.WEB, f"{caller.address}/{id_}")
    if caller.address.name.casefold() != agent.name.casefold():
        raise SessionCreationNotAllowed(agent.name)
    return Origin(OriginKind.AGENT, f"{caller.address}/{id_}")


async def rename_session(services: Services, caller: Principal, request: SessionRenameRequest) -> SessionSummary:
    name = validate_session_name(request.name) if request.name is not None else ""

    def act(tx: Transaction, session: Session) -> dict[str, Any]:
        if name and sessions.find_by_name(tx.conn, session.agent, name) not in (None, session.id):
            raise SessionNameTaken(session.agent, name)
        sessions.rename(tx.conn, session.id, name, at_ms=tx.at_ms)
        return {"name": name or None}

    return await _change_session(services, caller, request.session, act)


async def pin_session(services: Services, caller: Principal, request: SessionIdRequest) -> SessionSummary:
    return await _change_session(services, caller, request.session, partial(_set_pin, is_pinned=True))


async def unpin_session(services: Services, caller: Principal, request: SessionIdRequest) -> SessionSummary:
    return await _change_session(services, caller, request.session, partial(_set_pin, is_pinned=False))


def _set_pin(tx: Transaction, session: Session, *, is_pinned: bool) -> dict[str, Any]:
    sessions.set_pinned(tx.conn, session.id, pinned=is_pinned, at_ms=tx.at_ms)
    return {"pinned": is_pinned}


async def set_attributes(services: Services, caller: Principal, request: SessionAttributesRequest) -> SessionSummary:
    def act(tx: Transaction, session: Session) -> dict[str, Any]:
        attributes = check_attributes_size(patch_attributes(session.attributes, request.patch))
        sessions.set_attributes(tx.conn, session.id, attributes, at_ms=tx.at_ms)
        return {"attributes": attributes}

    return await _change_session(services, caller, request.session, act)


async def clear_session(services: Services, caller: Principal, request: SessionIdRequest) -> SessionCleared:
    """Start a new context without any text from the old one. The session keeps its agent, name, pin and attributes."""
    session = await services.store.read(partial(sessions.get_by_short_id, text=request.session, seen_by=caller))
    done = await services.engine.reset(session.id, by=str(caller.address))

    def act(tx: Transaction, session: Session) -> dict[str, Any]:
        sessions.clear_snippet(tx.conn, session.id, at_ms=tx.at_ms)
        return {"cleared": True}

    cleared = await _change_session(services, caller, session.id, act)
    return SessionCleared(**msgspec.structs.asdict(cleared), cancelled_runs=[short_id(run) for run in done.runs])


# --- shared helpers ---


async def write_session(
    services: Services, caller: Principal, text: str, write_session: Callable[[Transaction, Session], None]
) -> Session:
    """Look up a session that the caller may see, and call the function `write_session` with it, in one transaction.

    Returns the session as it was before the call.
    """

    def body(conn: sa.Connection) -> Session:
        tx = Transaction(conn, to_ms(services.clock.now()))
        session = sessions.get_by_short_id(conn, text, seen_by=caller)
        write_session(tx, session)
        tx.close()
        return session

    return await services.store.write(body, point="session")


async def _change_session(
    services: Services, caller: Principal, text: str, change_session: Callable[[Transaction, Session], dict[str, Any]]
) -> SessionSummary:
    """Call `change_session` with a session that the caller may see, emit an event, and return the session."""

    def body(conn: sa.Connection) -> Session:
        tx = Transaction(conn, to_ms(services.clock.now()))
        session = sessions.get_by_short_id(conn, text, seen_by=caller)
        tx.emit(EventKind.SESSION_CHANGED, session=session.id, **change_session(tx, session))
        tx.close()
        return _require_session(conn, session.id)

    return to_session_summary(services, await services.store.write(body, point="session"))


def check_owner(caller: Principal, session: Session | None, *, people_only: bool = False) -> None:
    """Raise an error unless the caller is the owner of the session or of the instance, or the session's agent.

    A person with whom the session is only shared may not make irreversible changes. With `people_only`,
    the error is raised for the session's agent too.
    """
    own = caller.sees_everything or (session is not None and session.origin.belongs_to(str(caller.address)))
    if session is not None and not people_only and caller.address.kind is AddressKind.AGENT:
        own = own or session.agent == caller.address.name
    if not own:
        raise SessionNotOwned(short_id(session.id) if session else "", shares=people_only)


def _require_session(conn: sa.Connection, id_: str) -> Session:
    session = sessions.get(conn, id_)
    assert session is not None  # written above, in the same transaction
    return session


def require_agent(conn: sa.Connection, name: str) -> Agent:
    agent = agents.find(conn, name)
    if agent is None:
        raise AgentNotFound(name)
    return agent


def find_free_name(conn: sa.Connection, agent: str, name: str) -> str:
    """Return this name, or a free name such as `taxes (2)` if it is taken. Return "" if too many names are taken."""
    if not name or sessions.find_by_name(conn, agent, name) is None:
        return name
    for number in range(2, NAME_SUFFIX_MAX + 1):
        ending = f" ({number})"
        like = name[: SESSION_NAME_LENGTH_MAX - len(ending)] + ending
        if sessions.find_by_name(conn, agent, like) is None:
            return like
    return ""


def check_name_free(conn: sa.Connection, agent: str, name: str) -> None:
    if sessions.find_by_name(conn, agent, name) is not None:
        raise SessionNameTaken(agent, name)


def check_attributes_size(attributes: dict[str, Any]) -> dict[str, Any]:
    size = len(_encode(attributes))
    if size > ATTRIBUTES_BYTES_MAX:
        raise SessionAttributesTooLarge(size, bytes_max=ATTRIBUTES_BYTES_MAX)
    return attributes


OPERATIONS = (
    Operation(
        name="session.list",
        summary="List sessions.",
        parameters=SessionListRequest,
        handler=list_sessions,
        permission=PermissionLevel.RESTRICTED,
        result=SessionList,
    ),
    Operation(
        name="session.create",
        summary="Create a session with an agent.",
        parameters=SessionCreateRequest,
        handler=create_session,
        permission=PermissionLevel.RESTRICTED,
        has_effect=True,
        result=SessionSummary,
    ),
    Operation(
        name="session.rename",
        summary="Rename a session.",
        parameters=SessionRenameRequest,
        handler=rename_session,
        permission=PermissionLevel.RESTRICTED,
        has_effect=True,
        result=SessionSummary,
    ),
    Operation(
        name="session.pin",
        summary="Pin a session to the top of the list.",
        parameters=SessionIdRequest,
        handler=pin_session,
        permission=PermissionLevel.RESTRICTED,
        has_effect=True,
        result=SessionSummary,
    ),
    Operation(
        name="session.unpin",
        summary="Unpin a session.",
        parameters=SessionIdRequest,
        handler=unpin_session,
        permission=PermissionLevel.RESTRICTED,
        has_effect=True,
        result=SessionSummary,
    ),
    Operation(
        name="session.attributes",
        summary="Change the attributes of a session.",
        parameters=SessionAttributesRequest,
        handler=set_attributes,
        permission=PermissionLevel.RESTRICTED,
        has_effect=True,
        result=SessionSummary,
    ),
    Operation(
        name="session.clear",
        summary="Clear a session: start a new context without earlier messages.",
        parameters=SessionIdRequest,
        handler=clear_session,
        permission=PermissionLevel.RESTRICTED,
        has_effect=True,
        result=SessionCleared,
    ),
    Operation(
        name="session.stop",
        summary="Stop the run in a session.",
        parameters=SessionStopRequest,
        handler=stop_session,
        permission=PermissionLevel.RESTRICTED,
        has_effect=True,
        result=SessionStopped,
    ),
    Operation(
        name="session.reset",
        summary="Stop the run in a session, and reset the context.",
        parameters=SessionResetRequest,
        handler=reset_session,
        permission=PermissionLevel.RESTRICTED,
        has_effect=True,
        result=SessionResetResult,
    ),
)
