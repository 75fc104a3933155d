"""Show one run: its result, its model calls, tokens and cost."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from functools import partial

import msgspec
import sqlalchemy as sa

from retinue.domain.agent import PermissionLevel
from retinue.domain.ids import RunId, SessionId
from retinue.domain.principal import Principal
from retinue.domain.record import Usage
from retinue.domain.run import Run, RunStatus
from retinue.domain.times import show
from retinue.operations.base import Desk, Operation
from retinue.store.core.lookup import Noun, find
from retinue.store.runs import model_calls, runs

TIMED_OUT = "run.timed-out"


class Result(StrEnum):
    """Result of a run, as shown to the requester.

    Each value except `open` corresponds to one run status.
    """

    OK = "ok"
    FAILOVER = "failover"  # answered by a fallback model
    COMPACTION = "compaction"  # answered after its context was compacted
    TIMEOUT = "timeout"
    ERROR = "error"
    OPEN = "open"


STATUS_OF = {
    Result.OK: RunStatus.COMPLETED,
    Result.FAILOVER: RunStatus.COMPLETED,
    Result.COMPACTION: RunStatus.COMPLETED,
    Result.TIMEOUT: RunStatus.FAILED,
    Result.ERROR: RunStatus.FAILED,
}


class ById(msgspec.Struct, forbid_unknown_fields=True):
    id: str


class ModelCall(msgspec.Struct, frozen=True, rename="kebab"):
    """One model call: its usage, or the error and what was tried next."""

    turn: int
    attempt: int
    summary: bool
    provider: str
    model: str
    credential: str
    usage: Usage
    cost_usd: float
    cost_unknown: bool
    failure: str | None
    next_move: str | None
    error: str | None
    at: str


class RunResult(msgspec.Struct, frozen=True, rename="kebab"):
    id: RunId
    session: SessionId
    agent: str
    status: Result
    run_status: RunStatus
    error: str | None
    model: str
    provider: str
    usage: Usage
    cost_usd: float
    started_at: str
    ended_at: str | None
    calls: list[ModelCall]


def result_of(run: Run, calls: list[model_calls.CallMade]) -> Result:
    if run.status.open:
        return Result.OPEN
    if run.status is not RunStatus.COMPLETED:
        return Result.TIMEOUT if (run.error or "").startswith(TIMED_OUT) else Result.ERROR
    if any(call.next_move == "next-model" for call in calls):
        return Result.FAILOVER
    return Result.COMPACTION if any(call.index < 0 and call.failure is None for call in calls) else Result.OK


async def show_run(desk: Desk, caller: Principal, asked: ById) -> RunResult:
    return await desk.store.scan(partial(_result, desk=desk, caller=caller, text=asked.id))


def _result(conn: sa.Connection, *, desk: Desk, caller: Principal, text: str) -> RunResult:
    _, id_ = find(conn, text, (Noun.RUN,), seen_by=caller)
    run = runs.get(conn, id_)
    assert run is not None  # found by its id in the same snapshot
    calls = model_calls.of_run(conn, id_)
    replied = [call for call in calls if call.failure is None and call.index == 0]
    total = total_of(calls)
    return RunResult(
        id=run.id,
        session=run.session,
        agent=run.agent,
        status=result_of(run, calls),
        run_status=run.status,
        error=run.error,
        model=replied[-1].ref.model if replied else "",
        provider=replied[-1].ref.provider if replied else "",
        usage=total,
        cost_usd=total.cost_microusd / 1e6,
        started_at=show(run.started_at, desk.zone),
        ended_at=show(run.ended_at, desk.zone) if run.ended_at else None,
        calls=[_shown(desk, call) for call in calls],
    )


def total_of(calls: Sequence[model_calls.CallMade]) -> Usage:
    return Usage(
        input_tokens=sum(call.usage.input_tokens for call in calls),
        output_tokens=sum(call.usage.output_tokens for call in calls),
        cost_microusd=sum(call.settled_microusd for call in calls),
        cache_read_tokens=sum(call.usage.cache_read_tokens for call in calls),
        cache_write_tokens=sum(call.usage.cache_write_tokens for call in calls),
        reasoning_tokens=sum(call.usage.reasoning_tokens for call in calls),
    )


def _shown(desk: Desk, call: model_calls.CallMade) -> ModelCall:
    return ModelCall(
        turn=call.turn,
        attempt=call.attempt,
        summary=call.index < 0,
        provider=call.ref.provider,
        model=call.ref.model,
        credential=call.credential,
        usage=call.usage,
        cost_usd=call.settled_microusd / 1e6,
        cost_unknown=call.unknown,
        failure=call.failure,
        next_move=call.next_move,
        error=call.error,
        at=show(call.at, desk.zone),
    )


OPERATIONS = (
    Operation(
        name="run.show",
        summary="How a run came out: its status, the models that were asked, tokens and cost.",
        parameters=ById,
        handler=show_run,
        permission=PermissionLevel.RESTRICTED,
        result=RunResult,
    ),
)
