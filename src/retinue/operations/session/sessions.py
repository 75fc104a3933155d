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
from retinue.domain.errors import Conflict, Invalid, NotAllowed, NotFound, TooLarge
from retinue.domain.event import NewsKind
from retinue.domain.grant import GrantScope
from retinue.domain.ids import SessionId, prefix, short
from retinue.domain.principal import Principal
from retinue.domain.record import Body, Mark, Record, RecordKind, Reply
from retinue.domain.run import RunStatus
from retinue.domain.session import (
    DEBOUNCE_S_MAX,
    NAME_LENGTH_MAX,
    QUEUE_CAP_MAX,
    Origin,
    OriginKind,
    Overflow,
    QueueMode,
    QueueOverride,
    Session,
    Wakefulness,
    patched,
    valid_session_name,
)
from retinue.domain.structs import replace
from retinue.domain.times import show, to_ms
from retinue.engine.event_broadcast import Partial
from retinue.operations.base import Desk, Operation
from retinue.operations.pagination import no_cursor
from retinue.store.agents import agents
from retinue.store.core import events
from retinue.store.core.transaction import Page
from retinue.store.people import people
from retinue.store.runs import approvals, runs
from retinue.store.sessions import records, session_shares, sessions
from retinue.store.sessions import unread as store_unread
from retinue.store.sessions.records import Damage

RECORDS_SHOWN_MAX = 200
LISTED_MAX = 50
ATTRIBUTES_BYTES_MAX = 65_536
SHARES_MAX = 100
NAMES_ALIKE_MAX = 100
RESTORABLE_DAYS = 30  # after deletion

_encode = msgspec.json.Encoder().encode


class OfSession(msgspec.Struct, forbid_unknown_fields=True):
    session: str


class Stop(msgspec.Struct, forbid_unknown_fields=True):
    session: str
    why: str = "asked to stop"
    clear: bool = True


class Reset(msgspec.Struct, forbid_unknown_fields=True):
    session: str
    message: str = ""


class Queue(msgspec.Struct, forbid_unknown_fields=True):
    """Omit everything to use the agent's own queue rules."""

    session: str
    mode: QueueMode | None = None
    cap: int | None = None
    overflow: Overflow | None = None
    debounce_s: Annotated[float, msgspec.Meta(ge=0, le=DEBOUNCE_S_MAX)] | None = None


class Listing(msgspec.Struct, forbid_unknown_fields=True):
    """`cursor` is the `next` of the previous page."""

    limit: int = 10
    agent: str = ""
    cursor: str = ""
    archived: Annotated[bool, msgspec.Meta(description="also those that were put away")] = False


class History(msgspec.Struct, forbid_unknown_fields=True):
    """The newest records, or with `before` the records before that number."""

    session: str
    limit: int = 50
    before: int | None = None


class Create(msgspec.Struct, forbid_unknown_fields=True):
    agent: str
    name: str | None = None
    attributes: dict[str, Any] = {}


class Rename(msgspec.Struct, forbid_unknown_fields=True):
    """Null removes the name."""

    session: str
    name: str | None


class Attributes(msgspec.Struct, forbid_unknown_fields=True):
    """Objects merge recursively, null removes a value, any other value replaces the old one."""

    session: str
    patch: dict[str, Any]


class Share(msgspec.Struct, forbid_unknown_fields=True):
    session: str
    person: str


class Answer(msgspec.Struct, forbid_unknown_fields=True):
    """`scope` of an approval: these calls once, this session, or always.

    The agent reads `because`.
    """

    id: str
    allow: bool
    scope: GrantScope = GrantScope.ONCE
    because: Annotated[str, msgspec.Meta(max_length=2_000)] = ""


class RunShown(msgspec.Struct):
    id: str
    status: RunStatus
    attempt: int


class RecordShown(msgspec.Struct):
    seq: int
    kind: RecordKind
    body: Any  # its type depends on `kind`
    run: str | None


class RecordOfHistory(msgspec.Struct):
    seq: int
    kind: RecordKind
    at: str
    body: Any  # its type depends on `kind`
    run: str | None


class RecordDamaged(msgspec.Struct):
    """A record that cannot be decoded."""

    seq: int
    because: str


class PartialShown(msgspec.Struct):
    """The text of one model reply attempt so far."""

    session: str
    run: str
    turn: int
    attempt: int
    text: str
    thinking: str


class SessionState(msgspec.Struct):
    """Current state of a session. Events continue from `cursor`."""

    cursor: int
    session: str
    agent: str
    revision: int
    wakefulness: Wakefulness
    queue: QueueOverride
    run: RunShown | None
    records: list[RecordShown]
    damaged: list[RecordDamaged]
    partials: list[PartialShown]


class SessionSummary(msgspec.Struct, rename="camel"):
    """Basic data of a session."""

    session_id: str
    agent_id: str
    name: str | None
    pinned_at: str | None
    created_at: str
    updated_at: str
    last_snippet: str
    attributes: Mapping[str, Any]
    origin: str
    wakefulness: Wakefulness
    archived_at: str | None


class SessionListed(SessionSummary):
    """One row of the session list.

    `unread` is the number of unread envelopes from this session. `run` is its open run: working, or
    suspended (`runStatus`).
    """

    kind: OriginKind
    run: str | None
    run_status: RunStatus | None
    unread: int


class SessionCleared(SessionSummary):
    cancelled_runs: list[str] = msgspec.field(name="cancelled-runs")


class SessionsListed(msgspec.Struct):
    """`next` is the cursor of the next page."""

    sessions: list[SessionListed]
    next: str | None


class SessionHistory(msgspec.Struct):
    """`next` is the `before` of the next page, with older records."""

    session: str
    agent: str
    records: list[RecordOfHistory]
    damaged: list[RecordDamaged]
    next: int | None


class SessionStopped(msgspec.Struct, rename="kebab"):
    cancelled_runs: list[str]
    cleared_pending_count: int


class SessionReset(msgspec.Struct, rename="kebab"):
    session: str
    cancelled_runs: list[str]


class SessionDeleted(msgspec.Struct, rename="kebab"):
    session: str
    deleted: bool
    cancelled_runs: list[str]
    cleared_pending_count: int
    restorable_until: str


class SessionShared(msgspec.Struct, rename="kebab"):
    session: str
    shared_with: list[str]


class QueueSet(msgspec.Struct):
    session: str
    queue: QueueOverride


class ApprovalAnswered(msgspec.Struct):
    approval: str
    state: ApprovalState


async def state(desk: Desk, caller: Principal, asked: OfSession) -> SessionState:
    """Return everything needed to show a conversation, and the cursor from which its events continue."""

    def body(conn: sa.Connection) -> SessionState:
        session = sessions.resolve(conn, asked.session, seen_by=caller)
        first = max(1, session.record_seq - RECORDS_SHOWN_MAX + 1)
        found, damaged = records.read(conn, session.id, first=first, last=session.record_seq)
        found = _since_marker(found)
        damaged = [each for each in damaged if not found or each.seq > found[0].seq]
        run = runs.open_in(conn, session.id)
        return SessionState(
            cursor=events.newest(conn),
            session=session.id,
            agent=session.agent,
            revision=session.revision,
            wakefulness=session.wakefulness,
            queue=session.queue,
            run=RunShown(id=run.id, status=run.status, attempt=run.attempt) if run else None,
            records=[RecordShown(seq=r.seq, kind=r.kind, body=shown(r.body), run=r.run) for r in found],
            damaged=damaged_form(damaged),
            partials=[],
        )

    found = await desk.store.scan(body)
    found.partials = [partial_form(said) for said in desk.live.partials(SessionId(found.session))]
    return found


def _since_marker(found: list[Record]) -> list[Record]:
    """Return the records since the session started or was last reset, including those from before a compaction."""
    marks = [i for i, record in enumerate(found) if isinstance(record.body, Mark)]
    return found[marks[-1] :] if marks else found


def shown(body: Body) -> Body:
    """Remove the parts of a reply that only its provider can read."""
    return replace(body, pieces=()) if isinstance(body, Reply) and body.pieces else body


def partial_form(said: Partial) -> PartialShown:
    return PartialShown(
        session=said.session,
        run=said.run,
        turn=said.turn,
        attempt=said.attempt,
        text=said.text,
        thinking=said.thinking,
    )


def damaged_form(damaged: Iterable[Damage]) -> list[RecordDamaged]:
    return [RecordDamaged(seq=each.seq, because=each.because) for each in damaged]


async def stop(desk: Desk, caller: Principal, asked: Stop) -> SessionStopped:
    session = await desk.store.read(partial(sessions.resolve, text=asked.session, seen_by=caller))
    done = await desk.engine.cancel(session.id, by=str(caller.address), why=asked.why[:200], clear_due=asked.clear)
    return SessionStopped(cancelled_runs=[short(run) for run in done.runs], cleared_pending_count=done.cleared)


async def reset(desk: Desk, caller: Principal, asked: Reset) -> SessionReset:
    session = await desk.store.read(partial(sessions.resolve, text=asked.session, seen_by=caller))
    done = await desk.engine.reset(session.id, by=str(caller.address), message=asked.message[:2000])
    return SessionReset(session=session.id, cancelled_runs=[short(run) for run in done.runs])


async def set_queue(desk: Desk, caller: Principal, asked: Queue) -> QueueSet:
    cap = None if asked.cap is None else max(0, min(asked.cap, QUEUE_CAP_MAX))
    override = QueueOverride(mode=asked.mode, cap=cap, overflow=asked.overflow, debounce_s=asked.debounce_s)

    def body(conn: sa.Connection) -> Session:
        page = Page(conn, to_ms(desk.clock.now()))
        session = sessions.resolve(conn, asked.session, seen_by=caller)
        sessions.set_queue(conn, session.id, override, at_ms=page.at_ms)
        page.tell(NewsKind.SESSION_CHANGED, session=session.id, queue=override)
        page.close()
        return session

    session = await desk.store.write(body, point="queue")
    return QueueSet(session=session.id, queue=override)


async def answer(desk: Desk, caller: Principal, asked: Answer) -> ApprovalAnswered:
    seen = await desk.store.read(partial(approvals.resolve, text=asked.id, seen_by=caller))
    approval = await desk.engine.answer(seen.id, allow=asked.allow, by=caller, scope=asked.scope, words=asked.because)
    return ApprovalAnswered(approval=short(approval.id), state=approval.state)


def summary(desk: Desk, session: Session) -> SessionSummary:
    return SessionSummary(
        session_id=session.id,
        agent_id=session.agent,
        name=session.name or None,
        pinned_at=show(session.pinned_at, desk.zone) if session.pinned_at else None,
        created_at=show(session.created_at, desk.zone),
        updated_at=show(session.updated_at, desk.zone),
        last_snippet=session.snippet,
        attributes=session.attributes,
        origin=f"{session.origin.kind}:{session.origin.key}",
        wakefulness=session.wakefulness,
        archived_at=show(session.archived_at, desk.zone) if session.archived_at else None,
    )


async def listed(desk: Desk, caller: Principal, asked: Listing) -> SessionsListed:
    """List sessions: pinned ones first, the newest pin first, then the rest by last update."""
    limit = max(1, min(asked.limit, LISTED_MAX))
    after = _place(asked.cursor)

    def body(conn: sa.Connection) -> SessionsListed:
        agent = agent_named(conn, asked.agent).name if asked.agent else ""
        found = sessions.listed(
            conn, after=after, limit=limit + 1, agent=agent, archived=asked.archived, seen_by=caller
        )
        more = _cursor(found[limit - 1]) if len(found) > limit else None
        return SessionsListed(sessions=with_marks(desk, conn, caller, found[:limit]), next=more)

    return await desk.store.scan(body)


def with_marks(desk: Desk, conn: sa.Connection, caller: Principal, found: Sequence[Session]) -> list[SessionListed]:
    """Build the rows of a session list for this caller."""
    at_work = store_unread.at_work(conn, [session.id for session in found])
    is_person = caller.address.kind is AddressKind.PERSON
    unread = store_unread.unread(conn, caller.address.name) if is_person else dict[SessionId, int]()
    return [
        SessionListed(
            **msgspec.structs.asdict(summary(desk, session)),
            kind=session.origin.kind,
            run=at_work[session.id][0] if session.id in at_work else None,
            run_status=at_work[session.id][1] if session.id in at_work else None,
            unread=unread.get(session.id, 0),
        )
        for session in found
    ]


def _cursor(session: Session) -> str:
    pinned_ms = to_ms(session.pinned_at) if session.pinned_at else -1
    return f"{pinned_ms}.{to_ms(session.updated_at)}.{session.id}"


def _place(cursor: str) -> sessions.Place:
    if not cursor:
        return sessions.Place()
    pinned, _, rest = cursor.partition(".")
    updated, _, id_ = rest.partition(".")
    try:
        return sessions.Place(int(pinned[:18]), int(updated[:18]), prefix(id_))
    except (ValueError, Invalid):
        raise no_cursor(cursor) from None


async def history(desk: Desk, caller: Principal, asked: History) -> SessionHistory:
    """Return all records of a session in pages, newest page first.

    Records within a page are in order.
    """
    limit = max(1, min(asked.limit, RECORDS_SHOWN_MAX))

    def body(conn: sa.Connection) -> SessionHistory:
        session = sessions.resolve(conn, asked.session, seen_by=caller)
        last = session.record_seq
        if asked.before is not None:
            last = max(0, min(last, asked.before - 1))
        first = max(1, last - limit + 1)
        found, damaged = records.read(conn, session.id, first=first, last=last)
        return SessionHistory(
            session=session.id,
            agent=session.agent,
            records=[
                RecordOfHistory(seq=r.seq, kind=r.kind, at=show(r.at, desk.zone), body=shown(r.body), run=r.run)
                for r in found
            ],
            damaged=damaged_form(damaged),
            next=first if first > 1 else None,
        )

    return await desk.store.scan(body)


async def create(desk: Desk, caller: Principal, asked: Create) -> SessionSummary:
    """Create a session of the caller, in addition to those that start by themselves."""
    id_ = SessionId(desk.ids.new())
    attributes = bounded(patched({}, asked.attributes))
    name = valid_session_name(asked.name) if asked.name is not None else ""

    def body(conn: sa.Connection) -> Session:
        page = Page(conn, to_ms(desk.clock.now()))
        agent = agent_named(conn, asked.agent)
        origin = own_origin(caller, agent, id_)
        if name:
            check_name_free(conn, agent.name, name)
        sessions.start(page, id_, agent=agent.name, origin=origin, name=name, attributes=attributes)
        page.close()
        return _there(conn, id_)

    return summary(desk, await desk.store.write(body, point="session"))


def own_origin(caller: Principal, agent: Agent, id_: SessionId) -> Origin:
    """Return the origin of a new session of the caller.

    An agent can only create its own sessions, because it could not see another agent's.
    """
    if caller.address.kind is AddressKind.PERSON:
        return Origin(OriginKind.WEB, f"{caller.address}/{id_}")
    if caller.address.name.casefold() != agent.name.casefold():
        raise NotAllowed(
            f"you may not open a session of {agent.name}",
            because="an agent sees its own sessions alone",
            try_this=f"write to agent:{agent.name}, and a session begins there",
            code="session.not-yours",
        )
    return Origin(OriginKind.AGENT, f"{caller.address}/{id_}")


async def rename(desk: Desk, caller: Principal, asked: Rename) -> SessionSummary:
    name = valid_session_name(asked.name) if asked.name is not None else ""

    def act(page: Page, session: Session) -> dict[str, Any]:
        if name and sessions.by_name(page.conn, session.agent, name) not in (None, session.id):
            raise _name_taken(session.agent, name)
        sessions.rename(page.conn, session.id, name, at_ms=page.at_ms)
        return {"name": name or None}

    return await _change(desk, caller, asked.session, act)


async def pin(desk: Desk, caller: Principal, asked: OfSession) -> SessionSummary:
    return await _change(desk, caller, asked.session, partial(_set_pin, pinned=True))


async def unpin(desk: Desk, caller: Principal, asked: OfSession) -> SessionSummary:
    return await _change(desk, caller, asked.session, partial(_set_pin, pinned=False))


def _set_pin(page: Page, session: Session, *, pinned: bool) -> dict[str, Any]:
    sessions.pin(page.conn, session.id, pinned=pinned, at_ms=page.at_ms)
    return {"pinned": pinned}


async def set_attributes(desk: Desk, caller: Principal, asked: Attributes) -> SessionSummary:
    def act(page: Page, session: Session) -> dict[str, Any]:
        attributes = bounded(patched(session.attributes, asked.patch))
        sessions.set_attributes(page.conn, session.id, attributes, at_ms=page.at_ms)
        return {"attributes": attributes}

    return await _change(desk, caller, asked.session, act)


async def clear(desk: Desk, caller: Principal, asked: OfSession) -> SessionCleared:
    """Reset the context without carrying anything over. Agent, name, pin and attributes stay."""
    session = await desk.store.read(partial(sessions.resolve, text=asked.session, seen_by=caller))
    done = await desk.engine.reset(session.id, by=str(caller.address))

    def act(page: Page, session: Session) -> dict[str, Any]:
        sessions.forget_snippet(page.conn, session.id, at_ms=page.at_ms)
        return {"cleared": True}

    cleared = await _change(desk, caller, session.id, act)
    return SessionCleared(**msgspec.structs.asdict(cleared), cancelled_runs=[short(run) for run in done.runs])


async def delete(desk: Desk, caller: Principal, asked: OfSession) -> SessionDeleted:
    """Delete a session, then stop its run.

    If the server stops in between, it ends the run at the next start.
    """

    def act(page: Page, session: Session) -> None:
        check_own(caller, session)
        sessions.delete(page.conn, session.id, at_ms=page.at_ms)
        page.tell(NewsKind.SESSION_DELETED, session=session.id, agent=session.agent, by=str(caller.address))

    until = desk.clock.now() + timedelta(days=RESTORABLE_DAYS)
    session = await _write(desk, caller, asked.session, act)
    done = await desk.engine.cancel(
        session.id, by=str(caller.address), why="the conversation was deleted", clear_due=True
    )
    if desk.session_ended is not None:
        await desk.session_ended(session.id, "its conversation was deleted")
    return SessionDeleted(
        session=session.id,
        deleted=True,
        cancelled_runs=[short(run) for run in done.runs],
        cleared_pending_count=done.cleared,
        restorable_until=show(until, desk.zone),
    )


async def share(desk: Desk, caller: Principal, asked: Share) -> SessionShared:
    """Let another person see a session and write in it.

    Only its owner and the instance's owner may share it.
    """

    def act(page: Page, session: Session) -> list[str]:
        check_own(caller, session, people_only=True)
        person = _person(page.conn, asked.person)
        if len(session_shares.people(page.conn, session.id)) >= SHARES_MAX:
            raise TooLarge(
                f"session {short(session.id)} is shared with {SHARES_MAX} people",
                because="that is the most there can be",
                try_this="take it back from someone first",
                code="session.shared-too-widely",
            )
        session_shares.add(page.conn, session.id, person, at_ms=page.at_ms)
        return session_shares.people(page.conn, session.id)

    return await _share(desk, caller, asked, act)


async def unshare(desk: Desk, caller: Principal, asked: Share) -> SessionShared:
    """Stop sharing a session with a person. That person may also leave by themselves."""

    def act(page: Page, session: Session) -> list[str]:
        person = _person(page.conn, asked.person)
        if (caller.address.kind, caller.address.name) != (AddressKind.PERSON, person):
            check_own(caller, session, people_only=True)
        if not session_shares.remove(page.conn, session.id, person):
            raise NotFound(
                f"session {short(session.id)} is not shared with {person}",
                because="it never was, or no longer is",
                try_this="look again with whom it is shared",
                code="session.not-shared",
            )
        return session_shares.people(page.conn, session.id)

    return await _share(desk, caller, asked, act)


async def _share(
    desk: Desk, caller: Principal, asked: Share, act: Callable[[Page, Session], list[str]]
) -> SessionShared:
    now: list[str] = []

    def shared(page: Page, session: Session) -> None:
        now[:] = act(page, session)
        page.tell(NewsKind.SESSION_CHANGED, session=session.id, shared=now)

    session = await _write(desk, caller, asked.session, shared)
    return SessionShared(session=session.id, shared_with=now)


# --- shared helpers ---


async def _write(desk: Desk, caller: Principal, text: str, act: Callable[[Page, Session], None]) -> Session:
    """Call a function on a visible session in one transaction.

    Returns the session as it was before.
    """

    def body(conn: sa.Connection) -> Session:
        page = Page(conn, to_ms(desk.clock.now()))
        session = sessions.resolve(conn, text, seen_by=caller)
        act(page, session)
        page.close()
        return session

    return await desk.store.write(body, point="session")


async def _change(
    desk: Desk, caller: Principal, text: str, act: Callable[[Page, Session], dict[str, Any]]
) -> SessionSummary:
    """Change a visible session, emit an event, and return the changed session."""

    def body(conn: sa.Connection) -> Session:
        page = Page(conn, to_ms(desk.clock.now()))
        session = sessions.resolve(conn, text, seen_by=caller)
        page.tell(NewsKind.SESSION_CHANGED, session=session.id, **act(page, session))
        page.close()
        return _there(conn, session.id)

    return summary(desk, await desk.store.write(body, point="session"))


def check_own(caller: Principal, session: Session | None, *, people_only: bool = False) -> None:
    """Raise an error unless the session belongs to the caller.

    A share does not allow irreversible changes.
    """
    own = caller.sees_all or (session is not None and session.origin.belongs_to(str(caller.address)))
    if session is not None and not people_only and caller.address.kind is AddressKind.AGENT:
        own = own or session.agent == caller.address.name
    if not own:
        raise NotAllowed(
            f"session {short(session.id)} is not yours" if session else "this is not yours",
            because="only people share, and their own" if people_only else "that you see it does not make it yours",
            try_this="ask whose it is",
            code="session.not-yours",
        )


def _there(conn: sa.Connection, id_: str) -> Session:
    session = sessions.get(conn, id_)
    assert session is not None  # written above, in the same transaction
    return session


def agent_named(conn: sa.Connection, name: str) -> Agent:
    agent = agents.find(conn, name)
    if agent is None:
        raise NotFound(
            f"there is no agent '{name[:64]}' in this house",
            because="no agent of that name is registered",
            try_this="look at `agent.list` for who is here",
            code="agent.not-found",
        )
    return agent


def _person(conn: sa.Connection, name: str) -> str:
    person = people.find(conn, name)
    if person is None:
        raise NotFound(
            f"there is no person '{name[:64]}' in this house",
            because="nobody of that name was added",
            try_this="invite them first",
            code="person.not-found",
        )
    return person.name


def free_name(conn: sa.Connection, agent: str, name: str) -> str:
    """Return this name, or a free one such as `taxes (2)`. Empty if too many names are taken."""
    if not name or sessions.by_name(conn, agent, name) is None:
        return name
    for number in range(2, NAMES_ALIKE_MAX + 1):
        ending = f" ({number})"
        like = name[: NAME_LENGTH_MAX - len(ending)] + ending
        if sessions.by_name(conn, agent, like) is None:
            return like
    return ""


def check_name_free(conn: sa.Connection, agent: str, name: str) -> None:
    if sessions.by_name(conn, agent, name) is not None:
        raise _name_taken(agent, name)


def _name_taken(agent: str, name: str) -> Conflict:
    return Conflict(
        f"{agent} has a session called '{name}' already",
        because="names are unique among an agent's sessions, and capitals do not tell them apart",
        try_this="choose another name",
        code="session.name-taken",
    )


def bounded(attributes: dict[str, Any]) -> dict[str, Any]:
    size = len(_encode(attributes))
    if size > ATTRIBUTES_BYTES_MAX:
        raise TooLarge(
            "these attributes are too large",
            because=f"they would take {size:,} bytes, and may take {ATTRIBUTES_BYTES_MAX:,}",
            try_this="keep large things in files, and their paths here",
            code="session.attributes-too-large",
        )
    return attributes


OPERATIONS = (
    Operation(
        name="session.list",
        summary="List sessions.",
        parameters=Listing,
        handler=listed,
        permission=PermissionLevel.RESTRICTED,
        result=SessionsListed,
    ),
    Operation(
        name="session.history",
        summary="Show the records of a session.",
        parameters=History,
        handler=history,
        permission=PermissionLevel.RESTRICTED,
        result=SessionHistory,
    ),
    Operation(
        name="session.create",
        summary="Begin a session of your own.",
        parameters=Create,
        handler=create,
        permission=PermissionLevel.RESTRICTED,
        effect=True,
        result=SessionSummary,
    ),
    Operation(
        name="session.rename",
        summary="Name a session.",
        parameters=Rename,
        handler=rename,
        permission=PermissionLevel.RESTRICTED,
        effect=True,
        result=SessionSummary,
    ),
    Operation(
        name="session.pin",
        summary="Keep a session at the top.",
        parameters=OfSession,
        handler=pin,
        permission=PermissionLevel.RESTRICTED,
        effect=True,
        result=SessionSummary,
    ),
    Operation(
        name="session.unpin",
        summary="Let a session go down the list.",
        parameters=OfSession,
        handler=unpin,
        permission=PermissionLevel.RESTRICTED,
        effect=True,
        result=SessionSummary,
    ),
    Operation(
        name="session.attributes",
        summary="Patch what is noted about a session.",
        parameters=Attributes,
        handler=set_attributes,
        permission=PermissionLevel.RESTRICTED,
        effect=True,
        result=SessionSummary,
    ),
    Operation(
        name="session.clear",
        summary="Begin afresh, with nothing of what was said.",
        parameters=OfSession,
        handler=clear,
        permission=PermissionLevel.RESTRICTED,
        effect=True,
        result=SessionCleared,
    ),
    Operation(
        name="session.delete",
        summary="Delete a session.",
        parameters=OfSession,
        handler=delete,
        permission=PermissionLevel.STANDARD,
        effect=True,
        result=SessionDeleted,
    ),
    Operation(
        name="session.share",
        summary="Share a session with a person.",
        parameters=Share,
        handler=share,
        permission=PermissionLevel.STANDARD,
        effect=True,
        result=SessionShared,
    ),
    Operation(
        name="session.unshare",
        summary="Share a session no longer.",
        parameters=Share,
        handler=unshare,
        permission=PermissionLevel.RESTRICTED,
        effect=True,
        result=SessionShared,
    ),
    Operation(
        name="session.state",
        summary="Show a session as it is now.",
        parameters=OfSession,
        handler=state,
        permission=PermissionLevel.RESTRICTED,
        result=SessionState,
    ),
    Operation(
        name="session.stop",
        summary="Stop what runs in a session.",
        parameters=Stop,
        handler=stop,
        permission=PermissionLevel.RESTRICTED,
        effect=True,
        result=SessionStopped,
    ),
    Operation(
        name="session.reset",
        summary="Begin a fresh context.",
        parameters=Reset,
        handler=reset,
        permission=PermissionLevel.RESTRICTED,
        effect=True,
        result=SessionReset,
    ),
    Operation(
        name="session.queue",
        summary="Set how mail queues.",
        parameters=Queue,
        handler=set_queue,
        permission=PermissionLevel.STANDARD,
        effect=True,
        result=QueueSet,
    ),
    Operation(
        name="approval.answer",
        summary="Allow or deny a call.",
        parameters=Answer,
        handler=answer,
        permission=PermissionLevel.RESTRICTED,
        effect=True,
        result=ApprovalAnswered,
    ),
)
