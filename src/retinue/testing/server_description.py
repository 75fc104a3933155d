"""Describes a server for the report of a failed test: its last log lines, and the output of `why`.

Everything is read from the log file and the database, so that a server that hangs or was killed can
be described, too.
"""

from __future__ import annotations

import re
import threading
import traceback
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar
from zoneinfo import ZoneInfo

import sqlalchemy as sa

from retinue.app.logs import redact
from retinue.domain.envelope import Outcome
from retinue.domain.errors import AmbiguousId, NotFound
from retinue.domain.times import MS_MAX
from retinue.store.core import sqlite
from retinue.store.core import tables as t
from retinue.store.core.lookup import IdKind, find_by_short_id
from retinue.store.runs.explanations import explain
from retinue.testing.failure_context import (
    LINE_CHARS_MAX,
    SERVER_LOG_TITLE,
    WHY_TITLE,
    FailureDescription,
    clip_line,
    last_lines,
)

T = TypeVar("T")

LOG_BYTES_MAX = 64 * 1024
WHY_LINES_MAX = 16  # facts shown of one envelope or run
WHY_CHARS_MAX = 8_000
NAMED_MAX = 2
UNSETTLED_MAX = 3
FAILED_MAX = 2
RUNS_MAX = 1
CANDIDATES_MAX = 40
READ_S_MAX = 5.0

_UTC = ZoneInfo("UTC")
_ID = re.compile(r"\b[0-9a-f]{8,32}\b")
_FULL_ID = re.compile(r"[0-9a-f]{32}")
_FAILED = (Outcome.DEAD, Outcome.INTERRUPTED, Outcome.REFUSED, Outcome.EXPIRED)

_unsettled = (
    sa.select(t.envelopes.c.id)
    .where(t.envelopes.c.status != t.DONE, t.envelopes.c.due_ms < MS_MAX)  # later: the next occurrence of a schedule
    .order_by(t.envelopes.c.seq.desc())
    .limit(UNSETTLED_MAX)
)
_failed = (
    sa.select(t.outcomes.c.envelope)
    .where(t.outcomes.c.outcome.in_([t.sql_literal(f"'{outcome}'") for outcome in _FAILED]))
    .order_by(t.outcomes.c.at_ms.desc())
    .limit(FAILED_MAX)
)
_last_runs = sa.select(t.runs.c.id).order_by(t.runs.c.started_ms.desc(), t.runs.c.id).limit(RUNS_MAX)
_last_envelope = sa.select(t.envelopes.c.id).order_by(t.envelopes.c.seq.desc()).limit(1)
_run_of = sa.select(t.envelopes.c.run).where(t.envelopes.c.id == sa.bindparam("id"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSource:
    """Where a server stores its data and its log.

    If there is no log file, the server runs in this process, and uses the logging of this process.
    """

    database: Path | str | sa.Connection
    log: Path | None = None

    def __call__(self, error: BaseException | None) -> FailureDescription:
        texts = {WHY_TITLE: run_within(READ_S_MAX, lambda: describe_why(self.database, error))}
        if self.log is not None:
            texts = {SERVER_LOG_TITLE: read_log_end(self.log)} | texts
        return FailureDescription(texts=texts)


# --- log ---


def read_log_end(path: Path) -> str:
    """Return the last lines of a log file, redacted."""
    if not path.exists():
        return f"{path} does not exist."
    with path.open("rb") as file:
        size_bytes = file.seek(0, 2)
        file.seek(max(0, size_bytes - LOG_BYTES_MAX))
        text = file.read().decode(errors="replace")
    return f"The end of {path}:\n{last_lines(text)}" if text else f"{path} is empty."


# --- why ---


def run_within(seconds: float, work: Callable[[], str]) -> str:
    """Return the result of `work`. If it raises or takes longer than the limit, return a sentence that says so."""
    results: list[str] = []

    def body() -> None:
        try:
            results.append(work())
        except Exception as trouble:  # noqa: BLE001 - the failure of the test is reported, whatever else fails
            results.append(f"The store could not be read: {type(trouble).__name__}: {str(trouble)[:LINE_CHARS_MAX]}")

    reading = threading.Thread(target=body, daemon=True, name="describe a server")
    reading.start()
    reading.join(seconds)
    return results[0] if results else f"The store could not be read within {seconds:g} s."


def describe_why(database: Path | str | sa.Connection, error: BaseException | None) -> str:
    """Return the output of `why` for relevant envelopes and runs.

    These are the ones whose ids are in the error, and those that are open, failed or newest.
    """
    with _connection(database) as conn:
        paragraphs = [paragraph for paragraph in _paragraphs(conn, find_ids(error)) if paragraph]
    where = f"Read from {database}. " if isinstance(database, Path) else ""
    if not paragraphs:
        return f"{where}There are no envelopes or runs in the store."
    text = redact("\n\n".join(paragraphs))
    if len(text) > WHY_CHARS_MAX:
        text = f"{text[:WHY_CHARS_MAX]}…\n(cut off after {WHY_CHARS_MAX} characters)"
    return f"{where}Times are UTC.\n{text}"


@contextmanager
def _connection(database: Path | str | sa.Connection) -> Generator[sa.Connection]:
    if isinstance(database, sa.Connection):
        yield database
    elif isinstance(database, str) and database.startswith("postgres"):
        _, _, place = database.partition(":")
        engine = sa.create_engine(f"postgresql+psycopg:{place}", isolation_level="AUTOCOMMIT")
        try:
            with engine.connect() as conn:
                yield conn
        finally:
            engine.dispose()
    elif not Path(database).exists():
        raise FileNotFoundError(f"{database} does not exist")
    else:
        with closing(sqlite.connect(database, writable=False)) as conn:
            yield conn


def _paragraphs(conn: sa.Connection, named: list[str]) -> Iterator[str]:
    asked: set[str] = set()
    runs_told: set[str] = set()
    for reason, ids in _relevant_ids(conn, named):
        for id_ in ids:
            if id_ in asked or id_ in runs_told:
                continue
            asked.add(id_)
            run = conn.execute(_run_of, {"id": id_}).scalar()
            lines = explain(conn, id_).format_lines(_UTC)
            if run in runs_told:
                lines = [lines[0], f"(run {run[:8]} is described above)"]
            runs_told.add(run or id_)
            yield "\n".join([f"[{reason}] {clip_line(lines[0])}", *_shorten_lines(lines[1:])])


def _relevant_ids(conn: sa.Connection, named: list[str]) -> Iterator[tuple[str, list[str]]]:
    yield "named in the failure", list(islice(_existing_ids(conn, named), NAMED_MAX))
    yield "not settled", list(conn.execute(_unsettled).scalars())
    yield "failed", list(conn.execute(_failed).scalars())
    yield "last run", list(conn.execute(_last_runs).scalars())
    yield "last envelope", list(conn.execute(_last_envelope).scalars())


def _existing_ids(conn: sa.Connection, named: list[str]) -> Iterator[str]:
    """Yield those of the given ids that belong to an envelope or a run."""
    for text in named:
        try:
            noun, id_ = find_by_short_id(conn, text)
        except (NotFound, AmbiguousId):
            continue
        if noun in (IdKind.ENVELOPE, IdKind.RUN):
            yield id_


def _shorten_lines(lines: list[str]) -> list[str]:
    if len(lines) > WHY_LINES_MAX:
        half = WHY_LINES_MAX // 2
        lines = [*lines[:half], f"({len(lines) - 2 * half} lines left out)", *lines[-half:]]
    return [f"  {clip_line(line)}" for line in lines]


def find_ids(error: BaseException | None) -> list[str]:
    """Return possible ids from the message of the error, and from local variables in its traceback, innermost first."""
    if error is None:
        return []
    found = _ID.findall(str(error)[:LOG_BYTES_MAX])
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    for frame in reversed(frames):
        for value in frame.f_locals.values():
            found += _ids_in(value)
    return list(dict.fromkeys(found))[:CANDIDATES_MAX]


def _ids_in(value: object) -> list[str]:
    if isinstance(value, str):
        return [value] if _FULL_ID.fullmatch(value) else []
    if not type(value).__module__.startswith("retinue.domain."):
        return []
    held = (getattr(value, name, None) for name in ("envelope", "id", "run"))
    return [each for each in held if isinstance(each, str) and _FULL_ID.fullmatch(each)]
