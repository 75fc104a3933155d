from __future__ import annotations

from pathlib import Path

import pytest
from config.data_directory import SettingsDirectory


@pytest.fixture
def home(tmp_path: Path) -> SettingsDirectory:
    folder = tmp_path / "home"
    folder.mkdir()
    return SettingsDirectory(folder)
