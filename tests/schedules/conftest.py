"""Fixtures for schedules."""

from __future__ import annotations

from pathlib import Path

import pytest

from retinue.testing.local_instance import LocalInstance


@pytest.fixture(params=["sqlite", "postgres"])
def any_instance(request: pytest.FixtureRequest, memory_path: Path) -> LocalInstance:
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else None
    return LocalInstance(memory_path, url=url)
