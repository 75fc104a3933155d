"""List runs with their cost and result, newest first."""

from __future__ import annotations

from typing import Annotated

import msgspec
import sqlalchemy as sa

from retinue.domain import address
from retinue.domain.address import AddressKind, valid_name
from retinue.domain.agent import PermissionLevel
from retinue.domain.errors import Invalid
from retinue.domain.ids import prefix
from retinue.domain.principal import Principal
from retinue.domain.record import Usage
from retinue.domain.run import Run, RunStatus
from retinue.domain.storable_text import storable
from retinue.domain.times import parse_when, show, to_ms
from retinue.operations.base import Desk, Operation
from retinue.operations.pagination import check_limit, no_cursor
from retinue.operations.run.runs import Result, result_of, total_of
from retinue.store.agents import agents
from retinue.store.core.keyset_pagination import Place
from retinue.store.envelopes.envelope_lists import MS_LAST
from retinue.store.runs import model_calls, run_list
from retinue.store.runs.run_list import Wanted
from retinue.store.sessions import sessions

LISTED_MIN, LISTED_MAX = 1, 100


class List(msgspec.Struct, forbid_unknown_fields=True):
    """Newest first. `cursor` is the `next` of the previous page."""

    agent: Annotated[str, msgspec.Meta(description="only runs of this agent")] = ""
    session: Annotated[str, msgspec.Meta(description="only runs in this session")] = ""
    person: Annotated[str, msgspec.Meta(description="only what was done for this person")] = ""
    sender: Annotated[str, msgspec.Meta(description="only what this address has asked for")] = ""
    status: Annotated[RunStatus | None, msgspec.Meta(description="only runs that stand so")] = None
    model: Annotated[str, msgspec.Meta(description="only runs that asked this model")] = ""
    since: Annotated[str, msgspec.Meta(description="only what began since: -7D, or 2026-01-28T20:30")] = ""
    until: Annotated[str, msgspec.Meta(description="only what began until then")] = ""
    limit: int = 20
    cursor: str = ""


class RunListed(msgspec.Struct, frozen=True, rename="kebab"):
    """One row of the run list.

    `error` is the reason if the run did not complete. `turns` and `tool-calls` are counted from the
    run's steps. After the steps are purged, `turns` counts the turns with a charged model call, and
    `tool-calls` is null.
    """

    id: str
    agent: str
    session: str
    session_name: str | None
    sender: str
    person: str
    envelopes: list[str]
    status: Result
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
    waits_until: str | None


class RunsListed(msgspec.Struct, frozen=True):
    """`next` is the cursor of the next page.

    A page can have fewer rows than `limit`, or none, and still have a `next`: each request examines
    a limited number of runs.
    """

    runs: list[RunListed]
    next: str | None


async def listing(desk: Desk, caller: Principal, asked: List) -> RunsListed:
    check_limit(asked.limit, least=LISTED_MIN, most=LISTED_MAX)
    now = desk.clock.now()
    since_ms = to_ms(parse_when(asked.since, now=now, zone=desk.zone)) if asked.since else 0
    until_ms = to_ms(parse_when(asked.until, now=now, zone=desk.zone)) if asked.until else MS_LAST
    if since_ms > until_ms:
        raise Invalid(
            "nothing can be in this span of time",
            because="`since` is after `until`",
            try_this="swap the two",
            code="time.inverted",
        )
    after = place_of(asked.cursor)

    def body(conn: sa.Connection) -> RunsListed:
        wanted = Wanted(
            session=sessions.resolve(conn, asked.session, seen_by=caller).id if asked.session else "",
            agents=(_spelled(conn, asked.agent),) if asked.agent else (),
            status=asked.status,
            sender=str(address.parse(asked.sender)) if asked.sender else "",
            person=valid_name(asked.person, what="a person") if asked.person else "",
            model=storable(asked.model),
            since_ms=since_ms,
            until_ms=until_ms,
        )
        found, more = run_list.page(conn, wanted, after=after, limit=asked.limit, seen_by=caller)
        return RunsListed(
            runs=[listed(desk, conn, run) for run in found],
            next=cursor_of(more) if more is not None else None,
        )

    return await desk.store.scan(body)


def _spelled(conn: sa.Connection, typed: str) -> str:
    """Return the agent's registered spelling.

    Deleted agents still have runs, so unknown names pass unchanged.
    """
    found = agents.find(conn, valid_name(typed, what="an agent"))
    return found.name if found is not None else typed


def cursor_of(place: Place) -> str:
    return f"{place.ms}.{place.id}"


def place_of(cursor: str) -> Place:
    if not cursor:
        return Place()
    ms, _, id_ = cursor.partition(".")
    try:
        return Place(int(ms[:18]), prefix(id_))
    except (ValueError, Invalid):
        raise no_cursor(cursor) from None


def _person(run: Run) -> str:
    return run.sender.name if run.sender.kind is AddressKind.PERSON else ""


def listed(desk: Desk, conn: sa.Connection, run: Run) -> RunListed:
    calls = model_calls.of_run(conn, run.id)
    turns, tools = run_list.counts(conn, run.id)
    session = sessions.get(conn, run.session)
    total = total_of(calls)
    ended_ms = to_ms(run.ended_at) if run.ended_at else None
    steps_kept = turns > 0 or run.status.open
    return RunListed(
        id=run.id,
        agent=run.agent,
        session=run.session,
        session_name=(session.name or None) if session is not None else None,
        sender=str(run.sender),
        person=next((call.person for call in calls if call.person), _person(run)),
        envelopes=list(run.envelopes),
        status=result_of(run, calls),
        run_status=run.status,
        error=run.error,
        attempt=run.attempt,
        turns=turns if steps_kept else len({call.turn for call in calls if call.index == 0 and not call.failure}),
        tool_calls=tools if steps_kept else None,
        models=list(dict.fromkeys(str(call.ref) for call in calls)),
        usage=total,
        cost_microusd=total.cost_microusd,
        cost_unknown=any(call.unknown for call in calls),
        started_at=show(run.started_at, desk.zone),
        started_ms=to_ms(run.started_at),
        ended_at=show(run.ended_at, desk.zone) if run.ended_at else None,
        duration_ms=ended_ms - to_ms(run.started_at) if ended_ms is not None else None,
        waits_until=show(run.wake_at, desk.zone) if run.wake_at else None,
    )


OPERATIONS = (
    Operation(
        name="run.list",
        summary="List runs, newest first, with what each took and how it came out.",
        parameters=List,
        handler=listing,
        permission=PermissionLevel.RESTRICTED,
        result=RunsListed,
    ),
)
