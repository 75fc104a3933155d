"""Lists of runs for people, newest first, with keyset pagination.

A page merges scans along the index of a session, or of each agent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from msgspec import Struct

from retinue.domain.principal import SERVER_PRINCIPAL, Principal
from retinue.domain.run import Run, RunStatus, StepKind
from retinue.store.core import row_visibility
from retinue.store.core import tables as t
from retinue.store.core.keyset_pagination import KeysetPosition, paginate
from retinue.store.core.row_visibility import (
    VisibilityScope,
    address_parameters,
    is_address_or_below,
    principal_parameters,
    visibility_scope,
)
from retinue.store.envelopes.envelope_lists import LAST_MS
from retinue.store.runs.runs import run_from_row

RUNS_SCANNED_MAX = 20_000  # runs, for one page

_b = sa.bindparam
_r, _m = t.runs, t.model_calls
_status = _b("status", type_=sa.String)
_sender = _b("sender", type_=sa.String)
_person = _b("person", type_=sa.String)
_model = _b("model", type_=sa.String)


class RunQuery(Struct, frozen=True, kw_only=True):
    """Selects runs. An empty field matches everything; `model` is the provider's name for it, or provider/name."""

    session: str = ""
    agents: Sequence[str] = ()  # only if no session is given
    status: RunStatus | None = None
    sender: str = ""
    person: str = ""
    model: str = ""
    since_ms: int = 0
    until_ms: int = LAST_MS


def _select_ids(column: sa.Column[Any]) -> sa.Select[Any, Any]:
    behind = sa.or_(_r.c.started_ms < _b("at"), _r.c.id < _b("id"))
    return (
        sa.select(_r.c.id, _r.c.started_ms)
        .where(
            column == _b("of"),
            _r.c.started_ms >= _b("since"),
            _r.c.started_ms <= _b("until"),
            _r.c.started_ms <= _b("at"),
            behind,
        )
        .order_by(_r.c.started_ms.desc(), _r.c.id.desc())
    )


def _select_page(scope: VisibilityScope, column: sa.Column[Any]) -> sa.Select[Any]:
    walked = _select_ids(column).limit(_b("width")).subquery("walked")
    empty = t.sql_literal("''")
    for_person = sa.or_(
        _person == empty,
        is_address_or_below("whom", _r.c.sender),
        sa.exists().where(_m.c.run == _r.c.id, _m.c.person == _person),
    )
    asked = sa.or_(
        _model == empty,
        sa.exists().where(
            _m.c.run == _r.c.id,
            sa.or_(_m.c.model == _model, _m.c.provider + t.sql_literal("'/'") + _m.c.model == _model),
        ),
    )
    return (
        sa.select(_r)
        .join_from(walked, _r, walked.c.id == _r.c.id)
        .where(
            sa.or_(_status == empty, _r.c.status == _status),
            sa.or_(_sender == empty, is_address_or_below("sender", _r.c.sender)),
            for_person,
            asked,
            row_visibility.in_visible_session(scope, _r.c.session),
        )
        .order_by(walked.c.started_ms.desc(), walked.c.id.desc())
        .limit(_b("limit"))
    )


_of_agent = row_visibility.PerScope(lambda scope: _select_page(scope, _r.c.agent))
_of_session = row_visibility.PerScope(lambda scope: _select_page(scope, _r.c.session))
_agent_floor = _select_ids(_r.c.agent).limit(1).offset(_b("width"))
_session_floor = _select_ids(_r.c.session).limit(1).offset(_b("width"))
_all_agents = sa.select(t.agents.c.name)
_counts = (
    sa.select(t.steps.c.kind, sa.func.count())
    .where(
        t.steps.c.run == _b("run"),
        sa.or_(t.steps.c.kind == t.sql_literal(f"'{StepKind.TOOL}'"), t.steps.c.call_index == 0),
    )
    .group_by(t.steps.c.kind)
)


def list_page(
    conn: sa.Connection, query: RunQuery, *, after: KeysetPosition, limit: int, seen_by: Principal = SERVER_PRINCIPAL
) -> tuple[list[Run], KeysetPosition | None]:
    """List the matching runs, newest first. Also returns where the next page begins, if there may be one."""
    sources = [query.session] if query.session else query.agents or conn.execute(_all_agents).scalars().all()

    def window(place: KeysetPosition, width: int, most: int) -> tuple[list[Run], KeysetPosition | None]:
        return _read_window(conn, query, sources, place, width=width, limit=most, seen_by=seen_by)

    return paginate(window, after=after, limit=limit, scanned_max=RUNS_SCANNED_MAX // max(1, len(sources)))


def _read_window(
    conn: sa.Connection,
    query: RunQuery,
    sources: Sequence[str],
    after: KeysetPosition,
    *,
    width: int,
    limit: int,
    seen_by: Principal,
) -> tuple[list[Run], KeysetPosition | None]:
    """Read one window of each source and merge them."""
    pages, floor = (_of_session, _session_floor) if query.session else (_of_agent, _agent_floor)
    where = {"since": query.since_ms, "until": query.until_ms, "at": after.ms, "id": after.id}
    fits = {
        "status": query.status.value if query.status else "",
        "person": query.person,
        "model": query.model,
        "limit": limit + 1,
        **address_parameters("sender", query.sender),
        **address_parameters("whom", f"person:{query.person}"),
        **principal_parameters(seen_by),
    }
    rows: list[Any] = []
    floors: list[KeysetPosition] = []
    for source in sources:
        found = conn.execute(pages[visibility_scope(seen_by)], {"of": source, "width": width, **where, **fits}).all()
        rows += found
        last = conn.execute(floor, {"of": source, "width": width - 1, **where}).first() if len(found) <= limit else None
        if last is not None:
            floors.append(KeysetPosition(last.started_ms, last.id))
    rows.sort(key=lambda row: (row.started_ms, row.id), reverse=True)
    # The order is unknown beyond the end of any of the windows.
    stop = max(floors, key=lambda place: (place.ms, place.id), default=None)
    if stop is not None:
        rows = [row for row in rows if (row.started_ms, row.id) >= (stop.ms, stop.id)]
    if len(rows) > limit:
        stop = KeysetPosition(rows[limit - 1].started_ms, rows[limit - 1].id)
    return [run_from_row(row) for row in rows[:limit]], stop


def count_turns_and_calls(conn: sa.Connection, run: str) -> tuple[int, int]:
    """Count the turns that a run has started and its tool calls, as long as its steps are stored."""
    found = {str(row[0]): int(row[1]) for row in conn.execute(_counts, {"run": run})}
    return found.get(StepKind.MODEL, 0), found.get(StepKind.TOOL, 0)
