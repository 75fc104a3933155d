"""Metrics for Prometheus. Numbers only: no ids, names or message texts."""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa
from msgspec import Struct, field

from retinue.api.connection_limits import Gate
from retinue.connectors.supervisor.connector_health import LineState
from retinue.domain.envelope import Status
from retinue.domain.run import RunStatus
from retinue.domain.times import to_ms
from retinue.operations.base import Desk
from retinue.store.channels import poison_messages
from retinue.store.core import tables as t

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

_envelopes = sa.select(t.envelopes.c.status, sa.func.count()).group_by(t.envelopes.c.status)
_runs = sa.select(t.runs.c.status, sa.func.count()).group_by(t.runs.c.status)
_due = sa.select(sa.func.count()).where(
    t.envelopes.c.status == t.PENDING, sa.func.coalesce(t.envelopes.c.deliver_ms, 0) <= sa.bindparam("now")
)


class Counts(Struct):
    """Counters of the HTTP server since it started."""

    answers: dict[int, int] = field(default_factory=dict[int, int])
    commits: int = 0
    sockets: int = 0
    streams: int = 0

    def answered(self, status: int) -> None:
        self.answers[status] = self.answers.get(status, 0) + 1

    def committed(self) -> None:
        self.commits += 1


async def page(desk: Desk, counts: Counts, gate: Gate) -> bytes:
    now_ms = to_ms(desk.clock.now())

    def look(conn: sa.Connection) -> tuple[dict[str, int], dict[str, int], int, int]:
        envelopes = {str(status): int(count) for status, count in conn.execute(_envelopes)}
        runs = {str(status): int(count) for status, count in conn.execute(_runs)}
        due = int(conn.execute(_due, {"now": now_ms}).scalar_one())
        return envelopes, runs, due, poison_messages.count_waiting(conn)

    envelopes, runs, due, aside = await desk.store.scan(look)
    active = int(getattr(desk.engine, "active", 0))
    lines = [
        *_labelled("retinue_envelopes", "Envelopes in the store.", "status", _filled(envelopes, Status)),
        *_labelled("retinue_runs", "Runs in the store.", "status", _filled(runs, RunStatus)),
        *_plain("retinue_queue", "Envelopes that are due and wait for a run.", due),
        *_plain("retinue_lanes_active", "Sessions that are being worked for right now.", active),
        *_plain("retinue_commits_total", "Commits since the house opened.", counts.commits, kind="counter"),
        *_labelled(
            "retinue_http_answers_total", "Answers by HTTP status.", "status", _texts(counts.answers), kind="counter"
        ),
        *_labelled("retinue_turned_away_total", "Refused at the door.", "code", gate.refusals.counts, kind="counter"),
        *_labelled("retinue_connectors", "Connectors by how they fare.", "state", _lines(desk)),
        *_plain("retinue_set_aside", "Messages that could not be taken in, and wait for somebody.", aside),
        *_plain("retinue_connections", "Open TCP connections.", len(gate.open)),
        *_plain("retinue_websockets", "Open WebSockets.", counts.sockets),
        *_plain("retinue_streams", "Open streams of server-sent events.", counts.streams),
    ]
    return ("\n".join(lines) + "\n").encode()


def _lines(desk: Desk) -> dict[str, int]:
    counts = {state.value: 0 for state in LineState}
    for line in desk.switchboard.health() if desk.switchboard is not None else ():
        counts[line.state.value] += 1
    return counts


def _filled(found: Mapping[str, int], every: type[Status] | type[RunStatus]) -> dict[str, int]:
    return {**{each.value: 0 for each in every}, **found}


def _texts(counts: Mapping[int, int]) -> dict[str, int]:
    return {str(status): count for status, count in sorted(counts.items())}


def _plain(name: str, says: str, value: int, *, kind: str = "gauge") -> list[str]:
    return [f"# HELP {name} {says}", f"# TYPE {name} {kind}", f"{name} {value}"]


def _labelled(name: str, says: str, label: str, values: Mapping[str, int], *, kind: str = "gauge") -> list[str]:
    head = [f"# HELP {name} {says}", f"# TYPE {name} {kind}"]
    return head + [f'{name}{{{label}="{text}"}} {value}' for text, value in values.items()]
