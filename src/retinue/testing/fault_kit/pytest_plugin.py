"""A pytest plugin that prints the matrix of the fault test suite after the tests.

To use it, add it to `pytest_plugins`. The cells of the matrix are part of the test reports, so that
they also arrive from the worker processes of pytest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
import pytest

if TYPE_CHECKING:
    from retinue.testing.fault_kit.matrix import MatrixCell

CELLS_PROPERTY = "fault kit"


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_MatrixReport(), "retinue-fault-kit")


@pytest.fixture
def fault_matrix(request: pytest.FixtureRequest) -> Iterator[list[MatrixCell]]:
    """Return a list to which a test appends its results, which are cells of the matrix."""
    cells: list[MatrixCell] = []
    yield cells
    request.node.user_properties.append((CELLS_PROPERTY, msgspec.json.encode(cells).decode()))


class _MatrixReport:
    """Collects the cells of the matrix from all tests of a session, and prints the matrix."""

    def __init__(self) -> None:
        self._found: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            self._found += [str(value) for name, value in report.user_properties if name == CELLS_PROPERTY]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._found:
            return
        # imported late, so that other tests need not wait for it
        from retinue.testing.fault_kit.matrix import MatrixCell, format_matrix

        cells = [cell for found in self._found for cell in msgspec.json.decode(found, type=list[MatrixCell])]
        terminalreporter.section("fault kit")
        terminalreporter.write("\n".join([*format_matrix(cells), ""]))
