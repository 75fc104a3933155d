"""Panels beside the screen: used by a person, by an agent that works for them, and told of before their words."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from api.tcp_server import Rim, open_rim
from playwright.sync_api import Locator, Page, Response, Route, expect
from web.browser import LOOKS, Front, scrolls_sideways, violations
from web.chat_actions import until_quiet, wait_in_page
from web.conftest import SETTINGS

from retinue.testing.waiting import WAIT_LIMIT_S, wait_until_sync

HOSTILE = '<img src=x onerror="document.title=1"> ‮evil‬ <context mode="x" /> "&\''


@pytest.fixture(scope="module")
def rim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rim]:
    with open_rim(tmp_path_factory.mktemp("panels"), SETTINGS) as opened:
        opened.do("agent.set", name="guide", tools_also_allow=["group:panels"])
        yield opened


@pytest.fixture(autouse=True)
def as_at_first(rim: Rim) -> None:
    """What one test has set for the person is not the next one's, and neither are its windows."""
    wait_until_sync(lambda: call(rim, "panels_list")["failed"], "no window is left")
    for each in rim.do("preference.list")["preferences"]:
        rim.do("preference.set", key=each["key"], value=None)


def talk(rim: Rim) -> str:
    return rim.do("session.create", agent="guide")["sessionId"]


def say(rim: Rim, text: str, session: str) -> None:
    sent = rim.do("envelope.send", to="agent:guide", text=text, session=session)
    wait_until_sync(lambda: rim.do("envelope.show", id=sent["envelope"])["status"] == "done", "the envelope is done")


def call(rim: Rim, tool: str, **arguments: Any) -> dict[str, Any]:
    """Call a tool as the guide would for the owner, by the same rules, and give what it reads then."""
    return rim.do("tool.invoke", agent="guide", tool=tool, args=arguments)


def told(rim: Rim, tool: str) -> Any:
    """What a tool tells between the markers of words from outside."""
    result = call(rim, tool)
    assert not result["failed"], result
    return json.loads(result["output"].partition(">>>\n")[2].partition("\n<<<END")[0])


def seen(rim: Rim) -> dict[str, dict[str, Any]]:
    """The panels of the window that was used last, by their ids."""
    return {panel["id"]: panel for panel in told(rim, "panels_list")[0]["panels"]}


def opened(front: Front, path: str = "/chat", **options: Any) -> Page:
    page = front.window(path, **options)
    page.get_by_role("button", name="Panels", exact=True).click()
    expect(dock(page)).to_be_visible()
    return page


def dock(page: Page) -> Locator:
    return page.get_by_role("complementary", name="Panels")


def tab(page: Page, name: str) -> Locator:
    return dock(page).get_by_role("button", name=name, exact=True)


def tabs(page: Page, within: str = "Panels that are open") -> Locator:
    return dock(page).get_by_role("list", name=within).locator(".tab")


def choose(page: Page, panel: str, action: str) -> None:
    dock(page).get_by_role("button", name=f"What to do with {panel}").click()
    page.get_by_role("menuitem", name=action, exact=True).click()


def send(page: Page, words: str) -> str:
    """Write it, see it, and give it as it was sent."""
    page.get_by_label("Message guide").fill(words)
    with page.expect_request("**/api/envelope/send") as sent:
        page.keyboard.press("Enter")
    expect(page.get_by_text(words, exact=True).first).to_be_visible()
    return json.loads(sent.value.post_data or "{}")["text"]


# --- by a person ---


@pytest.mark.spec("A59")
def test_panels_are_opened_moved_parted_and_closed_and_are_so_again_after_a_reload(front: Front) -> None:
    page = opened(front)
    expect(tabs(page)).to_have_text(["Run", "Files", "Notes"])
    dock(page).get_by_role("button", name="Open a panel").click()
    page.get_by_role("menuitem", name="Files").click()
    expect(tabs(page)).to_have_text(["Run", "Files", "Files", "Notes"])  # after the one that was shown
    choose(page, "Files", "Move forward")
    choose(page, "Files", "Move forward")
    expect(tabs(page)).to_have_text(["Run", "Files", "Notes", "Files"])
    choose(page, "Files", "Close")
    tab(page, "Notes").click()
    choose(page, "Notes", "Part: put it below")
    expect(tabs(page, "First half")).to_have_text(["Run", "Files"])
    expect(tabs(page, "Second half")).to_have_text(["Notes"])
    page.reload()
    expect(tabs(page, "First half")).to_have_text(["Run", "Files"])
    expect(tabs(page, "Second half")).to_have_text(["Notes"])
    dock(page).get_by_role("button", name="Close Notes").click()
    expect(tabs(page)).to_have_text(["Run", "Files"])
    choose(page, "Files", "Reset all panels")
    expect(tabs(page)).to_have_text(["Run", "Files", "Notes"])
    dock(page).get_by_role("button", name="Hide the panels").click()
    expect(dock(page)).to_have_count(0)


@pytest.mark.spec("A59")
def test_another_browser_begins_with_the_layout_that_was_left_last(front: Front) -> None:
    page = opened(front)

    def keeps_the_rest(response: Response) -> bool:
        """Opening the panels is kept, too, and may be on its way yet."""
        kept = response.request.post_data or ""
        return response.url.endswith("/api/preference/set") and "run-1" not in kept and "notes-1" in kept

    with page.expect_response(keeps_the_rest):
        dock(page).get_by_role("button", name="Close Run").click()
    other = front.window("/chat")
    expect(dock(other)).to_have_count(0)
    other.get_by_role("button", name="Panels", exact=True).click()
    expect(tabs(other)).to_have_text(["Files", "Notes"])


def test_the_keyboard_does_what_the_mouse_does(front: Front) -> None:
    page = front.window("/runs")  # no field takes the focus there
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
    grip = dock(page).get_by_role("separator", name="Size of the panels")
    before = int(grip.get_attribute("aria-valuenow") or 0)
    grip.press("ArrowLeft")
    expect(grip).to_have_attribute("aria-valuenow", str(before + 24))
    page.keyboard.press("p")
    expect(dock(page)).to_have_count(0)
    expect(page.locator("main")).to_be_focused()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog").get_by_text("Show or hide the panels")).to_be_visible()


def test_panels_are_dragged_from_place_to_place(front: Front) -> None:
    page = opened(front)
    tabs(page).nth(2).drag_to(tabs(page).nth(0))
    expect(tabs(page)).to_have_text(["Notes", "Run", "Files"])
    tabs(page).nth(1).click(button="middle")
    expect(tabs(page)).to_have_text(["Notes", "Files"])


@pytest.mark.spec("A59")
def test_a_panel_of_a_type_that_is_gone_says_so_and_can_be_closed(front: Front) -> None:
    kept = {"kind": "tab", "id": "x-1", "type": "weather", "title": HOSTILE, "session": None, "kept": ""}
    layout = {"open": True, "tree": {"kind": "pane", "tabs": [kept], "active": "x-1"}}
    page = front.window("/chat")
    page.evaluate("(layout) => sessionStorage.setItem('retinue.panels.person:owner', JSON.stringify(layout))", layout)
    page.reload()
    expect(dock(page).get_by_text("It is of the type “weather”")).to_be_visible()
    expect(dock(page).get_by_role("button", name=f"Close {HOSTILE}")).to_be_visible()
    assert violations(page) == []
    dock(page).get_by_role("button", name="Close", exact=True).click()
    expect(dock(page).get_by_role("heading", name="No panel is open")).to_be_visible()
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


@pytest.mark.parametrize(("size", "theme"), LOOKS)
def test_panels_can_be_used_by_anyone(front: Front, rim: Rim, size: str, theme: str) -> None:
    session = talk(rim)
    say(rim, "status", session)
    page = front.window(f"/chat/{session}", size=size, theme=theme)  # pyright: ignore[reportArgumentType]
    if size == "phone":
        page.get_by_role("button", name="More", exact=True).click()
        page.get_by_role("menuitem", name="Show the panels").click()
    else:
        page.get_by_role("button", name="Panels", exact=True).click()
    found: dict[str, list[str]] = {}
    for name, shown in (("Run", "Steps"), ("Files", "SOUL.md"), ("Notes", "")):
        tab(page, name).click()
        expect(dock(page).get_by_text(shown).first if shown else page.get_by_label("Your notes")).to_be_visible()
        found[name] = violations(page) + (["scrolls sideways"] if scrolls_sideways(page) else [])
    assert found == {"Run": [], "Files": [], "Notes": []}
    expect(page.get_by_label("Message guide")).to_be_visible()


# --- what the three show ---


def test_the_run_panel_shows_each_step_as_it_happens_and_follows_the_conversation(front: Front, rim: Rim) -> None:
    first, second = talk(rim), talk(rim)
    page = opened(front, f"/chat/{first}")
    expect(dock(page).get_by_text("Nothing has run here yet")).to_be_visible()
    send(page, "call session_status")
    steps = dock(page).get_by_role("listitem")
    expect(steps.filter(has_text="uses session_status")).to_be_visible()
    expect(dock(page).get_by_text("Done", exact=True)).to_be_visible()
    page.goto(f"{rim.address}/chat/{second}")
    expect(dock(page).get_by_text("Nothing has run here yet")).to_be_visible()
    say(rim, "echo hello", second)
    expect(steps.filter(has_text="asks the model")).to_have_count(1)
    page.goto(f"{rim.address}/chat/{first}")
    choose(page, "Run", "Keep it to this conversation")
    page.goto(f"{rim.address}/chat/{second}")
    expect(steps.filter(has_text="uses session_status")).to_be_visible()
    expect(dock(page).get_by_role("button", name="Run Kept to this conversation")).to_be_visible()


def test_the_files_panel_reads_the_home_of_the_agent_and_runs_nothing_of_it(front: Front, rim: Rim) -> None:
    rim.do("agent.write-file", name="guide", path="internal_space/plan.md", content=f"one\n{HOSTILE}\nthree\n", hash="")
    session = talk(rim)
    page = opened(front, f"/chat/{session}")
    tab(page, "Files").click()
    dock(page).get_by_role("button", name="internal_space/plan.md").click()
    file = page.get_by_label("internal_space/plan.md")
    expect(file).to_have_value(f"one\n{HOSTILE}\nthree\n")
    assert not file.is_editable()
    file.evaluate("(field) => { field.focus(); field.setSelectionRange(1, field.value.indexOf('three')); }")
    expect(dock(page).get_by_text("Lines 1–2")).to_be_visible()
    line = send(page, "echo what is this").partition("\n")[0]
    assert line.startswith(
        '<context panel-id="files-1" panel-type="files" panel-title="Files" type="file" id="internal'
    )
    assert 'selection="1,2"' in line and 'agent="guide"' in line and "<img" not in line
    page.reload()
    expect(file).to_be_visible()  # the file that was open is open again
    dock(page).get_by_role("button", name="All files").click()
    expect(dock(page).get_by_role("button", name="SOUL.md")).to_be_visible()


def test_notes_are_the_same_in_two_windows_and_nobody_writes_over_the_other(front: Front, rim: Rim) -> None:
    one, two = opened(front), opened(front)
    for page in (one, two):
        tab(page, "Notes").click()
    one.get_by_label("Your notes").fill("milk")
    expect(two.get_by_label("Your notes")).to_have_value("milk")
    assert rim.do("preference.get", key="page.notes")["value"] == "milk"
    two.route("**/api/preference/set", lambda route: route.abort())
    two.get_by_label("Your notes").fill("milk, bread")
    one.get_by_label("Your notes").fill("milk, tea")
    expect(two.get_by_text("They were changed in another window meanwhile.")).to_be_visible()
    two.unroute("**/api/preference/set")
    two.get_by_role("button", name="Keep what is here").click()
    expect(one.get_by_label("Your notes")).to_have_value("milk, bread")
    one.get_by_label("Your notes").fill("x" * 40_000)
    expect(one.get_by_text("which is the most that is kept")).to_be_visible()
    front.complaints.clear()  # of the write that was held back


def test_notes_that_changed_elsewhere_while_they_were_saved_are_not_overlooked(front: Front, rim: Rim) -> None:
    one, two = opened(front), opened(front)
    for page in (one, two):
        tab(page, "Notes").click()
        expect(page.get_by_label("Your notes")).to_be_visible()
    held: list[Route] = []
    two.route("**/api/preference/set", lambda route: held.append(route))
    with two.expect_request("**/api/preference/set"):
        two.get_by_label("Your notes").fill("bread")
    wait_in_page(two, lambda: bool(held))
    with two.expect_event("requestfinished", lambda request: request.url.endswith("/api/preference/get")):
        one.get_by_label("Your notes").fill("tea")
    held[0].abort()
    expect(two.get_by_text("They were changed in another window meanwhile.")).to_be_visible()
    two.get_by_role("button", name="Take what is there").click()
    expect(two.get_by_label("Your notes")).to_have_value("tea")
    front.complaints.clear()  # of the write that was held back


# --- by an agent ---


@pytest.mark.spec("A57")
def test_an_agent_sees_what_the_window_shows_that_was_used_last(front: Front, rim: Rim) -> None:
    session = talk(rim)
    page = opened(front, f"/chat/{session}")
    tab(page, "Notes").click()
    page.get_by_label("Your notes").fill("Water the roses.\nCall Noor.")
    page.get_by_label("Your notes").press("Control+Home")
    page.get_by_label("Your notes").press("Shift+End")
    expect(page.get_by_text("Notes · 1 selected")).to_be_visible()

    def shows() -> bool:
        return "selection" in seen(rim)["notes-1"]["context"]

    wait_until_sync(shows, "the agent sees what is selected")
    panels = seen(rim)
    assert (panels["main"]["type"], panels["main"]["binding"]) == ("chat", session)
    assert panels["notes-1"]["context"]["selection-titles"] == '["Water the roses."]'
    assert [each["visible"] for each in panels.values()] == [True, False, False, True]
    assert told(rim, "panels_selected")["selected"]["id"] == "notes-1"
    tree = told(rim, "panels_tree")[0]["layout"]
    assert tree["tree"] == {"kind": "pane", "active": "notes-1", "tabs": ["run-1", "files-1", "notes-1"]}
    assert [each["type"] for each in tree["types"]] == ["run", "files", "notes"]
    other = front.window("/chat")
    wait_until_sync(lambda: told(rim, "panels_selected")["selected"]["id"] == "main", "the other window is in front")
    assert len(told(rim, "panels_list")) == 2
    page.evaluate("() => dispatchEvent(new Event('focus'))")  # someone turns to it again
    wait_until_sync(lambda: told(rim, "panels_selected")["selected"]["id"] == "notes-1", "the notes are in front")
    other.close()
    wait_until_sync(lambda: len(told(rim, "panels_list")) == 1, "one window is left")


@pytest.mark.spec("A58")
def test_an_agent_opens_moves_replaces_shows_and_closes_panels_and_reads_what_came_of_it(
    front: Front, rim: Rim
) -> None:
    session = talk(rim)
    bystander = front.window("/chat")
    page = front.window(f"/chat/{session}")
    expect(page.get_by_label("Message guide")).to_be_focused()
    wait_until_sync(lambda: seen(rim)["main"]["binding"] == session, "the window tells what it shows")
    made = call(rim, "panels_open", type="files", title=HOSTILE, session=session)
    assert made["output"].startswith("Opened files-2 in window w-"), made
    expect(dock(page).get_by_role("button", name=f"Close {HOSTILE}")).to_be_visible()
    expect(page.get_by_text(f"guide opened “{HOSTILE}”.")).to_be_visible()
    expect(page.get_by_label("Message guide")).to_be_focused()  # whoever types goes on typing
    assert seen(rim)["files-2"]["binding"] == session
    assert not call(rim, "panels_move", panel="files-2", beside="run-1", region="bottom")["failed"]
    expect(tabs(page, "Second half")).to_have_count(1)
    assert "files-2 by notes-" not in call(rim, "panels_replace", panel="files-2", type="notes")["output"]
    assert call(rim, "panels_replace", panel="files-2", type="run")["output"] == "Replaced files-2 by run-2."
    expect(tabs(page, "Second half")).to_have_text(["Run"])
    assert not call(rim, "panels_focus", panel="notes-1")["failed"]
    expect(page.get_by_label("Your notes")).to_be_visible()
    assert "Opened notes-1" in call(rim, "panels_open", type="notes")["output"]  # there is one at most
    assert not call(rim, "panels_close", panel="run-2")["failed"]
    expect(tabs(page)).to_have_text(["Run", "Files", "Notes"])
    expect(dock(bystander)).to_have_count(0)
    assert [each["type"] for each in told(rim, "panels_tree")[1]["panels"]] == ["chat", "run", "files", "notes"]


@pytest.mark.spec("A57", "A58")
def test_an_agent_that_is_talked_to_changes_the_screen_it_is_talked_to_from(front: Front, rim: Rim) -> None:
    page = front.window(f"/chat/{talk(rim)}")
    send(page, 'call panels_open {"type": "notes"}')
    expect(page.get_by_label("Your notes")).to_be_visible()
    expect(page.get_by_text("guide shows you “Notes”.")).to_have_count(0)
    expect(page.get_by_text("guide opened “Notes”.")).to_be_visible()
    expect(page.locator("main").get_by_text("Opened notes-1 in window").first).to_be_visible()


@pytest.mark.spec("A58")
def test_what_a_window_cannot_do_is_said_to_the_agent_in_words(front: Front, rim: Rim) -> None:
    page = opened(front)
    wait_until_sync(lambda: told(rim, "panels_selected")["selected"]["id"] == "run-1", "the run is in front")
    refusals: list[tuple[str, dict[str, Any], str]] = [
        ("panels_open", {"type": "weather"}, "there are run, files, notes"),
        ("panels_close", {"panel": "main"}, "main is the screen itself"),
        ("panels_replace", {"panel": "run-1", "type": "notes"}, "there is one at most"),
        ("panels_move", {"panel": "run-1", "beside": "run-1"}, "cannot be beside itself"),
    ]
    for tool, arguments, because in refusals:
        result = call(rim, tool, **arguments)
        assert result["failed"] and because in result["output"], result
    assert not call(rim, "panels_move", panel="notes-1", beside="run-1", region="bottom")["failed"]
    result = call(rim, "panels_move", panel="files-1", beside="run-1", region="right")
    assert result["failed"] and "there is no room there" in result["output"]
    for _ in range(7):
        assert not call(rim, "panels_open", type="run", focus=False)["failed"]
    assert "which is the most" in call(rim, "panels_open", type="run")["output"]
    expect(tab(page, "Run").first).to_have_attribute("aria-current", "true")


@pytest.mark.spec("A58", "A76")
def test_without_a_window_nothing_is_done_and_the_agent_is_told(front: Front, rim: Rim) -> None:
    page = front.window("/chat")
    wait_until_sync(lambda: not call(rim, "panels_list")["failed"], "there is a window")
    page.context.close()
    wait_until_sync(lambda: call(rim, "panels_list")["failed"], "no window is left")
    for tool, arguments in (("panels_open", {"type": "run"}), ("open_url", {"url": "https://example.org/"})):
        result = call(rim, tool, **arguments)
        assert result["failed"] and "no window is open" in result["output"]


@pytest.mark.spec("A76")
def test_a_link_is_opened_by_the_person_who_sees_where_it_goes_and_who_says_so(front: Front, rim: Rim) -> None:
    page = front.window("/chat", turns_clock=True)
    wait_until_sync(lambda: not call(rim, "panels_list")["failed"], "there is a window")
    url = f"{rim.address}/chat?from=guide"
    card = page.get_by_role("group", name="A link to open")
    with ThreadPoolExecutor(1) as beside:
        waiting = beside.submit(call, rim, "open_url", url=url)
        with page.expect_popup() as popup:
            card.get_by_role("link", name="Open").click()
        assert popup.value.url == url or popup.value.wait_for_url(url) is None
        assert popup.value.evaluate("() => window.opener") is None
        assert not waiting.result(WAIT_LIMIT_S)["failed"]
        popup.value.close()
        expect(card).to_have_count(0)
        waiting = beside.submit(call, rim, "open_url", url=url)
        card.get_by_role("button", name="Not now").click()
        result = waiting.result(WAIT_LIMIT_S)
        assert result["failed"] and "chose not to open it" in result["output"]
        waiting = beside.submit(call, rim, "open_url", url=url)
        expect(card).to_have_count(1)
        page.clock.fast_forward("00:10")
        late = waiting.result(WAIT_LIMIT_S)
        assert late["failed"] and "nobody has pressed that yet" in late["output"]
        expect(card).to_contain_text("guide would like you to open")  # it can still be opened
        expect(card.get_by_text(url, exact=True)).to_be_visible()
        assert violations(page) == []
        assert len(page.context.pages) == 1  # nothing opens by itself
        waiting = beside.submit(call, rim, "open_url", url=url)
        expect(card).to_have_count(2)
        page.close()
        result = waiting.result(WAIT_LIMIT_S)
        assert result["failed"] and "the window was closed before it answered" in result["output"]


# --- before the words ---


@pytest.mark.spec("A60", "A61", "A88")
def test_what_is_before_a_person_goes_along_with_their_words_and_is_not_shown_among_them(
    front: Front, rim: Rim
) -> None:
    session = talk(rim)
    page = front.window(f"/chat/{session}")
    assert send(page, "echo plain") == "echo plain"  # nothing is open: nothing goes along
    page.get_by_role("button", name="Panels", exact=True).click()
    tab(page, "Notes").click()
    page.get_by_label("Your notes").fill('buy "roses" & <b>\nrest')
    page.get_by_label("Your notes").press("Control+Home")
    page.get_by_label("Your notes").press("Shift+End")
    expect(page.get_by_text("Notes · 1 selected")).to_be_visible()
    page.get_by_role("button", name="Ask for a short answer").click()
    line = (
        '<context panel-id="notes-1" panel-type="notes" panel-title="Notes" type="note" id="notes" name="Notes" '
        'selection="1" selection-titles="[&quot;buy \\&quot;roses\\&quot; &amp; &lt;b&gt;&quot;]" mode="brief" />'
    )
    assert send(page, "echo with it") == f"{line}\necho with it"
    page.get_by_role("button", name="Leave Notes out").click()
    assert send(page, "echo without it") == '<context mode="brief" />\necho without it'
    page.get_by_role("button", name="Ask for a short answer").click()
    page.reload()
    assert send(page, "echo alone") == "echo alone"  # what was left out stays left out
    page.get_by_role("button", name="Take Notes along").click()
    assert send(page, "echo at the end").startswith('<context panel-id="notes-1"')
    expect(page.get_by_text(re.compile("<context (panel|mode)"))).to_have_count(0)  # nor in the list beside it
    until_quiet(front, session)
    with_line = next(
        record for record in rim.do("session.history", session=session)["records"] if "with it" in str(record)
    )
    assert line[:40] in str(with_line["body"])  # the model reads it as it was sent


def test_what_someone_writes_that_begins_like_the_line_is_shown(front: Front, rim: Rim) -> None:
    page = front.window(f"/chat/{talk(rim)}")
    send(page, "<context> is the name of a tag")
    page.reload()
    expect(page.get_by_text("<context> is the name of a tag", exact=True).first).to_be_visible()
