"""List the envelopes that wait in a session."""

from __future__ import annotations

import msgspec
import sqlalchemy as sa

from retinue.domain.agent import PermissionLevel
from retinue.domain.principal import Principal
from retinue.domain.session import QueuePolicy
from retinue.domain.times import to_ms
from retinue.operations.base import Desk, Operation
from retinue.operations.envelope.envelopes import EnvelopeShown, envelope_form
from retinue.operations.session.sessions import RunShown, agent_named
from retinue.store.envelopes import envelopes
from retinue.store.runs import runs
from retinue.store.sessions import sessions

LISTED_MAX = 50


class Waiting(msgspec.Struct, forbid_unknown_fields=True):
    session: str
    limit: int = LISTED_MAX


class SessionWaiting(msgspec.Struct, rename="kebab"):
    """Envelopes in the order in which they will be read; position 1 is next.

    `run` is the run that they wait for. `more`: not all envelopes are listed.
    """

    session: str
    queue: QueuePolicy
    run: RunShown | None
    envelopes: list[EnvelopeShown]
    more: bool


async def waiting(desk: Desk, caller: Principal, asked: Waiting) -> SessionWaiting:
    limit = max(1, min(asked.limit, LISTED_MAX))
    now_ms = to_ms(desk.clock.now())

    def body(conn: sa.Connection) -> SessionWaiting:
        session = sessions.resolve(conn, asked.session, seen_by=caller)
        run = runs.open_in(conn, session.id)
        due = envelopes.due(conn, session.id, now_ms, limit=limit + 1)
        shown = SessionWaiting(
            session=session.id,
            queue=session.queue.over(agent_named(conn, session.agent).queue),
            run=RunShown(id=run.id, status=run.status, attempt=run.attempt) if run else None,
            envelopes=[],
            more=len(due) > limit,
        )
        for position, envelope in enumerate(due[:limit], start=1):
            form = envelope_form(desk, envelope)
            form.position = position
            shown.envelopes.append(form)
        return shown

    return await desk.store.scan(body)


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        name="session.waiting",
        summary="Show what waits in a session, in its order.",
        parameters=Waiting,
        handler=waiting,
        permission=PermissionLevel.RESTRICTED,
        result=SessionWaiting,
    ),
)
