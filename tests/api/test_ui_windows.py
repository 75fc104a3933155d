"""Windows of the web app and the UI tools of agents, over a real WebSocket and in real runs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from api.tcp_server import ApiClient, WebSocketClient, open_api_client

from retinue.testing.wait_conditions import wait_until_sync

LIMITS = "[server.limits]\nenvelopes_per_minute = 10000\nrequests_per_minute = 100000\n"
PANELS = [
    {"id": "p1", "type": "chat", "title": "Talk", "visible": True, "binding": None, "context": {}},
    {"id": "p2", "type": "note", "title": "Garden", "visible": True, "context": {"note": "Water the roses."}},
]
LAYOUT = {"kind": "split", "children": ["p1", "p2"]}


@pytest.fixture(scope="module")
def api_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiClient]:
    with open_api_client(tmp_path_factory.mktemp("windows"), LIMITS) as api_client:
        api_client.do("agent.set", name="guide", tools_also_allow=["group:panels"])
        yield api_client


def call_tool(api_client: ApiClient, tool: str, *, as_: str = "", **arguments: Any) -> dict[str, Any]:
    """Have the guide call a tool; the result that the model read."""
    conversation = f"{tool}-{time.monotonic_ns()}"
    text = f"call {tool} {json.dumps(arguments)}"
    sent = api_client.do("envelope.send", as_=as_, to="agent:guide", text=text, conversation=conversation)
    wait_until_sync(
        lambda: api_client.do("envelope.show", as_=as_, id=sent["envelope"])["status"] == "done", "the envelope is done"
    )
    records = api_client.do("session.history", as_=as_, session=sent["session"])["records"]
    return next(record for record in records if record["kind"] == "tool")["body"]


def send_panels(websocket: WebSocketClient, window: str, *, panels: Any = None, selected: str | None = "p2") -> None:
    websocket.say(
        "panels", window=window, panels=PANELS if panels is None else panels, selected=selected, layout=LAYOUT
    )
    websocket.receive_pending()


def parse_untrusted_output(result: dict[str, Any]) -> Any:
    """The JSON output of a tool between the markers of untrusted content."""
    return json.loads(result["output"].partition(">>>\n")[2].partition("\n<<<END")[0])


@pytest.mark.spec("A57")
def test_an_agent_sees_the_open_web_app_windows_of_its_person_until_they_are_closed(api_client: ApiClient) -> None:
    maria = api_client.member("maria")
    with api_client.websocket() as websocket, api_client.websocket(as_=maria) as hers:
        send_panels(websocket, "w1")
        send_panels(hers, "w9", panels=[{"id": "x", "type": "secret-thing"}], selected=None)
        with api_client.websocket() as other:
            send_panels(other, "w2", panels=[{"id": "p3", "type": "runs"}], selected="p3")
            send_panels(websocket, "w1")
            listed = call_tool(api_client, "panels_list")
            assert [each["window"] for each in parse_untrusted_output(listed)] == ["w1", "w2"]
            assert parse_untrusted_output(listed)[0]["panels"][1] == {**PANELS[1], "binding": None}
            assert listed["trust"] == "untrusted" and "secret-thing" not in listed["output"]
        selected = parse_untrusted_output(call_tool(api_client, "panels_selected"))
        assert (selected["window"], selected["selected"]["context"]) == ("w1", {"note": "Water the roses."})
        tree = parse_untrusted_output(call_tool(api_client, "panels_tree"))
        assert [each["window"] for each in tree] == ["w1"] and tree[0]["layout"] == LAYOUT
        assert "context" not in tree[0]["panels"][1]
        assert [each["window"] for each in parse_untrusted_output(call_tool(api_client, "panels_list", as_=maria))] == [
            "w9"
        ]

    def read_failed_list() -> dict[str, Any] | None:
        listed = call_tool(api_client, "panels_list")
        return listed if listed["failed"] else None

    gone = wait_until_sync(read_failed_list, "the server has noticed the end of the connection") or {}
    assert "does not have the web app open" in gone["output"]


COMMANDS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (
        "panels_open",
        {"type": "runs", "region": "right", "beside": "p1"},
        {
            "action": "open",
            "panel_type": "runs",
            "region": "right",
            "beside": "p1",
            "binding": None,
            "focus": True,
            "title": "",
        },
    ),
    ("panels_close", {"panel": "p2"}, {"action": "close", "panel": "p2"}),
    (
        "panels_move",
        {"panel": "p2", "beside": "p1"},
        {"action": "move", "panel": "p2", "beside": "p1", "region": "tab"},
    ),
    (
        "panels_replace",
        {"panel": "p2", "type": "files"},
        {"action": "replace", "panel": "p2", "panel_type": "files", "binding": None},
    ),
    ("panels_focus", {"panel": "p1", "window": "w1"}, {"action": "focus", "panel": "p1"}),
    ("open_url", {"url": "https://example.org/a?b=c"}, {"action": "open_url", "url": "https://example.org/a?b=c"}),
]


@pytest.mark.spec("A58", "A76")
@pytest.mark.parametrize(("tool", "arguments", "heard"), COMMANDS, ids=[each[0] for each in COMMANDS])
def test_a_panel_command_succeeds_or_fails_as_the_window_answers(
    api_client: ApiClient, tool: str, arguments: dict[str, Any], heard: dict[str, Any]
) -> None:
    with api_client.websocket() as websocket, ThreadPoolExecutor(1) as beside:
        send_panels(websocket, "w1")
        for ok in (True, False):
            waiting = beside.submit(call_tool, api_client, tool, **arguments)
            command = websocket.until("panel_command")[-1]
            assert command == {
                "type": "panel_command",
                "command": command["command"],
                "window": "w1",
                "agent": "guide",
                **heard,
            }
            answer = {"ok": True, "panel": "p7"} if ok else {"ok": False, "error": "there is no room"}
            websocket.say("panel_done", command=command["command"], **answer)
            result = waiting.result(60)
            assert result["failed"] is not ok, result
            assert ok or "there is no room" in result["output"]


@pytest.mark.spec("A58", "A76")
def test_without_a_window_or_with_invalid_arguments_panel_commands_fail(api_client: ApiClient) -> None:
    for tool, arguments, _ in COMMANDS:
        result = call_tool(api_client, tool, **arguments)
        assert result["failed"] and "does not have the web app open" in result["output"]
    with api_client.websocket() as websocket:
        send_panels(websocket, "w1")
        for tool, arguments in (("panels_close", {"panel": "p9"}), ("open_url", {"url": "file:///etc/passwd"})):
            assert call_tool(api_client, tool, **arguments)["failed"]
        assert not [event for event in websocket.receive_pending() if event["type"] == "panel_command"]


def test_an_agent_without_a_permitting_rule_has_no_panel_tools(api_client: ApiClient) -> None:
    def list_offered_tools() -> set[str]:
        tools = api_client.do("tool.list", agent="clerk")["tools"]
        return {each["name"] for each in tools if each.get("decision", "allow") != "deny"}

    assert not {name for name in list_offered_tools() if name.startswith("panels_") or name == "open_url"}


def test_an_invalid_window_frame_is_answered_with_an_error_and_the_websocket_stays_open(api_client: ApiClient) -> None:
    with api_client.websocket() as websocket:
        send_panels(websocket, "w1")
        websocket.say("panels", window="w1", panels=[{"id": "p", "type": "x", "title": "t" * 201}])
        error = websocket.until("error")[-1]["error"]
        assert error["code"] == "window.inventory_invalid"
        assert len(parse_untrusted_output(call_tool(api_client, "panels_list"))[0]["panels"]) == 2
        websocket.say("panel_done", command="0" * 32, ok=True)  # no such command is pending: ignored
        websocket.receive_pending()


def test_only_people_can_have_web_app_windows(api_client: ApiClient) -> None:
    token = api_client.do("agent.register", name="looker", token=True)["token"]
    with api_client.websocket(as_=token) as websocket:
        websocket.say("panels", window="w1", panels=[])
        assert websocket.until("error")[-1]["error"]["code"] == "window.not_a_person"


@pytest.mark.spec("A67")
def test_the_windows_of_a_person_get_only_their_own_notification_events(api_client: ApiClient) -> None:
    noor, lena = api_client.member("noor"), api_client.member("lena")
    follow = [{"session": "*", "filter": {"types": ["event"]}}]
    with api_client.websocket(as_=noor, follow=follow) as hers, api_client.websocket(as_=lena, follow=follow) as other:
        hers.receive_frame()
        other.receive_frame()
        api_client.do("notification.create", to="person:noor", title="Look")
        heard = hers.until("event", event="notification.changed")[-1]
        assert (heard["to"], heard["change"], heard["unread"]) == ("noor", "created", 1)
        api_client.do("notification.read", as_=noor, all=True)
        assert hers.until("event", event="notification.changed")[-1]["unread"] == 0
        assert not [event for event in other.receive_pending() if event.get("event") == "notification.changed"]
