from __future__ import annotations

from pathlib import Path

import pytest
from config.data_directory import Home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    folder = tmp_path / "home"
    folder.mkdir()
    return Home(folder)
