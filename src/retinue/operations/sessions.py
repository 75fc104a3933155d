"""What one can ask about sessions, their runs and approvals."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import sqlalchemy as sa

from retinue.domain.agent import PermissionLevel
from retinue.domain.event import NewsKind
from retinue.domain.ids import SessionId, short
from retinue.domain.principal import Principal
from retinue.domain.session import Overflow, QueueMode, QueueOverride, Session
from retinue.domain.times import show, to_ms
from retinue.operations.base import Desk, Operation
from retinue.store import approvals, news, records, runs, sessions
from retinue.store.house import Page

RECORDS_SHOWN_MAX = 200
QUEUE_CAP_MAX = 1_000
LISTED_MAX = 50


class OfSession(msgspec.Struct, forbid_unknown_fields=True):
    session: str


class Stop(msgspec.Struct, forbid_unknown_fields=True):
    session: str
    why: str = "asked to stop"
    clear: bool = True


class Reset(msgspec.Struct, forbid_unknown_fields=True):
    session: str
    message: str = ""


class Queue(msgspec.Struct, forbid_unknown_fields=True):
    """Leave everything out to go back to the agent's own rules."""

    session: str
    mode: QueueMode | None = None
    cap: int | None = None
    overflow: Overflow | None = None


class Answer(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    allow: bool


async def state(desk: Desk, caller: Principal, asked: OfSession) -> dict[str, Any]:
    """Everything a page needs to show a conversation, and the cursor from which its news goes on."""

    def body(conn: sa.Connection) -> dict[str, Any]:
        session = sessions.resolve(conn, asked.session, seen_by=caller)
        first = max(session.context_from, session.record_seq - RECORDS_SHOWN_MAX + 1)
        found, damaged = records.read(conn, session.id, first=first, last=session.record_seq)
        run = runs.open_in(conn, session.id)
        return {
            "cursor": news.newest(conn),
            "session": session.id,
            "agent": session.agent,
            "revision": session.revision,
            "wakefulness": session.wakefulness,
            "queue": session.queue,
            "run": {"id": run.id, "status": run.status, "attempt": run.attempt} if run else None,
            "records": [{"seq": r.seq, "kind": r.kind, "body": r.body, "run": r.run} for r in found],
            "damaged": [{"seq": d.seq, "because": d.because} for d in damaged],
        }

    found = await desk.store.scan(body)
    found["partials"] = [partial_form(p) for p in desk.live.partials(SessionId(found["session"]))]
    return found


def partial_form(partial: Any) -> dict[str, Any]:
    return {
        "session": partial.session,
        "run": partial.run,
        "turn": partial.turn,
        "attempt": partial.attempt,
        "text": partial.text,
        "thinking": partial.thinking,
    }


async def stop(desk: Desk, caller: Principal, asked: Stop) -> dict[str, Any]:
    session = await desk.store.read(partial(sessions.resolve, text=asked.session, seen_by=caller))
    done = await desk.engine.cancel(session.id, by=str(caller.address), why=asked.why[:200], clear_due=asked.clear)
    return {"cancelled-runs": [short(run) for run in done.runs], "cleared-pending-count": done.cleared}


async def reset(desk: Desk, caller: Principal, asked: Reset) -> dict[str, Any]:
    session = await desk.store.read(partial(sessions.resolve, text=asked.session, seen_by=caller))
    done = await desk.engine.reset(session.id, by=str(caller.address), message=asked.message[:2000])
    return {"session": session.id, "cancelled-runs": [short(run) for run in done.runs]}


async def set_queue(desk: Desk, caller: Principal, asked: Queue) -> dict[str, Any]:
    cap = None if asked.cap is None else max(0, min(asked.cap, QUEUE_CAP_MAX))
    override = QueueOverride(mode=asked.mode, cap=cap, overflow=asked.overflow)

    def body(conn: sa.Connection) -> Session:
        page = Page(conn, to_ms(desk.clock.now()))
        session = sessions.resolve(conn, asked.session, seen_by=caller)
        sessions.set_queue(conn, session.id, override, at_ms=page.at_ms)
        page.tell(NewsKind.SESSION_CHANGED, session=session.id, queue=override)
        page.close()
        return session

    session = await desk.store.write(body, point="queue")
    return {"session": session.id, "queue": override}


async def answer(desk: Desk, caller: Principal, asked: Answer) -> dict[str, Any]:
    seen = await desk.store.read(partial(approvals.resolve, text=asked.id, seen_by=caller))
    approval = await desk.engine.answer(seen.id, allow=asked.allow, person=caller.address.name)
    return {"approval": short(approval.id), "state": approval.state}


async def recent(desk: Desk, caller: Principal, asked: Any) -> dict[str, Any]:
    found = await desk.store.scan(partial(sessions.recent, limit=max(1, min(asked.limit, LISTED_MAX)), seen_by=caller))
    return {
        "sessions": [
            {
                "id": s.id,
                "agent": s.agent,
                "origin": f"{s.origin.kind}:{s.origin.key}",
                "wakefulness": s.wakefulness,
                "updated-at": show(s.updated_at, desk.zone),
                "snippet": s.snippet,
            }
            for s in found
        ]
    }


class Recent(msgspec.Struct, forbid_unknown_fields=True):
    limit: int = 10


OPERATIONS = (
    Operation(
        name="session.list",
        summary="List recent sessions.",
        parameters=Recent,
        handler=recent,
        permission=PermissionLevel.RESTRICTED,
    ),
    Operation(
        name="session.state",
        summary="Show a session as it is now.",
        parameters=OfSession,
        handler=state,
        permission=PermissionLevel.RESTRICTED,
    ),
    Operation(
        name="session.stop",
        summary="Stop what runs in a session.",
        parameters=Stop,
        handler=stop,
        permission=PermissionLevel.RESTRICTED,
        effect=True,
    ),
    Operation(
        name="session.reset",
        summary="Begin a fresh context.",
        parameters=Reset,
        handler=reset,
        permission=PermissionLevel.RESTRICTED,
        effect=True,
    ),
    Operation(
        name="session.queue",
        summary="Set how mail queues.",
        parameters=Queue,
        handler=set_queue,
        permission=PermissionLevel.STANDARD,
        effect=True,
    ),
    Operation(
        name="approval.answer",
        summary="Allow or deny a call.",
        parameters=Answer,
        handler=answer,
        permission=PermissionLevel.RESTRICTED,
        effect=True,
    ),
)
