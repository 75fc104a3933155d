"""The evidence of the crash test: the clients' log, the effects outside the server, and the store.

The store is read with separate SQL, because the code under test must not read the evidence about
itself. Only the ledger check uses code of the server, as additional evidence.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from retinue.store.core.sqlite import connect
from retinue.store.ledger import ledger
from retinue.testing import crash_script as script
from retinue.testing.crash_log import AnyLogEntry, read_log


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEnvelope:
    """An envelope and its outcome, as the crash test reads them from the store."""

    seq: int
    id: str
    kind: str
    text: str
    source: str
    key: str
    recipient: str
    status: str
    reply_to: str | None
    run: str | None
    retry_of: str | None
    outcomes: int
    outcome: str | None
    because: str | None
    answer: str | None

    @property
    def token(self) -> str:
        return self.text.split(" ", 1)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """A run, as the crash test reads it from the store."""

    id: str
    status: str
    final_text: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRequest:
    """A delegation to the external agent, as the crash test reads it from the store."""

    id: str
    session: str
    state: str
    result: str | None
    run: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InterruptedCall:
    """A tool call that was interrupted, so its result is unknown."""

    run: str
    word: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredApproval:
    """An approval and the outcome of the envelope with its decision, as the crash test reads them from the store."""

    id: str
    state: str
    run: str
    word: str
    decision: str | None  # outcome of the envelope that carried the decision


@dataclass(frozen=True, slots=True)
class ApprovalCall:
    """A started call of the tool that needs an approval."""

    session: str
    word: str


@dataclass(frozen=True, slots=True)
class OutsideMark:
    """A line that a tool call or a delivery wrote outside the server, with its text.

    For a delivery part, `by` is `ENVELOPE/INDEX/COUNT`, and the text is that of the whole envelope.
    """

    by: str
    text: str

    @property
    def envelope(self) -> str:
        return self.by.partition("/")[0]

    @property
    def index(self) -> int:
        return int(self.by.split("/")[1]) if "/" in self.by else 0

    @property
    def parts(self) -> int:
        """The number of parts in which the envelope of this line was sent."""
        return int(self.by.rpartition("/")[2]) if "/" in self.by else 1

    @property
    def word(self) -> str:
        return self.text.split(" ", 1)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredOccurrence:
    """One occurrence of a schedule, as the crash test reads it from the store.

    A skipped occurrence also represents all later occurrences before `until_ms`.
    """

    schedule: str
    at_ms: int
    until_ms: int | None
    state: str
    because: str
    envelope: str | None
    outcome: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashEvidence:
    """Everything from which the verdict of a crash test is computed."""

    log: Sequence[AnyLogEntry]
    tool_marks: Sequence[OutsideMark]
    channel_marks: dict[str, Sequence[OutsideMark]]
    envelopes: Sequence[StoredEnvelope]
    runs: Sequence[StoredRun]
    interrupted_calls: Sequence[InterruptedCall]
    approvals: Sequence[StoredApproval]
    envelopes_by_event: dict[int, str | None]  # events: seq -> envelope
    approval_calls: Sequence[ApprovalCall] = ()
    granted_sessions: frozenset[str] = frozenset()  # sessions in which no approval is needed any more
    requests: Sequence[StoredRequest] = ()
    occurrences: Sequence[StoredOccurrence] = ()  # ordered by schedule and time
    ledger_findings: Sequence[str] = ()  # findings of the server's own ledger


def read_evidence(data_dir: Path, outside: Path) -> CrashEvidence:
    """Read all evidence of a crash test. Call this after the server has stopped."""
    store = sqlite3.connect(f"file:{data_dir / 'retinue.db'}?mode=ro", uri=True)
    store.row_factory = sqlite3.Row
    try:
        return CrashEvidence(
            log=read_log(outside / "client.log"),
            tool_marks=_read_marks(outside / "witness"),
            channel_marks={
                name: _read_marks(outside / name) for name in (script.SAFE_CONNECTOR, script.UNSAFE_CONNECTOR)
            },
            envelopes=[StoredEnvelope(**dict(row)) for row in store.execute(_ENVELOPES)],
            runs=[StoredRun(**dict(row)) for row in store.execute("SELECT id, status, final_text FROM runs")],
            interrupted_calls=[
                InterruptedCall(run=row["run"], word=_first_word(row["call"]))
                for row in store.execute(_INTERRUPTED_CALLS)
            ],
            approvals=[
                StoredApproval(
                    id=row["id"],
                    state=row["state"],
                    run=row["run"],
                    word=_first_word(row["calls"]),
                    decision=row["decision"],
                )
                for row in store.execute(_APPROVALS)
            ],
            approval_calls=[
                ApprovalCall(row["session"], _first_word(row["call"])) for row in store.execute(_APPROVAL_CALLS)
            ],
            granted_sessions=frozenset(row["session"] for row in store.execute(_GRANTED_SESSIONS)),
            requests=[StoredRequest(**dict(row)) for row in store.execute(_REQUESTS)],
            occurrences=[StoredOccurrence(**dict(row)) for row in store.execute(_OCCURRENCES)],
            envelopes_by_event={
                row["seq"]: row["envelope"] for row in store.execute("SELECT seq, envelope FROM events")
            },
            ledger_findings=[*_iter_damage(store), *_check_ledger(data_dir)],
        )
    finally:
        store.close()


_ENVELOPES = """
SELECT e.seq, e.id, e.kind, e.text, e.source, e.dedupe_key AS key, e.recipient, e.status, e.reply_to, e.run, e.retry_of,
       (SELECT count(*) FROM outcomes WHERE envelope = e.id) AS outcomes, o.outcome, o.because, o.answer
FROM envelopes e LEFT JOIN outcomes o ON o.envelope = e.id ORDER BY e.seq
"""
_INTERRUPTED_CALLS = "SELECT run, call FROM steps WHERE kind = 'tool' AND state = 'interrupted'"
_APPROVALS = """
SELECT a.id, a.state, a.run, a.calls, o.outcome AS decision FROM approvals a
LEFT JOIN envelopes e ON e.dedupe_key = a.id || '/decision' LEFT JOIN outcomes o ON o.envelope = e.id
"""

_APPROVAL_CALLS = """
SELECT r.session, s.call FROM steps s JOIN runs r ON r.id = s.run
WHERE s.kind = 'tool' AND json_extract(s.call, '$.tool') = 'ask_line'
"""
_REQUESTS = "SELECT id, session, state, result, run FROM delegations WHERE kind = 'external'"
_OCCURRENCES = """
SELECT c.name_folded AS schedule, s.occurs_ms AS at_ms, s.until_ms, s.state, s.because, s.envelope, o.outcome
FROM occurrences s JOIN schedules c ON c.id = s.schedule LEFT JOIN outcomes o ON o.envelope = s.envelope
WHERE s.made_by = 'clock' ORDER BY s.schedule, s.occurs_ms
"""
_GRANTED_SESSIONS = "SELECT session FROM grants WHERE permission = 'tool:ask_line'"


class _Call(msgspec.Struct):
    arguments: dict[str, Any]


_call = msgspec.json.Decoder(_Call)
_calls = msgspec.json.Decoder(list[_Call])


def _first_word(calls: str) -> str:
    """Return the first word of the text that a tool call was to write. If there are several calls, use the first."""
    first = _calls.decode(calls)[0] if calls.startswith("[") else _call.decode(calls)
    return str(first.arguments.get("text", "")).split(" ", 1)[0]


def _read_marks(path: Path) -> list[OutsideMark]:
    lines = path.read_text().splitlines() if path.exists() else []
    return [OutsideMark(*line.split(" ", 1)) for line in lines]


def _iter_damage(store: sqlite3.Connection) -> Iterator[str]:
    reports = [row[0] for row in store.execute("PRAGMA integrity_check")]
    return iter(reports if reports != ["ok"] else [])


def _check_ledger(data_dir: Path) -> list[str]:
    conn = connect(data_dir / "retinue.db", writable=False)
    try:
        checked = ledger.check_ledger(conn, now_ms=0)
        return [] if checked.is_ok else checked.lines()
    finally:
        conn.close()
