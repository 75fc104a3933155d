"""`make spec`: run the tests that name checklist lines, and say which lines they show."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from spec_lines import SpecLines, System, gather, read_spec_lines

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "build" / "spec.json"


def main(arguments: list[str]) -> int:
    """Print the report and return 0; return pytest's code, with what it printed, if a marked test fails."""
    RESULTS.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-m", "spec", "--spec-results", str(RESULTS), *arguments]
    tests = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    failed = tests.returncode not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    if failed:
        print(tests.stdout)
    if RESULTS.exists():
        shown = set(json.loads(RESULTS.read_text())["shown"])
        print(*report(read_spec_lines(), shown), sep="\n")
    return tests.returncode if failed else 0


def report(spec: SpecLines, shown: set[str]) -> Iterator[str]:
    """Per system and owner what is shown and what is missing, then the sums."""
    shown = shown - set(spec.ruled_out)
    for system in spec.systems:
        yield system.name
        yield from _by_owner(spec, system, shown)
        yield ""
    for system in spec.systems:
        yield f"{system.letter} {len(shown.intersection(system.lines))}/{len(system.lines)}"
    yield f"total {len(shown)}/{len(spec.owner_of)}"


def _by_owner(spec: SpecLines, system: System, shown: set[str]) -> Iterator[str]:
    open_lines = [line for line in system.lines if line not in spec.ruled_out]
    for owner in spec.owners:
        owned = {line for line in open_lines if spec.owner_of[line] == owner}
        if owned & shown:
            yield f"  {owner:<8} shown    {gather(owned & shown)}"
        if owned - shown:
            yield f"  {owner:<8} missing  {gather(owned - shown)}"
    for line in system.lines:
        if reason := spec.ruled_out.get(line):
            yield f"  ruled out {line}: {reason}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
