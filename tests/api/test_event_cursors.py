"""A client can follow events from any cursor, through any number of restarts, and gets the same state."""

from __future__ import annotations

import json
import select
from pathlib import Path
from typing import Any

import pytest
from cli.server_process import ServerProcess

from retinue.cli.client import EventStream
from retinue.testing.wait_conditions import wait_until_sync

GOLDEN = Path(__file__).parent / "golden" / "conversation.json"

Event = tuple[str, dict[str, Any]]


def read_events_until(session: str, *, after: int, until: int) -> list[Event]:
    """Read events from a cursor up to and including the given number."""
    stream = EventStream(after=after, session=session)
    events: list[Event] = list(stream.take_buffered())

    def has_arrived() -> bool:
        if select.select([stream], [], [], 0)[0]:
            events.extend(stream.receive())
        return any(data.get("seq") == until for _, data in events)

    try:
        if not any(data.get("seq") == until for _, data in events):
            wait_until_sync(has_arrived, f"event {until} is received")
    finally:
        stream.close()
    return events


def fold_events(events: list[Event], state: dict[str, Any] | None = None) -> dict[str, Any]:
    """The state that a client shows after these events, built from the events alone."""
    shown: dict[str, Any] = json.loads(json.dumps(state)) if state else {"lines": [], "runs": {}, "resets": 0}
    for name, data in events:
        if name != "event":
            continue
        match data["event"]:
            case "envelope.accepted":
                shown["lines"].append([data["kind"], data["from"].split("/")[0], data["text"]])
            case "run.started":
                shown["runs"][data["run"]] = ["running"]
            case "step.opened":
                shown["runs"][data["run"]].append(f"calls {data['tool']}")
            case "step.closed":
                shown["runs"][data["run"]].append(f"{data['record']['kind']} recorded")
            case "run.ended":
                shown["runs"][data["run"]] += [data["status"], data["outcome"]]
            case "session.reset":
                shown["resets"] += 1
            case _:
                pass
    return shown


def without_ids(state: dict[str, Any]) -> dict[str, Any]:
    """Return the runs in order without their ids, so that the state can be compared with a file."""
    return {**state, "runs": list(state["runs"].values())}


def run_conversation(server: ServerProcess) -> tuple[str, int]:
    """Run a short conversation with a tool call, a failure and a reset; its session and last event number."""
    session = ""
    for words in ("echo good morning", "read SOUL.md", "fail"):
        sent = server.call("envelope.send", to="agent:guide", text=words)
        session = sent["session"]
        wait_until_sync(
            lambda envelope=sent["envelope"]: "outcome" in server.call("envelope.show", id=envelope),
            "the run has ended",
        )
    server.call("session.reset", session=session, message="a fresh start")
    return session, server.call("session.state", session=session)["cursor"]


@pytest.mark.spec("A11")
def test_session_events_add_up_to_the_same_state_after_restarts_and_from_any_cursor(server: ServerProcess) -> None:
    session, last = run_conversation(server)
    before = read_events_until(session, after=0, until=last)
    state = fold_events(before)
    assert without_ids(state) == json.loads(GOLDEN.read_text())
    for _ in range(2):
        server.kill()
        server.open()
    assert fold_events(read_events_until(session, after=0, until=last)) == state
    middle = last // 2
    seen = [event for event in before if event[1].get("seq", last + 1) <= middle]
    assert fold_events(read_events_until(session, after=middle, until=last), fold_events(seen)) == state


@pytest.mark.spec("A12")
def test_an_event_cursor_returns_only_newer_events_and_an_unknown_cursor_causes_a_reset(server: ServerProcess) -> None:
    session, last = run_conversation(server)
    newer = read_events_until(session, after=last - 2, until=last)
    assert [data["seq"] for name, data in newer if name == "event"] == [last - 1, last]
    stream = EventStream(after=last + 1000, session=session)
    events: list[Event] = list(stream.take_buffered())
    while len(events) < 2:
        events += stream.receive()
    stream.close()
    assert [name for name, _ in events[:2]] == ["reset", "hello"]
    assert events[0][1]["cursor"] == last


def test_the_session_state_and_the_events_contain_the_same_records(server: ServerProcess) -> None:
    session, last = run_conversation(server)
    told = {
        data["record"]["seq"]: data["record"]
        for name, data in read_events_until(session, after=0, until=last)
        if name == "event" and "record" in data
    }
    state = server.call("session.state", session=session)
    assert state["cursor"] == last
    for record in state["records"]:
        assert told[record["seq"]]["body"] == record["body"]
