"""A pytest plugin: prints the time of each group of tests at the end of a run. A group is a folder in `tests/`.

`make test` adds pytest's own list of the slowest tests. Files run longest first, by `tests/durations.toml`. A worker
runs whole files, except for files with hundreds of long tests that share nothing.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

from scripts import durations

UNMEASURED_S = 1.0  # a file that was never measured
# Ten seconds each, and 500 of them in `make test-slow`: in one worker, they would take longer than all other tests.
SPLIT_TESTS = ("tests/simulation/test_seeds.py::test_a_simulated_server_keeps_its_invariants_for_many_more_seeds",)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--group-seconds", action="store_true", help="print the seconds of each folder of tests")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(LongestFirst(), "longest-first")
    if config.getoption("--group-seconds") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(GroupSeconds(), "group-seconds")


@pytest.hookimpl(optionalhook=True)  # a run without xdist has no such hook
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    return WholeFiles(config, log) if config.getoption("dist") == "loadfile" else None


class WholeFiles(LoadFileScheduling):
    """Gives a worker whole files, and the tests named in `SPLIT_TESTS` one by one."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid if nodeid.startswith(SPLIT_TESTS) else super()._split_scope(nodeid)


class LongestFirst:
    """Starts long files first, so that no worker begins the longest one when the others are done."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        seconds = durations.read()
        items.sort(key=lambda item: -seconds.get(file_of(item.nodeid), UNMEASURED_S))  # stable: files stay whole


class GroupSeconds:
    def __init__(self) -> None:
        self._tests: dict[str, set[str]] = {}
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        group = group_of(report.nodeid)
        self._tests.setdefault(group, set()).add(report.nodeid)
        self._seconds[group] += report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("seconds per group")
        for group, seconds in sorted(self._seconds.items(), key=lambda item: -item[1]):
            terminalreporter.write_line(f"{seconds:8.1f} s {len(self._tests[group]):6d} tests  {group}")
        count = sum(len(tests) for tests in self._tests.values())
        terminalreporter.write_line(
            f"{sum(self._seconds.values()):8.1f} s {count:6d} tests  all, by all workers together"
        )


def group_of(nodeid: str) -> str:
    """The folder below `tests/`; a file directly in `tests/` is its own group."""
    return file_of(nodeid).removeprefix("tests/").partition("/")[0]


def file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]
