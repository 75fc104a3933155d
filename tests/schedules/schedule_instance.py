"""A local server with schedules, and a clock that tests advance to their occurrences."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from msgspec.structs import replace

from retinue.domain import address
from retinue.domain.ids import ScheduleId
from retinue.domain.schedule import (
    CronTrigger,
    EveryTrigger,
    Occurrence,
    OccurrenceState,
    OnceTrigger,
    Schedule,
    ScheduleTrigger,
)
from retinue.domain.times import to_ms
from retinue.domain.trust import Trust
from retinue.store.core.transaction import Transaction
from retinue.store.ledger import ledger
from retinue.store.schedules import schedules
from retinue.testing.local_instance import LocalInstance, LocalServer

__all__ = ["CronTrigger", "EveryTrigger", "OnceTrigger"]


def make_schedule(instance: LocalInstance, when: ScheduleTrigger | str, **kw: Any) -> Schedule:
    """Return a schedule of the owner for ada, with these changes."""
    kw.setdefault("text", "Water the plants.")
    return Schedule(
        id=ScheduleId(instance.ids.new()),
        name=kw.pop("name", ""),
        owner=address.parse_address(kw.pop("owner", "person:owner")),
        to=address.parse_address(kw.pop("to", "agent:ada")),
        when=CronTrigger(when) if isinstance(when, str) else when,
        trust=kw.pop("trust", Trust.OWNER),
        **kw,
    )


async def add(server: LocalServer, schedule: Schedule) -> Schedule:
    await write(server, lambda page: schedules.add(page, schedule, zone=server.instance.zone))
    return schedule


async def write(server: LocalServer, act: Any) -> Any:
    now_ms = to_ms(server.instance.clock.now())

    def body(conn: sa.Connection) -> Any:
        tx = Transaction(conn, now_ms)
        done = act(tx)
        tx.close()
        return done

    return await server.store.write(body, point="test")


async def stored_schedule(server: LocalServer, schedule: Schedule) -> schedules.StoredSchedule:
    found = await server.store.read(lambda conn: schedules.get(conn, schedule.id))
    assert found is not None
    return found


async def open_occurrence(server: LocalServer, schedule: Schedule) -> Occurrence | None:
    return await server.store.read(lambda conn: schedules.get_open_occurrence(conn, schedule.id))


async def history(server: LocalServer, schedule: Schedule) -> list[Occurrence]:
    """Return all occurrences that no longer wait, the oldest first."""
    found = await server.store.scan(lambda conn: schedules.list_history(conn, schedule.id, limit=500))
    return [slot for slot in reversed(found) if slot.state is not OccurrenceState.WAITING]


async def pending_times(server: LocalServer, schedule: Schedule) -> list[datetime]:
    """Return the times of its pending envelopes."""
    rows = await server.execute_sql(
        "SELECT deliver_ms FROM envelopes WHERE source = :source AND status = 'pending'",
        source=f"schedule:{schedule.id}",
    )
    return [datetime.fromtimestamp(row.deliver_ms / 1000, UTC) for row in rows]


async def advance_clock_to(server: LocalServer, moment: datetime) -> None:
    """Advance the clock to a later time. What runs at that time may not have ended yet."""
    await server.instance.clock.advance(moment - server.instance.clock.now())


async def ended(server: LocalServer, schedule: Schedule, *, at: datetime) -> Occurrence:
    """Wait until the occurrence of a time has ended."""

    def body(conn: sa.Connection) -> Occurrence | None:
        found = schedules.list_history(conn, schedule.id, limit=500)
        return next((slot for slot in found if slot.at == at and not slot.state.is_open), None)

    return await server.wait_for(body, what=f"the occurrence of {at} to end")


async def assert_ledger_holds(server: LocalServer) -> None:
    checked = await server.store.scan(lambda conn: ledger.check_ledger(conn, now_ms=0))
    assert checked.is_ok, "\n".join(checked.lines())


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


__all__ += [
    "add",
    "advance_clock_to",
    "assert_ledger_holds",
    "ended",
    "history",
    "make_schedule",
    "open_occurrence",
    "pending_times",
    "replace",
    "stored_schedule",
    "utc",
    "write",
]
