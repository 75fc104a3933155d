"""Entry point of `python -m retinue.dry_run REQUEST`, which prints a dry-run report, or an error, as JSON.

The command `retinue dry-run` starts this process and formats the report for display.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from datetime import datetime

import msgspec

from retinue.app.clock_and_ids import RealClock
from retinue.config import examine_configuration
from retinue.domain.errors import RetinueError
from retinue.dry_run.cancellation import DryRunCancelled, SignalRecorder
from retinue.dry_run.dry_run import run_dry_run
from retinue.dry_run.parameters import DryRunPlan, parse_dry_run_request

EXIT_FAILED, EXIT_USAGE = 1, 2
PROGRESS_LINES = 10  # progress lines, if stderr is not a terminal


class DryRunProgress:
    """Prints the progress of a dry run on stderr: one updated line on a terminal, a few lines otherwise."""

    def __init__(self, plan: DryRunPlan) -> None:
        self._plan = plan
        self._printed_step = -1

    def __call__(self, now: datetime, runs: int) -> None:
        whole = self._plan.until - self._plan.start
        share = (now - self._plan.start) / whole
        step = int(share * PROGRESS_LINES)
        moves = sys.stderr.isatty()
        if step == self._printed_step and not moves:
            return
        self._printed_step = step
        day = min(self._plan.days, (now - self._plan.start).days + 1)
        line = f"dry run: day {day} of {self._plan.days}, runs: {runs:,}"
        sys.stderr.write(f"\r{line}" if moves and share < 1 else f"\r{line}\n" if moves else f"{line}\n")
        sys.stderr.flush()


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m retinue.dry_run REQUEST\n")
        return EXIT_USAGE
    logging.getLogger("retinue").setLevel(logging.CRITICAL)  # the report has the result of each run
    leaving = SignalRecorder()
    with leaving.record_signals(signal.SIGINT, signal.SIGTERM):
        return _run_request(arguments[0], leaving)


def _run_request(request_json: str, signals: SignalRecorder) -> int:
    try:
        asked = parse_dry_run_request(request_json.encode())
        found = examine_configuration(os.environ)  # invalid settings do not prevent a dry run; the report notes them
        report = run_dry_run(
            asked,
            found.configuration.settings,
            now=RealClock().now(),
            environment=os.environ,
            make_progress=DryRunProgress,
            notes=[f"invalid setting: {fault}" for fault in found.faults],
            signals=signals,
        )
    except RetinueError as error:
        form = {"code": error.code, "sentence": error.sentence, "because": error.because, "try": error.try_this}
        sys.stdout.write(json.dumps({"error": form}, ensure_ascii=False) + "\n")
        return EXIT_FAILED
    except DryRunCancelled as left:
        return left.exit_code
    sys.stdout.write(msgspec.json.encode(report).decode() + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
