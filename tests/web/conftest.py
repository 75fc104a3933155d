"""A browser and a house for each file, and a new window for each test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from api.tcp_server import Rim, open_rim
from playwright.sync_api import Browser
from web.browser import Front, open_browser

# The tests of a file sign in often and send fast.
SETTINGS = "[house.limits]\nenvelopes_per_minute = 10000\nrequests_per_minute = 100000\n"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Not for longer: while it is open a loop runs, and tests of other folders have loops of their own."""
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def rim(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Rim]:
    """A file that needs other settings says so in its `SETTINGS`."""
    with open_rim(tmp_path_factory.mktemp("front"), getattr(request.module, "SETTINGS", SETTINGS)) as opened:
        yield opened


@contextmanager
def open_front(browser: Browser, rim: Rim) -> Iterator[Front]:
    """Nothing that a test does may make the page complain, or ask anything of another host."""
    opened = Front(browser, rim)
    yield opened
    opened.close()
    assert opened.complaints == []
    assert opened.outside == []


@pytest.fixture
def front(browser: Browser, rim: Rim) -> Iterator[Front]:
    with open_front(browser, rim) as opened:
        yield opened


@pytest.fixture
def own_front(browser: Browser, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Front]:
    """As `front`, on a server that no other test uses."""
    with (
        open_rim(tmp_path, getattr(request.module, "SETTINGS", SETTINGS)) as rim,
        open_front(browser, rim) as opened,
    ):
        yield opened
