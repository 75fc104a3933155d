"""`python -m retinue.dry_run REQUEST` prints the report of a dry run, or an error, as JSON.

The command line calls it and formats the report for people.
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
from retinue.config import examine
from retinue.domain.errors import RetinueError
from retinue.dry_run.cancellation import Leaving, Left
from retinue.dry_run.dry_run import rehearse
from retinue.dry_run.parameters import Plan, read

FAILED, USAGE = 1, 2
TOLD_TIMES = 10  # progress lines, if stderr is not a terminal


class Progress:
    """Prints the progress on stderr: one updated line on a terminal, a few lines otherwise."""

    def __init__(self, wanted: Plan) -> None:
        self._plan = wanted
        self._told = -1

    def __call__(self, now: datetime, runs: int) -> None:
        whole = self._plan.until - self._plan.begin
        share = (now - self._plan.begin) / whole
        step = int(share * TOLD_TIMES)
        moves = sys.stderr.isatty()
        if step == self._told and not moves:
            return
        self._told = step
        day = min(self._plan.days, (now - self._plan.begin).days + 1)
        line = f"rehearsing: day {day} of {self._plan.days}, {runs:,} runs"
        sys.stderr.write(f"\r{line}" if moves and share < 1 else f"\r{line}\n" if moves else f"{line}\n")
        sys.stderr.flush()


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m retinue.dry_run ASKED\n")
        return USAGE
    logging.getLogger("retinue").setLevel(logging.CRITICAL)  # the report has the result of each run
    leaving = Leaving()
    with leaving.at(signal.SIGINT, signal.SIGTERM):
        return _rehearsed(arguments[0], leaving)


def _rehearsed(words: str, leaving: Leaving) -> int:
    try:
        asked = read(words.encode())
        found = examine(os.environ)  # invalid settings do not prevent a dry run; the report notes them
        report = rehearse(
            asked,
            found.configuration.settings,
            now=RealClock().now(),
            environment=os.environ,
            watch=Progress,
            notes=[f"not as set: {fault}" for fault in found.faults],
            leaving=leaving,
        )
    except RetinueError as error:
        form = {"code": error.code, "sentence": error.sentence, "because": error.because, "try": error.try_this}
        sys.stdout.write(json.dumps({"error": form}, ensure_ascii=False) + "\n")
        return FAILED
    except Left as left:
        return left.status
    sys.stdout.write(msgspec.json.encode(report).decode() + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
