"""A running server for tests of the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli.pty_chat import PtyChat
from cli.server_process import ServerProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for all tests of a file that do not change it."""
    process = ServerProcess(tmp_path_factory.mktemp("instance") / "home")
    process.open()
    yield process
    process.close()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A separate server that the test may kill."""
    process = ServerProcess(tmp_path / "home")
    process.open()
    yield process
    process.close()


@pytest.fixture
def terminal() -> Iterator[Callable[..., PtyChat]]:
    """Start chats at pseudo-terminals; they end with the test."""
    chats: list[PtyChat] = []

    def open_chat(home: Path, *words: str, **settings: Any) -> PtyChat:
        chats.append(PtyChat(home, *words, **settings))
        return chats[-1]

    yield open_chat
    for chat in chats:
        chat.close()
