"""The schedule oracle of the simulation, near changes of daylight saving time, agrees with the server."""

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


def format_occurrences(when: ScheduleTrigger, zone: ZoneInfo, begin: str, end: str) -> list[str]:
    """Format the occurrences as local times."""
    first, last = (to_ms(datetime.fromisoformat(text).replace(tzinfo=UTC)) for text in (begin, end))
    found = [from_ms(at).astimezone(zone) for at in list_occurrences(when, zone, first, last)]
    return [f"{at:%d %H:%M %Z}" for at in found]


def test_the_schedule_oracle_lists_a_daily_time_once_if_a_clock_change_skips_or_repeats_it() -> None:
    half_past_two = CronTrigger("30 2 * * *")
    assert format_occurrences(half_past_two, BERLIN, "2026-03-28 00:00", "2026-03-31 00:00") == [
        *("28 02:30 CET", "29 03:00 CEST", "30 02:30 CEST")
    ]
    assert format_occurrences(half_past_two, BERLIN, "2026-10-24 00:00", "2026-10-26 03:00") == [
        *("24 02:30 CEST", "25 02:30 CEST", "26 02:30 CET")
    ]
    assert format_occurrences(CronTrigger("45 1,2 * * *"), NEW_YORK, "2026-11-01 04:00", "2026-11-01 08:00") == [
        *("01 01:45 EDT", "01 02:45 EST")
    ]


def test_the_schedule_oracle_lists_an_hourly_schedule_twice_in_a_repeated_hour() -> None:
    assert format_occurrences(CronTrigger("10,40 * * * *"), NEW_YORK, "2026-11-01 05:00", "2026-11-01 07:00") == [
        *("01 01:10 EDT", "01 01:40 EDT", "01 01:10 EST", "01 01:40 EST")
    ]


def test_the_schedule_oracle_counts_intervals_and_single_times_from_their_start() -> None:
    start = datetime(2026, 1, 5, 10, tzinfo=UTC)
    assert format_occurrences(EveryTrigger(90, start), BERLIN, "2026-01-05 09:00", "2026-01-05 10:03") == [
        *("05 11:00 CET", "05 11:01 CET", "05 11:03 CET")
    ]
    assert format_occurrences(EveryTrigger(90, start), BERLIN, "2026-01-05 10:01:30", "2026-01-05 10:03") == [
        "05 11:03 CET"
    ]
    assert format_occurrences(OnceTrigger(start), BERLIN, "2026-01-05 09:59:59", "2026-01-05 10:00") == ["05 11:00 CET"]
    assert format_occurrences(OnceTrigger(start), BERLIN, "2026-01-05 10:00", "2026-01-05 12:00") == []


@pytest.mark.parametrize("expression", [*FREQUENT, *INFREQUENT, *DAILY])
def test_the_schedule_oracle_and_the_server_agree_on_every_simulated_schedule(expression: str) -> None:
    chance = random.Random(expression)
    for change in DST_CHANGES:
        for zone in (BERLIN, NEW_YORK):
            begin = change - timedelta(seconds=chance.randrange(7_200))
            end = begin + timedelta(seconds=chance.randrange(60, 5_400 if expression in FREQUENT else 4 * 86_400))
            server_times: list[int] = []
            at = next_occurrence(CronTrigger(expression), begin, zone)
            while at is not None and at <= end:
                server_times.append(to_ms(at))
                at = next_occurrence(CronTrigger(expression), at, zone)
            assert list_occurrences(CronTrigger(expression), zone, to_ms(begin), to_ms(end)) == server_times
