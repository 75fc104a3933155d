"""Use stores in memory: these tests make thousands of commits."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def tmp_path(memory_path: Path) -> Path:
    return memory_path
