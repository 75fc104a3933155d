"""Test times as people write them: parsing, errors, and that numbers and moments survive a round trip."""

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


def to_utc(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def parse(text: str, *, now: str | datetime = NOW, zone: ZoneInfo = BERLIN) -> datetime:
    return parse_time(text, now=to_utc(now) if isinstance(now, str) else now, zone=zone)


def get_refusal(text: str, *, now: datetime = NOW, zone: ZoneInfo = BERLIN) -> Invalid:
    with pytest.raises(Invalid) as caught:
        parse_time(text, now=now, zone=zone)
    assert caught.value.code == "time.invalid"
    assert caught.value.because
    assert caught.value.try_this
    return caught.value


# --- relative times ---


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
        ("+1Y2M3D4h5m6s", "2027-03-31T15:35:06+00:00"),  # the wall clock counts: no hour is lost to summer time
        ("-1D", "2026-01-27T12:30:00+00:00"),
        ("-2h", "2026-01-28T10:30:00+00:00"),
        ("+0s", "2026-01-28T12:30:00+00:00"),
        ("+007m", "2026-01-28T12:37:00+00:00"),
    ],
)
def test_a_relative_time_combines_its_units(text: str, expected: str) -> None:
    assert parse(text) == to_utc(expected)


@pytest.mark.spec("H12")
def test_units_of_a_relative_time_may_come_in_any_order_and_with_spaces() -> None:
    expected = parse("+1D2h30m")
    for text in ("+30m2h1D", " + 1D 2h\t30m ", "+1 D 2 h 3 0 m", "+2h1D30m"):
        assert parse(text) == expected


@pytest.mark.spec("H12")
def test_an_uppercase_m_in_a_relative_time_means_months_and_a_lowercase_m_minutes() -> None:
    assert parse("+1M") == to_utc("2026-02-28T12:30:00+00:00")
    assert parse("+1m") == to_utc("2026-01-28T12:31:00+00:00")
    assert "m is minutes" in get_refusal("+1d").because
    for text in ("+1y", "+1H", "+1S"):
        get_refusal(text)


def test_a_relative_time_with_a_repeated_unit_is_refused() -> None:
    assert get_refusal("+1h30h").because == "the unit h appears twice"


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
        ("2096-02-29T10:00:00+01:00", "+4Y", "2100-02-28T10:00:00+01:00"),  # 2100 is not a leap year
        ("2024-01-31T10:00:00+01:00", "+1Y1M", "2025-02-28T10:00:00+01:00"),  # added, then clamped once
        ("2026-01-31T10:00:00+01:00", "+1M1D", "2026-03-01T10:00:00+01:00"),  # clamped before days are added
    ],
)
def test_a_relative_time_of_months_to_a_day_missing_in_the_month_gives_its_last_day(
    now: str, text: str, expected: str
) -> None:
    assert parse(text, now=now) == to_utc(expected)


@pytest.mark.spec("H12")
def test_calendar_units_are_added_in_the_time_zone_of_the_owner() -> None:
    now = "2026-01-31T20:00:00+00:00"  # already 1 February in Shanghai, still January in Berlin
    assert parse("+1M", now=now, zone=SHANGHAI) == to_utc("2026-03-01T04:00:00+08:00")
    assert parse("+1M", now=now, zone=BERLIN) == to_utc("2026-02-28T21:00:00+01:00")


@pytest.mark.spec("H12")
def test_a_day_keeps_the_local_time_and_24_hours_the_elapsed_time_across_clock_changes() -> None:
    spring = "2026-03-28T12:00:00+01:00"
    assert parse("+1D", now=spring) == to_utc("2026-03-29T12:00:00+02:00")
    assert parse("+24h", now=spring) == to_utc("2026-03-29T13:00:00+02:00")
    autumn = "2026-10-24T12:00:00+02:00"
    assert parse("+1D", now=autumn) == to_utc("2026-10-25T12:00:00+01:00")
    assert parse("+24h", now=autumn) == to_utc("2026-10-25T11:00:00+01:00")
    assert parse("+1D", now=autumn, zone=SHANGHAI) == parse("+24h", now=autumn, zone=SHANGHAI)


@pytest.mark.spec("H12")
def test_a_time_a_day_later_moves_forward_from_a_skipped_hour_and_is_the_first_in_a_repeated_one() -> None:
    assert parse("+1D", now="2026-03-28T02:30:00+01:00") == to_utc("2026-03-29T03:30:00+02:00")
    assert parse("+1D", now="2026-10-24T02:30:00+02:00") == to_utc("2026-10-25T02:30:00+02:00")
    assert parse("+1D30m", now="2026-03-28T02:30:00+01:00") == to_utc("2026-03-29T04:00:00+02:00")


def test_elapsed_time_and_zero_days_in_a_repeated_hour_do_not_jump_back() -> None:
    second = to_utc("2026-10-25T02:30:00+01:00")
    assert parse("+0D", now=second) == second
    assert parse("+10m", now=second) == second + timedelta(minutes=10)


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
def test_invalid_time_text_is_refused_with_a_reason_and_examples(text: str) -> None:
    get_refusal(text)


def test_times_beyond_the_supported_limits_are_refused() -> None:
    assert str(times.AMOUNT_DIGITS_MAX) in get_refusal(f"+{'9' * (times.AMOUNT_DIGITS_MAX + 1)}s").because
    assert str(times.TIME_LENGTH_MAX) in get_refusal("+" + " " * times.TIME_LENGTH_MAX + "1s").because
    largest = "9" * times.AMOUNT_DIGITS_MAX
    for unit in "YMDh":
        for sign in "+-":
            assert "1970 to 9999" in get_refusal(f"{sign}{largest}{unit}").because
    get_refusal("+1s", now=datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC))
    get_refusal("-1s", now=datetime(1970, 1, 1, tzinfo=UTC))
    get_refusal("+1D", now=datetime(9999, 12, 31, 12, tzinfo=UTC))
    get_refusal("+1h", now=datetime(9999, 12, 31, 20, tzinfo=UTC), zone=SHANGHAI)  # the calendar ends earlier there


# --- dates and times ---


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
def test_a_time_without_an_offset_is_read_in_the_time_zone_of_the_owner(
    text: str, zone: ZoneInfo, expected: str
) -> None:
    read = parse(text, zone=zone)
    assert read == to_utc(expected)
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
    assert parse(text, zone=zone) == to_utc(expected)


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
        ("2011-12-30 10:00", ZoneInfo("Pacific/Apia"), "2011-12-31T10:00:00+14:00"),  # a day that Samoa skipped
        ("2026-10-04 02:15", ZoneInfo("Australia/Lord_Howe"), "2026-10-04T02:45:00+11:00"),  # an offset of half an hour
    ],
)
def test_a_local_time_in_a_skipped_hour_moves_forward_by_the_gap(text: str, zone: ZoneInfo, expected: str) -> None:
    assert format_time(parse(text, zone=zone), zone) == expected


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
def test_a_repeated_local_time_means_its_first_occurrence(text: str, zone: ZoneInfo, expected: str) -> None:
    assert format_time(parse(text, zone=zone), zone) == expected


def test_a_past_time_is_returned_unchanged() -> None:
    assert parse("2001-01-01T00:00Z") == datetime(2001, 1, 1, tzinfo=UTC)
    assert parse("-1Y") == datetime(2025, 1, 28, 12, 30, tzinfo=UTC)


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
def test_a_time_with_an_invalid_or_out_of_range_date_is_refused(text: str) -> None:
    get_refusal(text)


def test_the_first_and_the_last_supported_times_are_parsed() -> None:
    assert to_ms(parse("1970-01-01T00:00Z")) == 0
    assert parse("1969-12-31T19:00", zone=NEW_YORK) == datetime(1970, 1, 1, tzinfo=UTC)
    assert parse("9999-12-31T23:59:59", zone=BERLIN) == datetime(9999, 12, 31, 22, 59, 59, tzinfo=UTC)


def test_a_time_error_shows_the_text_without_control_characters() -> None:
    assert "\x1b" not in get_refusal("+1\x1b[31mh").sentence


# --- properties ---


@settings(deadline=None)
@given(
    text=st.one_of(st.text(max_size=80), st.from_regex(r"[+-]([0-9]{1,12} ?[YMDhmsx]){1,6}", fullmatch=True)),
    zone=zones,
)
def test_arbitrary_text_becomes_a_time_in_range_or_is_refused(text: str, zone: ZoneInfo) -> None:
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
def test_hours_minutes_and_seconds_are_elapsed_time_in_every_zone(
    now: datetime, zone: ZoneInfo, h: int, m: int, s: int
) -> None:
    assert parse_time(f"+{h}h{m}m{s}s", now=now, zone=zone) == now + timedelta(hours=h, minutes=m, seconds=s)


@pytest.mark.spec("H12")
@settings(deadline=None)
@given(now=moments, zone=zones, months=st.integers(1, 600))
def test_added_months_keep_the_local_time_or_move_it_forward_in_a_gap(
    now: datetime, zone: ZoneInfo, months: int
) -> None:
    before = now.astimezone(zone)
    after = parse_time(f"+{months}M", now=now, zone=zone).astimezone(zone)
    index = before.year * 12 + before.month - 1 + months
    first_of_next = datetime((index + 1) // 12, (index + 1) % 12 + 1, 1)
    day = min(before.day, (first_of_next - timedelta(days=1)).day)
    expected = datetime(index // 12, index % 12 + 1, day, before.hour, before.minute, before.second, before.microsecond)
    moved = after.replace(tzinfo=None) - expected
    assert moved in (timedelta(), timedelta(hours=1), timedelta(minutes=30))
    if moved:  # then the wall clock never showed the requested time
        shown = expected.replace(tzinfo=zone).astimezone(UTC).astimezone(zone)
        assert shown.replace(tzinfo=None) != expected


@pytest.mark.spec("H13")
@settings(deadline=None)
@given(moment=moments, zone=zones)
def test_a_formatted_time_round_trips(moment: datetime, zone: ZoneInfo) -> None:
    whole = moment.replace(microsecond=0)
    assert parse_time(format_time(whole, zone), now=NOW, zone=BERLIN) == whole


# --- formatting, numbers, zones ---


def test_a_time_is_formatted_with_seconds_and_the_offset_of_the_zone() -> None:
    assert format_time(NOW, SHANGHAI) == "2026-01-28T20:30:00+08:00"
    assert format_time(NOW, BERLIN) == "2026-01-28T13:30:00+01:00"
    assert format_time(NOW.replace(microsecond=999_999), ZoneInfo("UTC")) == "2026-01-28T12:30:00+00:00"
    assert format_time(datetime(9999, 12, 31, 23, tzinfo=UTC), SHANGHAI) == "9999-12-31T23:00:00+00:00"


def test_a_time_in_milliseconds_is_exact_and_rounded_down() -> None:
    assert to_ms(datetime(1970, 1, 1, 0, 0, 0, 999, tzinfo=UTC)) == 0
    assert to_ms(datetime(1970, 1, 1, 0, 0, 0, 1000, tzinfo=UTC)) == 1
    assert to_ms(datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)) == -1
    assert to_ms(datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)) == 253_402_300_799_999
    assert to_ms(NOW.astimezone(SHANGHAI)) == to_ms(NOW)


@settings(deadline=None)
@given(st.integers(-62_135_596_800_000, 253_402_300_799_999))
def test_a_time_in_milliseconds_round_trips(ms: int) -> None:
    assert to_ms(from_ms(ms)) == ms
    assert from_ms(ms).tzinfo is UTC


def test_a_time_in_milliseconds_beyond_the_calendar_is_refused() -> None:
    for ms in (253_402_300_800_000, 10**30, -(10**30), 10**5000):
        with pytest.raises(Invalid) as caught:
            from_ms(ms)
        assert caught.value.code == "time.invalid"


def test_a_time_zone_is_loaded_by_its_name() -> None:
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
def test_an_unknown_time_zone_is_refused_with_a_next_step(name: str) -> None:
    with pytest.raises(Invalid) as caught:
        times.load_zone(name)
    assert caught.value.code == "zone.unknown"
    assert caught.value.try_this


def test_a_misspelled_time_zone_is_refused_with_the_closest_name() -> None:
    with pytest.raises(Invalid) as caught:
        times.load_zone("europe/berlin ")
    assert caught.value.try_this == "use Europe/Berlin"
