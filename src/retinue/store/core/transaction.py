"""An open write transaction: its time, its sequence numbers and the events that it emits.

Every write opens a `Transaction` first, which locks the only row of the table `counters` until
COMMIT. On PostgreSQL, sequence numbers therefore follow the order of commits, and all writes take
locks in the same order. SQLite allows only one writer anyway.
"""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa

from retinue.domain.event import EventKind
from retinue.store.core import tables as t

_lock_counters = sa.select(t.counters.c.event_seq, t.counters.c.envelope_seq, t.counters.c.latest_ms).with_for_update()
_update_counters = t.counters.update().values(
    event_seq=sa.bindparam("event_seq"), envelope_seq=sa.bindparam("envelope_seq"), latest_ms=sa.bindparam("latest_ms")
)
_select_latest_ms = sa.select(t.counters.c.latest_ms)
_insert_events = t.events.insert()
_encode = msgspec.json.Encoder().encode


def latest_ms(conn: sa.Connection) -> int:
    """Return the time of the latest commit. No later commit has an earlier time, even if the clock is set back."""
    return conn.execute(_select_latest_ms).scalar_one()


class Transaction:
    """An open write transaction: its time, its sequence numbers, and its events.

    The time is never earlier than the time of an earlier commit.
    """

    def __init__(self, conn: sa.Connection, now_ms: int) -> None:
        self.conn = conn
        row = conn.execute(_lock_counters).one()
        self.at_ms = max(now_ms, row.latest_ms)
        self._event_seq: int = row.event_seq
        self._envelope_seq: int = row.envelope_seq
        self._events: list[dict[str, Any]] = []

    @property
    def event_seq(self) -> int:
        """The sequence number of the newest event, including events that this transaction has emitted."""
        return self._event_seq

    def next_envelope_seq(self) -> int:
        self._envelope_seq += 1
        return self._envelope_seq

    def emit(
        self,
        kind: EventKind,
        *,
        session: str | None = None,
        envelope: str | None = None,
        run: str | None = None,
        record_seq: int | None = None,
        person: str | None = None,
        **body: Any,
    ) -> None:
        """Add an event, which `close` stores. `person` receives the event even if they cannot see its session."""
        self._event_seq += 1
        self._events.append(
            {
                "seq": self._event_seq,
                "kind": kind.value,
                "session": session,
                "envelope": envelope,
                "run": run,
                "record_seq": record_seq,
                "body": _encode(body).decode() if body else None,
                "at_ms": self.at_ms,
                "person": person,
            }
        )

    def close(self) -> None:
        self.conn.execute(
            _update_counters,
            {"event_seq": self._event_seq, "envelope_seq": self._envelope_seq, "latest_ms": self.at_ms},
        )
        if self._events:
            self.conn.execute(_insert_events, self._events)
