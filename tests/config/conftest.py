from __future__ import annotations

from pathlib import Path

import pytest
from config.home import Home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    folder = tmp_path / "home"
    folder.mkdir()
    return Home(folder)
