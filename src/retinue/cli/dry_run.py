"""The dry-run command: simulates the coming days on a copy in a child process, and prints a report."""

from __future__ import annotations

import json
import os
import sys

from retinue.cli.client import is_elsewhere, refusal
from retinue.cli.errors import OK, CliError
from retinue.cli.formatters import table
from retinue.cli.output import blocks, indented, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Any

    Form = dict[str, Any]

RUNS_SHOWN_MAX = 100
SKIPS_SHOWN_MAX = 50
WIDTH_UNSEEN = 160  # if stdout is not a terminal
MICROUSD = 1_000_000


def rehearse(options: Namespace) -> int:
    if is_elsewhere():
        raise CliError(
            "a house elsewhere cannot be rehearsed from here",
            code="rehearse.elsewhere",
            because="a rehearsal is played on a copy of its store",
            try_this="unset RETINUE_URL, or run this where the house is",
        )
    asked = {
        "days": options.days,
        "begin": options.begin,
        "run-takes": options.run_takes,
        "seed": options.seed,
        "gates": options.gates,
        "keep": os.path.abspath(os.path.expanduser(options.keep)) if options.keep else "",
    }
    heard = _play(json.dumps(asked))
    say([heard.decode()] if options.json else told(json.loads(heard), all_runs=options.all))
    return OK


def _play(asked: str) -> bytes:
    import subprocess

    sys.stdout.flush()
    words = [sys.executable, "-P", "-m", "retinue.dry_run", asked]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as child:
        try:
            heard, _ = child.communicate()
        except KeyboardInterrupt:
            child.wait()  # it gets SIGINT too, and deletes its copy before it ends
            raise
    if child.returncode != OK:
        raise refusal(heard)
    return heard.rstrip(b"\n")


def told(report: Form, *, all_runs: bool) -> list[str]:
    """Format a report. The summary comes last, because that part stays visible on a terminal."""
    width = os.get_terminal_size(sys.stdout.fileno()).columns if sys.stdout.isatty() else WIDTH_UNSEEN
    runs, skips = report["runs"], report["skips"]
    shown = len(runs) if all_runs else RUNS_SHOWN_MAX
    return blocks(
        [
            part
            for part in (
                _part(f"runs ({len(runs):,})", table([_run(each) for each in runs[:shown]], width)),
                _rest(len(runs) - shown, "runs: --all shows every one, --json has all there is"),
                _part(f"skipped ({report['sums']['skipped']:,})", _skipped(skips, width)),
                _part("by day", table([_sums("day", each["name"], each["sums"]) for each in report["by-day"]], width)),
                _part(
                    "by agent", table([_sums("agent", each["name"], each["sums"]) for each in report["agents"]], width)
                ),
                _part("by schedule", table([_schedule(each) for each in report["schedules"]], width)),
                _part("gates", [_gate(each) for each in report["schedules"] if each["gate"]]),
                _part("budgets", [_budget(each) for each in report["budgets"]]),
                _part(
                    "busiest minutes",
                    [f"{_time(each['at'])}: {each['runs']} runs at work" for each in report["busiest"]],
                ),
                _part("never", [f"{each['schedule']}: {each['because']}" for each in report["never"]]),
                _part("estimated from", _estimates(report["schedules"])),
                _part("notes", _notes(report)),
                _summary(report),
            )
            if part
        ]
    )


def _part(title: str, lines: list[str]) -> list[str]:
    return [f"{title}:", *indented(lines)] if lines else []


def _rest(left: int, words: str) -> list[str]:
    return [f"and {left:,} more {words}"] if left > 0 else []


def _run(run: Form) -> Form:
    return {
        "at": _time(run["at"]),
        "schedule": run["schedule"],
        "agent": run["agent"],
        "session": run["session"],
        "state": run["state"],
        "began": _late(run),
        "tokens": f"{run['input-tokens']:,}/{run['output-tokens']:,}" if run["agent"] else "",
        "cost": usd(run["cost-microusd"]) if run["agent"] else "",
        "because": run["because"],
    }


def _late(run: Form) -> str:
    """Return the start time if the run started late, because its agent or all slots were busy."""
    return "" if run["began"] == run["at"] else _time(run["began"])


def _skipped(skips: list[Form], width: int) -> list[str]:
    rows = [
        {
            "at": _time(each["at"]),
            "schedule": each["schedule"],
            "times": "many" if each["times"] is None else each["times"],
            "kind": each["kind"],
            "because": each["because"],
        }
        for each in skips[:SKIPS_SHOWN_MAX]
    ]
    return [*(table(rows, width) if rows else []), *_rest(len(skips) - SKIPS_SHOWN_MAX, "skips: --json has them all")]


def _sums(kind: str, name: str, sums: Form) -> Form:
    return {
        kind: name or "(nobody)",
        "runs": sums["runs"],
        "failed": sums["failed"] or "",
        "skipped": sums["skipped"] or "",
        "tokens": f"{sums['input-tokens']:,}/{sums['output-tokens']:,}",
        "cost": _cost(sums),
    }


def _schedule(each: Form) -> Form:
    return {
        **_sums("schedule", each["name"], each["sums"]),
        "to": each["to"],
        "model": each["model"],
        "when": each["when"],
    }


def _gate(each: Form) -> str:
    gate = each["gate"]
    known = gate["was-open"] + gate["was-closed"]
    history = f"of {known} times before it was open {gate['was-open']}" if known else "it was never asked before"
    return f"{each['name']}: {gate['taken']}; {history}"


def _budget(each: Form) -> str:
    whose = f" of {each['whose']}" if each["whose"] else ""
    most = f"at most {usd(each['most-microusd'])} of {usd(each['cap-microusd'])}" if each["cap-microusd"] else "passed"
    on = f" ({each['most-on']})" if each["most-on"] else ""
    refused = (
        f"; refuses {each['refused']:,} runs, the first at {_time(each['first-refused'])}" if each["refused"] else ""
    )
    return f"{each['what']}{whose}: {most}{on}{refused}"


def _estimates(schedules: list[Form]) -> list[str]:
    names: dict[str, list[str]] = {}
    for each in schedules:
        if each["sums"]["runs"]:
            names.setdefault(each["estimated"], []).append(each["name"])
    return [f"{basis}: {', '.join(of)}" for basis, of in names.items()]


def _notes(report: Form) -> list[str]:
    left = report["left-out"]
    under_way = [f"{left} runs were under way and are left out"] if left else []
    late = report["held-up"]
    held_up = [f"{late['runs']:,} runs begin late, for every seat is taken: {_longest(late)}"] if late["runs"] else []
    stopped = [f"it stopped at {_time(report['until'])}, {report['stopped']}"] if report["stopped"] else []
    return [*report["notes"], *under_way, *held_up, *stopped]


def _longest(late: Form) -> str:
    return f"{late['schedule']} of {_time(late['at'])} by {late['longest-s']:,} s"


def _summary(report: Form) -> list[str]:
    sums = report["sums"]
    failed = f"{sums['failed']:,} of them fail, " if sums["failed"] else ""
    when = f"{_time(report['begin'])} to {_time(report['until'])} ({report['zone']})"
    return [
        f"rehearsed: {when}, on a copy of {report['house']}",
        f"{sums['runs']:,} runs, {failed}{sums['skipped']:,} skipped, about {_cost(sums)}",
        f"took {report['took-s']:g} s; seed {report['seed']}",
    ]


def _cost(sums: Form) -> str:
    unknown = f" and {sums['unpriced']:,} runs of unknown price" if sums["unpriced"] else ""
    return f"{usd(sums['cost-microusd'])}{unknown}"


def usd(microusd: int | None) -> str:
    if microusd is None:
        return "unknown"
    digits = 2 if microusd % 10_000 == 0 or microusd >= 100 * MICROUSD else 4
    return f"${microusd / MICROUSD:,.{digits}f}"


def _time(moment: str) -> str:
    """Format a time as `2026-11-16 09:00:00+01:00`. The offset makes daylight saving changes visible."""
    return moment.replace("T", " ")
