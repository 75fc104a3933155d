"""Operation that removes records from a session's context. They stay in the history."""

from __future__ import annotations

from typing import Annotated

import msgspec
import sqlalchemy as sa

from retinue.domain.agent import PermissionLevel
from retinue.domain.event import EventKind
from retinue.domain.history_trim import TrimMode, trim_records
from retinue.domain.ids import short_id
from retinue.domain.principal import Principal
from retinue.domain.record import ContextStart, RecordKind
from retinue.domain.session import Session
from retinue.domain.times import to_ms
from retinue.operations.base import Operation, Services
from retinue.operations.session.errors import SessionBusy, SessionRecordNotFound, SessionRevised
from retinue.operations.session.session_fork import read_context, split_start_record, write_context
from retinue.operations.session.sessions import check_owner
from retinue.store.core.transaction import Transaction
from retinue.store.runs import runs
from retinue.store.sessions import sessions


class SessionTrimRequest(msgspec.Struct, forbid_unknown_fields=True):
    session: str
    seq: Annotated[int, msgspec.Meta(description="number of a record in the current context")]
    remove: Annotated[
        TrimMode,
        msgspec.Meta(
            description="remove the request that contains the record, or all requests before or after that request"
        ),
    ]
    revision: Annotated[
        int | None,
        msgspec.Meta(description="session revision that you last read; if the session has changed, nothing is removed"),
    ] = None


class SessionTrimmed(msgspec.Struct):
    """Result of a trim. The start record of the context is not counted.

    `records` is the number of records that are now in the context, and `removed_count` is the number of
    records that were removed from it.
    """

    session: str
    revision: int
    records: int
    removed_count: int


async def trim_session(services: Services, caller: Principal, request: SessionTrimRequest) -> SessionTrimmed:
    """Remove records from the context of a session.

    The records stay in the history, but no model reads them again.
    """

    def body(conn: sa.Connection) -> SessionTrimmed:
        tx = Transaction(conn, to_ms(services.clock.now()))
        session = sessions.get_by_short_id(conn, request.session, seen_by=caller)
        check_owner(caller, session)
        _check_unchanged(conn, session, request)
        there = read_context(conn, session, before=session.record_seq + 1)
        left = trim_records(there, request.seq, request.remove)
        if left is None:
            raise SessionRecordNotFound(short_id(session.id), record=request.seq)
        mark, rest = split_start_record(left)
        gone = [record for record in there[1:] if record.seq not in {each.seq for each in left}]
        words_gone = mark is None and isinstance(there[0].body, ContextStart) and bool(there[0].body.text)
        if not gone and not words_gone:
            return SessionTrimmed(session.id, session.revision, records=len(rest), removed_count=0)
        last = write_context(tx, session.id, mark, rest, kind=RecordKind.RESET, after=session.record_seq)
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


OPERATIONS: tuple[Operation, ...] = (
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
