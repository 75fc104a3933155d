"""Operation that shows the current state of a session: its context, open run and open approvals."""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa

from retinue.domain.agent import PermissionLevel
from retinue.domain.ids import SessionId
from retinue.domain.principal import Principal
from retinue.domain.record import ContextStart, Record, RecordKind
from retinue.domain.session import QueueOverride, SessionActivity
from retinue.engine.event_broadcast import PartialReply
from retinue.operations.base import Operation, Services
from retinue.operations.session.session_history import (
    RECORDS_LISTED_MAX,
    DamagedRecordRow,
    to_damaged_record_rows,
    without_provider_pieces,
)
from retinue.operations.session.sessions import OpenRun, SessionIdRequest
from retinue.store.core import events
from retinue.store.runs import runs
from retinue.store.sessions import records, sessions


class SessionRecord(msgspec.Struct):
    seq: int
    kind: RecordKind
    body: Any  # its type depends on `kind`
    run: str | None


class PartialReplyDetails(msgspec.Struct):
    """The text that a model has produced so far in a reply that is not complete yet."""

    session: str
    run: str
    turn: int
    attempt: int
    text: str
    thinking: str


class SessionState(msgspec.Struct):
    """Everything that a client needs to show a session. The events after `cursor` report later changes."""

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


async def show_session_state(services: Services, caller: Principal, request: SessionIdRequest) -> SessionState:
    """Return everything that a client needs to show a session, and the cursor from which events continue."""

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
    """Return the records since the session started or was last reset, including records before a compaction."""
    marks = [i for i, record in enumerate(session_records) if isinstance(record.body, ContextStart)]
    return session_records[marks[-1] :] if marks else session_records


def to_partial_reply_details(partial_reply: PartialReply) -> PartialReplyDetails:
    return PartialReplyDetails(
        session=partial_reply.session,
        run=partial_reply.run,
        turn=partial_reply.turn,
        attempt=partial_reply.attempt,
        text=partial_reply.text,
        thinking=partial_reply.thinking,
    )


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        name="session.state",
        summary="Show the current state of a session.",
        parameters=SessionIdRequest,
        handler=show_session_state,
        permission=PermissionLevel.RESTRICTED,
        result=SessionState,
    ),
)
