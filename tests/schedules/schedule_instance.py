"""A household with schedules, and a clock that is turned to their slots."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from msgspec.structs import replace

from retinue.domain import address
from retinue.domain.ids import ScheduleId
from retinue.domain.schedule import Cron, Every, Once, Schedule, Slot, SlotState, When
from retinue.domain.times import to_ms
from retinue.domain.trust import Trust
from retinue.store.core.transaction import Page
from retinue.store.ledger import ledger
from retinue.store.schedules import schedules
from retinue.testing.local_instance import House, Household

__all__ = ["Cron", "Every", "Once"]


def a_schedule(household: Household, when: When | str, **kw: Any) -> Schedule:
    """By the owner, to ada, unless said otherwise."""
    kw.setdefault("text", "Water the plants.")
    return Schedule(
        id=ScheduleId(household.ids.new()),
        name=kw.pop("name", ""),
        owner=address.parse(kw.pop("owner", "person:owner")),
        to=address.parse(kw.pop("to", "agent:ada")),
        when=Cron(when) if isinstance(when, str) else when,
        trust=kw.pop("trust", Trust.OWNER),
        **kw,
    )


async def add(house: House, schedule: Schedule) -> Schedule:
    await write(house, lambda page: schedules.add(page, schedule, zone=house.household.zone))
    return schedule


async def write(house: House, act: Any) -> Any:
    now_ms = to_ms(house.household.clock.now())

    def body(conn: sa.Connection) -> Any:
        page = Page(conn, now_ms)
        done = act(page)
        page.close()
        return done

    return await house.store.write(body, point="test")


async def kept(house: House, schedule: Schedule) -> schedules.Kept:
    found = await house.store.read(lambda conn: schedules.get(conn, schedule.id))
    assert found is not None
    return found


async def waiting(house: House, schedule: Schedule) -> Slot | None:
    return await house.store.read(lambda conn: schedules.open_slot(conn, schedule.id))


async def history(house: House, schedule: Schedule) -> list[Slot]:
    """What became of each, the oldest first, without the one that waits."""
    found = await house.store.scan(lambda conn: schedules.history(conn, schedule.id, limit=500))
    return [slot for slot in reversed(found) if slot.state is not SlotState.WAITING]


async def pending(house: House, schedule: Schedule) -> list[datetime]:
    """The times of all its envelopes that are pending."""
    rows = await house.sql(
        "SELECT deliver_ms FROM envelopes WHERE source = :source AND status = 'pending'",
        source=f"schedule:{schedule.id}",
    )
    return [datetime.fromtimestamp(row.deliver_ms / 1000, UTC) for row in rows]


async def turn_to(house: House, moment: datetime) -> None:
    """Turn the clock to a moment that is still to come. Whoever is woken by it may still be at work."""
    await house.household.clock.advance(moment - house.household.clock.now())


async def ended(house: House, schedule: Schedule, *, at: datetime) -> Slot:
    """Wait until the slot of a moment has ended."""

    def body(conn: sa.Connection) -> Slot | None:
        found = schedules.history(conn, schedule.id, limit=500)
        return next((slot for slot in found if slot.at == at and not slot.state.open), None)

    return await house.eventually(body, what=f"the slot of {at} to end")


async def holds(house: House) -> None:
    checked = await house.store.scan(lambda conn: ledger.check(conn, now_ms=0))
    assert checked.holds, "\n".join(checked.lines())


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
