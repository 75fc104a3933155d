"""Operation that shows the records of a session."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import sqlalchemy as sa

from retinue.domain.agent import PermissionLevel
from retinue.domain.principal import Principal
from retinue.domain.record import RecordBody, RecordKind, Reply
from retinue.domain.structs import replace
from retinue.domain.times import format_time
from retinue.operations.base import Operation, Services
from retinue.store.sessions import records, sessions
from retinue.store.sessions.records import DamagedRecord

RECORDS_LISTED_MAX = 200


class SessionHistoryRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Read the newest records of a session, or with `before` the records before that number."""

    session: str
    limit: int = 50
    before: int | None = None


class HistoryRecord(msgspec.Struct):
    seq: int
    kind: RecordKind
    at: str
    body: Any  # its type depends on `kind`
    run: str | None


class DamagedRecordRow(msgspec.Struct):
    """A record that cannot be decoded, and the reason."""

    seq: int
    because: str


class SessionHistory(msgspec.Struct):
    """One page of records. `next` is the `before` of the next page, which has older records."""

    session: str
    agent: str
    records: list[HistoryRecord]
    damaged: list[DamagedRecordRow]
    next: int | None


def to_damaged_record_rows(damaged: Iterable[DamagedRecord]) -> list[DamagedRecordRow]:
    return [DamagedRecordRow(seq=each.seq, because=each.because) for each in damaged]


async def read_history(services: Services, caller: Principal, request: SessionHistoryRequest) -> SessionHistory:
    """Return one page of a session's records. The first page has the newest records.

    Within a page, the oldest record comes first.
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


def without_provider_pieces(body: RecordBody) -> RecordBody:
    """Remove the parts of a reply that only its provider can read."""
    return replace(body, pieces=()) if isinstance(body, Reply) and body.pieces else body


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        name="session.history",
        summary="Show the records of a session.",
        parameters=SessionHistoryRequest,
        handler=read_history,
        permission=PermissionLevel.RESTRICTED,
        result=SessionHistory,
    ),
)
