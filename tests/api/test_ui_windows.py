"""A page's windows and an agent's hands: over a real WebSocket, in real runs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from api.tcp_server import Live, Rim, open_rim

from retinue.testing.wait_conditions import wait_until_sync

LIMITS = "[house.limits]\nenvelopes_per_minute = 10000\nrequests_per_minute = 100000\n"
PANELS = [
    {"id": "p1", "type": "chat", "title": "Talk", "visible": True, "binding": None, "context": {}},
    {"id": "p2", "type": "note", "title": "Garden", "visible": True, "context": {"note": "Water the roses."}},
]
LAYOUT = {"kind": "split", "children": ["p1", "p2"]}


@pytest.fixture(scope="module")
def rim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rim]:
    with open_rim(tmp_path_factory.mktemp("windows"), LIMITS) as rim:
        rim.do("agent.set", name="guide", tools_also_allow=["group:panels"])
        yield rim


def call(rim: Rim, tool: str, *, as_: str = "", **arguments: Any) -> dict[str, Any]:
    """Have the guide call a tool, and give the result that its model read."""
    conversation = f"{tool}-{time.monotonic_ns()}"
    text = f"call {tool} {json.dumps(arguments)}"
    sent = rim.do("envelope.send", as_=as_, to="agent:guide", text=text, conversation=conversation)
    wait_until_sync(
        lambda: rim.do("envelope.show", as_=as_, id=sent["envelope"])["status"] == "done", "the envelope is done"
    )
    records = rim.do("session.history", as_=as_, session=sent["session"])["records"]
    return next(record for record in records if record["kind"] == "tool")["body"]


def show(live: Live, window: str, *, panels: Any = None, selected: str | None = "p2") -> None:
    live.say("panels", window=window, panels=PANELS if panels is None else panels, selected=selected, layout=LAYOUT)
    live.settle()


def told(result: dict[str, Any]) -> Any:
    """What stands between the markers of words from outside."""
    return json.loads(result["output"].partition(">>>\n")[2].partition("\n<<<END")[0])


@pytest.mark.spec("A57")
def test_agents_see_what_the_windows_of_their_person_show_and_it_is_gone_with_the_window(rim: Rim) -> None:
    maria = rim.member("maria")
    with rim.live() as live, rim.live(as_=maria) as hers:
        show(live, "w1")
        show(hers, "w9", panels=[{"id": "x", "type": "secret-thing"}], selected=None)
        with rim.live() as other:
            show(other, "w2", panels=[{"id": "p3", "type": "runs"}], selected="p3")
            show(live, "w1")
            listed = call(rim, "panels_list")
            assert [each["window"] for each in told(listed)] == ["w1", "w2"]
            assert told(listed)[0]["panels"][1] == {**PANELS[1], "binding": None}
            assert listed["trust"] == "untrusted" and "secret-thing" not in listed["output"]
        selected = told(call(rim, "panels_selected"))
        assert (selected["window"], selected["selected"]["context"]) == ("w1", {"note": "Water the roses."})
        tree = told(call(rim, "panels_tree"))
        assert [each["window"] for each in tree] == ["w1"] and tree[0]["layout"] == LAYOUT
        assert "context" not in tree[0]["panels"][1]
        assert [each["window"] for each in told(call(rim, "panels_list", as_=maria))] == ["w9"]

    def refused() -> dict[str, Any] | None:
        listed = call(rim, "panels_list")
        return listed if listed["failed"] else None

    gone = wait_until_sync(refused, "the house has noticed that the connection has ended") or {}
    assert "no window is open" in gone["output"]


COMMANDS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (
        "panels_open",
        {"type": "runs", "region": "right", "beside": "p1"},
        {
            "do": "open",
            "panel-type": "runs",
            "region": "right",
            "beside": "p1",
            "binding": None,
            "focus": True,
            "title": "",
        },
    ),
    ("panels_close", {"panel": "p2"}, {"do": "close", "panel": "p2"}),
    ("panels_move", {"panel": "p2", "beside": "p1"}, {"do": "move", "panel": "p2", "beside": "p1", "region": "tab"}),
    (
        "panels_replace",
        {"panel": "p2", "type": "files"},
        {"do": "replace", "panel": "p2", "panel-type": "files", "binding": None},
    ),
    ("panels_focus", {"panel": "p1", "window": "w1"}, {"do": "focus", "panel": "p1"}),
    ("open_url", {"url": "https://example.org/a?b=c"}, {"do": "open-url", "url": "https://example.org/a?b=c"}),
]


@pytest.mark.spec("A58", "A76")
@pytest.mark.parametrize(("tool", "arguments", "heard"), COMMANDS, ids=[each[0] for each in COMMANDS])
def test_a_command_is_done_when_a_window_says_so_and_fails_where_it_says_no(
    rim: Rim, tool: str, arguments: dict[str, Any], heard: dict[str, Any]
) -> None:
    with rim.live() as live, ThreadPoolExecutor(1) as beside:
        show(live, "w1")
        for ok in (True, False):
            waiting = beside.submit(call, rim, tool, **arguments)
            command = live.until("panel-command")[-1]
            assert command == {
                "type": "panel-command",
                "command": command["command"],
                "window": "w1",
                "agent": "guide",
                **heard,
            }
            answer = {"ok": True, "panel": "p7"} if ok else {"ok": False, "error": "there is no room"}
            live.say("panel-done", command=command["command"], **answer)
            result = waiting.result(60)
            assert result["failed"] is not ok, result
            assert ok or "there is no room" in result["output"]


@pytest.mark.spec("A58", "A76")
def test_without_a_window_every_command_fails_and_nothing_is_opened_here(rim: Rim) -> None:
    for tool, arguments, _ in COMMANDS:
        result = call(rim, tool, **arguments)
        assert result["failed"] and "no window is open" in result["output"]
    with rim.live() as live:
        show(live, "w1")
        for tool, arguments in (("panels_close", {"panel": "p9"}), ("open_url", {"url": "file:///etc/passwd"})):
            assert call(rim, tool, **arguments)["failed"]
        assert not [event for event in live.settle() if event["type"] == "panel-command"]


def test_an_agent_whom_no_rule_lets_at_the_screen_has_none_of_these_tools(rim: Rim) -> None:
    def offered() -> set[str]:
        tools = rim.do("tool.list", agent="clerk")["tools"]
        return {each["name"] for each in tools if each.get("verdict", "allow") != "deny"}

    assert not {name for name in offered() if name.startswith("panels_") or name == "open_url"}


def test_a_frame_beyond_the_bounds_is_answered_and_the_connection_goes_on(rim: Rim) -> None:
    with rim.live() as live:
        show(live, "w1")
        live.say("panels", window="w1", panels=[{"id": "p", "type": "x", "title": "t" * 201}])
        error = live.until("error")[-1]["error"]
        assert error["code"] == "window.inventory_invalid"
        assert len(told(call(rim, "panels_list"))[0]["panels"]) == 2
        live.say("panel-done", command="0" * 32, ok=True)  # nobody asked: let pass
        live.settle()


def test_only_people_have_windows(rim: Rim) -> None:
    token = rim.do("agent.register", name="looker", token=True)["token"]
    with rim.live(as_=token) as live:
        live.say("panels", window="w1", panels=[])
        assert live.until("error")[-1]["error"]["code"] == "window.not_a_person"


@pytest.mark.spec("A67")
def test_the_windows_of_a_person_hear_of_their_notifications_and_nobody_elses(rim: Rim) -> None:
    noor, lena = rim.member("noor"), rim.member("lena")
    follow = [{"session": "*", "mask": {"events": ["news"]}}]
    with rim.live(as_=noor, follow=follow) as hers, rim.live(as_=lena, follow=follow) as other:
        hers.hear()
        other.hear()
        rim.do("notification.create", to="person:noor", title="Look")
        heard = hers.until("news", news="notification.changed")[-1]
        assert (heard["to"], heard["change"], heard["unread"]) == ("noor", "created", 1)
        rim.do("notification.read", as_=noor, all=True)
        assert hers.until("news", news="notification.changed")[-1]["unread"] == 0
        assert not [event for event in other.settle() if event.get("news") == "notification.changed"]
