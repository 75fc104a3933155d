"""For pytest: prints the matrix at the end of a run that filled some of it. Name this module in `pytest_plugins`.

What a test found goes with its report, so that it is told wherever the test was run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
import pytest

if TYPE_CHECKING:
    from retinue.testing.fault_kit.matrix import Cell

CELLS = "fault kit"


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Matrix(), "retinue-fault-kit")


@pytest.fixture
def fault_matrix(request: pytest.FixtureRequest) -> Iterator[list[Cell]]:
    """Where a test puts what it found."""
    cells: list[Cell] = []
    yield cells
    request.node.user_properties.append((CELLS, msgspec.json.encode(cells).decode()))


class _Matrix:
    """What the tests of a run have found."""

    def __init__(self) -> None:
        self._found: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            self._found += [str(value) for name, value in report.user_properties if name == CELLS]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._found:
            return
        from retinue.testing.fault_kit.matrix import Cell, table  # whoever runs other tests does not wait for it

        cells = [cell for found in self._found for cell in msgspec.json.decode(found, type=list[Cell])]
        terminalreporter.section("fault kit")
        terminalreporter.write("\n".join([*table(cells), ""]))
