"""News can be followed from any cursor, through any number of restarts, and always adds up to the same."""

from __future__ import annotations

import json
import select
from pathlib import Path
from typing import Any

import pytest
from cli.server_process import HouseProcess

from retinue.cli.client import EventStream
from retinue.testing.wait_conditions import wait_until_sync

GOLDEN = Path(__file__).parent / "golden" / "conversation.json"

Event = tuple[str, dict[str, Any]]


def follow(session: str, *, after: int, until: int) -> list[Event]:
    """Everything from a cursor on, up to and including the news with this number."""
    stream = EventStream(after=after, session=session)
    events: list[Event] = list(stream.take_buffered())

    def came() -> bool:
        if select.select([stream], [], [], 0)[0]:
            events.extend(stream.receive())
        return any(data.get("seq") == until for _, data in events)

    try:
        if not any(data.get("seq") == until for _, data in events):
            wait_until_sync(came, f"news {until} comes")
    finally:
        stream.close()
    return events


def fold(events: list[Event], state: dict[str, Any] | None = None) -> dict[str, Any]:
    """What a page shows after these news: built from news alone, as a page would."""
    shown: dict[str, Any] = json.loads(json.dumps(state)) if state else {"lines": [], "runs": {}, "resets": 0}
    for name, data in events:
        if name != "news":
            continue
        match data["news"]:
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
    """Runs by their order, so that the state can be compared with a file."""
    return {**state, "runs": list(state["runs"].values())}


def converse(house: HouseProcess) -> tuple[str, int]:
    """A short conversation with a tool call, a failure and a reset. Gives its session and its last news."""
    session = ""
    for words in ("echo good morning", "read SOUL.md", "fail"):
        sent = house.call("envelope.send", to="agent:guide", text=words)
        session = sent["session"]
        wait_until_sync(
            lambda envelope=sent["envelope"]: "outcome" in house.call("envelope.show", id=envelope), "it has ended"
        )
    house.call("session.reset", session=session, message="a fresh start")
    return session, house.call("session.state", session=session)["cursor"]


@pytest.mark.spec("A11")
def test_news_add_up_to_the_same_conversation_after_restarts_and_from_any_cursor(house: HouseProcess) -> None:
    session, last = converse(house)
    before = follow(session, after=0, until=last)
    state = fold(before)
    assert without_ids(state) == json.loads(GOLDEN.read_text())
    for _ in range(2):
        house.kill()
        house.open()
    assert fold(follow(session, after=0, until=last)) == state
    middle = last // 2
    seen = [event for event in before if event[1].get("seq", last + 1) <= middle]
    assert fold(follow(session, after=middle, until=last), fold(seen)) == state


@pytest.mark.spec("A12")
def test_a_cursor_gives_only_what_is_newer_and_an_unknown_one_asks_for_a_reset(house: HouseProcess) -> None:
    session, last = converse(house)
    newer = follow(session, after=last - 2, until=last)
    assert [data["seq"] for name, data in newer if name == "news"] == [last - 1, last]
    stream = EventStream(after=last + 1000, session=session)
    events: list[Event] = list(stream.take_buffered())
    while len(events) < 2:
        events += stream.receive()
    stream.close()
    assert [name for name, _ in events[:2]] == ["reset", "hello"]
    assert events[0][1]["cursor"] == last


def test_the_state_and_the_news_agree_on_the_records(house: HouseProcess) -> None:
    session, last = converse(house)
    told = {
        data["record"]["seq"]: data["record"]
        for name, data in follow(session, after=0, until=last)
        if name == "news" and "record" in data
    }
    state = house.call("session.state", session=session)
    assert state["cursor"] == last
    for record in state["records"]:
        assert told[record["seq"]]["body"] == record["body"]
