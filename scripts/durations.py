"""Stores how many seconds each test file takes, in tests/durations.toml. `make affected` plans with these times.

`make test ARGS="-p scripts.durations"` measures them: as a pytest plugin, this module writes
the file at the end of the run. `python -m scripts.durations FILE...` writes it from JSON lists of
[test, phase, seconds, ...].
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DURATIONS = ROOT / "tests" / "durations.toml"

# In a long file, each long test has a separate entry.
LONG_FILE_S = 10.0
LONG_TEST_S = 1.0

HEADER = """\
# Seconds of each test file, and of the long tests in the long files.
# Measured: make test ARGS="-p scripts.durations" writes them again.
"""


def main(paths: list[str]) -> int:
    """Write the seconds from lists of [test, phase, seconds, ...], and print the number of test files."""
    phases = [phase for path in paths for phase in json.loads(Path(path).read_text())]
    write(DURATIONS, summed((phase[0], phase[2]) for phase in phases))
    print(f"durations: {sum('::' not in name for name in read(DURATIONS))} test files")
    return 0


def read(path: Path = DURATIONS) -> dict[str, float]:
    """Return the seconds by the path of a test file, or by `path::test`. Empty if nothing was measured yet."""
    return tomllib.loads(path.read_text()) if path.is_file() else {}


def summed(phases: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Add up the seconds of all phases of tests: for each file, and for each long test in a long file."""
    files: dict[str, float] = defaultdict(float)
    tests: dict[str, float] = defaultdict(float)
    for test, seconds in phases:
        files[test.partition("::")[0]] += seconds
        tests[test.partition("[")[0]] += seconds
    long = {
        test: seconds
        for test, seconds in tests.items()
        if seconds >= LONG_TEST_S and files[test.partition("::")[0]] >= LONG_FILE_S
    }
    return {**files, **long}


def write(path: Path, seconds: Mapping[str, float]) -> None:
    """Write the seconds, sorted. Files that were not measured this time keep their entries, unless
    they were deleted.
    """
    measured = {name for name in seconds if "::" not in name}
    kept = {
        name: value
        for name, value in read(path).items()
        if name.partition("::")[0] not in measured and (path.parent.parent / name.partition("::")[0]).is_file()
    }
    lines = (f'"{name}" = {value:.2f}\n' for name, value in sorted({**kept, **seconds}.items()))
    path.write_text(HEADER + "\n" + "".join(lines))


class Stopwatch:
    """Collects the durations of all tests of a run, and writes them at the end of the run."""

    def __init__(self) -> None:
        self._phases: list[tuple[str, float]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._phases.append((report.nodeid, report.duration))

    def pytest_sessionfinish(self) -> None:
        if self._phases:
            write(DURATIONS, summed(self._phases))


def pytest_configure(config: pytest.Config) -> None:
    """Measure in the main process, which gets the reports of all workers."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Stopwatch(), "stopwatch")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
