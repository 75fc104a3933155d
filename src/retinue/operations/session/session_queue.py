"""List the envelopes that wait in a session."""

from __future__ import annotations

import msgspec
import sqlalchemy as sa

from retinue.domain.agent import PermissionLevel
from retinue.domain.principal import Principal
from retinue.domain.session import QueuePolicy
from retinue.domain.times import to_ms
from retinue.operations.base import Operation, Services
from retinue.operations.envelope.envelopes import EnvelopeDetails, to_envelope_details
from retinue.operations.session.sessions import OpenRun, require_agent
from retinue.store.envelopes import envelopes
from retinue.store.runs import runs
from retinue.store.sessions import sessions

LIST_LIMIT_MAX = 50


class QueuedEnvelopeListRequest(msgspec.Struct, forbid_unknown_fields=True):
    session: str
    limit: int = LIST_LIMIT_MAX


class QueuedEnvelopeList(msgspec.Struct):
    """Envelopes in the order in which they will be read; position 1 is next.

    `run` is the run that they wait for. If `has_more` is set, not all envelopes are listed.
    """

    session: str
    queue: QueuePolicy
    run: OpenRun | None
    envelopes: list[EnvelopeDetails]
    has_more: bool


async def list_waiting_envelopes(
    services: Services, caller: Principal, request: QueuedEnvelopeListRequest
) -> QueuedEnvelopeList:
    limit = max(1, min(request.limit, LIST_LIMIT_MAX))
    now_ms = to_ms(services.clock.now())

    def body(conn: sa.Connection) -> QueuedEnvelopeList:
        session = sessions.get_by_short_id(conn, request.session, seen_by=caller)
        run = runs.get_open(conn, session.id)
        due = envelopes.list_due(conn, session.id, now_ms, limit=limit + 1)
        shown = QueuedEnvelopeList(
            session=session.id,
            queue=session.queue.apply_to(require_agent(conn, session.agent).queue),
            run=OpenRun(id=run.id, status=run.status, attempt=run.attempt) if run else None,
            envelopes=[],
            has_more=len(due) > limit,
        )
        for position, envelope in enumerate(due[:limit], start=1):
            form = to_envelope_details(services, envelope)
            form.position = position
            shown.envelopes.append(form)
        return shown

    return await services.store.scan(body)


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        name="session.queued",
        summary="List the envelopes that wait in a session, in the order in which they will be read.",
        parameters=QueuedEnvelopeListRequest,
        handler=list_waiting_envelopes,
        permission=PermissionLevel.RESTRICTED,
        result=QueuedEnvelopeList,
    ),
)
