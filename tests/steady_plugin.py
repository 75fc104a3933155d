"""A pytest plugin for `make steady`: `--order-seed` runs the tests in a random order that can be repeated, and
`--outcomes` records the outcome of each.
"""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import pytest
from retry_plugin import first_line


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--order-seed", type=int, metavar="N", help="shuffle the files, and the tests in each file")
    parser.addoption("--outcomes", type=Path, metavar="FILE", help="append the outcome of each test, as JSON lines")


def pytest_configure(config: pytest.Config) -> None:
    seed: int | None = config.getoption("--order-seed")
    if seed is not None:
        config.pluginmanager.register(RandomOrder(seed), "random-order")
    path: Path | None = config.getoption("--outcomes")
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Outcomes(path), "outcomes")


class RandomOrder:
    """Orders tests by a hash of the seed and the id, so that every worker and every selection has the same order."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        # The tests of a file stay together: they share expensive fixtures.
        items.sort(key=lambda item: (self._order_key(item.nodeid.partition("::")[0]), self._order_key(item.nodeid)))

    def _order_key(self, name: str) -> bytes:
        return sha256(f"{self._seed} {name}".encode()).digest()

    def pytest_report_header(self) -> str:
        return f"order seed: {self._seed}"


class Outcomes:
    """Writes each outcome as soon as it is known, and the exit status last: without it, the run was interrupted."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            message = "" if report.passed or report.skipped else first_line(report)
            self._write(test=report.nodeid, outcome=report.outcome, message=message)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write(test=report.nodeid, outcome=report.outcome, message=first_line(report))

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self._write(exit_status=int(exitstatus))

    def _write(self, **fields: str | int) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(fields) + "\n")
