"""Functions over runs and their steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from retinue.domain import address
from retinue.domain.delegation import Lineage
from retinue.domain.ids import EnvelopeId, RunId, SessionId
from retinue.domain.run import Run, RunStatus, Step, StepKind, StepState
from retinue.domain.session import LaneKind
from retinue.domain.times import from_ms, to_ms
from retinue.domain.tool import Call
from retinue.store.core import tables as t

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
    """List the sessions with an open run, including suspended runs."""
    return [SessionId(row.session) for row in conn.execute(_open_sessions)]


def delete_ended(conn: sa.Connection) -> int:
    """Delete every run that has ended, with its steps and approvals. Returns how many."""
    conn.execute(_clear_steps)
    conn.execute(_clear_approvals)
    return conn.execute(_clear).rowcount


def get_open(conn: sa.Connection, session: str) -> Run | None:
    """Return the run that holds this lane, running or suspended."""
    row = conn.execute(_open_by_session, {"session": session}).one_or_none()
    return run_from_row(row) if row else None


def get_latest_for_people(conn: sa.Connection, session: str) -> Run | None:
    """Return the newest run of a session that answers a person or a channel."""
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
    """List suspended runs whose wake time has come."""
    rows = conn.execute(_due_suspended, {"now": now_ms, "limit": limit})
    return [(SessionId(r.session), r.agent, LaneKind(r.lane)) for r in rows]


def next_wake_ms(conn: sa.Connection, *, after_ms: int) -> int | None:
    """Return the next wake time after `after_ms`. Runs that are already due are found by `list_due_suspended`."""
    return conn.execute(_next_wake, {"now": after_ms}).scalar()


def open_step(conn: sa.Connection, step: Step, *, at_ms: int) -> None:
    """Store the intent, before the act."""
    _add_step(conn, step, record_seq=None, opened_ms=at_ms, closed_ms=None)


def add_ended_step(conn: sa.Connection, step: Step, *, record_seq: int, begun_ms: int, at_ms: int) -> None:
    """Insert a read-only step that ended before its intent was stored."""
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
    """Store the next attempt of the same step."""
    conn.execute(
        _set_step_attempt,
        {"the_run": step.run, "the_turn": step.turn, "the_idx": step.index, "new_attempt": step.attempt},
    )


def interrupt_step(conn: sa.Connection, step: Step, *, at_ms: int) -> None:
    """Mark a step as started but not continued."""
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
