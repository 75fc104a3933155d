"""Fork a session from one of its records, or trim records from its context.

Neither deletes a record: see `domain/history_trim`.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
import sqlalchemy as sa

from retinue.domain.agent import PermissionLevel
from retinue.domain.event import EventKind
from retinue.domain.history_trim import (
    TrimMode,
    copy_records,
    drop_unanswered_reply,
    find_context_start,
    last_reply_text,
    trim_records,
)
from retinue.domain.ids import SessionId, short_id
from retinue.domain.principal import Principal
from retinue.domain.record import ContextStart, Record, RecordKind
from retinue.domain.session import SNIPPET_LENGTH_MAX, Session, patch_attributes, validate_session_name
from retinue.domain.times import to_ms
from retinue.domain.trust import Trust
from retinue.operations.base import Operation, Services
from retinue.operations.session.errors import (
    SessionBusy,
    SessionContextTooLong,
    SessionForkPointInvalid,
    SessionRecordNotFound,
    SessionRevised,
)
from retinue.operations.session.sessions import (
    SessionSummary,
    build_own_origin,
    check_attributes_size,
    check_name_free,
    check_owner,
    find_free_name,
    require_agent,
    to_session_summary,
)
from retinue.store.core.transaction import Transaction
from retinue.store.runs import runs
from retinue.store.sessions import records, sessions

RECORDS_COPIED_MAX = 10_000


class SessionForkRequest(msgspec.Struct, forbid_unknown_fields=True):
    session: str
    before: Annotated[int, msgspec.Meta(description="number of the first record that is not copied")]
    name: Annotated[
        str | None, msgspec.Meta(description="name of the new session; default: derived from the original's name")
    ] = None


class SessionTrimRequest(msgspec.Struct, forbid_unknown_fields=True):
    session: str
    seq: Annotated[int, msgspec.Meta(description="number of a record in the current context")]
    remove: Annotated[
        TrimMode,
        msgspec.Meta(
            description="what to remove: everything before or after the request that has the record, or that request"
        ),
    ]
    revision: Annotated[
        int | None,
        msgspec.Meta(description="revision of the session that you last read; if it has changed, nothing is removed"),
    ] = None


class SessionForked(SessionSummary):
    forked_from: str = msgspec.field(name="forkedFrom")
    records: int


class SessionTrimmed(msgspec.Struct):
    """`records` counts the records that are now in the context, and `removed_count` the records removed from it.

    Neither counts the start record.
    """

    session: str
    revision: int
    records: int
    removed_count: int


async def fork_session(services: Services, caller: Principal, request: SessionForkRequest) -> SessionForked:
    """Create a session of the caller that starts with the records of another.

    No model is called, and nothing is charged again. Records keep their content and trust. Grants
    and waiting envelopes are not copied.
    """
    id_ = SessionId(services.ids.new())
    name = validate_session_name(request.name) if request.name is not None else None

    def body(conn: sa.Connection) -> tuple[Session, Session, int]:
        tx = Transaction(conn, to_ms(services.clock.now()))
        source = sessions.get_by_short_id(conn, request.session, seen_by=caller)
        if not 1 < request.before <= source.record_seq + 1:
            raise SessionForkPointInvalid(short_id(source.id), before=request.before, last=source.record_seq)
        agent = require_agent(conn, source.agent)
        origin = build_own_origin(caller, agent, id_)
        taken = drop_unanswered_reply(_read_context(conn, source, before=request.before))
        mark, rest = _split_start_record(taken)
        attributes = patch_attributes(
            source.attributes, {"core": {"forkedFrom": {"session": source.id, "before": request.before}}}
        )
        sessions.add(
            conn,
            id_,
            agent=agent.name,
            origin=origin,
            name=find_free_name(conn, agent.name, source.name)
            if name is None
            else _check_free_name(conn, agent.name, name),
            at_ms=tx.at_ms,
            attributes=check_attributes_size(attributes),
        )
        _write_context(tx, id_, mark, rest, kind=RecordKind.START, after=0)
        sessions.set_model_choice(conn, id_, source.options)
        sessions.set_queue(conn, id_, source.queue, at_ms=tx.at_ms)
        tx.emit(
            EventKind.SESSION_STARTED,
            session=id_,
            agent=agent.name,
            origin=f"{origin.kind}:{origin.key}",
            forked_from=source.id,
        )
        tx.close()
        return source, _require_session(conn, id_), len(rest)

    source, made, count = await services.store.write(body, point="session")
    shown = msgspec.structs.asdict(to_session_summary(services, made))
    return SessionForked(**shown, forked_from=source.id, records=count)


async def trim_session(services: Services, caller: Principal, request: SessionTrimRequest) -> SessionTrimmed:
    """Remove records from the context of a session.

    The history keeps them, but no model reads them again.
    """

    def body(conn: sa.Connection) -> SessionTrimmed:
        tx = Transaction(conn, to_ms(services.clock.now()))
        session = sessions.get_by_short_id(conn, request.session, seen_by=caller)
        check_owner(caller, session)
        _check_unchanged(conn, session, request)
        there = _read_context(conn, session, before=session.record_seq + 1)
        left = trim_records(there, request.seq, request.remove)
        if left is None:
            raise SessionRecordNotFound(short_id(session.id), record=request.seq)
        mark, rest = _split_start_record(left)
        gone = [record for record in there[1:] if record.seq not in {each.seq for each in left}]
        words_gone = mark is None and isinstance(there[0].body, ContextStart) and bool(there[0].body.text)
        if not gone and not words_gone:
            return SessionTrimmed(session.id, session.revision, records=len(rest), removed_count=0)
        last = _write_context(tx, session.id, mark, rest, kind=RecordKind.RESET, after=session.record_seq)
        revision = session.revision + 1
        tx.emit(
            EventKind.SESSION_TRIMMED,
            session=session.id,
            record_seq=last,
            revision=revision,
            cut=request.remove.value,
            at=request.seq,
            by=str(caller.address),
        )
        tx.close()
        return SessionTrimmed(session.id, revision, records=len(rest), removed_count=len(gone))

    return await services.store.write(body, point="session")


def _check_unchanged(conn: sa.Connection, session: Session, request: SessionTrimRequest) -> None:
    if request.revision is not None and request.revision != session.revision:
        raise SessionRevised(short_id(session.id), revision=session.revision, expected=request.revision)
    if runs.get_open(conn, session.id) is not None:
        raise SessionBusy(short_id(session.id))


def _read_context(conn: sa.Connection, session: Session, *, before: int) -> list[Record]:
    """Return the records of a context that come before the record number `before`, including its start record."""
    first = records.context_start_seq(conn, session.id, before=before)
    if before - first > RECORDS_COPIED_MAX:
        raise SessionContextTooLong(short_id(session.id), records=before - first, records_max=RECORDS_COPIED_MAX)
    return records.read_range(conn, session.id, first=first, last=before - 1)[0]


def _split_start_record(context: list[Record]) -> tuple[Record | None, list[Record]]:
    if context and isinstance(context[0].body, ContextStart):
        return context[0], context[1:]
    return None, context


def _write_context(
    tx: Transaction,
    id_: SessionId,
    start_record: Record | None,
    copied_records: list[Record],
    *,
    kind: RecordKind,
    after: int,
) -> int:
    """Write a new context: a start record with the text of the old one, then copies of these
    records.

    Returns the number of the last record.
    """
    words, trust = (
        (start_record.body, start_record.trust) if start_record is not None else (ContextStart(), Trust.PRIVATE)
    )
    beginning = Record(session=id_, seq=after + 1, kind=kind, body=words, at_ms=tx.at_ms, trust=trust)
    made = [beginning, *copy_records(copied_records, session=id_, after=beginning.seq)]
    records.add(tx.conn, made)
    context_from, summaries = find_context_start(made)
    sessions.replace_context(
        tx.conn,
        id_,
        record_seq=made[-1].seq,
        context_from=context_from,
        compactions=summaries,
        snippet=last_reply_text(made)[:SNIPPET_LENGTH_MAX],
        at_ms=tx.at_ms,
    )
    return made[-1].seq


def _check_free_name(conn: sa.Connection, agent: str, name: str) -> str:
    check_name_free(conn, agent, name)
    return name


def _require_session(conn: sa.Connection, id_: str) -> Session:
    session = sessions.get(conn, id_)
    assert session is not None  # written above, in the same transaction
    return session


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        name="session.fork",
        summary="Fork a session: copy its records up to a chosen record.",
        parameters=SessionForkRequest,
        handler=fork_session,
        permission=PermissionLevel.RESTRICTED,
        has_effect=True,
        result=SessionForked,
    ),
    Operation(
        name="session.trim",
        summary="Remove records from the context of a session.",
        parameters=SessionTrimRequest,
        handler=trim_session,
        permission=PermissionLevel.RESTRICTED,
        has_effect=True,
        result=SessionTrimmed,
    ),
)
