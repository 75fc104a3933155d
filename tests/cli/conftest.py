"""A house for the command line to talk to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli.pty_chat import PtyChat
from cli.server_process import HouseProcess


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HouseProcess]:
    """One open house for all tests of a file, for those that leave it as it is."""
    process = HouseProcess(tmp_path_factory.mktemp("house") / "home")
    process.open()
    yield process
    process.close()


@pytest.fixture
def own_house(tmp_path: Path) -> Iterator[HouseProcess]:
    """A house of one's own, to be killed."""
    process = HouseProcess(tmp_path / "home")
    process.open()
    yield process
    process.close()


@pytest.fixture
def terminal() -> Iterator[Callable[..., PtyChat]]:
    """Sits down at a terminal; whatever was started there is ended with the test."""
    chats: list[PtyChat] = []

    def sit_down(home: Path, *words: str, **settings: Any) -> PtyChat:
        chats.append(PtyChat(home, *words, **settings))
        return chats[-1]

    yield sit_down
    for chat in chats:
        chat.close()
