"""Formats usage, costs and budgets: as bars on a terminal, and as `key: value` lines in a pipe."""

from __future__ import annotations

import sys

from retinue.cli.output import format_pair, format_pairs, format_quantity, join_blocks, shorten_id, to_kebab_case

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    JsonObject = dict[str, Any]

EIGHTH_BLOCKS = " ▏▎▍▌▋▊▉"
FULL_BLOCK, EMPTY_BLOCK = "█", "░"
BAR_CHARS_MIN, BAR_CHARS_MAX = 8, 60
LABEL_CHARS_MAX = 40
DAYS_FILLED_MAX = 62
GAP = "  "
TOKEN_KEYS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens")


# For pipes


def format_usage_lines(data: JsonObject) -> list[str]:
    rows = [format_pair(data["by"], row["key"]) + _format_numbers(row) for row in data["rows"]]
    total = format_pairs(data, ("from", "to")) + _format_numbers(data["total"], "total-")
    omitted = format_pairs(data, ("omitted_count",)) if data["omitted_count"] else []
    return join_blocks([*rows, total + omitted])


def _format_numbers(row: JsonObject, prefix: str = "") -> list[str]:
    lines = [f"{prefix}{to_kebab_case(key)}: {row[key]}" for key in ("calls", *TOKEN_KEYS)]
    lines.append(f"{prefix}cost: {format_exact_usd(row['cost_microusd'])}")
    if row["unknown_calls"]:
        lines.append(f"{prefix}unknown-calls: {row['unknown_calls']}")
        lines.append(f"{prefix}unknown-cost: {format_exact_usd(row['unknown_microusd'])}")
    if row["reserved_microusd"]:
        lines.append(f"{prefix}reserved: {format_exact_usd(row['reserved_microusd'])}")
    return lines


def format_budget_lines(data: JsonObject) -> list[str]:
    shown: list[list[str]] = []
    for budget in data["budgets"]:
        lines = format_pairs(budget, ("name", "owner") if budget["owner"] else ("name",))
        for key in ("cap", "spent", "reserved", "left"):
            if budget[f"{key}_microusd"] is not None:
                lines += format_pair(key, format_exact_usd(budget[f"{key}_microusd"]))
        lines += format_pair("resets-on", budget["resets_on"]) if budget["resets_on"] else []
        shown.append(lines + format_pair("setting", budget["setting"]))
    return join_blocks(shown) if shown else ["budgets: none"]


# For terminals


def draw_usage_chart(data: JsonObject, width: int) -> list[str]:
    """Draw a bar for each row, proportional to its cost, or to its tokens if no row has a cost."""
    rows: list[JsonObject] = _fill_missing_days(data) if data["by"] == "day" else data["rows"]
    head = [f"{data['from']} to {data['to']}, by {data['by']}"]
    if not rows:
        return [*head, "no usage"]
    has_costs = any(row["cost_microusd"] for row in rows)
    sizes = [row["cost_microusd"] if has_costs else row["input_tokens"] + row["output_tokens"] for row in rows]
    labels = [shorten_id(row["key"]) or f"(no {data['by']})" for row in rows]
    all_rows = [*rows, data["total"]]
    amounts, sides = (
        [format_exact_usd(row["cost_microusd"]) for row in all_rows],
        [_format_details(row) for row in all_rows],
    )
    lines = _draw_bars([*labels, "total"], [*sizes, 0], amounts, sides, width)
    return [*head, "", *lines, *_format_remarks(data)]


def _format_remarks(data: JsonObject) -> list[str]:
    total: JsonObject = data["total"]
    remarks: list[str] = []
    if total["unknown_microusd"]:
        remarks.append(
            f"{format_exact_usd(total['unknown_microusd'])} of it is an upper limit, for calls whose usage is unknown"
        )
    if total["unknown_calls"] and not total["unknown_microusd"]:
        remarks.append(f"the cost of {format_quantity(total['unknown_calls'], 'call')} is unknown")
    if total["reserved_microusd"]:
        remarks.append(f"{format_exact_usd(total['reserved_microusd'])} is reserved for calls in progress")
    if data["omitted_count"]:
        remarks.append(f"{data['omitted_count']} more not shown; the total includes them")
    return ["", *remarks] if remarks else []


def draw_budget_gauges(data: JsonObject, width: int) -> list[str]:
    """For each budget, draw a bar that shows how much of it is used."""
    budgets: list[JsonObject] = data["budgets"]
    if not budgets:
        return ["no budgets: set one under [budgets] in retinue.toml, or with `retinue agent set`"]
    names = [f"{each['name']} {each['owner']}".strip() for each in budgets]
    sides = [_format_budget_status(each, data["warn_share"]) for each in budgets]
    label = min(max(map(len, names)), LABEL_CHARS_MAX)
    room = min(width - label - max(map(len, sides)) - 2 * len(GAP), BAR_CHARS_MAX)
    lines: list[str] = []
    for name, budget, side in zip(names, budgets, sides, strict=True):
        bar = (
            _draw_bar(min(budget["share"] or 0, 1), room, empty_char=_get_bar_chars()[1]) + GAP
            if room >= BAR_CHARS_MIN
            else ""
        )
        bar = " " * len(bar) if budget["share"] is None else bar
        lines.append(_truncate(f"{_truncate(name, label).ljust(label)}{GAP}{bar}{side}", width))
    return lines


def _format_budget_status(budget: JsonObject, warn_share: float) -> str:
    cap = format_exact_usd(budget["cap_microusd"])
    if budget["share"] is None:
        return f"  {cap} each"
    mark = "!" if budget["share"] >= warn_share else " "
    return f"{mark} {format_exact_usd(budget['spent_microusd'])} of {cap}, until {budget['resets_on']}"


def _fill_missing_days(data: JsonObject) -> list[JsonObject]:
    """Add a row for each day without usage, so that the chart shows gaps."""
    from datetime import date, timedelta

    rows: list[JsonObject] = data["rows"]
    if not rows:
        return rows
    first, last = date.fromisoformat(rows[0]["key"]), date.fromisoformat(data["to"])
    if (last - first).days >= DAYS_FILLED_MAX:
        return rows
    known = {row["key"]: row for row in rows}
    nothing = {key: 0 for key in rows[0] if key != "key"}
    days = [(first + timedelta(days=n)).isoformat() for n in range((last - first).days + 1)]
    return [known.get(day, {"key": day} | nothing) for day in days]


def _draw_bars(labels: list[str], sizes: list[int], amounts: list[str], sides: list[str], width: int) -> list[str]:
    """Draw labeled bars. If the lines are too wide, first the details after the amounts are omitted, then the bars."""
    label = min(max(map(len, labels)), LABEL_CHARS_MAX, max(width // 2, BAR_CHARS_MIN))
    amount, side = max(map(len, amounts)), max(map(len, sides)) + len(GAP)
    room = width - label - amount - 2 * len(GAP)
    if room - side < BAR_CHARS_MIN:
        sides, side = [""] * len(sides), 0
    room = min(room - side, BAR_CHARS_MAX)
    most = max(sizes) or 1
    lines: list[str] = []
    for name, size, cost, beside in zip(labels, sizes, amounts, sides, strict=True):
        bar = _draw_bar(size / most, room).ljust(room) + GAP if room >= BAR_CHARS_MIN else ""
        line = f"{_truncate(name, label).ljust(label)}{GAP}{bar}{cost.rjust(amount)}{GAP}{beside}"
        lines.append(_truncate(line.rstrip(), width))
    return lines


def _draw_bar(share: float, width: int, empty_char: str = "") -> str:
    """Draw a bar with a resolution of an eighth of a character. Only a share of zero gives an empty bar."""
    full, _, fine = _get_bar_chars()
    eighths = max(round(share * width * 8), 1) if share > 0 else 0
    bar = full * (eighths // 8)
    if eighths % 8:
        bar += EIGHTH_BLOCKS[eighths % 8] if fine else full if not bar or eighths % 8 >= 4 else ""
    return bar + empty_char * (width - len(bar))


def _get_bar_chars() -> tuple[str, str, bool]:
    """Return the characters for the full and the empty part of a bar, and whether eighths can be drawn."""
    can = (getattr(sys.stdout, "encoding", "") or "").lower().replace("-", "").startswith("utf8")
    return (FULL_BLOCK, EMPTY_BLOCK, True) if can else ("#", ".", False)


def _format_details(row: JsonObject) -> str:
    calls = format_quantity(row["calls"], "call")
    if not row["calls"]:
        return ""
    read, written = (format_count(row[f"{name}_tokens"]).rjust(6) for name in ("input", "output"))
    return f"{calls.rjust(9)}{GAP}{read} in{GAP}{written} out"


def _truncate(text: str, size: int) -> str:
    return text if len(text) <= size else f"{text[: max(size - 1, 0)]}…"


def format_count(number: int) -> str:
    """Format a count: 950, 12.3k, 4.5M."""
    for size, unit in ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")):
        if number >= size:
            return f"{number / size:.1f}{unit}" if number < 100 * size else f"{number // size}{unit}"
    return str(number)


def format_exact_usd(microusd: int) -> str:
    """Format an amount with two decimal places, or with more if a small amount needs them."""
    size = abs(microusd)
    digits = 2 if size % 10_000 == 0 or size >= 100_000_000 else 4 if size % 100 == 0 or size >= 1_000_000 else 6
    return f"{'-' if microusd < 0 else ''}${size / 1_000_000:,.{digits}f}"
