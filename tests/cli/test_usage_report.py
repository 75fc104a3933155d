"""The usage report at a terminal and in a pipe."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest

from retinue.cli.formatters import format_for_terminal, format_lines
from retinue.cli.usage_report import format_count, format_exact_usd

JsonObject = dict[str, Any]


def usage_row(
    key: str, *, cost: int = 0, calls: int = 1, tokens: tuple[int, int] = (1_000, 50), **more: int
) -> JsonObject:
    row = {
        "key": key,
        "calls": calls,
        "failed_calls": 0,
        "unknown_calls": 0,
        "input_tokens": tokens[0],
        "output_tokens": tokens[1],
        "cache_read_tokens": 0,
        "cache_write_tokens": 0,
        "reasoning_tokens": 0,
        "cost_microusd": cost,
        "unknown_microusd": 0,
        "reserved_microusd": 0,
    }
    return row | more


def usage_response(by: str, *rows: JsonObject, total: JsonObject | None = None, left_out: int = 0) -> JsonObject:
    total = total or usage_row("", cost=sum(row["cost_microusd"] for row in rows), calls=len(rows))
    said = {"by": by, "from": "2026-11-01", "to": "2026-11-15", "omitted_count": left_out}
    return said | {"rows": list(rows), "total": total}


WEEK_USAGE = usage_response(
    "day",
    usage_row("2026-11-12", cost=250_000),
    usage_row("2026-11-13", cost=1_000_000),
    usage_row("2026-11-15", cost=1),
)


@pytest.fixture(autouse=True)
def utf8_stdout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))


def test_a_usage_report_has_a_bar_proportional_to_the_cost_of_each_day_and_lists_empty_days() -> None:
    assert format_for_terminal("usage.show", WEEK_USAGE, 80) == [
        "2026-11-01 to 2026-11-15, by day",
        "",
        "2026-11-12  █████▊                       $0.25     1 call    1.0k in      50 out",
        "2026-11-13  ███████████████████████      $1.00     1 call    1.0k in      50 out",
        "2026-11-14                               $0.00",
        "2026-11-15  ▏                        $0.000001     1 call    1.0k in      50 out",
        "total                                  $1.2500    3 calls    1.0k in      50 out",
    ]


@pytest.mark.parametrize("width", range(4, 200, 7))
def test_no_line_of_a_usage_report_is_wider_than_the_terminal(width: int) -> None:
    ids = usage_response(
        "session", usage_row("ab" * 16, cost=5), usage_row("", cost=70_000), usage_row("x" * 80, cost=1)
    )
    for form in (WEEK_USAGE, ids, usage_response("agent")):
        for line in format_for_terminal("usage.show", form, width)[2:]:
            assert len(line) <= width
    for line in format_for_terminal("usage.budgets", BUDGETS, width):
        assert len(line) <= width


def test_a_usage_report_on_a_narrow_terminal_omits_first_the_counts_and_then_the_bars() -> None:
    [day] = [line for line in format_for_terminal("usage.show", WEEK_USAGE, 40) if line.startswith("2026-11-13")]
    assert "█" in day and "call" not in day
    [day] = [line for line in format_for_terminal("usage.show", WEEK_USAGE, 30) if line.startswith("2026-11-13")]
    assert "█" not in day and day.endswith("$1.00")


def test_the_bars_of_a_usage_report_without_costs_show_tokens() -> None:
    form = usage_response("agent", usage_row("ada", tokens=(1_000, 0)), usage_row("bo", tokens=(500, 0)))
    ada, bo = format_for_terminal("usage.show", form, 60)[2:4]
    assert ada.count("█") == 2 * bo.count("█") > 0


def test_a_usage_report_has_ascii_bars_on_a_terminal_without_block_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="latin-1"))
    for form, operation in ((WEEK_USAGE, "usage.show"), (BUDGETS, "usage.budgets")):
        lines = format_for_terminal(operation, form, 80)
        assert any("####" in line for line in lines)
        "\n".join(lines).encode("latin-1")


def test_uncertain_amounts_are_explained_below_the_table_of_a_usage_report() -> None:
    total = usage_row("", cost=500_000, unknown_calls=2, unknown_microusd=20_000, reserved_microusd=5_000)
    lines = format_for_terminal(
        "usage.show", usage_response("agent", usage_row("ada", cost=500_000), total=total, left_out=3), 80
    )
    assert lines[-3:] == [
        "$0.02 of it is an upper limit, for calls whose usage is unknown",
        "$0.0050 is reserved for calls in progress",
        "3 more not shown; the total includes them",
    ]
    unpriced = usage_response("agent", usage_row("ada"), total=usage_row("", unknown_calls=2))
    assert format_for_terminal("usage.show", unpriced, 80)[-1] == "the cost of 2 calls is unknown"


def test_a_usage_report_without_calls_says_no_usage() -> None:
    assert format_for_terminal("usage.show", usage_response("day"), 80) == [
        "2026-11-01 to 2026-11-15, by day",
        "no usage",
    ]


def test_piped_usage_is_printed_as_keys_and_values() -> None:
    form = usage_response("agent", usage_row("ada", cost=500_000, unknown_calls=1, unknown_microusd=20_000))
    assert format_lines("usage.show", form) == [
        "agent: ada",
        "calls: 1",
        "input-tokens: 1000",
        "output-tokens: 50",
        "cache-read-tokens: 0",
        "cache-write-tokens: 0",
        "reasoning-tokens: 0",
        "cost: $0.50",
        "unknown-calls: 1",
        "unknown-cost: $0.02",
        "",
        "from: 2026-11-01",
        "to: 2026-11-15",
        "total-calls: 1",
        "total-input-tokens: 1000",
        "total-output-tokens: 50",
        "total-cache-read-tokens: 0",
        "total-cache-write-tokens: 0",
        "total-reasoning-tokens: 0",
        "total-cost: $0.50",
    ]


BUDGETS = {
    "today": "2026-11-15",
    "warn_share": 0.8,
    "budgets": [
        {
            "name": "instance's day",
            "owner": "",
            "setting": "`budgets.instance_day_usd`",
            "cap_microusd": 2_000_000,
            "spent_microusd": 500_000,
            "reserved_microusd": 100_000,
            "left_microusd": 1_400_000,
            "share": 0.25,
            "resets_on": "2026-11-16",
        },
        {
            "name": "agent's month",
            "owner": "ada",
            "setting": "`month_microusd_max` of agent 'ada'",
            "cap_microusd": 1_000_000,
            "spent_microusd": 1_250_000,
            "reserved_microusd": 0,
            "left_microusd": 0,
            "share": 1.25,
            "resets_on": "2026-12-01",
        },
        {
            "name": "run",
            "owner": "ada",
            "setting": "`cost_microusd_max` of agent 'ada'",
            "cap_microusd": 50_000,
            "spent_microusd": None,
            "reserved_microusd": None,
            "left_microusd": None,
            "share": None,
            "resets_on": None,
        },
    ],
}


def test_a_usage_report_shows_each_budget_as_a_gauge_with_a_mark_past_the_warning_share() -> None:
    assert format_for_terminal("usage.budgets", BUDGETS, 80) == [
        "instance's day     ██████▎░░░░░░░░░░░░░░░░░░    $0.50 of $2.00, until 2026-11-16",
        "agent's month ada  █████████████████████████  ! $1.25 of $1.00, until 2026-12-01",
        "run ada                                         $0.05 each",
    ]
    nothing = format_for_terminal("usage.budgets", BUDGETS | {"budgets": []}, 80)
    assert nothing[0].startswith("no budgets")


def test_budgets_of_a_piped_usage_report_show_the_amount_left_and_the_setting_of_the_budget() -> None:
    assert format_lines("usage.budgets", BUDGETS)[:8] == [
        "name: instance's day",
        "cap: $2.00",
        "spent: $0.50",
        "reserved: $0.10",
        "left: $1.40",
        "resets-on: 2026-11-16",
        "setting: `budgets.instance_day_usd`",
        "",
    ]
    assert format_lines("usage.budgets", BUDGETS | {"budgets": []}) == ["budgets: none"]


def test_a_usage_report_abbreviates_counts_and_rounds_amounts() -> None:
    assert [format_count(n) for n in (0, 999, 1_000, 12_345, 250_000, 4_500_000, 7 * 10**9)] == [
        *("0", "999", "1.0k", "12.3k", "250k", "4.5M", "7.0G")
    ]
    assert [format_exact_usd(n) for n in (0, 1, 10_000, 1_234_567, -300, 250_000_001)] == [
        *("$0.00", "$0.000001", "$0.01", "$1.2346", "-$0.0003", "$250.00")
    ]
