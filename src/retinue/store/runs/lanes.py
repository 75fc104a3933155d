"""List the lanes that have an open run or waiting envelopes, and the channels that have waiting deliveries.

The query skips from lane to lane in the index of pending envelopes, so listing a lane takes the
same time with a thousand envelopes as with one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from msgspec import Struct

from retinue.domain.envelope import Envelope
from retinue.domain.ids import SessionId
from retinue.domain.principal import SERVER_PRINCIPAL, Principal
from retinue.domain.run import Run, RunStatus, StepKind
from retinue.domain.session import Session
from retinue.domain.times import to_ms
from retinue.domain.tool import Call
from retinue.store.channels import deliveries
from retinue.store.core import row_visibility
from retinue.store.core import tables as t
from retinue.store.core.row_visibility import PerScope, can_see_session, principal_parameters, visibility_scope
from retinue.store.envelopes import envelopes
from retinue.store.envelopes.dead_letters import DEAD_OUTCOMES
from retinue.store.envelopes.envelopes import envelope_from_row
from retinue.store.runs.run_trace import decode_call
from retinue.store.runs.runs import run_from_row
from retinue.store.sessions import sessions

LANES_SCANNED_MAX = 1_000
OUTBOUND_SCANNED_MAX = 5_000
COUNTED_MAX = 1_000  # maximum count of waiting envelopes in one lane or channel, and of dead letters

_b = sa.bindparam
_e = t.envelopes
_is_pending = _e.c.status == t.PENDING
_open_runs = sa.select(t.runs).where(t.runs.c.status.in_(t.OPEN_RUN_STATUSES)).limit(LANES_SCANNED_MAX)
_next_lane = sa.select(sa.func.min(_e.c.session)).where(_is_pending, _e.c.session > _b("after"))
_in_lane = (
    sa.select(_e)
    .where(_is_pending, _e.c.session == _b("session"))
    .order_by(_e.c.rank, _e.c.due_ms, _e.c.seq)
    .limit(_b("limit"))
)
_is_outside_lanes = sa.and_(_is_pending, _e.c.session.is_(None))
# The rank is always 1 outside lanes. Naming it lets the lane index return envelopes by due time.
_outbound = (
    sa.select(_e.c.recipient, _e.c.id)
    .where(_is_outside_lanes, _e.c.rank == t.sql_literal("1"), _e.c.recipient.like("channel:%"))
    .order_by(_e.c.due_ms, _e.c.seq)
    .limit(OUTBOUND_SCANNED_MAX)
)
_count_in_lane = sa.select(sa.func.count()).select_from(
    sa.select(sa.literal(1)).where(_is_pending, _e.c.session == _b("session")).limit(COUNTED_MAX).subquery()
)
_open_step = (
    sa.select(t.steps.c.kind, t.steps.c.turn, t.steps.c.call, t.steps.c.opened_ms)
    .where(t.steps.c.run == _b("run"), t.steps.c.state == t.sql_literal("'open'"))
    .order_by(t.steps.c.turn.desc(), t.steps.c.call_index.desc())
    .limit(1)
)
_count_dead = PerScope(
    lambda scope: sa.select(sa.func.count()).select_from(
        sa.select(sa.literal(1))
        .join_from(t.outcomes, _e, t.outcomes.c.envelope == _e.c.id)
        .where(
            t.outcomes.c.outcome.in_(tuple(t.sql_literal(f"'{outcome}'") for outcome in DEAD_OUTCOMES)),
            row_visibility.visible_envelopes(scope),
        )
        .limit(COUNTED_MAX)
        .subquery()
    )
)


class CurrentStep(Struct, frozen=True):
    """The open step of a run, which the run is working on."""

    kind: StepKind
    turn: int
    call: Call | None
    opened_ms: int


class LaneStatus(Struct, frozen=True, kw_only=True):
    """The status of a lane, with its open run and its waiting envelopes.

    `envelopes` contains the first waiting envelopes, in order. `count` is the number of all waiting
    envelopes, up to `COUNTED_MAX`.
    """

    session: Session
    run: Run | None
    step: CurrentStep | None
    envelopes: list[Envelope]
    count: int


class OutboundQueue(Struct, frozen=True, kw_only=True):
    channel: str
    count: int
    next: Envelope
    error: str | None  # error of the last attempt to send `next`


def list_lanes(
    conn: sa.Connection, *, limit: int, envelopes_limit: int, seen_by: Principal = SERVER_PRINCIPAL
) -> tuple[list[LaneStatus], int]:
    """List up to `limit` lanes, and return how many more there are.

    Lanes with a running run come first, then those with a suspended run, then all others.
    """
    at_work = {run.session: run for run in map(run_from_row, conn.execute(_open_runs))}
    with_mail = [SessionId(id_) for id_ in _iterate_keys(conn, _next_lane, after="", limit=LANES_SCANNED_MAX)]
    seen = [id_ for id_ in dict.fromkeys([*at_work, *with_mail]) if can_see_session(conn, seen_by, id_)]
    seen.sort(key=lambda id_: _sort_key(at_work.get(id_)))
    return [_get_lane(conn, id_, at_work.get(id_), envelopes_limit) for id_ in seen[:limit]], max(0, len(seen) - limit)


def list_channels(conn: sa.Connection, *, limit: int) -> tuple[list[OutboundQueue], int]:
    """List up to `limit` channels with waiting deliveries, by earliest due time. Returns how many more there are."""
    waiting: dict[str, list[str]] = {}
    for row in conn.execute(_outbound):
        waiting.setdefault(row.recipient, []).append(row.id)
    shown = list(waiting.items())[:limit]
    found = [status for channel, ids in shown if (status := _get_channel(conn, channel, ids)) is not None]
    return found, max(0, len(waiting) - limit)


def count_dead_letters(conn: sa.Connection, *, seen_by: Principal = SERVER_PRINCIPAL) -> int:
    """Count the dead letters that the caller can see, up to `COUNTED_MAX`."""
    return conn.execute(_count_dead[visibility_scope(seen_by)], principal_parameters(seen_by)).scalar_one()


def _iterate_keys(conn: sa.Connection, next_key: sa.Select[Any], *, after: str, limit: int) -> Iterator[str]:
    """Yield up to `limit` keys after `after`. Each key is found by running the query `next_key` again."""
    for _ in range(limit):
        found = conn.execute(next_key, {"after": after}).scalar()
        if found is None:
            return
        yield found
        after = found


def _sort_key(run: Run | None) -> tuple[int, int]:
    if run is None:
        return 2, 0
    return (0 if run.status is RunStatus.RUNNING else 1), to_ms(run.started_at)


def _get_lane(conn: sa.Connection, id_: SessionId, run: Run | None, envelopes_limit: int) -> LaneStatus:
    session = sessions.get(conn, id_)
    assert session is not None  # found in the same snapshot
    return LaneStatus(
        session=session,
        run=run,
        step=_get_current_step(conn, run) if run is not None else None,
        envelopes=[
            envelope_from_row(row) for row in conn.execute(_in_lane, {"session": id_, "limit": envelopes_limit})
        ],
        count=conn.execute(_count_in_lane, {"session": id_}).scalar_one(),
    )


def _get_current_step(conn: sa.Connection, run: Run) -> CurrentStep | None:
    row = conn.execute(_open_step, {"run": run.id}).first()
    if row is None:
        return None
    return CurrentStep(StepKind(row.kind), row.turn, decode_call(row.call) if row.call else None, row.opened_ms)


def _get_channel(conn: sa.Connection, channel: str, ids: Sequence[str]) -> OutboundQueue | None:
    following = envelopes.get(conn, ids[0])
    if following is None:
        return None
    attempts = deliveries.list_attempts(conn, following.id)
    return OutboundQueue(
        channel=channel, count=len(ids), next=following, error=attempts[-1].error if attempts else None
    )
