"""A real server in its own process, which the client in the test process finds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.server_process import ServerProcess


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerProcess]:
    monkeypatch.setenv("RETINUE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("RETINUE_TOKEN", raising=False)
    process = ServerProcess(tmp_path / "home")
    process.open()
    yield process
    process.close()
