"""Store runs and their steps, and list runs for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from msgspec import Struct

from retinue.domain import address
from retinue.domain.delegation import Lineage
from retinue.domain.ids import EnvelopeId, RunId, SessionId
from retinue.domain.principal import SERVER_PRINCIPAL, Principal
from retinue.domain.run import Run, RunStatus, Step, StepKind, StepState
from retinue.domain.session import LaneKind
from retinue.domain.times import LAST_MS, from_ms, to_ms
from retinue.domain.tool import Call
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

RUNS_SCANNED_MAX = 20_000  # runs read for one page

_b = sa.bindparam
_encode = msgspec.json.Encoder().encode
_ids_decoder = msgspec.json.Decoder(tuple[str, ...])
_call_decoder = msgspec.json.Decoder(Call)
_lineage_decoder = msgspec.json.Decoder(Lineage)

_insert = t.runs.insert()
_get = sa.select(t.runs).where(t.runs.c.id == _b("id"))
_open_by_session = sa.select(t.runs).where(t.runs.c.session == _b("session"), t.runs.c.status.in_(t.OPEN_RUN_STATUSES))
_latest_for_people = (
    sa.select(t.runs)
    .where(
        t.runs.c.session == _b("session"),
        sa.or_(t.runs.c.sender.startswith("person:"), t.runs.c.sender.startswith("channel:")),
    )
    .order_by(t.runs.c.started_ms.desc())
    .limit(1)
)
_resume = (
    t.runs.update()
    .where(t.runs.c.id == _b("the_id"))
    .values(status="running", epoch=_b("new_epoch"), attempt=_b("new_attempt"), resume_ms=None)
)
_suspend = t.runs.update().where(t.runs.c.id == _b("the_id")).values(status="suspended", resume_ms=_b("wake"))
_set_envelopes = t.runs.update().where(t.runs.c.id == _b("the_id")).values(envelopes=_b("ids"))
_end = (
    t.runs.update()
    .where(t.runs.c.id == _b("the_id"))
    .values(
        status=_b("new_status"),
        ended_ms=_b("now"),
        resume_ms=None,
        final_text=_b("words"),
        error=_b("why"),
        context_length=_b("length"),
    )
)
_due_suspended = (
    sa.select(t.runs.c.session, t.runs.c.agent, t.runs.c.lane)
    .where(t.runs.c.status == t.sql_literal("'suspended'"), t.runs.c.resume_ms <= _b("now"))
    .limit(_b("limit"))
)
_next_wake = sa.select(sa.func.min(t.runs.c.resume_ms)).where(
    t.runs.c.status == t.sql_literal("'suspended'"), t.runs.c.resume_ms > _b("now")
)
_step_insert = t.steps.insert()
_step_close = (
    t.steps.update()
    .where(
        t.steps.c.run == _b("the_run"),
        t.steps.c.turn == _b("the_turn"),
        t.steps.c.call_index == _b("the_idx"),
        t.steps.c.state == t.sql_literal("'open'"),
    )
    .values(state=_b("new_state"), record_seq=_b("seq"), closed_ms=_b("now"))
)
_set_step_attempt = (
    t.steps.update()
    .where(
        t.steps.c.run == _b("the_run"),
        t.steps.c.turn == _b("the_turn"),
        t.steps.c.call_index == _b("the_idx"),
        t.steps.c.state == t.sql_literal("'open'"),
    )
    .values(attempt=_b("new_attempt"))
)
_interrupt_step = _step_close.values(state="interrupted", record_seq=None)
_interrupt_open_steps = (
    t.steps.update()
    .where(t.steps.c.run == _b("the_run"), t.steps.c.state == t.sql_literal("'open'"))
    .values(state="interrupted", closed_ms=_b("now"))
)
_steps = sa.select(t.steps).where(t.steps.c.run == _b("run")).order_by(t.steps.c.turn, t.steps.c.call_index)

_is_open = t.runs.c.status.in_(t.OPEN_RUN_STATUSES)
_open_sessions = sa.select(t.runs.c.session).where(_is_open)
_ended_ids = sa.select(t.runs.c.id).where(sa.not_(_is_open))
_clear_steps = t.steps.delete().where(t.steps.c.run.in_(_ended_ids))
_clear_approvals = t.approvals.delete().where(t.approvals.c.run.in_(_ended_ids))
_clear = t.runs.delete().where(sa.not_(_is_open))


def run_from_row(row: sa.Row[Any]) -> Run:
    return Run(
        id=RunId(row.id),
        session=SessionId(row.session),
        agent=row.agent,
        lane=LaneKind(row.lane),
        epoch=row.epoch,
        status=RunStatus(row.status),
        sender=address.parse_address(row.sender),
        envelopes=tuple(EnvelopeId(id_) for id_ in _ids_decoder.decode(row.envelopes)),
        first_seq=row.first_seq,
        attempt=row.attempt,
        started_at=from_ms(row.started_ms),
        wake_at=from_ms(row.resume_ms) if row.resume_ms is not None else None,
        ended_at=from_ms(row.ended_ms) if row.ended_ms is not None else None,
        final_text=row.final_text,
        error=row.error,
        lineage=_lineage_decoder.decode(row.lineage) if row.lineage else None,
    )


def add(conn: sa.Connection, run: Run) -> None:
    conn.execute(
        _insert,
        {
            "id": run.id,
            "session": run.session,
            "agent": run.agent,
            "lane": run.lane.value,
            "epoch": run.epoch,
            "status": run.status.value,
            "sender": str(run.sender),
            "envelopes": _encode(run.envelopes).decode(),
            "first_seq": run.first_seq,
            "attempt": run.attempt,
            "started_ms": to_ms(run.started_at),
            "resume_ms": None,
            "ended_ms": None,
            "final_text": None,
            "context_length": None,
            "error": None,
            "lineage": _encode(run.lineage).decode() if run.lineage else None,
        },
    )


def get(conn: sa.Connection, id_: str) -> Run | None:
    row = conn.execute(_get, {"id": id_}).one_or_none()
    return run_from_row(row) if row else None


def list_open_sessions(conn: sa.Connection) -> list[SessionId]:
    """List the sessions with a running or suspended run."""
    return [SessionId(row.session) for row in conn.execute(_open_sessions)]


def delete_ended(conn: sa.Connection) -> int:
    """Delete all runs that have ended, with their steps and approvals. Returns how many runs were deleted."""
    conn.execute(_clear_steps)
    conn.execute(_clear_approvals)
    return conn.execute(_clear).rowcount


def get_open(conn: sa.Connection, session: str) -> Run | None:
    """Return the running or suspended run of a session, or None."""
    row = conn.execute(_open_by_session, {"session": session}).one_or_none()
    return run_from_row(row) if row else None


def get_latest_for_people(conn: sa.Connection, session: str) -> Run | None:
    """Return the newest run of a session that was started by a message from a person or a channel."""
    row = conn.execute(_latest_for_people, {"session": session}).one_or_none()
    return run_from_row(row) if row else None


def resume(conn: sa.Connection, id_: str, *, epoch: int, attempt: int) -> None:
    conn.execute(_resume, {"the_id": id_, "new_epoch": epoch, "new_attempt": attempt})


def suspend(conn: sa.Connection, id_: str, *, wake_ms: int) -> None:
    conn.execute(_suspend, {"the_id": id_, "wake": wake_ms})


def set_envelopes(conn: sa.Connection, id_: str, ids: Sequence[str]) -> None:
    conn.execute(_set_envelopes, {"the_id": id_, "ids": _encode(ids).decode()})


def end(
    conn: sa.Connection,
    id_: str,
    status: RunStatus,
    *,
    at_ms: int,
    final_text: str | None = None,
    error: str | None = None,
    context_length: int | None = None,
) -> None:
    conn.execute(
        _end,
        {
            "the_id": id_,
            "new_status": status.value,
            "now": at_ms,
            "words": final_text,
            "why": error,
            "length": context_length,
        },
    )


def list_due_suspended(conn: sa.Connection, now_ms: int, *, limit: int) -> list[tuple[SessionId, str, LaneKind]]:
    """List the suspended runs whose wake time has come, as (session, agent, lane kind)."""
    rows = conn.execute(_due_suspended, {"now": now_ms, "limit": limit})
    return [(SessionId(r.session), r.agent, LaneKind(r.lane)) for r in rows]


def next_wake_ms(conn: sa.Connection, *, after_ms: int) -> int | None:
    """Return the next wake time after `after_ms`, or None. For runs that are already due, see `list_due_suspended`."""
    return conn.execute(_next_wake, {"now": after_ms}).scalar()


def open_step(conn: sa.Connection, step: Step, *, at_ms: int) -> None:
    """Store a step before it is performed, so that it is known after a crash."""
    _add_step(conn, step, record_seq=None, opened_ms=at_ms, closed_ms=None)


def add_ended_step(conn: sa.Connection, step: Step, *, record_seq: int, begun_ms: int, at_ms: int) -> None:
    """Insert a step that has already ended. Only read-only calls may run before their step is stored."""
    _add_step(conn, step, record_seq=record_seq, opened_ms=min(begun_ms, at_ms), closed_ms=at_ms)


def _add_step(
    conn: sa.Connection, step: Step, *, record_seq: int | None, opened_ms: int, closed_ms: int | None
) -> None:
    conn.execute(
        _step_insert,
        {
            "run": step.run,
            "turn": step.turn,
            "call_index": step.index,
            "hash": step.hash,
            "kind": step.kind.value,
            "state": step.state.value,
            "attempt": step.attempt,
            "call": _encode(step.call).decode() if step.call else None,
            "record_seq": record_seq,
            "opened_ms": opened_ms,
            "closed_ms": closed_ms,
        },
    )


def close_step(conn: sa.Connection, step: Step, *, record_seq: int | None, at_ms: int) -> None:
    conn.execute(
        _step_close,
        {
            "the_run": step.run,
            "the_turn": step.turn,
            "the_idx": step.index,
            "new_state": step.state.value,
            "seq": record_seq,
            "now": at_ms,
        },
    )


def set_step_attempt(conn: sa.Connection, step: Step) -> None:
    """Store the new attempt number of an open step."""
    conn.execute(
        _set_step_attempt,
        {"the_run": step.run, "the_turn": step.turn, "the_idx": step.index, "new_attempt": step.attempt},
    )


def interrupt_step(conn: sa.Connection, step: Step, *, at_ms: int) -> None:
    """Mark an open step as interrupted. It was started, and its result is unknown."""
    conn.execute(_interrupt_step, {"the_run": step.run, "the_turn": step.turn, "the_idx": step.index, "now": at_ms})


def interrupt_open_steps(conn: sa.Connection, run: str, *, at_ms: int) -> None:
    conn.execute(_interrupt_open_steps, {"the_run": run, "now": at_ms})


def list_steps(conn: sa.Connection, run: str) -> list[Step]:
    return [step_from_row(row) for row in conn.execute(_steps, {"run": run})]


def step_from_row(row: sa.Row[Any]) -> Step:
    return Step(
        run=RunId(row.run),
        turn=row.turn,
        index=row.call_index,
        kind=StepKind(row.kind),
        hash=row.hash,
        attempt=row.attempt,
        state=StepState(row.state),
        call=_call_decoder.decode(row.call) if row.call else None,
    )


# --- pages of runs: merged scans along the index of a session, or of each agent ---

_r, _m = t.runs, t.model_calls
_status = _b("status", type_=sa.String)
_sender = _b("sender", type_=sa.String)
_person = _b("person", type_=sa.String)
_model = _b("model", type_=sa.String)


class RunQuery(Struct, frozen=True, kw_only=True):
    """The filters for a list of runs. An empty field matches everything.

    `model` is the name of a model as its provider calls it, or `provider/name`.
    """

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
    """Return a page of the matching runs, newest first, and the position of the next page or None."""
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
    """Read one window of rows from each source, and merge the rows. A source is a session or an agent."""
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
    """Return the number of turns that a run has started, and of its tool calls. After a purge, both are 0."""
    found = {str(row[0]): int(row[1]) for row in conn.execute(_counts, {"run": run})}
    return found.get(StepKind.MODEL, 0), found.get(StepKind.TOOL, 0)
