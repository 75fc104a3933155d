"""A pytest plug-in: `@pytest.mark.spec("H12", "D3")` says which checklist lines a test shows.

A line is shown when at least one test that names it passes and none that names it fails.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from spec_lines import read_spec_lines


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--spec-results", metavar="FILE", help="write which checklist lines the tests of this run show")


def pytest_configure(config: pytest.Config) -> None:
    is_worker = hasattr(config, "workerinput")  # one of several that share the tests: another keeps the score
    results = None if is_worker else config.getoption("--spec-results")
    config.pluginmanager.register(SpecPlugin(results), "spec-lines")


LINES = "spec lines"


class SpecPlugin:
    """Refuses marks that name no line, and keeps the score of a run."""

    def __init__(self, results: str | None) -> None:
        self._results = results
        self._known = frozenset(read_spec_lines().owner_of)
        self._passed: set[str] = set()
        self._failed: set[str] = set()

    @pytest.hookimpl(tryfirst=True)  # before -m and -k drop any, so that a wrong mark is never overlooked
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        complaints: list[str] = []
        for item in items:
            marks = list(item.iter_markers("spec"))
            complaints += [f"{item.nodeid}: spec() names no line" for mark in marks if not mark.args]
            lines = [line for mark in marks for line in mark.args]
            complaints += [f"{item.nodeid}: no such line: {line}" for line in lines if line not in self._known]
            item.user_properties.append((LINES, lines))  # so the report tells, wherever the test is run
        if complaints:
            raise pytest.UsageError(*complaints)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        lines: Sequence[str] = next((value for name, value in report.user_properties if name == LINES), ())  # type: ignore[assignment]
        if report.failed:
            self._failed.update(lines)
        elif report.passed and report.when == "call":
            self._passed.update(lines)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        was_whole = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
        if self._results is None or not was_whole:
            return
        path = Path(self._results)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"shown": sorted(self._passed - self._failed), "failed": sorted(self._failed)}))
