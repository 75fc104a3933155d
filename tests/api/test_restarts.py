"""Two who follow the news, one by SSE and one by WebSocket, while the house is killed again and again: in the end both
know what a newcomer is told."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from api.rim import Rim
from api.test_news import fold, follow, without_ids
from cli.house_process import HouseProcess
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

from retinue.cli.client import CliError, Stream

WAIT_S = 60.0
PIECE_S = 0.05


class Follower(threading.Thread):
    """Goes on from its cursor whenever the line breaks. What it heard twice, or not at all, is in `seqs`."""

    def __init__(self, session: str, listen: Callable[[Follower], None]) -> None:
        super().__init__(daemon=True)
        self.session = session
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.cursor = 0
        self.over = threading.Event()
        self._listen = listen

    @property
    def seqs(self) -> list[int]:
        return [data["seq"] for name, data in self.events if name == "news"]

    def hear(self, name: str, data: dict[str, Any]) -> None:
        assert name != "reset", "a cursor was lost"
        self.events.append((name, data))
        if name == "news":
            self.cursor = data["seq"]

    def run(self) -> None:
        while not self.over.is_set():
            with suppress(CliError, OSError, WebSocketException, TimeoutError):
                self._listen(self)
            time.sleep(PIECE_S)


def by_sse(follower: Follower) -> None:
    stream = Stream(after=follower.cursor, session=follower.session)
    try:
        for event in stream.ready():
            follower.hear(*event)
        while not follower.over.is_set():
            for event in stream.receive():
                follower.hear(*event)
    finally:
        stream.close()


def by_websocket(rim: Callable[[], Rim]) -> Callable[[Follower], None]:
    def listen(follower: Follower) -> None:
        house = rim()
        headers = {"authorization": f"Bearer {house.token}"}
        with connect(f"ws://{house.host}:{house.port}/api/live", additional_headers=headers) as link:
            link.send(json.dumps({"type": "hello", "protocol": 1}))
            wanted = {"type": "subscribe", "session": follower.session, "after": follower.cursor}
            link.send(json.dumps(wanted))
            while not follower.over.is_set():
                heard = json.loads(link.recv(timeout=WAIT_S))
                follower.hear(heard.pop("type"), heard)

    return listen


def say(house: HouseProcess, words: str, key: str) -> str:
    """Until it was taken, whatever dies meanwhile; the session it went to."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            return str(house.call("envelope.send", to="agent:guide", text=words, key=key)["session"])
        except (CliError, OSError, AssertionError):
            assert time.monotonic() < deadline
            time.sleep(PIECE_S)


def settled(house: HouseProcess, session: str) -> int:
    """Wait until nothing is asked any more; the newest news."""
    deadline = time.monotonic() + WAIT_S
    while True:
        state = house.call("session.state", session=session)
        open_ = [house.call("envelope.list", **{"from": "person:owner", "status": s}) for s in ("pending", "claimed")]
        if state["run"] is None and not any(listed["envelopes"] for listed in open_):
            return int(state["cursor"])
        assert time.monotonic() < deadline
        time.sleep(PIECE_S)


@pytest.mark.spec("A21")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("restarts", [4, pytest.param(50, marks=pytest.mark.slow)])
def test_those_who_follow_through_restarts_know_what_a_newcomer_is_told(house: HouseProcess, restarts: int) -> None:
    session = say(house, "echo first", "first")
    followers = [Follower(session, by_sse), Follower(session, by_websocket(lambda: Rim(house)))]
    for follower in followers:
        follower.start()
    for n in range(restarts):
        say(house, f"echo number {n}", f"k{n}")
        time.sleep(PIECE_S * (n % 4))  # before, while and after it is worked on
        house.kill()
        house.open()
    last = settled(house, session)
    newcomer = follow(session, after=0, until=last)
    expected = without_ids(fold(newcomer))
    assert len([line for line in expected["lines"] if line[0] == "message"]) == restarts + 1
    numbers = [data["seq"] for name, data in newcomer if name == "news"]
    deadline = time.monotonic() + WAIT_S
    for follower in followers:
        while not follower.seqs or follower.seqs[-1] < numbers[-1]:
            assert time.monotonic() < deadline, follower.seqs[-5:]
            time.sleep(PIECE_S)
        follower.over.set()
        assert follower.seqs == numbers  # none missed, none twice, in order
        assert without_ids(fold(follower.events)) == expected
