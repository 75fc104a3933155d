"""What was spent, as a terminal shows it and as a pipe gets it."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest

from retinue.cli.formatters import format_for_terminal, format_lines
from retinue.cli.usage_report import format_count, format_exact_usd

Form = dict[str, Any]


def used(key: str, *, cost: int = 0, calls: int = 1, tokens: tuple[int, int] = (1_000, 50), **more: int) -> Form:
    row = {
        "key": key,
        "calls": calls,
        "failed-calls": 0,
        "unknown-calls": 0,
        "input-tokens": tokens[0],
        "output-tokens": tokens[1],
        "cache-read-tokens": 0,
        "cache-write-tokens": 0,
        "reasoning-tokens": 0,
        "cost-microusd": cost,
        "unknown-microusd": 0,
        "held-microusd": 0,
    }
    return row | {name.replace("_", "-"): value for name, value in more.items()}


def shown(by: str, *rows: Form, total: Form | None = None, left_out: int = 0) -> Form:
    total = total or used("", cost=sum(row["cost-microusd"] for row in rows), calls=len(rows))
    said = {"by": by, "from": "2026-11-01", "to": "2026-11-15", "left-out": left_out}
    return said | {"rows": list(rows), "total": total}


WEEK = shown("day", used("2026-11-12", cost=250_000), used("2026-11-13", cost=1_000_000), used("2026-11-15", cost=1))


@pytest.fixture(autouse=True)
def stdout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))


def test_a_bar_for_each_day_is_as_long_as_the_day_was_dear_and_empty_days_are_days_too() -> None:
    assert format_for_terminal("usage.show", WEEK, 80) == [
        "2026-11-01 to 2026-11-15, by day",
        "",
        "2026-11-12  █████▊                       $0.25     1 call    1.0k in      50 out",
        "2026-11-13  ███████████████████████      $1.00     1 call    1.0k in      50 out",
        "2026-11-14                               $0.00",
        "2026-11-15  ▏                        $0.000001     1 call    1.0k in      50 out",
        "total                                  $1.2500    3 calls    1.0k in      50 out",
    ]


@pytest.mark.parametrize("width", range(4, 200, 7))
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    ids = shown("session", used("ab" * 16, cost=5), used("", cost=70_000), used("x" * 80, cost=1))
    for form in (WEEK, ids, shown("agent")):
        for line in format_for_terminal("usage.show", form, width)[2:]:
            assert len(line) <= width
    for line in format_for_terminal("usage.budgets", BUDGETS, width):
        assert len(line) <= width


def test_where_the_terminal_is_narrow_the_bars_go_last() -> None:
    [day] = [line for line in format_for_terminal("usage.show", WEEK, 40) if line.startswith("2026-11-13")]
    assert "█" in day and "call" not in day
    [day] = [line for line in format_for_terminal("usage.show", WEEK, 30) if line.startswith("2026-11-13")]
    assert "█" not in day and day.endswith("$1.00")


def test_where_nothing_cost_anything_the_bars_are_of_tokens() -> None:
    form = shown("agent", used("ada", tokens=(1_000, 0)), used("bo", tokens=(500, 0)))
    ada, bo = format_for_terminal("usage.show", form, 60)[2:4]
    assert ada.count("█") == 2 * bo.count("█") > 0


def test_a_terminal_that_knows_no_blocks_gets_plain_signs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="latin-1"))
    for form, operation in ((WEEK, "usage.show"), (BUDGETS, "usage.budgets")):
        lines = format_for_terminal(operation, form, 80)
        assert any("####" in line for line in lines)
        "\n".join(lines).encode("latin-1")


def test_what_is_not_certain_is_said_below() -> None:
    total = used("", cost=500_000, unknown_calls=2, unknown_microusd=20_000, held_microusd=5_000)
    lines = format_for_terminal("usage.show", shown("agent", used("ada", cost=500_000), total=total, left_out=3), 80)
    assert lines[-3:] == [
        "$0.02 of it is an upper limit: usage of those calls is unknown",
        "$0.0050 is reserved for calls in progress",
        "3 more not shown; the total includes them",
    ]
    unpriced = shown("agent", used("ada"), total=used("", unknown_calls=2))
    assert format_for_terminal("usage.show", unpriced, 80)[-1] == "the cost of 2 calls is unknown"


def test_nothing_used_is_said_so() -> None:
    assert format_for_terminal("usage.show", shown("day"), 80) == [
        "2026-11-01 to 2026-11-15, by day",
        "no usage",
    ]


def test_a_pipe_gets_keys_and_values() -> None:
    form = shown("agent", used("ada", cost=500_000, unknown_calls=1, unknown_microusd=20_000))
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
    "warn-share": 0.8,
    "budgets": [
        {
            "what": "house's day",
            "whose": "",
            "raised-by": "`budgets.house_day_usd`",
            "cap-microusd": 2_000_000,
            "spent-microusd": 500_000,
            "held-microusd": 100_000,
            "left-microusd": 1_400_000,
            "share": 0.25,
            "resets-on": "2026-11-16",
        },
        {
            "what": "agent's month",
            "whose": "ada",
            "raised-by": "`month_microusd_max` of agent 'ada'",
            "cap-microusd": 1_000_000,
            "spent-microusd": 1_250_000,
            "held-microusd": 0,
            "left-microusd": 0,
            "share": 1.25,
            "resets-on": "2026-12-01",
        },
        {
            "what": "run",
            "whose": "ada",
            "raised-by": "`cost_microusd_max` of agent 'ada'",
            "cap-microusd": 50_000,
            "spent-microusd": None,
            "held-microusd": None,
            "left-microusd": None,
            "share": None,
            "resets-on": None,
        },
    ],
}


def test_a_cap_is_a_gauge_and_one_that_is_nearly_full_is_marked() -> None:
    assert format_for_terminal("usage.budgets", BUDGETS, 80) == [
        "house's day        ██████▎░░░░░░░░░░░░░░░░░░    $0.50 of $2.00, until 2026-11-16",
        "agent's month ada  █████████████████████████  ! $1.25 of $1.00, until 2026-12-01",
        "run ada                                         $0.05 each",
    ]
    nothing = format_for_terminal("usage.budgets", BUDGETS | {"budgets": []}, 80)
    assert nothing[0].startswith("no budgets")


def test_into_a_pipe_each_cap_says_what_is_left_of_it_and_what_raises_it() -> None:
    assert format_lines("usage.budgets", BUDGETS)[:8] == [
        "budget: house's day",
        "cap: $2.00",
        "spent: $0.50",
        "held: $0.10",
        "left: $1.40",
        "resets-on: 2026-11-16",
        "raised-by: `budgets.house_day_usd`",
        "",
    ]
    assert format_lines("usage.budgets", BUDGETS | {"budgets": []}) == ["budgets: none"]


def test_numbers_are_short_and_amounts_exact_enough() -> None:
    assert [format_count(n) for n in (0, 999, 1_000, 12_345, 250_000, 4_500_000, 7 * 10**9)] == [
        *("0", "999", "1.0k", "12.3k", "250k", "4.5M", "7.0G")
    ]
    assert [format_exact_usd(n) for n in (0, 1, 10_000, 1_234_567, -300, 250_000_001)] == [
        *("$0.00", "$0.000001", "$0.01", "$1.2346", "-$0.0003", "$250.00")
    ]
