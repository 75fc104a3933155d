"""Operations that export a session as files, and create a session from exported files."""

from __future__ import annotations

import msgspec
import sqlalchemy as sa

from retinue.domain.agent import PermissionLevel
from retinue.domain.event import EventKind
from retinue.domain.ids import SessionId
from retinue.domain.principal import Principal
from retinue.domain.session import SNIPPET_LENGTH_MAX, Session
from retinue.domain.times import to_ms
from retinue.operations.base import Operation, Services
from retinue.operations.session.session_history import DamagedRecordRow, to_damaged_record_rows
from retinue.operations.session.sessions import (
    SessionIdRequest,
    SessionSummary,
    build_own_origin,
    require_agent,
    to_session_summary,
)
from retinue.store.core.transaction import Transaction
from retinue.store.sessions import imported_lines, sessions


class SessionImportRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Create a session from exported files.

    `files` maps `descriptor.json`, `state.json` and `history.jsonl` to their texts.
    """

    agent: str
    files: dict[str, str]


class SessionExport(msgspec.Struct):
    """An exported session. `files` maps `descriptor.json`, `state.json` and `history.jsonl` to their texts."""

    session: str
    files: dict[str, str]
    damaged: list[DamagedRecordRow]


async def export_session(services: Services, caller: Principal, request: SessionIdRequest) -> SessionExport:
    """Export a session as `descriptor.json`, `state.json` and `history.jsonl`, in the format of the program Daycare."""
    from retinue.agents import daycare_format  # rarely used: import on first use

    def body(conn: sa.Connection) -> daycare_format.DaycareFiles:
        session = sessions.get_by_short_id(conn, request.session, seen_by=caller)
        files = daycare_format.read_files(conn, session.id)
        assert files is not None  # resolved in the same snapshot
        return files

    files = await services.store.scan(body)
    return SessionExport(
        session=files.session.id, files=files.by_name(), damaged=to_damaged_record_rows(files.damaged_records)
    )


async def import_session(services: Services, caller: Principal, request: SessionImportRequest) -> SessionSummary:
    """Create a session of the caller from exported files. Exporting the new session returns the same files."""
    from retinue.agents import daycare_format

    id_ = SessionId(services.ids.new())
    imported = daycare_format.parse_files(request.files, id_)

    def body(conn: sa.Connection) -> Session:
        tx = Transaction(conn, to_ms(services.clock.now()))
        agent = require_agent(conn, request.agent)
        origin = build_own_origin(caller, agent, id_)
        sessions.add(conn, id_, agent=agent.name, origin=origin, name="", at_ms=imported.created_ms)
        imported_lines.add(conn, imported.records, files=imported.files)
        sessions.set_history(
            conn,
            id_,
            record_seq=imported.files.record_seq,
            context_from=imported.context_from,
            snippet=imported.snippet[:SNIPPET_LENGTH_MAX],
            at_ms=imported.updated_ms,
        )
        tx.emit(EventKind.SESSION_STARTED, session=id_, agent=agent.name, origin=f"{origin.kind}:{origin.key}")
        tx.close()
        made = sessions.get(conn, id_)
        assert made is not None  # written above, in the same transaction
        return made

    return to_session_summary(services, await services.store.write(body, point="session"))


OPERATIONS = (
    Operation(
        name="session.export",
        summary="Export a session as files.",
        parameters=SessionIdRequest,
        handler=export_session,
        permission=PermissionLevel.RESTRICTED,
        result=SessionExport,
    ),
    Operation(
        name="session.import",
        summary="Import a session from files.",
        parameters=SessionImportRequest,
        handler=import_session,
        permission=PermissionLevel.STANDARD,
        has_effect=True,
        result=SessionSummary,
    ),
)
