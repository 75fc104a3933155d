"""Operations that list the envelopes that are waiting in a session, and set its queue mode."""

from __future__ import annotations

from typing import Annotated

import msgspec
import sqlalchemy as sa

from retinue.domain.agent import PermissionLevel
from retinue.domain.event import EventKind
from retinue.domain.principal import Principal
from retinue.domain.session import (
    DEBOUNCE_S_MAX,
    QUEUE_CAP_MAX,
    Overflow,
    QueueMode,
    QueueOverride,
    QueuePolicy,
    Session,
)
from retinue.domain.times import to_ms
from retinue.operations.base import Operation, Services
from retinue.operations.envelope.envelopes import EnvelopeDetails, to_envelope_details
from retinue.operations.session.sessions import OpenRun, require_agent
from retinue.store.core.transaction import Transaction
from retinue.store.envelopes import envelopes
from retinue.store.runs import runs
from retinue.store.sessions import sessions

LIST_LIMIT_MAX = 50


class QueuedEnvelopeListRequest(msgspec.Struct, forbid_unknown_fields=True):
    session: str
    limit: int = LIST_LIMIT_MAX


class QueuedEnvelopeList(msgspec.Struct):
    """The envelopes that are waiting in a session, in the order in which they will be read.

    `run` is the run that the envelopes are waiting for. If `has_more` is true, not all envelopes are listed.
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


class SessionQueueRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Set the queue rules of a session. An omitted field gets the value of the agent's queue rules."""

    session: str
    mode: QueueMode | None = None
    cap: int | None = None
    overflow: Overflow | None = None
    debounce_s: Annotated[float, msgspec.Meta(ge=0, le=DEBOUNCE_S_MAX)] | None = None


class SessionQueueSet(msgspec.Struct):
    session: str
    queue: QueueOverride


async def set_session_queue(services: Services, caller: Principal, request: SessionQueueRequest) -> SessionQueueSet:
    cap = None if request.cap is None else max(0, min(request.cap, QUEUE_CAP_MAX))
    override = QueueOverride(mode=request.mode, cap=cap, overflow=request.overflow, debounce_s=request.debounce_s)

    def body(conn: sa.Connection) -> Session:
        tx = Transaction(conn, to_ms(services.clock.now()))
        session = sessions.get_by_short_id(conn, request.session, seen_by=caller)
        sessions.set_queue(conn, session.id, override, at_ms=tx.at_ms)
        tx.emit(EventKind.SESSION_CHANGED, session=session.id, queue=override)
        tx.close()
        return session

    session = await services.store.write(body, point="queue")
    return SessionQueueSet(session=session.id, queue=override)


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        name="session.queued",
        summary="List the envelopes that are waiting in a session, in the order in which they will be read.",
        parameters=QueuedEnvelopeListRequest,
        handler=list_waiting_envelopes,
        permission=PermissionLevel.RESTRICTED,
        result=QueuedEnvelopeList,
    ),
    Operation(
        name="session.set_queue",
        summary="Set how messages are queued while a run is active.",
        parameters=SessionQueueRequest,
        handler=set_session_queue,
        permission=PermissionLevel.STANDARD,
        has_effect=True,
        result=SessionQueueSet,
    ),
)
