"""List, create, show, change, share, stop, reset and delete sessions, and answer approvals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Annotated, Any

import msgspec
import sqlalchemy as sa

from retinue.domain.address import AddressKind
from retinue.domain.agent import Agent, PermissionLevel
from retinue.domain.approval import ApprovalState
from retinue.domain.errors import Invalid
from retinue.domain.event import EventKind
from retinue.domain.grant import GrantScope
from retinue.domain.ids import SessionId, parse_id_prefix, short_id
from retinue.domain.principal import Principal
from retinue.domain.record import ContextStart, Record, RecordBody, RecordKind, Reply
from retinue.domain.run import RunStatus
from retinue.domain.session import (
    DEBOUNCE_S_MAX,
    QUEUE_CAP_MAX,
    SESSION_NAME_LENGTH_MAX,
    Origin,
    OriginKind,
    Overflow,
    QueueMode,
    QueueOverride,
    Session,
    SessionActivity,
    patch_attributes,
    validate_session_name,
)
from retinue.domain.shared_errors import AgentNotFound, PersonNotFound
from retinue.domain.structs import replace
from retinue.domain.times import format_time, to_ms
from retinue.engine.event_broadcast import PartialReply
from retinue.operations.base import Operation, Services
from retinue.operations.pagination import invalid_cursor
from retinue.operations.session.errors import (
    SessionAttributesTooLarge,
    SessionCreationNotAllowed,
    SessionNameTaken,
    SessionNotOwned,
    SessionNotShared,
    TooManySessionShares,
)
from retinue.store.agents import agents
from retinue.store.core import events
from retinue.store.core.transaction import Transaction
from retinue.store.people import people
from retinue.store.runs import approvals, runs
from retinue.store.sessions import records, session_shares, sessions
from retinue.store.sessions import unread as store_unread
from retinue.store.sessions.records import DamagedRecord

RECORDS_LISTED_MAX = 200
LIST_LIMIT_MAX = 50
ATTRIBUTES_BYTES_MAX = 65_536
SHARES_MAX = 100
NAME_SUFFIX_MAX = 100
RESTORABLE_DAYS = 30  # after deletion

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


class SessionQueueRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Set the queue rules of a session. An omitted field gets the value of the agent's queue rules."""

    session: str
    mode: QueueMode | None = None
    cap: int | None = None
    overflow: Overflow | None = None
    debounce_s: Annotated[float, msgspec.Meta(ge=0, le=DEBOUNCE_S_MAX)] | None = None


class SessionListRequest(msgspec.Struct, forbid_unknown_fields=True):
    """List sessions. `cursor` is the `next` of the previous page."""

    limit: int = 10
    agent: str = ""
    cursor: str = ""
    archived: Annotated[bool, msgspec.Meta(description="include archived sessions")] = False


class SessionHistoryRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Read the newest records of a session, or with `before` the records before that number."""

    session: str
    limit: int = 50
    before: int | None = None


class SessionCreateRequest(msgspec.Struct, forbid_unknown_fields=True):
    agent: str
    name: str | None = None
    attributes: dict[str, Any] = {}


class SessionRenameRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Rename a session. If `name` is null, its name is removed."""

    session: str
    name: str | None


class SessionAttributesRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Change the attributes of a session by merging `patch` into them.

    Objects are merged recursively, null removes a value, and any other value replaces the old value.
    """

    session: str
    patch: dict[str, Any]


class SessionShareRequest(msgspec.Struct, forbid_unknown_fields=True):
    session: str
    person: str


class ApprovalAnswerRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Answer an approval. `scope` is how long a yes counts: for these calls once, for this session, or always.

    The agent reads `because`.
    """

    id: str
    allow: bool
    scope: GrantScope = GrantScope.ONCE
    because: Annotated[str, msgspec.Meta(max_length=2_000)] = ""


class OpenRun(msgspec.Struct):
    id: str
    status: RunStatus
    attempt: int


class SessionRecord(msgspec.Struct):
    seq: int
    kind: RecordKind
    body: Any  # its type depends on `kind`
    run: str | None


class HistoryRecord(msgspec.Struct):
    seq: int
    kind: RecordKind
    at: str
    body: Any  # its type depends on `kind`
    run: str | None


class DamagedRecordRow(msgspec.Struct):
    """Stands for a record that cannot be decoded."""

    seq: int
    because: str


class PartialReplyDetails(msgspec.Struct):
    """The text that a model has produced so far in a reply that is not complete yet."""

    session: str
    run: str
    turn: int
    attempt: int
    text: str
    thinking: str


class SessionState(msgspec.Struct):
    """Everything needed to show a session now. Later changes are the events after `cursor`."""

    cursor: int
    session: str
    agent: str
    revision: int
    wakefulness: SessionActivity
    queue: QueueOverride
    run: OpenRun | None
    records: list[SessionRecord]
    damaged: list[DamagedRecordRow]
    partials: list[PartialReplyDetails]


class SessionSummary(msgspec.Struct, rename="camel"):
    """The data of a session that every answer about it contains."""

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

    `unread` is the number of unread envelopes from this session. `run` is its open run, and
    `runStatus` says whether that run is working or suspended.
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


class SessionHistory(msgspec.Struct):
    """One page of records. `next` is the `before` of the next page, which has older records."""

    session: str
    agent: str
    records: list[HistoryRecord]
    damaged: list[DamagedRecordRow]
    next: int | None


class SessionStopped(msgspec.Struct):
    cancelled_runs: list[str]
    cleared_pending_count: int


class SessionResetResult(msgspec.Struct):
    session: str
    cancelled_runs: list[str]


class SessionDeleted(msgspec.Struct):
    session: str
    deleted: bool
    cancelled_runs: list[str]
    cleared_pending_count: int
    restorable_until: str


class SessionShared(msgspec.Struct):
    session: str
    shared_with: list[str]


class SessionQueueSet(msgspec.Struct):
    session: str
    queue: QueueOverride


class ApprovalAnswered(msgspec.Struct):
    approval: str
    state: ApprovalState


async def show_session_state(services: Services, caller: Principal, request: SessionIdRequest) -> SessionState:
    """Return everything needed to show a conversation, and the cursor from which its events continue."""

    def body(conn: sa.Connection) -> SessionState:
        session = sessions.get_by_short_id(conn, request.session, seen_by=caller)
        first = max(1, session.record_seq - RECORDS_LISTED_MAX + 1)
        found, damaged = records.read_range(conn, session.id, first=first, last=session.record_seq)
        found = _since_last_reset(found)
        damaged = [each for each in damaged if not found or each.seq > found[0].seq]
        run = runs.get_open(conn, session.id)
        return SessionState(
            cursor=events.newest_seq(conn),
            session=session.id,
            agent=session.agent,
            revision=session.revision,
            wakefulness=session.activity,
            queue=session.queue,
            run=OpenRun(id=run.id, status=run.status, attempt=run.attempt) if run else None,
            records=[
                SessionRecord(seq=r.seq, kind=r.kind, body=without_provider_pieces(r.body), run=r.run) for r in found
            ],
            damaged=to_damaged_record_rows(damaged),
            partials=[],
        )

    found = await services.store.scan(body)
    found.partials = [
        to_partial_reply_details(reply) for reply in services.event_broadcast.partial_replies(SessionId(found.session))
    ]
    return found


def _since_last_reset(session_records: list[Record]) -> list[Record]:
    """Return the records since the session started or was last reset, including those from before a compaction."""
    marks = [i for i, record in enumerate(session_records) if isinstance(record.body, ContextStart)]
    return session_records[marks[-1] :] if marks else session_records


def without_provider_pieces(body: RecordBody) -> RecordBody:
    """Remove the parts of a reply that only its provider can read."""
    return replace(body, pieces=()) if isinstance(body, Reply) and body.pieces else body


def to_partial_reply_details(partial_reply: PartialReply) -> PartialReplyDetails:
    return PartialReplyDetails(
        session=partial_reply.session,
        run=partial_reply.run,
        turn=partial_reply.turn,
        attempt=partial_reply.attempt,
        text=partial_reply.text,
        thinking=partial_reply.thinking,
    )


def to_damaged_record_rows(damaged: Iterable[DamagedRecord]) -> list[DamagedRecordRow]:
    return [DamagedRecordRow(seq=each.seq, because=each.because) for each in damaged]


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


async def set_session_queue(services: Services, caller: Principal, request: SessionQueueRequest) -> SessionQueueSet:
    cap = None if request.cap is None else max(0, min(request.cap, QUEUE_CAP_MAX))
    override = QueueOverride(mode=request.mode, cap=cap, overflow=request.overflow, debounce_s=request.debounce_s)

    def body(conn: sa.Connection) -> Session:
        tx = Transaction(conn, to_ms(services.clock.now()))
        session = sessions.get_by_short_id(conn, request.session, seen_by=caller)
        sessions.set_queue(conn, session.id, override, at_ms=tx.at_ms)
        tx.emit(EventKind.SESSION_CHANGED, session=session.id, queue=override)
        tx.close()
        return session

    session = await services.store.write(body, point="queue")
    return SessionQueueSet(session=session.id, queue=override)


async def answer_approval(services: Services, caller: Principal, request: ApprovalAnswerRequest) -> ApprovalAnswered:
    seen = await services.store.read(partial(approvals.get_by_short_id, text=request.id, seen_by=caller))
    approval = await services.engine.answer_approval(
        seen.id, allow=request.allow, by=caller, scope=request.scope, comment=request.because
    )
    return ApprovalAnswered(approval=short_id(approval.id), state=approval.state)


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
    """List sessions: pinned ones first, the newest pin first, then the rest by last update."""
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


async def read_history(services: Services, caller: Principal, request: SessionHistoryRequest) -> SessionHistory:
    """Return all records of a session in pages, newest page first.

    Records within a page are in order.
    """
    limit = max(1, min(request.limit, RECORDS_LISTED_MAX))

    def body(conn: sa.Connection) -> SessionHistory:
        session = sessions.get_by_short_id(conn, request.session, seen_by=caller)
        last = session.record_seq
        if request.before is not None:
            last = max(0, min(last, request.before - 1))
        first = max(1, last - limit + 1)
        found, damaged = records.read_range(conn, session.id, first=first, last=last)
        return SessionHistory(
            session=session.id,
            agent=session.agent,
            records=[
                HistoryRecord(
                    seq=r.seq,
                    kind=r.kind,
                    at=format_time(r.at, services.zone),
                    body=without_provider_pieces(r.body),
                    run=r.run,
                )
                for r in found
            ],
            damaged=to_damaged_record_rows(damaged),
            next=first if first > 1 else None,
        )

    return await services.store.scan(body)


async def create_session(services: Services, caller: Principal, request: SessionCreateRequest) -> SessionSummary:
    """Create a session of the caller, in addition to sessions that start by themselves."""
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

    An agent can only create its own sessions, because it could not see the session of another agent.
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
    """Reset the context of a session without carrying anything over. Its agent, name, pin and attributes stay."""
    session = await services.store.read(partial(sessions.get_by_short_id, text=request.session, seen_by=caller))
    done = await services.engine.reset(session.id, by=str(caller.address))

    def act(tx: Transaction, session: Session) -> dict[str, Any]:
        sessions.clear_snippet(tx.conn, session.id, at_ms=tx.at_ms)
        return {"cleared": True}

    cleared = await _change_session(services, caller, session.id, act)
    return SessionCleared(**msgspec.structs.asdict(cleared), cancelled_runs=[short_id(run) for run in done.runs])


async def delete_session(services: Services, caller: Principal, request: SessionIdRequest) -> SessionDeleted:
    """Delete a session, then stop its run.

    If the server stops in between, the run is ended at the next start.
    """

    def act(tx: Transaction, session: Session) -> None:
        check_owner(caller, session)
        sessions.delete(tx.conn, session.id, at_ms=tx.at_ms)
        tx.emit(EventKind.SESSION_DELETED, session=session.id, agent=session.agent, by=str(caller.address))

    until = services.clock.now() + timedelta(days=RESTORABLE_DAYS)
    session = await _write_session(services, caller, request.session, act)
    done = await services.engine.cancel(
        session.id, by=str(caller.address), reason="the conversation was deleted", clear_due=True
    )
    if services.end_session_work is not None:
        await services.end_session_work(session.id, "its conversation was deleted")
    return SessionDeleted(
        session=session.id,
        deleted=True,
        cancelled_runs=[short_id(run) for run in done.runs],
        cleared_pending_count=done.cleared_envelopes,
        restorable_until=format_time(until, services.zone),
    )


async def share_session(services: Services, caller: Principal, request: SessionShareRequest) -> SessionShared:
    """Let another person see a session and write in it.

    Only its owner and the instance's owner may share it.
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
    """Stop sharing a session with a person. That person may also leave by themselves."""

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

    session = await _write_session(services, caller, request.session, shared)
    return SessionShared(session=session.id, shared_with=now)


# --- shared helpers ---


async def _write_session(
    services: Services, caller: Principal, text: str, write_session: Callable[[Transaction, Session], None]
) -> Session:
    """Look up a visible session and call `write_session` with it, in one transaction.

    Returns the session as it was before.
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
    """Change a visible session with `change_session`, emit an event, and return the changed session."""

    def body(conn: sa.Connection) -> Session:
        tx = Transaction(conn, to_ms(services.clock.now()))
        session = sessions.get_by_short_id(conn, text, seen_by=caller)
        tx.emit(EventKind.SESSION_CHANGED, session=session.id, **change_session(tx, session))
        tx.close()
        return _require_session(conn, session.id)

    return to_session_summary(services, await services.store.write(body, point="session"))


def check_owner(caller: Principal, session: Session | None, *, people_only: bool = False) -> None:
    """Raise an error unless the session belongs to the caller.

    A person with whom it is shared may not make irreversible changes.
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


def _require_person_name(conn: sa.Connection, name: str) -> str:
    person = people.find(conn, name)
    if person is None:
        raise PersonNotFound(name)
    return person.name


def find_free_name(conn: sa.Connection, agent: str, name: str) -> str:
    """Return this name, or a free one such as `taxes (2)`. Empty if too many names are taken."""
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
        name="session.history",
        summary="Show the records of a session.",
        parameters=SessionHistoryRequest,
        handler=read_history,
        permission=PermissionLevel.RESTRICTED,
        result=SessionHistory,
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
        name="session.delete",
        summary="Delete a session.",
        parameters=SessionIdRequest,
        handler=delete_session,
        permission=PermissionLevel.STANDARD,
        has_effect=True,
        result=SessionDeleted,
    ),
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
    Operation(
        name="session.state",
        summary="Show the current state of a session.",
        parameters=SessionIdRequest,
        handler=show_session_state,
        permission=PermissionLevel.RESTRICTED,
        result=SessionState,
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
    Operation(
        name="session.set_queue",
        summary="Set how messages queue while a run is active.",
        parameters=SessionQueueRequest,
        handler=set_session_queue,
        permission=PermissionLevel.STANDARD,
        has_effect=True,
        result=SessionQueueSet,
    ),
    Operation(
        name="approval.answer",
        summary="Answer an approval: allow or deny the calls.",
        parameters=ApprovalAnswerRequest,
        handler=answer_approval,
        permission=PermissionLevel.RESTRICTED,
        has_effect=True,
        result=ApprovalAnswered,
    ),
)
