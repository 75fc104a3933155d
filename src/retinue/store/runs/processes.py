"""Commands that were started: which run, how they ended, and whether their session was notified."""

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
    WATCHED = "watched"  # its run waits for it
    RUNNING = "running"  # continues in the background
    ENDED = "ended"  # and its session was not notified
    TOLD = "told"


SOURCE = "process"  # of envelopes about commands
_END = "/ended"

OPEN = (ProcessState.WATCHED, ProcessState.RUNNING)


class Process(Struct, frozen=True, kw_only=True):
    """A stored command. `boot` distinguishes it from a later process with the same pid."""

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
    def runs(self) -> bool:
        return self.state in OPEN


_insert = t.processes.insert()
_its = _c.id == _b("the_id")
_open = sa.or_(*(_c.state == state.value for state in OPEN))
_over = sa.and_(*(_c.state != state.value for state in OPEN))
_leave = (
    t.processes.update().where(_its, _c.state == ProcessState.WATCHED.value).values(state=ProcessState.RUNNING.value)
)
_state = sa.select(_c.state).where(_its, _open)
_end = (
    t.processes.update()
    .where(_its, _open)
    .values(state=_b("new_state"), exit_code=_b("code"), because=_b("why"), ended_ms=_b("now"))
)
_distrust = t.processes.update().where(_its).values(trust=Trust.UNTRUSTED.value)
_told = t.processes.update().where(_its, _c.state == ProcessState.ENDED.value).values(state=ProcessState.TOLD.value)
_remove = t.processes.delete().where(_its, _over)
_get = sa.select(t.processes).where(_its)
_mine = (
    sa.select(t.processes)
    .where(_c.session == _b("the_session"), _c.state != ProcessState.WATCHED.value)
    .order_by(_c.started_ms, _c.id)
    .limit(_b("most"))
)
_unfinished = (
    sa.select(t.processes).where(_c.state != ProcessState.TOLD.value).order_by(_c.started_ms, _c.id).limit(_b("most"))
)
_stale = (
    sa.select(_c.id)
    .where(_c.state == ProcessState.TOLD.value, _c.ended_ms <= _b("before"))
    .order_by(_c.ended_ms)
    .limit(_b("most"))
)
_finished = sa.select(_c.id).where(_c.state == ProcessState.TOLD.value).limit(_b("most"))


def _process(row: sa.Row[Any]) -> Process:
    return Process(
        id=row.id,
        session=SessionId(row.session),
        run=RunId(row.run),
        agent=row.agent,
        command=row.command,
        folder=row.folder,
        pid=row.pid,
        boot=row.boot,
        trust=Trust(row.trust),
        started_at=from_ms(row.started_ms),
        state=ProcessState(row.state),
        exit_code=row.exit_code,
        because=row.because,
        ended_at=from_ms(row.ended_ms) if row.ended_ms is not None else None,
    )


def end_key(id_: str) -> str:
    """Return the key of the envelope that reports the end of a command."""
    return f"{id_}{_END}"


def told_by(source: str, key: str) -> str:
    """Return the id of the command whose end an envelope reports, or "" for any other envelope."""
    return key.removesuffix(_END) if source == SOURCE and key.endswith(_END) else ""


def add(conn: sa.Connection, process: Process) -> None:
    conn.execute(
        _insert,
        {
            "id": process.id,
            "session": process.session,
            "run": process.run,
            "agent": process.agent,
            "command": process.command,
            "folder": process.folder,
            "pid": process.pid,
            "boot": process.boot,
            "state": process.state.value,
            "exit_code": process.exit_code,
            "because": process.because,
            "trust": process.trust.value,
            "started_ms": to_ms(process.started_at),
            "ended_ms": to_ms(process.ended_at) if process.ended_at else None,
        },
    )


def get(conn: sa.Connection, id_: str) -> Process | None:
    row = conn.execute(_get, {"the_id": id_}).one_or_none()
    return _process(row) if row else None


def leave(conn: sa.Connection, id_: str) -> bool:
    """Let a watched command continue in the background, so that its session is notified of its end.

    Returns whether it was still watched.
    """
    return conn.execute(_leave, {"the_id": id_}).rowcount == 1


def end(
    conn: sa.Connection, id_: str, *, exit_code: int | None, because: str, at_ms: int, told: bool = False
) -> ProcessState | None:
    """Store the end of a command. Returns its new state, or None if it had already ended.

    A watched command needs no notification. With `is_reported`, neither does one in the background,
    because its session ended it.
    """
    state = conn.execute(_state, {"the_id": id_}).scalar()
    if state is None:
        return None
    owed = state == ProcessState.RUNNING and not told
    new = ProcessState.ENDED if owed else ProcessState.TOLD
    conn.execute(_end, {"the_id": id_, "new_state": new.value, "code": exit_code, "why": because, "now": at_ms})
    return new


def distrust(conn: sa.Connection, id_: str) -> None:
    """Mark the output of a command as untrusted from now on, because it received untrusted input."""
    conn.execute(_distrust, {"the_id": id_})


def mark_told(conn: sa.Connection, id_: str) -> bool:
    return conn.execute(_told, {"the_id": id_}).rowcount == 1


def remove(conn: sa.Connection, id_: str) -> bool:
    """Delete a command. Returns whether there was one. A running command is not deleted."""
    return conn.execute(_remove, {"the_id": id_}).rowcount == 1


def of_session(conn: sa.Connection, session: str, *, limit: int) -> list[Process]:
    """List the background commands of a session, running or ended."""
    return [_process(row) for row in conn.execute(_mine, {"the_session": session, "most": limit})]


def unfinished(conn: sa.Connection, *, limit: int) -> list[Process]:
    """List commands that are stored as running, or whose session was not notified."""
    return [_process(row) for row in conn.execute(_unfinished, {"most": limit})]


def stale(conn: sa.Connection, *, before_ms: int, limit: int) -> list[str]:
    """List the ids of commands that ended before then and need no notification."""
    return [row.id for row in conn.execute(_stale, {"before": before_ms, "most": limit})]


def finished(conn: sa.Connection, *, limit: int) -> list[str]:
    return [row.id for row in conn.execute(_finished, {"most": limit})]
