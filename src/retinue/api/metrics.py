"""Metrics for Prometheus. They contain numbers only: no ids, names or message text."""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa
from msgspec import Struct, field

from retinue.api.connection_limits import ConnectionLimiter
from retinue.connectors.supervisor.connector_health import ConnectionStatus
from retinue.domain.envelope import EnvelopeStatus
from retinue.domain.run import RunStatus
from retinue.domain.times import to_ms
from retinue.operations.base import Services
from retinue.store.channels import poison_messages
from retinue.store.core import tables as t

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

_select_envelope_counts = sa.select(t.envelopes.c.status, sa.func.count()).group_by(t.envelopes.c.status)
_select_run_counts = sa.select(t.runs.c.status, sa.func.count()).group_by(t.runs.c.status)
_select_due_count = sa.select(sa.func.count()).where(
    t.envelopes.c.status == t.PENDING, sa.func.coalesce(t.envelopes.c.deliver_ms, 0) <= sa.bindparam("now")
)


class HttpCounters(Struct):
    """Counters of the HTTP server since it started."""

    responses: dict[int, int] = field(default_factory=dict[int, int])
    commits: int = 0
    websockets: int = 0
    streams: int = 0

    def count_response(self, status: int) -> None:
        self.responses[status] = self.responses.get(status, 0) + 1

    def count_commit(self) -> None:
        self.commits += 1


async def render_metrics(services: Services, counters: HttpCounters, limiter: ConnectionLimiter) -> bytes:
    now_ms = to_ms(services.clock.now())

    def look(conn: sa.Connection) -> tuple[dict[str, int], dict[str, int], int, int]:
        envelopes = {str(status): int(count) for status, count in conn.execute(_select_envelope_counts)}
        runs = {str(status): int(count) for status, count in conn.execute(_select_run_counts)}
        due = int(conn.execute(_select_due_count, {"now": now_ms}).scalar_one())
        return envelopes, runs, due, poison_messages.count_waiting(conn)

    envelopes, runs, due, poisoned = await services.store.scan(look)
    active = int(getattr(services.engine, "active_lanes", 0))
    lines = [
        *_format_labeled_metric(
            "retinue_envelopes", "Envelopes in the store.", "status", _with_zeros(envelopes, EnvelopeStatus)
        ),
        *_format_labeled_metric("retinue_runs", "Runs in the store.", "status", _with_zeros(runs, RunStatus)),
        *_format_metric("retinue_envelopes_due", "Envelopes that are due and waiting for a run.", due),
        *_format_metric("retinue_lanes_active", "Sessions with a run in progress.", active),
        *_format_metric("retinue_commits_total", "Commits since the server started.", counters.commits, kind="counter"),
        *_format_labeled_metric(
            "retinue_http_responses_total",
            "HTTP responses by status.",
            "status",
            _with_text_keys(counters.responses),
            kind="counter",
        ),
        *_format_labeled_metric(
            "retinue_refused_total", "Refused requests.", "code", limiter.refusals.counts, kind="counter"
        ),
        *_format_labeled_metric("retinue_connectors", "Connectors by state.", "state", _count_connectors(services)),
        *_format_metric(
            "retinue_poison_messages", "Unprocessed messages (poison messages) that are waiting for a person.", poisoned
        ),
        *_format_metric("retinue_connections", "Open TCP connections.", len(limiter.open_connections)),
        *_format_metric("retinue_websockets", "Open WebSockets.", counters.websockets),
        *_format_metric("retinue_streams", "Open streams of server-sent events.", counters.streams),
    ]
    return ("\n".join(lines) + "\n").encode()


def _count_connectors(services: Services) -> dict[str, int]:
    counts = {state.value: 0 for state in ConnectionStatus}
    for health in services.connector_supervisor.health() if services.connector_supervisor is not None else ():
        counts[health.status.value] += 1
    return counts


def _with_zeros(counts: Mapping[str, int], states: type[EnvelopeStatus] | type[RunStatus]) -> dict[str, int]:
    return {**{each.value: 0 for each in states}, **counts}


def _with_text_keys(counts: Mapping[int, int]) -> dict[str, int]:
    return {str(status): count for status, count in sorted(counts.items())}


def _format_metric(name: str, help_text: str, value: int, *, kind: str = "gauge") -> list[str]:
    return [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}", f"{name} {value}"]


def _format_labeled_metric(
    name: str, help_text: str, label: str, values: Mapping[str, int], *, kind: str = "gauge"
) -> list[str]:
    head = [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]
    return head + [f'{name}{{{label}="{text}"}} {value}' for text, value in values.items()]
