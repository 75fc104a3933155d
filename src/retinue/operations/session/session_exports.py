"""Export a session as files, and create a session from such files."""

from __future__ import annotations

import msgspec
import sqlalchemy as sa

from retinue.domain.agent import PermissionLevel
from retinue.domain.event import NewsKind
from retinue.domain.ids import SessionId
from retinue.domain.principal import Principal
from retinue.domain.session import SNIPPET_LENGTH_MAX, Session
from retinue.domain.times import to_ms
from retinue.operations.base import Desk, Operation
from retinue.operations.session.sessions import (
    OfSession,
    RecordDamaged,
    SessionSummary,
    agent_named,
    damaged_form,
    own_origin,
    summary,
)
from retinue.store.core.transaction import Page
from retinue.store.sessions import imported_lines, sessions


class Import(msgspec.Struct, forbid_unknown_fields=True):
    """`files` maps each of the three file names to its text."""

    agent: str
    files: dict[str, str]


class SessionExported(msgspec.Struct):
    """`files` maps each of the three file names to its text."""

    session: str
    files: dict[str, str]
    damaged: list[RecordDamaged]


async def export(desk: Desk, caller: Principal, asked: OfSession) -> SessionExported:
    """Export a session as `descriptor.json`, `state.json` and `history.jsonl`, in Daycare's format."""
    from retinue.agents import daycare_format  # rarely used: import on first use

    def body(conn: sa.Connection) -> daycare_format.ThreeFiles:
        session = sessions.resolve(conn, asked.session, seen_by=caller)
        files = daycare_format.read(conn, session.id)
        assert files is not None  # resolved in the same snapshot
        return files

    files = await desk.store.scan(body)
    return SessionExported(session=files.session.id, files=files.as_files(), damaged=damaged_form(files.damaged))


async def take_in(desk: Desk, caller: Principal, asked: Import) -> SessionSummary:
    """Create a session of the caller with this history. Exporting it returns the same files."""
    from retinue.agents import daycare_format

    id_ = SessionId(desk.ids.new())
    imported = daycare_format.parse(asked.files, id_)

    def body(conn: sa.Connection) -> Session:
        page = Page(conn, to_ms(desk.clock.now()))
        agent = agent_named(conn, asked.agent)
        origin = own_origin(caller, agent, id_)
        sessions.add(conn, id_, agent=agent.name, origin=origin, name="", at_ms=imported.created_ms)
        imported_lines.add(conn, imported.kept, opening=imported.opening)
        sessions.fill(
            conn,
            id_,
            record_seq=imported.opening.record_seq,
            context_from=imported.context_from,
            snippet=imported.snippet[:SNIPPET_LENGTH_MAX],
            at_ms=imported.updated_ms,
        )
        page.tell(NewsKind.SESSION_STARTED, session=id_, agent=agent.name, origin=f"{origin.kind}:{origin.key}")
        page.close()
        made = sessions.get(conn, id_)
        assert made is not None  # written above, in the same transaction
        return made

    return summary(desk, await desk.store.write(body, point="session"))


OPERATIONS = (
    Operation(
        name="session.export",
        summary="Give a session out as files.",
        parameters=OfSession,
        handler=export,
        permission=PermissionLevel.RESTRICTED,
        result=SessionExported,
    ),
    Operation(
        name="session.import",
        summary="Make a session from files.",
        parameters=Import,
        handler=take_in,
        permission=PermissionLevel.STANDARD,
        effect=True,
        result=SessionSummary,
    ),
)
