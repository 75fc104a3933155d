"""A household with schedules, and a clock that is turned to their slots."""

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


def a_schedule(household: LocalInstance, when: ScheduleTrigger | str, **kw: Any) -> Schedule:
    """By the owner, to ada, unless said otherwise."""
    kw.setdefault("text", "Water the plants.")
    return Schedule(
        id=ScheduleId(household.ids.new()),
        name=kw.pop("name", ""),
        owner=address.parse_address(kw.pop("owner", "person:owner")),
        to=address.parse_address(kw.pop("to", "agent:ada")),
        when=CronTrigger(when) if isinstance(when, str) else when,
        trust=kw.pop("trust", Trust.OWNER),
        **kw,
    )


async def add(house: LocalServer, schedule: Schedule) -> Schedule:
    await write(house, lambda page: schedules.add(page, schedule, zone=house.instance.zone))
    return schedule


async def write(house: LocalServer, act: Any) -> Any:
    now_ms = to_ms(house.instance.clock.now())

    def body(conn: sa.Connection) -> Any:
        page = Transaction(conn, now_ms)
        done = act(page)
        page.close()
        return done

    return await house.store.write(body, point="test")


async def kept(house: LocalServer, schedule: Schedule) -> schedules.StoredSchedule:
    found = await house.store.read(lambda conn: schedules.get(conn, schedule.id))
    assert found is not None
    return found


async def waiting(house: LocalServer, schedule: Schedule) -> Occurrence | None:
    return await house.store.read(lambda conn: schedules.get_open_occurrence(conn, schedule.id))


async def history(house: LocalServer, schedule: Schedule) -> list[Occurrence]:
    """What became of each, the oldest first, without the one that waits."""
    found = await house.store.scan(lambda conn: schedules.list_history(conn, schedule.id, limit=500))
    return [slot for slot in reversed(found) if slot.state is not OccurrenceState.WAITING]


async def pending(house: LocalServer, schedule: Schedule) -> list[datetime]:
    """The times of all its envelopes that are pending."""
    rows = await house.execute_sql(
        "SELECT deliver_ms FROM envelopes WHERE source = :source AND status = 'pending'",
        source=f"schedule:{schedule.id}",
    )
    return [datetime.fromtimestamp(row.deliver_ms / 1000, UTC) for row in rows]


async def turn_to(house: LocalServer, moment: datetime) -> None:
    """Turn the clock to a moment that is still to come. Whoever is woken by it may still be at work."""
    await house.instance.clock.advance(moment - house.instance.clock.now())


async def ended(house: LocalServer, schedule: Schedule, *, at: datetime) -> Occurrence:
    """Wait until the slot of a moment has ended."""

    def body(conn: sa.Connection) -> Occurrence | None:
        found = schedules.list_history(conn, schedule.id, limit=500)
        return next((slot for slot in found if slot.at == at and not slot.state.is_open), None)

    return await house.wait_for(body, what=f"the slot of {at} to end")


async def holds(house: LocalServer) -> None:
    checked = await house.store.scan(lambda conn: ledger.check_ledger(conn, now_ms=0))
    assert checked.is_ok, "\n".join(checked.lines())


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


__all__ += [
    "a_schedule",
    "add",
    "ended",
    "history",
    "holds",
    "kept",
    "pending",
    "replace",
    "turn_to",
    "utc",
    "waiting",
    "write",
]
