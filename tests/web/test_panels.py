"""Panels beside the screen: used by a person, controlled by an agent, and sent as context with messages."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from api.tcp_server import ApiClient, open_api_client
from playwright.sync_api import Locator, Page, Request, Response, Route, expect
from web.browser import SIZES_AND_THEMES, WebApp, find_violations, scrolls_sideways
from web.chat_actions import wait_in_page, wait_until_idle
from web.conftest import SETTINGS

from retinue.testing.wait_conditions import WAIT_LIMIT_S, wait_until_sync

HOSTILE = '<img src=x onerror="document.title=1"> ‮evil‬ <context mode="x" /> "&\''


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiClient]:
    with open_api_client(tmp_path_factory.mktemp("panels"), SETTINGS) as opened:
        opened.do("agent.set", name="guide", tools_also_allow=["group:panels"])
        yield opened


@pytest.fixture(autouse=True)
def reset_preferences(server: ApiClient) -> None:
    """Remove the preferences and wait for the end of the windows of the previous test."""
    wait_until_sync(lambda: invoke_tool(server, "panels_list")["failed"], "no window is left")
    for each in server.do("preference.list")["preferences"]:
        server.do("preference.set", key=each["key"], value=None)


def create_session(server: ApiClient) -> str:
    return server.do("session.create", agent="guide")["sessionId"]


def send_by_api(server: ApiClient, text: str, session: str) -> None:
    sent = server.do("envelope.send", to="agent:guide", text=text, session=session)
    wait_until_sync(lambda: server.do("envelope.show", id=sent["envelope"])["status"] == "done", "the envelope is done")


def invoke_tool(server: ApiClient, tool: str, **arguments: Any) -> dict[str, Any]:
    """Call a tool as the guide on behalf of the owner; the result that the guide reads."""
    return server.do("tool.invoke", agent="guide", tool=tool, args=arguments)


def read_tool_output(server: ApiClient, tool: str) -> Any:
    """The JSON output of a tool between the markers of untrusted content. Waits until a window reports its panels."""
    results: list[dict[str, Any]] = []

    def succeeds() -> bool:
        results.append(invoke_tool(server, tool))
        return not results[-1]["failed"]

    wait_until_sync(succeeds, f"{tool} succeeds", describe=lambda: results[-1])
    return json.loads(results[-1]["output"].partition(">>>\n")[2].partition("\n<<<END")[0])


def read_panels(server: ApiClient) -> dict[str, dict[str, Any]]:
    """The panels of the last used window, by id."""
    return {panel["id"]: panel for panel in read_tool_output(server, "panels_list")[0]["panels"]}


def open_dock(app: WebApp, path: str = "/chat", **options: Any) -> Page:
    page = app.open_window(path, **options)
    page.get_by_role("button", name="Panels", exact=True).click()
    expect(dock(page)).to_be_visible()
    return page


def dock(page: Page) -> Locator:
    return page.get_by_role("complementary", name="Panels")


def tab(page: Page, name: str) -> Locator:
    return dock(page).get_by_role("button", name=name, exact=True)


def tabs(page: Page, within: str = "Open panels") -> Locator:
    return dock(page).get_by_role("list", name=within).locator(".tab")


def choose_menu_item(page: Page, panel: str, action: str) -> None:
    dock(page).get_by_role("button", name=f"Actions for {panel}").click()
    page.get_by_role("menuitem", name=action, exact=True).click()


def send_message(page: Page, text: str) -> str:
    """Send a message in the chat; the text as it was sent."""
    page.get_by_label("Message guide").fill(text)
    with page.expect_request("**/api/envelope/send") as sent:
        page.keyboard.press("Enter")
    expect(page.get_by_text(text, exact=True).first).to_be_visible()
    return json.loads(sent.value.post_data or "{}")["text"]


# --- used by a person ---


@pytest.mark.spec("A59")
def test_panels_are_opened_moved_split_and_closed_and_survive_a_reload(app: WebApp) -> None:
    page = open_dock(app)
    expect(tabs(page)).to_have_text(["Run", "Files", "Notes"])
    dock(page).get_by_role("button", name="Open a panel").click()
    page.get_by_role("menuitem", name="Files").click()
    expect(tabs(page)).to_have_text(["Run", "Files", "Files", "Notes"])  # after the active panel
    choose_menu_item(page, "Files", "Move right")
    choose_menu_item(page, "Files", "Move right")
    expect(tabs(page)).to_have_text(["Run", "Files", "Notes", "Files"])
    choose_menu_item(page, "Files", "Close")
    tab(page, "Notes").click()
    choose_menu_item(page, "Notes", "Split below")
    expect(tabs(page, "First half")).to_have_text(["Run", "Files"])
    expect(tabs(page, "Second half")).to_have_text(["Notes"])
    page.reload()
    expect(tabs(page, "First half")).to_have_text(["Run", "Files"])
    expect(tabs(page, "Second half")).to_have_text(["Notes"])
    dock(page).get_by_role("button", name="Close Notes").click()
    expect(tabs(page)).to_have_text(["Run", "Files"])
    choose_menu_item(page, "Files", "Reset all panels")
    expect(tabs(page)).to_have_text(["Run", "Files", "Notes"])
    dock(page).get_by_role("button", name="Hide panels").click()
    expect(dock(page)).to_have_count(0)


@pytest.mark.spec("A59")
def test_a_new_browser_starts_with_the_last_saved_layout(app: WebApp) -> None:
    page = open_dock(app)

    def saves_remaining_panels(response: Response) -> bool:
        """Opening the panels is saved, too, and that request may still be pending."""
        kept = response.request.post_data or ""
        return response.url.endswith("/api/preference/set") and "run-1" not in kept and "notes-1" in kept

    with page.expect_response(saves_remaining_panels):
        dock(page).get_by_role("button", name="Close Run").click()
    other = app.open_window("/chat")
    expect(dock(other)).to_have_count(0)
    other.get_by_role("button", name="Panels", exact=True).click()
    expect(tabs(other)).to_have_text(["Files", "Notes"])


def test_panels_are_controlled_by_keyboard(app: WebApp) -> None:
    page = app.open_window("/runs")  # no field has the focus there
    expect(page.get_by_role("heading", level=1, name="Runs")).to_be_visible()
    page.locator("main").focus()
    page.keyboard.press("p")
    expect(tab(page, "Run")).to_be_focused()
    page.keyboard.press("]")
    expect(tab(page, "Files")).to_have_attribute("aria-current", "true")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(tab(page, "Notes")).to_be_focused()
    page.keyboard.press("Delete")
    expect(tabs(page)).to_have_text(["Run", "Files"])
    expect(tab(page, "Files")).to_be_focused()
    handle = dock(page).get_by_role("separator", name="Panel size")
    before = int(handle.get_attribute("aria-valuenow") or 0)
    handle.press("ArrowLeft")
    expect(handle).to_have_attribute("aria-valuenow", str(before + 24))
    page.keyboard.press("p")
    expect(dock(page)).to_have_count(0)
    expect(page.locator("main")).to_be_focused()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog").get_by_text("Show or hide panels")).to_be_visible()


def test_panels_are_reordered_by_drag(app: WebApp) -> None:
    page = open_dock(app)
    tabs(page).nth(2).drag_to(tabs(page).nth(0))
    expect(tabs(page)).to_have_text(["Notes", "Run", "Files"])
    tabs(page).nth(1).click(button="middle")
    expect(tabs(page)).to_have_text(["Notes", "Files"])


@pytest.mark.spec("A59")
def test_a_panel_of_an_unknown_type_says_so_and_can_be_closed(app: WebApp) -> None:
    kept = {"kind": "tab", "id": "x-1", "type": "weather", "title": HOSTILE, "session": None, "kept": ""}
    layout = {"open": True, "tree": {"kind": "pane", "tabs": [kept], "active": "x-1"}}
    page = app.open_window("/chat")
    page.evaluate("(layout) => sessionStorage.setItem('retinue.panels.person:owner', JSON.stringify(layout))", layout)
    page.reload()
    expect(dock(page).get_by_text("This web app has no panel type “weather”")).to_be_visible()
    expect(dock(page).get_by_role("button", name=f"Close {HOSTILE}")).to_be_visible()
    assert find_violations(page) == []
    dock(page).get_by_role("button", name="Close", exact=True).click()
    expect(dock(page).get_by_role("heading", name="No open panels")).to_be_visible()
    dock(page).get_by_role("button", name="Notes").click()
    expect(tabs(page)).to_have_text(["Notes"])
    dock(page).get_by_role("button", name="Close Notes").click()
    dock(page).get_by_role("button", name="Reset all panels").click()
    expect(tabs(page)).to_have_text(["Run", "Files", "Notes"])
    for broken in ("{", "null", '{"tree": {"kind": "pane", "tabs": 7}}', '{"tree": {"kind": "split", "panes": []}}'):
        page.evaluate("(text) => sessionStorage.setItem('retinue.panels.person:owner', text)", broken)
        page.evaluate("() => localStorage.clear()")
        page.reload()
        expect(page.get_by_role("button", name="Panels", exact=True)).to_be_visible()


@pytest.mark.parametrize(("size", "theme"), SIZES_AND_THEMES)
def test_panels_are_accessible(app: WebApp, server: ApiClient, size: str, theme: str) -> None:
    session = create_session(server)
    send_by_api(server, "status", session)
    page = app.open_window(f"/chat/{session}", size=size, theme=theme)  # pyright: ignore[reportArgumentType]
    if size == "phone":
        page.get_by_role("button", name="More", exact=True).click()
        page.get_by_role("menuitem", name="Show panels").click()
    else:
        page.get_by_role("button", name="Panels", exact=True).click()
    found: dict[str, list[str]] = {}
    for name, shown in (("Run", "Steps"), ("Files", "SOUL.md"), ("Notes", "")):
        tab(page, name).click()
        expect(dock(page).get_by_text(shown).first if shown else page.get_by_label("Your notes")).to_be_visible()
        found[name] = find_violations(page) + (["scrolls sideways"] if scrolls_sideways(page) else [])
    assert found == {"Run": [], "Files": [], "Notes": []}
    expect(page.get_by_label("Message guide")).to_be_visible()


# --- the three panel types ---


def test_the_run_panel_shows_steps_live_and_follows_the_conversation(app: WebApp, server: ApiClient) -> None:
    first, second = create_session(server), create_session(server)
    page = open_dock(app, f"/chat/{first}")
    expect(dock(page).get_by_text("No runs yet")).to_be_visible()
    send_message(page, "call session_status")
    steps = dock(page).get_by_role("listitem")
    expect(steps.filter(has_text="uses session_status")).to_be_visible()
    expect(dock(page).get_by_text("Done", exact=True)).to_be_visible()
    page.goto(f"{server.address}/chat/{second}")
    expect(dock(page).get_by_text("No runs yet")).to_be_visible()
    send_by_api(server, "echo hello", second)
    expect(steps.filter(has_text="calls")).to_have_count(1)
    page.goto(f"{server.address}/chat/{first}")
    choose_menu_item(page, "Run", "Pin to this conversation")
    page.goto(f"{server.address}/chat/{second}")
    expect(steps.filter(has_text="uses session_status")).to_be_visible()
    expect(dock(page).get_by_role("button", name="Run Pinned to a conversation")).to_be_visible()


def test_the_files_panel_shows_agent_files_as_plain_text(app: WebApp, server: ApiClient) -> None:
    server.do(
        "agent.write_file", name="guide", path="internal_space/plan.md", content=f"one\n{HOSTILE}\nthree\n", hash=""
    )
    session = create_session(server)
    page = open_dock(app, f"/chat/{session}")
    tab(page, "Files").click()
    dock(page).get_by_role("button", name="internal_space/plan.md").click()
    file = page.get_by_label("internal_space/plan.md")
    expect(file).to_have_value(f"one\n{HOSTILE}\nthree\n")
    assert not file.is_editable()
    file.evaluate("(field) => { field.focus(); field.setSelectionRange(1, field.value.indexOf('three')); }")
    expect(dock(page).get_by_text("Lines 1–2")).to_be_visible()
    line = send_message(page, "echo what is this").partition("\n")[0]
    assert line.startswith(
        '<context panel-id="files-1" panel-type="files" panel-title="Files" type="file" id="internal'
    )
    assert 'selection="1,2"' in line and 'agent="guide"' in line and "<img" not in line
    page.reload()
    expect(file).to_be_visible()  # the open file is open again
    dock(page).get_by_role("button", name="All files").click()
    expect(dock(page).get_by_role("button", name="SOUL.md")).to_be_visible()


def test_notes_are_synchronized_and_a_conflict_is_shown(app: WebApp, server: ApiClient) -> None:
    one, two = open_dock(app), open_dock(app)
    for page in (one, two):
        tab(page, "Notes").click()
    one.get_by_label("Your notes").fill("milk")
    expect(two.get_by_label("Your notes")).to_have_value("milk")
    assert server.do("preference.get", key="page.notes")["value"] == "milk"
    two.route("**/api/preference/set", lambda route: route.abort())
    two.get_by_label("Your notes").fill("milk, bread")
    one.get_by_label("Your notes").fill("milk, tea")
    expect(two.get_by_text("The notes were changed in another window.")).to_be_visible()
    two.unroute("**/api/preference/set")
    two.get_by_role("button", name="Keep this version").click()
    expect(one.get_by_label("Your notes")).to_have_value("milk, bread")
    one.get_by_label("Your notes").fill("x" * 40_000)
    expect(one.get_by_text("The notes are too long.")).to_be_visible()
    app.console_errors.clear()  # the aborted request was expected


def test_a_conflict_during_a_save_of_notes_is_shown(app: WebApp, server: ApiClient) -> None:
    one, two = open_dock(app), open_dock(app)
    for page in (one, two):
        tab(page, "Notes").click()
        expect(page.get_by_label("Your notes")).to_be_visible()
    held: list[Route] = []

    def is_for_notes(request: Request) -> bool:
        """The layout of the panels is saved with the same operation, a moment after they were opened."""
        return "page.notes" in (request.post_data or "")

    def hold_notes(route: Route) -> None:
        if is_for_notes(route.request):
            held.append(route)
        else:
            route.continue_()

    def has_read_notes(request: Request) -> bool:
        return request.url.endswith("/api/preference/get") and is_for_notes(request)

    two.route("**/api/preference/set", hold_notes)
    two.get_by_label("Your notes").fill("bread")
    wait_in_page(two, lambda: bool(held))
    with two.expect_event("requestfinished", has_read_notes):
        one.get_by_label("Your notes").fill("tea")
    held[0].abort()
    expect(two.get_by_text("The notes were changed in another window.")).to_be_visible()
    two.get_by_role("button", name="Load the other version").click()
    expect(two.get_by_label("Your notes")).to_have_value("tea")
    app.console_errors.clear()  # the aborted request was expected


# --- controlled by an agent ---


@pytest.mark.spec("A57")
def test_an_agent_sees_the_panels_of_the_last_used_window(app: WebApp, server: ApiClient) -> None:
    session = create_session(server)
    page = open_dock(app, f"/chat/{session}")
    tab(page, "Notes").click()
    page.get_by_label("Your notes").fill("Water the roses.\nCall Noor.")
    page.get_by_label("Your notes").press("Control+Home")
    page.get_by_label("Your notes").press("Shift+End")
    expect(page.get_by_text("Notes · 1 selected")).to_be_visible()

    def sees_selection() -> bool:
        return "selection" in read_panels(server)["notes-1"]["context"]

    wait_until_sync(sees_selection, "the agent sees the selection")
    panels = read_panels(server)
    assert (panels["main"]["type"], panels["main"]["binding"]) == ("chat", session)
    assert panels["notes-1"]["context"]["selection-titles"] == '["Water the roses."]'
    assert [each["visible"] for each in panels.values()] == [True, False, False, True]
    assert read_tool_output(server, "panels_selected")["selected"]["id"] == "notes-1"
    tree = read_tool_output(server, "panels_tree")[0]["layout"]
    assert tree["tree"] == {"kind": "pane", "active": "notes-1", "tabs": ["run-1", "files-1", "notes-1"]}
    assert [each["type"] for each in tree["types"]] == ["run", "files", "notes"]
    other = app.open_window("/chat")
    wait_until_sync(
        lambda: read_tool_output(server, "panels_selected")["selected"]["id"] == "main", "the other window is selected"
    )
    assert len(read_tool_output(server, "panels_list")) == 2
    page.evaluate("() => dispatchEvent(new Event('focus'))")  # the person uses it again
    wait_until_sync(
        lambda: read_tool_output(server, "panels_selected")["selected"]["id"] == "notes-1", "the notes are selected"
    )
    other.close()
    wait_until_sync(lambda: len(read_tool_output(server, "panels_list")) == 1, "one window is left")


@pytest.mark.spec("A58")
def test_an_agent_controls_panels_and_reads_the_result(app: WebApp, server: ApiClient) -> None:
    session = create_session(server)
    bystander = app.open_window("/runs")
    page = app.open_window(f"/chat/{session}")
    expect(page.get_by_label("Message guide")).to_be_focused()
    wait_until_sync(lambda: read_panels(server)["main"]["binding"] == session, "the window reports its session")
    made = invoke_tool(server, "panels_open", type="files", title=HOSTILE, session=session)
    assert made["output"].startswith("Opened files-2 in window w-"), made
    expect(dock(page).get_by_role("button", name=f"Close {HOSTILE}")).to_be_visible()
    expect(page.get_by_text(f"guide opened “{HOSTILE}”.")).to_be_visible()
    expect(page.get_by_label("Message guide")).to_be_focused()  # typing is not interrupted
    assert read_panels(server)["files-2"]["binding"] == session
    assert not invoke_tool(server, "panels_move", panel="files-2", beside="run-1", region="bottom")["failed"]
    expect(tabs(page, "Second half")).to_have_count(1)
    assert "files-2 with notes-" not in invoke_tool(server, "panels_replace", panel="files-2", type="notes")["output"]
    assert (
        invoke_tool(server, "panels_replace", panel="files-2", type="run")["output"] == "Replaced files-2 with run-2."
    )
    expect(tabs(page, "Second half")).to_have_text(["Run"])
    assert not invoke_tool(server, "panels_focus", panel="notes-1")["failed"]
    expect(page.get_by_label("Your notes")).to_be_visible()
    assert "Opened notes-1" in invoke_tool(server, "panels_open", type="notes")["output"]  # only one is allowed
    assert not invoke_tool(server, "panels_close", panel="run-2")["failed"]
    expect(tabs(page)).to_have_text(["Run", "Files", "Notes"])
    expect(dock(bystander)).to_have_count(0)
    assert [each["type"] for each in read_tool_output(server, "panels_tree")[1]["panels"]] == [
        "runs",
        "run",
        "files",
        "notes",
    ]


@pytest.mark.spec("A57", "A58")
def test_an_agent_opens_a_panel_in_the_window_it_is_messaged_from(app: WebApp, server: ApiClient) -> None:
    page = app.open_window(f"/chat/{create_session(server)}")
    send_message(page, 'call panels_open {"type": "notes"}')
    expect(page.get_by_label("Your notes")).to_be_visible()
    expect(page.get_by_text("guide shows “Notes”.")).to_have_count(0)
    expect(page.get_by_text("guide opened “Notes”.")).to_be_visible()
    expect(page.locator("main").get_by_text("Opened notes-1 in window").first).to_be_visible()


@pytest.mark.spec("A58")
def test_an_agent_reads_why_a_panel_command_failed(app: WebApp, server: ApiClient) -> None:
    page = open_dock(app)
    wait_until_sync(
        lambda: read_tool_output(server, "panels_selected")["selected"]["id"] == "run-1", "the run panel is selected"
    )
    refusals: list[tuple[str, dict[str, Any], str]] = [
        ("panels_open", {"type": "weather"}, "the types are run, files, notes"),
        ("panels_close", {"panel": "main"}, "main is the screen itself"),
        ("panels_replace", {"panel": "run-1", "type": "notes"}, "only one is allowed"),
        ("panels_move", {"panel": "run-1", "beside": "run-1"}, "cannot be placed beside itself"),
    ]
    for tool, arguments, because in refusals:
        result = invoke_tool(server, tool, **arguments)
        assert result["failed"] and because in result["output"], result
    assert not invoke_tool(server, "panels_move", panel="notes-1", beside="run-1", region="bottom")["failed"]
    result = invoke_tool(server, "panels_move", panel="files-1", beside="run-1", region="right")
    assert result["failed"] and "panels can be split into two halves only" in result["output"]
    for _ in range(7):
        assert not invoke_tool(server, "panels_open", type="run", focus=False)["failed"]
    assert "too many panels" in invoke_tool(server, "panels_open", type="run")["output"]
    expect(tab(page, "Run").first).to_have_attribute("aria-current", "true")


@pytest.mark.spec("A58", "A76")
def test_panel_commands_fail_without_an_open_window(app: WebApp, server: ApiClient) -> None:
    page = app.open_window("/chat")
    wait_until_sync(lambda: not invoke_tool(server, "panels_list")["failed"], "there is a window")
    page.context.close()
    wait_until_sync(lambda: invoke_tool(server, "panels_list")["failed"], "no window is left")
    for tool, arguments in (("panels_open", {"type": "run"}), ("open_url", {"url": "https://example.org/"})):
        result = invoke_tool(server, tool, **arguments)
        assert result["failed"] and "does not have the web app open" in result["output"]


@pytest.mark.spec("A76")
def test_a_link_from_an_agent_is_opened_only_by_the_person(app: WebApp, server: ApiClient) -> None:
    page = app.open_window("/chat", fake_clock=True)
    wait_until_sync(lambda: not invoke_tool(server, "panels_list")["failed"], "there is a window")
    url = f"{server.address}/api/ready?from=guide"  # not the web app, which would be another window of the person
    card = page.get_by_role("group", name="Link from an agent")
    with ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(invoke_tool, server, "open_url", url=url)
        with page.expect_popup() as popup:
            card.get_by_role("link", name="Open").click()
        assert popup.value.url == url or popup.value.wait_for_url(url) is None
        assert popup.value.evaluate("() => window.opener") is None
        assert not waiting.result(WAIT_LIMIT_S)["failed"]
        popup.value.close()
        expect(card).to_have_count(0)
        waiting = executor.submit(invoke_tool, server, "open_url", url=url)
        card.get_by_role("button", name="Not now").click()
        result = waiting.result(WAIT_LIMIT_S)
        assert result["failed"] and "declined to open the link" in result["output"]
        waiting = executor.submit(invoke_tool, server, "open_url", url=url)
        expect(card).to_have_count(1)
        page.clock.fast_forward("00:10")
        late = waiting.result(WAIT_LIMIT_S)
        assert late["failed"] and "the person has not pressed it yet" in late["output"]
        expect(card).to_contain_text("guide asks you to open")  # it can still be opened
        expect(card.get_by_text(url, exact=True)).to_be_visible()
        assert find_violations(page) == []
        assert len(page.context.pages) == 1  # no page opens by itself
        waiting = executor.submit(invoke_tool, server, "open_url", url=url)
        expect(card).to_have_count(2)
        page.close()
        result = waiting.result(WAIT_LIMIT_S)
        assert result["failed"] and "it was closed, or lost its connection" in result["output"]


# --- context of messages ---


@pytest.mark.spec("A60", "A61", "A88")
def test_the_panel_context_is_sent_with_a_message_but_not_shown(app: WebApp, server: ApiClient) -> None:
    session = create_session(server)
    page = app.open_window(f"/chat/{session}")
    assert send_message(page, "echo plain") == "echo plain"  # no open panel: no context
    page.get_by_role("button", name="Panels", exact=True).click()
    tab(page, "Notes").click()
    page.get_by_label("Your notes").fill('buy "roses" & <b>\nrest')
    page.get_by_label("Your notes").press("Control+Home")
    page.get_by_label("Your notes").press("Shift+End")
    expect(page.get_by_text("Notes · 1 selected")).to_be_visible()
    page.get_by_role("button", name="Request a short answer").click()
    line = (
        '<context panel-id="notes-1" panel-type="notes" panel-title="Notes" type="note" id="notes" name="Notes" '
        'selection="1" selection-titles="[&quot;buy \\&quot;roses\\&quot; &amp; &lt;b&gt;&quot;]" mode="brief" />'
    )
    assert send_message(page, "echo with it") == f"{line}\necho with it"
    page.get_by_role("button", name="Do not send Notes as context").click()
    assert send_message(page, "echo without it") == '<context mode="brief" />\necho without it'
    page.get_by_role("button", name="Request a short answer").click()
    page.reload()
    assert send_message(page, "echo alone") == "echo alone"  # an excluded panel stays excluded
    page.get_by_role("button", name="Send Notes as context").click()
    assert send_message(page, "echo at the end").startswith('<context panel-id="notes-1"')
    expect(page.get_by_text(re.compile("<context (panel|mode)"))).to_have_count(0)  # nor in the list of conversations
    wait_until_idle(app, session)
    with_line = next(
        record for record in server.do("session.history", session=session)["records"] if "with it" in str(record)
    )
    assert line[:40] in str(with_line["body"])  # the model reads it as it was sent


def test_a_message_that_starts_like_a_panel_context_line_is_shown(app: WebApp, server: ApiClient) -> None:
    page = app.open_window(f"/chat/{create_session(server)}")
    send_message(page, "<context> is the name of a tag")
    page.reload()
    expect(page.get_by_text("<context> is the name of a tag", exact=True).first).to_be_visible()
