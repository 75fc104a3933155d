"""What one can ask about the house itself."""

from __future__ import annotations

from functools import partial

import msgspec
import sqlalchemy as sa

from retinue.domain.agent import PermissionLevel
from retinue.domain.ids import ApprovalId
from retinue.domain.principal import Principal
from retinue.domain.times import show, to_ms
from retinue.domain.tool import Call
from retinue.operations.base import Desk, Nothing, Operation
from retinue.store import agents, approvals, ledger, news
from retinue.store.why import why

APPROVALS_SHOWN_MAX = 50


class Why(msgspec.Struct, forbid_unknown_fields=True):
    id: str


class AgentHere(msgspec.Struct, frozen=True):
    name: str
    model: str
    description: str


class ApprovalWaiting(msgspec.Struct, frozen=True, rename="kebab"):
    id: ApprovalId
    calls: tuple[Call, ...]
    because: str
    asked_at: str


class HouseStatus(msgspec.Struct, frozen=True):
    version: str
    cursor: int
    agents: list[AgentHere]
    approvals: list[ApprovalWaiting]
    you: str
    now: str


class LedgerChecked(msgspec.Struct, frozen=True):
    holds: bool
    lines: list[str]


class Explained(msgspec.Struct, frozen=True):
    lines: list[str]


async def status(desk: Desk, caller: Principal, asked: Nothing) -> HouseStatus:
    def body(conn: sa.Connection) -> HouseStatus:
        return HouseStatus(
            version=desk.version,
            cursor=news.newest(conn),
            agents=[AgentHere(a.name, a.model, a.description) for a in agents.everyone(conn)],
            approvals=[
                ApprovalWaiting(a.id, calls=a.calls, because=a.because, asked_at=show(a.asked_at, desk.zone))
                for a in approvals.listed(conn, limit=APPROVALS_SHOWN_MAX, seen_by=caller)
            ],
            you=str(caller.address),
            now=show(desk.clock.now(), desk.zone),
        )

    return await desk.store.scan(body)


async def check_ledger(desk: Desk, caller: Principal, asked: Nothing) -> LedgerChecked:
    checked = await desk.store.scan(partial(ledger.check, now_ms=to_ms(desk.clock.now())))
    return LedgerChecked(holds=checked.holds, lines=checked.lines())


async def explain(desk: Desk, caller: Principal, asked: Why) -> Explained:
    found = await desk.store.scan(partial(why, id_text=asked.id, seen_by=caller))
    return Explained(found.lines(desk.zone))


OPERATIONS = (
    Operation(
        name="house.status",
        summary="Who is here, and what waits for you.",
        parameters=Nothing,
        handler=status,
        result=HouseStatus,
        permission=PermissionLevel.RESTRICTED,
    ),
    Operation(
        name="house.ledger",
        summary="Prove that nothing is lost.",
        parameters=Nothing,
        handler=check_ledger,
        result=LedgerChecked,
        permission=PermissionLevel.PRIVILEGED,
    ),
    Operation(
        name="house.why",
        summary="Tell why something became what it is.",
        parameters=Why,
        handler=explain,
        result=Explained,
        permission=PermissionLevel.RESTRICTED,
    ),
)
