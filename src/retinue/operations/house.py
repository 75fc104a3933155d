"""What one can ask about the house itself."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import sqlalchemy as sa

from retinue.domain.agent import PermissionLevel
from retinue.domain.principal import Principal
from retinue.domain.times import show, to_ms
from retinue.operations.base import Desk, Nothing, Operation
from retinue.store import agents, approvals, ledger, news
from retinue.store.why import why

APPROVALS_SHOWN_MAX = 50


class Why(msgspec.Struct, forbid_unknown_fields=True):
    id: str


async def status(desk: Desk, caller: Principal, asked: Nothing) -> dict[str, Any]:
    def body(conn: sa.Connection) -> dict[str, Any]:
        return {
            "version": desk.version,
            "cursor": news.newest(conn),
            "agents": [{"name": a.name, "model": a.model, "description": a.description} for a in agents.everyone(conn)],
            "approvals": [
                {"id": a.id, "calls": a.calls, "because": a.because, "asked-at": show(a.asked_at, desk.zone)}
                for a in approvals.listed(conn, limit=APPROVALS_SHOWN_MAX, seen_by=caller)
            ],
        }

    found = await desk.store.scan(body)
    found["you"] = str(caller.address)
    found["now"] = show(desk.clock.now(), desk.zone)
    return found


async def check_ledger(desk: Desk, caller: Principal, asked: Nothing) -> dict[str, Any]:
    checked = await desk.store.scan(partial(ledger.check, now_ms=to_ms(desk.clock.now())))
    return {"holds": checked.holds, "lines": checked.lines()}


async def explain(desk: Desk, caller: Principal, asked: Why) -> dict[str, Any]:
    found = await desk.store.scan(partial(why, id_text=asked.id, seen_by=caller))
    return {"lines": found.lines(desk.zone)}


OPERATIONS = (
    Operation(
        name="house.status",
        summary="Who is here, and what waits for you.",
        parameters=Nothing,
        handler=status,
        permission=PermissionLevel.RESTRICTED,
    ),
    Operation(
        name="house.ledger",
        summary="Prove that nothing is lost.",
        parameters=Nothing,
        handler=check_ledger,
        permission=PermissionLevel.PRIVILEGED,
    ),
    Operation(
        name="house.why",
        summary="Tell why something became what it is.",
        parameters=Why,
        handler=explain,
        permission=PermissionLevel.RESTRICTED,
    ),
)
