"""The calendar of the days from today on. Now is Monday, nine o'clock, in UTC."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from operations.operations_instance import OperationsServer, open_operations_server, person

from retinue.domain.errors import Invalid
from retinue.domain.principal import Principal
from retinue.operations.schedule import schedule_calendar
from retinue.testing.local_instance import LocalInstance

OWNER, MARIA = person("owner"), person("maria")


@pytest.fixture
async def operations(tmp_path: Path) -> AsyncGenerator[OperationsServer]:
    async with open_operations_server(LocalInstance(tmp_path)) as made:
        yield made


async def add(operations: OperationsServer, who: Principal = OWNER, **kw: Any) -> str:
    return (await operations.ask(who, "schedule.add", **{"text": "Good morning.", "to": "agent:ada", **kw}))["id"]


async def names(operations: OperationsServer, who: Principal = OWNER, **asked: Any) -> list[str]:
    return [each["name"] for each in (await operations.ask(who, "schedule.calendar", **asked))["schedules"]]


async def test_calendar_lists_the_occurrences_of_the_week_soonest_first(operations: OperationsServer) -> None:
    daily = await add(operations, name="daily", cron="0 10 * * *", zone="Europe/Berlin")
    await add(operations, name="soon", at="+10m")
    response = await operations.ask(OWNER, "schedule.calendar")
    assert (response["zone"], response["now"], response["until"]) == (
        "UTC",
        "2026-01-05T09:00:00+00:00",
        "2026-01-12T00:00:00+00:00",
    )
    soon, day = response["schedules"]
    assert (soon["name"], soon["times"], soon["truncated"]) == ("soon", ["2026-01-05T09:10:00+00:00"], False)
    assert (day["id"], day["when"]) == (daily, "At 10:00 every day (Europe/Berlin)")
    assert day["text"] == "Good morning."
    assert day["times"] == [f"2026-01-{number:02}T09:00:00+00:00" for number in range(6, 12)]
    assert not response["has_more"]


async def test_calendar_shows_only_the_next_occurrence_of_frequent_schedules(operations: OperationsServer) -> None:
    await add(operations, name="often", every="10m")
    await add(operations, name="eight-a-day", cron="0 */3 * * *")
    by_name = {each["name"]: each for each in (await operations.ask(OWNER, "schedule.calendar"))["schedules"]}
    assert by_name["often"]["truncated"] and by_name["often"]["times"] == ["2026-01-05T09:10:00+00:00"]
    assert not by_name["eight-a-day"]["truncated"] and len(by_name["eight-a-day"]["times"]) == 4 + 6 * 8
    [again, _] = (await operations.ask(OWNER, "schedule.calendar", days=1))["schedules"]
    assert again["name"] == "often" and again["truncated"], "ninety times are left today"


async def test_calendar_lists_a_one_time_schedule_once_with_fractional_seconds(operations: OperationsServer) -> None:
    operations.server.instance.clock.jump(timedelta(microseconds=123_456))
    await add(operations, at="+10m")
    [once] = (await operations.ask(OWNER, "schedule.calendar"))["schedules"]
    assert once["times"] == ["2026-01-05T09:10:00+00:00"]


async def test_calendar_lists_only_enabled_and_visible_schedules_in_its_span(operations: OperationsServer) -> None:
    await add(operations, name="off", cron="0 10 * * *", enabled=False)
    await add(operations, name="far", at="2026-01-12T00:00:00+00:00")
    await add(operations, name="mine", cron="0 11 * * *")
    await add(operations, MARIA, name="hers", cron="0 12 * * *")
    assert await names(operations) == ["mine", "hers"]
    assert await names(operations, MARIA) == ["hers"]
    assert await names(operations, days=8) == ["mine", "hers", "far"]


async def test_calendar_limits_the_number_of_schedules_and_days(
    operations: OperationsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule_calendar, "SCHEDULES_SHOWN_MAX", 2)
    for number in range(3):
        await add(operations, name=f"n{number}", cron=f"{number} 10 * * *")
    response = await operations.ask(OWNER, "schedule.calendar")
    assert [each["name"] for each in response["schedules"]] == ["n0", "n1"] and response["has_more"]
    for days in (0, schedule_calendar.DAYS_MAX + 1):
        with pytest.raises(Invalid):
            await operations.ask(OWNER, "schedule.calendar", days=days)
