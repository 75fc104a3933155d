"""A pytest plugin: `@pytest.mark.spec("H12", "C113.model")` names the checklist lines or clauses that a test shows.

Every run stores the results of the marked tests, and the content they ran on, for `make spec`.
"""

from __future__ import annotations

from typing import Any, cast

import pytest
from spec_lines import read_spec_lines
from spec_results import RESULTS, MarkedTest, Outcome, Results, keep_results, read_content

MARKED = "spec marks"
Marked = dict[str, dict[str, Any]]  # the arguments of a MarkedTest, in simple types that can be sent between processes


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(SpecMarks(config), "spec-marks")
    if not hasattr(config, "workerinput"):  # a worker reports to the process that started it
        config.pluginmanager.register(SpecResults(config), "spec-results")


class SpecMarks:
    """Refuses marks that name no line or clause, and adds the others to the test's report."""

    def __init__(self, config: pytest.Config) -> None:
        self._spec = read_spec_lines()
        self._config = config

    @pytest.hookimpl(tryfirst=True)  # before -m and -k deselect any, so that a wrong mark is always found
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        complaints: list[str] = []
        collected: Marked = {}
        for item in items:
            found = list(item.iter_markers("spec"))
            complaints += [f"{item.nodeid}: spec() names no line" for mark in found if not mark.args]
            marks = [mark for each in found for mark in each.args]
            complaints += [f"{item.nodeid}: {why}" for mark in marks if (why := self._spec.explain_refusal(mark))]
            if marks:
                collected[item.nodeid] = {"marks": marks, "slow": item.get_closest_marker("slow") is not None}
                item.user_properties.append((MARKED, collected[item.nodeid]))
        if complaints:
            raise pytest.UsageError(*complaints)
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput[MARKED] = collected  # type: ignore[attr-defined]
        elif (results := self._config.pluginmanager.get_plugin("spec-results")) is not None:
            results.note_collection(collected)


class SpecResults:
    """Stores the results of the marked tests of a run, from all processes."""

    def __init__(self, config: pytest.Config) -> None:
        self._root = config.rootpath
        self._takes_every_file = takes_every_file(config)
        self._content = read_content(self._root)
        self._marked: Marked = {}
        self._outcomes: dict[str, Outcome] = {}
        self._collected = False
        self._collection_failed = False
        self._problem = ""

    def note_collection(self, collected: Marked) -> None:
        """Record every marked test, including those that -m or -k deselect."""
        self._marked.update(collected)
        self._collected = True

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        if (collected := getattr(node, "workeroutput", {}).get(MARKED)) is not None:
            self.note_collection(collected)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._collection_failed |= report.failed

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, marked in report.user_properties:
            if name == MARKED:
                self._marked[report.nodeid] = cast(dict[str, Any], marked)
        if report.failed:
            self._outcomes[report.nodeid] = Outcome.FAILED
        elif report.skipped:
            self._outcomes.setdefault(report.nodeid, Outcome.SKIPPED)
        elif report.when == "call":
            self._outcomes.setdefault(report.nodeid, Outcome.PASSED)

    def pytest_sessionfinish(self) -> None:
        """Store the results, even of an interrupted run. A problem here is reported, but fails no test."""
        tests = {
            name: MarkedTest(
                marks=tuple(marked["marks"]), slow=marked["slow"], outcome=self._outcomes.get(name, Outcome.NOT_RUN)
            )
            for name, marked in self._marked.items()
        }
        if all(test.outcome is Outcome.NOT_RUN for test in tests.values()):
            return
        try:
            if changed := read_content(self._root).changed_since(self._content):
                self._problem = f"{changed[0]} changed while the tests ran"
                return
            all_collected = self._collected and self._takes_every_file and not self._collection_failed
            keep_results(self._root / RESULTS, Results(content=self._content, tests=tests, all_collected=all_collected))
        except OSError as problem:
            self._problem = str(problem)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._problem:
            terminalreporter.write_line(f"The results for make spec were not kept: {self._problem}", yellow=True)


def takes_every_file(config: pytest.Config) -> bool:
    """Whether every test file is collected: no path was given, and none is ignored."""
    narrowing = ("ignore", "ignore_glob", "lf")
    return config.args_source is not pytest.Config.ArgsSource.ARGS and not any(
        config.getoption(option, None) for option in narrowing
    )
