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
from retinue.domain.run import TIMED_OUT_CODES, Run, RunStatus
from retinue.domain.times import format_time
from retinue.operations.base import Operation, Services
from retinue.store.core.lookup import IdKind, find_by_short_id
from retinue.store.runs import model_calls, runs


class RunResultStatus(StrEnum):
    """Result of a run, as shown to the requester.

    Each value except `open` corresponds to one run status.
    """

    OK = "ok"
    FAILOVER = "failover"  # answered by a fallback model
    COMPACTION = "compaction"  # answered after its context was compacted
    TIMEOUT = "timeout"
    ERROR = "error"
    OPEN = "open"


RUN_STATUS_BY_RESULT = {
    RunResultStatus.OK: RunStatus.COMPLETED,
    RunResultStatus.FAILOVER: RunStatus.COMPLETED,
    RunResultStatus.COMPACTION: RunStatus.COMPLETED,
    RunResultStatus.TIMEOUT: RunStatus.FAILED,
    RunResultStatus.ERROR: RunStatus.FAILED,
}


class RunIdRequest(msgspec.Struct, forbid_unknown_fields=True):
    id: str


class ModelCallRow(msgspec.Struct, frozen=True):
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
    next_action: str | None
    error: str | None
    at: str


class RunDetails(msgspec.Struct, frozen=True):
    id: RunId
    session: SessionId
    agent: str
    status: RunResultStatus
    run_status: RunStatus
    error: str | None
    model: str
    provider: str
    usage: Usage
    cost_usd: float
    started_at: str
    ended_at: str | None
    calls: list[ModelCallRow]


def classify_result(run: Run, calls: list[model_calls.RecordedModelCall]) -> RunResultStatus:
    if run.status.is_open:
        return RunResultStatus.OPEN
    if run.status is not RunStatus.COMPLETED:
        return RunResultStatus.TIMEOUT if (run.error or "").startswith(TIMED_OUT_CODES) else RunResultStatus.ERROR
    if any(call.next_action == "next_model" for call in calls):
        return RunResultStatus.FAILOVER
    return (
        RunResultStatus.COMPACTION
        if any(call.index < 0 and call.failure is None for call in calls)
        else RunResultStatus.OK
    )


async def show_run(services: Services, caller: Principal, request: RunIdRequest) -> RunDetails:
    return await services.store.scan(partial(_read_run_details, services=services, caller=caller, text=request.id))


def _read_run_details(conn: sa.Connection, *, services: Services, caller: Principal, text: str) -> RunDetails:
    _, id_ = find_by_short_id(conn, text, (IdKind.RUN,), seen_by=caller)
    run = runs.get(conn, id_)
    assert run is not None  # found by its id in the same snapshot
    calls = model_calls.list_of_run(conn, id_)
    replied = [call for call in calls if call.failure is None and call.index == 0]
    total = sum_usage(calls)
    return RunDetails(
        id=run.id,
        session=run.session,
        agent=run.agent,
        status=classify_result(run, calls),
        run_status=run.status,
        error=run.error,
        model=replied[-1].ref.model if replied else "",
        provider=replied[-1].ref.provider if replied else "",
        usage=total,
        cost_usd=total.cost_microusd / 1e6,
        started_at=format_time(run.started_at, services.zone),
        ended_at=format_time(run.ended_at, services.zone) if run.ended_at else None,
        calls=[_to_model_call_row(services, call) for call in calls],
    )


def sum_usage(calls: Sequence[model_calls.RecordedModelCall]) -> Usage:
    return Usage(
        input_tokens=sum(call.usage.input_tokens for call in calls),
        output_tokens=sum(call.usage.output_tokens for call in calls),
        cost_microusd=sum(call.settled_microusd for call in calls),
        cache_read_tokens=sum(call.usage.cache_read_tokens for call in calls),
        cache_write_tokens=sum(call.usage.cache_write_tokens for call in calls),
        reasoning_tokens=sum(call.usage.reasoning_tokens for call in calls),
    )


def _to_model_call_row(services: Services, call: model_calls.RecordedModelCall) -> ModelCallRow:
    return ModelCallRow(
        turn=call.turn,
        attempt=call.attempt,
        summary=call.index < 0,
        provider=call.ref.provider,
        model=call.ref.model,
        credential=call.credential,
        usage=call.usage,
        cost_usd=call.settled_microusd / 1e6,
        cost_unknown=call.cost_unknown,
        failure=call.failure,
        next_action=call.next_action,
        error=call.error,
        at=format_time(call.at, services.zone),
    )


OPERATIONS = (
    Operation(
        name="run.show",
        summary="Show the result of a run: its status, models, tokens and cost.",
        parameters=RunIdRequest,
        handler=show_run,
        permission=PermissionLevel.RESTRICTED,
        result=RunDetails,
    ),
)
