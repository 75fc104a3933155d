"""One client follows events over SSE and one over a WebSocket while the server is killed repeatedly. In the end both
have the same state as a new client.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

import pytest
from api.tcp_server import ApiClient
from api.test_event_cursors import fold_events, read_events_until, without_ids
from cli.server_process import ServerProcess
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

from retinue.cli.client import CliError, EventStream
from retinue.testing.wait_conditions import WAIT_LIMIT_S, wait_until_sync

PIECE_S = 0.05
# Statuses of the envelope at which the server is killed: before, during and after its run.
KILL_STATUSES = (("pending", "claimed", "done"), ("claimed", "done"), ("done",))


class Follower(threading.Thread):
    """A client that reconnects from its cursor after each lost connection. `seqs` has each event number received."""

    def __init__(self, session: str, listen: Callable[[Follower], None]) -> None:
        super().__init__(daemon=True)
        self.session = session
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.cursor = 0
        self.stopped = threading.Event()
        self._listen = listen

    @property
    def seqs(self) -> list[int]:
        return [data["seq"] for name, data in self.events if name == "event"]

    def receive_frame(self, name: str, data: dict[str, Any]) -> None:
        assert name != "reset", "a cursor was refused"
        self.events.append((name, data))
        if name == "event":
            self.cursor = data["seq"]

    def run(self) -> None:
        while not self.stopped.is_set():
            with suppress(CliError, OSError, WebSocketException, TimeoutError):
                self._listen(self)
            time.sleep(PIECE_S)  # sleep: the pace of a client that tries again


def follow_by_sse(follower: Follower) -> None:
    stream = EventStream(after=follower.cursor, session=follower.session)
    try:
        for event in stream.take_buffered():
            follower.receive_frame(*event)
        while not follower.stopped.is_set():
            for event in stream.receive():
                follower.receive_frame(*event)
    finally:
        stream.close()


def follow_by_websocket(api_client: Callable[[], ApiClient]) -> Callable[[Follower], None]:
    def listen(follower: Follower) -> None:
        server = api_client()
        headers = {"authorization": f"Bearer {server.token}"}
        with connect(f"ws://{server.host}:{server.port}/api/live", additional_headers=headers) as link:
            link.send(json.dumps({"type": "hello", "protocol": 2}))
            wanted = {"type": "subscribe", "session": follower.session, "after": follower.cursor}
            link.send(json.dumps(wanted))
            while not follower.stopped.is_set():
                heard = json.loads(link.recv(timeout=WAIT_LIMIT_S))
                follower.receive_frame(heard.pop("type"), heard)

    return listen


def send_until_accepted(server: ServerProcess, words: str, key: str) -> dict[str, Any]:
    """Repeat the request until the server has accepted it."""

    def try_to_send() -> dict[str, Any] | None:
        try:
            return server.call("envelope.send", to="agent:guide", text=words, key=key)
        except (CliError, OSError, AssertionError):
            return None

    return wait_until_sync(try_to_send, f"{words!r} was accepted") or {}


def wait_for_status(server: ServerProcess, envelope: str, statuses: Collection[str]) -> None:
    wait_until_sync(
        lambda: server.call("envelope.show", id=envelope)["status"] in statuses, f"the status is one of {statuses}"
    )


def wait_until_settled(server: ServerProcess, session: str) -> int:
    """Wait until no envelope is pending; the number of the newest event."""

    def newest_cursor() -> int | None:
        open_ = [server.call("envelope.list", **{"from": "person:owner", "status": s}) for s in ("pending", "claimed")]
        state = server.call("session.state", session=session)  # last: nothing follows its cursor if nothing was open
        return int(state["cursor"]) if state["run"] is None and not any(each["envelopes"] for each in open_) else None

    return wait_until_sync(newest_cursor, "no envelope is pending") or 0


@pytest.mark.spec("A21")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("restarts", [4, pytest.param(50, marks=pytest.mark.slow)])
def test_clients_of_the_event_feed_have_the_same_events_after_restarts_as_a_new_client(
    server: ServerProcess, restarts: int
) -> None:
    session = str(send_until_accepted(server, "echo first", "first")["session"])
    followers = [Follower(session, follow_by_sse), Follower(session, follow_by_websocket(lambda: ApiClient(server)))]
    for follower in followers:
        follower.start()
    for n in range(restarts):
        sent = send_until_accepted(server, f"echo number {n}", f"k{n}")
        wait_for_status(server, sent["envelope"], KILL_STATUSES[n % len(KILL_STATUSES)])
        server.kill()
        server.open()
    last = wait_until_settled(server, session)
    newcomer = read_events_until(session, after=0, until=last)
    expected = without_ids(fold_events(newcomer))
    assert len([line for line in expected["lines"] if line[0] == "message"]) == restarts + 1
    numbers = [data["seq"] for name, data in newcomer if name == "event"]
    for follower in followers:
        wait_until_sync(
            lambda follower=follower: follower.seqs[-1:] >= numbers[-1:],
            "the follower has received the newest event",
            describe=lambda follower=follower: follower.seqs[-5:],
        )
        follower.stopped.set()
        assert follower.seqs == numbers  # none missing, none repeated, in order
        assert without_ids(fold_events(follower.events)) == expected
