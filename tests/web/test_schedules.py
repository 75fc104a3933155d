"""Schedules in the page: seen, set in words one can check, run by hand, and told of when they did not run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from api.tcp_server import Rim
from playwright.sync_api import Locator, Page, expect
from web.browser import LOOKS, Front, scrolls_sideways, violations
from web.chat_actions import held_work
from web.conftest import SETTINGS as PLAIN

from retinue.testing.waiting import wait_until_sync

SETTINGS = PLAIN + '[sessions.reset]\ndaily_at = "04:00"\n'
HOSTILE = "<img src=x onerror=alert(1)> **bold** \u202etxt.exe <script>alert(2)</script>"


@pytest.fixture(autouse=True)
def clean(rim: Rim) -> Iterator[None]:
    """Each test has the clock for itself. A heartbeat cannot be deleted: its tests have servers of their own."""
    yield
    for each in rim.do("schedule.list", limit=200)["schedules"]:
        rim.do("schedule.delete", schedule=each["id"])


def add(rim: Rim, **kw: Any) -> dict[str, Any]:
    if not {"at", "every", "cron"} & set(kw):
        kw["cron"] = "0 9 * * 1-5"
    return rim.do("schedule.add", **{"to": "agent:guide", "text": "echo good morning", **kw})


def show(rim: Rim, id_: str) -> dict[str, Any]:
    return rim.do("schedule.show", schedule=id_)


def row(page: Page, name: str) -> Locator:
    return page.get_by_role("row").filter(has=page.get_by_role("link", name=name, exact=True))


def act(page: Page, name: str, what: str) -> None:
    page.get_by_role("button", name=f"What to do with {name}").click()
    page.get_by_role("menuitem", name=what, exact=True).click()


def history(page: Page) -> Locator:
    return page.get_by_role("region", name="What became of it").get_by_role("listitem")


def preview(page: Page) -> Locator:
    return page.get_by_role("status", name="What this means")


# --- the list ---


def test_a_house_without_any_says_what_would_be_here(front: Front) -> None:
    page = front.window("/runs")  # no field takes the focus there
    expect(page.get_by_role("heading", level=1, name="Runs")).to_be_visible()
    page.keyboard.press("g")
    page.keyboard.press("s")
    expect(page).to_have_url(f"{front.rim.address}/schedules")
    expect(page.get_by_role("heading", name="Nothing is scheduled")).to_be_visible()
    assert violations(page) == []
    page.get_by_role("link", name="Week").click()
    expect(page.get_by_role("heading", name="Nothing comes this week")).to_be_visible()
    page.get_by_role("link", name="New schedule").click()
    expect(page).to_have_url(f"{front.rim.address}/schedules/new")


def test_the_list_tells_what_comes_next_and_lives(front: Front, rim: Rim) -> None:
    add(rim, name="morning", zone="Europe/Berlin")
    page, phone = front.window("/schedules"), front.window("/schedules", size="phone", theme="dark")
    expect(row(page, "morning")).to_contain_text("At 09:00 on Monday through Friday (Europe/Berlin)")
    expect(row(page, "morning")).to_contain_text("not yet")
    expect(row(page, "morning").locator("time")).to_have_attribute("datetime", show(rim, "morning")["next"])
    rim.do("schedule.run", schedule="morning")
    expect(row(page, "morning")).to_contain_text("ran")
    rim.do("schedule.disable", schedule="morning")
    for window in (page, phone):
        expect(window.get_by_role("main").get_by_text("does not come")).to_be_visible()
    expect(phone.get_by_role("table")).to_have_count(0)
    add(rim, to="person:owner", at="+5h", text=HOSTILE)
    expect(page.get_by_role("link", name="<img src=x")).to_be_visible()
    rim.do("schedule.delete", schedule="morning")
    expect(row(page, "morning")).to_have_count(0)
    for window in (page, phone):
        assert violations(window) == [] and not scrolls_sideways(window)


def test_kinds_and_agents_are_told_apart_and_the_address_keeps_it(front: Front, rim: Rim) -> None:
    add(rim, name="for-guide")
    add(rim, name="for-clerk", to="agent:clerk")
    rim.do("reminder.add", text="Call Noor.", at="+2h")
    page = front.window("/schedules")
    expect(row(page, "Call Noor.")).to_contain_text("reminder")
    page.get_by_label("Kind").select_option("Reminders")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_label("Kind").select_option("Schedules")
    page.get_by_label("For", exact=True).select_option("clerk")
    expect(page).to_have_url(f"{rim.address}/schedules?kind=schedule&agent=clerk")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.reload()
    expect(row(page, "for-clerk")).to_be_visible()
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_label("Kind").select_option("Wake-ups")
    expect(page.get_by_role("heading", name="No schedule fits")).to_be_visible()


def test_files_that_cannot_be_read_are_named(front: Front, rim: Rim) -> None:
    folder = rim.process.home / "schedules"
    folder.mkdir(exist_ok=True)
    page = front.window("/schedules")
    (folder / "broken.md").write_text("---\ncron: every full moon\nto: agent:guide\n---\nHowl.\n")
    expect(page.get_by_role("heading", name="Nothing is scheduled")).to_be_visible()
    wait_until_sync(lambda: rim.do("schedule.list")["unread"], "the file was read")
    page.reload()
    expect(page.get_by_role("note")).to_contain_text("1 file of schedules could not be read")
    expect(page.get_by_role("note")).to_contain_text("broken.md")
    (folder / "broken.md").unlink()
    wait_until_sync(lambda: not rim.do("schedule.list")["unread"], "the file is forgotten")


# --- set and changed ---


@pytest.mark.spec("H30")
def test_a_time_is_told_in_words_while_one_types_and_nothing_is_made(front: Front, rim: Rim) -> None:
    page = front.window("/schedules/new")
    expect(preview(page)).to_contain_text("Say when")
    page.get_by_label("Cron expression").fill("0 9 * * 1-5")
    page.get_by_label("Zone").fill("Asia/Tokyo")
    expect(preview(page)).to_contain_text("At 09:00 on Monday through Friday (Asia/Tokyo)")
    told = rim.do("schedule.explain", cron="0 9 * * 1-5", zone="Asia/Tokyo")["next"]
    times = preview(page).locator("li > time")
    expect(times).to_have_count(5)
    assert times.evaluate_all("all => all.map(each => each.dateTime)") == told
    expect(times.first).to_contain_text("09:00")

    page.get_by_label("Cron expression").fill("0 9 * * 1-9")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("Try:")
    expect(page.get_by_label("Cron expression")).to_have_attribute("aria-invalid", "true")
    expect(preview(page).locator("li")).to_have_count(0)
    page.get_by_role("button", name="every hour").click()
    expect(alert).to_have_count(0)
    expect(preview(page)).to_contain_text("every hour")
    page.get_by_label("Zone").fill("Europe/Nowhere")
    expect(alert).to_contain_text("there is no time zone", ignore_case=True)
    expect(page.get_by_label("Zone")).to_have_attribute("aria-invalid", "true")
    page.get_by_label("Zone").fill("")

    page.get_by_label("every so often").check()
    page.get_by_label("Every", exact=True).fill("1h30m")
    expect(preview(page)).to_contain_text("Every 1 hour 30 minutes")
    page.get_by_role("radio", name="once").check()
    page.get_by_label("At", exact=True).fill("2031-05-17T20:30")
    expect(preview(page)).to_contain_text("2031")
    expect(preview(page).locator("li")).to_have_count(1)
    assert rim.do("schedule.list")["schedules"] == []
    assert violations(page) == []
    page.get_by_role("button", name="Discard").click()
    expect(page).to_have_url(f"{rim.address}/schedules")
    front.complaints.clear()  # of the refusals, which were meant


def test_one_is_set_with_all_there_is_to_say_and_what_is_wrong_said_at_its_field(front: Front, rim: Rim) -> None:
    add(rim, name="taken")
    page = front.window("/schedules/new?to=agent:clerk")
    expect(page.get_by_role("button", name="Set it", exact=True)).to_be_disabled()
    page.get_by_label("Cron expression").fill("30 21 * * *")
    page.get_by_label("Zone").fill("Europe/Berlin")
    expect(page.get_by_label("To", exact=True)).to_have_value("agent:clerk")
    page.get_by_label("Where it is worked on").select_option("own")
    page.get_by_role("heading", name="Gate").click()
    page.get_by_label("Command").fill("test -s inbox.txt")
    page.get_by_label("Seconds at most").fill("5")
    page.get_by_label("Permissions").fill("read:/srv/mail\nweb")
    page.get_by_label("Hosts").fill("api.example.org")
    page.get_by_label("Variables").fill("WHO=ada=lovelace")
    page.get_by_label("Name", exact=True).fill("Taken")
    page.get_by_label("What it is for").fill("So that nothing is forgotten")
    page.get_by_label("If the house is closed at its time").select_option("run")
    page.get_by_label("The answer goes to").fill("none")
    page.get_by_label("Title of its conversation").fill("Evenings")
    page.get_by_role("button", name="Set it", exact=True).click()
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("there is a schedule 'Taken' already", ignore_case=True)
    expect(page.get_by_label("Name", exact=True)).to_have_attribute("aria-invalid", "true")
    page.get_by_label("Name", exact=True).fill("evening")
    page.get_by_label("Text").fill("Write down what happened.\nIn five lines.")
    page.get_by_role("button", name="Set it", exact=True).click()
    expect(page.get_by_role("heading", name="evening", level=1)).to_be_visible()

    kept = show(rim, "evening")
    assert page.url == f"{rim.address}/schedules/{kept['id']}"
    assert (kept["to"], kept["cron"], kept["zone"]) == ("agent:clerk", "30 21 * * *", "Europe/Berlin")
    assert (kept["place"], kept["missed"], kept["deliver"], kept["title"]) == ("own", "run", "none", "Evenings")
    assert kept["text"] == "Write down what happened.\nIn five lines."
    assert kept["gate"] == {
        "command": "test -s inbox.txt",
        "timeout_ms": 5000,
        "env": {"WHO": "ada=lovelace"},
        "permissions": ["read:/srv/mail", "web"],
        "domains": ["api.example.org"],
    }
    facts = page.get_by_role("region", name="What it does")
    expect(facts).to_contain_text("a conversation of its own, which remembers the times before")
    expect(facts).to_contain_text("it runs once, as soon as the house is open")
    expect(facts).to_contain_text("nobody")
    assert violations(page) == []
    front.complaints.clear()  # of the refusal, which was meant


def test_what_is_left_alone_stays_when_one_is_changed(front: Front, rim: Rim) -> None:
    made = add(rim, name="kept", every="2h", place="own", missed="run", gate={"command": "true", "cwd": "notes"})
    page = front.window(f"/schedules/{made['id']}/change")
    expect(preview(page)).to_contain_text("Every 2 hours")
    times = preview(page).locator("li > time")
    expect(times.first).to_have_attribute("datetime", made["next"])
    expect(page.get_by_role("button", name="Save")).to_be_disabled()
    page.get_by_label("Text").fill("echo good evening")
    page.get_by_role("button", name="Save").click()
    expect(page).to_have_url(f"{rim.address}/schedules/{made['id']}")
    now = show(rim, "kept")
    changed = {name for name in made if made[name] != now[name]}
    assert changed <= {"text", "updated-at", "envelope"} and now["text"] == "echo good evening"

    page.get_by_role("button", name="Change").click()
    page.get_by_label("by the calendar").check()
    page.get_by_label("Cron expression").fill("0 7 * * *")
    page.get_by_role("heading", name="Gate").click()
    page.get_by_label("Command").fill("")
    page.keyboard.press("Control+s")
    expect(page.get_by_role("region", name="Next times")).to_contain_text("At 07:00 every day")
    now = show(rim, "kept")
    assert (now["every"], now["cron"], now["gate"], now["missed"]) == ("", "0 7 * * *", None, "run")


def test_a_time_of_day_in_another_zone_is_another_time(front: Front, rim: Rim) -> None:
    made = add(rim, at="2031-05-17T20:30", zone="Europe/Berlin", text="echo party")
    page = front.window(f"/schedules/{made['id']}/change")
    expect(page.get_by_label("At", exact=True)).to_have_value("2031-05-17T20:30")
    page.get_by_label("Zone").fill("Asia/Tokyo")
    expect(preview(page)).to_contain_text("08:30")
    page.get_by_role("button", name="Save").click()
    expect(page).to_have_url(f"{rim.address}/schedules/{made['id']}")
    assert show(rim, made["id"])["at"] == "2031-05-17T20:30:00+09:00"


def test_a_certain_conversation_or_another_address_can_be_written_to(front: Front, rim: Rim) -> None:
    session = rim.do("session.create", agent="clerk", name="taxes")["sessionId"]
    page = front.window("/schedules/new")
    page.get_by_role("button", name="every morning").click()
    page.get_by_label("To", exact=True).select_option("agent:clerk")
    page.get_by_label("Where it is worked on").select_option("session")
    page.get_by_label("Text").fill("echo hello")
    expect(page.get_by_role("button", name="Set it", exact=True)).to_be_disabled()
    page.get_by_label("Conversation", exact=True).select_option("taxes")
    page.get_by_role("button", name="Set it, but off").click()
    expect(page.get_by_role("note")).to_contain_text("It is off")
    [kept] = rim.do("schedule.list")["schedules"]
    assert (kept["to"], kept["enabled"]) == (f"agent:clerk/{session}", False)
    page.get_by_role("button", name="Change").click()
    expect(page.get_by_label("Conversation", exact=True)).to_have_value(session)
    page.get_by_label("To", exact=True).select_option("another address…")
    page.get_by_label("Address").fill("nobody")
    page.get_by_role("status").get_by_role("button", name="Close").click()  # what was set is told over the button
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("alert")).to_contain_text("is not an address")
    page.get_by_label("Address").fill("person:owner")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("note")).to_contain_text("It is off")
    assert show(rim, kept["id"])["to"] == "person:owner"
    front.complaints.clear()  # of the refusal, which was meant


def test_what_one_typed_is_kept_when_it_is_changed_elsewhere(front: Front, rim: Rim) -> None:
    made = add(rim, name="both")
    page = front.window(f"/schedules/{made['id']}/change")
    page.get_by_label("Text").fill("mine")
    rim.do("schedule.set", schedule="both", cron="0 11 * * *")
    expect(page.get_by_text("It was changed elsewhere meanwhile.")).to_be_visible()
    expect(page.get_by_label("Cron expression")).to_have_value("0 11 * * *")
    expect(page.get_by_label("Text")).to_have_value("mine")
    page.get_by_role("button", name="Save").click()
    expect(page).to_have_url(f"{rim.address}/schedules/{made['id']}")
    now = show(rim, "both")
    assert (now["text"], now["cron"]) == ("mine", "0 11 * * *")


# --- run, switched, deleted, told of ---


def test_one_is_run_by_hand_and_by_force_and_a_skip_is_explained(front: Front, rim: Rim) -> None:
    busy = held_work(rim)
    made = add(rim, name="long", text=busy.text)
    page = front.window(f"/schedules/{made['id']}")
    expect(page.get_by_role("region", name="What became of it")).to_contain_text("It has not come yet.")
    page.get_by_role("button", name="Run now").click()
    expect(history(page)).to_have_count(1)
    expect(history(page).first).to_contain_text("at work")
    expect(history(page).first).to_contain_text("by hand")
    page.get_by_role("button", name="Run now").click()
    skipped = history(page).filter(has_text="skipped")
    expect(skipped).to_contain_text("The one before was not done:")
    expect(skipped).to_contain_text("is still being worked on")
    page.get_by_role("button", name="Run in any case").click()
    expect(history(page).filter(has_text="by hand, in any case")).to_have_count(1)
    busy.release()
    expect(history(page).filter(has_text="ran")).to_have_count(2)
    expect(history(page).filter(has_text="took")).to_have_count(2)
    assert [each["state"] for each in rim.do("schedule.history", schedule="long")["slots"]].count("ran") == 2
    assert violations(page) == []
    history(page).filter(has_text="took").first.get_by_role("button", name=re.compile("Why.*the time of")).click()
    expect(page.get_by_role("dialog")).to_contain_text("schedule")


def test_a_gate_that_says_no_is_told_and_force_goes_past_it(front: Front, rim: Rim) -> None:
    made = add(rim, name="gated", gate={"command": "exit 3"})
    page = front.window("/schedules")
    act(page, "gated", "Run now")
    expect(row(page, "gated")).to_contain_text("skipped")
    page.get_by_role("link", name="gated").click()
    expect(history(page).first).to_contain_text("Its gate said no:")
    expect(history(page).first).to_contain_text("exit 3")
    act(page, "gated", "Run now, in any case")
    expect(history(page).filter(has_text="ran")).to_have_count(1)
    assert show(rim, made["id"])["last"] == "ran"


def test_it_is_switched_off_and_on_and_deleted_when_asked_twice(front: Front, rim: Rim) -> None:
    made = add(rim, name="daily")
    page, other = front.window(f"/schedules/{made['id']}"), front.window("/schedules", size="phone")
    expect(page.get_by_role("region", name="Next times").locator("li")).to_have_count(5)
    act(page, "daily", "Disable")
    expect(page.get_by_role("note")).to_contain_text("It is off: disabled by person:owner.")
    expect(page.get_by_role("region", name="Next times").locator("li")).to_have_count(0)
    expect(other.get_by_text("does not come")).to_be_visible()
    page.get_by_role("note").get_by_role("button", name="Enable").click()
    expect(page.get_by_role("note")).to_have_count(0)
    assert show(rim, "daily")["enabled"]
    act(other, "daily", "Delete")
    dialog = other.get_by_role("dialog", name="Delete daily?")
    dialog.get_by_role("button", name="Cancel").click()
    assert show(rim, "daily")["enabled"]
    act(other, "daily", "Delete")
    dialog.get_by_role("button", name="Delete").click()
    expect(other.get_by_role("heading", name="Nothing is scheduled")).to_be_visible()
    expect(page.get_by_role("heading", name="There is no such schedule")).to_be_visible()
    assert rim.do("schedule.list")["schedules"] == []
    front.complaints.clear()  # of the refusal, which was meant


def test_a_member_sees_their_own_and_is_offered_no_gate(front: Front, rim: Rim) -> None:
    token = rim.member("maria")
    add(rim, name="of-the-owner")
    rim.do("schedule.add", as_=token, to="agent:guide", cron="0 8 * * *", text="echo hi", name="hers")
    page = front.window("/schedules")
    expect(row(page, "of-the-owner")).to_be_visible()
    expect(row(page, "hers")).to_be_visible()
    hers = front.window("/schedules")
    hers.get_by_role("button", name="You are owner").click()
    hers.get_by_role("menuitem", name="Sign out").click()
    hers.get_by_label("Code").fill(rim.do("token.code", as_=token)["code"])
    hers.get_by_role("button", name="Sign in").click()
    expect(row(hers, "hers")).to_be_visible()
    expect(row(hers, "of-the-owner")).to_have_count(0)
    hers.get_by_role("button", name="New schedule").click()
    expect(hers.get_by_label("Cron expression")).to_be_visible()
    expect(hers.get_by_role("heading", name="Gate")).to_have_count(0)


# --- the week ---


@pytest.mark.parametrize(("size", "theme"), LOOKS)
def test_the_week_shows_each_day_what_comes(front: Front, rim: Rim, size: str, theme: str) -> None:
    add(rim, name="daily", cron="30 23 * * *")
    add(rim, name="often", every="10m")
    add(rim, cron="45 23 * * *", text=HOSTILE)
    page = front.window("/schedules/week", size=size, theme=theme)  # pyright: ignore[reportArgumentType]
    week = page.get_by_role("region", name="The coming week")
    told = {each["name"]: each for each in rim.do("schedule.calendar")["coming"]}
    expect(week.get_by_role("link", name=re.compile("daily"))).to_have_count(len(told["daily"]["times"]))
    often = page.get_by_role("region", name="All through the week")
    expect(often).to_contain_text("Every 10 minutes")
    expect(week.get_by_text("often")).to_have_count(0)
    times = week.get_by_role("link", name=re.compile("daily")).locator("time")
    shown = times.evaluate_all("all => all.map(each => each.dateTime)")
    assert len(shown) >= 6
    assert shown == told["daily"]["times"]
    assert violations(page) == [] and not scrolls_sideways(page)
    rim.do("schedule.disable", schedule="daily")
    expect(week.get_by_role("link", name=re.compile("daily"))).to_have_count(0)
    often.get_by_role("link", name="often").click()
    expect(page.get_by_role("heading", name="often", level=1)).to_be_visible()


def test_a_full_day_is_folded_and_unfolded(front: Front, rim: Rim) -> None:
    for number in range(15):
        add(rim, name=f"n{number:02}", cron=f"{number} 12 * * *")
    page = front.window("/schedules/week")
    tomorrow = page.get_by_role("region", name="The coming week").locator(".day").nth(1)
    expect(tomorrow.get_by_role("link")).to_have_count(12)
    tomorrow.get_by_role("button", name="3 more").click()
    expect(tomorrow.get_by_role("link")).to_have_count(15)
    expect(tomorrow.get_by_role("button", name="Fewer")).to_be_focused()


# --- the heartbeat ---


def beat(page: Page, agent: str) -> Locator:
    return page.get_by_role("region", name=f"Heartbeat of {agent}")


def test_a_task_is_put_on_the_checklist_run_changed_and_taken_off(own_front: Front) -> None:
    front, rim = own_front, own_front.rim
    page = front.window("/schedules/heartbeat", polls=False)
    expect(page.get_by_role("heading", name="Nobody looks by itself")).to_be_visible()
    assert violations(page) == []
    rim.do("agent.set", name="guide", heartbeat_every_s=86_400)
    expect(beat(page, "guide")).to_contain_text("Every day")
    expect(beat(page, "guide")).to_contain_text("No tasks.")
    page.get_by_role("button", name="New task").click()
    dialog = page.get_by_role("dialog", name="New task")
    dialog.get_by_label("Agent").select_option("guide")
    dialog.get_by_label("Title").fill("Plants")
    expect(dialog.get_by_role("button", name="Put it on the checklist")).to_be_disabled()
    dialog.get_by_label("What is to be done").fill("echo they are thirsty")
    dialog.get_by_label("Id", exact=True).fill("../plants")
    assert violations(page) == []
    dialog.get_by_role("button", name="Put it on the checklist").click()
    expect(dialog.get_by_role("alert")).to_contain_text("cannot be the id of a task")
    dialog.get_by_label("Id", exact=True).fill("")
    dialog.get_by_role("button", name="Put it on the checklist").click()
    expect(dialog).to_have_count(0)
    task = beat(page, "guide").get_by_role("list", name="Tasks").get_by_role("listitem").filter(has_text="Plants")
    expect(task).to_contain_text("plants")
    shown = rim.do("heartbeat.show", agent="guide", id="plants")
    assert (shown["title"], shown["text"], shown["gate"]) == ("Plants", "echo they are thirsty", None)

    task.get_by_role("checkbox", name="Choose Plants").check()
    beat(page, "guide").get_by_role("button", name="Run 1 task now").click()
    expect(beat(page, "guide")).to_contain_text("ran")
    expect(task.get_by_role("checkbox")).not_to_be_checked()
    beat(page, "guide").get_by_role("link", name="What became of it").click()
    expect(page.get_by_role("heading", name="Heartbeat of guide", level=1)).to_be_visible()
    expect(history(page).first).to_contain_text("by hand")
    expect(history(page).filter(has_text="ran")).to_have_count(1)
    page.get_by_role("button", name="Checklist").click()

    task.get_by_role("button", name="What to do with Plants").click()
    page.get_by_role("menuitem", name="Change").click()
    dialog = page.get_by_role("dialog", name="Change Plants")
    expect(dialog.get_by_label("What is to be done")).to_have_value("echo they are thirsty")
    dialog.get_by_label("Gate").fill("exit 1")
    dialog.get_by_role("button", name="Save").click()
    expect(task).to_contain_text("with a gate")
    assert rim.do("heartbeat.show", agent="guide", id="plants")["gate"]["command"] == "exit 1"
    assert violations(page) == []

    task.get_by_role("button", name="What to do with Plants").click()
    page.get_by_role("menuitem", name="Delete").click()
    page.get_by_role("dialog", name="Delete Plants?").get_by_role("button", name="Delete").click()
    expect(beat(page, "guide")).to_contain_text("No tasks.")
    assert rim.do("heartbeat.list", agent="guide")["heartbeats"][0]["tasks"] == []
    front.complaints.clear()  # of the refusal, which was meant


def test_how_often_an_agent_looks_by_itself_is_set_where_it_is_edited(own_front: Front) -> None:
    front, rim = own_front, own_front.rim
    page = front.window("/agents/clerk")
    list_ = front.window("/schedules/heartbeat", size="phone", theme="dark", polls=False)  # it is told
    page.get_by_role("heading", name="When it looks by itself").click()
    page.get_by_label("Every so many seconds").fill("3600")
    page.get_by_label("Not before").fill("eight")
    expect(page.get_by_role("alert")).to_contain_text("must be a time of day")
    page.get_by_label("Not before").fill("08:00")
    page.get_by_label("Where it looks").select_option("main")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("region", name="Save")).to_have_count(0)
    kept = rim.do("agent.show", name="clerk")["heartbeat"]
    assert (kept["every_s"], kept["active_start"], kept["place"]) == (3600, "08:00", "main")
    assert violations(page) == []
    expect(beat(list_, "clerk")).to_contain_text("Every hour")
    assert violations(list_) == [] and not scrolls_sideways(list_)
    page.get_by_label("Every so many seconds").fill("")
    page.get_by_label("Not before").fill("")
    page.get_by_label("Where it looks").select_option("as the house has it")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("region", name="Save")).to_have_count(0)
    assert set(rim.do("agent.show", name="clerk")["heartbeat"].values()) == {None}
    front.complaints.clear()  # of the refusal, which was meant


# --- session policy ---


def test_when_an_agent_begins_afresh_is_set_where_it_is_edited(front: Front, rim: Rim) -> None:
    page = front.window("/agents/clerk")
    page.get_by_role("heading", name="When it begins afresh").click()
    daily = page.get_by_label("Every day at")
    expect(daily).to_have_attribute("placeholder", "as the house has it: 04:00")
    daily.fill("25:00")
    expect(page.get_by_role("alert")).to_contain_text("must be a time of day")
    expect(daily).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_role("button", name="Save")).to_be_disabled()
    daily.fill("06:30")
    page.get_by_label("After so many minutes without a word").fill("90")
    page.get_by_label("With so many tokens in the context").fill("60000")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("region", name="Save")).to_have_count(0)
    kept = rim.do("agent.show", name="clerk")["reset"]
    assert kept == {"daily_at": "06:30", "idle_minutes": 90, "context_tokens_max": 60_000}
    assert violations(page) == []
    page.get_by_role("heading", name="When it begins afresh").click()
    expect(page.locator("summary").filter(has_text="When it begins afresh")).to_contain_text("every day at 06:30")
    page.get_by_role("heading", name="When it begins afresh").click()
    for label in ("Every day at", "After so many minutes without a word", "With so many tokens in the context"):
        page.get_by_label(label).fill("")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("region", name="Save")).to_have_count(0)
    kept = rim.do("agent.show", name="clerk")["reset"]
    assert kept == {"daily_at": None, "idle_minutes": None, "context_tokens_max": None}
    front.complaints.clear()  # of the refusal, which was meant
