"""Times as people write them: what is meant, what is refused, and that numbers and moments lose nothing on the way."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retinue.domain import times
from retinue.domain.errors import Invalid
from retinue.domain.times import format_time, from_ms, parse_time, to_ms

BERLIN = ZoneInfo("Europe/Berlin")
SHANGHAI = ZoneInfo("Asia/Shanghai")
NEW_YORK = ZoneInfo("America/New_York")
NOW = datetime(2026, 1, 28, 12, 30, tzinfo=UTC)

zones = st.sampled_from([BERLIN, SHANGHAI, NEW_YORK, ZoneInfo("UTC"), ZoneInfo("Australia/Lord_Howe")])
moments = st.datetimes(datetime(1971, 1, 1), datetime(9000, 1, 1), timezones=st.just(UTC))


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def when(text: str, *, now: str | datetime = NOW, zone: ZoneInfo = BERLIN) -> datetime:
    return parse_time(text, now=utc(now) if isinstance(now, str) else now, zone=zone)


def refusal(text: str, *, now: datetime = NOW, zone: ZoneInfo = BERLIN) -> Invalid:
    with pytest.raises(Invalid) as caught:
        parse_time(text, now=now, zone=zone)
    assert caught.value.code == "time.invalid"
    assert caught.value.because
    assert caught.value.try_this
    return caught.value


# --- from now ---


@pytest.mark.spec("H12")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("+1s", "2026-01-28T12:30:01+00:00"),
        ("+30m", "2026-01-28T13:00:00+00:00"),
        ("+2h30m", "2026-01-28T15:00:00+00:00"),
        ("+1D", "2026-01-29T12:30:00+00:00"),
        ("+1M", "2026-02-28T12:30:00+00:00"),
        ("+1Y", "2027-01-28T12:30:00+00:00"),
        ("+1Y2M3D4h5m6s", "2027-03-31T15:35:06+00:00"),  # The hour lost to summer time is the calendar's, not ours.
        ("-1D", "2026-01-27T12:30:00+00:00"),
        ("-2h", "2026-01-28T10:30:00+00:00"),
        ("+0s", "2026-01-28T12:30:00+00:00"),
        ("+007m", "2026-01-28T12:37:00+00:00"),
    ],
)
def test_a_span_from_now_combines_its_units(text: str, expected: str) -> None:
    assert when(text) == utc(expected)


@pytest.mark.spec("H12")
def test_units_may_come_in_any_order_and_spaces_mean_nothing() -> None:
    expected = when("+1D2h30m")
    for text in ("+30m2h1D", " + 1D 2h\t30m ", "+1 D 2 h 3 0 m", "+2h1D30m"):
        assert when(text) == expected


@pytest.mark.spec("H12")
def test_case_tells_months_from_minutes() -> None:
    assert when("+1M") == utc("2026-02-28T12:30:00+00:00")
    assert when("+1m") == utc("2026-01-28T12:31:00+00:00")
    assert "m is minutes" in refusal("+1d").because
    for text in ("+1y", "+1H", "+1S"):
        refusal(text)


def test_a_unit_said_twice_is_taken_for_a_slip() -> None:
    assert refusal("+1h30h").because == "the unit h appears twice"


@pytest.mark.spec("H12")
@pytest.mark.parametrize(
    ("now", "text", "expected"),
    [
        ("2026-01-31T10:00:00+01:00", "+1M", "2026-02-28T10:00:00+01:00"),
        ("2024-01-31T10:00:00+01:00", "+1M", "2024-02-29T10:00:00+01:00"),
        ("2026-03-31T10:00:00+02:00", "-1M", "2026-02-28T10:00:00+01:00"),
        ("2026-01-31T10:00:00+01:00", "+3M", "2026-04-30T10:00:00+02:00"),
        ("2026-12-31T10:00:00+01:00", "+2M", "2027-02-28T10:00:00+01:00"),
        ("2026-01-15T10:00:00+01:00", "-1M", "2025-12-15T10:00:00+01:00"),
        ("2024-02-29T10:00:00+01:00", "+1Y", "2025-02-28T10:00:00+01:00"),
        ("2024-02-29T10:00:00+01:00", "+4Y", "2028-02-29T10:00:00+01:00"),
        ("2096-02-29T10:00:00+01:00", "+4Y", "2100-02-28T10:00:00+01:00"),  # 2100 is no leap year
        ("2024-01-31T10:00:00+01:00", "+1Y1M", "2025-02-28T10:00:00+01:00"),  # one move, clamped once
        ("2026-01-31T10:00:00+01:00", "+1M1D", "2026-03-01T10:00:00+01:00"),  # clamped before days are counted
    ],
)
def test_a_day_that_the_month_lacks_becomes_its_last(now: str, text: str, expected: str) -> None:
    assert when(text, now=now) == utc(expected)


@pytest.mark.spec("H12")
def test_the_calendar_moves_in_the_owners_zone() -> None:
    now = "2026-01-31T20:00:00+00:00"  # already the first of February in Shanghai, still January in Berlin
    assert when("+1M", now=now, zone=SHANGHAI) == utc("2026-03-01T04:00:00+08:00")
    assert when("+1M", now=now, zone=BERLIN) == utc("2026-02-28T21:00:00+01:00")


@pytest.mark.spec("H12")
def test_a_day_keeps_the_wall_clock_and_24_hours_keep_the_elapsed_time_when_clocks_change() -> None:
    spring = "2026-03-28T12:00:00+01:00"
    assert when("+1D", now=spring) == utc("2026-03-29T12:00:00+02:00")
    assert when("+24h", now=spring) == utc("2026-03-29T13:00:00+02:00")
    autumn = "2026-10-24T12:00:00+02:00"
    assert when("+1D", now=autumn) == utc("2026-10-25T12:00:00+01:00")
    assert when("+24h", now=autumn) == utc("2026-10-25T11:00:00+01:00")
    assert when("+1D", now=autumn, zone=SHANGHAI) == when("+24h", now=autumn, zone=SHANGHAI)


@pytest.mark.spec("H12")
def test_a_calendar_move_into_a_skipped_hour_moves_forward_and_into_a_doubled_one_takes_the_first() -> None:
    assert when("+1D", now="2026-03-28T02:30:00+01:00") == utc("2026-03-29T03:30:00+02:00")
    assert when("+1D", now="2026-10-24T02:30:00+02:00") == utc("2026-10-25T02:30:00+02:00")
    assert when("+1D30m", now="2026-03-28T02:30:00+01:00") == utc("2026-03-29T04:00:00+02:00")


def test_in_a_doubled_hour_elapsed_time_and_moves_of_nothing_do_not_jump_back() -> None:
    second = utc("2026-10-25T02:30:00+01:00")
    assert when("+0D", now=second) == second
    assert when("+10m", now=second) == second + timedelta(minutes=10)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "+",
        "-",
        "+h",
        "+1",
        "1h",
        "++1h",
        "+-1h",
        "+1h-2m",
        "+1.5h",
        "+1h,2m",
        "+1w",
        "+\u0661h",
        "now",
        "tomorrow",
    ],
)
def test_what_is_no_time_is_refused_with_a_reason_and_examples(text: str) -> None:
    refusal(text)


def test_bounds_have_names_and_reaching_them_is_an_answer_not_a_crash() -> None:
    assert str(times.AMOUNT_DIGITS_MAX) in refusal(f"+{'9' * (times.AMOUNT_DIGITS_MAX + 1)}s").because
    assert str(times.TIME_LENGTH_MAX) in refusal("+" + " " * times.TIME_LENGTH_MAX + "1s").because
    largest = "9" * times.AMOUNT_DIGITS_MAX
    for unit in "YMDh":
        for sign in "+-":
            assert "1970 to 9999" in refusal(f"{sign}{largest}{unit}").because
    refusal("+1s", now=datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC))
    refusal("-1s", now=datetime(1970, 1, 1, tzinfo=UTC))
    refusal("+1D", now=datetime(9999, 12, 31, 12, tzinfo=UTC))
    refusal("+1h", now=datetime(9999, 12, 31, 20, tzinfo=UTC), zone=SHANGHAI)  # in Shanghai the calendar has ended


# --- a date and a time ---


@pytest.mark.spec("H13")
@pytest.mark.parametrize(
    ("text", "zone", "expected"),
    [
        ("2026-01-28T20:30", SHANGHAI, "2026-01-28T12:30:00+00:00"),
        ("2026-01-28 20:30", SHANGHAI, "2026-01-28T12:30:00+00:00"),
        ("2026-01-28T20:30", BERLIN, "2026-01-28T19:30:00+00:00"),
        ("2026-07-28T20:30", BERLIN, "2026-07-28T18:30:00+00:00"),
        ("2026-01-28T20:30:15", BERLIN, "2026-01-28T19:30:15+00:00"),
        ("2026-01-28 20:30:15.250", BERLIN, "2026-01-28T19:30:15.250+00:00"),
        ("  2026-01-28 20:30  ", BERLIN, "2026-01-28T19:30:00+00:00"),
        ("2024-02-29 00:00", NEW_YORK, "2024-02-29T05:00:00+00:00"),
    ],
)
def test_a_time_without_a_zone_is_read_in_the_owners(text: str, zone: ZoneInfo, expected: str) -> None:
    read = when(text, zone=zone)
    assert read == utc(expected)
    assert read.tzinfo is UTC


@pytest.mark.spec("H13")
@pytest.mark.parametrize("zone", [BERLIN, SHANGHAI, NEW_YORK])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-01-28T12:30Z", "2026-01-28T12:30:00+00:00"),
        ("2026-01-28T12:30:00.5Z", "2026-01-28T12:30:00.5+00:00"),
        ("2026-01-28 20:30:00+08:00", "2026-01-28T12:30:00+00:00"),
        ("2026-01-28T20:30+0800", "2026-01-28T12:30:00+00:00"),
        ("2026-01-28T20:30+08", "2026-01-28T12:30:00+00:00"),
        ("2026-01-28T12:30-00:00", "2026-01-28T12:30:00+00:00"),
        ("2026-01-28T09:00:00-03:30", "2026-01-28T12:30:00+00:00"),
    ],
)
def test_a_time_with_an_offset_means_the_same_in_every_zone(text: str, zone: ZoneInfo, expected: str) -> None:
    assert when(text, zone=zone) == utc(expected)


@pytest.mark.spec("H13")
@pytest.mark.parametrize(
    ("text", "zone", "expected"),
    [
        ("2026-03-29 01:59:59", BERLIN, "2026-03-29T01:59:59+01:00"),
        ("2026-03-29 02:00", BERLIN, "2026-03-29T03:00:00+02:00"),
        ("2026-03-29 02:30", BERLIN, "2026-03-29T03:30:00+02:00"),
        ("2026-03-29 03:00", BERLIN, "2026-03-29T03:00:00+02:00"),
        ("1986-05-04 02:30", SHANGHAI, "1986-05-04T03:30:00+09:00"),  # Shanghai had summer time then
        ("2026-03-29 02:30", SHANGHAI, "2026-03-29T02:30:00+08:00"),
        ("2011-12-30 10:00", ZoneInfo("Pacific/Apia"), "2011-12-31T10:00:00+14:00"),  # a day that Samoa left out
        ("2026-10-04 02:15", ZoneInfo("Australia/Lord_Howe"), "2026-10-04T02:45:00+11:00"),  # half an hour
    ],
)
def test_a_wall_time_that_is_skipped_moves_forward_by_the_gap(text: str, zone: ZoneInfo, expected: str) -> None:
    assert format_time(when(text, zone=zone), zone) == expected


@pytest.mark.spec("H13")
@pytest.mark.parametrize(
    ("text", "zone", "expected"),
    [
        ("2026-10-25 01:59:59", BERLIN, "2026-10-25T01:59:59+02:00"),
        ("2026-10-25 02:30", BERLIN, "2026-10-25T02:30:00+02:00"),
        ("2026-10-25 03:00", BERLIN, "2026-10-25T03:00:00+01:00"),
        ("1986-09-14 01:30", SHANGHAI, "1986-09-14T01:30:00+09:00"),
        ("2026-10-25 02:30", SHANGHAI, "2026-10-25T02:30:00+08:00"),
    ],
)
def test_of_a_wall_time_that_comes_twice_the_first_is_meant(text: str, zone: ZoneInfo, expected: str) -> None:
    assert format_time(when(text, zone=zone), zone) == expected


def test_a_past_time_is_returned_as_it_is() -> None:
    assert when("2001-01-01T00:00Z") == datetime(2001, 1, 1, tzinfo=UTC)
    assert when("-1Y") == datetime(2025, 1, 28, 12, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    "text",
    [
        "2026-01-28",
        "20:30",
        "2026-01-28T20",
        "2026-1-28T20:30",
        "2026-02-29T10:00",
        "2025-13-01T10:00",
        "2026-01-28T24:00",
        "2026-01-28T20:60",
        "2026-01-28T20:30:60Z",
        "2026-01-28T20:30+24:00",
        "2026-01-28T20:30+08:60",
        "2026-01-28T20:30 +08:00",
        "2026-01-28T20:30 Europe/Berlin",
        "2026-01-28t20:30z",
        "\u0662026-01-28T20:30",
        "2026-01-28T20:30\n2026-01-28T20:30",
        "0000-01-01T00:00Z",
        "1969-12-31T23:59:59Z",
        "1970-01-01T00:00+01:00",
        "9999-12-31T23:59-01:00",
    ],
)
def test_a_date_that_is_none_or_out_of_range_is_refused(text: str) -> None:
    refusal(text)


def test_the_first_and_the_last_moment_are_read() -> None:
    assert to_ms(when("1970-01-01T00:00Z")) == 0
    assert when("1969-12-31T19:00", zone=NEW_YORK) == datetime(1970, 1, 1, tzinfo=UTC)
    assert when("9999-12-31T23:59:59", zone=BERLIN) == datetime(9999, 12, 31, 22, 59, 59, tzinfo=UTC)


def test_a_refusal_shows_what_was_written_without_its_control_characters() -> None:
    assert "\x1b" not in refusal("+1\x1b[31mh").sentence


# --- properties ---


@settings(deadline=None)
@given(
    text=st.one_of(st.text(max_size=80), st.from_regex(r"[+-]([0-9]{1,12} ?[YMDhmsx]){1,6}", fullmatch=True)),
    zone=zones,
)
def test_whatever_is_written_becomes_a_time_in_range_or_a_refusal(text: str, zone: ZoneInfo) -> None:
    try:
        read = parse_time(text, now=NOW, zone=zone)
    except Invalid as refused:
        assert refused.code == "time.invalid"
    else:
        assert read.tzinfo is UTC
        assert times.YEAR_MIN <= read.year <= times.YEAR_MAX


@pytest.mark.spec("H12")
@settings(deadline=None)
@given(now=moments, zone=zones, h=st.integers(0, 99_999), m=st.integers(0, 99_999), s=st.integers(0, 99_999))
def test_hours_minutes_and_seconds_elapse_whatever_the_zone(
    now: datetime, zone: ZoneInfo, h: int, m: int, s: int
) -> None:
    assert parse_time(f"+{h}h{m}m{s}s", now=now, zone=zone) == now + timedelta(hours=h, minutes=m, seconds=s)


@pytest.mark.spec("H12")
@settings(deadline=None)
@given(now=moments, zone=zones, months=st.integers(1, 600))
def test_months_keep_the_wall_clock_or_move_it_forward_within_a_gap(now: datetime, zone: ZoneInfo, months: int) -> None:
    before = now.astimezone(zone)
    after = parse_time(f"+{months}M", now=now, zone=zone).astimezone(zone)
    index = before.year * 12 + before.month - 1 + months
    first_of_next = datetime((index + 1) // 12, (index + 1) % 12 + 1, 1)
    day = min(before.day, (first_of_next - timedelta(days=1)).day)
    expected = datetime(index // 12, index % 12 + 1, day, before.hour, before.minute, before.second, before.microsecond)
    moved = after.replace(tzinfo=None) - expected
    assert moved in (timedelta(), timedelta(hours=1), timedelta(minutes=30))
    if moved:  # then the wall clock never showed what was asked for
        shown = expected.replace(tzinfo=zone).astimezone(UTC).astimezone(zone)
        assert shown.replace(tzinfo=None) != expected


@pytest.mark.spec("H13")
@settings(deadline=None)
@given(moment=moments, zone=zones)
def test_what_is_shown_is_read_back(moment: datetime, zone: ZoneInfo) -> None:
    whole = moment.replace(microsecond=0)
    assert parse_time(format_time(whole, zone), now=NOW, zone=BERLIN) == whole


# --- showing, numbers, zones ---


def test_a_moment_is_shown_with_seconds_and_the_zones_offset() -> None:
    assert format_time(NOW, SHANGHAI) == "2026-01-28T20:30:00+08:00"
    assert format_time(NOW, BERLIN) == "2026-01-28T13:30:00+01:00"
    assert format_time(NOW.replace(microsecond=999_999), ZoneInfo("UTC")) == "2026-01-28T12:30:00+00:00"
    assert format_time(datetime(9999, 12, 31, 23, tzinfo=UTC), SHANGHAI) == "9999-12-31T23:00:00+00:00"


def test_milliseconds_are_exact_and_rounded_down() -> None:
    assert to_ms(datetime(1970, 1, 1, 0, 0, 0, 999, tzinfo=UTC)) == 0
    assert to_ms(datetime(1970, 1, 1, 0, 0, 0, 1000, tzinfo=UTC)) == 1
    assert to_ms(datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)) == -1
    assert to_ms(datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)) == 253_402_300_799_999
    assert to_ms(NOW.astimezone(SHANGHAI)) == to_ms(NOW)


@settings(deadline=None)
@given(st.integers(-62_135_596_800_000, 253_402_300_799_999))
def test_a_millisecond_survives_the_way_there_and_back(ms: int) -> None:
    assert to_ms(from_ms(ms)) == ms
    assert from_ms(ms).tzinfo is UTC


def test_a_number_beyond_the_calendar_is_refused() -> None:
    for ms in (253_402_300_800_000, 10**30, -(10**30), 10**5000):
        with pytest.raises(Invalid) as caught:
            from_ms(ms)
        assert caught.value.code == "time.invalid"


def test_a_zone_is_found_by_its_name() -> None:
    assert times.load_zone("Europe/Berlin") is BERLIN
    assert times.load_zone("UTC").key == "UTC"
    assert times.load_zone("Etc/GMT+8").key == "Etc/GMT+8"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "Europe",
        "Europe/Atlantis",
        "../../etc/passwd",
        "/etc/localtime",
        "localtime",
        "right/Europe/Berlin",
        "posix/Europe/Berlin",
        "zone.tab",
        "Europe/Berlin\n",
        "Europe/Berlin\x00",
        "\ud800",
        "A" * 5000,
        "+08:00",
    ],
)
def test_an_unknown_zone_is_refused_with_something_to_try(name: str) -> None:
    with pytest.raises(Invalid) as caught:
        times.load_zone(name)
    assert caught.value.code == "zone.unknown"
    assert caught.value.try_this


def test_a_misspelt_zone_is_answered_with_the_nearest() -> None:
    with pytest.raises(Invalid) as caught:
        times.load_zone("europe/berlin ")
    assert caught.value.try_this == "use Europe/Berlin"
