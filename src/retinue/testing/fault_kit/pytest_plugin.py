"""For pytest: prints the matrix at the end of a run that filled some of it. Name this module in `pytest_plugins`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from retinue.testing.fault_kit.matrix import Cell

_CELLS = pytest.StashKey[list["Cell"]]()


@pytest.fixture
def fault_matrix(request: pytest.FixtureRequest) -> list[Cell]:
    """Where a test puts what it found."""
    return request.config.stash.setdefault(_CELLS, [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    cells = config.stash.get(_CELLS, None)
    if cells:
        from retinue.testing.fault_kit.matrix import table  # whoever runs other tests does not wait for it

        terminalreporter.section("fault kit")
        terminalreporter.write("\n".join([*table(cells), ""]))
