"""A browser and a server for each file, and new windows for each test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from api.tcp_server import ApiClient, open_api_client
from playwright.sync_api import Browser
from web.browser import WebApp, open_browser

# The tests of a file sign in often and send many messages.
SETTINGS = "[server.limits]\nenvelopes_per_minute = 10000\nrequests_per_minute = 100000\n"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One per module: while it is open an event loop runs, and tests in other folders start their own."""
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[ApiClient]:
    """A module that needs other settings defines `SETTINGS`."""
    with open_api_client(tmp_path_factory.mktemp("web"), getattr(request.module, "SETTINGS", SETTINGS)) as opened:
        yield opened


@contextmanager
def open_app(browser: Browser, server: ApiClient) -> Iterator[WebApp]:
    """Fail if the browser logs an error or sends a request to another host."""
    opened = WebApp(browser, server)
    yield opened
    opened.close()
    assert opened.console_errors == []
    assert opened.external_requests == []


@pytest.fixture
def app(browser: Browser, server: ApiClient) -> Iterator[WebApp]:
    with open_app(browser, server) as opened:
        yield opened


@pytest.fixture
def own_app(browser: Browser, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[WebApp]:
    """Like `app`, on a server that no other test uses."""
    with (
        open_api_client(tmp_path, getattr(request.module, "SETTINGS", SETTINGS)) as server,
        open_app(browser, server) as opened,
    ):
        yield opened
