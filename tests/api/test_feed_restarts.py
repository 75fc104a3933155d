"""Two who follow the news, one by SSE and one by WebSocket, while the house is killed again and again: in the end both
know what a newcomer is told."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

import pytest
from api.tcp_server import Rim
from api.test_event_cursors import fold, follow, without_ids
from cli.server_process import HouseProcess
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

from retinue.cli.client import CliError, EventStream
from retinue.testing.wait_conditions import WAIT_LIMIT_S, wait_until_sync

PIECE_S = 0.05
# Before, while and after it is worked on: the statuses of an envelope at which the house is killed.
KILLED_WHEN = (("pending", "claimed", "done"), ("claimed", "done"), ("done",))


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
            time.sleep(PIECE_S)  # sleep: the pace of a client that tries again


def by_sse(follower: Follower) -> None:
    stream = EventStream(after=follower.cursor, session=follower.session)
    try:
        for event in stream.take_buffered():
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
                heard = json.loads(link.recv(timeout=WAIT_LIMIT_S))
                follower.hear(heard.pop("type"), heard)

    return listen


def say(house: HouseProcess, words: str, key: str) -> dict[str, Any]:
    """Until it was taken, whatever dies meanwhile."""

    def taken() -> dict[str, Any] | None:
        try:
            return house.call("envelope.send", to="agent:guide", text=words, key=key)
        except (CliError, OSError, AssertionError):
            return None

    return wait_until_sync(taken, f"{words!r} was taken") or {}


def wait_for_status(house: HouseProcess, envelope: str, statuses: Collection[str]) -> None:
    wait_until_sync(lambda: house.call("envelope.show", id=envelope)["status"] in statuses, f"it is {statuses}")


def settled(house: HouseProcess, session: str) -> int:
    """Wait until nothing is asked any more; the newest news."""

    def newest() -> int | None:
        state = house.call("session.state", session=session)
        open_ = [house.call("envelope.list", **{"from": "person:owner", "status": s}) for s in ("pending", "claimed")]
        return int(state["cursor"]) if state["run"] is None and not any(each["envelopes"] for each in open_) else None

    return wait_until_sync(newest, "nothing is asked any more") or 0


@pytest.mark.spec("A21")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("restarts", [4, pytest.param(50, marks=pytest.mark.slow)])
def test_those_who_follow_through_restarts_know_what_a_newcomer_is_told(house: HouseProcess, restarts: int) -> None:
    session = str(say(house, "echo first", "first")["session"])
    followers = [Follower(session, by_sse), Follower(session, by_websocket(lambda: Rim(house)))]
    for follower in followers:
        follower.start()
    for n in range(restarts):
        sent = say(house, f"echo number {n}", f"k{n}")
        wait_for_status(house, sent["envelope"], KILLED_WHEN[n % len(KILLED_WHEN)])
        house.kill()
        house.open()
    last = settled(house, session)
    newcomer = follow(session, after=0, until=last)
    expected = without_ids(fold(newcomer))
    assert len([line for line in expected["lines"] if line[0] == "message"]) == restarts + 1
    numbers = [data["seq"] for name, data in newcomer if name == "news"]
    for follower in followers:
        wait_until_sync(
            lambda follower=follower: follower.seqs[-1:] >= numbers[-1:],
            "the follower has heard the newest",
            describe=lambda follower=follower: follower.seqs[-5:],
        )
        follower.over.set()
        assert follower.seqs == numbers  # none missed, none twice, in order
        assert without_ids(fold(follower.events)) == expected
