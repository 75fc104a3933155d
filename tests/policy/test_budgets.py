"""Test cost limits: a reservation is never below the actual cost, and a refusal names the limit and the next step."""

from __future__ import annotations

from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.agent import Agent
from retinue.domain.budget import (
    BudgetLimits,
    BudgetPeriod,
    BudgetSpent,
    ModelCallReservationRequest,
    PriceUnknown,
    date_of_day_number,
    day_number,
    format_usd,
)
from retinue.domain.budget_reservation import (
    BudgetBalance,
    BudgetPayer,
    budget_setting,
    budget_warning,
    grant_output_tokens,
    reset_date,
)
from retinue.domain.model import FREE_PRICE, ModelRef, Price
from retinue.domain.record import Usage
from retinue.policy.limits.budgets import (
    OUTPUT_TOKENS_MIN,
    affordable_output_tokens,
    build_budget_caps,
    compute_budget_days,
    max_cost_microusd,
    max_input_tokens,
)

CLAUDE = ModelRef("anthropic", "claude")
BERLIN = ZoneInfo("Europe/Berlin")
ADA = BudgetPayer(agent="ada", person="maria")
NOVEMBER = BudgetPeriod(day=20_772, month_first_day=20_758, month_last_day=20_787)  # 2026-11-15

tokens = st.integers(0, 2_000_000)
prices = st.builds(
    Price,
    input=st.integers(0, 200_000_000),
    output=st.integers(0, 200_000_000),
    cache_read=st.none() | st.integers(0, 300_000_000),
    cache_write=st.none() | st.integers(0, 300_000_000),
    call=st.integers(0, 100_000),
)


@st.composite
def usages(draw: st.DrawFn) -> Usage:
    total = draw(tokens)
    cached = draw(st.integers(0, total))
    return Usage(
        input_tokens=total,
        output_tokens=draw(tokens),
        cache_read_tokens=cached,
        cache_write_tokens=draw(st.integers(0, total - cached)),
    )


# Upper bounds of a cost


def test_the_budget_counts_two_bytes_as_a_token_until_the_ratio_is_calibrated() -> None:
    assert max_input_tokens(0) == 0
    assert max_input_tokens(3) == 2
    assert max_input_tokens(1_000, known_tokens=1_600) == 2_100


def test_the_budget_adds_a_margin_of_one_quarter_to_a_calibrated_input_estimate() -> None:
    assert max_input_tokens(1_000, tokens_per_byte=0.25) == 313
    assert max_input_tokens(1_000, known_tokens=100, tokens_per_byte=0.25) == 438


@pytest.mark.parametrize("nonsense", [0.0, -1.0, float("nan"), float("inf")])
def test_the_budget_ignores_an_invalid_token_calibration(nonsense: float) -> None:
    assert max_input_tokens(1_000, tokens_per_byte=nonsense) == 500


@given(price=prices, usage=usages(), spare=tokens, more=tokens)
def test_a_call_within_its_token_limits_never_costs_more_than_its_budget_reservation(
    price: Price, usage: Usage, spare: int, more: int
) -> None:
    bound = max_cost_microusd(price, input_tokens=usage.input_tokens + spare, output_tokens=usage.output_tokens + more)
    assert price.cost_microusd(usage) <= bound


@given(price=prices, input_tokens=tokens, wanted=tokens, left=st.integers(-(10**9), 10**12))
def test_affordable_output_tokens_is_the_largest_number_within_the_budget(
    price: Price, input_tokens: int, wanted: int, left: int
) -> None:
    found = affordable_output_tokens(
        price, input_tokens_max=input_tokens, output_tokens_max=wanted, remaining_microusd=left
    )
    assert 0 <= found <= wanted
    if max_cost_microusd(price, input_tokens=input_tokens, output_tokens=0) <= left:
        assert max_cost_microusd(price, input_tokens=input_tokens, output_tokens=found) <= left
    else:
        assert found == 0
    if 0 < found < wanted:
        assert max_cost_microusd(price, input_tokens=input_tokens, output_tokens=found + 1) > left


def test_a_free_model_has_no_budget_limit_on_output_tokens() -> None:
    assert (
        affordable_output_tokens(FREE_PRICE, input_tokens_max=10**6, output_tokens_max=8_192, remaining_microusd=0)
        == 8_192
    )


# Days


@pytest.mark.parametrize(
    ("moment", "day", "month"),
    [
        ("2026-11-30T22:59:59+00:00", date(2026, 11, 30), (date(2026, 11, 1), date(2026, 11, 30))),
        ("2026-11-30T23:00:00+00:00", date(2026, 12, 1), (date(2026, 12, 1), date(2026, 12, 31))),
        ("2028-02-01T00:00:00+00:00", date(2028, 2, 1), (date(2028, 2, 1), date(2028, 2, 29))),
        ("2026-10-25T00:30:00+00:00", date(2026, 10, 25), (date(2026, 10, 1), date(2026, 10, 31))),
    ],
)
def test_budget_days_and_months_use_the_time_zone_of_the_owner(
    moment: str, day: date, month: tuple[date, date]
) -> None:
    found = compute_budget_days(datetime.fromisoformat(moment), BERLIN)
    assert date_of_day_number(found.day) == day
    assert (date_of_day_number(found.month_first_day), date_of_day_number(found.month_last_day)) == month


def test_budget_day_numbers_count_from_1970_in_utc() -> None:
    assert day_number(date(1970, 1, 1)) == 0
    moment = datetime(2026, 11, 15, 12, tzinfo=UTC)
    assert compute_budget_days(moment, ZoneInfo("UTC")) == NOVEMBER
    assert int(moment.timestamp()) // 86_400 == NOVEMBER.day


# Limits


def test_the_lower_of_agent_and_server_budget_limits_applies() -> None:
    ada = Agent(name="ada", cost_microusd_max=500_000, tree_microusd_max=3_000_000, day_microusd_max=7)
    caps = build_budget_caps(ada, run_usd=1.0, tree_usd=2.0, server_month_usd=0.1, warn_share=0.5)
    assert caps == BudgetLimits(
        run_microusd=500_000,
        tree_microusd=2_000_000,
        agent_day_microusd=7,
        instance_month_microusd=100_000,
        warn_share=0.5,
    )
    assert caps.has_any and not build_budget_caps(Agent(name="bo")).has_any


def test_a_budget_limit_of_zero_is_a_limit() -> None:
    caps = build_budget_caps(Agent(name="ada"), server_day_usd=0)
    assert caps.instance_day_microusd == 0 and caps.has_any


# Allowed and refused

PRICE = Price(input=3_000_000, output=15_000_000)


def make_reservation_request(*, input_tokens: int = 1_000, output_tokens: int = 8_192) -> ModelCallReservationRequest:
    return ModelCallReservationRequest(
        ref=CLAUDE, price=PRICE, input_tokens_max=input_tokens, output_tokens_max=output_tokens
    )


def make_balance(what: str, cap: int, settled: int = 0, held: int = 0) -> BudgetBalance:
    return BudgetBalance(name=what, limit_microusd=cap, spent_microusd=settled, reserved_microusd=held)


def test_the_tightest_budget_limits_the_output_tokens() -> None:
    wide, tight = make_balance("instance's day", 10_000_000), make_balance("run", 100_000, 20_000, 20_000)
    assert (
        grant_output_tokens(make_reservation_request(), PRICE, [wide, tight], payer=ADA, period=NOVEMBER)
        == (60_000 - 3_000) // 15
    )
    assert grant_output_tokens(make_reservation_request(), PRICE, [wide], payer=ADA, period=NOVEMBER) == 8_192
    assert grant_output_tokens(make_reservation_request(), PRICE, [], payer=ADA, period=NOVEMBER) == 8_192


def test_a_call_is_refused_if_the_budget_allows_less_than_the_minimum_output() -> None:
    needs = max_cost_microusd(PRICE, input_tokens=1_000, output_tokens=OUTPUT_TOKENS_MIN)
    enough = make_balance("run", needs)
    assert (
        grant_output_tokens(make_reservation_request(), PRICE, [enough], payer=ADA, period=NOVEMBER)
        == OUTPUT_TOKENS_MIN
    )
    with pytest.raises(BudgetSpent):
        grant_output_tokens(
            make_reservation_request(), PRICE, [make_balance("run", needs - 1)], payer=ADA, period=NOVEMBER
        )


def test_the_budget_grants_a_reply_requested_below_the_minimum_output() -> None:
    needs = max_cost_microusd(PRICE, input_tokens=1_000, output_tokens=100)
    assert (
        grant_output_tokens(
            make_reservation_request(output_tokens=100), PRICE, [make_balance("run", needs)], payer=ADA, period=NOVEMBER
        )
        == 100
    )


def test_a_call_is_refused_if_the_budget_does_not_cover_its_input() -> None:
    with pytest.raises(BudgetSpent):
        grant_output_tokens(
            make_reservation_request(output_tokens=0), PRICE, [make_balance("run", 2_999)], payer=ADA, period=NOVEMBER
        )


@pytest.mark.parametrize(
    ("what", "budget", "try_this"),
    [
        ("run", "the budget of this run", "raise the lower of `cost_microusd_max` of agent 'ada' and "),
        ("tree", "the budget of this run and the runs it started", "raise the lower of `tree_microusd_max`"),
        ("agent's day", "the budget of agent 'ada' for today", "wait until 2026-11-16, or raise `day_microus"),
        ("agent's month", "the budget of agent 'ada' for this month", "wait until 2026-12-01, or raise `mon"),
        ("person's day", "the budget of 'maria' for today", "wait until 2026-11-16, or raise `budgets.perso"),
        (
            "instance's month",
            "the budget of this server for this month",
            "wait until 2026-12-01, or raise `budge",
        ),
    ],
)
def test_a_budget_refusal_names_the_limit_the_amounts_the_reset_date_and_the_setting(
    what: str, budget: str, try_this: str
) -> None:
    with pytest.raises(BudgetSpent) as refused:
        grant_output_tokens(
            make_reservation_request(),
            PRICE,
            [make_balance(what, 1_000_000, 950_000, 40_000)],
            payer=ADA,
            period=NOVEMBER,
        )
    assert refused.value.code == "budget.spent"
    assert refused.value.sentence == f"{budget} does not cover the next model call"
    assert refused.value.because == (
        "$0.95 of $1.00 is spent, $0.04 is reserved for calls in progress, and the next call may cost $0.018360"
    )
    assert refused.value.try_this.startswith(try_this)


def test_every_budget_limit_has_a_setting_key() -> None:
    keys = {what: budget_setting(what, "ada") for what in BudgetLimits().by_name()}
    assert keys["instance's day"] == "`budgets.instance_day_usd`"
    assert keys["person's month"] == "`budgets.person_month_usd`"
    assert len(set(keys.values())) == len(keys)
    assert reset_date("run", NOVEMBER) is None is reset_date("tree", NOVEMBER)


def test_a_budget_warning_comes_only_with_the_call_that_crosses_the_share() -> None:
    at = [make_balance("agent's day", 1_000_000, settled) for settled in (790_000, 800_000, 810_000)]
    assert [budget_warning(each, 0.8, last_microusd=10_000, payer=ADA) for each in at] == [
        None,
        "80% of the budget of agent 'ada' for today is spent: $0.80 of $1.00",
        None,
    ]


def test_the_budget_error_for_an_unknown_price_names_the_setting() -> None:
    error = PriceUnknown(CLAUDE)
    assert error.code == "model.price_unknown"
    assert '[models.entries."anthropic/claude"]' in error.try_this


@pytest.mark.parametrize(
    ("microusd", "shown"),
    [
        (0, "$0.00"),
        (300, "$0.0003"),
        (305, "$0.000305"),
        (1_500_000, "$1.50"),
        (1_234_567, "$1.2346"),
        (123_456_789, "$123.46"),
        (-5_000, "-$0.0050"),
        (10**12, "$1,000,000.00"),
    ],
)
def test_dollar_amounts_of_a_budget_are_formatted_with_enough_digits(microusd: int, shown: str) -> None:
    assert format_usd(microusd) == shown
