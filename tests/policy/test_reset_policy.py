"""Test when a context is reset. The rules are pure functions of facts and the wall clock time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain import address
from retinue.domain.envelope import EnvelopeKind
from retinue.domain.ids import SessionId
from retinue.domain.reset_rules import NO_RESET_RULES, REASONS_LENGTH_MAX, ResetRules, add_reason, parse_time_of_day
from retinue.domain.session import Origin, OriginKind, QueueOverride, Session, SessionActivity
from retinue.domain.session_keys import ChatType, connector_names
from retinue.domain.times import from_ms, to_ms
from retinue.policy.limits.reset_policy import (
    counts_as_activity,
    explain_context_limit,
    explain_due_reset,
    find_next_reset,
    resolve_reset_rules,
    starts_new_work,
)

BERLIN, UTC_ZONE = ZoneInfo("Europe/Berlin"), ZoneInfo("UTC")
DAILY_AT_FOUR = ResetRules(daily_at="4:00")


def at(text: str, zone: ZoneInfo = UTC_ZONE) -> int:
    return to_ms(datetime.fromisoformat(text).replace(tzinfo=zone).astimezone(UTC))


def make_session(
    *,
    began: int = 0,
    active: int = 0,
    kind: OriginKind = OriginKind.TERMINAL,
    key: str = "person:maria",
    chat_type: ChatType | None = None,
    said: int = 4,
) -> Session:
    """Return a session with this many records since its context began."""
    return Session(
        id=SessionId("5" * 32),
        agent="ada",
        origin=Origin(kind, key),
        name="",
        activity=SessionActivity.SLEEPING,
        queue=QueueOverride(),
        epoch=1,
        record_seq=3 + said,
        context_start_seq=3,
        revision=0,
        created_at=from_ms(0),
        updated_at=from_ms(0),
        snippet="",
        context_started_ms=began,
        last_active_ms=active,
        chat_type=chat_type,
    )


def explain_daily_reset(began: int, now: int, zone: ZoneInfo = UTC_ZONE, rules: ResetRules = DAILY_AT_FOUR) -> str:
    return explain_due_reset(rules, make_session(began=began, active=now - 1), now_ms=now, zone=zone)


# Daily resets


@pytest.mark.spec("H40", "C12")
def test_the_first_run_after_the_daily_boundary_resets_the_context_and_the_next_does_not() -> None:
    yesterday, boundary = at("2026-03-01 22:00"), at("2026-03-02 04:00")
    assert not explain_daily_reset(yesterday, boundary - 1)
    assert explain_daily_reset(yesterday, boundary) == "contexts are reset daily at 04:00 (2026-03-02T04:00:00+00:00)"
    assert explain_daily_reset(yesterday, boundary + 7 * 86_400_000), "however late that run starts"
    assert not explain_daily_reset(boundary, boundary + 1), "the context began at that boundary"
    assert not explain_daily_reset(boundary + 60_000, boundary + 86_399_999)


@pytest.mark.spec("H40", "C12")
def test_the_daily_reset_uses_the_time_zone_of_the_owner() -> None:
    evening = at("2026-07-01 20:00", BERLIN)
    assert not explain_daily_reset(evening, at("2026-07-02 03:59", BERLIN), BERLIN)
    assert explain_daily_reset(evening, at("2026-07-02 04:00", BERLIN), BERLIN)
    assert not explain_daily_reset(evening, at("2026-07-02 04:00", BERLIN), UTC_ZONE), "it is 02:00 in UTC"


@pytest.mark.spec("C12")
def test_a_daily_reset_in_a_skipped_dst_hour_happens_an_hour_later() -> None:
    rules = ResetRules(daily_at="02:30")
    began = at("2026-03-28 12:00", BERLIN)  # the night in which the clock goes from 02:00 to 03:00
    at_half_past_three = at("2026-03-29 03:30", BERLIN)
    assert not explain_daily_reset(began, at_half_past_three - 1, BERLIN, rules)
    assert explain_daily_reset(began, at_half_past_three, BERLIN, rules)
    assert not explain_daily_reset(at_half_past_three, at("2026-03-30 02:29", BERLIN), BERLIN, rules)


@pytest.mark.spec("C12")
def test_a_daily_reset_in_a_repeated_dst_hour_happens_once() -> None:
    rules = ResetRules(daily_at="02:30")
    first = to_ms(datetime(2026, 10, 25, 0, 30, tzinfo=UTC))  # 02:30 summer time; it occurs again an hour later
    assert explain_daily_reset(at("2026-10-24 12:00", BERLIN), first, BERLIN, rules)
    assert not explain_daily_reset(first, first + 3_600_000, BERLIN, rules), "not again"


ZONES = [ZoneInfo(name) for name in ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia", "UTC")]


@given(
    zone=st.sampled_from(ZONES),
    days=st.integers(0, 800),
    hour=st.integers(0, 23),
    minute=st.integers(0, 59),
    apart=st.integers(1, 200_000),
)
def test_a_daily_reset_is_due_exactly_when_the_next_reset_time_has_passed(
    zone: ZoneInfo, days: int, hour: int, minute: int, apart: int
) -> None:
    rules = ResetRules(daily_at=f"{hour:02}:{minute:02}")
    began = datetime(2026, 1, 1, 11, 7, tzinfo=UTC) + timedelta(days=days, seconds=apart % 86_399)
    now = began + timedelta(seconds=apart)
    found = find_next_reset(rules, make_session(began=to_ms(began)), now_ms=to_ms(began), zone=zone)
    assert found is not None and began < found.at <= began + timedelta(hours=49)
    assert bool(explain_daily_reset(to_ms(began), to_ms(now), zone, rules)) == (found.at <= now)


# Idle resets, and both rules together


@pytest.mark.spec("H41", "C12")
def test_an_idle_reset_is_due_only_after_more_than_the_idle_minutes() -> None:
    rules, last = ResetRules(idle_minutes=30), at("2026-03-01 12:00")
    session = make_session(began=last - 86_400_000, active=last)
    half_an_hour = last + 30 * 60_000
    assert not explain_due_reset(rules, session, now_ms=half_an_hour, zone=UTC_ZONE)
    because = explain_due_reset(rules, session, now_ms=half_an_hour + 1, zone=UTC_ZONE)
    assert because == "there was no activity for over 30 minutes, since 2026-03-01T12:00:00+00:00"


@pytest.mark.spec("C12")
def test_the_earlier_of_daily_and_idle_reset_wins() -> None:
    rules = ResetRules(daily_at="04:00", idle_minutes=60)
    late = at("2026-03-01 23:30")
    session = make_session(began=at("2026-03-01 09:00"), active=late)
    found = find_next_reset(rules, session, now_ms=late, zone=UTC_ZONE)
    assert found == (from_ms(late + 3_600_000), "idle")
    at_night = make_session(began=late, active=at("2026-03-02 03:30"))
    assert find_next_reset(rules, at_night, now_ms=at("2026-03-02 03:30"), zone=UTC_ZONE) == (
        from_ms(at("2026-03-02 04:00")),
        "daily",
    )
    assert "contexts are reset daily" in explain_due_reset(
        rules, at_night, now_ms=at("2026-03-02 04:01"), zone=UTC_ZONE
    )
    assert "there was no activity" in explain_due_reset(rules, session, now_ms=at("2026-03-02 00:31"), zone=UTC_ZONE)


def test_a_context_without_records_is_never_reset() -> None:
    session = make_session(said=0)
    assert not explain_due_reset(DAILY_AT_FOUR, session, now_ms=at("2026-03-02 05:00"), zone=UTC_ZONE)
    assert find_next_reset(DAILY_AT_FOUR, session, now_ms=at("2026-03-02 05:00"), zone=UTC_ZONE) is None
    assert explain_due_reset(DAILY_AT_FOUR, make_session(), now_ms=at("2026-03-02 05:00"), zone=UTC_ZONE)


@pytest.mark.parametrize("rules", [NO_RESET_RULES, ResetRules(daily_at="never", idle_minutes=0, context_tokens_max=0)])
def test_without_reset_rules_a_context_is_never_reset(rules: ResetRules) -> None:
    assert not explain_due_reset(rules, make_session(), now_ms=at("2030-01-01 00:00"), zone=UTC_ZONE)
    assert find_next_reset(rules, make_session(), now_ms=at("2030-01-01 00:00"), zone=UTC_ZONE) is None
    assert not explain_context_limit(rules, 10**9)


@pytest.mark.spec("H42")
def test_a_reset_by_context_limit_is_due_only_if_the_known_length_is_above_the_limit() -> None:
    rules = ResetRules(context_tokens_max=1_000)
    assert explain_context_limit(rules, 1_001) == "the context had 1,001 tokens, and the limit is 1,000 tokens"
    assert not explain_context_limit(rules, 1_000)
    assert not explain_context_limit(rules, None)


# Activity


@pytest.mark.parametrize(
    ("sender", "kind", "counts"),
    [
        ("person:maria", OriginKind.WEB, True),
        ("channel:telegram:42", OriginKind.CHAT, True),
        ("agent:bo", OriginKind.AGENT, True),
        ("schedule:0123abcd", OriginKind.WEB, False),
        ("schedule:0123abcd", OriginKind.HEARTBEAT, False),
        ("schedule:0123abcd", OriginKind.SCHEDULE, True),
    ],
)
def test_a_schedule_envelope_counts_as_activity_for_resets_only_in_a_schedule_session(
    sender: str, kind: OriginKind, *, counts: bool
) -> None:
    assert counts_as_activity(address.parse_address(sender), Origin(kind, "key")) is counts


def test_for_the_reset_policy_answers_notices_and_decisions_do_not_start_new_work() -> None:
    assert {kind for kind in EnvelopeKind if not starts_new_work(kind)} == {
        EnvelopeKind.ANSWER,
        EnvelopeKind.NOTICE,
        EnvelopeKind.DECISION,
    }


# Which setting wins


@pytest.mark.spec("C12")
def test_each_reset_rule_comes_from_the_most_specific_setting() -> None:
    server = ResetRules(daily_at="01:00", idle_minutes=1, context_tokens_max=1)
    by_kind = {"chat": ResetRules(daily_at="02:00", idle_minutes=2), "group": ResetRules(daily_at="03:00")}
    by_channel = {"telegram": ResetRules(daily_at="04:00")}

    def resolve_rules(session: Session, own: ResetRules = NO_RESET_RULES) -> tuple[object, ...]:
        rules = resolve_reset_rules(session, own, server, by_kind=by_kind, by_channel=by_channel)
        return rules.daily_at, rules.idle_minutes, rules.context_tokens_max

    assert resolve_rules(make_session()) == ("01:00", 1, 1)
    chat = make_session(kind=OriginKind.CHAT, key="channel:irc:42")
    assert resolve_rules(chat) == ("02:00", 2, 1)
    assert resolve_rules(make_session(kind=OriginKind.CHAT, key="channel:irc:42", chat_type=ChatType.GROUP)) == (
        "03:00",
        2,
        1,
    )
    telegram = make_session(kind=OriginKind.CHAT, key="channel:telegram:42", chat_type=ChatType.GROUP)
    assert resolve_rules(telegram) == ("04:00", 2, 1)
    assert resolve_rules(telegram, ResetRules(daily_at="never")) == ("never", 2, 1)
    known_by_key = make_session(kind=OriginKind.CHAT, key="agent:ada:telegram:work:direct:42")
    assert resolve_rules(known_by_key) == ("04:00", 2, 1)


@pytest.mark.parametrize("kind", ["subagent", "background", "schedule", "heartbeat"])
def test_subagent_and_schedule_sessions_have_no_reset_rules_unless_set_for_their_kind(kind: str) -> None:
    session = make_session(kind=OriginKind(kind), key="5" * 32)
    assert resolve_reset_rules(session, DAILY_AT_FOUR, DAILY_AT_FOUR, by_kind={}, by_channel={}) == NO_RESET_RULES
    named = {kind: ResetRules(idle_minutes=5)}
    assert resolve_reset_rules(session, DAILY_AT_FOUR, DAILY_AT_FOUR, by_kind=named, by_channel={}) == ResetRules(
        idle_minutes=5
    )


@pytest.mark.parametrize(
    ("key", "names"),
    [
        ("channel:telegram:-100:7", ("telegram",)),
        ("agent:ada:telegram:work:direct:42", ("work", "telegram")),
        ("agent:ada:telegram:group:-100", ("telegram",)),
        ("agent:ada:main", ()),
        ("person:maria/garden", ()),
        ("", ()),
    ],
)
def test_connector_names_for_reset_rules_are_parsed_from_the_session_key(key: str, names: tuple[str, ...]) -> None:
    assert connector_names(key) == names


def test_reset_times_of_day_are_parsed_strictly_and_reset_reasons_are_joined_once() -> None:
    assert [str(parse_time_of_day(text)) for text in ("4:05", "04:05", "23:59", "0:00")] == [
        "04:05:00",
        "04:05:00",
        "23:59:00",
        "00:00:00",
    ]
    assert {parse_time_of_day(text) for text in ("24:00", "4", "04:60", "never", "", "4:5", " 4:05", "٤:٠٥")} == {None}
    assert add_reason("", "one") == "one"
    assert add_reason("one", "two") == "one; two" and add_reason("one; two", "two") == "one; two"
    assert len(add_reason("x" * REASONS_LENGTH_MAX, "more")) == REASONS_LENGTH_MAX
