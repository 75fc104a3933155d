"""Operation that forks a session from one of its records.

The original session keeps all its records: see `domain/history_trim`.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
import sqlalchemy as sa

from retinue.domain.agent import PermissionLevel
from retinue.domain.event import EventKind
from retinue.domain.history_trim import drop_unanswered_reply
from retinue.domain.ids import SessionId, short_id
from retinue.domain.principal import Principal
from retinue.domain.record import RecordKind
from retinue.domain.session import Session, patch_attributes, validate_session_name
from retinue.domain.times import to_ms
from retinue.operations.base import Operation, Services
from retinue.operations.session.errors import SessionForkPointInvalid
from retinue.operations.session.session_context import (
    read_context,
    split_start_record,
    write_context,
)
from retinue.operations.session.sessions import (
    SessionSummary,
    build_own_origin,
    check_attributes_size,
    check_name_free,
    find_free_name,
    require_agent,
    to_session_summary,
)
from retinue.store.core.transaction import Transaction
from retinue.store.sessions import sessions


class SessionForkRequest(msgspec.Struct, forbid_unknown_fields=True):
    session: str
    before: Annotated[int, msgspec.Meta(description="number of the first record that is not copied")]
    name: Annotated[
        str | None, msgspec.Meta(description="name of the new session; default: derived from the original's name")
    ] = None


class SessionForked(SessionSummary):
    forked_from: str = msgspec.field(name="forkedFrom")
    records: int


async def fork_session(services: Services, caller: Principal, request: SessionForkRequest) -> SessionForked:
    """Create a session of the caller that starts with the records of another session.

    No model is called, and nothing is charged again. The copied records have the same content and trust.
    Grants and waiting envelopes are not copied.
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
        taken = drop_unanswered_reply(read_context(conn, source, before=request.before))
        mark, rest = split_start_record(taken)
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
        write_context(tx, id_, mark, rest, kind=RecordKind.START, after=0)
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
)
