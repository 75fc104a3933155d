"""The Agents screen: the list, the editor, tools and their policy, files and versions."""

from __future__ import annotations

import re

import pytest
from api.tcp_server import ApiClient
from playwright.sync_api import Locator, Page, expect
from web.browser import WebApp, find_violations, scrolls_sideways, track_requests
from web.chat_actions import leave_composer, make_blocking_message

HOSTILE = "<img src=x onerror=alert(1)> **bold** \u202etxt.exe <script>alert(2)</script>"


@pytest.fixture(scope="module", autouse=True)
def agents(server: ApiClient) -> None:
    server.do("agent.register", name="ada", description="Keeps the calendar.", icon="Ad", color="lime")
    server.do("agent.register", name="ghost", description="Works unseen.", visible=False)


def card(page: Page, name: str) -> Locator:
    return (
        page.get_by_role("list", name="Agents")
        .get_by_role("listitem")
        .filter(has=page.get_by_role("heading", name=name, exact=True))
    )


def save_bar(page: Page) -> Locator:
    return page.get_by_role("region", name="Save", exact=True)


def has_overflow(page: Page) -> bool:
    """Whether an element is wider than its scroll container, which the page itself does not show."""
    wide = "each => each.scrollWidth > each.clientWidth && getComputedStyle(each).overflowY === 'auto'"
    return page.evaluate(f"[...document.querySelectorAll('main div')].some({wide})")


def open_group(page: Page, title: str) -> None:
    page.get_by_role("heading", name=title, exact=True).click()


# --- list ---


@pytest.mark.spec("A90.look", "A90.current", "A90.new_session")
def test_the_agents_screen_shows_the_appearance_of_an_agent_and_the_chat_names_the_current_agent(
    app: WebApp, server: ApiClient
) -> None:
    page = app.open_window("/agents")
    avatar = card(page, "ada").locator(".avatar")
    expect(avatar).to_have_text("Ad")
    expect(avatar).to_have_attribute("data-color", "lime")
    assert card(page, "guide").locator(".avatar").get_attribute("data-color")
    expect(card(page, "ada")).to_contain_text("Keeps the calendar.")
    expect(card(page, "ada")).to_contain_text("idle")
    expect(card(page, "ada")).to_contain_text("no conversations yet")

    card(page, "ada").get_by_role("button", name="Actions for ada").click()
    page.get_by_role("menuitem", name="New conversation").click()
    expect(page).to_have_url(re.compile(r"/chat/.+"))
    header = page.locator("section > header").filter(has=page.get_by_role("heading", level=1))
    expect(header).to_contain_text(re.compile(r"Agent:\s*ada"))
    expect(header.locator(".avatar")).to_have_attribute("data-color", "lime")
    [session] = server.do("session.list", agent="ada")["sessions"]
    assert session["pinnedAt"] is None

    page.goto(f"{server.address}/agents")
    expect(card(page, "ada")).to_contain_text("1 conversation")
    card(page, "ada").get_by_role("button", name="Open chat with ada").click()
    expect(page).to_have_url(f"{server.address}/chat/{session['sessionId']}")


@pytest.mark.spec("A90.hidden")
def test_hidden_agents_are_listed_on_the_agents_screen_only_on_request(app: WebApp, server: ApiClient) -> None:
    hidden = [each["name"] for each in server.do("agent.list")["agents"] if not each["visible"]]
    assert "ghost" in hidden
    page = app.open_window("/agents")
    expect(card(page, "ada")).to_be_visible()
    expect(card(page, "ghost")).to_have_count(0)
    page.keyboard.press("Control+k")
    page.get_by_role("combobox").fill("ghost")
    expect(page.get_by_text("No matches")).to_be_visible()
    page.keyboard.press("Escape")
    page.get_by_role("checkbox", name=f"Show hidden agents ({len(hidden)})").check()
    expect(card(page, "ghost")).to_contain_text("hidden")
    page.goto(f"{app.server.address}/chat")
    expect(page.get_by_role("button", name="New conversation with ada").first).to_be_visible()
    expect(page.get_by_role("button", name="New conversation with ghost")).to_have_count(0)


def test_a_keyboard_shortcut_opens_a_chat_with_another_agent(app: WebApp, server: ApiClient) -> None:
    newest = server.do("session.create", agent="guide", name="about tea")["sessionId"]
    page = app.open_window("/agents", patient=True)
    expect(card(page, "guide")).to_contain_text("conversation")
    page.keyboard.press("g")
    page.keyboard.press("t")
    dialog = page.get_by_role("dialog", name="Chat with an agent")
    expect(dialog.get_by_role("option").filter(has_text="guide").first).to_contain_text("about tea")
    page.keyboard.type("guide")
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{server.address}/chat/{newest}")
    expect(page.get_by_label("Message guide")).to_be_visible()
    leave_composer(page)
    page.keyboard.press("g")
    page.keyboard.press("t")
    expect(dialog).to_be_visible()
    page.keyboard.type("guide")
    page.keyboard.press("Shift+Enter")
    expect(page).not_to_have_url(f"{server.address}/chat/{newest}")
    expect(page.locator("header").filter(has=page.get_by_role("heading", level=1))).to_contain_text(
        re.compile(r"Agent:\s*guide")
    )


def test_the_status_of_an_agent_is_updated_live(app: WebApp, server: ApiClient) -> None:
    page = app.open_window("/agents")
    expect(card(page, "clerk")).to_contain_text("idle")
    server.do("envelope.send", to="agent:clerk", text="ask read SOUL.md")
    expect(card(page, "clerk")).to_contain_text("waiting for approval")
    busy = make_blocking_message(server)
    server.do("envelope.send", to="agent:guide", text=busy.text)
    expect(card(page, "guide")).to_contain_text("working")
    busy.release()
    expect(card(page, "guide")).to_contain_text("idle")


# --- create and edit ---


def test_creating_an_agent_in_the_web_app_shows_errors_at_their_fields(app: WebApp, server: ApiClient) -> None:
    page = app.open_window("/agents")
    page.get_by_role("button", name="Create agent").click()
    name = page.get_by_label("Name", exact=True)
    name.fill("two words")
    expect(page.get_by_role("alert")).to_contain_text("invalid name for an agent")
    expect(name).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_role("button", name="Create", exact=True)).to_be_disabled()
    name.fill("ADA")
    expect(page.get_by_role("alert")).to_contain_text("an agent named 'ada' already exists")
    name.fill("bea")
    expect(page.get_by_role("alert")).to_have_count(0)
    page.get_by_label("Description", exact=True).fill("Reads the mail.")
    page.get_by_label("Icon", exact=True).fill("two words")
    expect(page.get_by_role("alert")).to_contain_text("one emoji")
    page.get_by_role("group", name="Suggested icons").get_by_role("button").first.click()
    page.get_by_role("group", name="Color").get_by_title("violet").click()
    page.get_by_label("Instructions", exact=True).fill("Be short.")
    expect(page.get_by_role("alert")).to_have_count(0)
    page.get_by_role("button", name="Create", exact=True).click()

    expect(page).to_have_url(f"{server.address}/agents/bea")
    expect(page.get_by_role("heading", level=1, name="bea")).to_be_visible()
    made = server.do("agent.show", name="bea")
    assert (made["description"], made["icon"], made["color"]) == ("Reads the mail.", "\N{FOX FACE}", "violet")
    assert made["instructions"] == "Be short."
    app.console_errors.clear()  # the refused requests were expected


def test_changed_fields_of_an_agent_in_the_editor_are_saved_as_a_new_version(app: WebApp, server: ApiClient) -> None:
    server.do("agent.register", name="cleo", description="Then.")
    page = app.open_window("/agents/cleo")
    page.get_by_label("Description", exact=True).fill("Now.")
    page.get_by_label("Visible in lists").uncheck()
    page.get_by_label("Effort", exact=True).select_option("low")
    open_group(page, "Budget")
    page.get_by_label("Daily budget", exact=True).fill("2.50")
    page.get_by_label("Monthly budget", exact=True).fill("40")
    open_group(page, "Run limits")
    turns = page.get_by_label("Maximum turns per run", exact=True)
    turns.fill("0")
    expect(page.get_by_role("alert")).to_contain_text("0 is not between 1 and 100000")
    expect(save_bar(page).get_by_role("button", name="Save")).to_be_disabled()
    turns.fill("7")
    open_group(page, "Queue")
    page.get_by_label("Messages during a run").select_option("interrupt")
    page.get_by_label("Concurrent runs", exact=True).fill("2")
    open_group(page, "Permissions")
    page.get_by_label("Permission level", exact=True).select_option("restricted")
    expect(save_bar(page)).to_contain_text("Changed: Description")
    save_bar(page).get_by_role("button", name="Save").click()

    expect(page.get_by_text("Saved as version 2.")).to_be_visible()
    expect(save_bar(page)).to_have_count(0)
    now = server.do("agent.show", name="cleo")
    assert (now["description"], now["visible"], now["effort"], now["turns_max"]) == ("Now.", False, "low", 7)
    assert (now["day_microusd_max"], now["month_microusd_max"]) == (2_500_000, 40_000_000)
    assert (now["queue"]["mode"], now["concurrency"], now["permission_level"]) == ("interrupt", 2, "restricted")

    page.get_by_label("Daily budget", exact=True).fill("")  # no limit again
    page.keyboard.press("Control+s")
    expect(page.get_by_text("Saved as version 3.")).to_be_visible()
    assert server.do("agent.show", name="cleo")["day_microusd_max"] is None
    app.console_errors.clear()


def test_the_agent_editor_can_change_delegation_workspace_and_sandbox(app: WebApp, server: ApiClient) -> None:
    server.do("agent.register", name="nora")
    page = app.open_window("/agents/nora")
    page.get_by_label("Display name", exact=True).fill("Nora of the night")
    open_group(page, "Delegation")
    field = page.get_by_label("Denied agents", exact=True)
    field.fill("gho")
    field.press("Enter")
    depth = page.get_by_label("Maximum delegation depth", exact=True)
    depth.fill("11")
    expect(page.get_by_role("alert")).to_contain_text("between 0 and 10")
    depth.fill("2")
    open_group(page, "Subagents")
    page.get_by_label("Time before archiving (seconds)", exact=True).fill("60")
    open_group(page, "Workspace")
    page.get_by_label("Workspace", exact=True).fill("../out")
    expect(page.get_by_role("alert")).to_contain_text("must be a path")
    page.get_by_label("Workspace", exact=True).fill("drafts")
    open_group(page, "Sandbox")
    page.get_by_label("Workspace access", exact=True).select_option("ro")
    expect(page.get_by_role("alert")).to_have_count(0)
    save_bar(page).get_by_role("button", name="Save").click()

    expect(page.get_by_role("heading", level=1, name="Nora of the night (nora)")).to_be_visible()
    made = server.do("agent.show", name="nora")
    assert (made["delegation"]["deny"], made["delegation"]["depth_max"]) == (["gho"], 2)
    assert (made["subagents"]["archive_after_s"], made["workspace"]) == (60.0, "drafts")
    assert made["sandbox"]["workspace"] == "ro"
    page.get_by_label("Display name", exact=True).fill("")
    page.get_by_label("Workspace access", exact=True).select_option("")
    save_bar(page).get_by_role("button", name="Save").click()
    expect(page.get_by_role("heading", level=1, name="nora", exact=True)).to_be_visible()
    assert server.do("agent.show", name="nora")["sandbox"]["workspace"] is None
    app.console_errors.clear()  # the refused requests were expected


def test_fallback_models_are_reordered_by_keyboard_and_by_drag(app: WebApp, server: ApiClient) -> None:
    server.do("agent.register", name="dora")
    page = app.open_window("/agents/dora")
    page.get_by_label("Model", exact=True).fill("guide")
    page.get_by_label("Use the default fallback models").uncheck()
    for model in ("a/one", "b/two", "c/three"):
        page.get_by_label("Fallback model", exact=True).fill(model)
        page.keyboard.press("Enter")
    order = page.get_by_role("list", name="Fallback models").get_by_role("listitem")
    expect(order).to_have_count(3)
    page.get_by_role("button", name="Move c/three up").focus()
    page.keyboard.press("Enter")
    expect(order.nth(1)).to_contain_text("c/three")
    expect(page.get_by_role("button", name="Move c/three up")).to_be_focused()
    page.keyboard.press("Enter")
    expect(order.nth(0)).to_contain_text("c/three")
    order.nth(2).drag_to(order.nth(1))
    expect(order.nth(1)).to_contain_text("b/two")
    page.get_by_role("button", name="Remove a/one").click()
    save_bar(page).get_by_role("button", name="Save").click()
    expect(page.get_by_text("Saved as version 2.")).to_be_visible()
    now = server.do("agent.show", name="dora")
    assert (now["model"], now["fallbacks"]) == ("guide", ["c/three", "b/two"])


def test_unsaved_changes_in_the_agent_editor_survive_a_change_in_another_window(app: WebApp, server: ApiClient) -> None:
    server.do("agent.register", name="emil", description="Then.")
    one, other = app.open_window("/agents/emil"), app.open_window("/agents")
    one.get_by_label("Instructions", exact=True).fill("Be kind.")
    expect(save_bar(one)).to_be_visible()
    expect(card(other, "emil")).to_contain_text("Then.")
    server.do("agent.set", name="emil", description="Now.", color="pink")
    expect(card(other, "emil")).to_contain_text("Now.")
    expect(one.get_by_label("Description", exact=True)).to_have_value("Now.")
    expect(save_bar(one)).to_contain_text("Someone else changed this agent.")
    one.get_by_role("button", name="All agents").click()  # unsaved changes are kept
    expect(card(one, "emil")).to_contain_text("unsaved")
    card(one, "emil").get_by_role("link", name="emil").click()
    expect(one.get_by_label("Instructions", exact=True)).to_have_value("Be kind.")
    save_bar(one).get_by_role("button", name="Discard changes").click()
    expect(one.get_by_label("Instructions", exact=True)).to_have_value("")
    assert server.do("agent.show", name="emil")["instructions"] == ""


# --- tools ---


def test_the_tools_tab_of_an_agent_shows_policy_decisions_for_unsaved_tool_lists(
    app: WebApp, server: ApiClient
) -> None:
    server.do("agent.register", name="faye")
    page = app.open_window("/agents/faye/tools")
    row = page.get_by_role("row").filter(has=page.get_by_role("button", name="read", exact=True))
    expect(row).to_contain_text("allowed")
    row.get_by_role("button", name="read").click()
    expect(page.get_by_role("heading", name="Rules", exact=True)).to_be_visible()

    page.get_by_label("Tools that need approval", exact=True).fill("read")
    page.keyboard.press("Enter")
    expect(row).to_contain_text("needs approval")
    expect(page.get_by_text("agents.faye.tools.ask")).to_be_visible()
    expect(page.get_by_text("the agent faye requires approval for 'read'").first).to_be_visible()
    page.get_by_label("Denied tools", exact=True).fill("group:file,")
    expect(row).to_contain_text("denied")
    expect(page.get_by_text("agents.faye.tools.deny")).to_be_visible()
    page.get_by_role("button", name="Show field").first.click()
    page.get_by_role("button", name="Remove group:file from Denied tools").click()
    expect(row).to_contain_text("needs approval")
    assert server.do("agent.show", name="faye")["tools"]["ask"] == [], "nothing was saved"

    page.get_by_label("On behalf of").fill("somewhere else")
    expect(page.get_by_role("alert")).to_contain_text("Invalid address")
    page.get_by_label("On behalf of").fill("person:owner")
    expect(page.get_by_role("alert")).to_have_count(0)

    page.get_by_role("group", name="Rule for read").get_by_role("button", name="Deny").click()
    expect(row).to_contain_text("denied")
    page.get_by_label("Find a tool").fill("session_status")
    expect(page.get_by_role("table").get_by_role("row")).to_have_count(2)
    save_bar(page).get_by_role("button", name="Save").click()
    expect(page.get_by_text("Saved as version 2.")).to_be_visible()
    tools = server.do("agent.show", name="faye")["tools"]
    assert (tools["ask"], tools["deny"]) == ([], ["read"])
    app.console_errors.clear()


# --- files ---


def test_an_unsaved_file_is_kept_while_another_tab_is_open(app: WebApp, server: ApiClient) -> None:
    server.do("agent.register", name="gert")
    page = app.open_window("/agents/gert/files")
    page.get_by_role("navigation", name="Files in the agent directory").get_by_role("link", name="SOUL.md").click()
    text = page.get_by_label("Content of SOUL.md")
    text.fill("I am Gert.")
    text.press("Tab")
    expect(text).to_have_value("I am Gert.\t")
    text.press("Escape")
    text.press("Tab")
    expect(text).not_to_be_focused()
    page.get_by_role("link", name="Versions").click()
    page.get_by_role("link", name="Files", exact=True).click()
    listed = page.get_by_role("navigation", name="Files in the agent directory").get_by_role("link", name="SOUL.md")
    expect(listed).to_contain_text("unsaved")
    listed.click()
    expect(text).to_have_value("I am Gert.\t")
    text.fill("I am Gert.")
    text.press("Control+s")
    expect(page.get_by_text("SOUL.md was saved.")).to_be_visible()
    assert server.do("agent.file", name="gert", path="SOUL.md")["content"] == "I am Gert."

    page.get_by_role("button", name="New file").click()
    page.get_by_label("Path").fill("internal_space/memories/tea.md")
    page.get_by_role("button", name="Create", exact=True).click()
    page.get_by_label("Content of internal_space/memories/tea.md").fill("Green, at four.")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_text("internal_space/memories/tea.md was saved.")).to_be_visible()
    assert server.do("agent.file", name="gert", path="internal_space/memories/tea.md")["content"] == "Green, at four."


def test_a_conflict_in_the_file_editor_of_an_agent_shows_both_versions(app: WebApp, server: ApiClient) -> None:
    server.do("agent.register", name="hugo")
    page = app.open_window("/agents/hugo/files?file=SOUL.md")
    text = page.get_by_label("Content of SOUL.md")

    def write_elsewhere(content: str) -> None:
        now = server.do("agent.file", name="hugo", path="SOUL.md")["hash"]
        server.do("agent.write_file", name="hugo", path="SOUL.md", content=content, hash=now)

    write_elsewhere("theirs")
    expect(text).to_have_value("theirs")  # not edited here, so it follows
    text.fill("mine")
    write_elsewhere("theirs again")
    expect(page.get_by_text("This file has changed since you opened it.")).to_be_visible()
    page.get_by_role("button", name="Save", exact=True).click()
    dialog = page.get_by_role("dialog", name="The file has changed")
    expect(dialog.get_by_role("group", name="The other version compared with mine")).to_contain_text("theirs again")
    assert find_violations(page) == []
    dialog.get_by_role("button", name="Keep editing").click()
    expect(text).to_have_value("mine")
    page.get_by_role("button", name="Compare versions").click()
    dialog.get_by_role("button", name="Save my version").click()
    expect(dialog).to_have_count(0)
    assert server.do("agent.file", name="hugo", path="SOUL.md")["content"] == "mine"
    text.fill("mine again")
    write_elsewhere("theirs at last")
    page.get_by_role("button", name="Compare versions").click()
    dialog.get_by_role("button", name="Use the other version").click()
    expect(text).to_have_value("theirs at last")
    app.console_errors.clear()  # the conflict was expected


# --- versions and deletion ---


def test_versions_of_an_agent_are_compared_and_restored_on_the_agents_screen(app: WebApp, server: ApiClient) -> None:
    server.do("agent.register", name="ines", description="one", instructions="Be short.\nBe kind.")
    server.do("agent.set", name="ines", description="two", day_microusd_max=5_000_000)
    server.do("agent.set", name="ines", instructions="Be short.\nBe exact.", tools_deny=["exec"])
    page = app.open_window("/agents/ines/versions")
    versions = page.get_by_role("list", name="Versions").get_by_role("listitem")
    expect(versions).to_have_count(3)
    expect(versions.first).to_contain_text("by owner")
    expect(versions.first).to_contain_text("Instructions, Denied tools")
    expect(page.get_by_role("heading", name="Changes from version 2 to version 3")).to_be_visible()
    expect(page.get_by_role("group", name="Instructions")).to_contain_text("Be exact.")
    page.get_by_label("From", exact=True).select_option("1")
    page.get_by_label("To", exact=True).select_option("2")
    expect(page.get_by_role("heading", name="Changes from version 1 to version 2")).to_be_visible()
    expect(page.get_by_role("insertion").filter(has_text="$5")).to_be_visible()

    page.get_by_role("button", name="Restore version 1").click()
    dialog = page.get_by_role("dialog", name="Restore version 1?")
    expect(dialog).to_contain_text("Denied tools")
    dialog.get_by_role("button", name="Restore").click()
    expect(page.get_by_text("Version 1 was restored as version 4.")).to_be_visible()
    expect(versions).to_have_count(4)
    now = server.do("agent.show", name="ines")
    assert (now["description"], now["instructions"], now["tools"]["deny"]) == ("one", "Be short.\nBe kind.", [])


def test_the_dialog_to_delete_an_agent_shows_the_consequences_first(app: WebApp, server: ApiClient) -> None:
    server.do("agent.register", name="jonas")
    page = app.open_window("/agents/jonas")
    page.get_by_role("button", name="Actions for jonas").click()
    page.get_by_role("menuitem", name="Delete agent").click()
    dialog = page.get_by_role("dialog", name="Delete jonas?")
    expect(dialog).to_contain_text("The agent directory is kept.")
    dialog.get_by_label("Keep the agent directory").uncheck()
    expect(dialog).to_contain_text("The agent directory is deleted, with SOUL.md")
    expect(dialog.get_by_role("button", name="Delete agent")).to_be_disabled()
    dialog.get_by_label("Type jonas to confirm").fill("jonas")
    dialog.get_by_role("button", name="Delete agent").click()
    expect(page).to_have_url(f"{server.address}/agents")
    expect(page.get_by_text("jonas was deleted.")).to_be_visible()
    expect(card(page, "jonas")).to_have_count(0)
    assert "jonas" not in {each["name"] for each in server.do("agent.list")["agents"]}
    page.goto(f"{server.address}/agents/jonas")
    expect(page.get_by_text("Agent not found")).to_be_visible()
    app.close_expecting_errors()  # each part of the screen requests the deleted agent


# --- hostile text, accessibility and permissions ---


def test_hostile_text_of_an_agent_is_shown_as_plain_text_on_the_agents_screen(app: WebApp, server: ApiClient) -> None:
    server.do("agent.register", name="kim", description=HOSTILE, instructions=HOSTILE)
    server.do("agent.set", name="kim", instructions=f"{HOSTILE}\nmore", tools_deny=["<b>x</b>"])
    server.do("agent.write_file", name="kim", path="SOUL.md", content=HOSTILE, hash=_read_file_hash(server, "kim"))
    page = app.open_window("/agents")
    expect(card(page, "kim")).to_contain_text("<script>alert(2)</script>")
    wait_until_settled = track_requests(page)
    for part in ("", "/tools", "/files?file=SOUL.md", "/versions"):
        page.goto(f"{server.address}/agents/kim{part}")
        expect(page.get_by_role("heading", level=1, name="kim")).to_be_visible()
        wait_until_settled()
        assert page.locator("main :is(img[src=x], script, main b:text-is('x'))").count() == 0
    expect(page.get_by_text("<b>x</b>").first).to_be_visible()
    assert page.locator("main .foreign", has_text="<b>x</b>").count() > 0


@pytest.mark.parametrize(("size", "theme"), [("laptop", "light"), ("phone", "dark")])
def test_the_agents_screens_are_accessible(app: WebApp, size: str, theme: str) -> None:
    page = app.open_window("/agents", size=size, theme=theme)  # pyright: ignore[reportArgumentType]
    wait_until_settled, found = track_requests(page), dict[str, list[str]]()
    paths = ("?new=1", "?hidden=1", "/clerk", "/clerk/tools", "/clerk/files?file=SOUL.md", "/clerk/versions")
    for path in paths:
        page.goto(f"{app.server.address}/agents{path}")
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        wait_until_settled()
        if path == "/clerk":
            groups = ("Budget", "Run limits", "Queue", "Workspace")
            for group in (*groups, "Sandbox", "Delegation", "Subagents", "Permissions"):
                open_group(page, group)
        if path == "/clerk/tools":
            page.get_by_label("Tool", exact=True).select_option("read")
            expect(page.get_by_role("heading", name="Rules", exact=True)).to_be_visible()
            page.get_by_label("Find a tool").fill("read")  # axe needs time for each row
        found[path] = find_violations(page) + (
            ["scrolls sideways"] if scrolls_sideways(page) or has_overflow(page) else []
        )
    assert {path: what for path, what in found.items() if what} == {}


def test_a_member_can_view_an_agent_on_the_agents_screen_but_not_edit_it(app: WebApp, server: ApiClient) -> None:
    token = server.member("maria")
    page = app.open_window("/agents/ada")
    page.get_by_role("button", name="Signed in as owner").click()
    page.get_by_role("menuitem", name="Sign out").click()
    page.get_by_label("Sign-in code").fill(server.do("token.code", as_=token)["code"])
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_text("You can view these settings, but not change them.")).to_be_visible()
    expect(page.get_by_label("Description", exact=True)).to_be_disabled()
    expect(page.get_by_role("link", name="Files", exact=True)).to_have_count(0)
    page.goto(f"{server.address}/agents")
    expect(card(page, "ada")).to_be_visible()
    expect(page.get_by_role("button", name="Create agent")).to_have_count(0)
    app.close_expecting_errors()  # refused requests are expected


def _read_file_hash(server: ApiClient, name: str) -> str:
    return server.do("agent.file", name=name, path="SOUL.md")["hash"]
