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
from retinue.domain.envelope import EnvelopeStatus, Outcome
from retinue.domain.errors import Invalid
from retinue.domain.ids import parse_id_prefix, short_id
from retinue.domain.principal import Principal
from retinue.domain.run import Run, RunStatus
from retinue.domain.session import Session
from retinue.domain.times import format_time, to_ms
from retinue.intake.accept import Wake, settle_and_notify
from retinue.intake.subagent_results import describe_outcome, one_line
from retinue.operations.base import Operation, Services
from retinue.operations.pagination import check_limit, invalid_cursor
from retinue.store.core.row_visibility import can_see_session
from retinue.store.core.transaction import Transaction
from retinue.store.envelopes import envelopes
from retinue.store.runs import approvals, delegations, model_calls, runs
from retinue.store.runs.delegations import DelegationPosition
from retinue.store.sessions import sessions

LIST_MIN, LIST_MAX = 1, 100
STOPPED_MAX = 1_000
REASON_CHARS_MAX = 200
SHARED_SESSION_KINDS = frozenset(
    {DelegationKind.MESSAGE, DelegationKind.SEND}
)  # run in a session where other envelopes may be waiting too


class DelegationProgress(StrEnum):
    """Status of a delegation. The first four values mean that it is open, the last four that it has ended."""

    WAITING = "waiting"  # not started
    WORKING = "working"
    SUSPENDED = "suspended"  # suspended: its run is waiting for another agent
    AWAITING_APPROVAL = "awaiting_approval"  # its run is waiting for an approval
    OK = "ok"
    ERROR = "error"
    TIMEOUT = "timeout"
    STOPPED = "stopped"


class DelegationListRequest(msgspec.Struct, forbid_unknown_fields=True):
    """List delegations. `cursor` is the `next` of the previous page."""

    session: Annotated[str, msgspec.Meta(description="only delegations made from this session")] = ""
    open: Annotated[bool, msgspec.Meta(description="list only delegations without a result")] = False
    limit: int = 50
    cursor: str = ""


class DelegationStopRequest(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    reason: str = "asked to stop"


class DelegationRow(msgspec.Struct, frozen=True):
    """One delegation: `agent` delegated work to `target`, with the tool call `call` in the run `requester_run`.

    `target_session` is the session in which `run` does the work, if you may see that session. `blocking`
    says whether the call waits for the answer. `result` is the envelope with the result.
    `cost_microusd` is the cost of `run` so far.
    """

    id: str
    kind: DelegationKind
    agent: str
    session: str
    session_name: str | None
    requester_run: str
    call: str
    target: str
    target_session: str | None
    target_session_name: str | None
    run: str | None
    label: str
    task: str
    status: DelegationProgress
    because: str
    blocking: bool
    result: str | None
    created_at: str
    started_at: str | None
    ended_at: str | None
    duration_ms: int | None
    cost_microusd: int


class DelegationList(msgspec.Struct, frozen=True):
    """One page of delegations. `open_count` counts all open delegations that you may see, up to `counted_max`."""

    delegations: list[DelegationRow]
    next: str | None
    open_count: int
    counted_max: int


class DelegationStopped(msgspec.Struct, frozen=True):
    """The stopped delegations, including those that their runs made in turn, and the cancelled runs."""

    stopped: list[str]
    cancelled_runs: list[str]


async def list_delegations(services: Services, caller: Principal, request: DelegationListRequest) -> DelegationList:
    check_limit(request.limit, least=LIST_MIN, most=LIST_MAX)
    after = _parse_cursor(request.cursor)

    def body(conn: sa.Connection) -> DelegationList:
        session = sessions.get_by_short_id(conn, request.session, seen_by=caller).id if request.session else ""
        found = delegations.list_delegations(
            conn, after=after, limit=request.limit + 1, session=session, only_open=request.open, seen_by=caller
        )
        shown = found[: request.limit]
        return DelegationList(
            delegations=[_to_row(services, conn, caller, each) for each in shown],
            next=_format_cursor(shown[-1]) if len(found) > request.limit else None,
            open_count=delegations.count_visible_open(conn, seen_by=caller),
            counted_max=delegations.OPEN_COUNTED_MAX,
        )

    return await services.store.scan(body)


async def stop_delegation(services: Services, caller: Principal, request: DelegationStopRequest) -> DelegationStopped:
    """Stop a delegation, and all delegations that its run made in turn.

    Only the run that made the given delegation is notified.
    """
    top = await services.store.read(partial(delegations.get_by_short_id, text=request.id, seen_by=caller))
    by, why = str(caller.address), request.reason[:REASON_CHARS_MAX]
    stopped: list[str] = []
    ended: list[str] = []
    todo = [top]
    for known in todo:  # the loop appends the delegations that each delegation made in turn
        each = await services.store.read(partial(delegations.get, id_=known.id))
        if each is None:
            continue
        where = each.target_session or each.session
        below = await services.store.read(partial(delegations.list_open, session=where, limit=STOPPED_MAX))
        todo += [one for one in below if one.run == each.worker_run_id][: STOPPED_MAX - len(todo)]
        if each.state.is_open:
            if each.worker_run is None and each.kind in SHARED_SESSION_KINDS:
                await _cancel_unread(services, each, by=by, why=why)
            else:
                done = await services.engine.cancel(
                    where, by=by, reason=why, clear_due=each.kind not in SHARED_SESSION_KINDS
                )
                ended += map(short_id, done.runs)
        now = await services.store.read(partial(delegations.get, id_=each.id))
        if now is not None and not now.state.is_open and known.state.is_open:
            stopped.append(each.id)
    return DelegationStopped(stopped, ended)


async def _cancel_unread(services: Services, delegation: Delegation, *, by: str, why: str) -> None:
    """Cancel a delegation that no run has read yet. This cancels its envelope, and no other envelope of the session."""

    def body(conn: sa.Connection) -> tuple[Wake, ...]:
        tx = Transaction(conn, to_ms(services.clock.now()))
        envelope = envelopes.get(conn, delegation.id)
        session = sessions.get(conn, delegation.target_session or "")
        if envelope is None or envelope.status is not EnvelopeStatus.PENDING or session is None:
            return ()  # started or ended meanwhile
        because, text = f"cancelled by {by}: {why}", f"Stopped before it was read: {why}."
        wakes = settle_and_notify(tx, envelope, Outcome.CANCELLED, because=because, text=text, session=session)
        tx.close()
        return wakes

    def on_commit(wakes: tuple[Wake, ...] | None) -> None:
        for wake in wakes or ():
            services.engine.wake(wake)

    await services.store.write(body, point="cancel", then=on_commit)


def _to_row(services: Services, conn: sa.Connection, caller: Principal, delegation: Delegation) -> DelegationRow:
    asker, there = sessions.get(conn, delegation.session), _visible_session(conn, caller, delegation)
    run = runs.get(conn, delegation.worker_run) if delegation.worker_run else None
    return DelegationRow(
        id=delegation.id,
        kind=delegation.kind,
        agent=delegation.agent,
        session=delegation.session,
        session_name=(asker.name or None) if asker is not None else None,
        requester_run=delegation.run,
        call=delegation.call,
        target=delegation.target,
        target_session=there.id if there is not None else None,
        target_session_name=(there.name or None) if there is not None else None,
        run=delegation.worker_run if there is not None else None,
        label=delegation.label,
        task=one_line(delegation.task),
        status=_find_progress(conn, delegation, run),
        because=delegation.because,
        blocking=delegation.state.is_open and delegation.wait_until is not None,
        result=delegation.result,
        created_at=format_time(delegation.created_at, services.zone),
        started_at=format_time(delegation.started_at, services.zone) if delegation.started_at else None,
        ended_at=format_time(delegation.ended_at, services.zone) if delegation.ended_at else None,
        duration_ms=to_ms(delegation.ended_at) - to_ms(delegation.started_at or delegation.created_at)
        if delegation.ended_at
        else None,
        cost_microusd=sum(call.settled_microusd for call in model_calls.list_of_run(conn, run.id))
        if run is not None
        else 0,
    )


def _visible_session(conn: sa.Connection, caller: Principal, delegation: Delegation) -> Session | None:
    """Return the session of the delegated work, or None if it does not exist or the caller may not see it."""
    there = sessions.get(conn, delegation.target_session) if delegation.target_session else None
    if there is None or there.deleted_at is not None or not can_see_session(conn, caller, there.id):
        return None
    return there


def _find_progress(conn: sa.Connection, delegation: Delegation, run: Run | None) -> DelegationProgress:
    if delegation.state is not DelegationState.OPEN:
        return DelegationProgress(describe_outcome(conn, delegation, delegation.state))
    if delegation.started_at is None:
        return DelegationProgress.WAITING
    if run is None or run.status is not RunStatus.SUSPENDED:
        return DelegationProgress.WORKING
    asks = any(each.state is ApprovalState.OPEN for each in approvals.list_of_run(conn, run.id))
    return DelegationProgress.AWAITING_APPROVAL if asks else DelegationProgress.SUSPENDED


def _format_cursor(delegation: Delegation) -> str:
    return f"{to_ms(delegation.created_at)}.{delegation.id}"


def _parse_cursor(cursor: str) -> DelegationPosition:
    if not cursor:
        return DelegationPosition()
    created, _, id_ = cursor.partition(".")
    try:
        return DelegationPosition(int(created[:18]), parse_id_prefix(id_))
    except (ValueError, Invalid):
        raise invalid_cursor(cursor) from None


OPERATIONS = (
    Operation(
        name="delegation.list",
        summary="List delegations between agents.",
        parameters=DelegationListRequest,
        handler=list_delegations,
        permission=PermissionLevel.RESTRICTED,
        result=DelegationList,
    ),
    Operation(
        name="delegation.stop",
        summary="Stop a delegation, and all delegations that its run made in turn.",
        parameters=DelegationStopRequest,
        handler=stop_delegation,
        permission=PermissionLevel.RESTRICTED,
        has_effect=True,
        result=DelegationStopped,
    ),
)
