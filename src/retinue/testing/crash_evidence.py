"""The evidence of the crash test: the clients' log, the effects outside the server, and the store.

The store is read with separate SQL, because code under test must not read the evidence about
itself. Only the ledger check is the server's own, as one more witness.
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
from retinue.testing.crash_log import LogEntry, read_log


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """An envelope and its outcome, as stored."""

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
class Run:
    """A run, as stored."""

    id: str
    status: str
    final_text: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedOut:
    """Work that was delegated to the external agent."""

    id: str
    session: str
    state: str
    result: str | None
    run: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A tool call that was interrupted, so that its end is unknown."""

    run: str
    word: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """An approval, as stored, and the outcome of its decision."""

    id: str
    state: str
    run: str
    word: str
    decision: str | None  # outcome of the envelope that carried the decision


@dataclass(frozen=True, slots=True)
class Asking:
    """A started call of the tool that needs approval."""

    session: str
    word: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A line that a call or a delivery wrote outside the server, with its text.

    For a delivery part, `by` is `ENVELOPE/INDEX/COUNT`, and the text is that of the whole envelope.
    """

    by: str
    text: str

    @property
    def letter(self) -> str:
        return self.by.partition("/")[0]

    @property
    def index(self) -> int:
        return int(self.by.split("/")[1]) if "/" in self.by else 0

    @property
    def parts(self) -> int:
        """The number of parts in which the envelope was sent."""
        return int(self.by.rpartition("/")[2]) if "/" in self.by else 1

    @property
    def word(self) -> str:
        return self.text.split(" ", 1)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One occurrence of a schedule. A skipped one includes all others before `until_ms`."""

    schedule: str
    at_ms: int
    until_ms: int | None
    state: str
    because: str
    envelope: str | None
    outcome: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything the verdict is made from."""

    log: Sequence[LogEntry]
    witness: Sequence[Mark]
    rooms: dict[str, Sequence[Mark]]
    letters: Sequence[Letter]
    runs: Sequence[Run]
    cuts: Sequence[Cut]
    approvals: Sequence[Approval]
    told: dict[int, str | None]  # events: seq -> envelope
    asking: Sequence[Asking] = ()
    granted: frozenset[str] = frozenset()  # sessions in which no approval is needed any more
    handed_out: Sequence[HandedOut] = ()
    slots: Sequence[Slot] = ()  # ordered by schedule and time
    ledger: Sequence[str] = ()  # findings of the server's own ledger


def read_evidence(home: Path, outside: Path) -> Evidence:
    """Read all evidence, once the server has stopped."""
    store = sqlite3.connect(f"file:{home / 'house.db'}?mode=ro", uri=True)
    store.row_factory = sqlite3.Row
    try:
        return Evidence(
            log=read_log(outside / "client.log"),
            witness=_marks(outside / "witness"),
            rooms={name: _marks(outside / name) for name in (script.STEADY, script.RISKY)},
            letters=[Letter(**dict(row)) for row in store.execute(_LETTERS)],
            runs=[Run(**dict(row)) for row in store.execute("SELECT id, status, final_text FROM runs")],
            cuts=[Cut(run=row["run"], word=_word(row["call"])) for row in store.execute(_CUTS)],
            approvals=[
                Approval(
                    id=row["id"],
                    state=row["state"],
                    run=row["run"],
                    word=_word(row["calls"]),
                    decision=row["decision"],
                )
                for row in store.execute(_APPROVALS)
            ],
            asking=[Asking(row["session"], _word(row["call"])) for row in store.execute(_ASKING)],
            granted=frozenset(row["session"] for row in store.execute(_GRANTED)),
            handed_out=[HandedOut(**dict(row)) for row in store.execute(_HANDED_OUT)],
            slots=[Slot(**dict(row)) for row in store.execute(_SLOTS)],
            told={row["seq"]: row["envelope"] for row in store.execute("SELECT seq, envelope FROM news")},
            ledger=[*_damage(store), *_ledger(home)],
        )
    finally:
        store.close()


_LETTERS = """
SELECT e.seq, e.id, e.kind, e.text, e.source, e.dedupe_key AS key, e.recipient, e.status, e.reply_to, e.run, e.retry_of,
       (SELECT count(*) FROM outcomes WHERE envelope = e.id) AS outcomes, o.outcome, o.because, o.answer
FROM envelopes e LEFT JOIN outcomes o ON o.envelope = e.id ORDER BY e.seq
"""
_CUTS = "SELECT run, call FROM steps WHERE kind = 'tool' AND state = 'interrupted'"
_APPROVALS = """
SELECT a.id, a.state, a.run, a.calls, o.outcome AS decision FROM approvals a
LEFT JOIN envelopes e ON e.dedupe_key = a.id || '/decision' LEFT JOIN outcomes o ON o.envelope = e.id
"""

_ASKING = """
SELECT r.session, s.call FROM steps s JOIN runs r ON r.id = s.run
WHERE s.kind = 'tool' AND json_extract(s.call, '$.tool') = 'ask_line'
"""
_HANDED_OUT = "SELECT id, session, state, result, run FROM delegations WHERE kind = 'external'"
_SLOTS = """
SELECT c.folded AS schedule, s.slot_ms AS at_ms, s.until_ms, s.state, s.because, s.envelope, o.outcome
FROM schedule_slots s JOIN schedules c ON c.id = s.schedule LEFT JOIN outcomes o ON o.envelope = s.envelope
WHERE s.made_by = 'clock' ORDER BY s.schedule, s.slot_ms
"""
_GRANTED = "SELECT session FROM grants WHERE permission = 'tool:ask_line'"


class _Call(msgspec.Struct):
    arguments: dict[str, Any]


_call = msgspec.json.Decoder(_Call)
_calls = msgspec.json.Decoder(list[_Call])


def _word(calls: str) -> str:
    """Returns the first word that a call, or the first of several calls, was to write."""
    first = _calls.decode(calls)[0] if calls.startswith("[") else _call.decode(calls)
    return str(first.arguments.get("text", "")).split(" ", 1)[0]


def _marks(path: Path) -> list[Mark]:
    lines = path.read_text().splitlines() if path.exists() else []
    return [Mark(*line.split(" ", 1)) for line in lines]


def _damage(store: sqlite3.Connection) -> Iterator[str]:
    said = [row[0] for row in store.execute("PRAGMA integrity_check")]
    return iter(said if said != ["ok"] else [])


def _ledger(home: Path) -> list[str]:
    conn = connect(home / "house.db", writable=False)
    try:
        checked = ledger.check(conn, now_ms=0)
        return [] if checked.holds else checked.lines()
    finally:
        conn.close()
