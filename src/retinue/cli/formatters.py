"""Formats operation responses: some specially, the others as `key: value` lines, lists as blocks or tables."""

from __future__ import annotations

from retinue.cli.output import blocks, call_line, exact, indented, pair, pairs, short

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Form = dict[str, Any]

ENVELOPE_KEYS = (
    "id",
    "from",
    "to",
    "kind",
    "status",
    "outcome",
    "because",
    "accepted-at",
    "deliver-at",
    "reply-to",
    "answer",
)
ENVELOPE_COLUMNS = ("id", "from", "to", "status", "outcome", "accepted-at", "text")
GAP = "  "
COLUMN_MIN, COLUMN_MAX = 8, 60


def lines_of(operation: str, form: Form) -> list[str]:
    """Format a response as lines, for files, pipes and programs that search for keys."""
    special = LINES.get(operation)
    return special(form) if special else plain_lines(form)


def table_of(operation: str, form: Form, width: int) -> list[str]:
    """Format a response for a terminal: a list as a table, everything else as lines."""
    if (drawn := DRAWN.get(operation)) is not None:
        return drawn(form, width)
    found = [(key, rows) for key, value in form.items() if (rows := _rows(value))]
    if len(found) != 1 or operation in ("envelope.thread", "house.status", "model.show"):
        return lines_of(operation, form)
    [(listed, rows)] = found
    columns = COLUMNS.get(operation)
    rest = {key: value for key, value in form.items() if key != listed}
    return blocks([part for part in (table(rows, width, columns), plain_lines(rest)) if part])


def _rows(value: Any) -> list[Form]:
    """Return the value if it is a list of objects, else an empty list."""
    listed: list[Any] = value if _is(value, list) else []
    return listed if all(isinstance(each, dict) for each in listed) else []


def _is(value: object, kind: type) -> bool:
    """Like `isinstance`, without narrowing the type: the contents of a JSON value stay `Any`."""
    return isinstance(value, kind)


def plain_lines(form: Form) -> list[str]:
    if "lines" in form and not _rows(form["lines"]):
        return form["lines"]
    lists = {key: rows for key, value in form.items() if (rows := _rows(value))}
    rest = [line for key, value in form.items() if key not in lists for line in _value_lines(kebab(key), value)]
    return blocks([*(plain_lines(row) for rows in lists.values() for row in rows), *([rest] if rest else [])])


def _value_lines(key: str, value: Any) -> list[str]:
    if _is(value, dict):
        form: Form = value
        inner = [line for name, each in form.items() for line in _value_lines(kebab(name), each)]
        return [f"{key}:", *indented(inner)] if inner else [f"{key}: none"]
    if rows := _rows(value):
        return [f"{key}:", *indented(blocks([plain_lines(row) for row in rows]))]
    if _is(value, list):
        listed: list[Any] = value
        return pair(key, ", ".join(short(str(each)) for each in listed))
    return pair(key, value)


def kebab(key: str) -> str:
    """Convert a snake_case or camelCase key to kebab-case."""
    return "".join(f"-{char.lower()}" if char.isupper() else "-" if char == "_" else char for char in str(key)).lstrip(
        "-"
    )


# Tables for terminals


def table(rows: list[Form], width: int, columns: tuple[str, ...] | None = None) -> list[str]:
    """Format one line per row, and omit columns without values.

    Cells that do not fit are truncated visibly. If that is not enough, the last columns are dropped.
    """
    names = list(columns or dict.fromkeys(key for row in rows for key in row if key != "short"))
    names = [name for name in names if any(_cell(row, name) for row in rows)]
    while True:
        cells = [[kebab(name) for name in names], *([_cell(row, name) for name in names] for row in rows)]
        widths = _widths(cells, width)
        if sum(widths) + len(GAP) * (len(names) - 1) <= width or len(names) <= 2:
            break
        names.pop()
    return [
        GAP.join(_cut(cell, size).ljust(size) for cell, size in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]


def _widths(cells: list[list[str]], width: int) -> list[int]:
    widths = [min(max(len(line[n]) for line in cells), COLUMN_MAX) for n in range(len(cells[0]))]
    while sum(widths) + len(GAP) * (len(widths) - 1) > width and max(widths) > COLUMN_MIN:
        widths[widths.index(max(widths))] -= 1
    return widths


def _cell(row: Form, name: str) -> str:
    value: Any = row.get(name)
    if value is None or value == "" or value == [] or value == {}:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if _is(value, list) or _is(value, dict):
        return f"({len(value)})"
    return short(" ".join(str(value).split()))


def _cut(cell: str, size: int) -> str:
    return cell if len(cell) <= size else f"{cell[: size - 1]}…"


# Special formats


def sent_lines(form: Form) -> list[str]:
    lines = pairs(form, ("envelope", "session"))
    if form["duplicate"]:
        lines += pair("duplicate", True)
    return lines + (pairs(form, ("outcome", "because")) if form["outcome"] else [])


def envelope_lines(form: Form) -> list[str]:
    lines = pairs(form, ENVELOPE_KEYS)
    for attachment in form.get("attachments", ()):
        lines += pair("attachment", attachment["name"])
        lines += indented(pairs(attachment, ("media-type", "size-bytes")))
    return lines + pair("text", form["text"])


def thread_lines(form: Form) -> list[str]:
    shown = [envelope_lines(envelope) for envelope in form["envelopes"]]
    return blocks([*shown, pairs(form, ("total", "left-out"))])


def dead_lines(form: Form) -> list[str]:
    return blocks([envelope_lines(letter) for letter in form["letters"]]) or ["dead: none"]


def mail_lines(form: Form) -> list[str]:
    shown = [envelope_lines(envelope) for envelope in form["envelopes"]]
    return blocks([*(shown or [["envelopes: none"]]), plain_lines({k: v for k, v in form.items() if k != "envelopes"})])


def status_lines(form: Form) -> list[str]:
    lines = pairs(form, ("version", "you", "now", "cursor"))
    for agent in form["agents"]:
        lines += pair("agent", agent["name"]) + indented(pairs(agent, ("model", "description")))
    for approval in form["approvals"]:
        lines += pair("approval", approval["id"]) + indented(_approval_lines(approval))
    return lines


def _approval_lines(approval: Form) -> list[str]:
    lines = [line for call in approval["calls"] for line in pair("call", call_line(call))]
    for key in ("to-reach", "would-grant"):
        lines += [line for each in approval.get(key, ()) for line in pair(key, exact(each)[1:-1])]
    whose = pairs(approval, ("agent", "for-whom"))
    return (
        lines + whose + pair("because", exact(approval["because"])[1:-1]) + pairs(approval, ("asked-at", "expires-at"))
    )


def stop_lines(form: Form) -> list[str]:
    runs = ", ".join(short(run) for run in form["cancelled-runs"])
    return pair("cancelled-runs", runs) + pairs(form, ("cleared-pending-count",))


def queue_lines(form: Form) -> list[str]:
    queue: Form = form["queue"]
    own = {key: "as the agent's" if value is None else value for key, value in queue.items()}
    return pairs(form, ("session",)) + pairs(own, ("mode", "cap", "overflow", "debounce_s"))


def models_lines(form: Form) -> list[str]:
    """Format the models of each agent, in the order in which they are tried."""
    shown = [pair("default", f"{form['default']} ({form['default-because']})") + pairs(form, ("known-on",))]
    for agent in form["agents"]:
        lines = pairs(agent | {"effort": agent["effort"] or "default"}, ("agent", "session", "effort", "refused"))
        for number, link in enumerate(agent["chain"], start=1):
            lines += pair(f"model-{number}", f"{link['model']} ({link['because']})")
            lines += indented(pairs(link, ("window-tokens", "price", "missing", "retired")))
        shown.append(lines + [line for now in agent.get("now", ()) for line in pair("now", now)])
    return blocks(shown)


def usage_lines(form: Form) -> list[str]:
    from retinue.cli.usage_report import plain

    return plain(form)


def usage_chart(form: Form, width: int) -> list[str]:
    from retinue.cli.usage_report import chart

    return chart(form, width)


def budget_lines(form: Form) -> list[str]:
    from retinue.cli.usage_report import plain_budgets

    return plain_budgets(form)


def budget_gauges(form: Form, width: int) -> list[str]:
    from retinue.cli.usage_report import gauges

    return gauges(form, width)


DRAWN: dict[str, Callable[[Form, int], list[str]]] = {
    "usage.show": usage_chart,
    "usage.budgets": budget_gauges,
}
COLUMNS: dict[str, tuple[str, ...]] = {
    "connector.list": ("name", "kind", "state", "since", "last-heard", "last-delivered", "dm", "because"),
    "envelope.list": ENVELOPE_COLUMNS,
    "envelope.dead": ENVELOPE_COLUMNS,
    "inbox.list": ENVELOPE_COLUMNS,
    "model.list": ("number", "model", "alias", "window-tokens", "price", "vision", "default", "missing", "retired"),
    "session.list": ("sessionId", "agentId", "name", "updatedAt", "lastSnippet", "origin"),
}


def _connected(form: Form) -> list[str]:
    from retinue.cli.connector_wizard import added_lines

    return added_lines(form)


LINES: dict[str, Callable[[Form], list[str]]] = {
    "connector.add": _connected,
    "envelope.send": sent_lines,
    "envelope.retry": sent_lines,
    "envelope.show": envelope_lines,
    "envelope.thread": thread_lines,
    "envelope.dead": dead_lines,
    "envelope.list": mail_lines,
    "inbox.list": mail_lines,
    "house.status": status_lines,
    "session.stop": stop_lines,
    "session.queue": queue_lines,
    "model.show": models_lines,
    "usage.show": usage_lines,
    "usage.budgets": budget_lines,
}
