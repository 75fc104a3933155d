"""Runs `retinue dry-run`: simulates the next days on a copy of the data in a child process, and prints a report."""

from __future__ import annotations

import json
import os
import sys

from retinue.cli.client import has_server_url, parse_error
from retinue.cli.errors import EXIT_OK, CliError
from retinue.cli.formatters import format_table
from retinue.cli.output import format_quantity, indent, join_blocks, print_lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Any

    JsonObject = dict[str, Any]

RUNS_SHOWN_MAX = 100
SKIPS_SHOWN_MAX = 50
DEFAULT_WIDTH = 160  # if stdout is not a terminal
MICROUSD_PER_USD = 1_000_000


def run_dry_run(options: Namespace) -> int:
    if has_server_url():
        raise CliError(
            "cannot do a dry run of a remote server",
            code="dry_run.remote_server",
            because="a dry run copies the data directory of a server on this machine",
            try_this="unset RETINUE_URL, or run this on the machine of the server",
        )
    request = {
        "days": options.days,
        "start": options.start,
        "run_duration": options.run_duration,
        "seed": options.seed,
        "gates": options.gates,
        "keep": os.path.abspath(os.path.expanduser(options.keep)) if options.keep else "",
    }
    report = _run_child(json.dumps(request))
    print_lines([report.decode()] if options.json else format_report(json.loads(report), all_runs=options.all))
    return EXIT_OK


def _run_child(request_json: str) -> bytes:
    import subprocess

    sys.stdout.flush()
    words = [sys.executable, "-P", "-m", "retinue.dry_run", request_json]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as child:
        try:
            output, _ = child.communicate()
        except KeyboardInterrupt:
            child.wait()  # it gets SIGINT too, and deletes its copy before it ends
            raise
    if child.returncode != EXIT_OK:
        raise parse_error(output)
    return output.rstrip(b"\n")


def format_report(report: JsonObject, *, all_runs: bool) -> list[str]:
    """Format the report of a dry run. The summary comes last, so that it is visible at the end of the output."""
    width = os.get_terminal_size(sys.stdout.fileno()).columns if sys.stdout.isatty() else DEFAULT_WIDTH
    runs, skips = report["runs"], report["skips"]
    shown = len(runs) if all_runs else RUNS_SHOWN_MAX
    return join_blocks(
        [
            part
            for part in (
                _format_section(
                    f"runs ({len(runs):,})", format_table([_build_run_row(each) for each in runs[:shown]], width)
                ),
                _format_omitted(len(runs) - shown, "runs: --all shows all of them, --json has all details"),
                _format_section(f"skipped ({report['totals']['skipped']:,})", _format_skips(skips, width)),
                _format_section(
                    "by day",
                    format_table(
                        [_build_totals_row("day", each["name"], each["totals"]) for each in report["by_day"]], width
                    ),
                ),
                _format_section(
                    "by agent",
                    format_table(
                        [_build_totals_row("agent", each["name"], each["totals"]) for each in report["agents"]], width
                    ),
                ),
                _format_section(
                    "by schedule", format_table([_build_schedule_row(each) for each in report["schedules"]], width)
                ),
                _format_section("gates", [_format_gate(each) for each in report["schedules"] if each["gate"]]),
                _format_section("budgets", [_format_budget(each) for each in report["budgets"]]),
                _format_section(
                    "busiest minutes",
                    [
                        f"{_format_time(each['at'])}: {format_quantity(each['runs'], 'concurrent run')}"
                        for each in report["busiest_minutes"]
                    ],
                ),
                _format_section(
                    "never", [f"{each['schedule']}: {each['because']}" for each in report["idle_schedules"]]
                ),
                _format_section("estimated from", _format_estimates(report["schedules"])),
                _format_section("notes", _format_notes(report)),
                _format_summary(report),
            )
            if part
        ]
    )


def _format_section(title: str, lines: list[str]) -> list[str]:
    return [f"{title}:", *indent(lines)] if lines else []


def _format_omitted(omitted: int, text: str) -> list[str]:
    return [f"and {omitted:,} more {text}"] if omitted > 0 else []


def _build_run_row(run: JsonObject) -> JsonObject:
    return {
        "at": _format_time(run["at"]),
        "schedule": run["schedule"],
        "agent": run["agent"],
        "session": run["session"],
        "state": run["state"],
        "started": _format_late_start(run),
        "tokens": f"{run['input_tokens']:,}/{run['output_tokens']:,}" if run["agent"] else "",
        "cost": format_usd(run["cost_microusd"]) if run["agent"] else "",
        "because": run["because"],
    }


def _format_late_start(run: JsonObject) -> str:
    """Return when a run started, or an empty string if it started on time. A run is late if no slot was free."""
    return "" if run["started_at"] == run["at"] else _format_time(run["started_at"])


def _format_skips(skips: list[JsonObject], width: int) -> list[str]:
    rows = [
        {
            "at": _format_time(each["at"]),
            "schedule": each["schedule"],
            "times": "many" if each["times"] is None else each["times"],
            "kind": each["kind"],
            "because": each["because"],
        }
        for each in skips[:SKIPS_SHOWN_MAX]
    ]
    return [
        *(format_table(rows, width) if rows else []),
        *_format_omitted(len(skips) - SKIPS_SHOWN_MAX, "skips: --json has them all"),
    ]


def _build_totals_row(kind: str, name: str, totals: JsonObject) -> JsonObject:
    return {
        kind: name or "(none)",
        "runs": totals["runs"],
        "failed": totals["failed"] or "",
        "skipped": totals["skipped"] or "",
        "tokens": f"{totals['input_tokens']:,}/{totals['output_tokens']:,}",
        "cost": _format_cost(totals),
    }


def _build_schedule_row(schedule: JsonObject) -> JsonObject:
    return {
        **_build_totals_row("schedule", schedule["name"], schedule["totals"]),
        "to": schedule["to"],
        "model": schedule["model"],
        "when": schedule["when"],
    }


def _format_gate(schedule: JsonObject) -> str:
    gate = schedule["gate"]
    known = gate["was_open"] + gate["was_closed"]
    history = f"open {gate['was_open']} of {format_quantity(known, 'time')}" if known else "it has never run"
    return f"{schedule['name']}: {gate['treatment']}; {history}"


def _format_budget(budget: JsonObject) -> str:
    owner = f" of {budget['owner']}" if budget["owner"] else ""
    most = (
        f"at most {format_usd(budget['highest_microusd'])} of {format_usd(budget['cap_microusd'])}"
        if budget["cap_microusd"]
        else "passed"
    )
    on = f" ({budget['highest_on']})" if budget["highest_on"] else ""
    refused = (
        f"; refuses {format_quantity(budget['refused'], 'run')}, the first at {_format_time(budget['first_refused'])}"
        if budget["refused"]
        else ""
    )
    return f"{budget['name']}{owner}: {most}{on}{refused}"


def _format_estimates(schedules: list[JsonObject]) -> list[str]:
    names: dict[str, list[str]] = {}
    for each in schedules:
        if each["totals"]["runs"]:
            names.setdefault(each["estimate_basis"], []).append(each["name"])
    return [f"{basis}: {', '.join(of)}" for basis, of in names.items()]


def _format_notes(report: JsonObject) -> list[str]:
    left = report["cancelled_runs"]
    under_way = [f"not included: {format_quantity(left, 'run')} in progress"] if left else []
    late = report["delayed"]
    delayed = (
        [
            f"{format_quantity(late['runs'], 'run')} with a late start, because all slots were in use; "
            f"the longest delay: {_format_longest_delay(late)}"
        ]
        if late["runs"]
        else []
    )
    stopped = (
        [f"stopped early at {_format_time(report['until'])}, {report['stopped_because']}"]
        if report["stopped_because"]
        else []
    )
    return [*report["notes"], *under_way, *delayed, *stopped]


def _format_longest_delay(delay: JsonObject) -> str:
    return f"{delay['schedule']} at {_format_time(delay['at'])}, {delay['longest_s']:,} s"


def _format_summary(report: JsonObject) -> list[str]:
    totals = report["totals"]
    failed = f"{totals['failed']:,} of them failed, " if totals["failed"] else ""
    when = f"{_format_time(report['start'])} to {_format_time(report['until'])} ({report['zone']})"
    return [
        f"dry run: {when}, on a copy of {report['data_directory']}",
        f"{format_quantity(totals['runs'], 'run')}, {failed}{totals['skipped']:,} skipped, "
        f"about {_format_cost(totals)}",
        f"took {report['duration_s']:g} s; seed {report['seed']}",
    ]


def _format_cost(totals: JsonObject) -> str:
    unknown = f" and {format_quantity(totals['unpriced'], 'run')} of unknown price" if totals["unpriced"] else ""
    return f"{format_usd(totals['cost_microusd'])}{unknown}"


def format_usd(microusd: int | None) -> str:
    if microusd is None:
        return "unknown"
    digits = 2 if microusd % 10_000 == 0 or microusd >= 100 * MICROUSD_PER_USD else 4
    return f"${microusd / MICROUSD_PER_USD:,.{digits}f}"


def _format_time(timestamp: str) -> str:
    """Format a time as `2026-11-16 09:00:00+01:00`. The offset makes daylight saving changes visible."""
    return timestamp.replace("T", " ")
