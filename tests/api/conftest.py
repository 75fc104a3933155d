"""A real server in its own process, which the client in the test process finds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.server_process import ServerProcess

from retinue.cli import client
from retinue.testing.wait_conditions import WAIT_LIMIT_S


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerProcess]:
    monkeypatch.setenv("RETINUE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("RETINUE_TOKEN", raising=False)
    monkeypatch.setattr(client, "STREAM_HEAD_TIMEOUT_S", WAIT_LIMIT_S)
    process = ServerProcess(tmp_path / "home")
    process.open()
    yield process
    process.close()
