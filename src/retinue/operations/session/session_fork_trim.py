"""Fork a session from one of its records, or trim records from its context.

Neither deletes a record: see `domain/history_trim`.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
import sqlalchemy as sa

from retinue.domain.agent import PermissionLevel
from retinue.domain.errors import Conflict, Invalid, NotFound, TooLarge
from retinue.domain.event import NewsKind
from retinue.domain.history_trim import Cut, answered, begins_at, copies, kept, last_words
from retinue.domain.ids import SessionId, short
from retinue.domain.principal import Principal
from retinue.domain.record import Mark, Record, RecordKind
from retinue.domain.session import SNIPPET_LENGTH_MAX, Session, patched, valid_session_name
from retinue.domain.times import to_ms
from retinue.domain.trust import Trust
from retinue.operations.base import Desk, Operation
from retinue.operations.session.sessions import (
    SessionSummary,
    agent_named,
    bounded,
    check_name_free,
    check_own,
    free_name,
    own_origin,
    summary,
)
from retinue.store.core.transaction import Page
from retinue.store.runs import runs
from retinue.store.sessions import records, sessions

RECORDS_COPIED_MAX = 10_000


class Fork(msgspec.Struct, forbid_unknown_fields=True):
    session: str
    before: Annotated[int, msgspec.Meta(description="the number of the first record that is not taken along")]
    name: Annotated[str | None, msgspec.Meta(description="its name; left out, one like that of the first")] = None


class Trim(msgspec.Struct, forbid_unknown_fields=True):
    session: str
    seq: Annotated[int, msgspec.Meta(description="the number of a record of the conversation as it is now")]
    cut: Annotated[Cut, msgspec.Meta(description="what goes: before or after its request, or the request itself")]
    revision: Annotated[
        int | None, msgspec.Meta(description="as you have it; where it is another by now, nothing is done")
    ] = None


class SessionForked(SessionSummary):
    forked_from: str = msgspec.field(name="forkedFrom")
    records: int


class SessionTrimmed(msgspec.Struct):
    """`records` are in the context now, `left_out` were removed from it.

    Neither counts the start record.
    """

    session: str
    revision: int
    records: int
    left_out: int = msgspec.field(name="left-out")


async def fork(desk: Desk, caller: Principal, asked: Fork) -> SessionForked:
    """Create a session of the caller that starts with the records of another.

    No model is called, and nothing is charged again. Records keep their content and trust. Grants
    and waiting envelopes are not copied.
    """
    id_ = SessionId(desk.ids.new())
    name = valid_session_name(asked.name) if asked.name is not None else None

    def body(conn: sa.Connection) -> tuple[Session, Session, int]:
        page = Page(conn, to_ms(desk.clock.now()))
        source = sessions.resolve(conn, asked.session, seen_by=caller)
        if not 1 < asked.before <= source.record_seq + 1:
            raise Invalid(
                f"session {short(source.id)} has no record before {asked.before}",
                because=f"its records are 1 to {source.record_seq}, and at least the first is taken along",
                try_this="take the number of a record from `session.history`",
                code="session.no-such-record",
            )
        agent = agent_named(conn, source.agent)
        origin = own_origin(caller, agent, id_)
        taken = answered(_context(conn, source, before=asked.before))
        mark, rest = _parted(taken)
        attributes = patched(
            source.attributes, {"core": {"forkedFrom": {"session": source.id, "before": asked.before}}}
        )
        sessions.add(
            conn,
            id_,
            agent=agent.name,
            origin=origin,
            name=free_name(conn, agent.name, source.name) if name is None else _free(conn, agent.name, name),
            at_ms=page.at_ms,
            attributes=bounded(attributes),
        )
        _begin_with(page, id_, mark, rest, kind=RecordKind.START, after=0)
        sessions.set_mind(conn, id_, source.mind)
        sessions.set_queue(conn, id_, source.queue, at_ms=page.at_ms)
        page.tell(
            NewsKind.SESSION_STARTED,
            session=id_,
            agent=agent.name,
            origin=f"{origin.kind}:{origin.key}",
            forked_from=source.id,
        )
        page.close()
        return source, _get(conn, id_), len(rest)

    source, made, count = await desk.store.write(body, point="session")
    shown = msgspec.structs.asdict(summary(desk, made))
    return SessionForked(**shown, forked_from=source.id, records=count)


async def trim(desk: Desk, caller: Principal, asked: Trim) -> SessionTrimmed:
    """Remove records from the context of a session.

    The history keeps them, but no model reads them again.
    """

    def body(conn: sa.Connection) -> SessionTrimmed:
        page = Page(conn, to_ms(desk.clock.now()))
        session = sessions.resolve(conn, asked.session, seen_by=caller)
        check_own(caller, session)
        _check_still(conn, session, asked)
        there = _context(conn, session, before=session.record_seq + 1)
        left = kept(there, asked.seq, asked.cut)
        if left is None:
            raise NotFound(
                f"no request of session {short(session.id)} holds record {asked.seq}",
                because="it is not part of the conversation as it is now, or stands before its first request",
                try_this="take the number of a record from `session.state`",
                code="session.no-such-record",
            )
        mark, rest = _parted(left)
        gone = [record for record in there[1:] if record.seq not in {each.seq for each in left}]
        words_gone = mark is None and isinstance(there[0].body, Mark) and bool(there[0].body.text)
        if not gone and not words_gone:
            return SessionTrimmed(session.id, session.revision, records=len(rest), left_out=0)
        last = _begin_with(page, session.id, mark, rest, kind=RecordKind.RESET, after=session.record_seq)
        revision = session.revision + 1
        page.tell(
            NewsKind.SESSION_TRIMMED,
            session=session.id,
            record_seq=last,
            revision=revision,
            cut=asked.cut.value,
            at=asked.seq,
            by=str(caller.address),
        )
        page.close()
        return SessionTrimmed(session.id, revision, records=len(rest), left_out=len(gone))

    return await desk.store.write(body, point="session")


def _check_still(conn: sa.Connection, session: Session, asked: Trim) -> None:
    if asked.revision is not None and asked.revision != session.revision:
        raise Conflict(
            f"session {short(session.id)} is no longer what you have",
            because=f"it is at revision {session.revision}, and you have {asked.revision}",
            try_this="ask for `session.state`, and choose again",
            code="session.revised",
        )
    if runs.open_in(conn, session.id) is not None:
        raise Conflict(
            f"someone is at work in session {short(session.id)}",
            because="a run that is under way has read what you want to cut",
            try_this="wait for its end, or stop it",
            code="session.busy",
        )


def _context(conn: sa.Connection, session: Session, *, before: int) -> list[Record]:
    """Return the records of a context up to the one before `before`, starting with its start record."""
    first = records.begun(conn, session.id, before=before)
    if before - first > RECORDS_COPIED_MAX:
        raise TooLarge(
            f"session {short(session.id)} is too long for this",
            because=f"it has {before - first:,} records since it began, and {RECORDS_COPIED_MAX:,} are copied at most",
            try_this="begin afresh with `session.reset`, and words that matter",
            code="session.too-long",
        )
    return records.read(conn, session.id, first=first, last=before - 1)[0]


def _parted(context: list[Record]) -> tuple[Record | None, list[Record]]:
    if context and isinstance(context[0].body, Mark):
        return context[0], context[1:]
    return None, context


def _begin_with(
    page: Page, id_: SessionId, mark: Record | None, rest: list[Record], *, kind: RecordKind, after: int
) -> int:
    """Write a new context: a start record with the text of the old one, then copies of these
    records.

    Returns the number of the last record.
    """
    words, trust = (mark.body, mark.trust) if mark is not None else (Mark(), Trust.PRIVATE)
    beginning = Record(session=id_, seq=after + 1, kind=kind, body=words, at_ms=page.at_ms, trust=trust)
    made = [beginning, *copies(rest, session=id_, after=beginning.seq)]
    records.add(page.conn, made)
    context_from, summaries = begins_at(made)
    sessions.rewrite(
        page.conn,
        id_,
        record_seq=made[-1].seq,
        context_from=context_from,
        compactions=summaries,
        snippet=last_words(made)[:SNIPPET_LENGTH_MAX],
        at_ms=page.at_ms,
    )
    return made[-1].seq


def _free(conn: sa.Connection, agent: str, name: str) -> str:
    check_name_free(conn, agent, name)
    return name


def _get(conn: sa.Connection, id_: str) -> Session:
    session = sessions.get(conn, id_)
    assert session is not None  # written above, in the same transaction
    return session


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        name="session.fork",
        summary="Begin a session with the records of another, up to one of them.",
        parameters=Fork,
        handler=fork,
        permission=PermissionLevel.RESTRICTED,
        effect=True,
        result=SessionForked,
    ),
    Operation(
        name="session.trim",
        summary="Cut something out of a conversation.",
        parameters=Trim,
        handler=trim,
        permission=PermissionLevel.RESTRICTED,
        effect=True,
        result=SessionTrimmed,
    ),
)
