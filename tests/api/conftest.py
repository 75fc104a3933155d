"""A real house in a process of its own, which the command line of this process finds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.server_process import HouseProcess


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HouseProcess]:
    monkeypatch.setenv("RETINUE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("RETINUE_TOKEN", raising=False)
    process = HouseProcess(tmp_path / "home")
    process.open()
    yield process
    process.close()
