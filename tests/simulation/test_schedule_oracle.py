"""The judge's own calendar: what it says near a change of the clocks, and that the house's says the same."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from retinue.domain.schedule import CronTrigger, EveryTrigger, OnceTrigger, ScheduleTrigger, next_occurrence
from retinue.domain.times import from_ms, to_ms
from retinue.testing.schedule_oracle import list_occurrences
from retinue.testing.simulated_schedules import DAILY, DST_CHANGES, FREQUENT, INFREQUENT

BERLIN, NEW_YORK = ZoneInfo("Europe/Berlin"), ZoneInfo("America/New_York")


def slots(when: ScheduleTrigger, zone: ZoneInfo, begin: str, end: str) -> list[str]:
    """As the clock on the wall shows them."""
    first, last = (to_ms(datetime.fromisoformat(text).replace(tzinfo=UTC)) for text in (begin, end))
    found = [from_ms(at).astimezone(zone) for at in list_occurrences(when, zone, first, last)]
    return [f"{at:%d %H:%M %Z}" for at in found]


def test_a_time_of_day_that_is_skipped_or_shown_twice_comes_once() -> None:
    half_past_two = CronTrigger("30 2 * * *")
    assert slots(half_past_two, BERLIN, "2026-03-28 00:00", "2026-03-31 00:00") == [
        *("28 02:30 CET", "29 03:00 CEST", "30 02:30 CEST")
    ]
    assert slots(half_past_two, BERLIN, "2026-10-24 00:00", "2026-10-26 03:00") == [
        *("24 02:30 CEST", "25 02:30 CEST", "26 02:30 CET")
    ]
    assert slots(CronTrigger("45 1,2 * * *"), NEW_YORK, "2026-11-01 04:00", "2026-11-01 08:00") == [
        *("01 01:45 EDT", "01 02:45 EST")
    ]


def test_what_comes_every_so_often_comes_twice_in_the_hour_that_does() -> None:
    assert slots(CronTrigger("10,40 * * * *"), NEW_YORK, "2026-11-01 05:00", "2026-11-01 07:00") == [
        *("01 01:10 EDT", "01 01:40 EDT", "01 01:10 EST", "01 01:40 EST")
    ]


def test_steps_and_single_times_are_counted_from_where_they_begin() -> None:
    start = datetime(2026, 1, 5, 10, tzinfo=UTC)
    assert slots(EveryTrigger(90, start), BERLIN, "2026-01-05 09:00", "2026-01-05 10:03") == [
        *("05 11:00 CET", "05 11:01 CET", "05 11:03 CET")
    ]
    assert slots(EveryTrigger(90, start), BERLIN, "2026-01-05 10:01:30", "2026-01-05 10:03") == ["05 11:03 CET"]
    assert slots(OnceTrigger(start), BERLIN, "2026-01-05 09:59:59", "2026-01-05 10:00") == ["05 11:00 CET"]
    assert slots(OnceTrigger(start), BERLIN, "2026-01-05 10:00", "2026-01-05 12:00") == []


@pytest.mark.parametrize("expression", [*FREQUENT, *INFREQUENT, *DAILY])
def test_the_house_says_the_same_of_whatever_is_simulated(expression: str) -> None:
    chance = random.Random(expression)
    for change in DST_CHANGES:
        for zone in (BERLIN, NEW_YORK):
            begin = change - timedelta(seconds=chance.randrange(7_200))
            end = begin + timedelta(seconds=chance.randrange(60, 5_400 if expression in FREQUENT else 4 * 86_400))
            theirs: list[int] = []
            at = next_occurrence(CronTrigger(expression), begin, zone)
            while at is not None and at <= end:
                theirs.append(to_ms(at))
                at = next_occurrence(CronTrigger(expression), at, zone)
            assert list_occurrences(CronTrigger(expression), zone, to_ms(begin), to_ms(end)) == theirs
