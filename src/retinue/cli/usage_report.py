"""Formats usage, costs and budgets: bars on a terminal, `key: value` lines into a pipe."""

from __future__ import annotations

import sys

from retinue.cli.output import blocks, pair, pairs, short

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Form = dict[str, Any]

EIGHTHS = " ▏▎▍▌▋▊▉"
FULL, EMPTY = "█", "░"
BAR_LEAST, BAR_MOST = 8, 60
LABEL_MOST = 40
DAYS_FILLED_MAX = 62
GAP = "  "
TOKENS = ("input-tokens", "output-tokens", "cache-read-tokens", "cache-write-tokens", "reasoning-tokens")


# For pipes


def plain(form: Form) -> list[str]:
    rows = [pair(form["by"], row["key"]) + _numbers(row) for row in form["rows"]]
    total = pairs(form, ("from", "to")) + _numbers(form["total"], "total-")
    left_out = pairs(form, ("left-out",)) if form["left-out"] else []
    return blocks([*rows, total + left_out])


def _numbers(row: Form, prefix: str = "") -> list[str]:
    lines = [f"{prefix}{key}: {row[key]}" for key in ("calls", *TOKENS)]
    lines.append(f"{prefix}cost: {dollars(row['cost-microusd'])}")
    if row["unknown-calls"]:
        lines.append(f"{prefix}unknown-calls: {row['unknown-calls']}")
        lines.append(f"{prefix}unknown-cost: {dollars(row['unknown-microusd'])}")
    if row["held-microusd"]:
        lines.append(f"{prefix}held: {dollars(row['held-microusd'])}")
    return lines


def plain_budgets(form: Form) -> list[str]:
    shown: list[list[str]] = []
    for budget in form["budgets"]:
        lines = pair("budget", budget["what"]) + (pair("of", budget["whose"]) if budget["whose"] else [])
        for key in ("cap", "spent", "held", "left"):
            if budget[f"{key}-microusd"] is not None:
                lines += pair(key, dollars(budget[f"{key}-microusd"]))
        lines += pair("resets-on", budget["resets-on"]) if budget["resets-on"] else []
        shown.append(lines + pair("raised-by", budget["raised-by"]))
    return blocks(shown) if shown else ["budgets: none"]


# For terminals


def chart(form: Form, width: int) -> list[str]:
    """Draw a bar for each row, proportional to its cost, or to its tokens if no row has a cost."""
    rows: list[Form] = _every_day(form) if form["by"] == "day" else form["rows"]
    head = [f"{form['from']} to {form['to']}, by {form['by']}"]
    if not rows:
        return [*head, "nothing was used"]
    what = "cost-microusd" if any(row["cost-microusd"] for row in rows) else ""
    sizes = [row[what] if what else row["input-tokens"] + row["output-tokens"] for row in rows]
    labels = [short(row["key"]) or f"(no {form['by']})" for row in rows]
    told = [*rows, form["total"]]
    amounts, sides = [dollars(row["cost-microusd"]) for row in told], [_side(row) for row in told]
    lines = _bars([*labels, "total"], [*sizes, 0], amounts, sides, width)
    return [*head, "", *lines, *_remarks(form)]


def _remarks(form: Form) -> list[str]:
    total: Form = form["total"]
    said: list[str] = []
    if total["unknown-microusd"]:
        said.append(f"{dollars(total['unknown-microusd'])} of it is at most: what those calls came to was not told")
    if total["unknown-calls"] and not total["unknown-microusd"]:
        said.append(f"what {total['unknown-calls']} of the calls cost is not known")
    if total["held-microusd"]:
        said.append(f"{dollars(total['held-microusd'])} is held for calls under way")
    if form["left-out"]:
        said.append(f"{form['left-out']} more not shown; the total counts them")
    return ["", *said] if said else []


def gauges(form: Form, width: int) -> list[str]:
    """Draw each budget and the share of it that is spent."""
    budgets: list[Form] = form["budgets"]
    if not budgets:
        return ["no budget is set: see [budgets] in retinue.toml, and `retinue agent set`"]
    names = [f"{each['what']} {each['whose']}".strip() for each in budgets]
    sides = [_stands(each, form["warn-share"]) for each in budgets]
    label = min(max(map(len, names)), LABEL_MOST)
    room = min(width - label - max(map(len, sides)) - 2 * len(GAP), BAR_MOST)
    lines: list[str] = []
    for name, budget, side in zip(names, budgets, sides, strict=True):
        bar = _bar(min(budget["share"] or 0, 1), room, rest=_solid()[1]) + GAP if room >= BAR_LEAST else ""
        bar = " " * len(bar) if budget["share"] is None else bar
        lines.append(_cut(f"{_cut(name, label).ljust(label)}{GAP}{bar}{side}", width))
    return lines


def _stands(budget: Form, warn_share: float) -> str:
    cap = dollars(budget["cap-microusd"])
    if budget["share"] is None:
        return f"  {cap} each"
    mark = "!" if budget["share"] >= warn_share else " "
    return f"{mark} {dollars(budget['spent-microusd'])} of {cap}, until {budget['resets-on']}"


def _every_day(form: Form) -> list[Form]:
    """Add rows for the days without usage, so that gaps are visible."""
    from datetime import date, timedelta

    rows: list[Form] = form["rows"]
    if not rows:
        return rows
    first, last = date.fromisoformat(rows[0]["key"]), date.fromisoformat(form["to"])
    if (last - first).days >= DAYS_FILLED_MAX:
        return rows
    known = {row["key"]: row for row in rows}
    nothing = {key: 0 for key in rows[0] if key != "key"}
    days = [(first + timedelta(days=n)).isoformat() for n in range((last - first).days + 1)]
    return [known.get(day, {"key": day} | nothing) for day in days]


def _bars(labels: list[str], sizes: list[int], amounts: list[str], sides: list[str], width: int) -> list[str]:
    """Draw labeled bars. If they do not fit, omit the details beside the amounts, then the bars."""
    label = min(max(map(len, labels)), LABEL_MOST, max(width // 2, BAR_LEAST))
    amount, side = max(map(len, amounts)), max(map(len, sides)) + len(GAP)
    room = width - label - amount - 2 * len(GAP)
    if room - side < BAR_LEAST:
        sides, side = [""] * len(sides), 0
    room = min(room - side, BAR_MOST)
    most = max(sizes) or 1
    lines: list[str] = []
    for name, size, said, beside in zip(labels, sizes, amounts, sides, strict=True):
        bar = _bar(size / most, room).ljust(room) + GAP if room >= BAR_LEAST else ""
        line = f"{_cut(name, label).ljust(label)}{GAP}{bar}{said.rjust(amount)}{GAP}{beside}"
        lines.append(_cut(line.rstrip(), width))
    return lines


def _bar(share: float, room: int, rest: str = "") -> str:
    """Draw a bar to the eighth of a character. It is empty only if the share is zero."""
    full, _, fine = _solid()
    eighths = max(round(share * room * 8), 1) if share > 0 else 0
    bar = full * (eighths // 8)
    if eighths % 8:
        bar += EIGHTHS[eighths % 8] if fine else full if not bar or eighths % 8 >= 4 else ""
    return bar + rest * (room - len(bar))


def _solid() -> tuple[str, str, bool]:
    """Return the characters for the full and the empty part, and whether eighths can be drawn."""
    can = (getattr(sys.stdout, "encoding", "") or "").lower().replace("-", "").startswith("utf8")
    return (FULL, EMPTY, True) if can else ("#", ".", False)


def _side(row: Form) -> str:
    calls = f"{row['calls']} call{'' if row['calls'] == 1 else 's'}"
    if not row["calls"]:
        return ""
    read, written = (count(row[f"{name}-tokens"]).rjust(6) for name in ("input", "output"))
    return f"{calls.rjust(9)}{GAP}{read} in{GAP}{written} out"


def _cut(text: str, size: int) -> str:
    return text if len(text) <= size else f"{text[: max(size - 1, 0)]}…"


def count(number: int) -> str:
    """Format a count: 950, 12.3k, 4.5M."""
    for size, unit in ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")):
        if number >= size:
            return f"{number / size:.1f}{unit}" if number < 100 * size else f"{number // size}{unit}"
    return str(number)


def dollars(microusd: int) -> str:
    """Format an amount with two decimal places, or with more if a small amount needs them."""
    size = abs(microusd)
    digits = 2 if size % 10_000 == 0 or size >= 100_000_000 else 4 if size % 100 == 0 or size >= 1_000_000 else 6
    return f"{'-' if microusd < 0 else ''}${size / 1_000_000:,.{digits}f}"
