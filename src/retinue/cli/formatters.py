"""Formats the responses of operations for the terminal and for pipes.

Some responses have a special layout. All others become `key: value` lines, and lists become blocks or tables.
"""

from __future__ import annotations

from retinue.cli.output import (
    format_call,
    format_pair,
    format_pairs,
    indent,
    join_blocks,
    shorten_id,
    to_exact_json,
    to_kebab_case,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    JsonObject = dict[str, Any]

ENVELOPE_KEYS = (
    "id",
    "from",
    "to",
    "kind",
    "status",
    "outcome",
    "because",
    "accepted_at",
    "deliver_at",
    "reply_to",
    "answer",
)
ENVELOPE_COLUMNS = ("id", "from", "to", "status", "outcome", "accepted_at", "text")
GAP = "  "
COLUMN_MIN, COLUMN_MAX = 8, 60


def format_lines(operation: str, data: JsonObject) -> list[str]:
    """Format a response as lines for a file or pipe."""
    special = LINE_FORMATTERS.get(operation)
    return special(data) if special else format_plain(data)


def format_for_terminal(operation: str, data: JsonObject, width: int) -> list[str]:
    """Format a response for a terminal: a list as a table, everything else as lines."""
    if (drawn := TERMINAL_FORMATTERS.get(operation)) is not None:
        return drawn(data, width)
    found = [(key, rows) for key, value in data.items() if (rows := _get_rows(value))]
    if len(found) != 1 or operation in ("envelope.thread", "server.status", "model.show"):
        return format_lines(operation, data)
    [(listed, rows)] = found
    columns = TABLE_COLUMNS.get(operation)
    rest = {key: value for key, value in data.items() if key != listed}
    return join_blocks([part for part in (format_table(rows, width, columns), format_plain(rest)) if part])


def _get_rows(value: Any) -> list[JsonObject]:
    """Return the value if it is a list of objects, else an empty list."""
    listed: list[Any] = value if _is_instance(value, list) else []
    return listed if all(isinstance(each, dict) for each in listed) else []


def _is_instance(value: object, type_: type) -> bool:
    """Like `isinstance`, but the type checker does not narrow the type, so the items of a JSON value stay `Any`."""
    return isinstance(value, type_)


def format_plain(data: JsonObject) -> list[str]:
    if "lines" in data and not _get_rows(data["lines"]):
        return data["lines"]
    lists = {key: rows for key, value in data.items() if (rows := _get_rows(value))}
    rest = [
        line for key, value in data.items() if key not in lists for line in _format_value(to_kebab_case(key), value)
    ]
    return join_blocks([*(format_plain(row) for rows in lists.values() for row in rows), *([rest] if rest else [])])


def _format_value(key: str, value: Any) -> list[str]:
    if _is_instance(value, dict):
        form: JsonObject = value
        inner = [line for name, each in form.items() for line in _format_value(to_kebab_case(name), each)]
        return [f"{key}:", *indent(inner)] if inner else [f"{key}: none"]
    if rows := _get_rows(value):
        return [f"{key}:", *indent(join_blocks([format_plain(row) for row in rows]))]
    if _is_instance(value, list):
        listed: list[Any] = value
        return format_pair(key, ", ".join(shorten_id(str(each)) for each in listed))
    return format_pair(key, value)


# Tables for terminals


def format_table(rows: list[JsonObject], width: int, columns: tuple[str, ...] | None = None) -> list[str]:
    """Format a list of objects as a table, with one line per row. Columns without values are omitted.

    A cell that does not fit is cut and ends with `…`. If the table is still too wide, the last columns are omitted.
    """
    names = list(columns or dict.fromkeys(key for row in rows for key in row if key != "short"))
    names = [name for name in names if any(_format_cell(row, name) for row in rows)]
    while True:
        cells = [
            [to_kebab_case(name) for name in names],
            *([_format_cell(row, name) for name in names] for row in rows),
        ]
        widths = _fit_widths(cells, width)
        if sum(widths) + len(GAP) * (len(names) - 1) <= width or len(names) <= 2:
            break
        names.pop()
    return [
        GAP.join(_truncate(cell, size).ljust(size) for cell, size in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]


def _fit_widths(cells: list[list[str]], width: int) -> list[int]:
    widths = [min(max(len(line[n]) for line in cells), COLUMN_MAX) for n in range(len(cells[0]))]
    while sum(widths) + len(GAP) * (len(widths) - 1) > width and max(widths) > COLUMN_MIN:
        widths[widths.index(max(widths))] -= 1
    return widths


def _format_cell(row: JsonObject, name: str) -> str:
    value: Any = row.get(name)
    if value is None or value == "" or value == [] or value == {}:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if _is_instance(value, list) or _is_instance(value, dict):
        return f"({len(value)})"
    return shorten_id(" ".join(str(value).split()))


def _truncate(cell: str, size: int) -> str:
    return cell if len(cell) <= size else f"{cell[: size - 1]}…"


# Special formats


def format_sent(data: JsonObject) -> list[str]:
    lines = format_pairs(data, ("envelope", "session"))
    if data["duplicate"]:
        lines += format_pair("duplicate", True)
    return lines + (format_pairs(data, ("outcome", "because")) if data["outcome"] else [])


def format_envelope(data: JsonObject) -> list[str]:
    lines = format_pairs(data, ENVELOPE_KEYS)
    for attachment in data.get("attachments", ()):
        lines += format_pair("attachment", attachment["name"])
        lines += indent(format_pairs(attachment, ("media_type", "size_bytes")))
    return lines + format_pair("text", data["text"])


def format_thread(data: JsonObject) -> list[str]:
    shown = [format_envelope(envelope) for envelope in data["envelopes"]]
    return join_blocks([*shown, format_pairs(data, ("total", "omitted_count"))])


def format_dead_letters(data: JsonObject) -> list[str]:
    return join_blocks([format_envelope(envelope) for envelope in data["dead_letters"]]) or ["dead-letters: none"]


def format_envelopes(data: JsonObject) -> list[str]:
    shown = [format_envelope(envelope) for envelope in data["envelopes"]]
    return join_blocks(
        [*(shown or [["envelopes: none"]]), format_plain({k: v for k, v in data.items() if k != "envelopes"})]
    )


def format_status(data: JsonObject) -> list[str]:
    lines = format_pairs(data, ("version", "principal", "now", "cursor"))
    for agent in data["agents"]:
        lines += format_pair("agent", agent["name"]) + indent(format_pairs(agent, ("model", "description")))
    for approval in data["approvals"]:
        lines += format_pair("approval", approval["id"]) + indent(_format_approval(approval))
    return lines


def _format_approval(approval: JsonObject) -> list[str]:
    lines = [line for call in approval["calls"] for line in format_pair("call", format_call(call))]
    for key in ("needed_permissions", "grant_permissions"):
        lines += [line for each in approval.get(key, ()) for line in format_pair(key, to_exact_json(each)[1:-1])]
    agents = format_pairs(approval, ("agent", "grantee"))
    return (
        lines
        + agents
        + format_pair("because", to_exact_json(approval["because"])[1:-1])
        + format_pairs(approval, ("requested_at", "expires_at"))
    )


def format_stop(data: JsonObject) -> list[str]:
    runs = ", ".join(shorten_id(run) for run in data["cancelled_runs"])
    return format_pair("cancelled-runs", runs) + format_pairs(data, ("cleared_pending_count",))


def format_queue(data: JsonObject) -> list[str]:
    queue: JsonObject = data["queue"]
    own = {key: "agent default" if value is None else value for key, value in queue.items()}
    return format_pairs(data, ("session",)) + format_pairs(own, ("mode", "cap", "overflow", "debounce_s"))


def format_models(data: JsonObject) -> list[str]:
    """Format the models of each agent, in the order in which the agent tries them."""
    shown = [
        format_pair("default", f"{data['default']} ({data['default_because']})") + format_pairs(data, ("catalog_date",))
    ]
    for agent in data["agents"]:
        lines = format_pairs(agent | {"effort": agent["effort"] or "default"}, ("agent", "session", "effort", "error"))
        for number, link in enumerate(agent["chain"], start=1):
            lines += format_pair(f"model-{number}", f"{link['model']} ({link['because']})")
            lines += indent(format_pairs(link, ("window_tokens", "price", "missing", "retired")))
        shown.append(lines + [line for now in agent.get("current", ()) for line in format_pair("current", now)])
    return join_blocks(shown)


def format_usage(data: JsonObject) -> list[str]:
    from retinue.cli.usage_report import format_usage_lines

    return format_usage_lines(data)


def draw_usage(data: JsonObject, width: int) -> list[str]:
    from retinue.cli.usage_report import draw_usage_chart

    return draw_usage_chart(data, width)


def format_budgets(data: JsonObject) -> list[str]:
    from retinue.cli.usage_report import format_budget_lines

    return format_budget_lines(data)


def draw_budgets(data: JsonObject, width: int) -> list[str]:
    from retinue.cli.usage_report import draw_budget_gauges

    return draw_budget_gauges(data, width)


TERMINAL_FORMATTERS: dict[str, Callable[[JsonObject, int], list[str]]] = {
    "usage.show": draw_usage,
    "usage.budgets": draw_budgets,
}
TABLE_COLUMNS: dict[str, tuple[str, ...]] = {
    "connector.list": (
        "name",
        "platform",
        "state",
        "since",
        "last_received_at",
        "last_delivered_at",
        "dm_policy",
        "because",
    ),
    "envelope.list": ENVELOPE_COLUMNS,
    "envelope.dead": ENVELOPE_COLUMNS,
    "inbox.list": ENVELOPE_COLUMNS,
    "model.list": ("number", "model", "alias", "window_tokens", "price", "vision", "default", "missing", "retired"),
    "session.list": ("sessionId", "agentId", "name", "updatedAt", "lastSnippet", "origin"),
}


def _format_connector_added(data: JsonObject) -> list[str]:
    from retinue.cli.connector_wizard import format_added

    return format_added(data)


LINE_FORMATTERS: dict[str, Callable[[JsonObject], list[str]]] = {
    "connector.add": _format_connector_added,
    "envelope.send": format_sent,
    "envelope.retry": format_sent,
    "envelope.show": format_envelope,
    "envelope.thread": format_thread,
    "envelope.dead": format_dead_letters,
    "envelope.list": format_envelopes,
    "inbox.list": format_envelopes,
    "server.status": format_status,
    "session.stop": format_stop,
    "session.set_queue": format_queue,
    "model.show": format_models,
    "usage.show": format_usage,
    "usage.budgets": format_budgets,
}
