"""What comes in the days from today on, as a calendar would show it. It is Monday, nine o'clock, in UTC."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from operations.operations_instance import DeskHouse, desk_house, person

from retinue.domain.errors import Invalid
from retinue.domain.principal import Principal
from retinue.operations.schedule import schedule_calendar
from retinue.testing.local_instance import LocalInstance

OWNER, MARIA = person("owner"), person("maria")


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncGenerator[DeskHouse]:
    async with desk_house(LocalInstance(tmp_path)) as made:
        yield made


async def add(desk: DeskHouse, who: Principal = OWNER, **kw: Any) -> str:
    return (await desk.ask(who, "schedule.add", **{"text": "Good morning.", "to": "agent:ada", **kw}))["id"]


async def names(desk: DeskHouse, who: Principal = OWNER, **asked: Any) -> list[str]:
    return [each["name"] for each in (await desk.ask(who, "schedule.calendar", **asked))["coming"]]


async def test_each_time_of_the_week_is_told_the_soonest_first(desk: DeskHouse) -> None:
    daily = await add(desk, name="daily", cron="0 10 * * *", zone="Europe/Berlin")
    await add(desk, name="soon", at="+10m")
    told = await desk.ask(OWNER, "schedule.calendar")
    assert (told["zone"], told["now"], told["until"]) == (
        "UTC",
        "2026-01-05T09:00:00+00:00",
        "2026-01-12T00:00:00+00:00",
    )
    soon, day = told["coming"]
    assert (soon["name"], soon["times"], soon["often"]) == ("soon", ["2026-01-05T09:10:00+00:00"], False)
    assert (day["id"], day["when"]) == (daily, "At 10:00 every day (Europe/Berlin)")
    assert day["text"] == "Good morning."
    assert day["times"] == [f"2026-01-{number:02}T09:00:00+00:00" for number in range(6, 12)]
    assert not told["more"]


async def test_what_comes_very_often_is_told_in_words(desk: DeskHouse) -> None:
    await add(desk, name="often", every="10m")
    await add(desk, name="eight-a-day", cron="0 */3 * * *")
    told = {each["name"]: each for each in (await desk.ask(OWNER, "schedule.calendar"))["coming"]}
    assert told["often"]["often"] and told["often"]["times"] == ["2026-01-05T09:10:00+00:00"]
    assert not told["eight-a-day"]["often"] and len(told["eight-a-day"]["times"]) == 4 + 6 * 8
    [again, _] = (await desk.ask(OWNER, "schedule.calendar", days=1))["coming"]
    assert again["name"] == "often" and again["often"], "ninety times are left of today"


async def test_what_comes_once_comes_once_however_exactly_its_time_was_reckoned(desk: DeskHouse) -> None:
    desk.house.instance.clock.jump(timedelta(microseconds=123_456))
    await add(desk, at="+10m")
    [once] = (await desk.ask(OWNER, "schedule.calendar"))["coming"]
    assert once["times"] == ["2026-01-05T09:10:00+00:00"]


async def test_only_what_comes_and_only_what_one_sees(desk: DeskHouse) -> None:
    await add(desk, name="off", cron="0 10 * * *", enabled=False)
    await add(desk, name="far", at="2026-01-12T00:00:00+00:00")
    await add(desk, name="mine", cron="0 11 * * *")
    await add(desk, MARIA, name="hers", cron="0 12 * * *")
    assert await names(desk) == ["mine", "hers"]
    assert await names(desk, MARIA) == ["hers"]
    assert await names(desk, days=8) == ["mine", "hers", "far"]


async def test_there_is_a_bound_and_it_is_told(desk: DeskHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule_calendar, "SCHEDULES_SHOWN_MAX", 2)
    for number in range(3):
        await add(desk, name=f"n{number}", cron=f"{number} 10 * * *")
    told = await desk.ask(OWNER, "schedule.calendar")
    assert [each["name"] for each in told["coming"]] == ["n0", "n1"] and told["more"]
    for days in (0, schedule_calendar.DAYS_MAX + 1):
        with pytest.raises(Invalid):
            await desk.ask(OWNER, "schedule.calendar", days=days)
