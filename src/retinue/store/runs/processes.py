"""Store the commands that tools started: by which run, how they ended, and whether the session was notified."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

import sqlalchemy as sa
from msgspec import Struct

from retinue.domain.ids import RunId, SessionId
from retinue.domain.times import from_ms, to_ms
from retinue.domain.trust import Trust
from retinue.store.core import tables as t

_b = sa.bindparam
_c = t.processes.c


class ProcessState(StrEnum):
    WATCHED = "watched"  # the run that started it is waiting for it
    RUNNING = "running"  # it continues in the background
    ENDED = "ended"  # it has ended, but its session has not been notified yet
    REPORTED = "reported"


PROCESS_SOURCE = "process"  # source of envelopes about commands
_END_SUFFIX = "/ended"

OPEN_STATES = (ProcessState.WATCHED, ProcessState.RUNNING)


class CommandProcess(Struct, frozen=True, kw_only=True):
    """A stored command. `boot` distinguishes its process from a later one with the same process id."""

    id: str
    session: SessionId
    run: RunId
    agent: str
    command: str
    folder: str
    pid: int
    boot: str
    trust: Trust
    started_at: datetime
    state: ProcessState = ProcessState.WATCHED
    exit_code: int | None = None
    because: str = ""
    ended_at: datetime | None = None

    @property
    def is_running(self) -> bool:
        return self.state in OPEN_STATES


_insert = t.processes.insert()
_has_id = _c.id == _b("the_id")
_is_open = sa.or_(*(_c.state == state.value for state in OPEN_STATES))
_is_ended = sa.and_(*(_c.state != state.value for state in OPEN_STATES))
_move_to_background = (
    t.processes.update().where(_has_id, _c.state == ProcessState.WATCHED.value).values(state=ProcessState.RUNNING.value)
)
_open_state = sa.select(_c.state).where(_has_id, _is_open)
_end = (
    t.processes.update()
    .where(_has_id, _is_open)
    .values(state=_b("new_state"), exit_code=_b("code"), because=_b("why"), ended_ms=_b("now"))
)
_mark_untrusted = t.processes.update().where(_has_id).values(trust=Trust.UNTRUSTED.value)
_mark_reported = (
    t.processes.update().where(_has_id, _c.state == ProcessState.ENDED.value).values(state=ProcessState.REPORTED.value)
)
_remove = t.processes.delete().where(_has_id, _is_ended)
_get = sa.select(t.processes).where(_has_id)
_by_session = (
    sa.select(t.processes)
    .where(_c.session == _b("the_session"), _c.state != ProcessState.WATCHED.value)
    .order_by(_c.started_ms, _c.id)
    .limit(_b("most"))
)
_unfinished = (
    sa.select(t.processes)
    .where(_c.state != ProcessState.REPORTED.value)
    .order_by(_c.started_ms, _c.id)
    .limit(_b("most"))
)
_stale = (
    sa.select(_c.id)
    .where(_c.state == ProcessState.REPORTED.value, _c.ended_ms <= _b("before"))
    .order_by(_c.ended_ms)
    .limit(_b("most"))
)
_reported = sa.select(_c.id).where(_c.state == ProcessState.REPORTED.value).limit(_b("most"))


def _process_from_row(row: sa.Row[Any]) -> CommandProcess:
    return CommandProcess(
        id=row.id,
        session=SessionId(row.session),
        run=RunId(row.run),
        agent=row.agent,
        command=row.command,
        folder=row.directory,
        pid=row.pid,
        boot=row.process_identity,
        trust=Trust(row.trust),
        started_at=from_ms(row.started_ms),
        state=ProcessState(row.state),
        exit_code=row.exit_code,
        because=row.because,
        ended_at=from_ms(row.ended_ms) if row.ended_ms is not None else None,
    )


def end_key(id_: str) -> str:
    """Return the idempotency key of the envelope that reports the end of a command."""
    return f"{id_}{_END_SUFFIX}"


def reported_process_id(source: str, key: str) -> str:
    """Return the id of the command whose end this envelope reports, or an empty string for any other envelope."""
    return key.removesuffix(_END_SUFFIX) if source == PROCESS_SOURCE and key.endswith(_END_SUFFIX) else ""


def add(conn: sa.Connection, process: CommandProcess) -> None:
    conn.execute(
        _insert,
        {
            "id": process.id,
            "session": process.session,
            "run": process.run,
            "agent": process.agent,
            "command": process.command,
            "directory": process.folder,
            "pid": process.pid,
            "process_identity": process.boot,
            "state": process.state.value,
            "exit_code": process.exit_code,
            "because": process.because,
            "trust": process.trust.value,
            "started_ms": to_ms(process.started_at),
            "ended_ms": to_ms(process.ended_at) if process.ended_at else None,
        },
    )


def get(conn: sa.Connection, id_: str) -> CommandProcess | None:
    row = conn.execute(_get, {"the_id": id_}).one_or_none()
    return _process_from_row(row) if row else None


def move_to_background(conn: sa.Connection, id_: str) -> bool:
    """Let a command continue in the background. When it ends, its session is notified.

    Returns False if no run was waiting for the command any more.
    """
    return conn.execute(_move_to_background, {"the_id": id_}).rowcount == 1


def end(
    conn: sa.Connection, id_: str, *, exit_code: int | None, because: str, at_ms: int, is_reported: bool = False
) -> ProcessState | None:
    """Store the end of a command. Returns the command's new state, or None if it had already ended.

    If a run is waiting for the command, the session need not be notified. The same applies with
    `is_reported`: a tool call killed the command, or its run was stopped, or its session ended.
    """
    state = conn.execute(_open_state, {"the_id": id_}).scalar()
    if state is None:
        return None
    owed = state == ProcessState.RUNNING and not is_reported
    new = ProcessState.ENDED if owed else ProcessState.REPORTED
    conn.execute(_end, {"the_id": id_, "new_state": new.value, "code": exit_code, "why": because, "now": at_ms})
    return new


def mark_untrusted(conn: sa.Connection, id_: str) -> None:
    """Mark the output of a command as untrusted, because untrusted input was sent to the command."""
    conn.execute(_mark_untrusted, {"the_id": id_})


def mark_reported(conn: sa.Connection, id_: str) -> bool:
    return conn.execute(_mark_reported, {"the_id": id_}).rowcount == 1


def remove(conn: sa.Connection, id_: str) -> bool:
    """Delete a command that has ended. Returns False if the command is running or does not exist."""
    return conn.execute(_remove, {"the_id": id_}).rowcount == 1


def list_of_session(conn: sa.Connection, session: str, *, limit: int) -> list[CommandProcess]:
    """List the background commands of a session, running or ended."""
    return [_process_from_row(row) for row in conn.execute(_by_session, {"the_session": session, "most": limit})]


def list_unfinished(conn: sa.Connection, *, limit: int) -> list[CommandProcess]:
    """List commands that are stored as running, or that have ended without their session being notified."""
    return [_process_from_row(row) for row in conn.execute(_unfinished, {"most": limit})]


def list_stale(conn: sa.Connection, *, before_ms: int, limit: int) -> list[str]:
    """List the ids of commands that ended before `before_ms` and whose session needs no further notification."""
    return [row.id for row in conn.execute(_stale, {"before": before_ms, "most": limit})]


def list_reported(conn: sa.Connection, *, limit: int) -> list[str]:
    return [row.id for row in conn.execute(_reported, {"most": limit})]
