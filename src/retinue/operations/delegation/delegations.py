"""Operations on delegations: list them with their status, and stop one."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from typing import Annotated

import msgspec
import sqlalchemy as sa

from retinue.domain.agent import PermissionLevel
from retinue.domain.approval import ApprovalState
from retinue.domain.delegation import Delegation, DelegationKind, DelegationState
from retinue.domain.envelope import Outcome, Status
from retinue.domain.errors import Invalid
from retinue.domain.ids import prefix, short
from retinue.domain.principal import Principal
from retinue.domain.run import Run, RunStatus
from retinue.domain.session import Session
from retinue.domain.times import show, to_ms
from retinue.intake.accept import Wake, settle_and_tell
from retinue.intake.subagent_results import one_line, outcome_of
from retinue.operations.base import Desk, Operation
from retinue.operations.pagination import check_limit, no_cursor
from retinue.store.core.row_visibility import sees_session
from retinue.store.core.transaction import Page
from retinue.store.envelopes import envelopes
from retinue.store.runs import approvals, delegation_list, delegations, model_calls, runs
from retinue.store.runs.subagents import Place
from retinue.store.sessions import sessions

LIST_MIN, LIST_MAX = 1, 100
STOPPED_AT_ONCE_MAX = 1_000
WHY_LENGTH_MAX = 200
SHARED = frozenset({DelegationKind.MESSAGE, DelegationKind.SEND})  # run in a session where other envelopes may wait too


class Standing(StrEnum):
    """Status of a delegation: the first four are open, the last four ended."""

    WAITING = "waiting"  # not started
    WORKING = "working"
    PARKED = "parked"  # suspended: its run waits for another agent
    ASKING = "asking"  # its run waits for an approval
    OK = "ok"
    ERROR = "error"
    TIMEOUT = "timeout"
    STOPPED = "stopped"


class Listing(msgspec.Struct, forbid_unknown_fields=True):
    """`cursor` is the `next` of the previous page."""

    session: Annotated[str, msgspec.Meta(description="only what was handed on from this one")] = ""
    open: Annotated[bool, msgspec.Meta(description="only what has no answer yet")] = False
    limit: int = 50
    cursor: str = ""


class Stop(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    why: str = "asked to"


class DelegationListed(msgspec.Struct, frozen=True, rename="kebab"):
    """One delegation: `agent` delegated to `target` with the `call` of the run `asked-by`.

    `to` is the session in which `run` works on it, if you may see it. `waits`: the call stays open for the
    answer. `result` is the envelope with the result. `cost-microusd` is the cost of its run so far.
    """

    id: str
    kind: DelegationKind
    agent: str
    session: str
    session_name: str | None
    asked_by: str
    call: str
    target: str
    to: str | None
    to_name: str | None
    run: str | None
    label: str
    task: str
    stands: Standing
    because: str
    waits: bool
    result: str | None
    created_at: str
    started_at: str | None
    ended_at: str | None
    duration_ms: int | None
    cost_microusd: int


class DelegationsListed(msgspec.Struct, frozen=True, rename="kebab"):
    """One page. `open-count` counts all open delegations that you may see, up to `counted-max`."""

    delegations: list[DelegationListed]
    next: str | None
    open_count: int
    counted_max: int


class DelegationStopped(msgspec.Struct, frozen=True, rename="kebab"):
    """The delegations that ended, with those made below them, and the runs that were cancelled."""

    stopped: list[str]
    cancelled_runs: list[str]


async def listed(desk: Desk, caller: Principal, asked: Listing) -> DelegationsListed:
    check_limit(asked.limit, least=LIST_MIN, most=LIST_MAX)
    after = _place(asked.cursor)

    def body(conn: sa.Connection) -> DelegationsListed:
        session = sessions.resolve(conn, asked.session, seen_by=caller).id if asked.session else ""
        found = delegation_list.listed(
            conn, after=after, limit=asked.limit + 1, session=session, only_open=asked.open, seen_by=caller
        )
        shown = found[: asked.limit]
        return DelegationsListed(
            delegations=[_listed(desk, conn, caller, each) for each in shown],
            next=_cursor(shown[-1]) if len(found) > asked.limit else None,
            open_count=delegation_list.count_open(conn, seen_by=caller),
            counted_max=delegation_list.COUNTED_MAX,
        )

    return await desk.store.scan(body)


async def stop(desk: Desk, caller: Principal, asked: Stop) -> DelegationStopped:
    """Stop a delegation and those made below it. Only the delegating run of the first one is notified."""
    top = await desk.store.read(partial(delegation_list.resolve, text=asked.id, seen_by=caller))
    by, why = str(caller.address), asked.why[:WHY_LENGTH_MAX]
    stopped: list[str] = []
    ended: list[str] = []
    todo = [top]
    for known in todo:  # grows by the delegations below each
        each = await desk.store.read(partial(delegations.get, id_=known.id))
        if each is None:
            continue
        where = each.to or each.session
        below = await desk.store.read(partial(delegations.open_of, session=where, limit=STOPPED_AT_ONCE_MAX))
        todo += [one for one in below if one.run == each.run_id][: STOPPED_AT_ONCE_MAX - len(todo)]
        if each.state.open:
            if each.worked_by is None and each.kind in SHARED:
                await _take_back(desk, each, by=by, why=why)
            else:
                done = await desk.engine.cancel(where, by=by, why=why, clear_due=each.kind not in SHARED)
                ended += map(short, done.runs)
        now = await desk.store.read(partial(delegations.get, id_=each.id))
        if now is not None and not now.state.open and known.state.open:
            stopped.append(each.id)
    return DelegationStopped(stopped, ended)


async def _take_back(desk: Desk, delegation: Delegation, *, by: str, why: str) -> None:
    """Cancel a delegation that no run has read yet: end its envelope, and leave others in that session alone."""

    def body(conn: sa.Connection) -> tuple[Wake, ...]:
        page = Page(conn, to_ms(desk.clock.now()))
        letter = envelopes.get(conn, delegation.id)
        session = sessions.get(conn, delegation.to or "")
        if letter is None or letter.status is not Status.PENDING or session is None:
            return ()  # started or ended meanwhile
        because, text = f"cancelled by {by}: {why}", f"Stopped before it was read: {why}."
        wakes = settle_and_tell(page, letter, Outcome.CANCELLED, because=because, text=text, session=session)
        page.close()
        return wakes

    def told(wakes: tuple[Wake, ...] | None) -> None:
        for wake in wakes or ():
            desk.engine.wake(wake)

    await desk.store.write(body, point="cancel", then=told)


def _listed(desk: Desk, conn: sa.Connection, caller: Principal, found: Delegation) -> DelegationListed:
    asker, there = sessions.get(conn, found.session), _seen(conn, caller, found)
    run = runs.get(conn, found.worked_by) if found.worked_by else None
    return DelegationListed(
        id=found.id,
        kind=found.kind,
        agent=found.agent,
        session=found.session,
        session_name=(asker.name or None) if asker is not None else None,
        asked_by=found.run,
        call=found.call,
        target=found.target,
        to=there.id if there is not None else None,
        to_name=(there.name or None) if there is not None else None,
        run=found.worked_by if there is not None else None,
        label=found.label,
        task=one_line(found.task),
        stands=_stands(conn, found, run),
        because=found.because,
        waits=found.state.open and found.wait_until is not None,
        result=found.result,
        created_at=show(found.created_at, desk.zone),
        started_at=show(found.started_at, desk.zone) if found.started_at else None,
        ended_at=show(found.ended_at, desk.zone) if found.ended_at else None,
        duration_ms=to_ms(found.ended_at) - to_ms(found.started_at or found.created_at) if found.ended_at else None,
        cost_microusd=sum(call.settled_microusd for call in model_calls.of_run(conn, run.id)) if run is not None else 0,
    )


def _seen(conn: sa.Connection, caller: Principal, found: Delegation) -> Session | None:
    """Return the session that works on it, or None if the caller may not see it."""
    there = sessions.get(conn, found.to) if found.to else None
    if there is None or there.deleted_at is not None or not sees_session(conn, caller, there.id):
        return None
    return there


def _stands(conn: sa.Connection, found: Delegation, run: Run | None) -> Standing:
    if found.state is not DelegationState.OPEN:
        return Standing(outcome_of(conn, found, found.state))
    if found.started_at is None:
        return Standing.WAITING
    if run is None or run.status is not RunStatus.PARKED:
        return Standing.WORKING
    asks = any(each.state is ApprovalState.OPEN for each in approvals.of_run(conn, run.id))
    return Standing.ASKING if asks else Standing.PARKED


def _cursor(found: Delegation) -> str:
    return f"{to_ms(found.created_at)}.{found.id}"


def _place(cursor: str) -> Place:
    if not cursor:
        return Place()
    created, _, id_ = cursor.partition(".")
    try:
        return Place(int(created[:18]), prefix(id_))
    except (ValueError, Invalid):
        raise no_cursor(cursor) from None


OPERATIONS = (
    Operation(
        name="delegation.list",
        summary="List work that agents have handed to one another.",
        parameters=Listing,
        handler=listed,
        permission=PermissionLevel.RESTRICTED,
        result=DelegationsListed,
    ),
    Operation(
        name="delegation.stop",
        summary="Stop work that was handed on, and all that came of it.",
        parameters=Stop,
        handler=stop,
        permission=PermissionLevel.RESTRICTED,
        effect=True,
        result=DelegationStopped,
    ),
)
