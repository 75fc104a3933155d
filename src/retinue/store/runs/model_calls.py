"""Read the model calls of a run, in the order in which they were made."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from msgspec import Struct

from retinue.domain.model import ModelRef
from retinue.domain.record import Usage
from retinue.domain.times import from_ms
from retinue.store.core import tables as t

_of_run = (
    sa.select(t.model_calls)
    .where(t.model_calls.c.run == sa.bindparam("run"))
    .order_by(t.model_calls.c.at_ms, t.model_calls.c.turn, t.model_calls.c.call_index, t.model_calls.c.attempt)
)


class RecordedModelCall(Struct, frozen=True, kw_only=True):
    """A model call of a run, as stored.

    `index` is negative if the call wrote a summary. If `cost_unknown` is true, `settled_microusd`
    is not the actual cost.
    """

    turn: int
    index: int
    attempt: int
    ref: ModelRef
    credential: str
    usage: Usage
    settled_microusd: int
    cost_unknown: bool
    failure: str | None
    next_action: str | None
    error: str | None
    at: datetime
    ended_at: datetime | None
    person: str  # the person who is charged; empty if there is none


def list_of_run(conn: sa.Connection, run: str) -> list[RecordedModelCall]:
    return [
        RecordedModelCall(
            turn=row.turn,
            index=row.call_index,
            attempt=row.attempt,
            ref=ModelRef(row.provider, row.model),
            credential=row.credential,
            usage=Usage(
                input_tokens=row.input_tokens,
                output_tokens=row.output_tokens,
                cost_microusd=row.settled_microusd,
                cache_read_tokens=row.cache_read_tokens,
                cache_write_tokens=row.cache_write_tokens,
                reasoning_tokens=row.reasoning_tokens,
                estimated=row.estimated,
            ),
            settled_microusd=row.settled_microusd,
            cost_unknown=row.cost_unknown,
            failure=row.failure,
            next_action=row.next_action,
            error=row.error,
            at=from_ms(row.at_ms),
            ended_at=from_ms(row.ended_ms) if row.ended_ms is not None else None,
            person=row.person,
        )
        for row in conn.execute(_of_run, {"run": run})
    ]
