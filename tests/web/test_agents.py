"""The staff in the page: who works here, made and changed as a person does it, and explained while one types."""

from __future__ import annotations

import re

import pytest
from api.tcp_server import Rim
from playwright.sync_api import Locator, Page, expect
from web.browser import Front, scrolls_sideways, settling, violations
from web.chat_actions import held_work, leave_composer

HOSTILE = "<img src=x onerror=alert(1)> **bold** \u202etxt.exe <script>alert(2)</script>"


@pytest.fixture(scope="module", autouse=True)
def staff(rim: Rim) -> None:
    rim.do("agent.register", name="ada", description="Keeps the calendar.", icon="Ad", colour="lime")
    rim.do("agent.register", name="ghost", description="Works unseen.", visible=False)


def card(page: Page, name: str) -> Locator:
    return (
        page.get_by_role("list", name="The staff")
        .get_by_role("listitem")
        .filter(has=page.get_by_role("heading", name=name, exact=True))
    )


def bar(page: Page) -> Locator:
    return page.get_by_role("region", name="Save", exact=True)


def is_cut(page: Page) -> bool:
    """Whether something within the screen is wider than its room: the page itself does not scroll for that."""
    wide = "each => each.scrollWidth > each.clientWidth && getComputedStyle(each).overflowY === 'auto'"
    return page.evaluate(f"[...document.querySelectorAll('main div')].some({wide})")


def open_group(page: Page, title: str) -> None:
    page.get_by_role("heading", name=title, exact=True).click()


# --- who is here ---


@pytest.mark.spec("A90.look", "A90.current", "A90.new_session")
def test_each_agent_has_its_look_and_the_one_you_talk_to_is_always_named(front: Front, rim: Rim) -> None:
    page = front.window("/agents")
    look = card(page, "ada").locator(".avatar")
    expect(look).to_have_text("Ad")
    expect(look).to_have_attribute("data-colour", "lime")
    assert card(page, "guide").locator(".avatar").get_attribute("data-colour")
    expect(card(page, "ada")).to_contain_text("Keeps the calendar.")
    expect(card(page, "ada")).to_contain_text("idle")
    expect(card(page, "ada")).to_contain_text("no conversation yet")

    card(page, "ada").get_by_role("button", name="What to do with ada").click()
    page.get_by_role("menuitem", name="New conversation").click()
    expect(page).to_have_url(re.compile(r"/chat/.+"))
    header = page.locator("section > header").filter(has=page.get_by_role("heading", level=1))
    expect(header).to_contain_text(re.compile(r"You talk to\s*ada"))
    expect(header.locator(".avatar")).to_have_attribute("data-colour", "lime")
    [session] = rim.do("session.list", agent="ada")["sessions"]
    assert session["pinnedAt"] is None

    page.goto(f"{rim.address}/agents")
    expect(card(page, "ada")).to_contain_text("1 conversation")
    card(page, "ada").get_by_role("button", name="Talk to ada").click()
    expect(page).to_have_url(f"{rim.address}/chat/{session['sessionId']}")


@pytest.mark.spec("A90.hidden")
def test_agents_that_are_not_shown_are_left_out_until_asked_for(front: Front, rim: Rim) -> None:
    hidden = [each["name"] for each in rim.do("agent.list")["agents"] if not each["visible"]]
    assert "ghost" in hidden
    page = front.window("/agents")
    expect(card(page, "ada")).to_be_visible()
    expect(card(page, "ghost")).to_have_count(0)
    page.keyboard.press("Control+k")
    page.get_by_role("combobox").fill("ghost")
    expect(page.get_by_text("Nothing by that name.")).to_be_visible()
    page.keyboard.press("Escape")
    page.get_by_role("checkbox", name=f"Also {len(hidden)} that pages leave out").check()
    expect(card(page, "ghost")).to_contain_text("not shown")
    page.goto(f"{front.rim.address}/chat")
    expect(page.get_by_role("button", name="New conversation with ada").first).to_be_visible()
    expect(page.get_by_role("button", name="New conversation with ghost")).to_have_count(0)


def test_the_keyboard_changes_whom_one_talks_to(front: Front, rim: Rim) -> None:
    newest = rim.do("session.create", agent="guide", name="about tea")["sessionId"]
    page = front.window("/agents")
    expect(card(page, "guide")).to_contain_text("conversation")
    page.keyboard.press("g")
    page.keyboard.press("t")
    dialog = page.get_by_role("dialog", name="Talk to another agent")
    expect(dialog.get_by_role("option").filter(has_text="guide").first).to_contain_text("about tea")
    page.keyboard.type("guide")
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{rim.address}/chat/{newest}")
    expect(page.get_by_label("Message guide")).to_be_visible()
    leave_composer(page)
    page.keyboard.press("g")
    page.keyboard.press("t")
    expect(dialog).to_be_visible()
    page.keyboard.type("guide")
    page.keyboard.press("Shift+Enter")
    expect(page).not_to_have_url(f"{rim.address}/chat/{newest}")
    expect(page.locator("header").filter(has=page.get_by_role("heading", level=1))).to_contain_text(
        re.compile(r"You talk to\s*guide")
    )


def test_what_an_agent_does_is_seen_as_it_happens(front: Front, rim: Rim) -> None:
    page = front.window("/agents")
    expect(card(page, "clerk")).to_contain_text("idle")
    rim.do("envelope.send", to="agent:clerk", text="ask read SOUL.md")
    expect(card(page, "clerk")).to_contain_text("waits for you")
    busy = held_work(rim)
    rim.do("envelope.send", to="agent:guide", text=busy.text)
    expect(card(page, "guide")).to_contain_text("at work")
    busy.release()
    expect(card(page, "guide")).to_contain_text("idle")


# --- made and changed ---


def test_an_agent_is_made_with_what_is_wrong_said_at_its_field(front: Front, rim: Rim) -> None:
    page = front.window("/agents")
    page.get_by_role("button", name="New agent").click()
    name = page.get_by_label("Name", exact=True)
    name.fill("two words")
    expect(page.get_by_role("alert")).to_contain_text("cannot be the name of an agent")
    expect(name).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_role("button", name="Take on")).to_be_disabled()
    name.fill("ADA")
    expect(page.get_by_role("alert")).to_contain_text("there is an agent 'ada' already")
    name.fill("bea")
    expect(page.get_by_role("alert")).to_have_count(0)
    page.get_by_label("Description", exact=True).fill("Reads the mail.")
    page.get_by_label("Icon", exact=True).fill("two words")
    expect(page.get_by_role("alert")).to_contain_text("one emoji")
    page.get_by_role("group", name="Suggestions").get_by_role("button").first.click()
    page.get_by_role("group", name="Colour").get_by_title("violet").click()
    page.get_by_label("Instructions", exact=True).fill("Be short.")
    expect(page.get_by_role("alert")).to_have_count(0)
    page.get_by_role("button", name="Take on").click()

    expect(page).to_have_url(f"{rim.address}/agents/bea")
    expect(page.get_by_role("heading", level=1, name="bea")).to_be_visible()
    made = rim.do("agent.show", name="bea")
    assert (made["description"], made["icon"], made["colour"]) == ("Reads the mail.", "\N{FOX FACE}", "violet")
    assert made["instructions"] == "Be short."
    front.complaints.clear()  # of the refusals, which were meant


def test_an_agent_is_changed_field_by_field_and_saved_as_a_version(front: Front, rim: Rim) -> None:
    rim.do("agent.register", name="cleo", description="Then.")
    page = front.window("/agents/cleo")
    page.get_by_label("Description", exact=True).fill("Now.")
    page.get_by_label("Shown in pages").uncheck()
    page.get_by_label("Effort", exact=True).select_option("low")
    open_group(page, "What it may spend")
    page.get_by_label("In a day", exact=True).fill("2.50")
    page.get_by_label("In a month", exact=True).fill("40")
    open_group(page, "Bounds of a run")
    turns = page.get_by_label("Turns in a run", exact=True)
    turns.fill("0")
    expect(page.get_by_role("alert")).to_contain_text("0 is not between 1 and 100000")
    expect(bar(page).get_by_role("button", name="Save")).to_be_disabled()
    turns.fill("7")
    open_group(page, "When much comes at once")
    page.get_by_label("Mail that comes while it works").select_option("interrupt")
    page.get_by_label("Runs at the same time", exact=True).fill("2")
    open_group(page, "Rights")
    page.get_by_label("Level", exact=True).select_option("restricted")
    expect(bar(page)).to_contain_text("Changed: Description")
    bar(page).get_by_role("button", name="Save").click()

    expect(page.get_by_text("Saved as version 2.")).to_be_visible()
    expect(bar(page)).to_have_count(0)
    now = rim.do("agent.show", name="cleo")
    assert (now["description"], now["visible"], now["effort"], now["turns_max"]) == ("Now.", False, "low", 7)
    assert (now["day_microusd_max"], now["month_microusd_max"]) == (2_500_000, 40_000_000)
    assert (now["queue"]["mode"], now["concurrency"], now["permission_level"]) == ("interrupt", 2, "restricted")

    page.get_by_label("In a day", exact=True).fill("")  # no bound again
    page.keyboard.press("Control+s")
    expect(page.get_by_text("Saved as version 3.")).to_be_visible()
    assert rim.do("agent.show", name="cleo")["day_microusd_max"] is None
    front.complaints.clear()


def test_whom_it_sees_where_it_works_and_how_it_is_confined_is_set_in_the_page(front: Front, rim: Rim) -> None:
    rim.do("agent.register", name="nora")
    page = front.window("/agents/nora")
    page.get_by_label("Called", exact=True).fill("Nora of the night")
    open_group(page, "Other agents")
    field = page.get_by_label("Whom not", exact=True)
    field.fill("gho")
    field.press("Enter")
    depth = page.get_by_label("How often work is handed on", exact=True)
    depth.fill("11")
    expect(page.get_by_role("alert")).to_contain_text("between 0 and 10")
    depth.fill("2")
    open_group(page, "Whom it sends out")
    page.get_by_label("Put away after, in seconds", exact=True).fill("60")
    open_group(page, "Where it works")
    page.get_by_label("Workspace", exact=True).fill("../out")
    expect(page.get_by_role("alert")).to_contain_text("must be a path")
    page.get_by_label("Workspace", exact=True).fill("desk")
    open_group(page, "How it is confined")
    page.get_by_label("What a command has of the workspace", exact=True).select_option("ro")
    expect(page.get_by_role("alert")).to_have_count(0)
    bar(page).get_by_role("button", name="Save").click()

    expect(page.get_by_role("heading", level=1, name="Nora of the night (nora)")).to_be_visible()
    made = rim.do("agent.show", name="nora")
    assert (made["delegation"]["deny"], made["delegation"]["depth_max"]) == (["gho"], 2)
    assert (made["subagents"]["archive_after_s"], made["workspace"]) == (60.0, "desk")
    assert made["sandbox"]["workspace"] == "ro"
    page.get_by_label("Called", exact=True).fill("")
    page.get_by_label("What a command has of the workspace", exact=True).select_option("")
    bar(page).get_by_role("button", name="Save").click()
    expect(page.get_by_role("heading", level=1, name="nora", exact=True)).to_be_visible()
    assert rim.do("agent.show", name="nora")["sandbox"]["workspace"] is None
    front.complaints.clear()  # of the refusals, which were meant


def test_models_are_put_in_order_by_keyboard_and_by_drag(front: Front, rim: Rim) -> None:
    rim.do("agent.register", name="dora")
    page = front.window("/agents/dora")
    page.get_by_label("Model", exact=True).fill("guide")
    page.get_by_label("As the house has them").uncheck()
    for model in ("a/one", "b/two", "c/three"):
        page.get_by_label("Another model").fill(model)
        page.keyboard.press("Enter")
    order = page.get_by_role("list", name="When that one fails").get_by_role("listitem")
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
    bar(page).get_by_role("button", name="Save").click()
    expect(page.get_by_text("Saved as version 2.")).to_be_visible()
    now = rim.do("agent.show", name="dora")
    assert (now["model"], now["fallbacks"]) == ("guide", ["c/three", "b/two"])


def test_two_windows_stay_equal_and_what_was_not_saved_stays_on_top(front: Front, rim: Rim) -> None:
    rim.do("agent.register", name="emil", description="Then.")
    one, other = front.window("/agents/emil"), front.window("/agents")
    one.get_by_label("Instructions", exact=True).fill("Be kind.")
    expect(bar(one)).to_be_visible()
    expect(card(other, "emil")).to_contain_text("Then.")
    rim.do("agent.set", name="emil", description="Now.", colour="pink")
    expect(card(other, "emil")).to_contain_text("Now.")
    expect(one.get_by_label("Description", exact=True)).to_have_value("Now.")
    expect(bar(one)).to_contain_text("It was changed elsewhere meanwhile.")
    one.get_by_role("button", name="All agents").click()  # and nothing is lost on the way
    expect(card(one, "emil")).to_contain_text("not saved")
    card(one, "emil").get_by_role("link", name="emil").click()
    expect(one.get_by_label("Instructions", exact=True)).to_have_value("Be kind.")
    bar(one).get_by_role("button", name="Discard").click()
    expect(one.get_by_label("Instructions", exact=True)).to_have_value("")
    assert rim.do("agent.show", name="emil")["instructions"] == ""


# --- tools ---


def test_what_a_change_of_the_lists_would_mean_is_shown_before_it_is_saved(front: Front, rim: Rim) -> None:
    rim.do("agent.register", name="faye")
    page = front.window("/agents/faye/tools")
    row = page.get_by_role("row").filter(has=page.get_by_role("button", name="read", exact=True))
    expect(row).to_contain_text("allowed")
    row.get_by_role("button", name="read").click()
    expect(page.get_by_role("heading", name="What each layer says")).to_be_visible()

    page.get_by_label("Ask first", exact=True).fill("read")
    page.keyboard.press("Enter")
    expect(row).to_contain_text("asks first")
    expect(page.get_by_text("agents.faye.tools.ask")).to_be_visible()
    expect(page.get_by_text("the agent faye asks before 'read'").first).to_be_visible()
    page.get_by_label("Deny", exact=True).fill("group:file,")
    expect(row).to_contain_text("denied")
    expect(page.get_by_text("agents.faye.tools.deny")).to_be_visible()
    page.get_by_role("button", name="Show it").first.click()
    page.get_by_role("button", name="Remove group:file from Deny").click()
    expect(row).to_contain_text("asks first")
    assert rim.do("agent.show", name="faye")["tools"]["ask"] == [], "nothing was saved"

    page.get_by_label("For whom it works").fill("nobody at all")
    expect(page.get_by_role("alert")).to_contain_text("not an address")
    page.get_by_label("For whom it works").fill("person:owner")
    expect(page.get_by_role("alert")).to_have_count(0)

    page.get_by_role("group", name="What read may do here").get_by_role("button", name="Deny").click()
    expect(row).to_contain_text("denied")
    page.get_by_label("Find a tool").fill("session_status")
    expect(page.get_by_role("table").get_by_role("row")).to_have_count(2)
    bar(page).get_by_role("button", name="Save").click()
    expect(page.get_by_text("Saved as version 2.")).to_be_visible()
    tools = rim.do("agent.show", name="faye")["tools"]
    assert (tools["ask"], tools["deny"]) == ([], ["read"])
    front.complaints.clear()


# --- files ---


def test_a_file_is_written_with_tabs_and_kept_while_one_walks_away(front: Front, rim: Rim) -> None:
    rim.do("agent.register", name="gert")
    page = front.window("/agents/gert/files")
    page.get_by_role("navigation", name="Files of its home").get_by_role("link", name="SOUL.md").click()
    text = page.get_by_label("Text of SOUL.md")
    text.fill("I am Gert.")
    text.press("Tab")
    expect(text).to_have_value("I am Gert.\t")
    text.press("Escape")
    text.press("Tab")
    expect(text).not_to_be_focused()
    page.get_by_role("link", name="Versions").click()
    page.get_by_role("link", name="Files", exact=True).click()
    listed = page.get_by_role("navigation", name="Files of its home").get_by_role("link", name="SOUL.md")
    expect(listed).to_contain_text("not saved")
    listed.click()
    expect(text).to_have_value("I am Gert.\t")
    text.fill("I am Gert.")
    text.press("Control+s")
    expect(page.get_by_text("SOUL.md was saved.")).to_be_visible()
    assert rim.do("agent.file", name="gert", path="SOUL.md")["content"] == "I am Gert."

    page.get_by_role("button", name="New file").click()
    page.get_by_label("Path").fill("internal_space/memories/tea.md")
    page.get_by_role("button", name="Begin").click()
    page.get_by_label("Text of internal_space/memories/tea.md").fill("Green, at four.")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_text("internal_space/memories/tea.md was saved.")).to_be_visible()
    assert rim.do("agent.file", name="gert", path="internal_space/memories/tea.md")["content"] == "Green, at four."


def test_who_writes_over_what_another_wrote_sees_both_and_chooses(front: Front, rim: Rim) -> None:
    rim.do("agent.register", name="hugo")
    page = front.window("/agents/hugo/files?file=SOUL.md")
    text = page.get_by_label("Text of SOUL.md")

    def they_write(content: str) -> None:
        now = rim.do("agent.file", name="hugo", path="SOUL.md")["hash"]
        rim.do("agent.write-file", name="hugo", path="SOUL.md", content=content, hash=now)

    they_write("theirs")
    expect(text).to_have_value("theirs")  # nothing was written here: it follows
    text.fill("mine")
    they_write("theirs again")
    expect(page.get_by_text("Somebody has written this file since you read it.")).to_be_visible()
    page.get_by_role("button", name="Save", exact=True).click()
    dialog = page.get_by_role("dialog", name="Two of you wrote this file")
    expect(dialog.get_by_role("group", name="From theirs to mine")).to_contain_text("theirs again")
    assert violations(page) == []
    dialog.get_by_role("button", name="Go on writing").click()
    expect(text).to_have_value("mine")
    page.get_by_role("button", name="Compare").click()
    dialog.get_by_role("button", name="Save mine").click()
    expect(dialog).to_have_count(0)
    assert rim.do("agent.file", name="hugo", path="SOUL.md")["content"] == "mine"
    text.fill("mine again")
    they_write("theirs at last")
    page.get_by_role("button", name="Compare").click()
    dialog.get_by_role("button", name="Take theirs").click()
    expect(text).to_have_value("theirs at last")
    front.complaints.clear()  # of the conflict, which was meant


# --- versions, and the end ---


def test_versions_are_compared_and_restored(front: Front, rim: Rim) -> None:
    rim.do("agent.register", name="ines", description="one", instructions="Be short.\nBe kind.")
    rim.do("agent.set", name="ines", description="two", day_microusd_max=5_000_000)
    rim.do("agent.set", name="ines", instructions="Be short.\nBe exact.", tools_deny=["exec"])
    page = front.window("/agents/ines/versions")
    versions = page.get_by_role("list", name="Versions").get_by_role("listitem")
    expect(versions).to_have_count(3)
    expect(versions.first).to_contain_text("by owner")
    expect(versions.first).to_contain_text("Instructions, Deny")
    expect(page.get_by_role("heading", name="From version 2 to version 3")).to_be_visible()
    expect(page.get_by_role("group", name="Instructions")).to_contain_text("Be exact.")
    page.get_by_label("Compare", exact=True).select_option("1")
    page.get_by_label("With", exact=True).select_option("2")
    expect(page.get_by_role("heading", name="From version 1 to version 2")).to_be_visible()
    expect(page.get_by_role("insertion").filter(has_text="$5")).to_be_visible()

    page.get_by_role("button", name="Restore version 1").click()
    dialog = page.get_by_role("dialog", name="Make version 1 the newest?")
    expect(dialog).to_contain_text("Deny")
    dialog.get_by_role("button", name="Restore").click()
    expect(page.get_by_text("Version 1 is back, as version 4.")).to_be_visible()
    expect(versions).to_have_count(4)
    now = rim.do("agent.show", name="ines")
    assert (now["description"], now["instructions"], now["tools"]["deny"]) == ("one", "Be short.\nBe kind.", [])


def test_whoever_lets_an_agent_go_is_told_what_that_means(front: Front, rim: Rim) -> None:
    rim.do("agent.register", name="jonas")
    page = front.window("/agents/jonas")
    page.get_by_role("button", name="What to do with jonas").click()
    page.get_by_role("menuitem", name="Let go").click()
    dialog = page.get_by_role("dialog", name="Let jonas go?")
    expect(dialog).to_contain_text("Its home stays where it is")
    dialog.get_by_label("Keep its home").uncheck()
    expect(dialog).to_contain_text("Its home goes: SOUL.md")
    expect(dialog.get_by_role("button", name="Let go")).to_be_disabled()
    dialog.get_by_label("Type jonas to say that you mean it").fill("jonas")
    dialog.get_by_role("button", name="Let go").click()
    expect(page).to_have_url(f"{rim.address}/agents")
    expect(page.get_by_text("jonas was let go.")).to_be_visible()
    expect(card(page, "jonas")).to_have_count(0)
    assert "jonas" not in {each["name"] for each in rim.do("agent.list")["agents"]}
    page.goto(f"{rim.address}/agents/jonas")
    expect(page.get_by_text("There is no such agent")).to_be_visible()
    front.complaints.clear()


# --- for anyone, and against anyone ---


def test_words_of_others_stay_words(front: Front, rim: Rim) -> None:
    rim.do("agent.register", name="kim", description=HOSTILE, instructions=HOSTILE)
    rim.do("agent.set", name="kim", instructions=f"{HOSTILE}\nmore", tools_deny=["<b>x</b>"])
    rim.do("agent.write-file", name="kim", path="SOUL.md", content=HOSTILE, hash=_hash(rim, "kim"))
    page = front.window("/agents")
    expect(card(page, "kim")).to_contain_text("<script>alert(2)</script>")
    settle = settling(page)
    for part in ("", "/tools", "/files?file=SOUL.md", "/versions"):
        page.goto(f"{rim.address}/agents/kim{part}")
        expect(page.get_by_role("heading", level=1, name="kim")).to_be_visible()
        settle()
        assert page.locator("main :is(img[src=x], script, main b:text-is('x'))").count() == 0
    expect(page.get_by_text("<b>x</b>").first).to_be_visible()
    assert page.locator("main .foreign", has_text="<b>x</b>").count() > 0


@pytest.mark.parametrize(("size", "theme"), [("laptop", "light"), ("phone", "dark")])
def test_every_part_of_an_agent_can_be_used_by_anyone(front: Front, size: str, theme: str) -> None:
    page = front.window("/agents", size=size, theme=theme)  # pyright: ignore[reportArgumentType]
    settle, found = settling(page), dict[str, list[str]]()
    paths = ("?new=1", "?hidden=1", "/clerk", "/clerk/tools", "/clerk/files?file=SOUL.md", "/clerk/versions")
    for path in paths:
        page.goto(f"{front.rim.address}/agents{path}")
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        settle()
        if path == "/clerk":
            folded_ones = ("What it may spend", "Bounds of a run", "When much comes at once", "Where it works")
            for folded in (*folded_ones, "How it is confined", "Other agents", "Whom it sends out", "Rights"):
                open_group(page, folded)
        if path == "/clerk/tools":
            page.get_by_label("Tool", exact=True).select_option("read")
            expect(page.get_by_role("heading", name="What each layer says")).to_be_visible()
            page.get_by_label("Find a tool").fill("read")  # axe takes its time for each row
        found[path] = violations(page) + (["scrolls sideways"] if scrolls_sideways(page) or is_cut(page) else [])
    assert {path: what for path, what in found.items() if what} == {}


def test_who_may_only_look_can_look(front: Front, rim: Rim) -> None:
    token = rim.member("maria")
    page = front.window("/agents/ada")
    page.get_by_role("button", name="You are owner").click()
    page.get_by_role("menuitem", name="Sign out").click()
    page.get_by_label("Code").fill(rim.do("token.code", as_=token)["code"])
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_text("You may look at this, and not change it.")).to_be_visible()
    expect(page.get_by_label("Description", exact=True)).to_be_disabled()
    expect(page.get_by_role("link", name="Files", exact=True)).to_have_count(0)
    page.goto(f"{rim.address}/agents")
    expect(card(page, "ada")).to_be_visible()
    expect(page.get_by_role("button", name="New agent")).to_have_count(0)
    front.complaints.clear()  # of what was refused, which was meant


def _hash(rim: Rim, name: str) -> str:
    return rim.do("agent.file", name=name, path="SOUL.md")["hash"]
