"""Operations that list runs, and show the result, the model calls, the tokens and the cost of a run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated

import msgspec
import sqlalchemy as sa

from retinue.domain import address
from retinue.domain.address import AddressKind, validate_name
from retinue.domain.agent import PermissionLevel
from retinue.domain.errors import Invalid
from retinue.domain.ids import RunId, SessionId, parse_id_prefix
from retinue.domain.principal import Principal
from retinue.domain.record import Usage
from retinue.domain.run import Run, RunStatus
from retinue.domain.shared_errors import TimeRangeInvalid
from retinue.domain.storable_text import make_storable
from retinue.domain.times import LAST_MS, format_time, parse_time, to_ms
from retinue.operations.base import Operation, Services
from retinue.operations.pagination import check_limit, invalid_cursor
from retinue.operations.run.run_result_status import RunResultStatus, classify_result
from retinue.store.agents import agents
from retinue.store.core.keyset_pagination import KeysetPosition
from retinue.store.core.lookup import IdKind, find_by_short_id
from retinue.store.runs import model_calls, runs
from retinue.store.runs.runs import RunQuery
from retinue.store.sessions import sessions

LIST_LIMIT_MIN, LIST_LIMIT_MAX = 1, 100


class RunIdRequest(msgspec.Struct, forbid_unknown_fields=True):
    id: str


class ModelCallRow(msgspec.Struct, frozen=True):
    """One model call, with its usage, or with its error and what the server did after it."""

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


# --- list ---


class RunListRequest(msgspec.Struct, forbid_unknown_fields=True):
    """List runs, newest first. `cursor` is the `next` of the previous page."""

    agent: Annotated[str, msgspec.Meta(description="only runs of this agent")] = ""
    session: Annotated[str, msgspec.Meta(description="only runs in this session")] = ""
    person: Annotated[str, msgspec.Meta(description="only runs on behalf of this person")] = ""
    sender: Annotated[str, msgspec.Meta(description="only runs started by this sender")] = ""
    status: Annotated[RunStatus | None, msgspec.Meta(description="only runs with this status")] = None
    model: Annotated[str, msgspec.Meta(description="only runs that used this model")] = ""
    since: Annotated[
        str, msgspec.Meta(description="only runs started at or after this time: -7D, or 2026-01-28T20:30")
    ] = ""
    until: Annotated[str, msgspec.Meta(description="only runs started at or before this time")] = ""
    limit: int = 20
    cursor: str = ""


class RunRow(msgspec.Struct, frozen=True):
    """One row of the run list.

    `error` is the reason if the run did not complete. `turns` and `tool_calls` are counted from the
    run's steps. After the steps are purged, `turns` counts the turns with a charged model call, and
    `tool_calls` is null.
    """

    id: str
    agent: str
    session: str
    session_name: str | None
    sender: str
    person: str
    envelopes: list[str]
    status: RunResultStatus
    run_status: RunStatus
    error: str | None
    attempt: int
    turns: int
    tool_calls: int | None
    models: list[str]
    usage: Usage
    cost_microusd: int
    cost_unknown: bool
    started_at: str
    started_ms: int
    ended_at: str | None
    duration_ms: int | None
    resumes_at: str | None


class RunList(msgspec.Struct, frozen=True):
    """One page of runs. `next` is the cursor of the next page.

    A page can have fewer rows than `limit`, or none, and still have a `next`: each request examines a limited number of
    runs.
    """

    runs: list[RunRow]
    next: str | None


async def list_runs(services: Services, caller: Principal, request: RunListRequest) -> RunList:
    check_limit(request.limit, least=LIST_LIMIT_MIN, most=LIST_LIMIT_MAX)
    now = services.clock.now()
    since_ms = to_ms(parse_time(request.since, now=now, zone=services.zone)) if request.since else 0
    until_ms = to_ms(parse_time(request.until, now=now, zone=services.zone)) if request.until else LAST_MS
    if since_ms > until_ms:
        raise TimeRangeInvalid(request.since[:64], request.until[:64])
    after = parse_cursor(request.cursor)

    def body(conn: sa.Connection) -> RunList:
        wanted = RunQuery(
            session=sessions.get_by_short_id(conn, request.session, seen_by=caller).id if request.session else "",
            agents=(_registered_name(conn, request.agent),) if request.agent else (),
            status=request.status,
            sender=str(address.parse_address(request.sender)) if request.sender else "",
            person=validate_name(request.person, what="a person") if request.person else "",
            model=make_storable(request.model),
            since_ms=since_ms,
            until_ms=until_ms,
        )
        found, more = runs.list_page(conn, wanted, after=after, limit=request.limit, seen_by=caller)
        return RunList(
            runs=[to_run_row(services, conn, run) for run in found],
            next=format_cursor(more) if more is not None else None,
        )

    return await services.store.scan(body)


def _registered_name(conn: sa.Connection, name: str) -> str:
    """Return the name of the agent as it was registered.

    An unknown name is returned unchanged, because deleted agents may still have runs.
    """
    found = agents.find(conn, validate_name(name, what="an agent"))
    return found.name if found is not None else name


def format_cursor(position: KeysetPosition) -> str:
    return f"{position.ms}.{position.id}"


def parse_cursor(cursor: str) -> KeysetPosition:
    if not cursor:
        return KeysetPosition()
    ms, _, id_ = cursor.partition(".")
    try:
        return KeysetPosition(int(ms[:18]), parse_id_prefix(id_))
    except (ValueError, Invalid):
        raise invalid_cursor(cursor) from None


def _sender_person(run: Run) -> str:
    return run.sender.name if run.sender.kind is AddressKind.PERSON else ""


def to_run_row(services: Services, conn: sa.Connection, run: Run) -> RunRow:
    calls = model_calls.list_of_run(conn, run.id)
    turns, tools = runs.count_turns_and_calls(conn, run.id)
    session = sessions.get(conn, run.session)
    total = sum_usage(calls)
    ended_ms = to_ms(run.ended_at) if run.ended_at else None
    steps_kept = turns > 0 or run.status.is_open
    return RunRow(
        id=run.id,
        agent=run.agent,
        session=run.session,
        session_name=(session.name or None) if session is not None else None,
        sender=str(run.sender),
        person=next((call.person for call in calls if call.person), _sender_person(run)),
        envelopes=list(run.envelopes),
        status=classify_result(run, calls),
        run_status=run.status,
        error=run.error,
        attempt=run.attempt,
        turns=turns if steps_kept else len({call.turn for call in calls if call.index == 0 and not call.failure}),
        tool_calls=tools if steps_kept else None,
        models=list(dict.fromkeys(str(call.ref) for call in calls)),
        usage=total,
        cost_microusd=total.cost_microusd,
        cost_unknown=any(call.cost_unknown for call in calls),
        started_at=format_time(run.started_at, services.zone),
        started_ms=to_ms(run.started_at),
        ended_at=format_time(run.ended_at, services.zone) if run.ended_at else None,
        duration_ms=ended_ms - to_ms(run.started_at) if ended_ms is not None else None,
        resumes_at=format_time(run.wake_at, services.zone) if run.wake_at else None,
    )


OPERATIONS = (
    Operation(
        name="run.show",
        summary="Show how a run ended, and its models, tokens and cost.",
        parameters=RunIdRequest,
        handler=show_run,
        permission=PermissionLevel.RESTRICTED,
        result=RunDetails,
    ),
    Operation(
        name="run.list",
        summary="List runs with their cost and result, newest first.",
        parameters=RunListRequest,
        handler=list_runs,
        permission=PermissionLevel.RESTRICTED,
        result=RunList,
    ),
)
